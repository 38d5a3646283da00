// planner.c -- the method: stages, a draft in the simulator, instruction lists that fit, bound, check.
#include "planner.h"

#include <stdio.h>
#include <string.h>

#include "baseline/policy_drafts.h"
#include "bound/lower_bound.h"
#include "original/original.h"
#include "pipe/pipe_schedule.h"
#include "plan_assemble.h"
#include "problem/shape_rules.h"
#include "problem/stage_split.h"
#include "search/search.h"

enum { POLICY_EFFORT = 300, MAX_SEARCHES = 6, BASELINES_MAX_SAMPLES = 4096 };

typedef struct {
    PlanRequest request;  // with the stages of the draft
    Placement begin;      // where the search for them begins
    MicrobatchProblem problem;
    ReplicaPlan *replicas, *best;            // [R] of the draft that is fitted, of the fastest so far
    int64_t reserve_bytes[PLAN_MAX_STAGES];  // that the drafts at hand leave free
    const Draft* best_draft;
    int64_t best_ns, fastest_ns, good_enough_ns;
    double best_bytes;  // that its ranks hold at their peaks, all together
    LowerBound bound;   // once it is made
    bool bound_is_joint;
    Arena lists;        // drafts and fitted replicas: kept until the plan is made
    Arena costs, runs;  // of one replica; of one attempt
} Planner;

// What microbatch_problem_init does not look at.
static Status check_request(const PlanRequest* request, const CostModel* costs) {
    if (request->memory_limit_bytes < 0) {
        return FAIL(STATUS_BAD_OPTION, "--memory-limit %lld ---> 0 (none) or a number of bytes",
                    (long long)request->memory_limit_bytes);
    }
    if (request->one_replica && (request->my_replica < 0 || request->my_replica >= request->R)) {
        return FAIL(STATUS_OUT_OF_RANGE, "plan_make: lists of replica %d of %d", request->my_replica,
                    request->R);
    }
    int32_t num_layers = costs->num_enc_layers + costs->num_dec_layers, next_layer = 0;
    for (int32_t s = 0; s < request->P; s++) {
        LayerRange layers = request->placement.chunks[s];
        if (layers.layer_begin != next_layer ||
            !stage_may_have(&layers, s, request->P, request->rules.head_has_layer)) {
            return FAIL(STATUS_OUT_OF_RANGE,
                        "plan_make: stage %d has layers %d ... %d, expected to begin at %d", s,
                        layers.layer_begin, layers.layer_end, next_layer);
        }
        next_layer = layers.layer_end;
    }
    if (next_layer == num_layers) { return STATUS_OK; }
    return FAIL(STATUS_OUT_OF_RANGE, "plan_make: stages cover %d of %d layers", next_layer, num_layers);
}

// --- from a draft to a plan ------------------------------------------------------------------------------

static Status use_placement(Planner* planner, const Placement* placement) {
    const MicrobatchProblem* problem = &planner->problem;
    planner->request.placement = *placement;
    return microbatch_problem_init(&planner->problem, &planner->request, problem->costs, problem->samples,
                                   problem->num_samples);
}

// The scheduling problem of one replica of a draft, in the order of the draft, under the limits that it was
// made for.
static Status make_replica(ReplicaPlan* out, Planner* planner, const Draft* draft, int32_t r) {
    const DraftReplica* replica = &draft->replica[r];
    int32_t begin = draft->replicas.begin[r], M = draft->replicas.begin[r + 1] - begin;
    ReplicaProblem in_list_order;
    arena_reset(&planner->costs);
    TRY(replica_problem_make(&in_list_order, &planner->problem, &draft->list, r, draft->replicas.mbs + begin,
                             M, replica->modes, &planner->costs));
    TRY(replica_problem_permute(&out->problem, &in_list_order, replica->order, &planner->lists));
    memcpy(out->problem.squeeze_bytes, planner->reserve_bytes, sizeof planner->reserve_bytes);
    replica_problem_set_limits(&out->problem, &planner->problem);
    out->variant = replica->variant;
    return STATUS_OK;
}

