#include "comm_order.h"

#include "../pipe/pipe_schedule.h"

typedef struct {
    const PipeProblem* problem;
    const PipeSchedule* schedule;
    const PipeTimeline* timeline;
    CommOrder* order;
    uint8_t* arrived[2];                 // [P * M] 0: activations, 1: gradients
    int32_t next_job[PLAN_MAX_STAGES];   // not in the sequence yet
    int32_t next_send[PLAN_MAX_STAGES];  // job whose transfer comes next on the stage's link
    int32_t running[PLAN_MAX_STAGES];    // first job that ends after the begin of the latest transfer
    int64_t
        begin_ns[2 * PLAN_MAX_STAGES];  // of each stage's next transfer [s] and next job [P + s]; NOT_READY
} Merge;

static const int64_t NOT_READY = INT64_MAX;

// The stage that a job's result goes to, -1: none.
static int32_t receiver_of(const Merge* merge, int32_t s, PipeJob job) {
    if (job.kind == JOB_F && s < merge->problem->P - 1) { return s + 1; }
    return job.kind == JOB_B && s > 0 ? s - 1 : -1;
}

static bool job_is_ready(const Merge* merge, int32_t s) {
    PipeJob job = merge->schedule->jobs[s][merge->next_job[s]];
    int64_t cell = (int64_t)s * merge->problem->M + job.mb;
    if (job.kind == JOB_F) { return s == 0 || merge->arrived[0][cell]; }
    if (job.kind == JOB_B) { return s == merge->problem->P - 1 || merge->arrived[1][cell]; }
    return true;
}

static void skip_to_send(Merge* merge, int32_t s) {
    int32_t* at = &merge->next_send[s];
    while (*at < merge->schedule->num_jobs[s] && receiver_of(merge, s, merge->schedule->jobs[s][*at]) < 0) {
        ++*at;
    }
}

// Where messages are pulled a transfer may begin late, and none waits for another of its sender: it is sent
// where its job ends.
static int64_t transfer_begin_ns(const Merge* merge, int32_t s, int32_t at) {
    bool pulls = merge->problem->pulls;
    return pulls ? merge->timeline->job[s][at].end_ns : merge->timeline->send[s][at].begin_ns;
}

// What could come next on stage s has changed: its transfer, its job.
static void refresh(Merge* merge, int32_t s) {
    int32_t P = merge->problem->P, job = merge->next_job[s], send = merge->next_send[s];
    bool sends = send < merge->next_job[s];
    bool runs = job < merge->schedule->num_jobs[s] && job_is_ready(merge, s);
    merge->begin_ns[s] = sends ? transfer_begin_ns(merge, s, send) : NOT_READY;
    merge->begin_ns[P + s] = runs ? merge->timeline->job[s][job].begin_ns : NOT_READY;
}

static void push(Merge* merge, int32_t s, CommOp op) {
    int32_t* num_ops = &merge->order->num_ops[s];
    CommOp* ops = merge->order->ops[s];
    if (op.pos > merge->next_job[s]) { op.pos = merge->next_job[s]; }
    if (*num_ops > 0 && op.pos < ops[*num_ops - 1].pos) { op.pos = ops[*num_ops - 1].pos; }
    ops[(*num_ops)++] = op;
}

// The next transfer on the link of stage s: at both ends.
static void take_transfer(Merge* merge, int32_t s) {
    int32_t at = merge->next_send[s];
    PipeJob job = merge->schedule->jobs[s][at];
    PipeSpan span = merge->timeline->send[s][at];
    int32_t peer = receiver_of(merge, s, job);
    bool is_act = job.kind == JOB_F;
    push(merge, s,
         (CommOp){.kind = is_act ? INSTR_SEND_ACT : INSTR_SEND_GRAD,
                  .chunk = job.chunk,
                  .mb = job.mb,
                  .pos = at + 1,
                  .begin_ns = span.begin_ns,
                  .end_ns = span.end_ns});
    int32_t* running = &merge->running[peer];
    while (*running < merge->schedule->num_jobs[peer] &&
           merge->timeline->job[peer][*running].end_ns <= span.begin_ns) {
        ++*running;
    }
    push(merge, peer,
         (CommOp){.kind = is_act ? INSTR_RECV_ACT : INSTR_RECV_GRAD,
                  .chunk = (int16_t)peer,
                  .mb = job.mb,
                  .pos = *running,
                  .begin_ns = span.begin_ns,
                  .end_ns = span.end_ns});
    merge->arrived[is_act ? 0 : 1][(int64_t)peer * merge->problem->M + job.mb] = 1;
    merge->next_send[s]++;
    skip_to_send(merge, s);
    refresh(merge, s);
    refresh(merge, peer);
}

static Status merge_init(Merge* merge, Arena* arena) {
    int32_t P = merge->problem->P, M = merge->problem->M;
    CommOp* ops;
    PIPE_NEW(ops, arena, CommOp, 4 * (int64_t)P * M);
    PIPE_NEW(merge->arrived[0], arena, uint8_t, (int64_t)P * M);
    PIPE_NEW(merge->arrived[1], arena, uint8_t, (int64_t)P * M);
    for (int32_t s = 0; s < P; s++) {
        merge->order->ops[s] = ops + 4 * (int64_t)s * M;
        skip_to_send(merge, s);
    }
    return STATUS_OK;
}

Status comm_order_make(CommOrder* out, const PipeProblem* problem, const PipeSchedule* schedule,
                       const PipeTimeline* timeline, Arena* arena) {
    *out = (CommOrder){0};
    Merge merge = {.problem = problem, .schedule = schedule, .timeline = timeline, .order = out};
    TRY(merge_init(&merge, arena));
    int32_t P = problem->P;
    for (int32_t s = 0; s < P; s++) { refresh(&merge, s); }
    for (;;) {  // of all that could come next: the earliest begin, transfers before jobs
        int32_t best = 0;
        for (int32_t i = 1; i < 2 * P; i++) { best = merge.begin_ns[i] < merge.begin_ns[best] ? i : best; }
        if (merge.begin_ns[best] == NOT_READY) { break; }
        if (best < P) {
            take_transfer(&merge, best);
        } else {
            merge.next_job[best - P]++;
            refresh(&merge, best - P);
        }
    }
    for (int32_t s = 0; s < problem->P; s++) {
        if (merge.next_job[s] < schedule->num_jobs[s]) {
            return FAIL(STATUS_DEADLOCK, "comm_order: stage %d, job %d waits for ever", s, merge.next_job[s]);
        }
    }
    return STATUS_OK;
}
