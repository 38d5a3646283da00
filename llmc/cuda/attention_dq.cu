/*
attention_dq.cu -- gradient of q, and of T5's position bias, bf16 on tensor cores.

The forward's loops (attention_forward.cu): a block of 4 warps has ROWS queries, a warp 16 MT; tiles of KEYS
keys pass through shared memory:
    s = q k^T,  p = 2^(s scale log2 e - lse log2 e),  dp = dout v^T,  ds = p (dp - D)
    dq += ds k,  at the end dq scale                                                          3 products
dbias: ds is the gradient of the bias at its distance j - i. Tiles further than the buckets' last distance add
up in registers; others pass through shared memory of the warp, where each lane sums whole diagonals, and then
the distances of a bucket. A block writes one partial per bucket; attention.cu adds these up in their order.
Dropout: dp of what fell is 0, of the others dp / (1 - p); D is the same sum of dout out.
*/
#include "attention_tile.cuh"

#ifdef LLMC_BF16
template <int D, bool DROPOUT> struct DqShape {
    static constexpr int WARPS = 4, MT = D <= 64 ? 2 : 1, ROWS = 16 * MT * WARPS;
    static constexpr int KEYS = D <= 64 ? 64 : D <= 192 ? 32 : 16, STEP = D == 64 ? 32 : 16;
    static constexpr bool Q_IN_REGISTERS = D <= 64 && !DROPOUT;
    static constexpr int Q_BYTES = ROWS * D * 2, K_BYTES = KEYS * D * 2;
    static constexpr int DS_STRIDE = STEP + 8;  // half a warp's fragments then are in all banks
    static constexpr int DROP_BYTES = DROPOUT ? 2 * KEYS * 4 : 0;  // the keys' keys
    static constexpr int SHARED_BYTES = 2 * Q_BYTES + 4 * K_BYTES + DROP_BYTES;
    // with a bias: each warp's ds, the bias' table, and each warp's sums by distance
    static int bias_floats(const T5Buckets& t) {
        return (1 + WARPS) * bias_table_floats(t) + WARPS * 16 * DS_STRIDE;
    }
};

// s becomes p; lse (times log2 e) of this lane's rows.
template <bool BIAS, int MT, int N>
static __device__ __forceinline__ void probabilities(float (&s)[MT][N / 8][4], const float (&lse)[MT][2],
                                                     float factor, const float* table, int limit,
                                                     int distance) {
    const int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int n = 0; n < N / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int key = 8 * n + 2 * t + i % 2, away = distance + key - (16 * m + g + 8 * (i / 2));
                float x = s[m][n][i] * factor - lse[m][i / 2];
                if (BIAS) { x += bias_at(table, limit, away); }
                s[m][n][i] = exp2_approx(x);
            }
        }
    }
}

// dp becomes ds.
template <bool DROPOUT, int MT, int N>
static __device__ __forceinline__ void
softmax_backward(float (&dp)[MT][N / 8][4], const float (&p)[MT][N / 8][4], const float (&delta)[MT][2],
                 const uint32_t (&drop_rows)[MT][2], const uint32_t* k_keys, const AttentionCall& x) {
    const int t = (int)threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
        uint2 key = make_uint2(0, 0);
        if (DROPOUT) { key = *reinterpret_cast<const uint2*>(k_keys + 8 * n + 2 * t); }
#pragma unroll
        for (int m = 0; m < MT; m++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float d = dp[m][n][i];
                if (DROPOUT) {
                    d = drops(x, drop_rows[m][i / 2], i % 2 ? key.y : key.x) ? 0.0f : d * x.keep_scale;
                }
                dp[m][n][i] = p[m][n][i] * (d - delta[m][i / 2]);
            }
        }
    }
}

// What ds (16 MT, N) of the warp adds to dbias; element (0, 0) has this distance.
template <int MT, int N, int STRIDE>
static __device__ __forceinline__ void bias_backward(DistanceSums* sums, float* stage,
                                                     const float (&ds)[MT][N / 8][4], int distance) {
    const int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
#pragma unroll
    for (int m = 0; m < MT; m++) {
        const int side = distance_sums_side(sums, distance - 16 * m, 16, N);
        float all = 0.0f;
#pragma unroll
        for (int n = 0; n < N / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                all += ds[m][n][i], all += ds[m][n][i + 1];
                if (side == 0) {
                    *reinterpret_cast<float2*>(stage + (g + 4 * i) * STRIDE + 8 * n + 2 * t) =
                        make_float2(ds[m][n][i], ds[m][n][i + 1]);
                }
            }
        }
        if (side < 0) { sums->low += all; }
        if (side > 0) { sums->high += all; }
        if (side == 0) { distance_sums_add<16, N, STRIDE>(sums, stage, distance - 16 * m); }
    }
}

