#!/usr/bin/env bash
# What CUDA kernels do, counted on the emulator (doc/cuda.md); no card is needed, nvcc is.
#   dev/count_kernels.sh            a table: instructions, memory, bank conflicts of each kernel at GPT-2's and T5's widths
#   dev/count_kernels.sh worst      the instructions whose accesses waste most
#   dev/count_kernels.sh coverage   basic blocks that no test of kernels and no trainer goes through
. "$(dirname "$0")/help.sh"
set -eu
cd "$(dirname "$0")/.."
what=${1:-counts}
case $what in counts | worst | coverage) ;; *) echo "count_kernels: $what ---> counts, worst or coverage" >&2; exit 1 ;; esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export EMU_COUNTS=$work/counts
if [ "$what" = coverage ]; then
    for test in kernels train; do TEST_ALL=1 bash test/test_cuda_$test.sh >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }; done
else
    bench=build/release-emu${EMU_ARCH-}-bf16/cuda_bench_operations
    make -s -j"$(nproc)" BACKEND=emu PRECISION=BF16 $bench >&2
    EMU_ACCESSES=1 $bench --sizes few >"$work/log" || { cat "$work/log"; exit 1; }
fi
python3 test/ptx/report.py "$what" "$EMU_COUNTS"
