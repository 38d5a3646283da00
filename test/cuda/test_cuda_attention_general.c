// Laws of attention_* on a GPU: equal to the CPU's for causal, bidirectional and cross attention,
// lengths that differ from side to side, with T5's position bias and its gradient, with dropout, padding,
// queries behind a cache of keys, and sequences that have no queries or keys; a batch is its sequences one by
// one, bit for bit, and the same call gives the same bits. Tolerances: attention_close.h. Whatever is padding
// is NaN here.
#include "attention_close.h"

enum {
    CAUSAL = 1,
    CROSS = 2,
    BIAS = 4,
    BIDIRECTIONAL = 8,
    DROPOUT = 16,
    PADDED = 32,
    CACHE = 64,
    MAX_SEQS = 16
};

typedef struct {
    int kind, num_seqs, NH, HS, num_k_tokens;  // 0: cu_k ends there
    int32_t cu_q[MAX_SEQS + 1], cu_k[MAX_SEQS + 1], k_lens[MAX_SEQS], q_starts[MAX_SEQS];
} Shape;

typedef struct {
    Pair q, kv, bias, dout, cu_q, cu_k, k_lens, q_starts, q_keys, k_keys, out, lse, dq, dkv, dbias;
} Arrays;

static size_t num_keys_of(const Shape* s) {
    return (size_t)(s->num_k_tokens > 0 ? s->num_k_tokens : s->cu_k[s->num_seqs]);
}

// Keys and values of tokens that are no key become NaN.
static void spoil_padding(const Shape* s, Pair kv) {
    const size_t width = 2 * (size_t)(s->NH * s->HS);
    bool is_key[4096] = {false};
    for (int i = 0; i < s->num_seqs; i++) {
        for (int j = 0; j < s->k_lens[i]; j++) { is_key[s->cu_k[i] + j] = true; }
    }
    for (size_t i = 0; i < kv.num_values; i++) { kv.host[i] = is_key[i / width] ? kv.host[i] : NAN; }
    pair_to_device(kv);
}

static Pair random_keys(size_t num_tokens) {
    Pair keys = pair_floats(num_tokens, 0);
    for (size_t i = 0; i < num_tokens; i++) { keys.host_ints[i] = (int32_t)rng_u64(&cuda_test_rng); }
    pair_to_device(keys);
    return keys;
}

static Arrays arrays_of(const Shape* s) {
    const size_t C = (size_t)(s->NH * s->HS), Tq = (size_t)s->cu_q[s->num_seqs], Tk = num_keys_of(s);
    Arrays a = {.q = pair_random(Tq * C, 1.0),
                .kv = pair_random(Tk * 2 * C, 1.0),
                .bias = pair_random_floats((size_t)(32 * s->NH), 1.0),
                .dout = pair_random(Tq * C, 1.0),
                .cu_q = pair_ints(s->cu_q, (size_t)s->num_seqs + 1),
                .cu_k = pair_ints(s->cu_k, (size_t)s->num_seqs + 1),
                .k_lens = pair_ints(s->k_lens, (size_t)s->num_seqs),
                .q_starts = pair_ints(s->q_starts, (size_t)s->num_seqs),
                .q_keys = random_keys(Tq),
                .out = pair_filled(Tq * C, NAN),
                .lse = pair_floats(Tq * (size_t)s->NH, NAN),
                .dq = pair_filled(Tq * C, NAN),
                .dkv = pair_filled(Tk * 2 * C, NAN),
                .dbias = pair_floats((size_t)(32 * s->NH), 0.5f)};  // += is to be seen
    a.k_keys = s->kind & CROSS ? random_keys(Tk) : a.q_keys;
    if (s->kind & (PADDED | CACHE)) { spoil_padding(s, a.kv); }
    return a;
}

static Attention about_of(const Shape* s) {
    const int C = s->NH * s->HS;
    return (Attention){.q_stride = C,
                       .kv_stride = 2 * C,
                       .num_seqs = s->num_seqs,
                       .num_q_tokens = s->cu_q[s->num_seqs],
                       .num_k_tokens = (int)num_keys_of(s),
                       .num_heads = s->NH,
                       .head_size = s->HS,
                       .causal = s->kind & CAUSAL,
                       .scale = 1.0f / sqrtf((float)s->HS),
                       .num_buckets = 32,
                       .max_distance = s->kind & CROSS ? 128 : 40,
                       .bias_bidirectional = s->kind & BIDIRECTIONAL,
                       .dropout = s->kind & DROPOUT ? 0.3f : 0.0f,
                       .dropout_place = 7};
}

