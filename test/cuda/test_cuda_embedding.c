// test_cuda_embedding.c -- embedding.cu and embedding_sort.cu against the CPU's, which adds token by token in
// order.
#include "../../llmc/cuda/embedding_sort.h"
#include "cuda_test.h"

#include <math.h>

#define FLOAT_EPS 6e-8

typedef struct {
    int T, C, num_tokens, num_positions;  // ids are below these
} Shape;

// One token; one id only; chunks of 32 full and not; several blocks of the sort; ids of three bytes; a run
// over many chunks.
static const Shape chosen[] = {
    {1, 8, 3, 1},        {2, 9, 1, 1},        {33, 16, 1, 33},    {32, 24, 2, 7},    {64, 264, 64, 2},
    {200, 300, 500, 50}, {3000, 8, 70000, 9}, {3000, 7, 2, 3000}, {1025, 8, 400, 1}, {97, 520, 3, 97}};
enum { NUM_CHOSEN = sizeof chosen / sizeof *chosen, NUM_RANDOM = 8 };

static Shape shape_of(int i) {
    if (i < NUM_CHOSEN) { return chosen[i]; }
    Shape shape = {rng_between(&cuda_test_rng, 1, 200), rng_between(&cuda_test_rng, 8, 300),
                   rng_between(&cuda_test_rng, 1, 700), rng_between(&cuda_test_rng, 1, 200)};
    if (i % 2 == 0) { shape.C = shape.C / 8 * 8; }
    return shape;
}

// Half of the ids are among the first few, as words of a language are.
static Pair ids_below(int limit, int T) {
    int32_t* ids = malloc((size_t)T * sizeof *ids);
    if (ids == NULL) { exit(1); }
    for (int t = 0; t < T; t++) {
        const int below = rng_below(&cuda_test_rng, 2) == 0 && limit > 4 ? 4 : limit;
        ids[t] = limit - 1 - (int32_t)rng_below(&cuda_test_rng, (uint32_t)below);
    }
    Pair pair = pair_ints(ids, (size_t)T);
    free(ids);
    return pair;
}

static void forward_equals_the_cpus(void) {
    for (int i = 0; i < NUM_CHOSEN + NUM_RANDOM; i++) {
        const Shape s = shape_of(i);
        const size_t n = (size_t)s.T * (size_t)s.C;
        Pair tokens = ids_below(s.num_tokens, s.T), positions = ids_below(s.num_positions, s.T);
        Pair wte = pair_random((size_t)s.num_tokens * (size_t)s.C, 1.0), out = pair_filled(n, NAN);
        Pair wpe = pair_random((size_t)s.num_positions * (size_t)s.C, 1.0);
        embedding_forward(pair_x(out), pair_i(tokens), pair_i(positions), pair_x(wte), pair_x(wpe), s.T, s.C,
                          cuda_test_ops);
        cpu_embedding_forward(out.host, tokens.host_ints, positions.host_ints, wte.host, wpe.host, s.T, s.C);
        CHECK_PAIR(out, FLOATX_EPS);
        pair_release();
    }
}

static void run_backward(Pair dwte, Pair dwpe, Pair dout, Pair tokens, Pair positions, Shape s) {
    const size_t num_bytes = embedding_backward_scratch_bytes(s.T, s.C, cuda_test_ops);
    Pair scratch = pair_floats((num_bytes + 3) / 4, NAN);
    embedding_backward(pair_f(dwte), pair_f(dwpe), scratch.device, pair_x(dout), pair_i(tokens),
                       pair_i(positions), s.T, s.C, cuda_test_ops);
}

