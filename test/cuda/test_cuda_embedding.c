// test_cuda_embedding.c -- embedding.cu and embedding_sort.cu against the CPU's, which adds token by token in
// order.
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

// Small integers add up exactly in any order: every token must be counted once, exactly.
static void integers_add_up_exactly(void) {
    const Shape s = {2500, 8, 300, 40};
    Pair tokens = ids_below(s.num_tokens, s.T), positions = ids_below(s.num_positions, s.T);
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
    RUN(integers_add_up_exactly);
    RUN(scratch_is_linear_in_tokens);
    RUN(no_tokens_is_no_work);
    cuda_test_end();
    return test_end();
}
