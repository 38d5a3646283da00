// test_cuda_gelu.c -- gelu.cu against the CPU's, value by value relative to the CPU's own, tails included.
#include "cuda_test.h"

#include <math.h>

#define FLOAT_EPS 6e-8

// Relative: one rounding to floatX; exp (2 ulp each), a sum and a division; and the exponent of e, which
// rounds three times on either side (the orders differ), so that |exponent| * 6 eps becomes relative error of
// exp.
static double gelu_tolerance(double x) {
    const double exponent = 1.596 * fabs(x) * (1.0 + 0.044715 * x * x);
    return FLOATX_EPS + FLOAT_EPS * (8.0 + 6.0 * fmin(exponent, 88.0));
}

static const size_t num_values_of[] = {0, 1, 7, 8, 9, 1001, 4096, 20011};

static void check_values(Pair pair, Pair x, const char* what) {
    const float* got = pair_download(pair);
    for (size_t i = 0; i < pair.num_values; i++) {
        const double ref = pair.host[i], error = fabs((double)got[i] - ref);
        if (!(error <= gelu_tolerance((double)x.host[i]) * fabs(ref) + 1e-30)) {
            printf("%s[%zu of %zu]: %g, the CPU has %g\n", what, i, pair.num_values, (double)got[i], ref);
            CHECK(!"within gelu_tolerance");
            return;
        }
    }
}

// Deviation 3: from -10, where gelu is -1e-22, to 10.
static Pair inputs(size_t num_values) {
    Pair x = pair_random(num_values, 3.0);
    for (size_t i = 0; i < num_values && i < 4; i++) { x.host[i] = (float[]){0.0f, -40.0f, 1e4f, -1e4f}[i]; }
    pair_to_device(x);
    return x;
}

static void forward_equals_the_cpus(void) {
    for (size_t i = 0; i < sizeof num_values_of / sizeof *num_values_of; i++) {
        const size_t n = num_values_of[i];
        Pair x = inputs(n), y = pair_filled(n, NAN);
        gelu_forward(pair_x(y), pair_x(x), n, cuda_test_ops);
        cpu_gelu_forward(y.host, x.host, n);
        check_values(y, x, "gelu_forward");
        pair_release();
    }
}

// In units of the gradients' size: gelu' crosses zero near -0.75, where terms cancel. Tails weigh nothing
// here, so the exponent is of order 1: 16 eps.
static void backward_equals_the_cpus(void) {
    for (size_t i = 0; i < sizeof num_values_of / sizeof *num_values_of; i++) {
        const size_t n = num_values_of[i];
        Pair x = inputs(n), d = pair_random(n, 1.0), dx = pair_filled(n, NAN);
        gelu_backward(pair_x(dx), pair_x(d), pair_x(x), n, cuda_test_ops);
        cpu_gelu_backward(dx.host, d.host, x.host, n);
        CHECK_PAIR(dx, FLOATX_EPS + 16 * FLOAT_EPS);
        pair_release();
    }
}

static void backward_in_place_gives_the_same_bits(void) {
    const size_t n = 3001;
    Pair x = inputs(n), d = pair_random(n, 1.0), dx = pair_filled(n, NAN);
    gelu_backward(pair_x(dx), pair_x(d), pair_x(x), n, cuda_test_ops);
    const float* apart = pair_download(dx);
    Pair d2 = pair_filled(n, 0), x2 = pair_filled(n, 0);
    memcpy(d2.host, d.host, n * sizeof(float));
    memcpy(x2.host, x.host, n * sizeof(float));
    pair_to_device(d2);
    pair_to_device(x2);
    gelu_backward(pair_x(d2), pair_x(d2), pair_x(x), n, cuda_test_ops);  // over dout
    gelu_backward(pair_x(x2), pair_x(d), pair_x(x2), n, cuda_test_ops);  // over inp
    CHECK(memcmp(apart, pair_download(d2), n * sizeof(float)) == 0);
    CHECK(memcmp(apart, pair_download(x2), n * sizeof(float)) == 0);
    pair_release();
}

// An array that begins between two vectors takes the scalar path.
static void any_beginning_works(void) {
    const size_t n = 300;
    Pair x = inputs(n), y = pair_filled(n, 0);
    gelu_forward(pair_x(y) + 1, pair_x(x) + 1, n - 1, cuda_test_ops);
    cpu_gelu_forward(y.host + 1, x.host + 1, n - 1);
    check_values(y, x, "gelu_forward");
    pair_release();
}

int main(int argc, char** argv) {
    cuda_test_begin(argc, argv);
    RUN(forward_equals_the_cpus);
    RUN(backward_equals_the_cpus);
    RUN(backward_in_place_gives_the_same_bits);
    RUN(any_beginning_works);
    cuda_test_end();
    return test_end();
}
