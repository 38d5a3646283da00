/*
attention_fp32.cu -- attention in float32, without tensor cores (their float32 has 10 bits): PRECISION=FP32.

LANES threads share a row (a query; in dkv a key) and hold its vectors in registers, every LANES-th chunk of
16 bytes each; rows of the other side pass through shared memory in tiles, a warp reads one row at a time:
    forward  s = q k (added up over LANES by shuffles), online softmax 8 keys at a time, o += p v
    dq       p = 2^(s scale log2 e - lse log2 e),  ds = p (dout v - D),  dq += ds k
    dkv      dv += p dout,  dk += ds q
    dropout as in the kernels of bf16; every lane of a row finds the same bits
One float4 from shared memory feeds 4 multiply-adds of 32 threads: at best about half the card's float32
rate. The bias and its gradient as in attention_dq.cu.
*/
#include "attention.cuh"

#ifndef LLMC_BF16
template <int PADDED> struct Shape {
    static constexpr int D = PADDED, THREADS = 128;
    static constexpr int LANES = D <= 64 ? 4 : 8, ROWS = THREADS / LANES, WARP_ROWS = 32 / LANES;
    static constexpr int CHUNKS = D / 4 / LANES;        // of a thread
    static constexpr int COLUMNS = D <= 128 ? 32 : 16;  // rows of a tile in shared memory
    static constexpr int TILE_FLOATS = COLUMNS * D;
    static constexpr int STAGE = WARP_ROWS * (COLUMNS + 1);  // ds of a warp
    static constexpr int SHARED_BYTES = (2 * TILE_FLOATS + 3 * COLUMNS) * 4;
    static int bias_bytes(const T5Buckets& t) {
        return ((1 + THREADS / 32) * bias_table_floats(t) + THREADS / 32 * STAGE) * 4;
    }
};

enum { GROUP = 8 };  // keys of one step of the online softmax

template <class S> struct Row {
    float4 at[S::CHUNKS];

    __device__ __forceinline__ void zero() {
#pragma unroll
        for (int c = 0; c < S::CHUNKS; c++) { at[c] = make_float4(0.0f, 0.0f, 0.0f, 0.0f); }
    }
    __device__ __forceinline__ void load(const float* row, int HS, bool there) {
        zero();
#pragma unroll
        for (int c = 0; c < S::CHUNKS; c++) {
            const int i = 4 * ((int)threadIdx.x % S::LANES + c * S::LANES);
            if (there && i < HS) { at[c] = *reinterpret_cast<const float4*>(row + i); }
        }
    }
    __device__ __forceinline__ void store(float* row, int HS, float factor) const {
#pragma unroll
        for (int c = 0; c < S::CHUNKS; c++) {
            const int i = 4 * ((int)threadIdx.x % S::LANES + c * S::LANES);
            if (i < HS) {
                *reinterpret_cast<float4*>(row + i) =
                    make_float4(at[c].x * factor, at[c].y * factor, at[c].z * factor, at[c].w * factor);
            }
        }
    }
    __device__ __forceinline__ void add(const float* row, int HS) {
        Row other;
        other.load(row, HS, true);
#pragma unroll
        for (int c = 0; c < S::CHUNKS; c++) {
            at[c].x += other.at[c].x, at[c].y += other.at[c].y, at[c].z += other.at[c].z,
                at[c].w += other.at[c].w;
        }
    }
    __device__ __forceinline__ static float4 chunk(const float* shared_row, int c) {
        return reinterpret_cast<const float4*>(shared_row)[(int)threadIdx.x % S::LANES + c * S::LANES];
    }
    __device__ __forceinline__ float dot(const float* shared_row) const {
        float sum = 0.0f;
#pragma unroll
        for (int c = 0; c < S::CHUNKS; c++) {
            const float4 b = chunk(shared_row, c);
            sum += at[c].x * b.x + at[c].y * b.y + at[c].z * b.z + at[c].w * b.w;
        }
#pragma unroll
        for (int step = S::LANES / 2; step > 0; step /= 2) { sum += __shfl_xor_sync(0xffffffffu, sum, step); }
        return sum;
    }
    __device__ __forceinline__ void add(float factor, const float* shared_row) {
#pragma unroll
        for (int c = 0; c < S::CHUNKS; c++) {
            const float4 b = chunk(shared_row, c);
            at[c].x += factor * b.x, at[c].y += factor * b.y, at[c].z += factor * b.z,
                at[c].w += factor * b.w;
        }
    }
    __device__ __forceinline__ void scale(float factor) {
#pragma unroll
        for (int c = 0; c < S::CHUNKS; c++) {
            at[c].x *= factor, at[c].y *= factor, at[c].z *= factor, at[c].w *= factor;
        }
    }
};

