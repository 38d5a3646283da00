#!/usr/bin/env bash
# make run: set up, build, make a small task mixture, train a small GPT-2 on a pipeline (2 ranks; 4 as 2 stages x 2 replicas where
# there are 4 cores) until it answers, ask it, and compare dynamic microbatches with packing and padding on the same data and
# ranks. DATA="path/*.jsonl" for your own data; RANKS, STEPS, COMPARE_STEPS, MODEL, TOKENS (longest sample),
# BATCH_TOKENS, RUN_DIR are further wishes.
. "$(dirname "$0")/help.sh"
. "$(dirname "$0")/demo_lib.sh"
# as many ranks as there are cores for: where ranks take turns on a core, one's idle time is another's
ranks=${RANKS:-$((cores < 4 ? 2 : 4))}
steps=${STEPS:-600} compare_steps=${COMPARE_STEPS:-5} model=${MODEL:-l2c128h4} tokens=${TOKENS:-1024} batch=${BATCH_TOKENS:-2048}
out=${RUN_DIR:-out/demo}
compare_model=${MODEL:-l4c128h4}  # of the same layers, for the table of batchings
compare=$out-compare data=$out-data
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((cores > ranks ? cores / ranks : 1))}

set_up_and_build
mkdir -p "$out" "$compare" "$data"
if [ -n "${DATA:-}" ]; then
    say "Data: $DATA, as bytes"
    # shellcheck disable=SC2086
    ./prepare_data --out "$data" $DATA
else
    say "Data: made-up tasks with answers to learn, most samples short, a few very long; as bytes"
    make_easy_tasks "$data" 30000 240 2000
    ./prepare_data --out "$data" "$data/tasks.jsonl"
fi

flags=(-i "$data/train*.bin" -t "$tokens" -z 1 --stages 2 --costs "$out/costs.txt")
say "Measure what the model's layers cost on this machine"
dynapipe_plugin/mpirun.sh -np "$ranks" ./profile_costs --model "$model" --tokens "$tokens" --vocab 257 --out "$out/costs.txt" | tail -2

say "Train $steps steps on $ranks ranks: a pipeline of 2 stages$([ "$ranks" -lt 4 ] || echo ", $((ranks / 2)) times")"
say_if_busy "steps take longer than planned, as their lines say"
validation=()
if ls "$data"/val*.bin >/dev/null 2>&1; then validation=(-j "$data/val*.bin"); fi
dynapipe_plugin/mpirun.sh -np "$ranks" ./train_gpt2 "${flags[@]}" "${validation[@]}" -e "$model" -d "$batch" -x "$steps" -l 4e-3 -u 40 -q 0.1 \
    -o "$out" --overwrite 1 -v $((steps / 2)) -m 64 -s "$([ -n "${DATA:-}" ] && echo "$steps" || echo 0)" -g 32 \
    --debug print-plan --show-step 3 | few_steps 50

say "Loss per task: the mean of the first 5 steps, of the last 5, and what is left"
dev/task_losses.sh "$out/metrics.jsonl"

if [ -z "${DATA:-}" ]; then
    say "Ask it what the training data has not got in these words"
    ask "$out" "$data/questions.jsonl"
fi

say "Ways to form microbatches: same data, model ($compare_model), $ranks ranks; 2 x $compare_steps steps of 8192 tokens"
say_if_busy "the table says little; again on a quiet machine"
for round in 1 2; do
    for batching in dynamic packed-ragged packed padded; do
        log=$compare/$batching.$round.log
        if ! dynapipe_plugin/mpirun.sh -np "$ranks" ./train_gpt2 "${flags[@]}" -e "$compare_model" -d 8192 -x "$compare_steps" -v 0 -s 0 \
                -o "$compare/$batching" --overwrite 1 --batching $batching >"$log" 2>&1; then
            tail -3 "$log"
            exit 1
        fi
        mv "$compare/$batching/metrics.jsonl" "$compare/$batching.$round.jsonl"
        rm -rf "${compare:?}/$batching"
    done
done
dev/compare_table.sh "$compare" dynamic packed-ragged packed padded
echo "(supervised: the tokens that carry the loss; packed attends across the samples of a window,"
echo "so it learns something else)"

say "Done in $SECONDS s"
echo "$out: metrics.jsonl, main.log, costs.txt, a checkpoint that llm.c reads, its tokenizer"
echo "Next: ./generate $out; ./train_gpt2 --help"
echo "      DATA='path/*.jsonl' make run, with lines {\"task\", \"inputs\", \"targets\"}"
