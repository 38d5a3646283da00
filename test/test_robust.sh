#!/usr/bin/env bash
# --robust: noise is measured, agreed on by all ranks (every step compares their plans), used from one step on, kept in
# checkpoints; gradients stay those of plain training.
. "$(dirname "$0")/train_lib.sh"
make_data 2000 200
base="-i $work/data/train.bin -e l4c32h4 -t 128 -d 2500 -l 1e-3 -k constant -v 0 -s 0"

train() {  # name, ranks, options...
    local name=$1 ranks=$2
    shift 2
    run "$name" "$ranks" $base -o "$work/$name" "$@" || { tail -5 "$work/$name.log"; ok 1 "$name: the run failed"; }
}
noises() { sed -E 's/.*"step":([0-9]+),.*"noise_permille":([0-9]+),.*/\1 \2/' "$work/$1/metrics.jsonl"; }

# Steps 3 to 10 measure; 11 and 12 are planned by then.
train auto 4 --stages 2 -x 18 -n 14
awk '$1 <= 12 && $2 != 0 { bad = 1 } $1 == 13 { all = $2 } $1 >= 13 && $2 != all { bad = 1 } END { exit bad || NR != 18 || all == "" }' <(noises auto)
ok $? "4 ranks agree from step 13 on: $(noises auto | tail -1)"
grep -q '^times of jobs scatter by .* from step 13 on' "$work/auto.log"
ok $? "and say so: $(grep '^times of jobs' "$work/auto.log")"
cp -r "$work/auto" "$work/resumed"
rm -f "$work/resumed"/*_00000018* "$work/resumed/metrics.jsonl"
train resumed 4 --stages 2 -x 18 -y 1
cmp -s <(noises auto | tail -4) <(noises resumed) && cmp -s <(losses auto | tail -4) <(losses resumed)
ok $? "resumed at step 14: the same noise and bit-identical losses as the whole run"
train early 4 --stages 2 -x 18 -n 5
rm -f "$work/early"/*_0000001* "$work/early/metrics.jsonl"
train early 4 --stages 2 -x 18 -y 1
awk '$1 < 18 && $2 != 0 { bad = 1 } END { exit bad || NR != 13 }' <(noises early) && grep -q 'from step 18 on' "$work/early.log"
ok $? "saved before it was known: measured anew, in steps 8 to 15, for step 18 and after"
train before 4 --stages 2 -x 16 --plan-before
awk '$2 != 0 { bad = 1 } END { exit bad || NR != 16 }' <(noises before)
ok $? "--plan-before: nothing is measured before all is planned"
train fixed 4 --stages 2 -x 16 --robust 0.05
train again 4 --stages 2 -x 16 --robust on
awk '$2 != 50 { bad = 1 } END { exit bad || NR != 16 }' <(noises fixed) && cmp -s <(losses fixed) <(losses again)
ok $? "--robust 0.05 from the first step; twice: bit-identical"

"$build/tools/plain_gradients" "$work/data/train.bin" l4c32h4 128 2500 42 "$work/plain.bin" >"$work/plain.log" 2>&1
for layout in 4x1 2x2; do
    run "grad-$layout" 4 $base -x 1 --stages "${layout%x*}" --replicas "${layout#*x}" --robust 0.2 --check --dump-gradients "$work/grad.bin"
    "$build/tools/compare_checkpoints" "$work/grad.bin" "$work/plain.bin" 1e-5 >"$work/compare.log"
    ok $? "gradients at $layout with --robust 0.2: $(tail -1 "$work/compare.log")"
done
finish
