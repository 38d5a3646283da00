// Laws of the norm: equal to a double reference; its gradient is a derivative; the fused residual is
// residual, then norm; gradients of weights add, and do not depend on the number of threads.
#include "ops_test.h"

static OpsContext* ops;

static void reference_forward(double* out, const double* x, const double* w, const double* b, size_t T,
                              size_t C) {
    for (size_t t = 0; t < T; t++) {
        double mean = 0.0, var = 0.0;
        for (size_t c = 0; c < C; c++) { mean += x[t * C + c] / (double)C; }
        for (size_t c = 0; c < C; c++) { var += pow(x[t * C + c] - mean, 2.0) / (double)C; }
        for (size_t c = 0; c < C; c++) {
            out[t * C + c] = (x[t * C + c] - mean) / sqrt(var + 1e-5) * w[c] + b[c];
        }
    }
}

typedef struct {
    size_t T, C;
    float *x, *w, *b, *dout, *dresidual, *out, *mean, *rstd;
} Case;

static Case case_random(int i) {
    Case k = {.T = (size_t)rng_between(&ops_test_rng, 1, i % 2 ? 12 : 150),
              .C = (size_t)rng_between(&ops_test_rng, 2, 200)};
    if (i % 3 == 0) { k.C = 96; }
    k.x = ops_test_random(k.T * k.C, 2.0);
    for (size_t j = 0; j < k.T * k.C; j++) { k.x[j] += 3.0f; }  // a mean that does not vanish
    k.w = ops_test_random(k.C, 1.0), k.b = ops_test_random(k.C, 1.0);
    k.dout = ops_test_random(k.T * k.C, 1.0), k.dresidual = ops_test_random(k.T * k.C, 1.0);
    k.out = ops_test_floats(k.T * k.C), k.mean = ops_test_floats(k.T), k.rstd = ops_test_floats(k.T);
    layernorm_forward(k.out, k.mean, k.rstd, k.x, k.w, k.b, (int)k.T, (int)k.C, ops);
    return k;
}

static double* doubles_of(const float* x, size_t n) {
    double* d = ops_test_zero_doubles(n);
    for (size_t i = 0; i < n; i++) { d[i] = (double)x[i]; }
    return d;
}

// A row's spread is an estimate from C values: with few channels it can be a hundred times smaller than its
// mean, and then so many times eps is the error of x - mean. From 16 channels on, mean and spread are of one
// size.
static double tolerance_for(size_t C) {
    return C < 16 ? 1e-3 : 64.0 * (double)FLT_EPSILON;
}

static void forward_equals_the_reference(void) {
    for (int i = 0; i < 30; i++) {
        Case k = case_random(i);
        const size_t n = k.T * k.C;
        double* ref = ops_test_zero_doubles(n);
        reference_forward(ref, doubles_of(k.x, n), doubles_of(k.w, k.C), doubles_of(k.b, k.C), k.T, k.C);
        CHECK_CLOSE(k.out, ref, n, tolerance_for(k.C));
        ops_test_release();
    }
}

// dx, dw, db of sum(dout out) in double, from the formulas of the derivative.
static void reference_backward(double* dx, double* dw, double* db, const Case* k) {
    const size_t C = k->C;
    for (size_t t = 0; t < k->T; t++) {
        double mean = 0.0, var = 0.0, sum_g = 0.0, sum_gx = 0.0;
        const float *x = k->x + t * C, *d = k->dout + t * C;
        for (size_t c = 0; c < C; c++) { mean += (double)x[c] / (double)C; }
        for (size_t c = 0; c < C; c++) { var += pow((double)x[c] - mean, 2.0) / (double)C; }
        const double rstd = 1.0 / sqrt(var + 1e-5);
        for (size_t c = 0; c < C; c++) {
            const double g = (double)d[c] * (double)k->w[c], xhat = ((double)x[c] - mean) * rstd;
            sum_g += g / (double)C, sum_gx += g * xhat / (double)C;
            dw[c] += (double)d[c] * xhat, db[c] += (double)d[c];
        }
        for (size_t c = 0; c < C; c++) {
            dx[t * C + c] +=
                rstd * ((double)d[c] * (double)k->w[c] - sum_g - ((double)x[c] - mean) * rstd * sum_gx);
        }
    }
}