// COLUMNS rows from `from` on, zeros beyond num_rows and HS. The caller synchronises.
template <class S>
static __device__ __forceinline__ void tile_load(float* tile, const float* from, int stride, int num_rows,
                                                 int HS) {
    static_assert(S::TILE_FLOATS / 4 % S::THREADS == 0);
#pragma unroll 2
    for (int turn = 0; turn < S::TILE_FLOATS / 4 / S::THREADS; turn++) {
        const int i = turn * S::THREADS + (int)threadIdx.x;
        const int row = i / (S::D / 4), c = i % (S::D / 4) * 4;
        float4 value = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (row < num_rows && c < HS) {
            value = *reinterpret_cast<const float4*>(from + (size_t)row * (size_t)stride + c);
        }
        reinterpret_cast<float4*>(tile)[i] = value;
    }
}

template <int D, bool BIAS, bool DROPOUT>
__global__ static void __launch_bounds__(128) attention_forward_kernel(AttentionCall x) {
    using S = Shape<D>;
    const Attention& about = x.about;
    AttentionPlace place;
    if (!attention_place<false>(&place, x, S::ROWS)) { return; }
    const int HS = about.head_size, q0 = attention_first_query(&place, about, S::ROWS);
    const int i = q0 + (int)threadIdx.x / S::LANES, row = place.q_begin + i;  // query of the sequence; of all
    const int num_keys = attention_keys_seen(about, place, q0, S::ROWS);
    const int my_keys = about.causal ? min(i + 1, place.num_k) : place.num_k;
    const uint32_t hash = DROPOUT && i < place.num_q ? drop_row(x, row, place.h) : 0;
    float *k_tile = (float*)dynamic_shared(), *v_tile = k_tile + S::TILE_FLOATS,
          *table = v_tile + S::TILE_FLOATS;
    const size_t head_at = (size_t)(place.h * HS);
    if (BIAS) { bias_table_fill(table, x, place.h); }
    Row<S> q, o;
    q.load(about.q + (size_t)row * (size_t)about.q_stride + head_at, HS, i < place.num_q);
    o.zero();
    float max = -INFINITY, sum = 0.0f;
    for (int k0 = 0; k0 < num_keys; k0 += S::COLUMNS) {
        const size_t at = (size_t)(place.k_begin + k0) * (size_t)about.kv_stride + head_at;
        __syncthreads();
        tile_load<S>(k_tile, about.k + at, about.kv_stride, num_keys - k0, HS);
        tile_load<S>(v_tile, about.v + at, about.kv_stride, num_keys - k0, HS);
        __syncthreads();
        for (int j0 = 0; j0 < S::COLUMNS && k0 + j0 < num_keys; j0 += GROUP) {
            float s[GROUP], next = max;
#pragma unroll
            for (int j = 0; j < GROUP; j++) {
                const int key = k0 + j0 + j;
                s[j] = q.dot(k_tile + (j0 + j) * D) * about.scale * LOG2_E;
                if (BIAS) { s[j] += bias_at(table, bias_limit(x.buckets), key - i); }
                if (key >= my_keys) { s[j] = -INFINITY; }
                next = fmaxf(next, s[j]);
            }
            const float shrink = exp2f(max - next);
            max = next, sum *= shrink;
            o.scale(shrink);
#pragma unroll
            for (int j = 0; j < GROUP; j++) {
                const int key = k0 + j0 + j;
                float p = exp2f(s[j] - max);
                sum += p;
                if (DROPOUT && key < my_keys && drops(x, hash, about.k_keys[place.k_begin + key])) {
                    p = 0.0f;
                }
                o.add(p, v_tile + (j0 + j) * D);
            }
        }
    }
    if (i >= place.num_q) { return; }
    o.store(x.out + ((size_t)row * (size_t)about.num_heads + (size_t)place.h) * (size_t)HS, HS,
            sum > 0.0f ? (DROPOUT ? x.keep_scale : 1.0f) / sum : 0.0f);  // no key at all: 0, lse too
    if (threadIdx.x % S::LANES == 0) {
        x.lse[(size_t)place.h * (size_t)about.num_q_tokens + (size_t)row] =
            sum > 0.0f ? max * LN_2 + logf(sum) : 0.0f;
    }
}

