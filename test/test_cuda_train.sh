#!/usr/bin/env bash
# Laws of whole runs on emulated GPUs (test/ptx, test/cuda_emu): the trainer with kernels, streams, NCCL and staging learns what the CPU's
# does, on 2 stages x 2 replicas, whatever order streams run in; what is missing or in the wrong place is caught; and without
# the cards it asks for it says so and ends with status 2.
# concerns: llmc/cuda llmc/model llmc/transformer llmc/head dynapipe_plugin/cuda dynapipe_plugin/run test/cuda_emu test/ptx
here=$(cd "$(dirname "$0")" && pwd)
. "$here/train_lib.sh"
[ -n "$(make -s BACKEND=emu print-nvcc)" ] ||
    skip_all "no nvcc ---> install cuda-nvcc, cuda-cudart-dev and libcublas-dev of CUDA 12 or later, or set CUDA_HOME"
make_emulated() {  # precision, build, target...
    local precision=$1 build=$2 out
    out=build/$build-emu${EMU_ARCH-}-${precision,,}
    shift 2
    make -s -j2 BACKEND=emu PRECISION="$precision" BUILD="$build" "${@/#/$out/}" >"$work/build.log" 2>&1 ||
        { grep -iE 'error|undefined' "$work/build.log" | head; exit 1; }
}
make_emulated FP32 release train_gpt2-dynapipe train_t5-dynapipe train_llama-dynapipe train_gpt2-fault_NO_EVENT cuda_sums cuda_links
make_emulated BF16 release train_gpt2-dynapipe train_t5-dynapipe train_llama-dynapipe profile_costs
release=build/release-emu${EMU_ARCH-} cpu=$trainer
fp32=$release-fp32/train_gpt2 bf16=$release-bf16/train_gpt2

make_data 300 120 byt5
mv "$work/data" "$work/pairs"
make_data 300 120
export EMU_DEVICES=4 EMU_HANG_S=60
base="-i $work/data/train.bin -j $work/data/val.bin -e l4c64h2 -t 64 -d 200 -l 1e-3 -k constant -x 2 -v 0 -s 0 --refit off --debug effort=50 --debug measure-seconds=0 --comm-timeout 30"
two="--stages 2 --placement 2,2 --head whole"

steps() {  # name of a run: its losses and norms, as printed
    sed -nE 's/^step +([0-9]+).* loss ([^ ]+) .* norm ([^ ]+) .*/\2 \3/p; s/^val loss ([^ ]+).*/\1 0/p' "$work/$1.log"
}
# Largest relative difference of two runs' losses and norms; "none" where one has other steps than the other.
difference() {
    paste -d' ' <(steps "$1") <(steps "$2") | awk '
        NF != 4 {bad = 1} {for (i = 1; i <= 2; i++) {d = $i - $(i + 2); if (d < 0) d = -d; d /= 1 + $i; if (!(d <= m)) m = d}}
        END {if (bad || NR == 0) print "none"; else print m + 0}'
}
as_on_the_cpu() {  # name, bound, what
    local d
    d=$(difference "$1" "${4:-cpu}")
    ok "$(awk -v d="$d" -v b="$2" 'BEGIN {print !(d != "none" && d == d + 0 && d < b)}')" "$3: within $2 of the CPU ($d)"
    [ "$d" != none ] || tail -3 "$work/$1.log"
}
# What the model answered, to the last letter: argmax of logits that are the CPU's within 1e-6 or so.
answers() {
    LC_ALL=C sed -nE 's/^val loss [^|]*\| (exact match.*)/\1/p; /^  (asked|answers) /p' "$work/$1.log"
}
same_answers() {  # name, name of the CPU's, what
    local num
    num=$(answers "$2" | grep -ac '^  answers  .')
    [ "$num" -gt 0 ] && cmp -s <(answers "$1") <(answers "$2")
    ok $? "$3: the CPU's answers, $num shown"
}
"$bf16-dynapipe" --version >"$work/version" && grep -q "^CUDA: " "$work/version" && grep -qE "^NCCL: [0-9]+\.[0-9]+\.[0-9]+$" "$work/version"
ok $? "--version names CUDA and NCCL: $(paste -sd, "$work/version")"

emulated() {  # name, program, arguments...
    local name=$1 trainer=$2
    shift 2
    run "$name" 4 $base $two "$@"
}

