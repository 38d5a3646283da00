// test_cuda_rmsnorm.c -- rmsnorm.cu against the CPU's over random and chosen shapes, and its roundings in
// bf16.
#include "../../llmc/cuda/context.h"
#include "cuda_test.h"

#include <math.h>

#define FLOAT_EPS 6e-8
// Roundings of float32 on the way to a value of the outputs' size (rstd, products, sums), then to floatX: of
// xhat and of the product in forward, once in backward.
#define ROW_TOLERANCE (FLOATX_EPS + 16 * FLOAT_EPS)

typedef struct {
    int T, C;
} Shape;

// Every path: a warp per row with 1 to 8 vectors per thread, a block per row, columns that are no whole
// vectors, rows beyond what registers hold.
static const Shape chosen[] = {{1, 8},     {1, 9},     {2, 300},  {5, 264},  {3, 520},  {2, 768},
                               {7, 1024},  {2, 1600},  {2, 2304}, {3, 3000}, {2, 5000}, {2, 8200},
                               {2, 16392}, {1, 16391}, {199, 24}, {64, 40},  {1, 1}};
enum { NUM_CHOSEN = sizeof chosen / sizeof *chosen, NUM_RANDOM = 8 };
static const float scales[] = {1.0f, 0.03608439f, 1.0f, -2.5f};  // 768^-1/2 among them

static Shape shape_of(int i) {
    if (i < NUM_CHOSEN) { return chosen[i]; }
    Shape shape = {rng_between(&cuda_test_rng, 1, 200), rng_between(&cuda_test_rng, 8, 300)};
    if (i % 2 == 0) { shape.C = shape.C / 8 * 8; }
    return shape;
}

// Rows of all sizes, from far below the root of eps to large; not centred.
static Pair rows_of_all_sizes(int T, int C) {
    Pair pair = pair_random((size_t)T * (size_t)C, 1.0);
    static const float sizes[] = {1.0f, 1e-4f, 300.0f, 1.0f, 0.02f};
    for (int t = 0; t < T; t++) {
        for (int c = 0; c < C; c++) {
            float* x = pair.host + (size_t)t * (size_t)C + (size_t)c;
            *x = (*x + 0.5f) * sizes[t % 5];
        }
    }
    pair_to_device(pair);
    return pair;
}

static double sum_tolerance(int C) {
    return 4 * FLOAT_EPS * (4 + sqrt((double)C / 8));
}

static void forward_equals_the_cpus(void) {
    for (int i = 0; i < NUM_CHOSEN + NUM_RANDOM; i++) {
        const int T = shape_of(i).T, C = shape_of(i).C;
        const size_t n = (size_t)T * (size_t)C;
        const float scale = scales[i % 4];
        Pair x = rows_of_all_sizes(T, C), w = pair_random((size_t)C, 1.0), y = pair_filled(n, NAN);
        Pair rstd = pair_floats((size_t)T, NAN);
        rmsnorm_forward(pair_x(y), pair_f(rstd), pair_x(x), pair_x(w), scale, T, C, cuda_test_ops);
        cpu_rmsnorm_forward(y.host, rstd.host, x.host, w.host, scale, T, C);
        CHECK_PAIR(rstd, sum_tolerance(C));
        CHECK_PAIR(y, FLOATX_EPS + ROW_TOLERANCE + sum_tolerance(C));
        pair_release();
    }
}

// inp * rstd becomes a floatX, then the product: exactly so, whatever path. In bf16 one rounding too few
// would show.
static void the_norm_is_rounded_before_the_weight(void) {
    for (int i = 0; i < NUM_CHOSEN; i++) {
        const int T = chosen[i].T, C = chosen[i].C;
        const float scale = scales[i % 4];
        Pair x = rows_of_all_sizes(T, C), w = pair_random((size_t)C, 1.0);
        Pair y = pair_filled((size_t)T * (size_t)C, NAN), rstd = pair_floats((size_t)T, NAN);
        rmsnorm_forward(pair_x(y), pair_f(rstd), pair_x(x), pair_x(w), scale, T, C, cuda_test_ops);
        const float *r = pair_download(rstd), *got = pair_download(y);
        int num_wrong = 0;
        for (int k = 0; k < T * C; k++) {
            floatX rounded;
            float xhat = x.host[k] * r[k / C];
            floatx_from_floats(&rounded, &xhat, 1);
            floatx_to_floats(&xhat, &rounded, 1);
            float out = xhat * w.host[k % C] * scale;
            floatx_from_floats(&rounded, &out, 1);
            floatx_to_floats(&out, &rounded, 1);
            num_wrong += out != got[k];
        }
        CHECK_EQ(num_wrong, 0);
        pair_release();
    }
}

