#!/usr/bin/env bash
# What a user sees of a run: step lines, plan, metrics.jsonl, trace, --help, and the table that make run makes of them.
. "$(dirname "$0")/train_lib.sh"
make_data 300 200
data="-i $work/data/train.bin -t 128 -d 2000"

run seen 4 $data -j "$work/data/val.bin" -e l2c32h4 -x 3 -v 3 -m 8 -s 3 -g 4 -z 1 -o "$work/seen" --stages 2 --verbose --debug print-plan --show-step 2 \
    --trace "$work/trace.json"
ok $? "a run with everything shown"
awk '/^step / { n++ } (length($0) > 100 && /^(step|steps|stage|waited|against|val|data:|saved) |of prediction/) || /nan/ { bad = 1; print } END { exit bad || n != 3 }' "$work/seen.log"
ok $? "a line per step, of 100 columns at most, no nan"
[ "$(grep -c '^stage [01] |.*| idle' "$work/seen.log")" -eq 4 ]
ok $? "a timeline row per rank"
[ "$(grep -c '^  right ' "$work/seen.log")" -eq 4 ] && [ "$(grep -c '^val loss' "$work/seen.log")" -eq 2 ]
ok $? "answers at the end, validation at both ends"

grep '^{"step":' "$work/seen/metrics.jsonl" >"$work/steps.jsonl"
missing=
for field in step loss task_loss supervised_tokens total_tokens computed_tokens step_ms plan_ms predicted_ms jobs_off_ms transfers_off_ms waiting_off_ms bound_ms refit_step idle peak_bytes rss_bytes; do
    [ "$(grep -c "\"$field\":" "$work/steps.jsonl")" -eq 3 ] || missing+=" $field"
done
ok $([ -z "$missing" ]; echo $?) "metrics.jsonl: every field in every step's record$missing"
for field in loss task_loss exact_match rouge_l; do
    [ "$(grep '^{"validation":[03],' "$work/seen/metrics.jsonl" | grep -c "\"$field\":")" -eq 2 ] || missing+=" $field"
done
ok $([ -z "$missing" ]; echo $?) "and in both validations'$missing"
awk '{ sub(/.*"rss_bytes":\[/, ""); n = split($0, rss, /[],]/); for (i = 1; i <= 4; i++) if (rss[i] < 1e6) bad = 1 } END { exit bad || NR != 3 }' "$work/steps.jsonl"
ok $? "every rank's measured memory"

events() { grep -c "\"pid\":$1,.*\"name\":\"$2" "$work/trace.json"; }
[ "$(events 2 reduce)" -eq 4 ] && [ "$(events 2 update)" -eq 4 ] && [ "$(events 2 share)" -eq 4 ]
ok $? "trace: every rank's reduction, update and exchange of parameters"
[ "$(events 1 'fwd mb')" -gt 0 ] && [ "$(events 1 'fwd mb')" -eq "$(events 2 'fwd mb')" ] && [ "$(events 1 'bwd mb')" -eq "$(events 2 'bwd mb')" ]
ok $? "trace: what was predicted was measured"
awk '{ split("step_ms predicted_ms jobs_off_ms transfers_off_ms waiting_off_ms", key, " ")
       for (k = 1; k <= 5; k++) { at = index($0, "\"" key[k] "\":"); ms[k] = substr($0, at + length(key[k]) + 3) + 0 }
       off = ms[1] - ms[2] - ms[3] - ms[4] - ms[5]; if (ms[1] <= 0 || ms[2] <= 0 || off > 1e-3 || off < -1e-3) bad = 1 } END { exit bad }' "$work/steps.jsonl"
ok $? "jobs, transfers and waiting add up to what a step took beyond its prediction"
[ "$(grep -cE '^ +([-+][0-9.]+%|[0-9.]+x) of prediction, idle .* \(plan .*%\)' "$work/seen.log")" -eq 3 ] && grep -qE '^against the prediction: steps [-+][0-9.]+% .*waiting [-+][0-9.]+%' "$work/seen.log"
ok $? "signed errors in the step lines and at the end"

if command -v python3 >/dev/null; then
    python3 dev/check_trace.py "$work/trace.json" >"$work/rows.log" && grep -qE ' [1-9][0-9]* arrows of .* 8 counters' "$work/rows.log"
    ok $? "trace: rows nest, arrows lead from sends to receives, memory of every rank"
