#include "simulate.h"

#include <stdio.h>
#include <string.h>
#include "schedule.h"

static const int64_t NEVER = INT64_MAX;

// A message on its way between two stages.
typedef struct {
    PipeMessage message;
    int32_t mb, from, job;  // the sender's stage and its job
    int64_t ready_ns;
} Letter;

// What a stage does next: a job of its own, or the letter that has been ready the longest.
typedef struct {
    int64_t begin_ns;  // NEVER: it waits
    bool is_job;
} Next;

typedef struct {
    const PipeProblem* problem;
    const PipeSchedule* schedule;
    PipeTimeline* timeline;
    int32_t K;
    bool* has_w;                   // [rows * M] backward is divided
    int32_t* missing[3];           // [rows * M] messages of each kind that are still to come
    Letter* box[PLAN_MAX_STAGES];  // ready ones for a stage, from its `taken` on, in the order of their times
    int32_t taken[PLAN_MAX_STAGES], put[PLAN_MAX_STAGES];
    int32_t* pos;
    int64_t* clock_ns;
    Next next[PLAN_MAX_STAGES];
} Walk;

static bool job_is_ready(const Walk* walk, int32_t s) {
    int32_t i = walk->pos[s];
    if (i == walk->schedule->num_jobs[s]) { return false; }
    PipeJob job = walk->schedule->jobs[s][i];
    int64_t cell = (int64_t)job.chunk * walk->problem->M + job.mb;
    if (job.kind == JOB_F) { return walk->missing[MESSAGE_ACT][cell] == 0; }
    if (job.kind == JOB_B) { return walk->missing[MESSAGE_GRAD][cell] == 0; }
    return job.kind != JOB_W || walk->missing[MESSAGE_FACTORS][cell] == 0;
}

static void choose(Walk* walk, int32_t s) {
    bool has_letter = walk->taken[s] < walk->put[s];
    int64_t clock_ns = walk->clock_ns[s];
    Next next = {.begin_ns = has_letter ? walk->box[s][walk->taken[s]].ready_ns : NEVER};
    next.is_job = next.begin_ns > clock_ns && job_is_ready(walk, s);
    if (next.begin_ns < clock_ns || next.is_job) { next.begin_ns = clock_ns; }
    walk->next[s] = next;
}

static void take_letter(Walk* walk, int32_t s) {
    const Letter* letter = &walk->box[s][walk->taken[s]++];
    int64_t begin_ns = walk->next[s].begin_ns, end_ns = begin_ns + letter->message.transfer_ns;
    PipeSpan* span = &walk->timeline->send[letter->from][letter->job];
    if (span->end_ns == 0 || begin_ns < span->begin_ns) { span->begin_ns = begin_ns; }
    if (end_ns > span->end_ns) { span->end_ns = end_ns; }
    walk->missing[letter->message.kind][(int64_t)letter->message.row * walk->problem->M + letter->mb]--;
    walk->clock_ns[s] = end_ns;
}

// Kept in the order of their times; of equals, who came first.
static void post(Walk* walk, Letter letter) {
    int32_t s = letter.message.stage, at = walk->put[s]++;
    for (; at > walk->taken[s] && walk->box[s][at - 1].ready_ns > letter.ready_ns; at--) {
        walk->box[s][at] = walk->box[s][at - 1];
    }
    walk->box[s][at] = letter;
    choose(walk, s);
}

static void run_job(Walk* walk, int32_t s) {
    PipeMessage messages[PIPE_MAX_MESSAGES];
    int32_t i = walk->pos[s]++;
    PipeJob job = walk->schedule->jobs[s][i];
    const PipeCost* cost = pipe_cost(walk->problem, job.chunk, job.mb);
    int64_t begin_ns = walk->next[s].begin_ns, duration_ns = cost->job_ns[job.kind];
    bool is_joint = job.kind == JOB_B && !walk->has_w[(int64_t)job.chunk * walk->problem->M + job.mb];
    if (is_joint) { duration_ns += cost->job_ns[JOB_W]; }
    walk->timeline->job[s][i] = (PipeSpan){begin_ns, begin_ns + duration_ns};
    walk->timeline->busy_ns[s] += duration_ns;
    walk->clock_ns[s] = begin_ns + duration_ns;
    int32_t num = pipe_messages(messages, walk->problem, job);
    for (int32_t k = 0; k < num; k++) {
        if (messages[k].is_sent) {
            post(walk, (Letter){messages[k], job.mb, s, i, walk->clock_ns[s]});
        } else {
            walk->missing[messages[k].kind][(int64_t)messages[k].row * walk->problem->M + job.mb]--;
        }
    }
}

