#include "comm_order.h"

#include <string.h>

#include "../pipe/pipe_schedule.h"

static const int64_t NOT_READY = INT64_MAX;

// A message whose job stands in the sequence, and which does not yet.
typedef struct {
    PipeMessage message;
    int32_t mb, job;    // of its sender
    int32_t needed_by;  // job of its receiver
    int64_t begin_ns;   // not before; where messages are pulled its receiver takes it later
} Letter;

typedef struct {
    const PipeProblem* problem;
    const PipeSchedule* schedule;
    const PipeTimeline* timeline;
    CommOrder* order;
    const int32_t* jobs_ahead;
    int32_t* missing[3];               // [rows * M] messages of each PipeMessageKind that are still to come
    int32_t* needed_by[3];             // [rows * M] the job that waits for them
    Letter* letters[PLAN_MAX_STAGES];  // of a stage's link, [first, end), in its order
    int32_t first[PLAN_MAX_STAGES], end[PLAN_MAX_STAGES];
    int32_t next_job[PLAN_MAX_STAGES];      // not in the sequence yet
    int32_t running[PLAN_MAX_STAGES];       // first job that ends after the begin of the latest transfer
    int64_t begin_ns[2 * PLAN_MAX_STAGES];  // of each stage's next transfer [s] and next job [P + s]
    int32_t winner[4 * PLAN_MAX_STAGES];    // of a tournament between these: [1] has the earliest
    int32_t num_leaves;
} Merge;

// --- what comes next --------------------------------------------------------------------------------------

static void play(Merge* merge, int32_t node) {
    int32_t a = merge->winner[2 * node], b = merge->winner[2 * node + 1];
    merge->winner[node] = merge->begin_ns[b] < merge->begin_ns[a] ? b : a;
}

static void set_begin(Merge* merge, int32_t leaf, int64_t begin_ns) {
    if (merge->begin_ns[leaf] == begin_ns) { return; }
    merge->begin_ns[leaf] = begin_ns;
    for (int32_t node = (merge->num_leaves + leaf) / 2; node > 0; node /= 2) { play(merge, node); }
}

static void tournament_init(Merge* merge) {
    int32_t P = merge->problem->P;
    for (int32_t i = 0; i < 2 * P; i++) { merge->begin_ns[i] = NOT_READY; }
    for (merge->num_leaves = 1; merge->num_leaves < 2 * P;) { merge->num_leaves *= 2; }
    for (int32_t i = 0; i < merge->num_leaves; i++) {
        merge->winner[merge->num_leaves + i] = i < 2 * P ? i : 2 * P - 1;
    }
    for (int32_t node = merge->num_leaves - 1; node > 0; node--) { play(merge, node); }
}

// The kind of message that a job waits for, -1: none.
static int32_t input_of(PipeJob job) {
    static const int32_t kinds[JOB_COUNT] = {
        [JOB_F] = MESSAGE_ACT, [JOB_B] = MESSAGE_GRAD, [JOB_W] = MESSAGE_FACTORS, [JOB_R] = -1};
    return kinds[job.kind];
}

static int64_t cell_of(const Merge* merge, int32_t row, int32_t m) {
    return (int64_t)row * merge->problem->M + m;
}

static bool job_is_ready(const Merge* merge, int32_t s) {
    if (merge->next_job[s] == merge->schedule->num_jobs[s]) { return false; }
    PipeJob job = merge->schedule->jobs[s][merge->next_job[s]];
    int32_t input = input_of(job);
    return input < 0 || merge->missing[input][cell_of(merge, job.chunk, job.mb)] == 0;
}

static int32_t ahead_of(const Merge* merge, int32_t s) {
    return merge->jobs_ahead == NULL ? INT32_MAX : merge->jobs_ahead[s];
}

static bool letter_is_ready(const Merge* merge, const Letter* letter) {
    int32_t s = letter->message.stage;
    return letter->needed_by - merge->next_job[s] <= ahead_of(merge, s);
}

// The first letter of the link that may go; -1: none.
static int32_t next_letter(const Merge* merge, int32_t s) {
    for (int32_t i = merge->first[s]; i < merge->end[s]; i++) {
        if (letter_is_ready(merge, &merge->letters[s][i])) { return i; }
    }
    return -1;
}

