/*
combine_parts.cu -- the gradient of the hidden states from what the shares of a head by vocabulary sent:

    dinp = sum over shares of f_r G_r + g W_t

A warp per row; each part is read once, and of the rows of targets only the one that counts (g is 0 in all
shares but one). So it takes the time of (num_shares + 2) passes over memory.
*/
#include "launch.cuh"

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
