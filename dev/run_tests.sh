#!/usr/bin/env bash
# Run tests and add up their closing lines. --unit: only test/test_*.c. BUILD and CC as in the Makefile.
# A test program exits 0, 1 or 77 (skipped); its closing line is "N passed, N failed, N skipped".
set -u
cd "$(dirname "$0")/.."
. dev/mpi_env.sh
build=${BUILD:-release}
out=build/$build$([[ "${CC:-gcc}" == clang* ]] && echo -clang)
passed=0 failed=0 skipped=0
mkdir -p "$out/log"

run_one() {  # name, command...
    local name=$1 log=$out/log/$1.log begin=$SECONDS
    shift
    "$@" >"$log" 2>&1
    local rc=$? line
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$log" | tail -1)
    read -r p f s < <(sed -E 's/([0-9]+) passed, ([0-9]+) failed(, ([0-9]+) skipped)?.*/\1 \2 \4/' <<<"${line:-0 passed, 0 failed}")
    if { [ $rc -ne 0 ] && [ $rc -ne 77 ]; } && [ "${f:-0}" -eq 0 ]; then f=1; fi
    if [ $rc -eq 77 ] && [ -z "$line" ]; then s=1; fi
    if [ $rc -eq 0 ] && [ -z "$line" ]; then p=1; fi
    passed=$((passed + ${p:-0})) failed=$((failed + ${f:-0})) skipped=$((skipped + ${s:-0}))
    if [ "${f:-0}" -gt 0 ]; then
        printf 'FAIL  %-32s %4d s  (exit %d)\n' "$name" $((SECONDS - begin)) $rc
        tail -60 "$log"
    else
        printf '%s  %-32s %4d s  %s\n' "$([ $rc -eq 77 ] && echo 'skip' || echo 'ok  ')" "$name" $((SECONDS - begin)) "$line"
        grep '^skip ' "$log"
    fi
}

tests=$(cd test && ls test_*.c 2>/dev/null | sed 's/\.c$//')
echo "building ($out)"
if ! make --no-print-directory -s -j"$(nproc)" BUILD="$build" $(for t in $tests; do echo "$out/$t"; done) >"$out/log/build.log" 2>&1; then
    tail -40 "$out/log/build.log"
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
fi
if grep -q 'warning:' "$out/log/build.log"; then
    grep -m5 'warning:' "$out/log/build.log"
    failed=$((failed + 1))
    echo "FAIL  build has warnings"
fi
for t in $tests; do run_one "$t" "$out/$t"; done
if [ "${1:-}" != "--unit" ]; then
    for s in test/test_*.sh; do
        [ -e "$s" ] && run_one "$(basename "$s" .sh)" bash "$s"
    done
    for c in layers headers lines; do run_one "$c" make --no-print-directory -s "$c"; done
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
