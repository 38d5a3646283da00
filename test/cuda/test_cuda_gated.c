// test_cuda_gated.c -- gated.cu against the CPU's: ReLU exactly, gated GELU value by value, tails included.
#include "cuda_test.h"

#include <math.h>

#define FLOAT_EPS 6e-8

static const size_t num_values_of[] = {0, 1, 7, 8, 9, 1001, 4096, 20011};
enum { NUM_SIZES = sizeof num_values_of / sizeof *num_values_of };

typedef struct {
    int T, F;
} Shape;

// One value; whole vectors and not; several blocks.
static const Shape chosen[] = {{1, 1},   {1, 8},    {3, 7},    {2, 9},   {5, 64},
                               {33, 40}, {7, 1000}, {2, 2816}, {257, 24}};
enum { NUM_CHOSEN = sizeof chosen / sizeof *chosen, NUM_RANDOM = 6 };

static Shape shape_of(int i) {
    if (i < NUM_CHOSEN) { return chosen[i]; }
    Shape shape = {rng_between(&cuda_test_rng, 1, 60), rng_between(&cuda_test_rng, 1, 300)};
    if (i % 2 == 0) { shape.F = (shape.F + 7) / 8 * 8; }
    return shape;
}

// Zeros of both signs among them.
static Pair relu_inputs(size_t n) {
    Pair x = pair_random(n, 1.0);
    for (size_t i = 0; i < n; i += 5) { x.host[i] = i % 2 == 0 ? 0.0f : -0.0f; }
    pair_to_device(x);
    return x;
}

static void relu_equals_the_cpus_exactly(void) {
    for (int i = 0; i < NUM_SIZES; i++) {
        const size_t n = num_values_of[i];
        Pair x = relu_inputs(n), d = pair_random(n, 1.0), y = pair_filled(n, NAN), dx = pair_filled(n, NAN);
        relu_forward(pair_x(y), pair_x(x), n, cuda_test_ops);
        relu_backward(pair_x(dx), pair_x(d), pair_x(x), n, cuda_test_ops);
        cpu_relu_forward(y.host, x.host, n);
        cpu_relu_backward(dx.host, d.host, x.host, n);
        CHECK_PAIR(y, 0);
        CHECK_PAIR(dx, 0);
        Pair over_dout = pair_copy_of(d), over_inp = pair_copy_of(x), over = pair_copy_of(x);
        relu_backward(pair_x(over_dout), pair_x(over_dout), pair_x(x), n, cuda_test_ops);
        relu_backward(pair_x(over_inp), pair_x(d), pair_x(over_inp), n, cuda_test_ops);
        relu_forward(pair_x(over), pair_x(over), n, cuda_test_ops);
        CHECK(pair_same_bits(over_dout, dx) && pair_same_bits(over_inp, dx) && pair_same_bits(over, y));
        pair_release();
    }
}

// So that the loss shows it; an array that begins between two vectors takes the scalar path.
static void relu_keeps_a_nan_on_every_path(void) {
    Pair x = pair_filled(300, NAN), y = pair_filled(300, 1.0f);
    relu_forward(pair_x(y), pair_x(x), 100, cuda_test_ops);
    relu_forward(pair_x(y) + 101, pair_x(x) + 101, 199, cuda_test_ops);
    const float* got = pair_download(y);
    int num_nan = 0;
    for (int i = 0; i < 300; i++) { num_nan += isnan(got[i]) != 0; }
    CHECK_EQ(num_nan, 299);
    pair_release();
}

// a | b with a in the tails, too.
static Pair gated_inputs(int T, int F) {
    Pair x = pair_random((size_t)T * 2 * (size_t)F, 3.0);
    for (int f = 0; f < F && f < 4; f++) { x.host[f] = (float[]){0.0f, -40.0f, 1e4f, -1e4f}[f]; }
    pair_to_device(x);
    return x;
}

// Relative: roundings to floatX and of a few products; exp (2 ulp each) of an exponent whose own roundings, 6
// eps of it, become relative error (test_cuda_gelu.c). Where e overflows gelu is 1e-31, times a gate of up
// to 10.
static double gelu_tolerance(double x) {
    const double exponent = 1.596 * fabs(x) * (1.0 + 0.044715 * x * x);
    return FLOATX_EPS + FLOAT_EPS * (12.0 + 6.0 * fmin(exponent, 88.0));
}

// Every value relative to the CPU's own; a (T, 2F) of each.
static void check_relative(Pair pair, const float* ref, Pair inp, int F, const char* what) {
    const float* got = pair_download(pair);
    for (size_t i = 0; i < pair.num_values; i++) {
        const size_t t = i / (size_t)F, f = i % (size_t)F;
        const double a = (double)inp.host[t * 2 * (size_t)F + f];
        if (!(fabs((double)got[i] - (double)ref[i]) <= gelu_tolerance(a) * fabs((double)ref[i]) + 1e-29)) {
            printf("%s[%zu of %zu]: %g, the CPU has %g\n", what, i, pair.num_values, (double)got[i],
                   (double)ref[i]);
            CHECK(!"within gelu_tolerance");
            return;
        }
    }
}

static void gated_forward_equals_the_cpus(void) {
    for (int i = 0; i < NUM_CHOSEN + NUM_RANDOM; i++) {
        const int T = shape_of(i).T, F = shape_of(i).F;
        Pair x = gated_inputs(T, F), y = pair_filled((size_t)T * (size_t)F, NAN);
        gated_gelu_forward(pair_x(y), pair_x(x), T, F, cuda_test_ops);
        cpu_gated_gelu_forward(y.host, x.host, T, F);
        check_relative(y, y.host, x, F, "gated_gelu_forward");
        pair_release();
    }
}

// In units of the gradients' size: gelu' crosses zero near -0.75, where terms cancel.
static void gated_backward_equals_the_cpus_also_in_place(void) {
    for (int i = 0; i < NUM_CHOSEN + NUM_RANDOM; i++) {
        const int T = shape_of(i).T, F = shape_of(i).F;
        const size_t n = (size_t)T * (size_t)F;
        Pair x = pair_random(2 * n, 1.5), d = pair_random(n, 1.0), dx = pair_filled(2 * n, NAN);
        gated_gelu_backward(pair_x(dx), pair_x(d), pair_x(x), T, F, cuda_test_ops);
        cpu_gated_gelu_backward(dx.host, d.host, x.host, T, F);
        CHECK_PAIR(dx, FLOATX_EPS + 32 * FLOAT_EPS);
        Pair over = pair_copy_of(x);
        gated_gelu_backward(pair_x(over), pair_x(d), pair_x(over), T, F, cuda_test_ops);
        CHECK(pair_same_bits(over, dx));
        pair_release();
    }
}

static void no_rows_is_no_work(void) {
    Pair x = pair_filled(16, 1);
    gated_gelu_forward(pair_x(x), pair_x(x), 0, 8, cuda_test_ops);
    gated_gelu_backward(pair_x(x), pair_x(x), pair_x(x), 0, 8, cuda_test_ops);
    CHECK_PAIR(x, 0);
    pair_release();
}

int main(int argc, char** argv) {
    cuda_test_begin(argc, argv);
    RUN(relu_equals_the_cpus_exactly);
    RUN(relu_keeps_a_nan_on_every_path);
    RUN(gated_forward_equals_the_cpus);
    RUN(gated_backward_equals_the_cpus_also_in_place);
    RUN(no_rows_is_no_work);
    cuda_test_end();
    return test_end();
}
