#!/usr/bin/env bash
# The law of test_gradients.sh for two stacks: cuts inside the encoder, inside the decoder, a stage with both, the head
# alone; the embedding and both tables of biases on several stages, the sum of whose gradients every copy must get.
. "$(dirname "$0")/train_lib.sh"
trainer=$build/train_t5-dynapipe
make_data 400 150 byt5
shape=t5:l3d3c32h4k16f64
model="-i $work/data/train.bin -e $shape -t 128 --target-tokens 40 -d 3000 -x 1 -v 0 -s 0"
plain() {  # shape
    "$build/tools/plain_gradients" "$work/data/train.bin" "$1" 128 3000 42 "$work/plain.bin" 40 2>/dev/null || exit 1
}
plain $shape

for ranks in 1x1 4x1 2x2 3x1; do
    P=${ranks%x*} R=${ranks#*x}
    agree "ranks-$ranks" $((P * R)) --stages "$P" --replicas "$R"
done
agree ranks-2x2-zero1 4 --stages 2 -z 1
agree ranks-4x1-zero1 4 --stages 4 -z 1
# layers of the chain: 3 of the encoder, 3 of the decoder
for split in 1,5 3,3 4,2 6,0 1,2,1,2 2,2,2,0; do
    P=$(tr -cd , <<<",$split" | wc -c)
    agree "split-$split" "$P" --stages "$P" --stage-split $split
done
agree split-1,2,1,2-recompute 4 --stages 4 --stage-split 1,2,1,2 --recompute full --split-backward on
agree split-2,2,2,0-recompute 4 --stages 4 --stage-split 2,2,2,0 --recompute full --split-backward on
for batching in dynamic dynapipe packed-ragged padded tokens kk; do
    agree "$batching-ragged" 2 --stages 2 --batching $batching --layout ragged
done
for batching in dynamic dynapipe tokens; do
    agree "$batching-padded" 2 --stages 2 --batching $batching --layout padded
done
for schedule in gpipe 1f1b adaptive; do
    agree "$schedule-split-on" 3 --stages 3 --schedule $schedule --split-backward on --mb-tokens 300 --batching tokens
done
agree memory-limit-2x2 4 --stages 2 --memory-limit 8M

# Gated feed-forward, a head of its own; umT5, whose layers have a table of biases each.
for shape in flan-t5:l2d2c32h4k16f48 umt5:l2d2c32h4k16f48; do
    model="-i $work/data/train.bin -e $shape -t 128 --target-tokens 40 -d 3000 -x 1 -v 0 -s 0"
    plain $shape
    agree "$shape" 3 --stages 3
done

run packed 2 $model --dump-gradients "$work/packed.bin" --stages 2 --batching packed
ok $? "packed runs"
"$build/tools/compare_checkpoints" "$work/packed.bin" "$work/plain.bin" 1e-2 >/dev/null
ok $(($? == 1 ? 0 : 1)) "packed is another loss: its gradients differ"

# Dropout's masks belong to samples: the same gradients however they are grouped, and not those without it.
model="$model --dropout 0.1"
run dropped 1 $model --dump-gradients "$work/plain.bin" --check
ok $? "dropout runs"
agree dropout-3x1 3 --stages 3
agree dropout-2x2-recompute 4 --stages 2 --recompute full --batching tokens --mb-tokens 300
agree dropout-padded 2 --stages 2 --batching padded
plain $shape
run dropped 1 $model --dump-gradients "$work/dropped.bin" --check
"$build/tools/compare_checkpoints" "$work/dropped.bin" "$work/plain.bin" 1e-2 >/dev/null
ok $(($? == 1 ? 0 : 1)) "dropout is another loss: its gradients differ"
finish
