#!/usr/bin/env bash
# A real task mixture on one card: supervised tokens/s of dynamic microbatches against packed, packed-ragged and padded, the same
# model and data in turn; predicted against measured step time and memory. Prints Markdown. Called by dev/gpu_check.sh.
#   TRAINER=build/release-cuda-bf16/train_gpt2-dynapipe PROFILER=.../profile_costs DATA=train.bin WORK=out/mixture \
#   MODELS="d12 d24" LONGEST="2048 8192" BATCH=131072 MB_TOKENS=16384 STEPS=10 RUN_SECONDS=30 dev/cuda_bench/mixture.sh
# MB_TOKENS: what a microbatch of the three baselines holds (dynamic chooses by the card's memory and times).
# A run that fails or takes longer than RUN_SECONDS leaves an empty row; status 1 then.
. "$(dirname "$0")/../help.sh"
set -u
: "${TRAINER:?}" "${PROFILER:?}" "${DATA:?}" "${WORK:?}"
models=${MODELS:-d12 d24} lengths=${LONGEST:-2048 8192} batch=${BATCH:-131072} steps=${STEPS:-10} limit_s=${RUN_SECONDS:-30}
mb_tokens=${MB_TOKENS:-16384} vocab=${VOCAB:-50257} profile_s=${PROFILE_SECONDS:-10}
policies="dynamic packed-ragged packed padded"
launcher=()
command -v mpirun >/dev/null && launcher=(mpirun --quiet -np 1)
failed=0
mkdir -p "$WORK"

field() { sed -nE 's/.*"'"$2"'":\[?([-0-9.e+]+).*/\1/p' "$WORK/$1/metrics.jsonl" 2>/dev/null | tail -n +3; }
median() { sort -g | awk '{a[NR] = $1} END {if (NR) print NR % 2 ? a[(NR + 1) / 2] : (a[NR / 2] + a[NR / 2 + 1]) / 2}'; }
largest() { sort -g | tail -1; }
rates() { paste <(field "$1" "$2") <(field "$1" step_ms) | awk '$2 > 0 {print $1 * 1e3 / $2}'; }
# Percent of what was predicted, + where steps took longer: all of it, and of jobs, transfers, waiting.
errors() { paste <(field "$1" predicted_ms) <(field "$1" step_ms) | awk '$1 > 0 {print 100 * ($2 / $1 - 1)}'; }
part() { paste <(field "$1" predicted_ms) <(field "$1" "${2}_off_ms") | awk '$1 > 0 {print 100 * $2 / $1}'; }

run() {  # name, options...
    local name=$1
    shift
    rm -rf "${WORK:?}/$name"
    mkdir -p "$WORK/$name"
    timeout -k 5 "$limit_s" "${launcher[@]}" "$TRAINER" -i "$DATA" -d "$batch" -x "$steps" -v 0 -s 0 -n 0 -o "$WORK/$name" "$@" >"$WORK/$name.log" 2>&1
    local rc=$?
    rm -f "$WORK/$name"/*.bin  # the checkpoint at the end
    [ $rc -eq 0 ] || { echo "mixture: $name: exit status $rc: $(tail -1 "$WORK/$name.log")" >&2; failed=1; }
}

echo "## Mixture of tasks, one card"
echo
echo "$(basename "$TRAINER"), $batch tokens a step, $steps steps (the first two uncounted), medians; baselines' microbatches hold $mb_tokens tokens."
for model in $models; do
    for longest in $lengths; do
        costs=$WORK/costs-$model-$longest.txt
        timeout -k 5 $((3 * limit_s)) "${launcher[@]}" "$PROFILER" --model "$model" --tokens "$longest" --vocab "$vocab" --seconds "$profile_s" --out "$costs" \
            >"$WORK/profile-$model-$longest.log" 2>&1 || { echo "mixture: no profile of $model: $(tail -1 "$WORK/profile-$model-$longest.log")" >&2; failed=1; continue; }
        echo
        echo "### $model, longest $longest"
        echo
        echo "| batching | supervised tokens/s | dynamic is faster by | all tokens/s | padding | step time beyond prediction (median) | of it jobs, transfers, waiting | memory: predicted, GB | measured | off by |"
        echo "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
        dynamic=
        for policy in $policies; do
            name=$model-$longest-$policy
            extra=()
            [ "$policy" = dynamic ] || extra=(--mb-tokens $((mb_tokens > longest ? mb_tokens : longest)))
            run "$name" -e "$model" -t "$longest" --costs "$costs" --batching "$policy" "${extra[@]}"
            rate=$(rates "$name" supervised_tokens | median)
            [ "$policy" = dynamic ] && dynamic=$rate
            awk -v p="$policy" -v r="${rate:-0}" -v d="${dynamic:-0}" -v all="$(rates "$name" total_tokens | median)" \
                -v t="$(field "$name" total_tokens | median)" -v c="$(field "$name" computed_tokens | median)" -v e="$(errors "$name" | median)" \
                -v jobs="$(part "$name" jobs | median)" -v moves="$(part "$name" transfers | median)" -v waits="$(part "$name" waiting | median)" \
                -v peak="$(field "$name" peak_bytes | largest)" -v used="$(field "$name" rss_bytes | largest)" 'BEGIN {
                    if (!r) { printf "| %s | | | | | | | | | |\n", p; exit }
                    printf "| %s | %.0f | %.2f x | %.0f | %.1f %% | %+.1f %% | %+.1f, %+.1f, %+.1f %% | %.2f |", p, r, d / r, all, c ? 100 * (1 - t / c) : 0, e, jobs, moves, waits, peak / 1e9
                    if (used > 0) printf " %.2f | %+.1f %% |\n", used / 1e9, 100 * (peak / used - 1); else printf " | |\n"
                }'
        done
    done
done
exit $failed
