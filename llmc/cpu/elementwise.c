/*
elementwise.c -- GELU, gated GELU and SiLU, ReLU, rotary positions, dropout, embedding, rows, AdamW.
*/
#include "fast_math.h"

#include <math.h>
#include <string.h>
#include "context.h"
#include "../dropout_bits.h"

/*
GELU, tanh approximation (Hendrycks, Gimpel 2016, section 2), as x times a logistic function:

    0.5 x (1 + tanh u) = x s,   s = 1 / (1 + e),   e = exp(-2 u),   u = sqrt(2 / pi) (x + 0.044715 x^3)
    d/dx = s + x s (1 - s) 2 u',   1 - s = e s

This form has no cancellation: the relative error stays near that of exp, 2e-7, also in the negative tail.
*/
#define GELU_SCALE 1.5957691216f  // 2 sqrt(2 / pi)
#define GELU_CUBIC (GELU_SCALE * 0.044715f)

static inline float gelu_e(float x) {
    return fast_expf(-x * (GELU_SCALE + GELU_CUBIC * x * x));
}

// s = 1 / (1 + e)
static inline float gelu_slope(float x, float e, float s) {
    return s + x * (e * s) * s * (GELU_SCALE + 3.0f * GELU_CUBIC * x * x);
}

void matmul_gelu_forward(floatX* out, floatX* pre_gelu, const floatX* inp, const floatX* weight,
                         const floatX* bias, int T, int C, int OC, OpsContext* ops) {
    matmul_forward(pre_gelu, inp, weight, bias, T, C, OC, ops);
    gelu_forward(out, pre_gelu, (size_t)T * (size_t)OC, ops);
}

void matmul_gelu_backward_input(floatX* dinp, const floatX* pre_gelu, void* scratch, const floatX* dout,
                                const floatX* weight, int T, int C, int OC, OpsContext* ops) {
    floatX* dgelu = scratch;
    matmul_backward_input(dgelu, dout, weight, T, C, OC, ops);
    gelu_backward(dinp, dgelu, pre_gelu, (size_t)T * (size_t)C, ops);
}

void gelu_forward(floatX* out, const floatX* inp, size_t num_values, OpsContext* ops) {
#pragma omp parallel for simd num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    for (size_t i = 0; i < num_values; i++) {
        const float x = inp[i];
        out[i] = x / (1.0f + gelu_e(x));
    }
}

void gelu_backward(floatX* dinp, const floatX* dout, const floatX* inp, size_t num_values, OpsContext* ops) {
#pragma omp parallel for simd num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    for (size_t i = 0; i < num_values; i++) {
        const float x = inp[i], e = gelu_e(x);
        dinp[i] = dout[i] * gelu_slope(x, e, 1.0f / (1.0f + e));
    }
}

// x Phi(x) and Phi(x) + x phi(x); erfc, not 1 + erf, for the negative tail.
static inline float normal_cdf(float x) {
    return 0.5f * erfcf(-0.70710678f * x);
}

void exact_gelu_forward(floatX* out, const floatX* inp, size_t num_values, OpsContext* ops) {
#pragma omp parallel for simd num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    for (size_t i = 0; i < num_values; i++) { out[i] = inp[i] * normal_cdf(inp[i]); }
}

void exact_gelu_backward(floatX* dinp, const floatX* dout, const floatX* inp, size_t num_values,
                         OpsContext* ops) {
#pragma omp parallel for simd num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    for (size_t i = 0; i < num_values; i++) {
        const float x = inp[i];
        dinp[i] = dout[i] * (normal_cdf(x) + x * (0.39894228f * fast_expf(-0.5f * x * x)));
    }
}

// --- gated GELU and SiLU -----------------------------------------------------------------------------------
/*
GELU or SiLU of one half of a row times the other half (Shazeer 2020, "GLU Variants": GEGLU, SwiGLU).

    out = gelu(a) b,   da = dout b gelu'(a),   db = dout gelu(a)
    silu(a) = a s,   s = 1 / (1 + e),   e = exp(-a),   silu' = s + a s e s
*/

