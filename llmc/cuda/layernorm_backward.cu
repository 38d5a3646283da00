/*
layernorm_backward.cu -- gradients of layer normalisation; every input is read once.

    dx = dresidual + rstd (g - mean(g) - xhat mean(g xhat)),   g = dy w,   xhat = (x - mean) rstd
    dw += sum over rows of dy xhat,   db += sum over rows of dy

A fixed number of blocks walks the rows. A row is done by 1, 2, 4 or 12 warps, so that a thread has at most 32
columns (float32: 16): its share of w, dw and db stays in registers over all rows of the block. A block's sums
go to ops->partials, and a second kernel adds those in order: the result depends on shape and card only.
*/
#include "launch.cuh"

// One block of 12 warps per SM: 168 registers a thread, and 3 arrays x 4 vectors x 384 threads of loads in
// flight.
constexpr int BACKWARD_THREADS = 384, BACKWARD_WARPS = BACKWARD_THREADS / WARP_THREADS;
constexpr int COLUMNS_PER_THREAD = sizeof(floatX) == 2 ? 32 : 16, SUM_COLUMNS = 32, SUM_SLICES = 16;

typedef struct {
    floatX* dinp;
    float* partials;          // (num_blocks, 2, C)  dw | db
    const floatX* dresidual;  // or NULL; may be dinp, as may the others
    const floatX *dout, *inp, *weight;
    const float *mean, *rstd;
    int T, C;
} NormBackward;

// Sums over the WARPS warps of a row. `shared` alternates between two places, so one barrier is enough: who
// writes a place again has passed the barrier of the other, behind everybody's reads of this one.
template <int WARPS>
static __device__ __forceinline__ float2 row_sums(float2 sums, float2 (*shared)[BACKWARD_WARPS], int round) {
    sums.x = warp_sum(sums.x);
    sums.y = warp_sum(sums.y);
    if constexpr (WARPS > 1) {
        float2* place = shared[round & 1];
        if (warp_lane() == 0) { place[warp_idx()] = sums; }
        __syncthreads();
        const int first = warp_idx() / WARPS * WARPS;
        sums = place[first];
#pragma unroll
        for (int w = 1; w < WARPS; w++) {
            sums.x += place[first + w].x;
            sums.y += place[first + w].y;
        }
    }
    return sums;
}

// Adds up what the groups of threads with the same columns have, in the order of the groups; `totals` (2, C).
template <int K, int GROUPS, int N>
static __device__ __forceinline__ void write_partials(float* partials, float* totals, const Floats<N>* dw,
                                                      const Floats<N>* db, int group, int first, int C) {
    constexpr int STRIDE = BACKWARD_THREADS / GROUPS * N;
    for (int turn = 0; turn < GROUPS; turn++) {
        float* into = turn == GROUPS - 1 ? partials : totals;
        if (turn == group) {
#pragma unroll
            for (int k = 0; k < K; k++) {
                const int c = first + k * STRIDE;
                if (c >= C) { continue; }
                Floats<N> w = dw[k], b = db[k];
                if (turn > 0) {
                    const Floats<N> w0 = load_vec<N>(totals + c), b0 = load_vec<N>(totals + C + c);
#pragma unroll
                    for (int i = 0; i < N; i++) {
                        w[i] += w0[i];
                        b[i] += b0[i];
                    }
                }
                store_vec(into + c, w);
                store_vec(into + C + c, b);
            }
        }
        if (GROUPS > 1) { __syncthreads(); }
    }
}

