#!/usr/bin/env bash
# What a run leaves behind it: whose -o is, what of its logs stays where it goes on, what a full disk, a removed folder and a
# reader that is gone cost it. And of every program: output that did not arrive is an error.
# concerns: util trainer dynapipe_plugin/run/session
. "$(dirname "$0")/train_lib.sh"
make -s -j2 "$build/dynapipe" "$build/profile_costs" >"$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }
make_data 300 200
model="-i $work/data/train.bin -e l2c16h2 -t 64 -s 0"
plugin="$model -j $work/data/val.bin -d 500 -v 2 -m 8 --answers 0 --refit off --stages 2"
alone="$model -b 2 -v 0"
records() { sed -nE 's/^\{"(step|validation)":([0-9]+),.*\}$/\1 \2/p' "$work/$1/metrics.jsonl" | xargs; }
lines() { sed -nE 's/^s:([0-9]+) (t[er]l):[0-9. a-z:]+$/\1 \2/p' "$work/$1/main.log" | xargs; }
sums() { (cd "$work/$1" && md5sum -- *); }
all_records="validation 0 step 1 step 2 validation 2 step 3 step 4 validation 4 step 5 step 6 validation 6"
all_lines="0 tel 1 trl 2 trl 2 tel 3 trl 4 trl 4 tel 5 trl 6 trl 6 tel"

# --- whose folder ------------------------------------------------------------------------------------------------
run whole 2 $plugin -x 6 -n 2 -o "$work/whole"
[ "$(records whole)" = "$all_records" ] && [ "$(lines whole)" = "$all_lines" ]
ok $? "a run's records: $(records whole)"
before=$(sums whole)
refuses "has an earlier run (checkpoints up to step 6) ---> -y 1 resumes it; another -o keeps the runs apart; --overwrite 1" \
    "a fresh run where one was" 2 $plugin -x 6 -o "$work/whole"
refuses "-y and --overwrite 1: one resumes" "both ways on" 2 $plugin -x 6 -o "$work/whole" -y 1 --overwrite 1
refuses "17 channels cannot be shared by 4 heads" "a run that would overwrite, but fails" 2 $plugin -x 6 -o "$work/whole" --overwrite 1 -e l9c17h4
refuses "shows step 9 (--show-step), the run has 6 --->" "a plan to show behind the run's end" 2 $plugin -x 6 --show-step 9 --debug print-plan
[ "$before" = "$(sums whole)" ]
ok $? "and not a byte of the earlier run has changed"
mkdir "$work/logs-only"
cp "$work/whole/main.log" "$work/whole/metrics.jsonl" "$work/logs-only"
refuses "(logs, no checkpoint)" "a fresh run where logs are" 2 $plugin -x 2 -o "$work/logs-only"
run logs-only 2 $plugin -x 2 -o "$work/logs-only" -y 1
ok $? "-y 1 with nothing but logs: $(grep -m1 'no checkpoint to resume from' "$work/logs-only.log" | sed "s|$work/||g")"
[ "$(records logs-only)" = "validation 0 step 1 step 2 validation 2" ] && [ "$(lines logs-only)" = "0 tel 1 trl 2 trl 2 tel" ]
ok $? "a new run's logs: $(records logs-only)"

cp -r "$work/whole" "$work/model"
rm "$work"/model/DONE* "$work"/model/main.log "$work"/model/metrics.jsonl "$work"/model/state*
"$build/train_gpt2" $alone -e "$work/model/model_00000006.bin" -x 1 -o "$work/model" >"$work/model.log" 2>&1
[ $? -eq 0 ] && cmp -s "$work"/whole/model_00000006.bin "$work"/model/model_00000006.bin
ok $? "a model that somebody put there is left alone"
refuses "would delete -e" "a run that would overwrite what it begins with" 1 $plugin --stages 1 -e "$work/model/model_00000006.bin" -x 1 -o "$work/model" --overwrite 1
[ -e "$work/model/model_00000006.bin" ]
ok $? "and it is still there"

