#!/usr/bin/env bash
# Laws of dynapipe_plugin/install.sh, on made-up trees and tables: lines go where functions say, however the file is written
# (functions moved, renamed files, CRLF, no last newline, blanks in paths); twice is once; --remove leaves every byte as it
# was, or says what somebody changed and touches nothing; a tree of no family is refused with what was looked for.
# AWK=path: one awk; without, every awk of this machine.
set -u
cd "$(dirname "$0")/.."
passed=0 failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export LC_ALL=C

ok() {  # 0|1 (0: fine), what
    if [ "$1" -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAIL $awk_name: $2"; [ ! -e "$work/said" ] || sed 's/^/    /' "$work/said"; fi
}
is() { [ "$2" = "$3" ]; ok $? "$1: expected '$3', got '$2'"; }  # what, got, expected

. test/install_tree.sh

# --- what is asked of it ------------------------------------------------------------------------------------------
expected_main() {
    cat <<'END'
#include "dynapipe_plugin/adapters/little_main.h"
int main(int argc, char** argv)
{
    LITTLE_OPEN(&argc, &argv);
    if (!little_ok) { return 1; }
    Net net;
    for (int i = 0; DYNAPIPE_STEPS(i < 3); i++) {
        LITTLE_CALL(net_forward, &net); LITTLE_CALL(net_forward, &net); /* net_forward(&net) */
        if (DYNAPIPE_WHOLE_AND net.x) return 0;
        net_update(&net,
                   i, ")"[0]);
        LITTLE_SHARE();
#if 1
    }
    LITTLE_CALL(net_forward, &net);
    LITTLE_CLOSE();
	return 0;
}
END
}

where_lines_go() {
    tree_of "plain tree"
    keep
    run --check "$tree"
    is "--check of a bare tree" $? 1
    grep -q "10 of 10 edits are missing" "$work/said"
    ok $? "--check counts what is missing"
    as_it_was "--check"
    run "$tree"
    is "printing" $? 0
    cmp -s "$tree/little.c" "$tree.was/little.c"
    ok $? "printing adds no line"
    grep -q "^lines added or changed: little.c 12, Makefile 1$" "$work/said"
    ok $? "and says how many lines"
    [ "$(ls "$tree/dynapipe_plugin" | tr "\n" " ")" = "a.c b.c " ]
    ok $? "the files of dist/ are copied"
    sed -n '/^--- a/,/^[^-+ @]/p' "$work/said" | patch -s -p1 -d "$tree"
    ok $? "what it prints is a patch"
    cp -r "$tree" "$work/patched"
    cp "$work/patched/little.c" "$work/patched/little.c.whole"
    sed -i '/little_main.h/,$!d' "$work/patched/little.c"
    is "lines of main" "$(cat "$work/patched/little.c")" "$(expected_main)"
    is "the include stands above what is said of the function" "$(grep -n -A1 'little.h"' "$tree/little.c" | tail -1)" "17-// what a net does"
    run --check "$tree"
    is "--check knows lines that were put there by hand" $? 0
    run --remove "$tree"
    is "--remove of the printed patch" $? 0
    as_it_was "--remove of the printed patch"
    cp "$work/patched/Makefile" "$tree/"
    cp "$work/patched/little.c.whole" "$tree/little.c"
    run --remove "$tree"
    is "--remove of lines whose records are gone" $? 0
    grep -q "left     little.c: main(int argc, char\*\* argv)" "$work/said"
    ok $? "--remove without records: what the tree may have had is said, and stays"
    sed -i 's/^int main(.*/int main()/' "$tree/little.c"
    is "--remove of lines made by hand, but for blanks" "$(tr -d ' ' <"$tree/little.c")" "$(tr -d ' ' <"$tree.was/little.c")"
    cp "$tree.was/little.c" "$tree/"
    as_it_was "--remove of lines made by hand"
    rm -rf "$work/patched"

    run --apply "$tree"
    is "--apply" $? 0
    grep -q "then: make little DYNAPIPE=1" "$work/said"
    ok $? "--apply says what to build"
    is "lines of main" "$(sed '/little_main.h/,$!d' "$tree/little.c")" "$(expected_main)"
    cp -r "$tree" "$tree.once"
    run --apply "$tree"
    is "--apply again" $? 0
    diff -r "$tree" "$tree.once" >"$work/said"
    ok $? "twice is once"
    rm -rf "$tree.once"
    run --check "$tree"
    is "--check after --apply" $? 0
    run --remove "$tree"
    is "--remove" $? 0
    as_it_was "--remove"
}

however_it_is_written() {
    tree_of crlf
    sed -i 's/$/\r/' "$tree/little.c"
    keep
    run --apply "$tree"
    is "CRLF: --apply" $? 0
    is "CRLF: every line ends so" "$(grep -vc $'\r$' "$tree/little.c")" 0
    run --check "$tree"
    is "CRLF: --check" $? 0
    run --remove "$tree"
    as_it_was "CRLF"

    tree_of "no newline"
    printf 'little: little.c\n\tcc $^' >"$tree/Makefile"
    printf '%s' "$(cat "$tree/little.c")" >"$tree/little.c"
    keep
    run --apply "$tree"
    is "no last newline: Makefile" "$(tail -1 "$tree/Makefile")" "-include dynapipe_plugin/dynapipe.mk"
    run --remove "$tree"
    as_it_was "no last newline"

    tree_of void
    little "$tree/little.c" " void "
    keep
    run --apply "$tree"
    is "main( void ): its second way" "$(grep -c 'int main(int argc, char\*\* argv)' "$tree/little.c")" 1
    run --remove "$tree"
    as_it_was "main( void )"

    tree_of options
    little "$tree/little.c" "int argc, char *argv[]"
    run --apply "$tree"
    is "main that has options: --apply" $? 0
    is "main that has options stays" "$(grep -c 'int main(int argc, char \*argv\[\])' "$tree/little.c")" 1

    tree_of renamed
    mv "$tree/little.c" "$tree/trainer.c"
    echo "int other(void) { return 1; }" >"$tree/other.c"
    keep
    run --apply "$tree"
    is "a renamed file: --apply" $? 0
    grep -q LITTLE_CLOSE "$tree/trainer.c"
    ok $? "a renamed file is found by its functions"
    run --remove "$tree"
    as_it_was "a renamed file"

    tree_of GNU
    mv "$tree/Makefile" "$tree/GNUmakefile"
    printf '# -include dynapipe_plugin/dynapipe.mk\n' >>"$tree/GNUmakefile"
    keep
    run --apply "$tree"
    is "the file that make reads, past a comment" "$(grep -c '^-include dynapipe' "$tree/GNUmakefile")" 1
    run --remove "$tree"
    as_it_was "GNUmakefile"

    tree_of both
    cat >"$tree/big.cu" <<'END'
template <typename T = int>
void __launch_bounds__(32) net_forward(T x) { x = 1; }
extern "C" {
void net_backward_and_reduce() {
    int many = 1'000'000; // '
}
}
int main() { return 0; }
END
    keep
    run --apply "$tree"
    is "two families: --apply" $? 0
    is "two families: the Makefile's line once" "$(grep -c dynapipe "$tree/Makefile")" 1
    is "below a definition" "$(sed -n 3p "$tree/big.cu")" "// dynapipe: below"
    run --remove "$tree"
    as_it_was "two families"
    run --apply --only big "$tree"
    cmp -s "$tree/little.c" "$tree.was/little.c"
    ok $? "--only leaves the other family's file alone"
}

a_place_is_missing() {
    tree_of "no update"
    sed -i '/^int main/,$s/net_update(/net_step(/' "$tree/little.c"
    run --apply "$tree"
    is "a missing anchor" $? 1
    grep -q "by hand  little.c: replicas exchange: no line with  net_update(  in main()" "$work/said" && grep -q '| .*LITTLE_SHARE' "$work/said"
    ok $? "a missing anchor: which, and the line to put there"
    grep -q LITTLE_CLOSE "$tree/little.c"
    ok $? "a missing anchor: the others are placed"
    run --check "$tree"
    is "a missing anchor: --check" $? 1

    tree_of "two updates"
    sed -i 's/^    Net net;/    Net net; net_update(\&net, 1, 2);/' "$tree/little.c"
    run --apply "$tree"
    is "an anchor of two lines" $? 1
    grep -q "2 lines with  net_update(" "$work/said"
    ok $? "an anchor of two lines: said"

    tree_of "two mains"
    printf '#ifdef OTHER\nint main(void) {\n    return 0;\n}\n#endif\n' >>"$tree/little.c"
    run --apply "$tree"
    is "two mains" $? 1
    grep -q "main() is defined 2 times" "$work/said"
    ok $? "two mains: said"
}

somebody_changed_it() {
    tree_of changed
    run --apply "$tree"
    sed -i 's/    LITTLE_CLOSE();/    LITTLE_CLOSE(); cleanup();/; s/^int main/\/\/ mine\nint main/' "$tree/little.c"
    keep
    run --remove "$tree"
    is "a changed line: --remove" $? 1
    grep -q "LITTLE_CLOSE" "$work/said" && grep -q -- "--->" "$work/said"
    ok $? "a changed line: which, and what to do"
    as_it_was "a changed line, refused"
    sed -i 's/ cleanup();//' "$tree/little.c"
    run --remove "$tree"
    is "put back: --remove" $? 0
    little "$work/expected" ""
    sed -i 's/^int main/\/\/ mine\nint main/' "$work/expected"
    diff "$work/expected" "$tree/little.c" >"$work/said"
    ok $? "other lines than ours may change, and stay"

    tree_of "changed folder"
    run --apply "$tree"
    echo "int mine;" >>"$tree/dynapipe_plugin/a.c"
    echo "new" >"$tree/dynapipe_plugin/new file.c"
    keep
    run --remove "$tree"
    is "a changed copy: --remove" $? 1
    grep -q "dynapipe_plugin/a.c dynapipe_plugin/new file.c" "$work/said"
    ok $? "a changed copy: which files"
    as_it_was "a changed copy, refused"
    run "$tree"
    is "a changed copy: copying again" $? 1
    as_it_was "a changed copy, not replaced"
    run --remove --force "$tree"
    is "--force" $? 0
    is "--force: what was changed stays" "$(cd "$tree" && find . -type f | sort | tr '\n' ' ')" \
        "./Makefile ./README ./dynapipe_plugin/a.c ./dynapipe_plugin/new file.c ./little.c "

    tree_of "a folder of theirs"
    mkdir "$tree/dynapipe_plugin"
    echo "theirs" >"$tree/dynapipe_plugin/theirs.c"
    keep
    run --apply "$tree"
    is "a folder of theirs" $? 1
    as_it_was "a folder of theirs"
}

nothing_is_left() {  # after --remove, or it says what
    tree_of "edited near"
    run --apply "$tree"
    sed -i 's/if (DYNAPIPE_WHOLE_AND net.x)/if (DYNAPIPE_WHOLE_AND net.x > 5)/' "$tree/little.c"
    run --remove --force "$tree"
    is "--force where the line around ours changed" $? 0
    little "$work/expected" ""
    sed -i 's/if (net.x)/if (net.x > 5)/' "$work/expected"
    diff "$work/expected" "$tree/little.c" >"$work/said"
    ok $? "--force: ours goes, theirs stays"

    tree_of "moved into their own"
    run --apply "$tree"
    sed -i 's/DYNAPIPE_STEPS(i < 3)/DYNAPIPE_STEPS(i < 7)/' "$tree/little.c"
    keep
    run --remove "$tree"
    is "ours within what they wrote: --remove" $? 1
    as_it_was "ours within what they wrote, refused"
    rm -rf "$tree/.dynapipe/lines" "$tree.was/.dynapipe/lines"
    run --remove "$tree"
    is "the same, without records: --remove" $? 1
    grep -q "little.c: .*DYNAPIPE_STEPS(i < 7)" "$work/said" && grep -q -- "--->" "$work/said"
    ok $? "what would be left is named"
    as_it_was "ours within what they wrote, without records, refused"
    run --remove --force "$tree"
    is "the same: --remove --force" $? 1
    grep -q "still there.*" "$work/said" && grep -q "DYNAPIPE_STEPS(i < 7)" "$work/said" && ! grep -q LITTLE_ "$tree/little.c"
    ok $? "--force: all else goes, and what is left is named"

    tree_of "records gone"
    keep
    run --apply "$tree"
    rm -rf "$tree/.dynapipe"
    run --remove "$tree"
    is "--remove without .dynapipe" $? 0
    [ ! -e "$tree/dynapipe_plugin" ]
    ok $? "folders as ours are go without a record"
    ! grep -qE 'DYNAPIPE|LITTLE' "$tree/little.c"
    ok $? "--remove without .dynapipe: no word of ours is left"
}

links_and_copies() {
    tree_of "links here"
    keep
    run --link --apply "$tree"
    is "--link" $? 0
    [ -L "$tree/dynapipe_plugin" ] && [ "$tree/dynapipe_plugin/a.c" -ef "$plugin/dist/a.c" ]
    ok $? "--link makes links"
    run --check "$tree"
    is "--link: --check" $? 0
    run --apply "$tree"
    [ ! -L "$tree/dynapipe_plugin" ] && [ -e "$tree/dynapipe_plugin/b.c" ]
    ok $? "a link becomes a copy"
    run --link "$tree"
    [ -L "$tree/dynapipe_plugin" ]
    ok $? "and a link again"
    run --remove "$tree"
    as_it_was "--link"
    [ -e "$plugin/dist/a.c" ]
    ok $? "--remove of links leaves what they point at"

    run --apply "$tree"
    mkdir -p "$tree/build/dynapipe"
    touch "$tree/build/dynapipe/cpu.flags" "$tree/build/dynapipe/dynapipe.o" "$tree/build/dynapipe/libdynapipe.a"
    run --remove "$tree"
    as_it_was "objects go, too"
    run --remove "$tree"
    is "--remove where nothing is" $? 0
    as_it_was "--remove where nothing is"
    echo "int c;" >"$plugin/dist/c.c"
    run "$tree"
    rm "$plugin/dist/c.c"
    run "$tree"
    [ ! -e "$tree/dynapipe_plugin/c.c" ]
    ok $? "a later copy replaces the earlier"
    run --remove "$tree"
    as_it_was "a later copy"
}

only_what_is_ours() {  # is removed, and only what was done is said
    tree_of "never installed"
    mkdir -p "$tree/build/dynapipe"
    touch "$tree/build/dynapipe/mine" "$tree/build/dynapipe/libdynapipe.a"
    keep
    run --remove "$tree"
    is "--remove where it never was" $? 0
    ! grep -q "^removed" "$work/said" && grep -q "nothing of the plugin" "$work/said"
    ok $? "--remove where it never was: says so"
    as_it_was "--remove where it never was"
    mkdir "$tree/dynapipe_plugin"
    echo "theirs" >"$tree/dynapipe_plugin/theirs.c"
    rm -rf "$tree.was"
    keep
    run --remove "$tree"
    grep -q "^dynapipe_plugin/ was not put there" "$work/said" && ! grep -q "^removed" "$work/said"
    ok $? "--remove: a folder of theirs is left, and said to be"
    as_it_was "--remove: a folder of theirs"
    rm -rf "$tree/dynapipe_plugin"
    run --apply "$tree"
    touch "$tree/build/dynapipe/cpu.flags" "$tree/build/dynapipe/dynapipe.o" "$tree/build/dynapipe/theirs.o"
    run --remove "$tree"
    is "the user's own file among objects" "$(cd "$tree/build" && find . -type f | sort | tr '\n' ' ')" "./dynapipe/mine ./dynapipe/theirs.o "
    grep -q "^removed: dynapipe_plugin/$" "$work/said"
    ok $? "the user's own file among objects: build/dynapipe/ is not said to be removed"
}

not_writable() {  # all or nothing, and nothing is said to be done
    local what
    as_user=""
    if [ "$(id -u)" -eq 0 ]; then
        command -v setpriv >/dev/null || { echo "skip trees that are read-only ---> run as another user than root, or install setpriv"; return; }
        mkdir -p "$work/for user"
        chown 65534:65534 "$work/for user"
        chmod 755 "$work"
        as_user="setpriv --reuid=65534 --regid=65534 --clear-groups"
        $as_user test -r "$installer" || { echo "skip trees that are read-only ---> a TMPDIR that everybody may enter"; return; }
    fi
    for what in little.c Makefile . dynapipe_plugin .dynapipe; do
        tree_of "read-only"
        case $what in dynapipe_plugin | .dynapipe) run "$tree" ;; esac
        keep
        [ -z "$as_user" ] || chown -R 65534:65534 "$tree"
        chmod a-w "$tree/$what"
        ! $as_user test -w "$tree/$what" || { echo "skip trees that are read-only ---> a file system with permissions"; return; }
        TMPDIR="${as_user:+$work/for user}" $as_user bash "$installer" --apply "$tree" >"$work/said" 2>&1
        is "$what is read-only: --apply" $? 1
        grep -q "cannot be written: .*$what.*--->" "$work/said" || [ "$what" = . ] && grep -q "cannot be written" "$work/said"
        ok $? "$what is read-only: said"
        ! grep -qE "^(added|copied)" "$work/said"
        ok $? "$what is read-only: nothing is said to be added"
        chmod u+w "$tree/$what"
        as_it_was "$what is read-only"
        run --apply "$tree"
        rm -rf "$tree.was"
        keep
        [ -z "$as_user" ] || chown -R 65534:65534 "$tree"
        chmod a-w "$tree/$what"
        TMPDIR="${as_user:+$work/for user}" $as_user bash "$installer" --remove "$tree" >"$work/said" 2>&1
        is "$what is read-only: --remove" $? 1
        chmod u+w "$tree/$what"
        as_it_was "$what is read-only: --remove"
    done
}

