// plan_drafts.c -- see plan_drafts.h.
#include "plan_drafts.h"
#include "simulate.h"

#include <string.h>

#include "batching.h"
#include "schedule.h"
#include "problem.h"
#include "placement.h"
#include "types.h"

bool plan_is_searched(const PlanRequest* request) {
    return request->batching == BATCHING_DYNAMIC &&
           (request->schedule == SCHEDULE_AUTO || request->schedule == SCHEDULE_ADAPTIVE);
}

bool plan_is_original(const PlanRequest* request) {
    return request->batching == BATCHING_DYNAPIPE && request->schedule == SCHEDULE_AUTO &&
           request->split_backward != SPLIT_BACKWARD_ON;
}

// --- the request -----------------------------------------------------------------------------------------

static Status check_choices(const PlanRequest* request) {
    if ((uint32_t)request->batching >= BATCHING_COUNT || (uint32_t)request->schedule >= SCHEDULE_COUNT) {
        return FAIL(STATUS_OUT_OF_RANGE, "plan_make: no such batching or schedule");
    }
    if (batching_policy(request->batching) == NULL) {
        return FAIL(
            STATUS_BAD_OPTION,
            "this program has no batching methods but its own ---> --batching dynamic, or the trainers "
            "of DynaPipe's repository to compare with others");
    }
    if ((uint32_t)request->placements >= PLACEMENT_COUNT || (uint32_t)request->heads >= HEAD_CHOICE_COUNT) {
        return FAIL(STATUS_OUT_OF_RANGE, "plan_make: no such placement or head");
    }
    return shape_rules_check(request);
}

// What plan_problem_init does not look at.
static Status check_request(const PlanRequest* request, const CostModel* costs) {
    if (request->memory_limit_bytes < 0) {
        return FAIL(STATUS_BAD_OPTION, "--memory-limit %lld ---> 0 (none) or a number of bytes",
                    (long long)request->memory_limit_bytes);
    }
    if (request->one_replica && (request->my_replica < 0 || request->my_replica >= request->R)) {
        return FAIL(STATUS_OUT_OF_RANGE, "plan_make: lists of replica %d of %d", request->my_replica,
                    request->R);
    }
    if (plan_is_original(request) && !placement_is_linear(&request->placement, request->P)) {
        return FAIL(STATUS_BAD_OPTION,
                    "--policy dynapipe: the paper's pipelines have one chunk a stage and a whole head ---> "
                    "--placement linear --head whole, or --policy auto");
    }
    return placement_check(&request->placement, request->P, costs->num_enc_layers + costs->num_dec_layers,
                           request->rules.head_has_layer);
}

// Where the search begins: the placement that is given, or the plain one of the shape that is asked for. A
// head that is given stays.
static Status place(PlanRequest* request, const CostModel* costs, const PlanSample* samples,
                    int32_t num_samples) {
    static const HeadSplit splits[HEAD_CHOICE_COUNT] = {
        [HEAD_CHOICE_ROWS] = HEAD_BY_ROWS, [HEAD_CHOICE_VOCABULARY] = HEAD_BY_VOCABULARY};
    Placement* placement = &request->placement;
    const Placement given = *placement;
    int32_t P = request->P, num_enc = costs->num_enc_layers, num_dec = costs->num_dec_layers;
    bool by_shape = request->placements >= PLACEMENT_INTERLEAVED && request->placements < PLACEMENT_COUNT;
    bool has_layers = request->placements == PLACEMENT_GIVEN && given.num_chunks > 0;
    bool head_is_given = request->heads == HEAD_CHOICE_GIVEN;
    HeadSplit split = head_is_given ? (HeadSplit)given.head : splits[request->heads];
    if (placement->num_chunks == 0) { placement_linear(placement, placement->chunks, P); }
    if (by_shape) {
        TRY(placement_make(placement, request->placements, false, P, num_enc, num_dec));
        placement_copy_head(placement, &given);
    } else if (request->choose_stages && split != HEAD_WHOLE && placement->num_chunks == P && !has_layers) {
        TRY(placement_make(placement, PLACEMENT_LINEAR, false, P, num_enc, num_dec));
    } else if (request->choose_stages && placement_is_linear(placement, P)) {
        LayerRange stages[PLAN_MAX_STAGES];
        TRY(stage_split_make(stages, request, costs, samples, num_samples, 1));
        placement_linear(placement, stages, P);
    }
    if (head_is_given) {
        placement_copy_head(placement, &given);
    } else if (split != (HeadSplit)placement->head) {
        placement_share_head(placement, split, P);
    }
    return STATUS_OK;
}