template <int WARPS, int K>
__global__ static void __launch_bounds__(BACKWARD_THREADS) layernorm_backward_kernel(NormBackward about) {
    constexpr int N = FLOATX_PER_LOAD, THREADS = WARPS * WARP_THREADS, GROUPS = BACKWARD_THREADS / THREADS;
    __shared__ float2 shared[2][BACKWARD_WARPS];
    extern __shared__ float totals[];  // (2, C) where there are several groups
    const int C = about.C, T = about.T;
    const int group = (int)threadIdx.x / THREADS, first = (int)threadIdx.x % THREADS * N;
    Vec<floatX, N> weight[K];
    Floats<N> dw[K], db[K];
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
        float2 sums = make_float2(0.0f, 0.0f);
#pragma unroll
        for (int k = 0; k < K; k++) {
            if (first + k * THREADS * N >= end) { continue; }
            const Floats<N> d = to_floats(dout[k]), x = to_floats(inp[k]), w = to_floats(weight[k]);
#pragma unroll
            for (int i = 0; i < N; i++) {
                const float xhat = (x[i] - m) * r, g = d[i] * w[i];
                sums.x += g;
                sums.y += g * xhat;
                dw[k][i] += d[i] * xhat;
                db[k][i] += d[i];
            }
        }
        sums = row_sums<WARPS>(sums, shared, round);
        const float mean_g = sums.x / (float)C, mean_gx = sums.y / (float)C;
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
    write_partials<K, GROUPS>(about.partials + (size_t)blockIdx.x * 2 * (size_t)C, totals, dw, db, group,
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

// dweight, dbias (C) += column sums of partials (num_blocks, 2 C): SUM_SLICES of the blocks side by side.
__global__ static void __launch_bounds__(SUM_COLUMNS* SUM_SLICES)
    layernorm_sum_partials_kernel(float* dweight, float* dbias, const float* partials, int num_blocks,
                                  int C) {
    __shared__ float slices[SUM_SLICES][SUM_COLUMNS];
    const int column = (int)threadIdx.x % SUM_COLUMNS, slice = (int)threadIdx.x / SUM_COLUMNS;
    const int c = (int)blockIdx.x * SUM_COLUMNS + column;
    float sum = 0.0f;
    if (c < 2 * C) {
#pragma unroll 8
        for (int b = slice; b < num_blocks; b += SUM_SLICES) {
            sum += partials[(size_t)b * 2 * (size_t)C + c];
        }
    }
    slices[slice][column] = sum;
    __syncthreads();
    if (slice != 0 || c >= 2 * C) { return; }
    for (int s = 1; s < SUM_SLICES; s++) { sum += slices[s][column]; }
    float* to = c < C ? dweight + c : dbias + (c - C);
    *to += sum;
}

template <int WARPS, int K>
static void launch_backward(const NormBackward* about, int num_blocks, OpsContext* ops) {
    const size_t shared_bytes = WARPS < BACKWARD_WARPS ? 2 * (size_t)about->C * sizeof(float) : 0;
    layernorm_backward_kernel<WARPS, K><<<num_blocks, BACKWARD_THREADS, shared_bytes, ops->stream>>>(*about);
    CHECK_LAUNCH();
}

template <int WARPS>
static void launch_backward_of(const NormBackward* about, int num_blocks, OpsContext* ops) {
    constexpr int MAX_K = COLUMNS_PER_THREAD / FLOATX_PER_LOAD;
    constexpr int VECTOR_COLUMNS = WARPS * WARP_THREADS * FLOATX_PER_LOAD;  // of a row, side by side
    switch ((about->C + VECTOR_COLUMNS - 1) / VECTOR_COLUMNS) {
        case 1: launch_backward<WARPS, 1>(about, num_blocks, ops); return;
        case 2: launch_backward<WARPS, 2>(about, num_blocks, ops); return;
        case 3: launch_backward<WARPS, 3>(about, num_blocks, ops); return;
        default: launch_backward<WARPS, MAX_K>(about, num_blocks, ops); return;
    }
}

void layernorm_backward(floatX* dinp, float* dweight, float* dbias, const floatX* dresidual,
                        const floatX* dout, const floatX* inp, const floatX* weight, const float* mean,
                        const float* rstd, int T, int C, OpsContext* ops) {
    if (T == 0) { return; }
    const NormBackward about = {dinp, ops->partials, dresidual, dout, inp, weight, mean, rstd, T, C};
    const int max_columns = COLUMNS_PER_THREAD * WARP_THREADS;  // of one warp
    int warps = 1;
    while (warps < BACKWARD_WARPS && C > warps * max_columns) {
        warps = warps == 4 ? BACKWARD_WARPS : warps * 2;
    }
    const bool any = C > warps * max_columns || !vectors_fit(C, dinp, dresidual, dout, inp, weight);
    const int rows_per_block = any ? 1 : BACKWARD_WARPS / warps;
    int num_blocks = min_int(ops->num_sms, (T + rows_per_block - 1) / rows_per_block);
    num_blocks = min_int(num_blocks, OPS_PARTIAL_FLOATS / (2 * C));
    if (any) {
        layernorm_backward_any_kernel<<<num_blocks, BACKWARD_THREADS, 0, ops->stream>>>(about);
        CHECK_LAUNCH();
    } else {
        switch (warps) {
            case 1: launch_backward_of<1>(&about, num_blocks, ops); break;
            case 2: launch_backward_of<2>(&about, num_blocks, ops); break;
            case 4: launch_backward_of<4>(&about, num_blocks, ops); break;
            default: launch_backward_of<BACKWARD_WARPS>(&about, num_blocks, ops); break;
        }
    }
    layernorm_sum_partials_kernel<<<blocks_for(2 * (size_t)C, SUM_COLUMNS), SUM_COLUMNS * SUM_SLICES, 0,
                                    ops->stream>>>(dweight, dbias, ops->partials, num_blocks, C);
    CHECK_LAUNCH();
}
