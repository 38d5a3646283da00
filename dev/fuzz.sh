#!/usr/bin/env bash
# dev/fuzz.sh [SECONDS | --runs N] [NAME...]: the targets NAME of test/fuzz/fuzz_*.c (all of them) under libFuzzer with address and undefined-behaviour
# sanitizers, SECONDS [60] or N executions each. Seeds come from test/fuzz/corpus.txt (lines of NAME/SEED and its bytes in base64), words from test/fuzz/words.dict, flags from a
# target's line "// libFuzzer: FLAGS"; new inputs are kept in build/fuzz/corpus/NAME for the next run, crashing inputs in build/fuzz. Executions
# are counted in build/fuzz/corpus.txt (name, executions, seconds, coverage, exit status).
# dev/fuzz.sh --keep [NAME...]: the seeds of NAME become the fewest inputs, each below 4 KiB, that cover what was found.
# dev/fuzz.sh --table: what has been counted so far, as in dev/results/fuzz.md.
# FUZZ_OPT=-O0 compiles in a quarter of the time [-O2]; FUZZ_JOBS=N runs N targets at once [1]; FUZZ_FOUND=FOLDER keeps finds elsewhere.
# Exit 0: nothing found; 1: a crash, a hang or a build error; 77: clang has no fuzzer runtime here.
. "$(dirname "$0")/help.sh"
set -u
cd "$(dirname "$0")/.."
task=fuzz limit=-max_total_time=60
case ${1:-} in
    --keep) task=keep; shift;;
    --table) task=table; shift;;
    --runs) limit=-runs=$2; shift 2;;
    [0-9]*) limit=-max_total_time=$1; shift;;
esac
out=build/fuzz
opt=${FUZZ_OPT:--O2}
flags="-std=gnu11 -g $opt -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
objects_at=$out/obj$opt
found=${FUZZ_FOUND:-$out/corpus}
seeds=$out/seeds
mkdir -p "$out/log" "$objects_at"
if [ test/fuzz/corpus.txt -nt "$seeds" ]; then
    rm -rf "$seeds"
    cut -d/ -f1 test/fuzz/corpus.txt | sort -u | sed "s|^|$seeds/|" | xargs mkdir -p
    while read -r name bytes; do base64 -d <<<"$bytes" >"$seeds/$name"; done <test/fuzz/corpus.txt
fi
# a fifth of the time goes into the stacks of allocations and what is kept of freed memory
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
export ASAN_OPTIONS=${ASAN_OPTIONS:-malloc_context_size=2:quarantine_size_mb=16}

if [ $task = table ]; then
    echo "| parser | executions | seconds | executions/s | coverage | stopped by a find |"
    echo "|---|---|---|---|---|---|"
    sort "$found.txt" | awk '{ if ($1 != name) { show(); name = $1; runs = seconds = finds = cover = 0 }
               runs += $2; seconds += $3; if ($4 > cover) cover = $4; finds += is_find($5); all += $2; all_seconds += $3; all_finds += is_find($5) }
        function is_find(status) { return status != 0 && status != 72 }  # 72: stopped by somebody
        function show() { if (name != "") printf "| %s | %d | %d | %d | %d | %d |\n", name, runs, seconds, runs / (seconds > 0 ? seconds : 1), cover, finds }
        END { show(); printf "| **all** | %d | %d | %d | | %d |\n", all, all_seconds, all / (all_seconds > 0 ? all_seconds : 1), all_finds }'
    exit 0
fi

echo 'int LLVMFuzzerTestOneInput(const char* d, long n); int LLVMFuzzerTestOneInput(const char* d, long n) { return d[n - n]; }' >"$out/probe.c"
if ! clang -fsanitize=fuzzer "$out/probe.c" -o "$out/probe" >"$out/log/probe.log" 2>&1; then
    echo "skip fuzz: clang or its fuzzer runtime is missing ---> dev/setup.sh --dev"
    exit 77
fi

