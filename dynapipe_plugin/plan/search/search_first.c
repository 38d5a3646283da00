#include "search_first.h"

#include <string.h>

#include "../draft/replica_balance.h"
#include "../original/microbatch_dp.h"
#include "../pipe/pipe_schedule.h"
#include "search_replicas.h"

enum { MAX_PROBES = 2, NUM_TUNED = 3, MAX_FIRST = 100, MANY_STAGES = 16 };

// What is recomputed at first: the same everywhere, or what does not keep to its share of memory.
typedef struct {
    RecomputeMode mode;
    int32_t share_percent;  // 0: `mode` everywhere
} ModeRule;

typedef struct {
    ModeRule rule;
    MicrobatchTaper taper;  // ragged; padded: only num_mbs, for telling candidates apart
    int32_t cut;            // padded: which of the cuts
    int32_t in_flight;      // k: stage s may hold k (P - s) micro-batches; 0: 2 (P - s) - 1
    int64_t makespan_ns;    // of the slowest probe
} First;

// How the first and last micro-batches taper: over how many, in percent of P; the first and last in percent
// of the body.
static const int32_t tapers[][2] = {{100, 40}, {0, 100}, {100, 20}, {200, 30}, {100, 70}};
enum { NUM_TAPERS = sizeof tapers / sizeof *tapers };

// Who has which samples; for padded micro-batches also which of them form one.
typedef struct {
    int32_t** ids;     // [R] sample ids; ragged: largest first
    int32_t* num_ids;  // [R]
    int32_t** mb_of;   // [R] padded: micro-batch of each of these ids, in the order of the dynamic program
    int32_t* num_mbs;  // [R] padded
    int32_t num_all;   // micro-batches of all replicas
} Share;

enum { MAX_CUTS = 5 };

typedef struct {
    Search* search;
    int32_t num_probes, num_shares;
    int64_t stop_budget;    // candidates are tried until the search's budget has fallen to this
    Share share[MAX_CUTS];  // ragged: one; padded: one for each cut of the sorted samples
    int32_t num_firsts;
    First firsts[MAX_FIRST];  // ascending makespan
} Firsts;

static int32_t mode_rules(ModeRule out[RECOMPUTE_COUNT + 3], const MicrobatchProblem* problem) {
    static const int32_t share_percent[] = {100, 60, 160};
    int32_t num = 0;
    out[num++] = (ModeRule){problem->modes[0], 0};
    if (!problem->has_limit) { return num; }
    for (int32_t k = 0; k < 3 && problem->num_modes > 1; k++) {
        out[num++] = (ModeRule){problem->modes[0], share_percent[k]};
    }
    for (int32_t k = 1; k < problem->num_modes; k++) { out[num++] = (ModeRule){problem->modes[k], 0}; }
    return num;
}

static bool is_padded(const Firsts* firsts) {
    return firsts->search->problem->request->layout == LAYOUT_PADDED;
}

// Replica r as this candidate has it, in `arena`.
static Status make_state(SearchState* out, const Firsts* firsts, const First* first, int32_t r,
                         const LayerRange* stages, Arena* arena) {
    Search* search = firsts->search;
    const Share* share = &firsts->share[first->cut];
    MicrobatchTaper taper = first->taper;
    MbLayout layout = is_padded(firsts) ? LAYOUT_PADDED : LAYOUT_RAGGED;
    int32_t num_ids = share->num_ids[r], *mb_of;
    if (taper.num_mbs > num_ids) { taper.num_mbs = num_ids; }
    *out = (SearchState){0};
    if (num_ids == 0) { return STATUS_OK; }
    if (layout == LAYOUT_PADDED) {
        mb_of = share->mb_of[r];
        taper.num_mbs = share->num_mbs[r];
    } else {
        PIPE_NEW(mb_of, arena, int32_t, num_ids);
        TRY(search_fill(mb_of, &search->weights, share->ids[r], num_ids, &taper, arena));
        // in jobs that could have been walked meanwhile
        search->budget -= search->weights.num_resources == 1 ? 2 * num_ids : num_ids * taper.num_mbs / 5;
    }
    TRY(search_state_init(out, search->problem, search->replica[r], layout, share->ids[r], num_ids, mb_of,
                          taper.num_mbs, first->rule.mode, search->split_backward, stages, arena));
    search->budget -= 4 * (int64_t)out->P * out->M;
    if (layout == LAYOUT_PADDED) { TRY(search_state_small_ends(out, arena)); }
    if (first->rule.share_percent > 0) { search_state_fit_modes(out, first->rule.share_percent); }
    for (int32_t s = 0; s < out->P && first->in_flight > 0; s++) {
        out->rule.max_in_flight[s] = first->in_flight * (out->P - s);
    }
    return STATUS_OK;
}