wrong_use() {
    tree_of unknown
    sed -i 's/net_update/net_learn/' "$tree/little.c"
    keep
    run --apply "$tree"
    is "an unknown tree" $? 2
    grep -q "a little trainer: little.c defines no net_update()" "$work/said" && grep -q "a big trainer: there is no big.cu" "$work/said" && grep -q "doc/porting.md" "$work/said"
    ok $? "an unknown tree: what was looked for"
    as_it_was "an unknown tree"
    tree_of another_call
    sed -i '/^int main/,$ s/net_forward *(&net)/net_fast(\&net)/g' "$tree/little.c"
    keep
    run --apply "$tree"
    is "a function that calls another" $? 2
    grep -q "main() of little.c does not call net_forward()" "$work/said"
    ok $? "a function that calls another: which"
    as_it_was "a function that calls another"
    run
    is "no tree" $? 2
    run "$work/nowhere"
    is "no folder" $? 2
    run --only nosuch "$tree"
    is "--only a table that is not there" $? 2
    grep -q -- "--only nosuch: there is no such table ---> one of: big little" "$work/said"
    ok $? "--only: which tables there are"
    run --only big "$tree"
    grep -q "is no tree of the family big" "$work/said"
    ok $? "--only a table of another family: which"
    run --apply --remove "$tree"
    is "--apply --remove" $? 2
    grep -q -- "--apply and --remove ---> one of them" "$work/said"
    ok $? "--apply --remove: said"
    run --check --apply "$tree"
    is "--check --apply" $? 2
    as_it_was "wrong use"
    tree_of hip
    printf 'ampd: little.c\n\thipcc $^ -o $@\n' >>"$tree/Makefile"
    run "$tree"
    is "a tree that has HIP targets" $? 0
    grep -q "HIP targets .* are not supported --->" "$work/said"
    ok $? "a tree that has HIP targets: said"
    run --check --file little.c "$tree"
    is "--check --file: lines are missing" $? 1
    grep -q "9 of 9 edits" "$work/said"
    ok $? "--check --file: of this file alone"
    run --apply "$tree"
    sed -i '/^-include/d' "$tree/Makefile"
    run --check --file little.c "$tree"
    is "--check --file: all is there" $? 0
    run --check --file nosuch.c "$tree"
    is "--check --file of none" $? 2
    run --frobnicate "$tree"
    is "no option" $? 2
    bash dynapipe_plugin/install.sh . >"$work/said" 2>&1
    is "DynaPipe itself" $? 2
    run --help
    is "--help" $? 0
}

