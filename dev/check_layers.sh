#!/usr/bin/env bash
# Every #include "x.h" must point down (or sideways) in dev/layers.txt, bottom layer first. Besides: llmc/ has what a
# microbatch is from dynapipe.h and calls nothing of the plugin; run/ sees plans but not how they are found, and the planner from its sessions alone.
. "$(dirname "$0")/help.sh"
set -u
cd "$(dirname "$0")/.."
bad=0
declare -A rank
num_layers=0
while read -r layer; do [[ $layer == \#* ]] || rank[$layer]=$((num_layers++)); done <dev/layers.txt
folder_of() {
    [[ $1 == */* ]] && folder=${1%/*} || folder=.
}
# plan/ and its folders are one layer
room_of() {
    folder_of "$1"
    [[ $folder != dynapipe_plugin/plan/* ]] || folder=dynapipe_plugin/plan
}
while IFS=: read -r file line text; do
    header=${text#*\"} header=${header%%\"*}
    folder_of "$file"
    up=$folder target=$header
    while [[ $target == ../* ]]; do
        folder_of "$up"
        target=${target#../} up=$folder
    done
    [ "$up" = . ] || target=$up/$target
    [ -e "$target" ] || { echo "$file:$line: $header not found beside it"; bad=1; continue; }
    room_of "$target"
    to=$folder
    room_of "$file"
    from=$folder a=${rank[$from]:-} b=${rank[$to]:-}
    if [ -z "$a" ] || [ -z "$b" ]; then echo "$file:$line: $from or $to is not in dev/layers.txt"; bad=1
    elif [ "$from" != "$to" ] && [ "$b" -gt "$a" ]; then echo "$file:$line: $from must not include $header (it lies above)"; bad=1; fi
    case "$from:$target" in
        llmc:dynapipe_plugin/dynapipe.h) ;;
        llmc*:dynapipe_plugin*|llmc*:dataloader*) echo "$file:$line: llmc/ knows nothing of the plugin: $header"; bad=1;;
    esac
    case "$from:$to" in
        dynapipe_plugin/run:dynapipe_plugin/plan)
            case "$file:$target" in
                *session*) ;;
                *planner.h|*search*|*draft*) echo "$file:$line: run/ sees plans, not the planner: $header"; bad=1;;
            esac;;
    esac
done < <(grep -nE '^#include "' $(git ls-files '*.c' '*.h' '*.cu') /dev/null)
calls=$(grep -nE '\<dynapipe_[a-z_]+\(' $(git ls-files llmc)) && { echo "$calls"; echo "llmc/ calls nothing of the plugin"; bad=1; }
exit $bad
