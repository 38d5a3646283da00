// Laws of the RMS norm: equal to a double reference with any scale; its gradient is a derivative; the fused
// residual is residual, then norm; gradients of weights add, and do not depend on the number of threads.
#include "ops_test.h"

static OpsContext* ops;

typedef struct {
    size_t T, C;
    float scale;
    float *x, *w, *dout, *dresidual, *out, *rstd;
} Case;

static Case case_random(int i) {
    Case k = {.T = (size_t)rng_between(&ops_test_rng, 1, i % 2 ? 12 : 150),
              .C = (size_t)rng_between(&ops_test_rng, 1, 200)};
    if (i % 3 == 0) { k.C = 96; }
    k.scale = i % 4 == 1 ? 1.0f : 1.0f / sqrtf((float)k.C);
    // rows from 1e-4, where eps is a hundred times the mean of squares, to 10
    k.x = ops_test_random(k.T * k.C, 1.0);
    for (size_t j = 0; j < k.T * k.C; j++) { k.x[j] *= powf(10.0f, (float)(j / k.C % 6) - 4.0f); }
    k.w = ops_test_random(k.C, 1.0);
    k.dout = ops_test_random(k.T * k.C, 1.0), k.dresidual = ops_test_random(k.T * k.C, 1.0);
    k.out = ops_test_floats(k.T * k.C), k.rstd = ops_test_floats(k.T);
    rmsnorm_forward(k.out, k.rstd, k.x, k.w, k.scale, (int)k.T, (int)k.C, ops);
    return k;
}

static double* doubles_of(const float* x, size_t n) {
    double* d = ops_test_zero_doubles(n);
    for (size_t i = 0; i < n; i++) { d[i] = (double)x[i]; }
    return d;
}

static double reference_rstd(const double* x, size_t C) {
    double squares = 0.0;
    for (size_t c = 0; c < C; c++) { squares += x[c] * x[c]; }
    return 1.0 / sqrt(squares / (double)C + 1e-6);
}

static void reference_forward(double* out, double* rstd, const double* x, const double* w, const Case* k) {
    for (size_t t = 0; t < k->T; t++) {
        rstd[t] = reference_rstd(x + t * k->C, k->C);
        for (size_t c = 0; c < k->C; c++) {
            out[t * k->C + c] = x[t * k->C + c] * rstd[t] * w[c] * (double)k->scale;
        }
    }
}

// dx, dw += those of sum(dout out), from the formulas of the derivative.
static void reference_backward(double* dx, double* dw, const double* x, const double* w, const Case* k) {
    const size_t C = k->C;
    for (size_t t = 0; t < k->T; t++) {
        const double *row = x + t * C, rstd = reference_rstd(row, C);
        const float* d = k->dout + t * C;
        double mean = 0.0;
        for (size_t c = 0; c < C; c++) {
            const double g = (double)d[c] * (double)k->scale;
            dw[c] += g * row[c] * rstd, mean += g * w[c] * row[c] * rstd / (double)C;
        }
        for (size_t c = 0; c < C; c++) {
            dx[t * C + c] += rstd * ((double)d[c] * (double)k->scale * w[c] - row[c] * rstd * mean);
        }
    }
}

// Sums of up to 200 squares in lanes, a root, a quotient, three products.
static const double tolerance = 32.0 * (double)FLT_EPSILON;

static void forward_equals_the_reference(void) {
    for (int i = 0; i < 30; i++) {
        Case k = case_random(i);
        const size_t n = k.T * k.C;
        double *ref = ops_test_zero_doubles(n), *rstd = ops_test_zero_doubles(k.T);
        reference_forward(ref, rstd, doubles_of(k.x, n), doubles_of(k.w, k.C), &k);
        for (size_t t = 0; t < k.T; t++) {  // each row by itself: their sizes differ
            CHECK_CLOSE(k.out + t * k.C, ref + t * k.C, k.C, tolerance);
            CHECK_NEAR((double)k.rstd[t] / rstd[t], 1.0, tolerance);
        }
        ops_test_release();
    }
}

static void backward_equals_the_reference(void) {
    for (int i = 0; i < 30; i++) {
        Case k = case_random(i);
        const size_t n = k.T * k.C;
        float *dw = ops_test_random(k.C, 1.0), *dx = ops_test_copy(k.dresidual, n);
        double *dw_ref = doubles_of(dw, k.C), *dx_ref = doubles_of(k.dresidual, n);
        float *dw2 = ops_test_copy(dw, k.C), *dx2 = ops_test_copy(k.dout, n);
        if (i % 3 == 2) { memset(dx_ref, 0, n * sizeof *dx_ref); }
        reference_backward(dx_ref, dw_ref, doubles_of(k.x, n), doubles_of(k.w, k.C), &k);
        // the residual's gradient: in place; elsewhere, and dinp over dout; absent
        const float* dresidual = i % 3 == 0 ? dx : i % 3 == 1 ? k.dresidual : NULL;
        rmsnorm_backward(dx, dw, dresidual, k.dout, k.x, k.w, k.rstd, k.scale, (int)k.T, (int)k.C, ops);
        for (size_t t = 0; t < k.T; t++) {
            // a single channel has no direction to move in: only the difference of equals is left
            const double cancels = k.C < 8 ? 40.0 : 1.0;
            const double unit =
                fmax(ops_test_rms(dx_ref + t * k.C, k.C), (double)k.rstd[t] * (double)k.scale);
            for (size_t c = 0; c < k.C; c++) {
                CHECK_NEAR((double)dx[t * k.C + c], dx_ref[t * k.C + c], 4 * cancels * tolerance * unit);
            }
        }
        CHECK_CLOSE(dw, dw_ref, k.C, 4 * tolerance);
        dresidual = i % 3 == 2 ? NULL : k.dresidual;
        rmsnorm_backward(dx2, dw2, dresidual, dx2, k.x, k.w, k.rstd, k.scale, (int)k.T, (int)k.C, ops);
        CHECK_SAME_BITS(dx2, dx, n);
        CHECK_SAME_BITS(dw2, dw, k.C);
        ops_test_release();
    }
}

