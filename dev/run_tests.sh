#!/usr/bin/env bash
# Run tests and add up their closing lines. --unit: only test/test_*.c. BUILD and CC as in the Makefile. TEST_JOBS tests run
# at a time (one more than cores: they wait for ranks that start and for time-outs), those that measure time or wait for a time-out alone; one named test: --one NAME COMMAND...
# A test program exits 0, 1 or 77 (skipped); its closing line is "N passed, N failed, N skipped". A test that still runs
# after TEST_SECONDS (300) is killed and counts as failed. Said of each: seconds of the clock, seconds of processors. Logs: build/*/log.
. "$(dirname "$0")/help.sh"
set -u
cd "$(dirname "$0")/.."
. dev/mpi_env.sh
export WERROR=1  # for every make below, tests' own too
unset MAKEFLAGS MFLAGS MAKELEVEL  # of a make above: its variables are in the environment too, its jobserver is not for us
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
# Trees of tests compile the plugin again and again, in folders of their own.
if command -v ccache >/dev/null && [ -d /usr/lib/ccache ]; then
    export PATH=/usr/lib/ccache:$PATH CCACHE_DIR=$PWD/build/ccache CCACHE_NOHASHDIR=1
fi
build=${BUILD:-release}
# what a model costs is measured for the tests alone, not kept where the user's runs find it
export DYNAPIPE_CACHE=$PWD/build/costs
out=build/$build$([[ "${CC:-gcc}" == clang* ]] && echo -clang)
limit_s=${TEST_SECONDS:-300}
jobs=${TEST_JOBS:-$(($(env -u OMP_NUM_THREADS nproc) + 1))}  # (nproc says OMP_NUM_THREADS where that is set)
alone="test_planner_targets test_failures test_output test_measured_runs"
mkdir -p "$out/log"

# Sets p, f and s from a test's exit status and its log. A status that its closing line does not explain is a failure.
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

# Runs one test, leaves its counts in log/NAME.count, and prints what there is to say of it in one piece.
run_one() {  # name, command...
    local name=$1 log=$out/log/$1.log begin=$SECONDS rc why child spent
    shift
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
    } >"$out/log/$name.said"
    flock "$out/log/lock" cat "$out/log/$name.said"
}

if [ "${1:-}" = --one ]; then
    shift
    run_one "$@"
    exit 0
fi

# "name command..." a line, that many at a time.
run_all() {  # number of jobs
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

rm -f "$out"/log/*.count
tests=$(cd test && ls test_*.c 2>/dev/null | sed 's/\.c$//')
targets="$out/tests"
# what several shell tests build: here once, so that no two of them build it at a time
[ "${1:-}" = --unit ] || targets+=" $out/train_gpt2 $out/train_gpt2-dynapipe $out/train_t5 $out/train_t5-dynapipe $out/prepare_data $out/profile_costs $out/dev/make_tasks $out/dynapipe $out/tools/plain_gradients $out/tools/compare_checkpoints"
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
if [ "${1:-}" != --unit ] && command -v g++ >/dev/null && [ -n "$(make -s BACKEND=emu print-cuda-include)" ]; then
    for precision in FP32 BF16; do  # a failure here is the tests' to tell
        make --no-print-directory -s -j"$jobs" BACKEND=emu PRECISION=$precision emulated-tests >"$out/log/build-$precision.log" 2>&1
    done
fi
# Trees of tests build the plugin with their own flags, in folders of their own: from here on the compiler's cache has it.
if [ "${1:-}" != --unit ] && [ -n "${CCACHE_DIR:-}" ]; then
    make --no-print-directory -s -j"$jobs" -f dynapipe_plugin/dynapipe.mk dynapipe prepare_data DYNAPIPE=1 CC=cc DYNAPIPE_OUT="$out/foreign_first" \
        >"$out/log/build-foreign.log" 2>&1
fi
echo "built in $SECONDS s"
unit_tests() { for t in $tests; do echo "$t $out/tests $t"; done; }
if [ "${1:-}" = "--unit" ]; then
    unit_tests | run_all "$jobs"
    finish $broken
fi
# The longest first, so that none of them is what all wait for in the end.
shell_tests=$(cd test && ls test_{adapter_cuda,cuda_build,adapter_cpu,foreign_build,cuda_kernels,gradients_placed_t5,cuda_train,simulated,gradients_placed,cuda_check,cuda_emu,cuda_stock,foreign_trainer,compilers,fuzz,gradients,gradients_t5,runs_t5,soak,failures,signals,install}.sh)
shell_tests=$({ echo "$shell_tests"; (cd test && ls test_*.sh); } | awk '!seen[$0]++' | sed 's/\.sh$//')
{
    grep -vwE "${alone// /|}" <<<"$shell_tests" | sed 's/.*/& bash test\/&.sh/'
    for c in layers headers; do echo "$c bash dev/check_$c.sh"; done
    unit_tests
} | run_all "$jobs"
for t in $alone; do echo "$t bash test/$t.sh"; done | run_all 1
finish $broken
