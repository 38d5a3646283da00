#!/usr/bin/env bash
# Law: a mistake in a kernel of llmc/cuda fails its test on the emulator (bf16), which says what is wrong, in which kernel and in which line of the source.
# Faults of each kind, and in each family of kernels, are planted by sed in a copy of one file. For sm_80 alone: 4 minutes of one processor.
# concerns: llmc/cuda test/ptx test/cuda_emu test/test_ops.c test/test_ops_attention.c test/ops_test.h
set -u
cd "$(dirname "$0")/.."
. dev/mpi_env.sh
unset MAKEFLAGS MFLAGS BUILD BACKEND PRECISION CFLAGS TEST_ALL
nvcc=$(make -s BACKEND=emu print-nvcc)
if [ -z "$nvcc" ]; then
    echo "skip test_cuda_faults: no nvcc ---> install cuda-nvcc, cuda-cudart-dev and libcublas-dev of CUDA 12 or later, or set CUDA_HOME"
    echo "0 passed, 0 failed, 1 skipped"
    exit 77
fi
out=build/release-emu-bf16
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
make -s -j2 BACKEND=emu PRECISION=BF16 $out/test_ops $out/test_ops_attention >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
make -n -W llmc/ops.h BACKEND=emu PRECISION=BF16 $out/test_ops $out/test_ops_attention >"$work/commands"  # for every object, and to link

# A copy with the edit, the one object of it, and the test linked with that object: its output and exit status.
plant() {  # file that is compiled, file that is edited, sed's script, test, its function, variables...
    local tree=$work/tree unit=$1 edited=$2 edit=$3 test=$4 only=$5 object=$out/llmc/cuda/${1%.cu}.o
    shift 5
    rm -rf "$tree"
    mkdir -p "$tree/llmc" && cp -r llmc/cuda llmc/*.h "$tree/llmc" && ln -s "$PWD/util" "$tree/util"
    sed -E "$edit" "llmc/cuda/$edited" >"$tree/llmc/cuda/$edited"
    cmp -s "llmc/cuda/$edited" "$tree/llmc/cuda/$edited" && { echo "sed changed nothing"; return; }
    grep -e "compile.sh llmc/cuda/$unit " -e "-o $out/$test\$" "$work/commands" |
        sed "s# llmc/cuda/$unit # $tree/llmc/cuda/$unit #; s# $object # $tree/object.o #; s#-o $out/$test\$#-o $tree/test#" >"$tree/build"
    bash -e "$tree/build" || { echo "was not built"; return; }
    if [[ " $* " == *EMU_REGISTERS* ]]; then
        "$(dirname "$nvcc")/ptxas" -arch=sm_80 -v "$tree/object.ptx" -o "$tree/cubin" 2>&1 |
            sed -nE "s/.*Compiling entry function '([^']*)'.*/\1/p; s/.*Used ([0-9]+) registers.*/\1/p" | paste - - >"$tree/registers"
    fi
    (cd "$tree" && env TEST_ONLY="$only" "$@" timeout -k 5 100 ./test 2>&1; echo "exit status $?")
}

passed=0 failed=0
# kind, file that is edited (/ the one that is compiled), test:function, kernel, what the test says, sed's script, variables...
fault() {
    local kind=$1 file=$2 test=$3 kernel=$4 words=$5 edit=$6
    shift 6
    plant "${file#*/}" "${file%/*}" "$edit" "${test%:*}" "${test#*:}" "$@" >"$work/log" 2>&1
    # A launch that is refused has no line; wrong values have neither a kernel nor a line.
    if grep -q '^exit status [1-9]' "$work/log" && grep -qE "$words" "$work/log" && grep -qE "$kernel" "$work/log" &&
        { ! grep -q '^\[emu.* kernel ' "$work/log" || grep -qE "kernel .*$kernel.* \(.*/llmc/cuda/[a-z_]+\.cuh?:[0-9]+\)" "$work/log"; }; then
        passed=$((passed + 1))
        echo "ok   $kind: $kernel: $(grep -m1 -oE "$words.*" "$work/log" | cut -c1-110)"
    else
        failed=$((failed + 1))
        echo "FAIL $kind: $kernel: \"$words\" is not what $test says of $edit"
        tail -12 "$work/log"
    fi
}
attention_out=test_ops_attention:outputs_equal_the_reference attention_grads=test_ops_attention:gradients_equal_the_reference
embeddings=test_ops:embeddings_equal_the_reference norms=test_ops:norms_equal_the_reference products=test_ops:products_equal_the_reference
elementwise=test_ops:elementwise_ops_equal_the_reference rows=test_ops:rows_are_where_they_belong losses=test_ops:losses_and_gradients_equal_the_reference
shares=test_ops:shares_are_the_whole_head updates=test_ops:any_cut_of_an_update_gives_the_same_bits squares=test_ops:a_sum_of_squares_is_exact_enough

