// test_lower_bound.c -- nothing that can be scheduled is faster, and the bound is reached where it can be.
#include "../dynapipe_plugin/plan/lower_bound.h"

#include "../dynapipe_plugin/plan/replica_balance.h"
#include "case_problem.h"
#include "random_problem.h"
#include "test.h"

static uint64_t seed;
static RandomProblem problem;
static CaseProblem a_case;

// The pipeline of one replica without memory limits: an optimistic reading of any plan.
static int64_t makespan_of(const MicrobatchProblem* mp, const MicrobatchList* list, const ReplicaLists* lists,
                           int32_t r, const PipePolicy* policy, bool split_backward, Arena* arena) {
    int32_t P = mp->P, M = lists->begin[r + 1] - lists->begin[r];
    if (M == 0) { return 0; }
    PipeCost* cost = ARENA_NEW(arena, PipeCost, (size_t)P * (size_t)M);
    int32_t* order = ARENA_NEW(arena, int32_t, M);
    PipeProblem pipe = {.P = P, .M = M, .cost = cost};
    for (int32_t s = 0; s < P; s++) {
        pipe.memory_limit_bytes[s] = INT64_MAX / 4;
        pipe.tail_ns[s] = cost_reduce_ns(mp->costs, &mp->stages[s], mp->R);
    }
    for (int32_t m = 0; m < M; m++) {
        const Microbatch* mb = &list->mbs[lists->mbs[lists->begin[r] + m]];
        CostJobs jobs[PLAN_MAX_STAGES];
        cost_stages(jobs, mp->costs, mp->stages, P, mb->mode, &mb->shape);
        order[m] = m;
        for (int32_t s = 0; s < P; s++) {
            PipeCost* c = &cost[(int64_t)s * M + m];
            memcpy(c->job_ns, jobs[s].job_ns, sizeof c->job_ns);
            c->transfer_ns = s < P - 1 ? cost_transfer_ns(mp->costs, jobs[s].boundary_bytes) : 0;
            c->stored_bytes = 1;
            c->mode = mb->mode;
            c->drops = mp->costs->recompute_is_job[mb->mode];
        }
    }
    PipeSchedule schedule;
    PipeTimeline timeline;
    CHECK_OK(policy->build(&schedule, &pipe, order, split_backward, arena));
    CHECK_OK(pipe_simulate(&timeline, &pipe, &schedule, arena));
    return timeline.makespan_ns;
}

// Fastest of all batchings, schedules, joint or split; calls for every plan what must hold.
static int64_t fastest_plan(const MicrobatchProblem* mp, const LowerBound* bound, bool split_backward,
                            Arena* arena) {
    static const PipePolicy* const policies[] = {&pipe_policy_gpipe, &pipe_policy_1f1b,
                                                 &pipe_policy_adaptive};
    int64_t fastest = INT64_MAX;
    for (int b = 0; b < BATCHING_COUNT; b++) {
        MicrobatchList list;
        ReplicaLists lists;
        if (batching_policies[b].build(&list, mp, NULL, arena) != STATUS_OK) { continue; }
        CHECK_OK(replica_balance(&lists, &list, mp->R, arena));
        for (int p = 0; p < 3; p++) {
            int64_t slowest = 0;
            for (int32_t r = 0; r < mp->R; r++) {
                int64_t ns = makespan_of(mp, &list, &lists, r, policies[p], split_backward, arena);
                slowest = ns > slowest ? ns : slowest;
            }
            if (slowest < bound->bound_ns) {
                printf("%s %s split %d: %lld < bound %lld (work %lld chain %lld stage %lld)\n",
                       batching_policies[b].name, policies[p]->name, split_backward, (long long)slowest,
                       (long long)bound->bound_ns, (long long)bound->work_ns, (long long)bound->chain_ns,
                       (long long)bound->stage_ns);
            }
            CHECK(slowest >= bound->bound_ns);
            fastest = slowest < fastest ? slowest : fastest;
        }
    }
    return fastest;
}

static void no_plan_is_faster(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    int by_work = 0, by_chain = 0, by_stage = 0;
    double sum = 0;
    const int rounds = 150;
    for (int round = 0; round < rounds; round++) {
        MicrobatchProblem mp;
        LowerBound joint, split;
        random_problem(&problem, &rng, rng_between(&rng, 1, round % 4 == 0 ? 3 : 80));
        if (round % 2) {
            linear_cost_model(&problem.costs, &rng, problem.costs.num_enc_layers,
                              problem.costs.num_dec_layers);
        }
        problem.request.recompute = (RecomputeChoice)rng_below(&rng, 3);
        CHECK_OK(microbatch_problem_init(&mp, &problem.request, &problem.costs, problem.samples,
                                         problem.num_samples));
        lower_bound_make(&joint, &mp, true);
        lower_bound_make(&split, &mp, false);
        CHECK(joint.bound_ns >= split.bound_ns && split.bound_ns > 0);
        CHECK(split.bound_ns >= split.work_ns && split.bound_ns >= split.chain_ns &&
              split.bound_ns >= split.stage_ns);
        int64_t fastest = fastest_plan(&mp, &split, true, &arena);
        sum += (double)fastest / (double)split.bound_ns;
        fastest_plan(&mp, &joint, false, &arena);
        by_work += split.bound_ns == split.work_ns;
        by_chain += split.bound_ns == split.chain_ns;
        by_stage += split.bound_ns == split.stage_ns;
        arena_reset(&arena);
    }
    printf("bound is work %d, chain %d, stage %d times; fastest of the plans / bound %.2f on average\n",
           by_work, by_chain, by_stage, sum / rounds);
    CHECK(by_chain > 5 && by_stage > 5);
    arena_free(&arena);
}

