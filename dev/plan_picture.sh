#!/bin/bash
# Draws doc/pieces.svg: a step with a long sample in pieces above the same step with samples whole. And doc/plan.svg: a step of ours above the best of packed-ragged, on one time axis, few enough jobs to read at the
# width of a page. Costs were measured: test/problems/gpt_cpu.costs is what
#     mpirun -np 1 ./profile_costs --model l12c256h4 --tokens 1024 --vocab 8192 --out test/problems/gpt_cpu.costs
# wrote on one core of an Intel Xeon (AVX-512), one thread.
# One chunk a stage: the planner's own choice has four and is 2 % faster, but its jobs are too thin to number.
. "$(dirname "$0")/help.sh"
set -e
cd "$(dirname "$0")/.."
make -s dynapipe
./dynapipe plan test/problems/lengths.csv --model l12c256h4 --costs test/problems/gpt_cpu.costs --stages 3 --batch-tokens 1000 \
    --placement linear --svg "${1:-doc/plan.svg}" --compare packed-ragged | sed -n 1,2p
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf '%s\n' n_input,n_target 900,100 120,40 60,30 200,20 90,60 150,30 45,15 70,30 >"$work/one long sample"
./dynapipe plan "$work/one long sample" --model l12c256h4 --costs test/problems/gpt_cpu.costs --stages 3 --batch-tokens 2000 \
    --placement linear --head whole --slices 3 --svg "${2:-doc/pieces.svg}" --compare whole 2>/dev/null | sed -n 1,2p
