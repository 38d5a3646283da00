#!/usr/bin/env bash
# dev/fuzz.sh SECONDS: every test/fuzz/fuzz_*.c under libFuzzer with address and undefined-behaviour sanitizers, SECONDS each.
# Seeds come from test/fuzz/corpus/NAME, words from test/fuzz/NAME.dict; finds stay in build/fuzz/corpus/NAME, crashing inputs in build/fuzz.
# FUZZ_OPT=-O0 compiles in a quarter of the time. Exit 0: nothing found; 1: a crash, a hang or a build error; 77: clang has no fuzzer runtime here.
set -u
cd "$(dirname "$0")/.."
seconds=${1:-60}
out=build/fuzz
opt=${FUZZ_OPT:--O1}
flags="-std=gnu11 -g $opt -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
objects_at=$out/obj$opt
mkdir -p "$out/log" "$objects_at"

echo 'int LLVMFuzzerTestOneInput(const char* d, long n); int LLVMFuzzerTestOneInput(const char* d, long n) { return d[n - n]; }' >"$out/probe.c"
if ! clang -fsanitize=fuzzer "$out/probe.c" -o "$out/probe" >"$out/log/probe.log" 2>&1; then
    echo "skip fuzz: clang or its fuzzer runtime is missing ---> dev/setup.sh --dev"
    exit 77
fi

sources=$(ls dynapipe_plugin/base/*.c dynapipe_plugin/plan/*.c dataloader/*.c dataloader/tokenizer/hf_*.c tool/problem.c tool/problem_json.c \
    tool/problem_csv.c llmc/gpt2_config.c llmc/t5_config.c llmc/safetensors.c llmc/checkpoint_file.c llmc/hf_config.c)
build_lib() {
    local source object
    for source in $sources; do
        object=$objects_at/${source//\//_}.o
        if [ ! -e "$object" ] || [ -n "$(find "$source" dynapipe_plugin dataloader tool llmc -name '*.h' -newer "$object" -print -quit)" ] ||
            [ "$source" -nt "$object" ]; then
            echo "$source $object"
        fi
    done | xargs -r -P "$(nproc)" -L 1 sh -c "clang $flags -fsanitize=fuzzer-no-link -c \$0 -o \$1"
}
if ! build_lib >"$out/log/build.log" 2>&1; then
    tail -20 "$out/log/build.log"
    echo "FAIL fuzz: the library does not build"
    exit 1
fi
objects=$(for source in $sources; do echo "$objects_at/${source//\//_}.o"; done)

failed=0
for target in test/fuzz/fuzz_*.c; do
    name=$(basename "$target" .c)
    name=${name#fuzz_}
    log=$out/log/$name.log
    seeds=test/fuzz/corpus/$name
    [ -d "$seeds" ] || seeds=
    words=
    [ -e "test/fuzz/$name.dict" ] && words=-dict=test/fuzz/$name.dict
    mkdir -p "$out/corpus/$name"
    # shellcheck disable=SC2086
    if ! clang $flags -fsanitize=fuzzer "$target" $objects -lpcre2-8 -ljansson -lm -lpthread -o "$out/fuzz_$name" >"$log" 2>&1; then
        tail -20 "$log"
        echo "FAIL $name: does not build"
        failed=1
        continue
    fi
    "$out/fuzz_$name" "$out/corpus/$name" $seeds $words -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
        -max_len=16384 -print_final_stats=1 -artifact_prefix="$out/$name-" >"$log" 2>&1
    rc=$?
    runs=$(awk '/number_of_executed_units/ {print $2}' "$log")
    cover=$(grep -oE 'cov: [0-9]+' "$log" | tail -1)
    if [ $rc -eq 0 ]; then
        printf 'ok   %-12s %9s runs, %s, %s s\n' "$name" "${runs:-0}" "$cover" "$seconds"
    else
        failed=1
        grep -E 'ERROR|SUMMARY|Test unit written' "$log" | head -5
        printf 'FAIL %-12s %9s runs; the input is %s*, the log %s\n' "$name" "${runs:-0}" "$out/$name-" "$log"
    fi
done
exit $failed
