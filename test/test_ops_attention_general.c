// Laws of attention_general_*: equal to a double-precision reference for causal, bidirectional and cross
// attention, with and without T5's position bias, whose analytic gradients are derivatives; a batch is its
// sequences one by one; buckets are Hugging Face's.
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
static int32_t cu_q[16], cu_k[16];

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

// One query: its row of probabilities, what it attends to, and with `backward` all gradients it contributes.
static void reference_query(Reference* r, double* p, const Attention* a, int seq, int h, int i,
                            bool backward) {
    const T5Buckets t = t5_buckets(a->num_buckets, a->max_distance, a->bias_bidirectional);
    const int HS = a->head_size, NH = a->num_heads, row = cu_q[seq] + i, num_k = cu_k[seq + 1] - cu_k[seq];
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
            r->out[at_out + c] += p[j] / sum * r->v[(cu_k[seq] + j) * a->kv_stride + h * HS + c];
        }
    }
    r->lse[h * a->num_q_tokens + row] = max + log(sum);
    for (int c = 0; c < HS; c++) { delta += r->dout[at_out + c] * r->out[at_out + c]; }
    for (int j = 0; j < num_keys && backward; j++) {
        const size_t at_k = (size_t)((cu_k[seq] + j) * a->kv_stride + h * HS);
        double dp = 0.0;
        for (int c = 0; c < HS; c++) { dp += r->dout[at_out + c] * r->v[at_k + c]; }
        const double ds = p[j] / sum * (dp - delta), dx = (double)a->scale * ds;
        for (int c = 0; c < HS; c++) {
            r->dv[at_k + c] += p[j] / sum * r->dout[at_out + c];
            r->dk[at_k + c] += dx * r->q[at_q + c];
            r->dq[at_q + c] += dx * r->k[at_k + c];
        }
        if (a->bias != NULL) { r->dbias[t5_bucket(&t, j - i) * NH + h] += ds; }
    }
}

