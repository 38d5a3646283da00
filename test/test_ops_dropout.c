// Laws of dropout: the share p falls and the rest grows by 1 / (1 - p); a token's mask depends on its key,
// the place and the column, not on what else is in the micro-batch; backward is forward; p 0 is a copy; masks
// of other places, columns and keys have nothing to do with each other.
#include "../llmc/dropout_bits.h"
#include "ops_test.h"

static OpsContext* ops;

static uint32_t* random_keys(int T) {
    uint32_t* keys = ops_test_alloc((size_t)T * sizeof *keys);
    for (int t = 0; t < T; t++) { keys[t] = (uint32_t)rng_u64(&ops_test_rng); }
    return keys;
}

static float* ones(size_t n) {
    float* x = ops_test_floats(n);
    for (size_t i = 0; i < n; i++) { x[i] = 1.0f; }
    return x;
}

static float* mask_of(const uint32_t* keys, uint32_t place, float p, int T, int C) {
    const size_t n = (size_t)T * (size_t)C;
    float* mask = ops_test_floats(n);
    dropout_apply(mask, ones(n), keys, place, p, T, C, ops);
    return mask;
}

static void values_are_the_headers(void) {
    for (int i = 0; i < 10; i++) {
        const int T = rng_between(&ops_test_rng, 1, 90), C = rng_between(&ops_test_rng, 1, 200);
        const size_t n = (size_t)T * (size_t)C;
        const float p = (float[]){0.1f, 0.5f, 0.9f}[i % 3];
        const uint32_t place = rng_below(&ops_test_rng, 300), *keys = random_keys(T);
        float *x = ops_test_random(n, 1.0), *out = ops_test_floats(n), *in_place = ops_test_copy(x, n);
        dropout_apply(out, x, keys, place, p, T, C, ops);
        dropout_apply(in_place, in_place, keys, place, p, T, C, ops);
        for (size_t j = 0; j < n; j++) {
            const uint32_t bits =
                dropout_bits(dropout_row(keys[j / (size_t)C], place), (uint32_t)(j % (size_t)C));
            const bool falls = (double)bits < (double)p * 4294967296.0;
            CHECK_NEAR((double)out[j], falls ? 0.0 : (double)x[j] / (1.0 - (double)p),
                       1e-6 * fabs(x[j]) / 0.1);
        }
        CHECK_SAME_BITS(in_place, out, n);
        ops_test_release();
    }
}

// Of N values p N fall, give or take: 5 standard deviations, sqrt(p (1 - p) / N).
static void the_share_p_falls(void) {
    enum { T = 400, C = 512 };
    for (int i = 0; i < 8; i++) {
        const float p = (float[]){0.05f, 0.1f, 0.5f, 0.9f}[i % 4];
        uint32_t* keys = random_keys(T);
        for (int t = 0; t < T && i >= 4; t++) { keys[t] = (uint32_t)t; }  // keys that are hardly random
        const float* mask = mask_of(keys, (uint32_t)i, p, T, C);
        double fallen = 0.0, sum = 0.0;
        for (int j = 0; j < T * C; j++) { fallen += mask[j] == 0.0f, sum += (double)mask[j]; }
        CHECK_NEAR(fallen / (T * C), (double)p, 5.0 * sqrt((double)p * (1.0 - (double)p) / (T * C)));
        CHECK_NEAR(sum / (T * C), 1.0, 5.0 * sqrt((double)p / (1.0 - (double)p) / (T * C)));  // mean stays
        ops_test_release();
    }
}

// Rows in another order, and each alone: the same mask with the same key.
static void grouping_does_not_change_a_mask(void) {
    enum { T = 50, C = 200 };
    uint32_t *keys = random_keys(T), *mixed = ops_test_alloc(T * sizeof *mixed);
    float *x = ops_test_random(T * C, 1.0), *y = ops_test_floats(T * C), *out = ops_test_floats(T * C);
    float *other = ops_test_floats(T * C), *alone = ops_test_floats(C);
    for (int t = 0; t < T; t++) {
        mixed[(t * 7 + 3) % T] = keys[t];
        memcpy(y + (t * 7 + 3) % T * C, x + t * C, C * sizeof *x);
    }
    dropout_apply(out, x, keys, 5, 0.3f, T, C, ops);
    dropout_apply(other, y, mixed, 5, 0.3f, T, C, ops);
    for (int t = 0; t < T; t++) {
        dropout_apply(alone, x + t * C, keys + t, 5, 0.3f, 1, C, ops);
        CHECK_SAME_BITS(other + (t * 7 + 3) % T * C, out + t * C, C);
        CHECK_SAME_BITS(alone, out + t * C, C);
    }
    ops_test_release();
}

