// test_search_lean.c -- a plan that may be 0.3 % slower holds less, and is no slower than that.
#include "../dynapipe_plugin/plan/search_lean.h"

#include <math.h>

#include "random_problem.h"
#include "test.h"

static uint64_t seed;
static RandomProblem problem;

static double arena_bytes(const Plan* plan) {
    double sum = 0;
    for (int32_t r = 0; r < plan->P * plan->R; r++) { sum += (double)plan->ranks[r].arena_bytes; }
    return sum;
}

static void less_is_held_in_about_the_same_time(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    double sum_log = 0;
    int num = 0;
    for (int round = 0; round < 40; round++) {
        Plan fastest, lean;
        arena_reset(&arena);
        random_problem(&problem, &rng, rng_between(&rng, 20, 80));
        linear_cost_model(&problem.costs, &rng, 8, 0);
        problem.request = (PlanRequest){.P = rng_between(&rng, 1, 4),
                                        .R = rng_between(&rng, 1, 2),
                                        .layout = LAYOUT_RAGGED,
                                        .memory_rule = MEMORY_BUFFERS,
                                        .max_seq_tokens = 4096};
        equal_stages(&problem.request, 8);
        random_samples(problem.samples, problem.num_samples, &rng, 0, false);
        CHECK_OK(plan_make(&fastest, &problem.request, &problem.costs, problem.samples, problem.num_samples,
                           &arena));
        problem.request.memory_slack_permille = PLAN_MEMORY_SLACK_PERMILLE;
        CHECK_OK(
            plan_make(&lean, &problem.request, &problem.costs, problem.samples, problem.num_samples, &arena));
        CHECK(lean.makespan_ns <= fastest.makespan_ns + fastest.makespan_ns / 1000 * 3 + 3);
        sum_log += log(arena_bytes(&lean) / arena_bytes(&fastest));
        num++;
    }
    printf("     %d batches: %.3f of the bytes\n", num, exp(sum_log / num));
    CHECK(exp(sum_log / num) < 0.9);
    arena_free(&arena);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(less_is_held_in_about_the_same_time);
    return test_end();
}
