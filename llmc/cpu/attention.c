/*
attention.c -- attention over ragged sequences: online softmax in tiles (Milakov, Gimelshein 2018;
FlashAttention: Dao et al. 2022, algorithms 1 and 4), T5's position bias and its gradient, dropout of
probabilities.

A task is one tile of queries of one head of one sequence. For each tile of keys up to the diagonal:
    s = k q^T scale,  m' = max(m, max s),  p = exp(s - m'),  l = l exp(m - m') + sum p,
    o = o exp(m - m') + p v
Tasks are handed out by a counter; each output row is written by exactly one task, so results do not depend
on the order.

Scores have keys as rows and queries as columns, so that the softmax of a query stays in a lane and no sums
cross lanes. Tiles of TILE tokens begin at the start of both sides, so a sequence gives the same bits alone
and in any batch. The bias depends only on the distance of key and query: a tile has a window of 2 TILE - 1
distances, i - j from base - (TILE - 1) to base + TILE - 1, base = place of its first query minus that of its
first key. Row j of the tile is window[TILE - 1 - j + t].
*/
#include <math.h>
#include <omp.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../dropout_bits.h"
#include "../llmc_error.h"
#include "../t5_bucket.h"
#include "context.h"
#include "fast_math.h"
#include "tile.h"

typedef struct {
    const Attention* about;
    const T5Buckets* buckets;  // not looked at without a bias
    int h, q_begin, k_begin;
    int num_q, num_k;     // num_k: without padding
    int q_start;          // place among the keys of the first query
    int HS, HSp;          // HSp: HS rounded up to TILE_LANES
    bool is_piece;        // its keys are in about->kept
    const floatX *k, *v;  // of the head's first key
    size_t kv_stride;
} AttentionGeneral;

typedef struct {
    int q0, k0, num_queries, num_keys, num_lanes;
    bool diagonal;  // causal, and the first query is at the first key's place
} AttentionGeneralTile;

enum { ATTENTION_WINDOW = 2 * TILE };  // one more than needed

static inline const floatX* attention_row(const floatX* rows, int stride, int token,
                                          const AttentionGeneral* x) {
    return rows + (size_t)token * (size_t)stride + (size_t)(x->h * x->HS);
}

// The first lane of row j with a value.
static inline int attention_first_lane(const AttentionGeneralTile* tile, int j) {
    return tile->diagonal ? tile_upper_begin(j) : 0;
}

