#include "pipe_adaptive.h"

#include "pipe_schedule.h"
#include "pipe_walk.h"

static const int64_t NEVER = INT64_MAX;

enum { PULL_ACT = JOB_COUNT, PULL_GRAD };  // beside the jobs, what a stage may do next

typedef struct {
    const PipeProblem* problem;
    const int32_t* order;
    const PipeAdaptiveRule* rule;
    PipeSchedule* schedule;  // NULL: only the makespan is wanted
    WalkStage* stages;
    WalkRow* rows;    // of all stages
    int32_t* row_of;  // [chunks and shares] into rows; -1: no share
    int32_t K, num_parts;
    bool has_factors;
    int32_t* parts;                       // [M] by position: of the last chunk's gradient that are known
    int64_t* part_at;                     // [M] the latest of them
    int64_t num_walked;                   // jobs
    int64_t begin_ns[PLAN_MAX_STAGES];    // when a stage takes its next decision; NEVER: it waits
    int32_t winner[2 * PLAN_MAX_STAGES];  // of a tournament between stages: [1] has the earliest
    int32_t num_leaves;
} Greedy;

PipeAdaptiveRule pipe_adaptive_rule(const PipeProblem* problem, bool split_backward) {
    PipeAdaptiveRule rule = {.split_backward = split_backward};
    int32_t K = pipe_num_chunks(problem);
    for (int32_t k = 0; k < K; k++) { rule.max_in_flight[k] = 2 * (K - k) - 1; }
    return rule;
}

static inline int64_t later(int64_t a, int64_t b) {
    return a > b ? a : b;
}

// --- who decides next ------------------------------------------------------------------------------------

static inline void play(Greedy* greedy, int32_t node) {
    int32_t a = greedy->winner[2 * node], b = greedy->winner[2 * node + 1];
    greedy->winner[node] = greedy->begin_ns[b] < greedy->begin_ns[a] ? b : a;
}

static inline void replay(Greedy* greedy, int32_t s) {
    for (int32_t node = (greedy->num_leaves + s) / 2; node > 0; node /= 2) { play(greedy, node); }
}

static void play_all(Greedy* greedy) {
    int32_t P = greedy->problem->P;
    for (int32_t s = 0; s < greedy->num_leaves; s++) {
        greedy->winner[greedy->num_leaves + s] = s < P ? s : P - 1;
    }
    for (int32_t node = greedy->num_leaves - 1; node > 0; node--) { play(greedy, node); }
}

// --- choosing --------------------------------------------------------------------------------------------

typedef struct {
    int64_t at_ns;  // when it can begin; NEVER: not
    int32_t row, position;
    int32_t kind;
} Option;

static inline bool r_is_due(const WalkRow* row) {
    return row->drops && row->next_b < row->next_f && row->cells[row->next_b].drops &&
           row->recomputed <= row->next_b;
}

static inline bool may_take(const WalkStage* stage, const WalkRow* row, JobKind kind, int32_t i,
                            bool* needs_w) {
    return !stage->limited || walk_memory_admits(stage, row, kind, i, needs_w);
}

// B and shares: of those that are ready the oldest micro-batch's, of equals the later chunk's; else the first
// to be ready.
static inline void offer_urgent(Option* best, const WalkStage* stage, int32_t r, bool* needs_w) {
    const WalkRow* row = &stage->rows[r];
    int32_t i = row->is_share ? row->next_f : row->next_b;
    int64_t at_ns = later(row->is_share ? row->act_at[i] : row->grad_at[i], stage->clock_ns);
    if (at_ns == NEVER || at_ns > best->at_ns) { return; }
    if (at_ns == best->at_ns && i >= best->position) { return; }
    int32_t kind = row->is_share ? JOB_F : r_is_due(row) ? JOB_R : JOB_B;
    if (kind != JOB_B && !may_take(stage, row, (JobKind)kind, i, needs_w)) { return; }
    *best = (Option){at_ns, r, i, kind};
}

// F of chunks: the later chunk's.
static inline void offer_forward(Option* best, const WalkStage* stage, int32_t r, bool* needs_w) {
    const WalkRow* row = &stage->rows[r];
    if (row->is_share || row->next_f - row->next_b >= row->max_in_flight) { return; }
    int64_t at_ns = later(row->act_at[row->next_f], stage->clock_ns);
    if (at_ns == NEVER || at_ns > best->at_ns) { return; }
    if (!may_take(stage, row, JOB_F, row->next_f, needs_w)) { return; }
    *best = (Option){at_ns, r, row->next_f, JOB_F};
}

