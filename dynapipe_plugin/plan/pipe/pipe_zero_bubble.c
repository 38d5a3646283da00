// pipe_zero_bubble.c -- see pipe_zero_bubble.h.
#include "pipe_zero_bubble.h"

#include "pipe_schedule.h"

static int32_t smaller(int32_t a, int32_t b) {
    return a < b ? a : b;
}

static int32_t warm_up(int32_t P, int32_t s, int32_t held) {
    int32_t extra = held > P ? smaller(held - P, P - 1 - s) : 0;
    return smaller(P - s + extra, held);
}

Status pipe_zero_bubble_build(PipeSchedule* out, const PipeProblem* problem, const int32_t* order,
                              int32_t held, Arena* arena) {
    TRY(pipe_schedule_need_linear(problem, "zero-bubble"));
    TRY(pipe_schedule_init(out, problem, arena));
    int32_t P = problem->P, M = problem->M;
    for (int32_t s = 0; s < P; s++) {
        int32_t w = warm_up(P, s, held), next_w = 0;
        for (int32_t i = 0; i < w && i < M; i++) { pipe_schedule_push(out, s, JOB_F, s, order[i]); }
        for (int32_t i = 0; i < M; i++) {
            if (pipe_cost(problem, s, order[i])->drops) { pipe_schedule_push(out, s, JOB_R, s, order[i]); }
            pipe_schedule_push(out, s, JOB_B, s, order[i]);
            if (i >= held - w) { pipe_schedule_push(out, s, JOB_W, s, order[next_w++]); }
            if (i + w < M) { pipe_schedule_push(out, s, JOB_F, s, order[i + w]); }
        }
        while (next_w < M) { pipe_schedule_push(out, s, JOB_W, s, order[next_w++]); }
    }
    return STATUS_OK;
}

// Do any `held` neighbours in the order fit together, with the inputs that the stage before may have sent?
static bool fits(const PipeProblem* problem, const int32_t* order, int32_t held) {
    for (int32_t s = 0; s < problem->P; s++) {
        int64_t limit_bytes = problem->memory_limit_bytes[s], sum_bytes = 0;
        if (limit_bytes == INT64_MAX) { continue; }
        int32_t inputs = s > 0 ? held + warm_up(problem->P, s - 1, held) : 0;
        for (int32_t i = 0; i < problem->M; i++) {
            const PipeCost* in = pipe_cost(problem, s, order[i]);
            sum_bytes += in->stored_bytes + in->forward_bytes + in->input_bytes;
            if (i >= held) {
                const PipeCost* done = pipe_cost(problem, s, order[i - held]);
                sum_bytes -= done->stored_bytes + done->forward_bytes;
            }
            if (i >= inputs && s > 0) { sum_bytes -= pipe_cost(problem, s, order[i - inputs])->input_bytes; }
            if (sum_bytes > limit_bytes) { return false; }
        }
    }
    return true;
}

static Status build(PipeSchedule* out, const PipeProblem* problem, const int32_t* order, bool split_backward,
                    Arena* arena) {
    if (!split_backward) { return pipe_policy_1f1b.build(out, problem, order, false, arena); }
    TRY(pipe_problem_check_fits(problem));
    int32_t held = smaller(2 * problem->P - 1, problem->M > 0 ? problem->M : 1);
    while (held > 1 && !fits(problem, order, held)) { held--; }
    if (held == 1 && !fits(problem, order, 1)) {
        return pipe_schedule_one_by_one(out, problem, order, arena);
    }
    return pipe_zero_bubble_build(out, problem, order, held, arena);
}

const PipePolicy pipe_policy_zero_bubble = {
    .name = "zero-bubble",
    .help = "the fixed orders ZB-H1 ... ZB-H2, as far as memory allows",
    .build = build,
};
