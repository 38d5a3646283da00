#!/usr/bin/env bash
# Laws of names in somebody else's tree: the plugin's library exports nothing but dynapipe_*, so that a program may have functions
# of any name, even of every name that ours call each other by; headers that a trainer includes define DYNAPIPE* macros alone;
# no header of the tree takes the place of one of ours; dynapipe.h compiles as C99, C11, C++17 and by nvcc beside headers full
# of the family's names, in several files of one program, and lays out structs and functions as programs were compiled with them.
cd "$(dirname "$0")/.." || exit 1
. test/foreign_tree.sh
none() { ok "$([ -s "$work/said" ]; echo $((1 - $?)))" "$1"; }  # $work/said has nothing
exported() { nm -g --defined-only "$@" 2>/dev/null | awk 'NF == 3 { print $3 }' | sort -u; }

tree=$work/tree
foreign_tree "$tree" '$^'
python3 dev/dist.py "$tree/dynapipe_plugin" || exit 1
plugin=$PWD
cd "$tree" || exit 1
echo "-include dynapipe_plugin/dynapipe.mk" >>Makefile

# --- header names: a tree full of headers that are called as ours, on the compiler's path ----------------------------
find "$plugin"/dynapipe_plugin "$plugin"/dataloader "$plugin"/util -name '*.h' ! -name dynapipe.h ! -name dynapipe_llmc.h -printf '%f\n' | sort -u >"$work/header_names"
printf '%s\n' utils.h rand.h logger.h dataloader.h tokenizer.h sampler.h schedulers.h zero.cuh >>"$work/header_names"
mkdir llmc
while read -r name; do echo "#error \"$name of this tree\"" | tee "$name" >"llmc/$name"; done <"$work/header_names"
CPATH=$tree:$tree/llmc make --no-print-directory -j"$(nproc)" train_gpt2 DYNAPIPE=1 INCLUDES="-I. -Illmc" >"$work/said" 2>&1
ok $? "headers of the tree in place of ours: none is taken ($(wc -l <"$work/header_names") names)"
while read -r name; do rm -f "$name"; done <"$work/header_names"
libraries=build/dynapipe/libdynapipe.a
if [ -n "$(make -C "$OLDPWD" -s BACKEND=cuda print-cuda-include 2>/dev/null)" ]; then
    make --no-print-directory -j"$(nproc)" dynapipecu DYNAPIPE=1 >"$work/said" 2>&1
    ok $? "the library for GPUs"
    libraries+=" build/dynapipe/libdynapipe_cuda.a"
else
    skip "names of the library for GPUs" "no CUDA headers here"
fi

# --- symbols -----------------------------------------------------------------------------------------------------
for library in $libraries; do
    exported "$library" | grep -vE '^(dynapipe_|nvtx|InitializeInjectionNvtx)' >"$work/said"
    none "${library##*/} (but for what nvtx3 defines in every user) exports dynapipe_* alone ($(exported "$library" | wc -l) names)"
    nm -g --undefined-only "$library" 2>/dev/null | awk 'NF == 2 { print $2 }' | sort -u >"$work/wanted"
    tr ' ' '\n' <<<"$family_functions" | grep -vx rand | sort -u | comm -12 - "$work/wanted" >"$work/said"
    none "${library##*/} calls nothing that the family defines"
done
sed -n 's/.*\b\(dynapipe_[a-z_0-9]*\)(.*/\1/p' dynapipe_plugin/dynapipe.h | sort -u >"$work/declared"
exported $libraries >"$work/exported"
grep -vx dynapipe_open "$work/declared" | comm -23 - "$work/exported" >"$work/said"  # (that one is inline)
none "every function of dynapipe.h is exported ($(wc -l <"$work/declared"))"

# A program that defines, for itself, every function that ours call each other by, and the family's: none may be called by ours.
nm build/dynapipe/dynapipe.o | awk '$2 == "t" && $3 !~ /\./ { print $3 }' | sort -u >"$work/internal"
{
    echo "#include <stdlib.h>"
    sort -u "$work/internal" <(tr ' ' '\n' <<<"$family_functions" | grep -vx rand) | sed 's/.*/void &(void); void &(void) { abort(); }/'
} >"$work/theirs.c"
gcc -c "$work/theirs.c" -o "$work/theirs.o" 2>"$work/said" && gcc -DDYNAPIPE train_gpt2.c "$work/theirs.o" -I. $(make -pn DYNAPIPE=1 2>/dev/null | sed -n 's/^DYNAPIPE_MPI_LIBS := //p' | sed 's|^|build/dynapipe/libdynapipe.a |') \
    -lpcre2-8 -ljansson -lm -lpthread -o both 2>"$work/said"
ok $? "a program with functions of all those names links ($(wc -l <"$work/internal") of ours, $(wc -w <<<"$family_functions") of the family)"
if command -v mpirun >/dev/null; then timeout 60 mpirun --quiet -np 2 ./both >"$work/said" 2>&1; else timeout 60 ./both >"$work/said" 2>&1; fi
grep -q "ranks, sum" "$work/said"
ok $? "and runs: $(tail -1 "$work/said")"

# --- macros ------------------------------------------------------------------------------------------------------
# What files of ours define when a trainer without -DDYNAPIPE, or with it, includes this header.
macros_of() {  # header, flags...
    local header=$1
    shift
    echo "#include \"$header\"" | gcc -I. "$@" -E -dD -x c - 2>"$work/errors" | awk '/^# [0-9]+ "/ { file = $3 } /^#define / && file ~ /dynapipe_plugin/ { sub(/\(.*/, "", $2); print $2 }'
}
# What a trainer includes: the tables say it.
for header in dynapipe_plugin/dynapipe.h dynapipe_plugin/dynapipe_llmc.h dynapipe_plugin/dynapipe_llmc.cuh; do
    macros_of "$header" -UDYNAPIPE | grep -v '^DYNAPIPE' >"$work/said"
    none "$header: macros begin with DYNAPIPE"
