// Laws of attention_forward and attention_backward: equal to a double-precision T x T reference on ragged
// batches; a batch is its sequences one by one, bit for bit; nothing looks ahead; huge scores stay finite.
#include "ops_test.h"

typedef struct {
    int num_seqs, T, C, NH, max_seq_tokens;
    int32_t cu_seqlens[16];
} Ragged;

typedef struct {
    float *qkv, *out, *lse, *dout, *dqkv;
} Result;

static OpsContext* ops;

static Ragged ragged_random(int max_seqs, int max_len, int NH, int HS) {
    Ragged r = {.num_seqs = rng_between(&ops_test_rng, 1, max_seqs), .NH = NH, .C = NH * HS};
    for (int i = 0; i < r.num_seqs; i++) {
        const int len = rng_below(&ops_test_rng, 4) == 0 ? 1 : rng_between(&ops_test_rng, 1, max_len);
        r.max_seq_tokens = len > r.max_seq_tokens ? len : r.max_seq_tokens;
        r.T += len;
        r.cu_seqlens[i + 1] = r.T;
    }
    return r;
}

static Result attention_run(const Ragged* r, const float* qkv, const float* dout, OpsContext* context) {
    const size_t T = (size_t)r->T, C = (size_t)r->C;
    Result a = {.out = ops_test_floats(T * C), .lse = ops_test_floats(T * (size_t)r->NH)};
    a.qkv = ops_test_copy(qkv, 3 * T * C);
    a.dout = ops_test_copy(dout, T * C);
    a.dqkv = ops_test_floats(3 * T * C);
    void* scratch =
        ops_test_alloc(attention_backward_scratch_bytes(r->T, r->C, r->NH, r->max_seq_tokens, context));
    attention_forward(a.out, a.lse, a.qkv, r->cu_seqlens, r->num_seqs, r->T, r->C, r->NH, context);
    attention_backward(a.dqkv, scratch, a.dout, a.qkv, a.out, a.lse, r->cu_seqlens, r->num_seqs, r->T, r->C,
                       r->NH, context);
    CHECK_SAME_BITS(a.qkv, qkv, 3 * T * C);  // inputs stay as they were
    CHECK_SAME_BITS(a.dout, dout, T * C);
    return a;
}

// p[j], j <= t: the softmax row of token t; returns its log-sum-exp.
static double reference_row(double* p, const double* qkv, int begin, int t, int C, int HS, int h) {
    const double* q = qkv + (size_t)t * 3 * (size_t)C + h * HS;
    double max = -(double)INFINITY, sum = 0.0;
    for (int j = begin; j <= t; j++) {
        const double* k = qkv + (size_t)j * 3 * (size_t)C + C + h * HS;
        double s = 0.0;
        for (int c = 0; c < HS; c++) { s += q[c] * k[c]; }
        p[j] = s / sqrt((double)HS);
        max = p[j] > max ? p[j] : max;
    }
    for (int j = begin; j <= t; j++) { sum += p[j] = exp(p[j] - max); }
    for (int j = begin; j <= t; j++) { p[j] /= sum; }
    return max + log(sum);
}

static void reference_forward(double* out, double* lse, const double* qkv, const Ragged* r) {
    const int HS = r->C / r->NH;
    double* p = ops_test_zero_doubles((size_t)r->T);
    for (int i = 0; i < r->num_seqs; i++) {
        for (int h = 0; h < r->NH; h++) {
            for (int t = r->cu_seqlens[i]; t < r->cu_seqlens[i + 1]; t++) {
                lse[h * r->T + t] = reference_row(p, qkv, r->cu_seqlens[i], t, r->C, HS, h);
                for (int c = 0; c < HS; c++) {
                    double o = 0.0;
                    for (int j = r->cu_seqlens[i]; j <= t; j++) {
                        o += p[j] * qkv[(size_t)j * 3 * (size_t)r->C + 2 * r->C + h * HS + c];
                    }
                    out[(size_t)t * (size_t)r->C + h * HS + c] = o;
                }
            }
        }
    }
}

// dqkv for token t of head h, as a query: its own dq, and what it adds to dk, dv of the tokens before.
static void reference_backward_row(double* dqkv, double* p, const double* dout, const double* qkv, int begin,
                                   int t, int C, int HS, int h) {
    const double scale = 1.0 / sqrt((double)HS);
    const size_t row = 3 * (size_t)C;
    const double* d = dout + (size_t)t * (size_t)C + h * HS;
    double mean = 0.0;
    reference_row(p, qkv, begin, t, C, HS, h);
    for (int pass = 0; pass < 2; pass++) {
        for (int j = begin; j <= t; j++) {
            double dp = 0.0;
            for (int c = 0; c < HS; c++) { dp += d[c] * qkv[(size_t)j * row + 2 * C + h * HS + c]; }
            if (pass == 0) {
                mean += p[j] * dp;
                continue;
            }
            const double ds = scale * p[j] * (dp - mean);
            for (int c = 0; c < HS; c++) {
                const size_t q = (size_t)t * row + h * HS + c, k = (size_t)j * row + C + h * HS + c;
                dqkv[q] += ds * qkv[k];
                dqkv[k] += ds * qkv[q];
                dqkv[k + C] += p[j] * d[c];
            }
        }
    }
}

