// pipe_walk_memory.c -- memory of one stage in the greedy walk, kept in a safe state.
//
// Micro-batches end in their order. State is safe if for every i that has begun on the stage
//     need(i) + sum over j > i of held(j) <= limit
// i can end when all before it have, and W that are pending can be run at any time (but those of a share by
// vocabulary, which wait for another stage: there a micro-batch ends with W). A job that takes `bytes`
// for micro-batch i is admitted if that still holds for all before i, of i itself with what it takes in
// need(i).
#include "pipe_walk.h"

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

// What a micro-batch holds at most on this row: kept, and what it drops, come back.
static int64_t row_need(const WalkCell* cell) {
    return cell->kept_bytes + larger(cell->passing_bytes, cell->dropped_bytes);
}

bool walk_memory_init(WalkStage* stage, int32_t M) {
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

bool walk_memory_admits(const WalkStage* stage, const WalkRow* row, JobKind kind, int32_t i, bool* needs_w) {
    int64_t taken_bytes = taken_by(&row->cells[i], kind);
    if (stage->held_bytes + taken_bytes > stage->limit_bytes) {
        *needs_w = true;
        return false;
    }
    return stage->most_need_bytes + stage->lasting_bytes + taken_bytes <= stage->limit_bytes ||
           stays_safe(stage, i, taken_bytes);
}

void walk_memory_after(WalkStage* stage, const WalkRow* row, JobKind kind, int32_t i, bool split_backward) {
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

void walk_memory_share(WalkStage* stage, const WalkRow* row, int32_t i) {
    stage->held_of[i] -= row->cells[i].kept_bytes;
    stage->lasting_bytes -= row->cells[i].kept_bytes;
}
