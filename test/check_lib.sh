# check_lib.sh -- sourced by test scripts: a folder of their own, $work, and checks that are counted.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0 skipped=0

ok() {  # 0|1 (0: fine), what[, a log whose end a failure shows; else $log]
    if [ "$1" -eq 0 ]; then
        passed=$((passed + 1))
        echo "ok   $2"
    else
        failed=$((failed + 1))
        echo "FAIL $2"
        [ ! -s "${3:-${log:-}}" ] || tail -20 "${3:-$log}"
    fi
}

check() {  # what, a command that must succeed, of which only a failure says something...
    if "${@:2}"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAIL $1"; fi
}

skip() {  # what is left out ---> remedy
    skipped=$((skipped + 1))
    echo "skip $1"
}

skip_all() {  # what is missing ---> remedy
    echo "skip $(basename "$0" .sh): $1"
    echo "0 passed, 0 failed, 1 skipped"
    exit 77
}

finish() {
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ]
    exit
}
