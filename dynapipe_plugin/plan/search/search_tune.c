#include "search_tune.h"

#include <string.h>

#include "../schedule.h"
#include "../placement.h"
#include "search_moves.h"

enum { MANY_CHUNKS = 16 };

// One layer from chunk `from` to chunk `to`; those between shift. False where a chunk would be left empty.
static bool shift_layer(Placement* out, const Tuned* tuned, int32_t from, int32_t to) {
    const PlanRequest* request = tuned->firsts->search->problem->request;
    *out = tuned->placement;
    placement_shift_layer(out, from, to);
    return stage_may_have(&out->chunks[from], from, out->num_chunks, request->rules.head_has_layer);
}

static int64_t slowest_ns(const SearchState* states, int32_t num) {
    int64_t slowest = 0;
    for (int32_t r = 0; r < num; r++) {
        if (states[r].makespan_ns > slowest) { slowest = states[r].makespan_ns; }
    }
    return slowest;
}

// Another placement for all probes: kept where they get faster.
static Status try_placement(bool* better, Tuned* tuned, const Placement* placement) {
    Search* search = tuned->firsts->search;
    int32_t num = tuned->firsts->num_probes;
    int64_t now_ns = tuned->first.makespan_ns;
    *better = now_ns > 0;  // 0: no probe has a sample
    for (int32_t r = 0; r < num && *better; r++) {
        if (tuned->states[r].N == 0) { continue; }
        search_state_assign(&tuned->spare[r], &tuned->states[r]);
        *better = search_state_set_placement(&tuned->spare[r], placement);
        if (*better) { TRY(search_try_simulate(search, &tuned->spare[r], now_ns)); }
        *better = *better && tuned->spare[r].makespan_ns < now_ns;
    }
    for (int32_t r = 0; r < num && *better; r++) {
        if (tuned->states[r].N > 0) { search_state_assign(&tuned->states[r], &tuned->spare[r]); }
    }
    if (*better) {
        tuned->placement = *placement;
        tuned->first.makespan_ns = slowest_ns(tuned->states, num);
    }
    return STATUS_OK;
}

// Single layers from chunk to chunk, as long as that helps.
static Status tune_layers(Tuned* tuned) {
    Search* search = tuned->firsts->search;
    int32_t K = tuned->placement.num_chunks;
    for (bool any = true; any && search->budget > tuned->stop_budget;) {
        any = false;
        for (int32_t pair = 0; pair < K * K && (K <= MANY_CHUNKS || search->budget > tuned->stop_budget);
             pair++) {
            Placement shifted;
            bool better;
            if (pair / K == pair % K || !shift_layer(&shifted, tuned, pair / K, pair % K)) { continue; }
            TRY(try_placement(&better, tuned, &shifted));
            any |= better;
        }
    }
    return STATUS_OK;
}

// Other settings in the same place: kept where all probes get faster.
static Status try_settings(Tuned* tuned, const First* first) {
    Firsts* firsts = tuned->firsts;
    Search* search = firsts->search;
    SearchState* states;
    if (tuned->states != NULL && search->budget <= tuned->stop_budget) { return STATUS_OK; }
    arena_reset(&tuned->arenas[1]);
    ARENA_TRY_NEW(states, &tuned->arenas[1], SearchState, 2 * firsts->num_probes);
    SearchState* spare = states + firsts->num_probes;
    for (int32_t r = 0; r < firsts->num_probes; r++) {
        TRY(search_try_state(&states[r], firsts, first, r, &tuned->placement, &tuned->arenas[1]));
        TRY(search_try_simulate(search, &states[r], tuned->first.makespan_ns));
        if (states[r].makespan_ns >= tuned->first.makespan_ns) { return STATUS_OK; }
        TRY(search_state_copy(&spare[r], &states[r], &tuned->arenas[1]));
    }
    tuned->first = *first;
    tuned->first.makespan_ns = slowest_ns(states, firsts->num_probes);
    tuned->states = states;
    tuned->spare = spare;
    Arena used = tuned->arenas[0];
    tuned->arenas[0] = tuned->arenas[1];
    tuned->arenas[1] = used;
    return STATUS_OK;
}

