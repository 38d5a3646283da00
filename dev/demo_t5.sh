#!/usr/bin/env bash
# make run-t5: set up, build, make a small task mixture, train a small ByT5-shaped model (bytes in, bytes out) on a pipeline
# from scratch until it answers, ask it, and write it as Hugging Face's transformers loads it. DATA="path/*.jsonl" for your own
# data; STEPS, MODEL, RANKS, TOKENS, TARGET_TOKENS (longest input and target), BATCH_TOKENS, RUN_DIR are further wishes.
. "$(dirname "$0")/help.sh"
. "$(dirname "$0")/demo_lib.sh"
# 2 stages, and as many replicas as there are cores for them
ranks=${RANKS:-$((cores < 4 ? 2 : cores < 8 ? 4 : 8))}
steps=${STEPS:-320} model=${MODEL:-byt5:l2c128h4} tokens=${TOKENS:-512} targets=${TARGET_TOKENS:-64} batch=${BATCH_TOKENS:-4096}
out=${RUN_DIR:-out/demo-t5}
data=$out-data
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((cores > ranks ? cores / ranks : 1))}

set_up_and_build
mkdir -p "$out" "$data"
if [ -n "${DATA:-}" ]; then
    say "Data: $DATA, as ByT5's bytes"
    # shellcheck disable=SC2086
    ./prepare_data --tokenizer byt5 --out "$data" $DATA
else
    say "Data: made-up tasks with answers to learn, as ByT5's bytes"
    make_easy_tasks "$data" 30000 240 "$tokens"
    ./prepare_data --tokenizer byt5 --out "$data" "$data/tasks.jsonl"
fi

say "Measure what the model's layers cost on this machine"
dynapipe_plugin/mpirun.sh -np "$ranks" ./profile_costs --model "$model" --tokens "$tokens" --target-tokens "$targets" --vocab 384 \
    --out "$out/costs.txt" | tail -2

say "Train $steps steps on $ranks ranks, 2 stages: the encoder's layers come first, then the decoder's"
say_if_busy "steps take longer than planned, as their lines say"
validation=()
if ls "$data"/val*.bin >/dev/null 2>&1; then validation=(-j "$data/val*.bin" --answers 16); fi
dynapipe_plugin/mpirun.sh -np "$ranks" ./train_t5 -i "$data/train*.bin" "${validation[@]}" -e "$model" -t "$tokens" --target-tokens "$targets" -d "$batch" \
    -x "$steps" --optimizer adamw-scaled -l 2e-2 -u 40 -q 0.05 -z 1 --stages 2 --costs "$out/costs.txt" -o "$out" --overwrite 1 \
    -v $((steps / 4)) -m 64 -s "$([ -n "${DATA:-}" ] && echo "$steps" || echo 0)" -g 40 --export-hf "$out/hf" | few_steps 40

if [ -z "${DATA:-}" ]; then
    say "Ask it what the training data has not got in these words"
    ask "$out" "$data/questions.jsonl"
fi

say "Done in $SECONDS s"
echo "$out: metrics.jsonl (losses, exact match and ROUGE-L by task), main.log, costs.txt, a checkpoint;"
echo "$out/hf: the model for transformers"
echo "Next: ./generate $out; fine-tune a FLAN-T5: ./train_t5 -e DIRECTORY of its files (README)"
echo "      DATA='path/*.jsonl' make run-t5, with lines {\"task\", \"inputs\", \"targets\"}"
