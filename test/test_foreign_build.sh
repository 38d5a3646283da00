#!/usr/bin/env bash
# Laws of dynapipe_plugin/dynapipe.mk in a Makefile of llm.c's kind: nothing changes without DYNAPIPE=1; with it the trainer has
# the plugin, over whatever MPI there is, whatever flags and style of rule the tree has; what is missing is said by its name.
# MPICH beside Open MPI (mpicc.mpich, mpiexec.mpich on PATH): built and run with that too.
# concerns: dynapipe_plugin/dynapipe.mk dynapipe_plugin/sources.mk dynapipe_plugin/install dynapipe_plugin/adapters
cd "$(dirname "$0")/.." || exit 1
. test/foreign_tree.sh
build() { make --no-print-directory -j"$(nproc)" "$@" >"$work/said" 2>&1; }
has() { grep -qE -- "$1" "$work/said"; }
compiled() { grep -c '^cc dynapipe_plugin/' "$work/said"; }

tree="$work/a tree"
ln -s "a tree" "$work/tree"
foreign_tree "$tree" '$^'
root=$PWD
python3 dev/dist.py "$tree/dynapipe_plugin" || exit 1
cd "$tree" || exit 1
cp Makefile Makefile.bare
line="-include dynapipe_plugin/dynapipe.mk"

# --- without DYNAPIPE=1 ------------------------------------------------------------------------------------------
for place in end top; do
    same=0
    for arguments in "" train_gpt2 train_gpt2cu train_gpt2amd "train_gpt2 DYNAPIPE=0" "train_gpt2 CFLAGS=-O1 NO_USE_MPI=1"; do
        # shellcheck disable=SC2086
        make -n -f Makefile.bare $arguments >"$work/bare" 2>&1
        [ $place = end ] && { cat Makefile.bare; echo "$line"; } >Makefile || { echo "$line"; cat Makefile.bare; } >Makefile
        # shellcheck disable=SC2086
        make -n $arguments >"$work/said" 2>&1
        cmp -s "$work/bare" "$work/said" || same=1
    done
    ok $same "without DYNAPIPE=1 make does the same, line for line (ours at the $place)"
    make -n DYNAPIPE=1 profile_gpt2cu >"$work/said" 2>&1
    make -n -f Makefile.bare profile_gpt2cu >"$work/bare" 2>&1
    cmp -s "$work/bare" "$work/said"
    ok $? "with it, a target that is no trainer does the same (ours at the $place)"
    make -n DYNAPIPE=1 DYNAPIPE_TARGETS=./train_gpt2 train_gpt2 2>&1 | grep -- '-o train_gpt2$' >"$work/said" && has -DDYNAPIPE
    ok $? "a target is the same with ./ before it (ours at the $place)"
    for other in train_gpt2amd train_other ./test_gpt2amd; do
        ! make -n DYNAPIPE=1 $other >"$work/said" 2>&1 && has "dynapipe: ${other#./} would be built without the plugin.* --->" && ! has hipcc
        ok $? "with it, $other, which has no plugin, is refused (ours at the $place)"
    done
    make -n DYNAPIPE=1 all >"$work/said" 2>&1 && has "dynapipe: train_gpt2fp32cu is built without the plugin" && has "echo stock"
    ok $? "with it, a stock trainer among others is built, and said to be stock (ours at the $place)"
    for level in 0 1; do  # from a shell, and from another make's recipe, which says which folder it enters and leaves
        MAKELEVEL=$level make -n DYNAPIPE=1 >"$work/dry" 2>&1
        grep -E -- ' -o [^ ]+$' "$work/dry" | tail -1 >"$work/said"
        has 'train_gpt2.c .*-o train_gpt2$'
        ok $? "the default target is the tree's (ours at the $place, make level $level)"
    done
done
{ cat Makefile.bare; echo "$line"; } >Makefile
build train_gpt2 && ./train_gpt2 >"$work/said" && has "^1 batch"
ok $? "the tree's own trainer"
[ ! -e build/dynapipe ]
ok $? "without DYNAPIPE=1 nothing is built of ours"

