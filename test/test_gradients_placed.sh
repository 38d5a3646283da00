#!/usr/bin/env bash
# Law: whatever piece of the model lies where, and whoever computes the head, the first step's gradients are those of the
# plain loop, one process and one sample at a time; the losses by task, the validation loss and the answers are those of
# one rank.
. "$(dirname "$0")/train_lib.sh"
make_data 400 150
model="-i $work/data/train.bin -e l8c32h4 -t 128 -d 3000 -x 1 -v 0 -s 0"
"$build/tools/plain_gradients" "$work/data/train.bin" l8c32h4 128 3000 42 "$work/plain.bin" || exit 1

for ranks in 2x1 3x1 4x1 2x2; do
    P=${ranks%x*} R=${ranks#*x}
    for placement in linear interleaved vee; do
        for head in whole rows vocabulary; do
            agree "$ranks-$placement-$head" $((P * R)) --stages "$P" --placement $placement --head $head
        done
    done
done
agree "vee-vocabulary-zero1" 4 --stages 2 --placement vee --head vocabulary -z 1
agree "vee-rows-recompute" 2 --stages 2 --placement vee --head rows --recompute full --split-backward on
agree "interleaved-vocabulary-padded-limit" 2 --stages 2 --placement interleaved --head vocabulary --layout padded \
    --memory-limit 12M
agree "lists" 3 --stages 3 --placement 2:2,0:1,1:2,0:3 --head vocabulary:24,1000,0
agree "list-and-shape" 2 --stages 2 --placement 1:1,0:6,1:1 --head rows
agree "split-and-shares" 2 --stages 2 --stage-split 5,3 --head vocabulary:0,1024

# Validation, answers and checkpoints: as on one rank, and any placement goes on from any other's checkpoint.
model="-i $work/data/train.bin -j $work/data/val.bin -e l8c32h4 -t 128 -d 3000 -v 3 -s 3 -g 8 --answers 2 -l 3e-3"
seen() { grep -oE "val loss [0-9]+\\.[0-9]{3}|^  answers .*" "$work/$1.log"; }
goes_on() {  # name, ranks, steps, options...
    local name=$1 ranks=$2 steps=$3
    shift 3
    # shellcheck disable=SC2086
    run "$name" "$ranks" $model -x "$steps" "$@" || tail -5 "$work/$name.log"
}
goes_on one 1 6 -o "$work/one"
goes_on begins 4 3 -o "$work/moved" --stages 4 --placement vee --head vocabulary -z 1
goes_on middle 4 5 -o "$work/moved" -y 1 --stages 2 --placement interleaved --head rows
goes_on ends 3 6 -o "$work/moved" -y 1 --stages 3 --head vocabulary
# (AdamW's steps of values without a gradient have the sign of rounding: lost moments differ by 0.05)
"$build/tools/compare_checkpoints" "$work/moved/model_00000006.bin" "$work/one/model_00000006.bin" 3e-3 >"$work/compare.log"
ok $? "a run over three placements: $(tail -1 "$work/compare.log")"
for head in whole rows vocabulary; do
    goes_on "seen-$head" 4 6 --stages 4 --placement vee --head $head
    diff <(seen one) <(seen "seen-$head") >"$work/diff.log" && [ -n "$(seen one)" ]
    ok $? "vee-$head: validation and answers as on one rank"
    cat "$work/diff.log"
done
finish
