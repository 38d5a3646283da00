#!/usr/bin/env bash
# ./dynapipe replay: exact without noise, the same numbers for the same seed, several plans as each alone, clear errors.
set -u
cd "$(dirname "$0")/.."
build=build/${BUILD:-release}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
make -s -j2 "$build/dynapipe" >"$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }
tool=$build/dynapipe

ok() {  # 0|1 (0: fine), what
    if [ "$1" -eq 0 ]; then passed=$((passed + 1)); echo "ok   $2"; else failed=$((failed + 1)); echo "FAIL $2"; fi
}

awk 'BEGIN { for (i = 1; i <= 120; i++) print 10 + i * i * 37 % 700 "," 5 + i * 13 % 60 }' >"$work/lengths.csv"
for policy in auto tokens; do
    "$tool" plan "$work/lengths.csv" --model l8c256h4 --stages 4 --replicas 2 --batch-tokens 100000 --policy $policy --mb-tokens 1500 \
        --text "$work/$policy.plan" >"$work/plan.log" 2>&1
    ok $? "a plan by $policy: $(tail -1 "$work/plan.log")"
done
rows() { grep '\.plan ' "$1" | sed "s|$work/||; s/  *$//"; }

"$tool" replay "$work/auto.plan" --noise 0 >"$work/exact"
awk '/auto.plan / { n++; bad = $2 <= 0 || $2 != $3 || $2 != $4 || $2 != $5 || $2 != $6 } END { exit bad || n != 1 }' "$work/exact"
ok $? "without noise every figure is the plan's: $(rows "$work/exact")"
"$tool" replay "$work/auto.plan" "$work/tokens.plan" --noise 0.1 --trials 100 >"$work/both"
awk '/\.plan .*stage/ { n++; if (!($3 <= $5 && $5 <= $6 && $4 >= $2 - 0.001)) bad = 1 } END { exit bad || n != 2 }' "$work/both"
ok $? "P50 <= P90 <= worst, mean >= planned: $(rows "$work/both" | head -1)"
"$tool" replay "$work/tokens.plan" >"$work/alone"
[ "$(rows "$work/both" | tr -s ' ' | grep '^tokens')" = "$(rows "$work/alone" | tr -s ' ')" ]
ok $? "a plan among others meets the same noise as alone (and defaults are 0.1 and 100)"
grep -q "^best P90: $work/auto.plan" "$work/both"
ok $? "the best of several is named"
"$tool" replay "$work/auto.plan" --seed 2 | cmp -s - <("$tool" replay "$work/auto.plan" --seed 3)
ok $(($? == 1 ? 0 : 1)) "another seed, other noise"
"$tool" replay "$work/auto.plan" --noise 0 --slow-stage 3:2 >"$work/slow"
awk '/auto.plan / { ok = $3 > 1.1 * $2 && $3 <= 2 * $2 } END { exit !ok }' "$work/slow"
ok $? "a stage twice as slow costs more than 10 %, at most twice the time: $(rows "$work/slow")"

want=2  # wrong use; 1: a file that is no plan or trace
refuses() {  # words expected, arguments...
    local words=$1
    shift
    "$tool" replay "$@" >"$work/out" 2>"$work/err"
    [ $? -eq "$want" ] && grep -qF -- "$words" "$work/err"
    ok $? "refused: $(head -1 "$work/err" | sed "s|$work/||g")"
}
refuses "no plan ---> usage" --noise 0.1
refuses "plans and a trace --->" "$work/auto.plan" --trace "$work/auto.plan"
refuses "what-if is for a trace --->" "$work/auto.plan" --what-if link=2x
refuses "--noise" "$work/auto.plan" --noise 1.5
refuses "---> STAGE:FACTOR" "$work/auto.plan" --slow-stage 1
refuses "no stage 4 --->" "$work/auto.plan" --slow-stage 4:1.5
want=1
refuses "auto.plan:1:" --trace "$work/auto.plan"
refuses "lengths.csv:1: expected dynapipe-plan" "$work/lengths.csv"
refuses "nothing.plan" "$work/nothing.plan"
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