// R ahead of time, else the oldest W.
static inline void offer_filler(Option* best, const Greedy* greedy, const WalkStage* stage) {
    bool needs_w;
    for (int32_t r = 0; r < stage->num_rows; r++) {
        const WalkRow* row = &stage->rows[r];
        if (!row->is_share && r_is_due(row) && may_take(stage, row, JOB_R, row->next_b, &needs_w)) {
            *best = (Option){stage->clock_ns, r, row->next_b, JOB_R};
            return;
        }
    }
    for (int32_t r = 0; r < stage->num_rows; r++) {
        const WalkRow* row = &stage->rows[r];
        bool is_ready = row->next_w < row->next_b && (!row->is_share || !greedy->has_factors ||
                                                      row->grad_at[row->next_w] <= stage->clock_ns);
        if (!is_ready || (best->at_ns != NEVER && row->next_w > best->position)) { continue; }
        *best = (Option){stage->clock_ns, r, row->next_w, JOB_W};
    }
}

// Where nothing else is to come: W of a share that waits for its factors.
static inline void offer_factors(Option* best, const Greedy* greedy, const WalkStage* stage) {
    const WalkRow* row = &stage->rows[stage->num_rows - 1];
    if (!greedy->has_factors || !row->is_share || row->next_w >= row->next_b) { return; }
    int64_t at_ns = later(row->grad_at[row->next_w], stage->clock_ns);
    if (at_ns < best->at_ns) { *best = (Option){at_ns, stage->num_rows - 1, row->next_w, JOB_W}; }
}

// What stage s does next, and when, as far as is known now.
static inline void choose(Greedy* greedy, int32_t s) {
    WalkStage* stage = &greedy->stages[s];
    Option best = {.at_ns = NEVER, .position = INT32_MAX};
    bool needs_w = false;
    for (int32_t r = stage->num_rows - 1; r >= 0; r--) { offer_urgent(&best, stage, r, &needs_w); }
    if (best.at_ns > stage->clock_ns) {
        Option forward = {.at_ns = best.at_ns == NEVER ? NEVER : best.at_ns - 1, .kind = -1};
        for (int32_t r = 0; r < stage->num_rows; r++) { offer_forward(&forward, stage, r, &needs_w); }
        if (forward.kind == JOB_F && forward.at_ns < best.at_ns) { best = forward; }
    }
    if (best.at_ns > stage->clock_ns) {
        Option filler = {.at_ns = NEVER, .position = INT32_MAX};
        offer_filler(&filler, greedy, stage);
        if (filler.at_ns != NEVER) {
            int64_t gap_ns = best.at_ns - stage->clock_ns;
            int64_t filler_ns = stage->rows[filler.row].cells[filler.position].job_ns[filler.kind];
            bool waits = filler.kind == JOB_W && best.at_ns != NEVER && !needs_w &&
                         gap_ns <= filler_ns / 1000 * greedy->rule->wait_permille;
            if (!waits) { best = filler; }
        } else {
            offer_factors(&best, greedy, stage);
        }
    }
    stage->choice = best.kind;
    stage->choice_row = best.row;
    greedy->begin_ns[s] = best.at_ns;
}

// Messages that are ready are taken before anything else, the longest ready first, and while there is nothing
// to run (pipe_pulled.h).
static void choose_pulled(Greedy* greedy, int32_t s) {
    WalkStage* stage = &greedy->stages[s];
    int64_t first_ns = NEVER;
    int32_t first_row = 0, first_kind = PULL_ACT;
    for (int32_t r = 0; r < stage->num_rows; r++) {
        const WalkRow* row = &stage->rows[r];
        for (int kind = PULL_ACT; kind <= PULL_GRAD; kind++) {
            int64_t at_ns =
                kind == PULL_ACT ? row->act_ready[row->pulled_acts] : row->grad_ready[row->pulled_grads];
            if (at_ns >= first_ns) { continue; }
            first_ns = at_ns;
            first_row = r;
            first_kind = kind;
        }
    }
    if (first_ns > stage->clock_ns) {
        choose(greedy, s);
        if (greedy->begin_ns[s] <= stage->clock_ns || first_ns == NEVER) { return; }
    }
    stage->choice = first_kind;
    stage->choice_row = first_row;
    greedy->begin_ns[s] = later(first_ns, stage->clock_ns);
}

static inline void decide(Greedy* greedy, int32_t s) {
    if (greedy->problem->pulls) {
        choose_pulled(greedy, s);
    } else {
        choose(greedy, s);
    }
    replay(greedy, s);
}