static Status simulate(Search* search, SearchState* state, int64_t cutoff_ns) {
    if (state->N == 0) { return STATUS_OK; }
    return search_state_simulate(&state->makespan_ns, state, cutoff_ns, &search->budget, &search->simulator);
}

// --- candidates ------------------------------------------------------------------------------------------

// Kept in place by makespan; those that came first stay before equals.
static void insert(Firsts* firsts, const First* first) {
    int32_t k = firsts->num_firsts;
    if (k == MAX_FIRST) { k--; }
    for (; k > 0 && firsts->firsts[k - 1].makespan_ns > first->makespan_ns; k--) {
        firsts->firsts[k] = firsts->firsts[k - 1];
    }
    firsts->firsts[k] = *first;
    if (firsts->num_firsts < MAX_FIRST) { firsts->num_firsts++; }
}

static Status try_first(Firsts* firsts, First first) {
    Search* search = firsts->search;
    int64_t cutoff_ns = INT64_MAX;
    if (firsts->num_firsts > NUM_TUNED) { cutoff_ns = firsts->firsts[NUM_TUNED].makespan_ns; }
    first.makespan_ns = 0;
    for (int32_t r = 0; r < firsts->num_probes; r++) {
        SearchState state;
        arena_reset(&search->tries);
        TRY(make_state(&state, firsts, &first, r, search->placement.chunks, &search->tries));
        TRY(simulate(search, &state, cutoff_ns));
        if (state.makespan_ns > first.makespan_ns) { first.makespan_ns = state.makespan_ns; }
        if (first.makespan_ns >= cutoff_ns) { break; }
    }
    if (first.makespan_ns < INT64_MAX) { insert(firsts, &first); }
    return STATUS_OK;
}

static Status try_cuts(Firsts* firsts, const ModeRule* rule) {
    for (int32_t k = 0; k < firsts->num_shares; k++) {
        TRY(try_first(firsts,
                      (First){.rule = *rule, .taper = {.num_mbs = firsts->share[k].num_all}, .cut = k}));
    }
    return STATUS_OK;
}

// With many stages a few candidates take more than the search has. What is left then goes to tuning the best.
static bool is_spent(const Firsts* firsts) {
    return firsts->num_firsts > 0 && firsts->search->budget < firsts->stop_budget;
}

static Status try_counts(Firsts* firsts, const ModeRule* rule) {
    static const int32_t count_percent[] = {300, 200, 400, 150, 500, 250, 600, 800, 100, 1000};  // of P
    int32_t P = firsts->search->problem->P, last = 0, most = firsts->share[0].num_ids[0];
    for (size_t c = 0; c < sizeof count_percent / sizeof *count_percent; c++) {
        int32_t num_mbs = P * count_percent[c] / 100;
        num_mbs = num_mbs < 1 ? 1 : num_mbs > most ? most : num_mbs;
        if (num_mbs == last || is_spent(firsts)) { continue; }
        last = num_mbs;
        MicrobatchTaper taper = {
            .num_mbs = num_mbs, .depth = P * tapers[0][0] / 100, .end_percent = tapers[0][1]};
        TRY(try_first(firsts, (First){.rule = *rule, .taper = taper}));
    }
    // many samples: as many micro-batches as let P - s of them be kept
    int64_t kept = search_fill_least_mbs(firsts->search->problem, firsts->share[0].ids[0], most);
    for (int32_t percent = 50; percent <= 300 && kept > 5 * P && rule->share_percent != 160;
         percent += percent / 2) {
        int64_t num_mbs = kept * percent / 100;
        MicrobatchTaper taper = {.num_mbs = (int32_t)num_mbs, .depth = P, .end_percent = 40};
        if (num_mbs > 10 * P && num_mbs <= most && !is_spent(firsts)) {
            TRY(try_first(firsts, (First){.rule = *rule, .taper = taper}));
        }
    }
    return STATUS_OK;
}

