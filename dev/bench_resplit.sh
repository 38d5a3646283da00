#!/usr/bin/env bash
# A rank that becomes slower in mid-run, in virtual time (dev/simulate.sh): 4 stages, rank 1 takes 1.5 times as long from about step 20
# on. Steps before it, behind it where layers stay (--resplit off) and where they move (auto), and of a run that knew from the start.
# Then how long layers of d12 take from one CPU rank to another (real ranks, wall clock; a quiet machine). Prints Markdown:
#   make simulated && dev/bench_resplit.sh >dev/results/resplit.md         some minutes of one core
set -eu
cd "$(dirname "$0")/.."
. dev/mpi_env.sh
. dev/task_data.sh
out=out/resplit
export DYNAPIPE_CACHE=$out/costs OMP_NUM_THREADS=1
make -s train_gpt2 prepare_data make_tasks DYNAPIPE=1 >&2
task_data $out gpt2 newline bytes
trainer=build/simulated/train_gpt2-dynapipe size="-e l16c64h4 -t 256 -d 4096 -l 1e-3 -v 0 -s 0 --stages 4"

simulated() {  # name, platform, options...
    local name=$1 platform=$2
    shift 2
    timeout 900 dev/simulate.sh -n 4 --platform "$platform" -- $trainer -i "$data/train.bin" $size "$@" >"$out/$name.log" 2>&1 ||
        { tail -3 "$out/$name.log" >&2; exit 1; }
}
steps() { sed -nE 's/^step +([0-9]+)\/.*\| +([0-9.]+) ms \|.*/\1 \2/p' "$out/$1.log"; }
median() {  # name, first step, last step
    steps "$1" | awk -v a="$2" -v b="$3" '$1 >= a && $1 <= b {print $2}' | sort -n | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'
}
# The virtual second in which about step 20 begins, once costs are there.
from=${FROM:-2.1}
simulated warm fast -x 2
simulated stays "slow-from:$from" -x 40 --resplit off
simulated moves "slow-from:$from" -x 56
DYNAPIPE_CACHE=$out/costs-slow simulated knew slow-host -x 30 --resplit off  # measures where rank 1 is slow
echo "# Layers that move"
echo
echo "\`dev/bench_resplit.sh\`, virtual time, $size, $about; rank 1 takes 1.5 times as long from virtual second $from on. Medians of steps."
echo
echo "| | ms a step |"
echo "|---|---|"
echo "| before it | $(median stays 5 18) |"
echo "| layers stay (\`--resplit off\`), steps 26 to 40 | $(median stays 26 40) |"
echo "| layers move (\`auto\`), steps 36 to 56 | $(median moves 36 56) |"
echo "| known from the start, steps 10 to 30 | $(median knew 10 30) |"
echo
echo '```'
grep -hE "^stages:|rank 1 takes|^layers move|^moved" "$out/moves.log"
echo '```'
echo
echo "d12, two CPU ranks, a layer and then four move:"
echo
echo '```'
mpirun -np 2 ./train_gpt2 -i "$data/train.bin" -e d12 -t 64 -d 128 -x 5 -v 0 -s 0 --refit off --measure-seconds 0 --stages 2 --stage-split 6,6 \
    --resplit 2:7,5/3:11,1/4:6,6 | grep -E "^layers move|^moved"
echo '```'
