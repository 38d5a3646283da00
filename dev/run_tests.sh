#!/usr/bin/env bash
# Run tests and add up their closing lines. --unit: only test/test_*.c. BUILD and CC as in the Makefile.
# A test program exits 0, 1 or 77 (skipped); its closing line is "N passed, N failed, N skipped". A test that still runs
# after TEST_SECONDS (300) is killed and counts as failed. Logs: build/*/log.
set -u
cd "$(dirname "$0")/.."
. dev/mpi_env.sh
unset MAKEFLAGS MFLAGS  # of a make above: its variables are in the environment too, its jobserver is not for us
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
build=${BUILD:-release}
out=build/$build$([[ "${CC:-gcc}" == clang* ]] && echo -clang)
limit_s=${TEST_SECONDS:-300}
passed=0 failed=0 skipped=0 child=
trap '[ -n "$child" ] && kill "$child"; exit 130' INT TERM
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

run_one() {  # name, command...
    local name=$1 log=$out/log/$1.log begin=$SECONDS rc why
    shift
    timeout -k 10 "$limit_s" "$@" >"$log" 2>&1 </dev/null &
    child=$!  # leads a process group of its own, so an interrupt must be passed on
    wait $child
    rc=$?
    count $rc "$log"
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    if [ "$f" -gt 0 ]; then
        why="exit $rc"
        if [ $((SECONDS - begin)) -ge "$limit_s" ]; then why="killed after $limit_s s"; fi
        printf 'FAIL  %-32s %4d s  (%s)\n' "$name" $((SECONDS - begin)) "$why"
        tail -60 "$log"
    else
        printf '%s  %-32s %4d s  %s\n' "$([ "$p" -eq 0 ] && echo 'skip' || echo 'ok  ')" "$name" $((SECONDS - begin)) \
            "$p passed, $f failed, $s skipped"
        grep '^skip ' "$log"
    fi
}

finish() {
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ]
    exit
}

tests=$(cd test && ls test_*.c 2>/dev/null | sed 's/\.c$//')
echo "building ($out)"
# shellcheck disable=SC2046
if ! make --no-print-directory -s -j"$(nproc)" BUILD="$build" $(for t in $tests; do echo "$out/$t"; done) >"$out/log/build.log" 2>&1; then
    tail -40 "$out/log/build.log"
    failed=1
    finish
fi
if grep -q 'warning:' "$out/log/build.log"; then
    grep -m5 'warning:' "$out/log/build.log"
    failed=$((failed + 1))
    echo "FAIL  build has warnings"
fi
echo "built in $SECONDS s"
for t in $tests; do run_one "$t" "$out/$t"; done
[ "${1:-}" = "--unit" ] && finish
for t in test/test_*.sh; do run_one "$(basename "$t" .sh)" bash "$t"; done
for c in layers headers lines; do run_one "$c" bash "dev/check_$c.sh"; done
finish
