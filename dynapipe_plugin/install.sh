#!/usr/bin/env bash
# install.sh -- DynaPipe in somebody else's llm.c: copies the plugin there and says which lines to add, or adds them.
#
#     dynapipe_plugin/install.sh /path/to/their/llm.c              copy, and print the lines as a diff with a reason for each
#     dynapipe_plugin/install.sh --apply /path/to/their/llm.c      copy, and add the lines
#     dynapipe_plugin/install.sh --check /path/to/their/llm.c      what is still missing? (exit status 1: something is)
#     dynapipe_plugin/install.sh --remove /path/to/their/llm.c     lines and folders out again: the tree as it was
#
# Exit status: 0, 1 (something is missing or was refused), 2 (no tree of a known family, wrong usage).
#
# What goes where is in tables, adapters/*.edits, one for each family of trees. A table is plain text; blank lines and lines that
# begin with # say nothing. A family:
#
#     tree    llm.c's CPU trainer                             its name in messages
#     has     train_gpt2.c gpt2_forward gpt2_update main      a file, and functions that it defines; more lines: more of
#                                                             them, or more files. Where there is no such file, the one
#                                                             other of its kind in the root that defines them all is
#                                                             meant, everywhere below
#     lacks   train_gpt2.c gpt2_backward_and_reduce           functions that it must not define
#     calls   train_gpt2.c gpt2_forward attention_forward     a function of it, and those that this must call, wherever they
#                                                             are defined; more lines: more functions
#     build   make train_gpt2 DYNAPIPE=1                      said at the end
#     start   mpirun -np 2 ./train_gpt2                       said at the end; more lines: one after the other
#
# and its edits, each beginning with a line "edit FILE":
#
#     edit    train_gpt2.c
#     in      gpt2_forward                                    within the definition of this function; without: anywhere
#     at      above                                           the line above the definition (and above // lines on it); or
#                                                             below (it), first or last (line of its body);
#                                                             without `in`: top, bottom of the file
#     +#include "dynapipe_plugin/adapters/llmc_cpu.h"         a line to add, as it is behind the +; as many as needed
#     why     the calls that a slice of the model treats differently
#
# In place of `at`, a line that has some piece of C:
#
#     before  PATTERN     lines are added before it           after   PATTERN     behind the end of that statement
#                         (with its indentation, where the first has none of its own; those that begin with # without)
#     replace PATTERN     and  with TEXT: the piece itself becomes TEXT
#
# A pattern is C with blanks where one likes: "main()" is found in "main ( )"; words match whole words; "..." stands for anything
# on that line; comments are not looked at. Several before (after, replace) lines: the first that the file has. One match is
# needed; of several, `pick first|last|each` says which. `optional`: nothing is wrong where the pattern or function is not
# there. `there PATTERN`: what serves as well as `with`. Edits at one place stand in the table's order; one that two tables
# have is made once. `edit Makefile` means whichever make would read.
set -u
export LC_ALL=C

source=$(cd "$(dirname "$0")/.." && pwd -P)
parts=$source/dynapipe_plugin/install
dist=$source/dist
folders=dynapipe_plugin

say() { printf '%s\n' "$*"; }
die() { printf 'install.sh: %s ---> %s\n' "$2" "$3" >&2; exit "$1"; }  # exit status, what is wrong, what to do
usage() {
    cat <<'END'
install.sh [--apply | --check | --remove] [--link] [--only TABLE] [--file FILE] [--force] /path/to/their/llm.c
  (nothing)      copy dynapipe_plugin/ (8 files) there; print which lines to add where, and why
  --apply        and add them
  --check        say what is there and what is missing; change nothing
  --remove       take lines and folders out again
  --link         link the folders instead of copying them
  --only TABLE   of adapters/TABLE.edits alone: llmc_cpu, llmc_cuda, ...; may be given again
  --file FILE    --check: of this file of the tree alone (what dynapipe.mk asks before it builds)
  --force        --remove: also where our lines or files were changed: what is left of ours goes, what was changed stays
END
}

# --- which family ----------------------------------------------------------------------------------------------
lines_of() { awk -v word="$2" '$1 == word { sub(/^[^ \t]+[ \t]+/, ""); sub(/\r$/, ""); print }' "$1"; }  # table, first word

