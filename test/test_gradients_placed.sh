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
finish
