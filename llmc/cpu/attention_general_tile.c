/*
attention_general_tile.c -- the scores of a tile: product, T5's position bias, causal limit; the bias's
gradient. How a tile lies and what a window is: attention_general.h.
*/
#include "attention_general.h"
#include "../dropout_bits.h"
#include "../llmc_error.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int min_int(int a, int b) {
    return a < b ? a : b;
}

bool attention_check(int head_size, int num_buckets, int max_distance, char* error) {
    (void)max_distance;
    if (head_size < 1 || head_size > OPS_TILE_COLUMNS) {
        return llmc_fail(error, "head size %d ---> must be 1 to %d", head_size, OPS_TILE_COLUMNS);
    }
    if (num_buckets == 0 || (num_buckets >= 4 && num_buckets <= T5_MAX_BUCKETS)) { return true; }
    return llmc_fail(error, "%d position buckets ---> must be 4 to %d", num_buckets, T5_MAX_BUCKETS);
}

void attention_general_check(const Attention* about) {
    char error[LLMC_ERROR_CHARS];
    if (attention_check(about->head_size, about->bias != NULL ? about->num_buckets : 0, about->max_distance,
                        error)) {
        return;
    }
    fprintf(stderr, "attention: %s\n", error);
    exit(1);
}

T5Buckets attention_general_buckets(const Attention* about) {
    if (about->bias == NULL) { return (T5Buckets){.num_buckets = 0}; }
    return t5_buckets(about->num_buckets, about->max_distance, about->bias_bidirectional);
}

AttentionGeneral attention_general_head(const Attention* about, const T5Buckets* buckets, int seq, int h) {
    const int q_begin = about->cu_q[seq], k_begin = about->cu_k[seq];
    return (AttentionGeneral){.about = about,
                              .buckets = buckets,
                              .h = h,
                              .q_begin = q_begin,
                              .k_begin = k_begin,
                              .num_q = about->cu_q[seq + 1] - q_begin,
                              .num_k =
                                  about->k_lens != NULL ? about->k_lens[seq] : about->cu_k[seq + 1] - k_begin,
                              .q_start = about->q_starts != NULL ? about->q_starts[seq] : 0,
                              .HS = about->head_size,
                              .HSp = tile_round_up(about->head_size)};
}

int attention_general_keys_end(const AttentionGeneral* x, int q0, int num_queries) {
    return x->about->causal ? min_int(x->num_k, x->q_start + q0 + num_queries) : x->num_k;
}

AttentionGeneralTile attention_general_tile(const AttentionGeneral* x, int q0, int num_queries, int k0,
                                            int k_end) {
    return (AttentionGeneralTile){.q0 = q0,
                                  .k0 = k0,
                                  .num_queries = num_queries,
                                  .num_keys = min_int(TILE, k_end - k0),
                                  .num_lanes = tile_round_up(num_queries),
                                  .diagonal = x->about->causal && k0 == x->q_start + q0};
}

// The first i - j of a tile's window.
static int window_begin(const AttentionGeneral* x, const AttentionGeneralTile* tile) {
    return x->q_start + tile->q0 - tile->k0 - (TILE - 1);
}

// Distances that share a bucket, i - j = n among them, end before the value returned.
static int run_end(const T5Buckets* t, int n) {
    const int bucket = t5_bucket(t, -n);
    if (n >= 0) { return bucket + 1 < t->num_side_buckets ? t->begin[bucket + 1] : INT32_MAX; }
    return t->bidirectional ? min_int(1 - t->begin[bucket - t->num_side_buckets], 0) : 0;
}

// One run of a window: places [at, end) of it have one bucket.
typedef struct {
    int at, end, bucket;
} Run;

static Run run_at(const T5Buckets* t, int window_first, int at) {
    const int n = window_first + at, end = run_end(t, n);
    const bool goes_on = end >= window_first + ATTENTION_WINDOW;
    return (Run){at, goes_on ? ATTENTION_WINDOW : end - window_first, t5_bucket(t, -n)};
}

static void add_bias(float* restrict s, const AttentionGeneral* x, const AttentionGeneralTile* tile) {
    float window[ATTENTION_WINDOW];
    const Attention* a = x->about;
    const int first = window_begin(x, tile);
    for (int at = 0; at < ATTENTION_WINDOW;) {
        const Run run = run_at(x->buckets, first, at);
        const float value = a->bias[run.bucket * a->num_heads + x->h];
        for (; at < run.end; at++) { window[at] = value; }
    }
    for (int j = 0; j < tile->num_keys; j++) {
        const float* b = window + TILE - 1 - j;
        for (int t = attention_general_first_lane(tile, j); t < tile->num_lanes; t++) {
            s[j * TILE + t] += b[t];
        }
    }
}

// Rows TILE_LANES apart have windows TILE_LANES apart: they are added up first, at the same places of `sums`,
// so that no addition waits for a store that lies across it.
void attention_general_add_dbias(double* dbias, const AttentionGeneral* x, const AttentionGeneralTile* tile,
                                 const float* ds) {
    float window[ATTENTION_WINDOW] = {0};
    for (int r = 0; r < TILE_LANES && r < tile->num_keys; r++) {
        float sums[ATTENTION_WINDOW] = {0};
        for (int j = r; j < tile->num_keys; j += TILE_LANES) {
            float* sum = sums + TILE - TILE_LANES - (j - r);
            for (int t = attention_general_first_lane(tile, j); t < tile->num_lanes; t++) {
                sum[t] += ds[j * TILE + t];
            }
        }
        for (int i = 0; i < ATTENTION_WINDOW - TILE_LANES; i++) { window[TILE_LANES - 1 - r + i] += sums[i]; }
    }
    const int first = window_begin(x, tile);
    for (int at = 0; at < ATTENTION_WINDOW;) {
        const Run run = run_at(x->buckets, first, at);
        float sum = 0.0f;
        for (; at < run.end; at++) { sum += window[at]; }
        dbias[run.bucket] += (double)sum;
    }
}

void attention_general_scores(float* s, const AttentionGeneral* x, const AttentionGeneralTile* tile,
                              const float* k, size_t k_stride, const float* qT) {
    tile_product(s, TILE, k, k_stride, 1, qT, TILE, tile->num_keys, tile->num_queries, x->HS, false,
                 tile->diagonal ? TILE_C_UPPER : TILE_DENSE);
    if (x->about->bias != NULL) { add_bias(s, x, tile); }
    if (!x->about->causal) { return; }
    const int ahead = tile->k0 - x->q_start - tile->q0;  // of the first key before the first query
    for (int j = ahead < 0 ? -ahead : 0; j < tile->num_keys; j++) {
        for (int t = attention_general_first_lane(tile, j); t < ahead + j && t < tile->num_lanes; t++) {
            s[j * TILE + t] = -INFINITY;
        }
    }
}

void attention_general_dropout_rows(uint32_t* rows, const AttentionGeneral* x,
                                    const AttentionGeneralTile* tile) {
    const Attention* a = x->about;
    for (int t = 0; t < TILE; t++) {
        rows[t] = t < tile->num_queries ? dropout_head_row(a->q_keys[x->q_begin + tile->q0 + t],
                                                           a->dropout_place, (uint32_t)x->h)
                                        : 0;
    }
}
