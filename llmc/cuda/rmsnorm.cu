/*
rmsnorm.cu -- RMS normalisation (Zhang, Sennrich 2019) over rows, with the residual addition fused in, and its
gradients.

    y = x rstd w scale,   rstd = 1 / sqrt(mean(x^2) + 1e-6)
    dx = dresidual + rstd (g - xhat mean(g xhat)),   g = dy w scale,   xhat = x rstd
    dw += scale sum over rows of dy xhat

In bf16 xhat is rounded before it is multiplied by w, as Hugging Face's T5 does. Rows as in layernorm.cu: read
once, kept in registers (norm_rows.cuh, norm_backward.cuh); other C (not whole vectors, or huge) take kernels
that walk the row in the cache.
*/
#include "norm_backward.cuh"
#include "norm_rows.cuh"

#define RMSNORM_EPS 1e-6f

typedef struct {
    floatX *residual, *out;
    float* rstd;
    const floatX *a, *b, *weight;
    float scale;
    int T, C;
} RmsNorm;

static __device__ __forceinline__ float rms_reciprocal(float squares, int C) {
    return 1.0f / sqrtf(squares / (float)C + RMSNORM_EPS);
}

// THREADS per row, K vectors each. With RESIDUAL x = a + b.
template <int K, int THREADS, bool RESIDUAL>
__global__ static void __launch_bounds__(NORM_THREADS) rmsnorm_rows_kernel(RmsNorm about) {
    constexpr int N = FLOATX_PER_LOAD;
    __shared__ float shared[WARP_THREADS];
    const int t = (int)blockIdx.x * (NORM_THREADS / THREADS) + (int)threadIdx.x / THREADS, C = about.C;
    if (t >= about.T) { return; }  // warps alone: a block has its own row
    const int first = (int)(threadIdx.x % THREADS) * N;
    const size_t row = (size_t)t * (size_t)C;
    Vec<floatX, N> x[K];
    row_load<K, THREADS, RESIDUAL>(x, about.residual, about.a, about.b, row, first, C);
    float squares = 0.0f;
#pragma unroll
    for (int k = 0; k < K; k++) {
        if (first + k * THREADS * N >= C) { continue; }
        const Floats<N> value = to_floats(x[k]);
#pragma unroll
        for (int i = 0; i < N; i++) { squares += value[i] * value[i]; }
    }
    const float r = rms_reciprocal(row_sum<THREADS>(squares, shared), C);
#pragma unroll
    for (int k = 0; k < K; k++) {
        const int c = first + k * THREADS * N;
        if (c >= C) { continue; }
        const Floats<N> w = load_floats<N, LOAD_READ_ONLY>(about.weight + c);
        Floats<N> y = to_floats(x[k]);
#pragma unroll
        for (int i = 0; i < N; i++) { y[i] *= r; }
        y = to_floats(from_floats<floatX>(y));
#pragma unroll
        for (int i = 0; i < N; i++) { y[i] = y[i] * w[i] * about.scale; }
        store_floats(about.out + row + c, y);
    }
    if (first == 0) { about.rstd[t] = r; }
}

// Any C, a block per row, value by value; every thread reads again only what it wrote itself.
template <bool RESIDUAL>
__global__ static void __launch_bounds__(NORM_THREADS) rmsnorm_any_kernel(RmsNorm about) {
    __shared__ float shared[WARP_THREADS];
    const int begin = (int)threadIdx.x, stride = (int)blockDim.x, C = about.C;
    const size_t row = (size_t)blockIdx.x * (size_t)C;
    const floatX* x = about.a + row;
    if constexpr (RESIDUAL) {
        for (int c = begin; c < C; c += stride) {
            about.residual[row + c] = (floatX)((float)about.a[row + c] + (float)about.b[row + c]);
        }
        x = about.residual + row;
    }
    float squares = 0.0f;
    for (int c = begin; c < C; c += stride) { squares += (float)x[c] * (float)x[c]; }
    const float r = rms_reciprocal(block_sum(squares, shared), C);
    for (int c = begin; c < C; c += stride) {
        const float xhat = (float)(floatX)((float)x[c] * r);
        about.out[row + c] = (floatX)(xhat * (float)about.weight[c] * about.scale);
    }
    if (begin == 0) { about.rstd[blockIdx.x] = r; }
}

