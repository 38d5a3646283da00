// planner.c -- the method: batching, replicas, schedules in the simulator, lists, memory, bound, check.
#include "planner.h"

#include <stdio.h>
#include <string.h>

#include "draft.h"
#include "lower_bound.h"
#include "pipe_schedule.h"
#include "plan_assemble.h"
#include "replica_balance.h"

enum { DEFAULT_EFFORT = 300, MAX_CANDIDATES = 64, NUM_FINALISTS = 4 };

// One way to cut the batch, and the best that was found for it.
typedef struct {
    MicrobatchList list;
    ReplicaLists replicas;
    bool recompute_all;    // every micro-batch fully, whatever the batching pass assumed
    int64_t makespan_ns;   // of the slowest replica; INT64_MAX: does not fit as it is
    int64_t* makespan_of;  // [R]
    int32_t* variant_of;   // [R]
    int32_t* order;        // [num_mbs] of replica r from replicas.begin[r] on: places in its list
    DraftReplica* draft;   // [R] the original's choice of variant and modes; NULL: those above
} Candidate;

typedef struct {
    MicrobatchProblem problem;
    MicrobatchProblem batching;  // the same; its micro-batches may have to be content with less memory
    PipeVariant variants[MAX_VARIANTS];
    int32_t num_variants;
    int32_t budget;         // simulations left
    Candidate* candidates;  // ascending makespan once ranked
    int32_t num_candidates;
    Arena lists;        // candidates: kept until the plan is made
    Arena costs, runs;  // of one replica; of one simulation
} Search;

// What microbatch_problem_init does not look at.
static Status check_request(const PlanRequest* request, const CostModel* costs) {
    if (request->memory_limit_bytes < 0) {
        return FAIL(STATUS_BAD_OPTION, "--memory-limit %lld ---> 0 (none) or a number of bytes",
                    (long long)request->memory_limit_bytes);
    }
    if ((uint32_t)request->batching >= BATCHING_COUNT || (uint32_t)request->schedule >= SCHEDULE_COUNT) {
        return FAIL(STATUS_OUT_OF_RANGE, "plan_make: no such batching or schedule");
    }
    int32_t num_layers = costs->num_enc_layers + costs->num_dec_layers, next_layer = 0;
    for (int32_t s = 0; s < request->P; s++) {
        StageLayers layers = request->stages[s];
        if (layers.layer_begin != next_layer || layers.layer_end <= next_layer) {
            return FAIL(STATUS_OUT_OF_RANGE,
                        "plan_make: stage %d has layers %d ... %d, expected to begin at %d", s,
                        layers.layer_begin, layers.layer_end, next_layer);
        }
        next_layer = layers.layer_end;
    }
    if (next_layer == num_layers) { return STATUS_OK; }
    return FAIL(STATUS_OUT_OF_RANGE, "plan_make: stages cover %d of %d layers", next_layer, num_layers);
}

// --- candidates: micro-batches and who runs them
// ------------------------------------------------------------

static Status add_candidate(Search* search, const MicrobatchTaper* taper) {
    const PlanRequest* request = search->problem.request;
    Candidate candidate = {.makespan_ns = INT64_MAX};
    TRY(batching_policies[request->batching].build(&candidate.list, &search->batching, taper,
                                                   &search->lists));
    TRY(replica_balance(&candidate.replicas, &candidate.list, request->R, &search->lists));
    PIPE_NEW(candidate.makespan_of, &search->lists, int64_t, request->R);
    PIPE_NEW(candidate.variant_of, &search->lists, int32_t, request->R);
    PIPE_NEW(candidate.order, &search->lists, int32_t, candidate.list.num_mbs);
    for (int32_t r = 0; r < request->R; r++) {
        int32_t begin = candidate.replicas.begin[r];
        for (int32_t i = begin; i < candidate.replicas.begin[r + 1]; i++) { candidate.order[i] = i - begin; }
    }
    search->candidates[search->num_candidates++] = candidate;
    return STATUS_OK;
}

// The original decides everything by itself, as long as nothing else is asked for.
static bool is_original(const PlanRequest* request) {
    return request->batching == BATCHING_DYNAPIPE && request->schedule == SCHEDULE_AUTO &&
           request->split_backward != SPLIT_BACKWARD_ON;
}

