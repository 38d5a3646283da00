#!/usr/bin/env bash
# What a wrong cost file costs on ../shared/cases, before and after refit: writes dev/results/refit.md. Two minutes of one core; nothing is
# timed, so a busy machine is fine.
set -eu
cd "$(dirname "$0")/.."
tool=build/${BUILD:-release}/tools/refit_bench
make -s "$tool"
table=$("$tool") || [ $? -eq 1 ]
{
    echo "# Refit: plans with a cost file that is wrong"
    echo
    echo "\`dev/bench_refit.sh\` at commit $(git rev-parse --short HEAD). Cost files with the head x 2 and attention / 2, and the reverse, against"
    echo "the case's own. \"predicted\" is signed: what the plan says against what true costs make of it. Below 0 %: luck of the search."
    echo
    echo "$table"
} >dev/results/refit.md
echo "$table"
