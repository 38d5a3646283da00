/*
attention_forward.cu -- attention, forward, bf16 on tensor cores (FlashAttention-2: Dao 2023, algorithm 1).

A block of 4 warps has ROWS queries of a head, a warp 16 MT of them; tiles of KEYS keys pass through shared
memory, the next one on its way (cp.async) while the warps work on this one:
    s = q k^T,  m' = max(m, max s),  p = 2^((s - m') scale log2 e),  o = o 2^((m - m') scale log2 e) + p v
Nothing is exchanged between warps. Causal: tiles beyond a warp's last query are skipped, only tiles on the
diagonal or the sequence's end are masked; a sequence's last queries, which see the most keys, come first.
MT = 2 reads each k and v fragment once for 32 queries: with 16 the shared memory (128 bytes a clock: 64
clocks for a 64 x 64 tile of k) would be slower than the tensor cores (32 mma of 4096 flops).
Dropout: p that falls is 0 in the product with v, but counts in the sum; then q is read from shared memory for
every tile, which frees the registers that the rows' hashes need.
*/
#include "attention_tile.cuh"

#ifdef LLMC_BF16
template <int D, bool DROPOUT> struct ForwardShape {
    static constexpr int WARPS = 4, MT = D <= 128 ? 2 : 1, ROWS = 16 * MT * WARPS;
    static constexpr int KEYS = D <= 64 ? 64 : 32;
    static constexpr bool Q_IN_REGISTERS = D <= 64 && !DROPOUT;
    static constexpr int Q_BYTES = ROWS * D * 2, K_BYTES = KEYS * D * 2;
    static constexpr int DROP_BYTES = DROPOUT ? 2 * KEYS * 4 : 0;            // the keys' keys
    static constexpr int SHARED_BYTES = Q_BYTES + 4 * K_BYTES + DROP_BYTES;  // and the table of the bias
};

// s becomes scaled scores plus bias, times log2 e.
template <int MT, int N>
static __device__ __forceinline__ void add_bias(float (&s)[MT][N / 8][4], const float* table, int limit,
                                                float factor, int distance) {
    const int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int n = 0; n < N / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int away = distance + 8 * n + 2 * t + i % 2 - (16 * m + g + 8 * (i / 2));
                s[m][n][i] = s[m][n][i] * factor + bias_at(table, limit, away);
            }
        }
    }
}

enum { MAX_GROWTH = 8 };  // powers of two that scores may exceed `max` by before all is scaled anew

// Online softmax: s becomes p; max (of s times factor, powers of two), sum (of this lane's columns) and o of
// each query move on. Any reference from max - MAX_GROWTH to max gives the same precision, so o is scaled
// only where a score of the warp exceeds its query's reference by more (an idea of FlashAttention-4).
template <int D, int MT, int N>
static __device__ __forceinline__ void softmax_step(float (&s)[MT][N / 8][4], float (&o)[MT][D / 8][4],
                                                    float (&max)[MT][2], float (&sum)[MT][2], float factor) {
    float next[MT][2];
    bool grows = false;
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float top = -INFINITY;
#pragma unroll
            for (int n = 0; n < N / 8; n++) {
                top = fmaxf(top, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
            }
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
            next[m][half] = fmaxf(max[m][half], top * factor);
            grows |= next[m][half] - max[m][half] > (float)MAX_GROWTH;  // from -infinity too
        }
    }
    if (__any_sync(0xffffffffu, grows)) {
#pragma unroll
        for (int m = 0; m < MT; m++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float shrink = exp2_approx(max[m][half] - next[m][half]);
                max[m][half] = next[m][half];
                sum[m][half] *= shrink;
#pragma unroll
                for (int n = 0; n < D / 8; n++) {
                    o[m][n][2 * half] *= shrink, o[m][n][2 * half + 1] *= shrink;
                }
            }
        }
    }
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int n = 0; n < N / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                s[m][n][i] = exp2_approx(s[m][n][i] * factor - max[m][i / 2]);
                sum[m][i / 2] += s[m][n][i];
            }
        }
    }
}

