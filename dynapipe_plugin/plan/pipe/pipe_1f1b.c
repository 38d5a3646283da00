// pipe_1f1b.c -- 1F1B (PipeDream-flush; Narayanan et al., SC'21): stage s warms up with min(P - s, M)
// forwards, then alternates one backward, one forward. Stage s never holds more than P - s micro-batches, and
// M equal ones take (M + P - 1)(f + b) where transfers are free. No memory limit is looked at.
#include "pipe_schedule.h"

static Status build(PipeSchedule* out, const PipeProblem* problem, const int32_t* order, bool split_backward,
                    Arena* arena) {
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
    .build = build,
};
