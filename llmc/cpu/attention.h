/*
attention.h -- what forward and backward of attention share: how the work is cut, and each thread's tiles.

Scores are kept transposed, keys down and queries across, so that the softmax of a query runs down a lane and
nothing is ever summed across lanes. Keys and queries are cut into tiles of TILE from the sequence's start, so
a sequence gives the same bits alone and in any batch.
*/
#pragma once

#include "context.h"
#include "tile.h"

typedef struct {
    const floatX* qkv;  // of this sequence and head: q of its first token
    size_t stride;      // 3 C, from token to token
    int C, HS, HSp;     // HSp: HS rounded up to TILE_LANES
    int num_tokens;
    float scale;  // 1 / sqrt(HS)
} AttentionHead;

// One tile of keys: s becomes p; max and sum of each query (lane) move on, shrink = exp(old max - new max).
void attention_softmax_tile(float* s, float* max, float* sum, float* shrink, int num_keys, int num_lanes,
                            bool diagonal);
