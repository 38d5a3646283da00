#include "instructions.h"

#include <string.h>
#include "memory_layout.h"
#include "plan_message.h"
#include "schedule.h"
#include "simulate.h"

static const int64_t NOT_READY = INT64_MAX;

// A message that is not in the sequence yet, but whose job is.
typedef struct {
    PipeMessage message;
    int32_t mb, job;    // of its sender
    int32_t needed_by;  // job of its receiver
    int64_t ready_ns;   // the earliest time it may be sent
} Letter;

typedef struct {
    const PipeProblem* problem;
    const PipeSchedule* schedule;
    const PipeTimeline* timeline;  // as simulated
    PipeTimeline* late;  // the timeline with waits, as far as the sequence goes; NULL: nothing changes
    CommOrder* order;
    const int32_t* jobs_ahead;  // NULL where nothing is late
    int32_t* missing[3];        // [rows * M] messages of each PipeMessageKind that are still to be sent
    int32_t* needed_by[3];      // [rows * M] the job that waits for them
    Letter* letters[PLAN_MAX_STAGES];  // of a stage's link, [first, end), in its order
    int32_t first[PLAN_MAX_STAGES], end[PLAN_MAX_STAGES];
    int32_t next_job[PLAN_MAX_STAGES];  // not in the sequence yet
    // Late: when an input is there, by the sequence so far; a stage and its link are free.
    int64_t* arrival_ns[3];  // [rows * M]
    int64_t clock_ns[PLAN_MAX_STAGES], link_ns[PLAN_MAX_STAGES];
    int64_t begin_ns[2 * PLAN_MAX_STAGES];  // of each stage's next transfer [s] and next job [P + s]
} Merge;

// --- what comes next --------------------------------------------------------------------------------------

