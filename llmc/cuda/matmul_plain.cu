// matmul_plain.cu -- column sums of dout (the bias gradient), and products and biases that cuBLASLt refuses.
#include "launch.cuh"
#include "matmul_plain.h"

// --- bias gradient -----------------------------------------------------------------------------------------
// A warp reads 512 bytes of a row, 16 per thread, and walks down every 8th row of the block's chunk; the
// warps of a block are added in shared memory, the blocks of a column by a second, tiny kernel: fixed order.
// One read of dout: floor T * OC * sizeof(floatX) / bandwidth. 8 blocks of 256 threads fit on an SM: all run
// at once.
enum { SUM_WARPS = 8, SUM_THREADS = 32 * SUM_WARPS, MIN_CHUNK_ROWS = 4 * SUM_WARPS, SUM_BLOCKS_PER_SM = 8 };

// N columns per thread. partials (gridDim.y, OC); where gridDim.y is 1, dbias += instead.
template <int N>
__global__ static void __launch_bounds__(SUM_THREADS)
    column_sums_kernel(float* dbias, float* partials, const floatX* dout, int T, int OC, int chunk_rows) {
    __shared__ float sums[SUM_WARPS][WARP_THREADS * N];
    const int lane = warp_lane(), warp = warp_idx();
    const int column = ((int)blockIdx.x * WARP_THREADS + lane) * N;
    const int begin = (int)blockIdx.y * chunk_rows, end = min(T, begin + chunk_rows);
    Floats<N> sum = floats_of<N>(0.0f);
    if (column < OC) {
#pragma unroll 4
        for (int t = begin + warp; t < end; t += SUM_WARPS) {
            const Floats<N> row = load_floats<N>(dout + (size_t)t * OC + column);
#pragma unroll
            for (int i = 0; i < N; i++) { sum[i] += row[i]; }
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++) { sums[warp][i * WARP_THREADS + lane] = sum[i]; }  // each lane its own bank
    __syncthreads();
    if (column >= OC) { return; }
    for (int i = warp; i < N; i += SUM_WARPS) {  // value i of each lane
        float total = 0.0f;
        for (int w = 0; w < SUM_WARPS; w++) { total += sums[w][i * WARP_THREADS + lane]; }
        if (gridDim.y == 1) {
            dbias[column + i] += total;
        } else {
            partials[(size_t)blockIdx.y * OC + column + i] = total;
        }
    }
}

__global__ static void add_partials_kernel(float* dbias, const float* partials, int num_partials, int OC) {
    const int column = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (column >= OC) { return; }
    float total = 0.0f;
#pragma unroll 4
    for (int i = 0; i < num_partials; i++) { total += partials[(size_t)i * OC + column]; }
    dbias[column] += total;
}

template <int N> static void column_sums(float* dbias, const floatX* dout, int T, int OC, OpsContext* ops) {
    const int num_columns = (int)blocks_for((size_t)OC, WARP_THREADS * N);
    int num_chunks = (int)blocks_for((size_t)(SUM_BLOCKS_PER_SM * ops->num_sms), (size_t)num_columns);
    num_chunks = min_int(num_chunks, min_int(OPS_PARTIAL_FLOATS / OC, T / MIN_CHUNK_ROWS));
    const int chunk_rows = num_chunks > 1 ? (int)blocks_for((size_t)T, (size_t)num_chunks) : T;
    num_chunks = (int)blocks_for((size_t)T, (size_t)chunk_rows);
    const dim3 grid((unsigned)num_columns, (unsigned)num_chunks);
    column_sums_kernel<N>
        <<<grid, SUM_THREADS, 0, ops->stream>>>(dbias, ops->partials, dout, T, OC, chunk_rows);
    CHECK_LAUNCH();
    if (num_chunks == 1) { return; }
    add_partials_kernel<<<blocks_for((size_t)OC, 128), 128, 0, ops->stream>>>(dbias, ops->partials,
                                                                              num_chunks, OC);
    CHECK_LAUNCH();
}

void matmul_bias_backward(float* dbias, const floatX* dout, int T, int OC, OpsContext* ops) {
    if (T == 0) { return; }
    if (vectors_fit(OC, dout)) {
        column_sums<FLOATX_PER_LOAD>(dbias, dout, T, OC, ops);
    } else {
        column_sums<1>(dbias, dout, T, OC, ops);
    }
}

// --- what cuBLASLt refuses ---------------------------------------------------------------------------------
__global__ static void add_bias_kernel(floatX* out, const floatX* bias, size_t num_values, int OC) {
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < num_values; i += stride) {
        out[i] = (floatX)((float)out[i] + (float)bias[i % OC]);
    }
}

