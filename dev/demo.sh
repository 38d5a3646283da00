#!/usr/bin/env bash
# make run: set up, build, make a small task mixture, train a small GPT-2 on 4 ranks (2 stages x 2 replicas), and compare
# dynamic micro-batches with packing and padding on the same data, model and ranks. DATA="path/*.jsonl" for your own data.
set -eu
cd "$(dirname "$0")/.."
. dev/mpi_env.sh
steps=${STEPS:-60} compare_steps=${COMPARE_STEPS:-8} model=${MODEL:-l4c128h4} tokens=${TOKENS:-1024} out=${OUT:-out/demo}

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }

dev/setup.sh
say "building"
make -s -j"$(nproc)" programs

mkdir -p data out
if [ -n "${DATA:-}" ]; then
    say "your data: $DATA"
    # shellcheck disable=SC2086
    ./prepare_data --out data/demo $DATA
else
    say "a mixture of made-up tasks: most samples short, a heavy tail (data/tasks.jsonl)"
    [ -e data/tasks.jsonl ] || ./make_tasks --out data/tasks.jsonl --samples 20000 >/dev/null
    ./prepare_data --out data/demo data/tasks.jsonl
fi

flags=(-i 'data/demo/train*.bin' -e "$model" -t "$tokens" -d 8192 -z 1)
say "training on 4 ranks: 2 stages x 2 replicas"
rm -rf "$out"
mpirun -np 4 ./train_gpt2 "${flags[@]}" -j 'data/demo/val*.bin' -x "$steps" -l 2e-3 -u 10 -q 0.1 -o "$out" \
    -v $((steps / 3)) -m 2 -s "$steps" -g 24 --stages 2 --print-plan --show-step 3

say "loss per task, mean of the first and last 5 steps"
dev/task_losses.sh "$out/metrics.jsonl"

say "the same data, model and ranks with other ways to form micro-batches ($compare_steps steps each)"
printf '%-15s %14s %14s %9s %9s %14s\n' batching 'supervised/s' 'tokens/s' padding idle 'vs padded'
declare -A speed
for batching in padded packed packed-ragged dynamic; do
    log=out/compare-$batching.log
    rm -rf "out/compare-$batching"
    if ! mpirun -np 4 ./train_gpt2 "${flags[@]}" -x "$compare_steps" -v 0 -s 0 -o "out/compare-$batching" --stages 2 \
            --batching $batching >"$log" 2>&1; then
        tail -3 "$log"
        exit 1
    fi
    read -r supervised total padding idle < <(awk -F'[| ]+' '/^step/ {
            for (i = 1; i <= NF; i++) {
                if ($i == "supervised,") s = $(i - 2); if ($i == "total") t = $(i - 2)
                if ($i == "pad") p = $(i + 1); if ($i == "idle") d = $(i + 1) }
            if (++n > 2) {ss += 1 / s; tt += 1 / t; pp += p; dd += d; m++} }
        END {printf "%.0f %.0f %.1f%% %.1f%%\n", m / ss, m / tt, pp / m, dd / m}' "$log")
    speed[$batching]=$supervised
    printf '%-15s %14s %14s %9s %9s %13sx\n' $batching "$supervised" "$total" "$padding" "$idle" \
        "$(awk -v a="$supervised" -v b="${speed[padded]}" 'BEGIN {printf "%.2f", a / b}')"
done
say "$out has main.log, metrics.jsonl and a checkpoint; ./train_gpt2 --help lists every option"
