#!/usr/bin/env bash
# Without MPI on the machine: the stock trainer and the data tools build and run, and the plugin trains on one rank.
set -u
cd "$(dirname "$0")/.."
unset BUILD CFLAGS
passed=0 failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
out=build/no-mpi

ok() {  # 0|1 (0: fine), what
    if [ "$1" -eq 0 ]; then passed=$((passed + 1)); echo "ok   $2"; else failed=$((failed + 1)); echo "FAIL $2"; fi
}

# Every program of this machine but MPI's.
mkdir "$work/bin"
IFS=: read -ra folders <<<"$PATH"
for folder in "${folders[@]}"; do
    for program in "$folder"/*; do
        case ${program##*/} in mpi* | ompi* | orte* | oshcc) continue ;; esac
        [ -e "$work/bin/${program##*/}" ] || echo "$program"
    done
done | xargs ln -s -t "$work/bin" 2>/dev/null
export PATH=$work/bin
! command -v mpicc >/dev/null
ok $? "no mpicc on PATH"

make --no-print-directory -s -j"$(nproc)" BUILD=no-mpi OPT=-O0 $out/train_gpt2 $out/train_gpt2-dynapipe $out/prepare_data $out/dev/make_tasks \
    >"$work/build.log" 2>&1 || { cat "$work/build.log"; ok 1 "the programs build"; echo "$passed passed, $failed failed, 0 skipped"; exit 1; }
! grep 'warning:' "$work/build.log"
ok $? "the programs build, without a warning"
! ldd $out/train_gpt2 $out/train_gpt2-dynapipe | grep -E 'libmpi|libopen-rte'
ok $? "none needs MPI's libraries"

$out/dev/make_tasks --out "$work/tasks.jsonl" --samples 200 --seed 7 --max-tokens 150 >"$work/log" 2>&1 &&
    $out/prepare_data --out "$work/data" "$work/tasks.jsonl" >>"$work/log" 2>&1
ok $? "a task mixture: $(tail -1 "$work/log" | sed "s|$work/||g")"
$out/train_gpt2 -i "$work/data/train.bin" -e l2c32h4 -t 64 -b 4 -x 2 -v 0 -s 0 >"$work/log" 2>&1
ok $? "the stock trainer: $(tail -1 "$work/log")"
$out/train_gpt2-dynapipe -i "$work/data/train.bin" -e l2c32h4 -t 64 -d 1000 -x 2 -v 0 -s 0 --check >"$work/log" 2>&1
ok $? "the plugin on one rank: $(tail -1 "$work/log")"
$out/train_gpt2-dynapipe -i "$work/data/train.bin" -e l2c32h4 -t 64 -d 1000 -x 2 --stages 2 >"$work/log" 2>&1
ok $(($? != 0 ? 0 : 1)) "two stages on one rank are refused: $(tail -1 "$work/log")"
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
