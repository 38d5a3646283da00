#include "stage_search.h"

#include <inttypes.h>

#include "schedule.h"
#include "planner.h"
#include "placement.h"

// Fixed cost of a plan at STAGE_SEARCH_NS, and what grows with samples: sorting, lists, checks.
#define STAGE_SEARCH_NS INT64_C(4000000)
#define STAGE_SAMPLE_NS INT64_C(50000)

// A batch's own plan chooses among many placements: it may take this many times as long as one that is
// priced.
enum { MAX_SPLITS = 256, OWN_PLAN_EFFORT = 4 };

typedef struct {
    PlanRequest request;
    const CostModel* costs;
    const StageBatch* batches;
    int32_t num_batches;
    int64_t planning_ns;
    int32_t plans_left;
    Placement* tried;  // [MAX_SPLITS]
    int32_t num_tried;
    Placement best;
    int64_t best_ns;  // of all batches together; INT64_MAX: nothing fits
    Arena plan;       // one at a time
} StageSearch;

// Are chunks or the head's shares to be chosen?
static bool asks_kind(const PlanRequest* request) {
    return request->placements != PLACEMENT_GIVEN || request->heads != HEAD_CHOICE_GIVEN;
}

static bool has_choice(const PlanRequest* request) {
    return request->choose_stages || asks_kind(request);
}

static bool is_known(const StageSearch* search, const Placement* placement) {
    for (int32_t i = 0; i < search->num_tried; i++) {
        if (placement_equal(&search->tried[i], placement, search->request.P)) { return true; }
    }
    return false;
}

// Sum over the batches, or INT64_MAX as soon as it is as large as `cutoff_ns`, or where one does not fit.
static Status price(int64_t* total_ns, StageSearch* search, const Placement* placement, int64_t cutoff_ns) {
    PlanRequest request = search->request;
    request.choose_stages = false;
    request.placements = PLACEMENT_GIVEN;
    request.heads = HEAD_CHOICE_GIVEN;
    request.placement = *placement;
    int64_t sum_ns = 0;
    *total_ns = INT64_MAX;
    for (int32_t b = 0; b < search->num_batches; b++) {
        const StageBatch* batch = &search->batches[b];
        Plan plan;
        arena_reset(&search->plan);
        search->plans_left--;
        Status status =
            plan_make(&plan, &request, search->costs, batch->samples, batch->num_samples, &search->plan);
        if (status == STATUS_INFEASIBLE) { return STATUS_OK; }
        TRY(status);
        sum_ns += plan.makespan_ns;
        if (sum_ns >= cutoff_ns) { return STATUS_OK; }
    }
    *total_ns = sum_ns;
    return STATUS_OK;
}

static bool has_room(const StageSearch* search) {
    return search->plans_left >= search->num_batches && search->num_tried < MAX_SPLITS;
}

static Status try_split(StageSearch* search, const Placement* placement) {
    int64_t total_ns;
    if (!has_room(search) || is_known(search, placement)) { return STATUS_OK; }
    search->tried[search->num_tried++] = *placement;
    TRY(price(&total_ns, search, placement, search->best_ns));
    if (total_ns < search->best_ns) {
        search->best_ns = total_ns;
        search->best = *placement;
    }
    return STATUS_OK;
}

// The planner's choice for one batch among these placements.
static Status try_batch_split(StageSearch* search, const StageBatch* batch, PlacementChoice placements) {
    Plan plan;
    PlanRequest request = search->request;
    request.placements = placements;
    int32_t times = asks_kind(&request) ? OWN_PLAN_EFFORT : 1;
    arena_reset(&search->plan);
    search->plans_left -= times;
    request.effort *= times;
    Status status =
        plan_make(&plan, &request, search->costs, batch->samples, batch->num_samples, &search->plan);
    if (status == STATUS_INFEASIBLE || status == STATUS_BAD_OPTION) { return STATUS_OK; }  // too few layers
    TRY(status);
    Placement placement = plan.placement;
    return try_split(search, &placement);
}

// One layer or block from chunk `from` to chunk `to`. False: none to give.
static bool move_layer(Placement* placement, const StageSearch* search, int32_t from, int32_t to) {
    placement_shift(placement, &search->costs->chain, from, to);
    bool has_layer = search->request.rules.head_has_layer || placement->head != HEAD_WHOLE;
    return stage_may_have(&placement->chunks[from], from, placement->num_chunks, has_layer);
}

