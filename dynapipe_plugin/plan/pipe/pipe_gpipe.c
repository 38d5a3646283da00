// pipe_gpipe.c -- GPipe (Huang et al., NeurIPS'19): every forward, then every backward in the same order.
// Holds all M micro-batches on every stage; no memory limit is looked at.
#include "pipe_schedule.h"

static Status build(PipeSchedule* out, const PipeProblem* problem, const int32_t* order, bool split_backward,
                    Arena* arena) {
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
    .build = build,
};