// Numbers in flight, tapers, and numbers of micro-batches around the present one.
static Status tune_settings(Tuned* tuned) {
    int32_t P = tuned->firsts->search->problem->P, M = tuned->first.taper.num_mbs, step = M / 10 + 1;
    static const int32_t in_flight_percent[] = {100, 150, 200, 300};  // of P
    for (int32_t k = 1; k <= 6; k++) {
        First first = tuned->first;
        first.in_flight = k == 6 ? -M : k;
        if (first.in_flight != tuned->first.in_flight) { TRY(try_settings(tuned, &first)); }
    }
    for (size_t k = 0; k < sizeof in_flight_percent / sizeof *in_flight_percent; k++) {
        First first = tuned->first;
        first.in_flight = -P * in_flight_percent[k] / 100;
        if (tuned->placement.num_chunks > P) { TRY(try_settings(tuned, &first)); }
    }
    if (search_is_padded(tuned->firsts)) { return STATUS_OK; }
    for (int32_t num_mbs = M - 5 * step; num_mbs <= M + 3 * step; num_mbs += step) {
        First first = tuned->first;
        first.taper.num_mbs = num_mbs;
        if (num_mbs >= 1 && num_mbs != tuned->first.taper.num_mbs) { TRY(try_settings(tuned, &first)); }
    }
    for (int32_t order = 0; order < ORDER_COUNT; order++) {
        First first = tuned->first;
        first.order = order;
        if (order != tuned->first.order) { TRY(try_settings(tuned, &first)); }
    }
    for (int32_t t = 0; t < SEARCH_TAPERS; t++) {
        First first = tuned->first;
        first.taper.depth = P * search_tapers[t][0] / 100;
        first.taper.end_percent = search_tapers[t][1];
        TRY(try_settings(tuned, &first));
    }
    return STATUS_OK;
}

static Status tune_all(Tuned* tuned) {
    const Firsts* firsts = tuned->firsts;
    First begin = tuned->first;
    tuned->first.makespan_ns = INT64_MAX;
    TRY(try_settings(tuned, &begin));
    if (tuned->states == NULL) { return STATUS_OK; }
    for (int32_t round = 0; round < 2; round++) {
        int64_t before_ns = tuned->first.makespan_ns;
        bool layers = firsts->search->problem->request->choose_stages;
        if (firsts->num_places > 1) { TRY(tune_settings(tuned)); }
        if (layers) { TRY(tune_layers(tuned)); }
        if (firsts->num_places == 1) { TRY(tune_settings(tuned)); }
        if (tuned->first.makespan_ns == before_ns) { break; }
    }
    return STATUS_OK;
}

// What a little of the local search makes of it: that tells candidates apart better than settings do.
static Status improve_probes(Tuned* tuned, int64_t may_spend) {
    Search* search = tuned->firsts->search;
    const PlanProblem* problem = search->problem;
    int32_t num = tuned->firsts->num_probes;
    bool alone = search->R == 1;
    SearchFreedom freedom = {.samples = !search_is_padded(tuned->firsts),
                             .modes = problem->has_limit,
                             .placement = alone && problem->request->choose_stages};
    Rng rng = rng_seed((uint64_t)problem->num_samples + 1);
    for (int32_t r = 0; r < num; r++) {
        int64_t part = may_spend / num, before = part;
        if (tuned->states[r].N == 0) { continue; }
        arena_reset(&tuned->arenas[1]);
        TRY(search_improve(&tuned->states[r], &freedom, search->good_enough_ns, &part, &rng,
                           &tuned->arenas[1], &search->simulator));
        search->budget -= before - part;
    }
    if (alone) { tuned->placement = tuned->states[0].placement; }
    tuned->first.makespan_ns = slowest_ns(tuned->states, num);
    return STATUS_OK;
}

Status search_tune(Tuned* best, Firsts* firsts, const First* first, int64_t may_spend) {
    Search* search = firsts->search;
    Arena arenas[2] = {{0}};
    Tuned tuned = {
        .firsts = firsts, .first = *first, .arenas = arenas, .stop_budget = search->budget - may_spend};
    tuned.placement = firsts->places[first->place];
    Status status = tune_all(&tuned);
    if (status == STATUS_OK && tuned.states != NULL && firsts->num_places > 1) {
        status = improve_probes(&tuned, may_spend);
    }
    if (status == STATUS_OK && tuned.states != NULL && tuned.first.makespan_ns < best->first.makespan_ns) {
        *best = tuned;
        best->arenas = NULL;
        ARENA_TRY_NEW(best->states, &search->lists, SearchState, search->R);
        for (int32_t r = 0; r < firsts->num_probes && status == STATUS_OK; r++) {
            if (tuned.states[r].N == 0) { continue; }
            status = search_state_copy(&best->states[r], &tuned.states[r], &search->lists);
        }
    }
    arena_free(&arenas[0]);
    arena_free(&arenas[1]);
    return status;
}
