#!/usr/bin/env bash
# Hugging Face files in and out of whole runs: any number of ranks exports the same bytes, what is read again goes on with the
# same loss, bit for bit, and a checkpoint's model becomes the same files. That transformers computes the same from what we
# write is test_hf_export.c's law, and dev/check_hf_export.py's.
# concerns: llmc/hf llmc/safetensors trainer
. "$(dirname "$0")/train_lib.sh"
golden=test/golden
"$build/dev/make_tasks" --out "$work/tasks.jsonl" --samples 300 --seed 7 --max-tokens 120 >"$work/data.log" 2>&1
# 50 tokens, as the golden models have: the characters that a tokenizer of ours begins with
mkdir "$work/tokenizer"
python3 - $golden/spiece_tiny.model "$work/tokenizer/spiece.model" <<'END'
import sys
data, at, kept = open(sys.argv[1], "rb").read(), 0, 0
out = open(sys.argv[2], "wb")
def varint():
    global at
    value = shift = 0
    while True:
        at += 1
        value |= (data[at - 1] & 127) << shift
        shift += 7
        if data[at - 1] < 128: return value
while at < len(data):  # ModelProto: pieces are its field 1, whose field 1 is the text
    begin, tag, length = at, varint(), varint()
    is_piece = tag >> 3 == 1
    text = data[at + 2:at + 2 + data[at + 1]].decode() if is_piece else ""
    at += length
    if not is_piece or kept < 3 or (kept < 50 and len(text) == 1):
        out.write(data[begin:at])
        kept += is_piece
END
echo '{"extra_ids": 0}' >"$work/tokenizer/tokenizer_config.json"
"$build/prepare_data" --tokenizer "$work/tokenizer" --out "$work/data" "$work/tasks.jsonl" >>"$work/data.log" 2>&1 &&
    "$build/prepare_data" --tokenizer byt5 --out "$work/bytes" "$work/tasks.jsonl" >>"$work/data.log" 2>&1 || { cat "$work/data.log"; exit 1; }

# Llama 3.2's angles; few positions, so that they matter
cp -r $golden/hf_llama "$work/hf_scaled"
sed -i 's/"rope_parameters": {/&"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16,/;
    s/"rope_type": "default"/"rope_type": "llama3"/' "$work/hf_scaled/config.json"

same_files() {  # folder, folder: as many, and each the same
    diff -rq "$work/$1" "$work/$2" >"$work/diff.log" && [ -e "$work/$1/model.safetensors" ] && [ -e "$work/$1/config.json" ]
}

for model in t5 flan byt5 umt5 gpt2 gpt2_like scaled qwen2; do
    trainer=$build/train_t5-dynapipe data=data ranks=3 sides="--target-tokens 40" source=$golden/hf_$model
    case $model in
        byt5) data=bytes ;;
        gpt2*) trainer=$build/train_gpt2-dynapipe ranks=2 sides="" ;;
        scaled) trainer=$build/train_llama-dynapipe ranks=2 sides="" source=$work/hf_scaled ;;
        qwen2) trainer=$build/train_llama-dynapipe ranks=2 sides="" ;;
    esac
    options="-i $work/$data/train.bin -t 20 $sides -d 600 -v 0 -s 0"
    # shellcheck disable=SC2086
    exported() {  # name, ranks, arguments...: in $work/NAME.hf
        local name=$1 ranks=$2
        shift 2
        run "$name" "$ranks" $options --export-hf "$work/$name.hf" "$@" || { tail -3 "$work/$name.log"; ok 1 "$name: the run failed"; }
    }
    exported $model-1 1 -e $source -x 0
    exported $model-many $ranks -e $source -x 0 --stages $ranks
    same_files $model-1.hf $model-many.hf
    ok $? "$model: 1 and $ranks ranks export the same bytes: $(cd "$work/$model-1.hf" && ls | tr '\n' ' ')"
    exported $model-again 1 -e "$work/$model-many.hf/model.safetensors" -x 0
    same_files $model-1.hf $model-again.hf
    ok $? "$model: what was exported, read and exported again, is the same bytes"
    # every step on the first batch: the loss of step 3 is that of a run that begins with what 2 steps made
    exported $model-trained $ranks -e $source -x 2 -a 1 -l 1e-2 --stages $ranks -o "$work/$model-trained"
    cp -r "$work/$model-trained" "$work/$model-on"
    for run in on fresh; do
        from="-e $work/$model-trained.hf -x 1" folder="$work/$model-fresh"
        [ $run = on ] && from="-e $source -x 3 -y 1" folder="$work/$model-on"
        # shellcheck disable=SC2086
        run $model-$run $ranks $options $from -a 1 -l 1e-2 --stages $ranks -o "$folder"
    done
    on=$(losses $model-on | tail -1) fresh=$(losses $model-fresh | tail -1)
    [ "${on%% *}" = 3 ] && [ "${fresh%% *}" = 1 ] && [ "${on#* }" = "${fresh#* }" ] && [ "${on#* }" != "$(losses $model-on | head -1 | cut -d' ' -f2)" ]
    ok $? "$model: read again after 2 steps, the next loss is the same, bit for bit: $on, $fresh"
    exported $model-converted 1 -e "$work/$model-trained/model_00000002.bin" -x 0
    if [ -n "$sides" ]; then  # the others' data has other tokens, see below
        same_files $model-trained.hf $model-converted.hf
        ok $? "$model: a checkpoint of our own becomes the same files"
    fi
    cmp -s "$work/$model-trained.hf/model.safetensors" "$work/$model-converted.hf/model.safetensors" &&
        ! cmp -s "$work/$model-trained.hf/model.safetensors" "$work/$model-1.hf/model.safetensors"
    ok $? "$model: the same weights, and not those before training"
