// test_cuda_layernorm.c -- layernorm.cu and layernorm_backward.cu against the CPU's over random and chosen
// shapes.
#include "cuda_test.h"

#include <math.h>

#define FLOAT_EPS 6e-8
// Roundings of float32 on the way to a value of the outputs' size (rstd, a difference, products, sums), then
// one to floatX.
#define ROW_TOLERANCE (FLOATX_EPS + 16 * FLOAT_EPS)

typedef struct {
    int T, C;
} Shape;

// Every path: a warp per row with 1 to 8 vectors per thread, a block per row, columns that are no whole
// vectors, rows beyond what registers hold.
static const Shape chosen[] = {{1, 8},     {1, 9},     {2, 300},  {5, 264},  {3, 520},  {2, 768},
                               {7, 1024},  {2, 1600},  {2, 2304}, {3, 3000}, {2, 5000}, {2, 8200},
                               {2, 16392}, {1, 16391}, {199, 24}, {64, 40}};
enum { NUM_CHOSEN = sizeof chosen / sizeof *chosen, NUM_RANDOM = 10 };

static Shape shape_of(int i) {
    if (i < NUM_CHOSEN) { return chosen[i]; }
    Shape shape = {rng_between(&cuda_test_rng, 1, 200), rng_between(&cuda_test_rng, 8, 300)};
    if (i % 2 == 0) { shape.C = shape.C / 8 * 8; }
    return shape;
}

// Values around `mean`, so that a variance computed as a difference of squares would show.
static Pair values_around(size_t num_values, float mean) {
    Pair pair = pair_random(num_values, 1.0);
    for (size_t i = 0; i < num_values; i++) { pair.host[i] += mean; }
    pair_to_device(pair);
    return pair;
}

static void forward_equals_the_cpus(void) {
    for (int i = 0; i < NUM_CHOSEN + NUM_RANDOM; i++) {
        const int T = shape_of(i).T, C = shape_of(i).C;
        const size_t n = (size_t)T * (size_t)C;
        Pair x = values_around(n, 3.0f), w = pair_random((size_t)C, 1.0), b = pair_random((size_t)C, 1.0);
        Pair y = pair_filled(n, NAN), mean = pair_floats((size_t)T, NAN), rstd = pair_floats((size_t)T, NAN);
        layernorm_forward(pair_x(y), pair_f(mean), pair_f(rstd), pair_x(x), pair_x(w), pair_x(b), T, C,
                          cuda_test_ops);
        cpu_layernorm_forward(y.host, mean.host, rstd.host, x.host, w.host, b.host, T, C);
        // A mean of 3 that is off by some eps moves all of a row whose deviation is 1; both sides' sums are
        // off by about sqrt(C / lanes) roundings.
        const double sums = 4 * FLOAT_EPS * (4 + sqrt((double)C / 8));
        CHECK_PAIR(mean, sums);
        CHECK_PAIR(rstd, sums);
        CHECK_PAIR(y, ROW_TOLERANCE + 3 * 3 * sums);
        pair_release();
    }
}

// The norm is of the sum as it was written: in bf16, rounded.
static void residual_norm_is_the_norm_of_the_written_sum(void) {
    for (int i = 0; i < NUM_CHOSEN + NUM_RANDOM; i++) {
        const int T = shape_of(i).T, C = shape_of(i).C;
        const size_t n = (size_t)T * (size_t)C;
        Pair a = pair_random(n, 1.0), b = pair_random(n, 1.0), w = pair_random((size_t)C, 1.0);
        Pair bias = pair_random((size_t)C, 1.0), sum = pair_filled(n, NAN), y = pair_filled(n, NAN);
        Pair mean = pair_floats((size_t)T, NAN), rstd = pair_floats((size_t)T, NAN);
        residual_layernorm_forward(pair_x(sum), pair_x(y), pair_f(mean), pair_f(rstd), pair_x(a), pair_x(b),
                                   pair_x(w), pair_x(bias), T, C, cuda_test_ops);
        cpu_residual_forward(sum.host, a.host, b.host, n);
        CHECK_PAIR(sum, FLOATX_EPS);
        memcpy(sum.host, pair_download(sum), n * sizeof(float));
        cpu_layernorm_forward(y.host, mean.host, rstd.host, sum.host, w.host, bias.host, T, C);
        CHECK_PAIR(y, ROW_TOLERANCE + 4 * FLOAT_EPS * sqrt((double)C));
        CHECK_PAIR(rstd, 4 * FLOAT_EPS * (4 + sqrt((double)C / 8)));
        // in place over either addend; and the same sum by the addition alone, apart and in place
        Pair a2 = pair_copy_of(a), b2 = pair_copy_of(b), y2 = pair_filled(n, NAN), a3 = pair_copy_of(a);
        residual_layernorm_forward(pair_x(a2), pair_x(y2), pair_f(mean), pair_f(rstd), pair_x(a2), pair_x(b),
                                   pair_x(w), pair_x(bias), T, C, cuda_test_ops);
        CHECK(pair_same_bits(a2, sum) && pair_same_bits(y2, y));
        residual_layernorm_forward(pair_x(b2), pair_x(y2), pair_f(mean), pair_f(rstd), pair_x(a), pair_x(b2),
                                   pair_x(w), pair_x(bias), T, C, cuda_test_ops);
        CHECK(pair_same_bits(b2, sum) && pair_same_bits(y2, y));
        residual_forward(pair_x(a3), pair_x(a3), pair_x(b), n, cuda_test_ops);
        CHECK(pair_same_bits(a3, sum));
        pair_release();
    }
}