void matmul_add_bias(floatX* out, const floatX* bias, int T, int OC, OpsContext* ops) {
    const size_t num_values = (size_t)T * (size_t)OC;
    const unsigned num_blocks = (unsigned)min_int((int)blocks_for(num_values, 256), 16 * ops->num_sms);
    add_bias_kernel<<<num_blocks, 256, 0, ops->stream>>>(out, bias, num_values, OC);
    CHECK_LAUNCH();
}

enum { TILE = 16 };

// d (M, N) row-major = a b + beta d in float32; a(i, k) at a[i * a_i + k * a_k], b(k, j) at b[k * b_k + j].
// Tiles of 16 x 16 through shared memory.
template <typename Out>
__global__ static void __launch_bounds__(TILE* TILE)
    plain_kernel(Out* d, const floatX* a, size_t a_i, size_t a_k, const floatX* b, size_t b_k, size_t b_j,
                 int M, int N, int K, float beta) {
    __shared__ float tile_a[TILE][TILE + 1], tile_b[TILE][TILE + 1];
    const int x = threadIdx.x, y = threadIdx.y;
    const int i0 = blockIdx.x * TILE, j0 = blockIdx.y * TILE;
    float sum = 0.0f;
    for (int k0 = 0; k0 < K; k0 += TILE) {
        tile_a[y][x] = i0 + y < M && k0 + x < K ? (float)a[(i0 + y) * a_i + (k0 + x) * a_k] : 0.0f;
        tile_b[y][x] = k0 + y < K && j0 + x < N ? (float)b[(k0 + y) * b_k + (j0 + x) * b_j] : 0.0f;
        __syncthreads();
        for (int k = 0; k < TILE; k++) { sum += tile_a[y][k] * tile_b[k][x]; }
        __syncthreads();
    }
    if (i0 + y >= M || j0 + x >= N) { return; }
    Out* out = d + (size_t)(i0 + y) * N + j0 + x;
    *out = (Out)(beta == 0.0f ? sum : sum + beta * (float)*out);
}

void matmul_plain(MatmulKind kind, const MatmulOperands* operands, int T, int C, int OC, OpsContext* ops) {
    const floatX *a = (const floatX*)operands->a, *b = (const floatX*)operands->b;
    const bool is_weight = kind == MATMUL_WEIGHT;
    const int M = is_weight ? OC : T, N = kind == MATMUL_FORWARD ? OC : C;
    const size_t c = (size_t)C, oc = (size_t)OC;
    const dim3 grid((unsigned)((M + TILE - 1) / TILE), (unsigned)((N + TILE - 1) / TILE)), block(TILE, TILE);
    if (is_weight) {  // dW (OC, C) = dy^T x: operand a is x, b is dy
        plain_kernel<float><<<grid, block, 0, ops->stream>>>((float*)operands->d, b, (size_t)1, oc, a, c,
                                                             (size_t)1, M, N, T, 1.0f);
    } else if (kind == MATMUL_FORWARD) {  // y (T, OC) = x W^T
        plain_kernel<floatX><<<grid, block, 0, ops->stream>>>((floatX*)operands->d, b, c, (size_t)1, a,
                                                              (size_t)1, c, M, N, C, 0.0f);
    } else {  // dx (T, C) = dy W
        plain_kernel<floatX><<<grid, block, 0, ops->stream>>>((floatX*)operands->d, b, oc, (size_t)1, a, c,
                                                              (size_t)1, M, N, OC, 0.0f);
    }
    CHECK_LAUNCH();
}
