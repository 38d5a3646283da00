// test_cuda_combine_parts.c -- combine_parts.cu and target_rows() of rows.cu against the CPU's.
#include "cuda_test.h"

#include <math.h>

enum { NUM_SHAPES = 24 };
// Every product is rounded to float32, or fused into the sum.
#define SUM_TOLERANCE(num_shares) (FLOATX_EPS + 4 * 6e-8 * (num_shares))

static Pair random_factors(int num_rows, int num_shares, int share) {
    Pair factors = pair_random_floats((size_t)num_rows * 2, 1.0);
    for (int row = 0; row < num_rows; row++) {  // a row has its target in one share, or (padding) in none
        if (row % (num_shares + 1) != share) { factors.host[2 * row + 1] = 0.0f; }
    }
    pair_to_device(factors);
    return factors;
}

static void parts_are_added_as_on_the_cpu(void) {
    for (int i = 0; i < NUM_SHAPES; i++) {
        const int num_rows = i == 0 ? 1 : rng_between(&cuda_test_rng, 1, 60);
        const int num_shares = i == 1 ? OPS_MAX_SHARES : i == 2 ? 1 : rng_between(&cuda_test_rng, 1, 9);
        const int C =
            i % 2 == 0 ? 8 * rng_between(&cuda_test_rng, 1, 100) : rng_between(&cuda_test_rng, 1, 300);
        const size_t n = (size_t)num_rows * (size_t)C;
        const floatX *sums[OPS_MAX_SHARES], *targets[OPS_MAX_SHARES];
        const float *factors[OPS_MAX_SHARES], *cpu_sums[OPS_MAX_SHARES], *cpu_targets[OPS_MAX_SHARES],
            *cpu_factors[OPS_MAX_SHARES];
        for (int r = 0; r < num_shares; r++) {
            Pair sum = pair_random(n, 1.0), target = pair_random(n, 1.0),
                 factor = random_factors(num_rows, num_shares, r);
            sums[r] = pair_x(sum), targets[r] = pair_x(target), factors[r] = pair_f(factor);
            cpu_sums[r] = sum.host, cpu_targets[r] = target.host, cpu_factors[r] = factor.host;
        }
        Pair out = pair_filled(n, NAN);
        combine_parts(pair_x(out), sums, targets, factors, num_rows, C, num_shares, cuda_test_ops);
        cpu_combine_parts(out.host, cpu_sums, cpu_targets, cpu_factors, num_rows, C, num_shares);
        CHECK_PAIR(out, SUM_TOLERANCE(num_shares));
        pair_release();
    }
}

// Where a share's factor is 0, rows of targets are not looked at.
static void rows_of_other_shares_do_not_matter(void) {
    enum { ROWS = 5, C = 72 };
    Pair sum = pair_random(ROWS * C, 1.0), rubbish = pair_filled(ROWS * C, NAN),
         factors = pair_floats(2 * ROWS, 0.5f);
    for (int row = 0; row < ROWS; row++) { factors.host[2 * row + 1] = 0.0f; }
    pair_to_device(factors);
    const floatX *sums[] = {pair_x(sum), pair_x(sum)}, *targets[] = {pair_x(rubbish), pair_x(rubbish)};
    const float* both[] = {pair_f(factors), pair_f(factors)};
    Pair out = pair_filled(ROWS * C, NAN);
    combine_parts(pair_x(out), sums, targets, both, ROWS, C, 2, cuda_test_ops);
    for (int k = 0; k < ROWS * C; k++) { out.host[k] = sum.host[k]; }
    CHECK_PAIR(out, 0);
    pair_release();
}

static void a_share_has_the_rows_of_its_targets(void) {
    for (int i = 0; i < NUM_SHAPES; i++) {
        const int V = i == 3 ? 0 : rng_between(&cuda_test_rng, 1, 50),
                  Vs = V + rng_between(&cuda_test_rng, i == 3, 9);
        const int begin = i % 3 == 0 ? 0 : 16 * rng_between(&cuda_test_rng, 0, 4);
        const int C =
            i % 2 == 0 ? 8 * rng_between(&cuda_test_rng, 1, 40) : rng_between(&cuda_test_rng, 1, 300);
        int32_t ids[50];
        const int num_rows = i == 0 ? 1 : rng_between(&cuda_test_rng, 6, 50);
        for (int row = 0; row < num_rows; row++) { ids[row] = rng_between(&cuda_test_rng, 0, 130); }
        const int32_t edges[] = {begin, begin + V - 1, begin + V, begin - 1, begin, 0};
        for (int k = 0; k < 6 && k < num_rows; k++) { ids[k] = edges[k] < 0 ? 0 : edges[k]; }
        Pair targets = pair_ints(ids, (size_t)num_rows), weight = pair_random((size_t)Vs * (size_t)C, 1.0);
        Pair out = pair_filled((size_t)num_rows * (size_t)C, NAN);
        target_rows(pair_x(out), pair_x(weight), pair_i(targets), num_rows, begin, V, C, cuda_test_ops);
        cpu_target_rows(out.host, weight.host, ids, num_rows, begin, V, C);
        CHECK_PAIR(out, 0);
        pair_release();
    }
}

static void no_rows_is_no_work(void) {
    Pair x = pair_filled(8, 1);
    combine_parts(pair_x(x), NULL, NULL, NULL, 0, 8, 0, cuda_test_ops);
    target_rows(pair_x(x), pair_x(x), NULL, 0, 0, 8, 8, cuda_test_ops);
    CHECK_PAIR(x, 0);
    pair_release();
}

int main(int argc, char** argv) {
    cuda_test_begin(argc, argv);
    RUN(parts_are_added_as_on_the_cpu);
    RUN(rows_of_other_shares_do_not_matter);
    RUN(a_share_has_the_rows_of_its_targets);
    RUN(no_rows_is_no_work);
    cuda_test_end();
    return test_end();
}
