#include "search_moves.h"

#include <string.h>

#include "../schedule.h"
#include "../placement.h"

typedef enum {
    MOVE_ORDER,
    MOVE_SAMPLE,
    MOVE_MODE,
    MOVE_RULE,
    MOVE_NUMBER,
    MOVE_PLACEMENT,
    MOVE_COUNT
} MoveKind;

// One change, and what it takes to undo it.
typedef struct {
    MoveKind kind;
    bool swaps;                // MOVE_ORDER
    int32_t i, j;              // places; or samples (j -1: only i moves)
    int32_t from, to;          // micro-batches that changed: -1 none
    int32_t chunk, old_value;  // MOVE_RULE; chunk -1: how long W waits
    MbShape shape[2];
} Move;

typedef struct {
    SearchState* state;
    const SearchFreedom* freedom;
    Rng* rng;
    PipeCost* saved_cost[2];  // [rows] columns of the two micro-batches that changed
    int64_t saved_scratch[2];
    uint8_t* saved_mode;  // [K]
    int64_t saved_limit[PLAN_MAX_STAGES];
    SearchState spare;  // the whole state before layers or shares moved
} Local;

// --- columns ---------------------------------------------------------------------------------------------

static void save_column(Local* local, int32_t which, int32_t m) {
    const SearchState* state = local->state;
    for (int32_t row = 0; row < state->num_rows; row++) {
        local->saved_cost[which][row] = state->cost[(int64_t)row * state->M + m];
    }
    local->saved_scratch[which] = state->scratch_bytes[m];
}

static void restore_column(Local* local, int32_t which, int32_t m) {
    SearchState* state = local->state;
    for (int32_t row = 0; row < state->num_rows; row++) {
        state->cost[(int64_t)row * state->M + m] = local->saved_cost[which][row];
    }
    state->scratch_bytes[m] = local->saved_scratch[which];
}

// --- order -----------------------------------------------------------------------------------------------

// Take the micro-batch at place i out and put it in at place j.
static void reinsert(int32_t* order, int32_t i, int32_t j) {
    int32_t moved = order[i];
    if (i < j) {
        memmove(order + i, order + i + 1, (size_t)(j - i) * sizeof *order);
    } else {
        memmove(order + j + 1, order + j, (size_t)(i - j) * sizeof *order);
    }
    order[j] = moved;
}

static void swap_places(int32_t* order, int32_t i, int32_t j) {
    int32_t a = order[i];
    order[i] = order[j];
    order[j] = a;
}

static bool draw_order(Local* local, Move* move) {
    SearchState* state = local->state;
    if (state->M < 2) { return false; }
    move->i = (int32_t)rng_below(local->rng, (uint32_t)state->M);
    move->j = (int32_t)rng_below(local->rng, (uint32_t)state->M - 1);
    move->j += move->j >= move->i;
    move->swaps = rng_below(local->rng, 2) == 0;
    (move->swaps ? swap_places : reinsert)(state->order, move->i, move->j);
    return true;
}

// --- samples ---------------------------------------------------------------------------------------------

static bool draw_sample(Local* local, Move* move) {
    SearchState* state = local->state;
    if (state->M < 2) { return false; }
    move->i = (int32_t)rng_below(local->rng, (uint32_t)state->N);
    move->j = -1;
    move->from = state->mb_of[move->i];
    if (rng_below(local->rng, 2) == 0) {
        move->j = (int32_t)rng_below(local->rng, (uint32_t)state->N);
        move->to = state->mb_of[move->j];
    } else {
        move->to = (int32_t)rng_below(local->rng, (uint32_t)state->M);
    }
    if (move->from == move->to || (move->j < 0 && state->count[move->from] == 1)) { return false; }
    move->shape[0] = state->shape[move->from];
    move->shape[1] = state->shape[move->to];
    save_column(local, 0, move->from);
    save_column(local, 1, move->to);
    search_state_move_sample(state, move->i, move->to);
    if (move->j >= 0) { search_state_move_sample(state, move->j, move->from); }
    search_state_price(state, move->from);
    search_state_price(state, move->to);
    return true;
}

static void undo_sample(Local* local, const Move* move) {
    SearchState* state = local->state;
    search_state_move_sample(state, move->i, move->from);
    if (move->j >= 0) { search_state_move_sample(state, move->j, move->to); }
    state->shape[move->from] = move->shape[0];
    state->shape[move->to] = move->shape[1];
    restore_column(local, 0, move->from);
    restore_column(local, 1, move->to);
}

// --- recompute modes -------------------------------------------------------------------------------------

