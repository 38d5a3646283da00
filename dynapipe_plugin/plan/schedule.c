#include "schedule.h"

// --- pipe_walk --------------------
/*
pipe_walk.h -- the inside of the greedy walk: what pipe_adaptive.c (time), pipe_walk_begin.c (the state before
the first job), pipe_walk_memory.c (admission) and pipe_walk_letters.c (messages that their receiver takes)
share.

Micro-batches count by position in the order, the same on every row: next_* is the position of the next one.
*/

#define WALK_NEVER INT64_MAX

// One micro-batch on one row, by position: what the walk reads, side by side.
typedef struct {
    int64_t job_ns[JOB_COUNT];  // B with W where backward is joint
    // Of F (R, B) and all that can only come after it, one job after the other, down to B of chunk 0.
    int64_t forward_tail_ns, backward_tail_ns;
    int64_t kept_bytes;     // from F on: stored (0 where it drops) and input
    int64_t input_bytes;    // of these, what ends with B
    int64_t passing_bytes;  // while F runs, where it drops
    int64_t dropped_bytes;  // that R brings back; 0: nothing was dropped
    bool drops;
    // Transfers to this row, where they come from another stage: of its input; of the gradient of its output
    // (of a share: the factors); and of a share, of its part to the last chunk.
    int64_t act_in_ns, grad_in_ns, part_ns;
} WalkCell;

// A chunk, or a share of the head.
typedef struct {
    int64_t urgent_ns;   // arrival of what its next B (a share: F) needs; WALK_NEVER: not known
    int64_t forward_ns;  // the same of a chunk's next F; WALK_NEVER also where no more may be in flight
    // A share has no B: next_b counts those whose W may run as soon as it likes (by vocabulary, whose factors
    // are under way).
    int32_t next_f, next_b, next_w;
    int32_t recomputed;  // position after the last R
    int32_t stage, chunk;
    int32_t max_in_flight;
    bool drops;  // some micro-batch
    bool is_share;
    bool ends_with_w;       // of a share by vocabulary: W cannot be run at any time
    int64_t* act_at;        // [M + 1] by position: arrival; WALK_NEVER: not known yet, and at M
    int64_t* grad_at;       // [M + 1] the same; of a share: of its factors
    const WalkCell* cells;  // [M]
} WalkRow;

typedef enum { LETTER_ACT, LETTER_GRAD, LETTER_PART } LetterKind;

// A message that is ready for a stage (PipeProblem.pulls).
typedef struct {
    int64_t ready_ns, copy_ns;
    int32_t row, position;  // WalkStage.rows[row], whose input it is
    int32_t kind;           // LetterKind
} WalkLetter;

typedef struct {
    WalkRow* rows;  // of this stage, chunks in the order of the chain, then its share
    int32_t num_rows;
    int32_t choice_row;         // what it does next: row ...
    int32_t choice;             // ... and JobKind, or a message
    int64_t clock_ns, link_ns;  // free from then on
    int64_t left_ns;            // its jobs that have not run, and its tail
    bool limited;               // by memory
    bool drops;                 // some row
    int64_t limit_bytes;        // of the problem or the rule
    int64_t held_bytes;         // now, W pending included
    int64_t lasting_bytes;      // of these, what no W alone gives back
    int64_t most_need_bytes;    // of any micro-batch
    int64_t* held_of;           // [M] what lasts, by micro-batch
    int64_t* need_of;           // [M] the most that one will hold
    WalkLetter* letters;        // ready ones, from `taken` on, in the order of their times
    int32_t num_taken, num_letters;
} WalkStage;

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
    int64_t begin_ns[PLAN_MAX_STAGES];    // when a stage takes its next decision; WALK_NEVER: it waits
    int32_t winner[2 * PLAN_MAX_STAGES];  // of a tournament between many stages: [1] has the earliest
    int32_t num_leaves;
} Walk;

static inline int64_t walk_later(int64_t a, int64_t b) {
    return a > b ? a : b;
}

// Of a chunk or share.
static inline WalkRow* walk_row(const Walk* greedy, int32_t chunk) {
    return &greedy->rows[greedy->row_of[chunk]];
}

// What the row's next jobs wait for, after one has run or something has arrived.
static inline void walk_refresh(WalkRow* row) {
    row->urgent_ns = row->is_share ? row->act_at[row->next_f] : row->grad_at[row->next_b];
    bool may_begin = !row->is_share && row->next_f - row->next_b < row->max_in_flight;
    row->forward_ns = may_begin ? row->act_at[row->next_f] : WALK_NEVER;
}

static void walk_memory_share(WalkStage* stage, const WalkRow* row, int32_t i);

Status pipe_schedule_init(PipeSchedule* out, const PipeProblem* problem, Arena* arena) {
    *out = (PipeSchedule){0};
    PipeJob* jobs;
    int32_t num_rows[PLAN_MAX_STAGES] = {0}, all_rows = pipe_num_rows(problem);
    ARENA_TRY_NEW(jobs, arena, PipeJob, (int64_t)problem->M * JOB_COUNT * all_rows);
    for (int32_t row = 0; row < all_rows; row++) { num_rows[pipe_stage_of(problem, row)]++; }
    for (int32_t s = 0; s < problem->P; s++) {
        out->jobs[s] = jobs;
        jobs += (int64_t)problem->M * JOB_COUNT * num_rows[s];
    }
    return STATUS_OK;
}