static Status add_original(Search* search) {
    Draft draft;
    TRY(original_draft(&draft, &search->batching, &search->lists));
    Candidate candidate = {.list = draft.list,
                           .replicas = draft.replicas,
                           .makespan_ns = draft.makespan_ns,
                           .draft = draft.replica};
    PIPE_NEW(candidate.order, &search->lists, int32_t, draft.list.num_mbs);
    for (int32_t r = 0; r < search->problem.R; r++) {
        int32_t begin = draft.replicas.begin[r], num_mbs = draft.replicas.begin[r + 1] - begin;
        memcpy(candidate.order + begin, draft.replica[r].order, (size_t)num_mbs * sizeof *candidate.order);
    }
    search->candidates[search->num_candidates++] = candidate;
    return STATUS_OK;
}

static Status add_candidates(Search* search) {
    const PlanRequest* request = search->problem.request;
    const BatchingPolicy* policy = &batching_policies[request->batching];
    MicrobatchTaper tapers[MAX_CANDIDATES];
    int32_t most = search->budget / (2 * request->R), num_tapers = 0;
    if (most > MAX_CANDIDATES) { most = MAX_CANDIDATES; }
    if (policy->candidates != NULL && most > 1) {
        num_tapers = policy->candidates(tapers, most, &search->batching);
    }
    if (num_tapers == 0) { return add_candidate(search, NULL); }
    Status first_failure = STATUS_OK;
    for (int32_t i = 0; i < num_tapers; i++) {
        Status status = add_candidate(search, &tapers[i]);
        if (status != STATUS_OK && status != STATUS_INFEASIBLE) { return status; }
        if (first_failure == STATUS_OK) { first_failure = status; }
    }
    return search->num_candidates > 0 ? STATUS_OK : first_failure;
}

static Status make_replica_problem(ReplicaProblem* out, Search* search, const Candidate* candidate, int32_t r,
                                   Arena* arena) {
    int32_t begin = candidate->replicas.begin[r], num_mbs = candidate->replicas.begin[r + 1] - begin;
    uint8_t* modes = NULL;
    if (candidate->recompute_all) {
        PIPE_NEW(modes, arena, uint8_t, (int64_t)search->problem.P * num_mbs);
        memset(modes, RECOMPUTE_FULL, (size_t)search->problem.P * (size_t)num_mbs);
    }
    if (candidate->draft != NULL) { modes = candidate->draft[r].modes; }  // one for all: in any order
    return replica_problem_make(out, &search->problem, &candidate->list, candidate->replicas.mbs + begin,
                                num_mbs, modes, arena);
}

// --- judging them in the simulator
// --------------------------------------------------------------------------

static Status judge(Search* search, Candidate* candidate, int32_t num_variants) {
    candidate->makespan_ns = 0;
    for (int32_t r = 0; r < search->problem.R; r++) {
        arena_reset(&search->costs);
        ReplicaProblem replica;
        ReplicaBest best;
        TRY(make_replica_problem(&replica, search, candidate, r, &search->costs));
        TRY(replica_search_variants(&best, &replica.pipe, candidate->order + candidate->replicas.begin[r],
                                    search->variants, num_variants, &search->runs));
        search->budget -= num_variants;
        candidate->variant_of[r] = best.variant;
        candidate->makespan_of[r] = best.makespan_ns;
        if (best.makespan_ns > candidate->makespan_ns) { candidate->makespan_ns = best.makespan_ns; }
    }
    return STATUS_OK;
}

// Ascending makespan; those that came first stay first.
static void sort_candidates(Candidate* candidates, int32_t num) {
    for (int32_t i = 1; i < num; i++) {
        Candidate candidate = candidates[i];
        int32_t k = i;
        for (; k > 0 && candidates[k - 1].makespan_ns > candidate.makespan_ns; k--) {
            candidates[k] = candidates[k - 1];
        }
        candidates[k] = candidate;
    }
}

// The same micro-batches, everything recomputed: where memory is short and the request leaves it open.
static Status add_recomputed(Search* search, int32_t num_finalists) {
    const MicrobatchProblem* problem = &search->problem;
    bool keeps = false, drops = false;
    for (int32_t i = 0; i < problem->num_modes; i++) {
        keeps |= problem->modes[i] == RECOMPUTE_NONE;
        drops |= problem->modes[i] == RECOMPUTE_FULL;
    }
    if (!keeps || !drops || problem->request->memory_limit_bytes == 0) { return STATUS_OK; }
    for (int32_t i = 0; i < num_finalists; i++) {
        Candidate candidate = search->candidates[i];
        candidate.recompute_all = true;
        PIPE_NEW(candidate.makespan_of, &search->lists, int64_t, problem->R);
        PIPE_NEW(candidate.variant_of, &search->lists, int32_t, problem->R);
        PIPE_NEW(candidate.order, &search->lists, int32_t, candidate.list.num_mbs);
        memcpy(candidate.order, search->candidates[i].order,
               (size_t)candidate.list.num_mbs * sizeof *candidate.order);
        TRY(judge(search, &candidate, search->num_variants));
        search->candidates[search->num_candidates++] = candidate;
    }
    return STATUS_OK;
}

