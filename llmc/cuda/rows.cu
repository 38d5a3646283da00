/*
rows.cu -- pick and put back the supervised rows, so that the head works on those only; rows of a share of
its matrix; new keys and values into a cache.

A warp per row. Scattering first inverts `rows`, so that every value of the output is written once: the row,
or zeros.
*/
#include "launch.cuh"

constexpr int ROWS_THREADS = 256, ROWS_WARPS = ROWS_THREADS / WARP_THREADS, ROWS_UNROLL = 4;

// Copies one row by one warp, ROWS_UNROLL loads of a thread in flight; where there is none: zeros.
template <int N>
static __device__ __forceinline__ void copy_row(floatX* to, const floatX* from, int C, bool is_there = true) {
    const int stride = WARP_THREADS * N;
    for (int c0 = warp_lane() * N; c0 < C; c0 += ROWS_UNROLL * stride) {
        Vec<floatX, N> x[ROWS_UNROLL];
#pragma unroll
        for (int k = 0; k < ROWS_UNROLL; k++) {
            const int c = c0 + k * stride;
            x[k] = is_there && c < C ? load_vec<N, LOAD_ONCE>(from + c)
                                     : from_floats<floatX>(floats_of<N>(0.0f));
        }
#pragma unroll
        for (int k = 0; k < ROWS_UNROLL; k++) {
            const int c = c0 + k * stride;
            if (c < C) { store_vec(to + c, x[k]); }
        }
    }
}

template <int N>
__global__ static void __launch_bounds__(ROWS_THREADS)
    gather_rows_kernel(floatX* out, const floatX* inp, const int32_t* rows, int num_rows, int C) {
    const int i = (int)blockIdx.x * ROWS_WARPS + warp_idx();
    if (i >= num_rows) { return; }
    copy_row<N>(out + (size_t)i * (size_t)C, inp + (size_t)rows[i] * (size_t)C, C);
}

// inverse[rows[i] - first] = i, in an array of -1; where a row is named twice the last one counts, as on the
// CPU.
__global__ static void __launch_bounds__(ROWS_THREADS)
    invert_rows_kernel(int32_t* inverse, const int32_t* rows, int num_rows, int first, int num) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= num_rows) { return; }
    const int t = rows[i] - first;
    if (t >= 0 && t < num) { atomicMax(inverse + t, i); }
}

template <int N>
__global__ static void __launch_bounds__(ROWS_THREADS)
    scatter_rows_kernel(floatX* out, const floatX* inp, const int32_t* inverse, int num, int C) {
    const int t = (int)blockIdx.x * ROWS_WARPS + warp_idx();
    if (t >= num) { return; }
    const int i = inverse[t];
    copy_row<N>(out + (size_t)t * (size_t)C, inp + (int64_t)i * C, C, i >= 0);
}

void gather_rows(floatX* out, const floatX* inp, const int32_t* rows, int num_rows, int C, OpsContext* ops) {
    if (num_rows == 0) { return; }
    const unsigned num_blocks = blocks_for((size_t)num_rows, ROWS_WARPS);
    if (vectors_fit(C, out, inp)) {
        gather_rows_kernel<FLOATX_PER_LOAD>
            <<<num_blocks, ROWS_THREADS, 0, ops->stream>>>(out, inp, rows, num_rows, C);
    } else {
        gather_rows_kernel<1><<<num_blocks, ROWS_THREADS, 0, ops->stream>>>(out, inp, rows, num_rows, C);
    }
    CHECK_LAUNCH();
}

// Of a share of a matrix by rows: ids [begin, begin + V).
template <int N>
__global__ static void __launch_bounds__(ROWS_THREADS)
    target_rows_kernel(floatX* out, const floatX* weight, const int32_t* targets, int num_rows, int begin,
                       int V, int C) {
    const int i = (int)blockIdx.x * ROWS_WARPS + warp_idx();
    if (i >= num_rows) { return; }
    const int target = targets[i] - begin;
    copy_row<N>(out + (size_t)i * (size_t)C, weight + (int64_t)target * C, C, target >= 0 && target < V);
}

