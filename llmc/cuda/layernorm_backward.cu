/*
layernorm_backward.cu -- gradients of layer normalisation; every input is read once.

    dx = dresidual + rstd (g - mean(g) - xhat mean(g xhat)),   g = dy w,   xhat = (x - mean) rstd
    dw += sum over rows of dy xhat,   db += sum over rows of dy

Rows are walked and the weights' gradients summed as norm_backward.cuh says: the result depends on shape and
card only.
*/
#include "norm_backward.cuh"

typedef struct {
    floatX* dinp;
    float* partials;          // (num_blocks, 2, C)  dw | db
    const floatX* dresidual;  // or NULL; may be dinp, as may the others
    const floatX *dout, *inp, *weight;
    const float *mean, *rstd;
    int T, C;
} NormBackward;

template <int WARPS, int K>
__global__ static void __launch_bounds__(BACKWARD_THREADS) layernorm_backward_kernel(NormBackward about) {
    constexpr int N = FLOATX_PER_LOAD, THREADS = WARPS * WARP_THREADS, GROUPS = BACKWARD_THREADS / THREADS;
    __shared__ Floats<2> shared[2][BACKWARD_WARPS];
    extern __shared__ float totals[];  // (2, C) where there are several groups
    const int C = about.C, T = about.T;
    const int group = (int)threadIdx.x / THREADS, first = (int)threadIdx.x % THREADS * N;
    Vec<floatX, N> weight[K];
    Floats<N> sums_of[2][K], (&dw)[K] = sums_of[0], (&db)[K] = sums_of[1];
#pragma unroll
    for (int k = 0; k < K; k++) {
        const int c = first + k * THREADS * N;
        if (c < C) { weight[k] = load_vec<N, LOAD_READ_ONLY>(about.weight + c); }
        dw[k] = db[k] = floats_of<N>(0.0f);
    }
    int round = 0;
    // all threads of a block go the same number of rounds: they meet in row_sums
    for (int t0 = (int)blockIdx.x * GROUPS; t0 < T; t0 += (int)gridDim.x * GROUPS, round++) {
        const int t = t0 + group, end = t < T ? C : 0;  // no columns where there is no row
        const size_t row = (size_t)t * (size_t)C;
        const float m = t < T ? about.mean[t] : 0.0f, r = t < T ? about.rstd[t] : 0.0f;
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
        Floats<2> sums = floats_of<2>(0.0f);
#pragma unroll
        for (int k = 0; k < K; k++) {
            if (first + k * THREADS * N >= end) { continue; }
            const Floats<N> d = to_floats(dout[k]), x = to_floats(inp[k]), w = to_floats(weight[k]);
#pragma unroll
            for (int i = 0; i < N; i++) {
                const float xhat = (x[i] - m) * r, g = d[i] * w[i];
                sums[0] += g;
                sums[1] += g * xhat;
                dw[k][i] += d[i] * xhat;
                db[k][i] += d[i];
            }
        }
        sums = row_sums<WARPS>(sums, shared, round);
        const float mean_g = sums[0] / (float)C, mean_gx = sums[1] / (float)C;
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
            for (int i = 0; i < N; i++) { dx[i] += r * (d[i] * w[i] - mean_g - (x[i] - m) * r * mean_gx); }
            store_floats(about.dinp + row + c, dx);
        }
    }
    write_partials<K, GROUPS>(about.partials + (size_t)blockIdx.x * 2 * (size_t)C, totals, sums_of, group,
                              first, C);
}

// Any C, value by value: a block's sums are kept in its partials, a column always by the same thread.
__global__ static void __launch_bounds__(BACKWARD_THREADS) layernorm_backward_any_kernel(NormBackward about) {
    __shared__ float shared[WARP_THREADS];
    const int C = about.C, begin = (int)threadIdx.x, stride = (int)blockDim.x;
    float *dw = about.partials + (size_t)blockIdx.x * 2 * (size_t)C, *db = dw + C;
    for (int t = (int)blockIdx.x; t < about.T; t += (int)gridDim.x) {
        const size_t row = (size_t)t * (size_t)C;
        const bool is_first = t == (int)blockIdx.x;
        const float m = about.mean[t], r = about.rstd[t];
        float sum_g = 0.0f, sum_gx = 0.0f;
        for (int c = begin; c < C; c += stride) {
            const float d = (float)about.dout[row + c], xhat = ((float)about.inp[row + c] - m) * r;
            const float g = d * (float)about.weight[c];
            sum_g += g;
            sum_gx += g * xhat;
            dw[c] = (is_first ? 0.0f : dw[c]) + d * xhat;
            db[c] = (is_first ? 0.0f : db[c]) + d;
        }
        const float mean_g = block_sum(sum_g, shared) / (float)C,
                    mean_gx = block_sum(sum_gx, shared) / (float)C;
        for (int c = begin; c < C; c += stride) {
            const float g = (float)about.dout[row + c] * (float)about.weight[c];
            const float xhat = ((float)about.inp[row + c] - m) * r;
            const float before = about.dresidual != NULL ? (float)about.dresidual[row + c] : 0.0f;
            about.dinp[row + c] = (floatX)(before + r * (g - mean_g - xhat * mean_gx));
        }
    }
}

template <int WARPS, int K>
static void launch_backward(const NormBackward* about, int num_blocks, OpsContext* ops) {
    const size_t shared_bytes = WARPS < BACKWARD_WARPS ? 2 * (size_t)about->C * sizeof(float) : 0;
    layernorm_backward_kernel<WARPS, K><<<num_blocks, BACKWARD_THREADS, shared_bytes, ops->stream>>>(*about);
    CHECK_LAUNCH();
}

void layernorm_backward(floatX* dinp, float* dweight, float* dbias, const floatX* dresidual,
                        const floatX* dout, const floatX* inp, const floatX* weight, const float* mean,
                        const float* rstd, int T, int C, OpsContext* ops) {
    if (T == 0) { return; }
    const NormBackward about = {dinp, ops->partials, dresidual, dout, inp, weight, mean, rstd, T, C};
    const int warps = vectors_fit(C, dinp, dresidual, dout, inp, weight) ? norm_backward_warps(C) : 0;
    const int num_blocks = norm_backward_blocks(T, C, warps, 2, ops);
    if (warps == 0) {
        layernorm_backward_any_kernel<<<num_blocks, BACKWARD_THREADS, 0, ops->stream>>>(about);
        CHECK_LAUNCH();
    } else {
        norm_backward_by_columns(
            C, [&](auto shape) { launch_backward<shape.WARPS, shape.K>(&about, num_blocks, ops); });
    }
    norm_sum_partials(dweight, dbias, num_blocks, C, ops);
}
