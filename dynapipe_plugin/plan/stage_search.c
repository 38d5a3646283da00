#include "stage_search.h"

#include <string.h>

#include "pipe/pipe_schedule.h"
#include "planner.h"
#include "problem/stage_split.h"

// A plan's time at STAGE_SEARCH_NS is about that, and what grows with samples: sorting, lists, checks.
#define STAGE_SEARCH_NS INT64_C(4000000)
#define STAGE_SAMPLE_NS INT64_C(50000)
#define STAGE_TOTAL_NS INT64_C(1500000000)

enum { MAX_SPLITS = 256 };

typedef struct {
    LayerRange stages[PLAN_MAX_STAGES];
} Split;

typedef struct {
    PlanRequest request;
    const CostModel* costs;
    const StageBatch* batches;
    int32_t num_batches, num_layers;
    int64_t planning_ns;
    int32_t plans_left;
    Split* tried;  // [MAX_SPLITS]
    int32_t num_tried;
    LayerRange best[PLAN_MAX_STAGES];
    int64_t best_ns;  // of all batches together; INT64_MAX: nothing fits
    Arena plan;       // one at a time
} StageSearch;

static bool is_known(const StageSearch* search, const LayerRange* stages) {
    size_t num_bytes = (size_t)search->request.P * sizeof *stages;
    for (int32_t i = 0; i < search->num_tried; i++) {
        if (memcmp(search->tried[i].stages, stages, num_bytes) == 0) { return true; }
    }
    return false;
}

