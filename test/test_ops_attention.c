// Laws of attention_*: equal to a double-precision reference for causal, bidirectional and cross
// attention, with and without T5's position bias, padding behind the keys, dropout and sides of no tokens,
// whose analytic gradients are derivatives; a batch is its sequences one by one; queries behind a cache are
// rows of the whole; threads change no bit; buckets are Hugging Face's.
#include "../llmc/dropout_bits.h"
#include "../llmc/t5_bucket.h"
#include "ops_test.h"

typedef struct {
    double *q, *k, *v, *bias, *dout;           // inputs
    double *out, *lse, *dq, *dk, *dv, *dbias;  // results
} Reference;

typedef struct {
    float *q, *k, *v, *bias, *dout, *out, *lse, *dq, *dk, *dv, *dbias;
} Arrays;

static OpsContext* ops;
static int32_t cu_q[16], cu_k[16], k_lens[16];

// Of transformers' T5Attention._relative_position_bucket, in float32 as there.
static int hugging_face_bucket(int distance, int num_buckets, int max_distance, bool bidirectional) {
    int bucket = 0, away = distance > 0 ? 0 : -distance;
    if (bidirectional) {
        num_buckets /= 2;
        bucket = distance > 0 ? num_buckets : 0;
        away = abs(distance);
    }
    const int max_exact = num_buckets / 2;
    if (away < max_exact) { return bucket + away; }
    const float place = logf((float)away / (float)max_exact) / (float)log((double)max_distance / max_exact) *
                        (float)(num_buckets - max_exact);
    const int large = max_exact + (int)place;
    return bucket + (large < num_buckets - 1 ? large : num_buckets - 1);
}

static void buckets_are_hugging_faces(void) {
    static const int shapes[][2] = {{32, 128}, {32, 64}, {16, 128}, {64, 512}};
    for (int i = 0; i < 8; i++) {
        const int num_buckets = shapes[i / 2][0], max_distance = shapes[i / 2][1];
        const T5Buckets t = t5_buckets(num_buckets, max_distance, i % 2);
        int last = -1;
        for (int d = -2 * max_distance; d <= 2 * max_distance; d++) {
            CHECK_EQ(t5_bucket(&t, d), hugging_face_bucket(d, num_buckets, max_distance, i % 2));
            last = t5_bucket(&t, d);
        }
        CHECK_EQ(last, i % 2 ? num_buckets - 1 : 0);
        CHECK(t.last_begin <= max_distance);
    }
}

static double* doubles_of(const float* from, size_t n) {
    double* p = ops_test_zero_doubles(n);
    for (size_t i = 0; i < n; i++) { p[i] = from[i]; }
    return p;
}

static size_t num_values(const Attention* a, bool keys) {
    return keys ? (size_t)a->num_k_tokens * (size_t)a->kv_stride
                : (size_t)a->num_q_tokens * (size_t)a->q_stride;
}

static int num_keys_of(const Attention* a, int seq) {
    return a->k_lens != NULL ? a->k_lens[seq] : cu_k[seq + 1] - cu_k[seq];
}

// 0 or 1 / (1 - p): what the probability of a query's row and a key's row is multiplied with.
static double mask_of(const Attention* a, int q_row, int k_row, int h) {
    if (a->dropout == 0.0f) { return 1.0; }
    const uint32_t row = dropout_head_row(a->q_keys[q_row], a->dropout_place, (uint32_t)h);
    const bool falls = dropout_bits(row, a->k_keys[k_row]) < (double)a->dropout * 4294967296.0;
    return falls ? 0.0 : 1.0 / (1.0 - (double)a->dropout);
}

