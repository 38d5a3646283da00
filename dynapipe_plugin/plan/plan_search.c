// plan_search.c -- see plan_search.h.
#include "plan_search.h"

#include <string.h>
#include <stdio.h>
#include <stdlib.h>

#include "schedule.h"
#include "placement.h"
#include "search.h"
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
        Status status = search_draft(draft, &drafts->problem, drafts->request.effort,
                                     &drafts->lists);
        memset(drafts->problem.headroom_bytes, 0, sizeof drafts->headroom_bytes);
        TRY(status);
        if (round == 0) { *hoped_ns = draft->makespan_ns; }
        TRY(plan_drafts_fit_as_is(&fits, over_bytes, drafts, draft));
        if (getenv("DBG")) fprintf(stderr, "fit round %d: %.3f ms fits %d\n", round, (double)draft->makespan_ns / 1e6, fits);
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
    if (is_poor && may_move && drafts->best_draft == NULL) {
        status = search_roomiest(drafts);
        memset(drafts->headroom_bytes, 0, sizeof drafts->headroom_bytes);
    }
    return status == STATUS_INFEASIBLE ? STATUS_OK : status;
}

