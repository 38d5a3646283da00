#!/usr/bin/env bash
# The CUDA emulator: kernels that nvcc made (test/ptx), streams and NCCL do what CUDA says, under several orders; and programs
# with one mistake each are caught, where the same program without it passes.
# concerns: test/cuda_emu test/ptx
set -u
cd "$(dirname "$0")/.."
. dev/mpi_env.sh
unset BUILD PRECISION CC
passed=0 failed=0 skipped=0
skip() {  # what, why
    echo "skip $1: $2"
    skipped=$((skipped + 1))
}
finish() {
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ] || exit 1
    [ "$passed" -gt 0 ] || exit 77
    exit 0
}
nvcc=$(make --no-print-directory -s BACKEND=emu print-nvcc)
[ -n "$nvcc" ] || { skip "CUDA emulator" "no nvcc ---> cuda-nvcc, cuda-cudart-dev, libcublas-dev of CUDA 12 or later, or set CUDA_HOME"; finish; }

out=build/release-emu${EMU_ARCH-}-fp32
include=$(make --no-print-directory -s BACKEND=emu print-cuda-include)
mpi=$(command -v mpirun >/dev/null && command -v mpicc >/dev/null && [ -e "$include/nccl.h" ] && echo yes)
work=$(mktemp -d)
log=$work/log
trap 'rm -rf "$work"' EXIT
if ! make --no-print-directory -s -j"$(nproc)" BACKEND=emu PRECISION=FP32 $out/cuda_emu_{kernels,streams,faults} ${mpi:+$out/cuda_emu_nccl} >"$log" 2>&1 || grep -q 'warning:' "$log"; then
    cat "$log"
    echo "FAIL the emulator builds, without a warning"
    failed=1
    finish
fi

# name, expected exit (0, or "bad" for any other but a time-out), words that must be in the output ("": any), command...
expect() {
    local name=$1 exit=$2 words=$3 rc
    shift 3
    timeout -k 2 20 "$@" >"$log" 2>&1
    rc=$?
    if [ "$([ "$exit" = 0 ] && echo $((rc == 0)) || echo $((rc != 0 && rc != 124)))" = 1 ] && { [ -z "$words" ] || grep -qE -- "$words" "$log"; }; then
        passed=$((passed + 1))
        echo "ok   $name"
    else
        failed=$((failed + 1))
        echo "FAIL $name (exit $rc): $*"
        tail -20 "$log"
    fi
}

for seed in 1 2 3; do
    expect "kernel language, seed $seed" 0 "" env EMU_SEED=$seed $out/cuda_emu_kernels
    expect "streams, seed $seed" 0 "" env EMU_SEED=$seed $out/cuda_emu_streams
done
expect "kernel language, in the order of indices" 0 "" env EMU_EAGER=1 $out/cuda_emu_kernels
expect "a larger device" 0 "" env EMU_SMS=132 $out/cuda_emu_kernels
expect "allocations that end as a GPU's do" 0 "" env EMU_GRANULE_BYTES=512 $out/cuda_emu_streams
expect "no device" bad "no CUDA-capable device" env EMU_DEVICES=0 $out/cuda_emu_faults device right
expect "no driver" bad "driver version is insufficient" env EMU_NO_DEVICE=35 $out/cuda_emu_faults device right

# Faults that need no kernel of llmc/cuda (in those: test_cuda_faults.sh), and the same programs without them.
fault() {  # name, words that it must end with
    expect "right: $1" 0 "$1: right" $out/cuda_emu_faults "$1" right
    expect "$1: $2" bad "$2" $out/cuda_emu_faults "$1" faulty
}
fault shifted "16 bytes of global memory at .*: not aligned"
expect "a report names the kernel and the source's line" bad "kernel vectors\(float\*, int\), .*/faults\.cu:$(grep -n '= make_float4' test/ptx/tests/faults.cu | cut -d: -f1)\)" \
    $out/cuda_emu_faults shifted faulty