// One query: its row of probabilities, what it attends to, and with `backward` all gradients it contributes.
static void reference_query(Reference* r, double* p, const Attention* a, int seq, int h, int i,
                            bool backward) {
    const T5Buckets t = t5_buckets(a->num_buckets, a->max_distance, a->bias_bidirectional);
    const int HS = a->head_size, NH = a->num_heads, row = cu_q[seq] + i, num_k = num_keys_of(a, seq);
    const int num_keys = a->causal && i + 1 < num_k ? i + 1 : num_k;
    const size_t at_q = (size_t)(row * a->q_stride + h * HS), at_out = (size_t)((row * NH + h) * HS);
    double max = -(double)INFINITY, sum = 0.0, delta = 0.0;
    for (int j = 0; j < num_keys; j++) {
        const size_t at_k = (size_t)((cu_k[seq] + j) * a->kv_stride + h * HS);
        p[j] = a->bias != NULL ? r->bias[t5_bucket(&t, j - i) * NH + h] : 0.0;
        for (int c = 0; c < HS; c++) { p[j] += (double)a->scale * r->q[at_q + c] * r->k[at_k + c]; }
        max = fmax(max, p[j]);
    }
    for (int j = 0; j < num_keys; j++) { sum += p[j] = exp(p[j] - max); }
    for (int c = 0; c < HS && !backward; c++) {
        r->out[at_out + c] = 0.0;
        for (int j = 0; j < num_keys; j++) {
            r->out[at_out + c] += mask_of(a, row, cu_k[seq] + j, h) * p[j] / sum *
                                  r->v[(cu_k[seq] + j) * a->kv_stride + h * HS + c];
        }
    }
    r->lse[h * a->num_q_tokens + row] = num_keys > 0 ? max + log(sum) : 0.0;
    for (int j = 0; j < num_keys && backward; j++) {  // sum of p times the gradient of p
        double dp = 0.0;
        for (int c = 0; c < HS; c++) {
            dp += r->dout[at_out + c] * r->v[(cu_k[seq] + j) * a->kv_stride + h * HS + c];
        }
        delta += p[j] / sum * mask_of(a, row, cu_k[seq] + j, h) * dp;
    }
    for (int j = 0; j < num_keys && backward; j++) {
        const size_t at_k = (size_t)((cu_k[seq] + j) * a->kv_stride + h * HS);
        const double mask = mask_of(a, row, cu_k[seq] + j, h);
        double dp = 0.0;
        for (int c = 0; c < HS; c++) { dp += mask * r->dout[at_out + c] * r->v[at_k + c]; }
        const double ds = p[j] / sum * (dp - delta), dx = (double)a->scale * ds;
        for (int c = 0; c < HS; c++) {
            r->dv[at_k + c] += mask * p[j] / sum * r->dout[at_out + c];
            r->dk[at_k + c] += dx * r->q[at_q + c];
            r->dq[at_q + c] += dx * r->k[at_k + c];
        }
        if (a->bias != NULL) { r->dbias[t5_bucket(&t, j - i) * NH + h] += ds; }
    }
}

static void reference_run(Reference* r, const Attention* a, bool backward) {
    double* p = ops_test_zero_doubles((size_t)a->num_k_tokens + 1);
    for (int seq = 0; seq < a->num_seqs; seq++) {
        for (int h = 0; h < a->num_heads; h++) {
            for (int i = 0; i < cu_q[seq + 1] - cu_q[seq]; i++) {
                reference_query(r, p, a, seq, h, i, backward);
            }
        }
    }
    free(ops_test_arrays[--ops_test_num_arrays]);
}

static Reference reference_of(const Arrays* x, const Attention* a) {
    const size_t nq = num_values(a, false), nk = num_values(a, true),
                 nb = (size_t)(a->num_buckets * a->num_heads);
    const size_t no = (size_t)(a->num_q_tokens * a->num_heads * a->head_size);
    return (Reference){.q = doubles_of(x->q, nq),
                       .k = doubles_of(x->k, nk),
                       .v = doubles_of(x->v, nk),
                       .bias = doubles_of(x->bias, nb),
                       .dout = doubles_of(x->dout, no),
                       .out = ops_test_zero_doubles(no),
                       .lse = ops_test_zero_doubles((size_t)(a->num_heads * a->num_q_tokens)),
                       .dq = ops_test_zero_doubles(nq),
                       .dk = ops_test_zero_doubles(nk),
                       .dv = ops_test_zero_doubles(nk),
                       .dbias = ops_test_zero_doubles(nb)};
}

enum { CAUSAL = 1, CROSS = 2, BIAS = 4, BIDIRECTIONAL = 8, PADDED = 16, DROPOUT = 32, EMPTY = 64 };

static uint32_t* random_keys(int num) {
    uint32_t* keys = ops_test_alloc((size_t)num * sizeof *keys);
    for (int i = 0; i < num; i++) { keys[i] = (uint32_t)rng_u64(&ops_test_rng); }
    return keys;
}

