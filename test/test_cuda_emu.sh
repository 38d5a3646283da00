#!/usr/bin/env bash
# The CUDA emulator: the kernel language, streams and NCCL do what CUDA says, under several orders; and programs with one
# mistake each are caught, where the same program without it passes.
# concerns: test/cuda_emu
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
command -v g++ >/dev/null || { skip "CUDA emulator" "no g++ ---> dev/setup.sh"; finish; }
include=$(make --no-print-directory -s BACKEND=emu print-cuda-include)
[ -n "$include" ] || { skip "CUDA emulator" "no CUDA headers (cuda_runtime.h) ---> install the CUDA toolkit, or set CUDA_HOME"; finish; }

out=build/release-emu-fp32 asan=build/asan-emu-fp32
mpi=$(command -v mpirun >/dev/null && command -v mpicc >/dev/null && [ -e "$include/nccl.h" ] && echo yes)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
build() { make --no-print-directory -s -j"$(nproc)" BACKEND=emu PRECISION=FP32 "$@"; }
{ build $out/cuda_emu_kernels $out/cuda_emu_streams $out/cuda_emu_faults ${mpi:+$out/cuda_emu_nccl} &&
    build BUILD=asan $asan/cuda_emu_faults $asan/cuda_emu_kernels; } >"$log" 2>&1
if [ $? -ne 0 ] || grep -q 'warning:' "$log"; then
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
expect "kernel language under AddressSanitizer" 0 "" $asan/cuda_emu_kernels
expect "no device" bad "no CUDA-capable device" env EMU_DEVICES=0 $out/cuda_emu_faults device right
expect "no driver" bad "driver version is insufficient" env EMU_NO_DEVICE=35 $out/cuda_emu_faults device right

# Faults that only some orders show: right under all of eight seeds, wrong under at least one.
for fault in event barrier cp_async; do
    wrong=0 right=0
    for seed in 1 2 3 4 5 6 7 8; do
        EMU_SEED=$seed timeout -k 2 20 $out/cuda_emu_faults $fault right >"$log" 2>&1 && right=$((right + 1))
        EMU_SEED=$seed timeout -k 2 20 $out/cuda_emu_faults $fault faulty >"$log" 2>&1 || wrong=$((wrong + 1))
    done
    if [ $right -eq 8 ] && [ $wrong -gt 0 ]; then
        passed=$((passed + 1))
        echo "ok   missing $fault: wrong values under $wrong of 8 seeds"
    else
        failed=$((failed + 1))
        echo "FAIL missing $fault: right under $right of 8 seeds with it, wrong under $wrong without"
    fi
done
line=$(grep -n '// FAULT' test/cuda_emu/tests/faults.cu | cut -d: -f1)
for variant in store shared guard divergent; do expect "right: $variant" 0 "0 wrong" $out/cuda_emu_faults $variant right; done
for variant in store shared; do expect "right under AddressSanitizer: $variant" 0 "0 wrong" $asan/cuda_emu_faults $variant right; done
expect "a store off by one: AddressSanitizer names its line" bad "faults.cu:$line" $asan/cuda_emu_faults store faulty
expect "a store off by one: the guard" bad "1 wrong" $out/cuda_emu_faults guard faulty
expect "a store off by one, in shared memory" bad "byte 1024 of 1024 bytes of dynamic shared" $out/cuda_emu_faults shared faulty
expect "the same under AddressSanitizer" bad "use-after-poison.*|buffer-overflow" $asan/cuda_emu_faults shared faulty
expect "half a warp at a barrier" bad "diverge.*divergent" $out/cuda_emu_faults divergent faulty

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
