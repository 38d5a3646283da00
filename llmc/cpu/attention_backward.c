/*
attention_backward.c -- gradient of attention.c, tile by tile, scores computed again (Dao et al. 2022,
algorithm 4):

    p = exp(s - lse),  ds = p (v dout^T - D),  D = rowsum(dout out)
    dv += p dout,  dk += ds q / sqrt(HS),  dq += ds^T k / sqrt(HS)          (s, p, ds: keys down, queries
across)

A task is one head of one sequence, so that each gradient is added by one thread in one order. dk and dv of
the whole sequence, and a packed k, lie in the caller's scratch; everything else is a tile of the thread.
*/
#include "attention.h"
#include "fast_math.h"

#include <omp.h>
#include <string.h>

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