// EMPTY: now and then a side without tokens. Padding, which nobody sees, holds NaN: random_arrays().
static Attention random_attention(int kind, int num_seqs, int max_len, int NH, int HS) {
    for (int i = 0; i < num_seqs; i++) {
        const int least = kind & EMPTY && rng_below(&ops_test_rng, 2) == 0 ? 0 : 1;
        const int most = least == 0 && rng_below(&ops_test_rng, 2) == 0 ? 0 : max_len;
        const int len = rng_between(&ops_test_rng, least, most);
        cu_q[i + 1] = cu_q[i] + len;
        cu_k[i + 1] = cu_k[i] + (kind & CROSS ? rng_between(&ops_test_rng, least, max_len) : len);
        k_lens[i] = rng_between(&ops_test_rng, least, cu_k[i + 1] - cu_k[i]);
        if (cu_k[i + 1] == cu_k[i]) { k_lens[i] = 0; }
    }
    const int num_q = cu_q[num_seqs], num_k = cu_k[num_seqs];
    return (Attention){.q_stride = NH * HS,
                       .kv_stride = NH * HS,
                       .cu_q = cu_q,
                       .cu_k = cu_k,
                       .k_lens = kind & PADDED ? k_lens : NULL,
                       .num_seqs = num_seqs,
                       .num_q_tokens = num_q,
                       .num_k_tokens = num_k,
                       .num_heads = NH,
                       .head_size = HS,
                       .causal = kind & CAUSAL,
                       .scale = 1.0f / sqrtf((float)HS),
                       .num_buckets = 16,
                       .max_distance = 40,
                       .bias_bidirectional = kind & BIDIRECTIONAL,
                       .dropout = kind & DROPOUT ? 0.3f : 0.0f,
                       .dropout_place = 7,
                       .q_keys = random_keys(num_q),
                       .k_keys = random_keys(num_k)};
}

static Arrays run(Attention* a, const Arrays* in, OpsContext* context) {
    const size_t nq = num_values(a, false), nk = num_values(a, true);
    const size_t no = (size_t)(a->num_q_tokens * a->num_heads * a->head_size);
    Arrays x = *in;
    a->q = x.q, a->k = x.k, a->v = x.v;
    x.out = ops_test_floats(no), x.lse = ops_test_floats((size_t)(a->num_heads * a->num_q_tokens));
    x.dq = ops_test_floats(nq), x.dk = ops_test_floats(nk), x.dv = ops_test_floats(nk);
    x.dbias = ops_test_floats((size_t)(a->num_buckets * a->num_heads));
    for (int i = 0; i < a->num_buckets * a->num_heads; i++) { x.dbias[i] = 0.5f; }  // += is to be seen
    void* scratch = ops_test_alloc(attention_scratch_bytes(a, context));
    attention_forward(x.out, x.lse, a, context);
    attention_backward(x.dq, x.dk, x.dv, x.dbias, scratch, x.dout, x.out, x.lse, a, context);
    return x;
}

static Arrays random_arrays(const Attention* a, double deviation) {
    const size_t nq = num_values(a, false), nk = num_values(a, true);
    Arrays x = {.q = ops_test_random(nq, deviation),
                .k = ops_test_random(nk, deviation),
                .v = ops_test_random(nk, 1.0),
                .bias = ops_test_random((size_t)(a->num_buckets * a->num_heads), 1.0),
                .dout = ops_test_random((size_t)(a->num_q_tokens * a->num_heads * a->head_size), 1.0)};
    for (int seq = 0; seq < a->num_seqs; seq++) {
        for (int i = (cu_k[seq] + num_keys_of(a, seq)) * a->kv_stride; i < cu_k[seq + 1] * a->kv_stride;
             i++) {
            x.k[i] = x.v[i] = NAN;
        }
    }
    return x;
}

// Gradients of scores are differences, and vanish where a query sees a single key: where a whole array nearly
// does so, 0.3 is the unit in which errors are measured, instead of its root mean square.
static void check_gradient(const float* got, const double* ref, size_t n, double tolerance) {
    const double least = 0.3;
    if (ops_test_rms(ref, n) >= least) {
        CHECK_CLOSE(got, ref, n, tolerance);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        CHECK_NEAR((double)got[i], ref[i], tolerance * fmax(least, fabs(ref[i])));
    }
}

