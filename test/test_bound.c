// test_bound.c -- nothing that can be scheduled is faster, and the bound is reached where it can be.
#include "../dynapipe_plugin/plan/bound.h"

#include "../dynapipe_plugin/plan/planner.h"
#include "case_problem.h"
#include "random_plan.h"
#include "random_problem.h"
#include "test.h"

static uint64_t seed;
static RandomProblem problem;
static CaseProblem a_case;

static void bound_of(LowerBound* out) {
    PlanProblem batch;
    CHECK_OK(
        plan_problem_init(&batch, &problem.request, &problem.costs, problem.samples, problem.num_samples));
    lower_bound_make(out, &batch);
}

// Blocks cut at random places, at least one a stage; the last may have none.
static void random_stages(PlanRequest* request, int32_t num_blocks, Rng* rng) {
    int32_t begin = 0, P = request->P;
    bool bare = P > 1 && num_blocks >= P && rng_below(rng, 5) == 0;
    for (int32_t s = 0; s < P; s++) {
        bool ends = s == P - 1 || (bare && s == P - 2);
        int32_t after = P - 1 - s - bare, most = num_blocks - begin - (after > 0 ? after : 0);
        int32_t own = ends ? num_blocks - begin : rng_between(rng, 1, most);
        request->placement.chunks[s] = (BlockRange){begin, begin + own};
        begin += own;
    }
}

// Splits, placements and heads, ranks that differ, all batchings: no plan is faster than the bound of its
// placement, and that is no less than the bounds of all splits and of all placements.
static void no_plan_is_faster(void) {
    static Placement placement;
    static RandomMachine machine;
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    int num_plans = 0, by_chain = 0, by_stage = 0;
    double sum = 0, sum_split = 0, sum_any = 0;
    for (int round = 0; round < test_rounds(1200); round++) {
        arena_reset(&arena);
        random_problem(&problem, &rng, rng_between(&rng, 1, round % 4 == 0 ? 3 : 40));
        PlanRequest* request = &problem.request;
        int32_t num_enc = problem.costs.chain.num_enc_layers, num_dec = problem.costs.chain.num_dec_layers;
        bool is_linear = round / 2 % 2;
        if (round % 2) { linear_cost_model(&problem.costs, &rng, num_enc, num_dec); }
        request->recompute = (RecomputeChoice)rng_below(&rng, 3);
        request->split_backward = (SplitBackward)rng_below(&rng, 3);
        request->batching = (Batching)(is_linear ? rng_below(&rng, BATCHING_COUNT) : 0);
        request->effort = 10;
        if (is_linear) {
            random_stages(request, plan_chain_num_blocks(&problem.costs.chain), &rng);
        } else {
            random_placement(&placement, &rng, request->P, plan_chain_num_blocks(&problem.costs.chain));
            request->placement = placement;
        }
        if (round / 4 % 2) {
            random_machine(&machine, &problem, &rng);
            request->machine = &machine.machine;
        }
        Plan plan;
        LowerBound own, split, any;
        Status status =
            plan_make(&plan, request, &problem.costs, problem.samples, problem.num_samples, &arena);
        if (status != STATUS_OK) { continue; }
        bound_of(&own);
        CHECK_EQ(plan.bound_ns, own.bound_ns);
        CHECK(plan.makespan_ns >= own.bound_ns && own.bound_ns > 0);
        CHECK(own.bound_ns >= own.work_ns && own.bound_ns >= own.chain_ns && own.bound_ns >= own.stage_ns);
        int64_t rounding_ns =
            10 * problem.num_samples * (plan_chain_num_blocks(&problem.costs.chain) + 1 + request->P);
        if (request->machine != NULL) { rounding_ns *= 5; }
        if (request->placement.head == HEAD_WHOLE) {  // "whole" is as given as a list
            request->heads = HEAD_CHOICE_WHOLE;
            bound_of(&split);
            CHECK_EQ(split.bound_ns, own.bound_ns);
            request->heads = HEAD_CHOICE_GIVEN;
        }
        request->choose_stages = true;
        bound_of(&split);
        request->placements = PLACEMENT_AUTO;
        request->heads = HEAD_CHOICE_AUTO;
        bound_of(&any);
        CHECK(split.bound_ns <= own.bound_ns + rounding_ns && any.bound_ns <= split.bound_ns + rounding_ns);
        num_plans++;
        by_chain += own.bound_ns == own.chain_ns;
        by_stage += own.bound_ns == own.stage_ns;
        sum += (double)plan.makespan_ns / (double)own.bound_ns;
        sum_split += (double)plan.makespan_ns / (double)split.bound_ns;
        sum_any += (double)plan.makespan_ns / (double)any.bound_ns;
    }
    printf("     %d plans: %.2f of the bound of their placement, %.2f of that of all splits, %.2f of that of "
           "all "
           "placements; the bound is a chain %d, a stage %d times\n",
           num_plans, sum / num_plans, sum_split / num_plans, sum_any / num_plans, by_chain, by_stage);
    CHECK(num_plans > test_rounds(800) && by_chain > test_rounds(50) && by_stage > test_rounds(50));
    arena_free(&arena);
}

