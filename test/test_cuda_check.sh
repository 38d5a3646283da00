#!/usr/bin/env bash
# This repository's models under dynapipe_check_model() where values live on a GPU: the emulator's, in bf16. And dev/gpu_check.sh,
# which nobody runs here: what it makes of a machine that has what it needs, or has not, with stand-ins for the machine's tools.
# concerns: llmc/cuda dynapipe_plugin/cuda dynapipe_plugin/measure dev/gpu_check.sh test/cuda_emu test/ptx
. "$(dirname "$0")/check_lib.sh"
. dev/mpi_env.sh
unset MAKEFLAGS MFLAGS BUILD BACKEND PRECISION CFLAGS
command -v g++ >/dev/null || skip_all "no g++ ---> dev/setup.sh"
command -v mpicc >/dev/null || skip_all "no mpicc ---> dev/setup.sh"
[ -n "$(make -s BACKEND=emu print-nvcc)" ] || skip_all "no nvcc ---> install cuda-nvcc, cuda-cudart-dev and libcublas-dev of CUDA 12 or later, or set CUDA_HOME"
log=$work/gpu_check.log out=build/release-emu${EMU_ARCH-}-bf16
make -s -j2 BACKEND=emu PRECISION=BF16 $out/cuda_check $out/cuda_bench_steps 2>&1 || exit 1
$out/cuda_check >"$work/log" 2>&1
rc=$?
cat "$work/log"
read -r passed failed skipped < <(sed -nE 's/^([0-9]+) passed, ([0-9]+) failed, ([0-9]+) skipped$/\1 \2 \3/p' "$work/log" | tail -1)
[ $rc -eq 0 ] || [ "${failed:=0}" -gt 0 ] || failed=1

# --- dev/gpu_check.sh --------------------------------------------------------------------------------------------
export GPU_CHECK_WORK=$work/parts OUT=$work/out
mkdir -p "$work/bin" "$work/parts"
stand_in() {  # tool, its script
    printf '#!/bin/sh\n%s\n' "$2" >"$work/bin/$1" && chmod +x "$work/bin/$1"
}
gpu_check() {  # part: output in gpu_check.log
    PATH=$work/bin:$PATH timeout -k 5 60 dev/gpu_check.sh "$@" >"$work/gpu_check.log" 2>&1
}
# One card with 40 GiB free; /dev/shm as a container has it.
# shellcheck disable=SC2016
stand_in nvidia-smi '[ -z "$BROKEN" ] || { echo "NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver."; exit 9; }
    case "$*" in "") echo "| CUDA Version: ${DRIVER:-99.0} |";; *compute-apps*) [ -z "$OTHERS" ] || echo "$OTHERS";; *memory.free*) echo ${FREE:-40960};;
    "-i 1 "*compute_cap*) echo 9.0;; *compute_cap*) echo ${CARD:-9.0};; *) for i in $(seq ${CARDS:-1}); do echo "NVIDIA Stand-in${KINDS:+ $i}"; done;; esac'
# shellcheck disable=SC2016
stand_in df 'printf "Filesystem 1024-blocks Used Available Capacity Mounted\nshm 65536 0 ${SHM_KIB:-65536} 0%% /dev/shm\n"'
gpu_check --part needs
grep -q '^2 ranks on 1 card(s): at most 80 s and 19456 MiB each' "$work/gpu_check.log" &&
    grep -q '^4 ranks on 1 card(s): at most 160 s and 9216 MiB each' "$work/gpu_check.log"
ok $? "four ranks on one card: $(grep -om1 '^4 ranks.*' "$work/gpu_check.log")"
grep -q '^/dev/shm has 64 MiB free ---> docker run --shm-size' "$work/gpu_check.log"
ok $? "a small /dev/shm: $(grep -om1 '^/dev/shm.*' "$work/gpu_check.log" | cut -c1-90)"
CARDS=4 FREE=4096 gpu_check --part needs
[ $? -ne 0 ] && grep -q '^4 ranks on 4 card(s): at most 40 s and 3072 MiB each' "$work/gpu_check.log"
ok $? "with four cards it is a failure, and each rank has its own"
SHM_KIB=4000000 FREE=4096 gpu_check --part needs
! grep -q '^/dev/shm' "$work/gpu_check.log" && grep -q '^4 ranks on 1 card(s): 4096 MiB are too little, left out --->' "$work/gpu_check.log"
ok $? "a card that others fill: $(grep -om1 '^4 ranks.*' "$work/gpu_check.log")"
# name, exit status, what it says, variables: of a machine that is otherwise fit.
machine() {
    local name=$1 status=$2 says=$3 rc
    shift 3
    (export SHM_KIB=4000000 "$@"; gpu_check --part needs)
    rc=$?
    [ $rc -eq "$status" ] && grep -qE "$says" "$work/gpu_check.log"
    ok $? "$name (exit $rc): $(grep -oEm1 "$says" "$work/gpu_check.log" | cut -c1-110)"
}
machine "a machine that has all" 0 '^NVIDIA Stand-in' FREE=40960
machine "a driver that is too old" 1 '^the driver is for CUDA 11, nvcc is of CUDA [0-9]+ --->.*' DRIVER=11.8
machine "a card too old" 1 'sm_75 has no bf16 on tensor cores --->.*' CARD=7.5
machine "a card too small" 1 '^1 ranks on 1 card\(s\): 1400 MiB are too little, left out --->.*' FREE=1400
machine "cards of two kinds" 0 '^cards of several kinds: NVIDIA Stand-in 1,NVIDIA Stand-in 2; the first is measured --->.*' CARDS=2 KINDS=1
machine "the newer of two" 0 '^NVIDIA Stand-in' CARD=7.5 CUDA_VISIBLE_DEVICES=1
machine "a driver that does not answer" 1 '^missing ---> a card and its driver: NVIDIA-SMI has failed.*' BROKEN=1
machine "no nvcc for the emulator" 1 '^missing ---> nvcc .*' EMULATED=1 NVCC=
machine "no NCCL for two cards" 1 '^2 cards, but no NCCL.*--->.*' CARDS=2 NO_NCCL=1
machine "somebody else on the card" 1 '^others use the card: 4711, python, 2000 MiB --->.*' "OTHERS=4711, python, 2000"

