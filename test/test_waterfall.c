// test_waterfall.c -- the parts sum to makespan - bound, none is negative, and each has its own cause.
#include "../tool/waterfall.h"

#include <string.h>

#include "../dynapipe_plugin/plan/planner.h"
#include "random_plan.h"
#include "random_problem.h"
#include "test.h"

static uint64_t seed;
static RandomProblem problem;
static const Machine pulled = {.pulls = true};

static bool make(Plan* plan, Waterfall* waterfall, Arena* arena) {
    Status status =
        plan_make(plan, &problem.request, &problem.costs, problem.samples, problem.num_samples, arena);
    if (status == STATUS_INFEASIBLE) { return false; }
    CHECK_OK(status);
    if (status != STATUS_OK) { return false; }
    CHECK_OK(waterfall_make(waterfall, plan, &problem.costs, &problem.request, problem.samples, arena));
    int64_t sum = 0;
    for (int part = 0; part < WATERFALL_COUNT; part++) {
        CHECK(waterfall->part_ns[part] >= 0);
        sum += waterfall->part_ns[part];
    }
    CHECK_EQ(sum, plan->makespan_ns - plan->bound_ns);
    CHECK_EQ(waterfall->makespan_ns, plan->makespan_ns);
    return true;
}

// Any plan: all batchings, schedules, memory rules and limits; half of them with chunks on any stages and
// shared heads.
static void parts_sum_to_the_gap(void) {
    static Placement placement;
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    int num_plans = 0, num_shared = 0, seen[WATERFALL_COUNT] = {0};
    for (int round = 0; round < 300; round++) {
        arena_reset(&arena);
        random_problem(&problem, &rng, rng_between(&rng, 1, 40));
        problem.request.batching = (Batching)rng_below(&rng, BATCHING_COUNT);
        problem.request.schedule = (ScheduleChoice)rng_below(&rng, SCHEDULE_COUNT);
        problem.request.split_backward = (SplitBackward)rng_below(&rng, 3);
        problem.request.memory_rule = rng_below(&rng, 2) ? MEMORY_ACTIVATIONS : MEMORY_BUFFERS;
        problem.request.effort = 20;
        if (round % 2 == 1) {
            random_placement(&placement, &rng, problem.request.P,
                             plan_chain_num_blocks(&problem.costs.chain));
            problem.request.placement = placement;
            problem.request.batching = rng_below(&rng, 2) ? BATCHING_DYNAMIC : BATCHING_TOKENS;
            problem.request.schedule = SCHEDULE_ADAPTIVE;
        }
        if (round % 3 == 1) { problem.request.machine = &pulled; }
        if (rng_below(&rng, 2)) { random_problem_limit_memory(&problem, rng_between(&rng, 5, 200)); }
        Plan plan;
        Waterfall waterfall;
        if (!make(&plan, &waterfall, &arena)) { continue; }
        num_plans++;
        num_shared += round % 2 == 1 && placement.head != HEAD_WHOLE;
        for (int part = 0; part < WATERFALL_COUNT; part++) { seen[part] += waterfall.part_ns[part] > 0; }
        if (problem.request.memory_limit_bytes == 0) { CHECK_EQ(waterfall.part_ns[WATERFALL_MEMORY], 0); }
        bool single = problem.request.R == 1;
        if (single) { CHECK_EQ(waterfall.part_ns[WATERFALL_REPLICAS], 0); }
    }
    printf("     %d plans; parts seen:", num_plans);
    for (int part = 0; part < WATERFALL_COUNT; part++) {
        printf(" %s %d", waterfall_names[part], seen[part]);
    }
    printf("\n");
    CHECK(num_plans > 150 && num_shared > 30);
    for (int part = 0; part < WATERFALL_COUNT; part++) { CHECK(seen[part] > 0); }
    arena_free(&arena);
}

