// plan_search.c -- see plan_search.h.
#include "plan_search.h"

#include <string.h>

#include "schedule.h"
#include "placement.h"
#include "search/search.h"
#include "search/search_places.h"

enum { MAX_SEARCHES = 6 };

// *hoped_ns: of the first draft, before it was known that memory is laid out with gaps.
static Status search_rounds(PlanDrafts* drafts, int64_t* hoped_ns) {
    for (int32_t round = 0; round < MAX_SEARCHES; round++) {
        int64_t over_bytes[PLAN_MAX_STAGES];
        bool fits;
        Draft* draft;
        ARENA_TRY_NEW(draft, &drafts->lists, Draft, 1);
        memcpy(drafts->problem.headroom_bytes, drafts->headroom_bytes, sizeof drafts->headroom_bytes);
        Status status = search_draft(draft, &drafts->problem, drafts->request.effort, 1,
                                     drafts->good_enough_ns, &drafts->lists);
        memset(drafts->problem.headroom_bytes, 0, sizeof drafts->headroom_bytes);
        TRY(status);
        if (round == 0) { *hoped_ns = draft->makespan_ns; }
        TRY(plan_drafts_fit_as_is(&fits, over_bytes, drafts, draft));
        if (fits) { return STATUS_OK; }
        for (int32_t s = 0; s < drafts->problem.P; s++) {
            drafts->headroom_bytes[s] += over_bytes[s] + over_bytes[s] / 4;
        }
        bool is_last = round == MAX_SEARCHES - 1 && drafts->best_draft == NULL;
        if (round != MAX_SEARCHES / 2 && !is_last) { continue; }
        status = plan_drafts_fit(drafts, draft);
        if (status != STATUS_OK && status != STATUS_INFEASIBLE) { return status; }
    }
    return STATUS_OK;
}

enum { ROOMIEST = 4 };

// The places that leave most room, those of least lack first. Returns how many.
static Status find_roomiest(const Placement* out[ROOMIEST], int32_t* num, PlanDrafts* drafts) {
    const PlanProblem* problem = &drafts->problem;
    const PlacementRoom room = {problem->costs, problem->limit_bytes, problem->P, ROOM_WANTED,
                                problem->request->rules.head_has_layer};
    int64_t lacks[ROOMIEST];
    Placement* places;
    ARENA_TRY_NEW(places, &drafts->lists, Placement, SEARCH_MAX_PLACES);
    int32_t num_places = search_places(places, problem);
    *num = 0;
    for (int32_t i = 0; i < num_places; i++) {
        int64_t lack = placement_lack(&room, &places[i]);
        if (*num == ROOMIEST && lack >= lacks[ROOMIEST - 1]) { continue; }
        int32_t k = *num < ROOMIEST ? (*num)++ : ROOMIEST - 1;
        for (; k > 0 && lacks[k - 1] > lack; k--) { lacks[k] = lacks[k - 1], out[k] = out[k - 1]; }
        lacks[k] = lack, out[k] = &places[i];
    }
    return STATUS_OK;
}

// Where the search over all places finds nothing that fits, or nothing near what it hoped for, it may be that
// it has no time for the hundreds of micro-batches that little memory takes: the roomiest ones, each by
// itself.
static Status search_roomiest(PlanDrafts* drafts) {
    const PlanRequest request = drafts->request;
    const Placement* places[ROOMIEST] = {NULL};
    int64_t hoped_ns;
    int32_t num = 0;
    TRY(find_roomiest(places, &num, drafts));
    for (int32_t i = 0; i < num; i++) {
        drafts->request.placements = PLACEMENT_GIVEN;
        drafts->request.heads = HEAD_CHOICE_GIVEN;
        Status status = plan_drafts_place(drafts, places[i]);
        memset(drafts->headroom_bytes, 0, sizeof drafts->headroom_bytes);
        if (status == STATUS_OK) { status = search_rounds(drafts, &hoped_ns); }
        drafts->request = request;
        if (status != STATUS_OK && status != STATUS_INFEASIBLE) { return status; }
    }
    return plan_drafts_place(drafts, &drafts->begin);
}

enum { MANY_MBS = 16 };  // for each stage and replica: a search has candidates for few placements then