static void reference_backward(double* dqkv, const double* dout, const double* qkv, const Ragged* r) {
    double* p = ops_test_zero_doubles((size_t)r->T);
    for (int i = 0; i < r->num_seqs; i++) {
        for (int h = 0; h < r->NH; h++) {
            for (int t = r->cu_seqlens[i]; t < r->cu_seqlens[i + 1]; t++) {
                reference_backward_row(dqkv, p, dout, qkv, r->cu_seqlens[i], t, r->C, r->C / r->NH, h);
            }
        }
    }
}

static double* doubles_of(const float* x, size_t n) {
    double* d = ops_test_zero_doubles(n);
    for (size_t i = 0; i < n; i++) { d[i] = (double)x[i]; }
    return d;
}

static void check_against_reference(const Ragged* r, double deviation) {
    const size_t T = (size_t)r->T, C = (size_t)r->C;
    float* qkv = ops_test_random(3 * T * C, deviation);
    float* dout = ops_test_random(T * C, 1.0);
    Result got = attention_run(r, qkv, dout, ops);
    double *out = ops_test_zero_doubles(T * C), *lse = ops_test_zero_doubles(T * (size_t)r->NH);
    double *dqkv = ops_test_zero_doubles(3 * T * C), *in = doubles_of(qkv, 3 * T * C);
    reference_forward(out, lse, in, r);
    reference_backward(dqkv, doubles_of(dout, T * C), in, r);
    // A score is a sum of HS products, wrong by eps sqrt(HS) of its own spread (deviation^2 after the
    // scaling; 1 at least); exp hands that on as a relative error, and the largest of many values is some 6
    // deviations out.
    const double spread = deviation * deviation > 1.0 ? deviation * deviation : 1.0;
    const double tolerance = 24.0 * (double)FLT_EPSILON * sqrt((double)(r->C / r->NH)) * spread;
    CHECK_CLOSE(got.out, out, T * C, tolerance);
    CHECK_CLOSE(got.lse, lse, T * (size_t)r->NH, tolerance);
    CHECK_CLOSE(got.dqkv, dqkv, 3 * T * C, tolerance);
    ops_test_release();
}

static void ragged_batches_equal_the_reference(void) {
    static const int HSs[] = {16, 20, 32, 64, 80, 128};
    for (int i = 0; i < 36; i++) {
        const int NH = rng_between(&ops_test_rng, 1, 3), max_len = (int[]){5, 20, 70, 150}[i % 4];
        Ragged r = ragged_random(max_len > 70 ? 2 : 7, max_len, NH, HSs[i % 6]);
        check_against_reference(&r, 1.0);
    }
}

static void block_borders_equal_the_reference(void) {
    static const int lengths[] = {1, 2, 15, 16, 17, 47, 48, 49, 63, 64, 65, 95, 96, 97, 127, 128, 129, 193};
    for (int i = 0; i < (int)(sizeof lengths / sizeof *lengths); i++) {
        Ragged r = {.num_seqs = 1, .T = lengths[i], .max_seq_tokens = lengths[i], .C = 64, .NH = 1};
        r.cu_seqlens[1] = lengths[i];
        check_against_reference(&r, 1.0);
    }
}

static void a_long_sequence_equals_the_reference(void) {
    Ragged r = {.num_seqs = 1, .T = 611, .max_seq_tokens = 611, .C = 64, .NH = 2, .cu_seqlens = {0, 611}};
    check_against_reference(&r, 1.0);
}

static void huge_scores_stay_finite(void) {
    Ragged r = ragged_random(4, 100, 2, 64);
    check_against_reference(&r, 12.0);  // scores up to some 700: exp of them would overflow
}