// Faster; or of those that are as fast as the fastest, but for the slack, the one that holds less.
static bool is_better(Planner* planner, const Draft* draft, int64_t makespan_ns, double bytes) {
    int64_t fastest_ns =
        draft->fastest_ns > 0 && draft->fastest_ns < makespan_ns ? draft->fastest_ns : makespan_ns;
    if (planner->best_draft == NULL || fastest_ns < planner->fastest_ns) { planner->fastest_ns = fastest_ns; }
    if (planner->best_draft == NULL) { return true; }
    if (planner->request.memory_slack_permille == 0) { return makespan_ns < planner->best_ns; }
    int64_t most_ns =
        planner->fastest_ns + planner->fastest_ns / 1000 * planner->request.memory_slack_permille;
    if (makespan_ns > most_ns) { return false; }
    return planner->best_ns > most_ns || bytes < planner->best_bytes;
}

// The replicas that were fitted last become the best so far if they are better.
static void keep_if_best(Planner* planner, const Draft* draft) {
    int64_t makespan_ns = 0;
    double bytes = 0;
    for (int32_t r = 0; r < planner->problem.R; r++) {
        const PipeTimeline* timeline = &planner->replicas[r].timeline;
        if (timeline->makespan_ns > makespan_ns) { makespan_ns = timeline->makespan_ns; }
        for (int32_t s = 0; s < planner->problem.P; s++) { bytes += (double)timeline->peak_bytes[s]; }
    }
    if (!is_better(planner, draft, makespan_ns, bytes)) { return; }
    ReplicaPlan* before = planner->best;
    planner->best = planner->replicas;
    planner->replicas = before;
    planner->best_draft = draft;
    planner->best_ns = makespan_ns;
    planner->best_bytes = bytes;
}

// Instruction lists that fit in memory, for all replicas, whatever has to change for that.
static Status fit(Planner* planner, const Draft* draft) {
    TRY(use_placement(planner, &draft->placement));
    for (int32_t r = 0; r < planner->problem.R; r++) {
        TRY(make_replica(&planner->replicas[r], planner, draft, r));
        TRY(replica_fit(&planner->replicas[r], &planner->problem, &draft->list, &planner->runs));
    }
    keep_if_best(planner, draft);
    return STATUS_OK;
}

// The same if the draft fits as it is. Else over_bytes: what its stages lack.
static Status fit_as_is(bool* fits, int64_t over_bytes[PLAN_MAX_STAGES], Planner* planner,
                        const Draft* draft) {
    TRY(use_placement(planner, &draft->placement));
    memset(over_bytes, 0, sizeof *over_bytes * PLAN_MAX_STAGES);
    for (int32_t r = 0; r < planner->problem.R; r++) {
        ReplicaPlan* replica = &planner->replicas[r];
        TRY(make_replica(replica, planner, draft, r));
        TRY(replica_try(over_bytes, replica, &planner->problem, &draft->list, &planner->runs));
    }
    *fits = true;
    for (int32_t s = 0; s < planner->problem.P; s++) { *fits &= over_bytes[s] == 0; }
    if (*fits) { keep_if_best(planner, draft); }
    return STATUS_OK;
}

static Status finish(Plan* out, Planner* planner, Arena* arena) {
    const MicrobatchProblem* problem = &planner->problem;
    const Draft* draft = planner->best_draft;
    bool joint_backward = true;
    TRY(use_placement(planner, &draft->placement));
    for (int32_t r = 0; r < problem->R; r++) {
        ReplicaPlan* replica = &planner->best[r];
        joint_backward &= !replica->variant.split_backward;
        memset(replica->ranks, 0, sizeof replica->ranks);
        if (planner->request.one_replica && r != planner->request.my_replica) { continue; }
        TRY(replica_emit(replica, problem, draft->replicas.begin[r], r * problem->P, arena));
    }
    Plan plan;
    TRY(plan_assemble(&plan, problem, &draft->list, planner->best, arena));
    if (planner->bound.bound_ns == 0 || planner->bound_is_joint != joint_backward) {
        lower_bound_make(&planner->bound, problem, joint_backward);
    }
    plan_set_bound(&plan, planner->bound.bound_ns);
    TRY(plan_check(&plan, problem->samples, problem->num_samples));
    TRY(plan_check_shapes(&plan, &planner->request.rules));
    *out = plan;
    return STATUS_OK;
}

