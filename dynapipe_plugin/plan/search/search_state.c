#include "search_state.h"

#include <stdlib.h>
#include <string.h>

#include "../schedule.h"
#include "../problem.h"
#include "../types.h"

static Status alloc(SearchState* out, Arena* arena) {
    int64_t cells = (int64_t)out->num_rows * out->max_mbs;
    ARENA_TRY_NEW(out->ids, arena, int32_t, out->N);
    ARENA_TRY_NEW(out->mb_of, arena, int32_t, out->N);
    ARENA_TRY_NEW(out->next, arena, int32_t, out->N);
    ARENA_TRY_NEW(out->prev, arena, int32_t, out->N);
    ARENA_TRY_NEW(out->head, arena, int32_t, out->max_mbs);
    ARENA_TRY_NEW(out->count, arena, int32_t, out->max_mbs);
    ARENA_TRY_NEW(out->shape, arena, MbShape, out->max_mbs);
    ARENA_TRY_NEW(out->order, arena, int32_t, out->max_mbs);
    ARENA_TRY_NEW(out->mode, arena, uint8_t, (int64_t)out->K * out->max_mbs);
    ARENA_TRY_NEW(out->scratch_bytes, arena, int64_t, out->max_mbs);
    ARENA_TRY_NEW(out->cost, arena, PipeCost, cells);
    return STATUS_OK;
}

void search_state_assign(SearchState* out, const SearchState* in) {
    SearchState own = *out;
    size_t N = (size_t)in->N, M = (size_t)in->M, cells = (size_t)in->num_rows * M;
    *out = *in;
    memcpy(out->ids = own.ids, in->ids, N * sizeof *in->ids);
    memcpy(out->mb_of = own.mb_of, in->mb_of, N * sizeof *in->mb_of);
    memcpy(out->next = own.next, in->next, N * sizeof *in->next);
    memcpy(out->prev = own.prev, in->prev, N * sizeof *in->prev);
    memcpy(out->head = own.head, in->head, M * sizeof *in->head);
    memcpy(out->count = own.count, in->count, M * sizeof *in->count);
    memcpy(out->shape = own.shape, in->shape, M * sizeof *in->shape);
    memcpy(out->order = own.order, in->order, M * sizeof *in->order);
    memcpy(out->mode = own.mode, in->mode, (size_t)in->K * M * sizeof *in->mode);
    memcpy(out->scratch_bytes = own.scratch_bytes, in->scratch_bytes, M * sizeof *in->scratch_bytes);
    memcpy(out->cost = own.cost, in->cost, cells * sizeof *in->cost);
    out->pipe.cost = out->cost;
}

Status search_state_copy(SearchState* out, const SearchState* in, Arena* arena) {
    SearchState state = {
        .P = in->P, .K = in->K, .num_rows = in->num_rows, .M = in->M, .N = in->N, .max_mbs = in->max_mbs};
    if (in->N == 0) {  // a replica without samples: nothing to copy, and nowhere to copy it from
        *out = *in;
        return STATUS_OK;
    }
    TRY(alloc(&state, arena));
    search_state_assign(&state, in);
    *out = state;
    return STATUS_OK;
}

// --- samples and shapes -----------------------------------------------------------------------------------

static const PlanSample* sample_at(const SearchState* state, int32_t i) {
    return &state->problem->samples[state->ids[i]];
}

static void chain_in(SearchState* state, int32_t i, int32_t m) {
    state->mb_of[i] = m;
    state->prev[i] = -1;
    state->next[i] = state->head[m];
    if (state->head[m] >= 0) { state->prev[state->head[m]] = i; }
    state->head[m] = i;
    state->count[m]++;
}

static void chain_out(SearchState* state, int32_t i) {
    int32_t m = state->mb_of[i];
    if (state->prev[i] >= 0) {
        state->next[state->prev[i]] = state->next[i];
    } else {
        state->head[m] = state->next[i];
    }
    if (state->next[i] >= 0) { state->prev[state->next[i]] = state->prev[i]; }
    state->count[m]--;
}

