/*
attention_dkv.cu -- gradients of k and v, bf16 on tensor cores (FlashAttention-2: Dao 2023, algorithm 2, its
loops over keys).

A block of 4 warps has KEYS keys of a head, a warp 16 MT; tiles of QUERIES queries (q, dout, lse, D) pass
through shared memory, the next one on its way while the warps work. All products are transposed, keys down:
    s = k q^T,  p = 2^(s scale log2 e - lse log2 e),  dp = v dout^T,  ds = p (dp - D)
    dv += p dout,  dk += ds q,  at the end dk scale                 4 products, p and ds never leave registers
Queries in steps of STEP: s and dp of 16 MT x STEP are all that is held besides dk, dv; k and v are read again
(32 keys a warp: 1.5 clocks of shared memory per mma, where 16 with k and v in registers need 2). Padded
queries have lse = infinity, so p = 0. Head sizes above 128: dk and dv are two launches, 5 products.
Dropout: dp and p of what fell are 0 in the products; the bits are found once for both, which holds p and ds
at once, so steps are shorter.
*/
#include "attention_tile.cuh"

#ifdef LLMC_BF16
enum Which { BOTH, DK, DV };

template <int D, bool DROPOUT> struct DkvShape {
    static constexpr int WARPS = 4, MT = D <= 64 ? 2 : 1, KEYS = 16 * MT * WARPS;
    static constexpr int QUERIES = D <= 64 ? 64 : D <= 192 ? 32 : 16, STEP = D <= 128 && !DROPOUT ? 32 : 16;
    static constexpr int K_BYTES = KEYS * D * 2, Q_BYTES = QUERIES * D * 2,
                         SUMS_BYTES = (DROPOUT ? 3 : 2) * QUERIES * 4;                // lse, D, hashes
    static constexpr int STAGE_BYTES = (2 * Q_BYTES + SUMS_BYTES + 127) / 128 * 128;  // tile_further()
    static constexpr int SHARED_BYTES = 2 * K_BYTES + 2 * STAGE_BYTES;  // and the table of the bias
};

// Scores (keys, queries) of keys in the future are -infinity; `distance` from the first query to the first
// key.
template <int MT, int N>
static __device__ __forceinline__ void mask_future(float (&s)[MT][N / 8][4], int distance) {
    const int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int n = 0; n < N / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (distance + 16 * m + g + 8 * (i / 2) > 8 * n + 2 * t + i % 2) { s[m][n][i] = -INFINITY; }
            }
        }
    }
}

// s (keys, queries) becomes p; lse of the queries.
template <bool BIAS, int MT, int N>
static __device__ __forceinline__ void probabilities(float (&s)[MT][N / 8][4], const float* lse, float factor,
                                                     const float* table, int limit, int distance) {
    const int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
        float2 l = *reinterpret_cast<const float2*>(lse + 8 * n + 2 * t);
        l.x = __fmul_rn(l.x, LOG2_E), l.y = __fmul_rn(l.y, LOG2_E);
#pragma unroll
        for (int m = 0; m < MT; m++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int away =
                    distance + 16 * m + g + 8 * (i / 2) - (8 * n + 2 * t + i % 2);  // key minus query
                float x = s[m][n][i] * factor - (i % 2 ? l.y : l.x);
                if (BIAS) { x += bias_at(table, limit, away); }
                s[m][n][i] = exp2_approx(x);
            }
        }
    }
}

// dp becomes ds.
template <int MT, int N>
static __device__ __forceinline__ void softmax_backward(float (&dp)[MT][N / 8][4],
                                                        const float (&p)[MT][N / 8][4], const float* delta) {
    const int t = (int)threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
        const float2 d = *reinterpret_cast<const float2*>(delta + 8 * n + 2 * t);
#pragma unroll
        for (int m = 0; m < MT; m++) {
#pragma unroll
            for (int i = 0; i < 4; i++) { dp[m][n][i] = p[m][n][i] * (dp[m][n][i] - (i % 2 ? d.y : d.x)); }
        }
    }
}

