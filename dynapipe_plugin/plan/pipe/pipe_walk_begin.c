// pipe_walk_begin.c -- the greedy walk before its first job: rows by stage, cells by position, limits.
#include "pipe_schedule.h"
#include "pipe_walk.h"

static WalkCell cell_make(const Walk* greedy, int32_t row, int32_t m) {
    const PipeProblem* problem = greedy->problem;
    const PipeCost* cost = pipe_cost(problem, row, m);
    bool is_share = row >= greedy->K;
    WalkCell cell = {.job_ns = {cost->job_ns[JOB_F], cost->job_ns[JOB_B], cost->job_ns[JOB_W],
                                cost->drops ? cost->job_ns[JOB_R] : 0},
                     .kept_bytes = cost->input_bytes + (cost->drops ? 0 : cost->stored_bytes),
                     .input_bytes = is_share ? 0 : cost->input_bytes,
                     .passing_bytes = cost->drops ? cost->forward_bytes : 0,
                     .dropped_bytes = cost->drops ? cost->stored_bytes : 0,
                     .drops = cost->drops};
    if (is_share) {
        cell.job_ns[JOB_B] = 0;  // a share has none
        cell.act_in_ns = cost->transfer_ns;
        cell.part_ns = cost->part_ns;
        cell.grad_in_ns = cost->factor_ns;
        return cell;
    }
    if (!greedy->rule->split_backward) {
        cell.job_ns[JOB_B] += cell.job_ns[JOB_W];
        cell.job_ns[JOB_W] = 0;
    }
    if (row > 0) { cell.act_in_ns = pipe_cost(problem, row - 1, m)->transfer_ns; }
    if (row < greedy->K - 1) { cell.grad_in_ns = cost->transfer_ns; }
    return cell;
}

// Rows stage by stage, those of a stage in the order of the chain.
static void deal_rows(Walk* greedy) {
    const PipeProblem* problem = greedy->problem;
    int32_t all_rows = pipe_num_rows(problem), place[PLAN_MAX_STAGES] = {0};
    for (int32_t row = 0; row < all_rows; row++) {
        if (pipe_has_row(problem, row)) { greedy->stages[pipe_stage_of(problem, row)].num_rows++; }
    }
    for (int32_t s = 0, first = 0; s < problem->P; s++) {
        greedy->stages[s].rows = greedy->rows + first;
        place[s] = first;
        first += greedy->stages[s].num_rows;
    }
    for (int32_t row = 0; row < all_rows; row++) {
        bool is_there = pipe_has_row(problem, row);
        greedy->row_of[row] = is_there ? place[pipe_stage_of(problem, row)]++ : -1;
        greedy->num_parts += is_there && row >= greedy->K;
    }
}

static void row_init(Walk* greedy, WalkRow* row, int32_t chunk, int64_t* arrivals, WalkCell* cells) {
    int32_t M = greedy->problem->M;
    row->chunk = chunk;
    row->stage = pipe_stage_of(greedy->problem, chunk);
    row->is_share = chunk >= greedy->K;
    row->ends_with_w = row->is_share && greedy->has_factors;
    row->max_in_flight = row->is_share ? M : greedy->rule->max_in_flight[chunk];
    row->act_at = arrivals;
    row->grad_at = arrivals + M + 1;
    row->cells = cells;
    WalkStage* stage = &greedy->stages[row->stage];
    for (int32_t i = 0; i < M; i++) {
        WalkCell cell = cells[i] = cell_make(greedy, chunk, greedy->order[i]);
        row->drops |= cell.drops;
        stage->drops |= cell.drops;
        for (int kind = 0; kind < JOB_COUNT; kind++) { stage->left_ns += cell.job_ns[kind]; }
    }
}

static void tails_init(Walk* greedy) {
    int32_t M = greedy->problem->M, K = greedy->K, num_rows = pipe_num_rows(greedy->problem);
    for (int32_t i = 0; i < M && greedy->rule->critical_permille > 0; i++) {
        int64_t tail_ns = 0, share_ns = 0;
        for (int32_t k = 0; k < K; k++) {
            WalkCell* cell = (WalkCell*)(uintptr_t)&walk_row(greedy, k)->cells[i];
            int64_t transfer_ns =
                k > 0 ? pipe_cost(greedy->problem, k - 1, greedy->order[i])->transfer_ns : 0;
            cell->backward_tail_ns = tail_ns += cell->job_ns[JOB_R] + cell->job_ns[JOB_B] + transfer_ns;
        }
        for (int32_t row = K; row < num_rows; row++) {
            if (greedy->row_of[row] < 0) { continue; }
            WalkCell* cell = (WalkCell*)(uintptr_t)&walk_row(greedy, row)->cells[i];
            int64_t there_ns = cell->act_in_ns + cell->job_ns[JOB_F] + cell->part_ns;
            cell->forward_tail_ns = tail_ns + cell->job_ns[JOB_F] + cell->part_ns;
            share_ns = walk_later(share_ns, there_ns);
        }
        tail_ns += share_ns;
        for (int32_t k = K - 1; k >= 0; k--) {
            WalkCell* cell = (WalkCell*)(uintptr_t)&walk_row(greedy, k)->cells[i];
            cell->forward_tail_ns = tail_ns += cell->job_ns[JOB_F] + cell->grad_in_ns;
        }
    }
}

