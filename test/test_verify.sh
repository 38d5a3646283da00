#!/usr/bin/env bash
# Nothing wrong with the data in silence: damage, other text on one rank or when a run goes on, another tokenizer's validation
# data, tasks of any name, a -d that holds no sample.
# concerns: dataloader dynapipe_plugin/run/session
. "$(dirname "$0")/train_lib.sh"
trainer=$PWD/$trainer prepare=$PWD/$build/prepare_data

# Lines of text; in the second file one letter of one target is another. Both have the same lengths everywhere.
awk 'BEGIN {for (i = 0; i < 600; i++) {s = ""; for (k = 0; k < 3 + i * 7 % 60; k++) s = s sprintf("%c", 97 + (i * k * k + k) % 26)
     printf "{\"task\": \"t%d\", \"inputs\": \"%s\", \"targets\": \"%s.\"}\n", i % 3, s, substr(s, 1, 2 + i % 30)}}' >"$work/text.jsonl"
sed '301s/\."}/!"}/' "$work/text.jsonl" >"$work/other.jsonl"
cmp -s "$work/text.jsonl" "$work/other.jsonl" && exit 1
for name in text other; do
    mkdir -p "$work/$name"
    "$prepare" --val-fraction 0 --out "$work/$name" "$work/$name.jsonl" >"$work/data.log" 2>&1 || { cat "$work/data.log"; exit 1; }
done
same=$([ "$(stat -c %s "$work/text/train.bin")" -eq "$(stat -c %s "$work/other/train.bin")" ]; echo $?)
ok "$same" "two texts of the same lengths"
small="-e l2c32h4 -t 128 -d 1000 -v 0 -s 0"

# One word of one line, from one rank; others end too. Arguments as of `refuses`, of a run that is over.
said() {  # words, what, exit status
    [ "$3" -ne 0 ] && [ "$3" -ne 124 ] && [ "$(grep -cF -- "$1" "$work/bad.log")" -eq 1 ]
    local verdict=$?
    ok $verdict "$2: $(grep -m1 -F -- "$1" "$work/bad.log" | sed "s|$work/||g")"
    [ $verdict -eq 0 ] || head -5 "$work/bad.log"
}

# --- damage: a bit of a token, which stays a token ---------------------------------------------------------------
mkdir "$work/damaged"
cp "$work/text/train.bin" "$work/damaged/train.bin"
at=$(($(stat -c %s "$work/damaged/train.bin") - 2002))
byte=$(od -An -tu1 -j $at -N 1 "$work/damaged/train.bin" | tr -d ' ')
printf "\\x$(printf %x $((byte ^ 1)))" | dd of="$work/damaged/train.bin" bs=1 seek=$at conv=notrunc 2>/dev/null
refuses "damaged/train.bin: bytes " "a flipped bit, on 2 ranks" 2 -i "$work/damaged/train.bin" $small -x 3 --stages 2 -o "$work/run"
[ ! -e "$work/run/DONE_00000003" ]
ok $? "and no checkpoint is left"
run taken 2 -i "$work/damaged/train.bin" $small -x 3 --stages 2 --verify 0
ok $? "--verify 0 takes it"
# --- other text: on one rank (each started in a folder of its own), and in a run that goes on ----------------------------------
there() {  # folder of rank 0, of rank 1, arguments...: the same command line on both
    local a=$1 b=$2
    shift 2
    OMPI_MCA_odls_base_sigkill_timeout=0 timeout -k 5 120 mpirun -np 1 -wdir "$work/$a" "$trainer" "$@" : -np 1 -wdir "$work/$b" "$trainer" "$@" >"$work/bad.log" 2>&1
}
there text other -i train.bin $small -x 2 --stages 2
said "train.bin: contents (-i): rank 1 has" "other text on rank 1" $?
there text text -i train.bin -j train.bin $small -x 2 --stages 2
ok $? "the same text on both"

