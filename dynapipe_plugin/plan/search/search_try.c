#include "search_try.h"

#include <stdlib.h>
#include <string.h>

#include "../schedule.h"

const int32_t search_tapers[SEARCH_TAPERS][2] = {{100, 40}, {0, 100}, {100, 20}, {200, 30}, {100, 70}};

enum { MAX_RULES = RECOMPUTE_COUNT + 6, RULES_A_ROUND = 3 };

static int32_t mode_rules(ModeRule out[MAX_RULES], const PlanProblem* problem, int32_t num_chunks) {
    static const int32_t share_percent[] = {100, 60, 160}, early_percent[] = {50, 25, 75};
    int32_t num = 0, last = problem->num_modes - 1;
    bool can_drop = problem->has_limit && last > 0;
    out[num++] = (ModeRule){problem->modes[0], 0, 100};
    for (int32_t k = 0; k < 3 && can_drop; k++) {
        out[num++] = (ModeRule){problem->modes[0], share_percent[k], 0};
        if (num_chunks > problem->P) { out[num++] = (ModeRule){problem->modes[last], 0, early_percent[k]}; }
    }
    for (int32_t k = 1; k < problem->num_modes && problem->has_limit; k++) {
        out[num++] = (ModeRule){problem->modes[k], 0, 100};
    }
    return num;
}

bool search_is_padded(const Firsts* firsts) {
    return firsts->search->problem->request->layout == LAYOUT_PADDED;
}

// Nothing is recomputed in the last chunks.
static void keep_late(SearchState* state, int32_t early_percent) {
    for (int32_t k = 0; k < state->K; k++) {
        if (100 * k < early_percent * state->K) { continue; }
        memset(state->mode + (int64_t)k * state->M, state->problem->modes[0], (size_t)state->M);
    }
    for (int32_t m = 0; m < state->M; m++) { search_state_price(state, m); }
    search_state_limits(state);
}

// They are numbered with the largest in the middle (search_fill): from the smallest on, 0, M - 1, 1, M - 2,
// ...
static void put_in_order(SearchState* state, Order order) {
    static const int32_t quarters_before[ORDER_COUNT] = {2, 3, 4, 1, 0};
    int32_t M = state->M, front = 0, back = M - 1;
    for (int32_t k = 0; k < M; k++) {
        int32_t m = k % 2 == 0 ? k / 2 : M - 1 - k / 2;
        bool before = (k + 1) * quarters_before[order] / 4 > k * quarters_before[order] / 4;
        state->order[before ? front++ : back--] = m;
    }
}

// mb_of of the replica's samples; borrowed until the next call.
static Status fill(int32_t** mb_of, Firsts* firsts, int32_t r, const MicrobatchTaper* taper, Arena* arena) {
    Search* search = firsts->search;
    const Deal* deal = &firsts->deals.deal[0];
    int32_t num_ids = deal->num_ids[r];
    LastFill* last = r < MAX_PROBES ? &firsts->last_fill[r] : NULL;
    bool is_same = last != NULL && last->mb_of != NULL && memcmp(&last->taper, taper, sizeof *taper) == 0;
    if (is_same) {
        *mb_of = last->mb_of;
        return STATUS_OK;
    }
    if (last == NULL || last->mb_of == NULL) {
        ARENA_TRY_NEW(*mb_of, last != NULL ? &search->lists : arena, int32_t, num_ids);
    } else {
        *mb_of = last->mb_of;
    }
    TRY(search_fill(*mb_of, &search->weights, deal->ids[r], num_ids, taper, arena));
    // in jobs that could have been walked meanwhile
    search->budget -=
        search->weights.num_resources == 1 ? 2 * (int64_t)num_ids : (int64_t)num_ids * taper->num_mbs / 5;
    if (last != NULL) { *last = (LastFill){*taper, *mb_of}; }
    return STATUS_OK;
}

