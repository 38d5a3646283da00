/*
attention.cu -- attention over ragged batches: the operations of ops.h, on kernels of one family.

GPT-2's packed qkv is the general form with q, k, v in one row; causal, scale 1 / sqrt(HS). Kernels: bf16 in
attention_forward.cu, attention_dq.cu, attention_dkv.cu; float32 in attention_fp32.cu. Here: checks, D =
rowsum(dout out), and the last sum of the bias' gradient. No floating-point atomics anywhere: every value is
written by one thread that adds in one order.

Backward in two kernels that both compute the scores again, dq by queries and dk, dv by keys: 3 + 4 products
where one kernel would do with 5, but that one must add dq from many blocks: by atomics (order by chance), by
float32 copies of dq (one per tile of keys: memory grows with length), or block after block in turn.
    Flops for P pairs (query, key) of a head: forward 4 P HS; backward 14 P HS, counted as 10 P HS.

Head size 64 on sm_90, counted, not measured: clocks of an SM for 64 x 64 pairs at full rate (4096 flops of
mma, 128 bytes of shared memory, 16 exp a clock); 2 blocks of 4 warps on an SM, no spills:
               mma  ldmatrix  exp  registers  shared KiB
    forward    256       256  256        233          48     128 queries, tiles of 64 keys
    dq         384       512  256        238          64     128 queries, tiles of 64 keys
    dkv        512       768  256        255          65     128 keys, tiles of 64 queries
So on an H200 (132 SMs, 1.75 GHz) at most 946 TFLOP/s forward and 473 backward. mma.sync reaches some 60 % of
the tensor cores' rate there; wgmma, which reads shared memory itself, would be next.
*/
#include "../llmc_error.h"
#include "attention.cuh"
#include "launch.cuh"

#include <math.h>

bool attention_check(int head_size, int num_buckets, int max_distance) {
    if (head_size < 8 || head_size > 256 || head_size % 8 != 0) {
        return llmc_fail("head size %d ---> on a GPU 8 to 256 in steps of 8; or train on the CPU", head_size);
    }
    if (num_buckets == 0) { return true; }
    if (num_buckets < 4 || num_buckets > T5_MAX_BUCKETS || max_distance > ATTENTION_MAX_DISTANCE) {
        return llmc_fail("%d position buckets up to distance %d ---> on a GPU 4 to %d buckets, up to %d",
                         num_buckets, max_distance, T5_MAX_BUCKETS, ATTENTION_MAX_DISTANCE);
    }
    for (int both = 0; both < 2; both++) {  // of a decoder, of an encoder
        const T5Buckets bias = t5_buckets(num_buckets, max_distance, both);
        const int needed = attention_dq_bytes(head_size, &bias), most = (int)shared_bytes_of_a_block();
        if (needed > most) {
            return llmc_fail(
                "head size %d with position biases up to distance %d: %d bytes of shared memory, "
                "this card's blocks have %d ---> a card of 8.0, 9.0 or 10.0, or train on the CPU",
                head_size, max_distance, needed, most);
        }
    }
    return true;
}

static void check(const Attention& about) {
    const int vector = 16 / (int)sizeof(floatX);
    if (!attention_check(about.head_size, about.bias != NULL ? about.num_buckets : 0, about.max_distance)) {
        fprintf(stderr, "attention: %s\n", status_message());
        exit(EXIT_FAILURE);
    }
    if (about.q_stride % vector != 0 || about.kv_stride % vector != 0 || about.kept.stride % vector != 0) {
        fprintf(stderr, "attention: rows %d, %d and %d values apart ---> multiples of 16 bytes\n",
                about.q_stride, about.kv_stride, about.kept.stride);
        exit(EXIT_FAILURE);
    }
    if (about.dropout > 0.0f && about.num_q_tokens > 0 && (about.q_keys == NULL || about.k_keys == NULL)) {
        fprintf(stderr, "attention: dropout without the tokens' keys ---> set q_keys and k_keys\n");
        exit(EXIT_FAILURE);
    }
}

