#!/usr/bin/env bash
# What the planner must reach on the shared cases, by their own judge: against the original under its rules and with
# everything on, ahead of every other policy. Tables 1 to 3 of dev/bench_planner.sh, fewer budgets, ten times the time.
# concerns: dynapipe_plugin/plan
. "$(dirname "$0")/check_lib.sh"
build=build/${BUILD:-release}$([[ "${CC:-gcc}" == clang* ]] && echo -clang)
command -v python3 >/dev/null && [ -r ../shared/cases/evaluate.py ] || skip_all "no python3, or no ../shared/cases here"
make -s -j2 BUILD="${BUILD:-release}" "$build/dynapipe" || exit 1
exec timeout -k 5 240 python3 dev/planner_bench.py --check --tool "$build/dynapipe"