// The norm is of the sum as it was written: in bf16, rounded.
static void residual_norm_is_the_norm_of_the_written_sum(void) {
    for (int i = 0; i < NUM_CHOSEN + NUM_RANDOM; i++) {
        const int T = shape_of(i).T, C = shape_of(i).C;
        const size_t n = (size_t)T * (size_t)C;
        const float scale = scales[i % 4];
        Pair a = pair_random(n, 1.0), b = pair_random(n, 1.0), w = pair_random((size_t)C, 1.0);
        Pair sum = pair_filled(n, NAN), y = pair_filled(n, NAN), rstd = pair_floats((size_t)T, NAN);
        residual_rmsnorm_forward(pair_x(sum), pair_x(y), pair_f(rstd), pair_x(a), pair_x(b), pair_x(w), scale,
                                 T, C, cuda_test_ops);
        cpu_residual_forward(sum.host, a.host, b.host, n);
        CHECK_PAIR(sum, FLOATX_EPS);
        memcpy(sum.host, pair_download(sum), n * sizeof(float));
        cpu_rmsnorm_forward(y.host, rstd.host, sum.host, w.host, scale, T, C);
        CHECK_PAIR(rstd, sum_tolerance(C));
        CHECK_PAIR(y, FLOATX_EPS + ROW_TOLERANCE + sum_tolerance(C));
        // in place over either addend
        Pair a2 = pair_copy_of(a), b2 = pair_copy_of(b), y2 = pair_filled(n, NAN), y3 = pair_filled(n, NAN);
        residual_rmsnorm_forward(pair_x(a2), pair_x(y2), pair_f(rstd), pair_x(a2), pair_x(b), pair_x(w),
                                 scale, T, C, cuda_test_ops);
        residual_rmsnorm_forward(pair_x(b2), pair_x(y3), pair_f(rstd), pair_x(a), pair_x(b2), pair_x(w),
                                 scale, T, C, cuda_test_ops);
        CHECK(pair_same_bits(a2, sum) && pair_same_bits(y2, y));
        CHECK(pair_same_bits(b2, sum) && pair_same_bits(y3, y));
        pair_release();
    }
}

typedef struct {
    Pair inp, weight, dout, dresidual, rstd;
    float scale;
    int T, C;
} Backward;

static Backward backward_inputs(Shape shape, float scale) {
    const size_t T = (size_t)shape.T, C = (size_t)shape.C;
    Backward about = {pair_random(T * C, 1.0),
                      pair_random(C, 1.0),
                      pair_random(T * C, 1.0),
                      pair_random(T * C, 1.0),
                      pair_floats(T, 0),
                      scale,
                      shape.T,
                      shape.C};
    Pair y = pair_floats(T * C, 0);
    cpu_rmsnorm_forward(y.host, about.rstd.host, about.inp.host, about.weight.host, scale, shape.T, shape.C);
    pair_to_device(about.rstd);
    return about;
}

static void run_backward(const Backward* x, Pair dinp, Pair dweight, const floatX* dresidual,
                         const floatX* dout) {
    rmsnorm_backward(pair_x(dinp), pair_f(dweight), dresidual, dout, pair_x(x->inp), pair_x(x->weight),
                     pair_f(x->rstd), x->scale, x->T, x->C, cuda_test_ops);
}