static void a_batch_is_its_sequences_one_by_one(void) {
    for (int k = 0; k < 6; k++) {
        Ragged r = ragged_random(6, k < 3 ? 30 : 140, 2, k % 2 ? 64 : 20);
        const size_t C = (size_t)r.C, T = (size_t)r.T;
        float *qkv = ops_test_random(3 * T * C, 1.0), *dout = ops_test_random(T * C, 1.0);
        Result all = attention_run(&r, qkv, dout, ops);
        for (int i = 0; i < r.num_seqs; i++) {
            const size_t begin = (size_t)r.cu_seqlens[i];
            const int len = r.cu_seqlens[i + 1] - r.cu_seqlens[i];
            Ragged one = {
                .num_seqs = 1, .T = len, .max_seq_tokens = len, .C = r.C, .NH = r.NH, .cu_seqlens = {0, len}};
            Result alone = attention_run(&one, qkv + 3 * C * begin, dout + C * begin, ops);
            CHECK_SAME_BITS(alone.out, all.out + C * begin, C * (size_t)len);
            CHECK_SAME_BITS(alone.dqkv, all.dqkv + 3 * C * begin, 3 * C * (size_t)len);
            for (int h = 0; h < r.NH; h++) {
                CHECK_SAME_BITS(alone.lse + h * len, all.lse + (size_t)h * T + begin, (size_t)len);
            }
        }
        ops_test_release();
    }
}

static void no_token_sees_the_future(void) {
    Ragged r = {.num_seqs = 1, .T = 150, .max_seq_tokens = 150, .C = 64, .NH = 2, .cu_seqlens = {0, 150}};
    const size_t C = 64, T = 150;
    float *qkv = ops_test_random(3 * T * C, 1.0), *dout = ops_test_random(T * C, 1.0);
    Result before = attention_run(&r, qkv, dout, ops);
    for (int k = 0; k < 10; k++) {
        const size_t t = rng_below(&ops_test_rng, 150);
        float* changed = ops_test_copy(qkv, 3 * T * C);
        for (size_t c = 0; c < 3 * C; c++) { changed[t * 3 * C + c] += 1.0f; }
        Result after = attention_run(&r, changed, dout, ops);
        CHECK_SAME_BITS(after.out, before.out, t * C);
        CHECK(memcmp(after.out + t * C, before.out + t * C, C * sizeof(float)) != 0);
    }
    ops_test_release();
}

// The analytic reference itself: derivative of sum(out dout) by central differences in double.
static void the_reference_is_a_derivative(void) {
    Ragged r = ragged_random(3, 9, 2, 5);
    const size_t C = (size_t)r.C, T = (size_t)r.T;
    double* in = doubles_of(ops_test_random(3 * T * C, 1.0), 3 * T * C);
    double *dout = doubles_of(ops_test_random(T * C, 1.0), T * C), *dqkv = ops_test_zero_doubles(3 * T * C);
    double *out = ops_test_zero_doubles(T * C), *lse = ops_test_zero_doubles(T * (size_t)r.NH);
    reference_backward(dqkv, dout, in, &r);
    for (int k = 0; k < 60; k++) {
        const size_t i = rng_below(&ops_test_rng, (uint32_t)(3 * T * C));
        double sum[2] = {0.0, 0.0};
        const double h = 1e-5, kept = in[i];
        for (int side = 0; side < 2; side++) {
            in[i] = kept + (side ? h : -h);
            reference_forward(out, lse, in, &r);
            for (size_t j = 0; j < T * C; j++) { sum[side] += out[j] * dout[j]; }
        }
        in[i] = kept;
        CHECK_NEAR((sum[1] - sum[0]) / (2 * h), dqkv[i], 1e-7);  // h^2 and 1e-16 / h, both near 1e-10
    }
    ops_test_release();
}

static void the_same_call_gives_the_same_bits(void) {
    OpsContext* one = ops_create(1);
    Ragged r = ragged_random(7, 120, 3, 32);
    const size_t C = (size_t)r.C, T = (size_t)r.T;
    float *qkv = ops_test_random(3 * T * C, 1.0), *dout = ops_test_random(T * C, 1.0);
    Result a = attention_run(&r, qkv, dout, ops), b = attention_run(&r, qkv, dout, ops);
    Result c = attention_run(&r, qkv, dout, one);
    CHECK_SAME_BITS(a.out, b.out, T * C);
    CHECK_SAME_BITS(a.dqkv, b.dqkv, 3 * T * C);
    CHECK_SAME_BITS(a.out, c.out, T * C);
    CHECK_SAME_BITS(a.dqkv, c.dqkv, 3 * T * C);
    ops_free(one);
    ops_test_release();
}

int main(int argc, char** argv) {
    ops_test_rng = rng_seed(test_seed(argc, argv));
    ops = ops_create(2);
    RUN(the_reference_is_a_derivative);
    RUN(ragged_batches_equal_the_reference);
    RUN(block_borders_equal_the_reference);
    RUN(a_long_sequence_equals_the_reference);
    RUN(huge_scores_stay_finite);
    RUN(a_batch_is_its_sequences_one_by_one);
    RUN(no_token_sees_the_future);
    RUN(the_same_call_gives_the_same_bits);
    ops_free(ops);
    return test_end();
}