static Status try_neighbours(StageSearch* search) {
    const Placement centre = search->best;
    int32_t K = centre.num_chunks;
    for (int32_t distance = 1; distance < K; distance++) {
        for (int32_t from = 0; from < K && has_room(search); from++) {
            for (int32_t side = -1; side <= 1; side += 2) {
                int32_t to = from + side * distance;
                Placement moved = centre;
                if (to < 0 || to >= K || !move_layer(&moved, search, from, to)) { continue; }
                TRY(try_split(search, &moved));
            }
        }
    }
    return STATUS_OK;
}

// Where memory is short a plan's own choice among all placements may be far off (the search has little time
// for each), so each kind is also requested alone.
static Status try_kinds(StageSearch* search) {
    if (search->request.placements != PLACEMENT_AUTO) { return STATUS_OK; }
    for (int kind = PLACEMENT_LINEAR; kind < PLACEMENT_COUNT && has_room(search); kind++) {
        bool has_stacks = search->costs->chain.num_dec_layers > 0;
        if (kind == PLACEMENT_STACKS && !has_stacks) { continue; }
        TRY(try_batch_split(search, &search->batches[0], (PlacementChoice)kind));
    }
    return STATUS_OK;
}

static Status search_splits(StageSearch* search, const Placement* begin) {
    for (int32_t b = 0; b < search->num_batches && has_room(search); b++) {
        TRY(try_batch_split(search, &search->batches[b], search->request.placements));
    }
    TRY(try_kinds(search));
    int64_t before_ns = INT64_MAX;
    if (search->best_ns == INT64_MAX) { search->best = *begin; }
    while (search->request.choose_stages && has_room(search) && search->best_ns < before_ns) {
        before_ns = search->best_ns;
        TRY(try_neighbours(search));
    }
    return STATUS_OK;
}

// The plainest placement that the request allows, layers balanced where they may move.
static Status begin_with(Placement* out, const StageSearch* search, Arena* arena) {
    int64_t num_samples = 0;
    int32_t num_places;
    PlanSample* samples;
    Placement* field;
    for (int32_t b = 0; b < search->num_batches; b++) { num_samples += search->batches[b].num_samples; }
    if (num_samples > INT32_MAX) { return FAIL(STATUS_OUT_OF_RANGE, "stage_search: too many samples"); }
    ARENA_TRY_NEW(samples, arena, PlanSample, num_samples + 1);
    ARENA_TRY_NEW(field, arena, Placement, PLACEMENT_FIELD);
    num_samples = 0;
    for (int32_t b = 0; b < search->num_batches; b++) {
        const StageBatch* batch = &search->batches[b];
        for (int32_t i = 0; i < batch->num_samples; i++) { samples[num_samples++] = batch->samples[i]; }
    }
    TRY(placement_field(field, &num_places, &search->request, search->costs, samples, (int32_t)num_samples,
                        ROOM_WANTED));
    *out = field[0];
    return STATUS_OK;
}

// Of one batch; 0: nothing fits.
static int64_t mean_ns(const StageSearch* search, int64_t all_ns) {
    return all_ns < INT64_MAX && search->num_batches > 0 ? all_ns / search->num_batches : 0;
}

// At least one split on all batches; as many plans as fit the time.
static int32_t num_plans(const StageSearch* search) {
    int64_t num_samples = 0;
    for (int32_t b = 0; b < search->num_batches; b++) { num_samples += search->batches[b].num_samples; }
    int64_t plan_ns =
        STAGE_SEARCH_NS * search->request.R + STAGE_SAMPLE_NS * num_samples / search->num_batches;
    int64_t num = search->planning_ns / plan_ns;
    return (int32_t)(num > search->num_batches ? num : search->num_batches);
}