# --- with it -----------------------------------------------------------------------------------------------------
build train_gpt2 DYNAPIPE=1 V=1
ok $? "make train_gpt2 DYNAPIPE=1"
! grep 'c dynapipe_plugin/.*\.c' "$work/said" | grep -E -- '-Ofast|-ffast-math' && has '-ffp-contract=off .*dynapipe_plugin/dynapipe.c' && ! has warning:
ok $? "our objects have none of the tree's flags; no warning"
if command -v mpirun >/dev/null; then
    timeout 60 mpirun --quiet -np 2 ./train_gpt2 >"$work/said" 2>&1 && has "^2 ranks, sum 3"
    ok $? "two ranks: $(tail -1 "$work/said")"
else
    skip "two ranks" "no mpirun"
fi
timeout 60 ./train_gpt2 >"$work/said" 2>&1 && has "^1 ranks, sum 1"
ok $? "one process: $(tail -1 "$work/said")"
build train_gpt2 DYNAPIPE=1
[ "$(compiled)" -eq 0 ]
ok $? "again: nothing of ours is compiled"
touch dynapipe_plugin/dynapipe.h
build train_gpt2 DYNAPIPE=1
[ "$(compiled)" -eq 1 ]
ok $? "a header changed: the library is compiled anew"
build train_gpt2 DYNAPIPE=1 CFLAGS="-O0 -g" LDLIBS=-lm && timeout 60 ./train_gpt2 >"$work/said" 2>&1 && has "1 ranks"
ok $? "flags on the command line: ours are added to them"
foreign_makefile Makefile '$<'
echo "$line" >>Makefile
build train_gpt2 DYNAPIPE=1 && timeout 60 ./train_gpt2 >"$work/said" 2>&1 && has "1 ranks"
ok $? "rules with \$<"
printf 'my_own: $(DYNAPIPE_LIB)\n\t$(CC) $(DYNAPIPE_CPPFLAGS) train_gpt2.c $(DYNAPIPE_LIBS) -o $@\n' >>Makefile
build my_own DYNAPIPE=1 && timeout 60 ./my_own >"$work/said" 2>&1 && has "1 ranks"
ok $? "a rule of one's own, by our variables"
if command -v clang >/dev/null; then
    build train_gpt2 DYNAPIPE=1 CC=clang DYNAPIPE_OPT=-O0 && ! has warning: && timeout 60 ./train_gpt2 >"$work/said" 2>&1 && has "1 ranks"
    ok $? "CC=clang: other flags than last time, all anew, no warning"
fi

# --- sample files --------------------------------------------------------------------------------------------------
# Four samples: two bytes or one, a newline, one byte, an end; what a model sees of each is one token less.
make_samples() { rm -rf data && printf '{"task": "t", "inputs": "%s", "targets": "x"}\n' ab c d e >mine.jsonl && ./prepare_data --val-fraction 0 --out data/mine mine.jsonl >"$work/said" 2>&1; }
cat >reader.c <<'END'
#include "dynapipe_plugin/dynapipe.h"
int main(int argc, char** argv) {
    Dynapipe* dp;
    DynapipeRun_v1 run = {.train_pattern = "data/mine/train.bin", .batch_tokens = 64, .max_seq_tokens = 16, .num_steps = 1};
    DynapipeDataInfo_v1 info;
    if (dynapipe_open(&dp, &argc, &argv, NULL) != 0 || dynapipe_open_data(dp, &run) != 0 || dynapipe_data_info(dp, &info) != 0) {
        return fprintf(stderr, "%s\n", dynapipe_error()), 1;
    }
    printf("%d samples, %d tokens, ids below %d\n", (int)info.num_samples, (int)info.num_tokens, (int)info.vocab);
    dynapipe_close(dp);
}
END
build my_reader DYNAPIPE=1 -f - <<'END'
include Makefile
my_reader: $(DYNAPIPE_LIB)
	$(CC) reader.c $(DYNAPIPE_LIBS) -o $@
