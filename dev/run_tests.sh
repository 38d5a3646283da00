#!/usr/bin/env bash
# Run tests and add up their closing lines.
#   dev/run_tests.sh                  unit tests and the quick scripts: `make test`
#   dev/run_tests.sh --unit           unit tests only: `make check`
#   dev/run_tests.sh --all            every script: `make test-all`; those that run kernels for sm_80, and as NAME@90 for sm_90
#   dev/run_tests.sh --changed BASE   the quick ones, and slow scripts whose files (their line "# concerns: PATHS") have changed since that commit, those with
#                                     the most changed lines first, as far as they begin within SLOW_SECONDS (360); the others are named at the end
# A script with a line "# concerns:" is slow. BUILD and CC as in the Makefile. TEST_JOBS tests run at a time (one more than cores, since they wait for ranks
# and time-outs); those that measure time run alone. A script that fails runs once more, alone, and
# its first log stays in the output. A test exits with 0, 1 or 77 (skipped); its closing line is "N passed, N failed, N skipped". After TEST_SECONDS
# (300, of changed ones 600, of all 1200) it is killed and counts as failed. Printed of each: seconds of wall clock and of processor time. Logs: build/*/log.
. "$(dirname "$0")/help.sh"
set -u
cd "$(dirname "$0")/.."
. dev/mpi_env.sh
[ "${1:-}" != --changed ] || export TEST_SECONDS="${TEST_SECONDS:-600}"  # other tests run beside them
[ "${1:-}" != --all ] || export TEST_ALL=1 TEST_SECONDS="${TEST_SECONDS:-1200}"  # every round and every case (test.h, train_lib.sh)
export WERROR=1  # for every make below, those of tests too
unset MAKEFLAGS MFLAGS MAKELEVEL  # a make above has left its variables in the environment, and its jobserver is not for us
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
if command -v ccache >/dev/null && [ -d /usr/lib/ccache ]; then  # trees of tests compile the plugin again, in folders of their own
    export PATH=/usr/lib/ccache:$PATH CCACHE_DIR=${CCACHE_DIR:-$PWD/build/ccache} CCACHE_NOHASHDIR=1
fi
build=${BUILD:-release}
export DYNAPIPE_CACHE=$PWD/build/costs  # tests measure for themselves, not for the user's runs
out=build/$build$([[ "${CC:-gcc}" == clang* ]] && echo -clang)
limit_s=${TEST_SECONDS:-300}
jobs=${TEST_JOBS:-$(($(env -u OMP_NUM_THREADS nproc) + 1))}  # (nproc prints OMP_NUM_THREADS where that is set)
alone="test_planner_targets test_failures test_output test_mpirun_status"
mkdir -p "$out/log"

# Sets p, f and s from a test's exit status and its log. A status that the closing line does not explain is a failure.
count() {  # exit status, log
    local rc=$1 line
    p=0 f=0 s=0
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?$' "$2" | tail -1)
    if [ -n "$line" ]; then
        read -r p f s < <(sed -E 's/^([0-9]+) passed, ([0-9]+) failed(, ([0-9]+) skipped)?$/\1 \2 \4/' <<<"$line")
        s=${s:-0}
    elif [ "$rc" -eq 0 ]; then
        p=1
    elif [ "$rc" -eq 77 ]; then
        s=1
    fi
    if [ "$rc" -ne 0 ] && [ "$rc" -ne 77 ] && [ "$f" -eq 0 ]; then f=1; fi
}

run_one() {  # name, command...: its counts go to log/NAME.count
    local name=$1 log=$out/log/$1.log begin=$SECONDS rc why child spent
    shift
    if [ "$(date +%s)" -ge "${SLOW_UNTIL:-9999999999}" ] && grep -qs '^# concerns:' "test/$name.sh"; then
        echo "$name" >>"$out/log/not_run"
        return
    fi
    timeout -k 10 "$limit_s" "$@" >"$log" 2>&1 </dev/null &
    child=$!  # leads a process group of its own, so an interrupt must be passed on
    # shellcheck disable=SC2064
    trap "kill $child; exit 130" INT TERM
    wait $child
    rc=$?
    trap - INT TERM
    times >"$out/log/$name.times"  # the second line is the test's: this shell has no other child
    spent=$(awk -F'[ms ]+' 'NR == 2 {printf "%d", 60 * $1 + $2 + 60 * $3 + $4}' "$out/log/$name.times")
    count $rc "$log"
    echo "$p $f $s" >"$out/log/$name.count"
    {
        if [ "$f" -gt 0 ]; then
            why="exit $rc"
            if [ $((SECONDS - begin)) -ge "$limit_s" ]; then why="killed after $limit_s s"; fi
            printf 'FAIL  %-32s %4d s %4d cpu  (%s)\n' "$name" $((SECONDS - begin)) "$spent" "$why"
            tail -60 "$log"
        else
            printf '%s  %-32s %4d s %4d cpu  %s\n' "$([ "$p" -eq 0 ] && echo 'skip' || echo 'ok  ')" "$name" $((SECONDS - begin)) "$spent" \
                "$p passed, $f failed, $s skipped"
            grep '^skip ' "$log"
        fi
    } >"$out/log/$name.printed"
    flock "$out/log/lock" cat "$out/log/$name.printed"
}

