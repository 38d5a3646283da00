/*
gated.cu -- the activations of T5's feed-forward layers: ReLU, and gated GELU (Shazeer 2020, "GLU variants
improve transformer": GEGLU, with GELU by tanh).

    relu     y = x <= 0 ? 0 : x,    dx = x > 0 ? dy : 0      (a NaN stays one, so that the loss shows it)
    gated    y = gelu(a) b,         da = dy b gelu'(a),   db = dy gelu(a)

A row of the gated input is a | b, F values each; everything is read and written once, in vectors where whole
ones fit. Rounded once, at the end.
*/
#include "gelu.cuh"
#include "launch.cuh"

constexpr int GATED_THREADS = 256, GATED_LOADS = 2;  // per thread and array: bytes in flight hide the latency

// A thread's k-th vector begins at value base + k * GATED_THREADS * N: neighbours side by side.
template <int N, bool BACKWARD>
__global__ static void relu_kernel(floatX* out, const floatX* dout, const floatX* inp, size_t num_values) {
    const size_t base = ((size_t)blockIdx.x * GATED_LOADS * GATED_THREADS + threadIdx.x) * N;
    Vec<floatX, N> x[GATED_LOADS], d[GATED_LOADS];
#pragma unroll
    for (int k = 0; k < GATED_LOADS; k++) {
        const size_t i = base + (size_t)(k * GATED_THREADS * N);
        if (i >= num_values) { continue; }
        x[k] = load_vec<N>(inp + i);
        if (BACKWARD) { d[k] = load_vec<N, LOAD_ONCE>(dout + i); }
    }
#pragma unroll
    for (int k = 0; k < GATED_LOADS; k++) {
        const size_t i = base + (size_t)(k * GATED_THREADS * N);
        if (i >= num_values) { continue; }
        const Floats<N> at = to_floats(x[k]);
        Floats<N> y = BACKWARD ? to_floats(d[k]) : at;
#pragma unroll
        for (int j = 0; j < N; j++) {
            const bool falls = BACKWARD ? !(at[j] > 0.0f) : at[j] <= 0.0f;
            y[j] = falls ? 0.0f : y[j];
        }
        store_floats(out + i, y);
    }
}

template <int N, bool BACKWARD>
static void relu_range(floatX* out, const floatX* dout, const floatX* inp, size_t num_values,
                       OpsContext* ops) {
    if (num_values == 0) { return; }
    const unsigned num_blocks = blocks_for(num_values, GATED_THREADS * GATED_LOADS * N);
    relu_kernel<N, BACKWARD><<<num_blocks, GATED_THREADS, 0, ops->stream>>>(out, dout, inp, num_values);
    CHECK_LAUNCH();
}

void relu_forward(floatX* out, const floatX* inp, size_t num_values, OpsContext* ops) {
    const size_t whole = whole_vectors(num_values, out, inp);
    relu_range<FLOATX_PER_LOAD, false>(out, NULL, inp, whole, ops);
    relu_range<1, false>(out + whole, NULL, inp + whole, num_values - whole, ops);
}

void relu_backward(floatX* dinp, const floatX* dout, const floatX* inp, size_t num_values, OpsContext* ops) {
    const size_t whole = whole_vectors(num_values, dinp, dout, inp);
    relu_range<FLOATX_PER_LOAD, true>(dinp, dout, inp, whole, ops);
    relu_range<1, true>(dinp + whole, dout + whole, inp + whole, num_values - whole, ops);
}

// --- gated GELU: one vector of a, b and y per thread and load ----------------------------------------------
template <int N>
__global__ static void gated_gelu_forward_kernel(floatX* out, const floatX* inp, unsigned num_vectors,
                                                 unsigned F) {
    const unsigned base = blockIdx.x * GATED_LOADS * GATED_THREADS + threadIdx.x, row_vectors = F / N;
    Vec<floatX, N> a[GATED_LOADS], b[GATED_LOADS];
#pragma unroll
    for (int k = 0; k < GATED_LOADS; k++) {
        const unsigned i = base + k * GATED_THREADS;
        if (i >= num_vectors) { continue; }
        const floatX* at = inp + ((size_t)i + (size_t)(i / row_vectors) * row_vectors) * N;
        a[k] = load_vec<N>(at);
        b[k] = load_vec<N>(at + F);
    }
#pragma unroll
    for (int k = 0; k < GATED_LOADS; k++) {
        const unsigned i = base + k * GATED_THREADS;
        if (i >= num_vectors) { continue; }
        Floats<N> y = to_floats(a[k]);
        const Floats<N> gate = to_floats(b[k]);
#pragma unroll
        for (int j = 0; j < N; j++) { y[j] = gelu_value(y[j]) * gate[j]; }
        store_floats(out + (size_t)i * N, y);
    }
}

template <int N>
__global__ static void gated_gelu_backward_kernel(floatX* dinp, const floatX* dout, const floatX* inp,
                                                  unsigned num_vectors, unsigned F) {
    const unsigned i = blockIdx.x * GATED_THREADS + threadIdx.x, row_vectors = F / N;
    if (i >= num_vectors) { return; }
    const size_t at = ((size_t)i + (size_t)(i / row_vectors) * row_vectors) * N;
    const Floats<N> a = load_floats<N, LOAD_ONCE>(inp + at), b = load_floats<N, LOAD_ONCE>(inp + at + F),
                    d = load_floats<N, LOAD_ONCE>(dout + (size_t)i * N);
    Floats<N> da, db;
#pragma unroll
    for (int j = 0; j < N; j++) {
        const float e = gelu_e(a[j]), s = gelu_divide(1.0f, 1.0f + e);
        da[j] = d[j] * b[j] * gelu_slope(a[j], e, s);
        db[j] = d[j] * (a[j] * s);
    }
    store_floats(dinp + at, da);
    store_floats(dinp + at + F, db);
}

template <int N> static void gated_forward(floatX* out, const floatX* inp, int T, int F, OpsContext* ops) {
    const size_t num_vectors = (size_t)T * (size_t)(F / N);
    gated_gelu_forward_kernel<N>
        <<<blocks_for(num_vectors, GATED_THREADS * GATED_LOADS), GATED_THREADS, 0, ops->stream>>>(
            out, inp, (unsigned)num_vectors, (unsigned)F);
    CHECK_LAUNCH();
}

template <int N>
static void gated_backward(floatX* dinp, const floatX* dout, const floatX* inp, int T, int F,
                           OpsContext* ops) {
    const size_t num_vectors = (size_t)T * (size_t)(F / N);
    gated_gelu_backward_kernel<N><<<blocks_for(num_vectors, GATED_THREADS), GATED_THREADS, 0, ops->stream>>>(
        dinp, dout, inp, (unsigned)num_vectors, (unsigned)F);
    CHECK_LAUNCH();
}

void gated_gelu_forward(floatX* out, const floatX* inp, int T, int F, OpsContext* ops) {
    if (T == 0) { return; }
    if (vectors_fit(F, out, inp)) {
        gated_forward<FLOATX_PER_LOAD>(out, inp, T, F, ops);
    } else {
        gated_forward<1>(out, inp, T, F, ops);
    }
}

void gated_gelu_backward(floatX* dinp, const floatX* dout, const floatX* inp, int T, int F, OpsContext* ops) {
    if (T == 0) { return; }
    if (vectors_fit(F, dinp, dout, inp)) {
        gated_backward<FLOATX_PER_LOAD>(dinp, dout, inp, T, F, ops);
    } else {
        gated_backward<1>(dinp, dout, inp, T, F, ops);
    }
}
