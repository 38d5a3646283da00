#!/usr/bin/env bash
# The laws of test_runs.sh for two stacks: the same command gives the same bits; any layout learns, resumes, validates and
# answers as one rank does, dropout included; so do texts with corrupted spans; the stock trainer's steps are the plugin's.
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
train plain 4 --stages 4 --stage-split 1,1,1,1 -l 1e-3 -x 8 -n 4
train dropped 2 --stages 2 --stage-split 3,1 $scaled --dropout 0.1 -x 8 -n 4
for layout in 4x1 2x2; do resume plain 4x1 $layout $([ $layout != 4x1 ] || echo --stage-split 1,1,1,1) -l 1e-3; done
for layout in 2x1 1x1 1x2; do resume dropped 2x1 $layout $([ $layout != 2x1 ] || echo --stage-split 3,1) $scaled --dropout 0.1; done
run other 1 $base $scaled -x 1 -o "$work/other"
difference=$(loss_difference dropped other 10) && [ "$difference" != 0 ]
ok $? "and dropout is another loss"

# --- validation and answers -------------------------------------------------------------------------------------
looks="-i $work/data/train.bin -j $work/data/val.bin -d 3000 $model -e $work/one/model_00000060.bin -x 0 -v 1 -m 3 -s 0 -g 6 --answers 3"
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
    sed -nE 's/^val loss [0-9.]+ //p; s/([a-z_]+ +)[0-9.]+( +[0-9]+%)/\1\2/gp' "$work/$1.log"
}
run looks 1 $looks
grep -q 'exact match [0-9.]* %, ROUGE-L' "$work/looks.log" && [ "$(said looks | grep -o '%' | wc -l)" -gt 12 ] && ! grep -qE 'match 0.0 %|ROUGE-L 0.0' "$work/looks.log"
ok $? "1x1 validates and answers: $(grep -m1 'val loss' "$work/looks.log")"
check_looks looks-3x1 3 --stages 3
check_looks looks-2x2 4 --stages 2
check_looks looks-memory 1 --memory-limit 1900K
check_looks looks-memory-2x1 2 --stages 2 --stage-split 4,0 --memory-limit 1700K

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
texts="-i $work/llmc.bin -d 2000 -e t5:l1d2c16h2 -t 100 --target-tokens 40 -l 1e-3 -k constant -v 0 -s 0 --span-corruption on --sentinel-first 50255"
run llmc 1 $texts -o "$work/llmc" -x 4
run llmc-3x1 3 $texts -o "$work/llmc-3x1" -x 4 --stages 3
near llmc llmc-3x1 2e-5 "llm.c's tokens with corrupted spans, 3x1 and 1x1"
grep -q 'starts with end-of-text (50256)' "$work/llmc.log"
ok $? "the run says what the decoder starts with: $(grep -o 'the data has no padding.*' "$work/llmc.log")"

# --- the stock trainer ------------------------------------------------------------------------------------------
# All samples of one task are a step, so both trainers see the same ones: padded to the longest allowed, to the longest
# of the batch, and not at all, in one piece and in three.
grep '"reverse"' "$work/tasks.jsonl" | head -24 >"$work/task.jsonl"
"$build/prepare_data" --tokenizer byt5 --val-fraction 0 --out "$work/task" "$work/task.jsonl" >"$work/data.log"
model="-i $work/task/train.bin -e byt5:l2d2c32h4 -t 64 --target-tokens 32 -l 1e-3 -k constant -v 0 -s 0 -x 4"
run tokens 1 $model -x 0
tokens=$(sed -nE 's/^data:.* ([0-9]+) tokens;.*/\1/p' "$work/tokens.log")
run padded 1 $model -d "$tokens" -b 24 --batching padded -o "$work/padded"
steps() { sed -nE 's/^step +([0-9]+).*loss ([0-9.]+) +norm ([0-9.]+) .*/\1 \2 \3/p' "$work/$1.log"; }
for name in stock stock-micro; do
    "$build/train_t5" $model -o "$work/$name" -b $([ $name = stock ] && echo 24 || echo 8) -d $((24 * 96)) >"$work/$name.log" 2>&1
    paste -d' ' <(steps $name) <(steps padded) |
        awk '{d = $2 - $5; e = $3 - $6; if (d < 0) d = -d; if (e < 0) e = -e; n += d < 2e-5 && e < 2e-3} END {exit !(NR == 4 && n == 4)}'
    ok $? "$name: losses and norms of 4 steps are the plugin's padded: $(steps $name | tail -1)"
    "$build/tools/compare_checkpoints" "$work/$name/model_00000004.bin" "$work/padded/model_00000004.bin" 1e-3 >"$work/compare.log"
    ok $? "$name: so is the model: $(tail -1 "$work/compare.log")"
done
# Saved after 3 of 6 steps, dropout's masks too.
model="-i $work/data/train.bin -j $work/data/val.bin -e byt5:l1d2c32h4 -t 64 --target-tokens 32 -b 4 -l 1e-3 --dropout 0.1 -x 6"
"$build/train_t5" $model -o "$work/whole" -n 3 -v 6 -m 2 -s 6 -g 8 >"$work/whole.log" 2>&1
ok $? "the stock trainer validates and answers: $(grep -m1 'val loss' "$work/whole.log")"
grep -q '^  answers ' "$work/whole.log"
ok $? "and shows its answers"
cp -r "$work/whole" "$work/on"
rm -f "$work/on"/*_00000006*
"$build/train_t5" $model -o "$work/on" -y 1 -v 0 -s 0 >"$work/on.log" 2>&1
grep -q 'resumed from .*step 3' "$work/on.log" && cmp -s "$work/whole/model_00000006.bin" "$work/on/model_00000006.bin"
ok $? "the stock trainer goes on from step 3 to the same model, bit for bit"
! ldd "$build/train_t5" | grep -q libmpi
ok $? "the stock trainer needs no MPI"
finish
