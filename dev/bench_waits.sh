#!/usr/bin/env bash
# Two real ranks: idle time against the plan's, and dynamic against packed-ragged, with messages that a thread moves and messages that
# wait for their receiver; interleaved. MESSAGES: as in a cost file, a thread that looks every 1000000 ns, or 2, pulled. Wants two quiet cores, takes about 20 minutes. Prints a table.
#   MODEL=l8c256h4 BATCH=16384 LONGEST=2048 STEPS=10 SKIP=5 ROUNDS=3 MESSAGES="1000000 2" POLICIES="dynamic packed-ragged" SHARED=../shared dev/bench_waits.sh
# SHARED: as in dev/task_data.sh.
. "$(dirname "$0")/help.sh"
set -eu
cd "$(dirname "$0")/.."
. dev/mpi_env.sh
. dev/task_data.sh
export OMP_NUM_THREADS=1
model=${MODEL:-l8c256h4} batch=${BATCH:-16384} longest=${LONGEST:-2048} steps=${STEPS:-10} skip=${SKIP:-5} rounds=${ROUNDS:-3}
messages=${MESSAGES:-1000000 2} policies=${POLICIES:-dynamic packed-ragged}
out=out/bench-waits
make -s programs
task_data $out gpt2 newline bytes

# Field of every step but the first of a run, in which memory still grows, one a line.
field() { sed -nE 's/.*"'"$2"'":([-0-9.e+]+).*/\1/p' "$out/$1/metrics.jsonl" | tail -n +$((skip + 1)); }
idle() { sed -nE 's/^ .* idle +([0-9.]+)% \(plan +([0-9.]+)%\).*/\'"$2"'/p' "$out/$1.log" | tail -n +$((skip + 1)); }  # 1: measured, 2: planned
median() { sort -g | awk '{a[NR] = $1} END {print NR % 2 ? a[(NR + 1) / 2] : (a[NR / 2] + a[NR / 2 + 1]) / 2}'; }
all() { for round in $(seq "$rounds"); do "$1" "$2-$round" "$3"; done; }

dynapipe_plugin/mpirun.sh -np 2 ./profile_costs --model "$model" --tokens "$longest" --vocab $vocab --seconds "${PROFILE_SECONDS:-8}" \
    --out $out/costs.txt >$out/profile.log
for round in $(seq "$rounds"); do
    for how in $messages; do
        sed -E "s/^(measured .* targets [0-9]+).*/\\1 messages $how/" $out/costs.txt >$out/costs-$how.txt
        for policy in $policies; do
            name=$policy-$how-$round
            rm -rf "${out:?}/$name"
            timeout -k 10 1200 dynapipe_plugin/mpirun.sh -np 2 ./train_gpt2 -i "$data/train.bin" -e "$model" -t "$longest" -d "$batch" -v 0 -s 0 \
                -x "$steps" -n 0 --stages 2 --costs $out/costs-$how.txt --batching "$policy" -o "$out/$name" \
                --trace "$out/$name.json" --debug dump-plan="$out/$name.plan" --show-step "$steps" --verbose >"$out/$name.log" 2>&1 || { tail -5 "$out/$name.log"; exit 1; }
            rm -f "$out/$name"/*.bin
            echo "round $round: $policy, messages $how: $(grep -m1 '^messages' "$out/$name.log")" >&2
        done
    done
done

echo "$model, V $vocab, $batch tokens a step, longest $longest, 2 ranks, one thread each, $rounds rounds of $steps steps, the first $skip of each left out"
echo
echo "| batching | messages | tokens/s | dynamic is faster by | idle | planned | first step / median |"
echo "|---|---|---|---|---|---|---|"
for how in $messages; do
    for policy in $policies; do
        run=$policy-$how
        ms=$(all field "$run" step_ms | median)
        first=$(for round in $(seq "$rounds"); do sed -nE 's/.*"step_ms":([-0-9.e+]+).*/\1/p' "$out/$run-$round/metrics.jsonl" | head -1; done | median)
        awk -v p="$policy" -v h="$how" -v r="$(paste <(all field "$run" total_tokens) <(all field "$run" step_ms) | awk '{print $1 * 1e3 / $2}' | median)" \
            -v d="$(paste <(all field "dynamic-$how" total_tokens) <(all field "dynamic-$how" step_ms) | awk '{print $1 * 1e3 / $2}' | median)" \
            -v i="$(all idle "$run" 1 | median)" -v q="$(all idle "$run" 2 | median)" -v f="$first" -v m="$ms" \
            'BEGIN {printf "| %s | %s | %.0f | %.2f x | %.1f %% | %.1f %% | %.2f |\n", p, h, r, d / r, i, q, f / m}'
    done
done
