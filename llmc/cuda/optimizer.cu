// optimizer.cu -- AdamW with stochastic rounding, and the norm of gradients.
#include <stdint.h>
#include "launch.cuh"
#include <math.h>

// Random bits from a counter: Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011, "Parallel random
// numbers: as easy as 1, 2, 3", section 5.3). No state: the same counter and key give the same 4 x 32 bits on
// any thread.

[[maybe_unused]] static __device__ __forceinline__ uint4 philox4x32(uint4 counter, uint2 key) {
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)0xd2511f53u * counter.x, b = (uint64_t)0xcd9e8d57u * counter.z;
        counter = make_uint4((unsigned)(b >> 32) ^ counter.y ^ key.x, (unsigned)b,
                             (unsigned)(a >> 32) ^ counter.w ^ key.y, (unsigned)a);
        key.x += 0x9e3779b9u;
        key.y += 0xbb67ae85u;
    }
    return counter;
}

// --- adamw -------------------------------------------------------------------------------------------------
// AdamW (Loshchilov, Hutter 2019, algorithm 2) in one pass over memory; bf16 parameters are rounded
// at random.
//
//     bf16(x) = the upper half of (bits of x + r),   r uniform in 0 .. 65535
//
// goes to the neighbour away from zero with probability (x - lower) / (upper - lower): the mean is kept, so
// updates smaller than half a unit of bf16 are not lost. r of parameter i in step t: 16 bits of Philox with
// counter (i / 4, t), key seed.

constexpr int ADAMW_THREADS = 256,
              ADAMW_VECTOR = 4;  // float4 of each array; 4 parameters share one call of Philox

typedef struct {
    float step, keep, rest1, beta2, rest2, scale2, eps, grad_scale;
    uint32_t t, seed;
} AdamwFactors;

// What is fused is written out, and a product that must not be is __fmul_rn: nvcc chose differently for 1
// value and for 4, and replicas, whose slices begin anywhere, drifted apart (doc/cuda.md, "The same bits").
static __device__ __forceinline__ float adamw_value(float param, float* m, float* v, float grad,
                                                    const AdamwFactors& by) {
    const float g = __fmul_rn(grad, by.grad_scale);
    *m = fmaf(by.rest1, g - *m, *m);
    *v = fmaf(by.beta2, *v, by.rest2 * (g * g));
    return fmaf(param, by.keep, -(by.step * *m / fmaf(sqrtf(*v), by.scale2, by.eps)));
}

#ifdef LLMC_BF16
static __device__ __forceinline__ uint4 random_bits(int64_t idx, const AdamwFactors& by) {
    const uint64_t group = (uint64_t)idx / ADAMW_VECTOR;
    return philox4x32(make_uint4((uint32_t)group, (uint32_t)(group >> 32), by.t, 0), make_uint2(by.seed, 0));
}

// Infinity stays (its lower half is 0), NaN becomes the quiet one, instead of what adding to its bits would
// make.
static __device__ __forceinline__ __nv_bfloat16 round_randomly(float x, uint32_t random) {
    uint32_t bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) { bits = 0x7fc00000u; }
    return __ushort_as_bfloat16((unsigned short)((bits + (random & 0xffffu)) >> 16));
}
#endif

// N = ADAMW_VECTOR: arrays are aligned and first_idx is a multiple of it; N = 1: any.
template <int N>
__global__ static void __launch_bounds__(ADAMW_THREADS)
    adamw_kernel(floatX* params, float* master, float* m, float* v, const float* grads, size_t num_params,
                 int64_t first_idx, AdamwFactors by) {
    const size_t i = ((size_t)blockIdx.x * ADAMW_THREADS + threadIdx.x) * N;
    if (i >= num_params) { return; }
    Floats<N> mi = load_vec<N, LOAD_ONCE>(m + i), vi = load_vec<N, LOAD_ONCE>(v + i);
    const Floats<N> g = load_vec<N, LOAD_ONCE>(grads + i);
#ifdef LLMC_BF16
    Floats<N> p = master != NULL ? load_vec<N, LOAD_ONCE>(master + i) : load_floats<N, LOAD_ONCE>(params + i);
#else
    Floats<N> p = load_vec<N, LOAD_ONCE>(params + i);
#endif
#pragma unroll
    for (int k = 0; k < N; k++) { p[k] = adamw_value(p[k], &mi[k], &vi[k], g[k], by); }
    store_vec<STORE_ONCE>(m + i, mi);
    store_vec<STORE_ONCE>(v + i, vi);
#ifdef LLMC_BF16
    if (master != NULL) { store_vec<STORE_ONCE>(master + i, p); }
    const int64_t idx = first_idx + (int64_t)i;
    const uint4 bits = random_bits(idx, by);
    const uint32_t random[ADAMW_VECTOR] = {bits.x, bits.y, bits.z, bits.w};
    Vec<floatX, N> rounded;
    if constexpr (N == 1) {
        const int word = (int)(idx % ADAMW_VECTOR);
        rounded[0] = round_randomly(p[0], word == 0   ? bits.x
                                          : word == 1 ? bits.y
                                          : word == 2 ? bits.z
                                                      : bits.w);
    } else {
#pragma unroll
        for (int k = 0; k < N; k++) { rounded[k] = round_randomly(p[k], random[k]); }
    }
    store_vec(params + i, rounded);
#else
    store_vec(params + i, p);
#endif
}

template <int N>
static void adamw_range(floatX* params, float* master, float* m, float* v, const float* grads,
                        size_t num_params, int64_t first_idx, const AdamwFactors* by, OpsContext* ops) {
    if (num_params == 0) { return; }
    adamw_kernel<N><<<blocks_for(num_params, ADAMW_THREADS * N), ADAMW_THREADS, 0, ops->stream>>>(
        params, master, m, v, grads, num_params, first_idx, *by);
    CHECK_LAUNCH();
}

void adamw_update(floatX* params, float* master, float* m, float* v, const float* grads, size_t num_params,
                  int64_t first_idx, const AdamwUpdate* about, OpsContext* ops) {
    const double correction1 = 1.0 - pow((double)about->beta1, about->t),
                 correction2 = 1.0 - pow((double)about->beta2, about->t);
    const AdamwFactors by = {.step = (float)((double)about->lr / correction1),
                             .keep = (float)(1.0 - (double)about->lr * (double)about->weight_decay),
                             .rest1 = 1.0f - about->beta1,
                             .beta2 = about->beta2,
                             .rest2 = 1.0f - about->beta2,
                             .scale2 = (float)(1.0 / sqrt(correction2)),
                             .eps = about->eps,
                             .grad_scale = about->grad_scale,
                             .t = (uint32_t)about->t,
                             .seed = about->seed};
    const bool whole = aligned_to_vectors(master, m, v, grads) && first_idx % ADAMW_VECTOR == 0 &&
                       (uintptr_t)params % (ADAMW_VECTOR * sizeof *params) == 0;
    const size_t n = whole ? num_params - num_params % ADAMW_VECTOR : 0;
    adamw_range<ADAMW_VECTOR>(params, master, m, v, grads, n, first_idx, &by, ops);
    adamw_range<1>(params + n, master != NULL ? master + n : NULL, m + n, v + n, grads + n, num_params - n,
                   first_idx + (int64_t)n, &by, ops);
}

// --- norm --------------------------------------------------------------------------------------------------
// Sum of squares in double, for clipping. A number of blocks that depends on card and size only sums
// its parts; one more block adds those in order, so the same gradients give the same bits.

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
