/*
attention_general.h -- what forward and backward of attention_general share: one head of one sequence, the
scores of a tile, T5's bias and dropout of it.

As in attention.h scores lie with keys down and queries across, in tiles of TILE tokens from the beginnings of
both sides, so a sequence gives the same bits alone and in any batch. The bias depends on the distance of key
and query alone: a tile has a window of 2 TILE - 1 of them, i - j from base - (TILE - 1) to base + TILE - 1,
base = place of its first query minus that of its first key. Row j of the tile is window[TILE - 1 - j + t].
*/
#pragma once

#include <stdbool.h>
#include "context.h"
#include "tile.h"
#include "../t5_bucket.h"

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

static inline const floatX* attention_general_row(const floatX* rows, int stride, int token,
                                                  const AttentionGeneral* x) {
    return rows + (size_t)token * (size_t)stride + (size_t)(x->h * x->HS);
}

// First lane of row j that holds anything.
static inline int attention_general_first_lane(const AttentionGeneralTile* tile, int j) {
    return tile->diagonal ? tile_upper_begin(j) : 0;
}