// Of a row. `silu` is a constant in each copy of the loop: as a variable it cost up to 10 % of the time.
static inline void gate_forward(floatX* y, const floatX* a, const floatX* b, int F, const bool silu) {
#pragma omp simd
    for (int c = 0; c < F; c++) { y[c] = a[c] / (1.0f + (silu ? fast_expf(-a[c]) : gelu_e(a[c]))) * b[c]; }
}

// da, db may be a, b
static inline void gate_backward(floatX* da, floatX* db, const floatX* d, const floatX* a, const floatX* b,
                                 int F, const bool silu) {
#pragma omp simd
    for (int c = 0; c < F; c++) {
        const float x = a[c], y = b[c], e = silu ? fast_expf(-x) : gelu_e(x), s = 1.0f / (1.0f + e);
        da[c] = d[c] * y * (silu ? s + x * (e * s) * s : gelu_slope(x, e, s));
        db[c] = d[c] * (x * s);
    }
}

static void gated_forward(floatX* out, const floatX* inp, int T, int F, bool silu, OpsContext* ops) {
    const size_t num_values = (size_t)T * (size_t)F;
#pragma omp parallel for num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    for (int t = 0; t < T; t++) {
        const floatX* a = inp + (size_t)t * 2 * (size_t)F;
        floatX* y = out + (size_t)t * (size_t)F;
        silu ? gate_forward(y, a, a + F, F, true) : gate_forward(y, a, a + F, F, false);
    }
}

static void gated_backward(floatX* dinp, const floatX* dout, const floatX* inp, int T, int F, bool silu,
                           OpsContext* ops) {
    const size_t num_values = (size_t)T * (size_t)F;
#pragma omp parallel for num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    for (int t = 0; t < T; t++) {
        const floatX *a = inp + (size_t)t * 2 * (size_t)F, *d = dout + (size_t)t * (size_t)F;
        floatX* da = dinp + (size_t)t * 2 * (size_t)F;
        silu ? gate_backward(da, da + F, d, a, a + F, F, true)
             : gate_backward(da, da + F, d, a, a + F, F, false);
    }
}

void gated_gelu_forward(floatX* out, const floatX* inp, int T, int F, OpsContext* ops) {
    gated_forward(out, inp, T, F, false, ops);
}
void gated_gelu_backward(floatX* dinp, const floatX* dout, const floatX* inp, int T, int F, OpsContext* ops) {
    gated_backward(dinp, dout, inp, T, F, false, ops);
}
void gated_silu_forward(floatX* out, const floatX* inp, int T, int F, OpsContext* ops) {
    gated_forward(out, inp, T, F, true, ops);
}
void gated_silu_backward(floatX* dinp, const floatX* dout, const floatX* inp, int T, int F, OpsContext* ops) {
    gated_backward(dinp, dout, inp, T, F, true, ops);
}

// --- rotary positions --------------------------------------------------------------------------------------
/*
A head of q or k is turned: (x, y) of channels c and c + HS/2 becomes (x cos - y sin, y cos + x sin), backward
by the opposite angle. Heads of k and v are repeated for the heads of q in their group, backward added up.
*/

// out = the sum of n heads, each `stride` after the one before, turned by the angles (cos, sin), or as it is.
static void rope_head(floatX* out, const floatX* inp, int n, int stride, const float* cosines,
                      const float* sines, bool turns, float direction, int HS) {
    const int half = HS / 2;
#pragma omp simd
    for (int c = 0; c < half; c++) {
        float x = 0.0f, y = 0.0f;
        for (int i = 0; i < n; i++) { x += inp[i * stride + c], y += inp[i * stride + c + half]; }
        const float cosine = turns ? cosines[c] : 1.0f, sine = turns ? direction * sines[c] : 0.0f;
        out[c] = x * cosine - y * sine;
        out[c + half] = y * cosine + x * sine;
    }
}

