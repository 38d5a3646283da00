#!/usr/bin/env bash
# Dynamic microbatches against DynaPipe's, packing and padding on a pipeline of ranks, real task mixture: tokens/s, predicted
# against measured step time, stages chosen, what planning in the background costs. Writes dev/results/pipeline.md (2 stages),
# pipeline4.md (4) and so on; of a T5 pipeline_t5.md, pipeline4_t5.md.
#   STAGES=2 LENGTHS="2048 4096" MODEL=l8c256h4 BATCH=16384 STEPS=4 ROUNDS=2 POLICIES="dynamic packed-ragged packed padded kk" dev/bench_pipeline.sh
#   MODEL=t5:l4c256h4 LENGTHS="1024+256 4096+512" STEPS=3 dev/bench_pipeline.sh          inputs + targets; T5 takes some 10 minutes on 2 cores
# TOKENIZER=gpt2|byt5 (bytes: texts four times as long)  SHARED=../shared: where data/*.jsonl and tokenizer/ are; without them the built-in tasks
. "$(dirname "$0")/help.sh"
set -eu
cd "$(dirname "$0")/.."
. dev/mpi_env.sh
model=${MODEL:-l8c256h4} batch=${BATCH:-16384} rounds=${ROUNDS:-2} stages=${STAGES:-2}
case $model in
    *:*)
        trainer=train_t5 kind=_t5 input_end=eos bytes=byt5
        lengths=${LENGTHS:-1024+256 4096+512} steps=${STEPS:-3} policies=${POLICIES:-dynamic dynapipe dynapipe-padded packed-ragged packed padded}
        ;;
    *)
        trainer=train_gpt2 kind='' input_end=newline bytes=bytes
        lengths=${LENGTHS:-2048 4096} steps=${STEPS:-4} policies=${POLICIES:-dynamic packed-ragged packed padded kk}
        ;;
esac
cores=$(getconf _NPROCESSORS_ONLN)
out=out/bench result=dev/results/pipeline$stages$kind.md
[ "$stages" -ne 2 ] || result=dev/results/pipeline$kind.md
make -s programs
mkdir -p $out dev/results

. dev/task_data.sh
task_data $out "${TOKENIZER:-gpt2}" $input_end $bytes