// --- drafts by method ------------------------------------------------------------------------------------

// Ours, where the schedule is left to it.
static bool may_search(const PlanRequest* request) {
    return request->batching == BATCHING_DYNAMIC &&
           (request->schedule == SCHEDULE_AUTO || request->schedule == SCHEDULE_ADAPTIVE);
}

// How much buffers take beside activations shows in the lists only: where they do not fit, the search is told
// to leave as much free as was missing. What still does not fit then is made to.
static Status by_search(Planner* planner) {
    Draft* draft;
    int64_t over_bytes[PLAN_MAX_STAGES];
    planner->bound_is_joint = planner->request.split_backward == SPLIT_BACKWARD_OFF;
    lower_bound_make(&planner->bound, &planner->problem, planner->bound_is_joint);
    planner->good_enough_ns = planner->bound.bound_ns + planner->bound.bound_ns / 2000;
    for (int32_t round = 0; round < MAX_SEARCHES; round++) {
        bool fits;
        PIPE_NEW(draft, &planner->lists, Draft, 1);
        memcpy(planner->problem.reserve_bytes, planner->reserve_bytes, sizeof planner->reserve_bytes);
        Status status = search_draft(draft, &planner->problem, planner->request.effort, 1,
                                     planner->good_enough_ns, &planner->lists);
        memset(planner->problem.reserve_bytes, 0, sizeof planner->reserve_bytes);
        if (status != STATUS_OK) { return planner->best_draft != NULL ? STATUS_OK : status; }
        TRY(fit_as_is(&fits, over_bytes, planner, draft));
        if (fits) { return STATUS_OK; }
        for (int32_t s = 0; s < planner->problem.P; s++) {
            planner->reserve_bytes[s] += over_bytes[s] + over_bytes[s] / 4;
        }
        if (round == MAX_SEARCHES / 2) {
            status = fit(planner, draft);
            if (status != STATUS_OK && status != STATUS_INFEASIBLE) { return status; }
        }
    }
    return planner->best_draft != NULL ? STATUS_OK : fit(planner, draft);
}

enum { LEANER_TRIES = 4, LEANER_PARTS = 8, LEANER_EFFORT_PARTS = 4 };

// What the fullest rank of the best draft holds, and the largest model state.
static void fullest_rank(int64_t* held_bytes, int64_t* state_bytes, const Planner* planner) {
    *held_bytes = *state_bytes = 0;
    for (int32_t r = 0; r < planner->problem.R; r++) {
        const ReplicaPlan* replica = &planner->best[r];
        for (int32_t s = 0; s < planner->problem.P; s++) {
            int64_t held = replica->timeline.peak_bytes[s], state = replica->ranks[s].state_bytes;
            *held_bytes = held > *held_bytes ? held : *held_bytes;
            *state_bytes = state > *state_bytes ? state : *state_bytes;
        }
    }
}

// The same search for at most that much memory; half of the slack is for it, the rest for what it makes lean.
static Status search_within(bool* is_fast, Planner* planner, int64_t limit_bytes,
                            const PlanRequest* request) {
    int64_t over_bytes[PLAN_MAX_STAGES], permille_ns = planner->fastest_ns / 1000;
    int32_t slack = request->memory_slack_permille, rest = slack / 2;
    bool fits;
    Draft* draft;
    PIPE_NEW(draft, &planner->lists, Draft, 1);
    planner->request.memory_limit_bytes = limit_bytes;
    planner->request.memory_slack_permille = rest;
    *is_fast = false;
    TRY(use_placement(planner, &planner->begin));
    TRY(search_draft(draft, &planner->problem, request->effort, LEANER_EFFORT_PARTS,
                     planner->fastest_ns + permille_ns * (slack - rest), &planner->lists));
    planner->request.memory_slack_permille = slack;
    *is_fast = draft->makespan_ns <= planner->fastest_ns + permille_ns * slack;
    return *is_fast ? fit_as_is(&fits, over_bytes, planner, draft) : STATUS_OK;
}

