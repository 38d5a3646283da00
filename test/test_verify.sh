#!/usr/bin/env bash
# Tasks of any name, a -d that holds no sample. (Damage, other text, other vocabularies: test_session, test_loader.)
# concerns: dataloader dynapipe_plugin/run/session
. "$(dirname "$0")/train_lib.sh"
trainer=$PWD/$trainer prepare=$PWD/$build/prepare_data

awk 'BEGIN {for (i = 0; i < 600; i++) {s = ""; for (k = 0; k < 3 + i * 7 % 60; k++) s = s sprintf("%c", 97 + (i * k * k + k) % 26)
     printf "{\"task\": \"t%d\", \"inputs\": \"%s\", \"targets\": \"%s.\"}\n", i % 3, s, substr(s, 1, 2 + i % 30)}}' >"$work/text.jsonl"
mkdir -p "$work/text"
"$prepare" --val-fraction 0 --out "$work/text" "$work/text.jsonl" >"$work/data.log" 2>&1 || { cat "$work/data.log"; exit 1; }
small="-e l2c32h4 -t 128 -d 1000 -v 0 -s 0"

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
refuses "'b=1' is no task=number" "a weight for a part of a name" 1 -i "$work/names/train.bin" $small -x 3 --mixture weights --weights 'a=1,b=2,b=1'

# --- a -d that holds no sample ----------------------------------------------------------------------------
run tiny 2 -i "$work/text/train.bin" -e l2c32h4 -t 128 -d 10 -x 2 -v 0 -s 0 --stages 2
[ $? -eq 0 ] && [ "$(grep -cE 'warning: -d 10: [0-9]+ of 600 samples are longer, up to [0-9]+ tokens; each of them is a step alone$' "$work/tiny.log")" -eq 1 ]
ok $? "-d 10: $(grep -m1 warning "$work/tiny.log")"
finish