static void backward_equals_the_reference(void) {
    for (int i = 0; i < 30; i++) {
        Case k = case_random(i);
        const size_t n = k.T * k.C;
        float *dw = ops_test_random(k.C, 1.0), *db = ops_test_random(k.C, 1.0),
              *dx = ops_test_copy(k.dresidual, n);
        double *dw_ref = doubles_of(dw, k.C), *db_ref = doubles_of(db, k.C),
               *dx_ref = doubles_of(k.dresidual, n);
        float *dw2 = ops_test_copy(dw, k.C), *db2 = ops_test_copy(db, k.C), *dx2 = ops_test_copy(k.dout, n);
        if (i % 3 == 2) { memset(dx_ref, 0, n * sizeof *dx_ref); }
        reference_backward(dx_ref, dw_ref, db_ref, &k);
        // the residual's gradient: in place; elsewhere, and dinp over dout; absent
        const float* dresidual = i % 3 == 0 ? dx : i % 3 == 1 ? k.dresidual : NULL;
        layernorm_backward(dx, dw, db, dresidual, k.dout, k.x, k.w, k.mean, k.rstd, (int)k.T, (int)k.C, ops);
        CHECK_CLOSE(dx, dx_ref, n, 4 * tolerance_for(k.C));
        CHECK_CLOSE(dw, dw_ref, k.C, 4 * tolerance_for(k.C));
        CHECK_CLOSE(db, db_ref, k.C, 8.0 * (double)FLT_EPSILON * sqrt((double)k.T));
        dresidual = i % 3 == 2 ? NULL : k.dresidual;
        layernorm_backward(dx2, dw2, db2, dresidual, dx2, k.x, k.w, k.mean, k.rstd, (int)k.T, (int)k.C, ops);
        CHECK_SAME_BITS(dx2, dx, n);
        CHECK_SAME_BITS(dw2, dw, k.C);
        CHECK_SAME_BITS(db2, db, k.C);
        ops_test_release();
    }
}

static void the_reference_is_a_derivative(void) {
    Case k = case_random(1);
    const size_t n = k.T * k.C;
    double *x = doubles_of(k.x, n), *w = doubles_of(k.w, k.C), *b = doubles_of(k.b, k.C);
    double *dx = ops_test_zero_doubles(n), *dw = ops_test_zero_doubles(k.C), *db = ops_test_zero_doubles(k.C);
    double* out = ops_test_zero_doubles(n);
    reference_backward(dx, dw, db, &k);
    for (int i = 0; i < 90; i++) {
        const size_t j = rng_below(&ops_test_rng, (uint32_t)(i % 3 ? k.C : n));
        double* at = (i % 3 == 0 ? x : i % 3 == 1 ? w : b) + j;
        const double h = 1e-5, kept = *at, expected = (i % 3 == 0 ? dx : i % 3 == 1 ? dw : db)[j];
        double sum[2] = {0.0, 0.0};
        for (int side = 0; side < 2; side++) {
            *at = kept + (side ? h : -h);
            reference_forward(out, x, w, b, k.T, k.C);
            for (size_t m = 0; m < n; m++) { sum[side] += out[m] * (double)k.dout[m]; }
        }
        *at = kept;
        CHECK_NEAR((sum[1] - sum[0]) / (2 * h), expected, 1e-6 * (1.0 + fabs(expected)));
    }
    ops_test_release();
}

static void fused_residual_is_residual_then_norm(void) {
    for (int i = 0; i < 10; i++) {
        Case k = case_random(i);
        const size_t n = k.T * k.C;
        float *sum = ops_test_floats(n), *sum2 = ops_test_copy(k.x, n), *out = ops_test_floats(n);
        float *mean = ops_test_floats(k.T), *rstd = ops_test_floats(k.T);
        residual_forward(sum, k.x, k.dout, n, ops);
        layernorm_forward(k.out, k.mean, k.rstd, sum, k.w, k.b, (int)k.T, (int)k.C, ops);
        residual_layernorm_forward(sum2, out, mean, rstd, sum2, k.dout, k.w, k.b, (int)k.T, (int)k.C, ops);
        CHECK_SAME_BITS(sum2, sum, n);
        CHECK_SAME_BITS(out, k.out, n);
        CHECK_SAME_BITS(mean, k.mean, k.T);
        CHECK_SAME_BITS(rstd, k.rstd, k.T);
        for (size_t j = 0; j < n; j++) { CHECK(sum[j] == k.x[j] + k.dout[j]); }
        ops_test_release();
    }
}

static void threads_do_not_change_bits(void) {
    OpsContext* one = ops_create(1);
    for (int i = 0; i < 2; i++) {
        Case k = case_random(0);
        float* got[2][3];
        for (int j = 0; j < 2; j++) {
            got[j][0] = ops_test_floats(k.T * k.C);
            got[j][1] = ops_test_copy(k.w, k.C), got[j][2] = ops_test_copy(k.b, k.C);
            layernorm_backward(got[j][0], got[j][1], got[j][2], NULL, k.dout, k.x, k.w, k.mean, k.rstd,
                               (int)k.T, (int)k.C, j ? one : ops);
        }
        CHECK_SAME_BITS(got[0][0], got[1][0], k.T * k.C);
        CHECK_SAME_BITS(got[0][1], got[1][1], k.C);
        CHECK_SAME_BITS(got[0][2], got[1][2], k.C);
        ops_test_release();
    }
    ops_free(one);
}

int main(int argc, char** argv) {
    ops_test_rng = rng_seed(test_seed(argc, argv));
    ops = ops_create(2);
    RUN(the_reference_is_a_derivative);
    RUN(forward_equals_the_reference);
    RUN(backward_equals_the_reference);
    RUN(fused_residual_is_residual_then_norm);
    RUN(threads_do_not_change_bits);
    ops_free(ops);
    return test_end();
}