// [R] B [W] of a chunk one after the other.
static void pipe_schedule_push_backward(PipeSchedule* schedule, const PipeProblem* problem, int32_t s,
                                        int32_t chunk, int32_t m, bool split_backward) {
    if (pipe_cost(problem, chunk, m)->drops) { pipe_schedule_push(schedule, s, JOB_R, chunk, m); }
    pipe_schedule_push(schedule, s, JOB_B, chunk, m);
    if (split_backward) { pipe_schedule_push(schedule, s, JOB_W, chunk, m); }
}

// STATUS_BAD_OPTION: this policy knows one chunk a stage only.
static Status pipe_schedule_need_linear(const PipeProblem* problem, const char* policy) {
    bool is_linear = pipe_num_rows(problem) == problem->P;
    for (int32_t s = 0; s < problem->P && is_linear; s++) { is_linear = pipe_stage_of(problem, s) == s; }
    return is_linear
               ? STATUS_OK
               : FAIL(STATUS_BAD_OPTION,
                      "--schedule %s is for one chunk a stage and a whole head ---> --schedule auto, or "
                      "--placement linear --head whole",
                      policy);
}

Status pipe_schedule_one_by_one(PipeSchedule* out, const PipeProblem* problem, const int32_t* order,
                                Arena* arena) {
    int32_t K = pipe_num_chunks(problem);
    TRY(pipe_schedule_init(out, problem, arena));
    for (int32_t i = 0; i < problem->M; i++) {
        for (int32_t k = 0; k < K; k++) {
            pipe_schedule_push(out, pipe_stage_of(problem, k), JOB_F, k, order[i]);
        }
        for (int32_t row = K; row < pipe_num_rows(problem); row++) {
            if (pipe_has_row(problem, row)) { pipe_schedule_push(out, row - K, JOB_F, row, order[i]); }
        }
        for (int32_t k = K - 1; k >= 0; k--) {
            pipe_schedule_push_backward(out, problem, pipe_stage_of(problem, k), k, order[i], false);
        }
        for (int32_t row = K; row < pipe_num_rows(problem); row++) {
            if (pipe_has_row(problem, row)) { pipe_schedule_push(out, row - K, JOB_W, row, order[i]); }
        }
    }
    return STATUS_OK;
}

// What is kept of all chunks at a time, and the most that one of them brings back or forth besides.
int64_t pipe_alone_bytes(const PipeProblem* problem, int32_t s, int32_t m) {
    int64_t kept_bytes = 0, most_bytes = 0;
    for (int32_t row = 0; row < pipe_num_rows(problem); row++) {
        if (pipe_stage_of(problem, row) != s || !pipe_has_row(problem, row)) { continue; }
        const PipeCost* cost = pipe_cost(problem, row, m);
        int64_t besides_bytes = cost->stored_bytes > cost->forward_bytes || !cost->drops
                                    ? cost->stored_bytes
                                    : cost->forward_bytes;
        kept_bytes += cost->input_bytes + (cost->drops ? 0 : cost->stored_bytes);
        if (cost->drops && besides_bytes > most_bytes) { most_bytes = besides_bytes; }
    }
    return kept_bytes + most_bytes;
}

// STATUS_INFEASIBLE where some micro-batch does not fit even alone; names stage, micro-batch and bytes over.
static Status pipe_problem_check_fits(const PipeProblem* problem) {
    for (int32_t s = 0; s < problem->P; s++) {
        int64_t limit_bytes = problem->memory_limit_bytes[s];
        for (int32_t m = 0; m < problem->M && limit_bytes != INT64_MAX; m++) {
            int64_t over_bytes = pipe_alone_bytes(problem, s, m) - limit_bytes;
            if (over_bytes > 0) {
                return FAIL(STATUS_INFEASIBLE,
                            "stage %d: micro-batch %d alone is %lld bytes over the memory limit ---> "
                            "--recompute full, more --stages, shorter samples or a larger --memory-limit",
                            s, m, (long long)over_bytes);
            }
        }
    }
    return STATUS_OK;
}

// --- pipe_1f1b --------------------
// pipe_1f1b.c -- 1F1B (PipeDream-flush; Narayanan et al., SC'21): stage s warms up with min(P - s, M)
// forwards, then alternates one backward, one forward. Stage s never holds more than P - s micro-batches, and
// M equal ones take (M + P - 1)(f + b) where transfers are free. No memory limit is looked at.

static Status one_f_one_b_build(PipeSchedule* out, const PipeProblem* problem, const int32_t* order,
                                bool split_backward, Arena* arena) {
    TRY(pipe_schedule_need_linear(problem, "1f1b"));
    TRY(pipe_schedule_init(out, problem, arena));
    int32_t P = problem->P, M = problem->M;
    for (int32_t s = 0; s < P; s++) {
        int32_t num_warmup = P - s < M ? P - s : M;
        for (int32_t i = 0; i < num_warmup; i++) { pipe_schedule_push(out, s, JOB_F, s, order[i]); }
        for (int32_t i = 0; i < M; i++) {
            pipe_schedule_push_backward(out, problem, s, s, order[i], split_backward);
            if (i + num_warmup < M) { pipe_schedule_push(out, s, JOB_F, s, order[i + num_warmup]); }
        }
    }
    return STATUS_OK;
}