# --- attention
fault "cp.async read before it was waited for" attention_forward.cu $attention_out attention_forward_kernel 'cp.async of thread [0-9]+ is under way there' \
    '0,/cp_async_wait_all\(\);/s///'
fault "divergence at mma.sync" attention_forward.cu $attention_out attention_forward_kernel 'all threads wait, .* in ldmatrix' \
    's/if \(row0 >= num_rows \|\| /if (row0 + lane >= num_rows || /'
fault "a causal mask off by one" attention_dq.cu $attention_grads 'attention_backward: case' 'attention_backward: argument 0 .*expected' \
    's/mask_scores<MT, STEP>\(p, first,/mask_scores<MT, STEP>(p, first + 1,/'
fault "shared memory that nobody has written" attention_dq.cu $attention_grads attention_dq_kernel 'read of shared memory at .* that this block has not written' \
    's/if \(BIAS\) \{ bias_table_fill.*//'
fault "a race within a warp" attention.cuh/attention_dq.cu $attention_grads attention_dq_kernel 'race: .* without (bar.warp.sync|a barrier) between' \
    '/s->sums\[d \+ s->limit\] \+= /,/__syncwarp/s/__syncwarp\(\);//'
fault "99 KiB of shared memory" attention.cu $attention_grads attention_dq_kernel 'cudaFuncSetAttribute.* bytes of shared memory; a block can have 101376' \
    's/if \(needed > most\)/if (false)/' EMU_SHARED_BYTES=101376
fault "no barrier" attention_dkv.cu $attention_grads attention_dkv_kernel 'race: |cp.async of thread' \
    's/__syncthreads\(\);  \/\/ this step/\/\/ this step/'
fault "cp.async left behind where there are no queries" attention_dkv.cu $attention_grads attention_dkv_kernel 'cp.async of thread .* under way|ends while its cp.async' \
    's/^    cp_async_wait_all\(\);$//'
fault "divergence at shfl.sync" attention_decode.cu $attention_out attention_decode_kernel 'all threads wait, .* in shfl.sync' \
    's/(for \(int k0 = 0; .*)/\1 if (k0 + group >= num_keys) { continue; }/'
fault "more registers than there are" attention_decode.cu $attention_out attention_decode_kernel '1024 threads of [0-9]+ registers' \
    's/__launch_bounds__\(DECODE_THREADS\)//; s/DECODE_THREADS = 128/DECODE_THREADS = 1024/' EMU_REGISTERS=registers

# --- products, the head
fault "beyond an array in shared memory" matmul.cu $products column_sums_kernel 'bytes of shared memory at .*: in no variable' \
    's/float sums\[SUM_WARPS\]/float sums[SUM_WARPS - 1]/'
fault "a race between blocks" matmul.cu $products column_sums_kernel 'race between blocks: write of global memory' \
    's/partials\[\(size_t\)blockIdx.y \* OC \+ c\] = total/partials[c] = total/'
fault "no barrier" matmul.cu $products plain_kernel 'race: (read|write) of memory' \
    '/sum \+= tile_a/{n;d}'