// p of this lane's queries (hashes drop_rows) and of keys with these keys: what falls is 0.
template <int MT, int N>
static __device__ __forceinline__ void drop_probabilities(float (&p)[MT][N / 8][4],
                                                          const uint32_t (&drop_rows)[MT][2],
                                                          const uint32_t* k_keys, const AttentionCall& x) {
    const int t = (int)threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
        const uint2 key = *reinterpret_cast<const uint2*>(k_keys + 8 * n + 2 * t);
#pragma unroll
        for (int m = 0; m < MT; m++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (drops(x, drop_rows[m][i / 2], i % 2 ? key.y : key.x)) { p[m][n][i] = 0.0f; }
            }
        }
    }
}

template <int D, bool BIAS, bool DROPOUT>
__global__ static void __launch_bounds__(128) attention_forward_kernel(AttentionCall x) {
    using S = ForwardShape<D, DROPOUT>;
    constexpr int THREADS = 32 * S::WARPS, MT = S::MT, KEYS = S::KEYS;
    const Attention& about = x.about;
    AttentionPlace place;
    if (!attention_place<false>(&place, x, S::ROWS)) { return; }
    const int HS = about.head_size, warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int q0 = attention_first_query(&place, about, S::ROWS), num_rows = min(S::ROWS, place.num_q - q0);
    const int row0 = 16 * MT * warp,
              first = q0 + row0;  // this warp's first query, in the tile and in the sequence
    const int num_keys = attention_keys_seen(about, place, q0, num_rows),
              num_steps = (num_keys + KEYS - 1) / KEYS;
    char *q_tile = dynamic_shared(), *kv = q_tile + S::Q_BYTES;
    uint32_t* k_keys = (uint32_t*)(kv + 4 * S::K_BYTES);
    float* table = (float*)(kv + 4 * S::K_BYTES + S::DROP_BYTES);
    const floatX* q =
        about.q + (size_t)(place.q_begin + q0) * (size_t)about.q_stride + (size_t)(place.h * HS);

    auto load_keys = [&](int step) {
        char* to = kv + step % 2 * 2 * S::K_BYTES;
        const size_t at =
            (size_t)(place.k_begin + step * KEYS) * (size_t)about.kv_stride + (size_t)(place.h * HS);
        tile_load<D, KEYS, THREADS>(to, about.k + at, about.kv_stride, num_keys - step * KEYS, HS);
        tile_load<D, KEYS, THREADS>(to + S::K_BYTES, about.v + at, about.kv_stride, num_keys - step * KEYS,
                                    HS);
        if (DROPOUT) {
            load_k_keys<KEYS, THREADS>(k_keys + step % 2 * KEYS, x, place.k_begin + step * KEYS,
                                       num_keys - step * KEYS);
        }
    };
    tile_load<D, S::ROWS, THREADS>(q_tile, q, about.q_stride, num_rows, HS);
    if (num_steps > 0) { load_keys(0); }
    if (BIAS) { bias_table_fill(table, x, place.h); }

    RowFragments<D, MT, S::Q_IN_REGISTERS> rows;
    rows.at = lane_of_a<D>(q_tile, row0);
    float o[MT][D / 8][4], max[MT][2], sum[MT][2];
    accumulators_zero<D, MT>(o);
#pragma unroll
    for (int m = 0; m < MT; m++) { max[m][0] = max[m][1] = -INFINITY, sum[m][0] = sum[m][1] = 0.0f; }
    uint32_t drop_rows[MT][2];
    if (DROPOUT) { load_drop_rows<MT>(drop_rows, x, place, first); }
    const float factor = about.scale * LOG2_E;
    for (int step = 0; step < num_steps; step++) {
        cp_async_wait_all();
        __syncthreads();  // this step's keys are there, and nobody reads the step before any more
        if (step + 1 < num_steps) { load_keys(step + 1); }
        if (step == 0) { rows.load(); }
        const int k0 = step * KEYS;
        if (row0 >= num_rows || (about.causal && k0 > first + 16 * MT - 1)) { continue; }
        const char* k_tile = kv + step % 2 * 2 * S::K_BYTES;
        float s[MT][KEYS / 8][4];
        product_transposed<D, MT, KEYS>(s, rows, k_tile, 0);
        if (BIAS) { add_bias<MT, KEYS>(s, table, bias_limit(x.buckets), factor, k0 - first); }
        if (k0 + KEYS > place.num_k || (about.causal && k0 + KEYS - 1 > first)) {
            mask_scores<MT, KEYS>(s, first, k0, place.num_k, about.causal);
        }
        softmax_step<D, MT, KEYS>(s, o, max, sum, BIAS ? 1.0f : factor);
        if (DROPOUT) { drop_probabilities<MT, KEYS>(s, drop_rows, k_keys + step % 2 * KEYS, x); }
        product_add<D, MT, KEYS>(o, s, k_tile + S::K_BYTES, 0);
    }
    cp_async_wait_all();
    __syncthreads();
    if (row0 >= num_rows) { return; }

    float inverse[MT][2];
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float all = sum[m][half] + __shfl_xor_sync(0xffffffffu, sum[m][half], 1);
            all += __shfl_xor_sync(0xffffffffu, all, 2);
            inverse[m][half] = all > 0.0f ? 1.0f / all : 0.0f;  // no key at all: 0, lse too
            if (DROPOUT) { inverse[m][half] *= x.keep_scale; }
            const int row = row0 + 16 * m + 8 * half + lane / 4;
            if (lane % 4 == 0 && row < num_rows) {
                x.lse[(size_t)place.h * (size_t)about.num_q_tokens + (size_t)(place.q_begin + q0 + row)] =
                    all > 0.0f ? (max[m][half] + __log2f(all)) * LN_2 : 0.0f;
            }
        }
    }
    const int out_stride = about.num_heads * HS;
    floatX* out = x.out + (size_t)(place.q_begin + first) * (size_t)out_stride + (size_t)(place.h * HS);
    accumulators_store<D, MT>(out, out_stride, num_rows - row0, HS, q_tile, row0, o, inverse);
}

