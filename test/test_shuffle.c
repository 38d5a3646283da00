// test_shuffle.c -- permutations without memory: every number once, every order about equally often.
#include "../dataloader/loader.h"

#include "../util/numbers.h"
#include "test.h"

static uint64_t seed;

static void every_number_comes_once(void) {
    Rng rng = rng_seed(seed);
    unsigned char* seen = malloc(70000);
    for (int round = 0; round < 120; round++) {
        uint64_t n = round < 70 ? (uint64_t)round + 1 : 1 + rng_below(&rng, 70000), key = rng_u64(&rng);
        memset(seen, 0, n);
        for (uint64_t i = 0; i < n; i++) {
            uint64_t place = shuffle_index(n, key, i);
            CHECK(place < n);
            if (place < n) { seen[place]++; }
        }
        for (uint64_t i = 0; i < n; i++) { test_failures += seen[i] != 1; }
    }
    free(seen);
    CHECK(shuffle_index((uint64_t)1 << 62, 5, 17) < (uint64_t)1 << 62);
}

// Over many keys each of the 4! orders of four items comes up equally often, chi-squared on 23 degrees of
// freedom: 57 is exceeded once in 10,000 tries.
static void orders_are_equally_likely(void) {
    int counts[256] = {0}, num_orders = 0;
    double chi_squared = 0, expected = 24000.0 / 24;
    for (uint64_t key = 0; key < 24000; key++) {
        int code = 0;
        for (uint64_t i = 0; i < 4; i++) { code = code * 4 + (int)shuffle_index(4, seed * 1000000 + key, i); }
        counts[code]++;
    }
    for (int code = 0; code < 256; code++) {
        num_orders += counts[code] > 0;
        chi_squared +=
            counts[code] > 0 ? (counts[code] - expected) * (counts[code] - expected) / expected : 0;
    }
    CHECK_EQ(num_orders, 24);
    CHECK(chi_squared < 57);
}

// In a long permutation, where an item lands says nothing of where its neighbour lands.
static void neighbours_are_independent(void) {
    enum { N = 40000 };
    double sum = 0;
    for (uint64_t i = 0; i + 1 < N; i++) {
        double a = (double)shuffle_index(N, seed, i) / N - 0.5,
               b = (double)shuffle_index(N, seed, i + 1) / N - 0.5;
        sum += a * b;
    }
    CHECK_NEAR(sum / N * 12, 0, 4.5 / 200);  // a correlation; its standard deviation is 1 / sqrt(N)
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(every_number_comes_once);
    RUN(orders_are_equally_likely);
    RUN(neighbours_are_independent);
    return test_end();
}