END
ok $? "a reader of sample files, by the library alone"
build prepare_data DYNAPIPE=1 && make_samples && timeout 60 ./my_reader >"$work/said" 2>&1 && has "^4 samples, 13 tokens, ids below 257"
ok $? "make prepare_data DYNAPIPE=1 makes them: $(tail -1 "$work/said")"
build prepare_data DYNAPIPE=1 SENTENCEPIECE= && has "without SentencePiece --->" && ! ldd prepare_data | grep -q sentencepiece && make_samples && timeout 60 ./my_reader >"$work/said" 2>&1 && has "^4 samples, 13 tokens"
ok $? "without SentencePiece: the same"
rm prepare_data
! build prepare_data
ok $? "without DYNAPIPE=1 there is no such target"
mkdir -p "$work/sub/inner"
foreign_makefile "$work/sub/inner/Makefile" '$^'
echo "include ../../tree/dynapipe_plugin/dynapipe.mk" >>"$work/sub/inner/Makefile"
build -C "$work/sub/inner" DYNAPIPE=1 build/dynapipe/dynapipe.o
ok $? "a tree that has the plugin elsewhere (../../)"

# --- MPI ---------------------------------------------------------------------------------------------------------
build train_gpt2 DYNAPIPE=1 DYNAPIPE_NO_MPI=1
[ "$(grep -c 'built for one process' "$work/said")" -eq 1 ]
ok $? "without MPI: said once"
! ldd train_gpt2 | grep -q libmpi && timeout 60 ./train_gpt2 >"$work/said" 2>&1 && has "1 ranks"
ok $? "without MPI: one process"
! build train_gpt2 DYNAPIPE=1 DYNAPIPE_MPICC=/nowhere/mpicc && has "DYNAPIPE_MPICC=/nowhere/mpicc .*--->"
ok $? "a wrapper that is none: $(grep -m1 -o 'DYNAPIPE_MPICC=.*' "$work/said" | cut -c1-90)"
# Wrappers as MPICH's and Intel's answer: quotes, -Xlinker, flags that concern neither headers nor libraries.
printf '#!/bin/sh\n[ "$1" = -show ] || exit 1\necho gcc -g -Werror -I"/some/include" -L"/some/lib" -Xlinker -rpath -Xlinker "/some/lib" -lmpifort -lmpi -pthread\n' >"$work/mpicc"
chmod +x "$work/mpicc"
make -pn DYNAPIPE=1 DYNAPIPE_MPICC="$work/mpicc" 2>/dev/null | grep -E '^DYNAPIPE_MPI_(CFLAGS|LIBS) ' >"$work/said"
has 'CFLAGS := -I/some/include -pthread$' && has 'LIBS := -L/some/lib -Wl,-rpath -Wl,/some/lib -lmpifort -lmpi -pthread$'
ok $? "a wrapper's answer is taken apart"
make -pn DYNAPIPE=1 DYNAPIPE_MPI_CFLAGS=-I/mine DYNAPIPE_MPI_LIBS=-lmine 2>/dev/null | grep -E '^DYNAPIPE_MPI_(CFLAGS|LIBS) ' >"$work/said"
has 'CFLAGS = -I/mine$' && has 'LIBS = -lmine$'
ok $? "DYNAPIPE_MPI_CFLAGS and DYNAPIPE_MPI_LIBS count more than any wrapper"
if command -v mpicc.mpich >/dev/null && command -v mpiexec.mpich >/dev/null; then
    build train_gpt2 DYNAPIPE=1 DYNAPIPE_MPICC=mpicc.mpich && ldd train_gpt2 | grep -q libmpich
    ok $? "MPICH: built"
    timeout 60 mpiexec.mpich -np 2 ./train_gpt2 >"$work/said" 2>&1 && has "^2 ranks, sum 3"
    ok $? "MPICH: two ranks: $(tail -1 "$work/said")"
else
    skip "MPICH" "no mpicc.mpich here (libmpich-dev, mpich)"
fi

# --- what is missing -----------------------------------------------------------------------------------------------
# A compiler that lacks a header.
cat >"$work/cc" <<'END'
#!/bin/sh
case "$*" in *-fsyntax-only*)
    input=$(cat)
    case $input in *"$LACKS"*) exit 1 ;; esac
    printf '%s\n' "$input" | gcc "$@" ;;
