#!/usr/bin/env bash
# Laws of whole runs: the same command gives the same bits; 2 x 2 ranks learn as one does; a checkpoint goes on in any layout.
. "$(dirname "$0")/train_lib.sh"
make_data 3000 300
base="-i $work/data/train.bin -j $work/data/val.bin -e l4c32h4 -t 256 -d 4000 -l 1e-3 -k constant -v 0 -s 0"

# name, ranks, options: a run with its metrics in $work/name
train() {
    local name=$1 ranks=$2
    shift 2
    run "$name" "$ranks" $base -o "$work/$name" "$@" || { tail -5 "$work/$name.log"; ok 1 "$name: the run failed"; }
}

train first 4 --stages 2 -x 30 -z 1 --refit off
train again 4 --stages 2 -x 30 -z 1 --refit off
cmp -s <(losses first) <(losses again)
ok $? "the same command twice, with --refit off: bit-identical losses of 30 steps"
train one 1 -x 30
difference=$(loss_difference first one 1e-4)
ok $? "30 steps at 2x2 equal 1x1 (largest difference $difference)"
[ "$(losses one | wc -l)" -eq 30 ]
ok $? "one line of metrics a step"
awk 'NR == 1 {a = $2} END {exit !($2 < 0.8 * a)}' <(losses one)
ok $? "the loss falls: $(losses one | sed -n '1p;$p' | tr '\n' ' ')"