static void device_run(const Shape* s, const Arrays* a, bool forward, bool backward) {
    const int C = s->NH * s->HS;
    Attention about = about_of(s);
    about.q = pair_x(a->q), about.k = pair_x(a->kv), about.v = pair_x(a->kv) + C;
    about.cu_q = pair_i(a->cu_q), about.cu_k = s->kind & CROSS ? pair_i(a->cu_k) : about.cu_q;
    about.bias = s->kind & BIAS ? pair_f(a->bias) : NULL;
    about.k_lens = s->kind & (PADDED | CACHE) ? pair_i(a->k_lens) : NULL;
    about.q_starts = s->kind & CACHE ? pair_i(a->q_starts) : NULL;
    about.q_keys = (const uint32_t*)a->q_keys.device, about.k_keys = (const uint32_t*)a->k_keys.device;
    if (forward) { attention_forward(pair_x(a->out), pair_f(a->lse), &about, cuda_test_ops); }
    if (!backward) { return; }
    Pair scratch = pair_floats(attention_scratch_bytes(&about, cuda_test_ops) / sizeof(float), NAN);
    attention_backward(pair_x(a->dq), pair_x(a->dkv), pair_x(a->dkv) + C, pair_f(a->dbias),
                               pair_f(scratch), pair_x(a->dout), pair_x(a->out), pair_f(a->lse), &about,
                               cuda_test_ops);
}

// floatX is float there: cpu_ops.h
static void cpu_run(const Shape* s, const Arrays* a, bool backward) {
    const int C = s->NH * s->HS;
    Attention about = about_of(s);
    about.q = (const void*)a->q.host, about.k = (const void*)a->kv.host,
    about.v = (const void*)(a->kv.host + C);
    about.cu_q = s->cu_q, about.cu_k = s->kind & CROSS ? s->cu_k : s->cu_q;
    about.bias = s->kind & BIAS ? a->bias.host : NULL;
    about.k_lens = s->kind & (PADDED | CACHE) ? s->k_lens : NULL;
    about.q_starts = s->kind & CACHE ? s->q_starts : NULL;
    about.q_keys = (const uint32_t*)a->q_keys.host, about.k_keys = (const uint32_t*)a->k_keys.host;
    if (!backward) {
        cpu_attention_forward(a->out.host, a->lse.host, &about);
        return;
    }
    void* scratch = calloc(1, cpu_attention_scratch_bytes(&about) + 4);
    cpu_attention_backward(a->dq.host, a->dkv.host, a->dkv.host + C, a->dbias.host, scratch,
                                   a->dout.host, a->out.host, a->lse.host, &about);
    free(scratch);
}

static Shape shape_of(int kind, int num_seqs, int max_len, int NH, int HS) {
    Shape s = {.kind = kind, .num_seqs = num_seqs, .NH = NH, .HS = HS};
    ragged_random(s.cu_q, num_seqs, max_len);
    memcpy(s.cu_k, s.cu_q, sizeof s.cu_k);
    if (kind & CROSS) { ragged_random(s.cu_k, num_seqs, max_len); }
    for (int i = 0; i < num_seqs; i++) {
        const int len = s.cu_k[i + 1] - s.cu_k[i];
        s.k_lens[i] = rng_below(&cuda_test_rng, 3) == 0 ? len : rng_between(&cuda_test_rng, 0, len);
    }
    return s;
}

static void check(const Shape* s) {
    const Arrays a = arrays_of(s);
    device_run(s, &a, true, false);
    cpu_run(s, &a, false);
    CHECK_ATTENTION(a.out, 1.0);
    CHECK(lse_close(a.lse));
    pair_to_device(a.out);  // backward of both sides with the same out, lse
    pair_to_device(a.lse);
    device_run(s, &a, false, true);
    cpu_run(s, &a, true);
    CHECK_ATTENTION(a.dq, 1.0);
    CHECK_ATTENTION(a.dkv, 1.0);
    if (s->kind & BIAS) { CHECK_PAIR(a.dbias, 4e-5); }  // ds is not rounded on its way there
    pair_release();
}