// Copying is the receiver's time.
static void take_message(Greedy* greedy, int32_t s) {
    WalkStage* stage = &greedy->stages[s];
    WalkRow* row = &stage->rows[stage->choice_row];
    bool is_act = stage->choice == PULL_ACT;
    int32_t i = is_act ? row->pulled_acts++ : row->pulled_grads++;
    stage->clock_ns = greedy->begin_ns[s] + (is_act ? row->cells[i].act_in_ns : row->cells[i].grad_in_ns);
    (is_act ? row->act_at : row->grad_at)[i] = stage->clock_ns;
}

// --- running ---------------------------------------------------------------------------------------------

static inline WalkRow* row_at(const Greedy* greedy, int32_t chunk) {
    return &greedy->rows[greedy->row_of[chunk]];
}

// From a stage whose job has just ended to a row, over its link where the row is elsewhere.
static inline int64_t arrival_at(Greedy* greedy, WalkStage* from, const WalkRow* to, int64_t transfer_ns) {
    if (&greedy->stages[to->stage] == from || greedy->problem->pulls) { return from->clock_ns; }
    from->link_ns = later(from->clock_ns, from->link_ns) + transfer_ns;
    return from->link_ns;
}

static inline void put_act(Greedy* greedy, WalkStage* from, WalkRow* to, int32_t i) {
    bool is_pulled = greedy->problem->pulls && &greedy->stages[to->stage] != from;
    (is_pulled ? to->act_ready : to->act_at)[i] = arrival_at(greedy, from, to, to->cells[i].act_in_ns);
    decide(greedy, to->stage);
}

static inline void put_grad(Greedy* greedy, WalkStage* from, WalkRow* to, int32_t i) {
    bool is_pulled = greedy->problem->pulls && &greedy->stages[to->stage] != from;
    (is_pulled ? to->grad_ready : to->grad_at)[i] = arrival_at(greedy, from, to, to->cells[i].grad_in_ns);
    decide(greedy, to->stage);
}

// A share's part of the gradient that the last chunk waits for; pulled all together when the last is there.
static void put_part(Greedy* greedy, WalkStage* from, int32_t share, int32_t i) {
    WalkRow* to = row_at(greedy, greedy->K - 1);
    int64_t at_ns = arrival_at(greedy, from, to, row_at(greedy, share)->cells[i].part_ns);
    greedy->part_at[i] = later(greedy->part_at[i], at_ns);
    if (++greedy->parts[i] < greedy->num_parts) { return; }
    (greedy->problem->pulls ? to->grad_ready : to->grad_at)[i] = greedy->part_at[i];
    decide(greedy, to->stage);
}

static void to_shares(Greedy* greedy, WalkStage* from, int32_t i, bool factors) {
    for (int32_t s = 0; s < greedy->problem->P; s++) {
        if (greedy->row_of[greedy->K + s] < 0) { continue; }
        WalkRow* share = row_at(greedy, greedy->K + s);
        if (factors) {
            share->next_b = i + 1;
            if (greedy->stages[s].limited) { walk_memory_share(&greedy->stages[s], share, i); }
            put_grad(greedy, from, share, i);
        } else {
            put_act(greedy, from, share, i);
        }
    }
}

static inline void after_forward(Greedy* greedy, WalkStage* stage, WalkRow* row, int32_t i) {
    row->next_f++;
    if (row->is_share) {
        if (!greedy->has_factors) {
            row->next_b = row->next_f;
            if (stage->limited) { walk_memory_share(stage, row, i); }
        }
        put_part(greedy, stage, row->chunk, i);
    } else if (row->chunk < greedy->K - 1) {
        put_act(greedy, stage, row_at(greedy, row->chunk + 1), i);
    } else if (greedy->num_parts > 0) {
        to_shares(greedy, stage, i, false);
    } else {
        row->grad_at[i] = stage->clock_ns;
    }
}

static inline void after_backward(Greedy* greedy, WalkStage* stage, WalkRow* row, int32_t i) {
    row->next_b++;
    if (!greedy->rule->split_backward) { row->next_w++; }
    if (row->chunk > 0) { put_grad(greedy, stage, row_at(greedy, row->chunk - 1), i); }
    if (row->chunk == greedy->K - 1 && greedy->has_factors) { to_shares(greedy, stage, i, true); }
}

