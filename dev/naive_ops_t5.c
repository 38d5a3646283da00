// What T5 needs of ops.h in plain loops, beside naive_ops.c: RMS norm, gates, dropout, attention in general.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../llmc/dropout_bits.h"
#include "../llmc/ops.h"
#include "../llmc/t5_bucket.h"

// --- RMS norm ----------------------------------------------------------------------------------------------
void rmsnorm_forward(floatX* out, float* rstd, const floatX* inp, const floatX* weight, float scale, int T,
                     int C, OpsContext* ops) {
    (void)ops;
    for (int t = 0; t < T; t++) {
        const floatX* x = inp + (size_t)t * C;
        float sum = 0.0f;
        for (int c = 0; c < C; c++) { sum += x[c] * x[c]; }
        rstd[t] = 1.0f / sqrtf(sum / (float)C + 1e-6f);
        for (int c = 0; c < C; c++) { out[(size_t)t * C + c] = x[c] * rstd[t] * weight[c] * scale; }
    }
}

void residual_rmsnorm_forward(floatX* residual, floatX* out, float* rstd, const floatX* a, const floatX* b,
                              const floatX* weight, float scale, int T, int C, OpsContext* ops) {
    residual_forward(residual, a, b, (size_t)T * C, ops);
    rmsnorm_forward(out, rstd, residual, weight, scale, T, C, ops);
}

void rmsnorm_backward(floatX* dinp, float* dweight, const floatX* dresidual, const floatX* dout,
                      const floatX* inp, const floatX* weight, const float* rstd, float scale, int T, int C,
                      OpsContext* ops) {
    (void)ops;
    for (int t = 0; t < T; t++) {
        const floatX *d = dout + (size_t)t * C, *x = inp + (size_t)t * C;
        const floatX* rest = dresidual != NULL ? dresidual + (size_t)t * C : NULL;
        float mean = 0.0f;
        for (int c = 0; c < C; c++) { mean += d[c] * weight[c] * scale * x[c] * rstd[t] / (float)C; }
        for (int c = 0; c < C; c++) {
            float xhat = x[c] * rstd[t], g = d[c] * weight[c] * scale;
            dweight[c] += d[c] * scale * xhat;
            float dx = (g - xhat * mean) * rstd[t];
            dinp[(size_t)t * C + c] = rest != NULL ? rest[c] + dx : dx;
        }
    }
}

// --- gates, dropout ----------------------------------------------------------------------------------------
void relu_forward(floatX* out, const floatX* inp, size_t num_values, OpsContext* ops) {
    (void)ops;
    for (size_t i = 0; i < num_values; i++) { out[i] = inp[i] > 0.0f ? inp[i] : 0.0f; }
}

void relu_backward(floatX* dinp, const floatX* dout, const floatX* inp, size_t num_values, OpsContext* ops) {
    (void)ops;
    for (size_t i = 0; i < num_values; i++) { dinp[i] = inp[i] > 0.0f ? dout[i] : 0.0f; }
}

void gated_gelu_forward(floatX* out, const floatX* inp, int T, int F, OpsContext* ops) {
    for (int t = 0; t < T; t++) {
        floatX* y = out + (size_t)t * F;
        gelu_forward(y, inp + (size_t)t * 2 * F, (size_t)F, ops);
        for (int c = 0; c < F; c++) { y[c] *= inp[((size_t)t * 2 + 1) * F + c]; }
    }
}

void gated_gelu_backward(floatX* dinp, const floatX* dout, const floatX* inp, int T, int F, OpsContext* ops) {
    for (int t = 0; t < T; t++) {
        for (int c = 0; c < F; c++) {
            const size_t a = (size_t)t * 2 * F + c, b = a + F;
            float g, d = dout[(size_t)t * F + c], da = d * inp[b];
            gelu_forward(&g, inp + a, 1, ops);
            gelu_backward(dinp + a, &da, inp + a, 1, ops);
            dinp[b] = d * g;
        }
    }
}

void dropout_apply(floatX* out, const floatX* inp, const uint32_t* keys, uint32_t place, float p, int T,
                   int C, OpsContext* ops) {
    (void)ops;
    for (int t = 0; t < T; t++) {
        for (int c = 0; c < C; c++) {
            const size_t i = (size_t)t * C + c;
            const int falls = p > 0.0f && dropout_bits(dropout_row(keys[t], place), c) < dropout_threshold(p);
            out[i] = falls ? 0.0f : inp[i] / (1.0f - p);
        }
    }
}

// --- attention in general ----------------------------------------------------------------------------------
typedef struct {
    const Attention* a;
    T5Buckets buckets;
    int h, q_begin, k_begin, num_q, num_k, q_start;
} Head;

static Head head_of(const Attention* a, int seq, int h) {
    Head x = {.a = a, .h = h, .q_begin = a->cu_q[seq], .k_begin = a->cu_k[seq]};
    x.num_q = a->cu_q[seq + 1] - x.q_begin;
    x.num_k = a->k_lens != NULL ? a->k_lens[seq] : a->cu_k[seq + 1] - x.k_begin;
    x.q_start = a->q_starts != NULL ? a->q_starts[seq] : 0;
    if (a->bias != NULL) { x.buckets = t5_buckets(a->num_buckets, a->max_distance, a->bias_bidirectional); }
    return x;
}

