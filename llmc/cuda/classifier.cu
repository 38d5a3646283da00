/*
classifier.cu -- softmax cross entropy over the vocabulary, with the gradient written over the logits.

A block per row. One pass finds maximum and sum of exponentials together (Milakov, Gimelshein 2018, "Online
normalizer calculation for softmax") and leaves the row in shared memory; a second one writes the gradient. So
a row is read once; rows too long for shared memory are read again, mostly from the second-level cache.

The target is summed apart from the others, so that a loss and a gradient near 0 keep their digits:
loss = log(1 + others / p), gradient -others / (others + p).
*/
#include "launch.cuh"

constexpr int CLASSIFIER_THREADS = 512, CLASSIFIER_SMALL = 128, CLASSIFIER_UNROLL = 4;

// Sum of exp(x - max) over what was seen.
typedef struct {
    float max, sum;
} Softmax;

template <int N>
static __device__ __forceinline__ void softmax_add(Softmax* seen, const Vec<floatX, N>& vec, int v,
                                                   int target, int V) {
    Floats<N> x = to_floats(vec);
    float max = seen->max;
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (v + i >= V || v + i == target) { x[i] = -INFINITY; }
        max = fmaxf(max, x[i]);
    }
    const float shift =
        max == -INFINITY ? 0.0f : max;  // nothing but the target or padding: not exp(-inf + inf)
    float sum = seen->sum * floatx_exp(seen->max - shift);
#pragma unroll
    for (int i = 0; i < N; i++) { sum += floatx_exp(x[i] - shift); }
    seen->max = max;
    seen->sum = sum;
}

// Of a row without its target, by the whole block. KEEP: the row is left in `kept`, where every thread finds
// again only what it wrote itself.
template <int N, bool KEEP>
static __device__ __forceinline__ Softmax softmax_row(floatX* kept, const floatX* row, int target, int V,
                                                      float* shared) {
    Softmax seen = {-INFINITY, 0.0f};
    const int stride = (int)blockDim.x * N;
    for (int v0 = (int)threadIdx.x * N; v0 < V; v0 += CLASSIFIER_UNROLL * stride) {
        Vec<floatX, N> x[CLASSIFIER_UNROLL];
#pragma unroll
        for (int k = 0; k < CLASSIFIER_UNROLL; k++) {
            const int v = v0 + k * stride;
            if (v < V) { x[k] = load_vec < N, KEEP ? LOAD_ONCE : LOAD_NORMAL > (row + v); }
        }
#pragma unroll
        for (int k = 0; k < CLASSIFIER_UNROLL; k++) {
            const int v = v0 + k * stride;
            if (v >= V) { continue; }
            if constexpr (KEEP) { store_shared_vec(kept + v, x[k]); }
            softmax_add(&seen, x[k], v, target, V);
        }
    }
    const float max = block_max(seen.max, shared);
    const float sum =
        seen.max == max ? seen.sum : seen.sum * floatx_exp(seen.max - max);  // 0, or a NaN, times 0
    return Softmax{max, block_sum(sum, shared)};
}

template <int N, bool KEEP>
__global__ static void __launch_bounds__(CLASSIFIER_THREADS)
    classifier_kernel(float* losses, floatX* logits, const int32_t* targets, float dlogits_scale, int V,
                      int Vp) {
    extern __shared__ uint4 classifier_row[];  // the row, in vectors of 16 bytes
    __shared__ float shared[WARP_THREADS];
    floatX *kept = (floatX*)classifier_row, *row = logits + (size_t)blockIdx.x * (size_t)Vp;
    const int target = targets[blockIdx.x];
    const float at_target = (float)row[target];  // before anybody writes: block_max below has barriers
    const Softmax others = softmax_row<N, KEEP>(kept, row, target, V, shared);
    const float max = fmaxf(others.max, at_target);
    const float rest = others.sum * expf(others.max - max);  // V = 1: exp(-inf) = 0
    const float p = expf(at_target - max), sum = rest + p;
    if (threadIdx.x == 0) {
        losses[blockIdx.x] = at_target == max ? log1pf(rest) : logf(sum) + (max - at_target);
    }
    if (dlogits_scale == 0.0f) { return; }
    const float scale = dlogits_scale / sum, dtarget = -dlogits_scale * (rest / sum);
    const int stride = (int)blockDim.x * N;
#pragma unroll 2
    for (int v = (int)threadIdx.x * N; v < Vp; v += stride) {
        Floats<N> d = floats_of<N>(0.0f);
        if (v < V) {
            if constexpr (KEEP) {
                d = load_floats<N>(kept + v);
            } else {
                d = load_floats<N, LOAD_ONCE>(row + v);
            }
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            d[i] = v + i >= V ? 0.0f : v + i == target ? dtarget : floatx_exp(d[i] - max) * scale;
        }
        store_floats(row + v, d);
    }
}

