/*
attention.cuh -- what all attention kernels share: their argument, which tile a block has, T5's bias, dropout.

Sequence i has its tiles from block tile_start(i) = cu[i] / rows + i on: never fewer than ceil(length / rows)
before tile_start(i + 1), so the host needs no lengths; blocks beyond a sequence's last tile have nothing to
do. A tile is cut from the sequence's start: a sequence gives the same bits alone and in any batch.
A piece of a sample (ops.h: AttentionKept) is a call of its own, with about.k, v the kept ones.
*/
#pragma once

#include "../dropout_bits.h"
#include "../t5_bucket.h"
#include "context.h"
#include "tensor_core.cuh"

#define LOG2_E 1.4426950408889634f
#define LN_2 0.6931471805599453f

typedef struct {
    Attention about;
    T5Buckets buckets;  // where about.bias is set
    floatX* out;        // forward writes out and lse, backward reads them
    float* lse;
    const floatX* dout;
    const float* delta;  // (num_heads, num_q_tokens) rowsum(dout out)
    floatX *dq, *dk, *dv;
    int dkv_stride;
    int first_seq;          // sequences before it are another call's
    float* dbias_partials;  // (blocks of dq, num_heads, num_buckets), or NULL
    uint32_t drop_below;    // probabilities whose bits are below this fall; 0: no dropout
    float keep_scale;       // of the others
} AttentionCall;

enum {
    ATTENTION_DQ_ROWS = 16,         // rows of q that a block of dq has, at least
    ATTENTION_MAX_DISTANCE = 1024,  // of buckets: tables of twice as many floats lie in shared memory
};

// attention_forward.cu, attention_dq.cu, attention_dkv.cu: bf16; attention_fp32.cu: float32. Head size
// checked.
void attention_launch_forward(const AttentionCall* call, OpsContext* ops);
void attention_launch_decode(const AttentionCall* call, OpsContext* ops);  // any head size; without dropout
int attention_launch_dq(const AttentionCall* call, OpsContext* ops);  // returns the rows of a block
int attention_dq_bytes(int head_size, const T5Buckets* bias);         // of shared memory
void attention_launch_dkv(const AttentionCall* call, OpsContext* ops);

// The head size that kernels with dropout are compiled for, where others have D: half as many to compile.
constexpr int attention_dropout_size(int D) {
    return D <= 64 ? 64 : D <= 128 ? 128 : 256;
}

static inline unsigned attention_num_tiles(int num_tokens, int num_seqs, int rows) {
    return (unsigned)(num_tokens / rows + num_seqs);
}

typedef struct {
    int h, seq;           // head, sequence
    int num_tiles, tile;  // of the sequence; this block's
    int q_begin, num_q;   // the sequence's rows
    int k_begin, num_k;   // those that are keys
} AttentionPlace;

// Block b has head b % NH of tile b / NH of the queries, or with KEYS of the keys; false: nothing to do.
template <bool KEYS>
static __device__ __forceinline__ bool attention_place(AttentionPlace* place, const AttentionCall& x,
                                                       int rows) {
    const Attention& about = x.about;
    const int32_t* cu = KEYS ? about.cu_k : about.cu_q;
    const int tile = (int)blockIdx.x / about.num_heads, lane = (int)threadIdx.x % 32;
    place->h = (int)blockIdx.x % about.num_heads;
    int seq = 0,
        num_left = about.num_seqs;  // the last i with tile_start(i) <= tile is in [seq, seq + num_left)
    while (num_left > 1) {
        const int step = (num_left + 31) / 32, i = seq + lane * step;
        const bool before = lane * step < num_left && cu[i] / rows + i <= tile;
        const int skip = (__popc(__ballot_sync(0xffffffffu, before)) - 1) * step;
        seq += skip;
        num_left = min(step, num_left - skip);
    }
    place->q_begin = about.cu_q[seq], place->num_q = about.cu_q[seq + 1] - place->q_begin;
    place->k_begin = about.cu_k[seq];
    place->num_k = about.k_lens != NULL ? about.k_lens[seq] : about.cu_k[seq + 1] - place->k_begin;
    const int num_rows = KEYS ? place->num_k : place->num_q;
    place->seq = seq;
    place->tile = tile - (cu[seq] / rows + seq);
    place->num_tiles = (num_rows + rows - 1) / rows;
    return place->tile < place->num_tiles && seq >= x.first_seq;
}

// The block's first query, by its place among the keys, where q_starts[i] of the sequence's queries are
// missing in front, or a piece's: `place` counts them from here on, but they have no rows.
static __device__ __forceinline__ int attention_first_query(AttentionPlace* place, const Attention& about,
                                                            int rows) {
    const int num_missing = about.q_starts != NULL ? about.q_starts[place->seq] : about.kept.q_start;
    place->q_begin -= num_missing, place->num_q += num_missing;
    return num_missing + (place->num_tiles - 1 - place->tile) * rows;
}

// Keys that any of the queries at places q0 .. q0 + rows - 1 sees.
static __device__ __forceinline__ int attention_keys_seen(const Attention& about, const AttentionPlace& place,
                                                          int q0, int rows) {
    return about.causal ? min(place.num_k, q0 + rows) : place.num_k;
}

// --- dropout of probabilities ------------------------------------------------------------------------------
// Of query `token` (of all) and head h; then of its probability of the key token with this key.
static __device__ __forceinline__ uint32_t drop_row(const AttentionCall& x, int token, int h) {
    return dropout_head_row(x.about.q_keys[token], x.about.dropout_place, (uint32_t)h);
}
static __device__ __forceinline__ bool drops(const AttentionCall& x, uint32_t row, uint32_t k_key) {
    return dropout_bits(row, k_key) < x.drop_below;
}

