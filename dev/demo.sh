#!/usr/bin/env bash
# make run: set up, build, make a small task mixture, train a small GPT-2 on 4 ranks (2 stages x 2 replicas), and compare
# dynamic micro-batches with packing and padding on the same data, model and ranks. DATA="path/*.jsonl" for your own data;
# STEPS, COMPARE_STEPS, MODEL, TOKENS (longest sample), RUN_DIR are further wishes.
set -eu
cd "$(dirname "$0")/.."
. dev/mpi_env.sh
steps=${STEPS:-50} compare_steps=${COMPARE_STEPS:-5} model=${MODEL:-l4c128h4} tokens=${TOKENS:-1024} out=${RUN_DIR:-out/demo}
compare=$out-compare data=$out-data

part=0
say() {
    part=$((part + 1))
    if [ -t 1 ]; then printf '\n\033[1m%d. %s\033[0m\n' $part "$*"; else printf '\n%d. %s\n' $part "$*"; fi
}

dev/setup.sh
say "Build"
begin=$SECONDS
make -s -j"$(nproc)" programs >/dev/null
echo "./train_gpt2, ./prepare_data, ./profile_costs, ./make_tasks in $((SECONDS - begin)) s"

mkdir -p "$out" "$compare" "$data"
if [ -n "${DATA:-}" ]; then
    say "Data: $DATA, as bytes"
    # shellcheck disable=SC2086
    ./prepare_data --out "$data" $DATA
else
    say "Data: made-up tasks with answers to learn, most samples short, a few very long; as bytes"
    [ -e "$data/tasks.jsonl" ] || ./make_tasks --out "$data/tasks.jsonl" --samples 20000 >/dev/null
    ./prepare_data --out "$data" "$data/tasks.jsonl"
fi

flags=(-i "$data/train*.bin" -e "$model" -t "$tokens" -d 8192 -z 1 --stages 2 --costs "$out/costs.txt")
# the table needs ranks with a core each: where ranks take turns on a core, one's idle time is another's
cores=$(nproc) ranks=$(($(nproc) < 4 ? 2 : 4))
say "Measure what the model's layers cost on this machine"
dynapipe_plugin/mpirun.sh -np "$ranks" ./profile_costs --model "$model" --tokens "$tokens" --vocab 257 --threads $((cores < 4 ? 1 : cores / 4)) \
    --out "$out/costs.txt" | tail -2

say "Train $steps steps on 4 ranks: a pipeline of 2 stages, twice"
validation=()
if ls "$data"/val*.bin >/dev/null 2>&1; then validation=(-j "$data/val*.bin"); fi
dynapipe_plugin/mpirun.sh -np 4 ./train_gpt2 "${flags[@]}" "${validation[@]}" -x "$steps" -l 2e-3 -u 10 -q 0.1 -o "$out" --overwrite 1 \
    -v $((steps / 2)) -m 2 -s "$steps" -g 32 --print-plan --show-step 3

say "Loss per task: the mean of the first 5 steps, of the last 5, and what is left"
dev/task_losses.sh "$out/metrics.jsonl"

say "Ways to form micro-batches: same data, same model, same $ranks ranks, 2 x $compare_steps steps each"
for round in 1 2; do
    for batching in dynamic packed-ragged packed padded; do
        log=$compare/$batching.$round.log
        if ! dynapipe_plugin/mpirun.sh -np "$ranks" ./train_gpt2 "${flags[@]}" -x "$compare_steps" -v 0 -s 0 -o "$compare/$batching" --overwrite 1 \
                --batching $batching >"$log" 2>&1; then
            tail -3 "$log"
            exit 1
        fi
        mv "$compare/$batching/metrics.jsonl" "$compare/$batching.$round.jsonl"
        rm -rf "${compare:?}/$batching"
    done
done
dev/compare_table.sh "$compare" dynamic packed-ragged packed padded
echo "(supervised: the tokens that carry the loss; packed attends across the samples of a window, so it learns something else)"

say "Done in $SECONDS s"
echo "$out: metrics.jsonl, main.log, costs.txt, and a checkpoint that llm.c reads"
echo "Next: DATA='path/*.jsonl' make run, with lines {\"task\", \"inputs\", \"targets\"}; or ./train_gpt2 --help"