// Sum over the batches, or INT64_MAX as soon as it is as large as `cutoff_ns`, or where one does not fit.
static Status price(int64_t* total_ns, StageSearch* search, const LayerRange* stages, int64_t cutoff_ns) {
    PlanRequest request = search->request;
    request.choose_stages = false;
    placement_linear(&request.placement, stages, request.P);
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

static Status try_split(StageSearch* search, const LayerRange* stages) {
    int64_t total_ns;
    if (!has_room(search) || is_known(search, stages)) { return STATUS_OK; }
    memcpy(search->tried[search->num_tried++].stages, stages, sizeof search->best);
    TRY(price(&total_ns, search, stages, search->best_ns));
    if (total_ns < search->best_ns) {
        search->best_ns = total_ns;
        memcpy(search->best, stages, sizeof search->best);
    }
    return STATUS_OK;
}

// What the planner takes for one batch, where it may move layers.
static Status try_batch_split(StageSearch* search, const StageBatch* batch) {
    Plan plan;
    arena_reset(&search->plan);
    search->plans_left--;
    Status status =
        plan_make(&plan, &search->request, search->costs, batch->samples, batch->num_samples, &search->plan);
    if (status == STATUS_INFEASIBLE) { return STATUS_OK; }
    TRY(status);
    LayerRange stages[PLAN_MAX_STAGES] = {{0}};
    memcpy(stages, plan.placement.chunks, (size_t)search->request.P * sizeof *stages);
    return try_split(search, stages);
}

// One layer from stage `from` to stage `to`; those between keep their number of layers. False: none to give.
static bool move_layer(LayerRange* stages, const PlanRequest* request, int32_t from, int32_t to) {
    int32_t first = from < to ? from : to, last = from < to ? to : from, step = from < to ? -1 : 1;
    for (int32_t s = first; s < last; s++) {
        stages[s].layer_end += step;
        stages[s + 1].layer_begin += step;
    }
    return stage_may_have(&stages[from], from, request->P, request->rules.head_has_layer);
}

static Status try_neighbours(StageSearch* search) {
    int32_t P = search->request.P;
    LayerRange centre[PLAN_MAX_STAGES];
    memcpy(centre, search->best, sizeof centre);
    for (int32_t distance = 1; distance < P; distance++) {
        for (int32_t from = 0; from < P; from++) {
            for (int32_t side = -1; side <= 1; side += 2) {
                int32_t to = from + side * distance;
                LayerRange stages[PLAN_MAX_STAGES];
                memcpy(stages, centre, sizeof stages);
                if (to < 0 || to >= P || !move_layer(stages, &search->request, from, to)) { continue; }
                TRY(try_split(search, stages));
            }
        }
    }
    return STATUS_OK;
}

static Status search_splits(StageSearch* search, const LayerRange* balanced) {
    for (int32_t b = 0; b < search->num_batches && has_room(search); b++) {
        TRY(try_batch_split(search, &search->batches[b]));
    }
    int64_t before_ns = INT64_MAX;
    if (search->best_ns == INT64_MAX) { memcpy(search->best, balanced, sizeof search->best); }
    while (has_room(search) && search->best_ns < before_ns) {
        before_ns = search->best_ns;
        TRY(try_neighbours(search));
    }
    return STATUS_OK;
}

static Status balance(LayerRange* out, const StageSearch* search, Arena* arena) {
    int64_t num_samples = 0;
    PlanSample* samples;
    for (int32_t b = 0; b < search->num_batches; b++) { num_samples += search->batches[b].num_samples; }
    if (num_samples > INT32_MAX) { return FAIL(STATUS_OUT_OF_RANGE, "stage_search: too many samples"); }
    PIPE_NEW(samples, arena, PlanSample, num_samples + 1);
    num_samples = 0;
    for (int32_t b = 0; b < search->num_batches; b++) {
        const StageBatch* batch = &search->batches[b];
        for (int32_t i = 0; i < batch->num_samples; i++) { samples[num_samples++] = batch->samples[i]; }
    }
    PlanRequest request = search->request;
    request.choose_stages = false;
    return stage_split_make(out, &request, search->costs, samples, (int32_t)num_samples, search->num_batches);
}

// At least one split on all batches; as many plans as take the time.
static int32_t num_plans(const StageSearch* search) {
    int64_t num_samples = 0;
    for (int32_t b = 0; b < search->num_batches; b++) { num_samples += search->batches[b].num_samples; }
    int64_t plan_ns =
        STAGE_SEARCH_NS * search->request.R + STAGE_SAMPLE_NS * num_samples / search->num_batches;
    int64_t num = search->planning_ns / plan_ns;
    return (int32_t)(num > search->num_batches ? num : search->num_batches);
}

static Status choose(StageChoice* out, StageSearch* search, const PlanRequest* request, Arena* arena) {
    StageChoice choice = {.num_splits = 0};
    PIPE_NEW(search->tried, arena, Split, MAX_SPLITS);
    search->best_ns = INT64_MAX;
    choice.placement = request->placement;
    if (request->choose_stages) {
        LayerRange balanced[PLAN_MAX_STAGES] = {{0}};
        TRY(balance(balanced, search, arena));
        placement_linear(&choice.placement, balanced, request->P);
    }
    if (search->num_batches == 0) {
        *out = choice;
        return STATUS_OK;
    }
    search->plans_left = num_plans(search);
    TRY(try_split(search, choice.placement.chunks));
    int64_t balanced_ns = search->best_ns;
    if (request->choose_stages && request->P > 1) { TRY(search_splits(search, choice.placement.chunks)); }
    if (search->best_ns < INT64_MAX) {
        placement_linear(&choice.placement, search->best, request->P);
        choice.makespan_ns = search->best_ns / search->num_batches;
        choice.balanced_ns = balanced_ns < INT64_MAX ? balanced_ns / search->num_batches : 0;
    }
    choice.num_splits = search->num_tried;
    *out = choice;
    return STATUS_OK;
}

static Status search_again(StageChoice* out, int64_t* present_ns, StageSearch* search, Arena* arena) {
    enum { LEAST_SPLITS = 3 };  // the present one, the balanced one, one that the planner chooses
    const PlanRequest* request = &search->request;
    StageChoice choice = {.num_splits = 0};
    PIPE_NEW(search->tried, arena, Split, MAX_SPLITS);
    search->best_ns = INT64_MAX;
    search->plans_left = num_plans(search);
    int32_t least_plans = LEAST_SPLITS * search->num_batches + 1;
    if (search->plans_left < least_plans) { search->plans_left = least_plans; }
    TRY(try_split(search, request->placement.chunks));
    *present_ns = search->best_ns < INT64_MAX ? search->best_ns / search->num_batches : 0;
    LayerRange balanced[PLAN_MAX_STAGES] = {{0}};
    TRY(balance(balanced, search, arena));
    placement_linear(&choice.placement, balanced, request->P);
    TRY(try_split(search, choice.placement.chunks));
    if (request->P > 1) { TRY(search_splits(search, choice.placement.chunks)); }
    if (search->best_ns < INT64_MAX) {
        placement_linear(&choice.placement, search->best, request->P);
    } else {
        choice.placement = request->placement;
    }
    if (search->best_ns < INT64_MAX) { choice.makespan_ns = search->best_ns / search->num_batches; }
    choice.num_splits = search->num_tried;
    *out = choice;
    return STATUS_OK;
}

Status stage_search_again(StageChoice* out, int64_t* present_ns, const PlanRequest* request,
                          const CostModel* costs, const StageBatch* batches, int32_t num_batches,
                          int64_t planning_ns) {
    StageSearch search = {.request = *request,
                          .costs = costs,
                          .batches = batches,
                          .num_batches = num_batches,
                          .planning_ns = planning_ns};
    Arena arena = {0};
    *present_ns = 0;
    if (num_batches == 0) {
        *out = (StageChoice){.num_splits = 0};
        out->placement = request->placement;
        return STATUS_OK;
    }
    search.request.memory_slack_permille = 0;  // as in stage_search()
    search.request.effort = plan_effort(request, STAGE_SEARCH_NS * request->R);
    Status status = search_again(out, present_ns, &search, &arena);
    arena_free(&search.plan);
    arena_free(&arena);
    return status;
}

Status stage_search(StageChoice* out, const PlanRequest* request, const CostModel* costs,
                    const StageBatch* batches, int32_t num_batches) {
    StageSearch search = {.request = *request,
                          .costs = costs,
                          .batches = batches,
                          .num_batches = num_batches,
                          .planning_ns = STAGE_TOTAL_NS};
    Arena arena = {0};
    search.request.memory_slack_permille = 0;  // splits are told apart by less
    search.request.effort = plan_effort(request, STAGE_SEARCH_NS * request->R);
    Status status = choose(out, &search, request, &arena);
    arena_free(&search.plan);
    arena_free(&arena);
    return status;
}