done

trainer=$build/train_llama-dynapipe run plain 1 -i "$work/data/train.bin" -t 20 -d 600 -v 0 -s 0 -x 1 -a 1 -e $golden/hf_llama -o "$work/plain"
for folder in scaled-trained scaled-converted; do
    python3 - "$work/$folder.hf/config.json" <<'END'
import json, sys
assert json.load(open(sys.argv[1]))["rope_scaling"] == {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
                                                        "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
END
    ok $? "$folder: scaled angles are written as transformers has them"
done
scaled=$(losses scaled-trained | head -1) plain=$(losses plain | head -1)
[ -n "$plain" ] && [ "$scaled" != "$plain" ]
ok $? "and another model's: loss $scaled, unscaled $plain"

trainer=$build/train_llama-dynapipe run longer 1 -i "$work/data/train.bin" -t 80 -d 600 -v 0 -s 0 -x 1 -e $golden/hf_llama -o "$work/longer" --export-hf "$work/longer.hf"
said=$(grep -o "hf_llama was made for 64 positions, -t is 80.*" "$work/longer.log")
[ -n "$said" ] && grep -q '"max_position_embeddings": 80' "$work/longer.hf/config.json" &&
    trainer=$build/train_llama-dynapipe run longer 1 -i "$work/data/train.bin" -t 80 -d 600 -v 0 -s 0 -x 2 -e $golden/hf_llama -o "$work/longer" -y 1
ok $? "a Llama learns longer texts than it was made for: $said"

# Another tokenizer than the data's beside the model: two pieces in the other order, or ByT5's
trainer=$build/train_t5-dynapipe
cp -r "$work/flan-1.hf" "$work/other" && rm "$work/other/data.json"
python3 - "$work/data/spiece.model" "$work/other/spiece.model" <<'END'
import sys
data = open(sys.argv[1], "rb").read()
size = lambda at: 2 + data[at + 1]
begin = size(0)
end = begin + size(begin)
open(sys.argv[2], "wb").write(data[:begin] + data[end:end + size(end)] + data[begin:end] + data[end + size(end):])
END
for with in other byt5-1.hf; do
    run with-$with 1 -i "$work/data/train.bin" -t 20 --target-tokens 40 -d 600 -v 0 -s 0 -x 0 -e "$work/$with" -o "$work/none" --export-hf "$work/none.hf"
    [ $? -ne 0 ] && grep -q "$with: its tokenizer (.*) is not that of -i .*/data/train.bin (sentencepiece, .*prepare the data with --tokenizer $work/$with" "$work/with-$with.log" &&
        [ ! -e "$work/none" ] && [ ! -e "$work/none.hf" ]
    ok $? "$with with data of another tokenizer is refused, and leaves no folder: $(grep -o 'error:.*' "$work/with-$with.log")"
done
run short 1 -i "$work/data/train.bin" -j "$work/data/val.bin" -t 20 --target-tokens 3 -d 600 -v 0 -s 0 -x 0 -e $golden/hf_flan --dropout 0.1
grep -q "^warning: tasks without a sample: '.*: all are too long in -i" "$work/short.log"
ok $? "tasks that limits leave without a sample are named: $(grep -o 'tasks without.*' "$work/short.log" | head -1)"
grep -q '^config.json: dropout 0.1 is not used ---> --dropout 0.1' "$work/flan-1.log" && ! grep -q 'is not used' "$work/short.log"
ok $? "a dropout that is not used is said, and only then"
cmp -s "$work/data/spiece.model" "$work/flan-trained.hf/spiece.model" && grep -q ByT5Tokenizer "$work/byt5-1.hf/tokenizer_config.json"
ok $? "the tokenizer of the data goes along"
# gpt2's config says 49; this data ends texts with 1, as its own export says
grep -q 'warning: .*hf_gpt2 ends texts with token 49, the data with 1$' "$work/gpt2-1.log" && ! grep -q warning "$work/flan-1.log"
ok $? "other tokens than the model's: $(grep -o 'warning:.*' "$work/gpt2-1.log")"
cp -r $golden/hf_gpt2 "$work/ends" && sed -i 's/"eos_token_id": 49/"eos_token_id": [49, 1]/' "$work/ends/config.json" && grep -q '\[49, 1\]' "$work/ends/config.json"
trainer=$build/train_gpt2-dynapipe run ends 1 -i "$work/data/train.bin" -t 20 -d 600 -v 0 -s 0 -x 0 -e "$work/ends" -o "$work/ends.run"
grep -q 'ends texts' "$work/ends.log"
ok $([ $? = 1 ] && [ -s "$work/ends.log" ]; echo $?) "the data's end is among the model's: $(tail -2 "$work/ends.log")"
for folder in trained converted; do
    grep -q '"eos_token_id": 1,\?$' "$work/gpt2-$folder.hf/config.json" && grep -q '"eos_token_id": 1,\?$' "$work/gpt2-$folder.hf/generation_config.json"
    ok $? "gpt2-$folder: generate() stops where the data's texts end"
done
mkdir "$work/bare" && cp "$work/gpt2-trained/model_00000002.bin" "$work/bare"
trainer=$build/train_gpt2-dynapipe run bare 1 -i "$work/data/train.bin" -t 20 -d 600 -v 0 -s 0 -x 0 -e "$work/bare/model_00000002.bin" --export-hf "$work/bare.hf"
grep -q '"bos_token_id": 49' "$work/gpt2-trained.hf/config.json" && grep -q '"bos_token_id": 49' "$work/gpt2-converted.hf/config.json" &&
    grep -q '"bos_token_id": 1,' "$work/bare.hf/config.json"
ok $? "what the first files said of other tokens stays, also with a run's folder; of a bare checkpoint the data says it"

finish