// Sums of up to 200 products in float32 against double: some 1e-6, and errors of scores (of size x) pass
// through exp: x 1e-7 more.
static void check_attention(Attention* about, bool with_bias, double deviation) {
    Attention a = *about;
    const int NH = a.num_heads, HS = a.head_size;
    Arrays in = random_arrays(&a, deviation);
    a.bias = with_bias ? in.bias : NULL;
    Arrays x = run(&a, &in, ops);
    Reference r = reference_of(&in, &a);
    reference_run(&r, &a, false);
    reference_run(&r, &a, true);
    const double tolerance = 2e-5 * (1.0 + deviation * deviation * 0.2);
    CHECK_CLOSE(x.out, r.out, (size_t)(a.num_q_tokens * NH * HS), tolerance);
    CHECK_CLOSE(x.lse, r.lse, (size_t)(a.num_q_tokens * NH), tolerance);
    check_gradient(x.dq, r.dq, num_values(&a, false), tolerance);
    check_gradient(x.dk, r.dk, num_values(&a, true), tolerance);
    check_gradient(x.dv, r.dv, num_values(&a, true), tolerance);
    for (int i = 0; i < a.num_buckets * NH; i++) { r.dbias[i] += 0.5; }
    // a bucket's is the sum of as many as there are pairs
    if (a.bias != NULL) { CHECK_CLOSE(x.dbias, r.dbias, (size_t)(a.num_buckets * NH), 4 * tolerance); }
    ops_test_release();
}

static void check(int kind, int num_seqs, int max_len, int NH, int HS, double deviation) {
    Attention a = random_attention(kind, num_seqs, max_len, NH, HS);
    check_attention(&a, kind & BIAS, deviation);
}

static void every_kind_equals_the_reference(void) {
    static const int kinds[] = {
        CAUSAL, 0, CROSS, BIAS | BIDIRECTIONAL, BIAS | CAUSAL, BIAS | CROSS | BIDIRECTIONAL};
    static const int more[] = {0, PADDED | EMPTY, DROPOUT, PADDED | DROPOUT, EMPTY};
    for (int i = 0; i < 60; i++) {
        const int NH = rng_between(&ops_test_rng, 1, 3),
                  HS = (int[]){8, 16, 20, 64, 128}[rng_below(&ops_test_rng, 5)];
        check(kinds[i % 6] | more[i % 5], 1 + i % 4, (int[]){7, 50, 200}[i % 3], NH, HS, 1.0);
    }
}

// Causal, and yet two sides of different lengths: the query at place i sees keys 0 .. i of what there is.
static void causal_sides_may_differ(void) {
    for (int i = 0; i < 8; i++) { check(CAUSAL | CROSS | BIAS | (i % 2 ? EMPTY : 0), 4, 150, 2, 16, 1.0); }
}

// Several tasks for each head: gradients of queries are added up in turn.
static void long_sequences_equal_the_reference(void) {
    for (int kind = 0; kind < 3; kind++) {
        Attention a = random_attention((int[]){CAUSAL, BIAS | BIDIRECTIONAL, CROSS}[kind], 2, 90, 1, 16);
        const int32_t lens[2][2] = {{1100, 1100}, {70, 600}};
        for (int i = 0; i < 2; i++) {
            cu_q[i + 1] = cu_q[i] + lens[i][0], cu_k[i + 1] = cu_k[i] + lens[i][kind == 2];
        }
        a.num_q_tokens = cu_q[2], a.num_k_tokens = cu_k[2];
        check_attention(&a, kind == 1, 1.0);
    }
}

static void huge_scores_stay_finite(void) {
    check(BIAS | BIDIRECTIONAL, 3, 60, 2, 64, 6.0);
}

// The analytic reference itself: derivative of sum(out dout) by central differences in double.
static void the_reference_is_a_derivative(void) {
    static const int kinds[] = {BIAS | CAUSAL, BIAS | BIDIRECTIONAL, BIAS | CROSS | BIDIRECTIONAL,
                                BIAS | CROSS | PADDED | DROPOUT, BIAS | CAUSAL | DROPOUT | EMPTY};
    for (int kind = 0; kind < 5; kind++) {
        Attention a = random_attention(kinds[kind], 3, 20, 2, 5);
        Arrays in = random_arrays(&a, 1.0);
        a.bias = in.bias;
        Reference r = reference_of(&in, &a);
        reference_run(&r, &a, false);
        reference_run(&r, &a, true);
        double* inputs[] = {r.q, r.k, r.v, r.bias};
        double* gradients[] = {r.dq, r.dk, r.dv, r.dbias};
        for (int k = 0; k < 60; k++) {
            const size_t n = k % 4 == 3 ? (size_t)(a.num_buckets * 2) : num_values(&a, k % 4 > 0);
            if (n == 0) { continue; }
            const size_t i = rng_below(&ops_test_rng, (uint32_t)n);
            double sum[2] = {0.0, 0.0};
            const double h = 1e-5, kept = inputs[k % 4][i];
            for (int side = 0; side < 2; side++) {
                inputs[k % 4][i] = kept + (side ? h : -h);
                reference_run(&r, &a, false);
                for (int j = 0; j < a.num_q_tokens * 10; j++) { sum[side] += r.out[j] * r.dout[j]; }
            }
            inputs[k % 4][i] = kept;
            CHECK_NEAR((sum[1] - sum[0]) / (2 * h), gradients[k % 4][i],
                       1e-7);  // h^2 and 1e-16 / h, near 1e-10
        }
        ops_test_release();
    }
}