// Is the best far from what was hoped for, or, with many micro-batches, from the bound?
static bool is_hurried(const PlanDrafts* drafts, int64_t hoped_ns) {
    const PlanProblem* problem = &drafts->problem;
    int64_t bound_ns = drafts->bound.bound_ns, best_ns = drafts->best_ns;
    bool has_many = drafts->best_draft->list.num_mbs > MANY_MBS * problem->P * problem->R;
    return best_ns - hoped_ns > hoped_ns / 8 || (has_many && best_ns - bound_ns > bound_ns / 8);
}

Status plan_search(PlanDrafts* drafts) {
    drafts->bound_is_joint = drafts->request.split_backward == SPLIT_BACKWARD_OFF;
    lower_bound_make(&drafts->bound, &drafts->problem, drafts->bound_is_joint);
    drafts->good_enough_ns = drafts->bound.bound_ns + drafts->bound.bound_ns / 2000;
    int64_t hoped_ns = INT64_MAX;
    Status status = search_rounds(drafts, &hoped_ns);
    memset(drafts->headroom_bytes, 0, sizeof drafts->headroom_bytes);
    bool may_move = drafts->request.choose_stages && drafts->request.placements != PLACEMENT_GIVEN;
    bool is_poor = drafts->best_draft == NULL ? status == STATUS_INFEASIBLE : is_hurried(drafts, hoped_ns);
    if (is_poor && may_move) {
        status = search_roomiest(drafts);
        memset(drafts->headroom_bytes, 0, sizeof drafts->headroom_bytes);
    }
    return status == STATUS_INFEASIBLE ? STATUS_OK : status;
}

enum { LEANER_TRIES = 4, LEANER_PARTS = 8, LEANER_EFFORT_PARTS = 4 };

// What the fullest rank of the best draft holds, and the largest model state.
static void fullest_rank(int64_t* held_bytes, int64_t* state_bytes, const PlanDrafts* drafts) {
    *held_bytes = *state_bytes = 0;
    for (int32_t r = 0; r < drafts->problem.R; r++) {
        const ReplicaPlan* replica = &drafts->best[r];
        for (int32_t s = 0; s < drafts->problem.P; s++) {
            int64_t held = replica->timeline.peak_bytes[s], state = replica->ranks[s].state_bytes;
            *held_bytes = held > *held_bytes ? held : *held_bytes;
            *state_bytes = state > *state_bytes ? state : *state_bytes;
        }
    }
}

// The same search for at most that much memory; half of the slack is for it, the rest for what it makes lean.
static Status search_within(bool* is_fast, PlanDrafts* drafts, int64_t limit_bytes,
                            const PlanRequest* request) {
    int64_t over_bytes[PLAN_MAX_STAGES], permille_ns = drafts->fastest_ns / 1000;
    int32_t slack = request->memory_slack_permille, rest = slack / 2;
    bool fits;
    Draft* draft;
    ARENA_TRY_NEW(draft, &drafts->lists, Draft, 1);
    drafts->request.memory_limit_bytes = limit_bytes;
    drafts->request.memory_slack_permille = rest;
    *is_fast = false;
    TRY(plan_drafts_place(drafts, &drafts->begin));
    TRY(search_draft(draft, &drafts->problem, request->effort, LEANER_EFFORT_PARTS,
                     drafts->fastest_ns + permille_ns * (slack - rest), &drafts->lists));
    drafts->request.memory_slack_permille = slack;
    *is_fast = draft->makespan_ns <= drafts->fastest_ns + permille_ns * slack;
    return *is_fast ? plan_drafts_fit_as_is(&fits, over_bytes, drafts, draft) : STATUS_OK;
}

Status plan_search_leaner(PlanDrafts* drafts) {
    const PlanRequest request = drafts->request;
    int64_t held_bytes, state_bytes;
    bool is_fast = drafts->best_draft != NULL && request.memory_slack_permille > 0 &&
                   drafts->fastest_ns <= drafts->good_enough_ns;
    if (!is_fast) { return STATUS_OK; }
    fullest_rank(&held_bytes, &state_bytes, drafts);
    for (int32_t i = 1; i <= LEANER_TRIES && is_fast; i++) {
        int64_t limit_bytes = state_bytes + held_bytes / LEANER_PARTS * (LEANER_PARTS - i);
        if (request.memory_limit_bytes > 0 && limit_bytes >= request.memory_limit_bytes) { continue; }
        Status status = search_within(&is_fast, drafts, limit_bytes, &request);
        drafts->request = request;
        TRY(plan_drafts_place(drafts, &drafts->begin));
        if (status != STATUS_OK && status != STATUS_INFEASIBLE) { return status; }
    }
    return STATUS_OK;
}
