#!/usr/bin/env bash
# What it takes to train a T5 from scratch: plain AdamW at several learning rates against AdamW whose steps are scaled by the
# size of each tensor; the same model, data, batches and schedule. Writes dev/results/t5_from_scratch.md.
#   MODEL=byt5:l2c128h4 STEPS=200 BATCH=8192 dev/bench_from_scratch.sh      some minutes on 2 cores
. "$(dirname "$0")/help.sh"
set -eu
cd "$(dirname "$0")/.."
. dev/mpi_env.sh
export OMP_NUM_THREADS=1
model=${MODEL:-byt5:l2c128h4} steps=${STEPS:-200} batch=${BATCH:-8192} out=out/from-scratch result=dev/results/t5_from_scratch.md
ways=${WAYS:-"adamw:3e-4 adamw:1e-3 adamw:3e-3 adamw:1e-2 adamw-scaled:5e-3 adamw-scaled:2e-2"}
make -s programs
mkdir -p $out dev/results
[ -e $out/data/train.bin ] || { ./make_tasks --out $out/tasks.jsonl --samples 20000 --max-tokens 256 &&
    ./prepare_data --tokenizer byt5 --out $out/data $out/tasks.jsonl; } >$out/data.log 2>&1

loss_at() { sed -nE 's/.*"step":'"$2"',"loss":([^,]+),.*/\1/p' "$out/$1/metrics.jsonl" | awk '{printf "%.3f", $1}'; }
last_validation() { sed -nE 's/^val loss ([0-9.naif]+) on [^|]*\| exact match ([0-9.]+) %.*/\1 \2/p' "$out/$1.log" | tail -1; }

shown="1 $((steps / 10)) $((steps / 4)) $((steps / 2)) $steps"
{
    echo "# A T5 from scratch"
    echo
    echo "\`dev/bench_from_scratch.sh\` at commit $(git rev-parse --short HEAD): $model, the built-in tasks as bytes, $batch tokens a step, $steps steps"
    echo "(warm-up $((steps / 10)), cosine to a twentieth), gradients clipped at 1. adamw-scaled: a tensor's step times the root mean square of its values."
    echo
    echo "| optimizer | peak lr |$(for s in $shown; do printf ' loss at step %s |' "$s"; done) validation loss | exact match, mean of the tasks |"
    echo "|---|---:|$(for _ in $shown; do printf -- '---:|'; done)---:|---:|"
} >$result.tmp
for way in $ways; do
    optimizer=${way%:*} lr=${way#*:} name=${way/:/-}
    rm -rf "${out:?}/$name"
    mkdir -p "$out/$name"
    if ! dynapipe_plugin/mpirun.sh -np 2 ./train_t5 -i "$out/data/train.bin" -j "$out/data/val.bin" -e "$model" -t 256 --target-tokens 64 -d "$batch" -x "$steps" \
            --optimizer "$optimizer" -l "$lr" -u $((steps / 10)) -q 0.05 --replicas 2 -v "$steps" -m 256 -s 0 --answers 16 -g 40 -n 0 -o "$out/$name" \
            >"$out/$name.log" 2>&1; then
        echo "| $optimizer | $lr |$(for s in $shown; do printf ' %s |' "$(loss_at "$name" "$s")"; done) $(grep -m1 error "$out/$name.log" | cut -c1-60) | |" >>$result.tmp
        continue
    fi
    rm -f "$out/$name"/*.bin
    read -r loss exact <<<"$(last_validation "$name")"
    echo "| $optimizer | $lr |$(for s in $shown; do printf ' %s |' "$(loss_at "$name" "$s")"; done) $(printf %.3f "$loss") | $exact % |" >>$result.tmp
    tail -1 $result.tmp
done
mv $result.tmp $result
cat $result
