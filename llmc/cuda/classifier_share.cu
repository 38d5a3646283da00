/*
classifier_share.cu -- softmax cross entropy where ranks have a share of the vocabulary each (ops.h).

A block per row of a share. The row is read once: its maximum is found while it goes into shared memory, and
from there it becomes exp(x - m_r), in place. Rows too long for shared memory are read again, mostly from the
second-level cache. What all shares tell of a row is 3 floats each: a thread puts them together.
*/
#include "launch.cuh"

constexpr int SHARE_THREADS = 512, SHARE_SMALL = 128, SHARE_UNROLL = 4, COMBINE_THREADS = 128;
constexpr int FACTORS_THREADS = 256, FACTORS_WARPS = FACTORS_THREADS / WARP_THREADS;
constexpr int STATS = 3, FACTORS = 2;  // of a row and share: m_r, o_r, x_t; f_r, g

// Columns of a row that are neither padding nor its target.
static __device__ __forceinline__ bool is_other(int v, int target, int V) {
    return v < V && v != target;
}

// Where the row's target is in the share; -1: in another one.
static __device__ __forceinline__ int own_target(int32_t target, int begin, int V) {
    return target >= begin && target < begin + V ? target - begin : -1;
}

// Of this thread's part of a row without its target. KEEP: the row is left in `kept`, where every thread
// finds again only what it wrote itself.
template <int N, bool KEEP>
static __device__ __forceinline__ float row_max(floatX* kept, const floatX* row, int target, int V) {
    const int stride = (int)blockDim.x * N;
    float max = -INFINITY;
    for (int v0 = (int)threadIdx.x * N; v0 < V; v0 += SHARE_UNROLL * stride) {
        Vec<floatX, N> vecs[SHARE_UNROLL];
#pragma unroll
        for (int k = 0; k < SHARE_UNROLL; k++) {
            const int v = v0 + k * stride;
            if (v < V) { vecs[k] = load_vec < N, KEEP ? LOAD_ONCE : LOAD_NORMAL > (row + v); }
        }
#pragma unroll
        for (int k = 0; k < SHARE_UNROLL; k++) {
            const int v = v0 + k * stride;
            if (v >= V) { continue; }
            if constexpr (KEEP) { store_vec(kept + v, vecs[k]); }
            const Floats<N> x = to_floats(vecs[k]);
#pragma unroll
            for (int i = 0; i < N; i++) { max = is_other(v + i, target, V) ? fmaxf(max, x[i]) : max; }
        }
    }
    return max;
}

// The other pass: x becomes exp(x - max) where WITH_GRADS; the sum of this thread's part.
template <int N, bool WITH_GRADS>
static __device__ __forceinline__ float row_sum_exp(floatX* row, const floatX* kept, float max, int target,
                                                    int V, int Vs) {
    const int stride = (int)blockDim.x * N, end = WITH_GRADS ? Vs : V;
    float sum = 0.0f;
#pragma unroll 2
    for (int v = (int)threadIdx.x * N; v < end; v += stride) {
        Floats<N> x = floats_of<N>(0.0f);
        if (v < V) { x = load_floats<N>(kept + v); }
#pragma unroll
        for (int i = 0; i < N; i++) {
            x[i] = is_other(v + i, target, V) ? floatx_exp(x[i] - max) : 0.0f;
            sum += x[i];
        }
        if constexpr (WITH_GRADS) { store_floats(row + v, x); }
    }
    return sum;
}

template <int N, bool KEEP, bool WITH_GRADS>
__global__ static void __launch_bounds__(SHARE_THREADS)
    share_kernel(float* stats, floatX* logits, const int32_t* targets, int begin, int V, int Vs) {
    extern __shared__ uint4 share_row[];  // the row, in vectors of 16 bytes
    __shared__ float shared[WARP_THREADS];
    floatX *row = logits + (size_t)blockIdx.x * (size_t)Vs, *kept = KEEP ? (floatX*)share_row : row;
    const int target = own_target(targets[blockIdx.x], begin, V);
    const float at_target = target >= 0 ? (float)row[target] : -INFINITY;  // read before anybody writes
    const float max = block_max(row_max<N, KEEP>(kept, row, target, V), shared);
    const float shift = max == -INFINITY ? 0.0f : max;  // nothing but the target: not exp(-inf + inf)
    const float sum = block_sum(row_sum_exp<N, WITH_GRADS>(row, kept, shift, target, V, Vs), shared);
    if (threadIdx.x > 0) { return; }
    float* mine = stats + (size_t)blockIdx.x * STATS;
    mine[0] = max;
    mine[1] = sum;
    mine[2] = at_target;
}

