#include "pipe_pulled.h"

#include "pipe_schedule.h"

enum { FROM_PREV, FROM_NEXT, NUM_SIDES };

static const int64_t NEVER = INT64_MAX;

// What a stage does next: a job of its own, or a message that the neighbour on that side has for it.
typedef struct {
    int64_t begin_ns;  // NEVER: it waits
    int32_t side;      // NUM_SIDES: a job
} Next;

typedef struct {
    const PipeProblem* problem;
    const PipeSchedule* schedule;
    PipeTimeline* timeline;
    bool* has_w;                                  // [P * M] backward is divided
    bool* is_here[NUM_SIDES];                     // [P * M] the message from that side was taken
    int32_t message[PLAN_MAX_STAGES][NUM_SIDES];  // job of that neighbour whose message is taken next
    int32_t* pos;
    int64_t* clock_ns;
    Next next[PLAN_MAX_STAGES];
} Walk;

static int32_t neighbour(const Walk* walk, int32_t s, int32_t side) {
    int32_t peer = side == FROM_PREV ? s - 1 : s + 1;
    return peer < walk->problem->P ? peer : -1;
}

// When the next message from that side is ready, as far as is known.
static int64_t ready_ns(Walk* walk, int32_t s, int32_t side) {
    int32_t peer = neighbour(walk, s, side), *at = &walk->message[s][side];
    if (peer < 0) { return NEVER; }
    const PipeJob* jobs = walk->schedule->jobs[peer];
    uint8_t kind = side == FROM_PREV ? JOB_F : JOB_B;
    while (*at < walk->pos[peer] && jobs[*at].kind != kind) { ++*at; }
    return *at < walk->pos[peer] ? walk->timeline->job[peer][*at].end_ns : NEVER;
}

static bool job_is_ready(const Walk* walk, int32_t s) {
    int32_t i = walk->pos[s];
    if (i == walk->schedule->num_jobs[s]) { return false; }
    PipeJob job = walk->schedule->jobs[s][i];
    int64_t cell = (int64_t)s * walk->problem->M + job.mb;
    if (job.kind == JOB_F) { return s == 0 || walk->is_here[FROM_PREV][cell]; }
    if (job.kind == JOB_B) { return s == walk->problem->P - 1 || walk->is_here[FROM_NEXT][cell]; }
    return true;
}

static void choose(Walk* walk, int32_t s) {
    int64_t prev_ns = ready_ns(walk, s, FROM_PREV), next_ns = ready_ns(walk, s, FROM_NEXT);
    int64_t clock_ns = walk->clock_ns[s];
    Next next = {.begin_ns = prev_ns, .side = FROM_PREV};
    if (next_ns < prev_ns) { next = (Next){.begin_ns = next_ns, .side = FROM_NEXT}; }
    if (next.begin_ns > clock_ns && job_is_ready(walk, s)) { next.side = NUM_SIDES; }
    if (next.begin_ns < clock_ns || next.side == NUM_SIDES) { next.begin_ns = clock_ns; }
    walk->next[s] = next;
}

static void take_message(Walk* walk, int32_t s) {
    int32_t side = walk->next[s].side, peer = neighbour(walk, s, side), at = walk->message[s][side]++;
    int32_t m = walk->schedule->jobs[peer][at].mb;
    int64_t begin_ns = walk->next[s].begin_ns;
    int64_t end_ns = begin_ns + pipe_cost(walk->problem, side == FROM_PREV ? s - 1 : s, m)->transfer_ns;
    walk->timeline->send[peer][at] = (PipeSpan){begin_ns, end_ns};
    walk->is_here[side][(int64_t)s * walk->problem->M + m] = true;
    walk->clock_ns[s] = end_ns;
}

static void run_job(Walk* walk, int32_t s) {
    PipeJob job = walk->schedule->jobs[s][walk->pos[s]];
    const PipeCost* cost = pipe_cost(walk->problem, s, job.mb);
    int64_t begin_ns = walk->next[s].begin_ns, duration_ns = cost->job_ns[job.kind];
    bool is_joint = job.kind == JOB_B && !walk->has_w[(int64_t)s * walk->problem->M + job.mb];
    if (is_joint) { duration_ns += cost->job_ns[JOB_W]; }
    walk->timeline->job[s][walk->pos[s]++] = (PipeSpan){begin_ns, begin_ns + duration_ns};
    walk->timeline->busy_ns[s] += duration_ns;
    walk->clock_ns[s] = begin_ns + duration_ns;
    if (job.kind == JOB_F && s < walk->problem->P - 1) { choose(walk, s + 1); }
    if (job.kind == JOB_B && s > 0) { choose(walk, s - 1); }
}

Status pipe_pulled_run(PipeTimeline* timeline, int32_t pos[PLAN_MAX_STAGES],
                       int64_t clock_ns[PLAN_MAX_STAGES], const PipeProblem* problem,
                       const PipeSchedule* schedule, Arena* arena) {
    Walk walk = {
        .problem = problem, .schedule = schedule, .timeline = timeline, .pos = pos, .clock_ns = clock_ns};
    int64_t num_cells = (int64_t)problem->P * problem->M;
    for (int32_t side = 0; side < NUM_SIDES; side++) { PIPE_NEW(walk.is_here[side], arena, bool, num_cells); }
    PIPE_NEW(walk.has_w, arena, bool, num_cells);
    for (int32_t s = 0; s < problem->P; s++) {
        for (int32_t i = 0; i < schedule->num_jobs[s]; i++) {
            PipeJob job = schedule->jobs[s][i];
            walk.has_w[(int64_t)s * problem->M + job.mb] |= job.kind == JOB_W;
        }
    }
    for (int32_t s = 0; s < problem->P; s++) { choose(&walk, s); }
    for (;;) {
        int32_t first = 0;
        for (int32_t s = 1; s < problem->P; s++) {
            first = walk.next[s].begin_ns < walk.next[first].begin_ns ? s : first;
        }
        if (walk.next[first].begin_ns == NEVER) { return STATUS_OK; }
        if (walk.next[first].side == NUM_SIDES) {
            run_job(&walk, first);
        } else {
            take_message(&walk, first);
        }
        choose(&walk, first);
    }
}