# One test hangs, the others are through.
# shellcheck disable=SC2016
stand_in compute-sanitizer 'case "$*" in *racecheck*test_ops_attention*) sleep 20;; esac; echo "========= ERROR SUMMARY: 0 errors"'
SANITIZER_SECONDS=1 gpu_check sanitizer
[ $? -eq 1 ] && grep -q '^- racecheck test_ops_attention: \*\*out of time\*\*' "$work"/out/gpu-*.md && grep -q '^- memcheck test_ops_attention: ERROR SUMMARY: 0' "$work"/out/gpu-*.md
ok $? "a sanitizer that runs out of time is a failure: $(grep -hom1 'racecheck test_ops_attention.*' "$work"/out/gpu-*.md)"
tar -xzOf "$work"/out/gpu-stand.tgz logs.txt 2>&1 | grep -q 'ran out of time --->' && tar -tzf "$work"/out/gpu-stand.tgz | grep -q '^gpu-stand.md$'
ok $? "one file to send: $(grep -om1 'please send .*' "$work/gpu_check.log")"

# Targets: PyTorch's where it is there, else a list's.
tables() {
    printf '| all 1024 | 64 | forward | 900 | 200 | 30 %% | 190 | yes |\n| all 1024 | 64 | backward | 900 | 100 | 30 %% | 90 | yes |\n' >"$work/operations.md"
    printf '| 1 ... 2048 | 64 | forward | 900 | 200 | 30 %% | 190 | yes |\n' >>"$work/operations.md"
    printf '| d12 | 1 x 64 x 1024 | 9 | 9 | 410000 | 300 | 40 %% | 1 | 1 | 1 | 1 | 10.9 | 400000 | yes |\n' >"$work/steps.md"
    dev/cuda_bench/against_torch.sh "$1" "$work/operations.md" "$work/steps.md"
    cat "$work/operations.md" "$work/steps.md" >"$work/gpu_check.log"
}
printf '| cuDNN | 1024 | 9 | 900 | 9 | 900 |\n| flash | 1024 | 9 | 229 | 9 | 150 |\n\n### GPT-2 124M, a step of 32 x 1024 tokens\n\n70.0 ms, 468114 tokens/s.\n' >"$work/torch.md"
tables "$work/torch.md"
grep -q 'forward .* 195 (85 % of PyTorch) | yes |' "$work/operations.md" && grep -q 'backward .* 128 (85 % of PyTorch) | \*\*no\*\* |' "$work/operations.md" &&
    grep -q '1 ... 2048 .* 190 (no reference) | yes |' "$work/operations.md" && grep -q ' 468114 (PyTorch) | \*\*no\*\* |' "$work/steps.md"
ok $? "targets are PyTorch's of the same run"
tables "$work/nowhere"
[ "$(cat "$work/operations.md" "$work/steps.md" | grep -c '(no reference) | yes |')" -eq 4 ]
ok $? "without PyTorch they are the list's, and say so"

# A product on plain tiles in a part that measures.
mkdir -p "$work/parts"
EMULATED=1 EMU_CUBLASLT_REFUSE=15:192 gpu_check steps
[ $? -eq 1 ] && grep -q 'steps | .*cuBLASLt refused [0-9]* products' "$work"/out/gpu-emulator.md
ok $? "a product that cuBLASLt refuses is a failure: $(grep -hom1 'cuBLASLt refused [0-9]* products' "$work"/out/gpu-emulator.md)"
EMULATED=1 gpu_check steps
ok $? "the same where it serves them all"
finish
