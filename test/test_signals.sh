#!/usr/bin/env bash
# A run that is told to end finishes its step, saves and ends, whichever rank is told and whatever it is at; what goes on from there
# ends with the bits of a run that was let alone. Saves by the clock; mpirun.sh.
# concerns: trainer util/program dynapipe_plugin/run/session dynapipe_plugin/mpirun.sh
needs=pgrep
. "$(dirname "$0")/train_lib.sh"
make_data 800 120
launch=$PWD/dynapipe_plugin/mpirun.sh
base="-i $work/data/train.bin -j $work/data/val.bin -e l2c32h2 -t 128 -d 1500 -v 0 -s 0 --refit off"
newest() { printf '%08d' "$(find "$work/$1" -name 'DONE_*' | sed 's/.*_0*//' | sort -n | tail -1)"; }
mpicc -shared -fPIC -O1 test/tools/fault_shim.c -o "$work/fault.so" -ldl
for shim in stalled_disk fast_clock; do gcc -shared -fPIC -O1 test/tools/$shim.c -o "$work/$shim.so" -ldl; done
left_over() { find "$work/$1" -name '*.tmp' | grep . || pgrep -f -- "-o $work/$1" | grep .; }
# shellcheck disable=SC2086
run all 2 $base --stages 2 -x 40 -o "$work/all"

stopped() {  # exit status, expected, signal said, name
    local step
    step=$(stopped_after "$3" "$4")
    [ "$1" -eq "$2" ] && [ -n "$step" ] && [ "$((10#$(newest "$4")))" -eq "$step" ] && ! left_over "$4"
    ok $? "$4: exit status $1, $(grep -m1 'stopped by' "$work/$4.log" | sed "s|$work/||")"
}

