#!/usr/bin/env bash
# test/foreign_trainer, a trainer that knows nothing of this one but dynapipe.h, as C11 and as C++17: its model passes the
# checker, 2 stages x 2 replicas give the losses of its own loop fed one sample at a time, a run goes on from its checkpoint. It
# guards the interface: where it no longer builds, v1 was broken.
# concerns: dynapipe_plugin/dynapipe.h dynapipe_plugin/measure dynapipe_plugin/run/session test/foreign_trainer
needs=g++
. "$(dirname "$0")/train_lib.sh"
trainer_dir=$work/a/tree
# (the plugin as make dist writes it)
mkdir "$work/a" && cp -r test/foreign_trainer "$trainer_dir" && python3 dev/dist.py "$trainer_dir/dynapipe_plugin" &&
    ln -s "$trainer_dir/dynapipe_plugin" "$work" && sed -i 's#\.\./\.\./dist#dynapipe_plugin#' "$trainer_dir/Makefile"
lib=build/${BUILD:-release}/foreign
export DYNAPIPE_CACHE=$work/cache

build() {  # name, arguments of make...
    local name=$1
    shift
    make --no-print-directory -s -j2 -C "$trainer_dir" CC=gcc DYNAPIPE_OUT="$PWD/$lib" OUT="$work/$name" "$@" >"$work/$name.build" 2>&1 &&
        ! grep -E 'warning:|error:' "$work/$name.build"
    ok $? "$name builds, without a warning"
    [ -x "$work/$name/train_mini" ] || { cat "$work/$name.build"; finish; }
}

# Steps of 60 lines: letters, then the first half of them backwards. What goes to prepare_data and what its own loop reads.
make_lines() {
    awk 'BEGIN {
        srand(5)
        for (i = 0; i < 60; i++) {
            n = 2 + int(50 * rand() ^ 3); text = answer = ""
            for (k = 0; k < n; k++) text = text sprintf("%c", 97 + int(8 * rand()))
            for (k = n; k > n / 2; k--) answer = answer substr(text, k, 1)
            printf "%s?\t%s\n", text, answer
        }}' >"$work/lines.tsv"
    awk -F'\t' '{printf "{\"task\": \"mirror\", \"inputs\": \"%s\", \"targets\": \"%s\"}\n", $1, $2}' \
        "$work/lines.tsv" >"$work/lines.jsonl"
    "$build/prepare_data" --val-fraction 0 --out "$work/data" "$work/lines.jsonl" >"$work/data.log" 2>&1
}

on_ranks() {  # name, program, ranks, arguments...
    local name=$1 program=$2 ranks=$3
    shift 3
    timeout -k 5 120 mpirun -np "$ranks" "$work/$program/train_mini" -i "$work/data/train.bin" -t 128 -d "$tokens" \
        "$@" >"$work/$name.log" 2>&1
}

equal() {  # log, log, what
    local d
    d=$(awk '$1 != "step" {next} NR == FNR {loss[$2] = $4; norm[$2] = $6; next} {print $4, loss[$2]; print $6, norm[$2]}' "$1" "$2" |
        within 1e-5 $((2 * $(grep -c '^step ' "$1"))) relative)
    ok $? "$3: losses and norms differ by $d"
}

falls() {  # log, what
    local first last
    first=$(awk '$1 == "step" {print $4; exit}' "$1") last=$(awk '$1 == "step" {l = $4} END {print l}' "$1")
    awk -v a="$first" -v b="$last" 'BEGIN {exit !(a != "" && b < 0.97 * a)}'
    ok $? "$2: the loss falls, $first to $last"
}

