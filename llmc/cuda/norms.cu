/*
norms.cu -- layer norm and RMS norm, forward and backward.
*/
#include "launch.cuh"

// What the norms of rows share forward: a row in registers, and
// which shape of kernel a number of columns takes: up to 8 vectors of 16 bytes per thread, by a warp where
// that is enough (C <= 2048 in bf16), else by a block.

constexpr int NORM_THREADS = 256, NORM_MAX_VECTORS = 8;

// A row is K vectors of each of THREADS threads.
template <int k, int threads> struct NormShape { static constexpr int K = k, THREADS = threads; };

// Of the threads that share a row: a warp, or the whole block.
template <int THREADS> static __device__ __forceinline__ float row_sum(float value, float* shared) {
    if constexpr (THREADS == WARP_THREADS) { return warp_sum(value); }
    return block_sum(value, shared);
}

// This thread's part of a row of C values: a, or with RESIDUAL a + b, rounded to floatX and written: the
// backward pass reads it so. The k-th vector begins at column first + k * THREADS * N. residual may be a or
// b.
template <int K, int THREADS, bool RESIDUAL, int N>
static __device__ __forceinline__ void row_load(Vec<floatX, N> (&x)[K], floatX* residual, const floatX* a,
                                                const floatX* b, size_t row, int first, int C) {
#pragma unroll
    for (int k = 0; k < K; k++) {
        const int c = first + k * THREADS * N;
        if (c < C) { x[k] = load_vec<N, LOAD_ONCE>(a + row + c); }
    }
    if constexpr (RESIDUAL) {
        Vec<floatX, N> y[K];
#pragma unroll
        for (int k = 0; k < K; k++) {
            const int c = first + k * THREADS * N;
            if (c < C) { y[k] = load_vec<N, LOAD_ONCE>(b + row + c); }
        }
#pragma unroll
        for (int k = 0; k < K; k++) {
            const int c = first + k * THREADS * N;
            if (c >= C) { continue; }
            Floats<N> sum = to_floats(x[k]);
            const Floats<N> other = to_floats(y[k]);
#pragma unroll
            for (int i = 0; i < N; i++) { sum[i] += other[i]; }
            x[k] = from_floats<floatX>(sum);
            store_vec(residual + row + c, x[k]);
        }
    }
}

// launch(NormShape) for rows of C values in whole vectors; false: too long for registers.
template <class Launch> static bool norm_by_columns(int C, Launch launch) {
    const int vectors = C / FLOATX_PER_LOAD;
    const int per_lane = (vectors + WARP_THREADS - 1) / WARP_THREADS;
    const int per_thread = (vectors + NORM_THREADS - 1) / NORM_THREADS;
    if (per_thread > NORM_MAX_VECTORS) { return false; }
    switch (per_lane) {
        case 1: launch(NormShape<1, WARP_THREADS>()); return true;
        case 2: launch(NormShape<2, WARP_THREADS>()); return true;
        case 3: launch(NormShape<3, WARP_THREADS>()); return true;
        case 4: launch(NormShape<4, WARP_THREADS>()); return true;
        case 5:
        case 6: launch(NormShape<6, WARP_THREADS>()); return true;
        case 7:
        case 8: launch(NormShape<8, WARP_THREADS>()); return true;
        default: break;
    }
    if (per_thread <= 2) {
        launch(NormShape<2, NORM_THREADS>());
    } else if (per_thread <= 4) {
        launch(NormShape<4, NORM_THREADS>());
    } else {
        launch(NormShape<NORM_MAX_VECTORS, NORM_THREADS>());
    }
    return true;
}

// --- norm backward -----------------------------------------------------------------------------------------
// What the gradients of norms share: rows over blocks,
// and the sums of the weights' gradients.
//
// A fixed number of blocks walks the rows. A row is done by 1, 2, 4 or 12 warps, so that a thread has at most
// 32 columns (float32: 16): its share of the weights and of their gradients stays in registers over all rows
// of the block. A block's sums go to ops->partials, and a second kernel adds those in order: the result
// depends on shape and card only.

