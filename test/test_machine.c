// test_machine.c -- plans for ranks and links that differ: laws that hold whatever the method.
#include "../dynapipe_plugin/plan/cost_model.h"

#include <math.h>

#include "../dynapipe_plugin/plan/bound.h"
#include "../tool/waterfall.h"
#include "../dynapipe_plugin/plan/planner.h"
#include "random_problem.h"
#include "test.h"

static uint64_t seed;
static RandomProblem problem;
static RandomMachine machine;

static Status plan(Plan* out, const Machine* on, Arena* arena) {
    PlanRequest request = problem.request;
    request.machine = on;
    return plan_make(out, &request, &problem.costs, problem.samples, problem.num_samples, arena);
}

// The best of the three ways to plan: ours, ours on stages of its choice, a baseline.
static void random_batch(Rng* rng, int32_t round, int32_t most_samples) {
    random_problem(&problem, rng, rng_between(rng, 4, most_samples));
    PlanRequest* request = &problem.request;
    int32_t L = rng_between(rng, 4, 10), dec = round % 5 == 0 ? L / 2 : 0, P = rng_between(rng, 1, 4);
    linear_cost_model(&problem.costs, rng, L - dec, dec);
    static const Batching batchings[] = {BATCHING_DYNAMIC, BATCHING_DYNAMIC, BATCHING_KK,
                                         BATCHING_PACKED_RAGGED, BATCHING_DYNAPIPE};
    Batching batching = batchings[round % 5];
    *request = (PlanRequest){.P = P,
                             .R = rng_between(rng, 1, 3),
                             .batching = batching,
                             .layout = batching == BATCHING_DYNAPIPE ? LAYOUT_PADDED : LAYOUT_RAGGED,
                             .recompute = RECOMPUTE_CHOICE_AUTO,
                             .memory_rule = round % 2 ? MEMORY_BUFFERS : MEMORY_ACTIVATIONS,
                             .choose_stages = round % 5 == 1,
                             .max_seq_tokens = 4096,
                             .effort = 8};
    equal_stages(request, L);
    random_samples(problem.samples, problem.num_samples, rng, 0, dec > 0);
}

// --- laws ------------------------------------------------------------------------------------------------

// A machine whose ranks all do what the cost model says is no machine.
static void ranks_that_are_alike_change_nothing(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    for (int32_t round = 0; round < 25; round++) {
        Plan with, without;
        arena_reset(&arena);
        random_batch(&rng, round, 40);
        problem.request.choose_stages = false;
        for (int32_t r = 0; r < problem.request.P * problem.request.R; r++) {
            machine.ranks[r] = machine_rank(NULL, r);
        }
        machine.machine = (Machine){problem.request.P * problem.request.R, machine.ranks, false};
        CHECK(!machine_differs(&machine.machine));
        CHECK_OK(plan(&without, NULL, &arena));
        CHECK_OK(plan(&with, &machine.machine, &arena));
        CHECK_EQ(with.makespan_ns, without.makespan_ns);
        CHECK(plan_hash(&with) == plan_hash(&without));
        CHECK_EQ(with.bound_ns, without.bound_ns);
    }
    arena_free(&arena);
}

// Every job's time a multiple of 2: half of it is a whole number.
static void even_formula(CostFormula* formula) {
    formula->constant = 2 * floor(formula->constant / 2);
    formula->floor = 0;
    for (int f = 0; f < FEATURE_COUNT; f++) {
        CostCurve* curve = &formula->curves[f];
        if (curve->num_knots > 0) { *curve = (CostCurve){1, {1}, {2 * ceil(curve->y[0] / curve->x[0] / 2)}}; }
    }
}

static void even_costs(CostModel* costs) {
    for (int mode = 0; mode < RECOMPUTE_COUNT; mode++) {
        for (int part = 0; part < PART_COUNT; part++) {
            for (int kind = 0; kind < JOB_COUNT; kind++) {
                even_formula(&costs->parts[mode][part].time_ns[kind]);
            }
        }
    }
    costs->comm_bytes_per_ns = costs->reduce_bytes_per_ns = 0;
    costs->update_ns_per_byte = 2;
}

static void all_ranks_take(double slow) {
    for (int32_t r = 0; r < machine.machine.num_ranks; r++) {
        machine.ranks[r] = (MachineRank){.slow = {slow, slow, slow, slow}};
    }
}