wanted_files() {  # table: of each file that it needs, on one line, the name and all functions
    lines_of "$1" has | awk '{ file = $1; if (!(file in all)) order[++n] = file; $1 = ""; all[file] = all[file] $0 } END { for (i = 1; i <= n; i++) print order[i] all[order[i]] }'
}

functions_of() {  # file of the tree: the functions that it defines
    local kept=$work/functions/${1//\//%}
    [ -e "$kept" ] || awk -f "$parts/scan.awk" -f "$parts/functions.awk" <"$tree/$1" >"$kept"
    cat "$kept"
}

not_called() {  # file, function, functions...: the first that it does not call; nothing if it calls all
    local file=$1 fn=$2 name called
    shift 2
    called=$(fn=$fn names=$* awk -f "$parts/scan.awk" -f "$parts/calls.awk" <"$tree/$file")
    for name; do grep -qx -- "$name" <<<"$called" || { say "$name"; return; }; done
}

not_defined() {  # file, functions...: the first that it does not define; nothing if it has all
    local file=$1 name
    shift
    for name; do functions_of "$file" | grep -qx -- "$name" || { say "$name"; return; }; done
}

# Which file of the tree a table's file is: that one, or the only other of its kind that defines the functions.
find_file() {  # file, functions...
    local file=$1 other found='' count=0
    shift
    if [ -f "$tree/$file" ] && [ -z "$(not_defined "$file" "$@")" ]; then say "$file"; return; fi
    for other in "$tree"/*."${file##*.}"; do
        [ -f "$other" ] || continue
        other=${other##*/}
        [ -n "$(not_defined "$other" "$@")" ] || { found=$other count=$((count + 1)); }
    done
    [ $count -ne 1 ] || say "$found"
}

# Sets why_not and, in meant[], which file is which; 0: the tree is of this family.
is_family() {  # table
    local file names fn real missing
    why_not=''
    while read -r file names; do
        # shellcheck disable=SC2086
        real=$(find_file "$file" $names)
        if [ -z "$real" ]; then
            if [ -f "$tree/$file" ]; then missing=$(not_defined "$file" $names); why_not="$file defines no $missing()"
            else why_not="there is no $file, nor another file that defines $names"; fi
            return 1
        fi
        meant[$file]=$real
    done < <(wanted_files "$1")
    while read -r file names; do
        for missing in $names; do
            if functions_of "${meant[$file]:-$file}" | grep -qx -- "$missing"; then why_not="$file defines $missing()"; return 1; fi
        done
    done < <(lines_of "$1" lacks)
    while read -r file fn names; do
        # shellcheck disable=SC2086
        missing=$(not_called "${meant[$file]:-$file}" "$fn" $names)
        if [ -n "$missing" ]; then why_not="$fn() of ${meant[$file]:-$file} does not call $missing()"; return 1; fi
    done < <(lines_of "$1" calls)
}

recognise() {
    local table name
    declare -gA meant=()
    tables='' looked_for=''
    for table in "$source"/dynapipe_plugin/adapters/*.edits; do
        [ -e "$table" ] || continue
        name=${table##*/}
        [ -z "$only" ] || [[ " $only " == *" ${name%.edits} "* ]] || continue
        if is_family "$table"; then
            tables+=$table$'\n'
            say "recognised: $(lines_of "$table" tree)"
        else
            looked_for+="  $(lines_of "$table" tree): $why_not"$'\n'
        fi
    done
    [ -n "$tables" ] || { printf '%s' "$looked_for" >&2; die 2 "$tree is no tree of ${only:+the family}${only:-a family that has a table}" "doc/porting.md says how to bring any other trainer"; }
    [ -f "$tree/GNUmakefile" ] && meant[Makefile]=GNUmakefile || { [ -f "$tree/makefile" ] && meant[Makefile]=makefile; }
    if grep -qs hipcc "$tree/${meant[Makefile]:-Makefile}"; then
        say "note: HIP targets (train_gpt2amd, ...) are not supported ---> the plugin runs in the CPU and CUDA targets alone"
    fi
}