// What could come next on stage s has changed: its transfer, its job.
static void refresh(Merge* merge, int32_t s) {
    int32_t letter = next_letter(merge, s);
    set_begin(merge, s, letter >= 0 ? merge->letters[s][letter].begin_ns : NOT_READY);
    int64_t begin_ns =
        job_is_ready(merge, s) ? merge->timeline->job[s][merge->next_job[s]].begin_ns : NOT_READY;
    set_begin(merge, merge->problem->P + s, begin_ns);
}

// --- the sequence -----------------------------------------------------------------------------------------

// The next job of stage s: its messages go to its link. Where messages are pulled none waits for another of
// its sender.
static void take_job(Merge* merge, int32_t s) {
    const PipeProblem* problem = merge->problem;
    PipeMessage messages[PIPE_MAX_MESSAGES];
    int32_t i = merge->next_job[s]++;
    PipeJob job = merge->schedule->jobs[s][i];
    int32_t num = pipe_messages(messages, problem, job);
    int64_t begin_ns =
        problem->pulls ? merge->timeline->job[s][i].end_ns : merge->timeline->send[s][i].begin_ns;
    for (int32_t k = 0; k < num; k++) {
        const PipeMessage* message = &messages[k];
        int64_t cell = cell_of(merge, message->row, job.mb);
        if (!message->is_sent) {
            merge->missing[message->kind][cell]--;
            continue;
        }
        merge->letters[s][merge->end[s]++] =
            (Letter){*message, job.mb, i, merge->needed_by[message->kind][cell], begin_ns};
        if (!problem->pulls) { begin_ns += message->transfer_ns; }
    }
    for (int32_t other = 0; merge->jobs_ahead != NULL && other < problem->P; other++) {
        refresh(merge, other);
    }
    refresh(merge, s);
}

static void push(Merge* merge, int32_t s, CommOp op) {
    int32_t* num_ops = &merge->order->num_ops[s];
    CommOp* ops = merge->order->ops[s];
    op.behind = merge->next_job[s];
    if (op.pos > op.behind) { op.pos = op.behind; }
    if (*num_ops > 0 && op.pos < ops[*num_ops - 1].pos) { op.pos = ops[*num_ops - 1].pos; }
    ops[(*num_ops)++] = op;
}

// When the receiver takes a message: as simulated, where that is known of each; else between two jobs, no
// earlier than the first of its sender's.
static int64_t take_ns(const Merge* merge, int32_t sender, const Letter* letter) {
    int32_t s = letter->message.stage, running = merge->running[s];
    if (!merge->problem->pulls) { return letter->begin_ns; }
    const PipeSpan* spans = merge->timeline->job[s];
    int64_t begin_ns = letter->begin_ns, first_ns = merge->timeline->send[sender][letter->job].begin_ns;
    while (running < merge->schedule->num_jobs[s] && spans[running].end_ns <= begin_ns) { running++; }
    if (running < merge->schedule->num_jobs[s] && spans[running].begin_ns < begin_ns) {
        begin_ns = spans[running].end_ns;
    }
    return begin_ns > first_ns ? begin_ns : first_ns;
}

// Where a stage posts a receive.
static int32_t receive_pos(Merge* merge, const Letter* letter, int64_t begin_ns) {
    int32_t s = letter->message.stage, *running = &merge->running[s], ahead = ahead_of(merge, s);
    while (*running < merge->schedule->num_jobs[s] && merge->timeline->job[s][*running].end_ns <= begin_ns) {
        ++*running;
    }
    int32_t earliest = ahead < letter->needed_by ? letter->needed_by - ahead : 0;
    return *running > earliest ? *running : earliest;
}

// This letter of the link of stage s: at both ends.
static void take_transfer(Merge* merge, int32_t s, int32_t i) {
    static const InstrKind sends[] = {INSTR_SEND_ACT, INSTR_SEND_GRAD, INSTR_SEND_FACT};
    static const InstrKind receives[] = {INSTR_RECV_ACT, INSTR_RECV_GRAD, INSTR_RECV_FACT};
    Letter letter = merge->letters[s][i];
    const PipeMessage* message = &letter.message;
    int32_t peer = message->stage;
    int64_t begin_ns = take_ns(merge, s, &letter), end_ns = begin_ns + message->transfer_ns;
    bool is_fact = message->kind == MESSAGE_FACTORS;
    push(merge, s,
         (CommOp){.kind = (uint8_t)sends[message->kind],
                  .chunk = is_fact ? message->row : merge->schedule->jobs[s][letter.job].chunk,
                  .peer = (int16_t)peer,
                  .mb = letter.mb,
                  .pos = letter.job + 1,
                  .begin_ns = begin_ns,
                  .end_ns = end_ns});
    push(merge, peer,
         (CommOp){.kind = (uint8_t)receives[message->kind],
                  .chunk = message->row,
                  .peer = (int16_t)s,
                  .mb = letter.mb,
                  .pos = receive_pos(merge, &letter, begin_ns),
                  .begin_ns = begin_ns,
                  .end_ns = end_ns});
    merge->missing[message->kind][cell_of(merge, message->row, letter.mb)]--;
    Letter* first = &merge->letters[s][merge->first[s]++];
    memmove(first + 1, first, (size_t)(&merge->letters[s][i] - first) * sizeof *first);
    refresh(merge, s);
    refresh(merge, peer);
}

