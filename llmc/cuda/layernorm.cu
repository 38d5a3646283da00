/*
layernorm.cu -- layer normalisation (Ba, Kiros, Hinton 2016) over rows, forward, with the residual addition
fused in.

    y = (x - mean) rstd w + b,   rstd = 1 / sqrt(var + 1e-5)

A row is read once and stays in registers (norm_rows.cuh). Variance in a second pass over the registers: no
cancellation. Other C (not whole vectors, or huge) take a kernel that walks the row in the cache.
*/
#include "norm_rows.cuh"

// THREADS per row, K vectors each.
template <int K, int THREADS, bool RESIDUAL>
__global__ static void __launch_bounds__(NORM_THREADS)
    layernorm_rows_kernel(floatX* residual, floatX* out, float* mean, float* rstd, const floatX* a,
                          const floatX* b, const floatX* weight, const floatX* bias, int T, int C) {
    constexpr int N = FLOATX_PER_LOAD;
    __shared__ float shared[WARP_THREADS];
    const int t = (int)blockIdx.x * (NORM_THREADS / THREADS) + (int)threadIdx.x / THREADS;
    if (t >= T) { return; }  // warps alone: a block has its own row
    const int first = (int)(threadIdx.x % THREADS) * N;
    const size_t row = (size_t)t * (size_t)C;
    Vec<floatX, N> x[K];
    row_load<K, THREADS, RESIDUAL>(x, residual, a, b, row, first, C);
    float sum = 0.0f, squares = 0.0f;
#pragma unroll
    for (int k = 0; k < K; k++) {
        if (first + k * THREADS * N >= C) { continue; }
        const Floats<N> value = to_floats(x[k]);
#pragma unroll
        for (int i = 0; i < N; i++) { sum += value[i]; }
    }
    const float m = row_sum<THREADS>(sum, shared) / (float)C;
#pragma unroll
    for (int k = 0; k < K; k++) {
        if (first + k * THREADS * N >= C) { continue; }
        const Floats<N> value = to_floats(x[k]);
#pragma unroll
        for (int i = 0; i < N; i++) { squares += (value[i] - m) * (value[i] - m); }
    }
    const float r = 1.0f / sqrtf(row_sum<THREADS>(squares, shared) / (float)C + 1e-5f);
#pragma unroll
    for (int k = 0; k < K; k++) {
        const int c = first + k * THREADS * N;
        if (c >= C) { continue; }
        const Floats<N> w = load_floats<N, LOAD_READ_ONLY>(weight + c);
        const Floats<N> shift = load_floats<N, LOAD_READ_ONLY>(bias + c);
        Floats<N> y = to_floats(x[k]);
#pragma unroll
        for (int i = 0; i < N; i++) { y[i] = (y[i] - m) * r * w[i] + shift[i]; }
        store_floats(out + row + c, y);
    }
    if (first == 0) {
        mean[t] = m;
        rstd[t] = r;
    }
}

// Any C, a block per row, value by value; every thread reads again only what it wrote itself.
template <bool RESIDUAL>
__global__ static void __launch_bounds__(NORM_THREADS)
    layernorm_any_kernel(floatX* residual, floatX* out, float* mean, float* rstd, const floatX* a,
                         const floatX* b, const floatX* weight, const floatX* bias, int C) {
    __shared__ float shared[WARP_THREADS];
    const size_t row = (size_t)blockIdx.x * (size_t)C;
    const int begin = (int)threadIdx.x, stride = (int)blockDim.x;
    const floatX* x = a + row;
    if constexpr (RESIDUAL) {
        for (int c = begin; c < C; c += stride) {
            residual[row + c] = (floatX)((float)a[row + c] + (float)b[row + c]);
        }
        x = residual + row;
    }
    float sum = 0.0f, squares = 0.0f;
    for (int c = begin; c < C; c += stride) { sum += (float)x[c]; }
    const float m = block_sum(sum, shared) / (float)C;
    for (int c = begin; c < C; c += stride) { squares += ((float)x[c] - m) * ((float)x[c] - m); }
    const float r = 1.0f / sqrtf(block_sum(squares, shared) / (float)C + 1e-5f);
    for (int c = begin; c < C; c += stride) {
        out[row + c] = (floatX)(((float)x[c] - m) * r * (float)weight[c] + (float)bias[c]);
    }
    if (begin == 0) {
        mean[blockIdx.x] = m;
        rstd[blockIdx.x] = r;
    }
}

