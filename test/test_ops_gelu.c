// Laws of GELU and of the exp beneath it: relative accuracy over the whole range, and a gradient that is one.
#include "ops_test.h"
#include "../llmc/cpu/fast_math.h"

static OpsContext* ops;

// Every 97th float of [-87.3, 88.3]: the bound that fast_math.h states.
static void exp_is_accurate_everywhere(void) {
    double worst = 0.0;
    for (int sign = 0; sign < 2; sign++) {
        for (uint32_t bits = 0; bits < 0x42b09999u; bits += 97) {  // up to 88.3
            float x;
            const uint32_t word = bits | (uint32_t)sign << 31;
            memcpy(&x, &word, sizeof x);
            if (x < -87.3f) { break; }
            worst = fmax(worst, fabs((double)fast_expf(x) / exp((double)x) - 1.0));
        }
    }
    if (!(worst < 1.2e-7)) { printf("relative error %.3g\n", worst); }
    CHECK(worst < 1.2e-7);
}

static void exp_has_defined_ends(void) {
    CHECK(fast_expf(0.0f) == 1.0f);
    CHECK(fast_expf(-87.4f) == 0.0f);
    CHECK(fast_expf(-INFINITY) == 0.0f);
    CHECK(fast_expf(INFINITY) == fast_expf(88.3f));
    CHECK(fast_expf(INFINITY) < FLT_MAX);
    CHECK(isnan(fast_expf(NAN)));
}

static double gelu(double x) {
    return 0.5 * x * (1.0 + tanh(sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double gelu_derivative(double x) {
    const double u = sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x), sech = 1.0 / cosh(u);
    return 0.5 * (1.0 + tanh(u)) + 0.5 * x * sech * sech * sqrt(2.0 / M_PI) * (1.0 + 3 * 0.044715 * x * x);
}

static void the_derivative_is_one(void) {
    for (double x = -6.0; x < 6.0; x += 0.037) {
        CHECK_NEAR((gelu(x + 1e-5) - gelu(x - 1e-5)) / 2e-5, gelu_derivative(x), 1e-9);
    }
}

// Against the formula with tanh, which itself cancels for x < 0: the tolerance is absolute there, in units
// of 1.
static void values_equal_the_reference(void) {
    const size_t n = 20011;
    float *x = ops_test_random(n, 2.5), *d = ops_test_random(n, 1.0), *out = ops_test_floats(n);
    float *dinp = ops_test_floats(n), *in_place = ops_test_copy(d, n), *over_x = ops_test_copy(x, n);
    double *ref = ops_test_zero_doubles(n), *dref = ops_test_zero_doubles(n);
    for (size_t i = 0; i < n; i++) {
        ref[i] = gelu((double)x[i]);
        dref[i] = (double)d[i] * gelu_derivative((double)x[i]);
    }
    gelu_forward(out, x, n, ops);
    gelu_backward(dinp, d, x, n, ops);
    gelu_backward(in_place, in_place, x, n, ops);
    gelu_backward(over_x, d, over_x, n, ops);
    CHECK_CLOSE(out, ref, n, 8 * (double)FLT_EPSILON);  // exp 1, argument 2, quotient and product 1 each
    CHECK_CLOSE(dinp, dref, n, 16 * (double)FLT_EPSILON);
    CHECK_SAME_BITS(in_place, dinp, n);
    CHECK_SAME_BITS(over_x, dinp, n);
    ops_test_release();
}

// In the negative tail the value is x exp(-2 |u|): an error of the argument, eps |2 u|, becomes a relative
// error.
static void the_tails_stay_relatively_accurate(void) {
    for (float x = -5.0f; x < 0.0f; x += 0.01f) {
        float y;
        gelu_forward(&y, &x, 1, ops);
        const double u = sqrt(2.0 / M_PI) * ((double)x + 0.044715 * pow((double)x, 3.0));
        const double exact = (double)x * exp(2.0 * u) / (1.0 + exp(2.0 * u));
        CHECK_NEAR((double)y / exact, 1.0, (double)FLT_EPSILON * (4.0 + fabs(4.0 * u)));
    }
    const float ends[4] = {-1e30f, -20.0f, 20.0f, 1e30f}, one[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    float y[4];
    gelu_forward(y, ends, 4, ops);
    CHECK(fabsf(y[0]) < 1e-7f && fabsf(y[1]) < 1e-30f && y[2] == 20.0f && y[3] == 1e30f);
    gelu_backward(y, one, ends + 1, 2, ops);
    CHECK(fabsf(y[0]) < 1e-30f && y[1] == 1.0f);
}

int main(int argc, char** argv) {
    ops_test_rng = rng_seed(test_seed(argc, argv));
    ops = ops_create(2);
    RUN(exp_is_accurate_everywhere);
    RUN(exp_has_defined_ends);
    RUN(the_derivative_is_one);
    RUN(values_equal_the_reference);
    RUN(the_tails_stay_relatively_accurate);
    ops_free(ops);
    return test_end();
}