void target_rows(floatX* out, const floatX* weight, const int32_t* targets, int num_rows, int begin, int V,
                 int C, OpsContext* ops) {
    if (num_rows == 0) { return; }
    const unsigned num_blocks = blocks_for((size_t)num_rows, ROWS_WARPS);
    if (vectors_fit(C, out, weight)) {
        target_rows_kernel<FLOATX_PER_LOAD>
            <<<num_blocks, ROWS_THREADS, 0, ops->stream>>>(out, weight, targets, num_rows, begin, V, C);
    } else {
        target_rows_kernel<1>
            <<<num_blocks, ROWS_THREADS, 0, ops->stream>>>(out, weight, targets, num_rows, begin, V, C);
    }
    CHECK_LAUNCH();
}

// Rows [first, first + num) of the output; `inverse` has room for them.
static void scatter_range(floatX* out, const floatX* inp, const int32_t* rows, int num_rows, int first,
                          int num, int C, OpsContext* ops) {
    int32_t* inverse = (int32_t*)ops->partials;
    CUDA_CHECK(cudaMemsetAsync(inverse, 0xff, (size_t)num * sizeof *inverse, ops->stream));
    if (num_rows > 0) {
        invert_rows_kernel<<<blocks_for((size_t)num_rows, ROWS_THREADS), ROWS_THREADS, 0, ops->stream>>>(
            inverse, rows, num_rows, first, num);
        CHECK_LAUNCH();
    }
    const unsigned num_blocks = blocks_for((size_t)num, ROWS_WARPS);
    floatX* to = out + (size_t)first * (size_t)C;
    if (vectors_fit(C, to, inp)) {
        scatter_rows_kernel<FLOATX_PER_LOAD>
            <<<num_blocks, ROWS_THREADS, 0, ops->stream>>>(to, inp, inverse, num, C);
    } else {
        scatter_rows_kernel<1><<<num_blocks, ROWS_THREADS, 0, ops->stream>>>(to, inp, inverse, num, C);
    }
    CHECK_LAUNCH();
}

void scatter_rows(floatX* out, const floatX* inp, const int32_t* rows, int num_rows, int T, int C,
                  OpsContext* ops) {
    for (int first = 0; first < T; first += OPS_PARTIAL_FLOATS) {  // once, short of 4 million tokens
        scatter_range(out, inp, rows, num_rows, first, min_int(T - first, OPS_PARTIAL_FLOATS), C, ops);
    }
}

template <int N>
__global__ static void __launch_bounds__(ROWS_THREADS)
    place_rows_kernel(floatX* dst, int dst_stride, const floatX* src, int src_stride, const int32_t* rows,
                      int num_rows, int width) {
    const int i = (int)blockIdx.x * ROWS_WARPS + warp_idx();
    if (i >= num_rows) { return; }
    copy_row<N>(dst + (size_t)rows[i] * (size_t)dst_stride, src + (size_t)i * (size_t)src_stride, width);
}

void place_rows(floatX* dst, int dst_stride, const floatX* src, int src_stride, const int32_t* rows,
                int num_rows, int width, OpsContext* ops) {
    if (num_rows == 0) { return; }
    const unsigned num_blocks = blocks_for((size_t)num_rows, ROWS_WARPS);
    const bool whole = dst_stride % FLOATX_PER_LOAD == 0 && src_stride % FLOATX_PER_LOAD == 0;
    if (whole && vectors_fit(width, dst, src)) {
        place_rows_kernel<FLOATX_PER_LOAD><<<num_blocks, ROWS_THREADS, 0, ops->stream>>>(
            dst, dst_stride, src, src_stride, rows, num_rows, width);
    } else {
        place_rows_kernel<1><<<num_blocks, ROWS_THREADS, 0, ops->stream>>>(dst, dst_stride, src, src_stride,
                                                                           rows, num_rows, width);
    }
    CHECK_LAUNCH();
}
