#!/usr/bin/env bash
# This repository's models under dynapipe_check_model() where values live on a GPU: the emulator's, in bf16.
set -u
cd "$(dirname "$0")/.."
. dev/mpi_env.sh
unset MAKEFLAGS MFLAGS BUILD BACKEND PRECISION CFLAGS
skip() {  # what is missing, remedy
    echo "skip $(basename "$0" .sh): $1 ---> $2"
    echo "0 passed, 0 failed, 1 skipped"
    exit 77
}
command -v g++ >/dev/null || skip "no g++" "dev/setup.sh"
command -v mpicc >/dev/null || skip "no mpicc" "dev/setup.sh"
[ -n "$(command -v nvcc)$(ls /usr/local/cuda/include/cuda_runtime.h 2>/dev/null)" ] ||
    skip "no CUDA toolkit here" "install one for its headers"
out=build/release-emu-bf16
make -s -j2 BACKEND=emu PRECISION=BF16 $out/cuda_check 2>&1 || exit 1
exec $out/cuda_check