check_only() {  # is there a table of every name?
    local name known=''
    for name in "$source"/dynapipe_plugin/adapters/*.edits; do name=${name##*/}; known+=" ${name%.edits}"; done
    for name in $only; do [[ "$known " == *" $name "* ]] || die 2 "--only $name: there is no such table" "one of:$known"; done
}

# --- the lines -------------------------------------------------------------------------------------------------
edited_files() {  # table files' names, as edits name them, each once
    local table name
    while read -r table; do [ -z "$table" ] || lines_of "$table" edit; done <<<"$tables" | awk '{ sub(/[ \t]+$/, "") } !seen[$0]++' |
        while read -r name; do [ -n "$one_file" ] && [ "${meant[$name]:-$name}" != "$one_file" ] || say "$name"; done
}

is_plain() { case $1 in *.c | *.h | *.cu | *.cuh | *.cpp | *.cc | *.hpp) ;; *) echo 1 ;; esac; }  # file that is no C: 1
bare_end() { [ -z "$(tail -c1 "$1")" ] || echo 1; }  # file whose last line has no newline: 1

# What becomes of one file: $work/new/NAME, $work/report/NAME, $work/record/NAME.
work_out() {  # folder that it is read from, table's name of the file, add|remove
    local file=${meant[$2]:-$2} key=${2//\//%} crlf='' record=''
    if [ ! -f "$1/$file" ]; then
        [ "$3" = remove ] || say "missing|0|$file is not there|no such file" >"$work/report/$key"
        return
    fi
    head -1 "$1/$file" | grep -q $'\r$' && crlf=1
    [ "$3" = remove ] || record=$work/record/$key
    tables=$tables table_file=$2 plain=$(is_plain "$file") mode=$3 crlf=$crlf no_newline=$(bare_end "$1/$file") report=$work/report/$key record=$record \
        awk -f "$parts/scan.awk" -f "$parts/edits.awk" <"$1/$file" >"$work/new/$key" || exit 2
}

# The reports as text. Sets num_add, num_there, num_open (not placed).
print_reports() {  # words for add, say there too (1)
    local name file key state line why detail
    num_add=0 num_there=0 num_open=0
    while read -r name; do
        file=${meant[$name]:-$name} key=${name//\//%}
        [ -e "$work/report/$key" ] || continue
        while IFS='|' read -r state line why detail; do
            case $state in
                add) num_add=$((num_add + 1)); say "$1 $file:$line: $why" ;;
                there) num_there=$((num_there + 1)); [ -z "$2" ] || say "there    $file:$line: $why" ;;
                missing | unclear) num_open=$((num_open + 1)); say "by hand  $file: $why: $detail" ;;
                line) say "         | $line${why:+|$why}${detail:+|$detail}" ;;
            esac
        done <"$work/report/$key"
    done < <(edited_files)
}

print_diffs() {
    local name file
    while read -r name; do
        file=${meant[$name]:-$name}
        [ -e "$work/new/${name//\//%}" ] && diff -u -L "a/$file" -L "b/$file" "$tree/$file" "$work/new/${name//\//%}"
    done < <(edited_files)
}

count_lines() {  # "train_gpt2.c 6, Makefile 1": lines that are new or changed there
    local name file count counts=''
    while read -r name; do
        file=${meant[$name]:-$name}
        [ -e "$work/new/${name//\//%}" ] || continue
        count=$(diff "$tree/$file" "$work/new/${name//\//%}" | grep -c '^>')
        [ "$count" -eq 0 ] || counts+="${counts:+, }$file $count"
    done < <(edited_files)
    [ -z "$counts" ] || say "lines added or changed: $counts"
}

