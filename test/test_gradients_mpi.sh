#!/usr/bin/env bash
# The law of test_gradients.c where ranks are processes under mpirun: the first step's gradients are those of the plain loop, one process and one sample
# at a time. And a run that is resumed over three placements ends as on one rank.
. "$(dirname "$0")/train_lib.sh"
make_data 400 150
model="-i $work/data/train.bin -e l8c32h4 -t 128 -d 3000 -x 1 -v 0 -s 0"
"$build/tools/plain_gradients" "$work/data/train.bin" l8c32h4 128 3000 42 "$work/plain.bin" || exit 1
agree auto-4x1 4 --stages 4
agree vee-vocabulary-zero1-2x2 4 --stages 2 --placement vee --head vocabulary -z 1
agree half-layers-4x1 4 --stages 4 --placement 0:1.5,1:0.5,2:2,3:1.5,0:0.5,1:2
agree interleaved-rows-recompute-3x1 3 --stages 3 --placement interleaved --head rows --recompute full --split-backward on

# (AdamW's steps of values without a gradient have the sign of rounding: lost moments differ by 0.05)
model="-i $work/data/train.bin -e l8c32h4 -t 128 -d 3000 -v 0 -s 0 -l 3e-3"
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
"$build/tools/compare_checkpoints" "$work/moved/model_00000006.bin" "$work/one/model_00000006.bin" 3e-3 >"$work/compare.log"
ok $? "a run over three placements: $(tail -1 "$work/compare.log")"

trainer=$build/train_llama-dynapipe
model="-i $work/data/train.bin -e qwen2:l8c32h4g2 -t 128 -d 3000 -x 1 -v 0 -s 0"
"$build/tools/plain_gradients" "$work/data/train.bin" qwen2:l8c32h4g2 128 3000 42 "$work/plain.bin" || exit 1
agree llama-vee-vocabulary-zero1-2x2 4 --stages 2 --placement vee --head vocabulary -z 1
agree llama-half-layers-3x1 3 --stages 3 --placement 2.5,2.5,3 --head whole --recompute full

trainer=$build/train_t5-dynapipe
make_data 400 150 byt5
shape=t5:l4d4c32h4k16f64
model="-i $work/data/train.bin -e $shape -t 128 --target-tokens 40 -d 3000 -x 1 -v 0 -s 0"
"$build/tools/plain_gradients" "$work/data/train.bin" $shape 128 3000 42 "$work/plain.bin" 40 2>/dev/null || exit 1
agree t5-auto-4x1 4 --stages 4
agree t5-stacks-rows-zero1-2x2 4 --stages 2 --placement stacks --head rows -z 1
agree t5-blocks-3x1 3 --stages 3 --placement 2.5,2.83,2.67 --head whole
agree t5-padded-dynapipe-3x1 3 --stages 3 --batching dynapipe --layout padded
finish
