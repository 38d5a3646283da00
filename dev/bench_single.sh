#!/usr/bin/env bash
# A training step of one process, llmc/cpu and PyTorch in turn.
# They take turns step by step (A B C A B C ...), so that whatever else the machine does hits all alike.
#   MODEL=d12 (t5:small ...: against transformers, three kinds of batch)  ARGS="-b 4 -t 64" (one batch, T5: instead of the three)
#   ROUNDS=15 (T5: 9; 3 at least; none begins after SECONDS_MAX=180 of a batch, T5: 60)  OMP_NUM_THREADS=(all cores)
#   TORCH_PYTHON=python3  ATTENTION=sdpa (T5: of transformers; eager; "sdpa eager")
# Writes dev/results/single.md, single_t5.md. On 2 idle cores GPT-2 takes some 9 seconds a round and 20 to begin, T5 five minutes
# in all. On a busy machine OMP_WAIT_POLICY=passive keeps waiting threads from spinning; the CPU times then are what a step needs.
. "$(dirname "$0")/help.sh"
set -eu
cd "$(dirname "$0")/.."
. dev/mpi_env.sh
model=${MODEL:-d12}
case $model in *:*) is_t5=1 ;; *) is_t5= ;; esac
rounds_max=${ROUNDS:-$([ -n "$is_t5" ] && echo 9 || echo 15)}
seconds_max=${SECONDS_MAX:-$([ -n "$is_t5" ] && echo 60 || echo 180)}
attention=${ATTENTION:-sdpa}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(nproc)}
python=${TORCH_PYTHON:-python3}
out=build/release/dev
make -s "$out/bench_single"
work=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; wait; rm -rf "$work"' EXIT

# --- programs that wait for their turn, and the rounds of one batch ------------------------------------------------
declare -A to from label
programs=()
start() {  # name command...
    local name=$1 line
    shift
    rm -f "$work/$name".*
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
        "{"*) programs+=("$name"); echo "$line" | tee -a "$work/$name.log" >&2;;
        *) echo "$line" >&2;;  # why it is skipped
    esac
}
stop() {  # all of them
    local name
    for name in "${!to[@]}"; do exec {to[$name]}>&- {from[$name]}<&-; done
    wait "${pids[@]}" || true
    pids=() programs=() to=() from=()
}
start_torch() {  # options
    local kind
    if ! command -v "$python" >/dev/null; then
        echo "bench_single: no PyTorch: $python not found ---> set TORCH_PYTHON" >&2
    elif [ -z "$is_t5" ]; then
        start torch "$python" dev/bench_torch.py "$@"
    else
        for kind in $attention; do
            start "torch_$kind" "$python" dev/bench_torch.py --weights "$work/weights" --attention "$kind" "$@"
        done
    fi
}
turns() {
    local name line begin=$SECONDS
    for ((rounds = 1; rounds <= rounds_max; rounds++)); do
        [ "$rounds" -le 3 ] || [ $((SECONDS - begin)) -lt "$seconds_max" ] || break
        for name in "${programs[@]}"; do
            echo step >&"${to[$name]}"
            read -r -t 600 line <&"${from[$name]}"
            echo "$line" >>"$work/$name.log"
        done
        [ ! -t 2 ] || printf '\rround %d of %d ' "$rounds" "$rounds_max" >&2
    done
    [ ! -t 2 ] || echo >&2
    rounds=$((rounds - 1))
}