// --- T5's position bias ------------------------------------------------------------------------------------
// Distances (key minus query) beyond +- limit share a bucket with it.
static __host__ __device__ __forceinline__ int bias_limit(const T5Buckets& t) {
    return t.last_begin;
}
static __host__ __device__ __forceinline__ int bias_table_floats(const T5Buckets& t) {
    return (2 * bias_limit(t) + 1 + 3) / 4 * 4;
}

// table[limit + distance] = bias of head h times log2 e. The caller synchronises.
static __device__ __forceinline__ void bias_table_fill(float* table, const AttentionCall& x, int h) {
    const int limit = bias_limit(x.buckets);
    for (int i = (int)threadIdx.x; i <= 2 * limit; i += (int)blockDim.x) {
        const int bucket = t5_bucket(&x.buckets, i - limit);
        table[i] = x.about.bias[bucket * x.about.num_heads + h] * LOG2_E;
    }
}

static __device__ __forceinline__ float bias_at(const float* table, int limit, int distance) {
    return table[limit + max(-limit, min(limit, distance))];
}

// Sums of dS by distance, of one warp, each added up in one order.
typedef struct {
    float* sums;      // (2 limit + 1), shared memory of the warp
    float low, high;  // this lane's part of distances <= -limit, >= limit
    int limit;
} DistanceSums;

static __device__ __forceinline__ void distance_sums_begin(DistanceSums* s, float* sums, int limit) {
    *s = {sums, 0.0f, 0.0f, limit};
    for (int i = (int)threadIdx.x % 32; i <= 2 * limit; i += 32) { sums[i] = 0.0f; }
    __syncwarp();
}

// 0: ds (r, c) has distances on both sides or within the limits; -1, +1: all are <= -limit, >= limit.
static __device__ __forceinline__ int distance_sums_side(const DistanceSums* s, int distance, int rows,
                                                         int columns) {
    return distance + columns - 1 <= -s->limit ? -1 : distance - (rows - 1) >= s->limit ? 1 : 0;
}

// ds (ROWS, COLUMNS) in shared memory of the warp, written by it, STRIDE from row to row; element (0, 0) has
// this distance. Lanes read a row's columns side by side, without bank conflicts: lane i diagonal
// i - (ROWS - 1); of 32 columns, in the rows before that begins, the diagonal 32 further.
template <int ROWS, int COLUMNS, int STRIDE>
static __device__ __forceinline__ void distance_sums_add(DistanceSums* s, const float* ds, int distance) {
    static_assert(COLUMNS == 16 || COLUMNS == 32);
    const int lane = (int)threadIdx.x % 32, first = lane - (ROWS - 1);
    const float* at = ds + first + (COLUMNS == 32 && first < 0 ? COLUMNS : 0);
    float sums[2] = {};
    __syncwarp();
#pragma unroll ROWS == 16 ? 16 : 4  // otherwise head sizes of 32 spill
    for (int r = 0; r < ROWS; r++) {
        const int c = first + r;
        if (COLUMNS == 32 && r > 0 && c == 0) { sums[1] = sums[0], sums[0] = 0.0f, at -= COLUMNS; }
        if (COLUMNS == 32 || (c >= 0 && c < COLUMNS)) { sums[0] += at[r * (STRIDE + 1)]; }
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const int diagonal = first + 32 * k, d = distance + diagonal;
        if (diagonal >= COLUMNS) { continue; }
        if (d <= -s->limit) {
            s->low += sums[k];
        } else if (d >= s->limit) {
            s->high += sums[k];
        } else {
            s->sums[d + s->limit] += sums[k];
        }
    }
    __syncwarp();
}

// All warps: sums (num_warps, stride) of the block become its partial of every bucket.
static __device__ __forceinline__ void distance_sums_end(DistanceSums* s, const AttentionCall& x,
                                                         const float* all, int stride, int num_warps) {
    for (int step = 16; step > 0; step /= 2) {
        s->low += __shfl_xor_sync(0xffffffffu, s->low, step);
        s->high += __shfl_xor_sync(0xffffffffu, s->high, step);
    }
    if (threadIdx.x % 32 == 0) { s->sums[0] += s->low, s->sums[2 * s->limit] += s->high; }
    __syncthreads();
    const T5Buckets& t = x.buckets;
    for (int b = (int)threadIdx.x; b < t.num_buckets; b += (int)blockDim.x) {
        const bool after = b >= t.num_side_buckets;  // keys behind the query
        const int side = after ? b - t.num_side_buckets : b;
        const int near = t.begin[side],
                  far = side + 1 < t.num_side_buckets ? t.begin[side + 1] - 1 : s->limit;
        int from = after ? max(near, 1) : -far, to = after ? far : -near;
        if (b == 0 && !t.bidirectional) { to = s->limit; }
        float sum = 0.0f;
        for (int w = 0; w < num_warps; w++) {
            for (int d = from; d <= to; d++) { sum += all[w * stride + s->limit + d]; }
        }
        x.dbias_partials[(size_t)blockIdx.x * (size_t)t.num_buckets + (size_t)b] = sum;
    }
}

static __device__ __forceinline__ void distance_sums_none(const AttentionCall& x) {
#pragma unroll 1
    for (int b = (int)threadIdx.x; b < x.buckets.num_buckets; b += (int)blockDim.x) {
        x.dbias_partials[(size_t)blockIdx.x * (size_t)x.buckets.num_buckets + (size_t)b] = 0.0f;
    }
}
