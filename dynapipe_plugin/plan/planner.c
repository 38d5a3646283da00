// planner.c -- see planner.h.
#include "planner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "batching.h"
#include "bound.h"
#include "placement.h"
#include "search.h"

// One call of plan_make.
typedef struct {
    PlanRequest request;      // with the placement at hand
    Placement *field, begin;  // placements to choose from; the one that the problem is stated with
    int32_t num_places;
    PlanProblem problem;
    ReplicaPlan *replicas, *best;             // [R] of the draft that is fitted, of the best so far
    int64_t headroom_bytes[PLAN_MAX_STAGES];  // that drafts leave unused
    const Draft* best_draft;                  // NULL: none has fitted so far
    int64_t best_ns;
    Arena lists;  // drafts and fitted replicas: kept until the plan is made
    Arena runs;   // of one attempt
} Planning;

const BatchingPolicy* batching_policy(Batching batching) {
    static const BatchingPolicy dynamic = {
        "dynamic", "sizes and order chosen per step for this pipeline (default)", NULL, NULL};
    if (batching == BATCHING_DYNAMIC) { return &dynamic; }
    return dynapipe_rivals != NULL && (uint32_t)batching < BATCHING_COUNT ? &dynapipe_rivals[batching] : NULL;
}

bool plan_has_rivals(void) {
    return dynapipe_rivals != NULL;
}

// --- the problem -----------------------------------------------------------------------------------------

// What plan_problem_init does not check.
static Status check_request(const PlanRequest* request) {
    if (batching_policy(request->batching) == NULL) {
        return FAIL(
            STATUS_BAD_OPTION,
            "this program has no batching methods but its own ---> --batching dynamic, or the trainers "
            "of DynaPipe's repository to compare with others");
    }
    if (request->memory_limit_bytes < 0) {
        return FAIL(STATUS_BAD_OPTION, "--memory-limit %lld ---> 0 (none) or a number of bytes",
                    (long long)request->memory_limit_bytes);
    }
    if (request->one_replica && (request->my_replica < 0 || request->my_replica >= request->R)) {
        return FAIL(STATUS_OUT_OF_RANGE, "plan_make: lists of replica %d of %d", request->my_replica,
                    request->R);
    }
    return shape_rules_check(request);
}