typedef struct {
    floatX *residual, *out;
    float *mean, *rstd;
    const floatX *a, *b, *weight, *bias;
    int T, C;
} NormArrays;

template <int K, int THREADS, bool RESIDUAL> static void launch_rows(const NormArrays* x, OpsContext* ops) {
    const unsigned num_blocks = blocks_for((size_t)x->T, NORM_THREADS / THREADS);
    layernorm_rows_kernel<K, THREADS, RESIDUAL><<<num_blocks, NORM_THREADS, 0, ops->stream>>>(
        x->residual, x->out, x->mean, x->rstd, x->a, x->b, x->weight, x->bias, x->T, x->C);
    CHECK_LAUNCH();
}

template <bool RESIDUAL> static void launch_any(const NormArrays* x, OpsContext* ops) {
    layernorm_any_kernel<RESIDUAL><<<(unsigned)x->T, NORM_THREADS, 0, ops->stream>>>(
        x->residual, x->out, x->mean, x->rstd, x->a, x->b, x->weight, x->bias, x->C);
    CHECK_LAUNCH();
}

template <bool RESIDUAL> static void norm_forward(const NormArrays* x, OpsContext* ops) {
    if (x->T == 0) { return; }
    const bool launched =
        vectors_fit(x->C, x->residual, x->out, x->a, x->b, x->weight, x->bias) &&
        norm_by_columns(x->C, [&](auto shape) { launch_rows<shape.K, shape.THREADS, RESIDUAL>(x, ops); });
    if (!launched) { launch_any<RESIDUAL>(x, ops); }
}

void layernorm_forward(floatX* out, float* mean, float* rstd, const floatX* inp, const floatX* weight,
                       const floatX* bias, int T, int C, OpsContext* ops) {
    const NormArrays arrays = {NULL, out, mean, rstd, inp, NULL, weight, bias, T, C};
    norm_forward<false>(&arrays, ops);
}

void residual_layernorm_forward(floatX* residual, floatX* out, float* mean, float* rstd, const floatX* a,
                                const floatX* b, const floatX* weight, const floatX* bias, int T, int C,
                                OpsContext* ops) {
    const NormArrays arrays = {residual, out, mean, rstd, a, b, weight, bias, T, C};
    norm_forward<true>(&arrays, ops);
}

// --- the addition alone ------------------------------------------------------------------------------------
constexpr int ADD_LOADS = 2;  // vectors per thread and array

template <int N>
__global__ static void residual_kernel(floatX* out, const floatX* a, const floatX* b, size_t num_values) {
    const size_t base = ((size_t)blockIdx.x * ADD_LOADS * NORM_THREADS + threadIdx.x) * N;
    Vec<floatX, N> x[ADD_LOADS], y[ADD_LOADS];
#pragma unroll
    for (int k = 0; k < ADD_LOADS; k++) {
        const size_t i = base + (size_t)(k * NORM_THREADS * N);
        if (i < num_values) {
            x[k] = load_vec<N, LOAD_ONCE>(a + i);
            y[k] = load_vec<N, LOAD_ONCE>(b + i);
        }
    }
#pragma unroll
    for (int k = 0; k < ADD_LOADS; k++) {
        const size_t i = base + (size_t)(k * NORM_THREADS * N);
        if (i >= num_values) { continue; }
        Floats<N> sum = to_floats(x[k]);
        const Floats<N> other = to_floats(y[k]);
#pragma unroll
        for (int j = 0; j < N; j++) { sum[j] += other[j]; }
        store_floats(out + i, sum);
    }
}

template <int N>
static void residual_range(floatX* out, const floatX* a, const floatX* b, size_t num_values,
                           OpsContext* ops) {
    if (num_values == 0) { return; }
    const unsigned num_blocks = blocks_for(num_values, NORM_THREADS * ADD_LOADS * N);
    residual_kernel<N><<<num_blocks, NORM_THREADS, 0, ops->stream>>>(out, a, b, num_values);
    CHECK_LAUNCH();
}

void residual_forward(floatX* out, const floatX* a, const floatX* b, size_t num_values, OpsContext* ops) {
    const size_t whole = whole_vectors(num_values, out, a, b);
    residual_range<FLOATX_PER_LOAD>(out, a, b, whole, ops);
    residual_range<1>(out + whole, a + whole, b + whole, num_values - whole, ops);
}
