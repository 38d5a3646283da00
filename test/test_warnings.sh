#!/usr/bin/env bash
# Law: a warning does not stop a user's build, whose compiler may be newer than any that was tried; it stops that of the tests.
# concerns: Makefile dev/run_tests.sh
. "$(dirname "$0")/check_lib.sh"
unset MAKEFLAGS MFLAGS BUILD BACKEND CFLAGS CC WERROR
trap 'rm -rf "$work" build/warnings' EXIT
log=$work/log
# In front of every file: what -Wall has something to say of.
echo 'static int nobody_calls_this(int x) { int nobody_reads_this; return x; }' >"$work/warn.h"
build() {  # make's arguments...
    make --no-print-directory -s OUT="$work/out" CFLAGS="-include $work/warn.h" "$@" "$work/out/dev/make_tasks.o" >"$work/log" 2>&1
}
build && grep -q 'warning: .*nobody_reads_this' "$work/log" && [ -s "$work/out/dev/make_tasks.o" ]
ok $? "make: a warning is said, and the build goes on"
rm -rf "$work/out"
build WERROR=1
[ $? -ne 0 ] && grep -q 'error: .*nobody_reads_this.*-Werror' "$work/log"
ok $? "make WERROR=1: it is an error"
CFLAGS="-include $work/warn.h" BUILD=warnings dev/run_tests.sh --unit >"$work/log" 2>&1
[ $? -ne 0 ] && grep -q 'error: .*-Werror' build/warnings/log/build.log && ! ls build/warnings/tests >/dev/null 2>&1
ok $? "make test, make check: their build ends there"

flags() {  # make's arguments...: what nvcc gets
    # shellcheck disable=SC2016
    make --no-print-directory -s BACKEND=cuda --eval='print: ; @echo $(NVCC_FLAGS)' "$@" print
}
if make -s BACKEND=cuda cuda-found >"$work/log" 2>&1; then
    ! flags | grep -q Werror && flags WERROR=1 | grep -q -- '-Werror all-warnings'
    ok $? "nvcc: the same"
else
    skip "nvcc: $(head -1 "$work/log")"
fi
finish
