#!/usr/bin/env bash
# The laws of test_runs.sh for two stacks: the same command gives the same bits; any layout learns, resumes, validates and
# answers as one rank does, dropout included; so do texts with corrupted spans.
# concerns: trainer llmc/transformer llmc/model llmc/kinds llmc/head dynapipe_plugin/run/session
. "$(dirname "$0")/train_lib.sh"
plugin=$build/train_t5-dynapipe
trainer=$plugin
make_data 2000 120 byt5
model="-e flan-t5:l2d2c32h4k16f64 -t 100 --target-tokens 40 -k constant"
base="-i $work/data/train.bin -d 1500 $model -v 0 -s 0"
scaled="--optimizer adamw-scaled -l 1e-2"

# name, ranks, options: a run with its metrics in $work/name
train() {
    local name=$1 ranks=$2
    shift 2
    # shellcheck disable=SC2086
    run "$name" "$ranks" $base -o "$work/$name" "$@" || { tail -5 "$work/$name.log"; ok 1 "$name: the run failed"; }
}

near() {  # name, name, bound, what: the losses of two runs, over the steps that both have
    local difference
    difference=$(loss_difference "$1" "$2" "$3")
    ok $? "$4: losses differ by $difference"
}

# --- the same bits, the same learning ---------------------------------------------------------------------------
train one 1 $scaled -x 60
for name in first again; do train $name 4 $scaled -x 24 --stages 2 -z 1 --refit off; done
cmp -s <(losses first) <(losses again) && cmp -s "$work/first/model_00000024.bin" "$work/again/model_00000024.bin"
ok $? "the same command twice, with --refit off: bit-identical losses and model"
near one first 1e-4 "24 steps at 2x2 -z 1 are those of 1x1"
train three 3 $scaled -x 24 --stages 3
near one three 1e-4 "24 steps at 3x1 are those of 1x1"
awk 'NR == 1 {a = $2} END {exit !($2 < 0.3 * a)}' <(losses one)
ok $? "the loss falls: $(losses one | sed -n '1p;$p' | tr '\n' ' ')"

# --- a checkpoint goes on in any layout -------------------------------------------------------------------------
# name, whole run, layout, options
resume() {
    local whole=$1 at=$2 layout=$3 name=resume-$1-$3 P=${3%x*} R=${3#*x}
    shift 3
    cp -r "$work/$whole" "$work/$name"
    rm -f "$work/$name"/*_00000008* "$work/$name/metrics.jsonl"
    train "$name" $((P * R)) --stages "$P" -x 8 -y 1 -z $((R > 1)) "$@"
    near "$whole" "$name" "$([ "$layout" = "$at" ] && echo 1e-300 || echo 2e-5)" "$whole: saved at $at, resumed at $layout"
    [ "$(losses "$name" | head -1 | cut -d' ' -f1)" = 5 ]
    ok $? "$name goes on with step 5"
}
# 2 layers of the encoder, 2 of the decoder: cuts inside both
train plain 4 --stages 4 --placement 1,1,1,1 --head whole -l 1e-3 -x 8 -n 4
train dropped 2 --stages 2 --placement 3,1 --head whole $scaled --dropout 0.1 -x 8 -n 4
for layout in 4x1 2x2; do resume plain 4x1 $layout $([ $layout != 4x1 ] || echo --placement 1,1,1,1 --head whole) -l 1e-3; done
for layout in 2x1 1x1 1x2; do resume dropped 2x1 $layout $([ $layout != 2x1 ] || echo --placement 3,1 --head whole) $scaled --dropout 0.1; done
run other 1 $base $scaled -x 1 -o "$work/other"
difference=$(loss_difference dropped other 10) && [ "$difference" != 0 ]
ok $? "and dropout is another loss"

# --- validation and answers -------------------------------------------------------------------------------------
looks="-i $work/data/train.bin -j $work/data/val.bin -d 3000 $model -e $work/one/model_00000060.bin -x 0 -v 1 -m 40 -s 0 -g 6 --answers 3"
check_looks() {  # name, ranks, options: what one rank said
    local name=$1 ranks=$2
    shift 2
    # shellcheck disable=SC2086
    run "$name" "$ranks" $looks "$@"
    grep -q '^val loss' "$work/$name.log" && awk 'NR == FNR {a = $3; next} {exit !(a - $3 < 1e-5 && $3 - a < 1e-5)}' \
        <(grep '^val loss' "$work/looks.log") <(grep '^val loss' "$work/$name.log") &&
        cmp -s <(said looks) <(said "$name")
    ok $? "$name: $(grep -m1 'val loss\|error' "$work/$name.log")"
}
said() {  # name: exact match and ROUGE-L, of all tasks and of each
    sed -nE 's/^val loss [0-9.]+ on //p; s/([a-z_]+ +)[0-9.]+( +[0-9]+%)/\1\2/gp' "$work/$1.log"
}
run looks 1 $looks
grep -q 'exact match [0-9.]* %, ROUGE-L' "$work/looks.log" && [ "$(said looks | grep -o '%' | wc -l)" -gt 12 ] && ! grep -qE 'match 0.0 %|ROUGE-L 0.0' "$work/looks.log"
ok $? "1x1 validates and answers: $(grep -m1 'val loss' "$work/looks.log")"
check_looks looks-3x1 3 --stages 3
check_looks looks-2x2 4 --stages 2
check_looks looks-memory 1 --memory-limit 1900K
check_looks looks-memory-2x1 2 --stages 2 --placement 4,0 --head whole --memory-limit 1700K

# --- texts with corrupted spans ---------------------------------------------------------------------------------
texts="-i $work/data/train.bin -d 2000 -e byt5:l2d2c32h4 -t 100 --target-tokens 40 -l 1e-3 -k constant -v 0 -s 0 --span-corruption on"
run spans 1 $texts -o "$work/spans" -x 6 -n 3
run spans-2x1 2 $texts -o "$work/spans-2x1" -x 6 --stages 2
near spans spans-2x1 2e-5 "corrupted spans, 2x1 and 1x1"
cp -r "$work/spans" "$work/spans-resumed"
rm -f "$work/spans-resumed"/*_00000006* "$work/spans-resumed/metrics.jsonl"
run spans-resumed 2 $texts -o "$work/spans-resumed" -x 6 -y 1 --stages 2
near spans spans-resumed 2e-5 "corrupted spans, saved at 1x1, resumed at 2x1"
# llm.c's tokens are of GPT-2: documents between end-of-text, no sentinels and no padding of their own.
python3 - "$work/llmc.bin" <<'END'
import random, struct, sys
rng = random.Random(7)
tokens = [50256 if i % 150 == 0 else rng.randrange(200) for i in range(9000)]
open(sys.argv[1], "wb").write(struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253) + struct.pack(f"<{len(tokens)}H", *tokens))
END
texts="-i $work/llmc.bin -d 2000 -e t5:l1d2c16h2 -t 100 --target-tokens 40 -l 1e-3 -k constant -v 0 -s 0 --span-corruption on --debug sentinel-first=50255"
run llmc 1 $texts -o "$work/llmc" -x 4
run llmc-3x1 3 $texts -o "$work/llmc-3x1" -x 4 --stages 3
near llmc llmc-3x1 2e-5 "llm.c's tokens with corrupted spans, 3x1 and 1x1"
grep -q 'starts with end-of-text (50256)' "$work/llmc.log"
ok $? "the run says what the decoder starts with: $(grep -o 'the data has no padding.*' "$work/llmc.log")"

finish
