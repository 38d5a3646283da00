#!/usr/bin/env bash
# Laws of the GPU build, on a machine without a GPU: everything compiles and links for all cards without a warning; no kernel
# takes more registers or spills more than dev/results/kernel_resources.md says; a program that finds no GPU says what would
# work, once, with exit status 2; and the Makefile's errors name what to do.
# concerns: llmc/cuda dynapipe_plugin/cuda dynapipe_plugin/adapters cuda.mk
. "$(dirname "$0")/check_lib.sh"
. dev/mpi_env.sh
unset GPU_ARCHS PTX_ARCH KEEP_PTX PRECISION BACKEND NO_NCCL DEBUG
export DYNAPIPE_CACHE=$work/costs
make -s BACKEND=cuda cuda-found DYNAPIPE=1 >"$work/found" 2>&1 || skip_all "$(head -1 "$work/found")"
cat "$work/found"
export JOBS=${JOBS:-2}
# From the PTX that users' builds have, with optimization for one card, whose registers are compared; for the others quickly,
# without. FULL=1: all as for users (minutes).
[ -n "${FULL:-}" ] || export GPU_ARCHS=90 PTX_ARCH=80 KEEP_PTX=1

# --- all programs, all cards ---------------------------------------------------------------------------------
programs=()
build() {  # program, its make target's arguments...
    local name=$1 begin=$SECONDS
    shift
    make -j"$JOBS" "$@" >"$work/$name.log" 2>&1 && ! grep -qi warning "$work/$name.log"
    ok $? "make $*: without a warning, $((SECONDS - begin)) s" "$work/$name.log"
}
build alone train_gpt2cu
build profiler profile_costscu
build trainer train_gpt2cu DYNAPIPE=1
build t5-alone train_t5cu
build t5-trainer train_t5cu DYNAPIPE=1
build llama-trainer train_llamacu DYNAPIPE=1
[ -n "${FULL:-}" ] ||
    build others BACKEND=cuda OTHER_CARDS="80 100" cuda-other-cards
# Kernels whose values must not depend on which of their instances runs (doc/cuda.md, "The same bits"): ptxas may fuse a product
# and a sum that are not marked .rn, in each as it likes.
# shellcheck disable=SC2016
[ -n "${FULL:-}" ] || {
    ptx=(build/release-cuda-fp32/llmc/cuda/{optimizer,elementwise,norms}.ptx)
    build float32 BACKEND=cuda PRECISION=FP32 "${ptx[@]}"
    awk '/[.]entry/ { kernel = $0; split("", product) }
         { gsub(/[,;]/, "") }
         $1 == "mul.f32" { product[$2] }
         $1 ~ /^(add|sub)[.]f32$/ && ($3 in product || $4 in product) && kernel ~ /adamw|gelu|gated|norm_(rows|any)/ { print kernel; n++ }
         $1 == "fma.rn.f32" { fused++ }
         END { exit n > 0 || fused == 0 }' "${ptx[@]}" "${ptx[@]/fp32/bf16}" >"$work/fusible.log" 2>&1
    ok $? "the PTX leaves ptxas no sum of a product where bits must be equal" "$work/fusible.log"
}
alone=build/release-cuda-bf16/train_gpt2 trainer=build/release-cuda-bf16/train_gpt2-dynapipe t5=build/release-cuda-bf16/train_t5 profiler=build/release-cuda-bf16/profile_costs

dev/kernel_resources.sh >"$work/resources.log" 2>&1
rc=$?
grep -E '^kernel_resources|^skip|^FAIL|^--->' "$work/resources.log"
if [ $rc -eq 77 ]; then skipped=$((skipped + 1)); else ok $rc "registers and spills as in dev/results/kernel_resources.md" "$(grep -q "^FAIL" "$work/resources.log" || echo "$work/resources.log")"; fi

# --- no GPU: exit status 2, one message, what to do -----------------------------------------------------------
no_gpu() {  # name, messages at most, command...
    local name=$1 most=$2 rc said
    shift 2
    timeout -k 5 60 "$@" >"$work/$name.out" 2>&1 </dev/null
    rc=$?
    said=$(grep -c -- '--->' "$work/$name.out")
    [ $rc -eq 2 ] && [ "$said" -ge 1 ] && [ "$said" -le "$most" ] && grep -qE -- '--->.*train_gpt2, make train_t5' "$work/$name.out"
    ok $? "$name without a GPU: exit status $rc (2), $said message (at most $most) with a way out" "$work/$name.out"
}
if nvidia-smi -L >/dev/null 2>&1; then
    skip "a machine with a GPU has no such errors ---> dev/gpu_check.sh for what it can show"
else
    make -s build/release/bench_lengths >/dev/null 2>&1 && build/release/bench_lengths --out "$work/train.bin" --samples 50 --vocab 300 >"$work/lengths.log" 2>&1
    ok $? "samples of made-up lengths" "$work/lengths.log"
    args=(-i "$work/train.bin" -e l2c64h2 -t 64 -b 1 -x 1 -v 0 -s 0)
    no_gpu train_gpt2cu 1 "$alone" "${args[@]}"
    no_gpu profile_costscu 1 "$profiler" --model l2c64h2
    no_gpu train_gpt2cu-dynapipe 1 "$trainer" "${args[@]}"
    no_gpu train_t5cu 1 "$t5" "${args[@]}" -e t5:l1d1c64h2
    no_gpu train_t5cu-dynapipe 1 "$t5-dynapipe" "${args[@]}" -e t5:l1d1c64h2
    command -v mpirun >/dev/null && no_gpu train_gpt2cu-2-ranks 1 mpirun --quiet -np 2 "$trainer" "${args[@]}"
fi

# --- the Makefile's errors ------------------------------------------------------------------------------------
refuses() {  # what, what the message has, make's arguments...
    local what=$1 has=$2
    shift 2
    env -u GPU_ARCHS make -s BACKEND=cuda cuda-found "$@" >"$work/refuse" 2>&1
    [ $? -eq 2 ] && grep -qE -- "$has.*--->|--->.*$has" "$work/refuse"
    ok $? "$what: $(grep -m1 -- '--->' "$work/refuse")" "$work/refuse"
}
refuses "no nvcc" "CUDA toolkit" NVCC=
refuses "cards that nvcc does not know" "GPU_ARCHS=" GPU_ARCHS=70
refuses "a toolkit without headers" "CUDA_HOME=" CUDA_HOME=/nowhere CC="gcc --sysroot=/nowhere"
refuses "another precision" "BF16 or FP32" PRECISION=INT4
nvidia-smi -L >/dev/null 2>&1 || refuses "native cards where there are none" "GPU_ARCHS=90" GPU_ARCHS=native
# An old release: a file that answers as that nvcc would.
printf '#!/bin/sh\ncase "$1" in --version) echo "release 11.8, V11.8.89";; *) echo sm_80;; esac\n' >"$work/nvcc"
chmod +x "$work/nvcc"
refuses "CUDA 11" "CUDA 12.0" NVCC="$work/nvcc"
make -s BACKEND=cuda cuda-found NCCL_HOME=/nowhere NO_NCCL=1 2>&1 | grep -q "left out"
ok $? "NO_NCCL=1 leaves NCCL out"
finish