// Sums of up to T values in another order than the CPU's: about sqrt(T) roundings apart.
static void backward_equals_the_cpus_and_repeats_its_bits(void) {
    for (int i = 0; i < NUM_CHOSEN + NUM_RANDOM; i++) {
        const Shape s = shape_of(i);
        const size_t num_wte = (size_t)s.num_tokens * (size_t)s.C,
                     num_wpe = (size_t)s.num_positions * (size_t)s.C;
        Pair tokens = ids_below(s.num_tokens, s.T), positions = ids_below(s.num_positions, s.T);
        Pair dout = pair_random((size_t)s.T * (size_t)s.C, 1.0);
        Pair dwte = pair_floats(num_wte, 0.5f), dwpe = pair_floats(num_wpe, -0.5f);  // added to
        Pair dwte2 = pair_floats(num_wte, 0.5f), dwpe2 = pair_floats(num_wpe, -0.5f);
        run_backward(dwte, dwpe, dout, tokens, positions, s);
        run_backward(dwte2, dwpe2, dout, tokens, positions, s);
        cpu_embedding_backward(dwte.host, dwpe.host, dout.host, tokens.host_ints, positions.host_ints, s.T,
                               s.C);
        const double tolerance = FLOAT_EPS * (8 + 4 * sqrt((double)s.T));
        CHECK_PAIR(dwte, tolerance);
        CHECK_PAIR(dwpe, tolerance);
        CHECK(memcmp(pair_download(dwte), pair_download(dwte2), num_wte * sizeof(float)) == 0);
        CHECK(memcmp(pair_download(dwpe), pair_download(dwpe2), num_wpe * sizeof(float)) == 0);
        pair_release();
    }
}

// T5 has no positions: `out` is wte's rows exactly, and dwte what it is with positions, bit for bit.
static void without_positions_it_is_the_rows_of_wte(void) {
    for (int i = 0; i < NUM_CHOSEN + NUM_RANDOM; i++) {
        const Shape s = shape_of(i);
        const size_t n = (size_t)s.T * (size_t)s.C, num_wte = (size_t)s.num_tokens * (size_t)s.C;
        Pair tokens = ids_below(s.num_tokens, s.T), positions = ids_below(1, s.T);
        Pair wte = pair_random(num_wte, 1.0), out = pair_filled(n, NAN), dout = pair_random(n, 1.0);
        embedding_forward(pair_x(out), pair_i(tokens), NULL, pair_x(wte), NULL, s.T, s.C, cuda_test_ops);
        cpu_embedding_forward(out.host, tokens.host_ints, NULL, wte.host, NULL, s.T, s.C);
        CHECK_PAIR(out, 0);
        Pair dwte = pair_floats(num_wte, 0.5f), with = pair_floats(num_wte, 0.5f),
             dwpe = pair_floats((size_t)s.C, 0);
        const size_t num_bytes = embedding_backward_scratch_bytes(s.T, s.C, cuda_test_ops);
        Pair scratch = pair_floats((num_bytes + 3) / 4, NAN);
        embedding_backward(pair_f(dwte), NULL, scratch.device, pair_x(dout), pair_i(tokens), NULL, s.T, s.C,
                           cuda_test_ops);
        run_backward(with, dwpe, dout, tokens, positions, s);
        cpu_embedding_backward(dwte.host, NULL, dout.host, tokens.host_ints, NULL, s.T, s.C);
        CHECK_PAIR(dwte, FLOAT_EPS * (8 + 4 * sqrt((double)s.T)));
        CHECK(pair_same_bits(dwte, with));
        pair_release();
    }
}

