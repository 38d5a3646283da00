/*
attention_general.c -- attention between two ragged sides (Vaswani et al. 2017, section 3.2), optionally with
T5's position bias; the reference of the GPU's kernels.

    s = scale q k + bias[bucket(j - i)],  m' = max(m, max s),  p = exp(s - m'),  l = l exp(m - m') + sum p
    o = o exp(m - m') + p v,  out = o / l,  lse = m + log l               (CHUNK keys of one query at a time)
Backward, with the scores computed again: p = exp(s - lse),  ds = p (dout v - dout out),
    dv += p dout,  dk += scale ds q,  dq += scale ds k,  dbias[bucket(j - i)] += ds
A task is one head of one sequence: one thread adds up each gradient, in one order. What dbias gets from each
task lies in scratch (num_seqs, num_heads, num_buckets) and is added up in the order of the sequences. Plain
loops: attention.c is the fast one for the causal case.
*/
#include "../t5_bucket.h"
#include "context.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 128, MAX_HEAD_SIZE = 256 };

typedef struct {
    const Attention* about;
    T5Buckets buckets;
    int h, q_begin, k_begin, num_q, num_k;
} Task;

static void check(const Attention* about) {
    const bool buckets_fit =
        about->bias == NULL || (about->num_buckets >= 4 && about->num_buckets <= T5_MAX_BUCKETS);
    if (about->head_size > 0 && about->head_size <= MAX_HEAD_SIZE && buckets_fit) { return; }
    fprintf(stderr,
            "attention: head size %d, %d position buckets ---> head sizes up to %d, 4 to %d buckets\n",
            about->head_size, about->num_buckets, MAX_HEAD_SIZE, T5_MAX_BUCKETS);
    exit(1);
}

static Task task_of(const Attention* about, int seq, int h) {
    Task x = {.about = about, .h = h};
    if (about->bias != NULL) {
        x.buckets = t5_buckets(about->num_buckets, about->max_distance, about->bias_bidirectional);
    }
    x.q_begin = about->cu_q[seq], x.num_q = about->cu_q[seq + 1] - x.q_begin;
    x.k_begin = about->cu_k[seq], x.num_k = about->cu_k[seq + 1] - x.k_begin;
    return x;
}

static const float* row_of(const float* rows, int stride, int token, const Task* x) {
    return rows + (size_t)token * (size_t)stride + (size_t)(x->h * x->about->head_size);
}

static int keys_seen(const Task* x, int i) {
    return x->about->causal && i + 1 < x->num_k ? i + 1 : x->num_k;
}

static float dot(const float* a, const float* b, int n) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int c = 0; c < n; c++) { sum += a[c] * b[c]; }
    return sum;
}

static void add_scaled(float* restrict sum, const float* restrict a, float factor, int n) {
#pragma omp simd
    for (int c = 0; c < n; c++) { sum[c] += factor * a[c]; }
}

// s (n): scores of query i with keys j0 .. j0 + n - 1 of the sequence.
static void scores(float* s, const Task* x, int i, int j0, int n) {
    const Attention* a = x->about;
    const float* q = row_of(a->q, a->q_stride, x->q_begin + i, x);
    for (int j = 0; j < n; j++) {
        s[j] = a->scale * dot(q, row_of(a->k, a->kv_stride, x->k_begin + j0 + j, x), a->head_size);
        if (a->bias != NULL) { s[j] += a->bias[t5_bucket(&x->buckets, j0 + j - i) * a->num_heads + x->h]; }
    }
}

static int chunk_at(int j0, int num_keys) {
    return num_keys - j0 < CHUNK ? num_keys - j0 : CHUNK;
}

static void forward_query(float* out, float* lse, const Task* x, int i) {
    const Attention* a = x->about;
    const int num_keys = keys_seen(x, i), HS = a->head_size;
    float s[CHUNK], o[MAX_HEAD_SIZE] = {0}, max = -INFINITY, sum = 0.0f;
    for (int j0 = 0; j0 < num_keys; j0 += CHUNK) {
        const int n = chunk_at(j0, num_keys);
        scores(s, x, i, j0, n);
        float next = max;
        for (int j = 0; j < n; j++) { next = s[j] > next ? s[j] : next; }
        const float shrink = expf(max - next);
        sum *= shrink, max = next;
        for (int c = 0; c < HS; c++) { o[c] *= shrink; }
        for (int j = 0; j < n; j++) {
            const float p = expf(s[j] - max);
            sum += p;
            add_scaled(o, row_of(a->v, a->kv_stride, x->k_begin + j0 + j, x), p, HS);
        }
    }
    const float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;  // no key at all: 0
    float* y = out + ((size_t)(x->q_begin + i) * (size_t)a->num_heads + (size_t)x->h) * (size_t)HS;
    for (int c = 0; c < HS; c++) { y[c] = o[c] * inverse; }
    lse[(size_t)x->h * (size_t)a->num_q_tokens + (size_t)(x->q_begin + i)] = max + logf(sum);
}