// What every row waits for, and room for all letters.
static Status count_messages(Walk* walk, Arena* arena) {
    PipeMessage messages[PIPE_MAX_MESSAGES];
    int32_t num_letters[PLAN_MAX_STAGES] = {0};
    for (int32_t s = 0; s < walk->problem->P; s++) {
        for (int32_t i = 0; i < walk->schedule->num_jobs[s]; i++) {
            PipeJob job = walk->schedule->jobs[s][i];
            int32_t num = pipe_messages(messages, walk->problem, job);
            walk->has_w[(int64_t)job.chunk * walk->problem->M + job.mb] |= job.kind == JOB_W;
            for (int32_t k = 0; k < num; k++) {
                walk->missing[messages[k].kind][(int64_t)messages[k].row * walk->problem->M + job.mb]++;
                num_letters[messages[k].stage] += messages[k].is_sent;
            }
        }
    }
    for (int32_t s = 0; s < walk->problem->P; s++) {
        ARENA_TRY_NEW(walk->box[s], arena, Letter, num_letters[s]);
    }
    return STATUS_OK;
}

// Fills job, send and busy_ns of the timeline. On return stage s has run pos[s] of its jobs, until
// clock_ns[s]; less than all of them: it waits for ever.
static Status pipe_pulled_run(PipeTimeline* timeline, int32_t pos[PLAN_MAX_STAGES],
                              int64_t clock_ns[PLAN_MAX_STAGES], const PipeProblem* problem,
                              const PipeSchedule* schedule, Arena* arena) {
    Walk walk = {
        .problem = problem, .schedule = schedule, .timeline = timeline, .pos = pos, .clock_ns = clock_ns};
    int64_t num_cells = (int64_t)pipe_num_rows(problem) * problem->M;
    for (int kind = 0; kind < 3; kind++) { ARENA_TRY_NEW(walk.missing[kind], arena, int32_t, num_cells); }
    ARENA_TRY_NEW(walk.has_w, arena, bool, num_cells);
    TRY(count_messages(&walk, arena));
    for (int32_t s = 0; s < problem->P; s++) { choose(&walk, s); }
    for (;;) {
        int32_t first = 0;
        for (int32_t s = 1; s < problem->P; s++) {
            first = walk.next[s].begin_ns < walk.next[first].begin_ns ? s : first;
        }
        if (walk.next[first].begin_ns == NEVER) { return STATUS_OK; }
        if (walk.next[first].is_job) {
            run_job(&walk, first);
        } else {
            take_letter(&walk, first);
        }
        choose(&walk, first);
    }
}

// --- pipe_simulate --------------------
// pipe_simulate.c -- longest path through a pipeline schedule.
//
// Every job starts at max(end of the job before it on its stage, arrival of its input), every transfer at
// max(end of its job, end of the transfer before it on the sender's link). Sends leave a stage in the order
// of its jobs, so no event queue is needed: stages advance as far as they can, and a transfer wakes its
// receiver. Where receivers fetch their messages themselves: pipe_pulled.h.

enum { DID_F = 1, DID_R = 2, DID_B = 4, DID_W = 8, HAS_W = 16 };

typedef struct {
    const PipeProblem* problem;
    const PipeSchedule* schedule;
    PipeTimeline* timeline;
    int32_t K, num_rows;
    int64_t* act_at;  // [rows * M] arrival of a row's input + 1; 0: not known yet
    int64_t*
        grad_at;     // [rows * M] the same of the gradient of its output, the last part; of a share: factors
    int32_t* parts;  // [M] of the last chunk's gradient that have arrived, where the head is shared
    int32_t num_parts;
    uint8_t* did;  // [rows * M] DID_* and HAS_W
    int32_t pos[PLAN_MAX_STAGES];
    int64_t clock_ns[PLAN_MAX_STAGES], link_ns[PLAN_MAX_STAGES];
    int32_t woken[PLAN_MAX_STAGES], num_woken;
    bool is_woken[PLAN_MAX_STAGES];
} Run;

