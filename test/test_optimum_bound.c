// test_optimum_bound.c -- bound <= optimum <= plan, on batches small enough to try every composition and
// order.
#include "optimum.h"

#include "../dynapipe_plugin/plan/bound.h"
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

static const MachineRank* rank_of(const PlanProblem* mp, int32_t r, int32_t s) {
    return machine_stage(machine_replica(mp->request->machine, r * mp->P), s);
}

// What replica r has on each stage: memory beside its model state, reductions.
static void limits_make(PipeProblem* pipe, const PlanProblem* mp, int32_t r) {
    for (int32_t s = 0; s < mp->P; s++) {
        const MachineRank* rank = rank_of(mp, r, s);
        int64_t limit_bytes = rank != NULL && rank->memory_limit_bytes > 0 ? rank->memory_limit_bytes
                                                                           : mp->request->memory_limit_bytes;
        pipe->tail_ns[s] = cost_rank_reduce_ns(mp->costs, &mp->has[s], mp->R);
        pipe->memory_limit_bytes[s] =
            limit_bytes > 0 ? limit_bytes - cost_rank_state_bytes(mp->costs, &mp->has[s]) : INT64_MAX;
    }
}

// The slowest of the links between two stages.
static int64_t transfer_ns(const PlanProblem* mp, int32_t r, int32_t from, int32_t to, int64_t num_bytes) {
    int64_t slowest = 0;
    for (int32_t s = from < to ? from : to; s < (from < to ? to : from); s++) {
        const MachineRank* rank = rank_of(mp, r, s);
        int64_t ns = cost_transfer_ns(mp->costs, num_bytes);
        if (rank != NULL && rank->link_bytes_per_ns > 0) {
            ns = (int64_t)(rank->link_latency_ns + (double)num_bytes / rank->link_bytes_per_ns + 0.5);
        }
        slowest = ns > slowest ? ns : slowest;
    }
    return slowest;
}

static void cell_make(PipeCost* out, Batch* batch, const CostJobs* jobs, const MachineRank* rank) {
    for (int k = 0; k < JOB_COUNT; k++) {
        double slow = rank != NULL ? rank->slow[k] : 1;
        out->job_ns[k] = (int64_t)((double)jobs->job_ns[k] * slow + 0.5);
    }
    out->job_ns[JOB_R] = 0;
    for (int k = 0; k < JOB_R; k++) {
        batch->num_bumped += out->job_ns[k] == 0;
        out->job_ns[k] += out->job_ns[k] == 0;
    }
    out->stored_bytes = jobs->stored_bytes;
}

// A share of the head: its constants, and that part of what grows.
static CostJobs share_jobs(const PlanProblem* mp, const MbShape* shape, int32_t s) {
    const Placement* placement = &mp->request->placement;
    double share = (placement->head_begin[s + 1] - placement->head_begin[s]) / (double)HEAD_UNITS;
    CostJobs jobs;
    CostParts parts;
    cost_parts(&parts, &mp->table, RECOMPUTE_NONE, shape);
    cost_jobs_of_share(&jobs, mp->costs, cost_share_of(placement, s), &parts);  // bytes
    jobs.stored_bytes = 0;
    double ns[JOB_COUNT] = {0};
    for (int k = 0; k < JOB_R; k++) {
        const CostFormula* formula = &mp->costs->parts[RECOMPUTE_NONE][PART_HEAD].time_ns[k];
        ns[k] = formula->constant + (cost_formula_value(formula, shape) - formula->constant) * share;
    }
    jobs.job_ns[JOB_F] = cost_round(ns[JOB_F] + ns[JOB_B]);
    jobs.job_ns[JOB_W] = cost_round(ns[JOB_W]);
    return jobs;
}

// The optimum of one replica's microbatches, INT64_MAX where one does not fit alone.
static int64_t replica_ns(Batch* batch, int32_t r) {
    const PlanProblem* mp = batch->mp;
    PipeCost cells[OPTIMUM_MAX_ROWS * OPTIMUM_MAX_MBS] = {{.stored_bytes = 0}};
    const Placement* placement = &mp->placement;
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
    PipeProblem pipe = {.P = mp->P, .M = M, .cost = cells, .placement = placement};
    int32_t K = mp->K, last = placement->stage_of[K - 1];
    limits_make(&pipe, mp, r);
    for (int32_t m = 0; m < M; m++) {
        CostJobs jobs[OPTIMUM_MAX_ROWS];
        cost_stages(jobs, mp->costs, mp->chunks, K, RECOMPUTE_NONE, &shapes[m]);
        for (int32_t row = 0; row < pipe_num_rows(&pipe); row++) {
            if (!pipe_has_row(&pipe, row)) { continue; }
            int32_t s = pipe_stage_of(&pipe, row);
            PipeCost* cell = &cells[row * M + m];
            if (row >= K) { jobs[row] = share_jobs(mp, &shapes[m], s); }
            cell_make(cell, batch, &jobs[row], rank_of(mp, r, s));
            if (row >= K) {
                cell->transfer_ns = transfer_ns(mp, r, last, s, jobs[row].boundary_bytes);
                cell->part_ns = transfer_ns(mp, r, s, last, jobs[row].part_bytes);
            } else if (row < K - 1) {
                int32_t to = pipe_stage_of(&pipe, row + 1);
                cell->transfer_ns = transfer_ns(mp, r, s, to, jobs[row].boundary_bytes);
            }
            if (cell->stored_bytes > pipe.memory_limit_bytes[s]) { return INT64_MAX; }
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

// Chunks of at least a layer, the last perhaps a whole head alone, anywhere; every stage has one. The head
// whole or shared.
static void place_anywhere(Placement* out, Rng* rng, int32_t P, int32_t L, bool is_whole) {
    int32_t most = L + is_whole < 5 ? L + is_whole : 5, K = rng_between(rng, P, most), begin = 0;
    *out = (Placement){.num_chunks = K, .head = HEAD_WHOLE};
    for (int32_t k = 0; k < K; k++) {
        int32_t behind = K - 1 - k - (is_whole && k < K - 1);  // layers that those behind need
        int32_t own = k == K - 1 ? L - begin : rng_between(rng, 1, L - begin - behind);
        out->chunks[k] = (LayerRange){begin, begin + own};
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
    LayerRange stages[PLAN_MAX_STAGES] = {{0}};
    for (int32_t s = 0, begin = 0; s < P; s++) {
        int32_t after = P - 2 - s,
                own = s == P - 1 ? L - begin : rng_between(rng, 1, L - begin - (after > 0 ? after : 0));
        stages[s] = (LayerRange){begin, begin + own};
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
    equal_stages(request, L);
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
    for (int round = 0; round < 160; round++) {
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
    CHECK(num > 80 && sum_plan / num < 1.2);
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
    for (int round = 0; round < 200; round++) {
        random_few(&rng, round);
        PlanRequest* request = &problem.request;
        int32_t P = request->P, L = problem.costs.num_enc_layers + problem.costs.num_dec_layers;
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
    CHECK(num > 300 && num_all > 100 && by_stage > 50);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(bound_and_plan_enclose_the_optimum);
    RUN(bounds_of_placements_are_below_the_optimum);
    return test_end();
}