template <int D, bool BIAS, bool DROPOUT> static void launch_one(const AttentionCall* call, OpsContext* ops) {
    using S = ForwardShape<D, DROPOUT>;
    static_assert(S::SHARED_BYTES <= SHARED_BYTES_OF_ALL_CARDS);
    const Attention& about = call->about;
    const int bytes = S::SHARED_BYTES + (BIAS ? bias_table_floats(call->buckets) * (int)sizeof(float) : 0);
    const unsigned num_tiles = attention_num_tiles(about.num_q_tokens, about.num_seqs, S::ROWS);
    if (num_tiles == 0) { return; }
    CUDA_CHECK(cudaFuncSetAttribute(attention_forward_kernel<D, BIAS, DROPOUT>,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    attention_forward_kernel<D, BIAS, DROPOUT>
        <<<num_tiles*(unsigned)about.num_heads, 32 * S::WARPS, (size_t)bytes, ops->stream>>>(*call);
    CHECK_LAUNCH();
}

template <int D> static void launch(const AttentionCall* call, OpsContext* ops) {
    constexpr int DROPOUT_D = attention_dropout_size(D);
    if (call->drop_below > 0) {
        call->about.bias != NULL ? launch_one<DROPOUT_D, true, true>(call, ops)
                                 : launch_one<DROPOUT_D, false, true>(call, ops);
    } else {
        call->about.bias != NULL ? launch_one<D, true, false>(call, ops)
                                 : launch_one<D, false, false>(call, ops);
    }
}

void attention_launch_forward(const AttentionCall* call, OpsContext* ops) {
    ATTENTION_BY_HEAD_SIZE(call->about.head_size, launch, call, ops);
}
#endif
