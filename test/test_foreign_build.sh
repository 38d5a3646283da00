#!/usr/bin/env bash
# Laws of the plugin in somebody else's tree, a made-up one in llm.c's manner. Of dynapipe.mk: nothing changes without DYNAPIPE=1;
# with it the trainer has the plugin, over whatever MPI there is, whatever flags and style of rule the tree has; what is missing
# is named. Of names: the library exports dynapipe_* alone, no header of the tree takes the place of one of ours, dynapipe.h
# compiles as C99 to C++20 and by nvcc beside the family's macros, and structs and functions are those of interface 1.
# MPICH beside Open MPI (mpicc.mpich, mpiexec.mpich on PATH): built and run with that too.
# concerns: dynapipe_plugin/dynapipe.h dynapipe_plugin/dynapipe.mk dynapipe_plugin/sources.mk dynapipe_plugin/install dynapipe_plugin/adapters dev/dist.py
. "$(dirname "$0")/check_lib.sh"
. dev/mpi_env.sh
unset BUILD CFLAGS MAKEFLAGS MFLAGS MAKELEVEL CC DYNAPIPE  # (a make that runs this test is not the one meant)
export DYNAPIPE_OPT=-O0  # quick
log=$work/said

build() { make --no-print-directory -j"$(nproc)" "$@" >"$work/said" 2>&1; }
has() { grep -qE -- "$1" "$work/said"; }
compiled() { grep -c '^cc dynapipe_plugin/' "$work/said"; }
# The trainer as one process, or (with $1) as so many ranks.
runs() { if [ $# -eq 0 ]; then timeout 60 ./train_gpt2; else timeout 60 mpirun --quiet -np "$1" ./train_gpt2; fi >"$work/said" 2>&1 && has "^${1:-1} ranks, sum $((${1:-1} * (${1:-1} + 1) / 2))"; }

# --- the tree: one source file, everything phony, -Ofast; its program joins the ranks and adds numbers ---------------
tree="$work/a tree" root=$PWD
mkdir "$tree" && ln -s "a tree" "$work/tree" && python3 dev/dist.py "$tree/dynapipe_plugin" && cd "$tree" || exit 1
{
    printf '#pragma once\n#define True 1\n'
    for name in HEADER_SIZE CEIL_DIV False NUM_PARAMETER_TENSORS NUM_ACTIVATION_TENSORS WARP_SIZE fopenCheck freadCheck mallocCheck printf0 cudaCheck \
        cublasCheck cudnnCheck ncclCheck mpiCheck MAX_1024_THREADS_BLOCKS NVTX_RANGE_FN UNUSED TEMP_STR PROFILE; do
        echo "#define $name this_tree_has_a_macro_$name"
    done
    echo "typedef struct { int of_this_tree; } DataLoader, Tokenizer, Logger, ShardInfo;"
    echo "static inline int dataloader_next_batch(int a, int b) { return a + b; }"
} >family.h
cat >train_gpt2.c <<'END'
#include "family.h"
#include <stdio.h>
#ifdef DYNAPIPE
#include "dynapipe_plugin/dynapipe.h"
int other_file_ranks(Dynapipe* dp);
#endif

int main(int argc, char** argv) {
#ifdef DYNAPIPE
    Dynapipe* dp = NULL;
    int error = dynapipe_open(&dp, &argc, &argv, NULL);
    if (error != 0) {
        fprintf(stderr, "%s\n", dynapipe_error());
        dynapipe_close(dp);
        return dynapipe_exit_status(error);
    }
    double sum = dynapipe_rank(dp) + 1;
    error = dynapipe_sum(dp, &sum, 1);
    if (dynapipe_rank(dp) == 0) { printf("%d ranks, sum %.0f\n", other_file_ranks(dp), sum); }
    dynapipe_close(dp);
    return error != 0;
#else
    (void)argv;
    printf("%d batch\n", dataloader_next_batch(argc - 1, True));
    return 0;
#endif
}
#if defined(DYNAPIPE) && !defined(SECOND_FILE)
int other_file_ranks(Dynapipe* dp) { return dynapipe_num_ranks(dp); }
#endif
END
cp train_gpt2.c train_gpt2.cu
foreign_makefile() {  # file, $^ or $<: what its rules compile
    cat >"$1" <<END
CC ?= clang
CFLAGS = -Ofast -Wno-unused-result
LDFLAGS =
LDLIBS = -lm
INCLUDES =
OUTPUT = -o \$@
NVCC := \$(shell which nvcc 2>/dev/null)
NVCC_FLAGS = --use_fast_math -std=c++17 -O0
NVCC_LDFLAGS =
NVCC_INCLUDES =
NVCC_LDLIBS =
PFLAGS = -DENABLE_BF16
BUILD_DIR = build
\$(shell mkdir -p \$(BUILD_DIR))
\$(info ---- a tree ----)
ifneq (\$(NO_USE_MPI), 1)
OPENMPI_DIR ?= /usr/lib/x86_64-linux-gnu/openmpi
OPENMPI_LIB_PATH = \$(OPENMPI_DIR)/lib/
OPENMPI_INCLUDE_PATH = \$(OPENMPI_DIR)/include/
ifneq (\$(wildcard \$(OPENMPI_LIB_PATH)),)
NVCC_INCLUDES += -I\$(OPENMPI_INCLUDE_PATH)
NVCC_LDFLAGS += -L\$(OPENMPI_LIB_PATH)
NVCC_LDLIBS += -lmpi
NVCC_FLAGS += -DUSE_MPI
endif
endif
.PHONY: all train_gpt2 train_gpt2cu train_gpt2fp32cu
all: train_gpt2fp32cu train_gpt2
train_gpt2fp32cu:
	@echo stock
train_gpt2: train_gpt2.c
	\$(CC) \$(CFLAGS) \$(INCLUDES) \$(LDFLAGS) $2 \$(LDLIBS) \$(OUTPUT)
train_gpt2cu: train_gpt2.cu
	\$(NVCC) \$(NVCC_FLAGS) \$(PFLAGS) $2 \$(NVCC_LDFLAGS) \$(NVCC_INCLUDES) \$(NVCC_LDLIBS) \$(OUTPUT)
%amd: %.cu
	hipcc \$(PFLAGS) \$< -o \$@
END
}
foreign_makefile Makefile.bare '$^'
line="-include dynapipe_plugin/dynapipe.mk"

# --- without DYNAPIPE=1 ------------------------------------------------------------------------------------------
for place in end top; do
    [ $place = end ] && { cat Makefile.bare; echo "$line"; } >Makefile || { echo "$line"; cat Makefile.bare; } >Makefile
    same=0
    for arguments in "" train_gpt2cu train_gpt2amd "train_gpt2 DYNAPIPE=0" "train_gpt2 CFLAGS=-O1 NO_USE_MPI=1" "DYNAPIPE=1 profile_gpt2cu"; do
        # shellcheck disable=SC2086
        make -n -f Makefile.bare $arguments >"$work/bare" 2>&1; make -n $arguments >"$work/said" 2>&1
        cmp -s "$work/bare" "$work/said" || same=1
    done
    ok $same "without DYNAPIPE=1, and for targets that are no trainer, make does the same, line for line (ours at the $place)"
    make -n DYNAPIPE=1 DYNAPIPE_TARGETS=./train_gpt2 train_gpt2 2>&1 | grep -- '-o train_gpt2$' >"$work/said" && has -DDYNAPIPE
    ok $? "a target is the same with ./ before it (ours at the $place)"
    for other in train_gpt2amd ./test_gpt2amd; do
        ! make -n DYNAPIPE=1 $other >"$work/said" 2>&1 && has "dynapipe: ${other#./} would be built without the plugin.* --->" && ! has hipcc
        ok $? "with it, $other, which has no plugin, is refused (ours at the $place)"
    done
    make -n DYNAPIPE=1 all >"$work/said" 2>&1 && has "dynapipe: train_gpt2fp32cu is built without the plugin" && has "echo stock"
    ok $? "with it, a stock trainer among others is built, with a note (ours at the $place)"
    for level in 0 1; do  # from a shell, and from another make's recipe, which says which folder it enters and leaves
        MAKELEVEL=$level make -n DYNAPIPE=1 >"$work/dry" 2>&1
        grep -E -- ' -o [^ ]+$' "$work/dry" | tail -1 >"$work/said"
        has 'train_gpt2.c .*-o train_gpt2$'
        ok $? "the default target is the tree's (ours at the $place, make level $level)"
    done
done
{ cat Makefile.bare; echo "$line"; } >Makefile
build train_gpt2 && ./train_gpt2 >"$work/said" && has "^1 batch" && [ ! -e build/dynapipe ]
ok $? "without DYNAPIPE=1: the tree's own trainer, and nothing of ours is built"

# --- with it: beside headers of the tree that are named as ours ------------------------------------------------------
mkdir llmc
{ find "$root"/{dynapipe_plugin,dataloader,util} -name '*.h' ! -name 'dynapipe*.h' -printf '%f\n'; printf '%s\n' utils.h rand.h logger.h zero.cuh; } | sort -u >"$work/headers"
while read -r name; do echo "#error \"$name of this tree\"" | tee "$name" >"llmc/$name"; done <"$work/headers"
CPATH=$tree:$tree/llmc build train_gpt2 DYNAPIPE=1 V=1 INCLUDES="-I. -Illmc"
ok $? "make train_gpt2 DYNAPIPE=1: no header of the tree takes the place of ours ($(wc -l <"$work/headers") names)"
! grep 'c dynapipe_plugin/.*\.c' "$work/said" | grep -E -- '-Ofast|-ffast-math' && has '-ffp-contract=off .*dynapipe_plugin/dynapipe.c' && ! has warning:
ok $? "our objects have none of the tree's flags; no warning"
xargs rm <"$work/headers"
if command -v mpirun >/dev/null; then
    runs 2
    ok $? "two ranks: $(tail -1 "$work/said")"
else
    skip "two ranks ---> no mpirun"
fi
runs
ok $? "one process: $(tail -1 "$work/said")"
build train_gpt2 DYNAPIPE=1
[ "$(compiled)" -eq 0 ]
ok $? "again: nothing of ours is compiled"
touch dynapipe_plugin/dynapipe.h
build train_gpt2 DYNAPIPE=1 CFLAGS="-O0 -g" LDLIBS=-lm && [ "$(compiled)" -eq 1 ] && runs
ok $? "a header changed: compiled anew; flags on the command line: ours are added to them"
foreign_makefile Makefile '$<'
printf '%s\nmy_own: $(DYNAPIPE_LIB)\n\t$(CC) $(DYNAPIPE_CPPFLAGS) train_gpt2.c $(DYNAPIPE_LIBS) -o train_gpt2\n' "$line" >>Makefile
build train_gpt2 DYNAPIPE=1 && runs && rm train_gpt2 && build my_own DYNAPIPE=1 && runs
ok $? "rules with \$<, and one of one's own, by our variables"
if command -v clang >/dev/null; then
    build train_gpt2 DYNAPIPE=1 CC=clang && ! has warning: && runs && build train_gpt2 DYNAPIPE=1
    ok $? "CC=clang: other flags than last time, all anew, no warning"
fi

# --- names and the interface -----------------------------------------------------------------------------------------
libraries=build/dynapipe/libdynapipe.a
if [ -n "$(make -C "$root" -s BACKEND=cuda print-cuda-include 2>/dev/null)" ]; then
    build dynapipecu DYNAPIPE=1
    ok $? "the library for GPUs"
    libraries+=" build/dynapipe/libdynapipe_cuda.a"
else
    skip "names of the library for GPUs ---> no CUDA headers here"
fi
for library in $libraries; do
    nm -g --defined-only "$library" 2>/dev/null | awk 'NF == 3 { print $3 }' | sort -u >"$work/exported"
    ! grep -vE '^(dynapipe_|nvtx|InitializeInjectionNvtx)' "$work/exported" >"$work/said"
    ok $? "${library##*/} (but for what nvtx3 defines in every user) exports dynapipe_* alone ($(wc -l <"$work/exported") names)"
    sed -n 's/.*\b\(dynapipe_[a-z_0-9]*\)(.*/\1/p' dynapipe_plugin/dynapipe.h | grep -vx dynapipe_open | sort -u | comm -23 - "$work/exported" >"$work/said"
    [ ! -s "$work/said" ]
    ok $? "and every function of dynapipe.h but the inline one"
done
gcc -fpreprocessed -dD -E -P -w -x c - <dynapipe_plugin/dynapipe.h | tee "$work/header" | grep -oE '\b[A-Z][A-Za-z_0-9]*' | grep -vE '^(Dynapipe|DYNAPIPE_|NULL$|FILE$|C$)' >"$work/said"
grep -oE '^[a-z][a-z_0-9 ]*\**[ *][a-z_0-9]+\(' "$work/header" | grep -vE '[ *]dynapipe_[a-z_0-9]*\($' >>"$work/said"
[ "$(wc -l <"$work/header")" -gt 100 ] && [ ! -s "$work/said" ]
ok $? "types, constants, macros and functions of dynapipe.h begin with the project's name"
for header in dynapipe_llmc.h dynapipe_llmc.cuh; do
    echo "#include \"dynapipe_plugin/$header\"" | gcc -I. -E -dD -x c - 2>/dev/null | awk '/^# [0-9]+ "/ { file = $3 } /^#define / && file ~ /dynapipe_plugin/ && $2 !~ /^DYNAPIPE/' >"$work/said"
    [ ! -s "$work/said" ]
    ok $? "$header without -DDYNAPIPE: macros begin with DYNAPIPE"
done
printf '#include "dynapipe_plugin/dynapipe.h"\n#include "family.h"\nint other_file_ranks(Dynapipe* dp);\nint other_file_ranks(Dynapipe* dp) { return dynapipe_num_ranks(dp); }\n' >second.c
printf '#include "family.h"\n#include "dynapipe_plugin/dynapipe.h"\n#include "dynapipe_plugin/dynapipe.h"\nextern "C" int other_file_ranks(Dynapipe* dp) { return dynapipe_num_ranks(dp); }\n' >second.cpp
sed 's/^int other_file_ranks(Dynapipe\* dp);/extern "C" &/' train_gpt2.c >first.cpp
links="build/dynapipe/libdynapipe.a $(make -pn DYNAPIPE=1 2>/dev/null | sed -n 's/^DYNAPIPE_MPI_LIBS := //p') -lpcre2-8 -ljansson -lm -lpthread"
strict="-Wall -Wextra -Wpedantic -Werror"
together() {  # what, first's compiler and file, second's
    # shellcheck disable=SC2086
    $2 -DDYNAPIPE -DSECOND_FILE -I. -c -o first.o >"$work/said" 2>&1 && $3 -DDYNAPIPE -I. -c -o second.o >>"$work/said" 2>&1 &&
        ${linker:-g++} first.o second.o $links -o train_gpt2 >>"$work/said" 2>&1 && runs
    ok $? "$1: two files, one program"
}
pins() {
    # shellcheck disable=SC2086
    "$@" -g $strict -Idynapipe_plugin -c "$root/test/golden/interface_pins.c" -o pins.o >"$work/said" 2>&1 && g++ pins.o $links -o pins >>"$work/said" 2>&1 && timeout 60 ./pins >>"$work/said" 2>&1
    ok $? "structs, functions and numbers are those of interface 1 ($1)"
}
for file in dynapipe.c prepare_data.c; do
    # shellcheck disable=SC2046
    gcc -std=c11 -O1 -Wall -Wextra -Werror -DDYNAPIPE_MPI $(make -pn DYNAPIPE=1 2>/dev/null | sed -n 's/^DYNAPIPE_MPI_CFLAGS := //p') -c "dynapipe_plugin/$file" -o alone.o >"$work/said" 2>&1
    ok $? "$file as C11: no warning"
done
if command -v g++ >/dev/null; then
    pins gcc -std=c11
    pins g++ -std=c++17 -x c++
    together "C99 and C11" "gcc -std=c99 $strict train_gpt2.c" "gcc -std=c11 $strict second.c"
    together "C++17 and C++20" "g++ -std=c++17 $strict first.cpp" "g++ -std=c++20 $strict second.cpp"
    if command -v clang++ >/dev/null; then together "clang, C++17 and C17" "clang++ -std=c++17 $strict first.cpp" "clang -std=c17 $strict second.c"; fi
    if command -v nvcc >/dev/null; then
        links=${links//-Wl,/-Xlinker } links=${links//-pthread/-Xcompiler -pthread}
        linker=nvcc together "nvcc and C++17" "nvcc -x cu -std=c++17 -Werror all-warnings first.cpp" "g++ -std=c++17 $strict second.cpp"
    else skip "by nvcc ---> no nvcc here"; fi
else
    skip "two files of one program ---> no g++ here"
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
printf 'my_reader: $(DYNAPIPE_LIB)\n\t$(CC) reader.c $(DYNAPIPE_LIBS) -o $@\n' >>Makefile
for with in "" SENTENCEPIECE=; do
    build my_reader DYNAPIPE=1 && build prepare_data DYNAPIPE=1 $with && { [ -z "$with" ] || { has "without SentencePiece --->" && ! ldd prepare_data | grep -q sentencepiece; }; } &&
        make_samples && timeout 60 ./my_reader >"$work/said" 2>&1 && has "^4 samples, 13 tokens, ids below 257"
    ok $? "make prepare_data DYNAPIPE=1 $with, read by the library alone: $(tail -1 "$work/said")"
done
rm prepare_data
! build prepare_data
ok $? "without DYNAPIPE=1 there is no such target"
mkdir -p "$work/sub/inner"
{ cat Makefile.bare; echo "include ../../tree/dynapipe_plugin/dynapipe.mk"; } >"$work/sub/inner/Makefile"
build -C "$work/sub/inner" DYNAPIPE=1 build/dynapipe/dynapipe.o
ok $? "a tree that has the plugin elsewhere (../../)"

# --- MPI ---------------------------------------------------------------------------------------------------------
build train_gpt2 DYNAPIPE=1 DYNAPIPE_NO_MPI=1 && [ "$(grep -c 'built for one process' "$work/said")" -eq 1 ] && ! ldd train_gpt2 | grep -q libmpi && runs
ok $? "without MPI: one process, and it is said once"
! build train_gpt2 DYNAPIPE=1 DYNAPIPE_MPICC=/nowhere/mpicc && has "DYNAPIPE_MPICC=/nowhere/mpicc .*--->"
ok $? "a wrapper that is none: $(grep -m1 -o 'DYNAPIPE_MPICC=.*' "$work/said" | cut -c1-90)"
# Wrappers as MPICH's and Intel's answer: quotes, -Xlinker, flags that concern neither headers nor libraries.
printf '#!/bin/sh\n[ "$1" = -show ] || exit 1\necho gcc -g -Werror -I"/some/include" -L"/some/lib" -Xlinker -rpath -Xlinker "/some/lib" -lmpifort -lmpi -pthread\n' >"$work/mpicc"
chmod +x "$work/mpicc"
mpi_flags() { make -pn DYNAPIPE=1 "$@" 2>/dev/null | grep -E '^DYNAPIPE_MPI_(CFLAGS|LIBS) ' >"$work/said"; }
mpi_flags DYNAPIPE_MPICC="$work/mpicc"
has 'CFLAGS := -I/some/include -pthread$' && has 'LIBS := -L/some/lib -Wl,-rpath -Wl,/some/lib -lmpifort -lmpi -pthread$'
ok $? "a wrapper's answer is taken apart"
mpi_flags DYNAPIPE_MPI_CFLAGS=-I/mine DYNAPIPE_MPI_LIBS=-lmine
has 'CFLAGS = -I/mine$' && has 'LIBS = -lmine$'
ok $? "DYNAPIPE_MPI_CFLAGS and DYNAPIPE_MPI_LIBS count more than any wrapper"
if command -v mpicc.mpich >/dev/null && command -v mpiexec.mpich >/dev/null; then
    build train_gpt2 DYNAPIPE=1 DYNAPIPE_MPICC=mpicc.mpich && ldd train_gpt2 | grep -q libmpich && timeout 60 mpiexec.mpich -np 2 ./train_gpt2 >"$work/said" 2>&1 && has "^2 ranks, sum 3"
    ok $? "MPICH: two ranks: $(tail -1 "$work/said")"
else
    skip "MPICH ---> no mpicc.mpich here (libmpich-dev, mpich)"
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
    { cat Makefile.bare; echo "$line"; } >Makefile
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
    skip "CUDA ---> no nvcc here"
fi
finish
