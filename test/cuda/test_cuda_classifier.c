// test_cuda_classifier.c -- classifier.cu against the CPU's over random vocabularies, from fewer words than
// threads on.
#include "cuda_test.h"

#include <math.h>

#define FLOAT_EPS 6e-8
// exp (2 ulp in float32; 2^-21 and |x| 2^-24 where bf16 takes the short one: 16 eps here), a sum in another
// order, a log.
#define LOSS_TOLERANCE (64 * FLOAT_EPS)
#define GRADIENT_TOLERANCE (FLOATX_EPS + 64 * FLOAT_EPS)

typedef struct {
    int num_rows, V, Vp;
} Shape;

// A row in shared memory (GPT-2's), one longer than that, and one that begins between two vectors.
static const Shape chosen[] = {{1, 2, 8},       {3, 2, 2},       {2, 7, 8},         {1, 129, 136},
                               {2, 1000, 1024}, {2, 4097, 4104}, {1, 50257, 50304}, {1, 120001, 120008},
                               {3, 700, 701},   {1, 1, 8}};
enum { NUM_CHOSEN = sizeof chosen / sizeof *chosen, NUM_RANDOM = 16 };

static Shape shape_of(int i) {
    if (i < NUM_CHOSEN) { return chosen[i]; }
    Shape shape = {rng_between(&cuda_test_rng, 1, 40), rng_between(&cuda_test_rng, 2, 700), 0};
    shape.Vp = i % 3 == 0 ? shape.V : (shape.V + 7) / 8 * 8 + (i % 3 == 1 ? 64 : 0);
    return shape;
}

// What a padded column holds must not matter. Every third row is sure of its target, every third sure of
// another word.
static Pair random_logits(Shape s, const int32_t* targets) {
    Pair logits = pair_random((size_t)s.num_rows * (size_t)s.Vp, 4.0);
    for (int row = 0; row < s.num_rows; row++) {
        float* x = logits.host + (size_t)row * (size_t)s.Vp;
        if (row % 3 == 1) { x[targets[row]] += 40.0f; }
        if (row % 3 == 2) { x[rng_below(&cuda_test_rng, (uint32_t)s.V)] += 40.0f; }
        for (int v = s.V; v < s.Vp; v++) { x[v] = 1000.0f; }
    }
    pair_to_device(logits);
    return logits;
}

static Pair random_targets(Shape s) {
    int32_t targets[64];
    for (int row = 0; row < s.num_rows; row++) {
        targets[row] = (int32_t)rng_below(&cuda_test_rng, (uint32_t)s.V);
    }
    return pair_ints(targets, (size_t)s.num_rows);
}

static void losses_and_gradients_equal_the_cpus(void) {
    for (int i = 0; i < NUM_CHOSEN + NUM_RANDOM; i++) {
        const Shape s = shape_of(i);
        const float scale = 1.0f / (float)s.num_rows;
        Pair targets = random_targets(s), logits = random_logits(s, targets.host_ints);
        Pair losses = pair_floats((size_t)s.num_rows, NAN);
        fused_classifier(pair_f(losses), pair_x(logits), pair_i(targets), scale, s.num_rows, s.V, s.Vp,
                         cuda_test_ops);
        cpu_fused_classifier(losses.host, logits.host, targets.host_ints, scale, s.num_rows, s.V, s.Vp);
        CHECK_PAIR(losses, LOSS_TOLERANCE);
        CHECK_PAIR(logits, GRADIENT_TOLERANCE);
        pair_release();
    }
}

// The gradient at a sure target is -others: it must not drown in 1 - p.
static void a_gradient_near_zero_keeps_its_digits(void) {
    const Shape s = {1, 300, 304};
    const int32_t target = 17;
    Pair targets = pair_ints(&target, 1), logits = pair_filled(304, 0), losses = pair_floats(1, NAN);
    logits.host[target] = 24.0f;
    pair_to_device(logits);
    fused_classifier(pair_f(losses), pair_x(logits), pair_i(targets), 1.0f, 1, s.V, s.Vp, cuda_test_ops);
    const double others = 299 * exp(-24.0);
    CHECK_NEAR((double)pair_download(losses)[0] / log1p(others), 1.0, LOSS_TOLERANCE);
    CHECK_NEAR((double)pair_download(logits)[target] / (-others / (1 + others)), 1.0, GRADIENT_TOLERANCE);
    CHECK_NEAR((double)pair_download(logits)[0] / (exp(-24.0) / (1 + others)), 1.0, GRADIENT_TOLERANCE);
    pair_release();
}

static void without_a_scale_logits_stay(void) {
    for (int i = 0; i < NUM_CHOSEN + NUM_RANDOM; i++) {
        const Shape s = shape_of(i);
        Pair targets = random_targets(s), logits = random_logits(s, targets.host_ints);
        Pair losses = pair_floats((size_t)s.num_rows, NAN), again = pair_floats((size_t)s.num_rows, NAN);
        fused_classifier(pair_f(losses), pair_x(logits), pair_i(targets), 0.0f, s.num_rows, s.V, s.Vp,
                         cuda_test_ops);
        fused_classifier(pair_f(again), pair_x(logits), pair_i(targets), 0.0f, s.num_rows, s.V, s.Vp,
                         cuda_test_ops);
        CHECK_PAIR(logits, 0);
        CHECK(memcmp(pair_download(losses), pair_download(again), (size_t)s.num_rows * sizeof(float)) == 0);
        cpu_fused_classifier(losses.host, logits.host, targets.host_ints, 0.0f, s.num_rows, s.V, s.Vp);
        CHECK_PAIR(losses, LOSS_TOLERANCE);
        pair_release();
    }
}

// Of every row; what a padded column holds must not matter.
static void argmax_rows_is_argmax_of_each_row(void) {
    for (int i = 0; i < 12; i++) {
        const Shape s = shape_of(i < 6 ? i : NUM_CHOSEN + i);
        Pair logits = pair_random((size_t)s.num_rows * (size_t)s.Vp, 1.0);
        for (int row = 0; row < s.num_rows; row++) {
            float* x = logits.host + (size_t)row * (size_t)s.Vp;
            for (int v = 0; v < s.V && row % 3 == 1; v++) { x[v] = (float)rng_below(&cuda_test_rng, 4); }
            for (int v = s.V; v < s.Vp; v++) { x[v] = 1000.0f; }
        }
        pair_to_device(logits);
        int32_t got[64], ref[64];
        argmax_rows(got, pair_x(logits), s.num_rows, s.V, s.Vp, cuda_test_ops);
        cpu_argmax_rows(ref, logits.host, s.num_rows, s.V, s.Vp);
        CHECK(memcmp(got, ref, (size_t)s.num_rows * sizeof *got) == 0);
        pair_release();
    }
}

static void no_rows_is_no_work(void) {
    Pair x = pair_filled(8, 1), losses = pair_floats(1, 1);
    fused_classifier(pair_f(losses), pair_x(x), NULL, 1.0f, 0, 7, 8, cuda_test_ops);
    argmax_rows(NULL, pair_x(x), 0, 7, 8, cuda_test_ops);
    CHECK_PAIR(x, 0);
    CHECK_PAIR(losses, 0);
    pair_release();
}

int main(int argc, char** argv) {
    cuda_test_begin(argc, argv);
    RUN(losses_and_gradients_equal_the_cpus);
    RUN(a_gradient_near_zero_keeps_its_digits);
    RUN(without_a_scale_logits_stay);
    RUN(argmax_rows_is_argmax_of_each_row);
    RUN(no_rows_is_no_work);
    cuda_test_end();
    return test_end();
}