// Baselines decide by comparing times alone, so theirs is the same plan in half the time; ours stops
// searching by thousandths of a makespan, so it may be another one.
static void twice_the_speed_is_half_the_time(void) {
    Rng rng = rng_seed(seed + 1);
    Arena arena = {0};
    for (int32_t round = 0; round < 40; round++) {
        Plan slow, fast;
        arena_reset(&arena);
        random_batch(&rng, round, 40);
        even_costs(&problem.costs);
        machine.machine = (Machine){problem.request.P * problem.request.R, machine.ranks, false};
        all_ranks_take(4);
        CHECK_OK(plan(&slow, &machine.machine, &arena));
        all_ranks_take(2);
        CHECK_OK(plan(&fast, &machine.machine, &arena));
        int64_t twice_ns = 2 * fast.makespan_ns;
        if (problem.request.batching == BATCHING_DYNAMIC) {
            CHECK_NEAR(twice_ns, slow.makespan_ns, 0.02 * (double)slow.makespan_ns);
        } else if (problem.request.batching !=
                   BATCHING_DYNAPIPE) {  // its orders are drawn from rounded times
            CHECK_EQ(twice_ns, slow.makespan_ns);
        }
    }
    arena_free(&arena);
}

// Replicas in another order: the same batch in about the same time; for baselines, with the same work on
// each.
static void replicas_may_change_places(void) {
    Rng rng = rng_seed(seed + 2);
    Arena arena = {0};
    for (int32_t round = 0; round < 30; round++) {
        Plan before, after;
        arena_reset(&arena);
        random_batch(&rng, round, 60);
        problem.request.R = 3;
        random_machine(&machine, &problem, &rng);
        CHECK_OK(plan(&before, &machine.machine, &arena));
        int32_t P = problem.request.P;
        MachineRank moved[64];
        memcpy(moved, machine.ranks, sizeof moved);
        for (int32_t r = 0; r < 3; r++) {
            memcpy(&machine.ranks[r * P], &moved[(r + 1) % 3 * P], (size_t)P * sizeof *moved);
        }
        CHECK_OK(plan(&after, &machine.machine, &arena));
        double tolerance = problem.request.batching == BATCHING_DYNAMIC ? 0.02 : 0;
        if (problem.request.batching == BATCHING_DYNAPIPE) {
            continue;
        }  // deals its lists as if all were alike
        CHECK_NEAR(after.makespan_ns, before.makespan_ns, tolerance * (double)before.makespan_ns);
    }
    arena_free(&arena);
}

// What a plan takes on a machine that it was not made for: its own job lists, simulated there.
static int64_t judged_ns(const Plan* made, const Machine* on, Arena* arena) {
    PlanRequest request = problem.request;
    Waterfall waterfall;
    Plan judged = *made;
    request.machine = on;
    judged.makespan_ns = 0;
    request.placement = made->placement;
    // the waterfall's first level is the plan's job lists on the request's machine: it says what it found
    Status status = waterfall_make(&waterfall, &judged, &problem.costs, &request, problem.samples,
                                   problem.num_samples, arena);
    const char* found = strstr(status_message(), "its jobs take ");
    CHECK(status == STATUS_INVALID_PLAN && found != NULL);
    return found != NULL ? strtoll(found + strlen("its jobs take "), NULL, 10) : 0;
}

// A plan that was made for the machine it runs on beats one that was not; and is never below the bound.
static void knowing_is_better(void) {
    Rng rng = rng_seed(seed + 3);
    Arena arena = {0};
    double sum = 0, sum_bound = 0;
    int num = 0, num_worse = 0;
    for (int32_t round = 0; round < 60; round++) {
        Plan knowing, not_knowing;
        arena_reset(&arena);
        random_batch(&rng, round, 80);
        problem.request.batching = BATCHING_DYNAMIC;
        problem.request.layout = LAYOUT_RAGGED;
        problem.request.choose_stages = round % 2;
        problem.request.effort = 0;
        random_machine(&machine, &problem, &rng);
        CHECK_OK(plan(&not_knowing, NULL, &arena));
        CHECK_OK(plan(&knowing, &machine.machine, &arena));
        int64_t there_ns = judged_ns(&not_knowing, &machine.machine, &arena);
        CHECK(knowing.bound_ns <= knowing.makespan_ns && knowing.bound_ns <= there_ns);
        CHECK_EQ(judged_ns(&knowing, &machine.machine, &arena), knowing.makespan_ns);
        num_worse += knowing.makespan_ns > there_ns + there_ns / 1000;
        sum += (double)there_ns / (double)knowing.makespan_ns;
        sum_bound += (double)knowing.makespan_ns / (double)knowing.bound_ns;
        num++;
    }
    printf("     %d machines: not knowing takes %.3f times as long, knowing is slower %d times; %.3f of its "
           "bound\n",
           num, sum / num, num_worse, sum_bound / num);
    CHECK(sum / num > 1.2 && num_worse <= num / 20);
    arena_free(&arena);
}