fi

# Outliers: no z before there are 128 steps; then -sl leaves updates out.
run many 1 -i "$work/data/train.bin" -t 64 -d 256 -e l1c16h2 -x 140 -l 0 -v 0 -s 0 -sl 0.1 --verbose
[ $? -eq 0 ] && awk '/^step / { split($2, of, "/") } /z\) from the mean/ { n++; bad += of[1] < 128 } END { exit bad || n != 13 }' "$work/many.log"
ok $? \
    "standard deviations from step 128 on"
grep -q '^skipped the update of step 1[23]' "$work/many.log"
ok $? "-sl skips updates of outliers"

# A run that diverges ends with an error; its records so far are whole, and there is a report of them.
run lost 2 $data -e l2c32h4 -x 12 -l 1000 -c 1000 -k constant -v 0 -s 0 --stages 2 -o "$work/lost"
[ $? -ne 0 ] && grep -q '^error: the loss or its gradient is not a finite number --->' "$work/lost.log"
ok $? "a run that diverges says so"
make -s "$build/dynapipe" && "$build/dynapipe" report "$work/lost/metrics.jsonl" -o "$work/lost.html" >"$work/lost-report.log" 2>&1 && grep -q '</html>' "$work/lost.html"
ok $? "and there is a report of its steps"

"$trainer" --help >"$work/help"
lost=
for option in -i -j -e -o -n -y -b -t -d -x -k -l -u -q -c -v -m -s -g -a -z --stages --replicas --batching --layout --schedule --recompute --refit --memory-limit --costs --trace \
    --debug; do
    grep -qE -- "^  $option( |$)" "$work/help" || lost+=" $option"
done
ok $([ -z "$lost" ]; echo $?) "--help has every option$lost"

# Every program alike: help and version on standard output, a wrong flag is 2 and one line that says what to do.
make -s -j2 "$build/generate" "$build/profile_costs" "$build/dynapipe"
for program in prepare_data dev/make_tasks generate profile_costs dynapipe "dynapipe "{plan,report} train_gpt2 train_gpt2-dynapipe train_t5 train_t5-dynapipe; do
    odd=
    for flag in --help -h --version; do
        # shellcheck disable=SC2086
        "$build"/$program $flag >"$work/asked.out" 2>"$work/asked.err" && [ -s "$work/asked.out" ] && [ ! -s "$work/asked.err" ] || odd+=" $flag"
        awk 'length($0) > 100 { exit 1 }' "$work/asked.out" || odd+=" $flag is wide"
        case $flag in
            --version) head -1 "$work/asked.out" | grep -qE '^[a-z_0-9]+ of DynaPipe .*, commit ([0-9a-f]{12}|unknown)' || odd+=" version" ;;
            *) grep -q '^usage: ' "$work/asked.out" || odd+=" usage" ;;
        esac
    done
    for flag in "--nothing 1" "-Q" ""; do
        [ "$program$flag" = profile_costs ] && continue  # which goes without any
        # shellcheck disable=SC2086
        "$build"/$program $flag >"$work/asked.out" 2>"$work/asked.err"
        [ $? -eq 2 ] && [ ! -s "$work/asked.out" ] && [ "$(grep -c '^error: .* ---> ' "$work/asked.err")" -eq 1 ] && [ "$(wc -l <"$work/asked.err")" -eq 1 ] || odd+=" '$flag'"
    done
    ok $([ -z "$odd" ]; echo $?) "$program: --help, -h, --version and wrong flags$odd"
done

cp "$work/seen/metrics.jsonl" "$work/fast.1.jsonl"
cp "$work/seen/metrics.jsonl" "$work/fast.2.jsonl"
sed -E 's/"supervised_tokens":([0-9]+)/"supervised_tokens":1\1/' "$work/seen/metrics.jsonl" >"$work/faster.1.jsonl"
dev/compare_table.sh "$work" fast faster >"$work/table"
awk '$1 == "fast" { a = $3; one = $NF } $1 == "faster" { b = $3; more = $NF } END { exit !(one == "1.00" && more > 1 && b > a) }' "$work/table"
ok $? "runs compared"
finish
