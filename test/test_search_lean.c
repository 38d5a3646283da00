// test_search_lean.c -- a plan that may be 0.3 % slower holds less, and is no slower than that.
#include "../dynapipe_plugin/plan/search/search_lean.h"

#include <math.h>

#include "../dynapipe_plugin/plan/planner.h"
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

// Two ranks, a small model with a large head, as on the machine of this repository's runs: four micro-batches
// of thousands of tokens are as good as the bound, and so are many of less.
static void a_search_that_ended_early_goes_on_with_less_memory(void) {
    const CostAnalytic about = {.num_layers = 8,
                                .channels = 256,
                                .num_heads = 4,
                                .padded_vocab = 50304,
                                .max_tokens = 2048,
                                .bytes_per_value = 4,
                                .flops_per_ns = 61.7,
                                .attention_flops_per_ns = 14.3,
                                .bytes_per_ns = 7.9,
                                .launch_ns = 20e3,
                                .comm_latency_ns = 19e3,
                                .comm_bytes_per_ns = 3.1,
                                .num_replicas = 1};
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    double sum_log = 0;
    enum { ROUNDS = 20 };
    cost_model_analytic_gpt(&problem.costs, &about);
    for (int round = 0; round < ROUNDS; round++) {
        Plan fastest, lean;
        int32_t tokens = 0;
        arena_reset(&arena);
        for (problem.num_samples = 0; tokens < 16384; problem.num_samples++) {
            int32_t most = rng_below(&rng, 6) == 0 ? 2048 : 250, length = rng_between(&rng, 20, most);
            problem.samples[problem.num_samples] =
                (PlanSample){.enc_tokens = length, .supervised_tokens = length};
            tokens += length;
        }
        problem.request = (PlanRequest){.P = 2,
                                        .R = 1,
                                        .layout = LAYOUT_RAGGED,
                                        .choose_stages = true,
                                        .memory_rule = MEMORY_BUFFERS,
                                        .max_seq_tokens = 2048};
        equal_stages(&problem.request, 8);
        CHECK_OK(plan_make(&fastest, &problem.request, &problem.costs, problem.samples, problem.num_samples,
                           &arena));
        problem.request.memory_slack_permille = PLAN_MEMORY_SLACK_PERMILLE;
        CHECK_OK(
            plan_make(&lean, &problem.request, &problem.costs, problem.samples, problem.num_samples, &arena));
        CHECK(lean.makespan_ns <= fastest.makespan_ns + fastest.makespan_ns / 1000 * 3 + 3);
        CHECK(lean.memory_limit_bytes == 0);
        sum_log += log(arena_bytes(&lean) / arena_bytes(&fastest));
    }
    printf("     %d batches: %.3f of the bytes\n", ROUNDS, exp(sum_log / ROUNDS));
    CHECK(exp(sum_log / ROUNDS) < 0.6);
    arena_free(&arena);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(less_is_held_in_about_the_same_time);
    RUN(a_search_that_ended_early_goes_on_with_less_memory);
    return test_end();
}
