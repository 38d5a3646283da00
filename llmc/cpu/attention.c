/*
attention.c -- causal self-attention over ragged sequences, forward: online softmax in tiles (Milakov,
Gimelshein 2018; FlashAttention: Dao et al. 2022, algorithm 1).

A task is one tile of queries of one head of one sequence. For each tile of keys up to the diagonal:
    s = k q^T / sqrt(HS),  m' = max(m, max s),  p = exp(s - m'),  l = l exp(m - m') + sum p,  o = o exp(m -
m') + p v Tasks are handed out by a counter; each output row is written by exactly one task, so the order does
not matter.
*/
#include "attention.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "fast_math.h"

static void attention_check_shape(int C, int NH) {
    if (C % NH != 0 || C / NH > OPS_TILE_COLUMNS) {
        fprintf(stderr,
                "attention: %d channels in %d heads ---> at most %d channels a head, a whole number\n", C, NH,
                OPS_TILE_COLUMNS);
        exit(1);
    }
}

static AttentionHead attention_head_of(const floatX* qkv, int begin, int end, int C, int NH, int h) {
    const int HS = C / NH;
    return (AttentionHead){.qkv = qkv + (size_t)begin * 3 * (size_t)C + (size_t)(h * HS),
                           .stride = 3 * (size_t)C,
                           .C = C,
                           .HS = HS,
                           .HSp = tile_round_up(HS),
                           .num_tokens = end - begin,
                           .scale = 1.0f / sqrtf((float)HS)};
}

// s (keys, TILE) = keys x queries scores, -infinity above the diagonal where `diagonal`. qT: scaled queries.
static void attention_scores(float* s, const AttentionHead* head, const float* qT, int key_begin,
                             int num_keys, int num_queries, bool diagonal) {
    const floatX* k = head->qkv + (size_t)key_begin * head->stride + (size_t)head->C;
    tile_product(s, TILE, k, head->stride, 1, qT, TILE, num_keys, num_queries, head->HS, false,
                 diagonal ? TILE_C_UPPER : TILE_DENSE);
    if (!diagonal) { return; }
    for (int j = 0; j < num_keys; j++) {
        for (int t = tile_upper_begin(j); t < j; t++) { s[j * TILE + t] = -INFINITY; }
    }
}

void attention_softmax_tile(float* restrict s, float* restrict max, float* restrict sum,
                            float* restrict shrink, int num_keys, int num_lanes, bool diagonal) {
    float next[TILE];
    for (int t = 0; t < num_lanes; t++) { next[t] = max[t]; }
    for (int j = 0; j < num_keys; j++) {
        const float* x = s + j * TILE;
        for (int t = diagonal ? tile_upper_begin(j) : 0; t < num_lanes; t++) {
            next[t] = x[t] > next[t] ? x[t] : next[t];
        }
    }
    for (int t = 0; t < num_lanes; t++) {
        shrink[t] = fast_expf(max[t] - next[t]);
        sum[t] *= shrink[t];
        max[t] = next[t];
    }
    for (int j = 0; j < num_keys; j++) {
        float* x = s + j * TILE;
        for (int t = diagonal ? tile_upper_begin(j) : 0; t < num_lanes; t++) {
            x[t] = fast_expf(x[t] - max[t]);
            sum[t] += x[t];
        }
    }
}

static void attention_forward_tile(floatX* out, float* lse, const AttentionHead* head, int q0,
                                   OpsContext* ops) {
    float *s = ops_tile(ops, 0), *qT = ops_tile(ops, 1), *v = ops_tile(ops, 2);
    float *o = ops_tile(ops, 3), max[TILE], sum[TILE], shrink[TILE];
    const int HS = head->HS, HSp = head->HSp, rest = head->num_tokens - q0;
    const int num_queries = rest < TILE ? rest : TILE, num_lanes = tile_round_up(num_queries);
    tile_transpose(qT, TILE, head->qkv + (size_t)q0 * head->stride, head->stride, num_queries, HS,
                   head->scale);
    for (int t = 0; t < TILE; t++) { max[t] = -INFINITY, sum[t] = 0.0f; }
    for (int k0 = 0; k0 <= q0; k0 += TILE) {
        const bool diagonal = k0 == q0;
        const int num_keys = diagonal ? num_queries : TILE;
        attention_scores(s, head, qT, k0, num_keys, num_queries, diagonal);
        attention_softmax_tile(s, max, sum, shrink, num_keys, num_lanes, diagonal);
        for (int t = 0; k0 > 0 && t < num_queries; t++) {
            for (int c = 0; c < HSp; c++) { o[t * HSp + c] *= shrink[t]; }
        }
        tile_pack(v, head->qkv + (size_t)k0 * head->stride + 2 * (size_t)head->C, head->stride, num_keys, HS,
                  1.0f);
        tile_product(o, (size_t)HSp, s, 1, TILE, v, (size_t)HSp, num_queries, HS, num_keys, k0 > 0,
                     diagonal ? TILE_A_LOWER : TILE_DENSE);
    }
    for (int t = 0; t < num_queries; t++) {
        const float inverse = 1.0f / sum[t];
        floatX* y = out + (size_t)t * (size_t)head->C;
        for (int c = 0; c < HS; c++) { y[c] = o[t * HSp + c] * inverse; }
        lse[t] = max[t] + logf(sum[t]);
    }
}