// Blocks of an SM: without the number for D = 32, ptxas may take 8 to 30 registers more, for 3 of them.
template <int D, bool BIAS, bool DROPOUT>
__global__ static void __launch_bounds__(128, D == 32 ? 4 : 0) attention_dq_kernel(AttentionCall x) {
    using S = DqShape<D, DROPOUT>;
    constexpr int THREADS = 32 * S::WARPS, MT = S::MT, KEYS = S::KEYS, STEP = S::STEP;
    const Attention& about = x.about;
    AttentionPlace place;
    if (!attention_place<false>(&place, x, S::ROWS)) {
        if (BIAS && x.dbias_partials != NULL) { distance_sums_none(x); }
        return;
    }
    const int HS = about.head_size, warp = (int)threadIdx.x / 32, g = (int)threadIdx.x % 32 / 4;
    const int q0 = (place.num_tiles - 1 - place.tile) * S::ROWS, num_rows = min(S::ROWS, place.num_q - q0);
    const int row0 = 16 * MT * warp, first = about.kept.q_start + q0 + row0;  // by its place among the keys
    const int num_keys = attention_keys_seen(about, place, about.kept.q_start + q0, num_rows),
              num_steps = (num_keys + KEYS - 1) / KEYS;
    char *q_tile = dynamic_shared(), *dout_tile = q_tile + S::Q_BYTES, *kv = dout_tile + S::Q_BYTES;
    uint32_t* k_keys = (uint32_t*)(kv + 4 * S::K_BYTES);
    float* stages = (float*)(kv + 4 * S::K_BYTES + S::DROP_BYTES);
    float *stage = stages + warp * 16 * S::DS_STRIDE, *table = stages + S::WARPS * 16 * S::DS_STRIDE;
    const int table_floats = BIAS ? bias_table_floats(x.buckets) : 0,
              limit = BIAS ? bias_limit(x.buckets) : 0;
    float* all_sums = table + table_floats;
    const size_t head_at = (size_t)(place.h * HS);
    const int row = place.q_begin + q0;
    const size_t k_at = (size_t)place.k_begin * (size_t)about.kv_stride + head_at;
    const int out_stride = about.num_heads * HS;

    auto load_keys = [&](int step) {
        char* to = kv + step % 2 * 2 * S::K_BYTES;
        const size_t at = k_at + (size_t)(step * KEYS) * (size_t)about.kv_stride;
        tile_load<D, KEYS, THREADS>(to, about.k + at, about.kv_stride, num_keys - step * KEYS, HS);
        tile_load<D, KEYS, THREADS>(to + S::K_BYTES, about.v + at, about.kv_stride, num_keys - step * KEYS,
                                    HS);
        if (DROPOUT) {
            load_k_keys<KEYS, THREADS>(k_keys + step % 2 * KEYS, x, place.k_begin + step * KEYS,
                                       num_keys - step * KEYS);
        }
    };
    tile_load<D, S::ROWS, THREADS>(q_tile, about.q + (size_t)row * (size_t)about.q_stride + head_at,
                                   about.q_stride, num_rows, HS);
    tile_load<D, S::ROWS, THREADS>(dout_tile, x.dout + (size_t)row * (size_t)out_stride + head_at, out_stride,
                                   num_rows, HS);
    if (num_steps > 0) { load_keys(0); }
    if (BIAS) { bias_table_fill(table, x, place.h); }
    DistanceSums sums;
    if (BIAS) { distance_sums_begin(&sums, all_sums + warp * table_floats, limit); }

    RowFragments<D, MT, S::Q_IN_REGISTERS> q_rows;
    RowFragments<D, MT, false> dout_rows;  // dq, s and dp leave no room for these too
    q_rows.at = lane_of_a<D>(q_tile, row0), dout_rows.at = lane_of_a<D>(dout_tile, row0);
    float dq[MT][D / 8][4], lse[MT][2], delta[MT][2];
    accumulators_zero<D, MT>(dq);
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int r = row0 + 16 * m + 8 * half + g;
            const size_t at = (size_t)place.h * (size_t)about.num_q_tokens + (size_t)(row + r);
            lse[m][half] = r < num_rows ? x.lse[at] * LOG2_E : INFINITY;
            delta[m][half] = r < num_rows ? x.delta[at] : 0.0f;
        }
    }
    uint32_t drop_rows[MT][2];
    if (DROPOUT) { load_drop_rows<MT>(drop_rows, x, place, q0 + row0); }
    const float factor = about.scale * LOG2_E;
    for (int step = 0; step < num_steps; step++) {
        cp_async_wait_all();
        __syncthreads();  // this step's keys are there, and nobody reads the step before any more
        if (step + 1 < num_steps) { load_keys(step + 1); }
        if (step == 0) { q_rows.load(); }
        if (row0 >= num_rows) { continue; }
        const char* k_tile = kv + step % 2 * 2 * S::K_BYTES;
#pragma unroll 1
        for (int i = 0; i < KEYS; i += STEP) {
            const int k0 = step * KEYS + i, distance = k0 - first;
            if (k0 >= num_keys || (about.causal && distance > 16 * MT - 1)) { continue; }
            float p[MT][STEP / 8][4], ds[MT][STEP / 8][4];
            product_transposed<D, MT, STEP>(p, q_rows, k_tile, i);
            if (k0 + STEP > place.num_k || (about.causal && distance + STEP - 1 > 0)) {
                mask_scores<MT, STEP>(p, first, k0, place.num_k, about.causal);
            }
            probabilities<BIAS, MT, STEP>(p, lse, factor, table, limit, distance);
            product_transposed<D, MT, STEP>(ds, dout_rows, k_tile + S::K_BYTES, i);
            softmax_backward<DROPOUT, MT, STEP>(ds, p, delta, drop_rows, k_keys + step % 2 * KEYS + i, x);
            if (BIAS && x.dbias_partials != NULL) {
                bias_backward<MT, STEP, S::DS_STRIDE>(&sums, stage, ds, distance);
            }
            product_add<D, MT, STEP>(dq, ds, k_tile, i);
        }
    }
    cp_async_wait_all();
    __syncthreads();
    if (row0 < num_rows) {
        float scales[MT][2];
#pragma unroll
        for (int m = 0; m < MT; m++) { scales[m][0] = scales[m][1] = about.scale; }
        floatX* to = x.dq + (size_t)(row + row0) * (size_t)about.q_stride + head_at;
        accumulators_store<D, MT>(to, about.q_stride, num_rows - row0, HS, q_tile, row0, dq, scales);
    }
    if (BIAS && x.dbias_partials != NULL) { distance_sums_end(&sums, x, all_sums, table_floats, S::WARPS); }
}