// One block of 12 warps per SM: 168 registers a thread, and 3 arrays x 4 vectors x 384 threads of loads in
// flight.
constexpr int BACKWARD_THREADS = 384, BACKWARD_WARPS = BACKWARD_THREADS / WARP_THREADS;
constexpr int BACKWARD_MAX_VECTORS = 4;  // of a thread

// Sums over the WARPS warps of a row. `shared` alternates between two places, so one barrier is enough: who
// writes a place again has passed the barrier of the other, behind everybody's reads of this one.
template <int WARPS, int COUNT>
static __device__ __forceinline__ Floats<COUNT> row_sums(Floats<COUNT> sums,
                                                         Floats<COUNT> (*shared)[BACKWARD_WARPS], int round) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) { sums[i] = warp_sum(sums[i]); }
    if constexpr (WARPS > 1) {
        Floats<COUNT>* place = shared[round & 1];
        if (warp_lane() == 0) { place[warp_idx()] = sums; }
        __syncthreads();
        const int first = warp_idx() / WARPS * WARPS;
        sums = place[first];
#pragma unroll
        for (int w = 1; w < WARPS; w++) {
#pragma unroll
            for (int i = 0; i < COUNT; i++) { sums[i] += place[first + w][i]; }
        }
    }
    return sums;
}

// Adds up what the groups of threads with the same columns have, in the order of the groups: partials, totals
// (ARRAYS, C).
template <int K, int GROUPS, int ARRAYS, int N>
static __device__ __forceinline__ void write_partials(float* partials, float* totals,
                                                      const Floats<N> (&sums)[ARRAYS][K], int group,
                                                      int first, int C) {
    constexpr int STRIDE = BACKWARD_THREADS / GROUPS * N;
    for (int turn = 0; turn < GROUPS; turn++) {
        float* into = turn == GROUPS - 1 ? partials : totals;
        if (turn == group) {
#pragma unroll
            for (int k = 0; k < K; k++) {
                const int c = first + k * STRIDE;
                if (c >= C) { continue; }
#pragma unroll
                for (int a = 0; a < ARRAYS; a++) {
                    Floats<N> sum = sums[a][k];
                    if (turn > 0) {
                        const Floats<N> before = load_vec<N>(totals + a * C + c);
#pragma unroll
                        for (int i = 0; i < N; i++) { sum[i] += before[i]; }
                    }
                    store_vec(into + a * C + c, sum);
                }
            }
        }
        if (GROUPS > 1) { __syncthreads(); }
    }
}

// A row is K vectors of each thread of WARPS warps.
template <int k, int warps> struct NormBackwardShape { static constexpr int K = k, WARPS = warps; };

// launch(NormBackwardShape) for rows of C values in whole vectors: the fewest warps, then the fewest vectors;
// false: too long for registers.
template <class Launch> static bool norm_backward_by_columns(int C, Launch launch) {
    constexpr int COLUMNS = WARP_THREADS * FLOATX_PER_LOAD;  // of one vector of a warp's threads
    const int vectors = (C + COLUMNS - 1) / COLUMNS;
    switch (vectors) {
        case 1: launch(NormBackwardShape<1, 1>()); return true;
        case 2: launch(NormBackwardShape<2, 1>()); return true;
        case 3: launch(NormBackwardShape<3, 1>()); return true;
        case 4: launch(NormBackwardShape<4, 1>()); return true;
        default: break;
    }
    if (vectors > BACKWARD_MAX_VECTORS * BACKWARD_WARPS) { return false; }
    if (vectors <= 6) {
        launch(NormBackwardShape<3, 2>());
    } else if (vectors <= 8) {
        launch(NormBackwardShape<4, 2>());
    } else if (vectors <= 12) {
        launch(NormBackwardShape<3, 4>());
    } else if (vectors <= 16) {
        launch(NormBackwardShape<4, 4>());
    } else if (vectors <= 24) {
        launch(NormBackwardShape<2, BACKWARD_WARPS>());
    } else if (vectors <= 36) {
        launch(NormBackwardShape<3, BACKWARD_WARPS>());
    } else {
        launch(NormBackwardShape<4, BACKWARD_WARPS>());
    }
    return true;
}

