#!/usr/bin/env bash
# The planner against the original, its lower bound and the practice of today, on the problems of ../shared/cases; every
# makespan by their judge. Writes dev/results/planner.md (5 minutes); then dev/check_docs.sh --renew.
# Fails where another policy is ahead.
#   dev/bench_planner.sh                            all tables
#   dev/bench_planner.sh --only policies,timing     these, on stdout only; names: dev/planner_bench.py
#   dev/bench_planner.sh --scale                    planning for many ranks: dev/results/planner_scale.md (6 minutes, most of it callgrind)
. "$(dirname "$0")/help.sh"
set -eu
cd "$(dirname "$0")/.."
if ! command -v python3 >/dev/null || [ ! -r ../shared/cases/evaluate.py ]; then
    echo "skip: needs python3 and ../shared/cases"
    exit 0
fi
make -s build/release/dynapipe >&2
if [ "${1:-}" = --scale ]; then
    make -s build/release/tools/plan_time >&2
    exec python3 dev/planner_bench.py --scale --out dev/results/planner_scale.md
fi
if [ $# -gt 0 ]; then exec python3 dev/planner_bench.py "$@"; fi
mkdir -p dev/results
python3 dev/planner_bench.py --out dev/results/planner.md