static Status stages_init(Walk* greedy, Arena* arena) {
    const PipeProblem* problem = greedy->problem;
    for (int32_t s = 0; s < problem->P; s++) {
        WalkStage* stage = &greedy->stages[s];
        stage->left_ns = problem->tail_ns[s];
        stage->limit_bytes = problem->memory_limit_bytes[s];
        int64_t most_bytes = greedy->rule->most_bytes[s];
        if (most_bytes > 0 && most_bytes < stage->limit_bytes) { stage->limit_bytes = most_bytes; }
        stage->limited = stage->limit_bytes != INT64_MAX;
        if (problem->pulls) {  // two for a row; of the last chunk, one for each part
            int64_t num_letters = (int64_t)(2 * stage->num_rows + greedy->num_parts) * problem->M;
            ARENA_TRY_NEW(stage->letters, arena, WalkLetter, num_letters);
        }
        if (!stage->limited) { continue; }
        ARENA_TRY_NEW(stage->held_of, arena, int64_t, problem->M);
        ARENA_TRY_NEW(stage->need_of, arena, int64_t, problem->M);
    }
    return STATUS_OK;
}

Status walk_begin(Walk* greedy, const PipeAdaptiveRule* rule, Arena* arena) {
    const PipeProblem* problem = greedy->problem;
    int32_t M = problem->M, all_rows = pipe_num_rows(problem);
    int64_t num_arrivals = 2 * (int64_t)all_rows * (M + 1);
    greedy->rule = rule;
    greedy->K = pipe_num_chunks(problem);
    greedy->has_factors = pipe_shares_head(problem) && problem->placement->head == HEAD_BY_VOCABULARY;
    for (greedy->num_leaves = 1; greedy->num_leaves < problem->P;) { greedy->num_leaves *= 2; }
    ARENA_TRY_NEW(greedy->stages, arena, WalkStage, problem->P);
    ARENA_TRY_NEW(greedy->rows, arena, WalkRow, all_rows);
    ARENA_TRY_NEW(greedy->row_of, arena, int32_t, all_rows);
    if (pipe_shares_head(problem)) {
        ARENA_TRY_NEW(greedy->parts, arena, int32_t, M);
        ARENA_TRY_NEW(greedy->part_at, arena, int64_t, M);
    }
    int64_t* arrivals = arena_alloc_raw(arena, sizeof *arrivals * (size_t)num_arrivals);
    WalkCell* cells = arena_alloc_raw(arena, sizeof *cells * (size_t)all_rows * (size_t)M);
    if (arrivals == NULL || cells == NULL) { return FAIL(STATUS_NO_MEMORY, "planner: no host memory left"); }
    for (int64_t i = 0; i < num_arrivals; i++) { arrivals[i] = WALK_NEVER; }
    deal_rows(greedy);
    TRY(stages_init(greedy, arena));
    for (int32_t row = 0; row < all_rows; row++) {
        if (greedy->row_of[row] < 0) { continue; }
        row_init(greedy, walk_row(greedy, row), row, arrivals + 2 * (int64_t)row * (M + 1),
                 cells + (int64_t)row * M);
    }
    tails_init(greedy);
    for (int32_t i = 0; i < M; i++) { walk_row(greedy, 0)->act_at[i] = 0; }
    for (int32_t row = 0; row < all_rows; row++) {
        if (greedy->row_of[row] >= 0) { walk_refresh(walk_row(greedy, row)); }
    }
    return STATUS_OK;
}

bool walk_memory_begin(Walk* greedy) {
    for (int32_t s = 0; s < greedy->problem->P; s++) {
        WalkStage* stage = &greedy->stages[s];
        if (stage->limited && !walk_memory_init(stage, greedy->problem->M)) { return false; }
    }
    return true;
}