// Bytes of shared memory for `arrays` (1, 2) sums of C floats, where a block has several rows at a time. At
// most 32 KiB (2 arrays, 4 warps, 4 vectors of 16 bytes): a launch needs cudaFuncSetAttribute from 48 KiB on.
template <int WARPS> static size_t norm_backward_shared(int C, int arrays) {
    constexpr int MAX_COLUMNS = WARPS * WARP_THREADS * BACKWARD_MAX_VECTORS * FLOATX_PER_LOAD;
    static_assert(WARPS == BACKWARD_WARPS || 2 * MAX_COLUMNS * sizeof(float) <= 32 << 10);
    return WARPS == BACKWARD_WARPS ? 0 : (size_t)(arrays * C) * sizeof(float);
}

// Blocks that walk T rows, rows_per_block at a time, with `arrays` sums of C floats of each in ops->partials.
static inline int norm_backward_blocks(int T, int C, int rows_per_block, int arrays, const OpsContext* ops) {
    const int num_blocks = min_int(ops->num_sms, (T + rows_per_block - 1) / rows_per_block);
    return min_int(num_blocks, OPS_PARTIAL_FLOATS / (arrays * C));
}

// --- norm backward -----------------------------------------------------------------------------------------
// The last sum of the norms' gradients: of what each block has left in ops->partials.

constexpr int SUM_COLUMNS = 32, SUM_SLICES = 16;

// first, second (C) += column sums of partials (num_blocks, width), width C (first alone) or 2 C: SUM_SLICES
// of the blocks side by side.
__global__ static void __launch_bounds__(SUM_COLUMNS* SUM_SLICES)
    sum_partials_kernel(float* first, float* second, const float* partials, int num_blocks, int C,
                        int width) {
    __shared__ float slices[SUM_SLICES][SUM_COLUMNS];
    const int column = (int)threadIdx.x % SUM_COLUMNS, slice = (int)threadIdx.x / SUM_COLUMNS;
    const int c = (int)blockIdx.x * SUM_COLUMNS + column;
    float sum = 0.0f;
    if (c < width) {
#pragma unroll 8
        for (int b = slice; b < num_blocks; b += SUM_SLICES) {
            sum += partials[(size_t)b * (size_t)width + c];
        }
    }
    slices[slice][column] = sum;
    __syncthreads();
    if (slice != 0 || c >= width) { return; }
    for (int s = 1; s < SUM_SLICES; s++) { sum += slices[s][column]; }
    float* to = c < C ? first + c : second + (c - C);
    *to += sum;
}

// first, second (C) += the sums that norm_backward_blocks() blocks left in ops->partials; second NULL: one
// array.
static void norm_sum_partials(float* first, float* second, int num_blocks, int C, OpsContext* ops) {
    const int width = second != NULL ? 2 * C : C;
    sum_partials_kernel<<<blocks_for((size_t)width, SUM_COLUMNS), SUM_COLUMNS * SUM_SLICES, 0, ops->stream>>>(
        first, second, ops->partials, num_blocks, C, width);
    CHECK_LAUNCH();
}

// --- layernorm ---------------------------------------------------------------------------------------------
// Layer normalisation (Ba, Kiros, Hinton 2016) over rows, forward, with the residual addition
// fused in.
//
//     y = (x - mean) rstd w + b,   rstd = 1 / sqrt(var + eps)
//
// A row is read once and stays in registers. Variance in a second pass over the registers: no
// cancellation. Other C (not whole vectors, or huge) take a kernel that walks the row in the cache.

// THREADS per row, K vectors each.
template <int K, int THREADS, bool RESIDUAL>
__global__ static void __launch_bounds__(NORM_THREADS)
    layernorm_rows_kernel(floatX* residual, floatX* out, float* mean, float* rstd, const floatX* a,
                          const floatX* b, const floatX* weight, const floatX* bias, float eps, int T,
                          int C) {
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
        for (int i = 0; i < N; i++) { squares = fmaf(value[i] - m, value[i] - m, squares); }
    }
    const float r = 1.0f / sqrtf(row_sum<THREADS>(squares, shared) / (float)C + eps);
