// Laws of what moves rows: embedding (and its gradient, tokens repeating), gather and scatter, rows placed in
// a cache, a copy.
#include "ops_test.h"

static OpsContext* ops;

enum { V = 23, MAX_T = 150 };

static void embedding_adds_table_rows(void) {
    for (int k = 0; k < 20; k++) {
        const int T = rng_between(&ops_test_rng, 1, MAX_T), C = rng_between(&ops_test_rng, 1, 200);
        const size_t width = (size_t)C;
        float *wte = ops_test_random(V * width, 1.0), *wpe = ops_test_random(MAX_T * width, 1.0);
        float *out = ops_test_floats((size_t)T * width), *d = ops_test_random((size_t)T * width, 1.0);
        float *dwte = ops_test_random(V * width, 1.0), *dwpe = ops_test_random(MAX_T * width, 1.0);
        double *dwte_ref = ops_test_zero_doubles(V * width), *dwpe_ref = ops_test_zero_doubles(MAX_T * width);
        int32_t tokens[MAX_T], positions[MAX_T];
        for (size_t i = 0; i < V * width; i++) { dwte_ref[i] = (double)dwte[i]; }
        for (size_t i = 0; i < MAX_T * width; i++) { dwpe_ref[i] = (double)dwpe[i]; }
        for (int t = 0; t < T; t++) {
            tokens[t] = (int32_t)rng_below(&ops_test_rng, V);
            positions[t] = (int32_t)rng_below(&ops_test_rng, k % 2 ? MAX_T : 3);
            for (size_t c = 0; c < width; c++) {
                dwte_ref[(size_t)tokens[t] * width + c] += (double)d[(size_t)t * width + c];
                dwpe_ref[(size_t)positions[t] * width + c] += (double)d[(size_t)t * width + c];
            }
        }
        embedding_forward(out, tokens, positions, wte, wpe, T, C, ops);
        embedding_backward(dwte, dwpe, NULL, d, tokens, positions, T, C, ops);
        for (int t = 0; t < T; t++) {
            for (size_t c = 0; c < width; c++) {
                CHECK(out[(size_t)t * width + c] ==
                      wte[(size_t)tokens[t] * width + c] + wpe[(size_t)positions[t] * width + c]);
            }
        }
        // up to T additions to one value
        CHECK_CLOSE(dwte, dwte_ref, V * width, 4.0 * (double)FLT_EPSILON * sqrt((double)T));
        CHECK_CLOSE(dwpe, dwpe_ref, MAX_T * width, 4.0 * (double)FLT_EPSILON * sqrt((double)T));
        ops_test_release();
    }
}

// Integers up to 2^24 add exactly in float, so a lost or doubled addition shows whatever the order.
static void no_addition_is_lost_under_threads(void) {
    enum { T = 5000, C = 40 };
    float *d = ops_test_floats(T * C), *dwte = ops_test_floats(2 * C), *dwpe = ops_test_floats(C);
    int32_t *tokens = ops_test_alloc(T * sizeof *tokens), *positions = ops_test_alloc(T * sizeof *positions);
    for (int i = 0; i < T * C; i++) { d[i] = (float)(i % C + 1); }
    for (int t = 0; t < T; t++) { tokens[t] = t % 2, positions[t] = 0; }
    memset(dwte, 0, 2 * C * sizeof *dwte);
    memset(dwpe, 0, C * sizeof *dwpe);
    embedding_backward(dwte, dwpe, NULL, d, tokens, positions, T, C, ops);
    for (int c = 0; c < C; c++) {
        CHECK(dwte[c] == (float)(T / 2 * (c + 1)) && dwte[C + c] == (float)(T / 2 * (c + 1)));
        CHECK(dwpe[c] == (float)(T * (c + 1)));
    }
    ops_test_release();
}

static void embedding_backward_does_not_depend_on_threads(void) {
    enum { T = 700, C = 100 };
    OpsContext* one = ops_create(1);
    float *d = ops_test_random(T * C, 1.0), *wte = ops_test_random(V * C, 1.0),
          *wpe = ops_test_random(V * C, 1.0);
    float *wte2 = ops_test_copy(wte, V * C), *wpe2 = ops_test_copy(wpe, V * C);
    int32_t tokens[T], positions[T];
    for (int t = 0; t < T; t++) {
        tokens[t] = (int32_t)rng_below(&ops_test_rng, V), positions[t] = (int32_t)rng_below(&ops_test_rng, V);
    }
    embedding_backward(wte, wpe, NULL, d, tokens, positions, T, C, ops);
    embedding_backward(wte2, wpe2, NULL, d, tokens, positions, T, C, one);
    CHECK_SAME_BITS(wte, wte2, V * C);
    CHECK_SAME_BITS(wpe, wpe2, V * C);
    ops_free(one);
    ops_test_release();
}

