#include "rank_list.h"

#include "../pipe/pipe_schedule.h"
#include "memory_layout.h"
#include "plan_message.h"
#include "rank_buffers.h"

// Times by which others may be late (or this rank ahead) without making it wait, tried from the longest on,
// as parts of the makespan; the arena may grow by a part of its own for that.
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

// When a message has surely left its buffer: as predicted (NO_SLACK), or where it was ready only after its
// receiver had turned to the next job, and everything is late by slack_ns besides.
static int64_t free_at_ns(const RankBuffers* list, const CommOp* op, int64_t slack_ns) {
    if (slack_ns == NO_SLACK) { return op->end_ns; }
    const RankListInput* input = list->input;
    const PipeSpan* spans = input->timeline->job[op->peer];
    int32_t num_jobs = input->schedule->num_jobs[op->peer];
    int32_t running = first_job_from(spans, num_jobs, op->end_ns, false);
    return (running < num_jobs ? spans[running].end_ns : op->end_ns) + slack_ns;
}

// Behind the send, in the sequence too, and no earlier than the first job that begins when its buffer is
// free; nor where a receive stands that may be for that memory: before the send, or beginning earlier.
static int32_t wait_pos(const RankBuffers* list, const CommOp* op, int64_t slack_ns, int32_t last_receive) {
    int32_t pos = first_job_from(list->spans, list->num_jobs, free_at_ns(list, op, slack_ns), true);
    int32_t first = last_receive < op->pos ? op->pos : op->pos + 1;
    pos = pos > first ? pos : first;
    pos = pos > op->behind ? pos : op->behind;
    while (pos < list->num_jobs && list->receive_ns[pos] < op->end_ns) { pos++; }
    return pos < list->num_jobs ? pos : list->num_jobs + 1;
}

// With slack receives are posted as much earlier, but never before another transfer.
static void set_receives(RankBuffers* list, int64_t slack_ns) {
    for (int32_t pos = 0; pos <= list->num_jobs; pos++) { list->receive_ns[pos] = INT64_MAX; }
    for (int32_t i = 0; i < list->num_ops; i++) {
        CommOp* op = &list->ops[i];
        *op = list->input->order->ops[list->s][i];
        if (plan_instr_is_send(op->kind)) { continue; }
        if (slack_ns != NO_SLACK && !list->input->is_late) {
            int32_t pos = first_job_from(list->spans, list->num_jobs, op->begin_ns - slack_ns + 1, false);
            int32_t after = i > 0 ? list->ops[i - 1].pos : 0;
            pos = pos > after ? pos : after;
            op->pos = pos < op->pos ? pos : op->pos;
        }
        if (op->begin_ns < list->receive_ns[op->pos]) { list->receive_ns[op->pos] = op->begin_ns; }
    }
}

// Where transfers stand and how long what was sent is kept.
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
    for (int32_t i = 0; i < list->num_buffers; i++) {  // fill[t] moves on to where t + 1 begins
        const PlanBuffer* buffer = &list->buffers[i];
        times->buffers[fill[by_end ? buffer->instr_end : buffer->instr_begin]++] = i;
    }
}

// Steps 3 and 4: use the memory between two buffers of one place, first for the later one's receive, then for
// the earlier one's wait. Whoever had the memory last is found by going back in time from there (forth for
// the wait), which ends soon where memory is used again soon.
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
                           : list->input->is_late       ? op->pos
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
    int32_t* next_wait;      // [num_ops] the next one of the same place
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