expect "the same of what is inlined" bad "/faults\.cu:$(grep -n '__shfl_up' test/ptx/tests/faults.cu | cut -d: -f1)\)" $out/cuda_emu_faults shuffle faulty
fault product "mma.sync, but a lane of the warp has ended|mma.sync in a warp of which lanes have ended"
fault shuffle "shfl.sync of lane 31, which has ended or is not in the mask"
fault shuffles "all threads wait, .* 16 in shfl.sync .* 16 in shfl.sync"
fault votes "all threads wait, .* 16 in vote.sync .* 16 in vote.sync"
# Counts (test/ptx/count.cpp): requests, transactions, those needed; and blocks that a run went through.
for kind in "right 32 4" "faulty 4 1"; do
    read -r which sectors wavefronts <<<"$kind"
    EMU_COUNTS=$work/$which EMU_ACCESSES=1 $out/cuda_emu_faults traffic $which >"$log" 2>&1
    expect "counts of accesses, $which" 0 "" bash -c "sed -n '/scatter/,/^kernel/p' $work/$which | sed -E 's/ [0-9]+/ L/' | sort | uniq -c |
        tr -s ' ' | grep -c -e '^ 1 global L 1 $sectors 4' -e '^ 2 shared L 1 $wavefronts 1' | grep -x 2"
done
expect "coverage" 0 "100 % of .*scatter" python3 test/ptx/report.py coverage "$work/right"
expect "coverage: what was not launched" 0 "exchange.*never launched" python3 test/ptx/report.py coverage "$work/right"
# A missing event shows in some orders only: right under all of eight seeds, wrong under at least one.
wrong=0 right=0
for seed in 1 2 3 4 5 6 7 8; do
    EMU_SEED=$seed timeout -k 2 20 $out/cuda_emu_faults event right >"$log" 2>&1 && right=$((right + 1))
    EMU_SEED=$seed timeout -k 2 20 $out/cuda_emu_faults event faulty >"$log" 2>&1 || wrong=$((wrong + 1))
done
expect "missing event: right under $right of 8 seeds with it, wrong under $wrong without" 0 "" test $right -eq 8 -a $wrong -gt 0

if [ -z "$mpi" ]; then
    skip "emulated NCCL" "no mpirun, mpicc or nccl.h here ---> dev/setup.sh, libnccl-dev"
    finish
fi
export EMU_HANG_S=0.7
export OMPI_MCA_odls_base_sigkill_timeout=0  # mpirun's wait for processes that it has killed, 1 s each time
for seed in 1 2; do
    expect "collectives, seed $seed" 0 "" env EMU_SEED=$seed mpirun -np 4 $out/cuda_emu_nccl collectives
done
expect "a ring of sends" 0 "" mpirun -np 4 $out/cuda_emu_nccl ring
expect "the same, serial" 0 "" env EMU_NCCL_SERIAL=1 mpirun -np 4 $out/cuda_emu_nccl ring
expect "one swapped send: a hang, with the head of each stream" bad "rank 0\].*nccl (send|recv).*under way: send 1200 B to 1" \
    mpirun -np 2 $out/cuda_emu_nccl swapped
expect "lengths that differ" bad "ncclRecv of 1204 bytes from rank 0 .*meets an ncclSend of 1200" mpirun -np 2 $out/cuda_emu_nccl lengths
expect "the same as on a GPU: a hang" bad "under way: recv 1204 B from 0" env EMU_NCCL_CHECK=0 mpirun -np 2 $out/cuda_emu_nccl lengths
expect "connections are made by first use" 0 "" mpirun -np 3 $out/cuda_emu_nccl late
expect "with NCCL_RUNTIME_CONNECT=0 only those of sends" 0 "" env NCCL_RUNTIME_CONNECT=0 mpirun -np 3 $out/cuda_emu_nccl late
expect "a swapped send without a connection: hosts that wait for each other" bad "waiting for the other ranks of a connection" \
    mpirun -np 2 $out/cuda_emu_nccl cold
expect "no memory left to connect" bad "no room to connect" env EMU_DEVICE_BYTES=1e6 mpirun -np 2 $out/cuda_emu_nccl collectives
expect "two ranks on a device" bad "Duplicate GPU" mpirun -np 2 $out/cuda_emu_nccl same-device
export NCCL_RUNTIME_CONNECT=0  # or the hosts would wait for each other
expect "two communicators at a time" 0 "" mpirun -np 2 $out/cuda_emu_nccl two
expect "one after the other: a deadlock" bad "not begun: all-reduce" env EMU_NCCL_SERIAL=1 mpirun -np 2 $out/cuda_emu_nccl two
finish
