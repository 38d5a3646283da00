// test_cuda_values.c -- values.cu: every floatX is a float, so everything is exact.
#include "cuda_test.h"

#include <math.h>

static void values_become_floats(void) {
    const size_t counts[] = {0, 1, 255, 256, 257, 32 * 12, 1000};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        Pair inp = pair_random(counts[i], 3.0), out = pair_floats(counts[i], NAN);
        values_to_floats(pair_f(out), pair_x(inp), counts[i], cuda_test_ops);
        for (size_t j = 0; j < counts[i]; j++) { out.host[j] = inp.host[j]; }
        CHECK_PAIR(out, 0);
        pair_release();
    }
}

int main(int argc, char** argv) {
    cuda_test_begin(argc, argv);
    RUN(values_become_floats);
    cuda_test_end();
    return test_end();
}