// The best candidates come first, no two of them with the same number of micro-batches.
static int32_t pick_finalists(Candidate* candidates, int32_t num) {
    int32_t num_finalists = 0;
    sort_candidates(candidates, num);
    for (int32_t i = 0; i < num && num_finalists < NUM_FINALISTS; i++) {
        Candidate candidate = candidates[i];
        bool is_new = true;
        for (int32_t k = 0; k < num_finalists; k++) {
            is_new &= candidates[k].list.num_mbs != candidate.list.num_mbs;
        }
        if (!is_new) { continue; }
        memmove(candidates + num_finalists + 1, candidates + num_finalists,
                (size_t)(i - num_finalists) * sizeof(Candidate));
        candidates[num_finalists++] = candidate;
    }
    return num_finalists;
}

// All candidates with the most promising variant, the best of them with every variant, and recomputed.
static Status rank_candidates(Search* search) {
    for (int32_t i = 0; i < search->num_candidates; i++) { TRY(judge(search, &search->candidates[i], 1)); }
    int32_t num_finalists = pick_finalists(search->candidates, search->num_candidates);
    for (int32_t i = 0; i < num_finalists && search->num_variants > 1; i++) {
        TRY(judge(search, &search->candidates[i], search->num_variants));
    }
    search->num_candidates = num_finalists;
    TRY(add_recomputed(search, num_finalists));
    sort_candidates(search->candidates, search->num_candidates);
    return STATUS_OK;
}

// Ours only: reorder the slowest replica's micro-batches until another one is slowest, and so on, as long as
// that helps.
static Status refine_order(Search* search, Candidate* candidate) {
    if (search->problem.request->batching != BATCHING_DYNAMIC) { return STATUS_OK; }
    while (search->budget > 0 && candidate->makespan_ns < INT64_MAX) {
        int32_t slowest = 0;
        int64_t second_ns = 0;
        for (int32_t r = 1; r < search->problem.R; r++) {
            bool is_slower = candidate->makespan_of[r] > candidate->makespan_of[slowest];
            int64_t other_ns = candidate->makespan_of[is_slower ? slowest : r];
            if (other_ns > second_ns) { second_ns = other_ns; }
            if (is_slower) { slowest = r; }
        }
        int32_t variant = candidate->variant_of[slowest];
        ReplicaBest best = {.makespan_ns = candidate->makespan_of[slowest], .variant = variant};
        ReplicaProblem replica;
        arena_reset(&search->costs);
        TRY(make_replica_problem(&replica, search, candidate, slowest, &search->costs));
        TRY(replica_search_order(&best, &replica.pipe, candidate->order + candidate->replicas.begin[slowest],
                                 &search->variants[variant], second_ns, &search->budget, &search->runs));
        if (best.makespan_ns == candidate->makespan_of[slowest]) { break; }
        candidate->makespan_of[slowest] = best.makespan_ns;
        candidate->makespan_ns = best.makespan_ns > second_ns ? best.makespan_ns : second_ns;
    }
    return STATUS_OK;
}

// --- from the best candidate to a plan
// ----------------------------------------------------------------------

// Instruction lists that fit in memory, for every replica of a candidate.
static Status fit(ReplicaPlan* replicas, int64_t* makespan_ns, Search* search, const Candidate* candidate) {
    const MicrobatchProblem* problem = &search->problem;
    *makespan_ns = 0;
    for (int32_t r = 0; r < problem->R; r++) {
        ReplicaPlan* replica = &replicas[r];
        ReplicaProblem in_list_order;
        int32_t first_mb = candidate->replicas.begin[r];
        arena_reset(&search->costs);
        TRY(make_replica_problem(&in_list_order, search, candidate, r, &search->costs));
        TRY(replica_problem_permute(&replica->problem, &in_list_order, candidate->order + first_mb,
                                    &search->lists));
        replica->variant = candidate->draft != NULL ? candidate->draft[r].variant
                                                    : search->variants[candidate->variant_of[r]];
        TRY(replica_fit(replica, problem, &candidate->list, &search->runs));
        if (replica->timeline.makespan_ns > *makespan_ns) { *makespan_ns = replica->timeline.makespan_ns; }
    }
    return STATUS_OK;
}