static void every_kind_equals_the_cpus(void) {
    static const int kinds[] = {
        0, CROSS, CAUSAL, BIAS | BIDIRECTIONAL, BIAS | CAUSAL, BIAS | CROSS | BIDIRECTIONAL};
    static const int HSs[] = {64, 32, 128, 64, 96, 64, 40, 256};
    for (int i = 0; i < 12; i++) {
        const Shape s = shape_of(kinds[i % 6], 1 + i % 4, HSs[i % 8] > 64 ? 40 : 140, 1 + i % 2, HSs[i % 8]);
        check(&s);
    }
}

// Of the encoder (its own bias, padding), the decoder (causal) and between them.
static void dropout_and_padding_equal_the_cpus(void) {
    static const int kinds[] = {DROPOUT,
                                PADDED | CAUSAL,
                                DROPOUT | CROSS | PADDED,
                                DROPOUT | BIAS | BIDIRECTIONAL | PADDED,
                                DROPOUT | BIAS | CAUSAL,
                                PADDED | BIAS | CROSS | BIDIRECTIONAL,
                                DROPOUT | CAUSAL | CROSS};
    static const int HSs[] = {64, 64, 32, 64, 128, 40, 64, 256};
    for (int i = 0; i < 14; i++) {
        const Shape s = shape_of(kinds[i % 7], 1 + i % 4, HSs[i % 8] > 64 ? 40 : 140, 1 + i % 2, HSs[i % 8]);
        check(&s);
    }
}

// Sequences without queries, without keys, with keys that are all padding; out, lse and gradients are 0
// there.
static void empty_sequences_are_zeros(void) {
    static const int kinds[] = {CROSS, CROSS | PADDED | BIAS | BIDIRECTIONAL, CROSS | PADDED | DROPOUT,
                                CROSS | CAUSAL};
    for (int i = 0; i < 4; i++) {
        const Shape s = {.kind = kinds[i],
                         .num_seqs = 7,
                         .NH = 2,
                         .HS = 64,
                         .cu_q = {0, 0, 1, 20, 20, 90, 95, 95},
                         .cu_k = {0, 3, 3, 3, 3, 70, 135, 135},
                         .k_lens = {3, 0, 0, 0, 66, 0, 0}};
        check(&s);
    }
    const Shape none = {.kind = PADDED | CROSS, .num_seqs = 2, .NH = 1, .HS = 32};
    check(&none);
}

// A cache: room for the keys of each sequence anywhere, the end of cu_k is not there to be read.
static void queries_behind_a_cache_equal_the_cpus(void) {
    static const int kinds[] = {CAUSAL, CAUSAL | BIAS, BIAS | BIDIRECTIONAL, CAUSAL | DROPOUT | BIAS, 0};
    static const int HSs[] = {64, 64, 32, 128, 40};
    for (int i = 0; i < 10; i++) {
        const int num_seqs = 1 + i % 5, room = HSs[i % 5] > 64 ? 70 : 150;
        Shape s = {.kind = kinds[i % 5] | CACHE | CROSS,
                   .num_seqs = num_seqs,
                   .NH = 2,
                   .HS = HSs[i % 5],
                   .num_k_tokens = num_seqs * room};
        for (int k = 0; k < num_seqs; k++) {
            const int num_q = i < 5 || k % 2 == 0 ? 1 : rng_between(&cuda_test_rng, 0, room / 2);
            s.cu_q[k + 1] = s.cu_q[k] + num_q;
            s.cu_k[k] = (num_seqs - 1 - k) * room;
            s.q_starts[k] = rng_between(&cuda_test_rng, 0, room - num_q);
            s.k_lens[k] = s.q_starts[k] + num_q;
        }
        s.cu_k[num_seqs] = -1;
        const Arrays a = arrays_of(&s);
        device_run(&s, &a, true, false);
        cpu_run(&s, &a, false);
        CHECK_ATTENTION(a.out, 1.0);
        CHECK(lse_close(a.lse));
        pair_release();
    }
}

static void long_distances_share_a_bucket(void) {
    const Shape s = {.kind = BIAS | BIDIRECTIONAL | CROSS,
                     .num_seqs = 2,
                     .NH = 1,
                     .HS = 32,
                     .cu_q = {0, 300, 301},
                     .cu_k = {0, 20, 320}};
    check(&s);
}