done
macros_of dynapipe_plugin/dynapipe.h -DDYNAPIPE | grep -v '^DYNAPIPE' >"$work/said"
none "dynapipe.h with -DDYNAPIPE: the same"
for name in $family_macros; do macros_of dynapipe_plugin/dynapipe.h | grep -x "$name"; done >"$work/said"
none "none is a macro of the family"

# What dynapipe.h has outside of braces and parentheses, and in the braces of an enum.
names_of() {
    sed '/^#ifdef __cplusplus/,/^#endif/d' "$1" | gcc -w -fpreprocessed -dD -E -P -x c - | awk '
        /^#define/ {print $2}
        !/^#/ {text = text " " $0}
        END {
            for (i = 1; i <= length(text); i++) {
                c = substr(text, i, 1)
                if (c ~ /[A-Za-z0-9_]/) {word = word c} else if (word != "") {last = word; word = ""}
                if (c == "{") {is_enum[++depth] = last == "enum"; last = ""} else if (c == "}") {depth--}
                parens += (c == "(") - (c == ")")
                is_name = c ~ /[A-Za-z0-9_]/ && parens == 0 && (depth == 0 || (depth == 1 && is_enum[1]))
                out = out (is_name ? c : " ")
            }
            gsub(/ +/, "\n", out)
            print out
        }' | grep -E '^[A-Za-z_]' | sort -u | grep -vxE 'typedef|struct|enum|static|inline|extern|const|int|void|char|double|size_t|u?int(32|64)_t|FILE'
}
names_of dynapipe_plugin/dynapipe.h >"$work/names"
grep -vE '^(dynapipe_|Dynapipe|DYNAPIPE_)' "$work/names" >"$work/said"
[ "$(wc -l <"$work/names")" -gt 60 ] && { cat dynapipe_plugin/dynapipe.h; echo 'typedef struct { int a; } Batch;'; } >planted.h && names_of planted.h | grep -qx Batch && none "$(wc -l <"$work/names") names of dynapipe.h begin with the project's"

# --- dynapipe.h in several files of one program, beside the family's header ----------------------------------------
printf '#include "dynapipe_plugin/dynapipe.h"\n#include "family.h"\nint other_file_ranks(Dynapipe* dp);\nint other_file_ranks(Dynapipe* dp) { return dynapipe_num_ranks(dp); }\n' >second.c
printf '#include "family.h"\n#include "dynapipe_plugin/dynapipe.h"\n#include "dynapipe_plugin/dynapipe.h"\nextern "C" int other_file_ranks(Dynapipe* dp) { return dynapipe_num_ranks(dp); }\n' >second.cpp
sed 's/^int other_file_ranks(Dynapipe\* dp);/extern "C" &/' train_gpt2.c >first.cpp
links="build/dynapipe/libdynapipe.a $(make -pn DYNAPIPE=1 2>/dev/null | sed -n 's/^DYNAPIPE_MPI_LIBS := //p') -lpcre2-8 -ljansson -lm -lpthread"
together() {  # what, first's compiler and file..., --, second's
    local what=$1 one=() two=()
    shift
    while [ "$1" != -- ]; do one+=("$1"); shift; done
    shift
    two=("$@")
    # shellcheck disable=SC2086
    "${one[@]}" -DDYNAPIPE -DSECOND_FILE -I. -c -o first.o >"$work/said" 2>&1 && "${two[@]}" -DDYNAPIPE -I. -c -o second.o >>"$work/said" 2>&1 &&
        ${linker:-g++} first.o second.o $links -o together >>"$work/said" 2>&1 && timeout 60 ./together >>"$work/said" 2>&1 && grep -q "1 ranks, sum 1" "$work/said"
    ok $? "$what: two files, one program"
}
strict="-Wall -Wextra -Wpedantic -Werror"
pins() {  # compiler and language...
    "$@" -g $strict -Idynapipe_plugin -c "$plugin/test/golden/interface_pins.c" -o pins.o >"$work/said" 2>&1 && "${linker:-g++}" pins.o $links -o pins >>"$work/said" 2>&1 && timeout 60 ./pins >>"$work/said" 2>&1
    ok $? "structs, functions and numbers are those of interface 1 ($1)"
}
pins gcc -std=c11
if command -v g++ >/dev/null; then
    # shellcheck disable=SC2086
    {
        pins g++ -std=c++17 -x c++
        together "C99 and C11" gcc -std=c99 $strict train_gpt2.c -- gcc -std=c11 $strict second.c
        together "C11 and C++17" gcc -std=c11 $strict train_gpt2.c -- g++ -std=c++17 $strict second.cpp
        together "C++17 and C++20" g++ -std=c++17 $strict first.cpp -- g++ -std=c++20 $strict second.cpp
        if command -v clang++ >/dev/null; then together "clang, C++17 and C17" clang++ -std=c++17 $strict first.cpp -- clang -std=c17 $strict second.c; fi
        if command -v nvcc >/dev/null; then
            links=${links//-Wl,/-Xlinker } links=${links//-pthread/-Xcompiler -pthread}
            linker=nvcc together "nvcc and C++17" nvcc -x cu -std=c++17 -Werror all-warnings first.cpp -- g++ -std=c++17 $strict second.cpp
        else skip "by nvcc" "no nvcc here"; fi
    }
else
    skip "in C++" "no g++ here"
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
