/*
pipe_schedule.h -- job lists being written: what the policies pipe_gpipe, pipe_1f1b and pipe_adaptive share.
*/
#pragma once

#include "pipe.h"

// Empty lists with room for every job of every micro-batch (F, R, B, W).
Status pipe_schedule_init(PipeSchedule* out, const PipeProblem* problem, Arena* arena);

static inline void pipe_schedule_push(PipeSchedule* schedule, int32_t s, JobKind kind, int32_t row,
                                      int32_t m) {
    schedule->jobs[s][schedule->num_jobs[s]++] =
        (PipeJob){.kind = (uint8_t)kind, .chunk = (int16_t)row, .mb = m};
}

// [R] B [W] of a chunk one after the other.
void pipe_schedule_push_backward(PipeSchedule* schedule, const PipeProblem* problem, int32_t s, int32_t chunk,
                                 int32_t m, bool split_backward);

// STATUS_BAD_OPTION: this policy knows one chunk a stage only.
Status pipe_schedule_need_linear(const PipeProblem* problem, const char* policy);

// F of its chunks, its share, [R] B of its chunks, one micro-batch after the other on every stage: the least
// memory that any schedule needs.
Status pipe_schedule_one_by_one(PipeSchedule* out, const PipeProblem* problem, const int32_t* order,
                                Arena* arena);

// Bytes that micro-batch m needs on stage s when it is alone there.
int64_t pipe_alone_bytes(const PipeProblem* problem, int32_t s, int32_t m);

// STATUS_INFEASIBLE where some micro-batch does not fit even alone; names stage, micro-batch and bytes over.
Status pipe_problem_check_fits(const PipeProblem* problem);