// Each rank keeps to what it has; the plan says so itself, without the machine.
static void no_rank_gets_more_than_it_has(void) {
    Rng rng = rng_seed(seed + 4);
    Arena arena = {0};
    int num = 0;
    for (int32_t round = 0; round < 60; round++) {
        Plan made;
        arena_reset(&arena);
        random_batch(&rng, round, 40);
        problem.request.memory_rule = MEMORY_BUFFERS;
        random_problem_limit_memory(&problem, 40);
        int64_t least_bytes = problem.request.memory_limit_bytes;
        random_machine(&machine, &problem, &rng);
        if (round % 3 == 0) { problem.request.memory_limit_bytes = 0; }
        Status status = plan(&made, &machine.machine, &arena);
        if (status == STATUS_INFEASIBLE) { continue; }
        CHECK_OK(status);
        for (int32_t r = 0; r < made.P * made.R; r++) {
            int64_t own_bytes = machine.ranks[r].memory_limit_bytes;
            int64_t limit_bytes = own_bytes > 0 ? own_bytes : problem.request.memory_limit_bytes;
            CHECK_EQ(plan_limit_bytes(&made, r), limit_bytes);
            CHECK(limit_bytes == 0 || made.ranks[r].arena_bytes + made.ranks[r].state_bytes <= limit_bytes);
            num += own_bytes > least_bytes;
        }
    }
    CHECK(num > 50);
    arena_free(&arena);
}

// --- the machine itself ----------------------------------------------------------------------------------

static void factors_are_applied(void) {
    CostModel* costs = &problem.costs;
    *costs = (CostModel){.comm_latency_ns = 10, .comm_bytes_per_ns = 2};
    MachineRank rank = machine_rank(NULL, 0);
    CHECK_EQ(machine_job_ns(NULL, JOB_F, 7), 7);
    CHECK_EQ(machine_job_ns(&rank, JOB_F, 7), 7);
    CHECK_EQ(machine_transfer_ns(&rank, costs, 100), 60);
    CHECK_EQ(machine_limit_bytes(&rank, 5), 5);
    rank = (MachineRank){{1.5, 2, 3, 1}, 1000, 1, 4};
    CHECK_EQ(machine_job_ns(&rank, JOB_F, 7), 11);
    CHECK_EQ(machine_transfer_ns(&rank, costs, 100), 26);
    CHECK_EQ(machine_transfer_ns(NULL, costs, 100), 60);
    CHECK_EQ(machine_limit_bytes(&rank, 5), 1000);
    CHECK(machine_replica(&(Machine){.num_ranks = 0}, 0) == NULL && machine_replica(NULL, 4) == NULL);
    Machine two = {.num_ranks = 2, .ranks = (MachineRank[]){rank, rank}};
    CHECK(machine_replica(&two, 1) == &two.ranks[1]);
    CHECK_FAILS(machine_check(&two, 3), STATUS_OUT_OF_RANGE, "tells of 2 ranks, there are 3 --->");
    MachineRank bad[2] = {rank, rank};
    bad[1].slow[JOB_W] = 0;
    CHECK_FAILS(machine_check(&(Machine){.num_ranks = 2, .ranks = bad}, 2), STATUS_OUT_OF_RANGE,
                "rank 1 takes 0 times as long for W --->");
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(factors_are_applied);
    RUN(ranks_that_are_alike_change_nothing);
    RUN(twice_the_speed_is_half_the_time);
    RUN(replicas_may_change_places);
    RUN(knowing_is_better);
    RUN(no_rank_gets_more_than_it_has);
    return test_end();
}
