// test_optimum_bound.c -- bound <= optimum <= plan, on batches small enough to try every composition and
// order.
#include "optimum.h"

#include "../dynapipe_plugin/plan/bound.h"
#include "../dynapipe_plugin/plan/draft.h"
#include "../dynapipe_plugin/plan/planner.h"
#include "../dynapipe_plugin/plan/types.h"
#include "random_plan.h"
#include "random_problem.h"
#include "test.h"

enum { MAX_NODES = 400000, MOST_BUMPED = OPTIMUM_MAX_STAGES * OPTIMUM_MAX_MBS * JOB_R };

static uint64_t seed;
static RandomProblem problem;
static RandomMachine machine;

// --- whole batches ---------------------------------------------------------------------------------------

typedef struct {
    const PlanProblem* mp;
    bool joint;
    int32_t set_of[4];  // sample -> microbatch
    int32_t num_sets;
    int32_t replica_of[4];
    int64_t best_ns;
    bool gave_up;
    int64_t num_bumped;  // jobs of no time that the optimum knows as one nanosecond, at most MOST_BUMPED
    Arena* arena;
} Batch;

// The optimum of one replica's microbatches, INT64_MAX where one does not fit alone.
static int64_t replica_ns(Batch* batch, int32_t r) {
    const PlanProblem* mp = batch->mp;
    PipeCost cells[OPTIMUM_MAX_ROWS * OPTIMUM_MAX_MBS] = {{.stored_bytes = 0}};
    MbShape shapes[4] = {{0}};
    int32_t M = 0;
    for (int32_t set = 0; set < batch->num_sets; set++) {
        if (batch->replica_of[set] != r) { continue; }
        for (int32_t i = 0; i < mp->num_samples; i++) {
            const PlanSample* s = &mp->samples[i];
            if (batch->set_of[i] == set) {
                mb_shape_add(&shapes[M], s->enc_tokens, s->dec_tokens, s->supervised_tokens);
            }
        }
        M++;
    }
    if (M == 0) { return 0; }
    static PipePlace place;
    const uint8_t modes[OPTIMUM_MAX_ROWS] = {RECOMPUTE_NONE};
    pipe_place_make(&place, mp, &mp->placement, r);
    PipeProblem pipe = pipe_place_problem(&place, M);
    pipe.cost = cells;
    for (int32_t s = 0; s < mp->P; s++) {
        if (place.limit_bytes[s] > 0) { pipe.memory_limit_bytes[s] = place.available_bytes[s]; }
    }
    for (int32_t m = 0; m < M; m++) {
        pipe_costs_make(cells + m, NULL, M, &place, modes, &shapes[m], NULL);
        for (int32_t row = 0; row < pipe_num_rows(&pipe); row++) {
            PipeCost* cell = &cells[row * M + m];
            if (!pipe_has_row(&pipe, row)) { continue; }
            for (int k = 0; k < JOB_R; k++) {
                batch->num_bumped += cell->job_ns[k] == 0;
                cell->job_ns[k] += cell->job_ns[k] == 0;
            }
            if (cell->stored_bytes > pipe.memory_limit_bytes[pipe_stage_of(&pipe, row)]) { return INT64_MAX; }
        }
    }
    int64_t optimum = optimum_make(&pipe, !batch->joint, batch->best_ns, MAX_NODES);
    batch->gave_up |= optimum < 0;
    return optimum;
}

// Sample i into each microbatch that there is, or a new one on any replica.
static void compose(Batch* batch, int32_t i) {
    const PlanProblem* mp = batch->mp;
    if (i == mp->num_samples) {
        int64_t slowest = 0;
        for (int32_t r = 0; r < mp->R && slowest < batch->best_ns && !batch->gave_up; r++) {
            int64_t ns = replica_ns(batch, r);
            slowest = ns > slowest ? ns : slowest;
        }
        if (slowest < batch->best_ns) { batch->best_ns = slowest; }
        return;
    }
    for (int32_t set = 0; set <= batch->num_sets && set < 4; set++) {
        batch->set_of[i] = set;
        if (set < batch->num_sets) {
            compose(batch, i + 1);
            continue;
        }
        batch->num_sets++;
        for (int32_t r = 0; r < mp->R; r++) {
            batch->replica_of[set] = r;
            compose(batch, i + 1);
        }
        batch->num_sets--;
    }
}