static AttentionCall call_of(const Attention* about) {
    check(*about);
    AttentionCall call = {};
    call.about = *about;
    call.drop_below = dropout_threshold(about->dropout);
    call.keep_scale = 1.0f / (1.0f - about->dropout);
    if (about->bias != NULL) {
        call.buckets = t5_buckets(about->num_buckets, about->max_distance, about->bias_bidirectional);
    }
    return call;
}

// The calls that one is: a piece's, whose keys are the kept ones, and that of the other sequences.
static int split_call(AttentionCall out[2], const AttentionCall* call) {
    const AttentionKept& kept = call->about.kept;
    const size_t missing = (size_t)kept.own_begin * (size_t)call->about.kv_stride;
    out[0] = out[1] = *call;
    if (kept.k == NULL) { return 1; }
    Attention &piece = out[0].about, &others = out[1].about;
    piece.num_seqs = 1;
    piece.k = kept.k, piece.v = kept.v, piece.kv_stride = kept.stride;
    out[1].first_seq = 1;
    others.k -= missing, others.v -= missing, others.kept = {};
    for (int i = 0; i < 2 && call->dk != NULL; i++) { out[i].dk -= missing, out[i].dv -= missing; }
    return others.num_seqs > 1 ? 2 : 1;
}

// 8 lanes for each row of a head, 16 bytes a lane and turn.
__global__ static void delta_kernel(float* delta, const floatX* dout, const floatX* out, int num_rows, int NH,
                                    int HS) {
    constexpr int VECTOR = 16 / (int)sizeof(floatX);
    const unsigned row_head = blockIdx.x * (blockDim.x / 8) + threadIdx.x / 8;
    const bool there = row_head < (unsigned)num_rows * (unsigned)NH;
    float sum = 0.0f;
    for (int c = (int)threadIdx.x % 8 * VECTOR; there && c < HS; c += 8 * VECTOR) {
        alignas(16) floatX a[VECTOR], b[VECTOR];
        *reinterpret_cast<uint4*>(a) =
            *reinterpret_cast<const uint4*>(dout + (size_t)row_head * (size_t)HS + c);
        *reinterpret_cast<uint4*>(b) =
            *reinterpret_cast<const uint4*>(out + (size_t)row_head * (size_t)HS + c);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) { sum += (float)a[i] * (float)b[i]; }
    }
    for (int step = 4; step > 0; step /= 2) { sum += __shfl_xor_sync(0xffffffffu, sum, step); }
    if (there && threadIdx.x % 8 == 0) {
        delta[(size_t)(row_head % (unsigned)NH) * (size_t)num_rows + row_head / (unsigned)NH] = sum;
    }
}

enum { SUM_LANES = 8 };  // threads per bucket

// dbias[bucket][head] += the partials (num_tiles, NH, num_buckets) of a head. One block a head.
__global__ static void dbias_kernel(float* dbias, const float* partials, int num_tiles, int NH,
                                    int num_buckets) {
    __shared__ float sums[SUM_LANES][T5_MAX_BUCKETS];
    const int h = (int)blockIdx.x, b = (int)threadIdx.x % num_buckets, part = (int)threadIdx.x / num_buckets;
    float sum = 0.0f;
    for (int tile = part; tile < num_tiles; tile += SUM_LANES) {
        sum += partials[((size_t)tile * (size_t)NH + (size_t)h) * (size_t)num_buckets + (size_t)b];
    }
    sums[part][b] = sum;
    __syncthreads();
    if (part > 0) { return; }
    for (int i = 1; i < SUM_LANES; i++) { sum += sums[i][b]; }
    dbias[b * NH + h] += sum;
}