tables_of_ours() {  # every table in adapters/ can be read, has a reason for each edit and no line over 130
    local table
    for table in dynapipe_plugin/adapters/*.edits; do
        [ -e "$table" ] || continue
        awk '/^edit/ { if (edits != reasons) print "no why before line " FNR; edits++ } /^why/ { reasons++ } /^tree/ { trees++ } /^has/ { has++ }
             length($0) > 130 { print "line " FNR ": " length($0) " characters" }
             END { if (edits != reasons) print edits " edits, " reasons " why"; if (trees != 1 || !has) print trees " tree, " has " has" }' "$table" >"$work/said"
        [ ! -s "$work/said" ]
        ok $? "$table: one tree, a why for each edit, no line over 130"
    done
}

# --- with each awk -------------------------------------------------------------------------------------------------
path=$PATH
for awk_name in ${AWK:-mawk gawk busybox original-awk}; do
    program=$(command -v "$awk_name") || { [ -n "${AWK:-}" ] && awk_name=awk ok 1 "no $AWK"; continue; }
    mkdir -p "$work/bin"
    [ "$(basename "$program")" = busybox ] && printf '#!/bin/sh\nexec %s awk "$@"\n' "$program" >"$work/bin/awk" || printf '#!/bin/sh\nexec %s "$@"\n' "$program" >"$work/bin/awk"
    chmod +x "$work/bin/awk"
    PATH=$work/bin:$path
    before=$passed
    where_lines_go
    however_it_is_written
    a_place_is_missing
    somebody_changed_it
    nothing_is_left
    only_what_is_ours
    not_writable
    links_and_copies
    wrong_use
    echo "ok   with $awk_name: $((passed - before)) checks"
done
awk_name=any
tables_of_ours
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