void attention_forward(floatX* out, float* lse, const floatX* qkv, const int32_t* cu_seqlens, int num_seqs,
                       int T, int C, int NH, OpsContext* ops) {
    attention_check_shape(C, NH);
    int64_t next_task = 0;
#pragma omp parallel num_threads(ops->num_threads)
    {
        int64_t task = -1, mine = -1;
        for (int i = 0; i < num_seqs; i++) {
            const int begin = cu_seqlens[i], end = cu_seqlens[i + 1],
                      num_tiles = (end - begin + TILE - 1) / TILE;
            // last queries first: they see the most keys
            for (int tile_head = num_tiles * NH - 1; tile_head >= 0; tile_head--) {
                task++;
                if (mine < task) {
#pragma omp atomic capture
                    mine = next_task++;
                }
                if (mine != task) { continue; }
                const int h = tile_head % NH, q0 = tile_head / NH * TILE;
                const AttentionHead head = attention_head_of(qkv, begin, end, C, NH, h);
                attention_forward_tile(out + (size_t)(begin + q0) * (size_t)C + (size_t)(h * head.HS),
                                       lse + (size_t)h * (size_t)T + begin + q0, &head, q0, ops);
            }
        }
    }
}

// --- backward ----------------------------------------------------------------------------------------------
/*
Gradient of attention.c, tile by tile, scores computed again (Dao et al. 2022,
algorithm 4):

    p = exp(s - lse),  ds = p (v dout^T - D),  D = rowsum(dout out)
    dv += p dout,  dk += ds q / sqrt(HS),  dq += ds^T k / sqrt(HS)          (s, p, ds: keys down, queries
across)

A task is one head of one sequence, so that each gradient is added by one thread in one order. dk and dv of
the whole sequence, and a packed k, lie in the caller's scratch; everything else is a tile of the thread.
*/

typedef struct {
    AttentionHead head;
    const floatX *dout, *out;  // of this sequence and head, stride C
    const float* lse;          // of this sequence and head
    floatX* dqkv;              // dq of the first token, stride 3 C
    float *k, *dk, *dv;        // (num_tokens, HSp)
    OpsContext* ops;
} BackwardTask;

static size_t thread_scratch_floats(int HS, int max_seq_tokens) {
    return 3 * (size_t)max_seq_tokens * (size_t)tile_round_up(HS);
}

size_t attention_backward_scratch_bytes(int T, int C, int NH, int max_seq_tokens, const OpsContext* ops) {
    const int longest = max_seq_tokens < T ? max_seq_tokens : T;
    // room to align the start to a cache line
    return 64 + (size_t)ops->num_threads * thread_scratch_floats(C / NH, longest) * sizeof(float);
}

// s (scores) and dp become p and ds.
static void softmax_backward_tile(float* restrict s, float* restrict dp, const float* restrict lse,
                                  const float* restrict delta, int num_keys, int num_lanes, bool diagonal) {
    for (int j = 0; j < num_keys; j++) {
        float *x = s + j * TILE, *d = dp + j * TILE;
        for (int t = diagonal ? tile_upper_begin(j) : 0; t < num_lanes; t++) {
            x[t] = fast_expf(x[t] - lse[t]);
            d[t] = x[t] * (d[t] - delta[t]);
        }
    }
}

// D and lse of a tile of queries; lanes beyond them are 0.
static void load_query_sums(float* delta, float* lse, const BackwardTask* x, int q0, int num_queries) {
    for (int t = 0; t < TILE; t++) {
        float sum = 0.0f;
        if (t < num_queries) {
            const floatX* d = x->dout + (size_t)(q0 + t) * (size_t)x->head.C;
            const floatX* o = x->out + (size_t)(q0 + t) * (size_t)x->head.C;
#pragma omp simd reduction(+ : sum)
            for (int c = 0; c < x->head.HS; c++) { sum += d[c] * o[c]; }
        }
        delta[t] = sum;
        lse[t] = t < num_queries ? x->lse[q0 + t] : 0.0f;
    }
}

