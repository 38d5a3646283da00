// test_largest_samples.c -- every length is covered by one that is kept, and none that is kept by another.
#include "../dataloader/loader.h"
#include "../util/numbers.h"
#include "test.h"

static uint64_t seed;

static bool covers(const PlanSample* a, const PlanSample* b) {
    return a->enc_tokens >= b->enc_tokens && a->dec_tokens >= b->dec_tokens &&
           a->supervised_tokens >= b->supervised_tokens;
}

static int32_t num_covering(const LargestSamples* largest, const PlanSample* lengths) {
    int32_t num = 0;
    for (int32_t i = 0; i < largest->num_samples; i++) { num += covers(&largest->samples[i], lengths); }
    return num;
}

static void all_are_covered_by_few(void) {
    enum { NUM = 300 };
    Rng rng = rng_seed(seed);
    for (int32_t round = 0; round < 50; round++) {
        LargestSamples largest = {0};
        PlanSample all[NUM];
        int32_t most = round % 5 == 0 ? 3 : 500;
        for (int32_t i = 0; i < NUM; i++) {
            all[i] = (PlanSample){rng_between(&rng, 1, most), round % 2 * rng_between(&rng, 1, most),
                                  rng_between(&rng, 1, most)};
            CHECK_OK(largest_samples_add(&largest, &all[i]));
        }
        for (int32_t i = 0; i < NUM; i++) { CHECK(num_covering(&largest, &all[i]) >= 1); }
        for (int32_t i = 0; i < largest.num_samples; i++) {
            CHECK_EQ(num_covering(&largest, &largest.samples[i]), 1);
        }
        largest_samples_free(&largest);
        CHECK_EQ(largest.num_samples, 0);
    }
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(all_are_covered_by_few);
    return test_end();
}