// Every sequence as long as the longest, which only a look at all of them tells.
static void shape_padded(SearchState* state, int32_t m) {
    int32_t enc = 0, dec = 0, num = state->count[m];
    for (int32_t i = state->head[m]; i >= 0; i = state->next[i]) {
        const PlanSample* sample = sample_at(state, i);
        enc = sample->enc_tokens > enc ? sample->enc_tokens : enc;
        dec = sample->dec_tokens > dec ? sample->dec_tokens : dec;
    }
    enc = microbatch_pad_tokens(state->problem, enc, num);
    dec = microbatch_pad_targets(state->problem, dec, num);
    state->shape[m] = (MbShape){0};
    for (int32_t i = state->head[m]; i >= 0; i = state->next[i]) {
        mb_shape_add(&state->shape[m], enc, dec, sample_at(state, i)->supervised_tokens);
    }
}

static void shape_add(MbShape* shape, const PlanSample* sample, int64_t sign) {
    int64_t enc = sample->enc_tokens, dec = sample->dec_tokens;
    shape->num_seqs += sign;
    shape->enc_tokens += sign * enc;
    shape->enc_squares += sign * enc * enc;
    shape->dec_tokens += sign * dec;
    shape->dec_squares += sign * dec * dec;
    shape->cross_products += sign * enc * dec;
    shape->supervised_tokens += sign * sample->supervised_tokens;
}

void search_state_move_sample(SearchState* state, int32_t sample, int32_t to) {
    int32_t from = state->mb_of[sample];
    chain_out(state, sample);
    chain_in(state, sample, to);
    if (state->layout == LAYOUT_PADDED) {
        shape_padded(state, from);
        shape_padded(state, to);
    } else {
        shape_add(&state->shape[from], sample_at(state, sample), -1);
        shape_add(&state->shape[to], sample_at(state, sample), 1);
    }
}

// --- prices -----------------------------------------------------------------------------------------------

void search_state_price(SearchState* state, int32_t m) {
    PipePlace place = {.problem = state->problem,
                       .ranks = state->ranks,
                       .placement = &state->placement,
                       .chunks = state->chunks,
                       .P = state->P};
    state->scratch_bytes[m] =
        pipe_costs_make(state->cost + m, NULL, state->M, &place, state->mode + m, &state->shape[m]);
}

void search_state_replace(SearchState* state, int32_t sample, int32_t id) {
    int32_t m = state->mb_of[sample];
    if (state->layout != LAYOUT_PADDED) { shape_add(&state->shape[m], sample_at(state, sample), -1); }
    state->ids[sample] = id;
    if (state->layout == LAYOUT_PADDED) {
        shape_padded(state, m);
    } else {
        shape_add(&state->shape[m], sample_at(state, sample), 1);
    }
    search_state_price(state, m);
    search_state_limits(state);
}

// --- the number of micro-batches --------------------------------------------------------------------------

// Columns 0 .. num - 1 of rows that were `stride` apart, now `num` apart; column m comes from column
// source(m).
static void restride(SearchState* state, int32_t stride, int32_t num, int32_t replaced, int32_t by) {
    bool grows = num > stride;
    int32_t cells = state->num_rows * num, kept = state->K * num;
    for (int32_t i = 0; i < cells; i++) {
        int32_t to = grows ? cells - 1 - i : i, row = to / num, m = to % num;
        int32_t from = row * stride + (m == replaced ? by : m < stride ? m : by);
        if (to < kept) { state->mode[to] = state->mode[from]; }
        state->cost[to] = state->cost[from];
    }
    if (replaced < num) { state->scratch_bytes[replaced] = state->scratch_bytes[by]; }
    state->M = num;
    state->pipe.M = num;
}

void search_state_merge(SearchState* state, int32_t to, int32_t from) {
    int32_t last = state->M - 1, place = 0;
    while (state->head[from] >= 0) {
        int32_t i = state->head[from];
        chain_out(state, i);
        chain_in(state, i, to);
        if (state->layout != LAYOUT_PADDED) { shape_add(&state->shape[to], sample_at(state, i), 1); }
    }
    if (state->layout == LAYOUT_PADDED) { shape_padded(state, to); }
    for (int32_t k = 0; k <= last; k++) {
        int32_t m = state->order[k];
        if (m != from) { state->order[place++] = m == last ? from : m; }
    }
    for (int32_t i = state->head[last]; i >= 0 && last != from; i = state->next[i]) {
        state->mb_of[i] = from;
    }
    state->head[from] = state->head[last];
    state->count[from] = state->count[last];
    state->shape[from] = state->shape[last];
    restride(state, state->M, last, from, last);
    search_state_price(state, to == last ? from : to);
    search_state_limits(state);
}

