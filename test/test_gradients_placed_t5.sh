#!/usr/bin/env bash
# The law of test_gradients_placed.sh for two stacks, with and without a matrix that embedding and head share.
. "$(dirname "$0")/train_lib.sh"
trainer=$build/train_t5-dynapipe
make_data 400 150 byt5
for shape in t5:l4d4c32h4k16f64 byt5:l4d4c32h4; do
    model="-i $work/data/train.bin -e $shape -t 128 --target-tokens 40 -d 3000 -x 1 -v 0 -s 0"
    "$build/tools/plain_gradients" "$work/data/train.bin" "$shape" 128 3000 42 "$work/plain.bin" 40 2>/dev/null || exit 1
    # (where the matrix is shared, every placement on two ranks; on more, those that bring its two uses together)
    for ranks in 2x1 4x1 2x2; do
        P=${ranks%x*} R=${ranks#*x}
        placements="linear interleaved vee stacks"
        [ "${shape%%:*}-$ranks" = byt5-4x1 ] || [ "${shape%%:*}-$ranks" = byt5-2x2 ] && placements="vee stacks"
        for placement in $placements; do
            for head in whole rows vocabulary; do
                agree "${shape%%:*}-$ranks-$placement-$head" $((P * R)) --stages "$P" --placement $placement --head $head
            done
        done
    done
    agree "${shape%%:*}-stacks-vocabulary-zero1" 4 --stages 2 --placement stacks --head vocabulary -z 1
    agree "${shape%%:*}-stacks-rows-recompute" 2 --stages 2 --placement stacks --head rows --recompute full \
        --split-backward on
done
finish