run begin 2 -i "$work/text/train.bin" $small -x 4 -n 2 --stages 2 -o "$work/kept"
ok $? "a run of 4 steps"
rm -f "$work/kept"/*00000004*
refuses "other/train.bin: saved with other contents of this file" "going on with changed text" 2 \
    -i "$work/other/train.bin" $small -x 4 --stages 2 -o "$work/kept" -y 1
cp -r "$work/text" "$work/moved"
run moved 2 -i "$work/moved/train.bin" $small -x 4 --stages 2 -o "$work/kept" -y 1
ok $? "going on with the same text elsewhere"
printf '%s\n' 'import struct, sys' 'tokens = [50256 if i % 50 == 0 else i * int(sys.argv[2]) % 50000 for i in range(4096)]' \
    'open(sys.argv[1], "wb").write(struct.pack("<256i", 20240520, 1, 4096, *[0] * 253) + struct.pack("<4096H", *tokens))' >"$work/llmc.py"
model="-e l1c32h4 -t 32 -d 640 -v 0 -s 0 -o $work/llmc"
python3 "$work/llmc.py" "$work/old.bin" 7 && python3 "$work/llmc.py" "$work/new.bin" 11
run llmc 1 -i "$work/old.bin" $model -x 2
ok $? "llm.c's tokens: a run"
refuses "saved with other contents of this file" "llm.c's tokens: going on with changed text" 1 -i "$work/new.bin" $model -x 3 -y 1
run llmc 1 -i "$work/old.bin" $model -x 3 -y 1
ok $? "llm.c's tokens: going on with the same"

# --- vocabularies of one size, told apart by their hash (byte 56 of the header; the header's own hash is mended) ----------------
cat >"$work/vocab.py" <<'EOF2'
import struct, sys
M = (1 << 64) - 1
def finish(z):  # splitmix64's mixer, util/numbers.h
    z = ((z ^ z >> 30) * 0xbf58476d1ce4e5b9) & M
    z = ((z ^ z >> 27) * 0x94d049bb133111eb) & M
    return z ^ z >> 31
data = bytearray(open(sys.argv[1], "rb").read())
data[56:64] = struct.pack("<Q", 12345)
h = 0xcbf29ce484222325
for word in struct.unpack("<10Q", data[:80]):
    h = ((h ^ word) * 0x100000001b3) & M
    h ^= h >> 29
data[80:88] = struct.pack("<Q", finish(h))
open(sys.argv[2], "wb").write(data)
EOF2
python3 "$work/vocab.py" "$work/text/train.bin" "$work/vocab.bin"
refuses "have vocabularies of 257 tokens each, but not the same" "validation data of another vocabulary" 2 \
    -i "$work/text/train.bin" -j "$work/vocab.bin" $small -x 1 --stages 2

# --- tasks of any name --------------------------------------------------------------------------------------
odd=$work/$(printf 'l\xe4st.jsonl')  # a file's name is its samples' task; this one is no UTF-8
sed 's/"task": "t[0-9]", //' "$work/text.jsonl" | head -100 >"$odd"
sed -e 's/"task": "t0"/"task": "a=1,b"/' -e 's/"task": "t1"/"task": "a"/' -e 's/"task": "t2"/"task": "\\u001b[31m\\u202ered"/' "$work/text.jsonl" >"$work/names.jsonl"
"$prepare" --out "$work/names" "$work/names.jsonl" "$odd" >"$work/names.log" 2>&1
ok $? "prepare_data takes tasks of any name"
! LC_ALL=C grep -qP '[\x00-\x08\x0b-\x1f\x7f\xe4\x80-\x9f]' "$work/names.log" && grep -qF '\x1b[31m\xe2\x80\xaered ' "$work/names.log" && grep -qF 'l\xe4st ' "$work/names.log"
ok $? "and prints no control character"
run names 1 -i "$work/names/train.bin" -j "$work/names/val.bin" $small -x 3 --mixture weights --weights 'a=1,b=2,\x1b[31m\xe2\x80\xaered=1,l\xe4st=0.5,a=1'
ok $? "--weights of such names: $(grep -m1 -E 'error' "$work/names.log")"
refuses "no task 'b' in the data" "a weight for a part of a name" 1 -i "$work/names/train.bin" $small -x 3 --mixture weights --weights 'a=1,b=2,b=1'

# --- a -d that holds no sample ----------------------------------------------------------------------------
run tiny 2 -i "$work/text/train.bin" -e l2c32h4 -t 128 -d 10 -x 2 -v 0 -s 0 --stages 2
[ $? -eq 0 ] && [ "$(grep -cE 'warning: -d 10: [0-9]+ of 600 samples are longer, up to [0-9]+ tokens; each of them is a step alone$' "$work/tiny.log")" -eq 1 ]
ok $? "-d 10: $(grep -m1 warning "$work/tiny.log")"
finish
