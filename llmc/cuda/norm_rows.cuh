/*
norm_rows.cuh -- what the norms of rows share forward (layernorm.cu, rmsnorm.cu): a row in registers, and
which shape of kernel a number of columns takes: up to 8 vectors of 16 bytes per thread, by a warp where that
is enough (C <= 2048 in bf16), else by a block.
*/
#pragma once

#include "launch.cuh"

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