static void check_same_bits(const Attention* a, const Arrays* x, const Arrays* y) {
    CHECK_SAME_BITS(x->out, y->out, (size_t)(a->num_q_tokens * a->num_heads * a->head_size));
    CHECK_SAME_BITS(x->lse, y->lse, (size_t)(a->num_q_tokens * a->num_heads));
    CHECK_SAME_BITS(x->dq, y->dq, num_values(a, false));
    CHECK_SAME_BITS(x->dk, y->dk, num_values(a, true));
    CHECK_SAME_BITS(x->dv, y->dv, num_values(a, true));
}

// One to five threads, several times: 1300 keys are three tasks of a head.
static void threads_do_not_change_a_bit(void) {
    OpsContext* one = ops_create(1);
    for (int i = 0; i < 8; i++) {
        OpsContext* some = ops_create(2 + i % 4);
        const int kind = i % 2 ? BIAS | CROSS | BIDIRECTIONAL | PADDED : BIAS | CAUSAL | DROPOUT;
        Attention a = random_attention(kind, i < 4 ? 6 : 2, i < 4 ? 60 : 1300, 3, 32);
        Arrays in = random_arrays(&a, 1.0);
        a.bias = in.bias;
        Arrays x = run(&a, &in, some), y = run(&a, &in, one);
        check_same_bits(&a, &x, &y);
        CHECK_SAME_BITS(x.dbias, y.dbias, 48);
        ops_free(some);
        ops_test_release();
    }
    ops_free(one);
}

static void a_batch_is_its_sequences_one_by_one(void) {
    Attention a = random_attention(BIAS | CROSS | BIDIRECTIONAL | PADDED | DROPOUT, 5, 150, 2, 16);
    Arrays in = random_arrays(&a, 1.0);
    a.bias = in.bias;
    const Arrays x = run(&a, &in, ops);
    for (int i = 0; i < 5; i++) {
        const size_t q = (size_t)cu_q[i] * 32, k = (size_t)cu_k[i] * 32;
        const int32_t alone_q[2] = {0, cu_q[i + 1] - cu_q[i]}, alone_k[2] = {0, cu_k[i + 1] - cu_k[i]};
        Attention b = a;
        b.cu_q = alone_q, b.cu_k = alone_k, b.k_lens = k_lens + i, b.num_seqs = 1;
        b.num_q_tokens = alone_q[1], b.num_k_tokens = alone_k[1];
        b.q_keys = a.q_keys + cu_q[i], b.k_keys = a.k_keys + cu_k[i];
        const Arrays part = {
            .q = in.q + q, .k = in.k + k, .v = in.v + k, .bias = in.bias, .dout = in.dout + q};
        const Arrays y = run(&b, &part, ops);
        CHECK_SAME_BITS(y.out, x.out + q, (size_t)alone_q[1] * 32);
        CHECK_SAME_BITS(y.dq, x.dq + q, (size_t)alone_q[1] * 32);
        CHECK_SAME_BITS(y.dk, x.dk + k, (size_t)alone_k[1] * 32);
        CHECK_SAME_BITS(y.dv, x.dv + k, (size_t)alone_k[1] * 32);
    }
    ops_test_release();
}

// What nobody attends to: 0 exactly, though it holds NaN; a sequence without keys gives 0 and no NaN.
static void what_is_not_seen_has_no_gradient(void) {
    Attention a = random_attention(BIAS | CROSS | BIDIRECTIONAL | PADDED, 4, 100, 2, 16);
    k_lens[1] = 0;
    Arrays in = random_arrays(&a, 1.0);
    a.bias = in.bias;
    const Arrays x = run(&a, &in, ops);
    for (int seq = 0; seq < 4; seq++) {
        for (int i = (cu_k[seq] + k_lens[seq]) * 32; i < cu_k[seq + 1] * 32; i++) {
            CHECK(x.dk[i] == 0.0f && x.dv[i] == 0.0f);
        }
    }
    for (int i = cu_q[1] * 32; i < cu_q[2] * 32; i++) { CHECK(x.out[i] == 0.0f && x.dq[i] == 0.0f); }
    for (int i = cu_q[1]; i < cu_q[2]; i++) { CHECK(isfinite(x.lse[i])); }
    ops_test_release();
}