# Everything that parses, in an archive: a target is linked with what it needs, since whatever is linked costs time in each execution.
sources=$(ls util/*.c dynapipe_plugin/plan/*.c \
    dynapipe_plugin/adapters/*.c trainer/run_files.c trainer/train_flags.c \
    $(ls dynapipe_plugin/run/*.c | grep -v transport_mpi) dynapipe_plugin/measure/*.c dataloader/*.c dataloader/records/*.c dataloader/tokenizer/bpe.c dataloader/prepare/sample_writer.c tool/*.c \
    llmc/*.c llmc/cpu/*.c test/fuzz/memory_files.c)
object_of() { echo "$objects_at/${1//\//_}.o"; }
build_lib() {
    local source object
    for source in $sources; do
        object=$(object_of "$source")
        [ "$source" -nt "$object" ] || [ "$newest_header" -nt "$object" ] && echo "$source $object"
    done | xargs -r -P "$(nproc)" -L 1 sh -c "clang $flags -fopenmp -fsanitize=fuzzer-no-link -c \$0 -o \$1" || return 1
    rm -f "$objects_at/parsers.new"
    for source in $sources; do object_of "$source"; done | xargs ar rcs "$objects_at/parsers.new" && mv "$objects_at/parsers.new" "$objects_at/parsers.a"
}
# shellcheck disable=SC2012
newest_header=$(find util dynapipe_plugin dataloader tool llmc trainer test/fuzz -name '*.h' -printf '%T@ %p\n' | sort -n | tail -1 | cut -d' ' -f2)
exec 9>"$out/lock"  # of several of these at once, one builds
if ! { flock 9 && build_lib; } >"$out/log/build.log" 2>&1; then
    tail -20 "$out/log/build.log"
    echo "FAIL fuzz: the library does not build"
    exit 1
fi
exec 9>&-

# Calls that open and read files find those of test/fuzz/memory_files.h.
wrapped=$(sed -n 's/^WRAP(\([a-z]*\)).*/-Wl,--wrap=\1/p' test/fuzz/memory_files.c)
build_target() {
    # shellcheck disable=SC2086
    clang $flags -DFUZZ_$1 -fsanitize=fuzzer $wrapped "$(grep -l "^#ifdef FUZZ_$1\$" test/fuzz/fuzz_*.c)" "$objects_at/parsers.a" -lpcre2-8 -ljansson -lopenblas -fopenmp -lm -lpthread \
        -o "$out/fuzz_$1.new" && mv "$out/fuzz_$1.new" "$out/fuzz_$1"
}

run_target() {
    local name=$1 log=$out/log/$1.log own=$seeds/$1 words='' more began=$SECONDS rc runs cover
    [ -d "$own" ] || own=
    awk -v name="$name" '/^# / {on = $2 == name; next}
        on {for (; match($0, /"([^"\\]|\\.)*"/); $0 = substr($0, RSTART + RLENGTH)) print substr($0, RSTART, RLENGTH)}' test/fuzz/words.dict >"$out/$name.dict"
    [ -s "$out/$name.dict" ] && words=-dict=$out/$name.dict
    more=$(sed -n "/^#ifdef FUZZ_$name\$/,/^#endif/s/^.*libFuzzer: *//p" test/fuzz/fuzz_*.c)
    mkdir -p "$found/$name"
    if ! build_target "$name" >"$log" 2>&1; then
        tail -20 "$log"
        echo "FAIL $name: does not build"
        return 1
    fi
    # shellcheck disable=SC2086
    "$out/fuzz_$name" "$found/$name" $own $words -max_len=4096 $more "$limit" -timeout=60 -rss_limit_mb=2048 \
        -print_final_stats=1 -artifact_prefix="$out/$name-" >"$log" 2>&1
    rc=$?
    runs=$(awk '/number_of_executed_units/ {runs = $2} END {print runs}' "$log")
    cover=$(grep -aoE 'cov: [0-9]+' "$log" | tail -1 | cut -d' ' -f2)
    echo "$name ${runs:-0} $((SECONDS - began)) ${cover:-0} $rc" >>"$found.txt"
    if [ $rc -eq 0 ]; then
        printf 'ok   %-17s %9s runs, coverage %s, %s s\n' "$name" "${runs:-0}" "$cover" $((SECONDS - began))
    else
        grep -aE 'ERROR|SUMMARY|Test unit written' "$log" | head -5
        printf 'FAIL %-17s %9s runs; the input is %s*, the log %s\n' "$name" "${runs:-0}" "$out/$name-" "$log"
    fi
    return $rc
}

# Merged anew, to the fewest that reach each edge once; those with names of words stay anyhow.
keep_corpus() {
    local name=$1 fresh=$out/keep_$1 file
    rm -rf "$fresh"
    mkdir -p "$fresh" "$seeds/$name" "$found/$name"
    build_target "$name" >"$out/log/$name.log" 2>&1 &&
        "$out/fuzz_$name" -set_cover_merge=1 -use_counters=0 -max_len=4095 -timeout=60 "$fresh" "$seeds/$name" "$found/$name" >"$out/log/$name.merge.log" 2>&1 || {
        echo "FAIL $name: see $out/log/$name.log, $name.merge.log"
        return 1
    }
    {
        grep -v "^$name/" test/fuzz/corpus.txt
        grep "^$name/" test/fuzz/corpus.txt | grep -vE "^$name/[0-9a-f]{8} "
        for file in "$fresh"/*; do  # libFuzzer names files by their SHA-1
            echo "$name/$(basename "$file" | cut -c1-8) $(base64 -w0 "$file")"
        done
    } | LC_ALL=C sort -u >"$out/corpus.new" && mv "$out/corpus.new" test/fuzz/corpus.txt
    rm -rf "$fresh"
    echo "$name: $(grep -c "^$name/" test/fuzz/corpus.txt) seeds"
}

names=("$@")
if [ ${#names[@]} -eq 0 ]; then
    mapfile -t names < <(sed -n 's/^#ifdef FUZZ_//p' test/fuzz/fuzz_*.c)
fi
failed=0 running=0
for name in "${names[@]}"; do
    if [ $task = keep ]; then keep_corpus "$name" || failed=1; continue; fi
    if [ $running -ge "${FUZZ_JOBS:-1}" ]; then wait -n || failed=1; running=$((running - 1)); fi
    run_target "$name" &
    running=$((running + 1))
done
while [ $running -gt 0 ]; do wait -n || failed=1; running=$((running - 1)); done
exit $failed
