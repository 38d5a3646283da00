// elementwise.cu -- GELU, ReLU, gated GELU and SiLU, rotary positions, dropout, values as float32.
#include "vector.cuh"
#include "launch.cuh"
#include "../dropout_bits.h"

// GELU, tanh approximation (Hendrycks, Gimpel 2016, section 2), as x times a logistic function:
//
//     0.5 x (1 + tanh u) = x s,   s = 1 / (1 + e),   e = exp(-2 u),   u = sqrt(2 / pi) (x + 0.044715 x^3)
//     d/dx = s + x s (1 - s) 2 u',   1 - s = e s
//
// Written so, nothing cancels: the relative error stays near that of exp, also in the negative tail. What is
// fused is written out: a value must not depend on whether it is one of a vector (doc/cuda.md, "The same
// bits").
#define GELU_SCALE 1.5957691216f  // 2 sqrt(2 / pi)
#define GELU_CUBIC (GELU_SCALE * 0.044715f)

// e = exp(-2 u). From 80 on, 1 / (1 + e) is below 2e-35 and e s still finite.
static __device__ __forceinline__ float gelu_e(float x) {
    return floatx_exp(fminf(-x * fmaf(GELU_CUBIC * x, x, GELU_SCALE), 80.0f));
}

static __device__ __forceinline__ float gelu_divide(float a, float b) {
#ifdef LLMC_BF16
    return __fdividef(a, b);  // 2 ulp of float32
#else
    return a / b;
#endif
}

static __device__ __forceinline__ float gelu_value(float x) {
    return gelu_divide(x, __fadd_rn(1.0f, gelu_e(x)));
}

// d/dx; s is 1 / (1 + e).
static __device__ __forceinline__ float gelu_slope(float x, float e, float s) {
    return fmaf(x * (e * s) * s, fmaf(3.0f * GELU_CUBIC * x, x, GELU_SCALE), s);
}

static __device__ __forceinline__ float gelu_slope(float x) {
    const float e = gelu_e(x);
    return gelu_slope(x, e, gelu_divide(1.0f, __fadd_rn(1.0f, e)));
}

// Without the approximation: x Phi(x), Phi(x) + x phi(x).
static __device__ __forceinline__ float exact_gelu_slope(float x) {
    return fmaf(x, 0.39894228f * floatx_exp(-0.5f * x * x), normcdff(x));
}

// GELU and its gradient over whole arrays.

constexpr int GELU_THREADS = 256, GELU_LOADS = 2;  // per thread and array: bytes in flight hide the latency

// A thread's k-th vector begins at value base + k * GELU_THREADS * N: neighbours side by side.
template <int N, bool EXACT>
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
        for (int j = 0; j < N; j++) { y[j] = EXACT ? y[j] * normcdff(y[j]) : gelu_value(y[j]); }
        store_floats(out + i, y);
    }
}

template <int N, bool EXACT>
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
        for (int j = 0; j < N; j++) { y[j] *= EXACT ? exact_gelu_slope(at[j]) : gelu_slope(at[j]); }
        store_floats(dinp + i, y);
    }
}

template <int N, bool EXACT>
static void gelu_forward_range(floatX* out, const floatX* inp, size_t num_values, OpsContext* ops) {
    if (num_values == 0) { return; }
    const unsigned num_blocks = blocks_for(num_values, GELU_THREADS * GELU_LOADS * N);
    gelu_forward_kernel<N, EXACT><<<num_blocks, GELU_THREADS, 0, ops->stream>>>(out, inp, num_values);
    CHECK_LAUNCH();
}

template <int N, bool EXACT>
static void gelu_backward_range(floatX* dinp, const floatX* dout, const floatX* inp, size_t num_values,
                                OpsContext* ops) {
    if (num_values == 0) { return; }
    const unsigned num_blocks = blocks_for(num_values, GELU_THREADS * GELU_LOADS * N);
    gelu_backward_kernel<N, EXACT><<<num_blocks, GELU_THREADS, 0, ops->stream>>>(dinp, dout, inp, num_values);
    CHECK_LAUNCH();
}

// Whole vectors, then what is left of the last one; (T, C) of a model leaves nothing.
template <bool EXACT>
static void gelu_forward_all(floatX* out, const floatX* inp, size_t num_values, OpsContext* ops) {
    const size_t whole = whole_vectors(num_values, out, inp);
    gelu_forward_range<FLOATX_PER_LOAD, EXACT>(out, inp, whole, ops);
    gelu_forward_range<1, EXACT>(out + whole, inp + whole, num_values - whole, ops);
}