static MbShape shape_alone(const PlanSample* sample) {
    MbShape shape = {0};
    mb_shape_add(&shape, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
    return shape;
}

// The first sample that does not fit in any mode, alone; -1: all fit.
static int32_t find_misfit(const PlanProblem* problem) {
    for (int32_t i = 0; i < problem->num_samples; i++) {
        const MbShape shape = shape_alone(&problem->samples[i]);
        bool fits = false;
        for (int32_t k = problem->num_modes - 1; k >= 0 && !fits; k--) {
            fits = microbatch_cost(problem, problem->modes[k], SHARE_ALONE, &shape).fits_alone;
        }
        if (!fits) { return i; }
    }
    return -1;
}

static Status report_sample(const PlanProblem* problem, int32_t i) {
    const MbShape shape = shape_alone(&problem->samples[i]);
    char what[32];
    snprintf(what, sizeof what, "sample %d", i);
    return microbatch_infeasible(problem, &shape, what);
}

// The problem with this placement.
static Status set_placement(Planning* planning, const Placement* placement) {
    const PlanProblem* problem = &planning->problem;
    planning->request.placement = *placement;
    return plan_problem_init(&planning->problem, &planning->request, problem->costs, problem->samples,
                             problem->num_samples);
}

// With the plainest placement beside whose state every sample fits; where there is none, with more room
// wanted. Else with the plainest one of all.
static Status make_problem(Planning* planning, const CostModel* costs, const PlanSample* samples,
                           int32_t num_samples) {
    PlanRequest* request = &planning->request;
    const PlanRequest asked = *request;
    TRY(check_request(request));
    planning->problem = (PlanProblem){.costs = costs, .samples = samples, .num_samples = num_samples};
    ARENA_TRY_NEW(planning->field, &planning->lists, Placement, PLACEMENT_FIELD);
    int32_t plainest = -1;  // whose state fits
    for (int32_t wanted = ROOM_WANTED; wanted <= 4 * ROOM_WANTED; wanted *= 2) {
        TRY(placement_field(planning->field, &planning->num_places, &asked, costs, samples, num_samples,
                            wanted));
        plainest = -1;
        for (int32_t i = 0; i < planning->num_places; i++) {
            planning->begin = planning->field[i];
            Status status = set_placement(planning, &planning->begin);
            if (status == STATUS_INFEASIBLE) { continue; }
            TRY(status);
            if (!planning->problem.has_limit || find_misfit(&planning->problem) < 0) { return STATUS_OK; }
            if (plainest < 0) { plainest = i; }
        }
        if (!request->choose_stages) { break; }
    }
    const PlacementScale scale = placement_scale_make(&asked, costs, samples, num_samples, 0);
    for (int32_t i = 0, num = plainest < 0 ? planning->num_places : 0; i < num; i++) {  // the least lacking
        double least = plainest < 0 ? INFINITY : placement_lack(&planning->field[plainest], &scale);
        if (placement_lack(&planning->field[i], &scale) < least) { plainest = i; }
    }
    planning->begin = planning->field[plainest];
    return set_placement(planning, &planning->begin);
}

// --- fit into memory --------------------------------------------------------------------------------------

// The draft with schedules whose lists fit; kept if it is the fastest so far. over_bytes: what stages lacked
// at first.
static Status fit(int64_t over_bytes[PLAN_MAX_STAGES], Planning* planning, const Draft* draft, bool admit) {
    int64_t makespan_ns = 0;
    memset(over_bytes, 0, sizeof *over_bytes * PLAN_MAX_STAGES);
    TRY(set_placement(planning, &draft->placement));
    for (int32_t r = 0; r < planning->problem.R; r++) {
        ReplicaPlan* replica = &planning->replicas[r];
        TRY(replica_plan_fit(replica, over_bytes, &planning->problem, draft, r, planning->headroom_bytes,
                             admit, &planning->lists, &planning->runs));
        if (replica->timeline.makespan_ns > makespan_ns) { makespan_ns = replica->timeline.makespan_ns; }
    }
    if (planning->best_draft != NULL && makespan_ns >= planning->best_ns) { return STATUS_OK; }
    ReplicaPlan* before = planning->best;
    planning->best = planning->replicas;
    planning->replicas = before;
    planning->best_draft = draft;
    planning->best_ns = makespan_ns;
    return STATUS_OK;
}

enum { MAX_SEARCHES = 4 };
enum { FIT_COST = 100 };  // a fit that costs more than this part of the makespan justifies another search

// Our method. Where the lists of the draft need more memory than the search assumed, they are made to fit;
// where that costs time the search is repeated with so much less memory.
static Status plan_by_search(Planning* planning) {
    const PlanProblem* problem = &planning->problem;
    for (int32_t i = 0; i < problem->num_samples; i++) {
        const MbShape shape = shape_alone(&problem->samples[i]);
        if (!shape_rules_allow(&planning->request.rules, &shape)) { return report_sample(problem, i); }
    }
    const Draft* before = NULL;
    for (int32_t i = 0; i < MAX_SEARCHES; i++) {
        int64_t over_bytes[PLAN_MAX_STAGES];
        Draft* draft;
        ARENA_TRY_NEW(draft, &planning->lists, Draft, 1);
        TRY(set_placement(planning, &planning->begin));
        memcpy(planning->problem.headroom_bytes, planning->headroom_bytes, sizeof planning->headroom_bytes);
        TRY(search_draft(draft, problem, planning->field, planning->num_places, before, &planning->lists));
        before = draft;
        if (draft->makespan_ns == INT64_MAX && planning->best_draft != NULL) {  // too little is left
            for (int32_t s = 0; s < planning->problem.P; s++) { planning->headroom_bytes[s] /= 2; }
            continue;
        }
        Status status = fit(over_bytes, planning, draft, false);
        if (status == STATUS_OK && planning->best_ns - draft->makespan_ns > draft->makespan_ns / FIT_COST) {
            int64_t same[PLAN_MAX_STAGES];
            Status other = fit(same, planning, draft, true);
            if (other != STATUS_OK && other != STATUS_INFEASIBLE) { return other; }
        }
        if (status != STATUS_OK && status != STATUS_INFEASIBLE) { return status; }
        if (status != STATUS_OK && planning->best_draft == NULL) {
            int32_t misfit = find_misfit(problem);
            return misfit < 0 ? status : report_sample(problem, misfit);
        }
        if (planning->best_draft != NULL &&
            planning->best_ns - draft->makespan_ns <= draft->makespan_ns / FIT_COST) {
            break;
        }
        for (int32_t s = 0; s < planning->problem.P; s++) { planning->headroom_bytes[s] += over_bytes[s]; }
    }
    return STATUS_OK;
}

// --- methods of rivals/ -----------------------------------------------------------------------------------

// In less and less memory, until some draft can be made to fit; of several drafts the fastest is kept.
static Status plan_by_rival(Planning* planning) {
    static const int32_t percents[] = {100, 90, 75, 50};
    Status first = STATUS_OK;
    char failure[STATUS_MESSAGE_BYTES] = "";
    if (batching_is_original(&planning->request) &&
        !placement_is_linear(&planning->begin, planning->request.P)) {
        return FAIL(STATUS_BAD_OPTION,
                    "--policy dynapipe: the paper's pipelines have one chunk a stage and a whole head ---> "
                    "--placement linear --head whole, or --policy auto");
    }
    for (size_t i = 0; i < sizeof percents / sizeof *percents && planning->best_draft == NULL; i++) {
        PlanProblem batching = planning->problem;
        Draft* drafts;
        int32_t num = 0;
        ARENA_TRY_NEW(drafts, &planning->lists, Draft, RIVAL_MAX_DRAFTS);
        for (int32_t s = 0; s < batching.P; s++) {
            batching.available_bytes[s] -= batching.available_bytes[s] / 100 * (100 - percents[i]);
        }
        Status status = batching_policy(planning->request.batching)
                            ->drafts(drafts, &num, &planning->problem, &batching, &planning->lists);
        for (int32_t k = 0; k < num; k++) {
            int64_t over_bytes[PLAN_MAX_STAGES];
            if (planning->best_draft != NULL && drafts[k].makespan_ns >= planning->best_ns) { break; }
            status = fit(over_bytes, planning, &drafts[k], false);
            if (status != STATUS_OK && status != STATUS_INFEASIBLE) { return status; }
        }
        if (status != STATUS_OK && status != STATUS_INFEASIBLE) { return status; }
        if (status != STATUS_OK && first == STATUS_OK) {
            first = status;
            snprintf(failure, sizeof failure, "%s", status_message());
        }
    }
    return planning->best_draft != NULL ? STATUS_OK : FAIL(STATUS_INFEASIBLE, "%s", failure);
}

// --- lists and checks -------------------------------------------------------------------------------------

static void copy_microbatch(Plan* plan, const MicrobatchList* list, const ReplicaPlan* replica, int32_t r,
                            int32_t m) {
    const ReplicaProblem* problem = &replica->problem;
    const Microbatch* from = &list->mbs[problem->mbs[m]];
    PlanMicrobatch* to = &plan->mbs[plan->M++];
    *to = (PlanMicrobatch){.replica = r,
                           .layout = (uint8_t)from->layout,
                           .continues = pipe_piece_before(&problem->pipe, m) >= 0,
                           .sequence_begin = plan->num_sequences,
                           .shape = from->shape};
    for (int32_t k = 0; k < plan->placement.num_chunks; k++) {
        to->recompute[k] = problem->modes[m * plan->placement.num_chunks + k];
    }
    for (int32_t i = from->sequence_begin; i < from->sequence_end; i++) {
        const PlanSequence* seq = &list->sequences[i];
        int32_t num_segments = seq->segment_end - seq->segment_begin;
        memcpy(plan->segments + plan->num_segments, list->segments + seq->segment_begin,
               (size_t)num_segments * sizeof(PlanSegment));
        plan->sequences[plan->num_sequences++] =
            (PlanSequence){.segment_begin = plan->num_segments,
                           .segment_end = plan->num_segments + num_segments,
                           .enc_tokens = seq->enc_tokens,
                           .dec_tokens = seq->dec_tokens};
        plan->num_segments += num_segments;
    }
    to->sequence_end = plan->num_sequences;
}

// One name where all replicas agree, else "mixed"; replicas without work do not count.
static void set_schedule_name(Plan* plan, const ReplicaPlan* replicas) {
    const char* name = NULL;
    for (int32_t r = 0; r < plan->R; r++) {
        if (replicas[r].problem.pipe.M == 0) { continue; }
        bool differs = name != NULL && strcmp(name, replicas[r].variant.name) != 0;
        name = differs ? "mixed" : replicas[r].variant.name;
        if (differs) { break; }
    }
    snprintf(plan->schedule, sizeof plan->schedule, "%s", name != NULL ? name : replicas[0].variant.name);
}

// A wrong bound makes no plan wrong: it is cut to the makespan and bound_over_ns holds the difference.
// Training continues; the tool reports an error.
static void set_bound(Plan* plan, int64_t bound_ns) {
    plan->bound_over_ns = bound_ns > plan->makespan_ns ? bound_ns - plan->makespan_ns : 0;
    plan->bound_ns = bound_ns - plan->bound_over_ns;
}

static Status assemble(Plan* out, const PlanProblem* problem, const MicrobatchList* list,
                       const ReplicaPlan* replicas, Arena* arena) {
    const PlanRequest* request = problem->request;
    Plan plan = {.P = problem->P,
                 .R = problem->R,
                 .N = problem->num_samples,
                 .one_replica = request->one_replica,
                 .my_replica = request->my_replica,
                 .pulls = machine_pulls(request->machine),
                 .memory_limit_bytes =
                     request->memory_rule == MEMORY_BUFFERS ? request->memory_limit_bytes : 0};
    ARENA_TRY_NEW(plan.mbs, arena, PlanMicrobatch, list->num_mbs);
    ARENA_TRY_NEW(plan.sequences, arena, PlanSequence, list->num_sequences);
    ARENA_TRY_NEW(plan.segments, arena, PlanSegment, list->num_segments);
    ARENA_TRY_NEW(plan.ranks, arena, PlanRank, plan.P * plan.R);
    plan.chain = problem->costs->chain;
    plan.placement = problem->placement;
    snprintf(plan.policy, sizeof plan.policy, "%s", batching_policy(request->batching)->name);
    set_schedule_name(&plan, replicas);
    for (int32_t r = 0; r < plan.R; r++) {
        const ReplicaPlan* replica = &replicas[r];
        for (int32_t m = 0; m < replica->problem.pipe.M; m++) { copy_microbatch(&plan, list, replica, r, m); }
        for (int32_t s = 0; s < plan.P; s++) { plan.ranks[r * plan.P + s] = replica->ranks[s]; }
        if (replica->timeline.makespan_ns > plan.makespan_ns) {
            plan.makespan_ns = replica->timeline.makespan_ns;
        }
    }
    *out = plan;
    return STATUS_OK;
}

// Instruction lists of the best draft, the bound, and the check of all rules of plans.
static Status finish(Plan* out, Planning* planning, Arena* arena) {
    const PlanProblem* problem = &planning->problem;
    const Draft* draft = planning->best_draft;
    LowerBound bound;
    Plan plan;
    TRY(set_placement(planning, &planning->begin));
    lower_bound_make(&bound, problem);
    TRY(set_placement(planning, &draft->placement));
    for (int32_t r = 0, first_mb = 0; r < problem->R; r++) {
        ReplicaPlan* replica = &planning->best[r];
        memset(replica->ranks, 0, sizeof replica->ranks);
        if (!planning->request.one_replica || r == planning->request.my_replica) {
            TRY(replica_plan_emit(replica, first_mb, arena));
        }
        first_mb += draft->replica[r].M;
    }
    TRY(assemble(&plan, problem, &draft->list, planning->best, arena));
    set_bound(&plan, bound.bound_ns);
    TRY(plan_check(&plan, problem->samples, problem->num_samples));
    TRY(plan_check_shapes(&plan, &planning->request.rules));
    *out = plan;
    return STATUS_OK;
}

Status plan_make(Plan* out, const PlanRequest* request, const CostModel* costs, const PlanSample* samples,
                 int32_t num_samples, Arena* arena) {
    Planning planning = {.request = *request, .best_ns = INT64_MAX};
    if (request->rules.padded) { planning.request.layout = LAYOUT_PADDED; }
    Status status = make_problem(&planning, costs, samples, num_samples);
    if (status == STATUS_OK) {
        planning.replicas = ARENA_NEW(&planning.lists, ReplicaPlan, request->R);
        planning.best = ARENA_NEW(&planning.lists, ReplicaPlan, request->R);
        bool has_memory = planning.replicas != NULL && planning.best != NULL;
        status = !has_memory ? FAIL(STATUS_NO_MEMORY, "planner: no host memory left")
                 : request->batching == BATCHING_DYNAMIC ? plan_by_search(&planning)
                                                         : plan_by_rival(&planning);
    }
    if (status == STATUS_OK) { status = finish(out, &planning, arena); }
    arena_free(&planning.lists);
    arena_free(&planning.runs);
    return status;
}

int32_t plan_effort(const PlanRequest* request, int64_t planning_ns) {
    return request->batching == BATCHING_DYNAMIC ? search_effort(request->P, planning_ns) : 0;
}

enum { USUAL_PIECES = 8 };

Status plan_slices_parse(int32_t* max_pieces, const char* text) {
    char* end = NULL;
    long num = strcmp(text, "auto") == 0  ? USUAL_PIECES
               : strcmp(text, "off") == 0 ? 1
                                          : strtol(text, &end, 10);
    if ((end != NULL && (end == text || *end != '\0')) || num < 1 || num > PLAN_MAX_PIECES) {
        return FAIL(STATUS_BAD_OPTION,
                    "--slices %.40s ---> auto, off, or 1 to %d, the most pieces of a sample", text,
                    PLAN_MAX_PIECES);
    }
    *max_pieces = (int32_t)num;
    return STATUS_OK;
}
