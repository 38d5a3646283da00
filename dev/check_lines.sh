#!/usr/bin/env bash
# No source file over 500 lines: one job, one room.
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
git ls-files '*.c' '*.h' '*.cu' '*.sh' '*.py' | xargs awk 'FNR == 501 {print FILENAME ": over 500 lines"; bad = 1} END {exit bad}'