// A transfer of stage i, or a job of stage i - P: the one that begins first, transfers before jobs.
static int32_t find_next(const Merge* merge) {
    int32_t best = 0;
    for (int32_t i = 1; i < 2 * merge->problem->P; i++) {
        if (merge->begin_ns[i] < merge->begin_ns[best]) { best = i; }
    }
    return best;
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

// The first message that the link may send; -1: none.
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

// The first job that ends later, among those whose times are known.
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

// When the receiver posts a message sent at `from_ns`, no earlier than the transfer before.
static int32_t receive_pos(const Merge* merge, const Letter* letter, int64_t from_ns) {
    int32_t s = letter->message.stage, ahead = ahead_of(merge, s), num_ops = merge->order->num_ops[s];
    int32_t pos = job_ending_after(merge, s, from_ns);
    if (ahead < letter->needed_by && pos < letter->needed_by - ahead) { pos = letter->needed_by - ahead; }
    if (pos > merge->next_job[s]) { pos = merge->next_job[s]; }
    int32_t before = num_ops > 0 ? merge->order->ops[s][num_ops - 1].pos : 0;
    return pos > before ? pos : before;
}

// Late: when its link is free and its receive is posted.
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

// The next transfer or job of stage s may have changed.
static void refresh(Merge* merge, int32_t s) {
    int32_t i = next_letter(merge, s);
    merge->begin_ns[s] = i >= 0 ? letter_begin_ns(merge, s, &merge->letters[s][i]) : NOT_READY;
    merge->begin_ns[merge->problem->P + s] = job_is_ready(merge, s) ? job_begin_ns(merge, s) : NOT_READY;
}

// Late: a change on a stage affects all stages that send to it.
static void refresh_after(Merge* merge, int32_t s, int32_t peer) {
    for (int32_t other = 0; merge->late != NULL && other < merge->problem->P; other++) {
        refresh(merge, other);
    }
    refresh(merge, s);
    refresh(merge, peer);
}

// --- the sequence -----------------------------------------------------------------------------------------

// When the first message of a job is ready: as simulated; where messages are pulled, and where links have
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

// When a message is received: as simulated, where that is known for each. Where messages are pulled it is
// known for the first of its sender's job; the others are received between two jobs of their receiver.
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

// This message of stage s's link goes into both lists.
static void take_transfer(Merge* merge, int32_t s, int32_t i) {
    Letter letter = merge->letters[s][i];
    const PipeMessage* message = &letter.message;
    int32_t peer = message->stage;
    bool is_fact = message->kind == MESSAGE_FACTORS, is_late = merge->late != NULL;
    int64_t begin_ns = is_late ? letter_begin_ns(merge, s, &letter) : take_ns(merge, s, &letter);
    int64_t from_ns = is_late ? later(letter.ready_ns, merge->link_ns[s]) : begin_ns;
    CommOp op = {.mb = letter.mb, .begin_ns = begin_ns, .end_ns = begin_ns + message->transfer_ns};
    op.kind = (uint8_t)plan_recv_kind(message->kind);
    op.chunk = message->row;
    op.peer = (int16_t)s;
    op.pos = receive_pos(merge, &letter, from_ns);
    push(merge, peer, op);
    op.kind = (uint8_t)plan_send_kind(message->kind);
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

// All wait, some for memory: the earliest of those is posted. False where there is none.
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

// The inputs of every job, and room for all messages and their two ends.
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
    for (int32_t s = 0; s < merge->problem->P; s++) { refresh(merge, s); }
    return STATUS_OK;
}

static Status merge_all(Merge* merge, Arena* arena) {
    int32_t P = merge->problem->P;
    TRY(merge_init(merge, arena));
    for (;;) {
        int32_t best = find_next(merge);
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
    times.makespan_ns = 0;
    for (int32_t s = 0; s < problem->P; s++) {
        times.makespan_ns = later(times.makespan_ns, merge.clock_ns[s] + problem->tail_ns[s]);
    }
    *late = times;
    return STATUS_OK;
}

// --- a rank's list -----------------------------------------------------------------------------------

// Indices of one microbatch's items in one place (plan_place_of); -1: none. Jobs are job numbers, transfers
// indices into ops.
typedef struct {
    int32_t job[JOB_COUNT];
    int32_t op[INSTR_COUNT];
} RankPlaces;

typedef struct {
    const ReplicaListsInput* input;
    const PipeTimeline* timeline;
    const CommOrder* order;
    bool is_late;  // receives stay where the order has them; otherwise they are posted as early as memory
                   // allows
    int32_t s, num_jobs, num_ops;
    int32_t K;
    bool shares_head, by_vocabulary;
    bool has_last;     // the last chunk is here
    int32_t* slot_of;  // [K + 2 * P] by place, where it is of this rank: into places
    int32_t num_slots;
    const PipeJob* jobs;
    const PipeSpan* spans;
    CommOp* ops;
    RankPlaces* places;  // [num_slots * M]
    PlanBuffer* buffers;
    int32_t num_buffers;
    int32_t* buffer_of_op;  // [num_ops] the buffer that a transfer fills or empties
    int64_t* receive_ns;    // [num_jobs + 1] begin of the first receive before this job; INT64_MAX: none
    int32_t* wait_pos;      // [num_ops] of sends: before this job; num_jobs + 1: at the end
} RankBuffers;

// --- a rank's buffers --------------------------------------------------------------------------------

static RankPlaces* places_at(const RankBuffers* list, int32_t row, int32_t m) {
    return &list->places[(int64_t)list->slot_of[row] * list->input->problem->M + m];
}

static int32_t place_of_op(const RankBuffers* list, const CommOp* op) {
    if (!list->shares_head) { return op->chunk; }
    const PipeProblem* problem = list->input->problem;
    return plan_place_of(problem->placement, problem->P, (InstrKind)op->kind, op->chunk, op->peer);
}

static bool has_share(const RankBuffers* list, int32_t s) {
    return list->shares_head && placement_has_share(list->input->problem->placement, s);
}

// Whether the row is a chunk or share of this rank.
static bool is_here(const RankBuffers* list, int32_t row) {
    const PipeProblem* problem = list->input->problem;
    return pipe_stage_of(problem, row) == list->s && pipe_has_row(problem, row);
}

static void find_places(RankBuffers* list) {
    int32_t M = list->input->problem->M;
    for (int64_t i = 0; i < (int64_t)list->num_slots * M; i++) {
        for (int32_t k = 0; k < JOB_COUNT; k++) { list->places[i].job[k] = -1; }
        for (int32_t k = 0; k < INSTR_COUNT; k++) { list->places[i].op[k] = -1; }
    }
    for (int32_t i = 0; i < list->num_jobs; i++) {
        PipeJob job = list->jobs[i];
        places_at(list, job.chunk, job.mb)->job[job.kind] = i;
    }
    const CommOp* ops = list->order->ops[list->s];
    for (int32_t i = 0; i < list->num_ops; i++) {
        places_at(list, place_of_op(list, &ops[i]), ops[i].mb)->op[ops[i].kind] = i;
    }
}

// Lives over jobs [begin, end).
static PlanBuffer* rank_buffers_add(RankBuffers* list, BufferKind kind, int32_t chunk, int32_t m,
                                    int64_t num_bytes, int32_t begin, int32_t end) {
    PlanBuffer* buffer = &list->buffers[list->num_buffers++];
    *buffer = (PlanBuffer){.kind = (uint8_t)kind,
                           .chunk = (int16_t)chunk,
                           .mb = m,
                           .num_bytes = num_bytes,
                           .instr_begin = begin,
                           .instr_end = end};
    return buffer;
}

// This transfer fills (empties) the buffer, whose lifetime includes it.
static void use_buffer(RankBuffers* list, PlanBuffer* buffer, int32_t row, InstrKind kind) {
    int32_t i = places_at(list, row, buffer->mb)->op[kind];
    list->buffer_of_op[i] = (int32_t)(buffer - list->buffers);
    if (plan_instr_is_send(list->ops[i].kind)) {
        buffer->instr_end = list->wait_pos[i] > buffer->instr_end ? list->wait_pos[i] : buffer->instr_end;
    } else {
        buffer->instr_begin = list->ops[i].pos < buffer->instr_begin ? list->ops[i].pos : buffer->instr_begin;
    }
}

static const RankBytes* bytes_of(const RankBuffers* list, int32_t row, int32_t m) {
    return &list->input->bytes[(int64_t)row * list->input->problem->M + m];
}

static int32_t larger(int32_t a, int32_t b) {
    return a > b ? a : b;
}

// Messages between the last chunk and the shares of the head, at the last chunk's end.
static void add_head_buffers(RankBuffers* list, int32_t m) {
    int32_t K = list->K, P = list->input->problem->P;
    const int32_t* job = places_at(list, K - 1, m)->job;
    int32_t f = job[JOB_F], b = job[JOB_B], last = larger(b, job[JOB_W]);
    int64_t out_bytes = bytes_of(list, K - 1, m)->out_bytes;
    PlanBuffer* out = rank_buffers_add(list, BUFFER_OUT, K - 1, m, out_bytes, f, f + 1);
    PlanBuffer* dout = rank_buffers_add(list, BUFFER_DOUT, K - 1, m, out_bytes, b, last + 1);
    for (int32_t s = 0; s < P; s++) {
        if (!has_share(list, s)) { continue; }
        int32_t end = K + P + s;
        bool is_own = s == list->s;
        const int32_t* own = is_own ? places_at(list, K + s, m)->job : NULL;
        PlanBuffer* part = dout;
        if (list->by_vocabulary) {
            const RankBytes* bytes = bytes_of(list, K + s, m);
            PlanBuffer* fact = rank_buffers_add(list, BUFFER_FACT, K + s, m, bytes->factor_bytes, b, b + 1);
            part = rank_buffers_add(list, BUFFER_PART, K + s, m, bytes->part_bytes, b, b + 1);
            if (is_own) { fact->instr_end = own[JOB_W] + 1; }
            if (!is_own) { use_buffer(list, fact, end, INSTR_SEND_FACT); }
        }
        if (is_own) {
            out->instr_end = larger(out->instr_end, own[JOB_W] + 1);
            part->instr_begin = own[JOB_F] < part->instr_begin ? own[JOB_F] : part->instr_begin;
        } else {
            use_buffer(list, out, end, INSTR_SEND_ACT);
            use_buffer(list, part, end, INSTR_RECV_GRAD);
        }
    }
}

// Of a sample that is cut: its pieces are in the microbatches from this one on.
static bool is_first_piece(const RankBuffers* list, int32_t m) {
    const PipeProblem* problem = list->input->problem;
    return m + 1 < problem->M && pipe_piece_before(problem, m + 1) == m && pipe_piece_before(problem, m) < 0;
}

static void add_chunk_buffers(RankBuffers* list, int32_t k, int32_t m) {
    const int32_t M = list->input->problem->M;
    const RankBytes* bytes = bytes_of(list, k, m);
    const int32_t* job = places_at(list, k, m)->job;
    int32_t f = job[JOB_F], b = job[JOB_B], r = job[JOB_R], last = larger(b, job[JOB_W]);
    if (k > 0 && is_here(list, k - 1)) {  // handed over
        int32_t before = places_at(list, k - 1, m)->job[JOB_F];
        rank_buffers_add(list, BUFFER_IN, k, m, bytes->in_bytes, before, b + 1);
    } else if (k > 0) {
        PlanBuffer* in = rank_buffers_add(list, BUFFER_IN, k, m, bytes->in_bytes, f, b + 1);
        PlanBuffer* din = rank_buffers_add(list, BUFFER_DIN, k, m, bytes->in_bytes, b, b + 1);
        use_buffer(list, in, k, INSTR_RECV_ACT);
        use_buffer(list, din, k, INSTR_SEND_GRAD);
    }
    if (k < list->K - 1 && is_here(list, k + 1)) {
        int32_t behind = places_at(list, k + 1, m)->job[JOB_B];
        rank_buffers_add(list, BUFFER_DOUT, k, m, bytes->out_bytes, behind, last + 1);
    } else if (k < list->K - 1) {
        PlanBuffer* out = rank_buffers_add(list, BUFFER_OUT, k, m, bytes->out_bytes, f, f + 1);
        PlanBuffer* dout = rank_buffers_add(list, BUFFER_DOUT, k, m, bytes->out_bytes, b, last + 1);
        use_buffer(list, out, k, INSTR_SEND_ACT);
        use_buffer(list, dout, k, INSTR_RECV_GRAD);
    } else if (list->shares_head) {
        add_head_buffers(list, m);
    }
    if (is_first_piece(list, m)) {
        int32_t end = m;
        while (end + 1 < M && pipe_piece_before(list->input->problem, end + 1) == end) { end++; }
        int32_t begun = places_at(list, k, end)->job[JOB_B];
        rank_buffers_add(list, BUFFER_KEPT, k, m, bytes->kept_bytes, f, b + 1);
        rank_buffers_add(list, BUFFER_DKEPT, k, m, bytes->kept_grad_bytes, begun, b + 1);
    }
    if (r >= 0) { rank_buffers_add(list, BUFFER_FORWARD, k, m, bytes->forward_bytes, f, f + 1); }
    rank_buffers_add(list, BUFFER_ACTS, k, m, bytes->acts_bytes, r >= 0 ? r : f, last + 1);
}

// One on the last chunk's rank reads and writes that chunk's buffers.
static void add_share_buffers(RankBuffers* list, int32_t row, int32_t m) {
    const RankBytes* bytes = bytes_of(list, row, m);
    const int32_t* job = places_at(list, row, m)->job;
    int32_t f = job[JOB_F], w = job[JOB_W];
    rank_buffers_add(list, BUFFER_ACTS, row, m, bytes->acts_bytes, f, w + 1);
    if (list->has_last) { return; }
    PlanBuffer* in = rank_buffers_add(list, BUFFER_IN, row, m, bytes->in_bytes, f, w + 1);
    PlanBuffer* din = rank_buffers_add(list, BUFFER_DIN, row, m, bytes->part_bytes, f, f + 1);
    use_buffer(list, in, row, INSTR_RECV_ACT);
    use_buffer(list, din, row, INSTR_SEND_GRAD);
    if (!list->by_vocabulary) { return; }
    PlanBuffer* fact = rank_buffers_add(list, BUFFER_FACT, row, m, bytes->factor_bytes, w, w + 1);
    use_buffer(list, fact, row, INSTR_RECV_FACT);
}

// All buffers of all microbatches again, except scratch. num_buffers, buffer_of_op.
static void rank_buffers_fill(RankBuffers* list) {
    list->num_buffers = 0;
    for (int32_t row = 0; row < pipe_num_rows(list->input->problem); row++) {
        if (!is_here(list, row)) { continue; }
        for (int32_t m = 0; m < list->input->problem->M; m++) {
            if (row < list->K) {
                add_chunk_buffers(list, row, m);
            } else {
                add_share_buffers(list, row, m);
            }
        }
    }
}

// Which rows are of this rank, and how many buffers they have at most.
static Status find_rows(RankBuffers* list, int64_t* num_buffers, Arena* scratch) {
    const PipeProblem* problem = list->input->problem;
    int32_t K = list->K, P = problem->P, num_rows = K + (list->shares_head ? 2 * P : 0);
    ARENA_TRY_NEW(list->slot_of, scratch, int32_t, num_rows);
    *num_buffers = 1;
    for (int32_t row = 0; row < num_rows; row++) {
        bool is_end = row >= K + P;
        bool is_mine = is_end ? list->has_last && has_share(list, row - K - P) : is_here(list, row);
        list->slot_of[row] = is_mine ? list->num_slots++ : -1;
        *num_buffers += is_mine ? (int64_t)(is_end ? 2 : 8) * problem->M : 0;
    }
    return STATUS_OK;
}

// What the rank has of the problem; room for all buffers. `arena` holds these, `scratch` the rest.
static Status rank_buffers_init(RankBuffers* list, Arena* arena, Arena* scratch) {
    int64_t num_buffers = 0;
    TRY(find_rows(list, &num_buffers, scratch));
    ARENA_TRY_NEW(list->places, scratch, RankPlaces, (int64_t)list->num_slots * list->input->problem->M);
    ARENA_TRY_NEW(list->buffers, arena, PlanBuffer, num_buffers);
    ARENA_TRY_NEW(list->buffer_of_op, scratch, int32_t, list->num_ops);
    ARENA_TRY_NEW(list->receive_ns, scratch, int64_t, list->num_jobs + 1);
    ARENA_TRY_NEW(list->wait_pos, scratch, int32_t, list->num_ops);
    ARENA_TRY_NEW(list->ops, scratch, CommOp, list->num_ops);
    find_places(list);
    return STATUS_OK;
}

// --- lifetimes and waits -------------------------------------------------------------------------------

// Delays of other ranks (or leads of this one) that shall not make it wait, tried from the longest on, as
// fractions of the makespan; the arena may grow by a fraction of its own for that.
static const int32_t slack_parts[] = {1, 4, 16, 64};
enum { NUM_SLACKS = sizeof slack_parts / sizeof slack_parts[0], NO_SLACK = -1, GROWTH_PARTS = 16 };

// The first job of a stage that begins no earlier (by_begin), or ends no earlier; num_jobs: none.
static int32_t first_job_from(const PipeSpan* spans, int32_t num_jobs, int64_t time_ns, bool by_begin) {
    int32_t low = 0, high = num_jobs;
    while (low < high) {
        int32_t middle = (low + high) / 2;
        if ((by_begin ? spans[middle].begin_ns : spans[middle].end_ns) >= time_ns) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

// When a message has certainly left its buffer: as predicted (NO_SLACK), or where it was ready only after its
// receiver had begun the next job, and everything is late by slack_ns in addition.
static int64_t free_at_ns(const RankBuffers* list, const CommOp* op, int64_t slack_ns) {
    if (slack_ns == NO_SLACK) { return op->end_ns; }
    const PipeSpan* spans = list->timeline->job[op->peer];
    int32_t num_jobs = list->input->schedule->num_jobs[op->peer];
    int32_t running = first_job_from(spans, num_jobs, op->end_ns, false);
    return (running < num_jobs ? spans[running].end_ns : op->end_ns) + slack_ns;
}

// After the send in the sequence, and no earlier than the first job that begins when its buffer is free; not
// before a receive that may need that memory.
static int32_t wait_pos(const RankBuffers* list, const CommOp* op, int64_t slack_ns, int32_t last_receive) {
    int32_t pos = first_job_from(list->spans, list->num_jobs, free_at_ns(list, op, slack_ns), true);
    int32_t first = last_receive < op->pos ? op->pos : op->pos + 1;
    pos = pos > first ? pos : first;
    pos = pos > op->behind ? pos : op->behind;
    while (pos < list->num_jobs && list->receive_ns[pos] < op->end_ns) { pos++; }
    return pos < list->num_jobs ? pos : list->num_jobs + 1;
}

// With slack receives are posted earlier by as much, but never before another transfer.
static void set_receives(RankBuffers* list, int64_t slack_ns) {
    for (int32_t pos = 0; pos <= list->num_jobs; pos++) { list->receive_ns[pos] = INT64_MAX; }
    for (int32_t i = 0; i < list->num_ops; i++) {
        CommOp* op = &list->ops[i];
        *op = list->order->ops[list->s][i];
        if (plan_instr_is_send(op->kind)) { continue; }
        if (slack_ns != NO_SLACK && !list->is_late) {
            int32_t pos = first_job_from(list->spans, list->num_jobs, op->begin_ns - slack_ns + 1, false);
            int32_t after = i > 0 ? list->ops[i - 1].pos : 0;
            pos = pos > after ? pos : after;
            op->pos = pos < op->pos ? pos : op->pos;
        }
        if (op->begin_ns < list->receive_ns[op->pos]) { list->receive_ns[op->pos] = op->begin_ns; }
    }
}

// The positions of transfers, and how long sent data is kept.
static void set_transfers(RankBuffers* list, int64_t slack_ns) {
    int32_t last_receive = -1;
    set_receives(list, slack_ns);
    for (int32_t i = 0; i < list->num_ops; i++) {
        const CommOp* op = &list->ops[i];
        bool is_send = plan_instr_is_send(op->kind);
        list->wait_pos[i] = is_send ? wait_pos(list, op, slack_ns, last_receive) : -1;
        if (!is_send) { last_receive = op->pos; }
    }
}

static bool share_memory(const PlanBuffer* a, const PlanBuffer* b) {
    return a->num_bytes > 0 && b->num_bytes > 0 && a->offset_bytes < b->offset_bytes + b->num_bytes &&
           b->offset_bytes < a->offset_bytes + a->num_bytes;
}

// Buffers in the order of their ends (or begins): those of instant t are buffers[begin[t] .. begin[t + 1]).
typedef struct {
    int32_t* begin;    // [num_jobs + 3]: instants 0 .. num_jobs + 1
    int32_t* buffers;  // [num_buffers]
} Times;

static Status times_init(Times* times, const RankBuffers* list, Arena* arena) {
    ARENA_TRY_NEW(times->begin, arena, int32_t, list->num_jobs + 4);
    ARENA_TRY_NEW(times->buffers, arena, int32_t, list->num_buffers);
    return STATUS_OK;
}

static void times_sort(Times* times, const RankBuffers* list, bool by_end) {
    int32_t num_instants = list->num_jobs + 2, *fill = times->begin + 1;
    for (int32_t t = 0; t < num_instants + 2; t++) { times->begin[t] = 0; }
    for (int32_t i = 0; i < list->num_buffers; i++) {
        const PlanBuffer* buffer = &list->buffers[i];
        fill[1 + (by_end ? buffer->instr_end : buffer->instr_begin)]++;
    }
    for (int32_t t = 1; t < num_instants; t++) { fill[t + 1] += fill[t]; }
    for (int32_t i = 0; i < list->num_buffers; i++) {  // fill[t] ends up where t + 1 begins
        const PlanBuffer* buffer = &list->buffers[i];
        times->buffers[fill[by_end ? buffer->instr_end : buffer->instr_begin]++] = i;
    }
}

// Steps 3 and 4: memory that is free between two buffers of one place is used first for the later one's
// receive, then for the earlier one's wait. The previous user of the memory is found by a search backwards in
// time (forwards for the wait), which ends soon where memory is reused soon.
static int32_t latest_end(const RankBuffers* list, const Times* ends, const PlanBuffer* buffer, int32_t pos) {
    for (int32_t i = ends->begin[pos + 1] - 1; i >= 0; i--) {
        const PlanBuffer* other = &list->buffers[ends->buffers[i]];
        if (other != buffer && share_memory(other, buffer)) { return other->instr_end; }
    }
    return 0;
}

static int32_t earliest_begin(const RankBuffers* list, const Times* begins, const PlanBuffer* buffer,
                              int32_t pos) {
    for (int32_t i = begins->begin[pos]; i < list->num_buffers; i++) {
        const PlanBuffer* other = &list->buffers[begins->buffers[i]];
        if (other != buffer && share_memory(other, buffer)) { return other->instr_begin; }
    }
    return list->num_jobs + 1;
}

static Status stretch(RankBuffers* list, Arena* arena) {
    Times times;
    int32_t pos = 0;
    TRY(times_init(&times, list, arena));
    times_sort(&times, list, true);
    for (int32_t i = 0; i < list->num_ops; i++) {
        CommOp* op = &list->ops[i];
        PlanBuffer* buffer = &list->buffers[list->buffer_of_op[i]];
        int32_t earliest = plan_instr_is_send(op->kind) ? buffer->instr_begin + 1
                           : list->is_late              ? op->pos
                                                        : latest_end(list, &times, buffer, op->pos);
        pos = pos > earliest ? pos : earliest;
        op->pos = pos;
        if (!plan_instr_is_send(op->kind) && pos < buffer->instr_begin) { buffer->instr_begin = pos; }
    }
    times_sort(&times, list, false);
    for (int32_t i = 0; i < list->num_ops; i++) {
        if (list->wait_pos[i] < 0) { continue; }
        PlanBuffer* buffer = &list->buffers[list->buffer_of_op[i]];
        list->wait_pos[i] = buffer->instr_end = earliest_begin(list, &times, buffer, buffer->instr_end);
    }
    return STATUS_OK;
}

// --- writing the list ------------------------------------------------------------------------------------

typedef struct {
    PlanRank* rank;
    int32_t* index_of_job;   // [num_jobs]
    int32_t* index_of_op;    // [num_ops]
    int32_t* index_of_wait;  // [num_ops]; -1: not yet
    int32_t* first_wait;     // [num_jobs + 2] first op that is waited for before this job, -1: none
    int32_t* next_wait;      // [num_ops] the next one at the same place
} Writer;

static int32_t add_instr(Writer* writer, PlanInstr instr) {
    writer->rank->instrs[writer->rank->num_instrs] = instr;
    return writer->rank->num_instrs++;
}

static void find_waits(Writer* writer, const RankBuffers* list) {
    for (int32_t pos = 0; pos < list->num_jobs + 2; pos++) { writer->first_wait[pos] = -1; }
    for (int32_t i = list->num_ops - 1; i >= 0; i--) {
        int32_t pos = list->wait_pos[i];
        if (pos < 0) { continue; }
        writer->index_of_wait[i] = -1;
        writer->next_wait[i] = writer->first_wait[pos];
        writer->first_wait[pos] = i;
    }
}

// Waits before job `pos` for sends already written: ops[0 .. num_ops). buffer: those whose memory it takes;
// NULL: all.
static void write_waits(Writer* writer, const RankBuffers* list, int32_t pos, int32_t num_ops,
                        const PlanBuffer* buffer) {
    for (int32_t i = writer->first_wait[pos]; i >= 0 && i < num_ops; i = writer->next_wait[i]) {
        const CommOp* op = &list->ops[i];
        bool is_needed = buffer == NULL || share_memory(buffer, &list->buffers[list->buffer_of_op[i]]);
        if (writer->index_of_wait[i] >= 0 || !is_needed) { continue; }
        InstrKind kind = plan_wait_kind(plan_instr_message(op->kind));
        writer->index_of_wait[i] = add_instr(writer, (PlanInstr){
                                                         .kind = (uint8_t)kind,
                                                         .chunk = op->chunk,
                                                         .mb = list->input->first_mb + op->mb,
                                                         .peer = list->input->first_rank + op->peer,
                                                         .begin_ns = op->end_ns,
                                                         .end_ns = op->end_ns,
                                                     });
    }
}

static void write_instrs(Writer* writer, const RankBuffers* list) {
    int32_t next_op = 0;
    for (int32_t pos = 0; pos <= list->num_jobs + 1; pos++) {
        for (; next_op < list->num_ops && list->ops[next_op].pos == pos; next_op++) {
            const CommOp* op = &list->ops[next_op];
            if (!plan_instr_is_send(op->kind)) {
                write_waits(writer, list, pos, next_op, &list->buffers[list->buffer_of_op[next_op]]);
            }
            writer->index_of_op[next_op] = add_instr(writer, (PlanInstr){
                                                                 .kind = op->kind,
                                                                 .chunk = op->chunk,
                                                                 .mb = list->input->first_mb + op->mb,
                                                                 .peer = list->input->first_rank + op->peer,
                                                                 .begin_ns = op->begin_ns,
                                                                 .end_ns = op->end_ns,
                                                             });
        }
        write_waits(writer, list, pos, next_op, NULL);
        if (pos >= list->num_jobs) { continue; }
        writer->index_of_job[pos] =
            add_instr(writer, (PlanInstr){
                                  .kind = (uint8_t)plan_job_instr(list->jobs[pos].kind),
                                  .chunk = list->jobs[pos].chunk,
                                  .mb = list->input->first_mb + list->jobs[pos].mb,
                                  .peer = -1,
                                  .begin_ns = list->spans[pos].begin_ns,
                                  .end_ns = list->spans[pos].end_ns,
                              });
    }
}

// Lifetimes from jobs to instructions: from the first receive into it, until the last wait for it.
static void write_buffers(const Writer* writer, const RankBuffers* list) {
    for (int32_t i = 0; i < list->num_buffers; i++) {
        PlanBuffer* buffer = &list->buffers[i];
        if (buffer->kind == BUFFER_SCRATCH) {
            buffer->instr_begin = 0;
            buffer->instr_end = writer->rank->num_instrs;
            continue;
        }
        buffer->instr_begin = writer->index_of_job[buffer->instr_begin];
        buffer->instr_end =
            buffer->instr_end <= list->num_jobs ? writer->index_of_job[buffer->instr_end - 1] + 1 : 0;
        buffer->mb += list->input->first_mb;
    }
    for (int32_t i = 0; i < list->num_ops; i++) {
        PlanBuffer* buffer = &list->buffers[list->buffer_of_op[i]];
        if (list->wait_pos[i] >= 0) {
            int32_t end = writer->index_of_wait[i] + 1;
            buffer->instr_end = end > buffer->instr_end ? end : buffer->instr_end;
        } else if (writer->index_of_op[i] < buffer->instr_begin) {
            buffer->instr_begin = writer->index_of_op[i];
        }
    }
}

// Lifetimes, and how many bytes are alive at most.
static Status set_buffers(RankBuffers* list, int64_t slack_ns, int64_t* bound_bytes, Arena* scratch) {
    set_transfers(list, slack_ns);
    rank_buffers_fill(list);
    if (list->num_jobs > 0) {
        rank_buffers_add(list, BUFFER_SCRATCH, -1, -1, list->input->scratch_bytes[list->s], 0,
                         list->num_jobs + 1);
    }
    return memory_layout_bound(list->buffers, list->num_buffers, bound_bytes, scratch);
}

// The longest slack that memory allows; none where it allows none.
static Status lay_out(RankBuffers* list, int64_t* arena_bytes, Arena* scratch) {
    int64_t bound_bytes = 0, tight_bytes = 0, enough_bytes = list->input->enough_bytes[list->s];
    TRY(set_buffers(list, NO_SLACK, &bound_bytes, scratch));
    TRY(memory_layout_place(list->buffers, list->num_buffers, enough_bytes, &tight_bytes, scratch));
    *arena_bytes = tight_bytes;
    if (!list->input->with_slack || tight_bytes > enough_bytes) { return STATUS_OK; }
    int64_t most_bytes = tight_bytes + tight_bytes / GROWTH_PARTS;
    if (most_bytes > enough_bytes) { most_bytes = enough_bytes; }
    for (int32_t i = 0; i < NUM_SLACKS; i++) {
        int64_t slack_ns = list->timeline->makespan_ns / slack_parts[i];
        TRY(set_buffers(list, slack_ns, &bound_bytes, scratch));
        if (bound_bytes > most_bytes) { continue; }
        TRY(memory_layout_place(list->buffers, list->num_buffers, INT64_MAX, arena_bytes, scratch));
        if (*arena_bytes <= most_bytes) { return STATUS_OK; }
    }
    TRY(set_buffers(list, NO_SLACK, &bound_bytes, scratch));
    return memory_layout_place(list->buffers, list->num_buffers, enough_bytes, arena_bytes, scratch);
}

// Fills instrs, buffers and arena_bytes.
static Status rank_list_make(PlanRank* out, RankBuffers list, Arena* arena, Arena* scratch) {
    const PipeProblem* problem = list.input->problem;
    list.num_jobs = list.input->schedule->num_jobs[list.s];
    list.num_ops = list.order->num_ops[list.s];
    list.K = pipe_num_chunks(problem);
    list.shares_head = pipe_shares_head(problem);
    list.by_vocabulary = list.shares_head && problem->placement->head == HEAD_BY_VOCABULARY;
    list.has_last = pipe_stage_of(problem, list.K - 1) == list.s;
    list.jobs = list.input->schedule->jobs[list.s];
    list.spans = list.timeline->job[list.s];
    PlanRank rank = {0};
    TRY(rank_buffers_init(&list, arena, scratch));
    TRY(lay_out(&list, &rank.arena_bytes, scratch));
    TRY(stretch(&list, scratch));
    Writer writer = {.rank = &rank};
    ARENA_TRY_NEW(rank.instrs, arena, PlanInstr, list.num_jobs + 2 * (int64_t)list.num_ops);
    ARENA_TRY_NEW(writer.index_of_job, scratch, int32_t, list.num_jobs);
    ARENA_TRY_NEW(writer.index_of_op, scratch, int32_t, list.num_ops);
    ARENA_TRY_NEW(writer.index_of_wait, scratch, int32_t, list.num_ops);
    ARENA_TRY_NEW(writer.first_wait, scratch, int32_t, list.num_jobs + 2);
    ARENA_TRY_NEW(writer.next_wait, scratch, int32_t, list.num_ops);
    find_waits(&writer, &list);
    write_instrs(&writer, &list);
    write_buffers(&writer, &list);
    rank.buffers = list.buffers;
    rank.num_buffers = list.num_buffers;
    rank.state_bytes = out->state_bytes;
    *out = rank;
    return STATUS_OK;
}

// --- a replica's lists -------------------------------------------------------------------------------

// A rank that does not fit takes the next smaller jobs_ahead. Its senders then hold their messages longer and
// may exceed their limits in turn.
static const int32_t jobs_ahead[] = {INT32_MAX, 3, 1, 0};
enum { NUM_LEVELS = sizeof jobs_ahead / sizeof jobs_ahead[0], MAX_ROUNDS = 8 };

// False: no rank over its limit can post later.
static bool next_levels(int32_t levels[PLAN_MAX_STAGES], const PlanRank* ranks,
                        const ReplicaListsInput* input) {
    bool any = false;
    for (int32_t s = 0; s < input->problem->P; s++) {
        if (ranks[s].arena_bytes <= input->enough_bytes[s] || levels[s] == NUM_LEVELS - 1) { continue; }
        levels[s]++;
        any = true;
    }
    return any;
}

static Status make_lists(PlanRank* ranks, const ReplicaListsInput* input, const PipeTimeline* timeline,
                         const CommOrder* order, const int32_t* levels, Arena* arena) {
    Status status = STATUS_OK;
    for (int32_t s = 0; s < input->problem->P && status == STATUS_OK; s++) {
        Arena scratch = {0};  // otherwise every rank's temporaries would stay with the plan
        RankBuffers list = {
            .input = input, .timeline = timeline, .order = order, .is_late = levels[s] > 0, .s = s};
        status = rank_list_make(&ranks[s], list, arena, &scratch);
        arena_free(&scratch);
    }
    return status;
}

static Status lists_make_in(PlanRank* ranks, PipeTimeline* timeline, const ReplicaListsInput* input,
                            Arena* arena, Arena* scratch) {
    CommOrder order;
    PipeTimeline late;
    int32_t levels[PLAN_MAX_STAGES] = {0}, ahead[PLAN_MAX_STAGES];
    TRY(comm_order_make(&order, input->problem, input->schedule, timeline, scratch));
    TRY(make_lists(ranks, input, timeline, &order, levels, arena));
    bool is_late = false;
    for (int32_t round = 0; round < MAX_ROUNDS && next_levels(levels, ranks, input); round++) {
        is_late = true;
        for (int32_t s = 0; s < input->problem->P; s++) { ahead[s] = jobs_ahead[levels[s]]; }
        TRY(comm_order_make_late(&order, &late, input->problem, input->schedule, timeline, ahead, arena));
        TRY(make_lists(ranks, input, &late, &order, levels, arena));
    }
    if (is_late) { *timeline = late; }
    return STATUS_OK;
}

Status replica_lists_make(PlanRank* ranks, PipeTimeline* timeline, const ReplicaListsInput* input,
                          Arena* arena) {
    Arena scratch = {0};  // otherwise the order would stay with the plan
    Status status = lists_make_in(ranks, timeline, input, arena, &scratch);
    arena_free(&scratch);
    return status;
}

int64_t replica_lists_makespan(const PlanRank* ranks, const PipeProblem* problem,
                               const PipeSchedule* schedule, const PipeTimeline* simulated) {
    int64_t makespan_ns = simulated->makespan_ns;
    for (int32_t s = 0; s < problem->P; s++) {
        int64_t work_ns = 0, end_ns = 0;
        for (int32_t i = 0; i < schedule->num_jobs[s]; i++) {
            work_ns += simulated->job[s][i].end_ns - simulated->job[s][i].begin_ns;
        }
        for (int32_t i = 0; i < ranks[s].num_instrs; i++) {
            const PlanInstr* instr = &ranks[s].instrs[i];
            if (instr->kind > INSTR_REC) { continue; }
            work_ns -= instr->end_ns - instr->begin_ns;
            end_ns = instr->end_ns;
        }
        if (work_ns != 0) { return simulated->makespan_ns; }
        end_ns += problem->tail_ns[s];
        makespan_ns = end_ns > makespan_ns ? end_ns : makespan_ns;
    }
    return makespan_ns;
}