static size_t at(const Head* x, int token, int stride) {
    return (size_t)token * stride + (size_t)(x->h * x->a->head_size);
}

static float dot(const floatX* a, const floatX* b, int num) {
    float sum = 0.0f;
    for (int i = 0; i < num; i++) { sum += a[i] * b[i]; }
    return sum;
}

static int keys_seen(const Head* x, int i) {
    const int place = x->q_start + i;
    return x->a->causal && place + 1 < x->num_k ? place + 1 : x->num_k;
}

static float score(const Head* x, int i, int j) {
    const Attention* a = x->a;
    float s = a->scale * dot(a->q + at(x, x->q_begin + i, a->q_stride),
                             a->k + at(x, x->k_begin + j, a->kv_stride), a->head_size);
    if (a->bias == NULL) { return s; }
    return s + a->bias[t5_bucket(&x->buckets, j - i - x->q_start) * a->num_heads + x->h];
}

// 0 where the probability of query i and key j falls, else 1 / (1 - p).
static float mask(const Head* x, int i, int j) {
    const Attention* a = x->a;
    if (a->dropout == 0.0f) { return 1.0f; }
    const uint32_t row = dropout_head_row(a->q_keys[x->q_begin + i], a->dropout_place, (uint32_t)x->h);
    const int falls = dropout_bits(row, a->k_keys[x->k_begin + j]) < dropout_threshold(a->dropout);
    return falls ? 0.0f : 1.0f / (1.0f - a->dropout);
}

static void general_forward_query(floatX* out, float* lse, const Head* x, int i) {
    const Attention* a = x->a;
    const int num_keys = keys_seen(x, i);
    float max = -INFINITY, sum = 0.0f;
    for (int j = 0; j < num_keys; j++) { max = fmaxf(max, score(x, i, j)); }
    memset(out, 0, (size_t)a->head_size * sizeof *out);
    for (int j = 0; j < num_keys; j++) {
        const float p = expf(score(x, i, j) - max), kept = p * mask(x, i, j);
        const floatX* v = a->v + at(x, x->k_begin + j, a->kv_stride);
        sum += p;
        for (int c = 0; c < a->head_size; c++) { out[c] += kept * v[c]; }
    }
    for (int c = 0; c < a->head_size && num_keys > 0; c++) { out[c] /= sum; }
    *lse = num_keys > 0 ? max + logf(sum) : 0.0f;
}

void attention_general_forward(floatX* out, float* lse, const Attention* about, OpsContext* ops) {
    (void)ops;
    const int NH = about->num_heads;
#pragma omp parallel for collapse(2)
    for (int seq = 0; seq < about->num_seqs; seq++) {
        for (int h = 0; h < NH; h++) {
            const Head x = head_of(about, seq, h);
            for (int i = 0; i < x.num_q; i++) {
                general_forward_query(out + at(&x, x.q_begin + i, NH * about->head_size),
                                      lse + (size_t)h * about->num_q_tokens + x.q_begin + i, &x, i);
            }
        }
    }
}

size_t attention_general_scratch_bytes(const Attention* about, const OpsContext* ops) {
    (void)about, (void)ops;
    return 0;
}

static void general_backward_query(floatX* dq, floatX* dk, floatX* dv, float* dbias, const floatX* dout,
                                   float delta, float lse, const Head* x, int i) {
    const Attention* a = x->a;
    const floatX* q = a->q + at(x, x->q_begin + i, a->q_stride);
    memset(dq, 0, (size_t)a->head_size * sizeof *dq);
    for (int j = 0; j < keys_seen(x, i); j++) {
        const size_t key = at(x, x->k_begin + j, a->kv_stride);
        const float p = expf(score(x, i, j) - lse), m = mask(x, i, j);
        const float ds = p * (m * dot(dout, a->v + key, a->head_size) - delta);
        for (int c = 0; c < a->head_size; c++) {
            dv[key + c] += p * m * dout[c];
            dk[key + c] += a->scale * ds * q[c];
            dq[c] += a->scale * ds * a->k[key + c];
        }
        if (dbias != NULL) { dbias[t5_bucket(&x->buckets, j - i) * a->num_heads + x->h] += ds; }
    }
}

void attention_general_backward(floatX* dq, floatX* dk, floatX* dv, float* dbias, void* scratch,
                                const floatX* dout, const floatX* out, const float* lse,
                                const Attention* about, OpsContext* ops) {
    (void)scratch, (void)ops;
    const int HS = about->head_size, width = about->num_heads * HS;
    if (about->bias == NULL) { dbias = NULL; }
    for (int j = 0; j < about->num_k_tokens; j++) {
        memset(dk + (size_t)j * about->kv_stride, 0, (size_t)width * sizeof *dk);
        memset(dv + (size_t)j * about->kv_stride, 0, (size_t)width * sizeof *dv);
    }
    for (int seq = 0; seq < about->num_seqs; seq++) {
        for (int h = 0; h < about->num_heads; h++) {
            const Head x = head_of(about, seq, h);
            for (int i = 0; i < x.num_q; i++) {
                const int row = x.q_begin + i;
                const floatX* d = dout + at(&x, row, width);
                general_backward_query(dq + at(&x, row, about->q_stride), dk, dv, dbias, d,
                                       dot(d, out + at(&x, row, width), HS),
                                       lse[(size_t)h * about->num_q_tokens + row], &x, i);
            }
        }
    }
}