// Decoding: the last queries of each sequence against a cache, whose parts have gaps and another order, are
// the rows of causal attention on the whole. Only the beginnings of the parts are read.
static void queries_behind_a_cache_are_rows_of_the_whole(void) {
    enum { SEQS = 5, ROOM = 300, NH = 2, HS = 32, C = NH * HS };
    for (int round = 0; round < 12; round++) {
        Attention a = random_attention(CAUSAL | (round % 3 ? BIAS : 0), SEQS, 250, NH, HS);
        Arrays in = random_arrays(&a, 1.0);
        a.bias = round % 3 ? in.bias : NULL, a.q = in.q, a.k = in.k, a.v = in.v;
        float *out = ops_test_floats((size_t)a.num_q_tokens * C),
              *lse = ops_test_floats((size_t)a.num_q_tokens * NH);
        attention_forward(out, lse, &a, ops);
        float *k = ops_test_floats(SEQS * ROOM * C), *v = ops_test_floats(SEQS * ROOM * C),
              *q = ops_test_floats((size_t)a.num_q_tokens * C);
        int32_t begins[SEQS], starts[SEQS], lens[SEQS], cu_new[SEQS + 1] = {0}, rows[SEQS * ROOM];
        Attention b = a;
        for (int i = 0; i < SEQS; i++) {
            lens[i] = cu_q[i + 1] - cu_q[i], begins[i] = (i * 3 + 1) % SEQS * ROOM + i;
            const int num_new = round % 2 ? 1 : rng_between(&ops_test_rng, 0, lens[i]);
            starts[i] = lens[i] - num_new, cu_new[i + 1] = cu_new[i] + num_new;
            for (int j = 0; j < lens[i]; j++) { rows[j] = begins[i] + j; }
            place_rows(k, C, in.k + cu_k[i] * C, C, rows, lens[i], C, ops);
            place_rows(v, C, in.v + cu_k[i] * C, C, rows, lens[i], C, ops);
            memcpy(q + cu_new[i] * C, in.q + (cu_q[i] + starts[i]) * C, (size_t)(num_new * C) * sizeof *q);
        }
        b.q = q, b.k = k, b.v = v, b.cu_q = cu_new, b.cu_k = begins, b.k_lens = lens, b.q_starts = starts;
        b.num_q_tokens = cu_new[SEQS], b.num_k_tokens = SEQS * ROOM;
        float *new_out = ops_test_floats((size_t)cu_new[SEQS] * C),
              *new_lse = ops_test_floats((size_t)cu_new[SEQS] * NH);
        attention_forward(new_out, new_lse, &b, ops);
        for (int i = 0; i < SEQS; i++) {
            const int num_new = cu_new[i + 1] - cu_new[i], from = cu_q[i] + starts[i];
            CHECK_CLOSE(new_out + cu_new[i] * C, doubles_of(out + from * C, (size_t)(num_new * C)),
                        (size_t)(num_new * C), 2e-5);
            for (int h = 0; h < NH; h++) {
                CHECK_CLOSE(new_lse + h * cu_new[SEQS] + cu_new[i],
                            doubles_of(lse + h * a.num_q_tokens + from, (size_t)num_new), (size_t)num_new,
                            2e-5);
            }
        }
        ops_test_release();
    }
}

int main(int argc, char** argv) {
    ops_test_rng = rng_seed(test_seed(argc, argv));
    ops = ops_create(2);
    RUN(buckets_are_hugging_faces);
    RUN(the_reference_is_a_derivative);
    RUN(every_kind_equals_the_reference);
    RUN(causal_sides_may_differ);
    RUN(long_sequences_equal_the_reference);
    RUN(huge_scores_stay_finite);
    RUN(what_is_not_seen_has_no_gradient);
    RUN(queries_behind_a_cache_are_rows_of_the_whole);
    RUN(a_batch_is_its_sequences_one_by_one);
    RUN(threads_do_not_change_a_bit);
    ops_free(ops);
    return test_end();
}
