#!/usr/bin/env bash
# What placement brings in somebody else's llm.c, beside what it brings in this project's own trainer: the same model, data, batches
# and 4 virtual hosts (dev/simulate.sh), one piece of the model a rank against pieces and head placed freely. Writes
# dev/results/fork_placement.md.
#   dev/bench_fork.sh /path/to/llm.c          a clean tree of karpathy/llm.c or of a fork; a copy of it is worked on
#   MODEL=l8c256h4 TOKENS=2048 LONGEST=512 STEPS=6
. "$(dirname "$0")/help.sh"
set -eu
[ $# -eq 1 ] && [ -e "$1/train_gpt2.c" ] || { script_help; exit 2; }
cd "$(dirname "$0")/.."
. dev/task_data.sh
model=${MODEL:-l8c256h4} tokens=${TOKENS:-2048} longest=${LONGEST:-512} steps=${STEPS:-6} out=$PWD/out/fork
mkdir -p "$out"
make -s prepare_data train_gpt2 simulated DYNAPIPE=1
task_data "$out" gpt2 newline bytes
rm -rf "$out/tree" && mkdir "$out/tree" && cp "$1"/*.c "$1"/Makefile "$out/tree" && cp -r "$1/llmc" "$out/tree" 2>/dev/null || true
dynapipe_plugin/install.sh --link --apply "$out/tree" >"$out/install.log"
read -ra smpi <<<"$(smpicc -show | grep -oE -- '-include [^ ]+') -DSMPI_NO_OVERRIDE_MALLOC -DDYNAPIPE_SIMULATED -fPIC -w -I$out/tree"
smpicc -std=gnu11 -O2 -ffp-contract=off "${smpi[@]}" -DDYNAPIPE_MPI -c dist/dynapipe.c -o "$out/dynapipe.o"
(cd "$out/tree" && smpicc -Ofast -march=native "${smpi[@]}" -DDYNAPIPE -c train_gpt2.c -o "$out/train.o")
smpicc -shared "$out/train.o" "$out/dynapipe.o" -ljansson -lm -lpthread -o "$out/train_gpt2"
[ -e "$out/begin/model_00000001.bin" ] ||
    ./train_gpt2 -i "$data/train.bin" -e "$model" -t 64 -d 64 -x 1 -v 0 -s 0 -o "$out/begin" >"$out/begin.log"
begin=$out/begin/model_00000001.bin
common=(--stages 4 --seed 1 --refit off)
export DYNAPIPE_CACHE=$out/costs OMP_NUM_THREADS=1
run() {  # name, program, options...
    local name=$1
    shift
    dev/simulate.sh -n 4 --cfg contexts/stack-size:65536 -- "$@" "${common[@]}" >"$out/$name.log" 2>&1 || { tail -5 "$out/$name.log"; exit 1; }
}
for way in linear auto; do
    places=(--placement "$way")
    [ $way = auto ] || places+=(--head whole)
    run "fork-$way" "$out/train_gpt2" --train-data "$data/train.bin" --model "$begin" --max-tokens "$longest" --batch-tokens "$tokens" --steps "$steps" \
        "${places[@]}"
    run "own-$way" build/simulated/train_gpt2-dynapipe -i "$data/train.bin" -e "$begin" -t "$longest" -d "$tokens" -x "$steps" -v 0 -s 0 \
        -o "$out/own-$way" --overwrite 1 "${places[@]}"
done
ms() { sed -nE 's/^steps 3 to [0-9]+: ([0-9.]+) (ms|s) each.*idle ([0-9.]+%).*/\1 \2 \3/p' "$out/$1.log" | awk '{print ($2 == "s" ? 1000 * $1 : $1), $3}'; }
row() {  # what, name
    local linear auto
    linear=$(ms "$2-linear") auto=$(ms "$2-auto")
    awk -v what="$1" -v l="$linear" -v a="$auto" 'BEGIN {split(l, x, " "); split(a, y, " "); printf "| %s | %.0f ms, %s | %.0f ms, %s | %.2f |\n", what, x[1], x[2], y[1], y[2], x[1] / y[1]}'
}
losses() { sed -nE 's/^step +[0-9]+\/.* loss ([0-9.]+).*/\1/p' "$out/$1.log"; }
same=$(diff <(losses fork-linear) <(losses fork-auto) >/dev/null && echo "The fork's losses of all steps are the same digits in both ways." || echo "The fork's losses differ between the ways.")
{
    echo "# Placement in a fork of llm.c"
    echo
    echo "GPT-2 $model, vocabulary $vocab, at most $tokens tokens a step and $longest a sample of $about, 4 stages on virtual hosts of one core"
    echo "(\`dev/bench_fork.sh\`); a step's time in the mean from the third on, and the share of it that ranks wait. The fork computes with its own loops"
    echo "(\`-Ofast\`), our trainer with OpenBLAS; the fork's head is shared by rows at most, ours by vocabulary, too. Times are those of"
    echo "one run each and scatter with what else the machine does: on a busy one by a tenth."
    echo
    echo "| trainer | one piece a rank, whole head | \`--placement auto\` | times as fast |"
    echo "|---|---:|---:|---:|"
    row "llm.c's \`train_gpt2.c\` with the plugin" fork
    row "this project's \`train_gpt2\`" own
    echo
    echo "$same"
} >dev/results/fork_placement.md
cat dev/results/fork_placement.md