static void attention_backward_tile(const BackwardTask* x, int q0) {
    const AttentionHead* head = &x->head;
    float *s = ops_tile(x->ops, 0), *dp = ops_tile(x->ops, 1), *q = ops_tile(x->ops, 2);
    float *qT = ops_tile(x->ops, 3), *d = ops_tile(x->ops, 4), *dT = ops_tile(x->ops, 5);
    float *dq = ops_tile(x->ops, 6), delta[TILE], lse[TILE];
    const int HS = head->HS, rest = head->num_tokens - q0;
    const int num_queries = rest < TILE ? rest : TILE, num_lanes = tile_round_up(num_queries);
    const size_t HSp = (size_t)head->HSp, C = (size_t)head->C, stride = head->stride;
    const floatX *q_rows = head->qkv + (size_t)q0 * stride, *d_rows = x->dout + (size_t)q0 * C;
    load_query_sums(delta, lse, x, q0, num_queries);
    tile_pack(q, q_rows, stride, num_queries, HS, head->scale);
    tile_pack(d, d_rows, C, num_queries, HS, 1.0f);
    tile_transpose(qT, TILE, q_rows, stride, num_queries, HS, head->scale);
    tile_transpose(dT, TILE, d_rows, C, num_queries, HS, 1.0f);
    for (int k0 = 0; k0 <= q0; k0 += TILE) {
        const bool diagonal = k0 == q0;
        const int num_keys = diagonal ? num_queries : TILE;
        const floatX* v = head->qkv + (size_t)k0 * stride + 2 * C;
        float *k = x->k + (size_t)k0 * HSp, *dk = x->dk + (size_t)k0 * HSp, *dv = x->dv + (size_t)k0 * HSp;
        attention_scores(s, head, qT, k0, num_keys, num_queries, diagonal);
        tile_product(dp, TILE, v, stride, 1, dT, TILE, num_keys, num_queries, HS, false,
                     diagonal ? TILE_C_UPPER : TILE_DENSE);
        softmax_backward_tile(s, dp, lse, delta, num_keys, num_lanes, diagonal);
        // the diagonal is the first tile of queries that these keys meet
        const TileShape upper = diagonal ? TILE_A_UPPER : TILE_DENSE,
                        lower = diagonal ? TILE_A_LOWER : TILE_DENSE;
        tile_product(dv, HSp, s, TILE, 1, d, HSp, num_keys, HS, num_queries, !diagonal, upper);
        tile_product(dk, HSp, dp, TILE, 1, q, HSp, num_keys, HS, num_queries, !diagonal, upper);
        tile_product(dq, HSp, dp, 1, TILE, k, HSp, num_queries, HS, num_keys, k0 > 0, lower);
    }
    for (int t = 0; t < num_queries; t++) {
        floatX* y = x->dqkv + (size_t)(q0 + t) * stride;
        for (int c = 0; c < HS; c++) { y[c] = dq[(size_t)t * HSp + (size_t)c] * head->scale; }
    }
}

static void attention_backward_head(const BackwardTask* x) {
    const AttentionHead* head = &x->head;
    const size_t C = (size_t)head->C, HSp = (size_t)head->HSp, stride = head->stride;
    tile_pack(x->k, head->qkv + C, stride, head->num_tokens, head->HS, 1.0f);
    for (int q0 = 0; q0 < head->num_tokens; q0 += TILE) { attention_backward_tile(x, q0); }
    for (int t = 0; t < head->num_tokens; t++) {
        floatX* y = x->dqkv + (size_t)t * stride;
        memcpy(y + C, x->dk + (size_t)t * HSp, (size_t)head->HS * sizeof *y);
        memcpy(y + 2 * C, x->dv + (size_t)t * HSp, (size_t)head->HS * sizeof *y);
    }
}

void attention_backward(floatX* dqkv, void* scratch, const floatX* dout, const floatX* qkv, const floatX* out,
                        const float* lse, const int32_t* cu_seqlens, int num_seqs, int T, int C, int NH,
                        OpsContext* ops) {
    attention_check_shape(C, NH);
    int longest = 0;
    for (int i = 0; i < num_seqs; i++) {
        const int len = cu_seqlens[i + 1] - cu_seqlens[i];
        longest = len > longest ? len : longest;
    }
    const size_t floats = thread_scratch_floats(C / NH, longest);
    float* aligned = (float*)(((uintptr_t)scratch + 63) / 64 * 64);
#pragma omp parallel for collapse(2) schedule(dynamic, 1) num_threads(ops->num_threads)
    for (int i = 0; i < num_seqs; i++) {
        for (int h = 0; h < NH; h++) {
            const int begin = cu_seqlens[i], end = cu_seqlens[i + 1];
            const size_t row = (size_t)begin * (size_t)C + (size_t)(h * (C / NH));
            float* mine = aligned + (size_t)omp_get_thread_num() * floats;
            const BackwardTask task = {.head = attention_head_of(qkv, begin, end, C, NH, h),
                                       .dout = dout + row,
                                       .out = out + row,
                                       .lse = lse + (size_t)h * (size_t)T + begin,
                                       .dqkv = dqkv + (size_t)begin * 3 * (size_t)C + (size_t)(h * (C / NH)),
                                       .k = mine,
                                       .dk = mine + floats / 3,
                                       .dv = mine + 2 * (floats / 3),
                                       .ops = ops};
            attention_backward_head(&task);
        }
    }
}
