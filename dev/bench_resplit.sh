#!/usr/bin/env bash
# A rank that becomes slower in mid-run, in virtual time (dev/simulate.sh): 4 stages, rank 1 takes 1.5 times as long from step CHANGE (20)
# on. Steps and the errors of their predictions before it, at once, after it where layers stay (--resplit off) and where they move (auto),
# and of a run that knew from the start; are plans of --refit off the same in every run? Then how long layers of d12 take from one CPU
# rank to another (real ranks, wall clock; a quiet machine). Writes dev/results/resplit.md:
#   make simulated && dev/bench_resplit.sh         two minutes of one core
. "$(dirname "$0")/help.sh"
set -eu
cd "$(dirname "$0")/.."
. dev/mpi_env.sh
. dev/task_data.sh
out=out/resplit change=${CHANGE:-20} result=dev/results/resplit.md
export DYNAPIPE_CACHE=$out/costs OMP_NUM_THREADS=1
make -s train_gpt2 prepare_data make_tasks DYNAPIPE=1 >&2
mkdir -p "$out"
task_data $out bytes newline bytes
trainer=build/simulated/train_gpt2-dynapipe size="-e l16c64h4 -t 256 -d 4096 -l 1e-3 -v 0 -s 0 -n 0 --stages 4"

simulated() {  # name, platform, options...
    local name=$1 platform=$2
    shift 2
    rm -rf "${out:?}/$name"
    # shellcheck disable=SC2086
    timeout 900 dev/simulate.sh -n 4 --platform "$platform" -- $trainer -i "$data/train.bin" $size -o "$out/$name" "$@" >"$out/$name.log" 2>&1 ||
        { tail -n 3 "$out/$name.log" >&2; exit 1; }
}
steps() {  # name: step, measured ms, predicted ms
    sed -nE 's/^\{"step":([0-9]+),.*"step_ms":([0-9.e+]+),.*"predicted_ms":([0-9.e+]+),.*/\1 \2 \3/p' "$out/$1/metrics.jsonl"
}
median() {  # name, first step, last step, what of "step measured predicted"
    steps "$1" | awk -v a="$2" -v b="$3" "\$1 >= a && \$1 <= b {print $4}" | sort -n |
        awk '{v[NR] = $1} END {printf "%.1f", NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2}'
}
ms() { median "$1" "$2" "$3" '$2'; }
off() { printf '%+.1f %%' "$(median "$1" "$2" "$3" '100 * ($2 / $3 - 1)')"; }
row() { echo "| $1 | $3 to $4 | $(ms "$2" "$3" "$4") | $(off "$2" "$3" "$4") |"; }  # what, name, first step, last step
# The first of four steps that all take too long; one alone may have met another program of this machine.
first_slow() { steps "$1" | awk '$1 > 2 {n = $2 > 1.25 * $3 ? n + 1 : 0} n == 4 {print $1 - 3; exit}'; }
plans() { sed -nE 's/^\{"step":([0-9]+),.*"computed_tokens":([0-9]+),.*"predicted_ms":([0-9.e+]+),.*"bound_ms":([0-9.e+]+),.*/\1 \2 \3 \4/p' "$out/$1/metrics.jsonl"; }

rm -rf "$out/costs" "$out/costs-slow"
simulated warm fast -x 2
# In which virtual second step `change` begins: a run says where another second lies.
guess=1.2
simulated guess "slow-from:$guess" -x 18 --refit off
slow=$(first_slow guess)
from=$(awk -v t=$guess -v step="${slow:?no step is slow}" -v change="$change" -v ms="$(ms guess 3 $((slow - 1)))" \
    'BEGIN {printf "%.2f", t + (change - step - 0.5) * ms / 1000}')
last=$((change + 40))
simulated stays "slow-from:$from" -x $last --resplit off
simulated moves "slow-from:$from" -x $last
simulated off "slow-from:$from" -x $last --refit off
simulated off-again fast -x $last --refit off
DYNAPIPE_CACHE=$out/costs-slow simulated knew slow-host -x $last --resplit off  # measures where rank 1 is slow

at=$(first_slow off)
: "${at:?no step is slow}"
agreed=$(sed -nE 's/^step ([0-9]+): rank 1 takes.*/\1/p' "$out/stays.log" | head -n 1)  # behind it plans know soon
behind=$(sed -nE 's/^layers move after step ([0-9]+):.*/\1/p' "$out/moves.log" | head -n 1)
{
    echo "# Layers that move"
    echo
    echo "\`dev/bench_resplit.sh\` at commit $(git rev-parse --short HEAD): virtual time, \`$size\`, $about. Rank 1 takes 1.5 times as long from step $at on. Medians of"
    echo "steps; \"off\" is what a step took against what its plan said, signed."
    echo
    echo "| | steps | ms a step | off |"
    echo "|---|---|---|---|"
    row "before it" stays 9 $((at - 1))
    row "at once, nobody knows" stays "$((at + 1))" "${agreed:?nobody found the slow rank}"
    row "layers stay (\`--resplit off\`), 10 steps later" stays $((at + 10)) $last
    row "layers moved (\`auto\`)" moves $((${behind:?layers did not move} + 1)) $last
    row "known from the start" knew $((at + 10)) $last
    row "\`--refit off\`" off $((at + 10)) $last
    echo
    awk -v moved="$(ms moves $((at + 10)) $last)" -v stayed="$(ms stays $((at + 10)) $last)" -v knew="$(ms knew $((at + 10)) $last)" -v a=$((at + 10)) -v b=$last \
        'BEGIN {printf "From step %d to %d, moved against known from the start: %+.1f %% (goal: 10 %%); against layers that stay: %+.1f %%.\n", a, b, 100 * (moved / knew - 1), 100 * (moved / stayed - 1)}'
    echo "Found $((agreed - at + 1)) steps behind the change (goal: 10). Of $last plans of two runs with \`--refit off\`, one on hosts that do not change: $(diff <(plans off) <(plans off-again) | grep -c '^<' || true) differ."
    echo
    echo '```'
    grep -hE "^stages:|rank 1 takes|^layers move|^moved" "$out/moves.log"
    echo '```'
    echo
    echo "d12, two CPU ranks (real ones, wall clock; a quiet machine), a layer and then four move:"
    echo
    echo '```'
    mpirun -np 2 ./train_gpt2 -i "$data/train.bin" -e d12 -t 64 -d 128 -x 5 -v 0 -s 0 --refit off --debug measure-seconds=0 --stages 2 --stage-split 6,6 \
        --resplit 2:7,5/3:11,1/4:6,6 | grep -E "^layers move|^moved"
    echo '```'
} >$result.new
mv $result.new $result
cat $result
