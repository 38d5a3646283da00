#!/usr/bin/env bash
# What a wrong cost file costs, before and after refit: on ../shared/cases in the planner alone (nothing is timed), and in runs of four
# virtual ranks (dev/simulate.sh). Writes dev/results/refit.md. The planner's table is kept in out/refit/planner.md: --again makes it anew.
#   make simulated && dev/bench_refit.sh [--again]      three minutes of one core; a busy machine is fine
. "$(dirname "$0")/help.sh"
set -eu
cd "$(dirname "$0")/.."
. dev/task_data.sh
tool=build/${BUILD:-release}/tools/refit_bench out=out/refit steps=${STEPS:-22} from=${FROM:-13} result=dev/results/refit.md
make -s prepare_data make_tasks >&2
mkdir -p "$out"
task_data $out gpt2 newline bytes
trainer=build/simulated/train_gpt2-dynapipe size="-e l16c64h4 -t 512 -d 2048 -l 1e-3 -v 0 -s 0 -n 0 --stages 4"
export OMP_NUM_THREADS=1

simulated() {  # name, options...
    local name=$1
    shift
    rm -rf "${out:?}/$name"
    # shellcheck disable=SC2086
    timeout 900 dev/simulate.sh -n 4 -- $trainer -i "$data/train.bin" $size -o "$out/$name" "$@" >"$out/$name.log" 2>&1 ||
        { tail -n 3 "$out/$name.log" >&2; exit 1; }
}
wrong() {  # a cost file with the head's times x 2, those of attention / 2
    awk '/^part .* time / {
            for (i = 1; i <= NF; i++) {
                if ($i ~ /^(enc|dec)_squares$|^cross_products$/) {by = 0.5}
                else if ($i ~ /^[a-z_]+$/) {by = 1}
                times = $2 == "head" ? 2 : by
                if (times == 1) continue
                if (split($i, xy, ":") == 2) $i = sprintf("%s:%.17g", xy[1], times * xy[2])
                else if ($2 == "head" && ($(i - 1) == "const" || $(i - 1) == "floor")) $i = sprintf("%.17g", times * $i)
            }
        } {print}' "$1"
}
numbers() {  # name: step, measured ms, predicted ms
    sed -nE 's/^\{"step":([0-9]+),.*"step_ms":([0-9.e+]+),.*"predicted_ms":([0-9.e+]+),.*/\1 \2 \3/p' "$out/$1/metrics.jsonl" |
        awk -v a="$from" '$1 >= a'
}
median() { sort -n | awk '{v[NR] = $1} END {print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2}'; }
row() {  # what, name: the same samples in the same step, so step by step against those of the right file
    local ms off against
    ms=$(numbers "$2" | awk '{print $2}' | median)
    off=$(numbers "$2" | awk '{print 100 * ($2 / $3 - 1)}' | median)
    against=$(join <(numbers right | sort -k1b,1) <(numbers "$2" | sort -k1b,1) | awk '{print 100 * ($4 / $2 - 1)}' | median)
    printf '| %s | %s | %.1f | %+.1f %% | %+.1f %% |\n' "$1" "$(split "$2")" "$ms" "$against" "$off"
}
split() { sed -nE 's/^stages: ([^ ]+) .*/\1/p; s/^layers move .* become ([^ ]+).*/ \1/p' "$out/$1.log" | paste -sd'>' | sed 's/>/, then/g'; }

[ "${1:-}" != --again ] || rm -f $out/planner.md
if [ ! -e $out/planner.md ]; then
    make -s "$tool" >&2
    table=$("$tool") || [ $? -eq 1 ]
    printf '%s\n\nAt commit %s.\n' "$table" "$(git rev-parse --short HEAD)" >$out/planner.md
fi
rm -rf "$out/costs"
DYNAPIPE_CACHE=$out/costs simulated warm -x 2
cp "$out"/costs/*.costs "$out/right.costs"
wrong "$out/right.costs" >"$out/wrong.costs"
told=(--stage-split)
simulated right -x "$steps" --costs "$out/right.costs" --refit off
told+=("$(split right)")
simulated right-refit -x "$steps" --costs "$out/right.costs"
simulated wrong -x "$steps" --costs "$out/wrong.costs" --refit off
simulated wrong-refit -x "$steps" --costs "$out/wrong.costs"
simulated told -x "$steps" --costs "$out/wrong.costs" --refit off "${told[@]}"
simulated told-refit -x "$steps" --costs "$out/wrong.costs" "${told[@]}"
{
    echo "# Refit: plans with a cost file that is wrong"
    echo
    echo "\`dev/bench_refit.sh\`"
    echo
    echo "## In the planner"
    echo
    echo "Cost files with the head x 2 and attention / 2, and the reverse, against the case's own. \"predicted\" is signed: what the plan says"
    echo "against what true costs make of it. Below 0 %: luck of the search."
    echo
    cat $out/planner.md
    echo
    echo "## In runs"
    echo
    echo "At commit $(git rev-parse --short HEAD). Four virtual ranks, virtual time: \`$size\`, $about; the costs measured there, and the same with the head's times x 2"
    echo "and attention's / 2. Medians of steps $from to $steps: a step, the same step with the right file and \`--refit off\`, measured against predicted."
    echo
    echo "| cost file | layers | ms a step | against the right file | measured against predicted |"
    echo "|---|---|---|---|---|"
    row "right, \`--refit off\`" right
    row "right, refit" right-refit
    row "wrong, \`--refit off\`" wrong
    row "wrong, refit, layers may move" wrong-refit
    row "wrong, \`--refit off\`, the right file's layers" told
    row "wrong, refit, the right file's layers" told-refit
    echo
    echo '```'
    grep -hE "^step [0-9]+: (the|attention|rank)|^layers move|^moved" "$out/wrong-refit.log"
    echo '```'
} >$result.new
mv $result.new $result
cat $result