void attention_general_forward(floatX* out, float* lse, const Attention* about, OpsContext* ops) {
    check(about);
#pragma omp parallel for collapse(2) schedule(dynamic, 1) num_threads(ops->num_threads)
    for (int seq = 0; seq < about->num_seqs; seq++) {
        for (int h = 0; h < about->num_heads; h++) {
            const Task x = task_of(about, seq, h);
            for (int i = 0; i < x.num_q; i++) { forward_query(out, lse, &x, i); }
        }
    }
}

size_t attention_general_scratch_bytes(const Attention* about, const OpsContext* ops) {
    (void)ops;
    if (about->bias == NULL) { return 0; }
    return (size_t)about->num_seqs * (size_t)about->num_heads * (size_t)about->num_buckets * sizeof(float);
}

typedef struct {
    floatX *dq, *dk, *dv;
    float* dbias;  // of the task, (num_buckets), or NULL
    const floatX *dout, *out;
    const float* lse;
} Gradients;

static void backward_query(const Gradients* g, const Task* x, int i) {
    const Attention* a = x->about;
    const int num_keys = keys_seen(x, i), HS = a->head_size, out_stride = a->num_heads * HS;
    const float* dout = row_of(g->dout, out_stride, x->q_begin + i, x);
    const float* q = row_of(a->q, a->q_stride, x->q_begin + i, x);
    float* dq = (float*)row_of(g->dq, a->q_stride, x->q_begin + i, x);
    const float lse = g->lse[(size_t)x->h * (size_t)a->num_q_tokens + (size_t)(x->q_begin + i)];
    const float delta = dot(dout, row_of(g->out, out_stride, x->q_begin + i, x), HS);
    float s[CHUNK];
    memset(dq, 0, (size_t)HS * sizeof *dq);
    for (int j0 = 0; j0 < num_keys; j0 += CHUNK) {
        const int n = chunk_at(j0, num_keys);
        scores(s, x, i, j0, n);
        for (int j = 0; j < n; j++) {
            const int key = x->k_begin + j0 + j;
            const float p = expf(s[j] - lse);
            const float ds = p * (dot(dout, row_of(a->v, a->kv_stride, key, x), HS) - delta);
            add_scaled((float*)row_of(g->dv, a->kv_stride, key, x), dout, p, HS);
            add_scaled((float*)row_of(g->dk, a->kv_stride, key, x), q, a->scale * ds, HS);
            add_scaled(dq, row_of(a->k, a->kv_stride, key, x), a->scale * ds, HS);
            if (g->dbias != NULL) { g->dbias[t5_bucket(&x->buckets, j0 + j - i)] += ds; }
        }
    }
}

static void backward_task(const Gradients* g, const Task* x) {
    const Attention* a = x->about;
    const size_t HS = (size_t)a->head_size;
    for (int j = x->k_begin; j < x->k_begin + x->num_k; j++) {
        memset((float*)row_of(g->dk, a->kv_stride, j, x), 0, HS * sizeof(float));
        memset((float*)row_of(g->dv, a->kv_stride, j, x), 0, HS * sizeof(float));
    }
    if (g->dbias != NULL) { memset(g->dbias, 0, (size_t)a->num_buckets * sizeof(float)); }
    for (int i = 0; i < x->num_q; i++) { backward_query(g, x, i); }
}

void attention_general_backward(floatX* dq, floatX* dk, floatX* dv, float* dbias, void* scratch,
                                const floatX* dout, const floatX* out, const float* lse,
                                const Attention* about, OpsContext* ops) {
    check(about);
    const int NH = about->num_heads, num_buckets = about->bias != NULL ? about->num_buckets : 0;
    float* partials = (float*)scratch;  // (num_seqs, NH, num_buckets)
    if (num_buckets == 0) { dbias = NULL; }
#pragma omp parallel for collapse(2) schedule(dynamic, 1) num_threads(ops->num_threads)
    for (int seq = 0; seq < about->num_seqs; seq++) {
        for (int h = 0; h < NH; h++) {
            const Task x = task_of(about, seq, h);
            float* mine = dbias != NULL ? partials + (size_t)(seq * NH + h) * (size_t)num_buckets : NULL;
            backward_task(&(Gradients){dq, dk, dv, mine, dout, out, lse}, &x);
        }
    }
    if (dbias == NULL) { return; }
    for (int seq = 0; seq < about->num_seqs; seq++) {
        for (int h = 0; h < NH; h++) {
            const float* from = partials + (size_t)(seq * NH + h) * (size_t)num_buckets;
            for (int b = 0; b < num_buckets; b++) { dbias[b * NH + h] += from[b]; }
        }
    }
}
