/*
pipe_walk.h -- the inside of the greedy walk: what pipe_adaptive.c (time) and pipe_walk_memory.c (admission)
share.

Micro-batches count by position in the order, the same on every row: next_* is the position of the next one.
*/
#pragma once

#include "pipe.h"

// One micro-batch on one row, by position: what the walk reads, side by side.
typedef struct {
    int64_t job_ns[JOB_COUNT];  // B with W where backward is joint
    int64_t kept_bytes;         // from F on: stored (0 where it drops) and input
    int64_t input_bytes;        // of these, what ends with B
    int64_t passing_bytes;      // while F runs, where it drops
    int64_t dropped_bytes;      // that R brings back; 0: nothing was dropped
    bool drops;
    // Transfers to this row, where they come from another stage: of its input; of the gradient of its output
    // (of a share: the factors); and of a share, of its part to the last chunk.
    int64_t act_in_ns, grad_in_ns, part_ns;
} WalkCell;

// A chunk, or a share of the head.
typedef struct {
    // A share has no B: next_b counts those whose W may run as soon as it likes (by vocabulary, whose factors
    // are under way).
    int32_t next_f, next_b, next_w;
    int32_t recomputed;  // position after the last R
    int32_t stage, chunk;
    int32_t max_in_flight;
    bool drops;  // some micro-batch
    bool is_share;
    int32_t pulled_acts, pulled_grads;  // with `pulls`: so many were taken
    int64_t* act_at;                    // [M + 1] by position: arrival; NEVER: not known yet, and at M
    int64_t* grad_at;                   // [M + 1] the same; of a share: of its factors
    int64_t *act_ready, *grad_ready;    // with `pulls`: [M + 1] when a message is ready to be taken
    const WalkCell* cells;              // [M]
} WalkRow;

typedef struct {
    WalkRow* rows;  // of this stage, chunks in the order of the chain, then its share
    int32_t num_rows;
    int32_t choice_row;         // what it does next: row ...
    int32_t choice;             // ... and JobKind, or a message
    int64_t clock_ns, link_ns;  // free from then on
    int64_t left_ns;            // its jobs that have not run, and its tail
    bool limited;               // by memory
    int64_t limit_bytes;        // of the problem or the rule
    int64_t held_bytes;         // now, W pending included
    int64_t* held_of;           // [M] of these, by what no W alone gives back
    int64_t* need_of;           // [M] the most that one will hold
} WalkStage;

// Is the limit one that lets every micro-batch run alone by need_of? False: no walk.
bool walk_memory_init(WalkStage* stage, int32_t M);
// May the stage run F (or R) of the row's micro-batch i now? If it may once W have run: *needs_w.
bool walk_memory_admits(const WalkStage* stage, const WalkRow* row, JobKind kind, int32_t i, bool* needs_w);
// That job has run.
void walk_memory_after(WalkStage* stage, const WalkRow* row, JobKind kind, int32_t i, bool split_backward);
// W of the share's micro-batch i may run from now on: next_b has passed it.
void walk_memory_share(WalkStage* stage, const WalkRow* row, int32_t i);