static void reference_run(Reference* r, const Attention* a, bool backward) {
    double* p = ops_test_zero_doubles((size_t)a->num_k_tokens);
    for (int seq = 0; seq < a->num_seqs; seq++) {
        for (int h = 0; h < a->num_heads; h++) {
            for (int i = 0; i < cu_q[seq + 1] - cu_q[seq]; i++) {
                reference_query(r, p, a, seq, h, i, backward);
            }
        }
    }
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

enum { CAUSAL = 1, CROSS = 2, BIAS = 4, BIDIRECTIONAL = 8 };

static Attention random_attention(int kind, int num_seqs, int max_len, int NH, int HS) {
    for (int i = 0; i < num_seqs; i++) {
        const int len = rng_between(&ops_test_rng, 1, max_len);
        cu_q[i + 1] = cu_q[i] + len;
        cu_k[i + 1] = cu_k[i] + (kind & CROSS ? rng_between(&ops_test_rng, 1, max_len) : len);
    }
    return (Attention){.q_stride = NH * HS,
                       .kv_stride = NH * HS,
                       .cu_q = cu_q,
                       .cu_k = cu_k,
                       .num_seqs = num_seqs,
                       .num_q_tokens = cu_q[num_seqs],
                       .num_k_tokens = cu_k[num_seqs],
                       .num_heads = NH,
                       .head_size = HS,
                       .causal = kind & CAUSAL,
                       .scale = 1.0f / sqrtf((float)HS),
                       .num_buckets = 16,
                       .max_distance = 40,
                       .bias_bidirectional = kind & BIDIRECTIONAL};
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
    void* scratch = ops_test_alloc(attention_general_scratch_bytes(a, context));
    attention_general_forward(x.out, x.lse, a, context);
    attention_general_backward(x.dq, x.dk, x.dv, x.dbias, scratch, x.dout, x.out, x.lse, a, context);
    return x;
}

static Arrays random_arrays(const Attention* a, double deviation) {
    const size_t nq = num_values(a, false), nk = num_values(a, true);
    return (Arrays){.q = ops_test_random(nq, deviation),
                    .k = ops_test_random(nk, deviation),
                    .v = ops_test_random(nk, 1.0),
                    .bias = ops_test_random((size_t)(a->num_buckets * a->num_heads), 1.0),
                    .dout = ops_test_random((size_t)(a->num_q_tokens * a->num_heads * a->head_size), 1.0)};
}

// Sums of up to 200 products in float32 against double: some 1e-6, and errors of scores (of size x) pass
// through exp: x 1e-7 more.
static void check(int kind, int num_seqs, int max_len, int NH, int HS, double deviation) {
    Attention a = random_attention(kind, num_seqs, max_len, NH, HS);
    Arrays in = random_arrays(&a, deviation);
    a.bias = kind & BIAS ? in.bias : NULL;
    Arrays x = run(&a, &in, ops);
    Reference r = reference_of(&in, &a);
    reference_run(&r, &a, false);
    reference_run(&r, &a, true);
    const double tolerance = 2e-5 * (1.0 + deviation * deviation * 0.2);
    CHECK_CLOSE(x.out, r.out, (size_t)(a.num_q_tokens * NH * HS), tolerance);
    CHECK_CLOSE(x.lse, r.lse, (size_t)(a.num_q_tokens * NH), tolerance);
    CHECK_CLOSE(x.dq, r.dq, num_values(&a, false), tolerance);
    CHECK_CLOSE(x.dk, r.dk, num_values(&a, true), tolerance);
    CHECK_CLOSE(x.dv, r.dv, num_values(&a, true), tolerance);
    for (int i = 0; i < a.num_buckets * NH; i++) { r.dbias[i] += 0.5; }
    if (a.bias != NULL) { CHECK_CLOSE(x.dbias, r.dbias, (size_t)(a.num_buckets * NH), tolerance); }
    ops_test_release();
}

static void every_kind_equals_the_reference(void) {
    static const int kinds[] = {
        CAUSAL, 0, CROSS, BIAS | BIDIRECTIONAL, BIAS | CAUSAL, BIAS | CROSS | BIDIRECTIONAL};
    for (int i = 0; i < 24; i++) {
        const int NH = rng_between(&ops_test_rng, 1, 3),
                  HS = (int[]){16, 20, 64, 128}[rng_below(&ops_test_rng, 4)];
        check(kinds[i % 6], 1 + i % 4, (int[]){7, 50, 200}[i % 3], NH, HS, 1.0);
    }
}

static void huge_scores_stay_finite(void) {
    check(BIAS | BIDIRECTIONAL, 3, 60, 2, 64, 6.0);
}

// The analytic reference itself: derivative of sum(out dout) by central differences in double.
static void the_reference_is_a_derivative(void) {
    for (int kind = 0; kind < 3; kind++) {
        Attention a = random_attention(
            (int[]){BIAS | CAUSAL, BIAS | BIDIRECTIONAL, BIAS | CROSS | BIDIRECTIONAL}[kind], 3, 20, 2, 5);
        Arrays in = random_arrays(&a, 1.0);
        a.bias = in.bias;
        Reference r = reference_of(&in, &a);
        reference_run(&r, &a, false);
        reference_run(&r, &a, true);
        double* inputs[] = {r.q, r.k, r.v, r.bias};
        double* gradients[] = {r.dq, r.dk, r.dv, r.dbias};
        for (int k = 0; k < 60; k++) {
            const size_t n = k % 4 == 3 ? (size_t)(a.num_buckets * 2) : num_values(&a, k % 4 > 0);
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

static void threads_do_not_change_a_bit(void) {
    OpsContext* one = ops_create(1);
    Attention a = random_attention(BIAS | CROSS | BIDIRECTIONAL, 6, 60, 3, 32);
    Arrays in = random_arrays(&a, 1.0);
    a.bias = in.bias;
    Arrays x = run(&a, &in, ops), y = run(&a, &in, one);
    CHECK_SAME_BITS(x.out, y.out, (size_t)(a.num_q_tokens * 96));
    CHECK_SAME_BITS(x.lse, y.lse, (size_t)(a.num_q_tokens * 3));
    CHECK_SAME_BITS(x.dq, y.dq, num_values(&a, false));
    CHECK_SAME_BITS(x.dk, y.dk, num_values(&a, true));
    CHECK_SAME_BITS(x.dv, y.dv, num_values(&a, true));
    CHECK_SAME_BITS(x.dbias, y.dbias, 48);
    ops_free(one);
    ops_test_release();
}

// The general form, causal, on packed qkv is attention_forward and attention_backward.
static void causal_equals_the_fast_path(void) {
    const int NH = 2, HS = 64, C = NH * HS;
    Attention a = random_attention(CAUSAL, 5, 150, NH, HS);
    const size_t T = (size_t)a.num_q_tokens;
    float *qkv = ops_test_random(3 * T * (size_t)C, 1.0), *dout = ops_test_random(T * (size_t)C, 1.0);
    float *out[2], *lse[2], *dqkv[2];
    for (int i = 0; i < 2; i++) {
        out[i] = ops_test_floats(T * (size_t)C), lse[i] = ops_test_floats(T * (size_t)NH);
        dqkv[i] = ops_test_floats(3 * T * (size_t)C);
    }
    a.q = qkv, a.k = qkv + C, a.v = qkv + 2 * C, a.q_stride = a.kv_stride = 3 * C;
    attention_general_forward(out[0], lse[0], &a, ops);
    attention_general_backward(dqkv[0], dqkv[0] + C, dqkv[0] + 2 * C, NULL, NULL, dout, out[0], lse[0], &a,
                               ops);
    void* scratch = ops_test_alloc(attention_backward_scratch_bytes((int)T, C, NH, 150, ops));
    attention_forward(out[1], lse[1], qkv, cu_q, a.num_seqs, (int)T, C, NH, ops);
    attention_backward(dqkv[1], scratch, dout, qkv, out[1], lse[1], cu_q, a.num_seqs, (int)T, C, NH, ops);
    CHECK_CLOSE(out[0], doubles_of(out[1], T * (size_t)C), T * (size_t)C, 4e-5);
    CHECK_CLOSE(lse[0], doubles_of(lse[1], T * (size_t)NH), T * (size_t)NH, 4e-5);
    CHECK_CLOSE(dqkv[0], doubles_of(dqkv[1], 3 * T * (size_t)C), 3 * T * (size_t)C, 4e-5);
    ops_test_release();
}

int main(int argc, char** argv) {
    ops_test_rng = rng_seed(test_seed(argc, argv));
    ops = ops_create(2);
    RUN(buckets_are_hugging_faces);
    RUN(the_reference_is_a_derivative);
    RUN(every_kind_equals_the_reference);
    RUN(huge_scores_stay_finite);
    RUN(threads_do_not_change_a_bit);
    RUN(causal_equals_the_fast_path);
    ops_free(ops);
    return test_end();
}
