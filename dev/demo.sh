#!/usr/bin/env bash
# make run, make run-t5 (dev/demo.sh t5): set up, build, make a small task mixture, train a small GPT-2 or a ByT5-shaped model
# (bytes in, bytes out) on a pipeline until it answers, ask it, and compare dynamic microbatches with packing and padding on the
# same data and ranks (T5: write it as Hugging Face's transformers loads it). DATA="path/*.jsonl" for your own data; RANKS, STEPS,
# COMPARE_STEPS, MODEL, TOKENS, TARGET_TOKENS (longest sample, target), BATCH_TOKENS, RUN_DIR are further wishes.
. "$(dirname "$0")/help.sh"
set -eu -o pipefail
cd "$(dirname "$0")/.."
. dev/mpi_env.sh
kind=${1:-gpt2} cores=$(nproc) part=0
# as many ranks as there are cores for: where ranks take turns on a core, one's idle time is another's
ranks=${RANKS:-$((cores < 4 ? 2 : 4))}
if [ "$kind" = t5 ]; then
    steps=${STEPS:-320} model=${MODEL:-byt5:l2c128h4} tokens=${TOKENS:-512} batch=${BATCH_TOKENS:-4096} out=${RUN_DIR:-out/demo-t5}
    targets=(--target-tokens "${TARGET_TOKENS:-64}") tokenizer=byt5 vocab=384 longest=$tokens every=40
    learning=(--optimizer adamw-scaled -l 2e-2 -q 0.05 -g 40 --answers 16 -v $((steps / 4)) --export-hf "$out/hf")
else
    steps=${STEPS:-600} model=${MODEL:-l2c128h4} tokens=${TOKENS:-1024} batch=${BATCH_TOKENS:-2048} out=${RUN_DIR:-out/demo}
    targets=() tokenizer=bytes vocab=257 longest=2000 every=50
    learning=(-l 4e-3 -q 0.1 -g 32 -v $((steps / 2)) --debug print-plan --show-step 3)
fi
data=$out-data
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((cores > ranks ? cores / ranks : 1))}

say() {
    part=$((part + 1))
    if [ -t 1 ]; then printf '\n\033[1m%d. %s\033[0m\n' $part "$*"; else printf '\n%d. %s\n' $part "$*"; fi
}

# Predictions are for cores that do nothing else: how many of them others have, over half a second.
say_if_busy() {  # what that means here
    [ -r /proc/stat ] || return 0
    { head -1 /proc/stat && sleep 0.5 && head -1 /proc/stat; } | awk -v cores="$cores" -v what="$1" '
        { idle[NR] = $5 + $6; for (i = 2; i <= 9; i++) all[NR] += $i }
        END {
            passed = all[2] - all[1]
            busy = passed > 0 ? cores * (1 - (idle[2] - idle[1]) / passed) : 0
            if (busy < 0.3) exit
            printf "other programs keep %.1f of %d cores busy: %s\n", busy, cores, what
        }'
}

# A line every few steps, and other messages; changes of ranks' speeds go to its metrics.
few_steps() {
    awk -v every=$every '/^refit after/ { next } /^step / { split($2, at, "/"); if (at[1] > 3 && at[1] % every) next } { print; fflush() }'
}

# How many questions the model answers, by task, that the training data has not got in these words; and a few of them.
ask() {
    say "Ask it what the training data has not got in these words"
    echo "\$ ./generate $out --file $data/questions.jsonl >$out/answers.jsonl"
    OMP_NUM_THREADS=$cores ./generate "$out" --file "$data/questions.jsonl" >"$out/answers.jsonl"
    local question
    for question in "Anna asks: the capital of Peru?" "Tell me: what comes after May?" "the opposite of early?"; do
        printf '\n$ ./generate %s --prompt "%s"\n' "$out" "$question"
        OMP_NUM_THREADS=$cores ./generate "$out" --quiet --prompt "$question"
    done
}