// The law on which "no row is written by two threads" rests. Ids that differ in one byte, in two, in three.
static void sort_is_by_id_and_stable(void) {
    const int lengths[] = {1, 31, 257, 1024, 2500}, limits[] = {2, 300, 3 << 16, 1 << 24},
              strides[] = {1, 256, 4352};
    for (int i = 0; i < 18; i++) {
        const int T = i == 5 ? 66000 : lengths[i % 5], limit = limits[i % 4],
                  stride = limit > 4352 ? strides[i % 3] : 1;
        Pair ids = pair_floats((size_t)T, 0), scratch = pair_floats(embedding_sort_bytes(T) / 4, NAN);
        for (int t = 0; t < T; t++) {
            ids.host_ints[t] = (int32_t)rng_below(&cuda_test_rng, (uint32_t)(limit / stride)) * stride;
        }
        pair_to_device(ids);
        const int32_t *order[SORT_TABLES], *const both[SORT_TABLES] = {pair_i(ids), pair_i(ids)};
        embedding_sort(order, both, SORT_TABLES, scratch.device, T, cuda_test_ops);
        int32_t* got = malloc((size_t)T * sizeof *got);
        for (int table = 0; table < SORT_TABLES && got != NULL; table++) {
            ops_download(cuda_test_ops, got, order[table], (size_t)T * sizeof *got);
            int num_wrong = 0;  // strictly ascending pairs (id, t) of T tokens: a permutation, sorted, stable
            for (int k = 0; k < T; k++) { num_wrong += got[k] < 0 || got[k] >= T; }
            for (int k = 1; k < T && num_wrong == 0; k++) {
                const int32_t a = ids.host_ints[got[k - 1]], b = ids.host_ints[got[k]];
                num_wrong += a > b || (a == b && got[k - 1] >= got[k]);
            }
            CHECK_EQ(num_wrong, 0);
        }
        free(got);
        pair_release();
    }
}

// Small integers add up exactly in any order: every token must be counted once, exactly. Ids that share their
// lower bytes lie mixed unless all three digits are sorted by, and stably.
static void integers_add_up_exactly(int num_tokens, int stride) {
    const Shape s = {2500, 8, num_tokens, 40};
    int32_t ids[2500];
    for (int t = 0; t < s.T; t++) {
        ids[t] = (int32_t)rng_below(&cuda_test_rng, (uint32_t)(num_tokens / stride)) * stride;
    }
    Pair tokens = pair_ints(ids, (size_t)s.T), positions = ids_below(s.num_positions, s.T);
    Pair dout = pair_filled((size_t)(s.T * s.C), 0);
    for (int i = 0; i < s.T * s.C; i++) { dout.host[i] = (float)(rng_between(&cuda_test_rng, 0, 200) - 100); }
    pair_to_device(dout);
    Pair dwte = pair_floats((size_t)(s.num_tokens * s.C), 0),
         dwpe = pair_floats((size_t)(s.num_positions * s.C), 0);
    run_backward(dwte, dwpe, dout, tokens, positions, s);
    cpu_embedding_backward(dwte.host, dwpe.host, dout.host, tokens.host_ints, positions.host_ints, s.T, s.C);
    CHECK_PAIR(dwte, 0);
    CHECK_PAIR(dwpe, 0);
    pair_release();
}

static void integers_add_up_exactly_whatever_byte_differs(void) {
    integers_add_up_exactly(300, 1);
    integers_add_up_exactly(256 * 9, 256);
    integers_add_up_exactly(65536 * 3, 17 * 256);  // two bytes
    integers_add_up_exactly(65536 * 3, 65536);
}

static void scratch_is_linear_in_tokens(void) {
    const size_t none = embedding_backward_scratch_bytes(1, 768, cuda_test_ops);
    const size_t many = embedding_backward_scratch_bytes(1 << 20, 768, cuda_test_ops);
    CHECK(none <= 256 << 10);
    CHECK(many - none <= (size_t)16 << 20);
}

static void no_tokens_is_no_work(void) {
    Pair x = pair_filled(8, 1), dw = pair_floats(8, 1);
    embedding_forward(pair_x(x), NULL, NULL, pair_x(x), pair_x(x), 0, 8, cuda_test_ops);
    embedding_backward(pair_f(dw), pair_f(dw), NULL, pair_x(x), NULL, NULL, 0, 8, cuda_test_ops);
    CHECK_PAIR(x, 0);
    CHECK_PAIR(dw, 0);
    pair_release();
}

int main(int argc, char** argv) {
    cuda_test_begin(argc, argv);
    RUN(forward_equals_the_cpus);
    RUN(backward_equals_the_cpus_and_repeats_its_bits);
    RUN(without_positions_it_is_the_rows_of_wte);
    RUN(sort_is_by_id_and_stable);
    RUN(integers_add_up_exactly_whatever_byte_differs);
    RUN(scratch_is_linear_in_tokens);
    RUN(no_tokens_is_no_work);
    cuda_test_end();
    return test_end();
}
