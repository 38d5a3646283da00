#include "rank_buffers.h"

#include "../pipe/pipe_schedule.h"
#include "plan_message.h"

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

// The row is a chunk or share of this rank.
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
    const CommOp* ops = list->input->order->ops[list->s];
    for (int32_t i = 0; i < list->num_ops; i++) {
        places_at(list, place_of_op(list, &ops[i]), ops[i].mb)->op[ops[i].kind] = i;
    }
}

PlanBuffer* rank_buffers_add(RankBuffers* list, BufferKind kind, int32_t chunk, int32_t m, int64_t num_bytes,
                             int32_t begin, int32_t end) {
    PlanBuffer* buffer = &list->buffers[list->num_buffers++];
    *buffer = (PlanBuffer){.kind = (uint8_t)kind,
                           .chunk = (int16_t)chunk,
                           .mb = m,
                           .num_bytes = num_bytes,
                           .instr_begin = begin,
                           .instr_end = end};
    return buffer;
}

// This transfer fills (empties) the buffer, which lives as much longer.
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

// What passes between the last chunk and the shares of the head, at the last chunk's end.
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

static void add_chunk_buffers(RankBuffers* list, int32_t k, int32_t m) {
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

void rank_buffers_fill(RankBuffers* list) {
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
        *num_buffers += is_mine ? (int64_t)(is_end ? 2 : 6) * problem->M : 0;
    }
    return STATUS_OK;
}

Status rank_buffers_init(RankBuffers* list, Arena* arena, Arena* scratch) {
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