# Saved at 4x1, the last stage with the head alone, after 5 of 10 steps; resumed at 2x2, 4x1 and 1x1.
head_alone="--placement 2,1,1,0 --head whole"
train whole 4 --stages 4 $head_alone -x 10 -n 5
for layout in 2x2 4x1 1x1; do
    P=${layout%x*} R=${layout#*x}
    cp -r "$work/whole" "$work/resume-$layout"
    rm -f "$work/resume-$layout"/*_00000010* "$work/resume-$layout/metrics.jsonl"
    train "resume-$layout" $((P * R)) --stages "$P" $([ $layout != 4x1 ] || echo "$head_alone") -x 10 -y 1 -z $((R > 1))
    difference=$(loss_difference whole "resume-$layout" "$([ $layout = 4x1 ] && echo 0 || echo 1e-5)")
    ok $? "saved at 4x1, resumed at $layout: next losses differ by $difference"
    [ "$(losses "resume-$layout" | head -1 | cut -d' ' -f1)" = 6 ]
    ok $? "resumed at $layout: goes on with step 6"
done

# --stages auto, by costs with which replicas are slow to sum. Resumed where these costs are not: the same stages.
timeout -k 5 120 mpirun -np 4 "$build/profile_costs" --model l4c32h4 --vocab 257 --tokens 256 --seconds 1 --out "$work/slow_sums" >"$work/profile.log" 2>&1
sed -i -E 's/^reduce bytes_per_ns [^ ]+/reduce bytes_per_ns 0.0002/' "$work/slow_sums"
train auto 4 -x 2 --costs "$work/slow_sums"
DYNAPIPE_CACHE=$work/empty train auto 4 -x 4 -y 1
[ "$(grep -c '^ranks: 4 = 4 stages' "$work/auto.log")" -eq 1 ] && grep -q '^costs: as in the checkpoint' "$work/auto.log"
ok $? "resumed with no costs in the cache: $(grep -m1 '^ranks:' "$work/auto.log")"

# Validation fits into --memory-limit, in smaller microbatches: the same loss. (A run beyond its limit ends.)
val="-i $work/data/train.bin -j $work/data/val.bin -e l4c32h4 -t 4096 -d 3000 -x 1 -v 1 -m 40 -s 1 -g 4"
run val-roomy 1 $val
run val-limited 1 $val --memory-limit 7500K
run val-limited-2x2 4 $val --stages 2 --placement 4,0 --head whole --memory-limit 7500K
for name in val-limited val-limited-2x2; do
    [ "$(grep -c 'val loss' "$work/$name.log")" -eq 2 ] &&
        cmp -s <(grep 'val loss' "$work/$name.log") <(grep 'val loss' "$work/val-roomy.log")
    ok $? "$name: $(grep -m1 'val loss\|error' "$work/$name.log")"
done

# Long samples in pieces on 4 x 2 with a divided optimizer: a run in two ends with the bits of a run in one.
make_long_data "$work/long"
cut() {  # name, more options
    train "$@" -i "$work/long/train.bin" -e l4c128h2 -t 400 -d 800 -v 0 --stages 4 -z 1 -x 4 -n 2 --refit off --debug dump-plan="$work/cut.plan" --show-step 3
}
cut cut 8
cp -r "$work/cut" "$work/cut-resumed"
rm -f "$work/cut-resumed"/*_00000004*
cut cut-resumed 8 -y 1
grep -q ' continues ' "$work/cut.plan" && diff -x '*.jsonl' -x '*.log' -r "$work/cut" "$work/cut-resumed" >"$work/said" 2>&1
ok $? "$(grep -c ' continues ' "$work/cut.plan") later pieces: resumed behind step 2, the same files behind step 4 $(head -1 "$work/said")"

# What a resumed run does not use, it says.
cp -r "$work/whole" "$work/other"
rm -f "$work/other"/*_00000010*
train other 4 --stages 4 -x 6 -y 1 -e l2c32h4 --seed 7
grep -q 'warning: -e l2c32h4 is not used' "$work/other.log" && grep -q 'warning: --seed 7 is not used.*keeps --seed 42$' "$work/other.log"
ok $? "a resumed run warns of another -e and --seed"
! grep -q 'warning.*is not used' "$work/resume-2x2.log"
ok $? "and not of the same ones"

# A trained model becomes a new run's start; llm.c's log and the plan of a step are there.
train from-file 2 --stages 2 -x 1 -e "$work/whole/model_00000010.bin" --debug dump-plan="$work/plan.txt" --show-step 1 --trace "$work/trace.json" -v 1 -m 30
grep -q '^s:1 trl:' "$work/from-file/main.log" && grep -q '^s:0 tel:' "$work/from-file/main.log"
ok $? "main.log in llm.c's form"
train from-folder 2 --stages 2 -x 1 -e "$work/whole"
grep -q "^-e $work/whole: its newest checkpoint is of step 10$" "$work/from-folder.log" && cmp -s <(losses from-file) <(losses from-folder)
ok $? "-e takes a run's folder: $(grep '^-e' "$work/from-folder.log")"
train whole 4 --stages 4 $head_alone -x 10 -y 1
grep -q 'step 10: nothing is left to train ---> a larger -x' "$work/whole.log"
ok $? "-y 1 after the last step: $(grep '^resumed' "$work/whole.log")"
grep -q '^dynapipe-plan 3' "$work/plan.txt" && grep -q '"traceEvents"' "$work/trace.json" && grep -q '"name":"reduce"' "$work/trace.json"
ok $? "plan and trace of a step"

# Trained on one batch alone, validation turns: the best model is kept, and the run ends, also where it was resumed on the way.
stops() {  # name, ranks, options: ends three validations after the lowest, whose model is kept
    train "$@" -x 60 -a 1 -l 1e-2 -v 2 -m 40 --answers 0 -n 2 --refit off --keep-best loss --patience 3
    lowest=$(sed -nE 's/^\{"validation":([0-9]+),"loss":([^,]+),.*/\1 \2/p' "$work/$1/metrics.jsonl" | sort -gk2,2 | head -1)
    last=$((${lowest% *} + 6))
    grep -q "^--patience 3: the lowest validation loss, .*, is that of step ${lowest% *}: stopping at step $last of 60" "$work/$1.log" &&
        [[ $(losses "$1" | tail -1) = "$last "* ]] && [ -f "$work/$1/DONE_$(printf %08d $last)" ] &&
        cmp -s "$work/$1/model_best.bin" "$work/$1/model_$(printf %08d "${lowest% *}").bin"
    ok $? "$1: $(grep '^--patience' "$work/$1.log")"
}
stops best 2 --stages 2 --export-hf "$work/best-hf"
of_best="-e $work/best/model_best.bin -t 256 -x 0 --export-hf $work/best-hf"
last_model=$(md5sum <"$work/best-hf/model.safetensors")
grep -qF "of step $last; the lowest validation loss was that of step ${lowest% *} ---> $of_best" "$work/best.log" && train exported 2 $of_best && [ "$(md5sum <"$work/best-hf/model.safetensors")" != "$last_model" ]
ok $? "an export says that it is not the best, and how to get that"
grep -q "model_best.bin: step ${lowest% *}, the lowest validation loss$" "$work/best.log"
ok $? "--keep-best says its step"
stops best 2 --stages 2 -y $((last - 2))
# or the best by a task's score, the first of equals
"$build/dev/make_tasks" --mixture easy --out "$work/easy.jsonl" --samples 3000 --max-tokens 120 >"$work/data.log" && grep -E '"task": "(review|opposite)"' "$work/easy.jsonl" >"$work/two.jsonl" &&
    "$build/prepare_data" --out "$work/two" "$work/two.jsonl" >"$work/data.log" 2>&1 || cat "$work/data.log"
