#!/usr/bin/env bash
# soak.sh [ROUNDS] [SEED] -- no fault loses data: in each round the trainer runs on 2 to 4 CPU ranks, meets one fault at a random moment, and
# is started again. What must hold: the run ends by itself with the status of that fault; the newest checkpoint loads; what
# resumes from it ends with model and state of an undisturbed run, byte for byte, and with its losses in metrics.jsonl, each
# once; no unfinished file, no process and no shared memory is left. Prints a count by fault and moment. Round k is ROUNDS 1, SEED + k - 1: a failing round says how to run it alone.
#
# Moments are aimed at by test/tools/fault_shim.c (preloaded: the n-th message of the pipeline, of sums, write, fsync, rename), others
# by the log and a random wait. FAULTS="kill int ..." takes these alone, IN_TURN=1 one after the other, MOMENTS="rename ..."
# these moments. KEEP=1 keeps the folder.
. "$(dirname "$0")/help.sh"
set -u
cd "$(dirname "$0")/.."
. dev/mpi_env.sh
rounds=${1:-300} seed=${2:-$((RANDOM * 32768 + RANDOM))}
faults=${FAULTS:-kill kill kill mpirun all stop full flip term int usr1}
build=build/${BUILD:-release}
make -s -j2 "$build/train_gpt2-dynapipe" "$build/prepare_data" "$build/dev/make_tasks" || exit 1
trainer=$PWD/$build/train_gpt2-dynapipe launch=$PWD/dynapipe_plugin/mpirun.sh
work=$(mktemp -d)
shared=$(mktemp -d /dev/shm/dynapipe_soak.XXXXXX)
trap 'rm -rf "$shared"; [ -n "${KEEP:-}" ] && echo "kept: $work" || rm -rf "$work"' EXIT
export OMP_NUM_THREADS=1 DYNAPIPE_CACHE=$work/costs TMPDIR=$work/tmp OMPI_MCA_btl_vader_backing_directory=$shared
mkdir "$TMPDIR"
mpicc -shared -fPIC -O1 test/tools/fault_shim.c -o "$work/fault.so" -ldl || exit 1
"$build/dev/make_tasks" --out "$work/tasks.jsonl" --samples 400 --seed 7 --max-tokens 120 >/dev/null &&
    "$build/prepare_data" --out "$work/data" "$work/tasks.jsonl" >/dev/null || exit 1
steps=8
flags=(-i "$work/data/train.bin" -j "$work/data/val.bin" -e l3c32h2 -t 128 -d 1000 -x $steps -n 2 -s 0 -m 20 --answers 1 -g 8 --refit off)
layouts=("2 --stages 2" "2 --stages 1 -z 1" "3 --stages 3" "4 --stages 2 -z 1")
last=$(printf '%08d' $steps)

train() {  # folder, layout, flags...
    local folder=$1 ranks options
    read -r ranks options <<<"$2"
    shift 2
    # shellcheck disable=SC2086
    timeout -k 60 300 "$launch" -np "$ranks" "$trainer" "${flags[@]}" $options -o "$folder" "$@"
}

losses() { sed -nE 's/.*"step":([0-9]+),"loss":([^,]+),.*/\1 \2/p' "$1/metrics.jsonl"; }
pick() {  # into what, of these: no $(), a shell below draws numbers of its own
    local into=$1
    shift
    printf -v "$into" %s "${@:1 + RANDOM % $#:1}"
}
pause() { sleep "$(awk -v r=$RANDOM -v most="$1" 'BEGIN {print r / 32768 * most}')"; }
alive() { pgrep -f -- "-o $dir( |\$)" 2>/dev/null; }  # of this round
ranks_alive() { for p in $(alive); do [ "$(cat "/proc/$p/comm" 2>/dev/null)" = "$(basename "$trainer" | cut -c1-15)" ] && echo "$p"; done; }
newest() { find "$dir" -name 'DONE_*' | sed 's/.*DONE_0*//; s/^$/0/' | sort -n | tail -1; }

# Until the log has such a line, or the run has ended.
await() {
    for _ in $(seq 1000); do
        grep -qsE "$1" "$dir.log" && return
        kill -0 "$job" 2>/dev/null || return
        sleep 0.02
    done
}