bool search_state_divide(SearchState* state, int32_t m) {
    int32_t added = state->M, place = added;
    if (added == state->max_mbs || state->count[m] < 2) { return false; }
    restride(state, added, added + 1, added, m);
    state->head[added] = -1;
    state->count[added] = 0;
    state->shape[added] = (MbShape){0};
    for (int32_t i = state->head[m], k = 0; i >= 0; k++) {
        int32_t next = state->next[i];
        if (k % 2 == 1) { search_state_move_sample(state, i, added); }
        i = next;
    }
    for (; state->order[place - 1] != m; place--) { state->order[place] = state->order[place - 1]; }
    state->order[place] = added;
    search_state_price(state, m);
    search_state_price(state, added);
    search_state_limits(state);
    return true;
}

void search_state_limits(SearchState* state) {
    PipeProblem pipe = search_state_pipe(state);
    int64_t scratch_bytes = 0;
    for (int32_t m = 0; m < state->M; m++) {
        if (state->scratch_bytes[m] > scratch_bytes) { scratch_bytes = state->scratch_bytes[m]; }
    }
    for (int32_t s = 0; s < state->P; s++) {
        int64_t* limit = &state->pipe.memory_limit_bytes[s];
        *limit = INT64_MAX;
        if (state->available_bytes[s] == COST_LIMIT) { continue; }
        *limit = state->available_bytes[s] - state->problem->headroom_bytes[s];
        if (state->problem->count_buffers) { *limit -= pipe_passing_bytes(&pipe, s, scratch_bytes); }
    }
}

PipeProblem search_state_pipe(const SearchState* state) {
    PipeProblem pipe = state->pipe;
    pipe.placement = &state->placement;
    return pipe;
}

// Micro-batches in flight of all chunks of a stage, [P].
static void count_in_flight(int32_t in_flight[PLAN_MAX_STAGES], const SearchState* state) {
    memset(in_flight, 0, sizeof *in_flight * (size_t)state->P);
    for (int32_t k = 0; k < state->K; k++) {
        in_flight[state->placement.stage_of[k]] += microbatch_in_flight(state->P, state->K, k);
    }
}

void search_state_fit_modes(SearchState* state, int32_t percent) {
    const PlanProblem* problem = state->problem;
    int32_t last = problem->num_modes - 1, in_flight[PLAN_MAX_STAGES];
    count_in_flight(in_flight, state);
    for (int32_t m = 0; m < state->M; m++) {
        bool known[RECOMPUTE_COUNT] = {false};
        CostParts parts[RECOMPUTE_COUNT];
        for (int32_t k = 0; k < state->K; k++) {
            int32_t s = state->placement.stage_of[k], i = 0;
            int64_t share =
                (state->available_bytes[s] - problem->headroom_bytes[s]) / in_flight[s] / 100 * percent;
            for (; i < last; i++) {
                CostJobs jobs;
                if (!known[i]) {
                    cost_parts(&parts[i], &problem->table, problem->modes[i], &state->shape[m]);
                }
                known[i] = true;
                cost_jobs_of_stage(&jobs, problem->costs, &state->chunks[k], &parts[i]);
                if (jobs.stored_bytes <= share) { break; }
            }
            state->mode[(int64_t)k * state->M + m] = (uint8_t)problem->modes[i];
        }
        search_state_price(state, m);
    }
    search_state_limits(state);
}

typedef struct {
    int64_t work_ns;
    int32_t m;
} Worker;

// Descending work, ties to the smaller index.
static int compare_workers(const void* a, const void* b) {
    const Worker *x = a, *y = b;
    if (x->work_ns != y->work_ns) { return x->work_ns > y->work_ns ? -1 : 1; }
    return (x->m > y->m) - (x->m < y->m);
}