template <bool EXACT>
static void gelu_backward_all(floatX* dinp, const floatX* dout, const floatX* inp, size_t num_values,
                              OpsContext* ops) {
    const size_t whole = whole_vectors(num_values, dinp, dout, inp);
    gelu_backward_range<FLOATX_PER_LOAD, EXACT>(dinp, dout, inp, whole, ops);
    gelu_backward_range<1, EXACT>(dinp + whole, dout + whole, inp + whole, num_values - whole, ops);
}

void gelu_forward(floatX* out, const floatX* inp, size_t num_values, OpsContext* ops) {
    gelu_forward_all<false>(out, inp, num_values, ops);
}
void gelu_backward(floatX* dinp, const floatX* dout, const floatX* inp, size_t num_values, OpsContext* ops) {
    gelu_backward_all<false>(dinp, dout, inp, num_values, ops);
}
void exact_gelu_forward(floatX* out, const floatX* inp, size_t num_values, OpsContext* ops) {
    gelu_forward_all<true>(out, inp, num_values, ops);
}
void exact_gelu_backward(floatX* dinp, const floatX* dout, const floatX* inp, size_t num_values,
                         OpsContext* ops) {
    gelu_backward_all<true>(dinp, dout, inp, num_values, ops);
}

// --- gated -------------------------------------------------------------------------------------------------
// The activations of T5's feed-forward layers: ReLU, and gated GELU (Shazeer 2020, "GLU variants
// improve transformer": GEGLU, with GELU by tanh); of Llama's: gated SiLU (SwiGLU).
//
//     relu     y = x <= 0 ? 0 : x,    dx = x > 0 ? dy : 0      (a NaN stays one, so that the loss shows it)
//     gated    y = gelu(a) b,         da = dy b gelu'(a),   db = dy gelu(a)
//     silu(a) = a s,   s = 1 / (1 + e),   e = exp(-a),   silu'(a) = s + a s e s
//
// A row of the gated input is a | b, F values each; everything is read and written once, in vectors where
// whole ones fit. Rounded once, at the end.

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

// --- gated GELU and SiLU: one vector of a, b and y per thread and load -------------------------------------
template <bool SILU> static __device__ __forceinline__ float gate_e(float x) {
    return SILU ? floatx_exp(fminf(-x, 80.0f)) : gelu_e(x);
}
template <bool SILU> static __device__ __forceinline__ float gate_slope(float x, float e, float s) {
    return SILU ? fmaf(x * (e * s), s, s) : gelu_slope(x, e, s);
}

template <int N, bool SILU>
__global__ static void gated_forward_kernel(floatX* out, const floatX* inp, unsigned num_vectors,
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
        for (int j = 0; j < N; j++) {
            y[j] = gelu_divide(y[j], __fadd_rn(1.0f, gate_e<SILU>(y[j]))) * gate[j];
        }
        store_floats(out + (size_t)i * N, y);
    }
}

template <int N, bool SILU>
__global__ static void gated_backward_kernel(floatX* dinp, const floatX* dout, const floatX* inp,
                                             unsigned num_vectors, unsigned F) {
    const unsigned i = blockIdx.x * GATED_THREADS + threadIdx.x, row_vectors = F / N;
    if (i >= num_vectors) { return; }
    const size_t at = ((size_t)i + (size_t)(i / row_vectors) * row_vectors) * N;
    const Floats<N> a = load_floats<N, LOAD_ONCE>(inp + at), b = load_floats<N, LOAD_ONCE>(inp + at + F),
                    d = load_floats<N, LOAD_ONCE>(dout + (size_t)i * N);
    Floats<N> da, db;
#pragma unroll
    for (int j = 0; j < N; j++) {
        const float e = gate_e<SILU>(a[j]), s = gelu_divide(1.0f, __fadd_rn(1.0f, e));
        da[j] = d[j] * b[j] * gate_slope<SILU>(a[j], e, s);
        db[j] = d[j] * (a[j] * s);
    }
    store_floats(dinp + at, da);
    store_floats(dinp + at + F, db);
}

template <int N, bool SILU>
static void gated_forward_rows(floatX* out, const floatX* inp, int T, int F, OpsContext* ops) {
    const size_t num_vectors = (size_t)T * (size_t)(F / N);
    gated_forward_kernel<N, SILU>
        <<<blocks_for(num_vectors, GATED_THREADS * GATED_LOADS), GATED_THREADS, 0, ops->stream>>>(
            out, inp, (unsigned)num_vectors, (unsigned)F);
    CHECK_LAUNCH();
}

template <int N, bool SILU>
static void gated_backward_rows(floatX* dinp, const floatX* dout, const floatX* inp, int T, int F,
                                OpsContext* ops) {
    const size_t num_vectors = (size_t)T * (size_t)(F / N);
    gated_backward_kernel<N, SILU><<<blocks_for(num_vectors, GATED_THREADS), GATED_THREADS, 0, ops->stream>>>(
        dinp, dout, inp, (unsigned)num_vectors, (unsigned)F);
    CHECK_LAUNCH();
}