static void rope_turn(floatX* out, const floatX* inp, const int32_t* positions, const Rope* about, int T,
                      bool is_backward, OpsContext* ops) {
    const int NH = about->num_heads, NKV = about->num_kv_heads, HS = about->head_size, group = NH / NKV;
    const int narrow = (NH + 2 * NKV) * HS, wide = 3 * NH * HS;
    const float direction = is_backward ? -1.0f : 1.0f;
#pragma omp parallel for num_threads(ops->num_threads) if ((size_t)T * (size_t)wide > OPS_PARALLEL_VALUES)
    for (int t = 0; t < T; t++) {
        float cosines[ROPE_MAX_PAIRS], sines[ROPE_MAX_PAIRS];
        for (int c = 0; c < HS / 2; c++) {
            const float angle = (float)positions[t] * about->rates[c];
            cosines[c] = cosf(angle), sines[c] = sinf(angle);
        }
        for (int h = 0; h < NH + 2 * NKV; h++) {
            const bool is_query = h < NH, turns = h < NH + NKV;
            const int copies = is_query ? 1 : group;
            const int first = is_query ? h : NH + (h - NH) * group;  // among the wide row's heads
            const size_t at = (size_t)t * (size_t)narrow + (size_t)(h * HS);
            const size_t to = (size_t)t * (size_t)wide + (size_t)(first * HS);
            if (is_backward) {
                rope_head(out + at, inp + to, copies, HS, cosines, sines, turns, direction, HS);
                continue;
            }
            for (int i = 0; i < copies; i++) {
                rope_head(out + to + (size_t)(i * HS), inp + at, 1, 0, cosines, sines, turns, direction, HS);
            }
        }
    }
}

void rope_forward(floatX* out, const floatX* inp, const int32_t* positions, const Rope* about, int T,
                  OpsContext* ops) {
    rope_turn(out, inp, positions, about, T, false, ops);
}

void rope_backward(floatX* dinp, const floatX* dout, const int32_t* positions, const Rope* about, int T,
                   OpsContext* ops) {
    rope_turn(dinp, dout, positions, about, T, true, ops);
}

// --- ReLU --------------------------------------------------------------------------------------------------
/*
max(x, 0). NaN is kept in forward, so that the loss shows it.
*/

void relu_forward(floatX* out, const floatX* inp, size_t num_values, OpsContext* ops) {
#pragma omp parallel for simd num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    for (size_t i = 0; i < num_values; i++) { out[i] = inp[i] <= 0.0f ? 0.0f : inp[i]; }
}

void relu_backward(floatX* dinp, const floatX* dout, const floatX* inp, size_t num_values, OpsContext* ops) {
#pragma omp parallel for simd num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    for (size_t i = 0; i < num_values; i++) { dinp[i] = inp[i] > 0.0f ? dout[i] : 0.0f; }
}

// --- dropout -----------------------------------------------------------------------------------------------
/*
Dropout (Srivastava et al. 2014) with the bits of dropout_bits.h: a hash for each value, no state.
*/

void dropout_apply(floatX* out, const floatX* inp, const uint32_t* keys, uint32_t place, float p, int T,
                   int C, OpsContext* ops) {
    const size_t num_values = (size_t)T * (size_t)C;
    const uint32_t threshold = dropout_threshold(p);
    const float scale = 1.0f / (1.0f - p);
    if (p == 0.0f) {
        if (out != inp) { ops_copy(ops, out, inp, num_values * sizeof *out); }
        return;
    }
#pragma omp parallel for num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    for (int t = 0; t < T; t++) {
        const uint32_t row = dropout_row(keys[t], place);
        const floatX* x = inp + (size_t)t * (size_t)C;
        floatX* y = out + (size_t)t * (size_t)C;
#pragma omp simd
        for (int c = 0; c < C; c++) {
            y[c] = dropout_bits(row, (uint32_t)c) < threshold ? 0.0f : x[c] * scale;
        }
    }
}