// A search that ended early did so with the first micro-batches that were good enough, often the largest:
// the same again in less and less memory, as long as that is about as fast.
static Status by_leaner(Planner* planner) {
    const PlanRequest request = planner->request;
    int64_t held_bytes, state_bytes;
    bool is_fast = request.memory_slack_permille > 0 && planner->fastest_ns <= planner->good_enough_ns;
    if (!is_fast) { return STATUS_OK; }
    fullest_rank(&held_bytes, &state_bytes, planner);
    for (int32_t i = 1; i <= LEANER_TRIES && is_fast; i++) {
        int64_t limit_bytes = state_bytes + held_bytes / LEANER_PARTS * (LEANER_PARTS - i);
        if (request.memory_limit_bytes > 0 && limit_bytes >= request.memory_limit_bytes) { continue; }
        Status status = search_within(&is_fast, planner, limit_bytes, &request);
        planner->request = request;
        TRY(use_placement(planner, &planner->begin));
        if (status != STATUS_OK && status != STATUS_INFEASIBLE) { return status; }
    }
    return STATUS_OK;
}

// The paper's, as long as nothing else is asked for: it decides everything by itself.
static bool is_original(const PlanRequest* request) {
    return request->batching == BATCHING_DYNAPIPE && request->schedule == SCHEDULE_AUTO &&
           request->split_backward != SPLIT_BACKWARD_ON;
}

static Status by_original(Planner* planner, const MicrobatchProblem* batching) {
    Draft* draft;
    PIPE_NEW(draft, &planner->lists, Draft, 1);
    TRY(original_draft(draft, batching, &planner->lists));
    return fit(planner, draft);
}

// Where memory is limited, fitting may cost time: then all drafts are fitted, and the fastest wins.
static Status by_policy(Planner* planner, const MicrobatchProblem* batching) {
    Draft* drafts;
    int32_t num, effort = planner->request.effort > 0 ? planner->request.effort : POLICY_EFFORT;
    Status status = STATUS_OK;
    if (is_original(&planner->request)) { return by_original(planner, batching); }
    PIPE_NEW(drafts, &planner->lists, Draft, POLICY_MAX_DRAFTS);
    TRY(policy_drafts(drafts, &num, &planner->problem, batching, effort, &planner->lists));
    for (int32_t i = 0; i < num; i++) {
        if (planner->best_draft != NULL && drafts[i].makespan_ns >= planner->best_ns) { break; }
        status = fit(planner, &drafts[i]);
        if (status != STATUS_OK && status != STATUS_INFEASIBLE) { return status; }
    }
    return planner->best_draft != NULL ? STATUS_OK : status;
}

// Micro-batches that fit one at a time need not fit together: scratch is that of the largest, and buffers
// leave gaps. Where no draft fits, smaller ones are made. The first failure is the one to report.
static Status by_policy_smaller(Planner* planner) {
    static const int32_t percents[] = {100, 90, 75, 50};
    char first_failure[512];
    Status status = STATUS_INFEASIBLE;
    TRY(use_placement(planner, &planner->begin));
    for (size_t i = 0; i < sizeof percents / sizeof percents[0] && status == STATUS_INFEASIBLE; i++) {
        MicrobatchProblem batching = planner->problem;
        for (int32_t s = 0; s < batching.P; s++) {
            batching.available_bytes[s] -= batching.available_bytes[s] / 100 * (100 - percents[i]);
        }
        status = by_policy(planner, &batching);
        if (i == 0) { snprintf(first_failure, sizeof first_failure, "%s", status_message()); }
    }
    return status == STATUS_INFEASIBLE ? FAIL(status, "%s", first_failure) : status;
}