// present_ns: the time with the present placement; NULL: there is none.
static Status choose(StageChoice* out, int64_t* present_ns, StageSearch* search, Arena* arena) {
    enum { LEAST_SPLITS = 3 };  // the present one, the balanced one, one that the planner chooses
    const PlanRequest* request = &search->request;
    bool is_open = present_ns != NULL || has_choice(request);
    Placement begin = request->placement;
    ARENA_TRY_NEW(search->tried, arena, Placement, MAX_SPLITS);
    search->best_ns = INT64_MAX;
    if (begin.num_chunks == 0) { placement_linear(&begin, begin.chunks, request->P); }
    *out = (StageChoice){.placement = begin};
    if (search->num_batches > 0) { search->plans_left = num_plans(search); }
    if (present_ns != NULL) {
        int32_t least_plans = LEAST_SPLITS * search->num_batches + 1;
        if (search->plans_left < least_plans) { search->plans_left = least_plans; }
        TRY(try_split(search, &begin));
        *present_ns = mean_ns(search, search->best_ns);
    }
    if (is_open) { TRY(begin_with(&begin, search, arena)); }
    if (present_ns == NULL) { out->placement = begin; }
    if (search->num_batches == 0) { return STATUS_OK; }
    TRY(try_split(search, &begin));
    out->balanced_ns = present_ns == NULL ? mean_ns(search, search->best_ns) : 0;
    if (is_open && request->P > 1) { TRY(search_splits(search, &begin)); }
    if (search->best_ns < INT64_MAX) { out->placement = search->best; }
    out->makespan_ns = mean_ns(search, search->best_ns);
    out->num_splits = search->num_tried;
    return STATUS_OK;
}

static Status run(StageChoice* out, int64_t* present_ns, const PlanRequest* request, const CostModel* costs,
                  const StageBatch* batches, int32_t num_batches, int64_t planning_ns) {
    StageSearch search = {.request = *request,
                          .costs = costs,
                          .batches = batches,
                          .num_batches = num_batches,
                          .planning_ns = planning_ns};
    Arena arena = {0};
    search.request.effort = plan_effort(request, STAGE_SEARCH_NS * request->R);
    Status status = choose(out, present_ns, &search, &arena);
    arena_free(&search.plan);
    arena_free(&arena);
    return status;
}

Status stage_search_again(StageChoice* out, int64_t* present_ns, const PlanRequest* request,
                          const CostModel* costs, const StageBatch* batches, int32_t num_batches,
                          int64_t planning_ns) {
    *present_ns = 0;
    *out = (StageChoice){.placement = request->placement};
    return num_batches == 0 ? STATUS_OK
                            : run(out, present_ns, request, costs, batches, num_batches, planning_ns);
}

Status stage_search(StageChoice* out, const PlanRequest* request, const CostModel* costs,
                    const StageBatch* batches, int32_t num_batches, int64_t planning_ns) {
    return run(out, NULL, request, costs, batches, num_batches, planning_ns);
}

// --- rivals ------------------------------------------------------------------------------------------------

// One stage a rank, the whole head on the last one, samples whole.
static PlanRequest rival_request(const PlanRequest* request, Batching batching) {
    PlanRequest rival = *request;
    rival.batching = batching;
    rival.layout =
        batching == BATCHING_DYNAPIPE || batching == BATCHING_PADDED ? LAYOUT_PADDED : LAYOUT_RAGGED;
    rival.max_pieces = 1;
    rival.mb_samples = 0;
    rival.choose_stages = true;
    rival.placements = PLACEMENT_LINEAR;
    rival.heads = HEAD_CHOICE_WHOLE;
    placement_linear(&rival.placement, rival.placement.chunks, rival.P);
    placement_share_head(&rival.placement, HEAD_WHOLE, rival.P);
    return rival;
}

static int64_t longest_tokens(const StageBatch* batch) {
    int64_t longest = 1;
    for (int32_t i = 0; i < batch->num_samples; i++) {
        int64_t tokens = batch->samples[i].enc_tokens + batch->samples[i].dec_tokens;
        longest = tokens > longest ? tokens : longest;
    }
    return longest;
}