// The least of the bounds of all ways to give blocks [begin, ..) to the stages from s on.
static int64_t least_of_splits(int32_t s, int32_t begin, int32_t num_blocks) {
    int64_t least_ns = INT64_MAX;
    int32_t P = problem.request.P, last = num_blocks - (P - 2 - s > 0 ? P - 2 - s : 0);
    if (s == P - 1) {
        LowerBound bound;
        problem.request.placement.chunks[s] = (BlockRange){begin, num_blocks};
        bound_of(&bound);
        return bound.stage_ns;
    }
    for (int32_t end = begin + 1; end <= last; end++) {
        problem.request.placement.chunks[s] = (BlockRange){begin, end};
        int64_t ns = least_of_splits(s + 1, end, num_blocks);
        least_ns = ns < least_ns ? ns : least_ns;
    }
    return least_ns;
}

static void best_split_is_the_least_of_all(void) {
    Rng rng = rng_seed(seed + 3);
    for (int round = 0; round < test_rounds(100); round++) {
        LowerBound bound;
        int32_t num_enc = rng_between(&rng, 1, 4), num_dec = rng_between(&rng, 0, 3);
        random_problem(&problem, &rng, rng_between(&rng, 1, 20));
        linear_cost_model(&problem.costs, &rng, num_enc, num_dec);
        const int32_t num_blocks = plan_chain_num_blocks(&problem.costs.chain);
        problem.request.P = rng_between(&rng, 1, num_blocks < 4 ? num_blocks : 4);
        problem.request.R = 1;
        problem.costs.comm_bytes_per_ns = problem.costs.reduce_bytes_per_ns =
            0;  // transfers are priced apart
        equal_stages(&problem.request, num_blocks);
        problem.request.choose_stages = true;
        bound_of(&bound);
        problem.request.choose_stages = false;
        CHECK_NEAR(bound.stage_ns, least_of_splits(0, 0, num_blocks), 10.0 * problem.num_samples + 100);
    }
}

// One stage, one replica, costs without constants: the bound is the work, as of any plan, but for rounding.
// One sample: it is its chain, exactly, whatever the costs look like.
static void bounds_are_reached(void) {
    Rng rng = rng_seed(seed + 1);
    Arena arena = {0};
    for (int round = 0; round < test_rounds(80); round++) {
        Plan plan;
        LowerBound bound;
        bool is_one = round % 2;
        random_problem(&problem, &rng, is_one ? 1 : rng_between(&rng, 2, 50));
        for (int32_t i = 0; i < problem.num_samples; i++) {  // else microbatches need not pay for the head
            problem.samples[i].supervised_tokens += problem.samples[i].supervised_tokens == 0;
        }
        PlanRequest* request = &problem.request;
        if (!is_one) {
            linear_cost_model(&problem.costs, &rng, 3, 0);
            *request = (PlanRequest){.P = 1, .R = 1};
            equal_stages(request, plan_chain_num_blocks(&problem.costs.chain));
        }
        request->layout = LAYOUT_RAGGED;
        request->recompute = RECOMPUTE_CHOICE_NONE;
        bound_of(&bound);
        CHECK_OK(plan_make(&plan, request, &problem.costs, problem.samples, problem.num_samples, &arena));
        CHECK_NEAR(plan.makespan_ns, bound.bound_ns, is_one ? 0 : 4.0 * problem.num_samples + 4);
        CHECK(!is_one || bound.bound_ns == bound.chain_ns);
        arena_reset(&arena);
    }
    arena_free(&arena);
}

