#include "policy_drafts.h"

#include <string.h>

#include "../pipe/pipe_schedule.h"
#include "batching_policies.h"

enum { MAX_CANDIDATES = 64, NUM_FINALISTS = 4 };

// One way to cut the batch, and the best that was found for it.
typedef struct {
    MicrobatchList list;
    ReplicaMbs replicas;
    bool recompute_all;    // every micro-batch fully, whatever the batching pass assumed
    int64_t makespan_ns;   // of the slowest replica; INT64_MAX: does not fit as it is
    int64_t* makespan_of;  // [R]
    int32_t* variant_of;   // [R]
    int32_t* order;        // [num_mbs] of replica r from replicas.begin[r] on: places in its list
} Candidate;

typedef struct {
    const PlanProblem* problem;
    const PlanProblem* batching;  // the same; its micro-batches may have to be content with less memory
    PipeVariant variants[MAX_VARIANTS];
    int32_t num_variants;
    int32_t budget;         // simulations left
    Candidate* candidates;  // ascending makespan once ranked
    int32_t num_candidates;
    Arena* lists;       // candidates: kept until the plan is made
    Arena costs, runs;  // of one replica; of one simulation
} Policies;

// --- candidates: micro-batches and who runs them ---------------------------------------------------------

static Status add_candidate(Policies* policies, const MicrobatchTaper* taper) {
    const PlanRequest* request = policies->problem->request;
    Candidate candidate = {.makespan_ns = INT64_MAX};
    TRY(batching_policies[request->batching].build(&candidate.list, policies->batching, taper,
                                                   policies->lists));
    TRY(balance_replicas(&candidate.replicas, &candidate.list, request->R,
                         plan_problem_replica_slow(policies->problem), policies->lists));
    ARENA_TRY_NEW(candidate.makespan_of, policies->lists, int64_t, request->R);
    ARENA_TRY_NEW(candidate.variant_of, policies->lists, int32_t, request->R);
    ARENA_TRY_NEW(candidate.order, policies->lists, int32_t, candidate.list.num_mbs);
    for (int32_t r = 0; r < request->R; r++) {
        int32_t begin = candidate.replicas.begin[r];
        for (int32_t i = begin; i < candidate.replicas.begin[r + 1]; i++) { candidate.order[i] = i - begin; }
    }
    policies->candidates[policies->num_candidates++] = candidate;
    return STATUS_OK;
}

static Status add_candidates(Policies* policies) {
    const PlanRequest* request = policies->problem->request;
    const BatchingPolicy* policy = &batching_policies[request->batching];
    MicrobatchTaper tapers[MAX_CANDIDATES];
    int32_t most = policies->budget / (2 * request->R), num_tapers = 0;
    if (most > MAX_CANDIDATES) { most = MAX_CANDIDATES; }
    if (policy->candidates != NULL && most > 1) {
        num_tapers = policy->candidates(tapers, most, policies->batching);
    }
    if (num_tapers == 0) { return add_candidate(policies, NULL); }
    Status first_failure = STATUS_OK;
    for (int32_t i = 0; i < num_tapers; i++) {
        Status status = add_candidate(policies, &tapers[i]);
        if (status != STATUS_OK && status != STATUS_INFEASIBLE) { return status; }
        if (first_failure == STATUS_OK) { first_failure = status; }
    }
    return policies->num_candidates > 0 ? STATUS_OK : first_failure;
}

static Status make_replica_problem(ReplicaProblem* out, Policies* policies, const Candidate* candidate,
                                   int32_t r, Arena* arena) {
    int32_t begin = candidate->replicas.begin[r], num_mbs = candidate->replicas.begin[r + 1] - begin;
    uint8_t* modes = NULL;
    if (candidate->recompute_all) {
        ARENA_TRY_NEW(modes, arena, uint8_t, (int64_t)policies->problem->K * num_mbs);
        memset(modes, RECOMPUTE_FULL, (size_t)policies->problem->K * (size_t)num_mbs);
    }
    return replica_problem_make(out, policies->problem, &candidate->list, r, candidate->replicas.mbs + begin,
                                num_mbs, modes, arena);
}

// --- judging them in the simulator -----------------------------------------------------------------------

