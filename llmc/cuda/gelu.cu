/*
gelu.cu -- GELU and its gradient (gelu.cuh) over whole arrays.
*/
#include "gelu.cuh"
#include "launch.cuh"

constexpr int GELU_THREADS = 256, GELU_LOADS = 2;  // per thread and array: bytes in flight hide the latency

// A thread's k-th vector begins at value base + k * GELU_THREADS * N: neighbours side by side.
template <int N>
__global__ static void gelu_forward_kernel(floatX* out, const floatX* inp, size_t num_values) {
    const size_t base = ((size_t)blockIdx.x * GELU_LOADS * GELU_THREADS + threadIdx.x) * N;
    Vec<floatX, N> x[GELU_LOADS];
#pragma unroll
    for (int k = 0; k < GELU_LOADS; k++) {
        const size_t i = base + (size_t)(k * GELU_THREADS * N);
        if (i < num_values) { x[k] = load_vec<N>(inp + i); }
    }
#pragma unroll
    for (int k = 0; k < GELU_LOADS; k++) {
        const size_t i = base + (size_t)(k * GELU_THREADS * N);
        if (i >= num_values) { continue; }
        Floats<N> y = to_floats(x[k]);
#pragma unroll
        for (int j = 0; j < N; j++) { y[j] = gelu_value(y[j]); }
        store_floats(out + i, y);
    }
}

template <int N>
__global__ static void gelu_backward_kernel(floatX* dinp, const floatX* dout, const floatX* inp,
                                            size_t num_values) {
    const size_t base = ((size_t)blockIdx.x * GELU_LOADS * GELU_THREADS + threadIdx.x) * N;
    Vec<floatX, N> x[GELU_LOADS], d[GELU_LOADS];
#pragma unroll
    for (int k = 0; k < GELU_LOADS; k++) {
        const size_t i = base + (size_t)(k * GELU_THREADS * N);
        if (i < num_values) {
            x[k] = load_vec<N, LOAD_ONCE>(inp + i);
            d[k] = load_vec<N, LOAD_ONCE>(dout + i);
        }
    }
#pragma unroll
    for (int k = 0; k < GELU_LOADS; k++) {
        const size_t i = base + (size_t)(k * GELU_THREADS * N);
        if (i >= num_values) { continue; }
        const Floats<N> at = to_floats(x[k]);
        Floats<N> y = to_floats(d[k]);
#pragma unroll
        for (int j = 0; j < N; j++) { y[j] *= gelu_slope(at[j]); }
        store_floats(dinp + i, y);
    }
}

template <int N>
static void gelu_forward_range(floatX* out, const floatX* inp, size_t num_values, OpsContext* ops) {
    if (num_values == 0) { return; }
    const unsigned num_blocks = blocks_for(num_values, GELU_THREADS * GELU_LOADS * N);
    gelu_forward_kernel<N><<<num_blocks, GELU_THREADS, 0, ops->stream>>>(out, inp, num_values);
    CHECK_LAUNCH();
}

template <int N>
static void gelu_backward_range(floatX* dinp, const floatX* dout, const floatX* inp, size_t num_values,
                                OpsContext* ops) {
    if (num_values == 0) { return; }
    const unsigned num_blocks = blocks_for(num_values, GELU_THREADS * GELU_LOADS * N);
    gelu_backward_kernel<N><<<num_blocks, GELU_THREADS, 0, ops->stream>>>(dinp, dout, inp, num_values);
    CHECK_LAUNCH();
}

// Whole vectors, then what is left of the last one; (T, C) of a model leaves nothing.
void gelu_forward(floatX* out, const floatX* inp, size_t num_values, OpsContext* ops) {
    const size_t whole = whole_vectors(num_values, out, inp);
    gelu_forward_range<FLOATX_PER_LOAD>(out, inp, whole, ops);
    gelu_forward_range<1>(out + whole, inp + whole, num_values - whole, ops);
}

void gelu_backward(floatX* dinp, const floatX* dout, const floatX* inp, size_t num_values, OpsContext* ops) {
    const size_t whole = whole_vectors(num_values, dinp, dout, inp);
    gelu_backward_range<FLOATX_PER_LOAD>(dinp, dout, inp, whole, ops);
    gelu_backward_range<1>(dinp + whole, dout + whole, inp + whole, num_values - whole, ops);
}