// dk, dv = 0 of what is behind the k_lens[i] keys of each sequence. A warp per row; width: values of all
// heads.
__global__ static void zero_padding_kernel(floatX* dk, floatX* dv, Attention about, int width) {
    constexpr int VECTOR = 16 / (int)sizeof(floatX);
    const int t = (int)(blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (t >= about.num_k_tokens) { return; }
    int seq = 0, num_left = about.num_seqs;  // the last one that begins at t or before
    while (num_left > 1) {
        const int half = num_left / 2;
        const bool before = about.cu_k[seq + half] <= t;
        seq += before ? half : 0;
        num_left = before ? num_left - half : half;
    }
    if (t < about.cu_k[seq] + about.k_lens[seq]) { return; }
    const size_t row = (size_t)t * (size_t)about.kv_stride;
    for (int c = (int)threadIdx.x % 32 * VECTOR; c < width; c += 32 * VECTOR) {
        *reinterpret_cast<uint4*>(dk + row + c) = make_uint4(0, 0, 0, 0);
        *reinterpret_cast<uint4*>(dv + row + c) = make_uint4(0, 0, 0, 0);
    }
}

void attention_forward(floatX* out, float* lse, const Attention* about, OpsContext* ops) {
    AttentionCall call = call_of(about);
    call.out = out, call.lse = lse;
    if (about->q_starts != NULL && about->num_q_tokens <= about->num_seqs && call.drop_below == 0) {
        attention_launch_decode(&call, ops);
    } else {
        AttentionCall calls[2];
        const int num = split_call(calls, &call);
        for (int i = 0; i < num; i++) { attention_launch_forward(&calls[i], ops); }
    }
}

static size_t delta_floats(const Attention* about) {
    return ((size_t)about->num_heads * (size_t)about->num_q_tokens + 63) / 64 * 64;
}

size_t attention_scratch_bytes(const Attention* about, const OpsContext* ops) {
    (void)ops;
    size_t num_floats = delta_floats(about);
    if (about->bias != NULL) {
        num_floats += (size_t)attention_num_tiles(about->num_q_tokens, about->num_seqs, ATTENTION_DQ_ROWS) *
                      (size_t)about->num_heads * (size_t)about->num_buckets;
    }
    return num_floats * sizeof(float);
}

void attention_backward(floatX* dq, floatX* dk, floatX* dv, float* dbias, void* scratch, const floatX* dout,
                        const floatX* out, const float* lse, const Attention* about, OpsContext* ops) {
    AttentionCall call = call_of(about);
    if (about->q_starts != NULL) {
        fprintf(stderr, "attention: q_starts in backward ---> only forward knows queries behind a cache\n");
        exit(EXIT_FAILURE);
    }
    const int NH = about->num_heads;
    float* delta = (float*)scratch;
    call.out = (floatX*)out, call.lse = (float*)lse, call.dout = dout, call.delta = delta;
    call.dq = dq, call.dk = dk, call.dv = dv, call.dkv_stride = about->kv_stride;
    if (about->bias != NULL && dbias != NULL) { call.dbias_partials = delta + delta_floats(about); }
    const size_t num_lanes = (size_t)about->num_q_tokens * (size_t)NH * 8;
    if (num_lanes > 0) {
        delta_kernel<<<(unsigned)((num_lanes + 127) / 128), 128, 0, ops->stream>>>(
            delta, dout, out, about->num_q_tokens, NH, about->head_size);
        CHECK_LAUNCH();
    }
    AttentionCall calls[2];
    const int num_calls = split_call(calls, &call);
    for (int i = 0; i < num_calls; i++) { attention_launch_dkv(&calls[i], ops); }
    if (about->k_lens != NULL && about->num_k_tokens > 0) {
        zero_padding_kernel<<<(unsigned)((about->num_k_tokens + 3) / 4), 128, 0, ops->stream>>>(
            dk, dv, *about, NH * about->head_size);
        CHECK_LAUNCH();
    }
    for (int i = 0; i < num_calls; i++) {
        const int dq_rows = attention_launch_dq(&calls[i], ops);
        if (call.dbias_partials == NULL) { continue; }
        const int num_tiles = (int)attention_num_tiles(about->num_q_tokens, calls[i].about.num_seqs, dq_rows);
        dbias_kernel<<<(unsigned)NH, (unsigned)(about->num_buckets * SUM_LANES), 0, ops->stream>>>(
            dbias, call.dbias_partials, num_tiles, NH, about->num_buckets);
        CHECK_LAUNCH();
    }
}