template <bool SILU>
static void gated_forward(floatX* out, const floatX* inp, int T, int F, OpsContext* ops) {
    if (T == 0) { return; }
    if (vectors_fit(F, out, inp)) {
        gated_forward_rows<FLOATX_PER_LOAD, SILU>(out, inp, T, F, ops);
    } else {
        gated_forward_rows<1, SILU>(out, inp, T, F, ops);
    }
}

template <bool SILU>
static void gated_backward(floatX* dinp, const floatX* dout, const floatX* inp, int T, int F,
                           OpsContext* ops) {
    if (T == 0) { return; }
    if (vectors_fit(F, dinp, dout, inp)) {
        gated_backward_rows<FLOATX_PER_LOAD, SILU>(dinp, dout, inp, T, F, ops);
    } else {
        gated_backward_rows<1, SILU>(dinp, dout, inp, T, F, ops);
    }
}

void gated_gelu_forward(floatX* out, const floatX* inp, int T, int F, OpsContext* ops) {
    gated_forward<false>(out, inp, T, F, ops);
}
void gated_gelu_backward(floatX* dinp, const floatX* dout, const floatX* inp, int T, int F, OpsContext* ops) {
    gated_backward<false>(dinp, dout, inp, T, F, ops);
}
void gated_silu_forward(floatX* out, const floatX* inp, int T, int F, OpsContext* ops) {
    gated_forward<true>(out, inp, T, F, ops);
}
void gated_silu_backward(floatX* dinp, const floatX* dout, const floatX* inp, int T, int F, OpsContext* ops) {
    gated_backward<true>(dinp, dout, inp, T, F, ops);
}

// --- rotary positions --------------------------------------------------------------------------------------
// A head of q or k is turned: (x, y) of channels c and c + HS/2 becomes (x cos - y sin, y cos + x sin),
// backward by the opposite angle. Heads of k and v are repeated for the heads of q in their group, backward
// added up.
//
// A thread has one pair of a token, of a few heads in turn: so the angle is found once for them. Angles of
// thousands of radians are reduced by 2 pi in two parts before the fast sine, whose error then is 4e-7.

constexpr int ROPE_THREADS = 256, ROPE_HEADS = 8;  // heads: of the narrow rows

typedef struct {
    const int32_t* positions;
    Rope heads;
    unsigned num_pairs;  // of all tokens
} RopeCall;

template <bool BACKWARD>
__global__ static void rope_kernel(floatX* __restrict__ out, const floatX* __restrict__ inp, RopeCall about) {
    const unsigned i = blockIdx.x * ROPE_THREADS + threadIdx.x;
    const int HS = about.heads.head_size, half = HS / 2, NH = about.heads.num_heads;
    const int NKV = about.heads.num_kv_heads, num_narrow = NH + 2 * NKV, group = NH / NKV;
    if (i >= about.num_pairs) { return; }
    const unsigned t = i / (unsigned)half, c = i - t * (unsigned)half;
    const float angle = (float)__ldg(about.positions + t) * about.heads.rates[c];
    const float turns = rintf(angle * 0.15915494f);
    const float rest = fmaf(turns, 1.7484555e-7f, fmaf(turns, -6.2831855f, angle));
    const float cosine = __cosf(rest), sine = BACKWARD ? -__sinf(rest) : __sinf(rest);
    const int begin = (int)blockIdx.y * ROPE_HEADS, end = min(begin + ROPE_HEADS, num_narrow);
    for (int h = begin; h < end; h++) {
        const bool is_query = h < NH;
        const int copies = is_query ? 1 : group, first = is_query ? h : NH + (h - NH) * group;
        const size_t narrow = ((size_t)t * (size_t)num_narrow + (size_t)h) * (size_t)HS + c;
        const size_t wide = ((size_t)t * (size_t)(3 * NH) + (size_t)first) * (size_t)HS + c;
        const float cosine_of = h < NH + NKV ? cosine : 1.0f, sine_of = h < NH + NKV ? sine : 0.0f;
        float x = 0.0f, y = 0.0f;
        for (int k = 0; k < (BACKWARD ? copies : 1); k++) {
            const floatX* from = inp + (BACKWARD ? wide + (size_t)(k * HS) : narrow);
            x += (float)from[0], y += (float)from[half];
        }
        const floatX turned_x = (floatX)(x * cosine_of - y * sine_of);
        const floatX turned_y = (floatX)(y * cosine_of + x * sine_of);
        for (int k = 0; k < (BACKWARD ? 1 : copies); k++) {
            floatX* to = out + (BACKWARD ? narrow : wide + (size_t)(k * HS));
            to[0] = turned_x, to[half] = turned_y;
        }
    }
}

