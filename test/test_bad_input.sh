#!/usr/bin/env bash
# Bad input: a message that names file or option and says what to do, a non-zero exit, and no long wait.
. "$(dirname "$0")/train_lib.sh"
make_data 300 200
good="-i $work/data/train.bin -e l4c32h4 -t 128 -d 2000 -x 1 -v 0 -s 0"

head -c 5000 "$work/data/train.bin" >"$work/short.bin"
refuses "short.bin" "truncated sample file" 1 -i "$work/short.bin" -e l2c32h4
run small 1 -i "$work/data/train.bin" -e l2c32h4 -t 128 -d 1000 -x 1 -v 0 -s 0 -o "$work/model"
cp "$work/model/model_00000001.bin" "$work/vocab.bin"
printf '\xc8\0\0\0' | dd of="$work/vocab.bin" bs=1 seek=12 conv=notrunc 2>/dev/null # V of the header
dd if=/dev/zero of="$work/vocab.bin" bs=4 seek=244 count=12 conv=notrunc 2>/dev/null                # as if llm.c had written it
refuses "vocabulary 200" "wrong vocabulary for the checkpoint" 1 -i "$work/data/train.bin" -e "$work/vocab.bin" -t 128
refuses "--stages 4" "more stages than blocks of layers" 4 -i "$work/data/train.bin" -e l1c32h4 -t 128 --stages 4
refuses "--stages 2 x --replicas 3" "np is not stages x replicas" 4 $good --stages 2 --replicas 3
refuses "alone take" "memory limit too small for the model" 2 $good --stages 2 --memory-limit 300K
refuses "--placement 0,4" "a first stage without layers" 2 $good --stages 2 --placement 0,4
"$build/dev/make_tasks" --out "$work/long.jsonl" --samples 60 --seed 7 --max-tokens 2000 >"$work/bad.log" 2>&1 &&
    "$build/prepare_data" --out "$work/long" "$work/long.jsonl" >>"$work/bad.log" 2>&1
# Few long samples among many short ones: no batch at the start has one.
awk 'length > most {most = length; line = $0} END {print line}' "$work/long.jsonl" >"$work/rare.jsonl"
for _ in $(seq 12); do cat "$work/tasks.jsonl"; done >>"$work/rare.jsonl"
"$build/prepare_data" --out "$work/rare" "$work/rare.jsonl" >"$work/bad.log" 2>&1
refuses "one of the data's largest samples (a smaller -t cuts it) would end the run when it is drawn: " "a rare sample that no memory is left for" 2 \
    -i "$work/rare/train.bin" -e l4c32h4 -t 2048 -d 2000 -x 1 -v 0 -s 0 --stages 2 --memory-limit 3M
refuses "leaves room for" "a sample of validation that no memory is left for" 2 \
    -i "$work/data/train.bin" -j "$work/long/train.bin" -e l4c32h4 -t 2048 -d 2000 -x 1 -v 1 -s 0 --stages 2 --memory-limit 4M
refuses "options: -x=2 on rank 1, nothing on rank 0" "ranks that were started with different options" 1 $good --stages 2 : -np 1 "$trainer" $good --stages 2 -x 2
refuses "-o $work/short.bin" "a file as -o" 2 $good --stages 2 -o "$work/short.bin"
refuses "dump-gradients" "gradients that cannot be written" 2 $good --stages 2 --debug dump-gradients="$work"
refuses "--trace $work/none/trace.json" "a trace that could not be written at its step" 2 $good --stages 2 -x 1000000 --show-step 900000 --trace "$work/none/trace.json"
refuses "--debug dump-plan $work" "a directory as the file of a plan" 2 $good --stages 2 -x 1000000 --show-step 900000 --debug dump-plan="$work"
refuses "---> at most -d" "a step of more samples than anybody plans" 2 $good --stages 2 -d 1000000000000
refuses "l4c33h4" "impossible model" 1 -i "$work/data/train.bin" -e l4c33h4
refuses "-e l1c300h1: head size 300" "heads larger than attention has" 2 -i "$work/data/train.bin" -e l1c300h1
: >"$work/empty.jsonl"
"$build/prepare_data" --out "$work/empty" "$work/empty.jsonl" >"$work/bad.log" 2>&1
ok $(($? != 0 ? 0 : 1)) "empty JSONL: $(tail -1 "$work/bad.log" | sed "s|$work/||g")"
# A token id beyond the vocabulary: the last token of the file, behind the checksum's back (read on demand).
cp "$work/data/train.bin" "$work/token.bin"
for at in $(seq 2 2 4000); do printf '\xff\xff'; done | dd of="$work/token.bin" bs=1 seek=$(($(stat -c %s "$work/token.bin") - 4000)) conv=notrunc 2>/dev/null
refuses "beyond the vocabulary" "token id beyond the vocabulary" 1 -i "$work/token.bin" --verify 0 -e l2c32h4 -t 128 -d 100000 -x 3 -v 0 -s 0
# llm.c's tokens know 50257 ids, this model's embedding 257.
python3 - "$work/llmc.bin" <<'EOF'
import struct, sys
open(sys.argv[1], "wb").write(struct.pack("<256i", 20240520, 1, 4096, *[0] * 253) + struct.pack("<4096H", *[50000] * 4096))
EOF
# Of a small vocabulary they train where each id is the model's, and their end, which is none, is not exported.
small_tokens() {  # largest id
    python3 - "$work/small.bin" "$1" <<'EOF'
import random, struct, sys
open(sys.argv[1], "wb").write(struct.pack("<256i", 20240520, 1, 4096, *[0] * 253) + struct.pack("<4096H", int(sys.argv[2]), *random.Random(1).choices(range(256), k=4095)))
EOF
}
small="-i $work/small.bin -j $work/held.bin -e $work/model/model_00000001.bin -t 64 -d 512 -x 1 -m 8 -v 1 -s 0"
small_tokens 257
cp "$work/small.bin" "$work/held.bin"
refuses "model_00000001.bin: vocabulary 257, the data has 258 ids" "llm.c's tokens beyond the model's" 1 $small
small_tokens 256
cp "$work/small.bin" "$work/held.bin"
run small-tokens 2 $small --stages 2 --export-hf "$work/small.hf" && grep -q "small.bin: its ids, at most 256, are taken for those of the model's vocabulary of 257" "$work/small-tokens.log" &&
    grep -q '^data: .* of 1 tasks,' "$work/small-tokens.log" && grep -q '"vocab_size": 257' "$work/small.hf/config.json" && ! grep -q '_token_id' "$work/small.hf/config.json"
ok $? "llm.c's tokens of a small vocabulary: $(tail -2 "$work/small-tokens.log" | head -1)"
# A checkpoint that names no tokenizer, and data of fewer ids.
run names-none 1 -i "$work/llmc.bin" -e l2c32h4 -t 64 -d 512 -x 1 -v 0 -s 0 -o "$work/names-none" &&
    run fewer-ids 1 -i "$work/data/train.bin" -e "$work/names-none" -t 64 -d 512 -x 1 -v 0 -s 0 && grep -q 'warning: the data has 257 ids, .* 50257: were they made for' "$work/fewer-ids.log"
ok $? "bytes on a model of 50257 ids: $(grep -m1 '^warning: the data' "$work/fewer-ids.log")"
refuses "llmc.bin has 50257" "validation data of another vocabulary" 1 -i "$work/data/train.bin" -j "$work/llmc.bin" -e l2c32h4 -t 64 -x 1
finish