// --- embedding ---------------------------------------------------------------------------------------------
/*
Sum of token and optional position embedding; backward adds rows of repeated tokens.

Backward gives each thread a range of channels for all tokens in order, so the order of additions does not
depend on the number of threads.
*/

void embedding_forward(floatX* out, const int32_t* tokens, const int32_t* positions, const floatX* wte,
                       const floatX* wpe, int T, int C, OpsContext* ops) {
    const size_t num_values = (size_t)T * (size_t)C;
#pragma omp parallel for num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    for (int t = 0; t < T; t++) {
        floatX* o = out + (size_t)t * (size_t)C;
        const floatX* a = wte + (size_t)tokens[t] * (size_t)C;
        if (wpe == NULL) {
            memcpy(o, a, (size_t)C * sizeof *o);
            continue;
        }
        const floatX* b = wpe + (size_t)positions[t] * (size_t)C;
#pragma omp simd
        for (int c = 0; c < C; c++) { o[c] = a[c] + b[c]; }
    }
}

static void embedding_add_channels(float* dwte, float* dwpe, const floatX* dout, const int32_t* tokens,
                                   const int32_t* positions, int T, int C, int begin, int end) {
    for (int t = 0; t < T; t++) {
        const floatX* d = dout + (size_t)t * (size_t)C;
        float* a = dwte + (size_t)tokens[t] * (size_t)C;
#pragma omp simd
        for (int c = begin; c < end; c++) { a[c] += d[c]; }
        if (dwpe == NULL) { continue; }
        float* b = dwpe + (size_t)positions[t] * (size_t)C;
#pragma omp simd
        for (int c = begin; c < end; c++) { b[c] += d[c]; }
    }
}

size_t embedding_backward_scratch_bytes(int T, int C, const OpsContext* ops) {
    (void)T, (void)C, (void)ops;
    return 0;
}

void embedding_backward(float* dwte, float* dwpe, void* scratch, const floatX* dout, const int32_t* tokens,
                        const int32_t* positions, int T, int C, OpsContext* ops) {
    (void)scratch;
    // whole cache lines per thread
    const int num_lines = (C + 15) / 16, n = ops->num_threads;
    const size_t num_values = (size_t)T * (size_t)C;
#pragma omp parallel for num_threads(n) if (num_values > OPS_PARALLEL_VALUES)
    for (int i = 0; i < n; i++) {
        int begin = num_lines * i / n * 16, end = num_lines * (i + 1) / n * 16;
        embedding_add_channels(dwte, dwpe, dout, tokens, positions, T, C, begin, end < C ? end : C);
    }
}

// --- rows --------------------------------------------------------------------------------------------------
/*
Gather and scatter rows: the supervised ones for the head; new keys and values for a cache.
*/

void gather_rows(floatX* out, const floatX* inp, const int32_t* rows, int num_rows, int C, OpsContext* ops) {
    const size_t num_values = (size_t)num_rows * (size_t)C;
#pragma omp parallel for num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    for (int i = 0; i < num_rows; i++) {
        memcpy(out + (size_t)i * (size_t)C, inp + (size_t)rows[i] * (size_t)C, (size_t)C * sizeof *out);
    }
}

void scatter_rows(floatX* out, const floatX* inp, const int32_t* rows, int num_rows, int T, int C,
                  OpsContext* ops) {
    const size_t num_values = (size_t)T * (size_t)C;
#pragma omp parallel num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    {
#pragma omp for
        for (int t = 0; t < T; t++) { memset(out + (size_t)t * (size_t)C, 0, (size_t)C * sizeof *out); }
#pragma omp for
        for (int i = 0; i < num_rows; i++) {
            memcpy(out + (size_t)rows[i] * (size_t)C, inp + (size_t)i * (size_t)C, (size_t)C * sizeof *out);
        }
    }
}

