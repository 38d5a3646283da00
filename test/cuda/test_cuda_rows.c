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

// Rows of a cache that are not named, and columns beside, stay.
static void place_puts_rows_where_they_belong(void) {
    for (int i = 0; i < NUM_SHAPES; i++) {
        const Case x = random_case(i);
        const int step = i % 2 == 0 ? 8 : 1, width = x.C, at = i % 3 * step;  // columns before and behind
        const int dst_stride = at + width + i % 4 * step, src_stride = at + width + i % 2 * step;
        Pair dst = pair_random((size_t)x.T * (size_t)dst_stride, 1.0);
        Pair src = pair_random((size_t)x.num_rows * (size_t)src_stride, 1.0),
             rows = pair_ints(x.rows, (size_t)x.num_rows);
        place_rows(pair_x(dst) + at, dst_stride, pair_x(src) + at, src_stride, pair_i(rows), x.num_rows,
                   width, cuda_test_ops);
        cpu_place_rows(dst.host + at, dst_stride, src.host + at, src_stride, x.rows, x.num_rows, width);
        CHECK_PAIR(dst, 0);
        pair_release();
    }
}

// Queued in the order of the calls, any number of bytes.
static void a_copy_is_queued_like_an_operation(void) {
    Pair x = pair_random(1001, 1.0), y = pair_filled(1001, NAN), z = pair_filled(1001, NAN);
    const size_t num_bytes = 1001 * sizeof(floatX);
    ops_copy(cuda_test_ops, y.device, x.device, num_bytes);
    ops_copy(cuda_test_ops, z.device, y.device, num_bytes);
    ops_zero(cuda_test_ops, y.device, num_bytes);
    CHECK(pair_same_bits(x, z));
    ops_copy(cuda_test_ops, (char*)z.device + 1, (char*)x.device + 3, 500);
    ops_copy(cuda_test_ops, z.device, x.device, 0);
    char got[501], from[503];
    ops_download(cuda_test_ops, got, z.device, sizeof got);
    ops_download(cuda_test_ops, from, x.device, sizeof from);
    CHECK(memcmp(got + 1, from + 3, 500) == 0 && got[0] == from[0]);
    pair_release();
}

static void no_tokens_is_no_work(void) {
    Pair x = pair_filled(8, 1);
    gather_rows(pair_x(x), pair_x(x), NULL, 0, 8, cuda_test_ops);
    scatter_rows(pair_x(x), pair_x(x), NULL, 0, 0, 8, cuda_test_ops);
    place_rows(pair_x(x), 8, pair_x(x), 8, NULL, 0, 8, cuda_test_ops);
    CHECK_PAIR(x, 0);
    pair_release();
}

int main(int argc, char** argv) {
    cuda_test_begin(argc, argv);
    RUN(gather_picks_rows);
    RUN(scatter_puts_rows_back_and_zeros_between);
    RUN(a_row_named_twice_is_the_last_one);
    RUN(place_puts_rows_where_they_belong);
    RUN(a_copy_is_queued_like_an_operation);
    RUN(no_tokens_is_no_work);
    cuda_test_end();
    return test_end();
}