template <int K, int THREADS, bool RESIDUAL> static void launch_rows(const RmsNorm* about, OpsContext* ops) {
    const unsigned num_blocks = blocks_for((size_t)about->T, NORM_THREADS / THREADS);
    rmsnorm_rows_kernel<K, THREADS, RESIDUAL><<<num_blocks, NORM_THREADS, 0, ops->stream>>>(*about);
    CHECK_LAUNCH();
}

template <bool RESIDUAL> static void norm_forward(const RmsNorm* about, OpsContext* ops) {
    if (about->T == 0) { return; }
    const bool launched =
        vectors_fit(about->C, about->residual, about->out, about->a, about->b, about->weight) &&
        norm_by_columns(about->C,
                        [&](auto shape) { launch_rows<shape.K, shape.THREADS, RESIDUAL>(about, ops); });
    if (launched) { return; }
    rmsnorm_any_kernel<RESIDUAL><<<(unsigned)about->T, NORM_THREADS, 0, ops->stream>>>(*about);
    CHECK_LAUNCH();
}

void rmsnorm_forward(floatX* out, float* rstd, const floatX* inp, const floatX* weight, float scale, int T,
                     int C, OpsContext* ops) {
    const RmsNorm about = {NULL, out, rstd, inp, NULL, weight, scale, T, C};
    norm_forward<false>(&about, ops);
}

void residual_rmsnorm_forward(floatX* residual, floatX* out, float* rstd, const floatX* a, const floatX* b,
                              const floatX* weight, float scale, int T, int C, OpsContext* ops) {
    const RmsNorm about = {residual, out, rstd, a, b, weight, scale, T, C};
    norm_forward<true>(&about, ops);
}

// --- backward ----------------------------------------------------------------------------------------------
typedef struct {
    floatX* dinp;
    float* partials;          // (num_blocks, C)  dw
    const floatX* dresidual;  // or NULL; may be dinp, as may the others
    const floatX *dout, *inp, *weight;
    const float* rstd;
    float scale;
    int T, C;
} RmsNormBackward;

template <int WARPS, int K>
__global__ static void __launch_bounds__(BACKWARD_THREADS) rmsnorm_backward_kernel(RmsNormBackward about) {
    constexpr int N = FLOATX_PER_LOAD, THREADS = WARPS * WARP_THREADS, GROUPS = BACKWARD_THREADS / THREADS;
    __shared__ Floats<1> shared[2][BACKWARD_WARPS];
    extern __shared__ float totals[];  // (C) where there are several groups
    const int C = about.C, T = about.T;
    const int group = (int)threadIdx.x / THREADS, first = (int)threadIdx.x % THREADS * N;
    Vec<floatX, N> weight[K];
    Floats<N> dw[1][K];
#pragma unroll
    for (int k = 0; k < K; k++) {
        const int c = first + k * THREADS * N;
        if (c < C) { weight[k] = load_vec<N, LOAD_READ_ONLY>(about.weight + c); }
        dw[0][k] = floats_of<N>(0.0f);
    }
    int round = 0;
    // all threads of a block go the same number of rounds: they meet in row_sums
    for (int t0 = (int)blockIdx.x * GROUPS; t0 < T; t0 += (int)gridDim.x * GROUPS, round++) {
        const int t = t0 + group, end = t < T ? C : 0;  // no columns where there is no row
        const size_t row = (size_t)t * (size_t)C;
        const float r = t < T ? about.rstd[t] : 0.0f;
        Vec<floatX, N> dout[K], inp[K], dresidual[K];
#pragma unroll
        for (int k = 0; k < K; k++) {
            const int c = first + k * THREADS * N;
            if (c < end) {
                dout[k] = load_vec<N, LOAD_ONCE>(about.dout + row + c);
                inp[k] = load_vec<N, LOAD_ONCE>(about.inp + row + c);
                if (about.dresidual != NULL) {
                    dresidual[k] = load_vec<N, LOAD_ONCE>(about.dresidual + row + c);
                }
            }
        }
        Floats<1> sum = floats_of<1>(0.0f);  // of g xhat, without the scale
#pragma unroll
        for (int k = 0; k < K; k++) {
            if (first + k * THREADS * N >= end) { continue; }
            const Floats<N> d = to_floats(dout[k]), x = to_floats(inp[k]), w = to_floats(weight[k]);
#pragma unroll
            for (int i = 0; i < N; i++) {
                const float dxhat = d[i] * (x[i] * r);
                sum[0] += dxhat * w[i];
                dw[0][k][i] += dxhat;
            }
        }
        const float mean = row_sums<WARPS>(sum, shared, round)[0] / (float)C, factor = r * about.scale;
#pragma unroll
        for (int k = 0; k < K; k++) {
            const int c = first + k * THREADS * N;
            if (c >= end) { continue; }
            keep_packed(dout[k]);
            keep_packed(inp[k]);
            keep_packed(weight[k]);
            const Floats<N> d = to_floats(dout[k]), x = to_floats(inp[k]), w = to_floats(weight[k]);
            Floats<N> dx = floats_of<N>(0.0f);
            if (about.dresidual != NULL) { dx = to_floats(dresidual[k]); }
#pragma unroll
            for (int i = 0; i < N; i++) { dx[i] += factor * (d[i] * w[i] - x[i] * r * mean); }
            store_floats(about.dinp + row + c, dx);
        }
    }
#pragma unroll
    for (int k = 0; k < K; k++) {
#pragma unroll
        for (int i = 0; i < N; i++) { dw[0][k][i] *= about.scale; }
    }
    write_partials<K, GROUPS>(about.partials + (size_t)blockIdx.x * (size_t)C, totals, dw, group, first, C);
}

