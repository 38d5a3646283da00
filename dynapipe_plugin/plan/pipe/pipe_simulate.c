// pipe_simulate.c -- longest path through a pipeline schedule.
//
// Every job starts at max(end of the job before it on its stage, arrival of its input), every transfer at
// max(end of its job, end of the transfer before it on the sender's link). Sends leave a stage in the order
// of its jobs, so no event queue is needed: stages advance as far as they can, and a transfer wakes its
// receiver. Where receivers fetch their messages themselves: pipe_pulled.h.
#include <string.h>

#include "pipe_pulled.h"
#include "pipe_schedule.h"

enum { DID_F = 1, DID_R = 2, DID_B = 4, DID_W = 8, HAS_W = 16 };

typedef struct {
    const PipeProblem* problem;
    const PipeSchedule* schedule;
    PipeTimeline* timeline;
    int64_t* act_at;   // [P * M] arrival of the activation + 1; 0: not known yet
    int64_t* grad_at;  // [P * M] arrival of the gradient + 1
    uint8_t* did;      // [P * M] DID_* and HAS_W
    int32_t pos[PLAN_MAX_STAGES];
    int64_t clock_ns[PLAN_MAX_STAGES], link_ns[PLAN_MAX_STAGES];
} Run;

static const char job_letter[JOB_COUNT] = {'F', 'B', 'W', 'R'};

// Every micro-batch's F and B (and R where recomputed) exactly once per stage, in an order that can run.
static Status check_order(Run* run) {
    const PipeProblem* problem = run->problem;
    for (int32_t s = 0; s < problem->P; s++) {
        uint8_t* did = run->did + (int64_t)s * problem->M;
        for (int32_t i = 0; i < run->schedule->num_jobs[s]; i++) {
            PipeJob job = run->schedule->jobs[s][i];
            if (job.kind >= JOB_COUNT || job.mb < 0 || job.mb >= problem->M) {
                return FAIL(STATUS_INVALID_PLAN, "stage %d, job %d: no such job or micro-batch", s, i);
            }
            bool drops = pipe_cost(problem, s, job.mb)->drops;
            static const uint8_t bit[JOB_COUNT] = {DID_F, DID_B, DID_W | HAS_W, DID_R};
            const uint8_t before[JOB_COUNT] = {0, (uint8_t)(DID_F | (drops ? DID_R : 0)), DID_B, DID_F};
            if (did[job.mb] & bit[job.kind]) {
                return FAIL(STATUS_INVALID_PLAN, "stage %d, job %d: %c%d a second time", s, i,
                            job_letter[job.kind], job.mb);
            }
            if ((did[job.mb] & before[job.kind]) != before[job.kind] || (job.kind == JOB_R && !drops)) {
                return FAIL(STATUS_INVALID_PLAN, "stage %d, job %d: %c%d before what it needs", s, i,
                            job_letter[job.kind], job.mb);
            }
            did[job.mb] |= bit[job.kind];
        }
        for (int32_t m = 0; m < problem->M; m++) {
            if (!(did[m] & DID_B)) {
                return FAIL(STATUS_INVALID_PLAN, "stage %d: %c%d is missing", s, did[m] & DID_F ? 'B' : 'F',
                            m);
            }
        }
    }
    return STATUS_OK;
}

static inline int64_t job_duration_ns(const PipeCost* cost, JobKind kind, bool has_w) {
    return kind == JOB_B && !has_w ? cost->job_ns[JOB_B] + cost->job_ns[JOB_W] : cost->job_ns[kind];
}

// Run stage s until it ends or waits. Sets bit 0 of the result if it fed stage s + 1, bit 1 for s - 1.
static int32_t advance(Run* run, int32_t s) {
    const PipeProblem* problem = run->problem;
    int32_t P = problem->P, num_jobs = run->schedule->num_jobs[s], fed = 0;
    int64_t row = (int64_t)s * problem->M, clock_ns = run->clock_ns[s], link_ns = run->link_ns[s];
    const PipeJob* jobs = run->schedule->jobs[s];
    PipeSpan *spans = run->timeline->job[s], *sends = run->timeline->send[s];
    int32_t i = run->pos[s];
    for (; i < num_jobs; i++) {
        int32_t m = jobs[i].mb;
        JobKind kind = (JobKind)jobs[i].kind;
        const PipeCost* cost = &problem->cost[row + m];
        int64_t arrival_ns = 0;
        if (kind == JOB_F && s > 0) { arrival_ns = run->act_at[row + m] - 1; }
        if (kind == JOB_B && s < P - 1) { arrival_ns = run->grad_at[row + m] - 1; }
        if (arrival_ns < 0) { break; }
        int64_t begin_ns = arrival_ns > clock_ns ? arrival_ns : clock_ns;
        int64_t duration_ns = job_duration_ns(cost, kind, (run->did[row + m] & HAS_W) != 0);
        clock_ns = begin_ns + duration_ns;
        spans[i] = (PipeSpan){begin_ns, clock_ns};
        run->timeline->busy_ns[s] += duration_ns;
        bool forward = kind == JOB_F && s < P - 1, backward = kind == JOB_B && s > 0;
        if (!forward && !backward) { continue; }
        int64_t send_ns = clock_ns > link_ns ? clock_ns : link_ns;
        link_ns = send_ns + (forward ? cost : pipe_cost(problem, s - 1, m))->transfer_ns;
        sends[i] = (PipeSpan){send_ns, link_ns};
        if (forward) {
            run->act_at[row + problem->M + m] = link_ns + 1;
        } else {
            run->grad_at[row - problem->M + m] = link_ns + 1;
        }
        fed |= forward ? 1 : 2;
    }
    run->pos[s] = i;
    run->clock_ns[s] = clock_ns;
    run->link_ns[s] = link_ns;
    return fed;
}