template <int N, bool KEEP>
static void launch_classifier(float* losses, floatX* logits, const int32_t* targets, float dlogits_scale,
                              int num_rows, int V, int Vp, OpsContext* ops) {
    const int num_threads = V > 4 * CLASSIFIER_SMALL * N ? CLASSIFIER_THREADS : CLASSIFIER_SMALL;
    const size_t row_bytes = KEEP ? (size_t)((V + N - 1) / N * N) * sizeof(floatX) : 0;
    CUDA_CHECK(cudaFuncSetAttribute(classifier_kernel<N, KEEP>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    (int)row_bytes));
    classifier_kernel<N, KEEP>
        <<<num_rows, num_threads, row_bytes, ops->stream>>>(losses, logits, targets, dlogits_scale, V, Vp);
    CHECK_LAUNCH();
}

void fused_classifier(float* losses, floatX* logits, const int32_t* targets, float dlogits_scale,
                      int num_rows, int V, int Vp, OpsContext* ops) {
    if (num_rows == 0) { return; }
    const bool keep = dlogits_scale != 0.0f && (size_t)Vp * sizeof(floatX) <= shared_bytes_of_a_block();
    constexpr int N = FLOATX_PER_LOAD;
    if (vectors_fit(Vp, logits) && keep) {
        launch_classifier<N, true>(losses, logits, targets, dlogits_scale, num_rows, V, Vp, ops);
    } else if (vectors_fit(Vp, logits)) {
        launch_classifier<N, false>(losses, logits, targets, dlogits_scale, num_rows, V, Vp, ops);
    } else {
        launch_classifier<1, false>(losses, logits, targets, dlogits_scale, num_rows, V, Vp, ops);
    }
}

// --- classifier share --------------------------------------------------------------------------------------
// Softmax cross entropy where ranks have a share of the vocabulary each (ops.h).
//
// A block per row of a share. The row is read once: its maximum is found while it goes into shared memory,
// and from there it becomes exp(x - m_r), in place. Rows too long for shared memory are read again, mostly
// from the second-level cache. What all shares tell of a row is 3 floats each: a thread puts them together.

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
            if constexpr (KEEP) { store_shared_vec(kept + v, vecs[k]); }
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

// --- combine parts -----------------------------------------------------------------------------------------
// The gradient of the hidden states from what the shares of a head by vocabulary sent:
//
//     dinp = sum over shares of f_r G_r + g W_t
//
// A warp per row; each part is read once, and of the rows of targets only the one that counts (g is 0 in all
// shares but one). So it takes the time of (num_shares + 2) passes over memory.

constexpr int PARTS_THREADS = 256, PARTS_WARPS = PARTS_THREADS / WARP_THREADS, PARTS_UNROLL = 4;

typedef struct {
    const floatX *sums[OPS_MAX_SHARES], *targets[OPS_MAX_SHARES];  // (num_rows, C)
    const float* factors[OPS_MAX_SHARES];                          // (num_rows, 2)
} Parts;

template <int N>
static __device__ __forceinline__ void add_scaled(Floats<N>* sum, const Vec<floatX, N>& vec, float factor) {
    const Floats<N> x = to_floats(vec);
#pragma unroll
    for (int i = 0; i < N; i++) { (*sum)[i] += factor * x[i]; }
}

// PARTS_UNROLL shares at a time: their loads are in flight together.
template <int N>
__global__ static void __launch_bounds__(PARTS_THREADS)
    combine_parts_kernel(floatX* dinp, const Parts parts, int num_rows, int C, int num_shares) {
    const int row = (int)blockIdx.x * PARTS_WARPS + warp_idx();
    if (row >= num_rows) { return; }
    const size_t first = (size_t)row * (size_t)C;
    for (int c = warp_lane() * N; c < C; c += WARP_THREADS * N) {
        Floats<N> sum = floats_of<N>(0.0f);
        for (int r0 = 0; r0 < num_shares; r0 += PARTS_UNROLL) {
            Vec<floatX, N> x[PARTS_UNROLL];
            float others[PARTS_UNROLL], at_target[PARTS_UNROLL];
#pragma unroll
            for (int k = 0; k < PARTS_UNROLL; k++) {
                if (r0 + k >= num_shares) { continue; }
                const float* factors = parts.factors[r0 + k] + 2 * (size_t)row;
                x[k] = load_vec<N, LOAD_ONCE>(parts.sums[r0 + k] + first + c);
                others[k] = factors[0];
                at_target[k] = factors[1];
            }
#pragma unroll
            for (int k = 0; k < PARTS_UNROLL; k++) {
                if (r0 + k >= num_shares) { continue; }
                add_scaled(&sum, x[k], others[k]);
                if (at_target[k] == 0.0f) { continue; }  // the same for the whole warp
                add_scaled(&sum, load_vec<N, LOAD_ONCE>(parts.targets[r0 + k] + first + c), at_target[k]);
            }
        }
        store_floats(dinp + first + c, sum);
    }
}