// Every number of micro-batches with every rule; then the best of these with other tapers.
static Status try_firsts(Firsts* firsts) {
    ModeRule rules[RECOMPUTE_COUNT + 3];
    int32_t num_rules = mode_rules(rules, firsts->search->problem), P = firsts->search->problem->P;
    for (int32_t k = 0; k < num_rules; k++) {
        TRY((is_padded(firsts) ? try_cuts : try_counts)(firsts, &rules[k]));
    }
    if (is_padded(firsts)) { return STATUS_OK; }
    First best[NUM_TUNED];
    int32_t num_best = firsts->num_firsts < NUM_TUNED ? firsts->num_firsts : NUM_TUNED;
    memcpy(best, firsts->firsts, sizeof best);
    for (int32_t k = 0; k < num_best; k++) {
        for (int32_t t = 1; t < NUM_TAPERS && !is_spent(firsts); t++) {
            best[k].taper.depth = P * tapers[t][0] / 100;
            best[k].taper.end_percent = tapers[t][1];
            TRY(try_first(firsts, best[k]));
        }
    }
    return STATUS_OK;
}

// --- tuning ----------------------------------------------------------------------------------------------

// The candidate that is tuned: its settings, and the probes as they are with it.
typedef struct {
    Firsts* firsts;
    First first;
    Placement placement;
    SearchState* states;  // [num_probes]
    SearchState* spare;
    Arena* arenas;        // two, in turn: of `states` and of what is tried
    int64_t stop_budget;  // tuning ends where the search's budget has fallen to this
} Tuned;

// One layer from stage `from` to stage `to`; those between shift. False where a stage would be left empty.
static bool shift_layer(LayerRange* out, const Tuned* tuned, int32_t from, int32_t to) {
    const PlanRequest* request = tuned->firsts->search->problem->request;
    memcpy(out, tuned->placement.chunks, sizeof *out * (size_t)request->P);
    int32_t by = from < to ? -1 : 1, low = from < to ? from : to, high = from < to ? to : from;
    for (int32_t s = low; s < high; s++) {
        out[s].layer_end += by;
        out[s + 1].layer_begin += by;
    }
    return stage_may_have(&out[from], from, request->P, request->rules.head_has_layer);
}

static int64_t slowest_ns(const SearchState* states, int32_t num) {
    int64_t slowest = 0;
    for (int32_t r = 0; r < num; r++) {
        if (states[r].makespan_ns > slowest) { slowest = states[r].makespan_ns; }
    }
    return slowest;
}

// Other stages for all probes: kept where they get faster.
static Status try_stages(bool* better, Tuned* tuned, const LayerRange* stages) {
    Search* search = tuned->firsts->search;
    int32_t num = tuned->firsts->num_probes;
    int64_t now_ns = tuned->first.makespan_ns;
    *better = now_ns > 0;  // 0: no probe has a sample
    for (int32_t r = 0; r < num && *better; r++) {
        if (tuned->states[r].N == 0) { continue; }
        search_state_assign(&tuned->spare[r], &tuned->states[r]);
        *better = search_state_set_stages(&tuned->spare[r], stages);
        if (*better) { TRY(simulate(search, &tuned->spare[r], now_ns)); }
        *better = *better && tuned->spare[r].makespan_ns < now_ns;
    }
    for (int32_t r = 0; r < num && *better; r++) {
        if (tuned->states[r].N > 0) { search_state_assign(&tuned->states[r], &tuned->spare[r]); }
    }
    if (*better) {
        memcpy(tuned->placement.chunks, stages, sizeof *stages * (size_t)search->problem->P);
        tuned->first.makespan_ns = slowest_ns(tuned->states, num);
    }
    return STATUS_OK;
}

// Single layers from stage to stage, as long as that helps.
static Status tune_stages(Tuned* tuned) {
    Search* search = tuned->firsts->search;
    int32_t P = search->problem->P;
    for (bool any = true; any && search->budget > tuned->stop_budget;) {
        any = false;
        for (int32_t pair = 0; pair < P * P && (P <= MANY_STAGES || search->budget > tuned->stop_budget);
             pair++) {
            LayerRange shifted[PLAN_MAX_STAGES] = {{0}};
            bool better;
            if (pair / P == pair % P || !shift_layer(shifted, tuned, pair / P, pair % P)) { continue; }
            TRY(try_stages(&better, tuned, shifted));
            any |= better;
        }
    }
    return STATUS_OK;
}

