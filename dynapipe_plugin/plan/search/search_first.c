#include "search_tune.h"

#include <string.h>

#include "../schedule.h"
#include "search_places.h"

enum { MANY_STAGES = 16 };

// The replicas that were not looked at: as the others, on the stages that were chosen; or as the runners-up.
static Status fill_others(Firsts* firsts, const First* tuned) {
    Search* search = firsts->search;
    for (int32_t r = firsts->num_probes; r < search->R; r++) {
        SearchState best = {.makespan_ns = INT64_MAX};
        for (int32_t k = -1; k < NUM_TUNED && k < firsts->num_firsts; k++) {
            const First* first = k < 0 ? tuned : &firsts->firsts[k];
            if (first->cut != tuned->cut) { continue; }  // another cut deals the samples otherwise
            SearchState state;
            arena_reset(&search->tries);
            TRY(search_try_state(&state, firsts, first, r, &search->placement, &search->tries));
            TRY(search_try_simulate(search, &state, best.makespan_ns));
            if (state.makespan_ns >= best.makespan_ns) { continue; }
            if (state.N > 0) { TRY(search_state_copy(&best, &state, &search->lists)); }
            if (state.N == 0) { best = state; }
        }
        if (best.makespan_ns == INT64_MAX) {
            return FAIL(STATUS_INFEASIBLE, "search: replica %d does not fit", search->replica[r]);
        }
        search->state[r] = best;
    }
    return STATUS_OK;
}

// The best of those with different placements; where there are fewer, with different numbers of
// micro-batches.
static int32_t pick_tuned(First out[NUM_TUNED], const Firsts* firsts) {
    int32_t num = 0;
    for (int32_t any_place = 0; any_place <= 1; any_place++) {
        for (int32_t k = 0; k < firsts->num_firsts && num < NUM_TUNED; k++) {
            bool is_new = true;
            for (int32_t t = 0; t < num; t++) {
                bool same_place = out[t].place == firsts->firsts[k].place;
                bool same_number = out[t].taper.num_mbs == firsts->firsts[k].taper.num_mbs;
                is_new &= any_place ? !same_place || !same_number : !same_place;
            }
            if (is_new) { out[num++] = firsts->firsts[k]; }
        }
    }
    return num;
}

Status search_first_round(Search* search) {
    const PlanProblem* problem = search->problem;
    Firsts firsts = {.search = search,
                     .deals = {.search = search},
                     .num_probes = search->R < MAX_PROBES ? search->R : MAX_PROBES,
                     .stop_budget = problem->P > MANY_STAGES ? search->budget / 4 : search->budget / 5 * 3};
    ARENA_TRY_NEW(firsts.places, &search->lists, Placement, SEARCH_MAX_PLACES);
    firsts.num_places = search_places(firsts.places, problem);
    TRY(search_weights_make(&search->weights, problem, problem->modes[0], 4 * problem->P * problem->R,
                            &search->lists));
    firsts.has_long =
        search->weights.size[search->weights.by_size[0]] * problem->R * problem->P > (INT64_C(1) << 40) / 2;
    TRY(search_is_padded(&firsts) ? search_deal_cuts(&firsts.deals) : search_deal_ragged(&firsts.deals));
    TRY(search_try(&firsts));
    First firsts_tuned[NUM_TUNED];
    Tuned best = {.first = {.makespan_ns = INT64_MAX}};
    int32_t num_tuned = pick_tuned(firsts_tuned, &firsts);
    int64_t part = search->budget / 12;  // a third of what is left, most of it for the most promising
    for (int32_t t = 0; t < num_tuned; t++) {
        TRY(search_tune(&best, &firsts, &firsts_tuned[t], t == 0 ? 2 * part : part));
    }
    if (best.states == NULL) { return FAIL(STATUS_INFEASIBLE, "search: nothing fits in memory"); }
    search->state = best.states;
    search->placement = best.placement;
    return fill_others(&firsts, &best.first);
}
