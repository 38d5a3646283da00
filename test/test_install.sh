#!/usr/bin/env bash
# concerns: dynapipe_plugin/install.sh dynapipe_plugin/edits.awk
# Laws of dynapipe_plugin/install.sh, on trees of llm.c's family written another way: lines go where functions are, however the file
# is written (CRLF, no last newline, blanks, #if branches, another name); twice is once; --remove leaves every byte as it was,
# or names what somebody changed and touches nothing; a tree of no family is refused with what was looked for.
# AWK=path: one awk; without, every awk of this machine.
. "$(dirname "$0")/check_lib.sh"
export LC_ALL=C

ok() {  # 0|1 (0: fine), what
    if [ "$1" -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAIL $awk_name: $2"; [ ! -e "$work/said" ] || sed 's/^/    /' "$work/said" | tail -20; fi
}
is() { [ "$2" = "$3" ]; ok $? "$1: expected '$3', got '$2'"; }  # what, got, expected
says() { grep -qF -- "$2" "$work/said"; ok $? "$1: says '$2'"; }

# A plugin of two files, and trees: the two that tests of the adapters have, and what makes them hard to read.
plugin="$work/the plugin" installer="$work/the plugin/dynapipe_plugin/install.sh"
mkdir -p "$plugin/dynapipe_plugin" "$plugin/dist"
cp dynapipe_plugin/install.sh dynapipe_plugin/edits.awk "$plugin/dynapipe_plugin/"
echo "int a;" >"$plugin/dist/a.c"
echo "# b" >"$plugin/dist/dynapipe.mk"
hard='// a trainer; gpt2_forward( is in this comment, main() too
/* int gpt2_forward(int x) {
   old */
const char* hard_text = "int gpt2_forward() { }";
#ifdef FAST
void hard(int* x) {
#else
void hard(int* x, int slow) {
#endif
    *x = (int)0x7b; // }
}'
tree_of() {  # name: a new tree in $tree
    tree="$work/trees/$1"
    rm -rf "$tree" "$tree.was"
    mkdir -p "$work/trees"
    cp -r test/foreign_llmc "$tree"
    cp test/foreign_llmc_cuda/train_gpt2.cu "$tree"
    { echo "$hard"; cat test/foreign_llmc/train_gpt2.c; } >"$tree/train_gpt2.c"
    file=$tree/train_gpt2.c
}
run() {
    bash "$installer" "$@" >"$work/said" 2>&1
    local rc=$?
    ! grep -qE '^(awk|.*: line [0-9]+):' "$work/said" || ok 1 "no complaint of a program"
    return $rc
}
keep() { rm -rf "$tree.was" && cp -rp "$tree" "$tree.was"; }
as_it_was() { diff -r "$tree" "$tree.was" >"$work/said" 2>&1; ok $? "$1: the tree is as it was"; }
comes_and_goes() {  # what: --apply, twice, --check, --remove
    keep
    run --apply "$tree"
    is "$1: --apply" $? 0
    cp -r "$tree" "$work/once"
    run --apply "$tree"
    diff -r "$tree" "$work/once" >"$work/said"
    ok $? "$1: twice is once"
    rm -rf "$work/once"
    run --check "$tree"
    is "$1: --check" $? 0
    run --remove "$tree"
    is "$1: --remove" $? 0
    as_it_was "$1"
}

where_lines_go() {
    tree_of "plain tree"
    keep
    run --check "$tree"
    is "--check of a bare tree" $? 1
    says "--check" "edits are missing"
    as_it_was "--check"
    run "$tree"
    is "printing" $? 0
    cmp -s "$file" "$tree.was/train_gpt2.c"
    ok $? "printing adds no line"
    is "files are copied" "$(ls "$tree/dynapipe_plugin" | tr '\n' ' ')" "a.c dynapipe.mk "
    sed -n '/^--- a/,/^[^-+ @]/p' "$work/said" | patch -s -p1 -d "$tree"
    ok $? "what it prints is a patch"
    run --check "$tree"
    is "--check knows lines that were put there by hand" $? 0
    diff "$tree.was/train_gpt2.c" "$file" | sed -n 's/^> *//p' >"$work/said"
    diff - "$work/said" >"$work/diff" <<'END'
#include "dynapipe_plugin/dynapipe_llmc.h"
#define DYNAPIPE_MAIN
#include "dynapipe_plugin/dynapipe_llmc.h"
int main(int argc, char** argv) {
DYNAPIPE_OPEN(argc, argv)
for (int step = DYNAPIPE_FIRST(&model, 0); DYNAPIPE_STEPS_OR(step) step < 9; step++) {
if (DYNAPIPE_WHOLE_AND step > 0 && step % 8 == 0) {
END
    ok $? "lines of the CPU trainer"
    run --remove "$tree"
    is "--remove of the printed patch" $? 0
    as_it_was "--remove of the printed patch"
    comes_and_goes "plain tree"
    run --remove "$tree"
    is "--remove where nothing is" $? 0
    as_it_was "--remove where nothing is"
}

however_it_is_written() {
    local written
    for written in 'CRLF|s/$/\r/' 'main( void )|s/^int main().*/int main( void )\n{/; s/^int main(void).*/int\nmain( void )\n{/' \
        'main that has options|s/^int main([a-z]*)/int main(int argc, char *argv[])/' 'blanks where one likes|s/step = 0; step/step=0;  step/'; do
        tree_of "${written%%|*}"
        sed -i "${written#*|}" "$file"
        comes_and_goes "${written%%|*}"
    done
    tree_of crlf
    sed -i 's/$/\r/' "$file"
    run --apply "$tree"
    is "CRLF: every line ends so" "$(grep -vc $'\r$' "$file")" 0
    tree_of "no newline"
    printf 'train_gpt2: train_gpt2.c\n\tcc $^' >"$tree/Makefile"
    printf '%s' "$(cat "$file")" >"$file"
    comes_and_goes "no last newline"
    tree_of "other names"
    mv "$file" "$tree/trainer.c"
    mv "$tree/Makefile" "$tree/GNUmakefile"
    printf '# -include dynapipe_plugin/dynapipe.mk\n' >>"$tree/GNUmakefile"
    comes_and_goes "a renamed file, and the file that make reads, past a comment"
}

a_place_is_missing() {
    local place what edit
    for place in 'no loop|0 lines with  step = 0; step  in main(): step = DYNAPIPE_FIRST(|s/step = 0; step/step = 1; step/' \
        'two loops|2 lines with  step = 0; step|s/^    DataLoader train_loader, .*/    for (int step = 0; step < 1; step++) {}\n&/' \
        'two mains|main() is defined 2 times|$a #ifdef OTHER\nint main(void) {\n    return 0;\n}\n#endif'; do
        IFS='|' read -r place what edit <<<"$place"
        tree_of "$place"
        sed -i "$edit" "$file"
        run --apply "$tree"
        is "$place" $? 1
        says "$place" "$what"
        [ "$place" = "two mains" ] || grep -q DYNAPIPE_OPEN "$file"
        ok $? "$place: the others are placed"
        run --check "$tree"
        is "$place: --check" $? 1
    done
}

somebody_changed_it() {
    tree_of changed
    keep
    run --apply "$tree"
    sed -i 's/    DYNAPIPE_OPEN(argc, argv)/    DYNAPIPE_OPEN(argc, argv) prepare();/' "$file"
    keep
    run --remove "$tree"
    is "a changed line: --remove" $? 1
    says "a changed line" "--->"
    as_it_was "a changed line, refused"
    sed -i 's/ prepare();//; 1s/^/\/\/ mine\n/' "$file"
    run --remove "$tree"
    is "put back: --remove" $? 0
    { echo "// mine"; echo "$hard"; cat test/foreign_llmc/train_gpt2.c; } | diff - "$file" >"$work/said"
    ok $? "other lines than ours may change, and stay"
    tree_of "records gone"
    run --apply "$tree"
    rm -rf "$tree/.dynapipe"
    keep
    run --remove "$tree"
    is "--remove without records" $? 1
    says "--remove without records" "DYNAPIPE_FIRST"
    as_it_was "--remove without records"
    tree_of "changed folder"
    run --apply "$tree"
    echo "int mine;" >>"$tree/dynapipe_plugin/a.c"
    echo "new" >"$tree/dynapipe_plugin/new file.c"
    keep
    for command in --remove --apply; do
        run $command "$tree"
        is "a changed copy: $command" $? 1
        says "a changed copy" "a.c new file.c"
        as_it_was "a changed copy, $command"
    done
    tree_of "a folder of theirs"
    mkdir "$tree/dynapipe_plugin"
    echo "theirs" >"$tree/dynapipe_plugin/theirs.c"
    keep
    run --apply "$tree"
    is "a folder of theirs" $? 1
    as_it_was "a folder of theirs"
    run --remove "$tree"
    as_it_was "a folder of theirs, --remove"
}

links_and_objects() {
    tree_of "links here"
    keep
    run --link --apply "$tree"
    [ "$tree/dynapipe_plugin/a.c" -ef "$plugin/dist/a.c" ]
    ok $? "--link makes a link"
    run --apply "$tree"
    [ ! -L "$tree/dynapipe_plugin" ] && [ -e "$tree/dynapipe_plugin/a.c" ]
    ok $? "a link becomes a copy"
    run --link "$tree"
    run --remove "$tree"
    as_it_was "--link"
    [ -e "$plugin/dist/a.c" ]
    ok $? "--remove of a link leaves what it points at"
    mkdir -p "$tree/build/dynapipe"
    touch "$tree/build/dynapipe/mine"
    keep
    run --apply "$tree"
    touch "$tree/build/dynapipe/"{cpu.flags,dynapipe.o,libdynapipe.a}
    run --remove "$tree"
    as_it_was "objects go, too, and what is the user's stays"
    run "$tree"
    echo "int c;" >"$plugin/dist/c.c"
    run "$tree"
    [ -e "$tree/dynapipe_plugin/c.c" ]
    ok $? "a later copy replaces the earlier"
    rm "$plugin/dist/c.c"
    run --remove "$tree"
    as_it_was "a later copy"
}

not_writable() {  # all or nothing
    [ "$(id -u)" -eq 0 ] && return  # who may write everything
    local what
    for what in train_gpt2.c Makefile .; do
        tree_of "read-only"
        keep
        chmod a-w "$tree/$what"
        run --apply "$tree"
        is "$what is read-only: --apply" $? 1
        says "$what is read-only" "cannot be written:"
        chmod u+w "$tree/$what"
        as_it_was "$what is read-only"
    done
}

wrong_use() {
    tree_of unknown
    sed -i 's/\bgpt2_update\b/gpt2_learn/' "$file"
    rm "$tree/train_gpt2.cu"
    keep
    run --apply "$tree"
    is "an unknown tree" $? 2
    says "an unknown tree" "train_gpt2.c: defines no gpt2_update()"
    says "an unknown tree" "doc/porting.md"
    as_it_was "an unknown tree"
    sed -i 's/\bgpt2_learn\b/gpt2_update/; s/\battention_forward\b/flash_forward/' "$file"
    run --apply "$tree"
    is "a function that calls another" $? 2
    says "a function that calls another" "gpt2_forward() does not call attention_forward()"
    # A file that lacks what an adapter uses is named, whatever else is taken.
    for case in "train_gpt2.cu|s/gpt2_allocate_state/gpt2_allocate/|defines no gpt2_allocate_state()|CPU" \
        "train_gpt2.c|s/malloc_and_point_activations/point_acts/|defines no malloc_and_point_activations()|CUDA" \
        "train_gpt2.c|s/grads_acts_memory/dacts/|has no grads_acts_memory|CUDA"; do
        IFS='|' read -r name change lacking other <<<"$case"
        tree_of lacking
        sed -i "$change" "$tree/$name"
        run "$tree"
        is "$name $lacking: the other one is taken" $? 0
        says "$lacking" "note: not taken: $name: $lacking --->"
        says "$lacking" "recognised: llm.c's $other trainer"
    done
    # What is to be typed needs no file that is not there.
    tree_of commands
    run "$tree"
    says "no model file" "then: ./dev/download_starter_pack.sh"
    says "no model file" "./train_gpt2cu -e d12 "
    touch "$tree"/gpt2_124M{,_bf16}.bin
    run "$tree"
    ! grep -q download "$work/said"
    ok $? "model files are there: none is to be fetched"
    says "model files are there" "./train_gpt2cu -e gpt2_124M_bf16.bin "
    tree_of hip
    printf 'ampd: train_gpt2.c\n\thipcc $^ -o $@\n' >>"$tree/Makefile"
    run "$tree"
    says "a tree that has HIP targets" "HIP targets"
    for arguments in "" "$work/nowhere" "--frobnicate $tree" "--apply --remove $tree" "$tree $tree"; do
        # shellcheck disable=SC2086
        run $arguments
        is "'$arguments'" $? 2
    done
    bash dynapipe_plugin/install.sh . >"$work/said" 2>&1
    is "DynaPipe itself" $? 2
    run --help
    is "--help" $? 0
}

path=$PATH
for awk_name in ${AWK:-mawk gawk busybox original-awk}; do
    program=$(command -v "$awk_name") || { [ -n "${AWK:-}" ] && awk_name=awk ok 1 "no $AWK"; continue; }
    mkdir -p "$work/bin"
    [ "$(basename "$program")" = busybox ] && printf '#!/bin/sh\nexec %s awk "$@"\n' "$program" >"$work/bin/awk" || printf '#!/bin/sh\nexec %s "$@"\n' "$program" >"$work/bin/awk"
    chmod +x "$work/bin/awk"
    PATH=$work/bin:$path
    before=$passed
    for law in where_lines_go however_it_is_written a_place_is_missing somebody_changed_it links_and_objects not_writable wrong_use; do $law; done
    echo "ok   with $awk_name: $((passed - before)) checks"
done
finish