static void the_reference_is_a_derivative(void) {
    Case k = case_random(1);
    const size_t n = k.T * k.C;
    double *x = doubles_of(k.x, n), *w = doubles_of(k.w, k.C);
    double *dx = ops_test_zero_doubles(n), *dw = ops_test_zero_doubles(k.C);
    double *out = ops_test_zero_doubles(n), *rstd = ops_test_zero_doubles(k.T);
    reference_backward(dx, dw, x, w, &k);
    for (int i = 0; i < 90; i++) {
        const size_t j = rng_below(&ops_test_rng, (uint32_t)(i % 2 ? k.C : n));
        double* at = (i % 2 ? w : x) + j;
        const double kept = *at, expected = (i % 2 ? dw : dx)[j];
        const double h = i % 2 ? 1e-5 : 1e-4 / reference_rstd(x + j / k.C * k.C, k.C);
        double sum[2] = {0.0, 0.0};
        for (int side = 0; side < 2; side++) {
            *at = kept + (side ? h : -h);
            reference_forward(out, rstd, x, w, &k);
            for (size_t m = 0; m < n; m++) { sum[side] += out[m] * (double)k.dout[m]; }
        }
        *at = kept;
        CHECK_NEAR((sum[1] - sum[0]) / (2 * h), expected, 1e-6 * (1.0 / h * 1e-4 + fabs(expected)));
    }
    ops_test_release();
}

static void fused_residual_is_residual_then_norm(void) {
    for (int i = 0; i < 10; i++) {
        Case k = case_random(i);
        const size_t n = k.T * k.C;
        float *sum = ops_test_floats(n), *sum2 = ops_test_copy(k.x, n), *out = ops_test_floats(n);
        float* rstd = ops_test_floats(k.T);
        residual_forward(sum, k.x, k.dout, n, ops);
        rmsnorm_forward(k.out, k.rstd, sum, k.w, k.scale, (int)k.T, (int)k.C, ops);
        residual_rmsnorm_forward(sum2, out, rstd, sum2, k.dout, k.w, k.scale, (int)k.T, (int)k.C, ops);
        CHECK_SAME_BITS(sum2, sum, n);
        CHECK_SAME_BITS(out, k.out, n);
        CHECK_SAME_BITS(rstd, k.rstd, k.T);
        ops_test_release();
    }
}

static void a_row_of_zeros_is_finite(void) {
    float x[16] = {0}, w[16], d[16], dx[16], dw[16] = {0}, out[16], rstd;
    for (int c = 0; c < 16; c++) { w[c] = 1.0f, d[c] = (float)c; }
    rmsnorm_forward(out, &rstd, x, w, 1.0f, 1, 16, ops);
    rmsnorm_backward(dx, dw, NULL, d, x, w, &rstd, 1.0f, 1, 16, ops);
    CHECK_NEAR((double)rstd, 1e3, 1e-2);
    for (int c = 0; c < 16; c++) { CHECK(out[c] == 0.0f && dw[c] == 0.0f && dx[c] == d[c] * rstd); }
}

static void threads_do_not_change_bits(void) {
    OpsContext* one = ops_create(1);
    Case k = case_random(0);
    while (k.T * k.C < 9000) { ops_test_release(), k = case_random(0); }  // enough to be worth threads
    float* got[2][2];
    for (int j = 0; j < 2; j++) {
        got[j][0] = ops_test_floats(k.T * k.C), got[j][1] = ops_test_copy(k.w, k.C);
        rmsnorm_backward(got[j][0], got[j][1], NULL, k.dout, k.x, k.w, k.rstd, k.scale, (int)k.T, (int)k.C,
                         j ? one : ops);
    }
    CHECK_SAME_BITS(got[0][0], got[1][0], k.T * k.C);
    CHECK_SAME_BITS(got[0][1], got[1][1], k.C);
    ops_test_release();
    ops_free(one);
}

int main(int argc, char** argv) {
    ops_test_rng = rng_seed(test_seed(argc, argv));
    ops = ops_create(2);
    RUN(the_reference_is_a_derivative);
    RUN(forward_equals_the_reference);
    RUN(backward_equals_the_reference);
    RUN(fused_residual_is_residual_then_norm);
    RUN(a_row_of_zeros_is_finite);
    RUN(threads_do_not_change_bits);
    ops_free(ops);
    return test_end();
}
