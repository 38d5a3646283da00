#!/usr/bin/env bash
# Do the sources compile with CUDA 12, where only a newer nvcc is at hand? Every call of ours against CUDA 12's headers (host code
# too: nvcc's front end reads it in the same pass), and the PTX that comes of it through CUDA 12's own ptxas.
#   CUDA12=/path dev/check_cuda12.sh     a toolkit, or unpacked wheels (nvidia-cuda-nvcc-cu12, nvidia-cuda-runtime-cu12,
#                                        nvidia-cublas-cu12, nvidia-nccl-cu12, nvidia-nvtx-cu12): the folder "nvidia" of them
# What it cannot show: what CUDA 12's nvcc makes of the code. Exit 77 without CUDA12. Three minutes on 2 cores.
. "$(dirname "$0")/help.sh"
set -u
cd "$(dirname "$0")/.."
. dev/mpi_env.sh
skip() { echo "skip check_cuda12: $1"; echo "0 passed, 0 failed, 1 skipped"; exit 77; }
[ -n "${CUDA12:-}" ] || skip "no CUDA12=/path"
nvcc=${NVCC:-$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)}
[ -n "$nvcc" ] || skip "no nvcc, whose front end it needs"
ptxas=$(find "$CUDA12" -path '*bin/ptxas' | head -1)
includes=()
for header in cuda_runtime.h cublasLt.h crt/host_defines.h nccl.h nvtx3/nvToolsExt.h; do
    found=$(find "$CUDA12" -path "*/$header" | head -1)
    if [ -n "$found" ]; then
        includes+=("-I${found%/"$header"}")
    elif [ $header != nccl.h ] && [ $header != nvtx3/nvToolsExt.h ]; then
        skip "no $header below $CUDA12"
    fi
done
[ -n "$ptxas" ] || skip "no bin/ptxas below $CUDA12"
release=$("$ptxas" --version | sed -nE 's/.*release ([0-9.]+).*/\1/p')
case $release in 12.*) ;; *) skip "$ptxas is of CUDA $release" ;; esac
# The newest PTX that this ptxas reads: it names what it knows when asked for what it does not.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf '.version 99.0\n.target sm_80\n.address_size 64\n' >"$work/version.ptx"
ptx=$("$ptxas" -arch=sm_80 "$work/version.ptx" -o "$work/none" 2>&1 | sed -nE "s/.*current version is '([0-9.]+)'.*/\1/p")
[ -n "$ptx" ] || skip "$ptxas does not say which PTX it reads"
echo "CUDA $release: ptxas of PTX $ptx, headers ${includes[*]#-I}"

assembled() {  # PTX, log: for the cards that users' builds name
    local card
    sed -i "s/^\.version .*/.version $ptx/" "$1"
    for card in 80 90 100; do "$ptxas" -O0 -arch=sm_$card "$1" -o "$1.cubin" >>"$2" 2>&1 || return 1; done
}
one() {  # source: its PTX by headers of CUDA 12
    local source=$1 precision=$2 to
    to=$work/$precision-$(basename "$source" .cu)
    if "$nvcc" -std=c++20 -O3 -ptx -arch=compute_80 -Werror all-warnings "${includes[@]}" -DLLMC_CUDA $([ "$precision" = bf16 ] && echo -DLLMC_BF16) \
        "$source" -o "$to.ptx" >"$to.log" 2>&1 && assembled "$to.ptx" "$to.log"; then
        echo "ok   $source, $precision"
    else
        echo "FAIL $source, $precision"
        head -8 "$to.log"
    fi
}
host() {  # source: C and C++ files, of the plugin, the measurements and the emulator
    local compile=(gcc -std=gnu11) mpi=()
    [[ $1 == *.cpp ]] && compile=(g++ -std=gnu++20 -DOMPI_SKIP_MPICXX=1)
    if command -v mpicc >/dev/null; then read -ra mpi <<<"-DDYNAPIPE_MPI $(mpicc --showme:compile 2>/dev/null)"; fi
    if "${compile[@]}" -fsyntax-only -Wall -Wextra -Wno-unused-parameter -Werror "${includes[@]/#-I/-isystem}" -I. -DLLMC_CUDA -DDYNAPIPE_CUDA \
        -DLLMC_BF16 "${mpi[@]}" "$1" >"$work/$(basename "$1").log" 2>&1; then
        echo "ok   $1"
    else
        echo "FAIL $1"
        head -8 "$work/$(basename "$1").log"
    fi
}
nccl=$(find "$CUDA12" -name nccl.h | head -1)
host_sources=$(ls dynapipe_plugin/cuda/*.c dev/cuda_bench/*.c test/cuda_emu/*.cpp test/ptx/*.cpp)
[ -n "$nccl" ] || host_sources=$(grep -v nccl <<<"$host_sources")
export -f assembled one host
export work nvcc ptxas ptx
# arrays do not pass through the environment
declare -p includes >"$work/includes"
{
    for precision in bf16 fp32; do for source in llmc/cuda/*.cu; do echo "one $source $precision"; done; done
    for source in $host_sources; do echo "host $source"; done
} >"$work/jobs"
xargs -P "${JOBS:-$(nproc)}" -L 1 bash -c '. "$work/includes"; "$@"' _ <"$work/jobs" >"$work/all"
status=$?
sort -r "$work/all" | grep -v '^ok'
passed=$(grep -c '^ok' "$work/all") failed=$(grep -c '^FAIL' "$work/all") jobs=$(wc -l <"$work/jobs")
if [ $status -ne 0 ] || [ $((passed + failed)) -ne "$jobs" ]; then  # one that ended without a word did not pass
    echo "FAIL $((jobs - passed - failed)) of $jobs have no result, xargs $status"
    failed=$((jobs - passed))
fi
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
