// test_microbatch_dynamic.c -- by rule: complete, balanced, small at both ends, within memory.
#include "../dynapipe_plugin/plan/batching.h"

#include "../dynapipe_plugin/plan/types.h"
#include "list_check.h"
#include "random_problem.h"
#include "test.h"

static uint64_t seed;
static RandomProblem problem;

static bool lists_equal(const MicrobatchList* a, const MicrobatchList* b) {
    return a->num_mbs == b->num_mbs && a->num_segments == b->num_segments &&
           memcmp(a->segments, b->segments, (size_t)a->num_segments * sizeof *a->segments) == 0 &&
           memcmp(a->sequences, b->sequences, (size_t)a->num_sequences * sizeof *a->sequences) == 0;
}

// Every candidate of every problem makes a valid list, twice the same, grouped by replica, nobody left
// without work.
static void every_candidate_is_valid(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    for (int round = 0; round < 100; round++) {
        PlanProblem mp;
        MicrobatchTaper tapers[100];
        random_problem(&problem, &rng, rng_between(&rng, 1, round % 5 == 0 ? 3 : 200));
        if (round % 2) { random_problem_limit_memory(&problem, (int32_t)rng_below(&rng, 300)); }
        CHECK_OK(
            plan_problem_init(&mp, &problem.request, &problem.costs, problem.samples, problem.num_samples));
        int32_t num = batching_policy(BATCHING_DYNAMIC)->candidates(tapers, 100, &mp);
        CHECK(num >= 1 && num < 100);
        CHECK_EQ(batching_policy(BATCHING_DYNAMIC)->candidates(tapers, 1, &mp), 1);
        for (int32_t k = 0; k < num; k += 1 + (int32_t)rng_below(&rng, 5)) {
            MicrobatchList list, again;
            int32_t per_replica[16] = {0}, used = 0;
            CHECK_OK(microbatch_dynamic_build(&list, &mp, &tapers[k], &arena));
            CHECK_OK(list_check(&list, &mp, &arena));
            CHECK_OK(microbatch_dynamic_build(&again, &mp, &tapers[k], &arena));
            CHECK(lists_equal(&list, &again));
            if (problem.request.layout == LAYOUT_PADDED) { continue; }
            for (int32_t m = 0; m < list.num_mbs; m++) {
                CHECK_EQ(list.mbs[m].layout, LAYOUT_RAGGED);
                MicrobatchCost cost =
                    microbatch_cost(&mp, list.mbs[m].mode, SHARE_PIPELINE, &list.mbs[m].shape);
                CHECK(cost.fits_held || list.mbs[m].shape.num_seqs == 1);
                CHECK(m == 0 || list.mbs[m].replica >= list.mbs[m - 1].replica);
                used += per_replica[list.mbs[m].replica]++ == 0;
            }
            CHECK_EQ(used, problem.num_samples < mp.R ? problem.num_samples : mp.R);
        }
        arena_reset(&arena);
    }
    arena_free(&arena);
}

// Additive costs and many small samples: work follows the capacities, so the profile is the taper.
static void work_follows_the_taper(void) {
    Rng rng = rng_seed(seed + 1);
    Arena arena = {0};
    PlanProblem mp;
    MicrobatchList list;
    linear_cost_model(&problem.costs, &rng, 4, 0);
    problem.request = (PlanRequest){.P = 4, .R = 2};
    equal_stages(&problem.request, 4);
    problem.num_samples = 4000;
    for (int i = 0; i < 4000; i++) { problem.samples[i] = (PlanSample){rng_between(&rng, 5, 60), 0, 5}; }
    CHECK_OK(plan_problem_init(&mp, &problem.request, &problem.costs, problem.samples, 4000));
    MicrobatchTaper taper = {.num_mbs = 12, .depth = 4, .end_percent = 20};
    CHECK_OK(microbatch_dynamic_build(&list, &mp, &taper, &arena));
    CHECK_EQ(list.num_mbs, 24);
    static const double profile[] = {0.2, 0.2, 0.4, 0.4, 0.6, 0.6, 0.8, 0.8, 1, 1, 1, 1};  // sorted
    for (int r = 0; r < 2; r++) {
        const Microbatch* mbs = &list.mbs[12 * r];
        double body = (double)mbs[6].work_ns, work[12], unit = 0;
        for (int k = 0; k < 12; k++) {
            int e = k < 11 - k ? k : 11 - k;
            work[2 * e + (k >= 6)] = (double)mbs[k].work_ns;  // from the ends inwards
            CHECK(k == 0 ||
                  (k <= 6 ? mbs[k].work_ns >= mbs[k - 1].work_ns : mbs[k].work_ns <= mbs[k - 1].work_ns));
        }
        for (int k = 0; k < 12; k++) { unit += work[k] / 12 / 8.0 * 12; }
        for (int k = 0; k < 12; k++) { CHECK_NEAR(work[k] / unit, profile[k], 0.02); }
        CHECK_NEAR(body / unit, 1, 0.02);
    }
    int64_t sums[2] = {0, 0};
    for (int32_t m = 0; m < 24; m++) { sums[list.mbs[m].replica] += list.mbs[m].work_ns; }
    CHECK_NEAR((double)sums[0] / (double)sums[1], 1, 1e-3);
    arena_free(&arena);
}