template <int D, bool BIAS, bool DROPOUT>
__global__ static void __launch_bounds__(128) attention_dq_kernel(AttentionCall x) {
    using S = Shape<D>;
    const Attention& about = x.about;
    AttentionPlace place;
    if (!attention_place<false>(&place, x, S::ROWS)) {
        if (BIAS && x.dbias_partials != NULL) { distance_sums_none(x); }
        return;
    }
    const int HS = about.head_size, warp = (int)threadIdx.x / 32;
    const int q0 = attention_first_query(&place, about, S::ROWS);
    const int i = q0 + (int)threadIdx.x / S::LANES, row = place.q_begin + i;
    const bool there = i < place.num_q;
    const int num_keys = attention_keys_seen(about, place, q0, S::ROWS);
    const int my_keys = !there ? 0 : about.causal ? min(i + 1, place.num_k) : place.num_k;
    float *k_tile = (float*)dynamic_shared(), *v_tile = k_tile + S::TILE_FLOATS,
          *table = v_tile + S::TILE_FLOATS;
    const int table_floats = BIAS ? bias_table_floats(x.buckets) : 0,
              limit = BIAS ? bias_limit(x.buckets) : 0;
    float *all_sums = table + table_floats,
          *stage = all_sums + S::THREADS / 32 * table_floats + warp * S::STAGE;
    DistanceSums sums;
    if (BIAS) {
        bias_table_fill(table, x, place.h);
        distance_sums_begin(&sums, all_sums + warp * table_floats, limit);
    }
    const size_t head_at = (size_t)(place.h * HS), out_stride = (size_t)about.num_heads * (size_t)HS;
    const size_t sums_at = (size_t)place.h * (size_t)about.num_q_tokens + (size_t)row;
    const uint32_t hash = DROPOUT && there ? drop_row(x, row, place.h) : 0;
    const float lse = there ? x.lse[sums_at] * LOG2_E : INFINITY, delta = there ? x.delta[sums_at] : 0.0f;
    Row<S> q, dout, dq;
    q.load(about.q + (size_t)row * (size_t)about.q_stride + head_at, HS, there);
    dout.load(x.dout + (size_t)row * out_stride + head_at, HS, there);
    dq.zero();
    for (int k0 = 0; k0 < num_keys; k0 += S::COLUMNS) {
        const size_t at = (size_t)(place.k_begin + k0) * (size_t)about.kv_stride + head_at;
        __syncthreads();
        tile_load<S>(k_tile, about.k + at, about.kv_stride, num_keys - k0, HS);
        tile_load<S>(v_tile, about.v + at, about.kv_stride, num_keys - k0, HS);
        __syncthreads();
        const int distance =
            k0 - (i - (int)threadIdx.x % 32 / S::LANES);  // of the warp's first query to the first key
        const int side = BIAS ? distance_sums_side(&sums, distance, S::WARP_ROWS, S::COLUMNS) : 0;
        for (int j = 0; j < S::COLUMNS; j++) {
            const int key = k0 + j;
            const float s = q.dot(k_tile + j * D) * about.scale * LOG2_E;
            float dp = dout.dot(v_tile + j * D);
            if (DROPOUT && key < my_keys) {
                dp = drops(x, hash, about.k_keys[place.k_begin + key]) ? 0.0f : dp * x.keep_scale;
            }
            const float bias = BIAS ? bias_at(table, limit, key - i) : 0.0f;
            const float ds = key < my_keys ? exp2f(s + bias - lse) * (dp - delta) : 0.0f;
            dq.add(ds, k_tile + j * D);
            if (BIAS && threadIdx.x % S::LANES == 0) {
                if (side == 0) { stage[(int)threadIdx.x % 32 / S::LANES * (S::COLUMNS + 1) + j] = ds; }
                if (side < 0) { sums.low += ds; }
                if (side > 0) { sums.high += ds; }
            }
        }
        if (BIAS && side == 0) {
            distance_sums_add<S::WARP_ROWS, S::COLUMNS, S::COLUMNS + 1>(&sums, stage, distance);
        }
    }
    if (there) { dq.store(x.dq + (size_t)row * (size_t)about.q_stride + head_at, HS, about.scale); }
    if (BIAS && x.dbias_partials != NULL) {
        distance_sums_end(&sums, x, all_sums, table_floats, S::THREADS / 32);
    }
}