// All wait, some for memory: the earliest of those goes. False where there is none.
static bool release_one(Merge* merge) {
    int32_t stage = -1;
    for (int32_t s = 0; s < merge->problem->P; s++) {
        if (merge->first[s] == merge->end[s]) { continue; }
        int64_t begin_ns = merge->letters[s][merge->first[s]].begin_ns;
        if (stage < 0 || begin_ns < merge->letters[stage][merge->first[stage]].begin_ns) { stage = s; }
    }
    if (stage >= 0) { take_transfer(merge, stage, merge->first[stage]); }
    return stage >= 0;
}

// What every job waits for, and room for all letters and their two ends.
static Status count_messages(Merge* merge, Arena* arena) {
    PipeMessage messages[PIPE_MAX_MESSAGES];
    int32_t num_letters[PLAN_MAX_STAGES] = {0}, num_ops[PLAN_MAX_STAGES] = {0};
    for (int32_t s = 0; s < merge->problem->P; s++) {
        for (int32_t i = 0; i < merge->schedule->num_jobs[s]; i++) {
            PipeJob job = merge->schedule->jobs[s][i];
            int32_t input = input_of(job), num = pipe_messages(messages, merge->problem, job);
            if (input >= 0) { merge->needed_by[input][cell_of(merge, job.chunk, job.mb)] = i; }
            for (int32_t k = 0; k < num; k++) {
                merge->missing[messages[k].kind][cell_of(merge, messages[k].row, job.mb)]++;
                num_letters[s] += messages[k].is_sent;
                num_ops[s] += messages[k].is_sent;
                num_ops[messages[k].stage] += messages[k].is_sent;
            }
        }
    }
    for (int32_t s = 0; s < merge->problem->P; s++) {
        PIPE_NEW(merge->letters[s], arena, Letter, num_letters[s]);
        PIPE_NEW(merge->order->ops[s], arena, CommOp, num_ops[s]);
    }
    return STATUS_OK;
}

Status comm_order_make(CommOrder* out, const PipeProblem* problem, const PipeSchedule* schedule,
                       const PipeTimeline* timeline, const int32_t* jobs_ahead, Arena* arena) {
    *out = (CommOrder){0};
    Merge merge = {.problem = problem,
                   .schedule = schedule,
                   .timeline = timeline,
                   .order = out,
                   .jobs_ahead = jobs_ahead};
    int32_t P = problem->P;
    int64_t num_cells = (int64_t)pipe_num_rows(problem) * problem->M;
    for (int kind = 0; kind < 3; kind++) {
        PIPE_NEW(merge.missing[kind], arena, int32_t, num_cells);
        PIPE_NEW(merge.needed_by[kind], arena, int32_t, num_cells);
    }
    TRY(count_messages(&merge, arena));
    tournament_init(&merge);
    for (int32_t s = 0; s < P; s++) { refresh(&merge, s); }
    for (;;) {  // of all that could come next: the earliest begin, transfers before jobs
        int32_t best = merge.winner[1];
        if (merge.begin_ns[best] == NOT_READY) {
            if (!release_one(&merge)) { break; }
        } else if (best < P) {
            take_transfer(&merge, best, next_letter(&merge, best));
        } else {
            take_job(&merge, best - P);
        }
    }
    for (int32_t s = 0; s < P; s++) {
        if (merge.next_job[s] < schedule->num_jobs[s]) {
            return FAIL(STATUS_DEADLOCK, "comm_order: stage %d, job %d waits for ever", s, merge.next_job[s]);
        }
    }
    return STATUS_OK;
}