// The softmax does not see a constant, but 2 to its power is infinite: nothing may multiply it with the zeros
// behind a sequence's end.
static void a_huge_bias_stays_out_of_padding(void) {
    const Shape s = {.kind = BIAS | BIDIRECTIONAL,
                     .num_seqs = 3,
                     .NH = 1,
                     .HS = 64,
                     .cu_q = {0, 1, 71, 74},
                     .cu_k = {0, 1, 71, 74}};
    const Arrays a = arrays_of(&s);
    for (size_t i = 0; i < a.bias.num_values; i++) { a.bias.host[i] += 100.0f; }
    pair_to_device(a.bias);
    device_run(&s, &a, true, true);
    cpu_run(&s, &a, false);
    CHECK_ATTENTION(a.out, 1.0);
    cpu_run(&s, &a, true);
    CHECK_ATTENTION(a.dq, 1.0);
    CHECK_ATTENTION(a.dkv, 1.0);
    pair_release();
}

static void check_rows(Pair all, Pair one, size_t begin) {
    const float *a = pair_download(all), *b = pair_download(one);
    CHECK(memcmp(a + begin, b, one.num_values * sizeof(float)) == 0);
}

static void a_batch_is_its_sequences_one_by_one(void) {
    const Shape s = {.kind = BIAS | CROSS | BIDIRECTIONAL | PADDED | DROPOUT,
                     .num_seqs = 3,
                     .NH = 2,
                     .HS = 64,
                     .cu_q = {0, 1, 71, 100},
                     .cu_k = {0, 65, 80, 145},
                     .k_lens = {64, 15, 3}};
    const size_t C = 128;
    const Arrays all = arrays_of(&s);
    device_run(&s, &all, true, true);
    for (int i = 0; i < s.num_seqs; i++) {
        Shape one = {.kind = s.kind, .num_seqs = 1, .NH = s.NH, .HS = s.HS};
        const size_t q0 = (size_t)s.cu_q[i], k0 = (size_t)s.cu_k[i];
        one.cu_q[1] = s.cu_q[i + 1] - s.cu_q[i], one.cu_k[1] = s.cu_k[i + 1] - s.cu_k[i];
        one.k_lens[0] = s.k_lens[i];
        const Arrays alone = arrays_of(&one);
        memcpy(alone.q.host, all.q.host + C * q0, alone.q.num_values * sizeof(float));
        memcpy(alone.dout.host, all.dout.host + C * q0, alone.dout.num_values * sizeof(float));
        memcpy(alone.kv.host, all.kv.host + 2 * C * k0, alone.kv.num_values * sizeof(float));
        memcpy(alone.bias.host, all.bias.host, alone.bias.num_values * sizeof(float));
        memcpy(alone.q_keys.host, all.q_keys.host + q0, alone.q_keys.num_values * sizeof(float));
        memcpy(alone.k_keys.host, all.k_keys.host + k0, alone.k_keys.num_values * sizeof(float));
        pair_to_device(alone.q_keys);
        pair_to_device(alone.k_keys);
        pair_to_device(alone.q);
        pair_to_device(alone.dout);
        pair_to_device(alone.kv);
        pair_to_device(alone.bias);
        device_run(&one, &alone, true, true);
        check_rows(all.out, alone.out, C * q0);
        check_rows(all.dq, alone.dq, C * q0);
        check_rows(all.dkv, alone.dkv, 2 * C * k0);
    }
    pair_release();
}

static void the_same_call_gives_the_same_bits(void) {
    const Shape s = shape_of(BIAS | BIDIRECTIONAL | DROPOUT, 3, 90, 2, 64);
    const Arrays a = arrays_of(&s);
    Arrays b = a;
    b.dq = pair_filled(a.dq.num_values, NAN), b.dkv = pair_filled(a.dkv.num_values, NAN);
    b.dbias = pair_floats(a.dbias.num_values, 0.5f);
    device_run(&s, &a, true, true);
    device_run(&s, &b, true, true);
    check_rows(a.dq, b.dq, 0);
    check_rows(a.dkv, b.dkv, 0);
    check_rows(a.dbias, b.dbias, 0);
    pair_release();
}

int main(int argc, char** argv) {
    cuda_test_begin(argc, argv);
    RUN(every_kind_equals_the_cpus);
    RUN(dropout_and_padding_equal_the_cpus);
    RUN(empty_sequences_are_zeros);
    RUN(queries_behind_a_cache_equal_the_cpus);
    RUN(long_distances_share_a_bucket);
    RUN(a_huge_bias_stays_out_of_padding);
    RUN(a_batch_is_its_sequences_one_by_one);
    RUN(the_same_call_gives_the_same_bits);
    cuda_test_end();
    return test_end();
}