Status search_try_state(SearchState* out, Firsts* firsts, const First* first, int32_t r,
                        const Placement* placement, Arena* arena) {
    Search* search = firsts->search;
    const Deal* deal = &firsts->deals.deal[first->cut];
    MicrobatchTaper taper = first->taper;
    MbLayout layout = search_is_padded(firsts) ? LAYOUT_PADDED : LAYOUT_RAGGED;
    int32_t num_ids = deal->num_ids[r], *mb_of;
    if (taper.num_mbs > num_ids) { taper.num_mbs = num_ids; }
    *out = (SearchState){0};
    if (num_ids == 0) { return STATUS_OK; }
    if (layout == LAYOUT_PADDED) {
        mb_of = deal->mb_of[r];
        taper.num_mbs = deal->num_mbs[r];
    } else {
        TRY(fill(&mb_of, firsts, r, &taper, arena));
    }
    TRY(search_state_init(out, search->problem, search->replica[r], layout, deal->ids[r], num_ids, mb_of,
                          taper.num_mbs, first->rule.mode, search->split_backward, placement, arena));
    search->budget -= 4 * (int64_t)out->num_rows * out->M;
    if (layout == LAYOUT_PADDED) { TRY(search_state_small_ends(out, arena)); }
    if (first->order != ORDER_MIDDLE) { put_in_order(out, (Order)first->order); }
    if (first->rule.share_percent > 0) { search_state_fit_modes(out, first->rule.share_percent); }
    if (first->rule.early_percent < 100 && first->rule.share_percent == 0) {
        keep_late(out, first->rule.early_percent);
    }
    for (int32_t k = 0; k < out->K && first->in_flight != 0; k++) {
        out->rule.max_in_flight[k] =
            first->in_flight < 0 ? -first->in_flight : first->in_flight * (out->K - k);
    }
    return STATUS_OK;
}

