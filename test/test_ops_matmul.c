// Laws of matmul_forward and its two gradients: equal to double references for ragged shapes, from one token
// up; gradients of weights add; the same call gives the same bits.
#include "ops_test.h"

static OpsContext* ops;

typedef struct {
    int T, C, OC;
} Shape;

static Shape shape_random(int i) {
    const int top = i % 4 == 0 ? 200 : i % 4 == 1 ? 70 : 20;
    Shape s = {rng_between(&ops_test_rng, i % 5 == 0 ? 0 : 1, top), rng_between(&ops_test_rng, 1, top),
               rng_between(&ops_test_rng, 1, top)};
    if (i % 3 == 0) { s.C = 64, s.OC = 192; }
    return s;
}

// sum of `terms` products, each rounded once: error eps sqrt(terms) of the sum's own spread; 8: many values
static double tolerance_for(int terms) {
    return 8.0 * (double)FLT_EPSILON * sqrt((double)terms + 1.0);
}

static void check_forward(Shape s, bool with_bias) {
    const size_t T = (size_t)s.T, C = (size_t)s.C, OC = (size_t)s.OC;
    float *x = ops_test_random(T * C, 1.0), *w = ops_test_random(OC * C, 1.0), *b = ops_test_random(OC, 1.0);
    float* out = ops_test_floats(T * OC);
    double* ref = ops_test_zero_doubles(T * OC);
    matmul_forward(out, x, w, with_bias ? b : NULL, s.T, s.C, s.OC, ops);
    for (size_t t = 0; t < T; t++) {
        for (size_t o = 0; o < OC; o++) {
            double sum = with_bias ? (double)b[o] : 0.0;
            for (size_t c = 0; c < C; c++) { sum += (double)x[t * C + c] * (double)w[o * C + c]; }
            ref[t * OC + o] = sum;
        }
    }
    CHECK_CLOSE(out, ref, T * OC, tolerance_for(s.C));
}

static void check_backward(Shape s, bool with_bias) {
    const size_t T = (size_t)s.T, C = (size_t)s.C, OC = (size_t)s.OC;
    float *x = ops_test_random(T * C, 1.0), *w = ops_test_random(OC * C, 1.0),
          *d = ops_test_random(T * OC, 1.0);
    float *dinp = ops_test_floats(T * C), *dw = ops_test_random(OC * C, 1.0), *db = ops_test_random(OC, 1.0);
    double *dinp_ref = ops_test_zero_doubles(T * C), *dw_ref = ops_test_zero_doubles(OC * C);
    double* db_ref = ops_test_zero_doubles(OC);
    for (size_t i = 0; i < OC * C; i++) { dw_ref[i] = (double)dw[i]; }
    for (size_t i = 0; i < OC; i++) { db_ref[i] = (double)db[i]; }
    for (size_t t = 0; t < T; t++) {
        for (size_t o = 0; o < OC; o++) {
            const double g = (double)d[t * OC + o];
            db_ref[o] += with_bias ? g : 0.0;
            for (size_t c = 0; c < C; c++) {
                dinp_ref[t * C + c] += g * (double)w[o * C + c];
                dw_ref[o * C + c] += g * (double)x[t * C + c];
            }
        }
    }
    matmul_backward_input(dinp, d, w, s.T, s.C, s.OC, ops);
    matmul_backward_weight(dw, with_bias ? db : NULL, d, x, s.T, s.C, s.OC, ops);
    CHECK_CLOSE(dinp, dinp_ref, T * C, tolerance_for(s.OC));
    CHECK_CLOSE(dw, dw_ref, OC * C, tolerance_for(s.T));
    CHECK_CLOSE(db, db_ref, OC, tolerance_for(s.T));
}

static void products_equal_the_reference(void) {
    for (int i = 0; i < 40; i++) {
        const Shape s = shape_random(i);
        check_forward(s, i % 2 == 0);
        check_backward(s, i % 2 == 0);
        ops_test_release();
    }
}

// Shapes of a real layer, where the library's own blocking starts, and the bias sums are cut into blocks of
// rows.
static void larger_products_equal_the_reference(void) {
    const Shape shapes[] = {
        {257, 192, 320},
        {1, 768, 640},
        {130, 33, 1000},
        {400, 64, 65},
        // activations that fill the tiles of all threads more than once, or do not fit at all
        {200, 5000, 48},
        {70, 17000, 8},
        {100, 768, 300},
        {25, 48, 515}};
    for (int i = 0; i < 8; i++) {
        check_forward(shapes[i], true);
        check_backward(shapes[i], true);
        ops_test_release();
    }
}

static void the_same_call_gives_the_same_bits(void) {
    const size_t T = 150, C = 200, OC = 300;
    float *x = ops_test_random(T * C, 1.0), *w = ops_test_random(OC * C, 1.0),
          *d = ops_test_random(T * OC, 1.0);
    float *first[4] = {0}, *b = ops_test_random(OC, 1.0);
    for (int round = 0; round < 3; round++) {
        float *out = ops_test_floats(T * OC), *dinp = ops_test_floats(T * C), *dw = ops_test_copy(w, OC * C);
        float* db = ops_test_copy(b, OC);
        matmul_forward(out, x, w, b, (int)T, (int)C, (int)OC, ops);
        matmul_backward_input(dinp, d, w, (int)T, (int)C, (int)OC, ops);
        matmul_backward_weight(dw, db, d, x, (int)T, (int)C, (int)OC, ops);
        if (round == 0) { first[0] = out, first[1] = dinp, first[2] = dw, first[3] = db; }
        CHECK_SAME_BITS(out, first[0], T * OC);
        CHECK_SAME_BITS(dinp, first[1], T * C);
        CHECK_SAME_BITS(dw, first[2], OC * C);
        CHECK_SAME_BITS(db, first[3], OC);
    }
    ops_test_release();
}

int main(int argc, char** argv) {
    ops_test_rng = rng_seed(test_seed(argc, argv));
    ops = ops_create(2);
    RUN(products_equal_the_reference);
    RUN(larger_products_equal_the_reference);
    RUN(the_same_call_gives_the_same_bits);
    ops_free(ops);
    return test_end();
}