// Run the chosen job of stage s.
static inline void run_choice(Greedy* greedy, int32_t s) {
    WalkStage* stage = &greedy->stages[s];
    WalkRow* row = &stage->rows[stage->choice_row];
    JobKind kind = (JobKind)stage->choice;
    int32_t i = kind == JOB_F ? row->next_f : kind == JOB_W ? row->next_w : row->next_b;
    int64_t job_ns = row->cells[i].job_ns[kind];
    if (greedy->schedule != NULL) {
        pipe_schedule_push(greedy->schedule, s, kind, row->chunk, greedy->order[i]);
    }
    stage->clock_ns = greedy->begin_ns[s] + job_ns;
    stage->left_ns -= job_ns;
    if (stage->limited) { walk_memory_after(stage, row, kind, i, greedy->rule->split_backward); }
    switch (kind) {
        case JOB_F: after_forward(greedy, stage, row, i); break;
        case JOB_B: after_backward(greedy, stage, row, i); break;
        case JOB_R: row->recomputed = i + 1; break;
        default: row->next_w++; break;
    }
    decide(greedy, s);
}

// The makespan; INT64_MAX as soon as some stage cannot end by cutoff_ns.
static int64_t walk(Greedy* greedy, int64_t cutoff_ns) {
    int32_t P = greedy->problem->P;
    int64_t makespan_ns = 0;
    for (int32_t s = 0; s < P; s++) { greedy->begin_ns[s] = NEVER; }
    play_all(greedy);
    for (int32_t s = 0; s < P; s++) { decide(greedy, s); }
    for (;;) {
        int32_t first = P == 1 ? 0 : greedy->winner[1];
        int64_t first_ns = greedy->begin_ns[first];
        if (first_ns == NEVER) { break; }
        if (first_ns + greedy->stages[first].left_ns > cutoff_ns) { return INT64_MAX; }
        greedy->num_walked++;
        if (greedy->stages[first].choice >= JOB_COUNT) {
            take_message(greedy, first);
            decide(greedy, first);
        } else {
            run_choice(greedy, first);
        }
    }
    for (int32_t s = 0; s < P; s++) {
        if (greedy->stages[s].left_ns > greedy->problem->tail_ns[s]) {
            return INT64_MAX;
        }  // it waits for ever
        makespan_ns = later(makespan_ns, greedy->stages[s].clock_ns + greedy->problem->tail_ns[s]);
    }
    return makespan_ns;
}

// --- beginning -------------------------------------------------------------------------------------------

static WalkCell cell_make(const Greedy* greedy, int32_t row, int32_t m) {
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
        cell.act_in_ns = cell.part_ns = cost->transfer_ns;
        cell.grad_in_ns = cost->factor_ns;
        return cell;
    }
    if (!greedy->rule->split_backward) {
        cell.job_ns[JOB_B] += cell.job_ns[JOB_W];
        cell.job_ns[JOB_W] = 0;
    }
    if (row > 0) { cell.act_in_ns = pipe_cost(problem, row - 1, m)->transfer_ns; }
    if (row < greedy->K - 1) { cell.grad_in_ns = cost->transfer_ns; }
    for (int32_t s = 0; row == greedy->K - 1 && greedy->num_parts > 0 && s < problem->P; s++) {
        bool is_sent = greedy->row_of[greedy->K + s] >= 0 && s != pipe_stage_of(problem, row);
        if (is_sent) { cell.grad_in_ns += pipe_cost(problem, greedy->K + s, m)->transfer_ns; }
    }
    return cell;
}