static Status finish(Plan* out, Search* search, const Candidate* candidate, ReplicaPlan* replicas,
                     Arena* arena) {
    const MicrobatchProblem* problem = &search->problem;
    bool joint_backward = true;
    for (int32_t r = 0; r < problem->R; r++) {
        TRY(replica_emit(&replicas[r], problem, candidate->replicas.begin[r], r * problem->P, arena));
        joint_backward &= !replicas[r].variant.split_backward;
    }
    Plan plan;
    LowerBound bound;
    TRY(plan_assemble(&plan, problem, &candidate->list, replicas, arena));
    lower_bound_make(&bound, problem, joint_backward);
    plan.bound_ns = bound.bound_ns;
    TRY(plan_check(&plan, problem->samples, problem->num_samples));
    *out = plan;
    return STATUS_OK;
}

// Where memory is limited, fitting may cost time: then all finalists are fitted, and the fastest wins.
static Status search_and_finish(Plan* out, Search* search, Arena* arena) {
    const MicrobatchProblem* problem = &search->problem;
    ReplicaPlan *replicas, *best_replicas;
    PIPE_NEW(search->candidates, &search->lists, Candidate, MAX_CANDIDATES + NUM_FINALISTS);
    PIPE_NEW(replicas, &search->lists, ReplicaPlan, problem->R);
    PIPE_NEW(best_replicas, &search->lists, ReplicaPlan, problem->R);
    if (is_original(problem->request)) {
        TRY(add_original(search));
    } else {
        TRY(add_candidates(search));
        TRY(rank_candidates(search));
        TRY(refine_order(search, &search->candidates[0]));
    }
    const Candidate* best = NULL;
    int64_t best_ns = INT64_MAX;
    Status status = STATUS_OK;
    for (int32_t i = 0; i < search->num_candidates; i++) {
        const Candidate* candidate = &search->candidates[i];
        int64_t makespan_ns;
        if (best != NULL && candidate->makespan_ns >= best_ns) { break; }
        status = fit(replicas, &makespan_ns, search, candidate);
        if (status == STATUS_INFEASIBLE) { continue; }
        TRY(status);
        if (makespan_ns >= best_ns) { continue; }
        best = candidate;
        best_ns = makespan_ns;
        ReplicaPlan* kept = best_replicas;
        best_replicas = replicas;
        replicas = kept;
    }
    return best != NULL ? finish(out, search, best, best_replicas, arena) : status;
}

// Micro-batches that fit one at a time need not fit together: scratch is that of the largest, and buffers
// leave gaps. Where no candidate fits, smaller ones are made. The first failure is the one to report.
static Status search_smaller(Plan* out, Search* search, Arena* arena) {
    static const int32_t percents[] = {100, 90, 75, 50};
    const MicrobatchProblem* problem = &search->problem;
    const int32_t budget = search->budget;
    char first_failure[512];
    Status status = STATUS_INFEASIBLE;
    for (size_t i = 0; i < sizeof percents / sizeof percents[0] && status == STATUS_INFEASIBLE; i++) {
        search->batching = *problem;
        for (int32_t s = 0; s < problem->P; s++) {
            search->batching.available_bytes[s] =
                problem->available_bytes[s] - problem->available_bytes[s] / 100 * (100 - percents[i]);
        }
        arena_reset(&search->lists);
        search->num_candidates = 0;
        search->budget = budget;
        status = search_and_finish(out, search, arena);
        if (i == 0) { snprintf(first_failure, sizeof first_failure, "%s", status_message()); }
    }
    return status == STATUS_INFEASIBLE ? FAIL(status, "%s", first_failure) : status;
}

Status plan_make(Plan* out, const PlanRequest* request, const CostModel* costs, const PlanSample* samples,
                 int32_t num_samples, Arena* arena) {
    Search search = {.budget = request->effort > 0 ? request->effort : DEFAULT_EFFORT};
    TRY(microbatch_problem_init(&search.problem, request, costs, samples, num_samples));
    TRY(check_request(request, costs));
    search.num_variants = replica_variants(search.variants, request);
    Status status = search_smaller(out, &search, arena);
    arena_free(&search.lists);
    arena_free(&search.costs);
    arena_free(&search.runs);
    return status;
}