template <bool BACKWARD>
static void rope_turn(floatX* out, const floatX* inp, const int32_t* positions, const Rope* about, int T,
                      OpsContext* ops) {
    if (T == 0) { return; }
    const unsigned num_pairs = (unsigned)T * (unsigned)(about->head_size / 2);
    const RopeCall call = {positions, *about, num_pairs};
    const dim3 grid(blocks_for(num_pairs, ROPE_THREADS),
                    blocks_for((size_t)(about->num_heads + 2 * about->num_kv_heads), ROPE_HEADS));
    rope_kernel<BACKWARD><<<grid, ROPE_THREADS, 0, ops->stream>>>(out, inp, call);
    CHECK_LAUNCH();
}

void rope_forward(floatX* out, const floatX* inp, const int32_t* positions, const Rope* about, int T,
                  OpsContext* ops) {
    rope_turn<false>(out, inp, positions, about, T, ops);
}
void rope_backward(floatX* dinp, const floatX* dout, const int32_t* positions, const Rope* about, int T,
                   OpsContext* ops) {
    rope_turn<true>(dinp, dout, positions, about, T, ops);
}

// --- dropout -----------------------------------------------------------------------------------------------
// Dropout (Srivastava et al. 2014) of rows, by bits that depend on nothing but a token's key, the
// place in the model and the column (../dropout_bits.h): nothing is kept for backward.
//
// Some 10 instructions of the integer units a value: counted, not measured, 1.5e12 values a second on an
// H200, whose memory reads and writes 1.1e12.

constexpr int DROPOUT_THREADS = 256;

typedef struct {
    floatX* out;
    const floatX* inp;  // may be out
    const uint32_t* keys;
    uint32_t place, threshold;  // bits below it fall
    float scale;                // of what stays
    unsigned num_vectors, C;    // of all rows; values of a row
} Dropout;

// A thread's vector: N values of one row.
template <int N> __global__ static void dropout_kernel(Dropout about) {
    const unsigned i = blockIdx.x * DROPOUT_THREADS + threadIdx.x, row_vectors = about.C / N;
    if (i >= about.num_vectors) { return; }
    const unsigned t = i / row_vectors, c = (i - t * row_vectors) * N;
    Floats<N> x = load_floats<N>(about.inp + (size_t)i * N);
    const uint32_t row = dropout_row(__ldg(about.keys + t), about.place);
#pragma unroll
    for (int j = 0; j < N; j++) {
        x[j] = dropout_bits(row, c + (unsigned)j) < about.threshold ? 0.0f : x[j] * about.scale;
    }
    store_floats(about.out + (size_t)i * N, x);
}

template <int N> static void dropout_launch(Dropout about, int T, OpsContext* ops) {
    const size_t num_vectors = (size_t)T * (about.C / N);
    about.num_vectors = (unsigned)num_vectors;
    dropout_kernel<N><<<blocks_for(num_vectors, DROPOUT_THREADS), DROPOUT_THREADS, 0, ops->stream>>>(about);
    CHECK_LAUNCH();
}

void dropout_apply(floatX* out, const floatX* inp, const uint32_t* keys, uint32_t place, float p, int T,
                   int C, OpsContext* ops) {
    if (T == 0) { return; }
    if (p == 0.0f) {
        if (out != inp) { ops_copy(ops, out, inp, (size_t)T * (size_t)C * sizeof *out); }
        return;
    }
    const Dropout about = {out, inp, keys, place, dropout_threshold(p), 1.0f / (1.0f - p), 0, (unsigned)C};
    if (vectors_fit(C, out, inp)) {
        dropout_launch<FLOATX_PER_LOAD>(about, T, ops);
    } else {
        dropout_launch<1>(about, T, ops);
    }
}

// --- values ------------------------------------------------------------------------------------------------
// FloatX to float32 on the device, for small tables that kernels read as floats. One value a
// thread.

constexpr int VALUES_THREADS = 256;

__global__ static void __launch_bounds__(VALUES_THREADS)
    values_to_floats_kernel(float* out, const floatX* inp, size_t num_values) {
    const size_t i = (size_t)blockIdx.x * VALUES_THREADS + threadIdx.x;
    if (i < num_values) { out[i] = (float)inp[i]; }
}

void values_to_floats(float* out, const floatX* inp, size_t num_values, OpsContext* ops) {
    if (num_values == 0) { return; }
    values_to_floats_kernel<<<blocks_for(num_values, VALUES_THREADS), VALUES_THREADS, 0, ops->stream>>>(
        out, inp, num_values);
    CHECK_LAUNCH();
}
