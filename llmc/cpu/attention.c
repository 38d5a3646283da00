/*
attention.c -- causal self-attention over ragged sequences, forward: online softmax in tiles (Milakov,
Gimelshein 2018; FlashAttention: Dao et al. 2022, algorithm 1).

A task is one tile of queries of one head of one sequence. For each tile of keys up to the diagonal:
    s = k q^T / sqrt(HS),  m' = max(m, max s),  p = exp(s - m'),  l = l exp(m - m') + sum p,  o = o exp(m -
m') + p v Tasks are handed out by a counter; each output row is written by exactly one task, so the order does
not matter.
*/
#include "attention.h"
#include "fast_math.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void attention_check_shape(int C, int NH) {
    if (C % NH != 0 || C / NH > OPS_TILE_COLUMNS) {
        fprintf(stderr,
                "attention: %d channels in %d heads ---> at most %d channels a head, a whole number\n", C, NH,
                OPS_TILE_COLUMNS);
        exit(1);
    }
}

AttentionHead attention_head_of(const floatX* qkv, int begin, int end, int C, int NH, int h) {
    const int HS = C / NH;
    return (AttentionHead){.qkv = qkv + (size_t)begin * 3 * (size_t)C + (size_t)(h * HS),
                           .stride = 3 * (size_t)C,
                           .C = C,
                           .HS = HS,
                           .HSp = tile_round_up(HS),
                           .num_tokens = end - begin,
                           .scale = 1.0f / sqrtf((float)HS)};
}

void attention_scores(float* s, const AttentionHead* head, const float* qT, int key_begin, int num_keys,
                      int num_queries, bool diagonal) {
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