const PipePolicy pipe_policy_1f1b = {
    .name = "1f1b",
    .help = "warm up with P - s forwards, then one backward, one forward",
    .build = one_f_one_b_build,
};

// --- pipe_gpipe --------------------
// pipe_gpipe.c -- GPipe (Huang et al., NeurIPS'19): every forward, then every backward in the same order.
// Holds all M micro-batches on every stage; no memory limit is looked at.

static Status gpipe_build(PipeSchedule* out, const PipeProblem* problem, const int32_t* order,
                          bool split_backward, Arena* arena) {
    TRY(pipe_schedule_need_linear(problem, "gpipe"));
    TRY(pipe_schedule_init(out, problem, arena));
    for (int32_t s = 0; s < problem->P; s++) {
        for (int32_t i = 0; i < problem->M; i++) { pipe_schedule_push(out, s, JOB_F, s, order[i]); }
        for (int32_t i = 0; i < problem->M; i++) {
            pipe_schedule_push_backward(out, problem, s, s, order[i], split_backward);
        }
    }
    return STATUS_OK;
}

const PipePolicy pipe_policy_gpipe = {
    .name = "gpipe",
    .help = "all forwards, then all backwards",
    .build = gpipe_build,
};

// --- pipe_cyclic --------------------
// pipe_cyclic.c -- the `cyclic` order of DynaPipe (EuroSys'24; spec section e.3), and the same with a limit.
//
// Time is global cycles; what jobs really take is not looked at. In every cycle every stage runs one
// backward, if there is one, then one forward; what that makes ready is ready in the next cycle. Without a
// limit stage s runs F(k) in cycle s + k and B(k) in cycle 2P - 1 - s + k, so it holds at most 2 (P - s) - 1
// micro-batches. With a limit a forward waits until it fits beside what the stage holds.
//
// The original also takes its order of transfers from here. A stage's transfers are made ready in the order
// of its jobs, at most one each way per cycle, and leave in the same cycle: that is the order of its jobs,
// which is what the simulator's sending links do anyway.

// Positions in `order`, and what the stage holds.
typedef struct {
    int32_t next_f, next_b;
    int32_t f_ready, b_ready;  // this cycle may run positions below
    int64_t held_bytes;        // F to B: stored (where F keeps it) and input
    int64_t dropped_bytes;     // the most that a dropped micro-batch in flight needs when it comes back
} CyclicStage;

static int64_t held_of(const PipeCost* cost) {
    return cost->input_bytes + (cost->drops ? 0 : cost->stored_bytes);
}

// What F needs only while it runs, and R until B has run.
static int64_t dropped_of(const PipeCost* cost) {
    int64_t most_bytes = cost->stored_bytes > cost->forward_bytes ? cost->stored_bytes : cost->forward_bytes;
    return cost->drops ? most_bytes : 0;
}

static bool admits(const CyclicStage* stage, const PipeCost* cost, int64_t limit_bytes) {
    int64_t dropped_bytes = dropped_of(cost);
    if (stage->dropped_bytes > dropped_bytes) { dropped_bytes = stage->dropped_bytes; }
    return stage->held_bytes + held_of(cost) + dropped_bytes <= limit_bytes;
}

static Status build_cyclic(PipeSchedule* out, const PipeProblem* problem, const int32_t* order,
                           bool split_backward, bool limited, Arena* arena) {
    CyclicStage stages[PLAN_MAX_STAGES] = {{0}};
    int32_t P = problem->P, M = problem->M, num_run;
    if (limited) { TRY(pipe_problem_check_fits(problem)); }
    TRY(pipe_schedule_need_linear(problem, "cyclic"));
    TRY(pipe_schedule_init(out, problem, arena));
    do {
        num_run = 0;
        for (int32_t s = 0; s < P; s++) {
            stages[s].f_ready = s == 0 ? M : stages[s - 1].next_f;
            stages[s].b_ready = s == P - 1 ? stages[s].next_f : stages[s + 1].next_b;
        }
        for (int32_t s = 0; s < P; s++) {
            CyclicStage* stage = &stages[s];
            if (stage->next_b < stage->b_ready) {
                int32_t m = order[stage->next_b++];
                pipe_schedule_push_backward(out, problem, s, s, m, split_backward);
                stage->held_bytes -= held_of(pipe_cost(problem, s, m));
                if (stage->next_b == stage->next_f) { stage->dropped_bytes = 0; }
                num_run++;
            }
            if (stage->next_f == stage->f_ready) { continue; }
            const PipeCost* cost = pipe_cost(problem, s, order[stage->next_f]);
            if (limited && !admits(stage, cost, problem->memory_limit_bytes[s])) { continue; }
            pipe_schedule_push(out, s, JOB_F, s, order[stage->next_f++]);
            stage->held_bytes += held_of(cost);
            if (dropped_of(cost) > stage->dropped_bytes) { stage->dropped_bytes = dropped_of(cost); }
            num_run++;
        }
    } while (num_run > 0);
    return STATUS_OK;
}

