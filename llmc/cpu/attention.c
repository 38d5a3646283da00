/*
attention.c -- causal self-attention over ragged sequences, online softmax (Milakov, Gimelshein 2018).
*/
#include "context.h"
#include "fast_math.h"

#include <math.h>
#include <string.h>

static float dot(const float* a, const float* b, int n) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int i = 0; i < n; i++) { sum += a[i] * b[i]; }
    return sum;
}

static void add_scaled(float* y, const float* x, float a, int n) {
#pragma omp simd
    for (int i = 0; i < n; i++) { y[i] += a * x[i]; }
}

static void attention_forward_head(floatX* out, float* lse, const floatX* qkv, int begin, int end, int C,
                                   int HS, int h) {
    const size_t stride = 3 * (size_t)C;
    const float scale = 1.0f / sqrtf((float)HS);
    for (int t = begin; t < end; t++) {
        const floatX* q = qkv + (size_t)t * stride + (size_t)(h * HS);
        floatX* o = out + (size_t)t * (size_t)C + (size_t)(h * HS);
        float max = -INFINITY, sum = 0.0f;
        memset(o, 0, (size_t)HS * sizeof *o);
        for (int j = begin; j <= t; j++) {
            const floatX* k = qkv + (size_t)j * stride + (size_t)(C + h * HS);
            const float s = scale * dot(q, k, HS);
            if (s > max) {
                const float shrink = fast_expf(max - s);
                for (int c = 0; c < HS; c++) { o[c] *= shrink; }
                sum *= shrink;
                max = s;
            }
            const float p = fast_expf(s - max);
            sum += p;
            add_scaled(o, k + C, p, HS);
        }
        for (int c = 0; c < HS; c++) { o[c] /= sum; }
        lse[t] = max + logf(sum);
    }
}

void attention_forward(floatX* out, float* lse, const floatX* qkv, const int32_t* cu_seqlens, int num_seqs,
                       int T, int C, int NH, OpsContext* ops) {
#pragma omp parallel for collapse(2) schedule(dynamic, 1) num_threads(ops->num_threads)
    for (int i = 0; i < num_seqs; i++) {
        for (int h = 0; h < NH; h++) {
            attention_forward_head(out, lse + (size_t)h * (size_t)T, qkv, cu_seqlens[i], cu_seqlens[i + 1], C,
                                   C / NH, h);
        }
    }
}

size_t attention_backward_scratch_bytes(int T, int C, int NH, int max_seq_tokens, const OpsContext* ops) {
    (void)T, (void)C, (void)NH, (void)max_seq_tokens, (void)ops;
    return 64;
}

static void attention_backward_head(floatX* dqkv, const floatX* dout, const floatX* qkv, const floatX* out,
                                    const float* lse, int begin, int end, int C, int HS, int h) {
    const size_t stride = 3 * (size_t)C;
    const float scale = 1.0f / sqrtf((float)HS);
    for (int t = begin; t < end; t++) {
        for (int s = 0; s < 3; s++) {
            memset(dqkv + (size_t)t * stride + (size_t)(s * C + h * HS), 0, (size_t)HS * sizeof *dqkv);
        }
    }
    for (int t = begin; t < end; t++) {
        const size_t at = (size_t)t * stride + (size_t)(h * HS),
                     at_out = (size_t)t * (size_t)C + (size_t)(h * HS);
        const float delta = dot(dout + at_out, out + at_out, HS);
        for (int j = begin; j <= t; j++) {
            const size_t at_k = (size_t)j * stride + (size_t)(C + h * HS), at_v = at_k + (size_t)C;
            const float p = fast_expf(scale * dot(qkv + at, qkv + at_k, HS) - lse[t]);
            const float ds = scale * p * (dot(dout + at_out, qkv + at_v, HS) - delta);
            add_scaled(dqkv + at_v, dout + at_out, p, HS);
            add_scaled(dqkv + at_k, qkv + at, ds, HS);
            add_scaled(dqkv + at, qkv + at_k, ds, HS);
        }
    }
}

void attention_backward(floatX* dqkv, void* scratch, const floatX* dout, const floatX* qkv, const floatX* out,
                        const float* lse, const int32_t* cu_seqlens, int num_seqs, int T, int C, int NH,
                        OpsContext* ops) {
    (void)scratch;
#pragma omp parallel for collapse(2) schedule(dynamic, 1) num_threads(ops->num_threads)
    for (int i = 0; i < num_seqs; i++) {
        for (int h = 0; h < NH; h++) {
            attention_backward_head(dqkv, dout, qkv, out, lse + (size_t)h * (size_t)T, cu_seqlens[i],
                                    cu_seqlens[i + 1], C, C / NH, h);
        }
    }
}