// The same with dropout: p of what fell is 0 for the product with dout. Hashes drop_rows of the queries, keys
// of this lane's key tokens.
template <int MT, int N>
static __device__ __forceinline__ void
softmax_backward_dropped(float (&dp)[MT][N / 8][4], float (&p)[MT][N / 8][4], const float* delta,
                         const uint32_t* drop_rows, const uint32_t (&k_keys)[MT][2], const AttentionCall& x) {
    const int t = (int)threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
        const float2 d = *reinterpret_cast<const float2*>(delta + 8 * n + 2 * t);
        const uint2 row = *reinterpret_cast<const uint2*>(drop_rows + 8 * n + 2 * t);
#pragma unroll
        for (int m = 0; m < MT; m++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const bool falls = drops(x, i % 2 ? row.y : row.x, k_keys[m][i / 2]);
                const float kept = falls ? 0.0f : dp[m][n][i] * x.keep_scale;
                dp[m][n][i] = p[m][n][i] * (kept - (i % 2 ? d.y : d.x));
                if (falls) { p[m][n][i] = 0.0f; }
            }
        }
    }
}

// Of a piece: c (16 MT, D) is multiplied with `factor`, and joins rows of `sums` (ops.h: AttentionKept), of
// which the first num_before are earlier pieces'.
template <int D, int MT>
static __device__ __forceinline__ void accumulators_join(float (&c)[MT][D / 8][4], float factor, float* sums,
                                                         const AttentionKept& kept, int num_rows,
                                                         int num_before, int HS) {
    const int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = 16 * m + 8 * half + g;
            if (row >= num_rows) { continue; }
            float2* at = reinterpret_cast<float2*>(sums + (size_t)row * (size_t)kept.stride + 2 * t);
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                if (8 * n + 2 * t >= HS) { break; }
                float2 sum = kept.is_last ? make_float2(0.0f, 0.0f) : at[4 * n];
                sum.x += c[m][n][2 * half] * factor, sum.y += c[m][n][2 * half + 1] * factor;
                if (row < num_before) { at[4 * n] = sum; }
                c[m][n][2 * half] = sum.x, c[m][n][2 * half + 1] = sum.y;
            }
        }
    }
}

