// Laws of attention_forward and attention_backward on a GPU: equal to the CPU's on ragged batches of every
// head size and at every edge of a tile; a batch is its sequences one by one, bit for bit, and the same call
// gives the same bits; huge scores stay finite.
//
// Tolerances: attention_close.h.
#include "attention_close.h"

enum { MAX_SEQS = 32 };

typedef struct {
    int num_seqs, T, NH, HS;
    int32_t cu_seqlens[MAX_SEQS + 1];
} Ragged;

typedef struct {
    Pair qkv, dout, cu, out, lse, dqkv;
} Arrays;

static Ragged ragged_of(const int* lengths, int num_seqs, int NH, int HS) {
    Ragged r = {.num_seqs = num_seqs, .NH = NH, .HS = HS};
    for (int i = 0; i < num_seqs; i++) { r.cu_seqlens[i + 1] = r.T += lengths[i]; }
    return r;
}

static Arrays arrays_of(const Ragged* r, double deviation) {
    const size_t T = (size_t)r->T, C = (size_t)(r->NH * r->HS);
    return (Arrays){.qkv = pair_random(3 * T * C, deviation),
                    .dout = pair_random(T * C, 1.0),
                    .cu = pair_ints(r->cu_seqlens, (size_t)r->num_seqs + 1),
                    .out = pair_filled(T * C, NAN),
                    .lse = pair_floats(T * (size_t)r->NH, NAN),
                    .dqkv = pair_filled(3 * T * C, NAN)};
}

// Causal, of packed q, k and v of so many bytes a value: the CPU's operations take floats in any build.
static Attention causal(const Ragged* r, const void* qkv, size_t value_bytes, const int32_t* cu) {
    const int C = r->NH * r->HS;
    const char* q = (const char*)qkv;
    return (Attention){.q = (const floatX*)(const void*)q,
                       .k = (const floatX*)(const void*)(q + (size_t)C * value_bytes),
                       .v = (const floatX*)(const void*)(q + 2 * (size_t)C * value_bytes),
                       .q_stride = 3 * C,
                       .kv_stride = 3 * C,
                       .cu_q = cu,
                       .cu_k = cu,
                       .num_seqs = r->num_seqs,
                       .num_q_tokens = r->T,
                       .num_k_tokens = r->T,
                       .num_heads = r->NH,
                       .head_size = r->HS,
                       .causal = 1,
                       .scale = 1.0f / sqrtf((float)r->HS)};
}

static void device_forward(const Ragged* r, const Arrays* a) {
    const Attention about = causal(r, pair_x(a->qkv), sizeof(floatX), pair_i(a->cu));
    attention_forward(pair_x(a->out), pair_f(a->lse), &about, cuda_test_ops);
}

static void device_backward(const Ragged* r, const Arrays* a) {
    const int C = r->NH * r->HS;
    const Attention about = causal(r, pair_x(a->qkv), sizeof(floatX), pair_i(a->cu));
    floatX* dqkv = pair_x(a->dqkv);
    Pair scratch = pair_floats(attention_scratch_bytes(&about, cuda_test_ops) / sizeof(float), NAN);
    attention_backward(dqkv, dqkv + C, dqkv + 2 * C, NULL, pair_f(scratch), pair_x(a->dout), pair_x(a->out),
                       pair_f(a->lse), &about, cuda_test_ops);
}

static void check(const Ragged* r, double deviation) {
    const int C = r->NH * r->HS;
    const Arrays a = arrays_of(r, deviation);
    device_forward(r, &a);
    const Attention about = causal(r, a.qkv.host, sizeof(float), r->cu_seqlens);
    cpu_attention_forward(a.out.host, a.lse.host, &about);
    CHECK_ATTENTION(a.out, deviation);
    CHECK_PAIR(a.lse, 1e-5);  // scores are float32 sums in both
    pair_to_device(a.out);    // backward of both sides with the same out, lse
    pair_to_device(a.lse);
    device_backward(r, &a);
    void* scratch = calloc(1, cpu_attention_scratch_bytes(&about));
    cpu_attention_backward(a.dqkv.host, a.dqkv.host + C, a.dqkv.host + 2 * C, NULL, scratch, a.dout.host,
                           a.out.host, a.lse.host, &about);
    free(scratch);
    CHECK_ATTENTION(a.dqkv, deviation);
    pair_release();
}