// Waits before job `pos` for sends that are written: ops[0 .. num_ops). buffer: those whose memory it takes;
// NULL: all.
static void write_waits(Writer* writer, const RankBuffers* list, int32_t pos, int32_t num_ops,
                        const PlanBuffer* buffer) {
    for (int32_t i = writer->first_wait[pos]; i >= 0 && i < num_ops; i = writer->next_wait[i]) {
        const CommOp* op = &list->ops[i];
        bool is_needed = buffer == NULL || share_memory(buffer, &list->buffers[list->buffer_of_op[i]]);
        if (writer->index_of_wait[i] >= 0 || !is_needed) { continue; }
        InstrKind kind = op->kind == INSTR_SEND_ACT    ? INSTR_WAIT_ACT
                         : op->kind == INSTR_SEND_GRAD ? INSTR_WAIT_GRAD
                                                       : INSTR_WAIT_FACT;
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
static Status set_buffers(RankBuffers* list, int64_t scratch_bytes, int64_t slack_ns, int64_t* bound_bytes,
                          Arena* scratch) {
    set_transfers(list, slack_ns);
    rank_buffers_fill(list);
    if (list->num_jobs > 0) {
        rank_buffers_add(list, BUFFER_SCRATCH, -1, -1, scratch_bytes, 0, list->num_jobs + 1);
    }
    return memory_layout_bound(list->buffers, list->num_buffers, bound_bytes, scratch);
}

// The longest slack that memory allows; none where it allows none.
static Status lay_out(RankBuffers* list, int64_t scratch_bytes, int64_t enough_bytes, int64_t* arena_bytes,
                      Arena* scratch) {
    int64_t bound_bytes = 0, tight_bytes = 0;
    TRY(set_buffers(list, scratch_bytes, NO_SLACK, &bound_bytes, scratch));
    TRY(memory_layout_place(list->buffers, list->num_buffers, enough_bytes, &tight_bytes, scratch));
    *arena_bytes = tight_bytes;
    if (!list->input->with_slack || tight_bytes > enough_bytes) { return STATUS_OK; }
    int64_t most_bytes = tight_bytes + tight_bytes / GROWTH_PARTS;
    if (most_bytes > enough_bytes) { most_bytes = enough_bytes; }
    for (int32_t i = 0; i < NUM_SLACKS; i++) {
        int64_t slack_ns = list->input->timeline->makespan_ns / slack_parts[i];
        TRY(set_buffers(list, scratch_bytes, slack_ns, &bound_bytes, scratch));
        if (bound_bytes > most_bytes) { continue; }
        TRY(memory_layout_place(list->buffers, list->num_buffers, INT64_MAX, arena_bytes, scratch));
        if (*arena_bytes <= most_bytes) { return STATUS_OK; }
    }
    TRY(set_buffers(list, scratch_bytes, NO_SLACK, &bound_bytes, scratch));
    return memory_layout_place(list->buffers, list->num_buffers, enough_bytes, arena_bytes, scratch);
}

static Status make(PlanRank* out, const RankListInput* input, int32_t s, int64_t scratch_bytes,
                   int64_t enough_bytes, Arena* arena, Arena* scratch) {
    const PipeProblem* problem = input->problem;
    int32_t K = pipe_num_chunks(problem);
    RankBuffers list = {
        .input = input,
        .s = s,
        .K = K,
        .shares_head = pipe_shares_head(problem),
        .by_vocabulary = pipe_shares_head(problem) && problem->placement->head == HEAD_BY_VOCABULARY,
        .has_last = pipe_stage_of(problem, K - 1) == s,
        .num_jobs = input->schedule->num_jobs[s],
        .num_ops = input->order->num_ops[s],
        .jobs = input->schedule->jobs[s],
        .spans = input->timeline->job[s],
    };
    PlanRank rank = {0};
    TRY(rank_buffers_init(&list, arena, scratch));
    TRY(lay_out(&list, scratch_bytes, enough_bytes, &rank.arena_bytes, scratch));
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

Status rank_list_make(PlanRank* out, const RankListInput* input, int32_t s, int64_t scratch_bytes,
                      int64_t enough_bytes, Arena* arena) {
    Arena scratch = {0};  // else every rank's temporaries would stay with the plan
    Status status = make(out, input, s, scratch_bytes, enough_bytes, arena, &scratch);
    arena_free(&scratch);
    return status;
}
