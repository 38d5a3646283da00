#!/usr/bin/env bash
# Every test of an operation or a CUDA kernel (test_ops*.c, cuda/test_cuda_*.c) on the emulator, in bf16 and, with TEST_ALL=1, float32. Laws are in those files; here: they
# are built, without a warning, hold, and launch every kernel; with EMU_ARCH=90 (make test-all) for other inputs, and in another order of streams and
# threads.
. "$(dirname "$0")/check_lib.sh"
. dev/mpi_env.sh
unset MAKEFLAGS MFLAGS BUILD BACKEND PRECISION CFLAGS
[ -n "$(make -s BACKEND=emu print-nvcc)" ] || skip_all "no nvcc ---> install cuda-nvcc, cuda-cudart-dev and libcublas-dev of CUDA 12 or later, or set CUDA_HOME"

count() {  # exit status, log, what: adds up the closing line
    local p=0 f=0 s=0
    read -r p f s < <(sed -nE 's/^([0-9]+) passed, ([0-9]+) failed, ([0-9]+) skipped$/\1 \2 \3/p' "$2" | tail -1)
    p=${p:-0} f=${f:-0} s=${s:-0}
    if [ "$1" -ne 0 ] && [ "$1" -ne 77 ] && [ "$f" -eq 0 ]; then f=1; fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    if [ "$f" -eq 0 ]; then
        echo "ok   $3: $p passed"
    else
        echo "FAIL $3: exit status $1"
        grep -v '^ok ' "$2" | tail -20
    fi
}

seed=$((1 + ${EMU_ARCH:-0}))
export EMU_COUNTS=${EMU_COUNTS-$work/counts}
for precision in BF16 ${TEST_ALL:+FP32}; do
    out=build/release-emu${EMU_ARCH-}-${precision,,}
    if ! make -s -j2 BACKEND=emu PRECISION=$precision emulated-kernels >"$work/build" 2>&1 || grep -q 'warning:' "$work/build"; then
        failed=$((failed + 1))
        echo "FAIL build of $precision"
        grep -E -A5 'warning:|error:|\*\*\*' "$work/build" | head -30
        continue
    fi
    for name in $(make -s BACKEND=emu print-kernel-tests); do
        EMU_SEED=$seed timeout -k 5 500 "$out/$name" --seed $seed >"$work/log" 2>&1
        count $? "$work/log" "$name, $precision, seed $seed"
    done
done
# A card with 99 KiB of shared memory a block: all but one kernel's largest heads, and of these it is said before
out=build/release-emu${EMU_ARCH-}-bf16
if [ -n "${TEST_ALL:-}" ]; then  # with the registers that each kernel has, too
    ptxas=$(dirname "$(make -s BACKEND=emu print-nvcc)")/ptxas
    for ptx in "$out"/llmc/cuda/*.ptx; do "$ptxas" -v -arch="sm_${EMU_ARCH:-80}" "$ptx" -o "$work/cubin"; done 2>&1 |
        awk -F"'" '/Compiling entry function/ {name = $2} match($0, /Used [0-9]+ reg/) {print name, substr($0, RSTART + 5, RLENGTH - 9)}' >"$work/registers"
    export EMU_REGISTERS=$work/registers
    [ "$(wc -l <"$EMU_REGISTERS")" -gt 100 ]
    ok $? "registers of $(wc -l <"$EMU_REGISTERS") kernels"
fi
for name in ${TEST_ALL:+test_ops} test_ops_attention; do
    env -u EMU_COUNTS EMU_SHARED_BYTES=101376 EMU_SEED=$seed timeout -k 5 500 "$out/$name" --seed $seed >"$work/log" 2>&1
    count $? "$work/log" "$name, BF16, 99 KiB a block"
done
grep -q '^smaller heads: head size [12][0-9]* with position biases .* shared memory, this card.s blocks have [0-9]* --->' "$work/log"
ok $? "99 KiB a block: $(grep -o -m1 "smaller heads: .*" "$work/log" | cut -c1-120)"
reached=$(python3 test/ptx/report.py coverage "$EMU_COUNTS" | tail -1)
[[ $reached == *"; 0 kernels never launched" ]]
ok $? "$reached"
finish
