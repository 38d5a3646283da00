#!/usr/bin/env bash
# Renew the generated parts of the manual (README.md and doc/), then run their commands as a new user would. make docs calls it.
#
#   <!-- help:PROGRAM --> ... <!-- /help:PROGRAM -->   what ./PROGRAM --help prints; dynapipe_COMMAND: ./dynapipe COMMAND --help
#   ```sh blocks: those of a page run in one shell, in order, in a scratch copy of this tree that all pages share, README.md first.
#   They must leave every tracked file as it is.
#
# --check: only compare the generated parts and the links between files, change nothing. --renew: only renew them.
# DOCS_SKIP='make test': leave out lines that are exactly this.
. "$(dirname "$0")/help.sh"
set -u
cd "$(dirname "$0")/.."
. dev/mpi_env.sh
renewed=$(mktemp) scratch=$(mktemp -d)
trap 'rm -rf "$renewed" "$scratch"' EXIT
export DYNAPIPE_CACHE=$scratch/build/costs
pages=(README.md doc/*.md)

program() {
    case $1 in
        train_gpt2) make -s build/release/train_gpt2-dynapipe >&2 && build/release/train_gpt2-dynapipe --help ;;
        train_t5 | train_llama) make -s "build/release/$1-dynapipe" >&2 && "build/release/$1-dynapipe" --help | sed -n '1,/^$/p' &&
            echo "Flags and options are train_gpt2's." ;;
        dynapipe_*) make -s build/release/dynapipe >&2 && build/release/dynapipe "${1#dynapipe_}" --help ;;
        *) make -s "build/release/$1" >&2 && "build/release/$1" --help ;;
    esac
}

generated() { printf '```text\n'; program "$1" || return 1; printf '```\n'; }

renew() {  # page
    local line skipping=
    while IFS= read -r line; do
        if [[ $line =~ ^'<!-- 'help:([a-z0-9_]+)' -->'$ ]]; then
            printf '%s\n' "$line"
            generated "${BASH_REMATCH[1]}" || return 1
            skipping=1
        elif [[ $line =~ ^'<!-- /' ]]; then
            printf '%s\n' "$line"
            skipping=
        elif [ -z "$skipping" ]; then
            printf '%s\n' "$line"
        fi
    done <"$1"
}

# Links to files that are not there: "PAGE: LINK".
broken_links() {
    local page link file
    for page in "${pages[@]}" CONTRIBUTING.md dynapipe_plugin/README.md; do
        while IFS= read -r link; do
            file=${link%%#*}
            case $link in http*://* | '#'* | mailto:*) continue ;; esac
            [ -e "$(dirname "$page")/$file" ] || echo "$page: $link"
        done < <(sed '/^```/,/^```$/d' "$page" | grep -oE '\]\([^) ]+\)' | sed -E 's/^\]\((.*)\)$/\1/')
    done
}

failed=
for page in "${pages[@]}"; do
    if ! renew "$page" >"$renewed"; then
        echo "$page: a program for a help: part does not build"
        exit 1
    fi
    cmp -s "$renewed" "$page" && continue
    if [ "${1:-}" = --check ]; then
        diff "$page" "$renewed" | head -20
        echo "$page: generated parts are old ---> dev/check_docs.sh --renew"
        failed=1
    else
        cat "$renewed" >"$page"
        echo "$page: generated parts renewed"
    fi
done
broken=$(broken_links)
[ -z "$broken" ] || { printf '%s\n' "$broken" | sed 's/$/ ---> no such file/'; failed=1; }
[ -z "$failed" ] || exit 1
case ${1:-} in --check | --renew) exit 0 ;; esac

git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$scratch"
cd "$scratch" && git init -q && git add -A && git -c user.name=docs -c user.email=docs@localhost commit -qm docs
begin=$SECONDS blocks=0
mkdir -p build
for page in "${pages[@]}"; do
    awk -v skip="${DOCS_SKIP:-}" -v page="$page" '
        /^```sh$/ { inside = 1; printf "\necho \"--- %s:%d\"\n", page, FNR + 1; next }
        /^```/    { inside = 0 }
        inside && $0 != skip' "$page" >build/page.sh
    [ -s build/page.sh ] || continue
    if ! bash -eu build/page.sh >build/page.log 2>&1; then
        tail -30 build/page.log
        echo "$page: a command of the block '$(grep -e '^--- ' build/page.log | tail -1)' failed"
        exit 1
    fi
    blocks=$((blocks + $(grep -c -e '^--- ' build/page.log)))
done
changed=$(git status --porcelain --untracked-files=no)
[ -z "$changed" ] || { echo "commands of the manual change tracked files: $changed"; exit 1; }
echo "manual: $blocks blocks ran, $((SECONDS - begin)) s"