// gather picks rows; scatter puts them back into zeros; gather after scatter is the identity.
static void gather_and_scatter_are_inverse(void) {
    for (int k = 0; k < 20; k++) {
        const int T = rng_between(&ops_test_rng, 1, MAX_T), C = rng_between(&ops_test_rng, 1, 300);
        const size_t width = (size_t)C;
        int32_t rows[MAX_T];
        bool taken[MAX_T] = {false};
        int num_rows = 0;
        for (int t = 0; t < T; t++) {
            taken[t] = k > 0 && rng_below(&ops_test_rng, 3) == 0;  // the first round: no row at all
            if (taken[t]) { rows[num_rows++] = t; }
        }
        float *x = ops_test_random((size_t)T * width, 1.0),
              *picked = ops_test_floats((size_t)num_rows * width);
        float *back = ops_test_floats((size_t)T * width), *again = ops_test_floats((size_t)num_rows * width);
        gather_rows(picked, x, rows, num_rows, C, ops);
        scatter_rows(back, picked, rows, num_rows, T, C, ops);
        gather_rows(again, back, rows, num_rows, C, ops);
        CHECK_SAME_BITS(again, picked, (size_t)num_rows * width);
        for (int t = 0; t < T; t++) {
            for (size_t c = 0; c < width; c++) {
                CHECK(back[(size_t)t * width + c] == (taken[t] ? x[(size_t)t * width + c] : 0.0f));
            }
        }
        ops_test_release();
    }
}

// Without positions (T5): rows of the one table, and its gradient; positions are not read.
static void without_positions_a_row_is_the_tokens(void) {
    enum { T = 300, C = 40 };
    float *wte = ops_test_random(V * C, 1.0), *d = ops_test_random(T * C, 1.0), *out = ops_test_floats(T * C);
    float *dwte = ops_test_random(V * C, 1.0), *dwte2 = ops_test_copy(dwte, V * C),
          *dwpe = ops_test_floats(C);
    int32_t tokens[T], positions[T] = {0};
    for (int t = 0; t < T; t++) { tokens[t] = (int32_t)rng_below(&ops_test_rng, V); }
    embedding_forward(out, tokens, NULL, wte, NULL, T, C, ops);
    for (int t = 0; t < T; t++) { CHECK_SAME_BITS(out + t * C, wte + tokens[t] * C, C); }
    embedding_backward(dwte, NULL, NULL, d, tokens, NULL, T, C, ops);
    embedding_backward(dwte2, dwpe, NULL, d, tokens, positions, T, C, ops);
    CHECK_SAME_BITS(dwte, dwte2, V * C);
    ops_test_release();
}

// Rows land where they should, with either stride; what lies between and beside them stays.
static void placed_rows_are_where_they_should_be(void) {
    for (int k = 0; k < 20; k++) {
        const int num_rows = rng_between(&ops_test_rng, 0, 60), width = rng_between(&ops_test_rng, 1, 300);
        const int dst_stride = width + rng_between(&ops_test_rng, 0, 9),
                  src_stride = width + rng_between(&ops_test_rng, 0, 9);
        const size_t n = (size_t)(MAX_T * dst_stride);
        float *dst = ops_test_random(n, 1.0), *kept = ops_test_copy(dst, n);
        float* src = ops_test_random((size_t)((num_rows + 1) * src_stride), 1.0);
        int32_t rows[60], from[MAX_T];
        for (int t = 0; t < MAX_T; t++) { from[t] = -1; }
        for (int i = 0; i < num_rows; i++) {
            do { rows[i] = (int32_t)rng_below(&ops_test_rng, MAX_T); } while (from[rows[i]] >= 0);
            from[rows[i]] = i;
        }
        place_rows(dst, dst_stride, src, src_stride, rows, num_rows, width, ops);
        for (int t = 0; t < MAX_T; t++) {
            for (int c = 0; c < dst_stride; c++) {
                const bool placed = from[t] >= 0 && c < width;
                CHECK(dst[t * dst_stride + c] ==
                      (placed ? src[from[t] * src_stride + c] : kept[t * dst_stride + c]));
            }
        }
        ops_test_release();
    }
}

// Of one piece and of several.
static void a_copy_is_the_same_bytes(void) {
    for (int k = 0; k < 3; k++) {
        const size_t num_bytes = (size_t[]){0, 1001, ((size_t)9 << 20) + 5}[k];
        unsigned char *from = ops_test_alloc(num_bytes + 1), *to = ops_test_alloc(num_bytes + 1);
        for (size_t i = 0; i < num_bytes; i++) { from[i] = (unsigned char)(i * 2654435761u >> 26); }
        to[num_bytes] = 77;
        ops_copy(ops, to, from, num_bytes);
        CHECK(memcmp(to, from, num_bytes) == 0 && to[num_bytes] == 77);
        ops_test_release();
    }
}

int main(int argc, char** argv) {
    ops_test_rng = rng_seed(test_seed(argc, argv));
    ops = ops_create(2);
    RUN(embedding_adds_table_rows);
    RUN(no_addition_is_lost_under_threads);
    RUN(embedding_backward_does_not_depend_on_threads);
    RUN(without_positions_a_row_is_the_tokens);
    RUN(gather_and_scatter_are_inverse);
    RUN(placed_rows_are_where_they_should_be);
    RUN(a_copy_is_the_same_bytes);
    ops_free(ops);
    return test_end();
}
