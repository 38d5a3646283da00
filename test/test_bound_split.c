// test_bound_split.c -- no plan on any split of the layers is faster, also where memory decides which splits
// there are.
#include "../dynapipe_plugin/plan/bound.h"

#include "../dynapipe_plugin/plan/planner.h"
#include "random_problem.h"
#include "test.h"

static uint64_t seed;
static RandomProblem problem;

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
        int32_t behind = P - 1 - s - bare, most = num_layers - begin - (behind > 0 ? behind : 0);
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
    CHECK(num_plans > rounds && by_memory > rounds / 50 && by_state > rounds / 100);
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

// The same, with room for a sample beside four idle layers only where its activations are recomputed: then a
// working layer fits there, and no bound may say otherwise.
static void recomputation_makes_room(void) {
    Arena arena = {0};
    LowerBound bound;
    int64_t makespan_ns = 0;
    CostModel* costs = &problem.costs;
    state_decides_the_split();
    for (int part = 0; part < PART_COUNT; part++) {
        costs->parts[RECOMPUTE_FULL][part] = costs->parts[RECOMPUTE_NONE][part];
    }
    CostPartMode *none = &costs->parts[RECOMPUTE_NONE][PART_ENC_LAYER],
                 *full = &costs->parts[RECOMPUTE_FULL][PART_ENC_LAYER];
    cost_formula_add_line(&none->stored_bytes, FEATURE_ENC_TOKENS, 19);
    cost_formula_add_line(&full->stored_bytes, FEATURE_ENC_TOKENS, 4);
    cost_formula_add_line(&full->time_ns[JOB_B], FEATURE_ENC_TOKENS, 500);
    problem.request.memory_limit_bytes = 4 * 300000 + 1000;
    problem.request.recompute = RECOMPUTE_CHOICE_AUTO;
    equal_stages(&problem.request, 6);
    CHECK(bound_of(&bound, true));
    problem.request.placement.chunks[0] = (LayerRange){0, 1};
    problem.request.placement.chunks[1] = (LayerRange){1, 6};
    CHECK(plan_makespan(&makespan_ns, false, &arena));
    CHECK(makespan_ns >= bound.bound_ns && makespan_ns < 40 * 100 * 3000 * 3 / 2);
    arena_free(&arena);
}

// A limit under which nothing fits: memory says nothing.
static void nothing_fits(void) {
    LowerBound bound;
    state_decides_the_split();
    problem.request.memory_limit_bytes = 300001;  // a stage holds one of four
    CHECK(bound_of(&bound, true));
    CHECK_EQ(bound.memory_ns, 0);
    CHECK(bound.bound_ns > 0 && bound.bound_ns < COST_LIMIT);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(state_decides_the_split);
    RUN(recomputation_makes_room);
    RUN(nothing_fits);
    RUN(no_plan_on_any_split_is_faster);
    return test_end();
}