template <int D, bool BIAS, bool DROPOUT>
__global__ static void __launch_bounds__(128) attention_dkv_kernel(AttentionCall x) {
    using S = Shape<D>;
    const Attention& about = x.about;
    AttentionPlace place;
    if (!attention_place<true>(&place, x, S::ROWS)) { return; }
    const int HS = about.head_size, k0 = place.tile * S::ROWS, q_start = about.kept.q_start;
    const int j = k0 + (int)threadIdx.x / S::LANES, row = place.k_begin + j;  // key of the sequence; of all
    float *q_tile = (float*)dynamic_shared(), *dout_tile = q_tile + S::TILE_FLOATS;
    float *lse = dout_tile + S::TILE_FLOATS, *delta = lse + S::COLUMNS, *table = delta + 2 * S::COLUMNS;
    uint32_t* hashes = (uint32_t*)(delta + S::COLUMNS);
    const uint32_t k_key = DROPOUT && j < place.num_k ? about.k_keys[row] : 0;
    const int out_stride = about.num_heads * HS, limit = BIAS ? bias_limit(x.buckets) : 0;
    const size_t head_at = (size_t)(place.h * HS), at = (size_t)row * (size_t)about.kv_stride + head_at;
    if (BIAS) { bias_table_fill(table, x, place.h); }
    Row<S> k, v, dk, dv;
    k.load(about.k + at, HS, j < place.num_k);
    v.load(about.v + at, HS, j < place.num_k);
    dk.zero(), dv.zero();
    for (int q0 = about.causal ? max(k0 - q_start, 0) / S::COLUMNS * S::COLUMNS : 0; q0 < place.num_q;
         q0 += S::COLUMNS) {
        const size_t q_row = (size_t)(place.q_begin + q0);
        const int num_queries = place.num_q - q0, c = (int)threadIdx.x;
        __syncthreads();
        tile_load<S>(q_tile, about.q + q_row * (size_t)about.q_stride + head_at, about.q_stride, num_queries,
                     HS);
        tile_load<S>(dout_tile, x.dout + q_row * (size_t)out_stride + head_at, out_stride, num_queries, HS);
        if (c < S::COLUMNS) {
            const size_t sum = (size_t)place.h * (size_t)about.num_q_tokens + q_row + (size_t)c;
            lse[c] = c < num_queries ? x.lse[sum] * LOG2_E : INFINITY;
            delta[c] = c < num_queries ? x.delta[sum] : 0.0f;
            if (DROPOUT) { hashes[c] = c < num_queries ? drop_row(x, (int)q_row + c, place.h) : 0; }
        }
        __syncthreads();
        for (int i = 0; i < S::COLUMNS && i < num_queries; i++) {
            const float s = k.dot(q_tile + i * D) * about.scale * LOG2_E;
            float dp = v.dot(dout_tile + i * D), kept = 1.0f;
            if (DROPOUT) { kept = drops(x, hashes[i], k_key) ? 0.0f : x.keep_scale, dp *= kept; }
            const int away = j - q_start - (q0 + i);
            const float bias = BIAS ? bias_at(table, limit, away) : 0.0f;
            const float p = about.causal && away > 0 ? 0.0f : exp2f(s + bias - lse[i]);
            dv.add(DROPOUT ? p * kept : p, dout_tile + i * D);
            dk.add(p * (dp - delta[i]), q_tile + i * D);
        }
    }
    if (j >= place.num_k) { return; }
    const AttentionKept& kept = about.kept;
    const size_t to = (size_t)row * (size_t)x.dkv_stride + head_at;
    dk.scale(about.scale);
    if (kept.dk != NULL) {
        const size_t sums_at = (size_t)j * (size_t)kept.stride + head_at;
        if (!kept.is_last) { dk.add(kept.dk + sums_at, HS), dv.add(kept.dv + sums_at, HS); }
        if (j < kept.own_begin) {
            dk.store(kept.dk + sums_at, HS, 1.0f), dv.store(kept.dv + sums_at, HS, 1.0f);
            return;
        }
    }
    dk.store(x.dk + to, HS, 1.0f);
    dv.store(x.dv + to, HS, 1.0f);
}

