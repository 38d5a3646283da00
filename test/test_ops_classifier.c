// Laws of the fused classifier: losses and gradients equal a double reference, a gradient row sums to zero,
// padding columns are zero, a scale of 0 leaves the logits alone, a NaN is not swallowed.
#include "ops_test.h"

static OpsContext* ops;

// loss of one row, and (softmax - onehot) * scale
static double reference_row(double* d, const double* x, int target, double scale, int V) {
    double max = x[0], sum = 0.0;
    for (int v = 0; v < V; v++) { max = fmax(max, x[v]); }
    for (int v = 0; v < V; v++) { sum += exp(x[v] - max); }
    for (int v = 0; v < V; v++) { d[v] = scale * (exp(x[v] - max) / sum - (v == target ? 1.0 : 0.0)); }
    return log(sum) + max - x[target];
}

static void check_case(int num_rows, int V, int Vp, double deviation, float scale) {
    const size_t width = (size_t)Vp, n = (size_t)num_rows * width;
    float *logits = ops_test_random(n, deviation), *losses = ops_test_floats((size_t)num_rows);
    float* kept = ops_test_copy(logits, n);
    double *x = ops_test_zero_doubles(width), *d = ops_test_zero_doubles(n);
    double* losses_ref = ops_test_zero_doubles((size_t)num_rows);
    int32_t* targets = ops_test_alloc((size_t)num_rows * sizeof *targets);
    for (int i = 0; i < num_rows; i++) {
        targets[i] = (int32_t)rng_below(&ops_test_rng, (uint32_t)V);
        for (int v = 0; v < V; v++) { x[v] = (double)logits[(size_t)i * width + (size_t)v]; }
        losses_ref[i] = reference_row(d + (size_t)i * width, x, targets[i], (double)scale, V);
    }
    fused_classifier(losses, logits, targets, scale, num_rows, V, Vp, ops);
    // eps for exp and for the difference of two values of size `deviation`
    const double tolerance = 16.0 * (double)FLT_EPSILON * (1.0 + deviation);
    CHECK_CLOSE(losses, losses_ref, (size_t)num_rows, tolerance);
    if (scale == 0.0f) {
        CHECK_SAME_BITS(logits, kept, n);
    } else {
        CHECK_CLOSE(logits, d, n, tolerance);
        for (int i = 0; i < num_rows; i++) {
            double sum = 0.0;
            for (int v = 0; v < V; v++) { sum += (double)logits[(size_t)i * width + (size_t)v]; }
            CHECK_NEAR(sum, 0.0, 16.0 * (double)FLT_EPSILON * fabs((double)scale));  // sqrt(256) in a block
            for (int v = V; v < Vp; v++) { CHECK(logits[(size_t)i * width + (size_t)v] == 0.0f); }
        }
    }
    ops_test_release();
}

static void values_equal_the_reference(void) {
    for (int i = 0; i < 30; i++) {
        const int V = rng_between(&ops_test_rng, 1, i % 2 ? 40 : 3000),
                  Vp = V + rng_between(&ops_test_rng, 0, 127);
        check_case(rng_between(&ops_test_rng, 1, 20), V, Vp, i % 3 == 0 ? 20.0 : 1.0,
                   i % 4 == 0 ? 0.0f : 0.37f);
    }
}

static void a_real_vocabulary_equals_the_reference(void) {
    check_case(3, 50257, 50304, 3.0, 1.0f / 3.0f);
}

static void no_rows_is_nothing_to_do(void) {
    fused_classifier(NULL, NULL, NULL, 1.0f, 0, 50257, 50304, ops);
}

// A target that is nearly certain: log(1 + e) and p - 1 would keep three digits if 1 were added first.
static void a_certain_target_keeps_its_gradient(void) {
    float logits[16] = {12.0f}, loss;
    const int32_t target = 0;
    fused_classifier(&loss, logits, &target, 1.0f, 1, 16, 16, ops);
    const double e = 15.0 * exp(-12.0);
    CHECK_NEAR((double)loss / log1p(e), 1.0, 1e-6);
    CHECK_NEAR((double)logits[0] / (-e / (1.0 + e)), 1.0, 1e-6);
}

static void a_nan_reaches_the_loss(void) {
    float logits[40] = {0}, loss = 0.0f;
    const int32_t target = 3;
    logits[17] = NAN;
    fused_classifier(&loss, logits, &target, 0.0f, 1, 40, 40, ops);
    CHECK(isnan(loss));
}

// Many rows at once, some with two equal maxima, padding columns larger than any: the first of a row's own.
static void argmax_of_rows_is_each_rows(void) {
    for (int i = 0; i < 20; i++) {
        const int num_rows = rng_between(&ops_test_rng, 0, 40), V = rng_between(&ops_test_rng, 1, 700);
        const int Vp = V + rng_between(&ops_test_rng, 0, 64);
        float* x = ops_test_random((size_t)(num_rows * Vp), 1.0);
        int32_t out[41], first[40];
        for (int r = 0; r < num_rows; r++) {
            for (int v = V; v < Vp; v++) { x[r * Vp + v] = 99.0f; }
            first[r] = (int32_t)rng_below(&ops_test_rng, (uint32_t)V);
            x[r * Vp + first[r]] = 10.0f;
            x[r * Vp + first[r] + (int)rng_below(&ops_test_rng, (uint32_t)(V - first[r]))] = 10.0f;
        }
        out[num_rows] = -5;
        argmax_rows(out, x, num_rows, V, Vp, ops);
        for (int r = 0; r < num_rows; r++) { CHECK_EQ(out[r], first[r]); }
        CHECK_EQ(out[num_rows], -5);
        ops_test_release();
    }
}

static void threads_do_not_change_bits(void) {
    enum { ROWS = 9, V = 1500 };
    OpsContext* one = ops_create(1);
    float *a = ops_test_random(ROWS * V, 2.0), *b = ops_test_copy(a, ROWS * V), la[ROWS], lb[ROWS];
    int32_t targets[ROWS];
    for (int i = 0; i < ROWS; i++) { targets[i] = (int32_t)rng_below(&ops_test_rng, V); }
    fused_classifier(la, a, targets, 0.5f, ROWS, V, V, ops);
    fused_classifier(lb, b, targets, 0.5f, ROWS, V, V, one);
    CHECK_SAME_BITS(a, b, ROWS * V);
    CHECK_SAME_BITS(la, lb, ROWS);
    ops_free(one);
    ops_test_release();
}

int main(int argc, char** argv) {
    ops_test_rng = rng_seed(test_seed(argc, argv));
    ops = ops_create(2);
    RUN(values_equal_the_reference);
    RUN(a_real_vocabulary_equals_the_reference);
    RUN(no_rows_is_nothing_to_do);
    RUN(a_certain_target_keeps_its_gradient);
    RUN(a_nan_reaches_the_loss);
    RUN(argmax_of_rows_is_each_rows);
    RUN(threads_do_not_change_bits);
    ops_free(ops);
    return test_end();
}