// The same shape with other layers; where shape and head are free, of all the one that leaves most room.
static void make_room(PlanRequest* request, const CostModel* costs, const int64_t* limit_bytes,
                      int32_t wanted) {
    static const HeadSplit heads[] = {HEAD_WHOLE, HEAD_BY_VOCABULARY};
    const PlacementRoom room = {costs, limit_bytes, request->P, wanted, request->rules.head_has_layer};
    const Placement asked = request->placement;
    bool moves_head = request->heads != HEAD_CHOICE_GIVEN, is_free = request->placements == PLACEMENT_AUTO;
    int64_t least = INT64_MAX;
    for (int kind = PLACEMENT_AUTO; kind < PLACEMENT_COUNT && (is_free || kind == PLACEMENT_AUTO); kind++) {
        for (int h = 0; h < 2 && least > 0; h++) {
            Placement placement = asked;
            Status made = kind == PLACEMENT_AUTO
                              ? STATUS_OK
                              : placement_make(&placement, (PlacementChoice)kind, false, request->P,
                                               costs->num_enc_layers, costs->num_dec_layers);
            if (made != STATUS_OK) { continue; }
            placement_copy_head(&placement, &asked);
            if (request->heads == HEAD_CHOICE_AUTO) {
                placement_share_head(&placement, heads[h], request->P);
            }
            int64_t lack = placement_make_room(&placement, &room, moves_head);
            if (lack >= least) { continue; }
            least = lack;
            request->placement = placement;
        }
    }
}

