// test_bound_batch.c -- no sample is lost, and none is made longer than it is.
#include "../dynapipe_plugin/plan/bound.h"

#include "random_problem.h"
#include "test.h"

static uint64_t seed;
static PlanSample samples[RANDOM_MAX_SAMPLES];
static BoundBatch batch;

static bool no_more(const PlanSample* a, const PlanSample* b) {
    return a->enc_tokens <= b->enc_tokens && a->dec_tokens <= b->dec_tokens &&
           a->supervised_tokens <= b->supervised_tokens;
}

static bool is_same(const PlanSample* a, const PlanSample* b) {
    return no_more(a, b) && no_more(b, a);
}

// Of `num` samples: one of batch.samples[index[]] has no more (no less) of everything than this one.
static bool has_bound(const int32_t* index, int32_t num, const PlanSample* s, bool below) {
    for (int32_t i = 0; i < num; i++) {
        const PlanSample* other = &batch.samples[index[i]];
        if (below ? no_more(other, s) : no_more(s, other)) { return true; }
    }
    return false;
}

static void random_batch(int32_t* num, Rng* rng, int round) {
    *num = rng_between(rng, 1, round % 8 == 0 ? RANDOM_MAX_SAMPLES : 300);
    random_samples(samples, *num, rng, (int)rng_below(rng, 4), round % 3 == 0);
    if (round % 5 == 0) {  // the longer one, the shorter the other: all of them are extreme
        for (int32_t i = 0; i < *num; i++) { samples[i].dec_tokens = 40000 - samples[i].enc_tokens; }
    }
}

static void every_sample_is_counted_once(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    for (int round = 0; round < 400; round++) {
        int32_t num, distinct = 0, counted = 0;
        random_batch(&num, &rng, round);
        arena_reset(&arena);
        CHECK_OK(bound_batch_make(&batch, samples, num, &arena));
        for (int32_t i = 0; i < batch.num; i++) {
            const PlanSample* s = &batch.samples[i];
            int32_t equal = 0, first = num;
            for (int32_t k = num - 1; k >= 0; k--) {
                if (is_same(s, &samples[k])) { equal++, first = k; }
            }
            CHECK_EQ(batch.count[i], equal);
            CHECK_EQ(batch.first[i], first);
            CHECK(i == 0 || !is_same(s, &batch.samples[i - 1]));
            CHECK(i == 0 || batch.samples[i - 1].enc_tokens <= s->enc_tokens);
            distinct += equal;
        }
        CHECK_EQ(distinct, num);
        for (int32_t c = 0; c < batch.num_corners; c++) { counted += batch.corner_count[c]; }
        CHECK_EQ(counted, num);
        CHECK(batch.num_corners <= BOUND_MAX_CLASSES);
    }
    arena_free(&arena);
}

static void extremes_are_extreme(void) {
    Rng rng = rng_seed(seed + 1);
    Arena arena = {0};
    for (int round = 0; round < 400; round++) {
        int32_t num;
        random_batch(&num, &rng, round);
        arena_reset(&arena);
        CHECK_OK(bound_batch_make(&batch, samples, num, &arena));
        for (int32_t i = 0; i < num; i++) {
            CHECK(has_bound(batch.least, batch.num_least, &samples[i], true));
            CHECK(has_bound(batch.most, batch.num_most, &samples[i], false));
        }
    }
    arena_free(&arena);
}

// Classes can be given to the samples so that no corner is longer than one of its own (by Hall's theorem it
// is enough that no set of corners lacks samples; along one length that is a comparison of sorted lists).
static void corners_are_no_longer(void) {
    Rng rng = rng_seed(seed + 2);
    Arena arena = {0};
    for (int round = 0; round < 200; round++) {
        int32_t num;
        random_batch(&num, &rng, round);
        arena_reset(&arena);
        CHECK_OK(bound_batch_make(&batch, samples, num, &arena));
        for (int length = 0; length < 3; length++) {
            for (int32_t c = 0; c < batch.num_corners; c++) {
                const int32_t* corner = &batch.corners[c].enc_tokens;
                int32_t at_least = corner[length], corners = 0, longer = 0;
                for (int32_t k = 0; k < batch.num_corners; k++) {
                    const int32_t* other = &batch.corners[k].enc_tokens;
                    corners += other[length] >= at_least ? batch.corner_count[k] : 0;
                }
                for (int32_t i = 0; i < num; i++) { longer += (&samples[i].enc_tokens)[length] >= at_least; }
                CHECK(corners <= longer);
            }
        }
        if (batch.num > BOUND_MAX_CLASSES) { continue; }
        for (int32_t c = 0; c < batch.num; c++) {  // few samples: each is its own class
            CHECK(is_same(&batch.corners[c], &batch.samples[c]) && batch.corner_count[c] == batch.count[c]);
        }
    }
    arena_free(&arena);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(every_sample_is_counted_once);
    RUN(extremes_are_extreme);
    RUN(corners_are_no_longer);
    return test_end();
}