static const char job_letter[JOB_COUNT] = {'F', 'B', 'W', 'R'};

int32_t pipe_messages(PipeMessage out[PIPE_MAX_MESSAGES], const PipeProblem* problem, PipeJob job) {
    int32_t K = pipe_num_chunks(problem), row = job.chunk, num = 0, stage = pipe_stage_of(problem, row);
    const PipeCost* cost = pipe_cost(problem, row, job.mb);
    if (row >= K) {
        if (job.kind == JOB_F) {
            out[num++] = (PipeMessage){MESSAGE_GRAD, (int16_t)(K - 1), 0, false, cost->part_ns};
        }
    } else if (job.kind == JOB_F && row < K - 1) {
        out[num++] = (PipeMessage){MESSAGE_ACT, (int16_t)(row + 1), 0, false, cost->transfer_ns};
    } else if (job.kind == JOB_B && row > 0) {
        int64_t transfer_ns = pipe_cost(problem, row - 1, job.mb)->transfer_ns;
        out[num++] = (PipeMessage){MESSAGE_GRAD, (int16_t)(row - 1), 0, false, transfer_ns};
    }
    bool to_shares = row == K - 1 && pipe_shares_head(problem) && (job.kind == JOB_F || job.kind == JOB_B);
    bool factors = job.kind == JOB_B;
    if (factors && (!to_shares || problem->placement->head != HEAD_BY_VOCABULARY)) { to_shares = false; }
    for (int32_t s = 0; s < problem->P && to_shares; s++) {
        if (!placement_has_share(problem->placement, s)) { continue; }
        const PipeCost* share = pipe_cost(problem, K + s, job.mb);
        out[num++] = (PipeMessage){factors ? MESSAGE_FACTORS : MESSAGE_ACT, (int16_t)(K + s), 0, false,
                                   factors ? share->factor_ns : share->transfer_ns};
    }
    for (int32_t i = 0; i < num; i++) {
        out[i].stage = (int16_t)pipe_stage_of(problem, out[i].row);
        out[i].is_sent = out[i].stage != stage;
        if (!out[i].is_sent) { out[i].transfer_ns = 0; }
    }
    return num;
}

// --- checking --------------------------------------------------------------------------------------------

static Status check_job(Run* run, int32_t s, int32_t i) {
    const PipeProblem* problem = run->problem;
    PipeJob job = run->schedule->jobs[s][i];
    bool is_row = job.chunk >= 0 && job.chunk < run->num_rows && pipe_has_row(problem, job.chunk) &&
                  pipe_stage_of(problem, job.chunk) == s;
    if (job.kind >= JOB_COUNT || job.mb < 0 || job.mb >= problem->M || !is_row) {
        return FAIL(STATUS_INVALID_PLAN, "stage %d, job %d: no such job, chunk or micro-batch", s, i);
    }
    bool drops = pipe_cost(problem, job.chunk, job.mb)->drops, is_share = job.chunk >= run->K;
    uint8_t* did = &run->did[(int64_t)job.chunk * problem->M + job.mb];
    static const uint8_t bit[JOB_COUNT] = {DID_F, DID_B, DID_W | HAS_W, DID_R};
    const uint8_t before[JOB_COUNT] = {0, (uint8_t)(DID_F | (drops ? DID_R : 0)), is_share ? DID_F : DID_B,
                                       DID_F};
    if (*did & bit[job.kind]) {
        return FAIL(STATUS_INVALID_PLAN, "stage %d, job %d: %c%d of chunk %d a second time", s, i,
                    job_letter[job.kind], job.mb, job.chunk);
    }
    if ((*did & before[job.kind]) != before[job.kind] || (job.kind == JOB_R && !drops) ||
        (job.kind == JOB_B && is_share)) {
        return FAIL(STATUS_INVALID_PLAN, "stage %d, job %d: %c%d of chunk %d before what it needs", s, i,
                    job_letter[job.kind], job.mb, job.chunk);
    }
    *did |= bit[job.kind];
    return STATUS_OK;
}

