/*
attention_general.h -- what forward and backward of attention_general share: one head of one sequence, the
scores of a tile, T5's bias and dropout of it.

As in attention.h scores lie with keys down and queries across, in tiles of TILE tokens from the beginnings of
both sides, so a sequence gives the same bits alone and in any batch. The bias depends on the distance of key
and query alone: a tile has a window of 2 TILE - 1 of them, i - j from base - (TILE - 1) to base + TILE - 1,
base = place of its first query minus that of its first key. Row j of the tile is window[TILE - 1 - j + t].
*/
#pragma once

#include "../t5_bucket.h"
#include "context.h"
#include "tile.h"

#include <stdbool.h>

typedef struct {
    const Attention* about;
    const T5Buckets* buckets;  // not looked at without a bias
    int h, q_begin, k_begin;
    int num_q, num_k;  // num_k: those that are keys
    int q_start;       // place among the keys of the first query
    int HS, HSp;       // HSp: HS rounded up to TILE_LANES
} AttentionGeneral;

typedef struct {
    int q0, k0, num_queries, num_keys, num_lanes;
    bool diagonal;  // causal, and the first query is at the first key's place
} AttentionGeneralTile;

enum { ATTENTION_WINDOW = 2 * TILE };  // one more than needed

// Head sizes and buckets that fit; else a message, and exit status 1.
void attention_general_check(const Attention* about);
T5Buckets attention_general_buckets(const Attention* about);
AttentionGeneral attention_general_head(const Attention* about, const T5Buckets* buckets, int seq, int h);

static inline const floatX* attention_general_row(const floatX* rows, int stride, int token,
                                                  const AttentionGeneral* x) {
    return rows + (size_t)token * (size_t)stride + (size_t)(x->h * x->HS);
}

// Keys that the queries [q0, q0 + num_queries) see: 0 .. that.
int attention_general_keys_end(const AttentionGeneral* x, int q0, int num_queries);
AttentionGeneralTile attention_general_tile(const AttentionGeneral* x, int q0, int num_queries, int k0,
                                            int k_end);
// s (keys, TILE): scaled scores with their biases, -infinity where a query does not see a key. k: of the
// first key; qT: scaled queries. Left of tile_upper_begin() of a row of the diagonal s is anything.
void attention_general_scores(float* s, const AttentionGeneral* x, const AttentionGeneralTile* tile,
                              const float* k, size_t k_stride, const float* qT);
// What a tile's ds adds to the bias's gradient: buckets (num_buckets) += sums over distances.
void attention_general_add_dbias(double* dbias, const AttentionGeneral* x, const AttentionGeneralTile* tile,
                                 const float* ds);

// First lane of row j that holds anything.
static inline int attention_general_first_lane(const AttentionGeneralTile* tile, int j) {
    return tile->diagonal ? tile_upper_begin(j) : 0;
}

// Of the bits of dropout: rows (TILE) of the queries; a key's column is its key.
void attention_general_dropout_rows(uint32_t* rows, const AttentionGeneral* x,
                                    const AttentionGeneralTile* tile);