static bool draw_mode(Local* local, Move* move) {
    SearchState* state = local->state;
    const PlanProblem* problem = state->problem;
    if (problem->num_modes < 2) { return false; }
    int32_t m = (int32_t)rng_below(local->rng, (uint32_t)state->M), changed = 0;
    RecomputeMode mode = problem->modes[rng_below(local->rng, (uint32_t)problem->num_modes)];
    // one chunk, or all from there on, or all up to there
    int32_t first = (int32_t)rng_below(local->rng, (uint32_t)state->K), last = first;
    uint32_t range = rng_below(local->rng, 4);
    if (range == 0) { last = state->K - 1; }
    if (range == 1) { first = 0; }
    save_column(local, 0, m);
    for (int32_t k = 0; k < state->K; k++) {
        uint8_t* at = &state->mode[(int64_t)k * state->M + m];
        local->saved_mode[k] = *at;
        if (k < first || k > last) { continue; }
        changed += *at != mode;
        *at = (uint8_t)mode;
    }
    move->from = m;
    if (changed > 0) { search_state_price(state, m); }
    return changed > 0;
}

static void undo_mode(Local* local, const Move* move) {
    SearchState* state = local->state;
    for (int32_t k = 0; k < state->K; k++) {
        state->mode[(int64_t)k * state->M + move->from] = local->saved_mode[k];
    }
    restore_column(local, 0, move->from);
}

// --- the rule --------------------------------------------------------------------------------------------

enum { WAIT_STEP = 125, MOST_WAIT = 500 };

// A chunk may have one micro-batch more or less in flight; or W waits longer, or less long, for a B or F.
static bool draw_rule(Local* local, Move* move) {
    SearchState* state = local->state;
    bool waits = state->rule.split_backward && rng_below(local->rng, 4) == 0;
    int32_t sign = rng_below(local->rng, 2) == 0 ? 1 : -1, most = waits ? MOST_WAIT : state->M;
    move->chunk = waits ? -1 : (int32_t)rng_below(local->rng, (uint32_t)state->K);
    int32_t* value = waits ? &state->rule.wait_permille : &state->rule.max_in_flight[move->chunk];
    move->old_value = *value;
    *value += waits ? sign * WAIT_STEP : sign;
    if (*value >= (waits ? 0 : 1) && *value <= most) { return true; }
    *value = move->old_value;
    return false;
}

static void undo_rule(SearchState* state, const Move* move) {
    *(move->chunk < 0 ? &state->rule.wait_permille : &state->rule.max_in_flight[move->chunk]) =
        move->old_value;
}

// --- the placement ---------------------------------------------------------------------------------------

// One layer over one boundary of the chain, or over all boundaries between two chunks.
static bool shift_layers(Placement* placement, Local* local) {
    const SearchState* state = local->state;
    int32_t K = state->K;
    if (K < 2) { return false; }
    int32_t first = (int32_t)rng_below(local->rng, (uint32_t)K - 1), last = first;
    bool to_first = rng_below(local->rng, 2) == 0;
    if (rng_below(local->rng, 3) == 0) {
        last = first + (int32_t)rng_below(local->rng, (uint32_t)(K - 1 - first));
    }
    placement_shift_layer(placement, to_first ? last + 1 : first, to_first ? first : last + 1);
    const bool has_layer = state->problem->request->rules.head_has_layer;
    return stage_may_have(&placement->chunks[first], first, K, has_layer) &&
           stage_may_have(&placement->chunks[last + 1], last + 1, K, has_layer);
}

// Some units of the head from one stage to another; those between keep as many as they have.
static bool shift_share(Placement* placement, Local* local) {
    int32_t P = local->state->P, units = HEAD_UNITS >> (3 + rng_below(local->rng, 5));
    if (P < 2) { return false; }
    int32_t from = (int32_t)rng_below(local->rng, (uint32_t)P);
    int32_t to = (int32_t)rng_below(local->rng, (uint32_t)P - 1);
    to += to >= from;
    int32_t has = placement->head_begin[from + 1] - placement->head_begin[from];
    if (units > has) { units = has; }
    for (int32_t s = from; s < to; s++) { placement->head_begin[s + 1] -= (int16_t)units; }
    for (int32_t s = to; s < from; s++) { placement->head_begin[s + 1] += (int16_t)units; }
    return units > 0;
}

static bool draw_placement(Local* local) {
    SearchState* state = local->state;
    Placement placement = state->placement;
    const PlanRequest* request = state->problem->request;
    bool is_told = request->heads == HEAD_CHOICE_GIVEN && request->placements != PLACEMENT_GIVEN;
    bool of_head = placement.head != HEAD_WHOLE && !is_told && rng_below(local->rng, 2) == 0;
    if (!(of_head ? shift_share : shift_layers)(&placement, local)) { return false; }
    search_state_assign(&local->spare, state);
    return search_state_set_placement(state, &placement);
}

