// test_pipe_adaptive.c -- the adaptive order: memory, in-flight caps, recomputation, W as filler.
#include "../dynapipe_plugin/plan/schedule.h"
#include "../dynapipe_plugin/plan/simulate.h"
#include "random_plan.h"
#include "test.h"

static uint64_t seed;

// What the largest micro-batch needs on stage s, all of them alone.
static int64_t largest_alone_bytes(const PipeProblem* problem, int32_t s) {
    int64_t most = 0;
    for (int32_t m = 0; m < problem->M; m++) {
        int64_t bytes = pipe_alone_bytes(problem, s, m);
        most = bytes > most ? bytes : most;
    }
    return most;
}

// Any limit that fits one micro-batch alone gives a schedule that runs to its end and never exceeds it, even
// where jobs and transfers turn out to take other times. A limit below is INFEASIBLE with stage and bytes.
static void memory_limit_holds_at_any_instant(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    int32_t num_infeasible = 0, num_tight = 0;
    for (int32_t round = 0; round < 3000; round++) {
        arena_reset(&arena);
        int32_t P = rng_between(&rng, 1, 6), M = rng_between(&rng, 1, 14);
        RandomPipe about = {
            .transfers = round % 2, .zero_times = round % 5 == 0, .drops_percent = round % 4 * 33};
        PipeProblem problem = random_pipe(&rng, P, M, &about, &arena);
        bool fits = true;
        for (int32_t s = 0; s < P; s++) {
            int64_t least = largest_alone_bytes(&problem, s);
            problem.memory_limit_bytes[s] = least * rng_between(&rng, 10, 30) / 10;
            if (rng_below(&rng, 40) == 0 && least > 0) { problem.memory_limit_bytes[s] = least - 1; }
            fits &= problem.memory_limit_bytes[s] >= least;
        }
        PipeSchedule schedule;
        bool split = rng_below(&rng, 2);
        int32_t* order = random_order(&rng, M, &arena);
        Status status = pipe_policy_adaptive.build(&schedule, &problem, order, split, &arena);
        CHECK_EQ(status == STATUS_OK, fits);
        if (status != STATUS_OK) {
            CHECK_EQ(status, STATUS_INFEASIBLE);
            CHECK(strstr(status_message(), "over the memory limit ---> ") != NULL);
            num_infeasible++;
            continue;
        }
        PipeTimeline timeline;
        CHECK_OK(pipe_simulate(&timeline, &problem, &schedule, &arena));
        for (int32_t s = 0; s < P; s++) {
            CHECK(timeline.peak_bytes[s] <= problem.memory_limit_bytes[s]);
            num_tight += timeline.peak_bytes[s] > problem.memory_limit_bytes[s] * 9 / 10;
        }
        PipeCost* costs = (PipeCost*)(uintptr_t)problem.cost;
        for (int32_t i = 0; i < P * M; i++) {
            for (int32_t k = 0; k < JOB_COUNT; k++) { costs[i].job_ns[k] = rng_between(&rng, 0, 300); }
            costs[i].transfer_ns = rng_between(&rng, 0, 300);
        }
        CHECK_OK(pipe_simulate(&timeline, &problem, &schedule, &arena));
        for (int32_t s = 0; s < P; s++) { CHECK(timeline.peak_bytes[s] <= problem.memory_limit_bytes[s]); }
    }
    CHECK(num_infeasible > 20 && num_tight > 1000);
    arena_free(&arena);
}