// Chunks of at least a block, the last perhaps a whole head alone, anywhere; every stage has one. The head
// whole or shared.
static void place_anywhere(Placement* out, Rng* rng, int32_t P, int32_t L, bool is_whole) {
    int32_t most = L + is_whole < 5 ? L + is_whole : 5, K = rng_between(rng, P, most), begin = 0;
    *out = (Placement){.num_chunks = K, .head = HEAD_WHOLE};
    for (int32_t k = 0; k < K; k++) {
        int32_t behind = K - 1 - k - (is_whole && k < K - 1);  // blocks that those after it need
        int32_t own = k == K - 1 ? L - begin : rng_between(rng, 1, L - begin - behind);
        out->chunks[k] = (BlockRange){begin, begin + own};
        out->stage_of[k] = (int16_t)(k < P ? k : rng_between(rng, 0, P - 1));
        begin += own;
    }
    for (int32_t k = K - 1; k > 0; k--) {
        int32_t j = rng_between(rng, 0, k);
        int16_t stage = out->stage_of[k];
        out->stage_of[k] = out->stage_of[j];
        out->stage_of[j] = stage;
    }
    if (is_whole) { return; }
    out->head = (uint8_t)(HEAD_BY_ROWS + rng_below(rng, 2));
    for (int32_t s = 1; s < P; s++) {
        out->head_begin[s] = (int16_t)rng_between(rng, out->head_begin[s - 1], HEAD_UNITS);
    }
    out->head_begin[P] = HEAD_UNITS;
}

// One chunk a stage, the last perhaps the head alone.
static void random_split(Placement* out, Rng* rng, int32_t P, int32_t L) {
    BlockRange stages[PLAN_MAX_STAGES] = {{0}};
    for (int32_t s = 0, begin = 0; s < P; s++) {
        int32_t after = P - 2 - s,
                own = s == P - 1 ? L - begin : rng_between(rng, 1, L - begin - (after > 0 ? after : 0));
        stages[s] = (BlockRange){begin, begin + own};
        begin += own;
    }
    placement_linear(out, stages, P);
}

// Under memory limits that the problem is not asked about: no one of its placements need fit.
static void problem_of_any(PlanProblem* out, PlanRequest* request) {
    int64_t limit_bytes = request->memory_limit_bytes, own_limit_bytes[64];
    request->memory_limit_bytes = 0;
    for (int32_t i = 0; i < request->P * request->R && request->machine != NULL; i++) {
        own_limit_bytes[i] = machine.ranks[i].memory_limit_bytes;
        machine.ranks[i].memory_limit_bytes = 0;
    }
    CHECK_OK(plan_problem_init(out, request, &problem.costs, problem.samples, problem.num_samples));
    request->memory_limit_bytes = limit_bytes;
    for (int32_t i = 0; i < request->P * request->R && request->machine != NULL; i++) {
        machine.ranks[i].memory_limit_bytes = own_limit_bytes[i];
    }
}

// A few samples on a few layers of a random model, sometimes in little memory, on ranks that differ.
static void random_few(Rng* rng, int round) {
    PlanRequest* request = &problem.request;
    CostModel* costs = &problem.costs;
    bool is_limited = round % 4 > 1;
    random_problem(&problem, rng, is_limited ? rng_between(rng, 2, 3) : rng_between(rng, 1, 2));
    int32_t P = rng_between(rng, 2, is_limited ? 2 : 3), L = rng_between(rng, P, 5),
            dec = rng_between(rng, 0, 2);
    (round % 2 ? linear_cost_model : random_cost_model)(costs, rng, L - dec, dec);
    for (int part = 0; part < PART_COUNT; part++) {
        costs->part_state_bytes[part] = (int64_t)rng_between(rng, 0, 20) * 1000000;
    }
    costs->tied_head_state_bytes = 0;
    *request = (PlanRequest){.P = P,
                             .R = is_limited ? 1 : rng_between(rng, 1, 2),
                             .layout = LAYOUT_RAGGED,
                             .recompute = RECOMPUTE_CHOICE_NONE,
                             .memory_rule = MEMORY_ACTIVATIONS};
    equal_stages(request, plan_chain_num_blocks(&costs->chain));
    random_samples(problem.samples, problem.num_samples, rng, is_limited, dec > 0);
    if (is_limited) {
        random_problem_limit_memory(&problem, 0);
        request->memory_limit_bytes = request->memory_limit_bytes / 100 * rng_between(rng, 70, 130) + 1;
    }
    if (round % 8 >= 4) {
        random_machine(&machine, &problem, rng);
        request->machine = &machine.machine;
    }
}