# --- one rank is told, or mpirun hands it on --------------------------------------------------------------------
# shellcheck disable=SC2086
{
    for signal in TERM INT USR1; do
        start '^step +2/' "rank-$signal" 2 $base --stages 2 -x 40000 -o "$work/rank-$signal"
        kill -$signal "$(ranks_of "$job" | tail -1)"
        wait "$job"
        stopped $? "$([ $signal = INT ] && echo 130 || echo 0)" SIG$signal rank-$signal
    done
    start '^step +2/' mpirun-USR1 4 $base --stages 2 -x 40000 -o "$work/mpirun-USR1"
    pkill -USR1 -P "$job" mpirun
    wait "$job"
    stopped $? 0 SIGUSR1 mpirun-USR1

    # the bits: 40 steps, told to end among the first, on from there
    start '^step +3/' cut 2 $base --stages 2 -x 40 -o "$work/cut"
    kill -TERM "$(ranks_of "$job" | head -1)"
    wait "$job"
    run cut-on 2 $base --stages 2 -x 40 -o "$work/cut" -y 1
    cmp "$work/cut/model_00000040.bin" "$work/all/model_00000040.bin" && cmp "$work/cut/state_00000040_00000.bin" "$work/all/state_00000040_00000.bin"
    ok $? "stopped after step $(stopped_after SIGTERM cut), on from there: model and state of 40 steps, byte for byte"
    [ "$(grep -c "^{\"step\":" "$work/cut/metrics.jsonl")" -eq 40 ] && [ "$(losses cut)" = "$(losses all)" ]
    ok $? "and every step in metrics.jsonl, once"

    # --- whatever it is at --------------------------------------------------------------------------------------
    start '^step +1/' validating 2 $base --stages 2 -x 40000 -o "$work/validating" -v 1 -m -1 --answers 50 -g 100
    sleep 0.3
    kill -TERM $(ranks_of "$job")
    wait "$job"
    stopped $? 0 SIGTERM validating
    step=$(stopped_after SIGTERM validating)
    [ "$(grep -c '"validation":' "$work/validating/metrics.jsonl")" -le $((step + 1)) ] && ! grep -q 'val loss -*nan' "$work/validating.log"
    ok $? "a validation that breaks off is not logged: $(grep -c '"validation":' "$work/validating/metrics.jsonl") are, of $((step + 1))"
    # rank 1 tells itself, while it measures the model: between its lines "data:" and "measured"
    LD_PRELOAD=$work/fault.so FAULT_AT=sums:16 FAULT_DO=int FAULT_RANK=1 FAULT_MARK=$work/mark DYNAPIPE_CACHE=$work/none \
        run measuring 2 $base --stages 2 -x 40 -o "$work/measuring"
    [ $? -eq 130 ] && [ -e "$work/mark" ] && grep -q 'stopped by SIGINT before the first step of this run: nothing to save' "$work/measuring.log" && ! grep -q '^step' "$work/measuring.log"
    ok $? "while the model is measured: $(grep 'stopped by' "$work/measuring.log")"
    # 4 MiB of data on a disk that gives nothing before the run has said that it is saved
    awk 'BEGIN {for (i = 0; i < 20; i++) {s = sprintf("%01000d", i); for (k = 0; k < 100; k++) printf "%s%s", k ? "" : "{\"inputs\": \"", s
         print "\", \"targets\": \"b\"}"}}' >"$work/long.jsonl"
    "$build/prepare_data" --val-fraction 0 --out "$work/long" "$work/long.jsonl" >"$work/long.log" 2>&1
    export LD_PRELOAD=$work/stalled_disk.so STALLED_DISK_GO=$work/verifying.go
    start '^step +2/' verifying 2 -i "$work/long/train.bin" -e l2c32h2 -t 128 -v 0 -s 0 -x 400000 -o "$work/verifying" -d 1500 --refit off --stages 2
    kill -TERM "$(ranks_of "$job" | tail -1)"
    unset LD_PRELOAD
    await '^stopped by' "$work/verifying.log" && grep -qE '^stopped before all of the data was verified: .*[0-9] MiB' "$work/verifying.log"
    ok $? "verifying: $(grep '^stopped before' "$work/verifying.log")"
    touch "$work/verifying.go"
    wait "$job"
    stopped $? 0 SIGTERM verifying
    start '^step +2/' nowhere 2 $base --stages 2 -x 40000
    kill -TERM "$(ranks_of "$job" | tail -1)"
    wait "$job"
    [ $? -eq 0 ] && grep -q 'stopped by SIGTERM after step .* of 40000, not saved ---> -o DIR saves' "$work/nowhere.log"
    ok $? "no -o: $(grep 'stopped by' "$work/nowhere.log")"

    # --- mpirun.sh ----------------------------------------------------------------------------------------------
    for signal in TERM INT; do
        set -m
        timeout --foreground 120 "$launch" -np 2 "$trainer" $base --stages 2 -x 40000 -o "$work/sh-$signal" >"$work/sh-$signal.log" 2>&1 &
        job=$!
        set +m
        await '^step +2/' "$work/sh-$signal.log"
        pkill -$signal -P "$job" -f mpirun.sh
        wait "$job"
        stopped $? "$([ $signal = INT ] && echo 130 || echo 0)" "$([ $signal = INT ] && echo SIGINT || echo SIGUSR1)" sh-$signal
    done
    timeout --foreground 120 "$launch" -np 2 "$trainer" $base --stages 2 -x 40000 -o "$work/killed" >"$work/killed.log" 2>&1 &
    job=$!
    await '^step +2/' "$work/killed.log"
    mpirun=$(pgrep -P "$(pgrep -P "$job" -f mpirun.sh)" mpirun)
    segments=$(grep -ho '/dev/shm/vader_segment[^ ]*' "/proc/$(pgrep -P "$mpirun" | head -1)/maps" | sort -u)
    kill -KILL "$mpirun"
    wait "$job"
    [ $? -eq 137 ] && ! left_over killed && { [ -z "$segments" ] || ! ls $segments "${TMPDIR:-/tmp}/ompi.$(uname -n | cut -d. -f1).$(id -u)/pid.$mpirun" 2>/dev/null | grep .; }
    ok $? "mpirun.sh, mpirun killed: no rank and none of $(wc -w <<<"$segments") pieces of shared memory is left"

    # --- one process, T5, the clock -----------------------------------------------------------------------------
    for name in train_gpt2 train_t5-dynapipe; do
        model=$base
        [ $name = train_gpt2 ] && model="-i $work/data/train.bin -e l2c32h2 -t 64 -v 0 -s 0"
        [ $name = train_t5-dynapipe ] && model="-i $work/data/train.bin -e t5:l1c32h2 -t 128 --target-tokens 32 -d 1500 -v 0 -s 0"
        (set -m; exec timeout --foreground 60 "$build/$name" $model -x 400000 -o "$work/$name" >"$work/$name.log" 2>&1) &
        job=$!
        await '^step +2/' "$work/$name.log"
        pkill -INT -P "$job"
        wait "$job"
        stopped $? 130 SIGINT $name
    done
    start '^saved' timed 2 $base --stages 2 -x 40000 -o "$work/timed" -n 1s
    kill -TERM "$(ranks_of "$job" | head -1)"
    wait "$job"
    stopped $? 0 SIGTERM timed
    [ "$(grep -c '^saved' "$work/timed.log")" -ge 2 ] && ! grep '^saved' "$work/timed.log" | sort | uniq -d | grep .
    ok $? "-n 1s: saved $(grep -c '^saved' "$work/timed.log") times, no step twice"
    run counted 2 $base --stages 2 -x 6 -o "$work/counted" -n 3
    [ "$(cd "$work/counted" && echo DONE_*)" = "DONE_00000003 DONE_00000006" ]
    ok $? "-n 3: $(cd "$work/counted" && echo DONE_*)"
    # ten minutes in less than a thousandth of a second: the newest two by the clock and the last are left, and what was there before
    model="-i $work/data/train.bin -e l2c32h2 -t 64 -v 0 -s 0 -o $work/hours"
    "$build/train_gpt2" $model --refit off -x 3 >"$work/hours.log" 2>&1
    LD_PRELOAD=$work/fast_clock.so FAST_CLOCK=1000000 timeout 60 "$build/train_gpt2" $model -x 40 -y 1 >"$work/hours.log" 2>&1
    done_files=$(cd "$work/hours" && echo DONE_*) by_clock=$(grep '^saved' "$work/hours.log" | sed -n 's/.*model_0*\([1-9][0-9]*\).bin/\1/p')
    expected="DONE_00000003 $(printf 'DONE_%08d ' $(tail -3 <<<"$by_clock"))"
    [ "$(wc -l <<<"$by_clock")" -gt 4 ] && [ "$done_files " = "$expected" ]
    ok $? "no -n: $(wc -l <<<"$by_clock") checkpoints, left are $done_files"
    # a longer run's pieces go on forgetting, one of them told to end; what the complete run asked for stays
    expected="DONE_00000003 DONE_00000040 "
    model="$model -y 1 --export-hf $work/hours.hf"
    (set -m; exec env LD_PRELOAD="$work/fast_clock.so" FAST_CLOCK=200000 timeout --foreground 60 "$build/train_gpt2" $model -x 400000 >"$work/hours.log" 2>&1) &
    job=$!
    await '^saved' "$work/hours.log"
    pkill -TERM -P "$job"
    wait "$job"
    status=$? done_files=$(cd "$work/hours" && echo DONE_*)
    [ $status -eq 0 ] && [[ $done_files == "${expected}DONE_"*" DONE_$(newest hours)" ]] && [ "$(wc -w <<<"$done_files")" -eq 4 ]
    ok $? "no -n, stopped by SIGTERM: left are $done_files"
    grep -qF "$work/hours.hf: not exported yet" "$work/hours.log" && [ ! -e "$work/hours.hf/config.json" ]
    ok $? "a run that is told to end says that nothing is exported"
    steps=$((10#$(newest hours) + 3))
    LD_PRELOAD=$work/fast_clock.so FAST_CLOCK=200000 timeout 60 "$build/train_gpt2" $model -x $steps >"$work/hours.log" 2>&1
    done_files=$(cd "$work/hours" && echo DONE_*)
    [[ $done_files == "${expected}DONE_"*" DONE_$(printf %08d $steps)" ]] && [ "$(wc -w <<<"$done_files")" -le 5 ] && [ -e "$work/hours.hf/config.json" ]
    ok $? "and the next piece forgets and exports: left are $done_files"
    # a signal during the last step, which takes a while: all is complete
    model="-i $work/data/train.bin -e l4c128h4 -t 1024 -b 16 -x 2 -v 1 -s 1"
    (set -m; exec timeout --foreground 60 "$build/train_gpt2" $model -o "$work/last" --export-hf "$work/last.hf" >"$work/last.log" 2>&1) &
    job=$!
    await '^step +1/2' "$work/last.log"
    sleep 0.3  # into the second
    pkill -USR1 -P "$job"
    wait "$job"
    [ $? -eq 0 ] && grep -q '^stopped by SIGUSR1 after the last step: the run is complete' "$work/last.log" && [ -e "$work/last/DONE_00000002" ] && [ -e "$work/last.hf/config.json" ]
    ok $? "a signal in the last step: $(grep -m1 'SIGUSR1' "$work/last.log"), $(grep '^exported' "$work/last.log" | sed "s|$work/||")"
    refuses "-n: '5x'" "an interval that is none" 2 $base -n 5x -o "$work/counted"
    refuses "-y and -n need a folder" "a time without a folder" 2 $base -n 5m
    refuses "no validation ---> add -j FILES" "a lowest loss without validation" 2 $base --patience 1 -v 0
}
finish