# Where and how: $fault, $moment; $at for the shim, or a pattern of the log.
draw() {
    layout=${layouts[RANDOM % ${#layouts[@]}]} at='' more=()
    ranks=${layout%% *}
    # shellcheck disable=SC2086
    pick fault $faults
    [ -z "${IN_TURN:-}" ] || fault=$(cut -d' ' -f$((1 + (round - 1) % $(wc -w <<<"$faults"))) <<<"$faults")
    # shellcheck disable=SC2086
    case $fault in
        all) pick moment start planning step ;;
        full) moment=write ;;
        flip) pick moment model state data && more=(-x $((5 + RANDOM % 3))) ;;
        *) pick moment ${MOMENTS:-start planning pipeline sums validation write sync rename} ;;
    esac
    local links=pipeline  # one stage has no messages but sums
    [[ $layout != *"--stages 1"* ]] || links=sums
    case $moment in
        pipeline) at=$links:$((1 + RANDOM % 60)) ;;
        sums) at=sums:$((1 + RANDOM % 150)) ;;
        validation) at=$links:$((1 + RANDOM % 80)) more=(-v 1 -m -1 --answers 20) ;;  # most of the messages, then
        write) at=write:$((1 + RANDOM % 16)) ;;
        sync) at=sync:$((1 + RANDOM % 12)) ;;
        rename) at=rename:$((1 + RANDOM % 13)) ;;
    esac
    case $moment in
        rename) victim=0 ;;
        *) victim=$((RANDOM % ranks)) ;;
    esac
}

# The fault from outside, where the shim has none.
strike() {
    case $moment in
        start)
            for _ in $(seq 500); do
                [ -z "$(ranks_alive)" ] && kill -0 "$job" 2>/dev/null || break
                sleep 0.02
            done
            pause 0.5
            ;;
        planning) await '^data: '; pause 0.4 ;;
        step) await "^step +$((1 + RANDOM % (steps - 1)))/"; pause 0.1 ;;
    esac
    local ranks_now
    mapfile -t ranks_now < <(ranks_alive)
    [ ${#ranks_now[@]} -gt 0 ] || return
    local one=${ranks_now[RANDOM % ${#ranks_now[@]}]}
    touch "$dir.mark"
    case $fault in
        kill) kill -KILL "$one" ;;
        stop) kill -STOP "$one" ;;
        mpirun) kill -KILL "$(ps -o ppid= -p "$one")" ;;
        all) kill -KILL "${ranks_now[@]}" "$(ps -o ppid= -p "$one")" ;;
        term | int | usr1) kill "-${fault^^}" "$one" ;;
    esac 2>/dev/null
}

# What a stopped process is to the others: slow. It goes on after a second or two.
go_on() {
    local stopped
    for _ in $(seq 500); do
        kill -0 "$job" 2>/dev/null || return
        if [ -e "$dir.mark" ]; then break; fi
        sleep 0.02
    done
    pause 2
    for _ in $(seq 100); do
        stopped=$(for p in $(alive); do grep -qs '^State:.T' "/proc/$p/status" && echo "$p"; done)
        # shellcheck disable=SC2086
        [ -z "$stopped" ] || kill -CONT $stopped 2>/dev/null
        kill -0 "$job" 2>/dev/null || return
        sleep 0.05
    done
}

# What a run ends with that is let alone, on as many ranks.
whole() {
    [ -e "$work/whole${layout// /}/DONE_$last" ] && return
    train "$work/whole${layout// /}" "$layout" >"$work/whole.log" 2>&1 && return
    tail -5 "$work/whole.log"
    exit 1
}

wrong() {
    echo "FAIL round $round: $1 ($fault at $moment ${at:-}, rank $victim of $layout; status $status$([ $status -ne 124 ] && [ $status -ne 137 ] || echo ", perhaps killed after its 300 s"))"
    if [ -n "${IN_TURN:-}" ]; then faults=$fault; fi
    echo "     again alone: FAULTS=\"$faults\"${MOMENTS:+ MOMENTS=\"$MOMENTS\"} dev/soak.sh 1 $round_seed"
    tail -5 "$dir.log" "$dir.on.log" 2>/dev/null | cut -c1-300
    good=0
}

# The status that a run ends with: the fault's. Ranks that have saved the last step may be killed to no effect; a signal at the
# start may meet a process that does not watch yet.
check_status() {
    case $fault:$moment in
        kill:* | mpirun:* | all:*) [ $status -ne 0 ] || [ -e "$dir/DONE_$last" ] || wrong "a run with a killed process says nothing" ;;
        full:*) [ $status -eq 1 ] || wrong "a checkpoint, or lines of a log, are lost: not 1" ;;
        stop:*) [ $status -eq 0 ] || wrong "a run that waited for a rank fails" ;;
        term:start | int:start | usr1:start) ;;
        term:* | usr1:*) [ $status -eq 0 ] || wrong "told to end: not 0" ;;
        int:*) [ $status -eq 130 ] || wrong "told to end by SIGINT: not 130" ;;
    esac
}

check_left() {  # when
    local left
    left=$(find "$dir" -name '*.tmp' -o -name '*.header*' 2>/dev/null)
    [ -z "$left" ] || [ "$1" = before ] || wrong "$1: unfinished files: $left"
    left=$(alive)
    [ -z "$left" ] || wrong "$1: processes: $left"
    left=$(find "$shared" "$TMPDIR" -mindepth 1 | head -3)
    [ -z "$left" ] || wrong "$1: shared memory, or a session: $left"
}

