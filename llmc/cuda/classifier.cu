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
            if constexpr (KEEP) { store_vec(kept + v, x[k]); }
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
