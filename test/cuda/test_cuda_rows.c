// test_cuda_rows.c -- rows.cu: values are moved, so everything is exact.
#include "cuda_test.h"

#include <math.h>

enum { MAX_ROWS = 256, NUM_SHAPES = 24 };

typedef struct {
    int T, C, num_rows;
    int32_t rows[MAX_ROWS];  // ascending, or not
} Case;

// Rows of a random share of T tokens: none, all and one among the first cases; every other case in random
// order.
static Case random_case(int i) {
    Case x = {.T = i == 2 ? 1 : rng_between(&cuda_test_rng, 1, 200),
              .C = rng_between(&cuda_test_rng, 8, 300)};
    if (i % 2 == 0) { x.C = x.C / 8 * 8; }
    if (i == 5) { x.C = 1608; }
    const uint32_t share = i == 0 ? 0 : i <= 2 ? 8 : rng_below(&cuda_test_rng, 9);  // eighths
    for (int t = 0; t < x.T; t++) {
        if (rng_below(&cuda_test_rng, 8) < share) { x.rows[x.num_rows++] = t; }
    }
    for (int k = x.num_rows - 1; k > 0 && i % 2 == 1; k--) {
        const int other = (int)rng_below(&cuda_test_rng, (uint32_t)k + 1);
        const int32_t row = x.rows[k];
        x.rows[k] = x.rows[other];
        x.rows[other] = row;
    }
    return x;
}

static void gather_picks_rows(void) {
    for (int i = 0; i < NUM_SHAPES; i++) {
        const Case x = random_case(i);
        Pair inp = pair_random((size_t)x.T * (size_t)x.C, 1.0), rows = pair_ints(x.rows, (size_t)x.num_rows);
        Pair out = pair_filled((size_t)x.num_rows * (size_t)x.C, NAN);
        gather_rows(pair_x(out), pair_x(inp), pair_i(rows), x.num_rows, x.C, cuda_test_ops);
        cpu_gather_rows(out.host, inp.host, x.rows, x.num_rows, x.C);
        CHECK_PAIR(out, 0);
        pair_release();
    }
}

static void scatter_puts_rows_back_and_zeros_between(void) {
    for (int i = 0; i < NUM_SHAPES; i++) {
        const Case x = random_case(i);
        Pair inp = pair_random((size_t)x.num_rows * (size_t)x.C, 1.0),
             rows = pair_ints(x.rows, (size_t)x.num_rows);
        Pair out = pair_filled((size_t)x.T * (size_t)x.C, NAN);
        scatter_rows(pair_x(out), pair_x(inp), pair_i(rows), x.num_rows, x.T, x.C, cuda_test_ops);
        cpu_scatter_rows(out.host, inp.host, x.rows, x.num_rows, x.T, x.C);
        CHECK_PAIR(out, 0);
        pair_release();
    }
}

static void a_row_named_twice_is_the_last_one(void) {
    const int32_t named[] = {3, 1, 3, 0, 1};
    Pair inp = pair_random(5 * 16, 1.0), rows = pair_ints(named, 5), out = pair_filled(6 * 16, NAN);
    scatter_rows(pair_x(out), pair_x(inp), pair_i(rows), 5, 6, 16, cuda_test_ops);
    cpu_scatter_rows(out.host, inp.host, named, 5, 6, 16);
    CHECK_PAIR(out, 0);
    pair_release();
}

static void no_tokens_is_no_work(void) {
    Pair x = pair_filled(8, 1);
    gather_rows(pair_x(x), pair_x(x), NULL, 0, 8, cuda_test_ops);
    scatter_rows(pair_x(x), pair_x(x), NULL, 0, 0, 8, cuda_test_ops);
    CHECK_PAIR(x, 0);
    pair_release();
}

int main(int argc, char** argv) {
    cuda_test_begin(argc, argv);
    RUN(gather_picks_rows);
    RUN(scatter_puts_rows_back_and_zeros_between);
    RUN(a_row_named_twice_is_the_last_one);
    RUN(no_tokens_is_no_work);
    cuda_test_end();
    return test_end();
}