compare() {
    local steps=${COMPARE_STEPS:-5} model=${MODEL:-l4c128h4} compare=$out-compare round batching  # of the same layers
    say "Ways to form microbatches: same data, model ($model), $ranks ranks; 2 x $steps steps of 8192 tokens"
    say_if_busy "the table says little; again on a quiet machine"
    mkdir -p "$compare"
    for round in 1 2; do
        for batching in dynamic packed-ragged packed padded; do
            if ! dynapipe_plugin/mpirun.sh -np "$ranks" ./train_gpt2 "${flags[@]}" -e "$model" -d 8192 -x "$steps" -v 0 -s 0 \
                    -o "$compare/$batching" --overwrite 1 --batching $batching >"$compare/log" 2>&1; then
                tail -3 "$compare/log"
                exit 1
            fi
            mv "$compare/$batching/metrics.jsonl" "$compare/$batching.$round.jsonl"
            rm -rf "${compare:?}/$batching"
        done
    done
    dev/compare_table.sh "$compare" dynamic packed-ragged packed padded
    echo "(supervised: the tokens that carry the loss; packed attends across the samples of a window,"
    echo "so it learns something else)"
}

dev/setup.sh
say "Build"
begin=$SECONDS
make -s -j"$cores" programs >/dev/null
echo "./train_gpt2, ./train_t5, ./generate, ./prepare_data, ./profile_costs, ./make_tasks in $((SECONDS - begin)) s"

mkdir -p "$out" "$data"
if [ -n "${DATA:-}" ]; then
    say "Data: $DATA, as bytes"
    texts=$DATA
else
    say "Data: made-up tasks with answers to learn, most samples short, a few very long; as bytes"
    for what in "questions 240 2" "all 30000 1"; do
        read -r name number seed <<<"$what"
        ./make_tasks --mixture easy --out "$data/$name.jsonl" --samples "$number" --seed "$seed" --max-tokens "$longest" >/dev/null
    done
    grep -vxFf "$data/questions.jsonl" "$data/all.jsonl" >"$data/tasks.jsonl"
    texts=$data/tasks.jsonl
fi
# shellcheck disable=SC2086
./prepare_data --tokenizer $tokenizer --out "$data" $texts

say "Measure what the model's layers cost on this machine"
dynapipe_plugin/mpirun.sh -np "$ranks" ./profile_costs --model "$model" --tokens "$tokens" "${targets[@]}" --vocab $vocab --out "$out/costs.txt" | tail -2

say "Train $steps steps on $ranks ranks: a pipeline of 2 stages$([ "$ranks" -lt 4 ] || echo ", $((ranks / 2)) times")"
say_if_busy "steps take longer than planned, as their lines say"
flags=(-i "$data/train*.bin" -t "$tokens" "${targets[@]}" -z 1 --stages 2 --costs "$out/costs.txt") validation=()
if ls "$data"/val*.bin >/dev/null 2>&1; then validation=(-j "$data/val*.bin" -m 64); fi
dynapipe_plugin/mpirun.sh -np "$ranks" ./train_"$kind" "${flags[@]}" "${validation[@]}" "${learning[@]}" -e "$model" -d "$batch" -x "$steps" -u 40 \
    -o "$out" --overwrite 1 -s "$([ -n "${DATA:-}" ] && echo "$steps" || echo 0)" | few_steps

[ -n "${DATA:-}" ] || ask
[ "$kind" = t5 ] || compare

say "Done in $SECONDS s"
echo "$out: metrics.jsonl (losses, exact match and ROUGE-L by task), main.log, costs.txt, a checkpoint that ./generate reads"
[ "$kind" != t5 ] || echo "$out/hf: the model for transformers"
echo "Next: ./generate $out; ./train_$kind --help"
echo "      DATA='path/*.jsonl' make run$([ "$kind" != t5 ] || echo -t5), with lines {\"task\", \"inputs\", \"targets\"}"