// What trainers do today, on the same samples: some batch suits one of these better than all that the search
// has seen. No plan of ours is slower, unless it is as good as the bound; batches of thousands are left out,
// where any composition is even and these cost a third of the search. *status: of what was tried before.
static Status by_baselines(Planner* planner, Status* status) {
    static const Batching known[] = {BATCHING_TOKENS, BATCHING_KK, BATCHING_PACKED_RAGGED};
    const Batching ours = planner->request.batching;
    char failure[512];
    snprintf(failure, sizeof failure, "%s", status_message());
    TRY(use_placement(planner, &planner->begin));
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        bool found = planner->best_draft != NULL;
        if (found && planner->problem.num_samples > BASELINES_MAX_SAMPLES) { break; }
        if (found && planner->best_ns <= planner->good_enough_ns) { break; }
        if (planner->request.layout == LAYOUT_PADDED && known[i] != BATCHING_TOKENS) { break; }
        planner->request.batching = known[i];
        Status baseline = by_policy_smaller(planner);
        planner->request.batching = ours;
        if (baseline != STATUS_OK && baseline != STATUS_INFEASIBLE) { return baseline; }
    }
    if (planner->best_draft != NULL) { *status = STATUS_OK; }
    return *status == STATUS_INFEASIBLE ? FAIL(*status, "%s", failure) : STATUS_OK;
}

static Status make(Plan* out, Planner* planner, Arena* arena) {
    const MicrobatchProblem* problem = &planner->problem;
    Status status = STATUS_INFEASIBLE;
    PIPE_NEW(planner->replicas, &planner->lists, ReplicaPlan, problem->R);
    PIPE_NEW(planner->best, &planner->lists, ReplicaPlan, problem->R);
    if (may_search(&planner->request)) { status = by_search(planner); }
    memset(planner->reserve_bytes, 0, sizeof planner->reserve_bytes);
    if (status == STATUS_OK && planner->best_draft != NULL) { TRY(by_leaner(planner)); }
    if (status == STATUS_INFEASIBLE) { status = by_policy_smaller(planner); }
    if ((status == STATUS_OK || status == STATUS_INFEASIBLE) && may_search(&planner->request)) {
        TRY(by_baselines(planner, &status));
    }
    TRY(status);
    return finish(out, planner, arena);
}

int32_t plan_effort(const PlanRequest* request, int64_t planning_ns) {
    return may_search(request) ? search_effort(request->P, planning_ns) : 0;
}

Status plan_make(Plan* out, const PlanRequest* request, const CostModel* costs, const PlanSample* samples,
                 int32_t num_samples, Arena* arena) {
    Planner planner = {.request = *request};
    if ((uint32_t)request->batching >= BATCHING_COUNT || (uint32_t)request->schedule >= SCHEDULE_COUNT) {
        return FAIL(STATUS_OUT_OF_RANGE, "plan_make: no such batching or schedule");
    }
    TRY(shape_rules_check(request));
    if (!may_search(request)) { planner.request.memory_slack_permille = 0; }  // other methods are as they are
    if (request->rules.padded) { planner.request.layout = LAYOUT_PADDED; }
    if (request->placement.num_chunks == 0) {
        placement_linear(&planner.request.placement, request->placement.chunks, request->P);
    }
    if (request->choose_stages) {
        LayerRange stages[PLAN_MAX_STAGES];
        TRY(stage_split_make(stages, request, costs, samples, num_samples, 1));
        placement_linear(&planner.request.placement, stages, request->P);
    }
    planner.begin = planner.request.placement;
    TRY(microbatch_problem_init(&planner.problem, &planner.request, costs, samples, num_samples));
    TRY(check_request(&planner.request, costs));
    Status status = make(out, &planner, arena);
    arena_free(&planner.lists);
    arena_free(&planner.costs);
    arena_free(&planner.runs);
    return status;
}