// Rows stage by stage, those of a stage in the order of the chain.
static void deal_rows(Greedy* greedy) {
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

static void row_init(Greedy* greedy, WalkRow* row, int32_t chunk, int64_t* arrivals, WalkCell* cells) {
    int32_t M = greedy->problem->M;
    row->chunk = chunk;
    row->stage = pipe_stage_of(greedy->problem, chunk);
    row->is_share = chunk >= greedy->K;
    row->max_in_flight = row->is_share ? M : greedy->rule->max_in_flight[chunk];
    row->act_at = arrivals;
    row->grad_at = arrivals + M + 1;
    row->act_ready = arrivals + 2 * (M + 1);
    row->grad_ready = arrivals + 3 * (M + 1);
    row->cells = cells;
    WalkStage* stage = &greedy->stages[row->stage];
    for (int32_t i = 0; i < M; i++) {
        WalkCell cell = cells[i] = cell_make(greedy, chunk, greedy->order[i]);
        row->drops |= cell.drops;
        for (int kind = 0; kind < JOB_COUNT; kind++) { stage->left_ns += cell.job_ns[kind]; }
    }
}

static Status stages_init(Greedy* greedy, Arena* arena) {
    const PipeProblem* problem = greedy->problem;
    for (int32_t s = 0; s < problem->P; s++) {
        WalkStage* stage = &greedy->stages[s];
        stage->left_ns = problem->tail_ns[s];
        stage->limit_bytes = problem->memory_limit_bytes[s];
        int64_t most_bytes = greedy->rule->most_bytes[s];
        if (most_bytes > 0 && most_bytes < stage->limit_bytes) { stage->limit_bytes = most_bytes; }
        stage->limited = stage->limit_bytes != INT64_MAX;
        if (!stage->limited) { continue; }
        PIPE_NEW(stage->held_of, arena, int64_t, problem->M);
        PIPE_NEW(stage->need_of, arena, int64_t, problem->M);
    }
    return STATUS_OK;
}

static Status greedy_init(Greedy* greedy, const PipeAdaptiveRule* rule, Arena* arena) {
    const PipeProblem* problem = greedy->problem;
    int32_t M = problem->M, all_rows = pipe_num_rows(problem), arrays = problem->pulls ? 4 : 2;
    int64_t num_arrivals = (int64_t)arrays * all_rows * (M + 1);
    greedy->rule = rule;
    greedy->K = pipe_num_chunks(problem);
    greedy->has_factors = pipe_shares_head(problem) && problem->placement->head == HEAD_BY_VOCABULARY;
    for (greedy->num_leaves = 1; greedy->num_leaves < problem->P;) { greedy->num_leaves *= 2; }
    PIPE_NEW(greedy->stages, arena, WalkStage, problem->P);
    PIPE_NEW(greedy->rows, arena, WalkRow, all_rows);
    PIPE_NEW(greedy->row_of, arena, int32_t, all_rows);
    if (pipe_shares_head(problem)) {
        PIPE_NEW(greedy->parts, arena, int32_t, M);
        PIPE_NEW(greedy->part_at, arena, int64_t, M);
    }
    int64_t* arrivals = arena_alloc_raw(arena, sizeof *arrivals * (size_t)num_arrivals);
    WalkCell* cells = arena_alloc_raw(arena, sizeof *cells * (size_t)all_rows * (size_t)M);
    if (arrivals == NULL || cells == NULL) { return FAIL(STATUS_NO_MEMORY, "planner: no host memory left"); }
    for (int64_t i = 0; i < num_arrivals; i++) { arrivals[i] = NEVER; }
    deal_rows(greedy);
    TRY(stages_init(greedy, arena));
    for (int32_t row = 0; row < all_rows; row++) {
        if (greedy->row_of[row] < 0) { continue; }
        row_init(greedy, row_at(greedy, row), row, arrivals + (int64_t)arrays * row * (M + 1),
                 cells + (int64_t)row * M);
    }
    for (int32_t i = 0; i < M; i++) { row_at(greedy, 0)->act_at[i] = 0; }
    return STATUS_OK;
}

static bool memory_init(Greedy* greedy) {
    for (int32_t s = 0; s < greedy->problem->P; s++) {
        WalkStage* stage = &greedy->stages[s];
        if (stage->limited && !walk_memory_init(stage, greedy->problem->M)) { return false; }
    }
    return true;
}

Status pipe_adaptive_build(PipeSchedule* out, const PipeProblem* problem, const int32_t* order,
                           const PipeAdaptiveRule* rule, Arena* arena) {
    TRY(pipe_problem_check_fits(problem));
    PipeSchedule schedule;
    TRY(pipe_schedule_init(&schedule, problem, arena));
    Greedy greedy = {.problem = problem, .order = order, .schedule = &schedule};
    TRY(greedy_init(&greedy, rule, arena));
    if (!memory_init(&greedy) || walk(&greedy, INT64_MAX) == INT64_MAX) {
        return pipe_schedule_one_by_one(out, problem, order, arena);
    }
    *out = schedule;
    return STATUS_OK;
}

Status pipe_adaptive_makespan(int64_t* makespan_ns, const PipeProblem* problem, const int32_t* order,
                              const PipeAdaptiveRule* rule, int64_t cutoff_ns, int64_t* budget,
                              Arena* arena) {
    Greedy greedy = {.problem = problem, .order = order};
    *makespan_ns = INT64_MAX;
    TRY(greedy_init(&greedy, rule, arena));
    if (memory_init(&greedy)) { *makespan_ns = walk(&greedy, cutoff_ns); }
    *budget -= greedy.num_walked + (int64_t)pipe_num_rows(problem) * problem->M / 2;
    return STATUS_OK;
}

static Status build(PipeSchedule* out, const PipeProblem* problem, const int32_t* order, bool split_backward,
                    Arena* arena) {
    PipeAdaptiveRule rule = pipe_adaptive_rule(problem, split_backward);
    return pipe_adaptive_build(out, problem, order, &rule, arena);
}

const PipePolicy pipe_policy_adaptive = {
    .name = "adaptive",
    .help = "backward first, then forward while memory lasts, then weight gradients",
    .build = build,
};
