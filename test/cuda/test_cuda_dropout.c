// test_cuda_dropout.c -- dropout.cu: the CPU's masks, exactly, whatever the path; nothing else changes.
#include "../../llmc/dropout_bits.h"
#include "cuda_test.h"

#include <math.h>

#define FLOAT_EPS 6e-8

typedef struct {
    int T, C;
} Shape;

static const Shape chosen[] = {{1, 1}, {1, 8}, {3, 7}, {2, 9}, {5, 64}, {33, 40}, {3, 1000}, {257, 24}};
enum { NUM_CHOSEN = sizeof chosen / sizeof *chosen, NUM_RANDOM = 6 };
static const float ps[] = {0.1f, 0.5f, 0.05f, 0.9f};

static Shape shape_of(int i) {
    if (i < NUM_CHOSEN) { return chosen[i]; }
    Shape shape = {rng_between(&cuda_test_rng, 1, 60), rng_between(&cuda_test_rng, 1, 300)};
    if (i % 2 == 0) { shape.C = (shape.C + 7) / 8 * 8; }
    return shape;
}

static Pair random_keys(int T) {
    Pair keys = pair_floats((size_t)T, 0);
    for (int t = 0; t < T; t++) { keys.host_ints[t] = (int32_t)rng_u64(&cuda_test_rng); }
    pair_to_device(keys);
    return keys;
}

static const uint32_t* keys_of(Pair keys) {
    return (const uint32_t*)keys.device;
}

static void masks_are_the_cpus_also_in_place(void) {
    for (int i = 0; i < NUM_CHOSEN + NUM_RANDOM; i++) {
        const int T = shape_of(i).T, C = shape_of(i).C;
        const size_t n = (size_t)T * (size_t)C;
        const uint32_t place = (uint32_t)rng_u64(&cuda_test_rng);
        const float p = ps[i % 4];
        Pair x = pair_random(n, 1.0), keys = random_keys(T), y = pair_filled(n, NAN);
        for (size_t k = 0; k < n; k++) { x.host[k] = x.host[k] == 0.0f ? 1.0f : x.host[k]; }
        pair_to_device(x);
        dropout_apply(pair_x(y), pair_x(x), keys_of(keys), place, p, T, C, cuda_test_ops);
        cpu_dropout_apply(y.host, x.host, (const uint32_t*)keys.host_ints, place, p, T, C);
        CHECK_PAIR(y, FLOATX_EPS + FLOAT_EPS);
        const float* got = pair_download(y);
        int num_wrong = 0;
        for (size_t k = 0; k < n; k++) {
            const uint32_t row = dropout_row((uint32_t)keys.host_ints[k / (size_t)C], place);
            const bool falls = dropout_bits(row, (uint32_t)(k % (size_t)C)) < dropout_threshold(p);
            num_wrong += falls != (got[k] == 0.0f);
        }
        CHECK_EQ(num_wrong, 0);
        Pair over = pair_copy_of(x);
        dropout_apply(pair_x(over), pair_x(over), keys_of(keys), place, p, T, C, cuda_test_ops);
        CHECK(pair_same_bits(over, y));
        pair_release();
    }
}

// A token keeps its mask in another micro-batch, and an array that begins between two vectors has the same.
static void a_mask_depends_on_the_token_alone(void) {
    const int T = 7, C = 40;
    Pair x = pair_filled((size_t)(T * C) + 1, 1.0f), keys = random_keys(T);
    Pair all = pair_filled((size_t)(T * C), NAN), one = pair_filled((size_t)C, NAN),
         off = pair_filled((size_t)(T * C) + 1, 1.0f);
    dropout_apply(pair_x(all), pair_x(x), keys_of(keys), 3, 0.3f, T, C, cuda_test_ops);
    dropout_apply(pair_x(one), pair_x(x), keys_of(keys) + 4, 3, 0.3f, 1, C, cuda_test_ops);
    dropout_apply(pair_x(off) + 1, pair_x(x) + 1, keys_of(keys), 3, 0.3f, T, C, cuda_test_ops);
    const float *a = pair_download(all), *b = pair_download(one), *c = pair_download(off);
    CHECK(memcmp(a + 4 * C, b, (size_t)C * sizeof *b) == 0);
    CHECK(memcmp(a, c + 1, (size_t)(T * C) * sizeof *a) == 0);
    pair_release();
}

static void without_dropout_it_is_a_copy(void) {
    Pair x = pair_random(300, 1.0), y = pair_filled(300, NAN);
    dropout_apply(pair_x(y), pair_x(x), NULL, 1, 0.0f, 3, 100, cuda_test_ops);
    CHECK(pair_same_bits(x, y));
    dropout_apply(pair_x(y), pair_x(y), NULL, 1, 0.0f, 3, 100, cuda_test_ops);
    CHECK(pair_same_bits(x, y));
    dropout_apply(pair_x(y), pair_x(x), NULL, 1, 0.5f, 0, 100, cuda_test_ops);
    CHECK(pair_same_bits(x, y));
    pair_release();
}

int main(int argc, char** argv) {
    cuda_test_begin(argc, argv);
    RUN(masks_are_the_cpus_also_in_place);
    RUN(a_mask_depends_on_the_token_alone);
    RUN(without_dropout_it_is_a_copy);
    cuda_test_end();
    return test_end();
}