template <int D, bool BIAS, bool DROPOUT> static int launch_one(const AttentionCall* call, OpsContext* ops) {
    using S = DqShape<D, DROPOUT>;
    static_assert(S::SHARED_BYTES <= SHARED_BYTES_OF_ALL_CARDS);
    const Attention& about = call->about;
    const int bytes = S::SHARED_BYTES + (BIAS ? S::bias_floats(call->buckets) * (int)sizeof(float) : 0);
    const unsigned num_tiles = attention_num_tiles(about.num_q_tokens, about.num_seqs, S::ROWS);
    if (num_tiles == 0) { return S::ROWS; }
    CUDA_CHECK(cudaFuncSetAttribute(attention_dq_kernel<D, BIAS, DROPOUT>,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    attention_dq_kernel<D, BIAS, DROPOUT>
        <<<num_tiles*(unsigned)about.num_heads, 32 * S::WARPS, (size_t)bytes, ops->stream>>>(*call);
    CHECK_LAUNCH();
    return S::ROWS;
}

template <int D> static int launch(const AttentionCall* call, OpsContext* ops) {
    constexpr int DROPOUT_D = attention_dropout_size(D);
    if (call->drop_below > 0) {
        return call->about.bias != NULL ? launch_one<DROPOUT_D, true, true>(call, ops)
                                        : launch_one<DROPOUT_D, false, true>(call, ops);
    }
    return call->about.bias != NULL ? launch_one<D, true, false>(call, ops)
                                    : launch_one<D, false, false>(call, ops);
}

int attention_launch_dq(const AttentionCall* call, OpsContext* ops) {
    return ATTENTION_BY_HEAD_SIZE(call->about.head_size, launch, call, ops);
}

template <int D> static int bytes_of(const T5Buckets* bias, int unused) {
    (void)unused;
    using S = DqShape<attention_dropout_size(D), true>;  // no fewer than without
    return S::SHARED_BYTES + S::bias_floats(*bias) * (int)sizeof(float);
}
int attention_dq_bytes(int head_size, const T5Buckets* bias) {
    return ATTENTION_BY_HEAD_SIZE(head_size, bytes_of, bias, 0);
}
#endif
