#!/usr/bin/env bash
# Law: plans are identical whatever compiled the planner: gcc -O0, gcc -O3 for this machine's vector units, clang -O2, with
# the Makefile's flags otherwise. Texts of some dozens of plans are compared byte for byte.
# concerns: dynapipe_plugin/plan util
set -u
cd "$(dirname "$0")/.."
unset BUILD CFLAGS
passed=0 failed=0 skipped=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

dump() {  # name, compiler, options: the plans in $work/NAME.txt
    local name=$1 out=build/compilers/$1
    if ! make --no-print-directory -s -j"$(nproc)" OUT="$out" CC="$2" OPT="$3" "$out/plan_dump" >"$work/log" 2>&1 ||
        grep -q 'warning:' "$work/log"; then
        tail -20 "$work/log"
        return 1
    fi
    "$out/plan_dump" >"$work/$name.txt" 2>"$work/log" || { tail -5 "$work/log"; return 1; }
}

verdict() {  # 0|1, what
    if [ "$1" -eq 0 ]; then passed=$((passed + 1)); echo "ok   $2"; else failed=$((failed + 1)); echo "FAIL $2"; fi
}

if ! command -v gcc >/dev/null; then
    echo "skip plans of several compilers: no gcc"
    echo "0 passed, 0 failed, 1 skipped"
    exit 77
fi
dump gcc-O0 gcc -O0
verdict $? "gcc -O0: $(tail -1 "$work/log")"
for other in "gcc-O3 gcc -O3 -march=native" "clang-O2 clang -O2"; do
    read -r name compiler options <<<"$other"
    if ! command -v "$compiler" >/dev/null; then
        skipped=$((skipped + 1))
        echo "skip $compiler $options: no $compiler here ---> dev/setup.sh --dev"
        continue
    fi
    dump "$name" "$compiler" "$options" && cmp "$work/gcc-O0.txt" "$work/$name.txt"
    verdict $? "$compiler $options: the same plans, $(wc -c <"$work/gcc-O0.txt") bytes of text"
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