# --- evaluation ----------------------------------------------------------------------------------------------------
values() { sed -nE "s/.*\"$2\": ([0-9.]+).*/\1/p" "$work/$1.log"; }  # program key
median() {  # digits
    sort -g | awk -v digits="$1" '{v[NR] = $1}
        END {printf "%.*f", digits, (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2}'
}
ratio() { paste <(values "$1" "$2") <(values single "$2") | awk '{print $1 / $2}' | median 2; }  # program key
row() {  # program
    local ms least cpu
    ms=$(values "$1" step_ms | median 1)
    least=$(values "$1" step_ms | sort -g | head -1)
    cpu=$(values "$1" cpu_ms | median 1)
    awk -v name="${label[$1]}" -v ms="$ms" -v least="$least" -v tokens="$(values single tokens)" -v cpu="$cpu" \
        -v ratio="$(ratio "$1" step_ms)" -v cpu_ratio="$(ratio "$1" cpu_ms)" \
        'BEGIN {printf "| %s | %.0f | %.0f | %.0f | %s | %.0f | %s |\n",
                name, ms, least, 1e3 * tokens / ms, ratio, cpu, cpu_ratio}'
}
# The same weights and tokens give the same losses: of the first step within 1e-5 of it, then within 1e-3, since AdamW turns what
# rounding leaves of a tiny gradient into a step of full length. (PyTorch's GPT-2 draws weights and tokens of its own.)
losses_agree() {  # program
    paste <(values single loss) <(values "$1" loss) |
        awk '{d = ($1 - $2) / $1; if (d < 0) d = -d; if (!(d < (NR == 1 ? 1e-5 : 1e-3))) bad = 1} END {exit bad || NR < 2}' ||
        { echo "bench_single: losses of llmc/cpu and of $1 differ" >&2; exit 1; }
}
table() {
    local name version phases="" phase
    label=([single]="this repository (llmc/cpu)")
    for name in "${programs[@]}"; do
        case $name in torch*)
            version=$(sed -nE '1s/.*"version": "([^"]*)".*"adamw": "([^"]*)".*/\1, \2 AdamW/p' "$work/$name.log")
            label[$name]="PyTorch $version"
            [ -z "$is_t5" ] || label[$name]="$(sed -nE '1s/.*"transformers": "([^"]*)".*/transformers \1/p' "$work/$name.log") ${name#torch_}, PyTorch $version";;
        esac
        case $name in single | torch) ;; *) losses_agree "$name";; esac
    done
    echo "| program | ms / step | least | tokens / s | times ours | CPU ms / step | times ours |"
    echo "|---|---:|---:|---:|---:|---:|---:|"
    for name in "${programs[@]}"; do row "$name"; done
    for phase in zero forward backward_inputs backward_weights norm adamw; do
        phases+="${phases:+, }${phase//_/ } $(values single ${phase}_ms | median 0)"
    done
    echo
    echo "A step of this repository, in ms: $phases."
}
cpu=$(sed -nE 's/^model name\s*: //p' /proc/cpuinfo | head -1)
environment() { echo "${MODEL:+MODEL=$model }ROUNDS=$rounds OMP_NUM_THREADS=$OMP_NUM_THREADS${OMP_WAIT_POLICY:+ OMP_WAIT_POLICY=$OMP_WAIT_POLICY}"; }
load() { cut -d' ' -f1 /proc/loadavg; }
footer() {
    echo
    echo "$cpu, $(nproc) cores; commit $(git describe --always --dirty)."
    echo "Load average $load_begin when the turns began, $(load) at the end (of which up to $OMP_NUM_THREADS are its own)."
}
load_begin=$(load)

# --- GPT-2 ---------------------------------------------------------------------------------------------------------
gpt2() {
    local args=${ARGS:--b 4 -t 64} title="GPT-2 $model"
    [ "$model" != d12 ] || title="GPT-2 of 12 layers x 768 channels"
    # shellcheck disable=SC2086
    start single "$out/bench_single" -e "$model" $args
    # shellcheck disable=SC2086
    [ "$model" != d12 ] || start_torch $args
    load_begin=$(load)
    turns
    cat <<END
# Single process: one training step, against PyTorch

    $(environment) ARGS="$args" dev/bench_single.sh

$title, V 50257, float32, $(values single tokens) random tokens a step ($args): zero gradients,
forward, backward, global norm, AdamW. The programs take turns step by step. Medians over the rounds; a ratio
is the median of its rounds' ratios. CPU time is that of all threads, waiting in a loop included.

END
    table
    footer
}

# --- T5 ------------------------------------------------------------------------------------------------------------
batch() {  # title, its meaning, options
    local title=$1 about=$2
    shift 2
    start single "$out/bench_single" -e "$model" "$@" --export "$work/weights"
    start_torch "$@"
    turns
    printf '\n## %s\n\n`%s`, %d tokens a step, %d rounds: %s\n\n' "$title" "$*" "$(values single tokens)" "$rounds" "$about"
    table
    stop
}
t5() {
    cat <<END
# Single process: one training step of T5, against transformers

    MODEL=$model OMP_NUM_THREADS=$OMP_NUM_THREADS${OMP_WAIT_POLICY:+ OMP_WAIT_POLICY=$OMP_WAIT_POLICY}${ARGS:+ ARGS="$ARGS"} dev/bench_single.sh

$model, float32, no dropout; random tokens, those of encoder and decoder counted: zero gradients, forward, backward, global norm,
AdamW. All programs begin with the same weights and get the same tokens: losses of the first step agree within 1e-5, of the others
within 1e-3. They take turns step by step. Medians over the rounds; a ratio is the median of its rounds' ratios. CPU time is that
of all threads, waiting in a loop included.
END
    if [ -n "${ARGS:-}" ]; then
        # shellcheck disable=SC2086
        batch "One batch" "as asked for." $ARGS
    else
        batch "Sequences of equal length" "4 of 128 tokens in, 32 out." -b 4 -t 128 --target 32
        batch "One long sequence" "1024 tokens in, 256 out." -b 1 -t 1024 --target 256
        batch "Sequences of unequal lengths" "as in a mixture of tasks; transformers pads to 512 + 96, here nothing is padded." \
            --lengths 512+96,16+4,300+48,128+32,64+8,40+16,24+4,200+24
    fi
    footer
}

mkdir -p dev/results
if [ -n "$is_t5" ]; then name=single_t5; else name=single; fi
if [ -n "$is_t5" ]; then t5 >"$work/result"; else gpt2 >"$work/result"; fi
cp "$work/result" "dev/results/$name.md"
cat "dev/results/$name.md"
