// original.c -- DynaPipe's own method (EuroSys'24; spec sections b to g): samples in order, dynamic program,
// largest differencing, and for every replica by itself the best of all orders, modes and schedules.
//
// Where it differs: our random numbers have a seed, and the path through encoder-decoder samples is found by
// our own heuristic (original_order.h). Where the original gives up, a replica comes out with a makespan of
// INT64_MAX, and planner.c makes it fit.
#include "original.h"

#include <string.h>

#include "../pipe/pipe_schedule.h"
#include "microbatch_dp.h"
#include "original_permute.h"

static const PipeVariant cyclic = {.name = "cyclic", .policy = &pipe_policy_cyclic};
static const PipeVariant cyclic_limited = {.name = "cyclic-limited", .policy = &pipe_policy_cyclic_limited};
static const PipeVariant one_f_one_b = {.name = "1f1b", .policy = &pipe_policy_1f1b};

typedef struct {
    const PlanProblem* problem;
    const MicrobatchList* list;
    int32_t replica;
    const int32_t* mbs;  // [M] of this replica
    int32_t M;
    Rng rng;
    int32_t* order;  // [M] being tried
    DraftReplica* best;
    RecomputeMode best_mode;
    Arena costs, runs;  // of one mode; of one simulation
} Search;

// Time of one layer at the front of the pipeline and of one at its end, which has the head.
static OriginalPoint features_of(const PlanProblem* problem, RecomputeMode mode, const MbShape* shape) {
    CostParts parts;
    cost_parts(&parts, &problem->table, mode, shape);
    const CostModel* costs = problem->costs;
    const double* first = parts.part[costs->num_enc_layers > 0 ? PART_ENC_LAYER : PART_DEC_LAYER];
    const double* last = parts.part[costs->num_dec_layers > 0 ? PART_DEC_LAYER : PART_ENC_LAYER];
    const double* head = parts.part[PART_HEAD];
    double first_back = first[JOB_B] + first[JOB_W] + first[JOB_R];
    double last_back = last[JOB_B] + last[JOB_W] + last[JOB_R] + head[JOB_B] + head[JOB_W] + head[JOB_R];
    return (OriginalPoint){{cost_round(first[JOB_F] / 1e3), cost_round((last[JOB_F] + head[JOB_F]) / 1e3),
                            cost_round(last_back / 1e3), cost_round(first_back / 1e3)}};
}

// All orders, one kind of schedule. *fits: did any?
static Status try_orders(bool* fits, Search* search, const PipeProblem* pipe, RecomputeMode mode,
                         const OriginalOrders* orders, const PipeVariant* variant) {
    OriginalOrders left = *orders;
    *fits = false;
    while (original_orders_next(&left, search->order, &search->rng)) {
        PipeVariantBest run;
        TRY(pipe_variants_best(&run, pipe, search->order, variant, 1, &search->runs));
        *fits |= run.makespan_ns < INT64_MAX;
        if (run.makespan_ns >= search->best->makespan_ns) { continue; }
        search->best->makespan_ns = run.makespan_ns;
        search->best->variant = *variant;
        search->best_mode = mode;
        memcpy(search->best->order, search->order, (size_t)search->M * sizeof *search->order);
    }
    return STATUS_OK;
}

static Status make_orders(OriginalOrders* out, Search* search, RecomputeMode mode) {
    OriginalPoint* points;
    ARENA_TRY_NEW(points, &search->costs, OriginalPoint, search->M);
    for (int32_t m = 0; m < search->M; m++) {
        points[m] = features_of(search->problem, mode, &search->list->mbs[search->mbs[m]].shape);
    }
    return original_orders_init(out, points, search->M, &search->rng, &search->costs);
}

// Cyclic without a limit and, only where no order of it fits, with the limit; then 1F1B.
static Status try_mode(Search* search, RecomputeMode mode) {
    const PlanProblem* problem = search->problem;
    int64_t num_cells = (int64_t)problem->P * search->M;
    ReplicaProblem replica;
    OriginalOrders orders;
    uint8_t* modes;
    bool fits;
    arena_reset(&search->costs);
    ARENA_TRY_NEW(modes, &search->costs, uint8_t, num_cells);
    memset(modes, (int)mode, (size_t)num_cells);
    TRY(replica_problem_make(&replica, problem, search->list, search->replica, search->mbs, search->M, modes,
                             &search->costs));
    TRY(make_orders(&orders, search, mode));
    TRY(try_orders(&fits, search, &replica.pipe, mode, &orders, &cyclic));
    if (!fits) { TRY(try_orders(&fits, search, &replica.pipe, mode, &orders, &cyclic_limited)); }
    if (problem->P == 1) { return STATUS_OK; }
    return try_orders(&fits, search, &replica.pipe, mode, &orders, &one_f_one_b);
}

static Status plan_replica(DraftReplica* out, Search* search, int32_t M, Arena* arena) {
    int64_t num_cells = (int64_t)search->problem->P * M;
    *out = (DraftReplica){.variant = cyclic_limited, .makespan_ns = INT64_MAX};
    ARENA_TRY_NEW(out->order, arena, int32_t, M);
    ARENA_TRY_NEW(search->order, arena, int32_t, M);
    ARENA_TRY_NEW(out->modes, arena, uint8_t, num_cells);
    for (int32_t i = 0; i < M; i++) { out->order[i] = i; }
    search->best = out;
    search->M = M;
    search->best_mode = search->list->mbs[0].mode;  // the same for all of the list
    for (int32_t i = 0; i < search->problem->num_modes; i++) {
        TRY(try_mode(search, search->problem->modes[i]));
    }
    memset(out->modes, (int)search->best_mode, (size_t)num_cells);
    return STATUS_OK;
}

// Karmarkar and Karp alone: no moves afterwards (spec section d).
static Status assign_replicas(Draft* draft, int32_t R, Arena* arena) {
    int32_t M = draft->list.num_mbs, *replica_of;
    int64_t* work_ns;
    ARENA_TRY_NEW(replica_of, arena, int32_t, M);
    ARENA_TRY_NEW(work_ns, arena, int64_t, M);
    for (int32_t m = 0; m < M; m++) { work_ns[m] = draft->list.mbs[m].work_ns; }
    TRY(balance_difference(replica_of, work_ns, M, R, arena));
    for (int32_t m = 0; m < M; m++) { draft->list.mbs[m].replica = replica_of[m]; }
    return balance_replicas(&draft->replicas, &draft->list, R, NULL, arena);
}

Status original_draft(Draft* out, const PlanProblem* problem, Arena* arena) {
    Draft draft = {0};
    TRY(microbatch_dp_build_original(&draft.list, problem, NULL, arena));
    TRY(assign_replicas(&draft, problem->R, arena));
    ARENA_TRY_NEW(draft.replica, arena, DraftReplica, problem->R);
    draft.placement = problem->request->placement;
    Search search = {.problem = problem, .list = &draft.list, .rng = rng_seed(0)};
    Status status = STATUS_OK;
    for (int32_t r = 0; r < problem->R && status == STATUS_OK; r++) {
        int32_t begin = draft.replicas.begin[r];
        search.replica = r;
        search.mbs = draft.replicas.mbs + begin;
        status = plan_replica(&draft.replica[r], &search, draft.replicas.begin[r + 1] - begin, arena);
        int64_t makespan_ns = draft.replica[r].makespan_ns;
        if (makespan_ns > draft.makespan_ns) { draft.makespan_ns = makespan_ns; }
    }
    arena_free(&search.costs);
    arena_free(&search.runs);
    if (status == STATUS_OK) { *out = draft; }
    return status;
}
