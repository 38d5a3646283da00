/*
attention_dkv.cu -- gradients of k and v, bf16 on tensor cores (FlashAttention-2: Dao 2023, algorithm 2, its
loops over keys).

A block of 4 warps has 64 keys of a head, a warp 16; tiles of QUERIES queries (q, dout, lse, D) pass through
shared memory, the next one on its way while the warps work. All products are transposed, keys down:
    s = k q^T,  p = 2^(s scale log2 e - lse log2 e),  dp = v dout^T,  ds = p (dp - D)
    dv += p dout,  dk += ds q,  at the end dk scale                 4 products, p and ds never leave registers
Queries in steps of STEP: s and dp of 16 x STEP are all that is held besides dk, dv (and k, v where they fit).
Padded queries have lse = infinity, so p = 0. Head sizes above 128: dk and dv (16 x D floats each) are two
launches, 5 products.
*/
#include "attention_tile.cuh"

#ifdef LLMC_BF16
enum Which { BOTH, DK, DV };

template <int D> struct DkvShape {
    static constexpr int WARPS = 4, KEYS = 16 * WARPS;
    static constexpr int QUERIES = D <= 64 ? 64 : D <= 192 ? 32 : 16, STEP = D <= 64 ? 32 : 16;
    static constexpr bool IN_REGISTERS = D <= 64;
    static constexpr int K_BYTES = KEYS * D * 2, Q_BYTES = QUERIES * D * 2, SUMS_BYTES = 2 * QUERIES * 4;
    static constexpr int STAGE_BYTES = 2 * Q_BYTES + SUMS_BYTES;
    static constexpr int SHARED_BYTES = 2 * K_BYTES + 2 * STAGE_BYTES;  // and the table of the bias
};

// s (keys, queries) becomes p; lse (times log2 e) of the queries.
template <bool BIAS, int N>
static __device__ __forceinline__ void probabilities(float (&s)[1][N / 8][4], const float* lse, float factor,
                                                     const float* table, int limit, int distance,
                                                     bool masked) {
    const int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
        const float2 l = *reinterpret_cast<const float2*>(lse + 8 * n + 2 * t);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int away = distance + g + 8 * (i / 2) - (8 * n + 2 * t + i % 2);  // key minus query
            const float bias = BIAS ? bias_at(table, limit, away) : 0.0f;
            const float p = exp2_approx(s[0][n][i] * factor + (bias - (i % 2 ? l.y : l.x)));
            s[0][n][i] = masked && away > 0 ? 0.0f : p;
        }
    }
}

// dp becomes ds.
template <int N>
static __device__ __forceinline__ void softmax_backward(float (&dp)[1][N / 8][4],
                                                        const float (&p)[1][N / 8][4], const float* delta) {
    const int t = (int)threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
        const float2 d = *reinterpret_cast<const float2*>(delta + 8 * n + 2 * t);
#pragma unroll
        for (int i = 0; i < 4; i++) { dp[0][n][i] = p[0][n][i] * (dp[0][n][i] - (i % 2 ? d.y : d.x)); }
    }
}

