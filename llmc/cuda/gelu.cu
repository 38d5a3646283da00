/*
gelu.cu -- GELU, tanh approximation (Hendrycks, Gimpel 2016, section 2), as x times a logistic function:

    0.5 x (1 + tanh u) = x s,   s = 1 / (1 + e),   e = exp(-2 u),   u = sqrt(2 / pi) (x + 0.044715 x^3)
    d/dx = s + x s (1 - s) 2 u',   1 - s = e s

Written so, nothing cancels: the relative error stays near that of exp, also in the negative tail.
*/
#include "launch.cuh"

#define GELU_SCALE 1.5957691216f  // 2 sqrt(2 / pi)
#define GELU_CUBIC (GELU_SCALE * 0.044715f)

constexpr int GELU_THREADS = 256, GELU_LOADS = 2;  // per thread and array: bytes in flight hide the latency

// e = exp(-2 u). From 80 on, 1 / (1 + e) is below 2e-35 and e s still finite.
static __device__ __forceinline__ float gelu_e(float x) {
    return floatx_exp(fminf(-x * (GELU_SCALE + GELU_CUBIC * x * x), 80.0f));
}

static __device__ __forceinline__ float gelu_divide(float a, float b) {
#ifdef LLMC_BF16
    return __fdividef(a, b);  // 2 ulp of float32
#else
    return a / b;
#endif
}

static __device__ __forceinline__ float gelu_value(float x) {
    return gelu_divide(x, 1.0f + gelu_e(x));
}

static __device__ __forceinline__ float gelu_slope(float x) {
    const float e = gelu_e(x), s = gelu_divide(1.0f, 1.0f + e);
    return s + x * (e * s) * s * (GELU_SCALE + 3.0f * GELU_CUBIC * x * x);
}

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