put_in_place() {  # what work_out has made, its record beside; not yet
    local name file key
    while read -r name; do
        file=${meant[$name]:-$name} key=${name//\//%}
        [ -e "$work/new/$key" ] && ! cmp -s "$work/new/$key" "$tree/$file" || continue
        to_write "$work/new/$key" "$file"
        [ -e "$work/record/$key" ] || continue
        cat "$state/lines/${file//\//%}" "$work/record/$key" >"$work/records/$key" 2>/dev/null
        to_write "$work/records/$key" ".dynapipe/lines/${file//\//%}"
    done < <(edited_files)
}

# --- writing: all or none --------------------------------------------------------------------------------------
new_texts=() new_files=()
to_write() { cmp -s "$1" "$tree/$2" || { new_texts+=("$1"); new_files+=("$2"); }; }  # new text, file of the tree

# Before anything is written: may all of it be?
check_writable() {
    local file folder closed=''
    for file in "${new_files[@]}"; do [ ! -e "$tree/$file" ] || [ -w "$tree/$file" ] || closed+=" $file"; done
    [ -w "$tree" ] || closed+=" $tree"
    for folder in $folders .dynapipe; do
        [ ! -d "$tree/$folder" ] || [ -L "$tree/$folder" ] || closed+=$(cd "$tree" && find "$folder" -type d | while read -r file; do [ -w "$file" ] || printf ' %s' "$file"; done)
    done
    [ -z "$closed" ] || die 1 "cannot be written:$closed" "nothing was changed: their permissions"
}

write_all() {
    local i
    for i in "${!new_files[@]}"; do
        [ ! -e "$tree/${new_files[i]}" ] || cp -p "$tree/${new_files[i]}" "$work/backup/$i" || { put_back "$i"; }
        mkdir -p "$(dirname "$tree/${new_files[i]}")" && cat "${new_texts[i]}" >"$tree/${new_files[i]}" || put_back "$((i + 1))"
    done
}

put_back() {  # how many
    local i
    for ((i = 0; i < $1; i++)); do
        if [ -e "$work/backup/$i" ]; then cat "$work/backup/$i" >"$tree/${new_files[i]}"; else rm -f "$tree/${new_files[i]}"; fi
    done
    die 1 "${new_files[$1 - ($1 > 0)]} could not be written" "room on the disk; the tree's own files are as they were"
}

# --- the folders -----------------------------------------------------------------------------------------------
# Files of ours that the user changed or added: those are not ours to replace or delete.
changed_files() {
    local folder
    [ -e "$state/files" ] || return 0
    (cd "$tree" && while read -r sum size file; do
        [ ! -e "$file" ] || [ "$(cksum <"$file")" = "$sum $size" ] || say "$file"
    done <"$state/files")
    for folder in $folders; do
        [ ! -d "$tree/$folder" ] || [ -L "$tree/$folder" ] || (cd "$tree" && find "$folder" -type f) | while read -r file; do
            awk -v file="$file" '{ sub(/^[^ ]+ [^ ]+ /, "") } $0 == file { found = 1 } END { exit !found }' "$state/files" || say "$file"
        done
    done
}

check_folders() {  # is there room for ours?
    local folder changed
    for folder in $folders; do
        [ ! -e "$tree/$folder" ] || [ -L "$tree/$folder" ] || [ -e "$state/files" ] || diff -r "$dist" "$tree/$folder" >/dev/null 2>&1 ||
            die 1 "$tree/$folder is there and is not ours" "move it out of the way: the plugin has a folder of this name"
    done
    changed=$(changed_files)
    [ -z "$changed" ] || die 1 "changed or added in the folders: $(tr '\n' ' ' <<<"$changed")" "keep that elsewhere, then again: a new copy would replace it"
}

place_folders() {
    local folder
    mkdir -p "$state" || exit 1
    for folder in $folders; do rm -rf "${tree:?}/$folder" && place_folder "$folder" || exit 1; done
    if [ -n "$link" ]; then rm -f "$state/files"; else
        (cd "$tree" && find $folders -type f | sort | while read -r file; do say "$(cksum <"$file") $file"; done) >"$state/files"
    fi
    say "$([ -n "$link" ] && echo linked || echo copied): dynapipe_plugin/"
}

place_folder() {  # folder
    if [ -n "$link" ]; then ln -s "$dist" "$tree/$1"; else mkdir "$tree/$1" && cp -p "$dist"/* "$tree/$1/"; fi
}

# --- what is asked for -----------------------------------------------------------------------------------------
work_out_all() {
    local name
    while read -r name; do work_out "$tree" "$name" add; done < <(edited_files)
}

check() {
    local folder missing=0
    if [ -n "$one_file" ]; then
        [ -n "$(edited_files)" ] || die 2 "no table has edits of $one_file" "a file that --check names"
    else
        for folder in $folders; do [ -e "$tree/$folder" ] && say "there    $folder/" || { say "missing  $folder/"; missing=1; }; done
    fi
    work_out_all
    print_reports "missing " 1
    [ $((num_add + num_open + missing)) -eq 0 ] || { say "$((num_add + num_open)) of $((num_add + num_open + num_there)) edits are missing ---> install.sh $tree says how"; exit 1; }
    say "all is there"
}

install() {
    local table
    work_out_all
    [ -z "$apply" ] || put_in_place
    check_folders
    check_writable
    place_folders
    if [ -n "$apply" ]; then
        count_lines >"$work/counts"
        write_all
        rm -rf "$state/shown"
        print_reports "added   " 1
        cat "$work/counts"
    else
        keep_shown
        print_reports "to add  " 1
        count_lines
        print_diffs
        [ "$num_add" -eq 0 ] || say "to have these lines added: install.sh --apply $tree"
    fi
    [ "$num_open" -eq 0 ] || { say "$num_open places were not found ---> put the lines marked | there by hand; --check knows them afterwards"; exit 1; }
    while read -r table; do [ -z "$table" ] || { lines_of "$table" build; lines_of "$table" start; } | sed 's/^/then: /'; done <<<"$tables"
    say 'mine.jsonl has a line {"task": "name", "inputs": "text", "targets": "text"} for each sample; ./prepare_data --help: other tokenizers'
}

# Who applies the printed diff has the same lines as by --apply: so --remove knows what was there before.
keep_shown() {
    local name file
    while read -r name; do
        file=${meant[$name]:-$name}
        [ -e "$work/record/${name//\//%}" ] || continue
        mkdir -p "$state/shown" && cp "$work/record/${name//\//%}" "$state/shown/${file//\//%}" || exit 1
    done < <(edited_files)
}

. "$parts/remove.sh"

main() {
    local command='' wanted
    apply='' link='' only='' one_file='' force='' tree=''
    while [ $# -gt 0 ]; do
        case $1 in
            --apply | --check | --remove)
                wanted=${1#--}
                [ -z "$command" ] || [ "$command" = "$wanted" ] || die 2 "--$command and --$wanted" "one of them at a time"
                command=$wanted ;;
            --link) link=1 ;;
            --force) force=1 ;;
            --file) one_file=${2:-}; [ $# -lt 2 ] || shift ;;
            --only) only+=" ${2:-}"; [ $# -lt 2 ] || shift ;;
            -h | --help) usage; exit 0 ;;
            -*) usage >&2; die 2 "$1 is no option" "one of the above" ;;
            *) [ -z "$tree" ] || die 2 "two trees: $tree and $1" "one at a time (a path with blanks in quotes)"; tree=$1 ;;
        esac
        shift
    done
    [ "$command" != apply ] || apply=1
    [ -n "$command" ] && [ "$command" != apply ] || command=install
    [ -z "$one_file" ] || [ "$command" = check ] || die 2 "--file without --check" "--check --file $one_file"
    [ ! -e "$source/dev/dist.py" ] || (cd "$source" && python3 dev/dist.py) || die 2 "the files cannot be made" "python3, or a release that has dist/"
    check_only
    [ -n "$tree" ] || { usage >&2; die 2 "which tree?" "the path of an llm.c"; }
    [ -d "$tree" ] || die 2 "$tree is no folder" "the root of an llm.c"
    tree=$(cd "$tree" && pwd -P)
    state=$tree/.dynapipe
    [ ! "$tree" -ef "$source" ] || [ -e "$state" ] || [ ! -d "$source/trainer" ] || die 2 "$tree is DynaPipe itself" "the path of an llm.c"
    work=$(mktemp -d) || exit 2
    trap 'rm -rf "$work"' EXIT
    mkdir "$work"/{functions,new,report,record,records,stage,backup}
    if [ "$command" = remove ]; then (recognise) >/dev/null 2>&1 && recognise >/dev/null || tables=''; else recognise; fi
    $command
    exit
}
main "$@"
