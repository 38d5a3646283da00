#include "search_places.h"

#include <string.h>

#include "../cost_model.h"
#include "../placement.h"
#include "../types.h"

// --- work of stages --------------------------------------------------------------------------------------

typedef struct {
    const PlanProblem* problem;
    CostParts parts;  // of the whole batch as one micro-batch
    double layer_ns[2], embedding_ns, head_ns;
} Work;

static double jobs_ns(const CostParts* parts, CostPart part) {
    const double* ns = parts->part[part];
    return ns[JOB_F] + ns[JOB_B] + ns[JOB_W];
}

static Work work_make(const PlanProblem* problem) {
    Work work = {.problem = problem};
    MbShape all = {0};
    for (int32_t i = 0; i < problem->num_samples; i++) {
        const PlanSample* sample = &problem->samples[i];
        mb_shape_add(&all, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
    }
    cost_parts(&work.parts, &problem->table, problem->modes[0], &all);
    work.layer_ns[0] = jobs_ns(&work.parts, PART_ENC_LAYER);
    work.layer_ns[1] = jobs_ns(&work.parts, PART_DEC_LAYER);
    work.embedding_ns = jobs_ns(&work.parts, PART_EMBEDDING);
    work.head_ns = jobs_ns(&work.parts, PART_HEAD);
    return work;
}

static double chunk_ns(const Work* work, const Placement* placement, int32_t k) {
    int32_t begin = placement->chunks[k].layer_begin, end = placement->chunks[k].layer_end;
    int32_t num_enc = work->problem->costs->num_enc_layers;
    int32_t enc_end = end < num_enc ? end : num_enc, enc = enc_end > begin ? enc_end - begin : 0;
    double ns = enc * work->layer_ns[0] + (end - begin - enc) * work->layer_ns[1];
    if (k == 0) { ns += work->embedding_ns; }
    if (k == placement->num_chunks - 1 && placement->head == HEAD_WHOLE) { ns += work->head_ns; }
    return ns;
}

// [P]; the work of the most loaded stage, ranks' speeds considered.
static double load_stages(double load_ns[PLAN_MAX_STAGES], const Work* work, const Placement* placement) {
    int32_t P = work->problem->P;
    double most_ns = 0;
    memset(load_ns, 0, sizeof *load_ns * (size_t)P);
    for (int32_t k = 0; k < placement->num_chunks; k++) {
        load_ns[placement->stage_of[k]] += chunk_ns(work, placement, k);
    }
    for (int32_t s = 0; s < P; s++) {
        double share =
            placement->head == HEAD_WHOLE ? 0 : placement->head_begin[s + 1] - placement->head_begin[s];
        load_ns[s] = (load_ns[s] + share / HEAD_UNITS * work->head_ns) * work->problem->stage_slow[s];
        if (load_ns[s] > most_ns) { most_ns = load_ns[s]; }
    }
    return most_ns;
}

// The move of one layer off the most loaded stage that helps most; false: none does. Of all loads, the sum of
// squares decides, so that two stages with the same load can be relieved one after the other.
static bool relieve(Placement* placement, const Work* work) {
    double load_ns[PLAN_MAX_STAGES], best = 0;
    int32_t K = placement->num_chunks, P = work->problem->P, best_from = -1, best_to = -1;
    const bool has_layer = work->problem->request->rules.head_has_layer || placement->head != HEAD_WHOLE;
    double most_ns = load_stages(load_ns, work, placement);
    for (int32_t s = 0; s < P; s++) { best += load_ns[s] * load_ns[s]; }
    best *= 1 - 1e-9;
    for (int32_t from = 0; from < K; from++) {
        if (load_ns[placement->stage_of[from]] < most_ns) { continue; }
        for (int32_t to = 0; to < K; to++) {
            if (placement->stage_of[to] == placement->stage_of[from]) { continue; }
            double after_ns[PLAN_MAX_STAGES], sum = 0;
            placement_shift_layer(placement, from, to);
            bool may_have = stage_may_have(&placement->chunks[from], from, K, has_layer);
            if (may_have) { load_stages(after_ns, work, placement); }
            placement_shift_layer(placement, to, from);
            for (int32_t s = 0; s < P && may_have; s++) { sum += after_ns[s] * after_ns[s]; }
            if (!may_have || sum >= best) { continue; }
            best = sum;
            best_from = from;
            best_to = to;
        }
    }
    if (best_from < 0) { return false; }
    placement_shift_layer(placement, best_from, best_to);
    return true;
}

// --- candidates ------------------------------------------------------------------------------------------

typedef struct {
    const PlanProblem* problem;
    Work work;
    Placement* out;
    int32_t num;
} Places;

// The place behind the last one: as it is, where its state fits; where it leaves little room, with more, too.
static void add_roomy(Places* places) {
    const PlanProblem* problem = places->problem;
    Placement* place = &places->out[places->num];
    const PlacementRoom room = {.costs = problem->costs,
                                .limit_bytes = problem->limit_bytes,
                                .P = problem->P,
                                .wanted = ROOM_WANTED,
                                .head_has_layer = problem->request->rules.head_has_layer};
    places->num += placement_has_room(&room, place);
    if (!problem->request->choose_stages || places->num == SEARCH_MAX_PLACES) { return; }
    if (placement_has_enough(&room, place)) { return; }
    Placement roomy = *place;
    placement_make_room(&roomy, &room, problem->request->heads != HEAD_CHOICE_GIVEN);
    if (!placement_has_room(&room, &roomy) || placement_equal(&roomy, place, problem->P)) { return; }
    places->out[places->num++] = roomy;
}

// With the heads that the request allows.
static void add(Places* places, const Placement* placement) {
    const PlanRequest* request = places->problem->request;
    for (int head = HEAD_WHOLE; head <= HEAD_BY_VOCABULARY; head++) {
        bool is_asked = request->heads == HEAD_CHOICE_GIVEN ? head == places->problem->placement.head
                        : request->heads == HEAD_CHOICE_AUTO
                            ? true
                            : head == (int)request->heads - HEAD_CHOICE_WHOLE;
        if (!is_asked || places->num == SEARCH_MAX_PLACES) { continue; }
        Placement* place = &places->out[places->num];
        *place = *placement;
        if (request->heads == HEAD_CHOICE_GIVEN) {
            placement_copy_head(place, &places->problem->placement);
        } else {
            placement_share_head(place, (HeadSplit)head, places->problem->P);
        }
        int32_t rounds = request->choose_stages ? 2 * places->problem->P : 0;
        while (rounds-- > 0 && relieve(place, &places->work)) {}
        add_roomy(places);
    }
}

static bool allows(const PlanRequest* request, PlacementChoice kind) {
    return request->placements == PLACEMENT_AUTO || request->placements == kind;
}

// As the planner has made it of the request (plan_drafts.c), unless another shape is asked for.
static bool begins_with_own(const PlanProblem* problem) {
    PlacementChoice kind = problem->request->placements;
    return problem->P == 1 || kind == PLACEMENT_GIVEN || kind == PLACEMENT_AUTO || kind == PLACEMENT_LINEAR;
}

int32_t search_places(Placement out[SEARCH_MAX_PLACES], const PlanProblem* problem) {
    static const int32_t passes[] = {1, 2, 3, 4};
    const PlanRequest* request = problem->request;
    bool has_stacks = problem->costs->num_dec_layers > 0;
    Places places = {.problem = problem, .work = work_make(problem), .out = out};
    if (begins_with_own(problem)) { out[places.num++] = problem->placement; }
    if (problem->P == 1) { return places.num; }
    if (request->placements == PLACEMENT_GIVEN) {
        if (request->heads != HEAD_CHOICE_GIVEN) { add(&places, &problem->placement); }
        return places.num;
    }
    for (size_t i = 0; i < sizeof passes / sizeof *passes; i++) {
        for (int turns = 0; turns <= (passes[i] > 1); turns++) {
            bool is_stacks = has_stacks && passes[i] % 2 == 0 && allows(request, PLACEMENT_STACKS);
            PlacementChoice kind = passes[i] == 1 ? PLACEMENT_LINEAR
                                   : turns        ? PLACEMENT_VEE
                                                  : PLACEMENT_INTERLEAVED;
            Placement place;
            if (!allows(request, kind) && !is_stacks) { continue; }
            if (placement_deal(&place, passes[i], turns, has_stacks && passes[i] % 2 == 0, problem->P,
                               problem->costs->num_enc_layers, problem->costs->num_dec_layers)) {
                add(&places, &place);
            }
        }
    }
    if (places.num == 0) { out[places.num++] = problem->placement; }
    return places.num;
}
