/*
norm_backward.cuh -- what the gradients of norms share (layernorm_backward.cu, rmsnorm.cu): rows over blocks,
and the sums of the weights' gradients.

A fixed number of blocks walks the rows. A row is done by 1, 2, 4 or 12 warps, so that a thread has at most 32
columns (float32: 16): its share of the weights and of their gradients stays in registers over all rows of the
block. A block's sums go to ops->partials, and a second kernel adds those in order: the result depends on
shape and card only.
*/
#pragma once

#include "launch.cuh"

// One block of 12 warps per SM: 168 registers a thread, and 3 arrays x 4 vectors x 384 threads of loads in
// flight.
constexpr int BACKWARD_THREADS = 384, BACKWARD_WARPS = BACKWARD_THREADS / WARP_THREADS;
constexpr int COLUMNS_PER_THREAD = sizeof(floatX) == 2 ? 32 : 16;

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

// Warps of a row in backward; 0: its columns are too many for registers.
static inline int norm_backward_warps(int C) {
    const int max_columns = COLUMNS_PER_THREAD * WARP_THREADS;  // of one warp
    for (int warps = 1; warps <= BACKWARD_WARPS; warps = warps == 4 ? BACKWARD_WARPS : warps * 2) {
        if (C <= warps * max_columns) { return warps; }
    }
    return 0;
}

// A row is K vectors of each thread of WARPS warps.
template <int k, int warps> struct NormBackwardShape { static constexpr int K = k, WARPS = warps; };

template <int WARPS, class Launch> static void norm_backward_by_vectors(int C, Launch launch) {
    constexpr int MAX_K = COLUMNS_PER_THREAD / FLOATX_PER_LOAD, THREADS = WARPS * WARP_THREADS;
    switch ((C + THREADS * FLOATX_PER_LOAD - 1) / (THREADS * FLOATX_PER_LOAD)) {
        case 1: launch(NormBackwardShape<1, WARPS>()); return;
        case 2: launch(NormBackwardShape<2, WARPS>()); return;
        case 3: launch(NormBackwardShape<3, WARPS>()); return;
        default: launch(NormBackwardShape<MAX_K, WARPS>()); return;
    }
}

// launch(NormBackwardShape) for rows of C values, done by norm_backward_warps(C) > 0 warps.
template <class Launch> static void norm_backward_by_columns(int C, Launch launch) {
    switch (norm_backward_warps(C)) {
        case 1: norm_backward_by_vectors<1>(C, launch); return;
        case 2: norm_backward_by_vectors<2>(C, launch); return;
        case 4: norm_backward_by_vectors<4>(C, launch); return;
        default: norm_backward_by_vectors<BACKWARD_WARPS>(C, launch); return;
    }
}

// Blocks that walk T rows, `warps` a row (0: a block a row), with `arrays` sums of C floats of each in
// ops->partials.
static inline int norm_backward_blocks(int T, int C, int warps, int arrays, const OpsContext* ops) {
    const int rows_per_block = warps == 0 ? 1 : BACKWARD_WARPS / warps;
    const int num_blocks = min_int(ops->num_sms, (T + rows_per_block - 1) / rows_per_block);
    return min_int(num_blocks, OPS_PARTIAL_FLOATS / (arrays * C));
}

// norm_backward.cu: first, second (C) += the sums that norm_backward_blocks() blocks left in ops->partials.
// second NULL: there is one array.
void norm_sum_partials(float* first, float* second, int num_blocks, int C, OpsContext* ops);