typedef struct {
    Pair inp, weight, dout, dresidual, mean, rstd;
    int T, C;
} Backward;

static Backward backward_inputs(Shape shape) {
    const size_t T = (size_t)shape.T, C = (size_t)shape.C;
    Backward about = {values_around(T * C, 0.5f),
                      pair_random(C, 1.0),
                      pair_random(T * C, 1.0),
                      pair_random(T * C, 1.0),
                      pair_floats(T, 0),
                      pair_floats(T, 0),
                      shape.T,
                      shape.C};
    Pair y = pair_floats(T * C, 0), bias = pair_floats(C, 0);
    cpu_layernorm_forward(y.host, about.mean.host, about.rstd.host, about.inp.host, about.weight.host,
                          bias.host, shape.T, shape.C);
    pair_to_device(about.mean);
    pair_to_device(about.rstd);
    return about;
}

static void run_backward(const Backward* x, Pair dinp, Pair dweight, Pair dbias, const floatX* dresidual,
                         const floatX* dout) {
    layernorm_backward(pair_x(dinp), pair_f(dweight), pair_f(dbias), dresidual, dout, pair_x(x->inp),
                       pair_x(x->weight), pair_f(x->mean), pair_f(x->rstd), x->T, x->C, cuda_test_ops);
}

static void backward_equals_the_cpus(void) {
    for (int i = 0; i < NUM_CHOSEN + NUM_RANDOM; i++) {
        const Backward x = backward_inputs(shape_of(i));
        const size_t n = (size_t)x.T * (size_t)x.C, C = (size_t)x.C;
        Pair dinp = pair_filled(n, NAN), dw = pair_random_floats(C, 1.0), db = pair_random_floats(C, 1.0);
        const bool residual = i % 3 != 0;
        run_backward(&x, dinp, dw, db, residual ? pair_x(x.dresidual) : NULL, pair_x(x.dout));
        cpu_layernorm_backward(dinp.host, dw.host, db.host, residual ? x.dresidual.host : NULL, x.dout.host,
                               x.inp.host, x.weight.host, x.mean.host, x.rstd.host, x.T, x.C);
        // The means of g and g xhat are sums of C values of size 1; a gradient of w is one of T.
        CHECK_PAIR(dinp, ROW_TOLERANCE + 2 * FLOAT_EPS * sqrt((double)x.C));
        CHECK_PAIR(dw, FLOAT_EPS * (16 + 2 * sqrt((double)x.T)));
        CHECK_PAIR(db, FLOAT_EPS * (16 + 2 * sqrt((double)x.T)));
        pair_release();
    }
}

static void backward_repeats_its_bits_also_in_place(void) {
    for (int i = 0; i < NUM_CHOSEN; i++) {
        const Backward x = backward_inputs(shape_of(i));
        const size_t n = (size_t)x.T * (size_t)x.C, C = (size_t)x.C;
        Pair dinp = pair_filled(n, NAN), dw = pair_floats(C, 0), db = pair_floats(C, 0);
        run_backward(&x, dinp, dw, db, pair_x(x.dresidual), pair_x(x.dout));
        Pair over_residual = pair_copy_of(x.dresidual), over_dout = pair_copy_of(x.dout),
             dw2 = pair_floats(C, 0);
        Pair db2 = pair_floats(C, 0), dw3 = pair_floats(C, 0), db3 = pair_floats(C, 0);
        run_backward(&x, over_residual, dw2, db2, pair_x(over_residual), pair_x(x.dout));
        run_backward(&x, over_dout, dw3, db3, pair_x(x.dresidual), pair_x(over_dout));
        CHECK(pair_same_bits(dinp, over_residual) && pair_same_bits(dw, dw2) && pair_same_bits(db, db2));
        CHECK(pair_same_bits(dinp, over_dout) && pair_same_bits(dw, dw3) && pair_same_bits(db, db3));
        pair_release();
    }
}

static void no_rows_is_no_work(void) {
    Pair x = pair_filled(16, 1), dw = pair_floats(8, 2);
    layernorm_forward(pair_x(x), NULL, NULL, pair_x(x), pair_x(x), pair_x(x), 0, 8, cuda_test_ops);
    residual_forward(pair_x(x), pair_x(x), pair_x(x), 0, cuda_test_ops);
    layernorm_backward(pair_x(x), pair_f(dw), pair_f(dw), NULL, pair_x(x), pair_x(x), pair_x(x), NULL, NULL,
                       0, 8, cuda_test_ops);
    CHECK_PAIR(x, 0);
    CHECK_PAIR(dw, 0);
    pair_release();
}

int main(int argc, char** argv) {
    cuda_test_begin(argc, argv);
    RUN(forward_equals_the_cpus);
    RUN(residual_norm_is_the_norm_of_the_written_sum);
    RUN(backward_equals_the_cpus);
    RUN(backward_repeats_its_bits_also_in_place);
    RUN(no_rows_is_no_work);
    cuda_test_end();
    return test_end();
}