// One tile of keys: s becomes p; max and sum of each query (lane) are updated, shrink = exp(old max - new
// max).
static void attention_softmax_tile(float* restrict s, float* restrict max, float* restrict sum,
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

static AttentionGeneralTile attention_tile(const AttentionGeneral* x, int q0, int num_queries, int k0,
                                           int k_end);

static int min_int(int a, int b) {
    return a < b ? a : b;
}

bool attention_check(int head_size, int num_buckets, int max_distance) {
    (void)max_distance;
    if (head_size < 1 || head_size > OPS_TILE_COLUMNS) {
        return llmc_fail("head size %d ---> must be 1 to %d", head_size, OPS_TILE_COLUMNS);
    }
    if (num_buckets == 0 || (num_buckets >= 4 && num_buckets <= T5_MAX_BUCKETS)) { return true; }
    return llmc_fail("%d position buckets ---> must be 4 to %d", num_buckets, T5_MAX_BUCKETS);
}

// Checks head size and buckets; on error a message, and exit status 1.
static void attention_must_fit(const Attention* about) {
    if (attention_check(about->head_size, about->bias != NULL ? about->num_buckets : 0,
                        about->max_distance)) {
        return;
    }
    fprintf(stderr, "attention: %s\n", status_message());
    exit(1);
}

static T5Buckets attention_buckets(const Attention* about) {
    if (about->bias == NULL) { return (T5Buckets){.num_buckets = 0}; }
    return t5_buckets(about->num_buckets, about->max_distance, about->bias_bidirectional);
}

static AttentionGeneral attention_head(const Attention* about, const T5Buckets* buckets, int seq, int h) {
    const int q_begin = about->cu_q[seq], k_begin = about->cu_k[seq];
    const AttentionKept* kept = &about->kept;
    const bool is_piece = seq == 0 && kept->k != NULL;
    const size_t stride = (size_t)(is_piece ? kept->stride : about->kv_stride);
    const size_t at =
        (size_t)(is_piece ? 0 : k_begin - kept->own_begin) * stride + (size_t)(h * about->head_size);
    return (AttentionGeneral){.about = about,
                              .buckets = buckets,
                              .h = h,
                              .q_begin = q_begin,
                              .k_begin = k_begin,
                              .num_q = about->cu_q[seq + 1] - q_begin,
                              .num_k =
                                  about->k_lens != NULL ? about->k_lens[seq] : about->cu_k[seq + 1] - k_begin,
                              .q_start = about->q_starts != NULL ? about->q_starts[seq]
                                         : is_piece              ? kept->q_start
                                                                 : 0,
                              .HS = about->head_size,
                              .HSp = tile_round_up(about->head_size),
                              .is_piece = is_piece,
                              .k = (is_piece ? kept->k : about->k) + at,
                              .v = (is_piece ? kept->v : about->v) + at,
                              .kv_stride = stride};
}

// The number of keys that the queries [q0, q0 + num_queries) see.
static int attention_keys_end(const AttentionGeneral* x, int q0, int num_queries) {
    return x->about->causal ? min_int(x->num_k, x->q_start + q0 + num_queries) : x->num_k;
}

static AttentionGeneralTile attention_tile(const AttentionGeneral* x, int q0, int num_queries, int k0,
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

// The end of the distances that share a bucket with i - j = n.
static int run_end(const T5Buckets* t, int n) {
    const int bucket = t5_bucket(t, -n);
    if (n >= 0) { return bucket + 1 < t->num_side_buckets ? t->begin[bucket + 1] : INT32_MAX; }
    return t->bidirectional ? min_int(1 - t->begin[bucket - t->num_side_buckets], 0) : 0;
}

// A run of a window: places [at, end) have the same bucket.
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
        for (int t = attention_first_lane(tile, j); t < tile->num_lanes; t++) { s[j * TILE + t] += b[t]; }
    }
}