// Blocks of an SM: without the number for D = 32 and 96, ptxas takes up to 190 registers, for 2 of them; from
// D = 192 on shared memory leaves 2. Little lives through the loop on purpose (num_left, head_at, key): one
// register more, and D = 96 spills.
template <int D, bool BIAS, bool DROPOUT, Which WHICH>
__global__ static void __launch_bounds__(128, D == 32 || D == 96 ? 3 : 0)
    attention_dkv_kernel(AttentionCall x) {
    using S = DkvShape<D, DROPOUT>;
    constexpr int THREADS = 32 * S::WARPS, MT = S::MT, QUERIES = S::QUERIES, STEP = S::STEP;
    const Attention& about = x.about;
    AttentionPlace place;
    if (!attention_place<true>(&place, x, S::KEYS)) { return; }
    const int HS = about.head_size, warp = (int)threadIdx.x / 32;
    const int k0 = place.tile * S::KEYS, num_rows = min(S::KEYS, place.num_k - k0), row0 = 16 * MT * warp;
    const int num_left = num_rows - row0;      // of this warp
    const int key0 = k0 - about.kept.q_start;  // the first key's place, counted from the first query's
    const int first_step = about.causal ? max(key0, 0) / QUERIES : 0,
              num_steps = (place.num_q + QUERIES - 1) / QUERIES;
    char *k_tile = dynamic_shared(), *v_tile = k_tile + S::K_BYTES, *stages = v_tile + S::K_BYTES;
    float* table = (float*)(stages + 2 * S::STAGE_BYTES);
    const int head_at = place.h * HS;
    const int out_stride = about.num_heads * HS;

    uint32_t q_key = 0;  // of this thread's query of the tile that is on its way
    auto load_queries = [&](int step) {
        char* to = stages + step % 2 * S::STAGE_BYTES;
        const int q0 = step * QUERIES, num_queries = place.num_q - q0;
        const size_t row = (size_t)(place.q_begin + q0);
        tile_load<D, QUERIES, THREADS>(to, about.q + row * (size_t)about.q_stride + (size_t)head_at,
                                       about.q_stride, num_queries, HS);
        tile_load<D, QUERIES, THREADS>(to + S::Q_BYTES, x.dout + row * (size_t)out_stride + (size_t)head_at,
                                       out_stride, num_queries, HS);
        static_assert(2 * QUERIES <= THREADS);
        const int i = (int)threadIdx.x % QUERIES, which = (int)threadIdx.x / QUERIES;
        float* sum = (float*)(to + 2 * S::Q_BYTES) + threadIdx.x;
        if (which < 2 && i < num_queries) {
            const size_t at = (size_t)place.h * (size_t)about.num_q_tokens + row + (size_t)i;
            cp_async_4(sum, (which ? x.delta : x.lse) + at, 4);
        } else if (which < 2) {
            *sum = which ? 0.0f : INFINITY;
        }
        if (DROPOUT && which == 0) { q_key = i < num_queries ? about.q_keys[row + (size_t)i] : 0; }
    };
    const int key = place.k_begin + k0;  // of all
    const size_t kv_at = (size_t)key * (size_t)about.kv_stride + (size_t)head_at;
    tile_load<D, S::KEYS, THREADS>(k_tile, about.k + kv_at, about.kv_stride, num_rows, HS);
    tile_load<D, S::KEYS, THREADS>(v_tile, about.v + kv_at, about.kv_stride, num_rows, HS);
    if (first_step < num_steps) { load_queries(first_step); }
    if (BIAS) { bias_table_fill(table, x, place.h); }

    RowFragments<D, MT, false> k_rows, v_rows;
    k_rows.at = lane_of_a<D>(k_tile, row0), v_rows.at = lane_of_a<D>(v_tile, row0);
    float dk[MT][D / 8][4], dv[MT][D / 8][4];  // the unused one of two costs nothing
    if (WHICH != DV) { accumulators_zero<D, MT>(dk); }
    if (WHICH != DK) { accumulators_zero<D, MT>(dv); }
    uint32_t k_keys[MT][2];
#pragma unroll
    for (int m = 0; m < MT && DROPOUT; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int r = row0 + 16 * m + 8 * half + (int)threadIdx.x % 32 / 4;
            k_keys[m][half] = r < num_rows ? about.k_keys[key + r] : 0;
        }
    }
    const float factor = about.scale * LOG2_E;
    for (int step = first_step; step < num_steps; step++) {
        cp_async_wait_all();
        if (DROPOUT && threadIdx.x < QUERIES) {
            uint32_t* hashes = (uint32_t*)(stages + step % 2 * S::STAGE_BYTES + 2 * S::Q_BYTES) + 2 * QUERIES;
            hashes[threadIdx.x] = dropout_head_row(q_key, about.dropout_place, (uint32_t)place.h);
        }
        __syncthreads();  // this step's queries are there, and nobody reads the step before any more
        if (step + 1 < num_steps) { load_queries(step + 1); }
        if (num_left <= 0) { continue; }
        const char* q_tile = stages + step % 2 * S::STAGE_BYTES;
        const char* dout_tile = q_tile + S::Q_BYTES;
        const float* lse = (const float*)(q_tile + 2 * S::Q_BYTES);
#pragma unroll 1
        for (int i = 0; i < QUERIES; i += STEP) {
            const int q0 = step * QUERIES + i, distance = key0 + row0 - q0;
            if (q0 >= place.num_q || (about.causal && distance > STEP - 1)) { continue; }
            float p[MT][STEP / 8][4];
            product_transposed<D, MT, STEP>(p, k_rows, q_tile, i);
            if (about.causal && distance + 16 * MT - 1 > 0) { mask_future<MT, STEP>(p, distance); }
            probabilities<BIAS, MT, STEP>(p, lse + i, factor, table, BIAS ? bias_limit(x.buckets) : 0,
                                          distance);
            if constexpr (DROPOUT) {
                float ds[MT][STEP / 8][4];
                product_transposed<D, MT, STEP>(ds, v_rows, dout_tile, i);  // not for DV: nobody reads it
                softmax_backward_dropped<MT, STEP>(ds, p, lse + QUERIES + i,
                                                   (const uint32_t*)lse + 2 * QUERIES + i, k_keys, x);
                if (WHICH != DK) { product_add<D, MT, STEP>(dv, p, dout_tile, i); }
                if (WHICH != DV) { product_add<D, MT, STEP>(dk, ds, q_tile, i); }
                continue;
            }
            if (WHICH != DK) { product_add<D, MT, STEP>(dv, p, dout_tile, i); }
            if (WHICH != DV) {
                float ds[MT][STEP / 8][4];
                product_transposed<D, MT, STEP>(ds, v_rows, dout_tile, i);
                softmax_backward<MT, STEP>(ds, p, lse + QUERIES + i);
                product_add<D, MT, STEP>(dk, ds, q_tile, i);
            }
        }
    }
    cp_async_wait_all();
    __syncthreads();
    if (num_left <= 0) { return; }
    // Its rows of dk and dv, and of a piece those among the kept ones.
    auto store = [&](floatX* to, float* sums, char* tile, float(&c)[MT][D / 8][4], float factor) {
        int num_before = 0;  // rows of earlier pieces
        to += (size_t)(key + row0) * (size_t)x.dkv_stride + (size_t)head_at;
        if (sums != NULL) {
            num_before = about.kept.own_begin - key - row0;
            sums += (size_t)(key + row0) * (size_t)about.kept.stride + (size_t)head_at;
            accumulators_join<D, MT>(c, factor, sums, about.kept, num_left, num_before, HS);
            factor = 1.0f;
        }
        float factors[MT][2];
#pragma unroll
        for (int m = 0; m < MT; m++) { factors[m][0] = factors[m][1] = factor; }
        accumulators_store<D, MT>(to, x.dkv_stride, num_left, HS, tile, row0, c, factors, num_before);
    };
    if (WHICH != DV) { store(x.dk, about.kept.dk, k_tile, dk, about.scale); }
    if (WHICH != DK) { store(x.dv, about.kept.dv, v_tile, dv, DROPOUT ? x.keep_scale : 1.0f); }
}