void combine_parts(floatX* dinp, const floatX* const* sums, const floatX* const* targets,
                   const float* const* factors, int num_rows, int C, int num_shares, OpsContext* ops) {
    if (num_rows == 0) { return; }
    Parts parts = {};
    bool fit = vectors_fit(C, dinp);
    for (int r = 0; r < num_shares; r++) {
        parts.sums[r] = sums[r];
        parts.targets[r] = targets[r];
        parts.factors[r] = factors[r];
        fit = fit && vectors_fit(C, sums[r], targets[r]);
    }
    const unsigned num_blocks = blocks_for((size_t)num_rows, PARTS_WARPS);
    if (fit) {
        combine_parts_kernel<FLOATX_PER_LOAD>
            <<<num_blocks, PARTS_THREADS, 0, ops->stream>>>(dinp, parts, num_rows, C, num_shares);
    } else {
        combine_parts_kernel<1>
            <<<num_blocks, PARTS_THREADS, 0, ops->stream>>>(dinp, parts, num_rows, C, num_shares);
    }
    CHECK_LAUNCH();
}

// --- argmax ------------------------------------------------------------------------------------------------
// The largest logit of each row and where it is, for generation: of a whole row, or of a share of
// the vocabulary.
//
// A block per row; of equal values the first counts, in whatever order they meet.

constexpr int ARGMAX_THREADS = 512;

typedef struct {
    float value;
    int32_t idx;
} Largest;

static __device__ __forceinline__ Largest larger(Largest a, Largest b) {
    return b.value > a.value || (b.value == a.value && b.idx < a.idx) ? b : a;
}

static __device__ __forceinline__ Largest warp_largest(Largest mine) {
    for (int lanes = WARP_THREADS / 2; lanes > 0; lanes /= 2) {
        const Largest other = {__shfl_xor_sync(0xffffffffu, mine.value, lanes),
                               __shfl_xor_sync(0xffffffffu, mine.idx, lanes)};
        mine = larger(mine, other);
    }
    return mine;
}

// Of the first V of each row's num_columns values: the largest, and begin + its index; where nothing is above
// -inf, the last index.
__global__ static void __launch_bounds__(ARGMAX_THREADS)
    argmax_kernel(float* values, int32_t* ids, const floatX* logits, int begin, int V, int num_columns) {
    __shared__ Largest of_warps[WARP_THREADS];
    const floatX* row = logits + (size_t)blockIdx.x * (size_t)num_columns;
    Largest mine = {-INFINITY, V - 1};
    for (int v = (int)threadIdx.x; v < V; v += (int)blockDim.x) {
        mine = larger(mine, Largest{(float)row[v], v});
    }
    mine = warp_largest(mine);
    if (warp_lane() == 0) { of_warps[warp_idx()] = mine; }
    __syncthreads();
    if (warp_idx() > 0) { return; }
    const bool is_warp = warp_lane() < (int)blockDim.x / WARP_THREADS;
    mine = warp_largest(is_warp ? of_warps[warp_lane()] : Largest{-INFINITY, V - 1});
    if (warp_lane() > 0) { return; }
    values[blockIdx.x] = mine.value;
    ids[blockIdx.x] = begin + mine.idx;
}

// values NULL: nobody wants them.
static void download_largest(float* values, int32_t* ids, const floatX* logits, int num_rows, int begin,
                             int V, int num_columns, OpsContext* ops) {
    constexpr int MAX_ROWS = OPS_PARTIAL_FLOATS / 2;
    for (int first = 0; first < num_rows; first += MAX_ROWS) {  // once
        const int num = min_int(num_rows - first, MAX_ROWS);
        float* found_values = ops->partials;
        int32_t* found_ids = (int32_t*)(ops->partials + MAX_ROWS);
        argmax_kernel<<<(unsigned)num, ARGMAX_THREADS, 0, ops->stream>>>(
            found_values, found_ids, logits + (size_t)first * (size_t)num_columns, begin, V, num_columns);
        CHECK_LAUNCH();
        ops_download(ops, ids + first, found_ids, (size_t)num * sizeof *ids);
        if (values == NULL) { continue; }
        ops_download(ops, values + first, found_values, (size_t)num * sizeof *values);
    }
}

void argmax_rows(int32_t* out, const floatX* logits, int num_rows, int V, int Vp, OpsContext* ops) {
    download_largest(NULL, out, logits, num_rows, 0, V, Vp, ops);
}

void argmax_share(float* values, int32_t* ids, const floatX* logits, int num_rows, int begin, int V, int Vs,
                  OpsContext* ops) {
    if (V > 0) { return download_largest(values, ids, logits, num_rows, begin, V, Vs, ops); }
    for (int row = 0; row < num_rows; row++) {
        values[row] = -INFINITY;
        ids[row] = begin;
    }
}