// Rows TILE_LANES apart have windows TILE_LANES apart: they are added first, at the same places of `sums`,
// to avoid waiting for overlapping stores.
static void attention_add_dbias(double* dbias, const AttentionGeneral* x, const AttentionGeneralTile* tile,
                                const float* ds) {
    float window[ATTENTION_WINDOW] = {0};
    for (int r = 0; r < TILE_LANES && r < tile->num_keys; r++) {
        float sums[ATTENTION_WINDOW] = {0};
        for (int j = r; j < tile->num_keys; j += TILE_LANES) {
            float* sum = sums + TILE - TILE_LANES - (j - r);
            for (int t = attention_first_lane(tile, j); t < tile->num_lanes; t++) {
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

// s (keys, TILE): scaled scores with biases, -infinity if a query does not see a key. k: of the first key;
// qT: scaled queries. In a diagonal tile s is undefined left of tile_upper_begin() of the row.
static void attention_scores(float* s, const AttentionGeneral* x, const AttentionGeneralTile* tile,
                             const float* k, size_t k_stride, const float* qT) {
    tile_product(s, TILE, k, k_stride, 1, qT, TILE, tile->num_keys, tile->num_queries, x->HS, false,
                 tile->diagonal ? TILE_C_UPPER : TILE_DENSE);
    if (x->about->bias != NULL) { add_bias(s, x, tile); }
    if (!x->about->causal) { return; }
    const int ahead = tile->k0 - x->q_start - tile->q0;  // of the first key before the first query
    for (int j = ahead < 0 ? -ahead : 0; j < tile->num_keys; j++) {
        for (int t = attention_first_lane(tile, j); t < ahead + j && t < tile->num_lanes; t++) {
            s[j * TILE + t] = -INFINITY;
        }
    }
}

// The dropout bits: rows (TILE) of the queries; a key's column is its token key.
static void attention_dropout_rows(uint32_t* rows, const AttentionGeneral* x,
                                   const AttentionGeneralTile* tile) {
    const Attention* a = x->about;
    for (int t = 0; t < TILE; t++) {
        rows[t] = t < tile->num_queries ? dropout_head_row(a->q_keys[x->q_begin + tile->q0 + t],
                                                           a->dropout_place, (uint32_t)x->h)
                                        : 0;
    }
}

// --- forward -----------------------------------------------------------------------------------------------
/*
Attention between two ragged sides (Vaswani et al. 2017, section 3.2), optionally with T5's position bias and
dropout, forward; the reference of the GPU's kernels.

    s = scale k q^T + bias[bucket(j - i)],  m' = max(m, max s),  p = exp(s - m'),  l = l exp(m - m') + sum p
    o = o exp(m - m') + (p mask) v,  out = o / l,  lse = m + log l        (mask: 0 or 1 / (1 - dropout))

A query that sees no key gives 0, with lse 0.
*/

static void drop(float* restrict s, const uint32_t* restrict rows, const AttentionGeneral* x,
                 const AttentionGeneralTile* tile) {
    const Attention* a = x->about;
    const uint32_t threshold = dropout_threshold(a->dropout);
    const float keep = 1.0f / (1.0f - a->dropout);
    for (int j = 0; j < tile->num_keys; j++) {
        const uint32_t column = a->k_keys[x->k_begin + tile->k0 + j];
        float* p = s + j * TILE;
        for (int t = attention_first_lane(tile, j); t < tile->num_lanes; t++) {
            p[t] = dropout_bits(rows[t], column) < threshold ? 0.0f : p[t] * keep;
        }
    }
}

// o (num_queries, HSp) = or += p^T v
static void add_values(float* o, const float* p, const AttentionGeneral* x, const AttentionGeneralTile* tile,
                       float* packed) {
    const size_t stride = x->kv_stride;
    const floatX* v = x->v + (size_t)tile->k0 * stride;
    // copying v is too expensive for the few queries of a decoding step
    const bool direct = tile->num_queries <= TILE_ROWS && x->HS == x->HSp;
    if (!direct) { tile_pack(packed, v, stride, tile->num_keys, x->HS, 1.0f); }
    tile_product(o, (size_t)x->HSp, p, 1, TILE, direct ? v : packed, direct ? stride : (size_t)x->HSp,
                 tile->num_queries, x->HS, tile->num_keys, tile->k0 > 0,
                 tile->diagonal ? TILE_A_LOWER : TILE_DENSE);
}

static void forward_tile(floatX* out, float* lse, const AttentionGeneral* x, int q0, OpsContext* ops) {
    const Attention* a = x->about;
    const size_t stride = x->kv_stride;
    float *s = ops_tile(ops, 0), *qT = ops_tile(ops, 1), *v = ops_tile(ops, 2);
    float *o = ops_tile(ops, 3), max[TILE], sum[TILE], shrink[TILE];
    uint32_t rows[TILE];
    const int rest = x->num_q - q0, num_queries = rest < TILE ? rest : TILE, HS = x->HS, HSp = x->HSp;
    const int k_end = attention_keys_end(x, q0, num_queries), width = a->num_heads * HS;
    tile_transpose(qT, TILE, attention_row(a->q, a->q_stride, x->q_begin + q0, x), (size_t)a->q_stride,
                   num_queries, HS, a->scale);
    for (int t = 0; t < TILE; t++) { max[t] = -INFINITY, sum[t] = 0.0f; }
    for (int k0 = 0; k0 < k_end; k0 += TILE) {
        const AttentionGeneralTile tile = attention_tile(x, q0, num_queries, k0, k_end);
        const floatX* k = x->k + (size_t)k0 * stride;
        tile_prefetch(k, stride, tile.num_keys, HS);
        tile_prefetch(x->v + (size_t)k0 * stride, stride, tile.num_keys, HS);
        attention_scores(s, x, &tile, k, stride, qT);
        attention_softmax_tile(s, max, sum, shrink, tile.num_keys, tile.num_lanes, tile.diagonal);
        if (a->dropout > 0.0f) {
            if (k0 == 0) { attention_dropout_rows(rows, x, &tile); }
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

void attention_forward(floatX* out, float* lse, const Attention* about, OpsContext* ops) {
    attention_must_fit(about);
    const T5Buckets buckets = attention_buckets(about);
    const int NH = about->num_heads;
    int64_t next_task = 0;
#pragma omp parallel num_threads(ops->num_threads)
    {
        int64_t task = -1, mine = -1;
        for (int seq = 0; seq < about->num_seqs; seq++) {
            const int num_tiles = (about->cu_q[seq + 1] - about->cu_q[seq] + TILE - 1) / TILE;
            // last queries first: with a causal limit they see the most keys
            for (int tile_head = num_tiles * NH - 1; tile_head >= 0; tile_head--) {
                task++;
                if (mine < task) {
#pragma omp atomic capture
                    mine = next_task++;
                }
                if (mine != task) { continue; }
                const AttentionGeneral x = attention_head(about, &buckets, seq, tile_head % NH);
                forward_tile(out, lse, &x, tile_head / NH * TILE, ops);
            }
        }
    }
}

// --- backward ----------------------------------------------------------------------------------------------
/*
Gradient of attention, tile by tile; scores are recomputed:

    p = exp(s - lse),  ds = p (mask (v dout^T) - D),  D = rowsum(dout out)
    dv += (p mask) dout,  dk += scale ds q,  dq += scale ds^T k,  dbias[bucket(j - i)] += ds

A task is KEYS keys of one head of one sequence with all queries that see them; its k, dk and dv are in
scratch of the thread. Tasks of the same head add to dq and dbias in the order of their keys: each computes
its own share, then waits for its turn. Tasks are handed out in that order, so the awaited one is always
running. KEYS does not depend on the number of threads, so the bits do not either.
*/

enum { KEYS = 512 };

typedef struct {
    floatX *dq, *dk, *dv;
    const floatX *dout, *out;
    const float* lse;
    bool wants_dbias;
    // scratch
    int* turns;      // (num_seqs, num_heads)  the task of each head that may add its share next
    double* dbias;   // (num_seqs, num_heads, num_buckets)
    float* threads;  // (num_threads, thread_floats)
    size_t thread_floats;
    OpsContext* ops;
} Backward;

typedef struct {
    AttentionGeneral head;
    const Backward* all;
    int first_key, num_keys;  // of the task
    float *k, *dk, *dv;       // (num_keys, HSp)
    floatX* dq;               // of the head's first query: the result itself, or a share to be added
    size_t dq_stride;
    double dbias[T5_MAX_BUCKETS];
} Task;

// A tile of queries and its accumulators over the tiles of keys.
typedef struct {
    float *s, *dp, *q, *qT, *d, *dT, *dq;
    float delta[TILE], lse[TILE];
    uint32_t rows[TILE];  // of dropout
} Queries;

static size_t round_up_64(size_t bytes) {
    return (bytes + 63) / 64 * 64;
}

static size_t dbias_doubles(const Attention* about) {
    return about->bias == NULL
               ? 0
               : (size_t)about->num_seqs * (size_t)about->num_heads * (size_t)about->num_buckets;
}

static size_t turns_bytes(const Attention* about) {
    return round_up_64((size_t)about->num_seqs * (size_t)about->num_heads * sizeof(int));
}

// k, dk, dv of a task's keys; a share of dq if a head may have several tasks.
static size_t thread_floats(const Attention* about) {
    const int tokens = about->num_k_tokens, keys = tokens < KEYS ? tokens : KEYS;
    const size_t HSp = (size_t)tile_round_up(about->head_size);
    return (3 * (size_t)keys + (tokens > KEYS ? (size_t)about->num_q_tokens : 0)) * HSp;
}

size_t attention_scratch_bytes(const Attention* about, const OpsContext* ops) {
    return 64 + turns_bytes(about) + round_up_64(dbias_doubles(about) * sizeof(double)) +
           (size_t)ops->num_threads * thread_floats(about) * sizeof(float);
}

// D and lse of a tile of queries; unused lanes are 0.
static void load_query_sums(Queries* y, const Task* x, int q0, int num_queries) {
    const AttentionGeneral* head = &x->head;
    const Attention* a = head->about;
    const int width = a->num_heads * head->HS;
    for (int t = 0; t < TILE; t++) {
        float sum = 0.0f;
        if (t < num_queries) {
            const floatX* d = attention_row(x->all->dout, width, head->q_begin + q0 + t, head);
            const floatX* o = attention_row(x->all->out, width, head->q_begin + q0 + t, head);
#pragma omp simd reduction(+ : sum)
            for (int c = 0; c < head->HS; c++) { sum += d[c] * o[c]; }
        }
        y->delta[t] = sum;
        y->lse[t] = 0.0f;
        if (t < num_queries) {
            y->lse[t] =
                x->all->lse[(size_t)head->h * (size_t)a->num_q_tokens + (size_t)(head->q_begin + q0 + t)];
        }
    }
}

static void load_queries(Queries* y, const Task* x, int q0, int num_queries) {
    const AttentionGeneral* head = &x->head;
    const Attention* a = head->about;
    OpsContext* ops = x->all->ops;
    const int width = a->num_heads * head->HS, token = head->q_begin + q0;
    const floatX* q = attention_row(a->q, a->q_stride, token, head);
    const floatX* d = attention_row(x->all->dout, width, token, head);
    y->s = ops_tile(ops, 0), y->dp = ops_tile(ops, 1), y->q = ops_tile(ops, 2), y->qT = ops_tile(ops, 3);
    y->d = ops_tile(ops, 4), y->dT = ops_tile(ops, 5), y->dq = ops_tile(ops, 6);
    tile_prefetch(d, (size_t)width, num_queries, head->HS);
    tile_prefetch(attention_row(x->all->out, width, token, head), (size_t)width, num_queries, head->HS);
    tile_prefetch(q, (size_t)a->q_stride, num_queries, head->HS);
    load_query_sums(y, x, q0, num_queries);
    tile_pack(y->q, q, (size_t)a->q_stride, num_queries, head->HS, a->scale);
    tile_pack(y->d, d, (size_t)width, num_queries, head->HS, 1.0f);
    tile_transpose(y->qT, TILE, q, (size_t)a->q_stride, num_queries, head->HS, a->scale);
    tile_transpose(y->dT, TILE, d, (size_t)width, num_queries, head->HS, 1.0f);
    memset(y->dq, 0, (size_t)num_queries * (size_t)head->HSp * sizeof *y->dq);
}

// s (scores) and dp become p mask and ds.
static void softmax_backward(Queries* y, const AttentionGeneralTile* tile) {
    const float* restrict lse = y->lse, * restrict delta = y->delta;
    for (int j = 0; j < tile->num_keys; j++) {
        float* restrict s = y->s + j * TILE, * restrict dp = y->dp + j * TILE;
        for (int t = attention_first_lane(tile, j); t < tile->num_lanes; t++) {
            s[t] = fast_expf(s[t] - lse[t]);
            dp[t] = s[t] * (dp[t] - delta[t]);
        }
    }
}

static void softmax_backward_dropped(Queries* y, const AttentionGeneral* x,
                                     const AttentionGeneralTile* tile) {
    const Attention* a = x->about;
    const float* restrict lse = y->lse, * restrict delta = y->delta;
    const uint32_t* restrict rows = y->rows, threshold = dropout_threshold(a->dropout);
    const float keep = 1.0f / (1.0f - a->dropout);
    for (int j = 0; j < tile->num_keys; j++) {
        const uint32_t column = a->k_keys[x->k_begin + tile->k0 + j];
        float* restrict s = y->s + j * TILE, * restrict dp = y->dp + j * TILE;
        for (int t = attention_first_lane(tile, j); t < tile->num_lanes; t++) {
            const float mask = dropout_bits(rows[t], column) < threshold ? 0.0f : keep;
            const float p = fast_expf(s[t] - lse[t]);
            s[t] = p * mask;
            dp[t] = p * (dp[t] * mask - delta[t]);
        }
    }
}

static void backward_tile(Queries* y, Task* x, const AttentionGeneralTile* tile) {
    const AttentionGeneral* head = &x->head;
    const Attention* a = head->about;
    const size_t HSp = (size_t)head->HSp, at = (size_t)(tile->k0 - x->first_key) * HSp;
    const int HS = head->HS, num_queries = tile->num_queries, num_keys = tile->num_keys;
    const floatX* v = head->v + (size_t)tile->k0 * head->kv_stride;
    tile_prefetch(v, head->kv_stride, num_keys, HS);
    attention_scores(y->s, head, tile, x->k + at, HSp, y->qT);
    tile_product(y->dp, TILE, v, head->kv_stride, 1, y->dT, TILE, num_keys, num_queries, HS, false,
                 tile->diagonal ? TILE_C_UPPER : TILE_DENSE);
    if (a->dropout > 0.0f) {
        softmax_backward_dropped(y, head, tile);
    } else {
        softmax_backward(y, tile);
    }
    const TileShape upper = tile->diagonal ? TILE_A_UPPER : TILE_DENSE,
                    lower = tile->diagonal ? TILE_A_LOWER : TILE_DENSE;
    tile_product(x->dv + at, HSp, y->s, TILE, 1, y->d, HSp, num_keys, HS, num_queries, true, upper);
    tile_product(x->dk + at, HSp, y->dp, TILE, 1, y->q, HSp, num_keys, HS, num_queries, true, upper);
    tile_product(y->dq, HSp, y->dp, 1, TILE, x->k + at, HSp, num_queries, HS, num_keys, true, lower);
    if (x->all->wants_dbias) { attention_add_dbias(x->dbias, head, tile, y->dp); }
}

// The first query that sees the task's keys, rounded down to a tile.
static int first_query(const Task* x) {
    const int ahead = x->first_key - x->head.q_start;
    return x->head.about->causal && ahead > 0 ? ahead / TILE * TILE : 0;
}

static void backward_queries(Task* x) {
    const AttentionGeneral* head = &x->head;
    const Attention* a = head->about;
    Queries y;
    for (int q0 = first_query(x); q0 < head->num_q; q0 += TILE) {
        const int rest = head->num_q - q0, num_queries = rest < TILE ? rest : TILE;
        const int seen = attention_keys_end(head, q0, num_queries), end = x->first_key + x->num_keys;
        load_queries(&y, x, q0, num_queries);
        for (int k0 = x->first_key; k0 < end && k0 < seen; k0 += TILE) {
            const AttentionGeneralTile tile =
                attention_tile(head, q0, num_queries, k0, seen < end ? seen : end);
            if (a->dropout > 0.0f && k0 == x->first_key) { attention_dropout_rows(y.rows, head, &tile); }
            backward_tile(&y, x, &tile);
        }
        for (int t = 0; t < num_queries; t++) {
            floatX* to = x->dq + (size_t)(q0 + t) * x->dq_stride;
            const float* from = y.dq + t * head->HSp;
            for (int c = 0; c < head->HS; c++) { to[c] = from[c] * a->scale; }
        }
    }
}

// Waits until the head's previous task has added its share.
static void wait_for_turn(const int* turn, int mine) {
    while (__atomic_load_n(turn, __ATOMIC_ACQUIRE) != mine) { sched_yield(); }
}

static void add_share(const Task* x, floatX* dq, size_t stride, double* dbias) {
    const AttentionGeneral* head = &x->head;
    for (int i = first_query(x); i < head->num_q && x->dq != dq; i++) {
        floatX* to = dq + (size_t)i * stride;
        const floatX* from = x->dq + (size_t)i * x->dq_stride;
        for (int c = 0; c < head->HS; c++) { to[c] += from[c]; }
    }
    if (!x->all->wants_dbias) { return; }
    for (int b = 0; b < head->about->num_buckets; b++) { dbias[b] += x->dbias[b]; }
}

// To the batch's rows, or a piece's sums (ops.h: AttentionKept).
static void store_keys(floatX* rows, float* sums, const float* from, const Task* x) {
    const AttentionGeneral* head = &x->head;
    const Attention* a = head->about;
    const size_t head_at = (size_t)(head->h * head->HS), bytes = (size_t)head->HS * sizeof *rows;
    for (int j = 0; j < x->num_keys; j++, from += head->HSp) {
        const int t = head->k_begin + x->first_key + j, own = t - a->kept.own_begin;
        float* sum = head->is_piece ? sums + (size_t)t * (size_t)a->kept.stride + head_at : NULL;
        float* to = own < 0 ? sum : rows + (size_t)own * (size_t)a->kv_stride + head_at;
        if (sum == NULL || a->kept.is_last) {
            memcpy(to, from, bytes);
        } else {
            for (int c = 0; c < head->HS; c++) { to[c] = sum[c] + from[c]; }
        }
    }
}

static void backward_task(const Backward* all, const AttentionGeneral* head, int seq, int part) {
    const Attention* a = head->about;
    const int first_key = part * KEYS, rest = head->num_k - first_key, num_keys = rest < KEYS ? rest : KEYS;
    const size_t values = (size_t)num_keys * (size_t)head->HSp, at = (size_t)(seq * a->num_heads + head->h);
    float* mine = all->threads + (size_t)omp_get_thread_num() * all->thread_floats;
    floatX* dq = (floatX*)attention_row(all->dq, a->q_stride, head->q_begin, head);
    Task x = {.head = *head, .all = all, .first_key = first_key, .num_keys = num_keys};
    x.k = mine, x.dk = mine + values, x.dv = mine + 2 * values;
    x.dq = part == 0 ? dq : mine + 3 * values;
    x.dq_stride = part == 0 ? (size_t)a->q_stride : (size_t)head->HSp;
    const floatX* k = head->k + (size_t)first_key * head->kv_stride;
    tile_pack(x.k, k, head->kv_stride, num_keys, head->HS, 1.0f);
    memset(x.dk, 0, 2 * values * sizeof *x.dk);  // dk, dv
    backward_queries(&x);
    store_keys(all->dk, a->kept.dk, x.dk, &x);
    store_keys(all->dv, a->kept.dv, x.dv, &x);
    wait_for_turn(&all->turns[at], part);
    add_share(&x, dq, (size_t)a->q_stride,
              all->wants_dbias ? all->dbias + at * (size_t)a->num_buckets : NULL);
    __atomic_store_n(&all->turns[at], part + 1, __ATOMIC_RELEASE);
}

// Padding tokens are in no task.
static void zero_keys(const Backward* all, const Attention* about) {
    const size_t bytes = (size_t)about->num_heads * (size_t)about->head_size * sizeof *all->dk;
#pragma omp parallel for num_threads(all->ops->num_threads)
    for (int j = 0; j < about->num_k_tokens; j++) {
        memset(all->dk + (size_t)j * (size_t)about->kv_stride, 0, bytes);
        memset(all->dv + (size_t)j * (size_t)about->kv_stride, 0, bytes);
    }
}

static void add_dbias(float* dbias, const Backward* all, const Attention* about) {
    const int NH = about->num_heads, num_buckets = about->num_buckets;
    for (int i = 0; i < num_buckets * NH; i++) {
        const int b = i / NH, h = i % NH;
        double sum = 0.0;
        for (int seq = 0; seq < about->num_seqs; seq++) {
            sum += all->dbias[(size_t)(seq * NH + h) * (size_t)num_buckets + (size_t)b];
        }
        dbias[i] += (float)sum;
    }
}

void attention_backward(floatX* dq, floatX* dk, floatX* dv, float* dbias, void* scratch, const floatX* dout,
                        const floatX* out, const float* lse, const Attention* about, OpsContext* ops) {
    attention_must_fit(about);
    if (about->q_starts != NULL) {
        fprintf(stderr,
                "attention: backward with q_starts ---> they are for decoding, which has no gradient\n");
        exit(1);
    }
    const T5Buckets buckets = attention_buckets(about);
    const int NH = about->num_heads;
    char* at = (char*)(((uintptr_t)scratch + 63) / 64 * 64);
    Backward all = {.dq = dq, .dk = dk, .dv = dv, .dout = dout, .out = out, .lse = lse, .ops = ops};
    all.wants_dbias = dbias != NULL && about->bias != NULL;
    all.turns = (int*)at;
    all.dbias = (double*)(at + turns_bytes(about));
    all.threads = (float*)(at + turns_bytes(about) + round_up_64(dbias_doubles(about) * sizeof(double)));
    all.thread_floats = thread_floats(about);
    memset(at, 0, turns_bytes(about) + dbias_doubles(about) * sizeof(double));
    if (about->k_lens != NULL) { zero_keys(&all, about); }
    int64_t next_task = 0;
#pragma omp parallel num_threads(ops->num_threads)
    {
        int64_t task = -1, mine = -1;
        for (int seq = 0; seq < about->num_seqs; seq++) {
            const int num_k = attention_head(about, &buckets, seq, 0).num_k;
            const int num_parts = num_k > KEYS ? (num_k + KEYS - 1) / KEYS : 1;
            // heads inside, so that a head's next task begins when its previous one is nearly done
            for (int part_head = 0; part_head < num_parts * NH; part_head++) {
                task++;
                if (mine < task) {
#pragma omp atomic capture
                    mine = next_task++;
                }
                if (mine != task) { continue; }
                const AttentionGeneral x = attention_head(about, &buckets, seq, part_head % NH);
                backward_task(&all, &x, seq, part_head / NH);
            }
        }
    }
    if (all.wants_dbias) { add_dbias(dbias, &all, about); }
}