# --- going on ----------------------------------------------------------------------------------------------------
# As a run killed in the middle of its 5th step's record leaves it, after the checkpoint of step 4.
cp -r "$work/whole" "$work/cut"
rm "$work"/cut/*00000006*
sed -n '/"step":5,/q; p' "$work/whole/metrics.jsonl" >"$work/cut/metrics.jsonl"
{ sed -n '/"step":5,/p' "$work/whole/metrics.jsonl"; printf '{"step":6,"loss":5.'; } >>"$work/cut/metrics.jsonl"
{ sed '/^s:6 /,$d' "$work/whole/main.log"; printf 's:6 trl:5.'; } >"$work/cut/main.log"
touch "$work/cut/model_00000006.bin.tmp" "$work/cut/state_00000006_00000.bin.tmp" "$work/cut/DONE_00000006.tmp" "$work/cut/mine.tmp"
flock "$work/cut/main.log" bash -c "$(declare -f run); build=$build work=$work trainer=$trainer; run busy 1 $plugin --stages 1 -x 6 -y 1 -o $work/cut; [ -e $work/cut/DONE_00000006.tmp ]" &&
    grep -q 'another run writes here --->' "$work/busy.log"
ok $? "a folder in use is left alone, its unfinished files too"
run cut 2 $plugin -x 6 -n 2 -y 1 -o "$work/cut"
[ $? -eq 0 ] && [ "$(records cut)" = "$all_records" ] && [ "$(lines cut)" = "$all_lines" ]
ok $? "a resumed run's logs are a whole run's: $(records cut)"
cmp -s <(losses whole) <(losses cut) && cmp -s "$work/whole/main.log" "$work/cut/main.log"
ok $? "to the last digit"
[ "$(cd "$work/cut" && echo *.tmp)" = mine.tmp ] && grep -q 'removed 3 unfinished files of a killed run' "$work/cut.log"
ok $? "what the killed run left unfinished is gone, others' files are not"
! grep '^warning' "$work/cut.log"
ok $? "with the same options it says nothing"
run other 2 $plugin -x 6 -y 1 -o "$work/cut" --mixture temperature --temperature 3 --loss-on all --batching padded
[ "$(grep -c '^warning: .* is .*, saved with ' "$work/other.log")" -eq 4 ] && grep -q '^warning: --temperature is 3, saved with 2$' "$work/other.log"
ok $? "each option that differs is said once: $(grep '^warning' "$work/other.log" | xargs)"
"$build/train_gpt2" $alone -x 1 -o "$work/settings" >/dev/null 2>&1 && "$build/train_gpt2" $alone -x 1 -y 1 -o "$work/settings" >"$work/settings.log" 2>&1
[ $? -eq 0 ] && ! grep '^warning' "$work/settings.log"
ok $? "the trainer's flags, the same: nothing is said"
others="-j $work/data/val.bin -b 4 -d 256 -x 2 -k linear -l 1e-3 -u 1 -q 0.5 -c 0.1 -sl 9 -sg 8 -a 1 --dropout 0.1 --optimizer adamw-scaled"
"$build/train_gpt2" $alone $others -y 1 -o "$work/settings" >"$work/settings.log" 2>&1
[ "$(sed -nE 's/^warning: (-[^ ]+) is .*, saved with .*/\1/p' "$work/settings.log" | sort | xargs)" = "$(printf '%s\n' $others | grep '^-' | grep -v '^-x' | sort | xargs)" ] &&
    grep -q '^warning: -l is 0.001, saved with 0.0003$' "$work/settings.log"
ok $? "others, each said once: $(grep -c '^warning: .*, saved with ' "$work/settings.log") flags"
run model 2 $plugin -x 6 -y 1 -o "$work/cut" -e "$work/whole/model_00000002.bin"
grep -q "^warning: -e is $work/whole/model_00000002.bin, saved with l2c16h2\$" "$work/model.log"
ok $? "another model of the same shape: $(grep '^warning' "$work/model.log" | sed "s|$work/||g")"
mv "$work/data/val.bin" "$work/val.bin" && cp "$work/data/train.bin" "$work/data/val.bin"
run text 2 $plugin -x 6 -y 1 -o "$work/cut"
[ "$(grep -c '^warning: hash of the text of -j is [0-9a-f]*, saved with ' "$work/text.log")" -eq 1 ]
ok $? "other validation text under the same name: $(grep '^warning' "$work/text.log")"
mv "$work/val.bin" "$work/data/val.bin"

# --- back, and instead -------------------------------------------------------------------------------------------
cp -r "$work/whole" "$work/back"
run back 2 $plugin -x 3 -n 1 -y 2 -o "$work/back"
[ $? -eq 0 ] && [ "$(cd "$work/back" && echo DONE* model*)" = "DONE_00000002 DONE_00000003 model_00000002.bin model_00000003.bin" ] &&
    grep -q ': removed 2 checkpoints of steps after 3' "$work/back.log"
