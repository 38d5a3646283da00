#!/usr/bin/env bash
# Bad input of two-stacked models and of Hugging Face files: one message that names file, tensor or option and says what to
# do, a non-zero exit, and no long wait. What the parsers themselves refuse is in test_safetensors.c, test_hf_config.c, and fuzzed.
. "$(dirname "$0")/train_lib.sh"
golden=test/golden gpt2=$build/train_gpt2-dynapipe t5=$build/train_t5-dynapipe
trainer=$t5
make_data 200 150 byt5
good="-i $work/data/train.bin -e byt5:l2d2c32h4 -t 128 --target-tokens 40 -d 1000 -x 1 -v 0 -s 0"
from="-i $work/data/train.bin -t 128 --target-tokens 40 -d 1000 -x 1 -v 0 -s 0"

# --- files of Hugging Face --------------------------------------------------------------------------------------
mkdir "$work/no-weights" && cp $golden/hf_byt5/config.json "$work/no-weights"
refuses "has no model.safetensors" "a folder without weights" 2 $from -e "$work/no-weights" --stages 2
refuses "no such file or folder" "a path that is not there" 1 $from -e "$work/hf/nowhere"
refuses 'model_type "gpt2" is no T5 ---> train it with train_gpt2' "GPT-2's files for train_t5" 2 $from -e $golden/hf_gpt2 --stages 2
trainer=$gpt2
refuses 'model_type "t5" is no GPT-2 ---> train it with train_t5' "T5's files for train_gpt2" 1 -i "$work/data/train.bin" -t 16 -x 1 -e $golden/hf_t5
trainer=$t5
refuses "vocabulary 50, the data has 384 ids" "data with more ids than the model" 2 $from -e $golden/hf_t5 --stages 2

# --- checkpoints of the other trainer ---------------------------------------------------------------------------
run small 1 $good -o "$work/model"
trainer=$gpt2
run small 1 -i "$work/data/train.bin" -e l2c32h4 -t 32 -d 1000 -x 1 -v 0 -s 0 -o "$work/gpt2"
refuses "model_00000001.bin: magic" "T5's checkpoint for train_gpt2" 2 -i "$work/data/train.bin" -t 32 -x 1 -e "$work/model/model_00000001.bin" --stages 2
refuses "no GPT-2's" "T5's run to go on with for train_gpt2" 1 -i "$work/data/train.bin" -t 32 -x 2 -y 1 -o "$work/model"
refuses "--span-corruption on: needs a model with an encoder" "corrupted spans for train_gpt2" 1 -i "$work/data/train.bin" -e l2c32h4 -t 32 -x 1 --span-corruption on
refuses "t5:l2d2c32h4" "T5's descriptor for train_gpt2" 1 -i "$work/data/train.bin" -e t5:l2d2c32h4 -t 32 -x 1
trainer=$t5
refuses "model_00000001.bin: magic" "GPT-2's checkpoint for train_t5" 2 $from -e "$work/gpt2/model_00000001.bin" --stages 2
refuses '"l4c32h4" is unknown' "GPT-2's descriptor for train_t5" 1 $from -e l4c32h4

# --- options ----------------------------------------------------------------------------------------------------
refuses "--dropout: 1.5 is outside" "dropout of more than all" 2 $good --dropout 1.5 --stages 2
refuses "--placement 5,0" "more layers than the model has" 2 $good --stages 2 --placement 5,0
for place in "$work/data/train.bin" /proc/out; do
    # at once, not behind a million steps
    refuses "--export-hf $place" "an export to ${place#"$work/"}" 2 $good --stages 2 -x 1000000 --export-hf "$place"
done
mkdir "$work/shards" && echo '{}' >"$work/shards/model.safetensors.index.json"
refuses "has the shards of another model" "an export to a folder of shards, at once" 2 $good --stages 2 -x 1000000 --export-hf "$work/shards"
refuses "leaves room for" "a sample of validation that no memory is left for" 1 \
    $good -j "$work/data/train.bin" -v 1 -x 0 --answers 0 --memory-limit 1400K

# --- data -------------------------------------------------------------------------------------------------------
# Bytes as train_gpt2 takes them: no padding, no sentinels. A new model may start its answers with end-of-text; one
# of Hugging Face's has learnt another start.
"$build/prepare_data" --out "$work/plain" "$work/tasks.jsonl" >"$work/bad.log" 2>&1
plain="-i $work/plain/train.bin -t 128 --target-tokens 40 -d 1000 -x 1 -v 0 -s 0"
run plain 1 $plain -e byt5:l2d2c32h4 --export-hf "$work/plain.hf"
ok $? "data without padding, a new model: $(grep 'no padding' "$work/plain.log")"
grep -q '"decoder_start_token_id": 256' "$work/plain.hf/config.json" && ! grep -q pad_token "$work/plain.hf/config.json"
ok $? "and its export says so"
refuses "its decoder starts with token 0, the data has no padding token" "data without padding, a model of Hugging Face" 2 \
    $plain -e $golden/hf_byt5 --stages 2
refuses "has no sentinels for --span-corruption" "corrupted spans without sentinels" 2 $plain -e byt5:l2d2c32h4 --stages 2 --span-corruption on
refuses "would be sentinels" "sentinels that the text has" 1 $good --span-corruption on --debug sentinel-first=1
finish
