/*
attention_general.c -- attention between two ragged sides (Vaswani et al. 2017, section 3.2), optionally with
T5's position bias and dropout, forward; the reference of the GPU's kernels.

    s = scale k q^T + bias[bucket(j - i)],  m' = max(m, max s),  p = exp(s - m'),  l = l exp(m - m') + sum p
    o = o exp(m - m') + (p mask) v,  out = o / l,  lse = m + log l        (mask: 0 or 1 / (1 - dropout))

As attention.c: a task is one tile of queries of one head of one sequence, tasks are handed out by a counter,
and each row of the output is one task's. A query that sees no key gives 0, with lse 0.
*/
#include "attention_general.h"
#include "attention.h"
#include "../dropout_bits.h"

#include <math.h>
#include <string.h>

static void drop(float* restrict s, const uint32_t* restrict rows, const AttentionGeneral* x,
                 const AttentionGeneralTile* tile) {
    const Attention* a = x->about;
    const uint32_t threshold = dropout_threshold(a->dropout);
    const float keep = 1.0f / (1.0f - a->dropout);
    for (int j = 0; j < tile->num_keys; j++) {
        const uint32_t column = a->k_keys[x->k_begin + tile->k0 + j];
        float* p = s + j * TILE;
        for (int t = attention_general_first_lane(tile, j); t < tile->num_lanes; t++) {
            p[t] = dropout_bits(rows[t], column) < threshold ? 0.0f : p[t] * keep;
        }
    }
}

// o (num_queries, HSp) = or += p^T v
static void add_values(float* o, const float* p, const AttentionGeneral* x, const AttentionGeneralTile* tile,
                       float* packed) {
    const size_t stride = (size_t)x->about->kv_stride;
    const floatX* v = attention_general_row(x->about->v, x->about->kv_stride, x->k_begin + tile->k0, x);
    // a copy of v is dear for the few queries of a decoder's step
    const bool direct = tile->num_queries <= TILE_ROWS && x->HS == x->HSp;
    if (!direct) { tile_pack(packed, v, stride, tile->num_keys, x->HS, 1.0f); }
    tile_product(o, (size_t)x->HSp, p, 1, TILE, direct ? v : packed, direct ? stride : (size_t)x->HSp,
                 tile->num_queries, x->HS, tile->num_keys, tile->k0 > 0,
                 tile->diagonal ? TILE_A_LOWER : TILE_DENSE);
}

static void forward_tile(floatX* out, float* lse, const AttentionGeneral* x, int q0, OpsContext* ops) {
    const Attention* a = x->about;
    const size_t stride = (size_t)a->kv_stride;
    float *s = ops_tile(ops, 0), *qT = ops_tile(ops, 1), *v = ops_tile(ops, 2);
    float *o = ops_tile(ops, 3), max[TILE], sum[TILE], shrink[TILE];
    uint32_t rows[TILE];
    const int rest = x->num_q - q0, num_queries = rest < TILE ? rest : TILE, HS = x->HS, HSp = x->HSp;
    const int k_end = attention_general_keys_end(x, q0, num_queries), width = a->num_heads * HS;
    tile_transpose(qT, TILE, attention_general_row(a->q, a->q_stride, x->q_begin + q0, x),
                   (size_t)a->q_stride, num_queries, HS, a->scale);
    for (int t = 0; t < TILE; t++) { max[t] = -INFINITY, sum[t] = 0.0f; }
    for (int k0 = 0; k0 < k_end; k0 += TILE) {
        const AttentionGeneralTile tile = attention_general_tile(x, q0, num_queries, k0, k_end);
        const floatX* k = attention_general_row(a->k, a->kv_stride, x->k_begin + k0, x);
        tile_prefetch(k, stride, tile.num_keys, HS);
        tile_prefetch(attention_general_row(a->v, a->kv_stride, x->k_begin + k0, x), stride, tile.num_keys,
                      HS);
        attention_general_scores(s, x, &tile, k, stride, qT);
        attention_softmax_tile(s, max, sum, shrink, tile.num_keys, tile.num_lanes, tile.diagonal);
        if (a->dropout > 0.0f) {
            if (k0 == 0) { attention_general_dropout_rows(rows, x, &tile); }
            drop(s, rows, x, &tile);
        }
        for (int t = 0; k0 > 0 && t < num_queries; t++) {
            for (int c = 0; c < HSp; c++) { o[t * HSp + c] *= shrink[t]; }
        }
        add_values(o, s, x, &tile, v);
    }
    for (int t = 0; t < num_queries; t++) {
        floatX* y = out + (size_t)(x->q_begin + q0 + t) * (size_t)width + (size_t)(x->h * HS);
        float* log_sum = lse + (size_t)x->h * (size_t)a->num_q_tokens + (size_t)(x->q_begin + q0 + t);
        if (k_end <= 0) {
            memset(y, 0, (size_t)HS * sizeof *y);
            *log_sum = 0.0f;
            continue;
        }
        const float inverse = 1.0f / sum[t];
        for (int c = 0; c < HS; c++) { y[c] = o[t * HSp + c] * inverse; }
        *log_sum = max[t] + logf(sum[t]);
    }
}

void attention_general_forward(floatX* out, float* lse, const Attention* about, OpsContext* ops) {
    attention_general_check(about);
    const T5Buckets buckets = attention_general_buckets(about);
    const int NH = about->num_heads;
    int64_t next_task = 0;
#pragma omp parallel num_threads(ops->num_threads)
    {
        int64_t task = -1, mine = -1;
        for (int seq = 0; seq < about->num_seqs; seq++) {
            const int num_tiles = (about->cu_q[seq + 1] - about->cu_q[seq] + TILE - 1) / TILE;
            // last queries first: where there is a causal limit they see the most keys
            for (int tile_head = num_tiles * NH - 1; tile_head >= 0; tile_head--) {
                task++;
                if (mine < task) {
#pragma omp atomic capture
                    mine = next_task++;
                }
                if (mine != task) { continue; }
                const AttentionGeneral x = attention_general_head(about, &buckets, seq, tile_head % NH);
                forward_tile(out, lse, &x, tile_head / NH * TILE, ops);
            }
        }
    }
}