ok $? "-y 2: $(grep -m1 'of steps after' "$work/back.log" | sed "s|$work/||g")"
start '^step +2/' early 2 $plugin -x 100000 -o "$work/whole" --overwrite 1
# shellcheck disable=SC2046
kill -KILL $(ranks_of "$job")
wait "$job" 2>/dev/null
[ $? -ne 0 ] && [ "$(cd "$work/whole" && echo DONE*)" = "DONE_00000002 DONE_00000004 DONE_00000006" ]
ok $? "a run that would overwrite, and dies before it saves: the earlier one's checkpoints stay"
mkdir "$work/here" "$work/there" && here=$PWD
ln -s "$work/data" "$work/here/data" && ln -s "$work/data" "$work/there/data"
apart="-i data/train.bin -e l2c16h2 -t 64 -s 0 -v 0 -d 500 --refit off --stages 2 -x 2 -o out"
timeout 60 mpirun -np 1 -wdir "$work/here" "$here/$trainer" $apart : -np 1 -wdir "$work/there" "$here/$trainer" $apart >"$work/apart.log" 2>&1
[ $? -eq 1 ] && grep -q '^error: out: 1 of 2 ranks do not see what rank 0 writes there --->' "$work/apart.log"
ok $? "$(grep -m1 '^error' "$work/apart.log")"
(ulimit -f 2 && "$build/prepare_data" --tokenizer bytes --out "$work/limited" "$work/tasks.jsonl" >"$work/limited.log" 2>&1)
[ $? -eq 1 ] && grep -q 'File too large --->' "$work/limited.log"
ok $? "a limit on the length of files is an error like a full disk: $(sed "s|$work/||g" "$work/limited.log" | tail -1)"
run again 2 $plugin -x 2 -o "$work/cut" --overwrite 1
[ $? -eq 0 ] && [ "$(records cut)" = "validation 0 step 1 step 2 validation 2" ] && [ "$(cd "$work/cut" && echo DONE* model*)" = "DONE_00000002 model_00000002.bin" ]
ok $? "--overwrite 1: $(grep -m1 ': removed' "$work/again.log" | sed "s|$work/||g")"

run behind 2 $plugin -x 3 -y 1 -o "$work/cut" --debug print-plan
[ $? -eq 0 ] && grep -q '^warning: --debug print-plan: step 2 (--show-step) is done, the run goes on with step 3' "$work/behind.log"
ok $? "a plan to show behind which a run goes on: $(grep -m1 '^warning: --print' "$work/behind.log")"
mkdir "$work/export"
touch "$work/export/config.json.tmp" "$work/export/model.safetensors.tmp" "$work/export/mine.tmp"
"$build/train_gpt2" $alone -e l9c17h4 --export-hf "$work/export" >/dev/null 2>&1
[ "$(cd "$work/export" && echo *.tmp)" = mine.tmp ]
ok $? "--export-hf: unfinished files of a killed run go, others stay"

# --- names ---------------------------------------------------------------------------------------------------------
for name in '\\u001b[31mred' 'h\\u00f6her=1,2' 'zw\\u00f6lf-zw\\u00f6lf-zw\\u00f6lf-zw\\u00f6lf'; do
    for i in 1 2 3 4 5 6; do
        printf '{"task": "%b", "inputs": "q %s\\u001b[2J", "targets": "a\\u0007\\u001b[1m%s"}\n' "$name" $i $i
    done
done >"$work/odd.jsonl"
"$build/prepare_data" --tokenizer bytes --val-fraction 0.3 --out "$work/odd" "$work/odd.jsonl" >"$work/odd-data.log" 2>&1
run odd 1 -i "$work/odd/train.bin" -j "$work/odd/val.bin" -e l2c16h2 -t 64 -d 120 -x 1 -v 1 -m 8 -s 1 -g 8 -o "$work/odd-run"
[ $? -eq 0 ] && ! grep -q $'[\001-\010\013-\037\177]' "$work/odd-data.log" "$work/odd.log" "$work/odd-run/metrics.jsonl" &&
    grep '^{"validation":1,' "$work/odd-run/metrics.jsonl" | grep -F '"\\x1b[31mred":' | grep -F '"höher=1,2":' | grep -qF '"zwölf-zwölf-zwölf-zwölf":'
ok $? "control characters of names and texts reach no terminal, and every task is in metrics.jsonl"