void place_rows(floatX* dst, int dst_stride, const floatX* src, int src_stride, const int32_t* rows,
                int num_rows, int width, OpsContext* ops) {
    const size_t num_values = (size_t)num_rows * (size_t)width;
#pragma omp parallel for num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    for (int i = 0; i < num_rows; i++) {
        memcpy(dst + (size_t)rows[i] * (size_t)dst_stride, src + (size_t)i * (size_t)src_stride,
               (size_t)width * sizeof *dst);
    }
}

// --- AdamW -------------------------------------------------------------------------------------------------
/*
AdamW (Loshchilov, Hutter 2019, algorithm 2) in one pass over memory, and the norm for clipping.
*/

void adamw_update(floatX* params, float* master, float* m, float* v, const float* grads, size_t num_params,
                  int64_t first_idx, const AdamwUpdate* about, OpsContext* ops) {
    (void)master, (void)first_idx;  // params are float32 themselves
    const float beta1 = about->beta1, beta2 = about->beta2, eps = about->eps, grad_scale = about->grad_scale;
    const double correction1 = 1.0 - pow((double)beta1, about->t),
                 correction2 = 1.0 - pow((double)beta2, about->t);
    const float step = (float)((double)about->lr / correction1),
                keep = (float)(1.0 - (double)about->lr * (double)about->weight_decay);
    const float scale2 = (float)(1.0 / sqrt(correction2));
    const float rest1 = 1.0f - beta1, rest2 = 1.0f - beta2;
#pragma omp parallel for simd num_threads(ops->num_threads) if (num_params > OPS_PARALLEL_VALUES)
    for (size_t i = 0; i < num_params; i++) {
        const float g = grads[i] * grad_scale;
        const float mi = m[i] + rest1 * (g - m[i]);
        const float vi = beta2 * v[i] + rest2 * (g * g);
        m[i] = mi;
        v[i] = vi;
        params[i] = params[i] * keep - step * mi / (sqrtf(vi) * scale2 + eps);
    }
}

enum { NORM_BLOCKS = 512 };

// Four independent sums, because one would be limited by the latency of additions rather than by memory.
static double norm_block(const float* values, size_t num_values) {
    const size_t n = num_values / 4;
    const float *a = values, *b = a + n, *c = b + n, *d = c + n;
    double sum_a = 0.0, sum_b = 0.0, sum_c = 0.0, sum_d = 0.0;
#pragma omp simd reduction(+ : sum_a, sum_b, sum_c, sum_d)
    for (size_t i = 0; i < n; i++) {
        sum_a += (double)a[i] * (double)a[i];
        sum_b += (double)b[i] * (double)b[i];
        sum_c += (double)c[i] * (double)c[i];
        sum_d += (double)d[i] * (double)d[i];
    }
    double sum = sum_a + sum_b + (sum_c + sum_d);
    for (size_t i = 4 * n; i < num_values; i++) { sum += (double)values[i] * (double)values[i]; }
    return sum;
}

// The number of blocks is fixed and their sums are added in order: the same bits for any number of threads.
double sum_of_squares(const float* values, size_t num_values, OpsContext* ops) {
    double sums[NORM_BLOCKS];
    const size_t block = (num_values + NORM_BLOCKS - 1) / NORM_BLOCKS;
#pragma omp parallel for num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    for (size_t b = 0; b < NORM_BLOCKS; b++) {
        const size_t begin = b * block < num_values ? b * block : num_values;
        const size_t end = begin + block < num_values ? begin + block : num_values;
        sums[b] = norm_block(values + begin, end - begin);
    }
    double total = 0.0;
    for (int b = 0; b < NORM_BLOCKS; b++) { total += sums[b]; }
    return total;
}