template <int D, bool BIAS, bool DROPOUT, Which WHICH>
static void launch_one(const AttentionCall* call, OpsContext* ops) {
    using S = DkvShape<D, DROPOUT>;
    static_assert(S::SHARED_BYTES <= SHARED_BYTES_OF_ALL_CARDS);
    const Attention& about = call->about;
    const int bytes = S::SHARED_BYTES + (BIAS ? bias_table_floats(call->buckets) * (int)sizeof(float) : 0);
    const unsigned num_tiles = attention_num_tiles(about.num_k_tokens, about.num_seqs, S::KEYS);
    if (num_tiles == 0) { return; }
    CUDA_CHECK(cudaFuncSetAttribute(attention_dkv_kernel<D, BIAS, DROPOUT, WHICH>,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    attention_dkv_kernel<D, BIAS, DROPOUT, WHICH>
        <<<num_tiles*(unsigned)about.num_heads, 32 * S::WARPS, (size_t)bytes, ops->stream>>>(*call);
    CHECK_LAUNCH();
}

template <int D, bool BIAS, bool DROPOUT>
static void launch_by_size(const AttentionCall* call, OpsContext* ops) {
    if constexpr (D <= 128) {
        launch_one<D, BIAS, DROPOUT, BOTH>(call, ops);
    } else {
        launch_one<D, BIAS, DROPOUT, DK>(call, ops);
        launch_one<D, BIAS, DROPOUT, DV>(call, ops);
    }
}

template <int D> static void launch(const AttentionCall* call, OpsContext* ops) {
    constexpr int DROPOUT_D = attention_dropout_size(D);
    if (call->drop_below > 0) {
        call->about.bias != NULL ? launch_by_size<DROPOUT_D, true, true>(call, ops)
                                 : launch_by_size<DROPOUT_D, false, true>(call, ops);
    } else {
        call->about.bias != NULL ? launch_by_size<D, true, false>(call, ops)
                                 : launch_by_size<D, false, false>(call, ops);
    }
}

void attention_launch_dkv(const AttentionCall* call, OpsContext* ops) {
    ATTENTION_BY_HEAD_SIZE(call->about.head_size, launch, call, ops);
}
#endif