// Threads of a block so that all of them have as many vectors of a row, or one less.
static int threads_for_row(int num_vectors) {
    const int most = num_vectors > 4 * SHARE_SMALL ? SHARE_THREADS : SHARE_SMALL;
    const int rounds = (num_vectors + most - 1) / most;
    const int num_threads = rounds > 0 ? (num_vectors + rounds - 1) / rounds : 1;
    return (num_threads + WARP_THREADS - 1) / WARP_THREADS * WARP_THREADS;
}

template <int N, bool KEEP, bool WITH_GRADS>
static void launch_share(float* stats, floatX* logits, const int32_t* targets, int num_rows, int begin, int V,
                         int Vs, OpsContext* ops) {
    const size_t row_bytes = KEEP ? (size_t)((V + N - 1) / N * N) * sizeof(floatX) : 0;
    if (KEEP) {
        CUDA_CHECK(cudaFuncSetAttribute(share_kernel<N, KEEP, WITH_GRADS>,
                                        cudaFuncAttributeMaxDynamicSharedMemorySize, (int)row_bytes));
    }
    share_kernel<N, KEEP, WITH_GRADS>
        <<<(unsigned)num_rows, (unsigned)threads_for_row((V + N - 1) / N), row_bytes, ops->stream>>>(
            stats, logits, targets, begin, V, Vs);
    CHECK_LAUNCH();
}

void classifier_share(float* stats, floatX* logits, const int32_t* targets, bool with_grads, int num_rows,
                      int begin, int V, int Vs, OpsContext* ops) {
    if (num_rows == 0) { return; }
    constexpr int N = FLOATX_PER_LOAD;
    const bool fit = vectors_fit(Vs, logits);
    if (fit && with_grads && (size_t)Vs * sizeof(floatX) <= shared_bytes_of_a_block()) {
        launch_share<N, true, true>(stats, logits, targets, num_rows, begin, V, Vs, ops);
    } else if (fit && with_grads) {
        launch_share<N, false, true>(stats, logits, targets, num_rows, begin, V, Vs, ops);
    } else if (fit) {
        launch_share<N, false, false>(stats, logits, targets, num_rows, begin, V, Vs, ops);
    } else if (with_grads) {
        launch_share<1, false, true>(stats, logits, targets, num_rows, begin, V, Vs, ops);
    } else {
        launch_share<1, false, false>(stats, logits, targets, num_rows, begin, V, Vs, ops);
    }
}

// --- what the shares make together -------------------------------------------------------------------------
typedef struct {
    const float* stats[OPS_MAX_SHARES];  // (num_rows, 3)
    float* factors[OPS_MAX_SHARES];      // (num_rows, 2)
} Combined;

// A thread per row. The target is apart from the others: loss = log(1 + others / p), gradient
// -others / (others + p).
__global__ static void __launch_bounds__(COMBINE_THREADS)
    combine_kernel(float* losses, const Combined shares, float scale, int num_rows, int num_shares) {
    const int row = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (row >= num_rows) { return; }
    const size_t at = (size_t)row * STATS;
    float others_max = -INFINITY, at_target = -INFINITY, rest = 0.0f;
    for (int r = 0; r < num_shares; r++) {
        others_max = fmaxf(others_max, shares.stats[r][at]);
        const float x = shares.stats[r][at + 2];
        at_target = x != -INFINITY ? x : at_target;  // a NaN too
    }
    const float max = fmaxf(others_max, at_target);
    for (int r = 0; r < num_shares; r++) {
        rest += shares.stats[r][at + 1] * expf(shares.stats[r][at] - max);
    }
    const float sum = rest + expf(at_target - max);
    losses[row] = at_target == max ? log1pf(rest) : logf(sum) + (max - at_target);
    if (scale == 0.0f) { return; }
    for (int r = 0; r < num_shares; r++) {
        const bool has_target = shares.stats[r][at + 2] != -INFINITY;
        float* factors = shares.factors[r] + (size_t)row * FACTORS;
        factors[0] = scale * (expf(shares.stats[r][at] - max) / sum);
        factors[1] = has_target ? -scale * (rest / sum) : 0.0f;
    }
}

