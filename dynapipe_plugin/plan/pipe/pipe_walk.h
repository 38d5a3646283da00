/*
pipe_walk.h -- the inside of the greedy walk: what pipe_adaptive.c (time), pipe_walk_begin.c (the state before
the first job), pipe_walk_memory.c (admission) and pipe_walk_letters.c (messages that their receiver takes)
share.

Micro-batches count by position in the order, the same on every row: next_* is the position of the next one.
*/
#pragma once

#include "pipe_adaptive.h"

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

// Fills `greedy`, whose problem, order and schedule are set. In `arena`.
Status walk_begin(Walk* greedy, const PipeAdaptiveRule* rule, Arena* arena);
// False where some stage's limit lets no micro-batch run alone: no walk.
bool walk_memory_begin(Walk* greedy);

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

// Is the limit one that lets every micro-batch run alone by need_of? False: no walk.
bool walk_memory_init(WalkStage* stage, int32_t M);
// May the stage run F (or R) of the row's micro-batch i now? If not because of what it holds: *needs_w.
bool walk_memory_admits(const WalkStage* stage, const WalkRow* row, JobKind kind, int32_t i, bool* needs_w);
// That job has run.
void walk_memory_after(WalkStage* stage, const WalkRow* row, JobKind kind, int32_t i, bool split_backward);
// W of the micro-batch i of a share by rows may run from now on: next_b has passed it.
void walk_memory_share(WalkStage* stage, const WalkRow* row, int32_t i);

// Behind those that are ready as early.
void walk_letter_put(WalkStage* stage, WalkLetter letter);