*) exec gcc "$@" ;; esac
END
chmod +x "$work/cc"
for missing in "pcre2.h libpcre2-dev" "jansson.h libjansson-dev" "mpi.h mpi"; do
    read -r header package <<<"$missing"
    [ "$header" != mpi.h ] || command -v mpicc >/dev/null || continue
    rm -rf build/dynapipe
    ! LACKS=$header build prepare_data train_gpt2 DYNAPIPE=1 CC="$work/cc" && has "no $header.*--->.*$package"
    ok $? "no $header: $(grep -m1 -- '--->' "$work/said" | cut -c1-100)"
done
sed -i.lines '/dynapipe_plugin/d' train_gpt2.c
! build train_gpt2 DYNAPIPE=1 && has "train_gpt2.c lacks a line of the plugin: .*--->.*install.sh"
ok $? "a trainer without our lines: $(grep -m1 -- '--->' "$work/said")"
mv train_gpt2.c.lines train_gpt2.c

# A trainer of a known family, with all lines but one.
cp -r "$root/test/foreign_llmc" "$work/family" && cd "$work/family" || exit 1
foreign_makefile Makefile '$^'
bash "$root/dynapipe_plugin/install.sh" --apply . >"$work/said" 2>&1
ok $? "install.sh knows the family"
cp train_gpt2.c whole.c
is_quiet() { ! grep -vq '^---- a tree ----$' "$work/said"; }
guard() { make --no-print-directory dynapipe-lines-of-train_gpt2.c DYNAPIPE=1 >"$work/said" 2>&1; }
guard && is_quiet
ok $? "all lines are there: not a word"
for gone in 'include.*dynapipe_llmc' DYNAPIPE_MAIN DYNAPIPE_OPEN DYNAPIPE_FIRST; do
    sed "s/^\(.*$gone\)/\/\/ \1/" whole.c >train_gpt2.c
    ! build train_gpt2 DYNAPIPE=1 && has "train_gpt2.c lacks a line of the plugin: .*--->.*install.sh" && [ ! -e train_gpt2 ]
    ok $? "a line is missing ($gone): $(grep -m1 'lacks' "$work/said" | cut -c1-90)"
done
! guard && make -n train_gpt2 DYNAPIPE=1 DYNAPIPE_TARGETS=train_gpt2 >"$work/said" 2>&1 && ! has install.sh && has ' -o train_gpt2$'
ok $? "DYNAPIPE_TARGETS of one's own: ported by hand, not looked at"
cd "$tree" || exit 1

# --- CUDA ----------------------------------------------------------------------------------------------------------
if command -v nvcc >/dev/null; then
    foreign_makefile Makefile '$^'
    echo "$line" >>Makefile
    for arguments in "" "NO_NCCL=1 NO_USE_MPI=1" "NO_MULTI_GPU=1 DYNAPIPE_NO_MPI=1"; do
        # shellcheck disable=SC2086
        build train_gpt2cu DYNAPIPE=1 $arguments
        ok $? "make train_gpt2cu DYNAPIPE=1 $arguments: $(grep -h '^dynapipe: ' "$work/said" | tr '\n' ';')"
    done
    if nvidia-smi -L >/dev/null 2>&1; then
        ./train_gpt2cu >"$work/said" 2>&1 && has "1 ranks"
        ok $? "one process on a GPU"
    else
        ./train_gpt2cu >"$work/said" 2>&1
        [ $? -eq 2 ] && has -- "--->"
        ok $? "without a GPU: $(tail -1 "$work/said")"
    fi
    mkdir -p "$work/openmpi/lib" "$work/openmpi/include"
    if command -v mpicc >/dev/null; then
        ! build train_gpt2cu DYNAPIPE=1 OPENMPI_DIR="$work/openmpi" && has "OPENMPI_DIR=.*--->.*NO_USE_MPI=1"
        ok $? "two MPIs in one program are refused"
    fi
else
    skip "CUDA" "no nvcc here"
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