void classifier_combine(float* losses, float* const* factors, const float* const* stats, float scale,
                        int num_rows, int num_shares, OpsContext* ops) {
    if (num_rows == 0) { return; }
    Combined shares = {};
    for (int r = 0; r < num_shares; r++) {
        shares.stats[r] = stats[r];
        shares.factors[r] = scale != 0.0f ? factors[r] : NULL;
    }
    combine_kernel<<<blocks_for((size_t)num_rows, COMBINE_THREADS), COMBINE_THREADS, 0, ops->stream>>>(
        losses, shares, scale, num_rows, num_shares);
    CHECK_LAUNCH();
}

// --- what the matrix' gradient is a product of
// --------------------------------------------------------------
template <int N> static __device__ __forceinline__ void scale_row(floatX* row, int num_values, float factor) {
    const int stride = WARP_THREADS * N;
    for (int c0 = warp_lane() * N; c0 < num_values; c0 += SHARE_UNROLL * stride) {
        Vec<floatX, N> vecs[SHARE_UNROLL];
#pragma unroll
        for (int k = 0; k < SHARE_UNROLL; k++) {
            const int c = c0 + k * stride;
            if (c < num_values) { vecs[k] = load_vec<N, LOAD_ONCE>(row + c); }
        }
#pragma unroll
        for (int k = 0; k < SHARE_UNROLL; k++) {
            const int c = c0 + k * stride;
            if (c >= num_values) { continue; }
            Floats<N> x = to_floats(vecs[k]);
#pragma unroll
            for (int i = 0; i < N; i++) { x[i] *= factor; }
            store_floats(row + c, x);
        }
    }
}

// A warp per row: of hidden states; seldom of E, as long as the share's vocabulary.
template <int N>
__global__ static void __launch_bounds__(FACTORS_THREADS)
    factors_kernel(floatX* e, floatX* rows, const float* factors, const int32_t* targets, int num_rows, int C,
                   int begin, int V, int Vs) {
    const int i = (int)blockIdx.x * FACTORS_WARPS + warp_idx();
    if (i >= num_rows) { return; }
    floatX* of_e = e + (size_t)i * (size_t)Vs;
    const int target = own_target(targets[i], begin, V);
    const float f = factors[(size_t)i * FACTORS], g = factors[(size_t)i * FACTORS + 1];
    const bool scales_row = f >= OPS_LEAST_FACTOR;
    scale_row<N>(scales_row ? rows + (size_t)i * (size_t)C : of_e, scales_row ? C : Vs, f);
    __syncwarp();  // the target is behind the others
    if (warp_lane() == 0 && target >= 0) { of_e[target] = (floatX)(scales_row ? g / f : g); }
}

void classifier_factors(floatX* e, floatX* rows, const float* factors, const int32_t* targets, int num_rows,
                        int C, int begin, int V, int Vs, OpsContext* ops) {
    if (num_rows == 0) { return; }
    const unsigned num_blocks = blocks_for((size_t)num_rows, FACTORS_WARPS);
    if (vectors_fit(C, rows) && vectors_fit(Vs, e)) {
        factors_kernel<FLOATX_PER_LOAD><<<num_blocks, FACTORS_THREADS, 0, ops->stream>>>(
            e, rows, factors, targets, num_rows, C, begin, V, Vs);
    } else {
        factors_kernel<1><<<num_blocks, FACTORS_THREADS, 0, ops->stream>>>(e, rows, factors, targets,
                                                                           num_rows, C, begin, V, Vs);
    }
    CHECK_LAUNCH();
}
