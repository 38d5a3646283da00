#include "search.h"

#include <stdlib.h>
#include <string.h>

#include "../schedule.h"
#include "search_first.h"
#include "search_lean.h"
#include "search_moves.h"

static int64_t slowest_ns(const Search* search) {
    int64_t slowest = 0;
    for (int32_t r = 0; r < search->R; r++) {
        if (search->state[r].makespan_ns > slowest) { slowest = search->state[r].makespan_ns; }
    }
    return slowest;
}

// --- exchange of samples between replicas ----------------------------------------------------------------

// Two samples change replicas where that makes the slower of both faster.
static Status exchange(Search* search, SearchState* slow, SearchState* fast, int64_t* budget, Rng* rng) {
    SearchState tried_slow, tried_fast;
    const int64_t* size = search->weights.size;
    arena_reset(&search->tries);
    TRY(search_state_copy(&tried_slow, slow, &search->tries));
    TRY(search_state_copy(&tried_fast, fast, &search->tries));
    for (int64_t tries = *budget; *budget > 0 && tries > 0; tries--) {
        int32_t i = (int32_t)rng_below(rng, (uint32_t)slow->N),
                j = (int32_t)rng_below(rng, (uint32_t)fast->N);
        int32_t id = slow->ids[i];
        --*budget;  // drawing is cheap, but with samples of one size nothing else is spent
        if (size[id] <= size[fast->ids[j]]) { continue; }
        search_state_replace(&tried_slow, i, fast->ids[j]);
        search_state_replace(&tried_fast, j, id);
        TRY(search_state_simulate(&tried_slow.makespan_ns, &tried_slow, slow->makespan_ns, budget,
                                  &search->simulator));
        if (tried_slow.makespan_ns < slow->makespan_ns) {
            TRY(search_state_simulate(&tried_fast.makespan_ns, &tried_fast, slow->makespan_ns, budget,
                                      &search->simulator));
            if (tried_fast.makespan_ns < slow->makespan_ns) {
                search_state_assign(slow, &tried_slow);
                search_state_assign(fast, &tried_fast);
                if (slow->makespan_ns <= fast->makespan_ns) { return STATUS_OK; }
                continue;
            }
        }
        search_state_assign(&tried_slow, slow);
        search_state_assign(&tried_fast, fast);
    }
    return STATUS_OK;
}

static void find_ends(const Search* search, int32_t* slowest, int32_t* fastest) {
    *slowest = *fastest = 0;
    for (int32_t r = 1; r < search->R; r++) {
        if (search->state[r].makespan_ns > search->state[*slowest].makespan_ns) { *slowest = r; }
        if (search->state[r].makespan_ns < search->state[*fastest].makespan_ns) { *fastest = r; }
    }
}

static Status exchange_all(Search* search, int64_t budget, Rng* rng) {
    if (search->R < 2) { return STATUS_OK; }
    for (int32_t round = 0; round < 2 * search->R && budget > 0; round++) {
        int32_t slowest, fastest;
        int64_t part = budget / 2 + 1;
        find_ends(search, &slowest, &fastest);
        SearchState *slow = &search->state[slowest], *fast = &search->state[fastest];
        if (slow->makespan_ns - fast->makespan_ns <= slow->makespan_ns / 2000 || fast->N == 0) { break; }
        budget -= part;
        TRY(exchange(search, slow, fast, &part, rng));
        budget += part;
    }
    return STATUS_OK;
}

// --- improvement -----------------------------------------------------------------------------------------

// Would the replica be faster if memory had no end?
static Status memory_binds(bool* out, const SearchState* state, Arena* simulator) {
    SearchState free_state = *state;
    int64_t makespan_ns, budget = 0;
    *out = false;
    for (int32_t i = 0; i < state->K * state->M; i++) { *out |= state->mode[i] != state->problem->modes[0]; }
    for (int32_t s = 0; s < state->P; s++) { free_state.pipe.memory_limit_bytes[s] = INT64_MAX; }
    if (*out) { return STATUS_OK; }
    TRY(search_state_simulate(&makespan_ns, &free_state, state->makespan_ns, &budget, simulator));
    *out = makespan_ns < state->makespan_ns;
    return STATUS_OK;
}

static Status improve(Search* search, int32_t r, int64_t good_enough_ns, int64_t budget, bool placement,
                      Rng* rng) {
    SearchState* state = &search->state[r];
    SearchFreedom freedom = {.samples = true, .placement = placement};
    if (state->N == 0) { return STATUS_OK; }
    TRY(memory_binds(&freedom.modes, state, &search->simulator));
    arena_reset(&search->tries);
    return search_improve(state, &freedom, good_enough_ns, &budget, rng, &search->tries, &search->simulator);
}

static Status improve_all(Search* search, Rng* rng) {
    bool alone = search->R == 1;
    int64_t left = search->budget;
    if (alone) {
        return improve(search, 0, search->good_enough_ns, left, search->problem->request->choose_stages, rng);
    }
    // all once, then the slowest again and again
    int64_t part = left / 2 / search->R;
    for (int32_t r = 0; r < search->R && part > 0; r++) {
        TRY(improve(search, r, search->good_enough_ns, part, false, rng));
        left -= part;
    }
    TRY(exchange_all(search, left / 2, rng));
    left -= left / 2;
    for (int32_t round = 0; round < 8 && left > 0; round++) {
        int32_t slowest, fastest;
        int64_t spend = left / 4 + 1;
        find_ends(search, &slowest, &fastest);
        if (search->state[slowest].makespan_ns <= search->good_enough_ns) { break; }
        TRY(improve(search, slowest, search->state[fastest].makespan_ns, spend, false, rng));
        left -= spend;
        TRY(exchange_all(search, spend, rng));
        left -= spend;
    }
    return STATUS_OK;
}