fault "99 KiB of shared memory" classifier.cu $losses classifier_kernel 'cudaFuncSetAttribute.* bytes of shared memory; a block can have 101376' \
    's/Vp \* sizeof\(floatX\) <= shared_bytes_of_a_block\(\)/Vp * sizeof(floatX) <= 231424/' EMU_SHARED_BYTES=101376
fault "shared memory that was not asked for" classifier.cu $shares share_kernel 'bytes of shared memory, [0-9]+ can be ---> cudaFuncSetAttribute' \
    's/if \(KEEP\) \{$/if (false) {/'
fault "a race within a warp" classifier.cu $shares factors_kernel 'race: .* without (bar.warp.sync|a barrier) between' \
    's/__syncwarp\(\);//'

# --- norms
fault "a shuffle of a lane that has ended" norms.cu $norms layernorm_rows_kernel 'shfl.sync of lane [0-9]+, which has ended' \
    '/ layernorm_rows_kernel/,/float m = /s/continue;/return;/'
fault "a race from round to round" norms.cu $norms norm_backward_kernel 'race: write of memory at .* that another thread of the block read' \
    's/shared\[round & 1\]/shared[round \& 0]/'
fault "shared memory that nobody has written" norms.cu $norms sum_partials_kernel 'read of shared memory at .* that this block has not written' \
    's/slices\[slice\]\[column\] = sum;/if (slice < num_blocks) { slices[slice][column] = sum; }/'

# --- embedding, rows
fault "alignment" embedding.cu $embeddings embedding_forward_kernel 'bytes of global memory at .*: not aligned' \
    's/vectors_fit\(C, out, wte, wpe\)/vectors_fit(C, out, wte)/'
fault "two warps add to a row" embedding.cu $embeddings sum_chunks_kernel 'race' \
    's/bool is_head = .*/bool is_head = false;/'
fault "a sum that is not atomic" embedding.cu $embeddings sort_count_kernel 'race: ' \
    's/atomicAdd\(&(counts.*), 1\);/\1 += 1;/'
fault "alignment" rows.cu $rows gather_rows_kernel 'bytes of global memory at .*: not aligned' \
    '0,/vectors_fit\(C, out, inp\)/s//vectors_fit(C, out)/'
fault "beyond an array" rows.cu $rows scatter_rows_kernel 'of [0-9]+ bytes of global memory at .*: in no allocation|bytes of global memory at byte' \
    's/if \(t >= num\) \{ return; \}//'
fault "an empty grid" rows.cu $rows gather_rows_kernel 'a grid of \(0,1,1\) blocks' \
    '0,/if \(num_rows == 0\) \{ return; \}/s///'

# --- elementwise
fault "written where it was read by ld.global.nc" elementwise.cu $elementwise gelu_backward_kernel 'write of global memory at .* that this launch read by ld.global.nc' \
    '/ gelu_backward_kernel/,/dout/s/LOAD_ONCE>\(inp/LOAD_READ_ONLY>(inp/'
fault "alignment" elementwise.cu $elementwise gated_forward_kernel 'bytes of global memory at .*: not aligned' \
    's/vectors_fit\(F, out, inp\)/vectors_fit(F, out)/'
fault "beyond an array" elementwise.cu $elementwise rope_kernel 'of [0-9]+ bytes of global memory at .*: in no allocation|bytes of global memory at byte' \
    's/if \(i >= about.num_pairs\) \{ return; \}//'

# --- optimizer
fault "alignment" optimizer.cu $updates adamw_kernel 'bytes of global memory at .*: not aligned' \
    's/aligned_to_vectors\(master, m, v, grads\)/aligned_to_vectors(master, m, v)/'
fault "more threads than it was compiled for" optimizer.cu $updates adamw_kernel '512 threads a block, compiled for 256' \
    's/ADAMW_THREADS, 0, ops/2 * ADAMW_THREADS, 0, ops/'
fault "a race between blocks" optimizer.cu $squares squares_kernel 'race between blocks: write of global memory' \
    's/sums\[blockIdx.x\] = sum/sums[0] = sum/'
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