// Does each sample fit, all by itself, in some mode?
static bool samples_fit(const PlanProblem* problem) {
    for (int32_t i = 0; i < problem->num_samples; i++) {
        const PlanSample* sample = &problem->samples[i];
        MbShape shape = {0};
        bool fits = false;
        mb_shape_add(&shape, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
        for (int32_t k = problem->num_modes - 1; k >= 0 && !fits; k--) {
            fits = microbatch_cost(problem, problem->modes[k], SHARE_ALONE, &shape).fits_alone;
        }
        if (!fits) { return false; }
    }
    return true;
}

// The problem with that placement; where its state, or some sample beside it, does not fit, but the search
// may move layers, with one that leaves more room.
static Status init_problem(PlanDrafts* drafts, const CostModel* costs, const PlanSample* samples,
                           int32_t num_samples) {
    PlanRequest* request = &drafts->request;
    PlanProblem* problem = &drafts->problem;
    Status status = plan_problem_init(problem, request, costs, samples, num_samples);
    bool is_short = status == STATUS_INFEASIBLE;
    if (status == STATUS_OK && problem->has_limit) {
        const PlacementRoom room = {costs, problem->limit_bytes, request->P, ROOM_WANTED,
                                    request->rules.head_has_layer};
        is_short = !placement_has_enough(&room, &problem->placement) && !samples_fit(problem);
    }
    if (!is_short || !request->choose_stages) { return status; }
    const Placement asked = request->placement;
    for (int32_t wanted = ROOM_WANTED; wanted <= 4 * ROOM_WANTED && is_short; wanted *= 2) {
        request->placement = asked;
        make_room(request, costs, problem->limit_bytes, wanted);
        status = plan_problem_init(problem, request, costs, samples, num_samples);
        is_short = status != STATUS_OK || !samples_fit(problem);
    }
    return status;
}

Status plan_drafts_begin(PlanDrafts* out, const PlanRequest* request, const CostModel* costs,
                         const PlanSample* samples, int32_t num_samples) {
    *out = (PlanDrafts){.request = *request};
    TRY(check_choices(request));
    if (!plan_is_searched(request)) { out->request.memory_slack_permille = 0; }  // others are as they are
    if (request->rules.padded) { out->request.layout = LAYOUT_PADDED; }
    TRY(place(&out->request, costs, samples, num_samples));
    TRY(init_problem(out, costs, samples, num_samples));
    out->begin = out->request.placement;
    TRY(check_request(&out->request, costs));
    ARENA_TRY_NEW(out->replicas, &out->lists, ReplicaPlan, request->R);
    ARENA_TRY_NEW(out->best, &out->lists, ReplicaPlan, request->R);
    return STATUS_OK;
}

void plan_drafts_free(PlanDrafts* drafts) {
    arena_free(&drafts->lists);
    arena_free(&drafts->costs);
    arena_free(&drafts->runs);
}

// --- from a draft to lists -------------------------------------------------------------------------------

Status plan_drafts_place(PlanDrafts* drafts, const Placement* placement) {
    const PlanProblem* problem = &drafts->problem;
    drafts->request.placement = *placement;
    return plan_problem_init(&drafts->problem, &drafts->request, problem->costs, problem->samples,
                             problem->num_samples);
}

// The scheduling problem of one replica of a draft, in the order of the draft, under the limits that it was
// made for.
static Status make_replica(ReplicaPlan* out, PlanDrafts* drafts, const Draft* draft, int32_t r) {
    const DraftReplica* replica = &draft->replica[r];
    int32_t begin = draft->replicas.begin[r], M = draft->replicas.begin[r + 1] - begin;
    ReplicaProblem in_list_order;
    arena_reset(&drafts->costs);
    TRY(replica_problem_make(&in_list_order, &drafts->problem, &draft->list, r, draft->replicas.mbs + begin,
                             M, replica->modes, &drafts->costs));
    TRY(replica_problem_permute(&out->problem, &in_list_order, replica->order, &drafts->lists));
    memcpy(out->problem.headroom_bytes, drafts->headroom_bytes, sizeof drafts->headroom_bytes);
    replica_problem_set_limits(&out->problem, &drafts->problem);
    out->variant = replica->variant;
    return STATUS_OK;
}

// Faster; or of those that are as fast as the fastest, but for the slack, the one that holds less.
static bool is_better(PlanDrafts* drafts, const Draft* draft, int64_t makespan_ns, double bytes) {
    int64_t fastest_ns =
        draft->fastest_ns > 0 && draft->fastest_ns < makespan_ns ? draft->fastest_ns : makespan_ns;
    if (drafts->best_draft == NULL || fastest_ns < drafts->fastest_ns) { drafts->fastest_ns = fastest_ns; }
    if (drafts->best_draft == NULL) { return true; }
    if (drafts->request.memory_slack_permille == 0) { return makespan_ns < drafts->best_ns; }
    int64_t most_ns = drafts->fastest_ns + drafts->fastest_ns / 1000 * drafts->request.memory_slack_permille;
    if (makespan_ns > most_ns) { return false; }
    return drafts->best_ns > most_ns || bytes < drafts->best_bytes;
}

// The replicas that were fitted last become the best so far if they are better.
static void keep_if_best(PlanDrafts* drafts, const Draft* draft) {
    int64_t makespan_ns = 0;
    double bytes = 0;
    for (int32_t r = 0; r < drafts->problem.R; r++) {
        const PipeTimeline* timeline = &drafts->replicas[r].timeline;
        if (timeline->makespan_ns > makespan_ns) { makespan_ns = timeline->makespan_ns; }
        for (int32_t s = 0; s < drafts->problem.P; s++) { bytes += (double)timeline->peak_bytes[s]; }
    }
    if (!is_better(drafts, draft, makespan_ns, bytes)) { return; }
    ReplicaPlan* before = drafts->best;
    drafts->best = drafts->replicas;
    drafts->replicas = before;
    drafts->best_draft = draft;
    drafts->best_ns = makespan_ns;
    drafts->best_bytes = bytes;
}

Status plan_drafts_fit(PlanDrafts* drafts, const Draft* draft) {
    TRY(plan_drafts_place(drafts, &draft->placement));
    for (int32_t r = 0; r < drafts->problem.R; r++) {
        TRY(make_replica(&drafts->replicas[r], drafts, draft, r));
        TRY(memory_fit(&drafts->replicas[r], &drafts->problem, &draft->list, &drafts->runs));
    }
    keep_if_best(drafts, draft);
    return STATUS_OK;
}

Status plan_drafts_fit_as_is(bool* fits, int64_t over_bytes[PLAN_MAX_STAGES], PlanDrafts* drafts,
                             const Draft* draft) {
    TRY(plan_drafts_place(drafts, &draft->placement));
    memset(over_bytes, 0, sizeof *over_bytes * PLAN_MAX_STAGES);
    for (int32_t r = 0; r < drafts->problem.R; r++) {
        ReplicaPlan* replica = &drafts->replicas[r];
        TRY(make_replica(replica, drafts, draft, r));
        TRY(memory_try(over_bytes, replica, &drafts->problem, &draft->list, &drafts->runs));
    }
    *fits = true;
    for (int32_t s = 0; s < drafts->problem.P; s++) { *fits &= over_bytes[s] == 0; }
    if (*fits) { keep_if_best(drafts, draft); }
    return STATUS_OK;
}