static void ragged_batches_equal_the_cpus(void) {
    static const int HSs[] = {32, 40, 64, 80, 96, 128, 160, 256, 8};
    for (int i = 0; i < 9; i++) {
        Ragged r = {.num_seqs = rng_between(&cuda_test_rng, 1, 6), .NH = 1 + i % 3, .HS = HSs[i]};
        r.T = ragged_random(r.cu_seqlens, r.num_seqs, i % 3 == 0 ? 20 : HSs[i] > 64 ? 60 : 150);
        check(&r, 1.0);
    }
}

static void edges_of_tiles_equal_the_cpus(void) {
    static const int lengths[] = {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129};
    Ragged r = ragged_of(lengths, 14, 1, 64);
    check(&r, 1.0);
    // the other sizes that kernels are compiled for, and one between
    static const int HSs[] = {32, 96, 128, 192, 232, 256};
    for (int i = 0; i < 6; i++) {
        r = ragged_of((int[]){1, 65, 1, 33, 16, 64, 15}, 7, 1, HSs[i]);
        check(&r, 1.0);
    }
}

static void many_short_sequences_equal_the_cpus(void) {
    int lengths[MAX_SEQS];
    for (int i = 0; i < MAX_SEQS; i++) { lengths[i] = 1 + i % 3; }
    Ragged r = ragged_of(lengths, MAX_SEQS, 2, 32);
    check(&r, 1.0);
}

static void huge_scores_stay_finite(void) {
    Ragged r = ragged_of((int[]){1, 70, 130}, 3, 1, 64);
    check(&r, 12.0);  // scores up to some 700: exp of them would overflow
}

static void check_rows(Pair all, Pair one, size_t begin) {
    const float *a = pair_download(all), *b = pair_download(one);
    CHECK(memcmp(a + begin, b, one.num_values * sizeof(float)) == 0);
}

static void a_batch_is_its_sequences_one_by_one(void) {
    for (int k = 0; k < 2; k++) {
        Ragged r = ragged_of((int[]){70, 1, 129, 16}, 4, 2, k ? 96 : 64);
        const size_t C = (size_t)(r.NH * r.HS);
        const Arrays all = arrays_of(&r, 1.0);
        device_forward(&r, &all);
        device_backward(&r, &all);
        for (int i = 0; i < r.num_seqs; i++) {
            const int len = r.cu_seqlens[i + 1] - r.cu_seqlens[i];
            const size_t begin = (size_t)r.cu_seqlens[i];
            Ragged one = ragged_of(&len, 1, r.NH, r.HS);
            const Arrays alone = arrays_of(&one, 1.0);
            memcpy(alone.qkv.host, all.qkv.host + 3 * C * begin, alone.qkv.num_values * sizeof(float));
            memcpy(alone.dout.host, all.dout.host + C * begin, alone.dout.num_values * sizeof(float));
            pair_to_device(alone.qkv);
            pair_to_device(alone.dout);
            device_forward(&one, &alone);
            device_backward(&one, &alone);
            check_rows(all.out, alone.out, C * begin);
            check_rows(all.dqkv, alone.dqkv, 3 * C * begin);
        }
        pair_release();
    }
}

static void the_same_call_gives_the_same_bits(void) {
    Ragged r = ragged_of((int[]){90, 40}, 2, 2, 64);
    const Arrays a = arrays_of(&r, 1.0);
    Arrays b = a;
    b.out = pair_filled(a.out.num_values, NAN), b.lse = pair_floats(a.lse.num_values, NAN);
    b.dqkv = pair_filled(a.dqkv.num_values, NAN);
    device_forward(&r, &a);
    device_backward(&r, &a);
    device_forward(&r, &b);
    device_backward(&r, &b);
    check_rows(a.out, b.out, 0);
    check_rows(a.lse, b.lse, 0);
    check_rows(a.dqkv, b.dqkv, 0);
    pair_release();
}

int main(int argc, char** argv) {
    cuda_test_begin(argc, argv);
    RUN(ragged_batches_equal_the_cpus);
    RUN(edges_of_tiles_equal_the_cpus);
    RUN(many_short_sequences_equal_the_cpus);
    RUN(huge_scores_stay_finite);
    RUN(a_batch_is_its_sequences_one_by_one);
    RUN(the_same_call_gives_the_same_bits);
    cuda_test_end();
    return test_end();
}