// Straight lines count in full, however large the batch is.
static void straight_lines_count_in_full(void) {
    enum { NUM = RANDOM_MAX_SAMPLES, TOKENS = 30000 };
    LowerBound bound;
    memset(&problem.costs, 0, sizeof problem.costs);
    problem.costs.chain = plan_chain_whole(1, 0);
    for (int part = 0; part < PART_COUNT; part++) {
        problem.costs.parts[RECOMPUTE_NONE][part].offered = true;
    }
    CostFormula* F = &problem.costs.parts[RECOMPUTE_NONE][PART_ENC_BLOCK].time_ns[JOB_F];
    F->constant = 1000;
    cost_formula_add_line(F, FEATURE_ENC_TOKENS, 20);
    cost_formula_add_line(F, FEATURE_ENC_SQUARES, 1.0 / 16);
    problem.request = (PlanRequest){.P = 1, .R = 1};
    equal_stages(&problem.request, 1);
    problem.num_samples = NUM;
    for (int i = 0; i < NUM; i++) { problem.samples[i] = plan_sample(TOKENS, 0, 1); }
    bound_of(&bound);
    CHECK_NEAR(bound.work_ns, (double)NUM * TOKENS * (20 + TOKENS / 16.0), 3.0 * NUM);
}

// The planning cases: the judge's work bound, no more than what the original reached, and a table.
static void cases_have_the_judges_bound(void) {
    printf("     %-26s %9s %9s %9s %9s %9s %9s %9s\n", "ms", "judge", "work", "chain", "bound", "any split",
           "anything", "original");
    for (int i = 0; case_names[i]; i++) {
        CaseReference reference;
        PlanProblem mp;
        LowerBound bound, any_split, anything;
        if (!case_problem_load(&a_case, case_names[i]) || !case_reference_load(&reference, case_names[i])) {
            test_failures++;
            continue;
        }
        CHECK_OK(case_problem_init(&mp, &a_case));
        lower_bound_make(&bound, &mp);
        a_case.request.choose_stages = true;
        lower_bound_make(&any_split, &mp);
        a_case.request.placements = PLACEMENT_AUTO;
        a_case.request.heads = HEAD_CHOICE_AUTO;
        lower_bound_make(&anything, &mp);
        printf("     %-26s %9.3f %9.3f %9.3f %9.3f %9.3f %9.3f %9.3f\n", case_names[i], reference.bound_ms,
               (double)bound.work_ns / 1e6, (double)bound.chain_ns / 1e6, (double)bound.bound_ns / 1e6,
               (double)any_split.bound_ns / 1e6, (double)anything.bound_ns / 1e6, reference.makespan_ms);
        CHECK(anything.bound_ns <= any_split.bound_ns + 10 * mp.num_samples);
        CHECK((double)anything.bound_ns / 1e6 > reference.bound_ms - 0.002);
        CHECK(any_split.bound_ns <= bound.bound_ns + 10 * mp.num_samples);  // rounding
        CHECK((double)any_split.bound_ns / 1e6 > reference.bound_ms - 0.002);
        CHECK((double)bound.bound_ns / 1e6 <= reference.makespan_ms);
        mp.num_modes = 1;  // the judge's bound recomputes nothing
        mp.request = &(PlanRequest){.memory_limit_bytes = 0};
        lower_bound_make(&bound, &mp);
        if (reference.bound_ms > 0) {  // which has no constants
            CHECK_NEAR((double)bound.work_ns / 1e6 / reference.bound_ms, 1.004, 0.004);
        }
    }
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(no_plan_is_faster);
    RUN(best_split_is_the_least_of_all);
    RUN(bounds_are_reached);
    RUN(straight_lines_count_in_full);
    if (case_available()) {
        RUN(cases_have_the_judges_bound);
    } else {
        SKIP(cases_have_the_judges_bound, "../shared/cases is not there");
    }
    return test_end();
}
