#!/usr/bin/env bash
# make docs: renew the generated parts of the README, then run its commands as a new user would.
#
#   <!-- help:PROGRAM --> ... <!-- /help:PROGRAM -->   what ./PROGRAM --help prints; dynapipe_COMMAND: ./dynapipe COMMAND --help
#   <!-- results:NAME --> ... <!-- /results:NAME -->   dev/results/NAME.md, titles two levels deeper; nothing where there is none
#   ```sh blocks: all run in one shell, in order, in a scratch copy of this tree
#
# --check: only compare the generated parts, change nothing. --renew: only renew them. DOCS_SKIP='make test': leave out lines that are exactly this.
set -u
cd "$(dirname "$0")/.."
. dev/mpi_env.sh
renewed=$(mktemp) scratch=$(mktemp -d)
trap 'rm -rf "$renewed" "$scratch"' EXIT
export DYNAPIPE_CACHE=$scratch/build/costs

program() {
    case $1 in
        train_gpt2) make -s build/release/train_gpt2-dynapipe >&2 && build/release/train_gpt2-dynapipe --help ;;
        train_t5) make -s build/release/train_t5-dynapipe >&2 && build/release/train_t5-dynapipe --help | sed -n '1,/^$/p' &&
            echo "Flags and options are train_gpt2's." ;;
        dynapipe_*) make -s build/release/dynapipe >&2 && build/release/dynapipe "${1#dynapipe_}" --help ;;
        *) make -s "build/release/$1" >&2 && "build/release/$1" --help ;;
    esac
}

generated() {  # kind, name
    case $1 in
        help) printf '```text\n'; program "$2" || return 1; printf '```\n' ;;
        results) if [ -e "dev/results/$2.md" ]; then sed -E 's/^(#+ )/##\1/' "dev/results/$2.md"; fi ;;
    esac
}

renew() {
    local line kind name skipping=
    while IFS= read -r line; do
        if [[ $line =~ ^'<!-- '(help|results):([a-z0-9_]+)' -->'$ ]]; then
            kind=${BASH_REMATCH[1]} name=${BASH_REMATCH[2]}
            printf '%s\n' "$line"
            generated "$kind" "$name" || return 1
            skipping=1
        elif [[ $line =~ ^'<!-- /' ]]; then
            printf '%s\n' "$line"
            skipping=
        elif [ -z "$skipping" ]; then
            printf '%s\n' "$line"
        fi
    done <README.md
}

if ! renew >"$renewed"; then
    echo "README.md: a program for a help: part does not build"
    exit 1
fi
if ! cmp -s "$renewed" README.md; then
    if [ "${1:-}" = --check ]; then
        diff README.md "$renewed" | head -20
        echo "README.md: generated parts are old ---> dev/check_docs.sh --renew"
        exit 1
    fi
    cat "$renewed" >README.md
    echo "README.md: generated parts renewed"
fi
case ${1:-} in --check | --renew) exit 0 ;; esac

git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$scratch"
awk -v skip="${DOCS_SKIP:-}" '
    /^```sh$/ { inside = 1; printf "\necho \"--- README.md:%d\"\n", FNR + 1; next }
    /^```/    { inside = 0 }
    inside && $0 != skip' README.md >"$scratch/README.sh"
cd "$scratch" && git init -q && git add -A
begin=$SECONDS
if ! bash -eu README.sh >README.log 2>&1; then
    tail -30 README.log
    echo "README.md: a command of the block '$(grep '^--- README' README.log | tail -1)' failed"
    exit 1
fi
echo "README.md: $(grep -c '^--- README' README.log) blocks ran, $((SECONDS - begin)) s"