static Status build(PipeSchedule* out, const PipeProblem* problem, const int32_t* order, bool split_backward,
                    Arena* arena) {
    return build_cyclic(out, problem, order, split_backward, false, arena);
}

static Status build_limited(PipeSchedule* out, const PipeProblem* problem, const int32_t* order,
                            bool split_backward, Arena* arena) {
    return build_cyclic(out, problem, order, split_backward, true, arena);
}

const PipePolicy pipe_policy_cyclic = {
    .name = "cyclic",
    .help = "one backward and one forward per cycle, as if all took equally long",
    .build = build,
};

const PipePolicy pipe_policy_cyclic_limited = {
    .name = "cyclic-limited",
    .help = "cyclic, where a forward waits until it fits in memory",
    .build = build_limited,
};

// --- pipe_walk_letters --------------------
// pipe_walk_letters.c -- messages that are ready and wait until their receiver takes them (pipe_pulled.h).

static void walk_letter_put(WalkStage* stage, WalkLetter letter) {
    int32_t at = stage->num_letters++;
    for (; at > stage->num_taken && stage->letters[at - 1].ready_ns > letter.ready_ns; at--) {
        stage->letters[at] = stage->letters[at - 1];
    }
    stage->letters[at] = letter;
}

// --- pipe_walk_memory --------------------
// pipe_walk_memory.c -- memory of one stage in the greedy walk, kept in a safe state.
//
// Micro-batches end in their order. State is safe if for every i that has begun on the stage
//     need(i) + sum over j > i of held(j) <= limit
// i can end when all before it have, and W that are pending can be run at any time (but those of a share by
// vocabulary, which wait for another stage: there a micro-batch ends with W). A job that takes `bytes`
// for micro-batch i is admitted if that still holds for all before i, of i itself with what it takes in
// need(i).

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

// What a micro-batch holds at most on this row: kept, and what it drops, come back.
static int64_t row_need(const WalkCell* cell) {
    return cell->kept_bytes + larger(cell->passing_bytes, cell->dropped_bytes);
}

// Is the limit one that lets every micro-batch run alone by need_of? False: no walk.
static bool walk_memory_init(WalkStage* stage, int32_t M) {
    for (int32_t i = 0; i < M; i++) {
        int64_t need_bytes = 0;
        for (int32_t r = 0; r < stage->num_rows; r++) { need_bytes += row_need(&stage->rows[r].cells[i]); }
        stage->need_of[i] = need_bytes;
        stage->most_need_bytes = larger(stage->most_need_bytes, need_bytes);
        if (need_bytes > stage->limit_bytes) { return false; }
    }
    return true;
}

static int64_t taken_by(const WalkCell* cell, JobKind kind) {
    return kind == JOB_R ? cell->dropped_bytes : cell->kept_bytes + cell->passing_bytes;
}

// The oldest micro-batch that has not ended here: behind it, all have not.
static int32_t oldest(const WalkStage* stage) {
    int32_t first = INT32_MAX;
    for (int32_t r = 0; r < stage->num_rows; r++) {
        const WalkRow* row = &stage->rows[r];
        int32_t next = row->ends_with_w ? row->next_w : row->next_b;
        if (next < first) { first = next; }
    }
    return first;
}

static int32_t newest(const WalkStage* stage) {
    int32_t last = 0;
    for (int32_t r = 0; r < stage->num_rows; r++) {
        if (stage->rows[r].next_f > last) { last = stage->rows[r].next_f; }
    }
    return last - 1;
}

// Is the state still safe when micro-batch i has taken that?
static bool stays_safe(const WalkStage* stage, int32_t i, int64_t taken_bytes) {
    int64_t later_bytes = 0;
    int32_t last = newest(stage), first = oldest(stage);
    for (int32_t j = last > i ? last : i; j > i; j--) { later_bytes += stage->held_of[j]; }
    if (stage->need_of[i] + later_bytes > stage->limit_bytes) { return false; }
    later_bytes += taken_bytes + stage->held_of[i];
    for (int32_t j = i - 1; j >= first; j--) {
        if (stage->need_of[j] + later_bytes > stage->limit_bytes) { return false; }
        later_bytes += stage->held_of[j];
    }
    return true;
}

// May the stage run F (or R) of the row's micro-batch i now? If not because of what it holds: *needs_w.
static bool walk_memory_admits(const WalkStage* stage, const WalkRow* row, JobKind kind, int32_t i,
                               bool* needs_w) {
    int64_t taken_bytes = taken_by(&row->cells[i], kind);
    if (stage->held_bytes + taken_bytes > stage->limit_bytes) {
        *needs_w = true;
        return false;
    }
    return stage->most_need_bytes + stage->lasting_bytes + taken_bytes <= stage->limit_bytes ||
           stays_safe(stage, i, taken_bytes);
}