// --- the number of micro-batches --------------------------------------------------------------------------

static bool draw_number(Local* local) {
    SearchState* state = local->state;
    int32_t m = (int32_t)rng_below(local->rng, (uint32_t)state->M);
    if (rng_below(local->rng, 2) == 0) {
        search_state_assign(&local->spare, state);
        return search_state_divide(state, m);
    }
    if (state->M < 2) { return false; }
    int32_t from = (int32_t)rng_below(local->rng, (uint32_t)state->M - 1);
    from += from >= m;
    search_state_assign(&local->spare, state);
    search_state_merge(state, m, from);
    return true;
}

// --- the search ------------------------------------------------------------------------------------------

static bool draw(Local* local, Move* move) {
    // of 64: what a kind of move has earned on the shared planning problems
    uint32_t pick = rng_below(local->rng, 64);
    *move = (Move){.from = -1, .to = -1};
    if (pick < 2) {
        move->kind = MOVE_RULE;
        return draw_rule(local, move);
    }
    if (pick < 4 && local->freedom->placement) {
        move->kind = MOVE_PLACEMENT;
        return draw_placement(local);
    }
    if (pick < 9 && local->freedom->samples) {
        move->kind = MOVE_NUMBER;
        return draw_number(local);
    }
    if (pick < 20 && local->freedom->modes) {
        move->kind = MOVE_MODE;
        return draw_mode(local, move);
    }
    if (pick < 46 && local->freedom->samples) {
        move->kind = MOVE_SAMPLE;
        return draw_sample(local, move);
    }
    move->kind = MOVE_ORDER;
    return draw_order(local, move);
}

static void undo(Local* local, const Move* move) {
    SearchState* state = local->state;
    switch (move->kind) {
        case MOVE_ORDER:
            if (move->swaps) {
                swap_places(state->order, move->i, move->j);
            } else {
                reinsert(state->order, move->j, move->i);
            }
            break;
        case MOVE_SAMPLE: undo_sample(local, move); break;
        case MOVE_MODE: undo_mode(local, move); break;
        case MOVE_RULE: undo_rule(state, move); break;
        default: search_state_assign(state, &local->spare); break;
    }
    memcpy(state->pipe.memory_limit_bytes, local->saved_limit, sizeof local->saved_limit);
}

static Status local_init(Local* local, SearchState* state, const SearchFreedom* freedom, Rng* rng,
                         Arena* arena) {
    *local = (Local){.state = state, .freedom = freedom, .rng = rng};
    for (int k = 0; k < 2; k++) { ARENA_TRY_NEW(local->saved_cost[k], arena, PipeCost, state->num_rows); }
    ARENA_TRY_NEW(local->saved_mode, arena, uint8_t, state->K);
    return search_state_copy(&local->spare, state, arena);
}

Status search_improve(SearchState* state, const SearchFreedom* freedom, int64_t good_enough_ns,
                      int64_t* budget, Rng* rng, Arena* arena, Arena* scratch) {
    Local local;
    SearchState best;
    int64_t now_ns = state->makespan_ns;
    const int64_t whole = *budget > 0 ? *budget : 1;
    TRY(local_init(&local, state, freedom, rng, arena));
    TRY(search_state_copy(&best, state, arena));
    // a move that cannot be made costs no simulation, but must not go on for ever
    for (int64_t tries = 0; *budget > 0 && tries < whole; tries++) {
        Move move;
        int64_t makespan_ns, tolerance_ns = best.makespan_ns / 1000 * (*budget * 1000 / whole) / 1000;
        if (best.makespan_ns <= good_enough_ns) { break; }
        memcpy(local.saved_limit, state->pipe.memory_limit_bytes, sizeof local.saved_limit);
        if (!draw(&local, &move)) { continue; }
        if (move.kind == MOVE_SAMPLE || move.kind == MOVE_MODE) { search_state_limits(state); }
        int64_t cutoff_ns = now_ns == INT64_MAX ? INT64_MAX : now_ns + tolerance_ns;
        if (best.makespan_ns < INT64_MAX && cutoff_ns > best.makespan_ns + tolerance_ns) {
            cutoff_ns = best.makespan_ns + tolerance_ns;
        }
        TRY(search_state_simulate(&makespan_ns, state, cutoff_ns, budget, scratch));
        if (makespan_ns > cutoff_ns || (makespan_ns == INT64_MAX && now_ns < INT64_MAX)) {
            undo(&local, &move);
            continue;
        }
        now_ns = state->makespan_ns = makespan_ns;
        if (now_ns < best.makespan_ns) { search_state_assign(&best, state); }
    }
    search_state_assign(state, &best);
    return STATUS_OK;
}
