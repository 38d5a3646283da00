// planner.c -- see planner.h.
#include "planner.h"

#include <stdio.h>
#include <string.h>

#include "batching.h"
#include "bound.h"
#include "placement.h"
#include "search.h"

// One call of plan_make.
typedef struct {
    PlanRequest request;  // with the placement at hand
    Placement begin;      // where its search begins
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

// What plan_problem_init does not check.
static Status check_request(const PlanRequest* request, const CostModel* costs) {
    if (request->memory_limit_bytes < 0) {
        return FAIL(STATUS_BAD_OPTION, "--memory-limit %lld ---> 0 (none) or a number of bytes",
                    (long long)request->memory_limit_bytes);
    }
    if (request->one_replica && (request->my_replica < 0 || request->my_replica >= request->R)) {
        return FAIL(STATUS_OUT_OF_RANGE, "plan_make: lists of replica %d of %d", request->my_replica,
                    request->R);
    }
    if (batching_is_original(request) && !placement_is_linear(&request->placement, request->P)) {
        return FAIL(STATUS_BAD_OPTION,
                    "--policy dynapipe: the paper's pipelines have one chunk a stage and a whole head ---> "
                    "--placement linear --head whole, or --policy auto");
    }
    return placement_check(&request->placement, request->P, costs->num_enc_layers + costs->num_dec_layers,
                           request->rules.head_has_layer);
}

// Where the search begins: the given placement, or the plain one of the requested shape. A given head stays.
static Status place(PlanRequest* request, const CostModel* costs, const PlanSample* samples,
                    int32_t num_samples) {
    static const HeadSplit splits[HEAD_CHOICE_COUNT] = {HEAD_WHOLE, HEAD_WHOLE, HEAD_WHOLE, HEAD_BY_ROWS,
                                                        HEAD_BY_VOCABULARY};
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

// The same shape with other layers; where shape and head are free, the one of all that leaves most room.
static void make_room(PlanRequest* request, const CostModel* costs, const int64_t* limit_bytes,
                      int32_t wanted) {
    const HeadSplit heads[] = {HEAD_WHOLE, request->rules.head_by_rows ? HEAD_BY_ROWS : HEAD_BY_VOCABULARY};
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

// The first sample that does not fit in any mode, alone; -1: all fit.
static int32_t find_misfit(const PlanProblem* problem, MbShape* shape) {
    for (int32_t i = 0; i < problem->num_samples; i++) {
        const PlanSample* sample = &problem->samples[i];
        bool fits = false;
        *shape = (MbShape){0};
        mb_shape_add(shape, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
        for (int32_t k = problem->num_modes - 1; k >= 0 && !fits; k--) {
            fits = microbatch_cost(problem, problem->modes[k], SHARE_ALONE, shape).fits_alone;
        }
        if (!fits) { return i; }
    }
    return -1;
}

static bool samples_fit(const PlanProblem* problem) {
    MbShape shape;
    return find_misfit(problem, &shape) < 0;
}

// The problem with that placement; where its state or some sample beside it does not fit and the search may
// move layers, with one that leaves more room.
static Status init_problem(Planning* planning, const CostModel* costs, const PlanSample* samples,
                           int32_t num_samples) {
    PlanRequest* request = &planning->request;
    PlanProblem* problem = &planning->problem;
    Status status = plan_problem_init(problem, request, costs, samples, num_samples);
    bool is_short = status == STATUS_INFEASIBLE;
    if (status == STATUS_OK && problem->has_limit) {
        const PlacementRoom room = {costs, problem->limit_bytes, request->P, ROOM_WANTED,
                                    request->rules.head_has_layer};
        is_short = placement_lack(&room, &problem->placement) > 0 && !samples_fit(problem);
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

static Status make_problem(Planning* out, const PlanRequest* request, const CostModel* costs,
                           const PlanSample* samples, int32_t num_samples) {
    out->request = *request;
    TRY(check_choices(request));
    if (request->rules.padded) { out->request.layout = LAYOUT_PADDED; }
    TRY(place(&out->request, costs, samples, num_samples));
    TRY(init_problem(out, costs, samples, num_samples));
    out->begin = out->request.placement;
    TRY(check_request(&out->request, costs));
    ARENA_TRY_NEW(out->replicas, &out->lists, ReplicaPlan, request->R);
    ARENA_TRY_NEW(out->best, &out->lists, ReplicaPlan, request->R);
    return STATUS_OK;
}

// The problem with this placement.
static Status set_placement(Planning* planning, const Placement* placement) {
    const PlanProblem* problem = &planning->problem;
    planning->request.placement = *placement;
    return plan_problem_init(&planning->problem, &planning->request, problem->costs, problem->samples,
                             problem->num_samples);
}

// --- fit into memory --------------------------------------------------------------------------------------

// The draft with schedules whose lists fit; kept if it is the fastest so far. over_bytes: what stages lacked
// at first.
static Status fit(int64_t over_bytes[PLAN_MAX_STAGES], Planning* planning, const Draft* draft) {
    int64_t makespan_ns = 0;
    memset(over_bytes, 0, sizeof *over_bytes * PLAN_MAX_STAGES);
    TRY(set_placement(planning, &draft->placement));
    for (int32_t r = 0; r < planning->problem.R; r++) {
        ReplicaPlan* replica = &planning->replicas[r];
        TRY(replica_plan_fit(replica, over_bytes, &planning->problem, draft, r, planning->headroom_bytes,
                             &planning->lists, &planning->runs));
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

// A sample that never fits, or the error of `status`.
static Status why_nothing_fits(const Planning* planning, Status status) {
    MbShape shape;
    char what[32];
    int32_t i = find_misfit(&planning->problem, &shape);
    snprintf(what, sizeof what, "sample %d", i);
    return i < 0 ? status : microbatch_infeasible(&planning->problem, &shape, what);
}

enum { MAX_SEARCHES = 4 };
enum { FIT_COST = 100 };  // a fit that costs more than this part of the makespan justifies another search

// Our method. Where the lists of the draft need more memory than the search assumed, they are made to fit;
// where that costs time the search is repeated with so much less memory.
static Status plan_by_search(Planning* planning) {
    const PlanProblem* problem = &planning->problem;
    for (int32_t i = 0; i < problem->num_samples; i++) {
        const PlanSample* sample = &problem->samples[i];
        MbShape shape = {0};
        char what[32];
        mb_shape_add(&shape, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
        if (shape_rules_allow(&planning->request.rules, &shape)) { continue; }
        snprintf(what, sizeof what, "sample %d", i);
        return microbatch_infeasible(problem, &shape, what);
    }
    for (int32_t i = 0; i < MAX_SEARCHES; i++) {
        int64_t over_bytes[PLAN_MAX_STAGES];
        Draft* draft;
        ARENA_TRY_NEW(draft, &planning->lists, Draft, 1);
        TRY(set_placement(planning, &planning->begin));
        memcpy(planning->problem.headroom_bytes, planning->headroom_bytes, sizeof planning->headroom_bytes);
        TRY(search_draft(draft, &planning->problem, planning->request.effort, &planning->lists));
        if (draft->makespan_ns == INT64_MAX && planning->best_draft != NULL) {  // too little is left
            for (int32_t s = 0; s < planning->problem.P; s++) { planning->headroom_bytes[s] /= 2; }
            continue;
        }
        Status status = fit(over_bytes, planning, draft);
        if (status != STATUS_OK && status != STATUS_INFEASIBLE) { return status; }
        if (status != STATUS_OK && planning->best_draft == NULL) {
            return why_nothing_fits(planning, status);
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
            status = fit(over_bytes, planning, &drafts[k]);
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
                           .sequence_begin = plan->num_sequences,
                           .shape = from->shape};
    for (int32_t k = 0; k < plan->placement.num_chunks; k++) {
        to->recompute[k] = problem->modes[(int64_t)k * problem->pipe.M + m];
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
        if (plan.one_replica && replica->timeline.last_end_ns > plan.last_end_ns) {
            plan.last_end_ns = replica->timeline.last_end_ns;
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
            TRY(replica_plan_emit(replica, problem, first_mb, r * problem->P, arena));
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
    Planning planning = {.best_ns = INT64_MAX};
    Status status = make_problem(&planning, request, costs, samples, num_samples);
    if (status == STATUS_OK) {
        status = request->batching == BATCHING_DYNAMIC ? plan_by_search(&planning) : plan_by_rival(&planning);
    }
    if (status == STATUS_OK) { status = finish(out, &planning, arena); }
    arena_free(&planning.lists);
    arena_free(&planning.runs);
    return status;
}

int32_t plan_effort(const PlanRequest* request, int64_t planning_ns) {
    return request->batching == BATCHING_DYNAMIC ? search_effort(request->P, planning_ns) : 0;
}