typedef void (*Kernel)(AttentionCall);

template <int D, bool BIAS, bool DROPOUT>
static int launch_one(const AttentionCall* call, OpsContext* ops, char which) {
    using S = Shape<D>;
    const Attention& about = call->about;
    const int bytes = S::SHARED_BYTES + (BIAS ? S::bias_bytes(call->buckets) : 0);
    const int num_tokens = which == 'k' ? about.num_k_tokens : about.num_q_tokens;
    const unsigned num_blocks =
        attention_num_tiles(num_tokens, about.num_seqs, S::ROWS) * (unsigned)about.num_heads;
    const Kernel kernel = which == 'f'   ? attention_forward_kernel<D, BIAS, DROPOUT>
                          : which == 'q' ? attention_dq_kernel<D, BIAS, DROPOUT>
                                         : attention_dkv_kernel<D, BIAS, DROPOUT>;
    if (num_blocks == 0) { return S::ROWS; }
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    kernel<<<num_blocks, S::THREADS, (size_t)bytes, ops->stream>>>(*call);
    CHECK_LAUNCH();
    return S::ROWS;
}

template <int D> static int launch(const AttentionCall* call, OpsContext* ops, char which) {
    constexpr int DROPOUT_D = attention_dropout_size(D);
    if (call->drop_below > 0) {
        return call->about.bias != NULL ? launch_one<DROPOUT_D, true, true>(call, ops, which)
                                        : launch_one<DROPOUT_D, false, true>(call, ops, which);
    }
    return call->about.bias != NULL ? launch_one<D, true, false>(call, ops, which)
                                    : launch_one<D, false, false>(call, ops, which);
}

static int launch_by_head_size(const AttentionCall* call, OpsContext* ops, char which) {
    const int HS = call->about.head_size;
    return HS <= 32    ? launch<32>(call, ops, which)
           : HS <= 64  ? launch<64>(call, ops, which)
           : HS <= 128 ? launch<128>(call, ops, which)
                       : launch<256>(call, ops, which);
}

void attention_launch_forward(const AttentionCall* call, OpsContext* ops) {
    launch_by_head_size(call, ops, 'f');
}
int attention_launch_dq(const AttentionCall* call, OpsContext* ops) {
    return launch_by_head_size(call, ops, 'q');
}
int attention_dq_bytes(int head_size, const T5Buckets* bias) {
    (void)head_size, (void)bias;
    return 0;  // below 99 KiB with any bias: every card has that
}
void attention_launch_dkv(const AttentionCall* call, OpsContext* ops) {
    launch_by_head_size(call, ops, 'k');
}
#endif