if [ "${1:-}" = --one ]; then
    shift
    run_one "$@"
    exit 0
fi

with_command() {  # after each name of a script
    sed -nE 's/^([a-z_0-9]+)@?([0-9]*)$/& env EMU_ARCH=\2 bash test\/\1.sh/p'
}
run_all() {  # number of jobs; stdin: lines of "name command..."
    xargs -r -P "$1" -L 1 bash dev/run_tests.sh --one
}

finish() {
    local passed=0 failed=${1:-0} skipped=0 p f s
    for count in "$out"/log/*.count; do
        [ -e "$count" ] || continue
        read -r p f s <"$count"
        passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    done
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ]
    exit
}

# Scripts to run, by name: the quick ones, the longest first, so that none of them is what all wait for in the end; then the slow ones.
pick_scripts() {
    local script lines paths
    for script in $(ls -S test/test_*.sh); do
        paths=$(sed -n 's/^# concerns: *//p' "$script")
        lines=1
        if [ "$1" = --changed ] && [ -n "$paths" ]; then
            lines=$(awk -v paths="^(${paths// /|}|$script)" '$3 ~ paths { n += $1 + $2 } END { print n + 0 }' <<<"$changed")
        fi
        case $1 in
            --all) ;;
            --changed) [ "$lines" -gt 0 ] || continue ;;
            *) [ -z "$paths" ] || continue ;;
        esac
        echo "${paths:+1} $lines $(basename "$script" .sh)"
        [ "$1" != --all ] || ! grep -q EMU_ARCH "$script" || echo "1 $lines $(basename "$script" .sh)@90"
    done | sort -s -k1,1 -k2,2nr -t ' ' | awk '{ print $NF }'
}
mode=${1:-quick}
changed=$([ "$mode" != --changed ] || git diff --numstat "$2" HEAD)
scripts=$([ "$mode" = --unit ] || pick_scripts "$mode")
unit=$(cd test && ls test_*.c | sed 's/\.c$//')

rm -f "$out"/log/*.count "$out/log/not_run"
targets="$out/tests"
# What several scripts use is built once, before they start.
[ -z "$scripts" ] || targets+=" $out/train_gpt2 $out/train_gpt2-dynapipe $out/train_t5 $out/train_t5-dynapipe $out/train_llama-dynapipe $out/prepare_data $out/profile_costs $out/generate $out/dev/make_tasks $out/dynapipe $out/tools/plain_gradients $out/tools/compare_checkpoints"
echo "building ($out)"
# shellcheck disable=SC2086
if ! make --no-print-directory -s -j"$jobs" BUILD="$build" $targets >"$out/log/build.log" 2>&1; then
    tail -40 "$out/log/build.log"
    finish 1
fi
broken=0
if grep -q 'warning:' "$out/log/build.log"; then
    grep -m5 'warning:' "$out/log/build.log"
    broken=1
    echo "FAIL  build has warnings"
fi
[ "$mode" != --changed ] || export SLOW_UNTIL=$(($(date +%s) + ${SLOW_SECONDS:-360}))
on_emulator=$(grep ^test_cuda_ <<<"$scripts")
if [ -n "$on_emulator" ] && command -v g++ >/dev/null && [ -n "$(make -s BACKEND=emu print-nvcc)" ]; then
    for build_of in $([ "$mode$on_emulator" = quicktest_cuda_kernels ] || echo FP32) BF16 $([ "$mode" != --all ] || echo FP32@90 BF16@90); do  # a failure here is reported by the tests
        make --no-print-directory -s -j"$jobs" BACKEND=emu PRECISION="${build_of%@90}" EMU_ARCH="${build_of:5}" \
            "$([ "$on_emulator" = test_cuda_kernels ] && echo emulated-kernels || echo emulated-tests)" >"$out/log/build-$build_of.log" 2>&1
    done
fi
echo "built in $SECONDS s"
{
    grep -vwE "${alone// /|}" <<<"$scripts" | with_command
    [ "$mode" = --unit ] || for c in layers headers; do echo "$c bash dev/check_$c.sh"; done
    for t in $unit; do echo "$t $out/tests $t"; done
} | run_all "$jobs"
grep -wE "${alone// /|}" <<<"$scripts" | with_command | run_all 1
failed=$(for name in $scripts; do
    grep -qsx "$name" "$out/log/not_run" || { read -r _ f _ <"$out/log/$name.count" && [ "$f" -eq 0 ]; } || echo "$name"
done)
unset SLOW_UNTIL
if [ -n "$failed" ]; then
    echo "once more, alone, since other work on the machine disturbs scripts that start ranks:"
    with_command <<<"$failed" | run_all 1
fi
[ ! -e "$out/log/not_run" ] || echo "not run here, as time was short: $(tr '\n' ' ' <"$out/log/not_run")---> make test-all"
finish $broken
