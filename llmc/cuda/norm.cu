/*
norm.cu -- sum of squares in double, for clipping. A number of blocks that depends on card and size only sums
its parts; one more block adds those in order, so the same gradients give the same bits.
*/
#include "launch.cuh"

constexpr int SQUARES_THREADS = 256, SQUARES_UNROLL = 4, SQUARES_BLOCKS_PER_SM = 8, SQUARES_VECTOR = 4;
constexpr int SQUARES_PER_ROUND = SQUARES_THREADS * SQUARES_UNROLL * SQUARES_VECTOR;  // values of a block

static __device__ __forceinline__ double square(float value) {
    return (double)value * (double)value;
}

// `values` begins `head` values before a multiple of 16 bytes; whole vectors follow, and a tail shorter than
// one.
__global__ static void __launch_bounds__(SQUARES_THREADS)
    squares_kernel(double* sums, const float* values, size_t num_values, int head) {
    constexpr int N = SQUARES_VECTOR;
    __shared__ double shared[WARP_THREADS];
    const size_t whole = (num_values - (size_t)head) / N, stride = (size_t)gridDim.x * SQUARES_THREADS;
    const size_t thread = (size_t)blockIdx.x * SQUARES_THREADS + threadIdx.x;
    const float* vectors = values + head;
    double sum = 0.0;
    for (size_t i0 = thread; i0 < whole; i0 += SQUARES_UNROLL * stride) {
        Floats<N> x[SQUARES_UNROLL];
#pragma unroll
        for (int k = 0; k < SQUARES_UNROLL; k++) {
            const size_t i = i0 + (size_t)k * stride;
            x[k] = i < whole ? load_vec<N, LOAD_ONCE>(vectors + i * N) : floats_of<N>(0.0f);
        }
#pragma unroll
        for (int k = 0; k < SQUARES_UNROLL; k++) {
            sum += (square(x[k][0]) + square(x[k][1])) + (square(x[k][2]) + square(x[k][3]));
        }
    }
    if (thread < (size_t)head) { sum += square(values[thread]); }
    const size_t tail = (size_t)head + whole * N + thread;
    if (tail < num_values) { sum += square(values[tail]); }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) { sums[blockIdx.x] = sum; }
}

__global__ static void __launch_bounds__(SQUARES_THREADS)
    add_sums_kernel(double* total, const double* sums, int num) {
    __shared__ double shared[WARP_THREADS];
    double sum = 0.0;
    for (int i = (int)threadIdx.x; i < num; i += SQUARES_THREADS) { sum += sums[i]; }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) { *total = sum; }
}

double sum_of_squares(const float* values, size_t num_values, OpsContext* ops) {
    if (num_values == 0) { return 0.0; }
    const size_t past = (uintptr_t)values % 16 / sizeof *values;
    const size_t head = past == 0 ? 0 : SQUARES_VECTOR - past;
    const size_t num_parts = (num_values + SQUARES_PER_ROUND - 1) / SQUARES_PER_ROUND;
    const size_t max_blocks = (size_t)ops->num_sms * SQUARES_BLOCKS_PER_SM;
    const int num_blocks = (int)(num_parts < max_blocks ? num_parts : max_blocks);
    double* sums = (double*)ops->partials;
    squares_kernel<<<num_blocks, SQUARES_THREADS, 0, ops->stream>>>(
        sums, values, num_values, (int)(head < num_values ? head : num_values));
    CHECK_LAUNCH();
    add_sums_kernel<<<1, SQUARES_THREADS, 0, ops->stream>>>(ops->sum, sums, num_blocks);
    CHECK_LAUNCH();
    ops_sync(ops);
    return *ops->sum;
}