static Status report_deadlock(const Run* run) {
    char text[512] = "";
    for (int32_t s = 0; s < run->problem->P; s++) {
        if (run->pos[s] == run->schedule->num_jobs[s]) { continue; }
        PipeJob job = run->schedule->jobs[s][run->pos[s]];
        size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, "%sstage %d waits with %c%d for stage %d", used ? ", " : "",
                 s, job_letter[job.kind], job.mb, job.kind == JOB_F ? s - 1 : s + 1);
    }
    return FAIL(STATUS_DEADLOCK, "schedule: %s", text);
}

// Bytes held on stage s over time: its jobs in order, merged with the arrivals of activations.
static int64_t stage_peak_bytes(const Run* run, int32_t s) {
    const PipeProblem* problem = run->problem;
    int64_t row = (int64_t)s * problem->M, held_bytes = 0, peak_bytes = 0;
    const PipeSchedule* schedule = run->schedule;
    const PipeSpan* spans = run->timeline->job[s];
    int32_t up = 0, num_up = s > 0 ? schedule->num_jobs[s - 1] : 0;
    for (int32_t i = 0; i < schedule->num_jobs[s]; i++) {
        PipeJob job = schedule->jobs[s][i];
        const PipeCost* cost = &problem->cost[row + job.mb];
        bool keeps = !cost->drops, has_w = (run->did[row + job.mb] & HAS_W) != 0;
        int64_t begins_bytes = 0, ends_bytes = 0;
        switch ((JobKind)job.kind) {
            case JOB_F:
                begins_bytes =
                    (keeps ? cost->stored_bytes : cost->forward_bytes) + (s > 0 ? 0 : cost->input_bytes);
                ends_bytes = keeps ? 0 : cost->forward_bytes;
                break;
            case JOB_R: begins_bytes = cost->stored_bytes; break;
            case JOB_B: ends_bytes = cost->input_bytes + (has_w ? 0 : cost->stored_bytes); break;
            default: ends_bytes = cost->stored_bytes; break;
        }
        // what arrived before this job: while the stage was idle; then what arrives while it runs
        for (int32_t while_running = 0; while_running < 2; while_running++) {
            if (while_running) { held_bytes += begins_bytes; }
            int64_t until_ns = while_running ? spans[i].end_ns : spans[i].begin_ns + 1;
            for (; up < num_up; up++) {
                PipeJob sent = schedule->jobs[s - 1][up];
                if (sent.kind != JOB_F) { continue; }
                if (run->timeline->send[s - 1][up].end_ns >= until_ns) { break; }
                held_bytes += problem->cost[row + sent.mb].input_bytes;
                if (held_bytes > peak_bytes) { peak_bytes = held_bytes; }
            }
            if (held_bytes > peak_bytes) { peak_bytes = held_bytes; }
        }
        held_bytes -= ends_bytes;
    }
    return peak_bytes;
}

static Status run_init(Run* run, Arena* arena) {
    const PipeProblem* problem = run->problem;
    int64_t num_cells = (int64_t)problem->P * problem->M;
    int64_t num_jobs = 0;
    for (int32_t s = 0; s < problem->P; s++) { num_jobs += run->schedule->num_jobs[s]; }
    int64_t* arrivals;
    PipeSpan* spans;
    PIPE_NEW(arrivals, arena, int64_t, 2 * num_cells);
    PIPE_NEW(run->did, arena, uint8_t, num_cells);
    PIPE_NEW(spans, arena, PipeSpan, 2 * num_jobs);
    run->act_at = arrivals;
    run->grad_at = arrivals + num_cells;
    for (int32_t s = 0; s < problem->P; s++) {
        run->timeline->job[s] = spans;
        run->timeline->send[s] = spans + num_jobs;
        spans += run->schedule->num_jobs[s];
    }
    return STATUS_OK;
}

// Every stage as far as it can, until nothing wakes another.
static void advance_all(Run* run) {
    int32_t P = run->problem->P, woken[PLAN_MAX_STAGES], num_woken = 0;
    bool is_woken[PLAN_MAX_STAGES];
    for (int32_t s = P - 1; s >= 0; s--) {
        woken[num_woken++] = s;
        is_woken[s] = true;
    }
    while (num_woken > 0) {
        int32_t s = woken[--num_woken];
        is_woken[s] = false;
        int32_t fed = advance(run, s);
        for (int32_t bit = 1; bit <= 2; bit++) {
            int32_t peer = bit == 1 ? s + 1 : s - 1;
            if (!(fed & bit) || is_woken[peer]) { continue; }
            is_woken[peer] = true;
            woken[num_woken++] = peer;
        }
    }
}

Status pipe_simulate(PipeTimeline* out, const PipeProblem* problem, const PipeSchedule* schedule,
                     Arena* arena) {
    PipeTimeline timeline = {0};
    Run run = {.problem = problem, .schedule = schedule, .timeline = &timeline};
    TRY(run_init(&run, arena));
    TRY(check_order(&run));
    if (problem->pulls) {
        TRY(pipe_pulled_run(&timeline, run.pos, run.clock_ns, problem, schedule, arena));
    } else {
        advance_all(&run);
    }
    for (int32_t s = 0; s < problem->P; s++) {
        if (run.pos[s] < schedule->num_jobs[s]) { return report_deadlock(&run); }
        int64_t end_ns = run.clock_ns[s] + problem->tail_ns[s];
        if (end_ns > timeline.makespan_ns) { timeline.makespan_ns = end_ns; }
        if (run.clock_ns[s] > timeline.last_end_ns) { timeline.last_end_ns = run.clock_ns[s]; }
        timeline.peak_bytes[s] = stage_peak_bytes(&run, s);
    }
    *out = timeline;
    return STATUS_OK;
}
