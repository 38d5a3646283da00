// batching.c -- see batching.h.
#include "batching.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "draft/microbatch_dp.h"
#include "schedule.h"
#include "search/search_fill.h"
#include "types.h"

// --- ragged ----------------------------------------------------------------------------------------------

// The samples of one replica, and in which micro-batch each is.
typedef struct {
    int32_t num_ids, num_mbs;
    int32_t *ids, *mb_of;  // [num_ids] largest first
    MbShape* shapes;       // [num_mbs]
} Filled;

static void add_sample(MbShape* shape, const PlanSample* sample) {
    mb_shape_add(shape, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
}

static bool all_fit(const Filled* filled, const PlanProblem* problem, RecomputeMode mode) {
    memset(filled->shapes, 0, (size_t)filled->num_mbs * sizeof *filled->shapes);
    for (int32_t i = 0; i < filled->num_ids; i++) {
        add_sample(&filled->shapes[filled->mb_of[i]], &problem->samples[filled->ids[i]]);
    }
    for (int32_t m = 0; m < filled->num_mbs; m++) {
        const MbShape* shape = &filled->shapes[m];
        MicrobatchCost cost = microbatch_cost(problem, mode, SHARE_PIPELINE, shape);
        if (!cost.fits_held && !(shape->num_seqs == 1 && cost.fits_alone)) { return false; }
    }
    return true;
}

// As many micro-batches as the taper says, or a quarter more, and so on, until all fit.
static Status fill_replica(Filled* out, const SearchWeights* weights, RecomputeMode mode,
                           const MicrobatchTaper* wish, Arena* arena) {
    MicrobatchTaper taper = *wish;
    int64_t least = search_fill_least_mbs(weights->problem, out->ids, out->num_ids);
    if (taper.num_mbs < least) { taper.num_mbs = least < out->num_ids ? (int32_t)least : out->num_ids; }
    ARENA_TRY_NEW(out->shapes, arena, MbShape, out->num_ids);
    for (;; taper.num_mbs += taper.num_mbs / 4 + 1) {
        if (taper.num_mbs > out->num_ids) { taper.num_mbs = out->num_ids; }
        if (taper.num_mbs < 1) { taper.num_mbs = 1; }
        TRY(search_fill(out->mb_of, weights, out->ids, out->num_ids, &taper, arena));
        out->num_mbs = taper.num_mbs;
        if (all_fit(out, weights->problem, mode)) { return STATUS_OK; }
        if (taper.num_mbs == out->num_ids) { return STATUS_INFEASIBLE; }
    }
}

static int compare_ids(const void* a, const void* b) {
    int32_t x = *(const int32_t*)a, y = *(const int32_t*)b;
    return (x > y) - (x < y);
}

static Status append_replica(MicrobatchList* out, const PlanProblem* problem, const Filled* filled,
                             RecomputeMode mode, int32_t r, Arena* arena) {
    int32_t* ids;
    ARENA_TRY_NEW(ids, arena, int32_t, filled->num_ids);
    for (int32_t m = 0; m < filled->num_mbs; m++) {
        int32_t num = 0;
        for (int32_t i = 0; i < filled->num_ids; i++) {
            if (filled->mb_of[i] == m) { ids[num++] = filled->ids[i]; }
        }
        qsort(ids, (size_t)num, sizeof *ids, compare_ids);
        microbatch_list_append(out, problem, LAYOUT_RAGGED, mode, ids, num);
        out->mbs[out->num_mbs - 1].replica = r;
    }
    return STATUS_OK;
}

static Status mode_build(MicrobatchList* out, const PlanProblem* problem, RecomputeMode mode,
                         const MicrobatchTaper* taper, Arena* arena) {
    SearchWeights weights;
    Filled filled = {.num_mbs = 0};
    int32_t N = problem->num_samples, *replica_of;
    int64_t num_mbs = (int64_t)taper->num_mbs * problem->R;
    TRY(search_weights_make(&weights, problem, mode, (int32_t)(num_mbs < N ? num_mbs : N), arena));
    ARENA_TRY_NEW(replica_of, arena, int32_t, N);
    ARENA_TRY_NEW(filled.ids, arena, int32_t, N);
    ARENA_TRY_NEW(filled.mb_of, arena, int32_t, N);
    TRY(search_fill_replicas(replica_of, &weights, plan_problem_replica_slow(problem), arena));
    TRY(microbatch_list_reserve(out, N, N, arena));
    for (int32_t r = 0; r < problem->R; r++) {
        filled.num_ids = 0;
        for (int32_t i = 0; i < N; i++) {
            if (replica_of[weights.by_size[i]] == r) { filled.ids[filled.num_ids++] = weights.by_size[i]; }
        }
        if (filled.num_ids == 0) { continue; }
        TRY(fill_replica(&filled, &weights, mode, taper, arena));
        TRY(append_replica(out, problem, &filled, mode, r, arena));
    }
    return STATUS_OK;
}

static Status infeasible(const PlanProblem* problem) {
    for (int32_t i = 0; i < problem->num_samples; i++) {
        MbShape shape = {0};
        bool fits = false;
        char what[32];
        add_sample(&shape, &problem->samples[i]);
        for (int k = 0; k < problem->num_modes; k++) {
            fits |= microbatch_cost(problem, problem->modes[k], SHARE_ALONE, &shape).fits_alone;
        }
        snprintf(what, sizeof what, "sample %d", i);
        if (!fits) { return microbatch_infeasible(problem, &shape, what); }
    }
    return FAIL(STATUS_INFEASIBLE, "no one recompute mode serves all samples ---> raise --memory-limit");
}

// Without a taper: 3 P micro-batches a replica, P of them smaller at each end.
static Status ragged_build(MicrobatchList* out, const PlanProblem* problem, const MicrobatchTaper* taper,
                           Arena* arena) {
    MicrobatchTaper standard = {
        .num_mbs = 3 * problem->P, .depth = problem->P, .end_percent = 40, .ramp_percent = 100};
    for (int k = 0; k < problem->num_modes; k++) {
        Status status = mode_build(out, problem, problem->modes[k], taper ? taper : &standard, arena);
        if (status != STATUS_INFEASIBLE) { return status; }
    }
    return infeasible(problem);
}

// Every count with every taper: coarse steps first in both, so that the first candidates span the range.
static int32_t ragged_candidates(MicrobatchTaper* out, int32_t max, const PlanProblem* problem) {
    static const int32_t count_percent[] = {300, 200, 400, 150, 600, 100, 800, 250, 1200, 50};  // of P
    int32_t P = problem->P, R = problem->R, num = 0, last = -1;
    int32_t most = (problem->num_samples + R - 1) / R;
    const MicrobatchTaper tapers[] = {{0, P, 40, 100},     {0, 0, 100, 100}, {0, P, 20, 100},
                                      {0, P + 2, 20, 100}, {0, P, 70, 100},  {0, (P + 1) / 2, 40, 100}};
    for (int t = 0; t < (int)(sizeof tapers / sizeof *tapers); t++) {
        bool most_used = false;
        for (int c = 0; c < (int)(sizeof count_percent / sizeof *count_percent) && num < max; c++) {
            int32_t num_mbs = (int32_t)((int64_t)P * count_percent[c] / 100);
            num_mbs = num_mbs < 1 ? 1 : num_mbs > most ? most : num_mbs;
            if (num_mbs == last || (num_mbs == most && most_used) ||
                (t > 0 && tapers[t].depth * 2 >= num_mbs + P)) {
                continue;
            }
            most_used |= num_mbs == most;
            last = num_mbs;
            out[num] = tapers[t];
            out[num++].num_mbs = num_mbs;
        }
    }
    return num;
}

// --- ragged or padded ------------------------------------------------------------------------------------

Status microbatch_dynamic_build(MicrobatchList* out, const PlanProblem* problem, const MicrobatchTaper* taper,
                                Arena* arena) {
    MicrobatchBuild* build = problem->request->layout == LAYOUT_PADDED ? microbatch_dp_build : ragged_build;
    return build(out, problem, taper, arena);
}

int32_t microbatch_dynamic_candidates(MicrobatchTaper* out, int32_t max, const PlanProblem* problem) {
    static const int32_t ramp_percent[] = {100, 50, 25, 75, 10};
    if (problem->request->layout != LAYOUT_PADDED) { return ragged_candidates(out, max, problem); }
    int32_t num = max < 5 ? max : 5;
    for (int32_t i = 0; i < num; i++) { out[i] = (MicrobatchTaper){.ramp_percent = ramp_percent[i]}; }
    return num;
}

const BatchingPolicy* batching_policy(Batching batching) {
    static const BatchingPolicy dynamic = {"dynamic",
                                           "sizes and order chosen per step for this pipeline (default)",
                                           microbatch_dynamic_build, microbatch_dynamic_candidates, NULL};
    if (batching == BATCHING_DYNAMIC) { return &dynamic; }
    return dynapipe_rivals != NULL && (uint32_t)batching < BATCHING_COUNT ? &dynapipe_rivals[batching] : NULL;
}

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
    TRY(batching_policy(request->batching)
            ->build(&candidate.list, policies->batching, taper, policies->lists));
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
    const BatchingPolicy* policy = batching_policy(request->batching);
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