// One stage, one replica, costs without constants: the bound is the makespan, but for rounding.
static void one_stage_reaches_the_bound(void) {
    Rng rng = rng_seed(seed + 1);
    Arena arena = {0};
    for (int round = 0; round < 40; round++) {
        MicrobatchProblem mp;
        LowerBound bound;
        int32_t N = rng_between(&rng, 1, 50);
        linear_cost_model(&problem.costs, &rng, 3, 0);
        problem.request = (PlanRequest){.P = 1, .R = 1, .layout = LAYOUT_RAGGED};
        equal_stages(&problem.request, 3);
        random_samples(problem.samples, N, &rng, (int)rng_below(&rng, 4), false);
        problem.num_samples = N;
        CHECK_OK(microbatch_problem_init(&mp, &problem.request, &problem.costs, problem.samples, N));
        lower_bound_make(&bound, &mp, false);
        CHECK_NEAR(fastest_plan(&mp, &bound, false, &arena), bound.bound_ns, 4.0 * N + 4);
        arena_reset(&arena);
    }
    arena_free(&arena);
}

// One sample: the bound is its chain, exactly, whatever the costs look like.
static void one_sample_is_its_chain(void) {
    Rng rng = rng_seed(seed + 2);
    Arena arena = {0};
    for (int round = 0; round < 40; round++) {
        MicrobatchProblem mp;
        LowerBound bound;
        random_problem(&problem, &rng, 1);
        problem.request.layout = LAYOUT_RAGGED;
        problem.request.recompute = RECOMPUTE_CHOICE_NONE;
        CHECK_OK(microbatch_problem_init(&mp, &problem.request, &problem.costs, problem.samples, 1));
        lower_bound_make(&bound, &mp, false);
        CHECK_EQ(fastest_plan(&mp, &bound, true, &arena), bound.chain_ns);
        CHECK_EQ(bound.bound_ns, bound.chain_ns);
        arena_reset(&arena);
    }
    arena_free(&arena);
}

// A curve that starts below zero and a constant that makes up for it: the rate is the slope, not nothing.
static void fitted_intercepts_keep_the_slope(void) {
    MicrobatchProblem mp;
    LowerBound bound;
    memset(&problem.costs, 0, sizeof problem.costs);
    problem.costs.num_enc_layers = 1;
    for (int part = 0; part < PART_COUNT; part++) {
        problem.costs.parts[RECOMPUTE_NONE][part].offered = true;
    }
    CostFormula* F = &problem.costs.parts[RECOMPUTE_NONE][PART_ENC_LAYER].time_ns[JOB_F];
    F->constant = 500000;
    F->curves[FEATURE_ENC_TOKENS] = (CostCurve){2, {500, 1000}, {100000, 600000}};  // 1000 x - 400000
    problem.request = (PlanRequest){.P = 1, .R = 1};
    equal_stages(&problem.request, 1);
    problem.num_samples = 100;
    for (int i = 0; i < 100; i++) { problem.samples[i] = (PlanSample){200, 0, 0}; }
    CHECK_OK(microbatch_problem_init(&mp, &problem.request, &problem.costs, problem.samples, 100));
    lower_bound_make(&bound, &mp, false);
    CHECK_NEAR(bound.work_ns, 100 * 200 * 1000, 300);
}

// The judge's work bound of the planning cases.
static void cases_have_the_judges_bound(void) {
    for (int i = 0; case_names[i]; i++) {
        CaseReference reference;
        MicrobatchProblem mp;
        LowerBound bound;
        if (!case_problem_load(&a_case, case_names[i]) || !case_reference_load(&reference, case_names[i])) {
            test_failures++;
            continue;
        }
        CHECK_OK(case_problem_init(&mp, &a_case));
        mp.num_modes = 1;  // the judge's bound recomputes nothing
        lower_bound_make(&bound, &mp, false);
        if (reference.bound_ms > 0) { CHECK_NEAR((double)bound.work_ns / 1e6, reference.bound_ms, 0.002); }
        CHECK((double)bound.bound_ns / 1e6 <= reference.makespan_ms);
    }
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(no_plan_is_faster);
    RUN(one_stage_reaches_the_bound);
    RUN(one_sample_is_its_chain);
    RUN(fitted_intercepts_keep_the_slope);
    if (case_available()) {
        RUN(cases_have_the_judges_bound);
    } else {
        SKIP(cases_have_the_judges_bound, "../shared/cases is not there");
    }
    return test_end();
}
