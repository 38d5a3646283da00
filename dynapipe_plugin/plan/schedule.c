#include "schedule.h"

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

void pipe_schedule_push_backward(PipeSchedule* schedule, const PipeProblem* problem, int32_t s, int32_t chunk,
                                 int32_t m, bool split_backward) {
    if (pipe_cost(problem, chunk, m)->drops) { pipe_schedule_push(schedule, s, JOB_R, chunk, m); }
    pipe_schedule_push(schedule, s, JOB_B, chunk, m);
    if (split_backward) { pipe_schedule_push(schedule, s, JOB_W, chunk, m); }
}

// STATUS_BAD_OPTION: this policy supports one chunk a stage only.
static Status pipe_schedule_need_linear(const PipeProblem* problem, const char* policy) {
    bool is_linear = pipe_num_rows(problem) == problem->P && problem->piece_before == NULL;
    for (int32_t s = 0; s < problem->P && is_linear; s++) { is_linear = pipe_stage_of(problem, s) == s; }
    return is_linear
               ? STATUS_OK
               : FAIL(STATUS_BAD_OPTION,
                      "--schedule %s is for one chunk a stage and a whole head ---> --schedule auto, or "
                      "--placement linear --head whole",
                      policy);
}

// All chunks, and the shares of the head.
static void push_forward(PipeSchedule* out, const PipeProblem* problem, int32_t m) {
    for (int32_t row = 0; row < pipe_num_rows(problem); row++) {
        if (!pipe_has_row(problem, row)) { continue; }
        pipe_schedule_push(out, pipe_stage_of(problem, row), JOB_F, row, m);
    }
}

static void push_backward(PipeSchedule* out, const PipeProblem* problem, int32_t m) {
    int32_t K = pipe_num_chunks(problem);
    for (int32_t k = K - 1; k >= 0; k--) {
        pipe_schedule_push_backward(out, problem, pipe_stage_of(problem, k), k, m, false);
    }
    for (int32_t row = K; row < pipe_num_rows(problem); row++) {
        if (pipe_has_row(problem, row)) { pipe_schedule_push(out, row - K, JOB_W, row, m); }
    }
}

Status pipe_schedule_one_by_one(PipeSchedule* out, const PipeProblem* problem, const int32_t* order,
                                Arena* arena) {
    TRY(pipe_schedule_init(out, problem, arena));
    for (int32_t first = 0, end; first < problem->M; first = end) {
        for (end = first + 1; end < problem->M && pipe_piece_before(problem, order[end]) >= 0;) { end++; }
        for (int32_t i = first; i < end; i++) { push_forward(out, problem, order[i]); }
        for (int32_t i = end - 1; i >= first; i--) { push_backward(out, problem, order[i]); }
    }
    return STATUS_OK;
}

// What is kept of all chunks at a time, and the most that one of them recomputes in addition.
static void add_alone_bytes(int64_t* kept_bytes, int64_t* most_bytes, const PipeProblem* problem, int32_t s,
                            int32_t m) {
    for (int32_t row = 0; row < pipe_num_rows(problem); row++) {
        if (pipe_stage_of(problem, row) != s || !pipe_has_row(problem, row)) { continue; }
        const PipeCost* cost = pipe_cost(problem, row, m);
        int64_t besides_bytes = cost->stored_bytes > cost->forward_bytes || !cost->drops
                                    ? cost->stored_bytes
                                    : cost->forward_bytes;
        *kept_bytes += cost->input_bytes + cost->kept_bytes + cost->kept_grad_bytes +
                       (cost->drops ? 0 : cost->stored_bytes);
        if (cost->drops && besides_bytes > *most_bytes) { *most_bytes = besides_bytes; }
    }
}

int64_t pipe_alone_bytes(const PipeProblem* problem, int32_t s, int32_t m) {
    int64_t kept_bytes = 0, most_bytes = 0;
    if (pipe_piece_before(problem, m) >= 0) { return 0; }
    add_alone_bytes(&kept_bytes, &most_bytes, problem, s, m);
    for (int32_t i = 0; i < problem->M && problem->piece_before != NULL; i++) {
        bool is_mine = problem->piece_before[i] >= 0 && pipe_first_piece(problem, i) == m;
        if (is_mine) { add_alone_bytes(&kept_bytes, &most_bytes, problem, s, i); }
    }
    return kept_bytes + most_bytes;
}

Status pipe_problem_check_fits(const PipeProblem* problem) {
    for (int32_t s = 0; s < problem->P; s++) {
        int64_t limit_bytes = problem->memory_limit_bytes[s];
        for (int32_t m = 0; m < problem->M && limit_bytes != INT64_MAX; m++) {
            int64_t over_bytes = pipe_alone_bytes(problem, s, m) - limit_bytes;
            if (over_bytes > 0) {
                return FAIL(STATUS_INFEASIBLE,
                            "stage %d: microbatch %d alone is %lld bytes over the memory limit ---> "
                            "--recompute full, more --stages, shorter samples or a larger --memory-limit",
                            s, m, (long long)over_bytes);
            }
        }
    }
    return STATUS_OK;
}

// --- 1F1B and GPipe ----------------------------------------------------------------------------------

// 1F1B (PipeDream-flush; Narayanan et al., SC'21): stage s warms up with min(P - s, M) forwards, then
// alternates one backward, one forward. Stage s never holds more than P - s microbatches, and M equal ones
// take (M + P - 1)(f + b) where transfers are free. GPipe (Huang et al., NeurIPS'19) warms up with all M, and
// holds them all. Neither looks at a memory limit.
static Status build_after_warmup(PipeSchedule* out, const PipeProblem* problem, const int32_t* order,
                                 bool split_backward, bool is_gpipe, Arena* arena) {
    int32_t P = problem->P, M = problem->M;
    TRY(pipe_schedule_need_linear(problem, is_gpipe ? "gpipe" : "1f1b"));
    TRY(pipe_schedule_init(out, problem, arena));
    for (int32_t s = 0; s < P; s++) {
        int32_t num_warmup = is_gpipe || P - s > M ? M : P - s;
        for (int32_t i = 0; i < num_warmup; i++) { pipe_schedule_push(out, s, JOB_F, s, order[i]); }
        for (int32_t i = 0; i < M; i++) {
            pipe_schedule_push_backward(out, problem, s, s, order[i], split_backward);
            if (i + num_warmup < M) { pipe_schedule_push(out, s, JOB_F, s, order[i + num_warmup]); }
        }
    }
    return STATUS_OK;
}

static Status one_f_one_b_build(PipeSchedule* out, const PipeProblem* problem, const int32_t* order,
                                bool split_backward, Arena* arena) {
    return build_after_warmup(out, problem, order, split_backward, false, arena);
}

static Status gpipe_build(PipeSchedule* out, const PipeProblem* problem, const int32_t* order,
                          bool split_backward, Arena* arena) {
    return build_after_warmup(out, problem, order, split_backward, true, arena);
}

const PipePolicy pipe_policy_1f1b = {.name = "1f1b", .build = one_f_one_b_build};
const PipePolicy pipe_policy_gpipe = {.name = "gpipe", .build = gpipe_build};