template <int D, bool BIAS, Which WHICH>
__global__ static void __launch_bounds__(128) attention_dkv_kernel(AttentionCall x) {
    using S = DkvShape<D>;
    constexpr int THREADS = 32 * S::WARPS, QUERIES = S::QUERIES, STEP = S::STEP;
    const Attention& about = x.about;
    AttentionPlace place;
    if (!attention_place(&place, about, about.cu_k, S::KEYS)) { return; }
    const int HS = about.head_size, warp = (int)threadIdx.x / 32;
    const int k0 = place.tile * S::KEYS, num_rows = min(S::KEYS, place.num_k - k0), row0 = 16 * warp;
    const int first_step = about.causal ? k0 / QUERIES : 0, num_steps = (place.num_q + QUERIES - 1) / QUERIES;
    char *k_tile = dynamic_shared(), *v_tile = k_tile + S::K_BYTES, *stages = v_tile + S::K_BYTES;
    float* table = (float*)(stages + 2 * S::STAGE_BYTES);
    const size_t head_at = (size_t)(place.h * HS), sums_at = (size_t)place.h * (size_t)about.num_q_tokens;
    const size_t kv_at = (size_t)(place.k_begin + k0) * (size_t)about.kv_stride + head_at;
    const int out_stride = about.num_heads * HS;

    auto load_queries = [&](int step) {
        char* to = stages + step % 2 * S::STAGE_BYTES;
        const int q0 = step * QUERIES, num_queries = place.num_q - q0;
        const size_t row = (size_t)(place.q_begin + q0);
        tile_load<D, QUERIES, THREADS>(to, about.q + row * (size_t)about.q_stride + head_at, about.q_stride,
                                       num_queries, HS);
        tile_load<D, QUERIES, THREADS>(to + S::Q_BYTES, x.dout + row * (size_t)out_stride + head_at,
                                       out_stride, num_queries, HS);
        float* sums = (float*)(to + 2 * S::Q_BYTES);
        for (int i = (int)threadIdx.x; i < QUERIES; i += THREADS) {
            sums[i] = i < num_queries ? x.lse[sums_at + row + (size_t)i] * LOG2_E : INFINITY;
            sums[QUERIES + i] = i < num_queries ? x.delta[sums_at + row + (size_t)i] : 0.0f;
        }
    };
    tile_load<D, S::KEYS, THREADS>(k_tile, about.k + kv_at, about.kv_stride, num_rows, HS);
    tile_load<D, S::KEYS, THREADS>(v_tile, about.v + kv_at, about.kv_stride, num_rows, HS);
    if (first_step < num_steps) { load_queries(first_step); }
    if (BIAS) { bias_table_fill(table, x, place.h); }

    RowFragments<D, 1, S::IN_REGISTERS> k_rows, v_rows;
    k_rows.tile = k_tile, v_rows.tile = v_tile, k_rows.row0 = v_rows.row0 = row0;
    float dk[1][D / 8][4], dv[1][D / 8][4];  // the unused one of two costs nothing
    if (WHICH != DV) { accumulators_zero<D, 1>(dk); }
    if (WHICH != DK) { accumulators_zero<D, 1>(dv); }
    const float factor = about.scale * LOG2_E;
    for (int step = first_step; step < num_steps; step++) {
        cp_async_wait_all();
        __syncthreads();  // this step's queries are there, and nobody reads the step before any more
        if (step + 1 < num_steps) { load_queries(step + 1); }
        if (step == first_step) {
            k_rows.load();
            if (WHICH != DV) { v_rows.load(); }
        }
        if (row0 >= num_rows) { continue; }
        const char* q_tile = stages + step % 2 * S::STAGE_BYTES;
        const char* dout_tile = q_tile + S::Q_BYTES;
        const float* lse = (const float*)(q_tile + 2 * S::Q_BYTES);
#pragma unroll 1
        for (int i = 0; i < QUERIES; i += STEP) {
            const int q0 = step * QUERIES + i, distance = k0 + row0 - q0;
            if (q0 >= place.num_q || (about.causal && distance > STEP - 1)) { continue; }
            float p[1][STEP / 8][4];
            product_transposed<D, 1, STEP>(p, k_rows, q_tile, i);
            probabilities<BIAS, STEP>(p, lse + i, factor, table, BIAS ? bias_limit(x.buckets) : 0, distance,
                                      about.causal && distance + 15 > 0);
            if (WHICH != DK) { product_add<D, 1, STEP>(dv, p, dout_tile, i); }
            if (WHICH != DV) {
                float ds[1][STEP / 8][4];
                product_transposed<D, 1, STEP>(ds, v_rows, dout_tile, i);
                softmax_backward<STEP>(ds, p, lse + QUERIES + i);
                product_add<D, 1, STEP>(dk, ds, q_tile, i);
            }
        }
    }
    cp_async_wait_all();
    __syncthreads();
    if (row0 >= num_rows) { return; }
    const float scales[1][2] = {{about.scale, about.scale}}, ones[1][2] = {{1.0f, 1.0f}};
    const size_t at = kv_at + (size_t)row0 * (size_t)about.kv_stride;
    if (WHICH != DV) {
        accumulators_store<D, 1>(x.dk + at, about.kv_stride, num_rows - row0, HS, k_tile, row0, dk, scales);
    }
    if (WHICH != DK) {
        accumulators_store<D, 1>(x.dv + at, about.kv_stride, num_rows - row0, HS, v_tile, row0, dv, ones);
    }
}

template <int D, bool BIAS, Which WHICH> static void launch_one(const AttentionCall* call, OpsContext* ops) {
    using S = DkvShape<D>;
    const Attention& about = call->about;
    const int bytes = S::SHARED_BYTES + (BIAS ? bias_table_floats(call->buckets) * (int)sizeof(float) : 0);
    const unsigned num_tiles = attention_num_tiles(about.num_k_tokens, about.num_seqs, S::KEYS);
    if (num_tiles == 0) { return; }
    CUDA_CHECK(cudaFuncSetAttribute(attention_dkv_kernel<D, BIAS, WHICH>,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    attention_dkv_kernel<D, BIAS, WHICH>
        <<<num_tiles*(unsigned)about.num_heads, 32 * S::WARPS, (size_t)bytes, ops->stream>>>(*call);
}

template <int D, bool BIAS> static void launch_by_size(const AttentionCall* call, OpsContext* ops) {
    if constexpr (D <= 128) {
        launch_one<D, BIAS, BOTH>(call, ops);
    } else {
        launch_one<D, BIAS, DK>(call, ops);
        launch_one<D, BIAS, DV>(call, ops);
    }
}

template <int D> static void launch(const AttentionCall* call, OpsContext* ops) {
    call->about.bias != NULL ? launch_by_size<D, true>(call, ops) : launch_by_size<D, false>(call, ops);
}

void attention_launch_dkv(const AttentionCall* call, OpsContext* ops) {
    ATTENTION_BY_HEAD_SIZE(call->about.head_size, launch, call, ops);
}
#endif
