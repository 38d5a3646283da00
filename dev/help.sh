# Sourced by scripts in their first lines: --help and -h print the comment that they begin with.
case "${1:-}" in -h | --help)
    awk 'NR == 1 { next } !/^#/ { exit } { sub(/^# ?/, ""); print }' "$0"
    exit 0
    ;;
esac
