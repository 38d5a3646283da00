// Laws of the feed-forward's gates, ReLU and gated GELU: equal to a double reference, whose gradient is a
// derivative; outputs over inputs change nothing; a NaN is not swallowed.
#include "ops_test.h"

static OpsContext* ops;

static double gelu(double x) {
    return 0.5 * x * (1.0 + tanh(sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double gelu_derivative(double x) {
    const double u = sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x), sech = 1.0 / cosh(u);
    return 0.5 * (1.0 + tanh(u)) + 0.5 * x * sech * sech * sqrt(2.0 / M_PI) * (1.0 + 3 * 0.044715 * x * x);
}

static void relu_keeps_what_is_positive(void) {
    const size_t n = 20011;
    float *x = ops_test_random(n, 2.0), *d = ops_test_random(n, 1.0), *out = ops_test_floats(n);
    float *dinp = ops_test_floats(n), *in_place = ops_test_copy(d, n), *over_x = ops_test_copy(x, n);
    x[7] = over_x[7] = 0.0f;
    relu_forward(out, x, n, ops);
    relu_backward(dinp, d, x, n, ops);
    relu_backward(in_place, in_place, x, n, ops);
    relu_backward(over_x, d, over_x, n, ops);
    for (size_t i = 0; i < n; i++) {
        CHECK(out[i] == (x[i] > 0.0f ? x[i] : 0.0f));
        CHECK(dinp[i] == (x[i] > 0.0f ? d[i] : 0.0f));
    }
    CHECK_SAME_BITS(in_place, dinp, n);
    CHECK_SAME_BITS(over_x, dinp, n);
    ops_test_release();
}

static void gated_gelu_equals_the_reference(void) {
    for (int i = 0; i < 20; i++) {
        const int T = rng_between(&ops_test_rng, 1, i % 2 ? 5 : 120), F = rng_between(&ops_test_rng, 1, 200);
        const size_t n = (size_t)T * (size_t)F, width = (size_t)F;
        float *x = ops_test_random(2 * n, 2.0), *d = ops_test_random(n, 1.0), *out = ops_test_floats(n);
        float *dinp = ops_test_floats(2 * n), *over_x = ops_test_copy(x, 2 * n);
        double *ref = ops_test_zero_doubles(n), *dref = ops_test_zero_doubles(2 * n);
        for (size_t j = 0; j < n; j++) {
            const size_t at = j / width * 2 * width + j % width;
            const double a = (double)x[at], b = (double)x[at + width];
            ref[j] = gelu(a) * b;
            dref[at] = (double)d[j] * b * gelu_derivative(a), dref[at + width] = (double)d[j] * gelu(a);
        }
        gated_gelu_forward(out, x, T, F, ops);
        gated_gelu_backward(dinp, d, x, T, F, ops);
        gated_gelu_backward(over_x, d, over_x, T, F, ops);
        CHECK_CLOSE(out, ref, n, 16 * (double)FLT_EPSILON);  // as in test_ops_gelu.c, one product more
        CHECK_CLOSE(dinp, dref, 2 * n, 24 * (double)FLT_EPSILON);
        CHECK_SAME_BITS(over_x, dinp, 2 * n);
        ops_test_release();
    }
}

// The reference above is a derivative: of gelu(a) b by a and by b, by central differences in double.
static void the_reference_is_a_derivative(void) {
    for (int i = 0; i < 300; i++) {
        const double a = (double)ops_test_normal(2.0), b = (double)ops_test_normal(1.0), h = 1e-5;
        CHECK_NEAR((gelu(a + h) * b - gelu(a - h) * b) / (2 * h), b * gelu_derivative(a), 1e-8);
        CHECK_NEAR((gelu(a) * (b + h) - gelu(a) * (b - h)) / (2 * h), gelu(a), 1e-8);
    }
}

static void ends_are_finite_and_a_nan_stays(void) {
    float x[8] = {-1e10f, 1e10f, -100.0f, 100.0f, 1.0f, 1.0f, 1.0f, 1.0f}, out[4], dinp[8];
    const float d[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    gated_gelu_forward(out, x, 1, 4, ops);
    gated_gelu_backward(dinp, d, x, 1, 4, ops);
    CHECK(fabsf(out[0]) < 1e-20f && out[1] == 1e10f && fabsf(out[2]) < 1e-20f && out[3] == 100.0f);
    CHECK(fabsf(dinp[0]) < 1e-8f && fabsf(dinp[2]) < 1e-30f && dinp[1] == 1.0f && dinp[3] == 1.0f);
    CHECK(fabsf(dinp[6]) < 1e-20f && dinp[7] == 100.0f);
    x[0] = NAN, x[5] = NAN;
    gated_gelu_forward(out, x, 1, 4, ops);
    CHECK(isnan(out[0]) && isnan(out[1]) && !isnan(out[2]));
    relu_forward(out, x, 4, ops);
    CHECK(isnan(out[0]) && out[1] == 1e10f && out[2] == 0.0f);
}

int main(int argc, char** argv) {
    ops_test_rng = rng_seed(test_seed(argc, argv));
    ops = ops_create(2);
    RUN(relu_keeps_what_is_positive);
    RUN(the_reference_is_a_derivative);
    RUN(gated_gelu_equals_the_reference);
    RUN(ends_are_finite_and_a_nan_stays);
    ops_free(ops);
    return test_end();
}