# One bit of the newest checkpoint: it is refused, with the older one's step, and that one is gone on from. Of the data: its file is
# named, and no checkpoint is made.
flip() {
    local step file size byte said data=()
    step=$(newest)
    [ "${step:-0}" -gt 2 ] || return
    case $moment in
        model) file=$dir/model_$(printf '%08d' "$step").bin ;;
        state) file=$dir/state_$(printf '%08d' "$step")_00000.bin ;;
        data) file=$dir.data.bin data=(-i "$dir.data.bin") && cp "$work/data/train.bin" "$file" ;;
    esac
    size=$(stat -c %s "$file")
    byte=$(((RANDOM * 32768 + RANDOM) % size))
    python3 -c "
import sys
with open(sys.argv[1], 'r+b') as f:
    f.seek(int(sys.argv[2])); b = f.read(1)[0]; f.seek(int(sys.argv[2])); f.write(bytes([b ^ 1 << int(sys.argv[3])]))" "$file" "$byte" $((RANDOM % 8))
    at="byte $byte of $(basename "$file")"
    touch "$dir.mark"
    train "$dir" "$layout" -y 1 "${data[@]}" >"$dir.on.log" 2>&1 && wrong "a flipped bit is accepted"
    if [ "$moment" = data ]; then
        grep -qF "$file" "$dir.on.log" || wrong "the file is not named"
        [ "$(newest)" = "$step" ] || wrong "a checkpoint was made of damaged data"
        return
    fi
    said=$(sed -nE 's/.*---> .*-y ([0-9]+).*/\1/p' "$dir.on.log" | head -1)
    [ -n "$said" ] && [ "$said" -lt "$step" ] || wrong "the refusal names no older step"
    resume=(-y "${said:-1}")
}

go_round() {
    dir=$work/round$round status=0 resume=()
    draw
    whole
    # shellcheck disable=SC2086
    if [ -n "$at" ]; then
        LD_PRELOAD=$work/fault.so FAULT_AT=$at FAULT_DO=$fault FAULT_RANK=$victim FAULT_MARK=$dir.mark \
            train "$dir" "$layout" "${more[@]}" >"$dir.log" 2>&1 &
        job=$!
    elif [ "$fault" = flip ]; then
        train "$dir" "$layout" "${more[@]}" >"$dir.log" 2>&1 &
        job=$!
    else
        train "$dir" "$layout" >"$dir.log" 2>&1 &
        job=$!
        strike
    fi
    [ "$fault" != stop ] || go_on
    wait "$job" 2>/dev/null
    status=$?
    if [ -e "$dir.mark" ]; then check_status; elif [ $status -ne 0 ]; then wrong "fails without a fault"; fi
    check_left before
    resume=(-y 1)
    [ -n "$(newest)" ] || resume=(--overwrite 1)
    [ "$fault" != flip ] || flip
    train "$dir" "$layout" "${resume[@]}" >"$dir.on.log" 2>&1
    status=$?
    [ $status -eq 0 ] || wrong "the run does not go on"
    check_left after
    for file in "model_$last.bin" "state_${last}_00000.bin"; do
        cmp -s "$dir/$file" "$work/whole${layout// /}/$file" || wrong "$file differs from the one of a run that was let alone"
    done
    [ "$(losses "$dir")" = "$(losses "$work/whole${layout// /}")" ] || wrong "metrics.jsonl differs from the one of a run that was let alone"
    local reached
    reached=$([ -e "$dir.mark" ] && echo met || echo "not met")
    echo "$fault $moment $reached" >>"$work/counts"
    echo "round $round: $fault at $moment${at:+ ($at)}, rank $victim of $ranks ($layout): $reached, went on from ${resume[*]:-the begin}"
    [ $good -eq 1 ] && rm -rf "$dir" "$dir".*
}

echo "seed $seed, $rounds rounds"
failed=0 begin=$SECONDS
for ((round = 1; round <= rounds; round++)); do
    round_seed=$((seed + round - 1)) good=1
    RANDOM=$round_seed
    go_round
    [ $good -eq 1 ] || failed=$((failed + 1))
done
echo
echo "| fault | moment | rounds | met |"
echo "|---|---|---:|---:|"
sort "$work/counts" | awk '{k = $1 " | " $2; n[k]++; m[k] += $3 == "met"} END {for (k in n) printf "| %s | %d | %d |\n", k, n[k], m[k]}' | sort
echo
echo "$rounds rounds in $((SECONDS - begin)) s: $((rounds - failed)) held, $failed failed (seed $seed)"
[ $failed -eq 0 ]