Status search_state_small_ends(SearchState* state, Arena* arena) {
    Worker* workers;
    ARENA_TRY_NEW(workers, arena, Worker, state->M);
    for (int32_t m = 0; m < state->M; m++) {
        workers[m].m = m;
        for (int32_t row = 0; row < state->num_rows; row++) {
            const int64_t* job_ns = pipe_cost(&state->pipe, row, m)->job_ns;
            workers[m].work_ns += job_ns[JOB_F] + job_ns[JOB_B] + job_ns[JOB_W] + job_ns[JOB_R];
        }
    }
    qsort(workers, (size_t)state->M, sizeof *workers, compare_workers);
    for (int32_t k = 0; k < state->M; k++) {  // the smallest outside, the largest in the middle
        int32_t rank = state->M - 1 - k;
        state->order[k % 2 == 0 ? k / 2 : state->M - 1 - k / 2] = workers[rank].m;
    }
    return STATUS_OK;
}

bool search_state_set_placement(SearchState* state, const Placement* placement) {
    const PlanProblem* problem = state->problem;
    CostRank has[PLAN_MAX_STAGES];
    int64_t available[PLAN_MAX_STAGES];
    cost_ranks_make(has, problem->costs, placement, state->P);
    for (int32_t s = 0; s < state->P; s++) {
        available[s] = plan_problem_available(problem, machine_stage(state->ranks, s), &has[s]);
        if (available[s] <= 0) { return false; }
    }
    for (int32_t s = 0; s < state->P; s++) {
        state->pipe.tail_ns[s] = cost_rank_reduce_ns(problem->costs, &has[s], problem->R);
    }
    if (placement != &state->placement) { state->placement = *placement; }
    for (int32_t k = 0; k < state->K; k++) {
        state->chunks[k] = cost_chunk_make(problem->costs, placement, k);
    }
    memcpy(state->available_bytes, available, sizeof available[0] * (size_t)state->P);
    for (int32_t m = 0; m < state->M; m++) { search_state_price(state, m); }
    search_state_limits(state);
    return true;
}

Status search_state_init(SearchState* out, const PlanProblem* problem, int32_t replica, MbLayout layout,
                         const int32_t* ids, int32_t num_ids, const int32_t* mb_of, int32_t num_mbs,
                         RecomputeMode mode, bool split_backward, const Placement* placement, Arena* arena) {
    SearchState state = {.problem = problem,
                         .ranks = plan_problem_ranks(problem, replica),
                         .layout = layout,
                         .P = problem->P,
                         .K = placement->num_chunks,
                         .num_rows = placement_num_rows(placement, problem->P),
                         .M = num_mbs,
                         .N = num_ids,
                         .max_mbs = num_mbs + num_mbs / 2 + 2};
    TRY(alloc(&state, arena));
    memcpy(state.ids, ids, (size_t)num_ids * sizeof *ids);
    memset(state.mode, mode, (size_t)state.K * (size_t)state.M);
    for (int32_t m = 0; m < num_mbs; m++) {
        state.order[m] = m;
        state.head[m] = -1;
    }
    for (int32_t i = 0; i < num_ids; i++) {
        chain_in(&state, i, mb_of[i]);
        if (layout != LAYOUT_PADDED) { shape_add(&state.shape[mb_of[i]], sample_at(&state, i), 1); }
    }
    for (int32_t m = 0; m < num_mbs && layout == LAYOUT_PADDED; m++) { shape_padded(&state, m); }
    state.pipe = (PipeProblem){
        .P = state.P, .M = num_mbs, .cost = state.cost, .pulls = machine_pulls(problem->request->machine)};
    state.makespan_ns = INT64_MAX;
    if (!search_state_set_placement(&state, placement)) {
        return FAIL(STATUS_INFEASIBLE, "search: the model state of a stage does not fit in memory");
    }
    PipeProblem pipe = search_state_pipe(&state);
    state.rule = pipe_adaptive_rule(&pipe, split_backward);
    *out = state;
    return STATUS_OK;
}

Status search_state_simulate(int64_t* makespan_ns, const SearchState* state, int64_t cutoff_ns,
                             int64_t* budget, Arena* scratch) {
    const ShapeRules* rules = &state->problem->request->rules;
    *makespan_ns = INT64_MAX;
    for (int32_t m = 0; m < state->M && shape_rules_limit(rules); m++) {
        if (shape_rules_allow(rules, &state->shape[m])) { continue; }
        --*budget;  // for looking
        return STATUS_OK;
    }
    PipeProblem pipe = search_state_pipe(state);
    arena_reset(scratch);
    return pipe_adaptive_makespan(makespan_ns, &pipe, state->order, &state->rule, cutoff_ns, budget, scratch);
}
