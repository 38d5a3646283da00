# remove.sh -- install.sh --remove: lines, folders and objects out again. Sourced by install.sh, whose names it uses.
# shellcheck shell=bash
#
# All is worked out in $work/stage, looked over for what is left of ours, and only then put into the tree.
remove() {
    local lost='' changed left found='' file
    undo_records
    undo_by_hand
    changed=$(changed_files)
    [ -n "$lost" ] && [ -z "$force" ] && left='' || left=$(what_is_left)
    if [ -n "$lost$changed$left" ] && [ -z "$force" ]; then
        printf '%s' "$lost" >&2
        [ -z "$left" ] || printf 'of the plugin, and not as install.sh knows it:\n%s\n' "$left" >&2
        die 1 "not all is as it was put there${changed:+; changed or added in the folders: $(tr '\n' ' ' <<<"$changed")}" \
            "put it back or take it out by hand, and try again, or --remove --force: what is left of ours goes, what was changed stays"
    fi
    while read -r file; do [ -z "$file" ] || to_write "$work/stage/$file" "$file"; done < <(cd "$work/stage" && find . -type f | sed 's|^\./||')
    check_writable
    write_all
    for file in "${new_files[@]}"; do found+=" $file"; done
    [ -z "$found" ] || say "lines out of:$found"
    [ ! -s "$work/kept" ] || cat "$work/kept"
    remove_folders "$changed"
    [ -z "$left" ] || die 1 $'still there, and nothing compiles with it:\n'"$left"$'\n' "take it out by hand"
}

stage() { [ -e "$work/stage/$1" ] || { mkdir -p "$(dirname "$work/stage/$1")" && cp "$tree/$1" "$work/stage/$1"; }; }  # file

# By the records of --apply; where there is none, by that of the diff that was shown, if it was applied as it was. Sets lost.
undo_records() {
    local record kind file
    for record in "$state"/lines/* "$state"/shown/*; do
        [ -e "$record" ] || continue
        file=${record##*/} file=${file//%//} kind=$(basename "$(dirname "$record")")
        [ -f "$tree/$file" ] || continue
        stage "$file" || exit 1
        if ! record=$record force=$([ "$kind" = shown ] || say "$force") no_newline=$(bare_end "$work/stage/$file") \
            awk -f "$parts/undo.awk" <"$work/stage/$file" >"$work/undone" 2>"$work/lost"; then
            [ "$kind" = lines ] || continue
            lost+="$file: changed since they were added:"$'\n'"$(cat "$work/lost")"$'\n'
            [ -n "$force" ] || continue
        fi
        cp "$work/undone" "$work/stage/$file"
    done
}

undo_by_hand() {
    local name file key
    [ -n "$tables" ] && [ -z "$lost" -o -n "$force" ] || return 0
    while read -r name; do
        file=${meant[$name]:-$name} key=${name//\//%}
        [ -f "$tree/$file" ] && stage "$file" || continue
        work_out "$work/stage" "$name" remove
        cp "$work/new/$key" "$work/stage/$file"
        if grep -q '^removed' "$work/report/$key" 2>/dev/null; then
            awk -F'|' -v file="$file" '$1 == "kept" { print "left     " file ": " $4 " (the tree may have had it before)" }' "$work/report/$key" >>"$work/kept"
        fi
    done < <(edited_files)
}

# Lines that have a word of the plugin outside of comments, in what will be the sources and Makefiles of the root.
what_is_left() {
    local file from
    for file in "$tree"/*; do
        file=${file##*/}
        case $file in *.c | *.h | *.cu | *.cuh | *.cpp | *.cc | *.hpp | *.mk | [Mm]akefile | GNUmakefile) ;; *) continue ;; esac
        from=$tree/$file
        [ ! -e "$work/stage/$file" ] || from=$work/stage/$file
        ! grep -qE 'DYNAPIPE|dynapipe_' "$from" 2>/dev/null || file=$file plain=$(is_plain "$file") awk -f "$parts/scan.awk" -f "$parts/left.awk" <"$from"
    done
}

remove_folders() {  # files to keep
    local folder gone=''
    for folder in $folders; do
        [ -e "$tree/$folder" ] || [ -L "$tree/$folder" ] || continue
        if [ -L "$tree/$folder" ] && [ "$tree/$folder" -ef "$dist" -o -d "$state" ]; then rm "$tree/$folder"
        elif [ -e "$state/files" ] && [ -z "$1" ]; then rm -rf "${tree:?}/$folder"
        elif [ -e "$state/files" ]; then
            (cd "$tree" && sed -E 's/^[^ ]+ [^ ]+ //' "$state/files" | while read -r file; do grep -qxF -- "$file" <<<"$1" || rm -f "$file"; done
             find "$folder" -type d -empty -delete 2>/dev/null)
        elif is_same "$folder"; then rm -rf "${tree:?}/$folder"
        else say "$folder/ was not put there by install.sh: left"; continue; fi
        [ -e "$tree/$folder" ] && say "$folder/: what was changed is left" || gone+="${gone:+, }$folder/"
    done
    if [ -n "$gone" ] || [ -d "$state" ]; then remove_objects; fi
    forget
    if [ -n "$gone" ]; then say "removed: $gone"; elif [ -z "$found" ]; then say "nothing of the plugin's was there to be removed"; fi
}

is_same() { diff -r "$dist" "$tree/$1" >/dev/null 2>&1; }  # folder of the tree: has it files of ours alone, as they are here?

# What dynapipe.mk makes, and nothing else that is there. Adds to gone.
remove_objects() {
    local out=$tree/build/dynapipe
    if [ -e "$out/prepare_data" ] && cmp -s "$tree/prepare_data" "$out/prepare_data"; then rm "$tree/prepare_data"; fi
    (cd "$out" 2>/dev/null && rm -f dynapipe.o dynapipe_cuda.o prepare_data.o spiece.o ./*.flags libdynapipe.a libdynapipe_cuda.a prepare_data)
    [ -d "$out" ] || return 0
    find "$out" -type d -empty -delete 2>/dev/null
    [ -e "$out" ] || { gone+="${gone:+, }build/dynapipe/"; rmdir "$tree/build" 2>/dev/null; }
}

forget() { rm -rf "$state/lines" "$state/shown" "$state/files"; rmdir "$state" 2>/dev/null; }
