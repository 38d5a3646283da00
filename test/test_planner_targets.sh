#!/usr/bin/env bash
# What the planner must reach on the shared cases, by their own judge: against the original under its rules and with
# everything on, ahead of every other policy. Tables 1 to 3 of dev/bench_planner.sh, fewer budgets, ten times the time.
# concerns: dynapipe_plugin/plan
set -u
cd "$(dirname "$0")/.."
build=build/${BUILD:-release}$([[ "${CC:-gcc}" == clang* ]] && echo -clang)
if ! command -v python3 >/dev/null || [ ! -r ../shared/cases/evaluate.py ]; then
    echo "skip shared cases: no python3, or no ../shared/cases here"
    echo "0 passed, 0 failed, 1 skipped"
    exit 77
fi
make -s -j2 BUILD="${BUILD:-release}" "$build/dynapipe" || exit 1
exec timeout -k 5 240 python3 dev/planner_bench.py --check --tool "$build/dynapipe"
