#!/usr/bin/env bash
# llm.c's scripts with this repository's binaries: all of its flags, -h as flag and as help, no two copies of one training.
# concerns: llmc trainer
. "$(dirname "$0")/train_lib.sh"
make_data 200 120
# the flags of llm.c's scripts/run_gpt2_124M.sh and multi_node/run_gpt2_124M_fs.sbatch, sizes apart
script="-i $work/data/train.bin -j $work/data/val.bin -v 250 -s 20000 -g 144 -h 1 -b 4 -t 128 -d 1024 -r 0 -z 1 -c 0.1 -l 0.0006
        -q 0.0 -u 700 -n 5000 -y 1 -e l1c32h2 -x 2 -pn 2 -pr 0 -pg 8 -pf /nowhere -pi mpi -ps 1.2.3.4 -lg 0 -ge 1 -f 0 -w 1"

# shellcheck disable=SC2086
run script 2 $script -o "$work/log"
ok $? "all flags of llm.c's scripts, two ranks"
[ -e "$work/log/DONE_00000002" ] && [ "$(grep -c ': ignored: ' "$work/script.log")" -eq 12 ]
ok $? "a DONE file as the scripts wait for it, and a line for each flag that says nothing here"
# shellcheck disable=SC2086
timeout 60 "$build/train_gpt2" $script -j "$work/data/train.bin" -o "$work/stock" >"$work/stock.log" 2>&1
ok $? "the same without MPI, one process"
[ "$(grep -c ': ignored: ' "$work/stock.log")" -eq 12 ]
ok $? "which says so, too"

# shellcheck disable=SC2086
run defaults 2 -i $work/data/train.bin -e l1c32h2 -t 128 -d -1 -x 1 -v -1 -s -1 -z 3
[ $? -eq 0 ] && grep -q '^-z 3: treated as 1: ' "$work/defaults.log" && grep -q '^step    1/1 ' "$work/defaults.log"
ok $? "values that llm.c takes and that say nothing here: $(grep -m1 '^-z' "$work/defaults.log")"

"$build/train_gpt2" -h >"$work/h.log" 2>&1 && "$build/train_gpt2" --help | cmp -s - "$work/h.log"
ok $? "-h alone is help"
"$build/train_gpt2" -h 1 >"$work/flag.log" 2>&1
[ $? -eq 2 ] && grep -q '^error: -i: no training data' "$work/flag.log"
ok $? "-h 1 is a flag"

# shellcheck disable=SC2086
timeout 60 mpirun -np 2 "$build/train_gpt2" $script -o "$work/twice" >"$work/twice.log" 2>&1
[ $? -eq 2 ] && [ "$(grep -c '^error: 2 processes were started' "$work/twice.log")" -eq 1 ] && [ ! -e "$work/twice" ]
ok $? "two copies are refused without MPI, in one line"
for program in train_gpt2 train_gpt2-dynapipe; do
    "$build/$program" --version >"$work/version" && grep -qE '^train_gpt2 of .*, commit [0-9a-f]{12}' "$work/version" && grep -q '^BLAS: OpenBLAS' "$work/version"
    ok $? "$program --version: $(head -1 "$work/version")"
done
grep -q '^MPI: [A-Z]' "$work/version"
ok $? "$(tail -1 "$work/version")"

statuses=
data="-i $work/data/train.bin"
for wrong in "-q x" "--nothing 1" "-x" "-j none" "$data -k zigzag" "$data -y 1" "$data -n 5" "$data -n never -o $work/wrong" "$data --optimizer sgd" \
        "$data -y 1 --overwrite 1 -o $work/wrong" "$data -e zigzag"; do
    for program in train_gpt2 train_gpt2-dynapipe; do
        # shellcheck disable=SC2086
        "$build/$program" $wrong >/dev/null 2>&1
        statuses+=$?
    done
done
[ "$statuses" = 2222222222222222222222 ] && [ ! -e "$work/wrong" ]
ok $? "wrong flags: exit status 2, nothing made ($statuses)"

# Folders are made with their parents; what cannot be made is no wrong flag.
statuses=
for program in train_gpt2 train_gpt2-dynapipe; do
    # shellcheck disable=SC2086
    "$build/$program" $data -e l1c16h2 -b 4 -t 32 -d 256 -x 1 -s 0 -v 0 -o "$work/deep/$program/run/" --export-hf "$work/far/$program/hf" >"$work/deep.log" 2>&1
    statuses+=$?
    [ -e "$work/deep/$program/run/main.log" ] && [ -e "$work/far/$program/hf/config.json" ] || statuses+=missing
    for flag in -o --export-hf; do
        # shellcheck disable=SC2086
        "$build/$program" $data -e l1c16h2 -x 1 $flag "$work/data/train.bin/run" >/dev/null 2>"$work/deep.log"
        statuses+=$?
        grep -qE -- "^error: $flag .*train.bin: cannot create directory: Not a directory ---> " "$work/deep.log" || statuses+=unsaid
    done
done
[ "$statuses" = 011011 ]
ok $? "-o and --export-hf make folders that are missing ($statuses)"
finish