// sum(dropout(x) d) = sum(x dropout(d)): what falls forward falls backward.
static void backward_is_forward(void) {
    enum { T = 60, C = 300 };
    const uint32_t* keys = random_keys(T);
    float *x = ops_test_random(T * C, 1.0), *d = ops_test_random(T * C, 1.0);
    float *out = ops_test_floats(T * C), *dx = ops_test_floats(T * C);
    dropout_apply(out, x, keys, 9, 0.4f, T, C, ops);
    dropout_apply(dx, d, keys, 9, 0.4f, T, C, ops);
    for (int i = 0; i < T * C; i++) {
        CHECK((out[i] == 0.0f) == (dx[i] == 0.0f) || x[i] == 0.0f || d[i] == 0.0f);
        CHECK_NEAR((double)out[i] * (double)d[i], (double)x[i] * (double)dx[i], 1e-5);
    }
    ops_test_release();
}

static void nothing_falls_at_0(void) {
    const size_t n = 40 * 300;
    float *x = ops_test_random(n, 1.0), *out = ops_test_floats(n), *in_place = ops_test_copy(x, n);
    const uint32_t* keys = random_keys(40);
    dropout_apply(out, x, keys, 3, 0.0f, 40, 300, ops);
    dropout_apply(in_place, in_place, keys, 3, 0.0f, 40, 300, ops);
    CHECK_SAME_BITS(out, x, n);
    CHECK_SAME_BITS(in_place, x, n);
    ops_test_release();
}

// Correlation of two masks of N values that have nothing to do with each other: 0, give or take 1 / sqrt(N).
static double correlation(const float* a, const float* b, int n) {
    double sum = 0.0;
    for (int i = 0; i < n; i++) { sum += ((double)a[i] - 1.0) * ((double)b[i] - 1.0); }
    return sum / n;  // p 1/2: a mask is 0 or 2, its deviation 1
}

static void masks_are_independent(void) {
    enum { T = 200, C = 400, N = T * C };
    uint32_t *keys = random_keys(T), *next = ops_test_alloc(T * sizeof *next);
    for (int t = 0; t < T; t++) { next[t] = keys[t] + 1; }
    const float *mask = mask_of(keys, 17, 0.5f, T, C), *other_keys = mask_of(next, 17, 0.5f, T, C);
    const double few = 5.0 / sqrt(N);
    CHECK_NEAR(correlation(mask, mask, N), 1.0, 1e-9);
    CHECK_NEAR(correlation(mask, other_keys, N), 0.0, few);
    for (uint32_t place = 0; place < 40; place++) {
        if (place == 17) { continue; }
        CHECK_NEAR(correlation(mask, mask_of(keys, place, 0.5f, T, C), N), 0.0, few);
    }
    static const int columns_away[] = {1, 2, 3, 8, 16, 64, 128}, rows_away[] = {1, 2, 64};
    for (int i = 0; i < 7; i++) {
        CHECK_NEAR(correlation(mask, mask + columns_away[i], N - columns_away[i]), 0.0, 1.1 * few);
    }
    for (int i = 0; i < 3; i++) {
        CHECK_NEAR(correlation(mask, mask + rows_away[i] * C, N - rows_away[i] * C), 0.0, 1.3 * few);
    }
    ops_test_release();
}

// Heads of attention: each its own mask, and not another key token's.
static void heads_are_independent(void) {
    enum { Q = 100, K = 200, N = Q * K, HEADS = 8 };
    const uint32_t *q_keys = random_keys(Q), *k_keys = random_keys(K);
    float* masks = ops_test_floats(HEADS * N);
    for (uint32_t h = 0; h < HEADS; h++) {
        for (int i = 0; i < N; i++) {
            const uint32_t bits = dropout_bits(dropout_head_row(q_keys[i / K], 4, h), k_keys[i % K]);
            masks[h * N + (uint32_t)i] = bits < dropout_threshold(0.5f) ? 0.0f : 2.0f;
        }
    }
    for (int h = 0; h < HEADS; h++) {
        for (int g = 0; g < h; g++) {
            CHECK_NEAR(correlation(masks + h * N, masks + g * N, N), 0.0, 5.0 / sqrt(N));
        }
        CHECK_NEAR(correlation(masks + h * N, masks + h * N + K, N - K), 0.0, 5.1 / sqrt(N));
        CHECK_NEAR(correlation(masks + h * N, masks + h * N + 1, N - 1), 0.0, 5.1 / sqrt(N));
    }
    ops_test_release();
}

int main(int argc, char** argv) {
    ops_test_rng = rng_seed(test_seed(argc, argv));
    ops = ops_create(2);
    RUN(values_are_the_headers);
    RUN(the_share_p_falls);
    RUN(grouping_does_not_change_a_mask);
    RUN(backward_is_forward);
    RUN(nothing_falls_at_0);
    RUN(masks_are_independent);
    RUN(heads_are_independent);
    ops_free(ops);
    return test_end();
}
