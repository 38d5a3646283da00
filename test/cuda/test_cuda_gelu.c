#include "cuda_test.h"

static void gelu_equals_the_cpus(void) {
    Pair x = pair_random(1001, 1.0), y = pair_filled(1001, 0);
    gelu_forward(pair_x(y), pair_x(x), 1001, cuda_test_ops);
    cpu_gelu_forward(y.host, x.host, 1001);
    CHECK_PAIR(y, 2 * FLOATX_EPS);
    pair_release();
}
int main(int argc, char** argv) {
    cuda_test_begin(argc, argv);
    RUN(gelu_equals_the_cpus);
    cuda_test_end();
    return test_end();
}