# --- lines that cannot be written --------------------------------------------------------------------------------
# A limit on file sizes stands in for a full disk: metrics.jsonl has 150 bytes left, checkpoints fit.
{ head -c $((20000 * 1024 - 150 - 1)) /dev/zero | tr '\0' x; echo; } >"$work/cut/metrics.jsonl"
(
    ulimit -f 20000
    run full 2 $plugin -x 6 -y 1 -o "$work/cut"
)
[ $? -ne 0 ] && grep -q '^step *6/6' "$work/full.log" && grep -q '^saved .*model_00000006' "$work/full.log"
ok $? "a full disk costs records, not the run; the exit status tells"
[ "$(grep -c 'metrics.jsonl: cannot be written: File too large' "$work/full.log")" -eq 1 ] && [ -z "$(tail -c 1 "$work/cut/metrics.jsonl")" ] && [ "$(wc -l <"$work/cut/metrics.jsonl")" -eq 1 ]
ok $? "with one warning, and no half of a record"

run moved 2 $plugin -x 400 -d 100 -v 0 -o "$work/moved" &
for _ in $(seq 600); do
    [ -s "$work/moved/main.log" ] && break
    sleep 0.05
done
mv "$work/moved" "$work/gone"
wait $!
[ $? -eq 0 ] && grep -q 'main.log: was removed; made again' "$work/moved.log" && grep -q 'metrics.jsonl: was removed; made again' "$work/moved.log"
ok $? "a folder that is gone is made again"
[ "$(cat "$work"/{gone,moved}/metrics.jsonl | grep -c '^{"step".*}$')" -eq 400 ] && [ "$(cat "$work"/{gone,moved}/main.log | wc -l)" -eq 400 ] && [ -e "$work/moved/DONE_00000400" ]
ok $? "for the lines from then on, and the checkpoint"

# --- output that does not arrive ---------------------------------------------------------------------------------
"$build/train_gpt2" $alone -x 40 -o "$work/head" 2>"$work/head.log" | head -1 >/dev/null
[ "${PIPESTATUS[0]}" -eq 1 ] && [ -e "$work/head/DONE_00000040" ] && [ "$(wc -l <"$work/head/main.log")" -eq 40 ] &&
    [ "$(grep -c '^warning: standard output: cannot be written: ' "$work/head.log")" -eq 1 ]
ok $? "a reader that goes does not end a run: $(tail -1 "$work/head.log")"

printf '5,2\n7,1\n' >"$work/lengths.csv"
plan="$build/dynapipe plan $work/lengths.csv --stages 2 --model l4c32h4"
programs=("$plan" "$plan --json -" "$plan --svg -" "$plan --text -"
    "$build/dynapipe report $work/whole/metrics.jsonl -o $work/page.html"
    "$build/dynapipe --help" "$build/dynapipe plan --help" "$build/prepare_data --tokenizer bytes --out $work/data2 $work/tasks.jsonl" "$build/prepare_data --help"
    "$build/dev/make_tasks --out $work/t2.jsonl --samples 30" "$build/dev/make_tasks --help" "$build/profile_costs --model l2c16h2 --tokens 32 --seconds 0.1 --out $work/c.txt"
    "$build/profile_costs --help" "$build/train_gpt2 --help" "$build/train_t5 --help" "$build/train_gpt2 $alone -x 1" "$build/train_gpt2-dynapipe --help"
    "$build/train_t5-dynapipe --help" "$build/train_gpt2-dynapipe $model -d 500 -v 0 -x 1")
quiet=
for program in "${programs[@]}"; do
    timeout 60 $program >/dev/null 2>"$work/fine.err" || quiet+=" (fails anyhow: $program)"
    timeout 60 $program >/dev/full 2>"$work/full.err" && quiet+=" (full: $program)"
    grep -q '^error: .*cannot be written: ' "$work/full.err" || quiet+=" (full, nothing said: $program)"
    timeout 60 $program >&- 2>"$work/closed.err" && quiet+=" (closed: $program)"
    grep -q '^error: .*cannot be written: ' "$work/closed.err" || quiet+=" (closed, nothing said: $program)"
done
ok $([ -z "$quiet" ]; echo $?) "${#programs[@]} commands with a full or closed standard output all fail and say so$quiet"
$plan --batch-tokens 16 2>&1 >/dev/null | grep -q '^warning: --batch-tokens 16: .* has 15 in all' && ! $plan --batch-tokens 15 2>&1 >/dev/null | grep .
ok $? "dynapipe plan --batch-tokens beyond the file is said"
finish
