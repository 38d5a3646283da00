#include "pipe_pulled.h"

#include "pipe_schedule.h"

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

Status pipe_pulled_run(PipeTimeline* timeline, int32_t pos[PLAN_MAX_STAGES],
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