// Every micro-batch's F and B (and R where recomputed) exactly once per chunk, F and W per share, in an order
// that can run on each stage.
static Status check_order(Run* run) {
    const PipeProblem* problem = run->problem;
    for (int32_t s = 0; s < problem->P; s++) {
        for (int32_t i = 0; i < run->schedule->num_jobs[s]; i++) { TRY(check_job(run, s, i)); }
    }
    for (int32_t row = 0; row < run->num_rows; row++) {
        uint8_t last = row < run->K ? DID_B : DID_W;
        for (int32_t m = 0; m < problem->M && pipe_has_row(problem, row); m++) {
            uint8_t did = run->did[(int64_t)row * problem->M + m];
            if (did & last) { continue; }
            return FAIL(STATUS_INVALID_PLAN, "stage %d: %c%d of chunk %d is missing",
                        pipe_stage_of(problem, row),
                        !(did & DID_F) ? 'F'
                        : row < run->K ? 'B'
                                       : 'W',
                        m, row);
        }
    }
    return STATUS_OK;
}

// --- running ---------------------------------------------------------------------------------------------

// When what the job waits for is there; -1: not known.
static int64_t arrival_of(const Run* run, PipeJob job) {
    int64_t cell = (int64_t)job.chunk * run->problem->M + job.mb;
    switch ((JobKind)job.kind) {
        case JOB_F: return job.chunk == 0 ? 0 : run->act_at[cell] - 1;
        case JOB_B: return job.chunk == run->K - 1 && run->num_parts == 0 ? 0 : run->grad_at[cell] - 1;
        case JOB_W: {
            bool waits = job.chunk >= run->K && run->problem->placement->head == HEAD_BY_VOCABULARY;
            return waits ? run->grad_at[cell] - 1 : 0;
        }
        default: return 0;
    }
}

static void deliver(Run* run, const PipeMessage* message, int32_t m, int64_t at_ns) {
    int64_t cell = (int64_t)message->row * run->problem->M + m;
    if (message->kind == MESSAGE_ACT) {
        run->act_at[cell] = at_ns + 1;
    } else if (message->row == run->K - 1 && run->num_parts > 0) {
        int64_t* last = &run->grad_at[cell];  // negative until all parts are there
        int64_t latest = -*last > at_ns + 1 ? -*last : at_ns + 1;
        *last = ++run->parts[m] == run->num_parts ? latest : -latest;
    } else {
        run->grad_at[cell] = at_ns + 1;
    }
    if (run->is_woken[message->stage]) { return; }
    run->is_woken[message->stage] = true;
    run->woken[run->num_woken++] = message->stage;
}

static void hand_on(Run* run, int32_t s, int32_t i) {
    PipeMessage messages[PIPE_MAX_MESSAGES];
    PipeJob job = run->schedule->jobs[s][i];
    int32_t num = pipe_messages(messages, run->problem, job);
    PipeSpan span = {0, 0};
    for (int32_t k = 0; k < num; k++) {
        if (!messages[k].is_sent) {
            deliver(run, &messages[k], job.mb, run->clock_ns[s]);
            continue;
        }
        int64_t begin_ns = run->clock_ns[s] > run->link_ns[s] ? run->clock_ns[s] : run->link_ns[s];
        if (span.end_ns == 0) { span.begin_ns = begin_ns; }
        run->link_ns[s] = span.end_ns = begin_ns + messages[k].transfer_ns;
        deliver(run, &messages[k], job.mb, span.end_ns);
    }
    run->timeline->send[s][i] = span;
}

