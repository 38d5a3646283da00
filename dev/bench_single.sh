#!/usr/bin/env bash
# A training step of one process, three ways in turn: llmc/cpu, plain OpenMP loops (dev/naive_ops.c), PyTorch.
# They take turns step by step (A B C A B C ...), so that whatever else the machine does hits all alike.
#   ROUNDS=15 (3 at least; none begins after SECONDS_MAX=180)  TORCH_PYTHON=python3
#   OMP_NUM_THREADS=(all cores)  ARGS="-b 4 -t 64"
# Writes dev/results/single.md. Some 9 seconds a round on 2 idle cores, and 20 to begin. On a busy machine
# OMP_WAIT_POLICY=passive keeps waiting threads from spinning; the CPU times then are what each step needs.
set -eu
cd "$(dirname "$0")/.."
rounds=${ROUNDS:-15}
seconds_max=${SECONDS_MAX:-180}
args=${ARGS:--b 4 -t 64}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(nproc)}
python=${TORCH_PYTHON:-python3}
out=build/release/dev
make -s "$out/bench_single" "$out/bench_single_naive"
work=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; wait; rm -rf "$work"' EXIT

declare -A to from
programs=()
start() {  # name command...: a program that waits for its turn
    local name=$1 line
    shift
    mkfifo "$work/$name.in" "$work/$name.out"
    "$@" <"$work/$name.in" >"$work/$name.out" 2>"$work/$name.err" &
    pids+=($!)
    exec {to[$name]}>"$work/$name.in" {from[$name]}<"$work/$name.out"
    if ! read -r -t 300 line <&"${from[$name]}"; then
        echo "bench_single: $name did not start:" >&2
        cat "$work/$name.err" >&2
        return 1
    fi
    case "$line" in
        "{"*) programs+=("$name"); echo "$line" | tee -a "$work/$name.log";;
        *) echo "$line";;  # why it is skipped
    esac
}
# shellcheck disable=SC2086
start single "$out/bench_single" $args
# shellcheck disable=SC2086
start naive "$out/bench_single_naive" $args
if command -v "$python" >/dev/null; then
    # shellcheck disable=SC2086
    start torch "$python" dev/bench_torch.py $args
else
    echo "bench_single: no PyTorch: $python not found ---> set TORCH_PYTHON"
fi

load_begin=$(cut -d' ' -f1 /proc/loadavg)
for ((round = 1; round <= rounds; round++)); do
    [ "$round" -le 3 ] || [ "$SECONDS" -lt "$seconds_max" ] || break
    for name in "${programs[@]}"; do
        echo step >&"${to[$name]}"
        read -r -t 600 line <&"${from[$name]}"
        echo "$line" >>"$work/$name.log"
    done
    [ ! -t 2 ] || printf '\rround %d of %d ' "$round" "$rounds" >&2
done
[ ! -t 2 ] || echo >&2
rounds=$((round - 1))

values() { sed -nE "s/.*\"$2\": ([0-9.]+).*/\1/p" "$work/$1.log"; }  # program key
median() {  # digits
    sort -g | awk -v digits="$1" '{v[NR] = $1}
        END {printf "%.*f", digits, (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2}'
}
ratio() { paste <(values "$1" "$2") <(values single "$2") | awk '{print $1 / $2}' | median 2; }  # program key
row() {  # program label
    local ms least cpu
    ms=$(values "$1" step_ms | median 1)
    least=$(values "$1" step_ms | sort -g | head -1)
    cpu=$(values "$1" cpu_ms | median 1)
    awk -v name="$2" -v ms="$ms" -v least="$least" -v tokens="$tokens" -v cpu="$cpu" \
        -v ratio="$(ratio "$1" step_ms)" -v cpu_ratio="$(ratio "$1" cpu_ms)" \
        'BEGIN {printf "| %s | %.0f | %.0f | %.0f | %s | %.0f | %s |\n",
                name, ms, least, 1e3 * tokens / ms, ratio, cpu, cpu_ratio}'
}
# The plain loops are the same trainer: the same weights and tokens must give the same losses.
paste <(values single loss) <(values naive loss) |
    awk '{d = $1 - $2; if (d * d > 4e-6) bad = 1} END {exit bad || NR < 2}' ||
    { echo "bench_single: losses of llmc/cpu and of the plain loops differ" >&2; exit 1; }

tokens=$(values single tokens)
torch_log=$work/torch.log
[ -e "$torch_log" ] || torch_log=/dev/null
torch=$(sed -nE '1s/.*"version": "([^"]*)".*"adamw": "([^"]*)".*/\1, \2 AdamW/p' "$torch_log")
declare -A label=([single]="this repository (llmc/cpu)" [naive]="plain OpenMP loops (dev/naive_ops.c)"
                  [torch]="PyTorch $torch")
phases=""
for phase in zero forward backward_inputs backward_weights norm adamw; do
    phases+="${phases:+, }${phase//_/ } $(values single ${phase}_ms | median 0)"
done
cpu=$(sed -nE 's/^model name\s*: //p' /proc/cpuinfo | head -1)
load_end=$(cut -d' ' -f1 /proc/loadavg)
environment="ROUNDS=$rounds OMP_NUM_THREADS=$OMP_NUM_THREADS ARGS=\"$args\""
[ -z "${OMP_WAIT_POLICY:-}" ] || environment+=" OMP_WAIT_POLICY=$OMP_WAIT_POLICY"
mkdir -p dev/results
{
    cat <<END
# Single process: one training step, three ways

    $environment dev/bench_single.sh

GPT-2 of 12 layers x 768 channels, V 50257, float32, $tokens random tokens a step ($args): zero gradients,
forward, backward, global norm, AdamW. The programs take turns step by step. Medians over the rounds; a ratio
is the median of its rounds' ratios. CPU time is that of all threads, waiting in a loop included.

| program | ms / step | least | tokens / s | times ours | CPU ms / step | times ours |
|---|---:|---:|---:|---:|---:|---:|
END
    for name in "${programs[@]}"; do row "$name" "${label[$name]}"; done
    cat <<END

A step of this repository, in ms: $phases.

$cpu, $(nproc) cores; commit $(git describe --always --dirty).
Load average $load_begin when the turns began, $load_end at the end (of which up to $OMP_NUM_THREADS are its own).
END
} >"$work/single.md"
cp "$work/single.md" dev/results/single.md
cat dev/results/single.md
