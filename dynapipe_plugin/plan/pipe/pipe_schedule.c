#include "pipe_schedule.h"

Status pipe_schedule_init(PipeSchedule* out, const PipeProblem* problem, Arena* arena) {
    *out = (PipeSchedule){0};
    PipeJob* jobs;
    int64_t jobs_per_stage = (int64_t)problem->M * JOB_COUNT;
    PIPE_NEW(jobs, arena, PipeJob, jobs_per_stage * problem->P);
    for (int32_t s = 0; s < problem->P; s++) { out->jobs[s] = jobs + s * jobs_per_stage; }
    return STATUS_OK;
}

void pipe_schedule_push_backward(PipeSchedule* schedule, const PipeProblem* problem, int32_t s, int32_t m,
                                 bool split_backward) {
    if (pipe_cost(problem, s, m)->drops) { pipe_schedule_push(schedule, s, JOB_R, m); }
    pipe_schedule_push(schedule, s, JOB_B, m);
    if (split_backward) { pipe_schedule_push(schedule, s, JOB_W, m); }
}

Status pipe_schedule_one_by_one(PipeSchedule* out, const PipeProblem* problem, const int32_t* order,
                                Arena* arena) {
    TRY(pipe_schedule_init(out, problem, arena));
    for (int32_t s = 0; s < problem->P; s++) {
        for (int32_t i = 0; i < problem->M; i++) {
            pipe_schedule_push(out, s, JOB_F, order[i]);
            pipe_schedule_push_backward(out, problem, s, order[i], false);
        }
    }
    return STATUS_OK;
}

Status pipe_problem_check_fits(const PipeProblem* problem) {
    for (int32_t s = 0; s < problem->P; s++) {
        int64_t limit_bytes = problem->memory_limit_bytes[s];
        for (int32_t m = 0; m < problem->M; m++) {
            int64_t over_bytes = pipe_alone_bytes(pipe_cost(problem, s, m)) - limit_bytes;
            if (limit_bytes != INT64_MAX && over_bytes > 0) {
                return FAIL(STATUS_INFEASIBLE,
                            "stage %d: micro-batch %d alone is %lld bytes over the memory limit ---> "
                            "--recompute full, more --stages, shorter samples or a larger --memory-limit",
                            s, m, (long long)over_bytes);
            }
        }
    }
    return STATUS_OK;
}
