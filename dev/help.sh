# Sourced by scripts in their first lines: --help and -h as the first argument print the comment that they begin with, as script_help
# does anywhere.
script_help() { awk 'NR == 1 { next } !/^#/ { exit } { sub(/^# ?/, ""); print }' "$0"; }
case "${1:-}" in -h | --help)
    script_help
    exit 0
    ;;
esac
