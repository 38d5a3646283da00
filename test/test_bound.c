// test_bound.c -- nothing that can be scheduled is faster, and the bound is reached where it can be.
#include "../dynapipe_plugin/plan/bound.h"
#include "../dynapipe_plugin/plan/simulate.h"

#include "../rivals/rivals.h"
#include "../dynapipe_plugin/plan/planner.h"
#include "case_problem.h"
#include "random_plan.h"
#include "random_problem.h"
#include "test.h"

static uint64_t seed;
static RandomProblem problem;
static CaseProblem a_case;

// The pipeline of one replica without memory limits: an optimistic reading of any plan.
static int64_t makespan_of(const PlanProblem* mp, const MicrobatchList* list, const ReplicaMbs* lists,
                           int32_t r, const PipePolicy* policy, bool split_backward, Arena* arena) {
    int32_t P = mp->P, M = lists->begin[r + 1] - lists->begin[r];
    if (M == 0) { return 0; }
    PipeCost* cost = ARENA_NEW(arena, PipeCost, (size_t)P * (size_t)M);
    int32_t* order = ARENA_NEW(arena, int32_t, M);
    PipeProblem pipe = {.P = P, .M = M, .cost = cost};
    for (int32_t s = 0; s < P; s++) {
        pipe.memory_limit_bytes[s] = INT64_MAX / 4;
        pipe.tail_ns[s] = cost_rank_reduce_ns(mp->costs, &mp->has[s], mp->R);
    }
    for (int32_t m = 0; m < M; m++) {
        const Microbatch* mb = &list->mbs[lists->mbs[lists->begin[r] + m]];
        CostJobs jobs[PLAN_MAX_STAGES];
        cost_stages(jobs, mp->costs, mp->chunks, P, mb->mode, &mb->shape);
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
static int64_t fastest_plan(const PlanProblem* mp, const LowerBound* bound, bool split_backward,
                            Arena* arena) {
    static const PipePolicy* const policies[] = {&pipe_policy_gpipe, &pipe_policy_1f1b,
                                                 &pipe_policy_adaptive};
    int64_t fastest = INT64_MAX;
    for (int b = BATCHING_DYNAMIC + 1; b < BATCHING_COUNT; b++) {
        MicrobatchList list;
        ReplicaMbs lists;
        if (batching_policy((Batching)b)->build(&list, mp, arena) != STATUS_OK) { continue; }
        CHECK_OK(balance_replicas(&lists, &list, mp->R, NULL, arena));
        for (int p = 0; p < 3; p++) {
            int64_t slowest = 0;
            for (int32_t r = 0; r < mp->R; r++) {
                int64_t ns = makespan_of(mp, &list, &lists, r, policies[p], split_backward, arena);
                slowest = ns > slowest ? ns : slowest;
            }
            if (slowest < bound->bound_ns) {
                printf("%s %s split %d: %lld < bound %lld (work %lld chain %lld stage %lld)\n",
                       batching_policy((Batching)b)->name, policies[p]->name, split_backward,
                       (long long)slowest, (long long)bound->bound_ns, (long long)bound->work_ns,
                       (long long)bound->chain_ns, (long long)bound->stage_ns);
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
        PlanProblem mp;
        LowerBound joint, split;
        random_problem(&problem, &rng, rng_between(&rng, 1, round % 4 == 0 ? 3 : 80));
        if (round % 2) {
            linear_cost_model(&problem.costs, &rng, problem.costs.num_enc_layers,
                              problem.costs.num_dec_layers);
        }
        problem.request.recompute = (RecomputeChoice)rng_below(&rng, 3);
        CHECK_OK(
            plan_problem_init(&mp, &problem.request, &problem.costs, problem.samples, problem.num_samples));
        CHECK_OK(lower_bound_make(&joint, &mp, true));
        CHECK_OK(lower_bound_make(&split, &mp, false));
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

// --- splits of the layers, in little memory ----------------------------------------------------------------

// A problem whose layers have model state of about what a few samples keep, and a limit that is tight for
// some of its splits.
static void random_tight_problem(Rng* rng, int round) {
    random_problem(&problem, rng, rng_between(rng, 1, round % 10 == 0 ? 40 : 10));
    PlanRequest* request = &problem.request;
    CostModel* costs = &problem.costs;
    int32_t num_enc = costs->num_enc_layers, num_dec = costs->num_dec_layers;
    if (round % 2) { linear_cost_model(costs, rng, num_enc, num_dec); }
    int32_t layer_bytes = rng_below(rng, 3) ? rng_between(rng, 1, 400) * 1000000 : 0;
    for (int part = 0; part < PART_COUNT; part++) {
        costs->part_state_bytes[part] = (int64_t)layer_bytes * rng_between(rng, 1, 20) / 10;
    }
    const int64_t *state = costs->part_state_bytes, head = state[PART_HEAD],
                  embedding = state[PART_EMBEDDING];
    if (costs->tied_head_state_bytes > 0) {
        costs->tied_head_state_bytes = head < embedding ? head : embedding;
    }
    if (rng_below(rng, 2)) {  // a mode that keeps less
        for (int part = 0; part < PART_COUNT; part++) {
            CostFormula* stored = &costs->parts[RECOMPUTE_FULL][part].stored_bytes;
            stored->constant = stored->floor = 0;
            for (int f = 0; f < FEATURE_COUNT; f++) {
                for (int i = 0; i < COST_MAX_KNOTS; i++) { stored->curves[f].y[i] /= 8; }
            }
        }
    }
    request->recompute = (RecomputeChoice)rng_below(rng, 3);
    request->split_backward = rng_below(rng, 2) ? SPLIT_BACKWARD_ON : SPLIT_BACKWARD_OFF;
    request->memory_rule = rng_below(rng, 2) ? MEMORY_ACTIVATIONS : MEMORY_BUFFERS;
    request->batching = (Batching)rng_below(rng, rng_below(rng, 2) ? BATCHING_COUNT : 1);
    request->effort = 6;
    random_problem_limit_memory(&problem, 0);
    request->memory_limit_bytes = request->memory_limit_bytes / 100 * rng_between(rng, 60, 160) + 1;
}

// Layers cut at random places, at least one a stage; the last may have none.
static void random_stages(PlanRequest* request, int32_t num_layers, Rng* rng) {
    int32_t begin = 0, P = request->P;
    bool bare = P > 1 && num_layers >= P && rng_below(rng, 5) == 0;
    for (int32_t s = 0; s < P; s++) {
        bool ends = s == P - 1 || (bare && s == P - 2);
        int32_t after = P - 1 - s - bare, most = num_layers - begin - (after > 0 ? after : 0);
        int32_t own = ends ? num_layers - begin : rng_between(rng, 1, most);
        request->placement.chunks[s] = (LayerRange){begin, begin + own};
        begin += own;
    }
}

static bool plan_makespan(int64_t* out_ns, bool choose_stages, Arena* arena) {
    Plan plan;
    arena_reset(arena);
    problem.request.choose_stages = choose_stages;
    if (plan_make(&plan, &problem.request, &problem.costs, problem.samples, problem.num_samples, arena)) {
        return false;
    }
    *out_ns = plan.makespan_ns;
    return true;
}

static bool bound_of(LowerBound* out, bool choose_stages) {
    PlanProblem mp;
    PlanRequest* request = &problem.request;
    request->choose_stages = choose_stages;
    if (choose_stages) { equal_stages(request, problem.costs.num_enc_layers + problem.costs.num_dec_layers); }
    int64_t limit = request->memory_limit_bytes;
    // `stages` do not matter then, nor whether they fit
    if (choose_stages) { request->memory_limit_bytes = 0; }
    Status status = plan_problem_init(&mp, request, &problem.costs, problem.samples, problem.num_samples);
    request->memory_limit_bytes = limit;
    if (status == STATUS_OK && choose_stages) { plan_problem_limit(&mp); }
    if (status != STATUS_OK) { return false; }
    CHECK_OK(lower_bound_make(out, &mp, request->split_backward == SPLIT_BACKWARD_OFF));
    return true;
}

// The planner's own choice, and random splits.
static void no_plan_on_any_split_is_faster(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    const int rounds = 4000;
    int num_plans = 0, by_memory = 0, by_state = 0;
    for (int round = 0; round < rounds; round++) {
        LowerBound bound, own;
        int64_t makespan_ns;
        random_tight_problem(&rng, round);
        int32_t num_layers = problem.costs.num_enc_layers + problem.costs.num_dec_layers;
        CHECK(bound_of(&bound, true));
        for (int split = 0; split < 3; split++) {
            if (split == 0 && problem.request.R > 1) { continue; }  // several replicas: on given stages
            if (split > 0) { random_stages(&problem.request, num_layers, &rng); }
            if (!plan_makespan(&makespan_ns, split == 0, &arena)) { continue; }
            if (makespan_ns < bound.bound_ns) {
                printf("     round %d split %d: %lld < bound %lld (work %lld chain %lld stage %lld memory "
                       "%lld)\n",
                       round, split, (long long)makespan_ns, (long long)bound.bound_ns,
                       (long long)bound.work_ns, (long long)bound.chain_ns, (long long)bound.stage_ns,
                       (long long)bound.memory_ns);
            }
            CHECK(makespan_ns >= bound.bound_ns);
            num_plans++;
            if (split == 0) {
                by_memory += bound.bound_ns == bound.memory_ns;
                by_state += (double)bound.memory_ns > 1.05 * (double)bound.stage_ns;
                continue;
            }
            // what holds for all splits is no more than what holds for one, but for where looking was stopped
            if (bound_of(&own, false)) {
                CHECK(makespan_ns >= own.bound_ns);
                CHECK((double)bound.bound_ns <=
                      (double)own.bound_ns * 1.003 + 10 * problem.num_samples + 100);
            }
        }
    }
    printf("     %d problems, %d plans; bound is memory's %d times, 5 %% above that without it %d times\n",
           rounds, num_plans, by_memory, by_state);
    CHECK(num_plans > rounds / 2 && by_memory > 10 && by_state > 10);
    arena_free(&arena);
}

// Two stages; two layers that work and four that do nothing, of which one stage can hold three: so the first
// stage has all the work.
static void state_decides_the_split(void) {
    Arena arena = {0};
    LowerBound bound;
    int64_t makespan_ns = 0;
    CostModel* costs = &problem.costs;
    memset(costs, 0, sizeof *costs);
    costs->num_enc_layers = 2;
    costs->num_dec_layers = 4;
    for (int part = 0; part < PART_COUNT; part++) { costs->parts[RECOMPUTE_NONE][part].offered = true; }
    CostPartMode* layer = &costs->parts[RECOMPUTE_NONE][PART_ENC_LAYER];
    for (int kind = 0; kind < JOB_R; kind++) {
        cost_formula_add_line(&layer->time_ns[kind], FEATURE_ENC_TOKENS, 1000);
    }
    cost_formula_add_line(&layer->stored_bytes, FEATURE_ENC_TOKENS, 1);
    costs->part_state_bytes[PART_DEC_LAYER] = 300000;
    problem.request =
        (PlanRequest){.P = 2, .R = 1, .memory_rule = MEMORY_ACTIVATIONS, .memory_limit_bytes = 1000000};
    problem.num_samples = 40;
    for (int i = 0; i < 40; i++) { problem.samples[i] = (PlanSample){100, 10, 0}; }
    equal_stages(&problem.request, 6);
    CHECK(bound_of(&bound, true));
    CHECK_NEAR(bound.stage_ns, 40 * 100 * 3000, 2000 + 100000);  // one working layer each
    CHECK_NEAR(bound.memory_ns, 2 * 40 * 100 * 3000, 2000);
    CHECK(plan_makespan(&makespan_ns, true, &arena));
    CHECK_NEAR(makespan_ns, bound.bound_ns, 2000);
    arena_free(&arena);
}

// --- placements --------------------------------------------------------------------------------------------

// Chunks on any stages and shared heads: neither the bound of what is given nor that of all
// placements and heads is more than plans take.
static void no_plan_of_a_placement_is_faster(void) {
    static Placement placement;
    Rng rng = rng_seed(seed + 6);
    Arena arena = {0};
    int num_plans = 0, num_shared = 0, by_memory = 0;
    double sum = 0, sum_any = 0;
    for (int round = 0; round < 300; round++) {
        arena_reset(&arena);
        random_problem(&problem, &rng, rng_between(&rng, 1, 30));
        PlanRequest* request = &problem.request;
        if (round % 2) {
            linear_cost_model(&problem.costs, &rng, problem.costs.num_enc_layers,
                              problem.costs.num_dec_layers);
        }
        request->recompute = (RecomputeChoice)rng_below(&rng, 3);
        request->split_backward = rng_below(&rng, 2) ? SPLIT_BACKWARD_ON : SPLIT_BACKWARD_OFF;
        request->memory_rule = rng_below(&rng, 2) ? MEMORY_ACTIVATIONS : MEMORY_BUFFERS;
        request->effort = 10;
        random_problem_limit_memory(&problem, rng_between(&rng, 0, 200));
        if (round % 3 == 0) { request->memory_limit_bytes = 0; }
        random_placement(&placement, &rng, request->P,
                         problem.costs.num_enc_layers + problem.costs.num_dec_layers);
        request->placement = placement;
        Plan plan;
        if (plan_make(&plan, request, &problem.costs, problem.samples, problem.num_samples, &arena)) {
            continue;
        }
        PlanProblem mp;
        LowerBound bound, any;
        bool joint = request->split_backward == SPLIT_BACKWARD_OFF;
        CHECK_OK(plan_problem_init(&mp, request, &problem.costs, problem.samples, problem.num_samples));
        CHECK_OK(lower_bound_make(&bound, &mp, joint));
        CHECK(plan.bound_ns >= bound.bound_ns && plan.bound_ns <= plan.makespan_ns);
        request->placements = PLACEMENT_AUTO;
        request->heads = HEAD_CHOICE_AUTO;
        CHECK_OK(lower_bound_make(&any, &mp, joint));
        CHECK(plan.makespan_ns >= bound.bound_ns);
        CHECK(plan.makespan_ns >= any.bound_ns);
        CHECK(any.bound_ns <= bound.bound_ns + 10 * mp.num_samples * mp.num_rows);  // rounding
        num_plans++;
        num_shared += placement.head != HEAD_WHOLE;
        by_memory += bound.bound_ns == bound.memory_ns;
        sum += (double)plan.makespan_ns / (double)bound.bound_ns;
        sum_any += (double)plan.makespan_ns / (double)any.bound_ns;
    }
    printf("     %d plans, %d with a shared head: %.2f of the bound of their placement, %.2f of that of all; "
           "bound is memory %d times\n",
           num_plans, num_shared, sum / num_plans, sum_any / num_plans, by_memory);
    CHECK(num_plans > 150 && num_shared > 50);
    arena_free(&arena);
}

// One stage, one replica, costs without constants: the bound is the makespan, but for rounding.
static void one_stage_reaches_the_bound(void) {
    Rng rng = rng_seed(seed + 1);
    Arena arena = {0};
    for (int round = 0; round < 40; round++) {
        PlanProblem mp;
        LowerBound bound;
        int32_t N = rng_between(&rng, 1, 50);
        linear_cost_model(&problem.costs, &rng, 3, 0);
        problem.request = (PlanRequest){.P = 1, .R = 1, .layout = LAYOUT_RAGGED};
        equal_stages(&problem.request, 3);
        random_samples(problem.samples, N, &rng, (int)rng_below(&rng, 4), false);
        problem.num_samples = N;
        CHECK_OK(plan_problem_init(&mp, &problem.request, &problem.costs, problem.samples, N));
        CHECK_OK(lower_bound_make(&bound, &mp, false));
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
        PlanProblem mp;
        LowerBound bound;
        random_problem(&problem, &rng, 1);
        problem.request.layout = LAYOUT_RAGGED;
        problem.request.recompute = RECOMPUTE_CHOICE_NONE;
        CHECK_OK(plan_problem_init(&mp, &problem.request, &problem.costs, problem.samples, 1));
        CHECK_OK(lower_bound_make(&bound, &mp, false));
        CHECK_EQ(fastest_plan(&mp, &bound, true, &arena), bound.chain_ns);
        CHECK_EQ(bound.bound_ns, bound.chain_ns);
        arena_reset(&arena);
    }
    arena_free(&arena);
}

// Two equal stages whose memory holds one sample of 100 tokens, 12 of them, no transfers: in `mode`.
static void one_at_a_time(Plan* plan, LowerBound* bound, RecomputeMode mode, bool joint, Arena* arena) {
    PlanProblem mp;
    memset(&problem.costs, 0, sizeof problem.costs);
    problem.costs.num_enc_layers = 2;
    problem.costs.recompute_is_job[RECOMPUTE_FULL] = true;
    for (int k = 0; k < RECOMPUTE_COUNT; k++) {
        if (k == RECOMPUTE_SELECTIVE) { continue; }
        for (int part = 0; part < PART_COUNT; part++) { problem.costs.parts[k][part].offered = true; }
        CostPartMode* layer = &problem.costs.parts[k][PART_ENC_LAYER];
        for (int kind = 0; kind < JOB_COUNT; kind++) {
            if (kind == JOB_R && k == RECOMPUTE_NONE) { continue; }
            cost_formula_add_line(&layer->time_ns[kind], FEATURE_ENC_TOKENS, 1000 + 100 * kind);
        }
        cost_formula_add_line(&layer->stored_bytes, FEATURE_ENC_TOKENS, 4096);
        cost_formula_add_line(&layer->forward_bytes, FEATURE_ENC_TOKENS, 4096);
    }
    problem.request =
        (PlanRequest){.P = 2,
                      .R = 1,
                      .recompute = mode == RECOMPUTE_FULL ? RECOMPUTE_CHOICE_FULL : RECOMPUTE_CHOICE_NONE,
                      .split_backward = joint ? SPLIT_BACKWARD_OFF : SPLIT_BACKWARD_ON,
                      .memory_rule = MEMORY_ACTIVATIONS,
                      .memory_limit_bytes = 4096 * 100};
    equal_stages(&problem.request, 2);
    problem.num_samples = 12;
    for (int i = 0; i < 12; i++) { problem.samples[i] = (PlanSample){100, 0, 0}; }
    CHECK_OK(plan_make(plan, &problem.request, &problem.costs, problem.samples, 12, arena));
    CHECK_OK(plan_problem_init(&mp, &problem.request, &problem.costs, problem.samples, 12));
    CHECK_OK(lower_bound_make(bound, &mp, joint));
}

// Where memory holds one sample, the first stage does them one after the other, and the bound says so. Where
// activations are dropped, they are held only from R on, and the stages may overlap.
static void memory_bound_is_reached(void) {
    Arena arena = {0};
    Plan plan = {0};
    LowerBound bound;
    one_at_a_time(&plan, &bound, RECOMPUTE_NONE, true, &arena);
    CHECK_EQ(bound.bound_ns, bound.memory_ns);
    CHECK_EQ(plan.makespan_ns, 12 * 2 * 100 * (1000 + 1100 + 1200));
    CHECK(bound.bound_ns <= plan.makespan_ns && bound.bound_ns >= plan.makespan_ns - 1000);
    one_at_a_time(&plan, &bound, RECOMPUTE_NONE, false, &arena);
    CHECK_EQ(bound.bound_ns, bound.memory_ns);
    CHECK(bound.bound_ns <= plan.makespan_ns && bound.bound_ns >= plan.makespan_ns * 9 / 10);
    one_at_a_time(&plan, &bound, RECOMPUTE_FULL, true, &arena);
    CHECK(bound.bound_ns <= plan.makespan_ns && bound.bound_ns < 12 * 2 * 100 * (1000 + 1100 + 1200));
    arena_free(&arena);
}

// One layer with this forward, 100 samples of `tokens`: the work bound.
static int64_t work_of_forward(const CostFormula* forward, int32_t tokens) {
    PlanProblem mp;
    LowerBound bound;
    memset(&problem.costs, 0, sizeof problem.costs);
    problem.costs.num_enc_layers = 1;
    for (int part = 0; part < PART_COUNT; part++) {
        problem.costs.parts[RECOMPUTE_NONE][part].offered = true;
    }
    problem.costs.parts[RECOMPUTE_NONE][PART_ENC_LAYER].time_ns[JOB_F] = *forward;
    problem.request = (PlanRequest){.P = 1, .R = 1};
    equal_stages(&problem.request, 1);
    problem.num_samples = 100;
    for (int i = 0; i < 100; i++) { problem.samples[i] = (PlanSample){tokens, 0, 0}; }
    CHECK_OK(plan_problem_init(&mp, &problem.request, &problem.costs, problem.samples, 100));
    CHECK_OK(lower_bound_make(&bound, &mp, false));
    return bound.work_ns;
}

// Costs of straight lines count in full, however large the batch: padded to itself, its squares are beyond
// any 64-bit number.
static void straight_lines_count_in_full(void) {
    enum { NUM = RANDOM_MAX_SAMPLES, TOKENS = 30000 };
    PlanProblem mp;
    LowerBound bound;
    CostFormula F = {.constant = 1000};
    cost_formula_add_line(&F, FEATURE_ENC_TOKENS, 20);
    cost_formula_add_line(&F, FEATURE_ENC_SQUARES, 1.0 / 16);
    work_of_forward(&F, 1);
    problem.num_samples = NUM;
    for (int i = 0; i < NUM; i++) { problem.samples[i] = (PlanSample){TOKENS, 0, 0}; }
    CHECK_OK(plan_problem_init(&mp, &problem.request, &problem.costs, problem.samples, NUM));
    CHECK_OK(lower_bound_make(&bound, &mp, false));
    CHECK_NEAR(bound.work_ns, (double)NUM * TOKENS * (20 + TOKENS / 16.0), 3.0 * NUM);
}

// A curve that starts below zero and a constant that makes up for it: the rate is the slope, not nothing.
static void fitted_intercepts_keep_the_slope(void) {
    CostFormula F = {.constant = 500000};
    F.curves[FEATURE_ENC_TOKENS] = (CostCurve){2, {500, 1000}, {100000, 600000}};  // 1000 x - 400000
    CHECK_NEAR(work_of_forward(&F, 200), 100 * 200 * 1000, 300);
    // a smaller constant: cheapest per token where the clamp at 0 ends, and no bound may be above that
    F.constant = 100000;
    CHECK_NEAR(work_of_forward(&F, 400), 100 * 100000, 300);
}

// The planning cases: the judge's work bound, no more than what the original reached, and a table.
static void cases_have_the_judges_bound(void) {
    printf("     %-26s %9s %9s %9s %9s %9s %9s %9s %9s %9s\n", "ms", "judge", "work", "chain", "stage",
           "memory", "bound", "any split", "anything", "original");
    for (int i = 0; case_names[i]; i++) {
        CaseReference reference;
        PlanProblem mp;
        LowerBound bound, any_split, anything;
        if (!case_problem_load(&a_case, case_names[i]) || !case_reference_load(&reference, case_names[i])) {
            test_failures++;
            continue;
        }
        CHECK_OK(case_problem_init(&mp, &a_case));
        CHECK_OK(lower_bound_make(&bound, &mp, false));
        a_case.request.choose_stages = true;
        CHECK_OK(lower_bound_make(&any_split, &mp, false));
        a_case.request.placements = PLACEMENT_AUTO;
        a_case.request.heads = HEAD_CHOICE_AUTO;
        CHECK_OK(lower_bound_make(&anything, &mp, false));
        printf("     %-26s %9.3f %9.3f %9.3f %9.3f %9.3f %9.3f %9.3f %9.3f %9.3f\n", case_names[i],
               reference.bound_ms, (double)bound.work_ns / 1e6, (double)bound.chain_ns / 1e6,
               (double)bound.stage_ns / 1e6, (double)bound.memory_ns / 1e6, (double)bound.bound_ns / 1e6,
               (double)any_split.bound_ns / 1e6, (double)anything.bound_ns / 1e6, reference.makespan_ms);
        CHECK(anything.bound_ns <= any_split.bound_ns + 10 * mp.num_samples);
        CHECK((double)anything.bound_ns / 1e6 > reference.bound_ms - 0.002);
        CHECK(any_split.bound_ns <= bound.bound_ns + 10 * mp.num_samples);  // rounding
        CHECK((double)any_split.bound_ns / 1e6 > reference.bound_ms - 0.002);
        CHECK((double)bound.bound_ns / 1e6 <= reference.makespan_ms);
        mp.num_modes = 1;  // the judge's bound recomputes nothing
        mp.request = &(PlanRequest){.memory_limit_bytes = 0};
        CHECK_OK(lower_bound_make(&bound, &mp, false));
        if (reference.bound_ms > 0) { CHECK_NEAR((double)bound.work_ns / 1e6, reference.bound_ms, 0.002); }
    }
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(no_plan_is_faster);
    RUN(state_decides_the_split);
    RUN(no_plan_on_any_split_is_faster);
    RUN(no_plan_of_a_placement_is_faster);
    RUN(one_stage_reaches_the_bound);
    RUN(memory_bound_is_reached);
    RUN(one_sample_is_its_chain);
    RUN(straight_lines_count_in_full);
    RUN(fitted_intercepts_keep_the_slope);
    if (case_available()) {
        RUN(cases_have_the_judges_bound);
    } else {
        SKIP(cases_have_the_judges_bound, "../shared/cases is not there");
    }
    return test_end();
}