// Run stage s until it ends or waits.
static void advance(Run* run, int32_t s) {
    const PipeProblem* problem = run->problem;
    for (; run->pos[s] < run->schedule->num_jobs[s]; run->pos[s]++) {
        PipeJob job = run->schedule->jobs[s][run->pos[s]];
        const PipeCost* cost = pipe_cost(problem, job.chunk, job.mb);
        bool is_joint = job.kind == JOB_B && !(run->did[(int64_t)job.chunk * problem->M + job.mb] & HAS_W);
        int64_t duration_ns = cost->job_ns[job.kind] + (is_joint ? cost->job_ns[JOB_W] : 0);
        int64_t arrival_ns = arrival_of(run, job);
        if (arrival_ns < 0) { return; }
        int64_t begin_ns = arrival_ns > run->clock_ns[s] ? arrival_ns : run->clock_ns[s];
        run->clock_ns[s] = begin_ns + duration_ns;
        run->timeline->job[s][run->pos[s]] = (PipeSpan){begin_ns, run->clock_ns[s]};
        run->timeline->busy_ns[s] += duration_ns;
        hand_on(run, s, run->pos[s]);
    }
}

static Status report_deadlock(const Run* run) {
    char text[512] = "";
    for (int32_t s = 0; s < run->problem->P; s++) {
        if (run->pos[s] == run->schedule->num_jobs[s]) { continue; }
        PipeJob job = run->schedule->jobs[s][run->pos[s]];
        size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, "%sstage %d waits with %c%d of chunk %d", used ? ", " : "",
                 s, job_letter[job.kind], job.mb, job.chunk);
    }
    return FAIL(STATUS_DEADLOCK, "schedule: %s", text);
}

// The most bytes held on stage s at a time, from the order of its jobs.
static int64_t stage_peak_bytes(const Run* run, int32_t s) {
    const PipeProblem* problem = run->problem;
    int64_t held_bytes = 0, peak_bytes = 0;
    for (int32_t i = 0; i < run->schedule->num_jobs[s]; i++) {
        PipeJob job = run->schedule->jobs[s][i];
        const PipeCost* cost = pipe_cost(problem, job.chunk, job.mb);
        bool has_w = (run->did[(int64_t)job.chunk * problem->M + job.mb] & HAS_W) != 0;
        int64_t begins_bytes = 0, ends_bytes = 0;
        switch ((JobKind)job.kind) {
            case JOB_F:
                begins_bytes = cost->input_bytes + (cost->drops ? cost->forward_bytes : cost->stored_bytes);
                ends_bytes = cost->drops ? cost->forward_bytes : 0;
                break;
            case JOB_R: begins_bytes = cost->stored_bytes; break;
            case JOB_B: ends_bytes = cost->input_bytes + (has_w ? 0 : cost->stored_bytes); break;
            default: ends_bytes = cost->stored_bytes; break;
        }
        held_bytes += begins_bytes;
        if (held_bytes > peak_bytes) { peak_bytes = held_bytes; }
        held_bytes -= ends_bytes;
    }
    return peak_bytes;
}

static Status run_init(Run* run, Arena* arena) {
    const PipeProblem* problem = run->problem;
    run->K = pipe_num_chunks(problem);
    run->num_rows = pipe_num_rows(problem);
    for (int32_t row = run->K; row < run->num_rows; row++) { run->num_parts += pipe_has_row(problem, row); }
    int64_t num_cells = (int64_t)run->num_rows * problem->M, num_jobs = 0;
    for (int32_t s = 0; s < problem->P; s++) { num_jobs += run->schedule->num_jobs[s]; }
    int64_t* arrivals;
    PipeSpan* spans;
    ARENA_TRY_NEW(arrivals, arena, int64_t, 2 * num_cells);
    ARENA_TRY_NEW(run->did, arena, uint8_t, num_cells);
    ARENA_TRY_NEW(run->parts, arena, int32_t, problem->M);
    ARENA_TRY_NEW(spans, arena, PipeSpan, 2 * num_jobs);
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
    for (int32_t s = run->problem->P - 1; s >= 0; s--) {
        run->woken[run->num_woken++] = s;
        run->is_woken[s] = true;
    }
    while (run->num_woken > 0) {
        int32_t s = run->woken[--run->num_woken];
        run->is_woken[s] = false;
        advance(run, s);
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