static Status judge(Policies* policies, Candidate* candidate, int32_t num_variants) {
    candidate->makespan_ns = 0;
    for (int32_t r = 0; r < policies->problem->R; r++) {
        arena_reset(&policies->costs);
        ReplicaProblem replica;
        PipeVariantBest best;
        TRY(make_replica_problem(&replica, policies, candidate, r, &policies->costs));
        TRY(pipe_variants_best(&best, &replica.pipe, candidate->order + candidate->replicas.begin[r],
                               policies->variants, num_variants, &policies->runs));
        policies->budget -= num_variants;
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
static Status add_recomputed(Policies* policies, int32_t num_finalists) {
    const PlanProblem* problem = policies->problem;
    bool keeps = false, drops = false;
    for (int32_t i = 0; i < problem->num_modes; i++) {
        keeps |= problem->modes[i] == RECOMPUTE_NONE;
        drops |= problem->modes[i] == RECOMPUTE_FULL;
    }
    if (!keeps || !drops || !problem->has_limit) { return STATUS_OK; }
    for (int32_t i = 0; i < num_finalists; i++) {
        Candidate candidate = policies->candidates[i];
        candidate.recompute_all = true;
        ARENA_TRY_NEW(candidate.makespan_of, policies->lists, int64_t, problem->R);
        ARENA_TRY_NEW(candidate.variant_of, policies->lists, int32_t, problem->R);
        ARENA_TRY_NEW(candidate.order, policies->lists, int32_t, candidate.list.num_mbs);
        memcpy(candidate.order, policies->candidates[i].order,
               (size_t)candidate.list.num_mbs * sizeof *candidate.order);
        TRY(judge(policies, &candidate, policies->num_variants));
        policies->candidates[policies->num_candidates++] = candidate;
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
static Status rank_candidates(Policies* policies) {
    for (int32_t i = 0; i < policies->num_candidates; i++) {
        TRY(judge(policies, &policies->candidates[i], 1));
    }
    int32_t num_finalists = pick_finalists(policies->candidates, policies->num_candidates);
    for (int32_t i = 0; i < num_finalists && policies->num_variants > 1; i++) {
        TRY(judge(policies, &policies->candidates[i], policies->num_variants));
    }
    policies->num_candidates = num_finalists;
    TRY(add_recomputed(policies, num_finalists));
    sort_candidates(policies->candidates, policies->num_candidates);
    return STATUS_OK;
}

// --- as drafts -------------------------------------------------------------------------------------------

static Status make_draft(Draft* out, const Policies* policies, const Candidate* candidate, Arena* arena) {
    const PlanProblem* problem = policies->problem;
    Draft draft = {
        .list = candidate->list, .replicas = candidate->replicas, .makespan_ns = candidate->makespan_ns};
    draft.placement = problem->placement;
    ARENA_TRY_NEW(draft.replica, arena, DraftReplica, problem->R);
    for (int32_t r = 0; r < problem->R; r++) {
        DraftReplica* replica = &draft.replica[r];
        int32_t begin = candidate->replicas.begin[r], M = candidate->replicas.begin[r + 1] - begin;
        *replica = (DraftReplica){.variant = policies->variants[candidate->variant_of[r]],
                                  .order = candidate->order + begin,
                                  .makespan_ns = candidate->makespan_of[r]};
        if (!candidate->recompute_all) { continue; }
        ARENA_TRY_NEW(replica->modes, arena, uint8_t, (int64_t)problem->K * M);
        memset(replica->modes, RECOMPUTE_FULL, (size_t)problem->K * (size_t)M);
    }
    *out = draft;
    return STATUS_OK;
}

static Status make_all(Draft* out, int32_t* num, Policies* policies) {
    ARENA_TRY_NEW(policies->candidates, policies->lists, Candidate, MAX_CANDIDATES + NUM_FINALISTS);
    TRY(add_candidates(policies));
    TRY(rank_candidates(policies));
    *num = policies->num_candidates < POLICY_MAX_DRAFTS ? policies->num_candidates : POLICY_MAX_DRAFTS;
    for (int32_t i = 0; i < *num; i++) {
        TRY(make_draft(&out[i], policies, &policies->candidates[i], policies->lists));
    }
    return STATUS_OK;
}

Status policy_drafts(Draft out[POLICY_MAX_DRAFTS], int32_t* num, const PlanProblem* problem,
                     const PlanProblem* batching, int32_t effort, Arena* arena) {
    Policies policies = {.problem = problem, .batching = batching, .budget = effort, .lists = arena};
    policies.num_variants = pipe_variants(policies.variants, problem->request);
    Status status = make_all(out, num, &policies);
    arena_free(&policies.costs);
    arena_free(&policies.runs);
    return status;
}