// All compositions, replicas and orders: bound <= optimum <= plan. Ragged, nothing recomputed.
static void bound_and_plan_enclose_the_optimum(void) {
    Rng rng = rng_seed(seed + 2);
    Arena arena = {0};
    int num = 0, given_up = 0, reached = 0;
    double sum_plan = 0, sum_bound = 0;
    for (int round = 0; round < test_rounds(160); round++) {
        arena_reset(&arena);
        random_few(&rng, round);
        PlanRequest* request = &problem.request;
        Plan plan;
        PlanProblem mp;
        LowerBound bound;
        Status status =
            plan_make(&plan, request, &problem.costs, problem.samples, problem.num_samples, &arena);
        if (status == STATUS_INFEASIBLE) { continue; }
        CHECK_OK(status);
        CHECK_EQ(plan.bound_over_ns, 0);
        CHECK_OK(plan_problem_init(&mp, request, &problem.costs, problem.samples, problem.num_samples));
        lower_bound_make(&bound, &mp);
        Batch batch = {.mp = &mp, .best_ns = plan.makespan_ns + MOST_BUMPED + 1, .arena = &arena};
        compose(&batch, 0);
        if (batch.gave_up) {
            given_up++;
            continue;
        }
        CHECK(batch.best_ns <=
              plan.makespan_ns + (batch.num_bumped < MOST_BUMPED ? batch.num_bumped : MOST_BUMPED));
        CHECK(bound.bound_ns <= batch.best_ns);
        num++;
        reached += batch.best_ns == plan.makespan_ns;
        sum_plan += (double)plan.makespan_ns / (double)batch.best_ns;
        sum_bound += (double)batch.best_ns / (double)bound.bound_ns;
    }
    printf(
        "     %d batches: plan %.4f of the optimum (reached %d times), optimum %.4f of the bound, given up "
        "%d times\n",
        num, sum_plan / num, reached, sum_bound / num, given_up);
    CHECK(num > test_rounds(80) && sum_plan / num < 1.2);
    arena_free(&arena);
}

// No order of the jobs of any composition is faster than the bound of its placement, nor than that of all
// placements (where the head is to be whole: of those).
static void bounds_of_placements_are_below_the_optimum(void) {
    enum { PLACEMENTS = 6 };
    static Placement placement;
    Rng rng = rng_seed(seed + 4);
    int num = 0, num_all = 0, given_up = 0, by_stage = 0;
    double sum = 0, sum_all = 0;
    for (int round = 0; round < test_rounds(200); round++) {
        random_few(&rng, round);
        PlanRequest* request = &problem.request;
        int32_t P = request->P, L = plan_chain_num_blocks(&problem.costs.chain);
        bool is_whole = round % 3 < 2, is_linear = round % 3 == 1, joint = round / 8 % 2;
        PlanProblem mp;
        LowerBound bound, bound_of_all;
        request->choose_stages = true;
        request->placements = is_linear ? PLACEMENT_LINEAR : PLACEMENT_AUTO;
        request->heads = is_whole ? HEAD_CHOICE_WHOLE : HEAD_CHOICE_AUTO;
        problem_of_any(&mp, request);
        lower_bound_make(&bound_of_all, &mp);
        request->choose_stages = false;
        request->placements = PLACEMENT_GIVEN;
        request->heads = HEAD_CHOICE_GIVEN;
        int64_t best_ns = INT64_MAX;
        for (int i = 0; i < PLACEMENTS; i++) {
            place_anywhere(&placement, &rng, P, L, is_whole);
            if (is_linear) { random_split(&placement, &rng, P, L); }
            request->placement = placement;
            problem_of_any(&mp, request);
            lower_bound_make(&bound, &mp);
            Batch batch = {.mp = &mp, .best_ns = INT64_MAX, .joint = joint};
            compose(&batch, 0);
            given_up += batch.gave_up;
            if (batch.gave_up || batch.best_ns == INT64_MAX) { continue; }
            CHECK(bound.bound_ns <= batch.best_ns);
            num++;
            by_stage += bound.bound_ns == bound.stage_ns;
            sum += (double)batch.best_ns / (double)bound.bound_ns;
            best_ns = batch.best_ns < best_ns ? batch.best_ns : best_ns;
        }
        if (best_ns == INT64_MAX) { continue; }
        CHECK(bound_of_all.bound_ns <= best_ns);
        num_all++;
        sum_all += (double)best_ns / (double)bound_of_all.bound_ns;
    }
    printf("     %d batches and placements: optimum %.4f of the bound (a stage's %d times); of %d batches "
           "the best "
           "%.4f of that of all; given up %d times\n",
           num, sum / num, by_stage, num_all, sum_all / num_all, given_up);
    CHECK(num > test_rounds(300) && num_all > test_rounds(100) && by_stage > test_rounds(50));
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(bound_and_plan_enclose_the_optimum);
    RUN(bounds_of_placements_are_below_the_optimum);
    return test_end();
}