// That job has run.
static void walk_memory_after(WalkStage* stage, const WalkRow* row, JobKind kind, int32_t i,
                              bool split_backward) {
    const WalkCell* cell = &row->cells[i];
    int64_t all_bytes = cell->kept_bytes + cell->dropped_bytes;
    switch (kind) {
        case JOB_F:
            stage->held_bytes += cell->kept_bytes;
            stage->held_of[i] += cell->kept_bytes;
            stage->lasting_bytes += cell->kept_bytes;
            break;
        case JOB_R:
            stage->held_bytes += cell->dropped_bytes;
            stage->held_of[i] += cell->dropped_bytes;
            stage->lasting_bytes += cell->dropped_bytes;
            break;
        case JOB_B:
            stage->held_of[i] -= all_bytes;
            stage->lasting_bytes -= all_bytes;
            stage->held_bytes -= split_backward ? cell->input_bytes : all_bytes;
            break;
        default:
            stage->held_bytes -= all_bytes - cell->input_bytes;
            if (row->ends_with_w) { walk_memory_share(stage, row, i); }
            break;
    }
}

// W of the micro-batch i of a share by rows may run from now on: next_b has passed it.
static void walk_memory_share(WalkStage* stage, const WalkRow* row, int32_t i) {
    stage->held_of[i] -= row->cells[i].kept_bytes;
    stage->lasting_bytes -= row->cells[i].kept_bytes;
}

// --- pipe_walk_begin --------------------
// pipe_walk_begin.c -- the greedy walk before its first job: rows by stage, cells by position, limits.

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