#pragma unroll
    for (int k = 0; k < K; k++) {
        const int c = first + k * THREADS * N;
        if (c >= C) { continue; }
        const Floats<N> w = load_floats<N, LOAD_READ_ONLY>(weight + c);
        const Floats<N> shift = load_floats<N, LOAD_READ_ONLY>(bias + c);
        Floats<N> y = to_floats(x[k]);
#pragma unroll
        for (int i = 0; i < N; i++) { y[i] = fmaf((y[i] - m) * r, w[i], shift[i]); }
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
                         const floatX* b, const floatX* weight, const floatX* bias, float eps, int C) {
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
    for (int c = begin; c < C; c += stride) { squares = fmaf((float)x[c] - m, (float)x[c] - m, squares); }
    const float r = 1.0f / sqrtf(block_sum(squares, shared) / (float)C + eps);
    for (int c = begin; c < C; c += stride) {
        out[row + c] = (floatX)fmaf(((float)x[c] - m) * r, (float)weight[c], (float)bias[c]);
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
    float eps;
    int T, C;
} NormArrays;

template <int K, int THREADS, bool RESIDUAL> static void launch_rows(const NormArrays* x, OpsContext* ops) {
    const unsigned num_blocks = blocks_for((size_t)x->T, NORM_THREADS / THREADS);
    layernorm_rows_kernel<K, THREADS, RESIDUAL><<<num_blocks, NORM_THREADS, 0, ops->stream>>>(
        x->residual, x->out, x->mean, x->rstd, x->a, x->b, x->weight, x->bias, x->eps, x->T, x->C);
    CHECK_LAUNCH();
}

template <bool RESIDUAL> static void launch_any(const NormArrays* x, OpsContext* ops) {
    layernorm_any_kernel<RESIDUAL><<<(unsigned)x->T, NORM_THREADS, 0, ops->stream>>>(
        x->residual, x->out, x->mean, x->rstd, x->a, x->b, x->weight, x->bias, x->eps, x->C);
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
                       const floatX* bias, float eps, int T, int C, OpsContext* ops) {
    const NormArrays arrays = {NULL, out, mean, rstd, inp, NULL, weight, bias, eps, T, C};
    norm_forward<false>(&arrays, ops);
}

void residual_layernorm_forward(floatX* residual, floatX* out, float* mean, float* rstd, const floatX* a,
                                const floatX* b, const floatX* weight, const floatX* bias, float eps, int T,
                                int C, OpsContext* ops) {
    const NormArrays arrays = {residual, out, mean, rstd, a, b, weight, bias, eps, T, C};
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

// --- layernorm backward ------------------------------------------------------------------------------------
// Gradients of layer normalisation; every input is read once.
//
//     dx = dresidual + rstd (g - mean(g) - xhat mean(g xhat)),   g = dy w,   xhat = (x - mean) rstd
//     dw += sum over rows of dy xhat,   db += sum over rows of dy
//
// Rows are walked and the weights' gradients summed as above: the result depends on shape
// and card only.

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
    __builtin_assume((int)blockIdx.x * GROUPS < T);  // norm_backward_blocks()
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

template <int WARPS, int K> static int launch_backward(const NormBackward* about, OpsContext* ops) {
    const int num_blocks = norm_backward_blocks(about->T, about->C, BACKWARD_WARPS / WARPS, 2, ops);
    layernorm_backward_kernel<WARPS, K>
        <<<num_blocks, BACKWARD_THREADS, norm_backward_shared<WARPS>(about->C, 2), ops->stream>>>(*about);
    CHECK_LAUNCH();
    return num_blocks;
}

void layernorm_backward(floatX* dinp, float* dweight, float* dbias, const floatX* dresidual,
                        const floatX* dout, const floatX* inp, const floatX* weight, const float* mean,
                        const float* rstd, int T, int C, OpsContext* ops) {
    if (T == 0) { return; }
    const NormBackward about = {dinp, ops->partials, dresidual, dout, inp, weight, mean, rstd, T, C};
    int num_blocks = 0;
    const bool launched =
        vectors_fit(C, dinp, dresidual, dout, inp, weight) && norm_backward_by_columns(C, [&](auto shape) {
            num_blocks = launch_backward<shape.WARPS, shape.K>(&about, ops);
        });
    if (!launched) {
        num_blocks = norm_backward_blocks(T, C, 1, 2, ops);
        layernorm_backward_any_kernel<<<num_blocks, BACKWARD_THREADS, 0, ops->stream>>>(about);
        CHECK_LAUNCH();
    }
    norm_sum_partials(dweight, dbias, num_blocks, C, ops);
}

// --- rmsnorm -----------------------------------------------------------------------------------------------
// RMS normalisation (Zhang, Sennrich 2019) over rows, with the residual addition fused in, and its
// gradients.
//
//     y = x rstd w scale,   rstd = 1 / sqrt(mean(x^2) + eps)
//     dx = dresidual + rstd (g - xhat mean(g xhat)),   g = dy w scale,   xhat = x rstd
//     dw += scale sum over rows of dy xhat
//
// In bf16 xhat is rounded before it is multiplied by w, as Hugging Face's T5 and Llama do. Rows as in layer
// norm: read once, kept in registers; other C (not whole vectors, or huge) take kernels that walk the row in
// the cache.

typedef struct {
    floatX *residual, *out;
    float* rstd;
    const floatX *a, *b, *weight;
    float scale, eps;
    int T, C;
} RmsNorm;

static __device__ __forceinline__ float rms_reciprocal(float squares, const RmsNorm& about) {
    return 1.0f / sqrtf(squares / (float)about.C + about.eps);
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
        for (int i = 0; i < N; i++) { squares = fmaf(value[i], value[i], squares); }
    }
    const float r = rms_reciprocal(row_sum<THREADS>(squares, shared), about);
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
    for (int c = begin; c < C; c += stride) { squares = fmaf((float)x[c], (float)x[c], squares); }
    const float r = rms_reciprocal(block_sum(squares, shared), about);
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

void rmsnorm_forward(floatX* out, float* rstd, const floatX* inp, const floatX* weight, float scale,
                     float eps, int T, int C, OpsContext* ops) {
    const RmsNorm about = {NULL, out, rstd, inp, NULL, weight, scale, eps, T, C};
    norm_forward<false>(&about, ops);
}

void residual_rmsnorm_forward(floatX* residual, floatX* out, float* rstd, const floatX* a, const floatX* b,
                              const floatX* weight, float scale, float eps, int T, int C, OpsContext* ops) {
    const RmsNorm about = {residual, out, rstd, a, b, weight, scale, eps, T, C};
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
    __builtin_assume((int)blockIdx.x * GROUPS < T);  // norm_backward_blocks()
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

template <int WARPS, int K> static int launch_backward(const RmsNormBackward* about, OpsContext* ops) {
    const int num_blocks = norm_backward_blocks(about->T, about->C, BACKWARD_WARPS / WARPS, 1, ops);
    rmsnorm_backward_kernel<WARPS, K>
        <<<num_blocks, BACKWARD_THREADS, norm_backward_shared<WARPS>(about->C, 1), ops->stream>>>(*about);
    CHECK_LAUNCH();
    return num_blocks;
}

void rmsnorm_backward(floatX* dinp, float* dweight, const floatX* dresidual, const floatX* dout,
                      const floatX* inp, const floatX* weight, const float* rstd, float scale, int T, int C,
                      OpsContext* ops) {
    if (T == 0) { return; }
    const RmsNormBackward about = {dinp, ops->partials, dresidual, dout, inp, weight, rstd, scale, T, C};
    int num_blocks = 0;
    const bool launched =
        vectors_fit(C, dinp, dresidual, dout, inp, weight) && norm_backward_by_columns(C, [&](auto shape) {
            num_blocks = launch_backward<shape.WARPS, shape.K>(&about, ops);
        });
    if (!launched) {
        num_blocks = norm_backward_blocks(T, C, 1, 1, ops);
        rmsnorm_backward_any_kernel<<<num_blocks, BACKWARD_THREADS, 0, ops->stream>>>(about);
        CHECK_LAUNCH();
    }
    norm_sum_partials(dweight, NULL, num_blocks, C, ops);
}