train scored 2 --stages 2 -i "$work/two/train.bin" -j "$work/two/val.bin" -e l2c32h4 -t 128 -d 1500 -x 60 -l 1e-2 -v 4 -m 40 --answers 16 -g 12 -n 4 --keep-best review
scores=$(sed -nE 's/^\{"validation":([0-9]+),"loss":([^,]+),.*"exact_match":\{[^}]*"review":([^,}]+).*"rouge_l":\{[^}]*"review":([^,}]+).*/\1 \2 \3 \4/p' "$work/scored/metrics.jsonl" |
    awk '$3 + $4 > most {most = $3 + $4; step = $1} least == "" || $2 <= least {least = $2; lowest = $1} END {print step + 0, 50 * most, lowest}')
read -r step score lowest <<<"$scores"
[ "$step" -gt 0 ] && [ "$step" -ne "$lowest" ] && cmp -s "$work/scored/model_best.bin" "$work/scored/model_$(printf %08d "$step").bin" &&
    grep -q "model_best.bin: step $step, the best score of review$" "$work/scored.log"
ok $? "--keep-best TASK: $score % of step $step; the loss is lowest after $lowest"
refuses "--keep-best reviews: no task of the data ---> one of: loss, copy, " "a task that is none" 2 $base -v 4 -x 4 -o "$work/none" --keep-best reviews
refuses "---> --answers above 0" "a score without answers" 2 $base -v 4 -x 4 -o "$work/none" --keep-best review --answers 0

# Hosts with different numbers of cores: as many threads, but the same plans.
options="$base -x 1 -o $work/threads --stages 2"
timeout -k 5 120 mpirun -x OMP_WAIT_POLICY=passive -np 1 -x OMP_NUM_THREADS=1 "$trainer" $options : -x OMP_WAIT_POLICY=passive -np 1 -x OMP_NUM_THREADS=2 "$trainer" $options \
    >"$work/threads.log" 2>&1
ok $? "ranks with different numbers of threads: $(grep -m1 error "$work/threads.log")"

# All caps of a short batch lie within the original's 5 ms: it would give up, a run must not.
train short 2 --stages 2 -x 3 -d 100 --batching dynapipe
[ "$(losses short | wc -l)" -eq 3 ]
ok $? "dynapipe on batches of one or two samples"

# One process without MPI.
dropped() {  # name, options: the step lines' losses, one a line
    local name=$1
    shift
    timeout 60 "$build/train_gpt2" -i "$work/data/train.bin" -e l2c32h4 -t 64 -b 4 -x 3 -v 0 -s 0 --refit off "$@" >"$work/$name.log" 2>&1
    sed -nE 's/^step .*loss +([0-9.]+) .*norm ([0-9.]+) .*/\1 \2/p' "$work/$name.log"
}
whole=$(dropped drop-0) some=$(dropped drop-1 --dropout 0.2) again=$(dropped drop-2 --dropout 0.2)
[ "$(wc -l <<<"$some")" = 3 ] && [ "$some" = "$again" ] && [ "$(head -1 <<<"$some")" != "$(head -1 <<<"$whole")" ]
ok $? "its --dropout drops, the same in two runs: $(head -1 <<<"$some"), without $(head -1 <<<"$whole")"
[ "$(dropped adam-1 --lr 3e-4 --betas 0.9,0.95 --eps 1e-8 --grad-clip 1)" = "$whole" ]
ok $? "llm.c's learning rate, betas, eps and clip are the defaults"
for option in "--betas 0.5,0.95" "--betas 0.9,0.5" "--eps 1e-3" "--grad-clip 0.1"; do
    changed=$(dropped adam-2 $option)
    [ "$(wc -l <<<"$changed")" = 3 ] && [ "$(head -1 <<<"$changed")" = "$(head -1 <<<"$whole")" ] && [ "$changed" != "$whole" ]
    ok $? "$option changes what is learned: $(tail -1 <<<"$changed"), without $(tail -1 <<<"$whole")"
done
! ldd "$build/train_gpt2" | grep -q libmpi
ok $? "the trainer without DYNAPIPE=1 needs no MPI"
finish
