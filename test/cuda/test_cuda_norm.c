// test_cuda_norm.c -- norm.cu: in double, so it is the exact sum to 1e-13, from any beginning.
#include "cuda_test.h"

#include <math.h>

static void sum_equals_the_cpus(void) {
    for (int i = 0; i < 24; i++) {
        const int n = i < 8    ? i
                      : i < 20 ? rng_between(&cuda_test_rng, 8, 9000)
                               : rng_between(&cuda_test_rng, 9000, 300000);
        const int past = i % 5;  // values before the first one: alignment
        Pair x = pair_random_floats((size_t)(n + past), 1.0);
        const double sum = sum_of_squares(pair_f(x) + past, (size_t)n, cuda_test_ops);
        const double ref = cpu_sum_of_squares(x.host + past, (size_t)n);
        CHECK_NEAR(sum, ref, 1e-13 * ref);
        CHECK(sum == sum_of_squares(pair_f(x) + past, (size_t)n, cuda_test_ops));
        pair_release();
    }
}

// 2^24 and many ones: float32 would not count the ones.
static void small_values_beside_a_large_one_count(void) {
    const int n = 40001;
    Pair x = pair_floats((size_t)n, 1.0f);
    x.host[n / 3] = 16384.0f;
    pair_to_device(x);
    CHECK(sum_of_squares(pair_f(x), (size_t)n, cuda_test_ops) == 16384.0 * 16384.0 + n - 1);
    pair_release();
}

int main(int argc, char** argv) {
    cuda_test_begin(argc, argv);
    RUN(sum_equals_the_cpus);
    RUN(small_values_beside_a_large_one_count);
    cuda_test_end();
    return test_end();
}