// Without a taper: Graham's bound, the fullest is at most 4/3 of what is unavoidable.
static void equal_capacities_balance(void) {
    Rng rng = rng_seed(seed + 2);
    Arena arena = {0};
    for (int round = 0; round < 50; round++) {
        PlanProblem mp;
        MicrobatchList list;
        linear_cost_model(&problem.costs, &rng, 3, 0);
        problem.request = (PlanRequest){.P = 1, .R = 1};
        equal_stages(&problem.request, 3);
        problem.num_samples = rng_between(&rng, 20, 200);
        random_samples(problem.samples, problem.num_samples, &rng, (int)rng_below(&rng, 3), false);
        CHECK_OK(
            plan_problem_init(&mp, &problem.request, &problem.costs, problem.samples, problem.num_samples));
        MicrobatchTaper taper = {.num_mbs = rng_between(&rng, 1, 12), .depth = 0, .end_percent = 100};
        CHECK_OK(microbatch_dynamic_build(&list, &mp, &taper, &arena));
        CHECK_EQ(list.num_mbs, taper.num_mbs);
        int64_t total = 0, fullest = 0, longest = 0;
        for (int32_t m = 0; m < list.num_mbs; m++) {
            total += list.mbs[m].work_ns;
            fullest = list.mbs[m].work_ns > fullest ? list.mbs[m].work_ns : fullest;
        }
        for (int32_t i = 0; i < problem.num_samples; i++) {
            MbShape shape = {0};
            mb_shape_add(&shape, problem.samples[i].enc_tokens, 0, problem.samples[i].supervised_tokens);
            int64_t work_ns = microbatch_work_ns(&mp, RECOMPUTE_NONE, &shape);
            longest = work_ns > longest ? work_ns : longest;
        }
        double least =
            (double)total / taper.num_mbs > (double)longest ? (double)total / taper.num_mbs : (double)longest;
        // LPT's fullest bin is at most mean + (1 - 1/m) * the last sample put there; 4/3 of the optimum >=
        // least
        CHECK((double)fullest <= (double)total / taper.num_mbs + (double)longest);
        CHECK((double)fullest <= 4.0 / 3 * least * 1.0001 || list.num_mbs * 3 > problem.num_samples);
        arena_reset(&arena);
    }
    arena_free(&arena);
}

// Memory for about two average samples: more micro-batches than wished for, none too large; a giant stands
// alone.
static void tight_memory_opens_more(void) {
    Rng rng = rng_seed(seed + 3);
    Arena arena = {0};
    PlanProblem mp;
    MicrobatchList list;
    linear_cost_model(&problem.costs, &rng, 4, 0);
    problem.request = (PlanRequest){.P = 2, .R = 1, .recompute = RECOMPUTE_CHOICE_NONE};
    equal_stages(&problem.request, 4);
    problem.num_samples = 60;
    for (int i = 0; i < 60; i++) { problem.samples[i] = (PlanSample){i == 7 ? 1000 : 400, 0, 0}; }
    random_problem_limit_memory(&problem, 0);
    CHECK_OK(plan_problem_init(&mp, &problem.request, &problem.costs, problem.samples, 60));
    MicrobatchTaper taper = {.num_mbs = 3, .depth = 1, .end_percent = 50};
    CHECK_OK(microbatch_dynamic_build(&list, &mp, &taper, &arena));
    CHECK_OK(list_check(&list, &mp, &arena));
    CHECK(list.num_mbs >= 30);
    problem.samples[7].enc_tokens = 3000;
    CHECK_FAILS(microbatch_dynamic_build(&list, &mp, &taper, &arena), STATUS_INFEASIBLE,
                "sample 7 (3000 tokens");
    arena_free(&arena);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(every_candidate_is_valid);
    RUN(work_follows_the_taper);
    RUN(equal_capacities_balance);
    RUN(tight_memory_opens_more);
    return test_end();
}