static void backward_equals_the_cpus(void) {
    for (int i = 0; i < NUM_CHOSEN + NUM_RANDOM; i++) {
        const Backward x = backward_inputs(shape_of(i), scales[i % 4]);
        const size_t n = (size_t)x.T * (size_t)x.C, C = (size_t)x.C;
        Pair dinp = pair_filled(n, NAN), dw = pair_random_floats(C, 1.0);
        const bool residual = i % 3 != 0;
        run_backward(&x, dinp, dw, residual ? pair_x(x.dresidual) : NULL, pair_x(x.dout));
        cpu_rmsnorm_backward(dinp.host, dw.host, residual ? x.dresidual.host : NULL, x.dout.host, x.inp.host,
                             x.weight.host, x.rstd.host, x.scale, x.T, x.C);
        // The mean of g xhat is a sum of C values of size 1 (beside which dinp may be small: C = 1); a
        // gradient of w is one of T.
        if (x.C > 1 || residual) { CHECK_PAIR(dinp, ROW_TOLERANCE + 2 * FLOAT_EPS * sqrt((double)x.C)); }
        CHECK_PAIR(dw, FLOAT_EPS * (16 + 2 * sqrt((double)x.T)));
        pair_release();
    }
}

static void backward_repeats_its_bits_also_in_place(void) {
    for (int i = 0; i < NUM_CHOSEN; i++) {
        const Backward x = backward_inputs(chosen[i], scales[i % 4]);
        const size_t n = (size_t)x.T * (size_t)x.C, C = (size_t)x.C;
        Pair dinp = pair_filled(n, NAN), dw = pair_floats(C, 0), dw2 = pair_floats(C, 0),
             dw3 = pair_floats(C, 0);
        Pair over_residual = pair_copy_of(x.dresidual), over_dout = pair_copy_of(x.dout);
        run_backward(&x, dinp, dw, pair_x(x.dresidual), pair_x(x.dout));
        run_backward(&x, over_residual, dw2, pair_x(over_residual), pair_x(x.dout));
        run_backward(&x, over_dout, dw3, pair_x(x.dresidual), pair_x(over_dout));
        CHECK(pair_same_bits(dinp, over_residual) && pair_same_bits(dw, dw2));
        CHECK(pair_same_bits(dinp, over_dout) && pair_same_bits(dw, dw3));
        pair_release();
    }
}

// On a card of 132 SMs the last sum goes over more blocks than it has slices, in several turns.
static void many_blocks_add_up(void) {
    const int num_sms = cuda_test_ops->num_sms;
    cuda_test_ops->num_sms = 132;
    const Backward x = backward_inputs((Shape){900, 24}, 0.5f);
    Pair dinp = pair_filled(900 * 24, NAN), dw = pair_random_floats(24, 1.0);
    run_backward(&x, dinp, dw, NULL, pair_x(x.dout));
    cpu_rmsnorm_backward(dinp.host, dw.host, NULL, x.dout.host, x.inp.host, x.weight.host, x.rstd.host,
                         x.scale, x.T, x.C);
    CHECK_PAIR(dinp, ROW_TOLERANCE + 10 * FLOAT_EPS);
    CHECK_PAIR(dw, FLOAT_EPS * (16 + 2 * sqrt(900.0)));
    cuda_test_ops->num_sms = num_sms;
    pair_release();
}

static void no_rows_is_no_work(void) {
    Pair x = pair_filled(16, 1), dw = pair_floats(8, 2);
    rmsnorm_forward(pair_x(x), NULL, pair_x(x), pair_x(x), 1.0f, 0, 8, cuda_test_ops);
    residual_rmsnorm_forward(pair_x(x), pair_x(x), NULL, pair_x(x), pair_x(x), pair_x(x), 1.0f, 0, 8,
                             cuda_test_ops);
    rmsnorm_backward(pair_x(x), pair_f(dw), NULL, pair_x(x), pair_x(x), pair_x(x), NULL, 1.0f, 0, 8,
                     cuda_test_ops);
    CHECK_PAIR(x, 0);
    CHECK_PAIR(dw, 0);
    pair_release();
}

int main(int argc, char** argv) {
    cuda_test_begin(argc, argv);
    RUN(forward_equals_the_cpus);
    RUN(the_norm_is_rounded_before_the_weight);
    RUN(residual_norm_is_the_norm_of_the_written_sum);
    RUN(backward_equals_the_cpus);
    RUN(backward_repeats_its_bits_also_in_place);
    RUN(many_blocks_add_up);
    RUN(no_rows_is_no_work);
    cuda_test_end();
    return test_end();
}
