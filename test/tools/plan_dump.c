// plan_dump.c -- the plans of some dozens of fixed random problems, as text on stdout. Built by several
// compilers and at several levels of optimisation, it must say the same, byte for byte
// (test/test_compilers.sh).
#include <stdlib.h>

#include "../../dynapipe_plugin/plan/planner.h"
#include "../../dynapipe_plugin/plan/placement.h"
#include "../random_problem.h"

enum { NUM_PROBLEMS = 70 };

// Every second problem has the costs of a real model's shape, every third little memory. From 42 on all is
// left to the search: ragged and padded, stages chosen or given, both memory rules.
static void draw(RandomProblem* out, Rng* rng, int i) {
    random_problem(out, rng, rng_between(rng, 1, 90));
    out->request.batching = (Batching)(i % BATCHING_COUNT);
    out->request.schedule = (ScheduleChoice)rng_below(rng, SCHEDULE_COUNT);
    out->request.split_backward = (SplitBackward)rng_below(rng, 3);
    out->request.effort = 60;
    if (i >= 42) {
        out->request.batching = BATCHING_DYNAMIC;
        out->request.schedule = SCHEDULE_AUTO;
        out->request.layout = i % 4 == 0 ? LAYOUT_PADDED : LAYOUT_RAGGED;
        out->request.choose_stages = i / 2 % 2;
        out->request.memory_rule = i % 5 < 2 ? MEMORY_ACTIVATIONS : MEMORY_BUFFERS;
    }
    if (i % 2 == 1) {
        CostAnalytic about = {.num_layers = 12,
                              .channels = 64 * rng_between(rng, 4, 20),
                              .tied_head = true,
                              .num_heads = 12,
                              .padded_vocab = 50304,
                              .max_tokens = 4096,
                              .bytes_per_value = 4,
                              .flops_per_ns = 61.7,
                              .attention_flops_per_ns = 14.3,
                              .bytes_per_ns = 7.9,
                              .launch_ns = 20e3,
                              .comm_latency_ns = 19e3,
                              .comm_bytes_per_ns = 3.1};
        about.ffn_channels = 4 * about.channels;
        cost_model_analytic_gpt(&out->costs, &about);
        for (int32_t k = 0; k < out->num_samples; k++) { out->samples[k].dec_tokens = 0; }
        equal_stages(&out->request, 12);
    }
    if (i % 3 == 0) { random_problem_limit_memory(out, rng_between(rng, 0, 200)); }
}

int main(void) {
    static RandomProblem problem;
    Rng rng = rng_seed(20240601);
    Arena arena = {0};
    int num_plans = 0;
    for (int i = 0; i < NUM_PROBLEMS; i++) {
        Plan plan;
        draw(&problem, &rng, i);
        Status status =
            plan_make(&plan, &problem.request, &problem.costs, problem.samples, problem.num_samples, &arena);
        printf("# problem %d: status %d, hash %016llx\n", i, (int)status,
               status == STATUS_OK ? (unsigned long long)plan_hash(&plan) : 0ull);
        if (status == STATUS_OK) {
            plan_print(&plan, stdout);
            num_plans++;
        }
        arena_reset(&arena);
    }
    arena_free(&arena);
    fprintf(stderr, "%d plans of %d problems\n", num_plans, NUM_PROBLEMS);
    return num_plans >= NUM_PROBLEMS / 2 ? 0 : 1;
}