Status stage_rival_plan(Plan* out, const PlanRequest* request, const CostModel* costs,
                        const StageBatch* batch, Batching batching, ScheduleChoice schedule, Arena* arena) {
    static const int32_t percents[] = {100, 200, 400};
    static const struct {
        ScheduleChoice schedule;
        SplitBackward split;
    } all[] = {{SCHEDULE_1F1B, SPLIT_BACKWARD_OFF},
               {SCHEDULE_AUTO, SPLIT_BACKWARD_AUTO},
               {SCHEDULE_ADAPTIVE, SPLIT_BACKWARD_AUTO},
               {SCHEDULE_ADAPTIVE, SPLIT_BACKWARD_ON}};
    PlanRequest rival = rival_request(request, batching);
    const int64_t longest = longest_tokens(batch);
    const int num_sizes = batching == BATCHING_DYNAPIPE || batching == BATCHING_KK
                              ? 1
                              : (int)(sizeof percents / sizeof *percents);
    Status status = STATUS_INFEASIBLE;
    for (int i = 0; i < 4 * num_sizes; i++) {
        Plan plan;
        rival.schedule = all[i % 4].schedule;
        rival.split_backward = all[i % 4].split;
        rival.mb_tokens = (int32_t)(longest * percents[i / 4] / 100);
        const bool is_1f1b = rival.schedule == SCHEDULE_1F1B;
        if (is_1f1b != (schedule == SCHEDULE_1F1B)) { continue; }
        if (rival.split_backward == SPLIT_BACKWARD_ON && request->split_backward == SPLIT_BACKWARD_OFF) {
            continue;
        }
        Status found = plan_make(&plan, &rival, costs, batch->samples, batch->num_samples, arena);
        if (found != STATUS_OK && found != STATUS_INFEASIBLE) { return found; }
        if (found != STATUS_OK || (status == STATUS_OK && plan.makespan_ns >= out->makespan_ns)) { continue; }
        *out = plan;
        status = STATUS_OK;
    }
    return status;
}

typedef struct {
    const char* name;
    Batching batching;
    ScheduleChoice schedule;
} Rival;
static const Rival rivals[] = {{"packs with 1F1B", BATCHING_PACKED_RAGGED, SCHEDULE_1F1B},
                               {"packs in our schedule", BATCHING_PACKED_RAGGED, SCHEDULE_AUTO},
                               {"DynaPipe (EuroSys '24)", BATCHING_DYNAPIPE, SCHEDULE_AUTO}};
enum { NUM_RIVALS = sizeof rivals / sizeof *rivals };

typedef struct {
    int64_t tokens;            // of a step
    double ratio[NUM_RIVALS];  // a rival's time over ours; 0: it lacks memory, or kernels for its layout
} Gain;

// Of all batches together, each cut to its first sample of so many.
static Status gain_of(Gain* out, const PlanRequest* request, const CostModel* costs,
                      const StageBatch* batches, int32_t num_batches, int32_t parts, Arena* arena) {
    int64_t own_ns = 0, rival_ns[NUM_RIVALS] = {0};
    *out = (Gain){0};
    for (int32_t b = 0; b < num_batches; b++) {
        StageBatch batch = batches[b];
        Plan plan;
        batch.num_samples = (batch.num_samples + parts - 1) / parts;
        for (int32_t i = 0; i < batch.num_samples; i++) {
            out->tokens += batch.samples[i].enc_tokens + batch.samples[i].dec_tokens;
        }
        arena_reset(arena);
        TRY(plan_make(&plan, request, costs, batch.samples, batch.num_samples, arena));
        own_ns += plan.makespan_ns;
        for (int i = 0; i < NUM_RIVALS; i++) {
            Status status = stage_rival_plan(&plan, request, costs, &batch, rivals[i].batching,
                                             rivals[i].schedule, arena);
            if (status == STATUS_NO_MEMORY) { return status; }
            rival_ns[i] += status == STATUS_OK ? plan.makespan_ns : COST_LIMIT;
        }
    }
    out->tokens /= num_batches;
    for (int i = 0; i < NUM_RIVALS; i++) {
        out->ratio[i] = rival_ns[i] < COST_LIMIT ? (double)rival_ns[i] / (double)own_ns : 0;
    }
    return STATUS_OK;
}

Status stage_print_gain(FILE* out, const PlanRequest* request, const CostModel* costs,
                        const StageBatch* batches, int32_t num_batches) {
    if (!plan_has_rivals() || request->P * request->R == 1 || num_batches == 0) { return STATUS_OK; }
    Status status = STATUS_OK;
    Arena arena = {0};
    for (int32_t parts = 1; parts <= 2 && status == STATUS_OK; parts++) {
        Gain gain;
        status = gain_of(&gain, request, costs, batches, num_batches, parts, &arena);
        if (status != STATUS_OK) { break; }
        fprintf(out, "gain at %" PRId64 " tokens a step:", gain.tokens);
        for (int i = 0; i < NUM_RIVALS; i++) {
            fprintf(out, "%s %s ", i > 0 ? "," : "", rivals[i].name);
            fprintf(out, gain.ratio[i] > 0 ? "%.2f x" : "cannot run", gain.ratio[i]);
        }
        fprintf(out, "\n");
    }
    arena_free(&arena);
    return status == STATUS_INFEASIBLE ? STATUS_OK : status;  // half a batch may lack samples for a rank
}