Status search_try_simulate(Search* search, SearchState* state, int64_t cutoff_ns) {
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

// Does the rule recompute anything? Else it is the first rule again.
static bool recomputes(const SearchState* state) {
    for (int32_t i = 0; i < state->K * state->M; i++) {
        if (state->mode[i] != state->problem->modes[0]) { return true; }
    }
    return false;
}

// INT64_MAX: slower than the slowest candidate that may be tuned, does not fit, or is another's double.
static Status try_first(int64_t* makespan_ns, Firsts* firsts, First first) {
    Search* search = firsts->search;
    int64_t cutoff_ns = INT64_MAX;
    if (firsts->num_firsts > NUM_TUNED) {
        cutoff_ns = firsts->firsts[NUM_TUNED].makespan_ns;
        if (firsts->num_places > 1) { cutoff_ns += cutoff_ns / 8; }
    }
    first.makespan_ns = 0;
    for (int32_t r = 0; r < firsts->num_probes; r++) {
        SearchState state;
        arena_reset(&search->tries);
        TRY(search_try_state(&state, firsts, &first, r, &firsts->places[first.place], &search->tries));
        bool is_double = first.rule.share_percent > 0 && state.N > 0 && !recomputes(&state);
        if (!is_double) { TRY(search_try_simulate(search, &state, cutoff_ns)); }
        if (state.makespan_ns > first.makespan_ns) { first.makespan_ns = state.makespan_ns; }
        if (first.makespan_ns >= cutoff_ns) { break; }
    }
    *makespan_ns = first.makespan_ns;
    if (first.makespan_ns < INT64_MAX) { insert(firsts, &first); }
    return STATUS_OK;
}

// With many stages a few candidates take more than the search has. What is left then goes to tuning the best.
static bool is_spent(const Firsts* firsts) {
    return firsts->num_firsts > 0 && firsts->search->budget < firsts->stop_budget;
}

// Padded: every cut with every rule, in every placement, as far as the budget lasts.
static Status try_cuts(Firsts* firsts, int32_t place) {
    ModeRule rules[MAX_RULES];
    int32_t num_rules = mode_rules(rules, firsts->search->problem, firsts->places[place].num_chunks);
    int64_t ns;
    for (int32_t i = 0; i < num_rules; i++) {
        for (int32_t k = 0; k < firsts->deals.num_deals && (place == 0 || !is_spent(firsts)); k++) {
            First first = {.rule = rules[i],
                           .taper = {.num_mbs = firsts->deals.deal[k].num_all},
                           .cut = k,
                           .place = place};
            TRY(try_first(&ns, firsts, first));
        }
    }
    return STATUS_OK;
}

static Status try_counts(Firsts* firsts, const ModeRule* rule) {
    static const int32_t count_percent[] = {300, 200, 400, 150, 500, 250, 600, 800, 100, 1000};  // of P
    int32_t P = firsts->search->problem->P, last = 0, most = firsts->deals.deal[0].num_ids[0];
    int64_t ns;
    for (size_t c = 0; c < sizeof count_percent / sizeof *count_percent; c++) {
        int32_t num_mbs = P * count_percent[c] / 100;
        num_mbs = num_mbs < 1 ? 1 : num_mbs > most ? most : num_mbs;
        if (num_mbs == last || is_spent(firsts)) { continue; }
        last = num_mbs;
        MicrobatchTaper taper = {
            .num_mbs = num_mbs, .depth = P * search_tapers[0][0] / 100, .end_percent = search_tapers[0][1]};
        TRY(try_first(&ns, firsts, (First){.rule = *rule, .taper = taper}));
    }
    // many samples: as many micro-batches as let P - s of them be kept
    int64_t kept = search_fill_least_mbs(firsts->search->problem, firsts->deals.deal[0].ids[0], most);
    for (int32_t percent = 50; percent <= 300 && kept > 5 * P && rule->share_percent != 160;
         percent += percent / 2) {
        int64_t num_mbs = kept * percent / 100;
        MicrobatchTaper taper = {.num_mbs = (int32_t)num_mbs, .depth = P, .end_percent = 40};
        if (num_mbs > 10 * P && num_mbs <= most && !is_spent(firsts)) {
            TRY(try_first(&ns, firsts, (First){.rule = *rule, .taper = taper}));
        }
    }
    return STATUS_OK;
}

// What is known of a placement, of each rule for what is recomputed, while placements are told apart.
typedef struct {
    int32_t place, num_rules;
    ModeRule rules[MAX_RULES];
    int64_t rule_ns[MAX_RULES];     // the best with that rule so far; 0: not tried, INT64_MAX: nothing fits
    int32_t failed_mbs[MAX_RULES];  // the most micro-batches that did not fit
    int64_t best_ns;
} Contender;

static int compare_contenders(const void* a, const void* b) {
    const Contender *x = a, *y = b;
    if (x->best_ns != y->best_ns) { return x->best_ns < y->best_ns ? -1 : 1; }
    return x->place - y->place;
}

// One number of micro-batches; all of them in flight, or as adaptive has it.
static Status try_contender(Firsts* firsts, Contender* contender, int32_t num_mbs, int32_t round) {
    int32_t P = firsts->search->problem->P;
    for (int32_t k = 0; k < contender->num_rules && k < RULES_A_ROUND * (round + 1); k++) {
        int64_t* best_ns = &contender->rule_ns[k];
        bool is_known = *best_ns > 0, has_failed = *best_ns == INT64_MAX;
        bool is_far = is_known && *best_ns - contender->best_ns > contender->best_ns / 8;
        if (has_failed) { is_far = num_mbs <= contender->failed_mbs[k]; }  // smaller ones may fit
        if (is_far || is_spent(firsts)) { continue; }
        if (!is_known) { *best_ns = INT64_MAX; }
        First first = {.rule = contender->rules[k],
                       .taper = {.num_mbs = num_mbs, .depth = P, .end_percent = search_tapers[0][1]},
                       .place = contender->place};
        for (int32_t i = round == 0 ? 2 : 0; i < 4; i++) {
            int64_t makespan_ns;
            bool may_be_last = firsts->has_long && round > 0 && *best_ns <= contender->best_ns;
            if (i % 2 == 1 && !may_be_last) { continue; }
            first.in_flight = i >= 2 ? -num_mbs : 0;
            first.order = i % 2 == 1 ? ORDER_LAST : ORDER_MIDDLE;
            TRY(try_first(&makespan_ns, firsts, first));
            if (makespan_ns < *best_ns) { *best_ns = makespan_ns; }
        }
        if (*best_ns == INT64_MAX) { contender->failed_mbs[k] = num_mbs; }
        if (*best_ns < contender->best_ns) { contender->best_ns = *best_ns; }
    }
    return STATUS_OK;
}

enum { NUM_COUNTS = 6, LEAST_CONTENDERS = 3, SCOUTS = 2 };

typedef struct {
    int32_t num_mbs;
    int64_t best_ns;
} Count;

static int compare_counts(const void* a, const void* b) {
    const Count *x = a, *y = b;
    return x->best_ns != y->best_ns ? (x->best_ns < y->best_ns ? -1 : 1) : x->num_mbs - y->num_mbs;
}

static int32_t best_rule(const Contender* contender) {
    int32_t best = 0;
    for (int32_t k = 1; k < contender->num_rules; k++) {
        bool is_known = contender->rule_ns[k] > 0;
        if (is_known && contender->rule_ns[k] < contender->rule_ns[best]) { best = k; }
    }
    return best;
}

// The first number of micro-batches is known; what the others give in the placements that are best with it.
static Status scout_counts(Count counts[NUM_COUNTS], Firsts* firsts, const Contender* contenders,
                           int32_t num) {
    for (int32_t c = 1; c < NUM_COUNTS; c++) {
        counts[c].best_ns = INT64_MAX;
        for (int32_t i = 0; i < num && i < SCOUTS && !is_spent(firsts); i++) {
            int64_t makespan_ns;
            First first = {.rule = contenders[i].rules[best_rule(&contenders[i])],
                           .taper = {.num_mbs = counts[c].num_mbs,
                                     .depth = firsts->search->problem->P,
                                     .end_percent = search_tapers[0][1]},
                           .in_flight = -counts[c].num_mbs,
                           .place = contenders[i].place};
            TRY(try_first(&makespan_ns, firsts, first));
            if (makespan_ns < counts[c].best_ns) { counts[c].best_ns = makespan_ns; }
        }
    }
    counts[0].best_ns = contenders[0].best_ns;
    return STATUS_OK;
}

static bool first_suits(const Count counts[NUM_COUNTS]) {
    bool suits = true;
    for (int32_t c = 1; c < NUM_COUNTS; c++) {
        suits &= counts[c].best_ns > counts[0].best_ns - counts[0].best_ns / 16;
    }
    return suits;
}

static int32_t drop_slower(Contender* contenders, int32_t num) {
    int32_t left = num * 2 / 3;
    qsort(contenders, (size_t)num, sizeof *contenders, compare_contenders);
    return left > LEAST_CONTENDERS ? left : num < LEAST_CONTENDERS ? num : LEAST_CONTENDERS;
}

// Numbers of micro-batches to tell placements apart by, the most telling first. Where memory takes many,
// parts of those of which stage s could keep P - s.
static void choose_counts(Count out[NUM_COUNTS], const Firsts* firsts) {
    static const int32_t usual[NUM_COUNTS] = {16, 9, 26, 12, 40, 5};  // with up to 6 stages
    static const int32_t kept_percent[NUM_COUNTS] = {160, 100, 300, 60, 500, 40};
    const PlanProblem* problem = firsts->search->problem;
    const Deal* deal = &firsts->deals.deal[0];
    int32_t P = problem->P, most = deal->num_ids[0];
    int64_t kept = search_fill_least_mbs(problem, deal->ids[0], most);
    bool takes_many = kept > (P > 6 ? 40 * P / 6 : 40);
    for (int32_t c = 0; c < NUM_COUNTS; c++) {
        int64_t num_mbs = takes_many ? kept * kept_percent[c] / 100 : P > 6 ? usual[c] * P / 6 : usual[c];
        out[c] = (Count){.num_mbs = num_mbs < most ? (int32_t)num_mbs : most};
    }
}

// As many placements as the budget has candidates for, in the order of search_places().
static int32_t affordable_places(const Firsts* firsts, int32_t num_mbs) {
    enum { CANDIDATES_A_PLACE = 3 };
    const Search* search = firsts->search;
    int64_t fill = 2 * (int64_t)firsts->deals.deal[0].num_ids[0], rows = 2 * search->problem->P;
    int64_t candidate = fill + 7 * rows * num_mbs;  // prices, and jobs F, B and W
    int64_t num = (search->budget - firsts->stop_budget) / (CANDIDATES_A_PLACE * candidate);
    return num < LEAST_CONTENDERS     ? LEAST_CONTENDERS
           : num < firsts->num_places ? (int32_t)num
                                      : firsts->num_places;
}

// All placements with one number of micro-batches after the other; each time the slower ones drop out, but
// not by a number that turns out to suit nobody.
static Status try_places(Firsts* firsts) {
    const PlanProblem* problem = firsts->search->problem;
    int32_t num = firsts->num_places;
    Contender* contenders;
    Count counts[NUM_COUNTS];
    bool is_usual = true;
    ARENA_TRY_NEW(contenders, &firsts->search->lists, Contender, num);
    for (int32_t i = 0; i < num; i++) {
        contenders[i] = (Contender){.place = i, .best_ns = INT64_MAX};
        contenders[i].num_rules = mode_rules(contenders[i].rules, problem, firsts->places[i].num_chunks);
    }
    choose_counts(counts, firsts);
    num = affordable_places(firsts, counts[0].num_mbs);
    if (num > firsts->num_places) num = firsts->num_places;
    for (int32_t c = 0; c < NUM_COUNTS && (c < NUM_COUNTS - 1 || !is_usual); c++) {
        for (int32_t i = 0; i < num; i++) {
            TRY(try_contender(firsts, &contenders[i], counts[c].num_mbs, c));
        }
        bool suits = true;
        if (c == 0) {
            qsort(contenders, (size_t)num, sizeof *contenders, compare_contenders);
            TRY(scout_counts(counts, firsts, contenders, num));
            suits = first_suits(counts);
            is_usual = suits;
            if (!suits) { qsort(counts + 1, NUM_COUNTS - 1, sizeof *counts, compare_counts); }
        }
        if (suits) { num = drop_slower(contenders, num); }
    }
    return STATUS_OK;
}

// Other tapers for the best.
static Status try_tapers(Firsts* firsts) {
    int32_t P = firsts->search->problem->P;
    int64_t ns;
    First best[NUM_TUNED];
    int32_t num_best = firsts->num_firsts < NUM_TUNED ? firsts->num_firsts : NUM_TUNED;
    memcpy(best, firsts->firsts, sizeof best);
    for (int32_t k = 0; k < num_best; k++) {
        for (int32_t t = 1; t < SEARCH_TAPERS && !is_spent(firsts); t++) {
            best[k].taper.depth = P * search_tapers[t][0] / 100;
            best[k].taper.end_percent = search_tapers[t][1];
            TRY(try_first(&ns, firsts, best[k]));
        }
    }
    return STATUS_OK;
}

Status search_try(Firsts* firsts) {
    const PlanProblem* problem = firsts->search->problem;
    ModeRule rules[MAX_RULES];
    int32_t num_rules = mode_rules(rules, problem, problem->P), num_probes = firsts->num_probes;
    if (search_is_padded(firsts)) {
        for (int32_t i = 0; i < firsts->num_places; i++) { TRY(try_cuts(firsts, i)); }
        return STATUS_OK;
    }
    if (firsts->num_places == 1) {
        for (int32_t k = 0; k < num_rules; k++) { TRY(try_counts(firsts, &rules[k])); }
    } else {
        if (!problem->differs) { firsts->num_probes = 1; }
        TRY(try_places(firsts));
        firsts->num_probes = num_probes;
    }
    return try_tapers(firsts);
}