// --- the draft -------------------------------------------------------------------------------------------

static int compare_ids(const void* a, const void* b) {
    int32_t x = *(const int32_t*)a, y = *(const int32_t*)b;
    return (x > y) - (x < y);
}

static Status draft_replica(Draft* out, const Search* search, int32_t r, int32_t* ids, Arena* arena) {
    const SearchState* state = &search->state[r];
    DraftReplica* replica = &out->replica[search->replica[r]];
    const PlanProblem* problem = search->problem;
    bool split = state->rule.split_backward;
    *replica = (DraftReplica){.variant = {.name = split ? "adaptive+w" : "adaptive",
                                          .policy = &pipe_policy_adaptive,
                                          .split_backward = split,
                                          .has_rule = true,
                                          .rule = state->rule},
                              .makespan_ns = state->makespan_ns};
    ARENA_TRY_NEW(replica->order, arena, int32_t, state->M);
    ARENA_TRY_NEW(replica->modes, arena, uint8_t, (int64_t)state->K * state->M);
    for (int32_t k = 0; k < state->M; k++) {
        int32_t m = state->order[k], num = 0;
        for (int32_t i = state->head[m]; i >= 0; i = state->next[i]) { ids[num++] = state->ids[i]; }
        qsort(ids, (size_t)num, sizeof *ids, compare_ids);
        microbatch_list_append(&out->list, problem, state->layout, (RecomputeMode)state->mode[m], ids, num);
        out->list.mbs[out->list.num_mbs - 1].replica = search->replica[r];
        replica->order[k] = k;
        for (int32_t c = 0; c < state->K; c++) {
            replica->modes[(int64_t)c * state->M + k] = state->mode[(int64_t)c * state->M + m];
        }
    }
    return STATUS_OK;
}

static Status make_draft(Draft* out, const Search* search, Arena* arena) {
    const PlanProblem* problem = search->problem;
    int32_t N = problem->num_samples, *ids;
    Draft draft = {.makespan_ns = slowest_ns(search), .fastest_ns = search->fastest_ns};
    if (draft.makespan_ns == INT64_MAX) { return FAIL(STATUS_INFEASIBLE, "search: nothing fits in memory"); }
    ARENA_TRY_NEW(ids, arena, int32_t, N);
    ARENA_TRY_NEW(draft.replica, arena, DraftReplica, search->R);
    TRY(microbatch_list_reserve(&draft.list, N, N, arena));
    draft.placement = search->placement;
    for (int32_t r = 0; r < search->R; r++) { TRY(draft_replica(&draft, search, r, ids, arena)); }
    TRY(balance_replicas(&draft.replicas, &draft.list, search->R, NULL, arena));
    *out = draft;
    return STATUS_OK;
}

enum { LEAN_PART = 20 };  // of the budget, for holding less
enum { JOB_NS = 30 };     // that one job of a simulation takes, all else of a plan spread over them

// An effort counts simulations of 5 P micro-batches: so many jobs F, B and W.
static int64_t effort_jobs(int32_t P) {
    return 15 * (int64_t)P * P;
}

int32_t search_effort(int32_t P, int64_t search_ns) {
    int64_t effort = search_ns / JOB_NS / effort_jobs(P);
    return effort < 1 ? 1 : effort > INT32_MAX ? INT32_MAX : (int32_t)effort;
}

// Jobs that simulations may walk, and other work in their stead; one takes some 160 instructions. By default
// as many as take about 20 ms of a core per replica of a few hundred samples, more for large batches, less
// per replica where there are many of them, and enough for some 60 simulations of 3 P micro-batches.
static int64_t budget_jobs(const PlanProblem* problem, int32_t effort) {
    int64_t N = problem->num_samples, R = problem->R;
    if (effort > 0) { return effort * effort_jobs(problem->P); }
    int64_t jobs = 400000 * R + 450 * N, most = 4000000 + 400 * N / R,
            least = 600 * (int64_t)problem->P * problem->P;
    jobs = jobs < most ? jobs : most;
    return jobs > least ? jobs : least;
}

// No replica has to be faster than the slowest was.
static Status lean_all(Search* search, int64_t budget) {
    int64_t fastest_ns = slowest_ns(search), slack = search->problem->request->memory_slack_permille;
    if (fastest_ns == INT64_MAX || slack == 0) { return STATUS_OK; }
    int64_t most_ns = fastest_ns + fastest_ns / 1000 * slack;
    for (int32_t r = 0; r < search->R; r++) {
        int64_t part = budget / search->R;
        TRY(search_lean(&search->state[r], most_ns, &part, &search->simulator));
    }
    search->fastest_ns = fastest_ns;
    return STATUS_OK;
}

static Status search_all(Search* search) {
    Rng rng = rng_seed((uint64_t)search->problem->num_samples);
    const int64_t whole = search->budget;
    TRY(search_first(search));
    TRY(improve_all(search, &rng));
    TRY(lean_all(search, whole / LEAN_PART));
    if (search->R == 1) { search->placement = search->state[0].placement; }
    return STATUS_OK;
}

Status search_draft(Draft* out, const PlanProblem* problem, int32_t effort, int32_t effort_parts,
                    int64_t good_enough_ns, Arena* arena) {
    Search search = {.problem = problem,
                     .R = problem->R,
                     .budget = budget_jobs(problem, effort) / effort_parts,
                     .good_enough_ns = good_enough_ns,
                     .split_backward = problem->request->split_backward != SPLIT_BACKWARD_OFF};
    search.placement = problem->placement;
    Status status = search_all(&search);
    if (status == STATUS_OK) { status = make_draft(out, &search, arena); }
    arena_free(&search.lists);
    arena_free(&search.tries);
    arena_free(&search.simulator);
    return status;
}