// Any C, value by value: a block's sums are kept in its partials, a column always by the same thread.
__global__ static void __launch_bounds__(BACKWARD_THREADS)
    rmsnorm_backward_any_kernel(RmsNormBackward about) {
    __shared__ float shared[WARP_THREADS];
    const int C = about.C, begin = (int)threadIdx.x, stride = (int)blockDim.x;
    float* dw = about.partials + (size_t)blockIdx.x * (size_t)C;
    for (int t = (int)blockIdx.x; t < about.T; t += (int)gridDim.x) {
        const size_t row = (size_t)t * (size_t)C;
        const bool is_first = t == (int)blockIdx.x;
        const float r = about.rstd[t];
        float sum = 0.0f;
        for (int c = begin; c < C; c += stride) {
            const float dxhat = (float)about.dout[row + c] * about.scale * ((float)about.inp[row + c] * r);
            sum += dxhat * (float)about.weight[c];
            dw[c] = (is_first ? 0.0f : dw[c]) + dxhat;
        }
        const float mean = block_sum(sum, shared) / (float)C;
        for (int c = begin; c < C; c += stride) {
            const float g = (float)about.dout[row + c] * (float)about.weight[c] * about.scale;
            const float before = about.dresidual != NULL ? (float)about.dresidual[row + c] : 0.0f;
            about.dinp[row + c] = (floatX)(before + r * (g - (float)about.inp[row + c] * r * mean));
        }
    }
}

template <int WARPS, int K>
static void launch_backward(const RmsNormBackward* about, int num_blocks, OpsContext* ops) {
    const size_t shared_bytes = WARPS < BACKWARD_WARPS ? (size_t)about->C * sizeof(float) : 0;
    rmsnorm_backward_kernel<WARPS, K><<<num_blocks, BACKWARD_THREADS, shared_bytes, ops->stream>>>(*about);
    CHECK_LAUNCH();
}

void rmsnorm_backward(floatX* dinp, float* dweight, const floatX* dresidual, const floatX* dout,
                      const floatX* inp, const floatX* weight, const float* rstd, float scale, int T, int C,
                      OpsContext* ops) {
    if (T == 0) { return; }
    const RmsNormBackward about = {dinp, ops->partials, dresidual, dout, inp, weight, rstd, scale, T, C};
    const int warps = vectors_fit(C, dinp, dresidual, dout, inp, weight) ? norm_backward_warps(C) : 0;
    const int num_blocks = norm_backward_blocks(T, C, warps, 1, ops);
    if (warps == 0) {
        rmsnorm_backward_any_kernel<<<num_blocks, BACKWARD_THREADS, 0, ops->stream>>>(about);
        CHECK_LAUNCH();
    } else {
        norm_backward_by_columns(
            C, [&](auto shape) { launch_backward<shape.WARPS, shape.K>(&about, num_blocks, ops); });
    }
    norm_sum_partials(dweight, NULL, num_blocks, C, ops);
}