// Fills `greedy`, whose problem, order and schedule are set. In `arena`.
static Status walk_begin(Walk* greedy, const PipeAdaptiveRule* rule, Arena* arena) {
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

// False where some stage's limit lets no micro-batch run alone: no walk.
static bool walk_memory_begin(Walk* greedy) {
    for (int32_t s = 0; s < greedy->problem->P; s++) {
        WalkStage* stage = &greedy->stages[s];
        if (stage->limited && !walk_memory_init(stage, greedy->problem->M)) { return false; }
    }
    return true;
}

// --- pipe_adaptive --------------------

enum { TAKE_LETTER = JOB_COUNT };  // beside the jobs, what a stage may do next
enum { FEW_STAGES = 16 };          // that are looked at one by one

PipeAdaptiveRule pipe_adaptive_rule(const PipeProblem* problem, bool split_backward) {
    PipeAdaptiveRule rule = {.split_backward = split_backward, .critical_permille = 2000};
    int32_t K = pipe_num_chunks(problem);
    for (int32_t k = 0; k < K; k++) { rule.max_in_flight[k] = 2 * (K - k) - 1; }
    return rule;
}

// --- who decides next ------------------------------------------------------------------------------------

static inline void play(Walk* greedy, int32_t node) {
    int32_t a = greedy->winner[2 * node], b = greedy->winner[2 * node + 1];
    greedy->winner[node] = greedy->begin_ns[b] < greedy->begin_ns[a] ? b : a;
}

static inline void replay(Walk* greedy, int32_t s) {
    if (greedy->problem->P <= FEW_STAGES) { return; }
    for (int32_t node = (greedy->num_leaves + s) / 2; node > 0; node /= 2) { play(greedy, node); }
}

static void play_all(Walk* greedy) {
    int32_t P = greedy->problem->P;
    for (int32_t s = 0; s < greedy->num_leaves; s++) {
        greedy->winner[greedy->num_leaves + s] = s < P ? s : P - 1;
    }
    for (int32_t node = greedy->num_leaves - 1; node > 0; node--) { play(greedy, node); }
}

// The stage that decides first; of equals, the first.
static inline int32_t first_stage(const Walk* greedy) {
    int32_t P = greedy->problem->P, first = 0;
    if (P > FEW_STAGES) { return greedy->winner[1]; }
    for (int32_t s = 1; s < P; s++) {
        if (greedy->begin_ns[s] < greedy->begin_ns[first]) { first = s; }
    }
    return first;
}

// --- choosing --------------------------------------------------------------------------------------------

typedef struct {
    int64_t at_ns;  // when it can begin; WALK_NEVER: not
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
    int64_t at_ns = walk_later(row->urgent_ns, stage->clock_ns);
    if (at_ns > best->at_ns || at_ns == WALK_NEVER) { return; }
    int32_t i = row->is_share ? row->next_f : row->next_b;
    if (at_ns == best->at_ns && i >= best->position) { return; }
    int32_t kind = row->is_share ? JOB_F : r_is_due(row) ? JOB_R : JOB_B;
    if (kind != JOB_B && !may_take(stage, row, (JobKind)kind, i, needs_w)) { return; }
    *best = (Option){at_ns, r, i, kind};
}

// F of chunks: the later chunk's.
static inline void offer_forward(Option* best, const WalkStage* stage, int32_t r, bool* needs_w) {
    const WalkRow* row = &stage->rows[r];
    int64_t at_ns = walk_later(row->forward_ns, stage->clock_ns);
    if (at_ns > best->at_ns || at_ns == WALK_NEVER) { return; }
    if (!may_take(stage, row, JOB_F, row->next_f, needs_w)) { return; }
    *best = (Option){at_ns, r, row->next_f, JOB_F};
}

// A ready job whose tail takes longer than the stage's work that is left; the longest.
static inline void offer_critical(Option* best, int64_t* tail_ns, const WalkStage* stage, int32_t r,
                                  bool* needs_w) {
    const WalkRow* row = &stage->rows[r];
    if (row->urgent_ns <= stage->clock_ns) {
        int32_t i = row->is_share ? row->next_f : row->next_b;
        const WalkCell* cell = &row->cells[i];
        int64_t urgent_ns = row->is_share ? cell->forward_tail_ns : cell->backward_tail_ns;
        int32_t kind = row->is_share ? JOB_F : r_is_due(row) ? JOB_R : JOB_B;
        if (urgent_ns > *tail_ns && (kind == JOB_B || may_take(stage, row, (JobKind)kind, i, needs_w))) {
            *tail_ns = urgent_ns;
            *best = (Option){stage->clock_ns, r, i, kind};
        }
    }
    if (row->forward_ns <= stage->clock_ns && row->cells[row->next_f].forward_tail_ns > *tail_ns &&
        may_take(stage, row, JOB_F, row->next_f, needs_w)) {
        *tail_ns = row->cells[row->next_f].forward_tail_ns;
        *best = (Option){stage->clock_ns, r, row->next_f, JOB_F};
    }
}

// R ahead of time, else the oldest W.
static inline void offer_filler(Option* best, const Walk* greedy, const WalkStage* stage, int32_t num_rows) {
    bool needs_w;
    for (int32_t r = 0; r < num_rows && stage->drops; r++) {
        const WalkRow* row = &stage->rows[r];
        if (!row->is_share && r_is_due(row) && may_take(stage, row, JOB_R, row->next_b, &needs_w)) {
            *best = (Option){stage->clock_ns, r, row->next_b, JOB_R};
            return;
        }
    }
    for (int32_t r = 0; r < num_rows; r++) {
        const WalkRow* row = &stage->rows[r];
        bool is_ready = row->next_w < row->next_b && (!row->is_share || !greedy->has_factors ||
                                                      row->grad_at[row->next_w] <= stage->clock_ns);
        if (!is_ready || (best->at_ns != WALK_NEVER && row->next_w > best->position)) { continue; }
        *best = (Option){stage->clock_ns, r, row->next_w, JOB_W};
    }
}

// Where nothing else is to come: W of a share that waits for its factors.
static inline void offer_factors(Option* best, const Walk* greedy, const WalkStage* stage) {
    const WalkRow* row = &stage->rows[stage->num_rows - 1];
    if (!greedy->has_factors || !row->is_share || row->next_w >= row->next_b) { return; }
    int64_t at_ns = walk_later(row->grad_at[row->next_w], stage->clock_ns);
    if (at_ns < best->at_ns) { *best = (Option){at_ns, stage->num_rows - 1, row->next_w, JOB_W}; }
}

// May a filler wait, because `best` comes within part of the time that it takes?
static inline bool filler_waits(const Walk* greedy, const WalkStage* stage, const Option* filler,
                                const Option* best) {
    if (greedy->rule->wait_permille == 0 || filler->kind != JOB_W || best->at_ns == WALK_NEVER) {
        return false;
    }
    int64_t filler_ns = stage->rows[filler->row].cells[filler->position].job_ns[JOB_W];
    return best->at_ns - stage->clock_ns <= filler_ns / 1000 * greedy->rule->wait_permille;
}

// Is there an input of a B, a share or an F?
static inline bool has_input(const WalkStage* stage, int32_t num_rows) {
    int64_t first_ns = WALK_NEVER;
    for (int32_t r = 0; r < num_rows; r++) {
        const WalkRow* row = &stage->rows[r];
        int64_t row_ns = row->urgent_ns < row->forward_ns ? row->urgent_ns : row->forward_ns;
        first_ns = row_ns < first_ns ? row_ns : first_ns;
    }
    return first_ns <= stage->clock_ns;
}

// What stage s does next, and when, as far as is known now. num_rows: the stage's, known to the compiler
// where there is one.
static inline void choose_among(Walk* greedy, int32_t s, int32_t num_rows) {
    WalkStage* stage = &greedy->stages[s];
    Option best = {.at_ns = WALK_NEVER, .position = INT32_MAX};
    bool needs_w = false;
    if (greedy->rule->wait_permille == 0 && !has_input(stage, num_rows)) {
        offer_filler(&best, greedy, stage, num_rows);
        if (best.at_ns != WALK_NEVER) {
            stage->choice = best.kind;
            stage->choice_row = best.row;
            greedy->begin_ns[s] = best.at_ns;
            return;
        }
    }
    if (greedy->rule->critical_permille > 0) {
        int64_t tail_ns = stage->left_ns * 1000 / greedy->rule->critical_permille;
        for (int32_t r = 0; r < num_rows; r++) { offer_critical(&best, &tail_ns, stage, r, &needs_w); }
    }
    bool is_critical = best.at_ns != WALK_NEVER;
    for (int32_t r = num_rows - 1; r >= 0 && !is_critical; r--) { offer_urgent(&best, stage, r, &needs_w); }
    if (best.at_ns > stage->clock_ns) {
        Option forward = {.at_ns = best.at_ns == WALK_NEVER ? WALK_NEVER : best.at_ns - 1, .kind = -1};
        for (int32_t r = 0; r < num_rows; r++) { offer_forward(&forward, stage, r, &needs_w); }
        if (forward.kind == JOB_F && forward.at_ns < best.at_ns) { best = forward; }
    }
    if (best.at_ns > stage->clock_ns) {
        Option filler = {.at_ns = WALK_NEVER, .position = INT32_MAX};
        offer_filler(&filler, greedy, stage, num_rows);
        if (filler.at_ns == WALK_NEVER) {
            offer_factors(&best, greedy, stage);
        } else if (needs_w || !filler_waits(greedy, stage, &filler, &best)) {
            best = filler;
        }
    }
    stage->choice = best.kind;
    stage->choice_row = best.row;
    greedy->begin_ns[s] = best.at_ns;
}

static inline void choose(Walk* greedy, int32_t s) {
    int32_t num_rows = greedy->stages[s].num_rows;
    if (num_rows == 1) {
        choose_among(greedy, s, 1);
    } else {
        choose_among(greedy, s, num_rows);
    }
}

// Messages that are ready are taken before anything else, the longest ready first, and while there is nothing
// to run (pipe_pulled.h).
static void choose_pulled(Walk* greedy, int32_t s) {
    WalkStage* stage = &greedy->stages[s];
    bool has_letter = stage->num_taken < stage->num_letters;
    int64_t first_ns = has_letter ? stage->letters[stage->num_taken].ready_ns : WALK_NEVER;
    if (first_ns > stage->clock_ns) {
        choose(greedy, s);
        if (greedy->begin_ns[s] <= stage->clock_ns || first_ns == WALK_NEVER) { return; }
    }
    stage->choice = TAKE_LETTER;
    greedy->begin_ns[s] = walk_later(first_ns, stage->clock_ns);
}

static inline void decide(Walk* greedy, int32_t s) {
    if (greedy->problem->pulls) {
        choose_pulled(greedy, s);
    } else {
        choose(greedy, s);
    }
    replay(greedy, s);
}

static void count_part(Walk* greedy, WalkRow* to, int32_t i, int64_t at_ns) {
    greedy->part_at[i] = walk_later(greedy->part_at[i], at_ns);
    if (++greedy->parts[i] < greedy->num_parts) { return; }
    to->grad_at[i] = greedy->part_at[i];
    walk_refresh(to);
}

// Copying is the receiver's time.
static void take_letter(Walk* greedy, int32_t s) {
    WalkStage* stage = &greedy->stages[s];
    const WalkLetter* letter = &stage->letters[stage->num_taken++];
    WalkRow* row = &stage->rows[letter->row];
    stage->clock_ns = greedy->begin_ns[s] + letter->copy_ns;
    if (letter->kind == LETTER_PART) {
        count_part(greedy, row, letter->position, stage->clock_ns);
    } else {
        (letter->kind == LETTER_ACT ? row->act_at : row->grad_at)[letter->position] = stage->clock_ns;
        walk_refresh(row);
    }
    decide(greedy, s);
}

// --- running ---------------------------------------------------------------------------------------------

// From a stage whose job has just ended to a row, over its link where the row is elsewhere. False: the
// message was posted, to be taken.
static inline bool arrives(int64_t* at_ns, Walk* greedy, WalkStage* from, const WalkRow* to, LetterKind kind,
                           int32_t i, int64_t transfer_ns) {
    WalkStage* stage = &greedy->stages[to->stage];
    *at_ns = from->clock_ns;
    if (stage == from) { return true; }
    if (greedy->problem->pulls) {
        walk_letter_put(
            stage, (WalkLetter){from->clock_ns, transfer_ns, (int32_t)(to - stage->rows), i, (int32_t)kind});
        decide(greedy, to->stage);
        return false;
    }
    *at_ns = from->link_ns = walk_later(from->clock_ns, from->link_ns) + transfer_ns;
    return true;
}

// What has arrived at_ns may change what the stage does next: where it is the next of its kind, and not after
// what the stage has chosen, unless that might wait for it. (Whose job has just ended decides afterwards.)
static inline void reconsider(Walk* greedy, const WalkStage* from, const WalkRow* to, bool is_next,
                              int64_t at_ns) {
    if (is_next && &greedy->stages[to->stage] != from &&
        (at_ns <= greedy->begin_ns[to->stage] || greedy->rule->wait_permille > 0)) {
        decide(greedy, to->stage);
    }
}

static inline void put_act(Walk* greedy, WalkStage* from, WalkRow* to, int32_t i) {
    int64_t at_ns;
    if (!arrives(&at_ns, greedy, from, to, LETTER_ACT, i, to->cells[i].act_in_ns)) { return; }
    to->act_at[i] = at_ns;
    walk_refresh(to);
    reconsider(greedy, from, to, i == to->next_f, at_ns);
}

static inline void put_grad(Walk* greedy, WalkStage* from, WalkRow* to, int32_t i) {
    int64_t at_ns;
    if (!arrives(&at_ns, greedy, from, to, LETTER_GRAD, i, to->cells[i].grad_in_ns)) { return; }
    to->grad_at[i] = at_ns;
    walk_refresh(to);
    reconsider(greedy, from, to, i == to->next_b || to->is_share, at_ns);
}

// A share's part of the gradient that the last chunk waits for.
static void put_part(Walk* greedy, WalkStage* from, int32_t share, int32_t i) {
    WalkRow* to = walk_row(greedy, greedy->K - 1);
    int64_t at_ns, part_ns = walk_row(greedy, share)->cells[i].part_ns;
    if (!arrives(&at_ns, greedy, from, to, LETTER_PART, i, part_ns)) { return; }
    count_part(greedy, to, i, at_ns);
    if (to->grad_at[i] != WALK_NEVER) { reconsider(greedy, from, to, i == to->next_b, to->grad_at[i]); }
}

static void to_shares(Walk* greedy, WalkStage* from, int32_t i, bool factors) {
    for (int32_t s = 0; s < greedy->problem->P; s++) {
        if (greedy->row_of[greedy->K + s] < 0) { continue; }
        WalkRow* share = walk_row(greedy, greedy->K + s);
        if (factors) {
            share->next_b = i + 1;
            put_grad(greedy, from, share, i);
        } else {
            put_act(greedy, from, share, i);
        }
    }
}

static inline void after_forward(Walk* greedy, WalkStage* stage, WalkRow* row, int32_t i) {
    row->next_f++;
    walk_refresh(row);
    if (row->is_share) {
        if (!greedy->has_factors) {
            row->next_b = row->next_f;
            if (stage->limited) { walk_memory_share(stage, row, i); }
        }
        put_part(greedy, stage, row->chunk, i);
    } else if (row->chunk < greedy->K - 1) {
        put_act(greedy, stage, walk_row(greedy, row->chunk + 1), i);
    } else if (greedy->num_parts > 0) {
        to_shares(greedy, stage, i, false);
    } else {
        row->grad_at[i] = stage->clock_ns;
        walk_refresh(row);
    }
}

static inline void after_backward(Walk* greedy, WalkStage* stage, WalkRow* row, int32_t i) {
    row->next_b++;
    walk_refresh(row);
    if (!greedy->rule->split_backward) { row->next_w++; }
    if (row->chunk > 0) { put_grad(greedy, stage, walk_row(greedy, row->chunk - 1), i); }
    if (row->chunk == greedy->K - 1 && greedy->has_factors) { to_shares(greedy, stage, i, true); }
}

// Run the chosen job of stage s.
static inline void run_choice(Walk* greedy, int32_t s) {
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
static int64_t walk(Walk* greedy, int64_t cutoff_ns) {
    int32_t P = greedy->problem->P;
    int64_t makespan_ns = 0;
    for (int32_t s = 0; s < P; s++) { greedy->begin_ns[s] = WALK_NEVER; }
    play_all(greedy);
    for (int32_t s = 0; s < P; s++) { decide(greedy, s); }
    for (;;) {
        int32_t first = first_stage(greedy);
        int64_t first_ns = greedy->begin_ns[first];
        if (first_ns == WALK_NEVER) { break; }
        if (first_ns + greedy->stages[first].left_ns > cutoff_ns) { return INT64_MAX; }
        greedy->num_walked++;
        if (greedy->stages[first].choice >= JOB_COUNT) {
            take_letter(greedy, first);
        } else {
            run_choice(greedy, first);
        }
    }
    for (int32_t s = 0; s < P; s++) {
        if (greedy->stages[s].left_ns > greedy->problem->tail_ns[s]) {
            return INT64_MAX;
        }  // it waits for ever
        makespan_ns = walk_later(makespan_ns, greedy->stages[s].clock_ns + greedy->problem->tail_ns[s]);
    }
    return makespan_ns;
}

// --- outside ---------------------------------------------------------------------------------------------

Status pipe_adaptive_build(PipeSchedule* out, const PipeProblem* problem, const int32_t* order,
                           const PipeAdaptiveRule* rule, Arena* arena) {
    TRY(pipe_problem_check_fits(problem));
    PipeSchedule schedule;
    TRY(pipe_schedule_init(&schedule, problem, arena));
    Walk greedy = {.problem = problem, .order = order, .schedule = &schedule};
    TRY(walk_begin(&greedy, rule, arena));
    if (!walk_memory_begin(&greedy) || walk(&greedy, INT64_MAX) == INT64_MAX) {
        return pipe_schedule_one_by_one(out, problem, order, arena);
    }
    *out = schedule;
    return STATUS_OK;
}

Status pipe_adaptive_makespan(int64_t* makespan_ns, const PipeProblem* problem, const int32_t* order,
                              const PipeAdaptiveRule* rule, int64_t cutoff_ns, int64_t* budget,
                              Arena* arena) {
    Walk greedy = {.problem = problem, .order = order};
    *makespan_ns = INT64_MAX;
    TRY(walk_begin(&greedy, rule, arena));
    if (walk_memory_begin(&greedy)) { *makespan_ns = walk(&greedy, cutoff_ns); }
    *budget -= greedy.num_walked + (int64_t)pipe_num_rows(problem) * problem->M / 2;
    return STATUS_OK;
}

static Status adaptive_build(PipeSchedule* out, const PipeProblem* problem, const int32_t* order,
                             bool split_backward, Arena* arena) {
    PipeAdaptiveRule rule = pipe_adaptive_rule(problem, split_backward);
    return pipe_adaptive_build(out, problem, order, &rule, arena);
}

const PipePolicy pipe_policy_adaptive = {
    .name = "adaptive",
    .help = "backward first, then forward while memory lasts, then weight gradients",
    .build = adaptive_build,
};
