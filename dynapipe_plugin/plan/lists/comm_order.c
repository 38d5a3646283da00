#include "comm_order.h"

#include <string.h>

#include "../pipe/pipe_schedule.h"

static const int64_t NOT_READY = INT64_MAX;

// A message whose job stands in the sequence, and which does not yet.
typedef struct {
    PipeMessage message;
    int32_t mb, job;    // of its sender
    int32_t needed_by;  // job of its receiver
    int64_t ready_ns;   // it may go from then on
} Letter;

typedef struct {
    const PipeProblem* problem;
    const PipeSchedule* schedule;
    const PipeTimeline* timeline;  // as simulated
    PipeTimeline* late;            // what is made of it, as far as the sequence goes; NULL: nothing changes
    CommOrder* order;
    const int32_t* jobs_ahead;         // NULL where nothing is late
    int32_t* missing[3];               // [rows * M] messages of each PipeMessageKind that are still to come
    int32_t* needed_by[3];             // [rows * M] the job that waits for them
    Letter* letters[PLAN_MAX_STAGES];  // of a stage's link, [first, end), in its order
    int32_t first[PLAN_MAX_STAGES], end[PLAN_MAX_STAGES];
    int32_t next_job[PLAN_MAX_STAGES];  // not in the sequence yet
    // Late: when an input is there, by what stands in the sequence; a stage and its link are free.
    int64_t* arrival_ns[3];  // [rows * M]
    int64_t clock_ns[PLAN_MAX_STAGES], link_ns[PLAN_MAX_STAGES];
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

static int64_t later(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t job_begin_ns(const Merge* merge, int32_t s) {
    int32_t i = merge->next_job[s];
    if (merge->late == NULL) { return merge->timeline->job[s][i].begin_ns; }
    PipeJob job = merge->schedule->jobs[s][i];
    int32_t input = input_of(job);
    int64_t cell = cell_of(merge, job.chunk, job.mb);
    return later(merge->clock_ns[s], input < 0 ? 0 : merge->arrival_ns[input][cell]);
}

// The first job that ends later than that, among those whose times are known.
static int32_t job_ending_after(const Merge* merge, int32_t s, int64_t time_ns) {
    const PipeSpan* spans = (merge->late == NULL ? merge->timeline : merge->late)->job[s];
    int32_t low = 0, high = merge->late == NULL ? merge->schedule->num_jobs[s] : merge->next_job[s];
    while (low < high) {
        int32_t middle = (low + high) / 2;
        if (spans[middle].end_ns > time_ns) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

// Where the receiver of a letter that goes at `from_ns` posts it, and no earlier than the transfer before.
static int32_t receive_pos(const Merge* merge, const Letter* letter, int64_t from_ns) {
    int32_t s = letter->message.stage, ahead = ahead_of(merge, s), num_ops = merge->order->num_ops[s];
    int32_t pos = job_ending_after(merge, s, from_ns);
    if (ahead < letter->needed_by && pos < letter->needed_by - ahead) { pos = letter->needed_by - ahead; }
    if (pos > merge->next_job[s]) { pos = merge->next_job[s]; }
    int32_t before = num_ops > 0 ? merge->order->ops[s][num_ops - 1].pos : 0;
    return pos > before ? pos : before;
}

// Late: when its link is free, and where it is posted.
static int64_t letter_begin_ns(const Merge* merge, int32_t s, const Letter* letter) {
    if (merge->late == NULL) { return letter->ready_ns; }
    int32_t peer = letter->message.stage;
    int64_t from_ns = merge->problem->pulls ? letter->ready_ns : later(letter->ready_ns, merge->link_ns[s]);
    int32_t pos = receive_pos(merge, letter, from_ns);
    int64_t posted_ns = merge->problem->pulls ? merge->clock_ns[peer]
                        : pos > 0             ? merge->late->job[peer][pos - 1].end_ns
                                              : 0;
    return later(from_ns, posted_ns);
}

// What could come next on stage s has changed: its transfer, its job.
static void refresh(Merge* merge, int32_t s) {
    int32_t i = next_letter(merge, s);
    set_begin(merge, s, i >= 0 ? letter_begin_ns(merge, s, &merge->letters[s][i]) : NOT_READY);
    set_begin(merge, merge->problem->P + s, job_is_ready(merge, s) ? job_begin_ns(merge, s) : NOT_READY);
}

// Late: what a stage does tells on all who send to it.
static void refresh_after(Merge* merge, int32_t s, int32_t peer) {
    for (int32_t other = 0; merge->late != NULL && other < merge->problem->P; other++) {
        refresh(merge, other);
    }
    refresh(merge, s);
    refresh(merge, peer);
}

// --- the sequence -----------------------------------------------------------------------------------------

// When the first letter of a job is ready: as simulated; where messages are pulled, and where links have
// times of their own, none waits for another.
static int64_t first_ready_ns(Merge* merge, int32_t s, int32_t i) {
    const PipeTimeline* timeline = merge->timeline;
    if (merge->late == NULL) {
        return merge->problem->pulls ? timeline->job[s][i].end_ns : timeline->send[s][i].begin_ns;
    }
    int64_t begin_ns = merge->begin_ns[merge->problem->P + s];
    int64_t end_ns = begin_ns + timeline->job[s][i].end_ns - timeline->job[s][i].begin_ns;
    merge->late->job[s][i] = (PipeSpan){begin_ns, end_ns};
    merge->clock_ns[s] = end_ns;
    return end_ns;
}

// The next job of stage s: its messages go to its link.
static void take_job(Merge* merge, int32_t s) {
    const PipeProblem* problem = merge->problem;
    PipeMessage messages[PIPE_MAX_MESSAGES];
    int32_t i = merge->next_job[s];
    PipeJob job = merge->schedule->jobs[s][i];
    int32_t num = pipe_messages(messages, problem, job);
    int64_t ready_ns = first_ready_ns(merge, s, i);
    merge->next_job[s]++;
    for (int32_t k = 0; k < num; k++) {
        const PipeMessage* message = &messages[k];
        int64_t cell = cell_of(merge, message->row, job.mb);
        if (!message->is_sent) {
            int64_t* arrival_ns = merge->late == NULL ? NULL : &merge->arrival_ns[message->kind][cell];
            if (arrival_ns != NULL) { *arrival_ns = later(*arrival_ns, merge->clock_ns[s]); }
            merge->missing[message->kind][cell]--;
            continue;
        }
        merge->letters[s][merge->end[s]++] =
            (Letter){*message, job.mb, i, merge->needed_by[message->kind][cell], ready_ns};
        if (!problem->pulls && merge->late == NULL) { ready_ns += message->transfer_ns; }
    }
    refresh_after(merge, s, s);
}

// When a letter is taken: as simulated, where that is known of each. Where messages are pulled it is known of
// the first of its sender's job; the others are taken between two jobs of their receiver.
static int64_t take_ns(const Merge* merge, int32_t sender, const Letter* letter) {
    if (!merge->problem->pulls) { return letter->ready_ns; }
    int32_t s = letter->message.stage, running = job_ending_after(merge, s, letter->ready_ns);
    const PipeSpan* spans = merge->timeline->job[s];
    bool is_busy = running < merge->schedule->num_jobs[s] && spans[running].begin_ns < letter->ready_ns;
    return later(is_busy ? spans[running].end_ns : letter->ready_ns,
                 merge->timeline->send[sender][letter->job].begin_ns);
}

static void push(Merge* merge, int32_t s, CommOp op) {
    int32_t* num_ops = &merge->order->num_ops[s];
    CommOp* ops = merge->order->ops[s];
    op.behind = merge->next_job[s];
    if (*num_ops > 0 && op.pos < ops[*num_ops - 1].pos) { op.pos = ops[*num_ops - 1].pos; }
    ops[(*num_ops)++] = op;
}

// Times that follow from a transfer.
static void note_times(Merge* merge, int32_t s, const Letter* letter, int64_t begin_ns) {
    int64_t end_ns = begin_ns + letter->message.transfer_ns;
    PipeSpan* span = &merge->late->send[s][letter->job];
    int64_t* arrival_ns =
        &merge->arrival_ns[letter->message.kind][cell_of(merge, letter->message.row, letter->mb)];
    *arrival_ns = later(*arrival_ns, end_ns);
    *(merge->problem->pulls ? &merge->clock_ns[letter->message.stage] : &merge->link_ns[s]) = end_ns;
    if (span->end_ns == 0) { span->begin_ns = begin_ns; }
    span->end_ns = later(span->end_ns, end_ns);
}

// This letter of the link of stage s: at both ends.
static void take_transfer(Merge* merge, int32_t s, int32_t i) {
    static const InstrKind sends[] = {INSTR_SEND_ACT, INSTR_SEND_GRAD, INSTR_SEND_FACT};
    static const InstrKind receives[] = {INSTR_RECV_ACT, INSTR_RECV_GRAD, INSTR_RECV_FACT};
    Letter letter = merge->letters[s][i];
    const PipeMessage* message = &letter.message;
    int32_t peer = message->stage;
    bool is_fact = message->kind == MESSAGE_FACTORS, is_late = merge->late != NULL;
    int64_t begin_ns = is_late ? letter_begin_ns(merge, s, &letter) : take_ns(merge, s, &letter);
    int64_t from_ns = is_late ? later(letter.ready_ns, merge->link_ns[s]) : begin_ns;
    CommOp op = {.mb = letter.mb, .begin_ns = begin_ns, .end_ns = begin_ns + message->transfer_ns};
    op.kind = (uint8_t)receives[message->kind];
    op.chunk = message->row;
    op.peer = (int16_t)s;
    op.pos = receive_pos(merge, &letter, from_ns);
    push(merge, peer, op);
    op.kind = (uint8_t)sends[message->kind];
    op.chunk = is_fact ? message->row : merge->schedule->jobs[s][letter.job].chunk;
    op.peer = (int16_t)peer;
    op.pos = letter.job + 1;
    push(merge, s, op);
    if (is_late) { note_times(merge, s, &letter, begin_ns); }
    merge->missing[message->kind][cell_of(merge, message->row, letter.mb)]--;
    Letter* first = &merge->letters[s][merge->first[s]++];
    memmove(first + 1, first, (size_t)(&merge->letters[s][i] - first) * sizeof *first);
    refresh_after(merge, s, peer);
}

// All wait, some for memory: the earliest of those goes. False where there is none.
static bool release_one(Merge* merge) {
    int32_t stage = -1;
    for (int32_t s = 0; s < merge->problem->P; s++) {
        if (merge->first[s] == merge->end[s]) { continue; }
        int64_t ready_ns = merge->letters[s][merge->first[s]].ready_ns;
        if (stage < 0 || ready_ns < merge->letters[stage][merge->first[stage]].ready_ns) { stage = s; }
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
        ARENA_TRY_NEW(merge->letters[s], arena, Letter, num_letters[s]);
        ARENA_TRY_NEW(merge->order->ops[s], arena, CommOp, num_ops[s]);
    }
    return STATUS_OK;
}

static Status merge_init(Merge* merge, Arena* arena) {
    int64_t num_cells = (int64_t)pipe_num_rows(merge->problem) * merge->problem->M;
    for (int kind = 0; kind < 3; kind++) {
        ARENA_TRY_NEW(merge->missing[kind], arena, int32_t, num_cells);
        ARENA_TRY_NEW(merge->needed_by[kind], arena, int32_t, num_cells);
        if (merge->late != NULL) { ARENA_TRY_NEW(merge->arrival_ns[kind], arena, int64_t, num_cells); }
    }
    for (int32_t s = 0; merge->late != NULL && s < merge->problem->P; s++) {
        ARENA_TRY_NEW(merge->late->job[s], arena, PipeSpan, merge->schedule->num_jobs[s]);
        ARENA_TRY_NEW(merge->late->send[s], arena, PipeSpan, merge->schedule->num_jobs[s]);
    }
    TRY(count_messages(merge, arena));
    tournament_init(merge);
    for (int32_t s = 0; s < merge->problem->P; s++) { refresh(merge, s); }
    return STATUS_OK;
}

static Status merge_all(Merge* merge, Arena* arena) {
    int32_t P = merge->problem->P;
    TRY(merge_init(merge, arena));
    for (;;) {  // of all that could come next: the earliest begin, transfers before jobs
        int32_t best = merge->winner[1];
        if (merge->begin_ns[best] == NOT_READY) {
            if (!release_one(merge)) { break; }
        } else if (best < P) {
            take_transfer(merge, best, next_letter(merge, best));
        } else {
            take_job(merge, best - P);
        }
    }
    for (int32_t s = 0; s < P; s++) {
        if (merge->next_job[s] == merge->schedule->num_jobs[s]) { continue; }
        return FAIL(STATUS_DEADLOCK, "comm_order: stage %d, job %d waits for ever", s, merge->next_job[s]);
    }
    return STATUS_OK;
}

Status comm_order_make(CommOrder* out, const PipeProblem* problem, const PipeSchedule* schedule,
                       const PipeTimeline* timeline, Arena* arena) {
    *out = (CommOrder){0};
    Merge merge = {.problem = problem, .schedule = schedule, .timeline = timeline, .order = out};
    return merge_all(&merge, arena);
}

Status comm_order_make_late(CommOrder* out, PipeTimeline* late, const PipeProblem* problem,
                            const PipeSchedule* schedule, const PipeTimeline* timeline,
                            const int32_t* jobs_ahead, Arena* arena) {
    *out = (CommOrder){0};
    PipeTimeline times = *timeline;
    Merge merge = {.problem = problem,
                   .schedule = schedule,
                   .timeline = timeline,
                   .late = &times,
                   .order = out,
                   .jobs_ahead = jobs_ahead};
    TRY(merge_all(&merge, arena));
    times.makespan_ns = times.last_end_ns = 0;
    for (int32_t s = 0; s < problem->P; s++) {
        times.makespan_ns = later(times.makespan_ns, merge.clock_ns[s] + problem->tail_ns[s]);
        times.last_end_ns = later(times.last_end_ns, merge.clock_ns[s]);
    }
    *late = times;
    return STATUS_OK;
}