train() {  # name, options: metrics in $out/name/metrics.jsonl
    local name=$1
    shift
    rm -rf "${out:?}/$name"
    mkdir -p "$out/$name"
    timeout -k 10 1200 dynapipe_plugin/mpirun.sh -np "$stages" ./$trainer -i "$data/train.bin" -e "$model" -d "$batch" -v 0 -s 0 --stages "$stages" \
        -o "$out/$name" -n 0 --debug dump-plan="$out/$name/plan.txt" --show-step "$steps" "$@" >"$out/$name.log" 2>&1 || { tail -5 "$out/$name.log"; exit 1; }
    rm -f "$out/$name"/*.bin
}
batching() {  # policy: the trainer's options
    case $1 in
        before) echo --batching dynamic --debug plan-before ;;
        *-padded) echo --batching "${1%-padded}" --layout padded ;;
        *) echo --batching "$1" ;;
    esac
}

# Field of every step but the first of a run (buffers grow there), one a line.
field() { sed -nE 's/.*"'"$2"'":([-0-9.e+]+).*/\1/p' "$out/$1/metrics.jsonl" | tail -n +2; }
median() { sort -g | awk '{a[NR] = $1} END {print NR % 2 ? a[(NR + 1) / 2] : (a[NR / 2] + a[NR / 2 + 1]) / 2}'; }
rates() { paste <(field "$1" total_tokens) <(field "$1" step_ms) | awk '{print $1 * 1e3 / $2}'; }
# Stages and, of the last step's plan, backward passes and those with weight gradients as jobs of their own.
split() {
    local plan=$out/$1/plan.txt
    printf '%s: %s layers, %d of %d backward passes split' "$2" "$(sed -nE 's/^stages: ([^ ]+) .*/\1/p' "$out/$1.log")" \
        "$(grep -cE '^ *wgt' "$plan")" "$(grep -cE '^ *bwd' "$plan")"
}
# Percent of what was predicted, + where steps took longer: all of it, without sign, and of jobs, transfers, waiting.
errors() { paste <(field "$1" predicted_ms) <(field "$1" step_ms) | awk '{print 100 * ($2 / $1 - 1)}'; }
sizes() { errors "$1" | tr -d -; }
part() { paste <(field "$1" predicted_ms) <(field "$1" "${2}_off_ms") | awk '{print 100 * $2 / $1}'; }

{
    echo "# Pipeline of $stages ranks on one machine"
    echo
    echo "\`${MODEL:+MODEL=$model }dev/bench_pipeline.sh\` at commit $(git rev-parse --short HEAD): $model, V $vocab, $batch tokens a step, $stages stages, one thread a rank,"
    echo "$rounds interleaved rounds of $steps steps, the first of each left out. Data: $about."
    echo "Machine: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $cores cores, load $(cut -d' ' -f1 /proc/loadavg) at the start."
    if [ "$stages" -gt "$cores" ]; then
        echo
        echo "$stages ranks share $cores cores: idle time of one rank is compute time of another, so this shows work saved, not idle time saved; predictions"
        echo "are for the cores there are."
    fi
} >$result.tmp

for longest in $lengths; do
    target=${longest#*+} options=(-t "${longest%+*}")
    profile=(--model "$model" --tokens "${longest%+*}" --vocab $vocab --seconds "${PROFILE_SECONDS:-8}" --out $out/costs-"$longest$kind".txt)
    if [ -n "$kind" ]; then options+=(--target-tokens "$target") profile+=(--target-tokens "$target"); fi
    dynapipe_plugin/mpirun.sh -np $((stages < cores ? stages : cores)) ./profile_costs "${profile[@]}" >$out/profile-"$longest$kind".log
    for round in $(seq "$rounds"); do
        for policy in $policies $([ -n "$kind" ] || echo before); do
            # shellcheck disable=SC2046
            train "$longest-$policy-$round" "${options[@]}" -x "$steps" --costs $out/costs-"$longest$kind".txt $(batching "$policy")
            echo "longest $longest, round $round, $policy: $(rates "$longest-$policy-$round" | median) tokens/s"
        done
    done
    all() { for round in $(seq "$rounds"); do "$1" "$longest-$2-$round" ${3:-}; done; }
    dynamic=$(all rates dynamic | median)
    {
        echo
        echo "## Longest ${longest/+/ + }"
        echo
        echo "| batching | tokens/s | dynamic is faster by | padding | step time beyond prediction (median) | without sign | jobs | transfers | waiting |"
        echo "|---|---|---|---|---|---|---|---|---|"
        for policy in $policies; do
            rate=$(all rates "$policy" | median)
            padding=$(paste <(all field "$policy" total_tokens) <(all field "$policy" computed_tokens) | awk '{t += $1; c += $2} END {printf "%.1f %%", 100 * (1 - t / c)}')
            awk -v p="$policy" -v r="$rate" -v d="$dynamic" -v pad="$padding" -v e="$(all errors "$policy" | median)" -v size="$(all sizes "$policy" | median)" \
                -v jobs="$(all part "$policy" jobs | median)" -v moves="$(all part "$policy" transfers | median)" -v waits="$(all part "$policy" waiting | median)" \
                'BEGIN {printf "| %s | %.0f | %.2f x | %s | %+.1f %% | %.1f %% | %+.1f %% | %+.1f %% | %+.1f %% |\n", p, r, d / r, pad, e, size, jobs, moves, waits}'
        done
        echo
        if [ -z "$kind" ]; then
            awk -v a="$(all field dynamic step_ms | median)" -v b="$(all field before step_ms | median)" 'BEGIN {
                printf "Planning in the background: median step %.1f ms; with all plans made before the first step %.1f ms (ratio %.4f).\n", a, b, a / b}'
        fi
        awk -v p="$(all field dynamic plan_ms | median)" -v w="$(all field dynamic plan_wait_ms | median)" 'BEGIN {
            printf "A plan takes %.1f ms of a core; steps wait %.3f ms for it (median).\n", p, w}'
        echo "$(split "$longest-dynamic-$rounds" dynamic); $(split "$longest-packed-ragged-$rounds" packed-ragged)."
    } >>$result.tmp
done
mv $result.tmp $result
cat $result