// Stage s never holds more than max_in_flight[s] between the begin of F and the begin of B.
static void in_flight_stays_within_the_rule(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    int32_t reached = 0;
    for (int32_t round = 0; round < 500; round++) {
        arena_reset(&arena);
        int32_t P = rng_between(&rng, 1, 6), M = rng_between(&rng, 1, 20);
        PipeProblem problem = random_pipe(&rng, P, M, &(RandomPipe){.transfers = true}, &arena);
        PipeAdaptiveRule rule = pipe_adaptive_rule(&problem, round % 2);
        for (int32_t s = 0; s < P; s++) { rule.max_in_flight[s] = rng_between(&rng, 1, 2 * (P - s)); }
        PipeSchedule schedule;
        CHECK_OK(pipe_adaptive_build(&schedule, &problem, random_order(&rng, M, &arena), &rule, &arena));
        for (int32_t s = 0; s < P; s++) {
            int32_t held = 0;
            for (int32_t i = 0; i < schedule.num_jobs[s]; i++) {
                held += schedule.jobs[s][i].kind == JOB_F ? 1 : schedule.jobs[s][i].kind == JOB_B ? -1 : 0;
                CHECK(held <= rule.max_in_flight[s]);
                reached += held == rule.max_in_flight[s];
            }
            CHECK_EQ(held, 0);
        }
    }
    CHECK(reached > 1000);
    arena_free(&arena);
}

static int64_t makespan_of(const PipePolicy* policy, const PipeProblem* problem, bool split, Arena* arena) {
    int32_t order[64];
    for (int32_t m = 0; m < problem->M; m++) { order[m] = m; }
    PipeSchedule schedule;
    PipeTimeline timeline = {0};
    CHECK_OK(policy->build(&schedule, problem, order, split, arena));
    CHECK_OK(pipe_simulate(&timeline, problem, &schedule, arena));
    return timeline.makespan_ns;
}

// Equal micro-batches: as fast as 1F1B, and faster with W as filler. Unequal ones: faster on average, which
// is what the slack in flight is for.
static void slack_and_filler_pay(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    int64_t sum_1f1b = 0, sum_adaptive = 0, sum_split = 0;
    for (int32_t round = 0; round < 300; round++) {
        arena_reset(&arena);
        int32_t P = rng_between(&rng, 2, 6), M = rng_between(&rng, P, 24);
        PipeProblem equal = random_pipe(&rng, P, M, &(RandomPipe){.equal = true}, &arena);
        int64_t joint_ns = makespan_of(&pipe_policy_1f1b, &equal, false, &arena);
        CHECK_EQ(makespan_of(&pipe_policy_adaptive, &equal, false, &arena), joint_ns);
        CHECK(makespan_of(&pipe_policy_adaptive, &equal, true, &arena) < joint_ns);
        PipeProblem unequal = random_pipe(&rng, P, M, &(RandomPipe){.transfers = true}, &arena);
        sum_1f1b += makespan_of(&pipe_policy_1f1b, &unequal, false, &arena);
        sum_adaptive += makespan_of(&pipe_policy_adaptive, &unequal, false, &arena);
        sum_split += makespan_of(&pipe_policy_adaptive, &unequal, true, &arena);
    }
    printf("     unequal: 1f1b 100 %%, adaptive %.1f %%, with split backward %.1f %%\n",
           100.0 * (double)sum_adaptive / (double)sum_1f1b, 100.0 * (double)sum_split / (double)sum_1f1b);
    CHECK(sum_adaptive * 100 < sum_1f1b * 95);
    CHECK(sum_split * 100 < sum_adaptive * 97);
    arena_free(&arena);
}

// R runs once, between F and B, and ahead of time where the stage would idle.
static void recomputation_uses_idle_time(void) {
    PipeCost costs[2] = {
        {.job_ns = {10, 10, 0, 10}, .stored_bytes = 5, .mode = RECOMPUTE_FULL, .drops = true},
        {.job_ns = {10, 10, 0, 0}, .stored_bytes = 5},
    };
    PipeProblem problem = {.P = 2, .M = 1, .cost = costs, .memory_limit_bytes = {INT64_MAX, INT64_MAX}};
    Arena arena = {0};
    // F0 ends at 10; F and B of stage 1 take until 30, R of stage 0 runs meanwhile: 40 instead of 50
    CHECK_EQ(makespan_of(&pipe_policy_adaptive, &problem, false, &arena), 40);
    CHECK_EQ(makespan_of(&pipe_policy_1f1b, &problem, false, &arena), 40);
    arena_free(&arena);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(memory_limit_holds_at_any_instant);
    RUN(in_flight_stays_within_the_rule);
    RUN(slack_and_filler_pay);
    RUN(recomputation_uses_idle_time);
    return test_end();
}