// A pipeline in which one thing is wrong: `num` samples of 160 tokens, P stages, everything else free.
static void plain_problem(int32_t P, int32_t R, int32_t num_samples) {
    memset(&problem, 0, sizeof problem);
    problem.costs.chain = plan_chain_whole(P, 0);
    for (int part = 0; part < PART_COUNT; part++) {
        problem.costs.parts[RECOMPUTE_NONE][part].offered = true;
    }
    CostPartMode* layer = &problem.costs.parts[RECOMPUTE_NONE][PART_ENC_BLOCK];
    cost_formula_add_line(&layer->time_ns[JOB_F], FEATURE_ENC_TOKENS, 1000);
    cost_formula_add_line(&layer->time_ns[JOB_B], FEATURE_ENC_TOKENS, 1000);
    cost_formula_add_line(&layer->time_ns[JOB_W], FEATURE_ENC_TOKENS, 1000);
    problem.request = (PlanRequest){.P = P,
                                    .R = R,
                                    .batching = BATCHING_PADDED,
                                    .mb_samples = 1,
                                    .schedule = SCHEDULE_1F1B,
                                    .split_backward = SPLIT_BACKWARD_OFF};
    equal_stages(&problem.request, P);
    problem.num_samples = num_samples;
    for (int32_t i = 0; i < num_samples; i++) { problem.samples[i] = plan_sample(160, 0, 160); }
}

// The whole gap is one part, but for a few ns of rounding.
static void check_cause(WaterfallPart cause, const char* what) {
    Arena arena = {0};
    Plan plan;
    Waterfall waterfall;
    CHECK(make(&plan, &waterfall, &arena));
    int64_t gap = plan.makespan_ns - plan.bound_ns;
    if (waterfall.part_ns[cause] < gap * 98 / 100 - 100 || gap < 1000) {
        printf("%s: not all of the gap\n", what);
        waterfall_print(&waterfall, stdout);
        test_failures++;
    }
    arena_free(&arena);
}

static void each_part_has_its_cause(void) {
    plain_problem(1, 1, 8);
    problem.costs.parts[RECOMPUTE_NONE][PART_ENC_BLOCK].time_ns[JOB_F].constant = 50000;
    check_cause(WATERFALL_LAUNCH, "constants");
    plain_problem(1, 1, 8);
    for (int i = 0; i < 4; i++) { problem.samples[i].enc_tokens = 80; }
    problem.request.mb_samples = 8;
    check_cause(WATERFALL_PADDING, "padding");
    plain_problem(1, 4, 8);
    problem.request.mb_samples = 4;
    check_cause(WATERFALL_REPLICAS, "2 microbatches on 4 replicas");
    plain_problem(2, 1, 8);
    problem.costs.comm_latency_ns = 100000;
    problem.costs.comm_bytes_per_ns = 1;
    Arena arena = {0};
    Plan plan;
    Waterfall waterfall;
    CHECK(make(&plan, &waterfall, &arena));
    CHECK(waterfall.part_ns[WATERFALL_COMMUNICATION] > 100000);
    arena_free(&arena);
}

// Two stages with room for one microbatch each are in turn; offloaded, they overlap as without a limit.
static void offload_has_the_price_of_no_limit(void) {
    Arena arena = {0};
    Plan plan;
    Waterfall limited, unlimited;
    plain_problem(2, 1, 8);
    CostPartMode* layer = &problem.costs.parts[RECOMPUTE_NONE][PART_ENC_BLOCK];
    cost_formula_add_line(&layer->stored_bytes, FEATURE_ENC_TOKENS, 1);
    problem.request.memory_rule = MEMORY_ACTIVATIONS;
    problem.request.schedule = SCHEDULE_ADAPTIVE;
    CHECK(make(&plan, &unlimited, &arena));
    CHECK(unlimited.offload_bytes_per_ns == 0);
    problem.request.memory_limit_bytes = 160;
    CHECK(make(&plan, &limited, &arena));
    CHECK(limited.makespan_ns > unlimited.makespan_ns * 3 / 2);
    CHECK_EQ(limited.offloaded_ns, unlimited.makespan_ns);
    // Of 8 x 160 bytes at least a half, at most all but the one that has room.
    double moved_bytes = limited.offload_bytes_per_ns * (double)limited.offloaded_ns;
    CHECK(moved_bytes >= 640 && moved_bytes <= 1120);
    arena_free(&arena);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(parts_sum_to_the_gap);
    RUN(each_part_has_its_cause);
    RUN(offload_has_the_price_of_no_limit);
    return test_end();
}