# What two steps took of the cards, from metrics.jsonl: bytes planned, bytes used.
memory_as_planned() {  # name of a run with -o
    local memory
    memory=$(sed -nE 's/.*"peak_bytes":\[([^]]*)\].*"rss_bytes":\[([^]]*)\].*/\1,\2/p' "$work/$1/metrics.jsonl")
    awk -F, '{n++; for (i = 1; i <= 4; i++) bad += !($(i + 4) > 0.9 * $i && $(i + 4) <= $i)} END {exit !(n == 2 && !bad)}' <<<"$memory"
    ok $? "$1: memory of the cards: what was planned, never more (bytes planned, used: $(tail -1 <<<"$memory"))"
}

# A run on the CPU measures costs in a moment, on the emulator longer than all else: they are the GPU's with another name. Only `gpipe` and those
# with its costs measure for themselves.
on_cpu() {  # name, arguments...
    DYNAPIPE_CACHE=$work/costs-$1 run "$1" 1 "${@:2}"
}
costs() {  # name of a run on the CPU, precision
    sed "s/threads [0-9]*/$2 CUDA_emulated_on_a_CPU/" "$work/costs-$1"/*.costs >"$work/$1.$2"
    echo "--costs $work/$1.$2"
}
trainer=$cpu on_cpu cpu $base
validate="-v 1 -m 4 -x 1 --answers 1 -g 6 -s 1"
trainer=$cpu on_cpu cpu-val $base $validate

# --- fp32: 1e-4. NCCL's connections: each of them more than the margin that the memory limit leaves ------------------------
connections() {  # name, arguments...
    EMU_DEVICE_BYTES=12e9 EMU_NCCL_CONNECT_BYTES=6e8 emulated "$1" "$fp32-dynapipe" --comm-timeout 10 "${@:2}"
}
EMU_SEED=1 connections gpipe --schedule gpipe --split-backward off --recompute none -o "$work/gpipe"
as_on_the_cpu gpipe 1e-4 "gpipe, connections before memory is counted, those for copies of parameters taken from the limit"
memory_as_planned gpipe  # connections are not the model's
NCCL_RUNTIME_CONNECT=1 connections late
[ $? -ne 0 ] && grep -q 'no room to connect' "$work/late.log" && ! grep -q '^step .*1/' "$work/late.log" &&
    [ "$(grep -c '^warning: NCCL_RUNTIME_CONNECT=1 is set' "$work/late.log")" -eq 1 ] && ! grep -q NCCL_RUNTIME_CONNECT "$work/gpipe.log"
ok $? "NCCL_RUNTIME_CONNECT=1, step 1 connects: $(grep -om1 'error.*out of memory[^)]*' "$work/late.log" | cut -c1-120)"
NCCL_RUNTIME_CONNECT=1 timeout -k 5 60 mpirun --quiet -np 2 build/release-emu${EMU_ARCH-}-fp32/cuda_sums alone >"$work/alone.log" 2>&1
[ $? -eq 1 ] && [ "$(grep -c '^rank 0: error: NCCL: a sum of gradients: the host waits inside for 1.0 s' "$work/alone.log")" -eq 1 ]
ok $? "a host that waits inside NCCL for a rank that does not come: $(grep -om1 'error.*s --->' "$work/alone.log")"
EMU_SEED=2 EMU_NCCL_SERIAL=1 emulated 1f1b "$fp32-dynapipe" --schedule 1f1b --split-backward on -z 1 --resplit 1:1,3 --trace "$work/trace.json" --show-step 2
as_on_the_cpu 1f1b 1e-4 "1f1b, split backward, shared optimizer, layers moved behind step 1, NCCL in the most pessimistic order"
[ "$(grep -c '"ph": *"X"' "$work/trace.json")" -gt 20 ] && ! grep -q '"dur": *-' "$work/trace.json"
ok $? "the trace has jobs and transfers in the device's time"

# --- any piece of the model on any rank, the head shared ---------------------------------------------------------
placed() {  # name, placement, head, more
    EMU_NCCL_SERIAL=1 run "$1" 4 --stages 2 $base --placement "$2" --head "$3" "${@:4}"
}
trainer=$fp32-dynapipe
EMU_SEED=5 placed vee vee vocabulary -z 1
as_on_the_cpu vee 1e-4 "a vee of two stages, the head by vocabulary, shared optimizer, NCCL in the most pessimistic order"
EMU_SEED=6 placed interleaved interleaved rows $validate
as_on_the_cpu interleaved 1e-4 "interleaved chunks, the head by rows, and validation" cpu-val
same_answers interleaved cpu-val "interleaved chunks, the head by rows"
EMU_SEED=7 EMU_DEVICES=1 placed mpi vee vocabulary --transport mpi -z 1 $validate
as_on_the_cpu mpi 1e-4 "the vee of four ranks on one GPU through MPI, and validation" cpu-val
same_answers mpi cpu-val "the vee on one GPU through MPI"

EMU_SEED=8 EMU_NCCL_SERIAL=1 run auto 4 $base --memory-limit 5M $(costs cpu fp32)
as_on_the_cpu auto 1e-4 "$(grep -o '[24] stages x [12] replicas' "$work/auto.log"), chosen since a whole model does not fit"

# --- samples in pieces: keys and values of earlier pieces on the card, their gradients in float32 ------------------------
make_long_data "$work/long"
long="-i $work/long/train.bin -e l4c64h2 -t 400 -d 500 -x 1 -v 0 -s 0 --dropout 0.1 --refit off --debug effort=50 --debug measure-seconds=0 --comm-timeout 30"
trainer=$cpu on_cpu cpu-long $long --debug dump-gradients="$work/cpu-long.bin"
for transport in nccl mpi; do
    EMU_SEED=8 EMU_NCCL_SERIAL=1 trainer=$fp32-dynapipe run pieces-$transport 4 $long $(costs cpu-long fp32) --stages 4 --transport $transport --debug dump-gradients="$work/pieces.bin" \
        --show-step 1 --debug dump-plan="$work/pieces.plan"
    as_on_the_cpu pieces-$transport 1e-4 "samples in pieces, $transport" cpu-long
    "$build/tools/compare_checkpoints" "$work/pieces.bin" "$work/cpu-long.bin" 1e-5 >"$work/compare.log" && grep -q ' continues ' "$work/pieces.plan"
    ok $? "$(grep -c ' continues ' "$work/pieces.plan") later pieces, $transport: gradients, $(tail -1 "$work/compare.log")"
done

# --- bf16: activations have 8 bits, 2^-9 off each; over 4 layers about 1e-3 of a loss of 5.5, and 1e-2 of a norm --------------
EMU_SEED=5 emulated bf16 "$bf16-dynapipe" $(costs cpu bf16) --split-backward on -z 1 --resplit 1:3,1
as_on_the_cpu bf16 2e-2 "bf16, layers and master weights moved behind step 1"
EMU_SEED=6 EMU_DEVICES=2 emulated bf16-mpi "$bf16-dynapipe" $(costs cpu bf16) --transport mpi --recompute full
as_on_the_cpu bf16-mpi 2e-2 "bf16, two GPUs for four ranks, recomputation"
cmp -s <(steps bf16) <(steps gpipe)
ok "$((! $?))" "bf16 is not fp32"

# --- T5: two stacks, tensors that three stages share, dropout, a cache of keys and values for answers ---------------------
pairs="-i $work/pairs/train.bin -j $work/pairs/val.bin -t 64 --target-tokens 24 -d 200 -l 1e-3 -k constant -x 2 -v 2 -m 4 --answers 1 -g 6 -s 2
    --dropout 0.1 --debug effort=50 --comm-timeout 30"
tied="$pairs -e t5:l2d2c64h2k32f128 --optimizer adamw-scaled"
t5() {  # name, ranks, build, arguments...
    trainer=$3/train_t5-dynapipe run "$1" "$2" --debug dump-gradients="$work/$1.bin" "${@:4}"
}
t5_as_on_the_cpu() {  # name, the CPU's, what
    as_on_the_cpu "$1" 1e-4 "$3" "$2"
    "$build/tools/compare_checkpoints" "$work/$1.bin" "$work/$2.bin" 1e-5 >"$work/compare.log"
    ok $? "$3: gradients, $(tail -1 "$work/compare.log")"
    same_answers "$1" "$2" "$3"
}
trainer=$build/train_t5-dynapipe on_cpu cpu-t5 $tied --debug dump-gradients="$work/cpu-t5.bin"
trainer=$build/train_t5-dynapipe on_cpu cpu-all $tied --dropout 0 --debug dump-gradients="$work/cpu-all.bin"
EMU_SEED=7 EMU_NCCL_SERIAL=1 t5 t5 3 $release-fp32 $tied $(costs cpu-t5 fp32) --stages 3 --placement 1,2,1 --head whole --recompute full --resplit 1:2,2,0
t5_as_on_the_cpu t5 cpu-t5 "T5 on three stages by NCCL, recomputation, layers moved behind step 1"
EMU_SEED=8 EMU_DEVICES=1 t5 t5-mpi 3 $release-fp32 $tied --dropout 0 $(costs cpu-all fp32) --stages 3 --placement 2,2,0 --head whole --batching padded --split-backward on --transport mpi
t5_as_on_the_cpu t5-mpi cpu-all "T5 without dropout on three stages through MPI, padded, the head alone, split backward"
gated="$pairs -e flan-t5:l2d2c64h2k32f128"
trainer=$build/train_t5-dynapipe on_cpu cpu-gated $gated
EMU_SEED=9 t5 t5-bf16 4 $release-bf16 $gated $(costs cpu-gated bf16) --stages 2 -z 1
as_on_the_cpu t5-bf16 2e-2 "T5 in bf16, gated, 2 stages x 2 replicas, shared optimizer" cpu-gated
t5 heads 2 $release-fp32 $pairs -e t5:l2d2c64h2k20f128 --stages 2
[ $? -eq 1 ] && [ "$(grep -c 'head size 20 ---> on a GPU' "$work/heads.log")" -eq 1 ]
ok $? "heads that a GPU cannot have: $(grep -om1 'error.*' "$work/heads.log")"

# --- Llama: rotary positions, scaled, grouped heads of keys, their cache for answers --------------------------------------
trainer=$build/train_llama-dynapipe run shape 1 -i "$work/data/train.bin" -e qwen2:l2c64h4g2k32 -t 64 -d 200 -x 0 -v 0 -s 0 --export-hf "$work/scaled"
sed -i 's/"rope_theta"/"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 32}, &/' \
    "$work/scaled/config.json" && grep -q '"llama3"' "$work/scaled/config.json"
ok $? "a Llama with scaled angles"
heads="-i $work/data/train.bin -j $work/data/val.bin -e $work/scaled -t 64 -d 200 -l 1e-3 -k constant -x 2 -v 2 -m 4 --answers 1 -g 6 -s 2
    --refit off --debug effort=50 --debug measure-seconds=0 --comm-timeout 30"
trainer=$build/train_llama-dynapipe on_cpu cpu-llama $heads
trainer=$release-fp32/train_llama-dynapipe run llama 2 $heads $(costs cpu-llama fp32) --stages 2 --placement 1,1 --head whole --recompute full
as_on_the_cpu llama 1e-4 "Llama on two stages, recomputation" cpu-llama
same_answers llama cpu-llama "Llama on two stages"
trainer=$release-bf16/train_llama-dynapipe run llama-bf16 4 $heads $(costs cpu-llama bf16) --stages 2 --placement 0.5,1.5 --head whole -z 1
as_on_the_cpu llama-bf16 2e-2 "Llama in bf16, 2 stages x 2 replicas, shared optimizer" cpu-llama

# --- SANITIZE=1: the host's code under AddressSanitizer (minutes to build) ----------------------------------------
if [ -n "${SANITIZE:-}" ]; then
    make_emulated BF16 asan train_gpt2-dynapipe train_t5-dynapipe
    export ASAN_OPTIONS=detect_leaks=0  # MPI's
    export EMU_DEVICE_BYTES=1e9
    emulated asan build/asan-emu${EMU_ARCH-}-bf16/train_gpt2-dynapipe $(costs cpu bf16) -z 1 --resplit 1:1,3
    as_on_the_cpu asan 2e-2 "bf16 under AddressSanitizer, NCCL"
    EMU_DEVICES=1 emulated asan-mpi build/asan-emu${EMU_ARCH-}-bf16/train_gpt2-dynapipe $(costs cpu bf16) --transport mpi
    as_on_the_cpu asan-mpi 2e-2 "bf16 under AddressSanitizer, through MPI"
    t5 asan-t5 3 build/asan-emu${EMU_ARCH-}-bf16 $gated $(costs cpu-gated bf16) --stages 3
    as_on_the_cpu asan-t5 2e-2 "T5 in bf16 under AddressSanitizer, NCCL" cpu-gated
    unset EMU_DEVICE_BYTES
fi

# --- sums alone: tied groups on random stages, then replicas -------------------------------------------------------
for transport in nccl mpi; do
    for ranks in 3 4; do
        EMU_SEED=$ranks EMU_NCCL_SERIAL=1 timeout -k 5 60 mpirun -np $ranks build/release-emu${EMU_ARCH-}-fp32/cuda_sums $transport >"$work/sums.log" 2>&1
        rc=$?
        ok $rc "tied groups of $ranks ranks by $transport are the sums of plain loops"
        [ $rc -eq 0 ] || head -3 "$work/sums.log"
    done
done
NCCL_RUNTIME_CONNECT=1 timeout -k 5 60 mpirun -np 4 build/release-emu${EMU_ARCH-}-fp32/cuda_sums nccl >"$work/sums.log" 2>&1
[ $? -ne 0 ] && grep -q 'free_bytes() == before_bytes' "$work/sums.log"
ok $? "they take no memory; where NCCL connects late they would"

# --- messages alone: any two ranks, some from one to all of its peers ------------------------------------------------
links() {  # ranks, mode
    EMU_SEED=$1 EMU_NCCL_SERIAL=1 timeout -k 5 60 mpirun -np "$1" build/release-emu${EMU_ARCH-}-fp32/cuda_links "$2" >"$work/links.log" 2>&1
}
for run in "3 nccl" "4 mpi"; do
    links $run
    rc=$?
    ok $rc "messages between any of ${run/ / ranks by }, which take no memory of the cards"
    [ $rc -eq 0 ] || head -3 "$work/links.log"
done
links 4 nccl-late
[ $? -ne 0 ] && grep -q 'free_bytes() == before_bytes' "$work/links.log"
ok $? "between ranks that are not connected yet they would"
links 4 mpi-late
[ $? -ne 0 ] && grep -q 'is no peer of rank' "$work/links.log"
ok $? "through pinned memory they are refused: $(grep -om1 'rank . is no peer.*' "$work/links.log")"

# --- the profiler measures the links that training will use, and models ------------------------------------------
profiles() {  # transport, model
    EMU_DEVICES=2 timeout -k 5 60 mpirun -np 2 build/release-emu${EMU_ARCH-}-bf16/profile_costs --model "$2" --tokens 32 --mb-tokens 64 --vocab 257 \
        --seconds 0.0001 --transport "$1" --out "$work/costs.txt" >"$work/profile.log" 2>&1 &&
        grep -qE '^transfers: [0-9.]+ us \+ [0-9.]+ GB/s' "$work/profile.log" && grep -q 'bf16 CUDA_emulated' "$work/costs.txt"
    local rc=$?
    ok $rc "profile_costs --transport $1 of $2: $(grep -o '^transfers[^;]*' "$work/profile.log")"
    [ $rc -eq 0 ] || tail -5 "$work/profile.log"
}
profiles nccl l2c64h2
profiles mpi flan-t5:l1d1c64h2k32f128

# --- planted faults ---------------------------------------------------------------------------------------------
for seed in 1 2 3; do
    EMU_SEED=$seed emulated no-event "$fp32-fault_NO_EVENT"
    d=$(difference no-event cpu)
    awk -v d="$d" 'BEGIN {exit !(d == "none" || !(d < 1e-3))}' && break
done
awk -v d="$d" 'BEGIN {exit !(d == "none" || !(d < 1e-3))}'
ok $? "a send that does not wait for its data is caught (seed $seed: $d)"

# --- no cards ---------------------------------------------------------------------------------------------------
EMU_DEVICES=0 emulated none "$fp32-dynapipe"
[ $? -eq 2 ] && [ "$(grep -c 'finds no GPU.*--->' "$work/none.log")" -eq 1 ]
ok $? "no GPU: status 2, $(grep -om1 'error.*' "$work/none.log")"
EMU_DEVICES=1 emulated few "$fp32-dynapipe"
[ $? -eq 2 ] && [ "$(grep -c 'error: .*---> --transport mpi' "$work/few.log")" -eq 1 ]
ok $? "one GPU: status 2, $(grep -om1 'error.*' "$work/few.log")"
finish
