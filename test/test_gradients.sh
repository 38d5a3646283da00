#!/usr/bin/env bash
# Law: whatever groups the samples and orders the jobs, the first step's gradients are those of the plain loop, one
# process and one sample at a time: per tensor, largest difference < 1e-5 of the largest value. (--batching packed attends
# across samples, so it is another loss; it must run, and differ.)
. "$(dirname "$0")/train_lib.sh"
make_data 400 150
model="-i $work/data/train.bin -e l4c32h4 -t 128 -d 3000 -x 1 -v 0 -s 0"
"$build/tools/plain_gradients" "$work/data/train.bin" l4c32h4 128 3000 42 "$work/plain.bin" || exit 1

for ranks in 1x1 4x1 2x2 1x4 3x1; do
    P=${ranks%x*} R=${ranks#*x}
    agree "ranks-$ranks" $((P * R)) --stages "$P" --replicas "$R"
    agree "ranks-$ranks-zero1" $((P * R)) --stages "$P" --replicas "$R" -z 1
done
# The last stage has the head alone.
for split in 4,0 2,1,1,0; do
    P=$(tr -cd , <<<",$split" | wc -c)
    for zero in 0 1; do
        agree "head-alone-$split-zero$zero" 4 --stages "$P" --stage-split $split -z $zero
    done
    agree "head-alone-$split-recompute" "$P" --stages "$P" --stage-split $split --recompute full --split-backward on
done
agree "head-alone-padded-memory-limit" 2 --stages 2 --stage-split 4,0 --layout padded --memory-limit 8M
for batching in dynamic dynapipe packed-ragged padded tokens; do
    for layout in ragged padded; do
        agree "$batching-$layout-2x2" 4 --stages 2 --batching $batching --layout $layout
    done
done
for schedule in gpipe 1f1b adaptive; do
    for recompute in none full; do
        for split in on off; do
            agree "$schedule-recompute-$recompute-split-$split-4x1" 4 --stages 4 --schedule $schedule \
                --recompute $recompute --split-backward $split --mb-tokens 300 --batching tokens
        done
    done
done
agree "memory-limit-2x2" 4 --stages 2 --memory-limit 8M
agree "dynapipe-memory-limit-3x1" 3 --stages 3 --batching dynapipe --layout padded --memory-limit 8M

run packed 4 $model --dump-gradients "$work/packed.bin" --stages 2 --batching packed
ok $? "packed runs"
"$build/tools/compare_checkpoints" "$work/packed.bin" "$work/plain.bin" 1e-2 >/dev/null
ok $(($? == 1 ? 0 : 1)) "packed is another loss: its gradients differ"
finish
