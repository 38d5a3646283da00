#!/usr/bin/env bash
# Law: plans are identical whatever compiled the planner: gcc -O0, gcc -O3 for this machine's vector units, clang -O2, with
# the Makefile's flags otherwise. Texts of some dozens of plans are compared byte for byte.
# concerns: dynapipe_plugin/plan util
. "$(dirname "$0")/check_lib.sh"
unset BUILD CFLAGS

dump() {  # name, compiler, options: the plans in $work/NAME.txt
    local name=$1 out=build/compilers/$1
    if ! make --no-print-directory -s -j"$(nproc)" OUT="$out" CC="$2" OPT="$3" "$out/plan_dump" >"$work/log" 2>&1 ||
        grep -q 'warning:' "$work/log"; then
        tail -20 "$work/log"
        return 1
    fi
    "$out/plan_dump" >"$work/$name.txt" 2>"$work/log" || { tail -5 "$work/log"; return 1; }
}

command -v gcc >/dev/null || skip_all "no gcc"
dump gcc-O0 gcc -O0
ok $? "gcc -O0: $(tail -1 "$work/log")"
for other in "gcc-O3 gcc -O3 -march=native" "clang-O2 clang -O2"; do
    read -r name compiler options <<<"$other"
    if ! command -v "$compiler" >/dev/null; then
        skip "$compiler $options: no $compiler here ---> dev/setup.sh --dev"
        continue
    fi
    dump "$name" "$compiler" "$options" && cmp "$work/gcc-O0.txt" "$work/$name.txt"
    ok $? "$compiler $options: the same plans, $(wc -c <"$work/gcc-O0.txt") bytes of text"
done
finish