// Other settings on the same stages: kept where all probes get faster.
static Status try_settings(Tuned* tuned, const First* first) {
    Firsts* firsts = tuned->firsts;
    Search* search = firsts->search;
    SearchState* states;
    if (tuned->states != NULL && search->budget <= tuned->stop_budget) { return STATUS_OK; }
    arena_reset(&tuned->arenas[1]);
    PIPE_NEW(states, &tuned->arenas[1], SearchState, 2 * firsts->num_probes);
    SearchState* spare = states + firsts->num_probes;
    for (int32_t r = 0; r < firsts->num_probes; r++) {
        TRY(make_state(&states[r], firsts, first, r, tuned->placement.chunks, &tuned->arenas[1]));
        TRY(simulate(search, &states[r], tuned->first.makespan_ns));
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
    for (int32_t k = 1; k <= 6; k++) {
        First first = tuned->first;
        first.in_flight = k == 6 ? M : k;
        if (first.in_flight != tuned->first.in_flight) { TRY(try_settings(tuned, &first)); }
    }
    if (is_padded(tuned->firsts)) { return STATUS_OK; }
    for (int32_t num_mbs = M - 5 * step; num_mbs <= M + 3 * step; num_mbs += step) {
        First first = tuned->first;
        first.taper.num_mbs = num_mbs;
        if (num_mbs >= 1 && num_mbs != tuned->first.taper.num_mbs) { TRY(try_settings(tuned, &first)); }
    }
    for (int32_t t = 0; t < NUM_TAPERS; t++) {
        First first = tuned->first;
        first.taper.depth = P * tapers[t][0] / 100;
        first.taper.end_percent = tapers[t][1];
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
        if (firsts->search->problem->request->choose_stages) { TRY(tune_stages(tuned)); }
        TRY(tune_settings(tuned));
        if (tuned->first.makespan_ns == before_ns) { break; }
    }
    return STATUS_OK;
}

// The candidate with everything tuned takes the place of `best` if it is faster.
static Status tune(Tuned* best, Firsts* firsts, const First* first, int64_t may_spend) {
    Search* search = firsts->search;
    Arena arenas[2] = {{0}};
    Tuned tuned = {
        .firsts = firsts, .first = *first, .arenas = arenas, .stop_budget = search->budget - may_spend};
    tuned.placement = search->placement;
    Status status = tune_all(&tuned);
    if (status == STATUS_OK && tuned.states != NULL && tuned.first.makespan_ns < best->first.makespan_ns) {
        *best = tuned;
        best->arenas = NULL;
        PIPE_NEW(best->states, &search->lists, SearchState, search->R);
        for (int32_t r = 0; r < firsts->num_probes && status == STATUS_OK; r++) {
            if (tuned.states[r].N == 0) { continue; }
            status = search_state_copy(&best->states[r], &tuned.states[r], &search->lists);
        }
    }
    arena_free(&arenas[0]);
    arena_free(&arenas[1]);
    return status;
}

// --- all replicas ----------------------------------------------------------------------------------------

static Status share_alloc(Share* out, int32_t N, int32_t R, Arena* arena) {
    int32_t *ids, *mb_of;
    *out = (Share){0};
    PIPE_NEW(out->ids, arena, int32_t*, R);
    PIPE_NEW(out->num_ids, arena, int32_t, R);
    PIPE_NEW(out->mb_of, arena, int32_t*, R);
    PIPE_NEW(out->num_mbs, arena, int32_t, R);
    PIPE_NEW(ids, arena, int32_t, N);
    PIPE_NEW(mb_of, arena, int32_t, N);
    out->ids[0] = ids;
    out->mb_of[0] = mb_of;
    return STATUS_OK;
}

// Ragged: every replica's samples, largest first.
static Status share_samples(Firsts* firsts) {
    Search* search = firsts->search;
    Share* share = &firsts->share[0];
    int32_t N = search->problem->num_samples, *replica_of, *place, *num_of;
    PIPE_NEW(replica_of, &search->lists, int32_t, N + 2 * search->R);
    place = replica_of + N;
    num_of = place + search->R;
    TRY(share_alloc(share, N, search->R, &search->lists));
    TRY(search_fill_replicas(replica_of, &search->weights, search->slow, &search->lists));
    for (int32_t i = 0; i < N; i++) { num_of[replica_of[i]]++; }
    TRY(search_replicas_order(search, num_of));
    for (int32_t r = 0; r < search->R; r++) {
        place[search->replica[r]] = r;
        share->num_ids[r] = num_of[search->replica[r]];
    }
    for (int32_t r = 1; r < search->R; r++) { share->ids[r] = share->ids[r - 1] + share->num_ids[r - 1]; }
    memset(share->num_ids, 0, (size_t)search->R * sizeof *share->num_ids);
    for (int32_t k = 0; k < N; k++) {
        int32_t id = search->weights.by_size[k], r = place[replica_of[id]];
        share->ids[r][share->num_ids[r]++] = id;
    }
    firsts->num_shares = 1;
    return STATUS_OK;
}

// Padded: one cut of the sorted samples by dynamic programming; its micro-batches balanced over the replicas.
static Status share_cut(Firsts* firsts, int32_t ramp_percent) {
    Search* search = firsts->search;
    Share* share = &firsts->share[firsts->num_shares];
    MicrobatchList list;
    ReplicaLists lists;
    int32_t next = 0, *num_of;
    TRY(share_alloc(share, search->problem->num_samples, search->R, &search->lists));
    TRY(microbatch_dp_build(&list, search->problem, &(MicrobatchTaper){.ramp_percent = ramp_percent},
                            &search->lists));
    TRY(replica_balance(&lists, &list, search->R, search->slow, &search->lists));
    PIPE_NEW(num_of, &search->lists, int32_t, search->R);
    for (int32_t q = 0; q < search->R; q++) { num_of[q] = lists.begin[q + 1] - lists.begin[q]; }
    TRY(search_replicas_order(search, num_of));
    share->num_all = list.num_mbs;
    for (int32_t k = 0, r = 0; k < search->R; k++) {  // where all are alike, those without samples come last
        int32_t q = search->replica[k];
        if (num_of[q] == 0) {
            r += search->slow != NULL;
            continue;
        }
        share->ids[r] = share->ids[0] + next;
        share->mb_of[r] = share->mb_of[0] + next;
        for (int32_t i = lists.begin[q]; i < lists.begin[q + 1]; i++) {
            const Microbatch* mb = &list.mbs[lists.mbs[i]];
            for (int32_t j = mb->sequence_begin; j < mb->sequence_end; j++) {
                int32_t segment = list.sequences[j].segment_begin;
                share->ids[0][next] = list.segments[segment].sample_idx;
                share->mb_of[0][next++] = share->num_mbs[r];
                share->num_ids[r]++;
            }
            share->num_mbs[r]++;
        }
        r++;
    }
    firsts->num_shares++;
    return STATUS_OK;
}

static Status share_cuts(Firsts* firsts) {
    static const int32_t ramp_percent[MAX_CUTS] = {100, 50, 25, 75, 10};
    Status status = STATUS_OK;
    for (int32_t k = 0; k < MAX_CUTS; k++) {
        status = share_cut(firsts, ramp_percent[k]);
        if (status != STATUS_OK && status != STATUS_INFEASIBLE) { return status; }
    }
    return firsts->num_shares > 0 ? STATUS_OK : status;
}

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
            TRY(make_state(&state, firsts, first, r, search->placement.chunks, &search->tries));
            TRY(simulate(search, &state, best.makespan_ns));
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

// The best of those with different numbers of micro-batches.
static int32_t pick_tuned(First out[NUM_TUNED], const Firsts* firsts) {
    int32_t num = 0;
    for (int32_t k = 0; k < firsts->num_firsts && num < NUM_TUNED; k++) {
        bool is_new = true;
        for (int32_t t = 0; t < num; t++) {
            is_new &= out[t].taper.num_mbs != firsts->firsts[k].taper.num_mbs;
        }
        if (is_new) { out[num++] = firsts->firsts[k]; }
    }
    return num;
}

Status search_first_round(Search* search) {
    const MicrobatchProblem* problem = search->problem;
    Firsts firsts = {.search = search,
                     .num_probes = search->R < MAX_PROBES ? search->R : MAX_PROBES,
                     .stop_budget = problem->P > MANY_STAGES ? search->budget / 4 : INT64_MIN};
    TRY(search_weights_make(&search->weights, problem, problem->modes[0], 4 * problem->P * problem->R,
                            &search->lists));
    TRY(is_padded(&firsts) ? share_cuts(&firsts) : share_samples(&firsts));
    TRY(try_firsts(&firsts));
    First firsts_tuned[NUM_TUNED];
    Tuned best = {.first = {.makespan_ns = INT64_MAX}};
    int32_t num_tuned = pick_tuned(firsts_tuned, &firsts);
    int64_t part = search->budget / 8;  // half of what is left, most of it for the most promising
    for (int32_t t = 0; t < num_tuned; t++) {
        TRY(tune(&best, &firsts, &firsts_tuned[t], t == 0 ? 2 * part : part));
    }
    if (best.states == NULL) { return FAIL(STATUS_INFEASIBLE, "search: nothing fits in memory"); }
    search->state = best.states;
    search->placement = best.placement;
    return fill_others(&firsts, &best.first);
}