! grep -h '#include "' $trainer_dir/*.[ch] | grep -vE '"(../../dynapipe_plugin/dynapipe|mini)\.h"'
ok $? "it includes dynapipe.h, and nothing else of this project"

# What doc/porting.md names is there: functions of the interface, and of the example.
missing=$(grep -oE '`[a-z_]+\(\)`' doc/porting.md | tr -d '`()' | sort -u | while read -r name; do
    grep -qE "[ *(]$name\)?\(" dynapipe_plugin/dynapipe.h $trainer_dir/*.[ch] || echo "$name"
done)
[ -z "$missing" ]
ok $? "every function that doc/porting.md names is there ${missing//$'\n'/ }"

build own
build c DYNAPIPE=1
[ -z "$all" ] || build cpp COMPILE='g++ -x c++ -std=c++17' DYNAPIPE=1 DYNAPIPE_CC=gcc
make_lines
ok $? "lines for both: $(tail -1 "$work/data.log" | sed "s|$work/||")"
for launcher in PMI_SIZE MV2_COMM_WORLD_SIZE SLURM_STEP_NUM_TASKS; do  # of another MPI: each process would train all
    env "$launcher=2" "$work/c/train_mini" -c 1 >"$work/alone.log" 2>&1
    [ $? -ne 0 ] && grep -q '^error: 2 processes were started, but by another MPI .*--->' "$work/alone.log"
    ok $? "$launcher=2, and no other rank: $(grep -m1 error: "$work/alone.log" | cut -c 1-80)"
done
tokens=$(awk -F'\t' '{n += length($1) + length($2) + 1} END {print n}' "$work/lines.tsv")

for case in "c 0" ${all:+"cpp 1"}; do
    read -r program tied <<<"$case"
    "$work/$program/train_mini" -c 1 -w "$tied" -L 3 -C 16 -F 24 >"$work/check.log" 2>&1
    ok $? "$program, tied $tied: the checker finds nothing in $(grep -c '^ok ' "$work/check.log") laws"
    grep -v '^ok ' "$work/check.log"
    "$work/own/train_mini" -i "$work/lines.tsv" -x 6 -w "$tied" >"$work/own.log" 2>&1
    on_ranks "$program" "$program" 4 -x 6 -w "$tied" --stages 2 -j "$work/data/train.bin"
    equal "$work/$program.log" "$work/own.log" "$program, tied $tied, 2 stages x 2 replicas against its own loop, a sample at a time"
    falls "$work/$program.log" "$program, tied $tied"
    grep -q '^validation loss [0-9]' "$work/$program.log"
    ok $? "$program: $(grep '^validation' "$work/$program.log")"
done
on_ranks first c 4 -x 3 --stages 2 -o "$work/state" && on_ranks second c 4 -x 6 --stages 2 -o "$work/state" -y 1
cat "$work/first.log" "$work/second.log" >"$work/resumed.log"
equal "$work/resumed.log" "$work/c.log" "3 steps, and 3 more from the checkpoint"

# Mistakes of a porter, put in: each is found, by the words that fit.
planted() {  # words, sed expression
    sed "$2" $trainer_dir/mini_dynapipe.c >"$work/planted/mini_dynapipe.c"
    ! cmp -s "$work/planted/mini_dynapipe.c" $trainer_dir/mini_dynapipe.c &&
        make --no-print-directory -s -C "$trainer_dir" CC=gcc CFLAGS='-O1 -I.' DYNAPIPE_OUT="$PWD/$lib" OUT="$work/planted" DYNAPIPE=1 \
            SOURCES="train_mini.c mini.c $work/planted/mini_dynapipe.c" >"$work/planted.log" 2>&1 &&
        "$work/planted/train_mini" -c 1 -L 2 -C 16 -F 24 >"$work/planted.log" 2>&1
    [ $? -eq 1 ] && grep '^FAIL' "$work/planted.log" | grep -qF -- "$1"
    ok $? "planted: $(grep -m1 '^FAIL' "$work/planted.log" | cut -c 1-150)"
}
mkdir "$work/planted"

# A ReLU has kinks, at small values within every step that changes the loss: whatever the seed, it is right; without a term it is not.
relu() {  # folder, sed expression
    mkdir "$work/$1"
    sed -e 's|a->g\[i\] = .*;|a->g[i] = fmaxf(a->f[i], 0);|' -e 's|a->f\[i\] = dg.*;|a->f[i] = a->g[i] > 0 ? dg[i] : 0;|' -e '/float sigmoid/d' \
        -e 's/to\[i\] = scale/&*0.02f/' -e 's|long state = |&7919ULL * (unsigned)atoi(getenv("SEED")) + |' -e "$2" $trainer_dir/mini.c >"$work/$1/mini.c"
    make --no-print-directory -s -C "$trainer_dir" CC=gcc CFLAGS='-O1 -I.' DYNAPIPE_OUT="$PWD/$lib" OUT="$work/$1" DYNAPIPE=1 \
        SOURCES="train_mini.c mini_dynapipe.c $work/$1/mini.c" >"$work/$1.build" 2>&1 || cat "$work/$1.build"
}
relu relu ''
for seed in 1 2 3 4 44 45 46; do
    SEED=$seed "$work/relu/train_mini" -c 1 -L 2 -C 8 -F 16 >"$work/relu.log" 2>&1 || break
done
ok $? "ReLU at small values: the checker finds nothing with seeds 1 to $seed $(grep -m1 '^FAIL' "$work/relu.log" | cut -c 1-250)"
relu relu_wrong '/product_weights(g.d,/d'
relu relu_leaks 's|dg\[i\] : 0;|dg[i] : 0.05f * dg[i];|'
for wrong in wrong leaks; do
    SEED=1 "$work/relu_$wrong/train_mini" -c 1 -L 2 -C 8 -F 16 >"$work/relu.log" 2>&1
    [ $? -eq 1 ] && grep -q '^FAIL gradients .* by the gradients it would by .* a term of backward is missing' "$work/relu.log"
    ok $? "and without a term, or with a twentieth of one too many: $(grep -m1 '^FAIL' "$work/relu.log" | cut -c 1-250)"
done
planted 'by the gradients it would by' '/mini_embed_backward/d'
if [ -n "$all" ]; then
    planted 'after its scratch' 's/(of_x + mini_room/(mini_room/'
    planted 'is not a number' 's/mini_layer_backward_weights(/layer.dy = (float*)scratch; &/'
fi
finish
