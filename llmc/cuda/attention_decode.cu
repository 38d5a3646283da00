/*
attention_decode.cu -- attention of single queries against a cache of keys and values, forward: a decoder's
step.

A block has a query of a head. A key's row is read by `lanes` neighbouring threads, 16 bytes each (float32
rows of more than 512 bytes: twice); each group of lanes takes every num_groups-th key with an online softmax
of its own, and at the end the groups' sums are added in their order. Bound by reading keys and values once;
the tile kernels compute up to 128 rows for the one.
*/
#include "attention.cuh"
#include "launch.cuh"

enum {
    DECODE_THREADS = 128,
    MIN_LANES = 4,
    STEP_KEYS = 4,  // of a group, together
    VECTOR = FLOATX_PER_LOAD,
    LANE_VECTORS = (256 + 32 * VECTOR - 1) / (32 * VECTOR),  // of the longest row
    DECODE_FLOATS = DECODE_THREADS * VECTOR * LANE_VECTORS,  // of all groups' outputs, at most
};

__global__ static void __launch_bounds__(DECODE_THREADS) attention_decode_kernel(AttentionCall x, int lanes) {
    __shared__ alignas(16) float outs[DECODE_FLOATS];
    __shared__ float maxs[DECODE_THREADS / MIN_LANES], sums[DECODE_THREADS / MIN_LANES];
    const Attention& about = x.about;
    AttentionPlace place;
    if (!attention_place<false>(&place, x, 1)) { return; }
    const int query = attention_first_query(&place, about, 1);
    const int num_keys = attention_keys_seen(about, place, query, 1);
    const int HS = about.head_size, lane = (int)threadIdx.x % lanes, group = (int)threadIdx.x / lanes,
              num_groups = DECODE_THREADS / lanes;
    __builtin_assume(num_groups > 0);
    const size_t head_at = (size_t)(place.h * HS), row = (size_t)(place.q_begin + query);
    Floats<VECTOR> q[LANE_VECTORS], o[LANE_VECTORS];
#pragma unroll
    for (int n = 0; n < LANE_VECTORS; n++) {
        const int c = (lane + n * lanes) * VECTOR;
        q[n] = o[n] = floats_of<VECTOR>(0.0f);
        if (c < HS) { q[n] = load_floats<VECTOR>(about.q + row * (size_t)about.q_stride + head_at + c); }
    }
    float max = -INFINITY, sum = 0.0f;
    for (int k0 = 0; k0 < num_keys; k0 += STEP_KEYS * num_groups) {
        Vec<floatX, VECTOR> k[STEP_KEYS][LANE_VECTORS], v[STEP_KEYS][LANE_VECTORS];
        float s[STEP_KEYS], next = max;
#pragma unroll
        for (int j = 0; j < STEP_KEYS; j++) {  // all are on their way before one is used
            const int key = min(k0 + j * num_groups + group, num_keys - 1);  // beyond: masked below
            const size_t at = (size_t)(place.k_begin + key) * (size_t)about.kv_stride + head_at;
#pragma unroll
            for (int n = 0; n < LANE_VECTORS; n++) {
                const int c = min((lane + n * lanes) * VECTOR, HS - VECTOR);  // (q is 0 beyond)
                k[j][n] = load_vec<VECTOR>(about.k + at + c), v[j][n] = load_vec<VECTOR>(about.v + at + c);
            }
        }
#pragma unroll
        for (int j = 0; j < STEP_KEYS; j++) {
            s[j] = 0.0f;
#pragma unroll
            for (int n = 0; n < LANE_VECTORS; n++) {
                const Floats<VECTOR> values = to_floats(k[j][n]);
#pragma unroll
                for (int i = 0; i < VECTOR; i++) { s[j] += q[n][i] * values[i]; }
            }
        }
        for (int step = lanes / 2; step > 0; step /= 2) {
#pragma unroll
            for (int j = 0; j < STEP_KEYS; j++) { s[j] += __shfl_xor_sync(0xffffffffu, s[j], step); }
        }
#pragma unroll
        for (int j = 0; j < STEP_KEYS; j++) {
            const int key = k0 + j * num_groups + group;
            s[j] *= about.scale;
            if (about.bias != NULL) {
                s[j] += about.bias[t5_bucket(&x.buckets, key - query) * about.num_heads + place.h];
            }
            s[j] = key < num_keys ? s[j] : -INFINITY;
            next = fmaxf(next, s[j]);
        }
        if (next == -INFINITY) { continue; }
        const float shrink = floatx_exp(max - next);
        max = next, sum *= shrink;
#pragma unroll
        for (int n = 0; n < LANE_VECTORS; n++) {
#pragma unroll
            for (int i = 0; i < VECTOR; i++) { o[n][i] *= shrink; }
        }
#pragma unroll
        for (int j = 0; j < STEP_KEYS; j++) {
            const float p = floatx_exp(s[j] - next);
            sum += p;
#pragma unroll
            for (int n = 0; n < LANE_VECTORS; n++) {
                const Floats<VECTOR> values = to_floats(v[j][n]);
#pragma unroll
                for (int i = 0; i < VECTOR; i++) { o[n][i] += p * values[i]; }
            }
        }
    }
#pragma unroll
    for (int n = 0; n < LANE_VECTORS; n++) {
        const int c = (lane + n * lanes) * VECTOR;
        if (c < HS) { store_vec(outs + group * HS + c, o[n]); }
    }
    if (lane == 0) { maxs[group] = max, sums[group] = sum; }
    __syncthreads();
    float most = -INFINITY, all = 0.0f;
    for (int g = 0; g < num_groups; g++) { most = fmaxf(most, maxs[g]); }
    most = most == -INFINITY ? 0.0f : most;  // no key at all: out 0, lse 0
    for (int g = 0; g < num_groups; g++) { all += sums[g] * floatx_exp(maxs[g] - most); }
    for (int c = (int)threadIdx.x; c < HS; c += DECODE_THREADS) {
        float total = 0.0f;
        for (int g = 0; g < num_groups; g++) { total += outs[g * HS + c] * floatx_exp(maxs[g] - most); }
        x.out[row * (size_t)(about.num_heads * HS) + head_at + c] = (floatX)(all > 0.0f ? total / all : 0.0f);
    }
    if (threadIdx.x == 0) {
        x.lse[(size_t)place.h * (size_t)about.num_q_tokens + row] = all > 0.0f ? most + logf(all) : 0.0f;
    }
}

void attention_launch_decode(const AttentionCall* call, OpsContext* ops) {
    const Attention& about = call->about;
    int lanes = MIN_LANES;
    while (lanes < 32 && lanes * VECTOR < about.head_size) { lanes *= 2; }
    if (about.num_q_tokens == 0) { return; }
    const unsigned num_tiles = attention_num_tiles(about.num_q_tokens, about.num_seqs, 1);
    attention_decode_kernel<<<num_tiles*(unsigned)about.num_heads, DECODE_THREADS, 0, ops->stream>>>(*call,
                                                                                                     lanes);
    CHECK_LAUNCH();
}
