// executor_check.c -- a rank's list against its models, before anything is sent.
#include <stdint.h>
#include <stdio.h>

#include "executor_parts.h"

#define X(name, text) text,
static const char* const buffer_text[] = {BUFFER_LIST(X)};
#undef X

static TransferName name_of(const PlanInstr* instr) {
    return (TransferName){instr->kind, instr->chunk, instr->mb};
}

Status executor_fail(const Executor* ex, const PlanInstr* instr, const char* why) {
    return FAIL(STATUS_INVALID_PLAN, "rank %d: %s: %s", (int)ex->rank,
                TRANSFER_WORDS(&ex->transfers, name_of(instr)), why);
}

// --- buffers ---------------------------------------------------------------------------------------------
static int32_t row_of_buffer(const Executor* ex, const PlanBuffer* b) {
    bool is_row = b->chunk >= 0 && b->chunk < ex->placement->num_chunks + ex->num_stages;
    return is_row ? ex->idx_of[b->chunk] : -1;
}

static Status place_buffer(Executor* ex, const PlanRank* rank, int32_t i, int32_t M) {
    const PlanBuffer* b = &rank->buffers[i];
    bool is_scratch = b->kind == BUFFER_SCRATCH;
    int32_t idx = is_scratch ? -1 : row_of_buffer(ex, b);
    if (b->kind >= BUFFER_COUNT || (!is_scratch && (b->mb < 0 || b->mb >= M || idx < 0)) ||
        b->offset_bytes < 0 || b->num_bytes < 0 || b->offset_bytes > rank->arena_bytes - b->num_bytes ||
        b->offset_bytes % PLAN_BUFFER_ALIGN != 0) {
        return FAIL(STATUS_INVALID_PLAN,
                    "rank %d: buffer %d (kind %d, chunk %d, mb %d) lies outside the arena, or its chunk is "
                    "elsewhere",
                    (int)ex->rank, (int)i, (int)b->kind, (int)b->chunk, (int)b->mb);
    }
    unsigned char* place = (unsigned char*)ex->step->arena + b->offset_bytes;
    if (is_scratch) {
        ex->scratch = place;
        for (int32_t k = 0; k < M * ex->num_rows; k++) {
            ex->states[k].buffer_bytes[BUFFER_SCRATCH] = b->num_bytes;
        }
        return STATUS_OK;
    }
    RowState* state = executor_state(ex, idx, b->mb);
    if (state->buffer[b->kind] != NULL) {
        return FAIL(STATUS_INVALID_PLAN, "rank %d: two buffers %s of mb %d chunk %d", (int)ex->rank,
                    buffer_text[b->kind], (int)b->mb, (int)b->chunk);
    }
    state->buffer[b->kind] = place;
    state->buffer_bytes[b->kind] = b->num_bytes;
    return STATUS_OK;
}

static Status place_buffers(Executor* ex, const PlanRank* rank, int32_t M) {
    const ExecutorStep* step = ex->step;
    ex->scratch = NULL;
    if (rank->arena_bytes > step->arena_bytes || (uintptr_t)step->arena % PLAN_BUFFER_ALIGN != 0) {
        return FAIL(
            STATUS_INVALID_PLAN,
            "rank %d: the plan lays out %lld bytes, the arena has %lld at %p (needs a multiple of %d)",
            (int)ex->rank, (long long)rank->arena_bytes, (long long)step->arena_bytes, step->arena,
            (int)PLAN_BUFFER_ALIGN);
    }
    for (int32_t i = 0; i < rank->num_buffers; i++) { TRY(place_buffer(ex, rank, i, M)); }
    return STATUS_OK;
}

static Status need_buffer(const Executor* ex, const PlanInstr* instr, int32_t idx, BufferKind kind,
                          int64_t num_bytes) {
    const RowState* state = executor_state(ex, idx, instr->mb);
    bool is_missing = kind == BUFFER_SCRATCH ? ex->scratch == NULL : state->buffer[kind] == NULL;
    if (num_bytes <= (is_missing ? 0 : state->buffer_bytes[kind])) { return STATUS_OK; }
    return FAIL(
        STATUS_INVALID_PLAN,
        "rank %d: %s needs %lld bytes of %s, the plan gives %lld ---> its bytes must come from counts as "
        "dynapipe.h says: see what dynapipe_check_model() finds",
        (int)ex->rank, TRANSFER_WORDS(&ex->transfers, name_of(instr)), (long long)num_bytes,
        buffer_text[kind], (long long)(is_missing ? 0 : state->buffer_bytes[kind]));
}

static Status need_in(const Executor* ex, const PlanInstr* instr, int32_t idx) {
    const Row* row = &ex->rows[idx];
    const RowState* state = executor_state(ex, idx, instr->mb);
    if (row->is_first) { return STATUS_OK; }
    if (!row->is_share || row->before < 0) { return need_buffer(ex, instr, idx, BUFFER_IN, state->in_bytes); }
    return need_buffer(ex, instr, row->before, BUFFER_OUT, state->part_at + state->in_bytes);
}

static Status need_out(const Executor* ex, const PlanInstr* instr, int32_t idx) {
    const Row* row = &ex->rows[idx];
    int64_t num_bytes = executor_state(ex, idx, instr->mb)->out_bytes;
    if (row->is_end || row->is_share) { return STATUS_OK; }
    if (row->behind >= 0) { return need_buffer(ex, instr, row->behind, BUFFER_IN, num_bytes); }
    return need_buffer(ex, instr, idx, BUFFER_OUT, num_bytes);
}

static Status need_din(const Executor* ex, const PlanInstr* instr, int32_t idx) {
    const Row* row = &ex->rows[idx];
    const RowState* state = executor_state(ex, idx, instr->mb);
    if (row->is_first) { return STATUS_OK; }
    int64_t num_bytes = row->is_share ? state->grad_bytes : state->in_bytes;
    if (row->before < 0) { return need_buffer(ex, instr, idx, BUFFER_DIN, num_bytes); }
    if (executor_by_vocabulary(ex, row)) { return need_buffer(ex, instr, idx, BUFFER_PART, num_bytes); }
    return need_buffer(ex, instr, row->before, BUFFER_DOUT, (row->is_share ? state->part_at : 0) + num_bytes);
}

static Status need_dout(const Executor* ex, const PlanInstr* instr, int32_t idx) {
    const Row* row = &ex->rows[idx];
    const RowState* state = executor_state(ex, idx, instr->mb);
    if (row->is_end || executor_by_rows(ex, row)) { return STATUS_OK; }
    if (row->is_share) { return need_buffer(ex, instr, idx, BUFFER_FACT, state->fact_bytes); }
    return need_buffer(ex, instr, idx, BUFFER_DOUT, state->out_bytes);
}

// A share by rows none of which are in this micro-batch runs nothing.
static Status need_for_forward(const Executor* ex, const PlanInstr* instr, int32_t idx) {
    const Row* row = &ex->rows[idx];
    const DynapipeBatch* batch = executor_batch(ex, idx, instr->mb);
    bool keeps = instr->kind == INSTR_REC || !executor_state(ex, idx, instr->mb)->has_rec;
    if (!row->is_share || batch->num_rows > 0) {
        TRY(need_buffer(ex, instr, idx, keeps ? BUFFER_ACTS : BUFFER_FORWARD,
                        row->api->acts_bytes(row->model, batch, keeps ? KEEP | HEAD : 0)));
        TRY(need_buffer(ex, instr, idx, BUFFER_SCRATCH, row->api->scratch_bytes(row->model, batch)));
    }
    TRY(need_in(ex, instr, idx));
    if (row->is_share) { return need_din(ex, instr, idx); }
    return instr->kind == INSTR_FWD ? need_out(ex, instr, idx) : STATUS_OK;
}

static Status need_for_backward(const Executor* ex, const PlanInstr* instr, int32_t idx) {
    TRY(need_din(ex, instr, idx));
    TRY(need_dout(ex, instr, idx));
    for (int32_t i = 0; ex->rows[idx].feeds && i < ex->num_rows; i++) {
        const RowState* state = executor_state(ex, i, instr->mb);
        if (!executor_by_vocabulary(ex, &ex->rows[i])) { continue; }
        TRY(need_buffer(ex, instr, i, BUFFER_PART, state->grad_bytes));
        TRY(need_buffer(ex, instr, i, BUFFER_FACT, state->fact_bytes));
    }
    return STATUS_OK;
}

// Every buffer the instruction touches is there and large enough for this model.
static Status check_buffers(const Executor* ex, const PlanInstr* instr, int32_t idx) {
    bool is_share = ex->rows[idx].is_share;
    switch (instr->kind) {
        case INSTR_FWD:
        case INSTR_REC: return need_for_forward(ex, instr, idx);
        case INSTR_BWD: return need_for_backward(ex, instr, idx);
        case INSTR_WGT:
        case INSTR_RECV_FACT:
        case INSTR_SEND_FACT:
        case INSTR_WAIT_FACT: return need_dout(ex, instr, idx);
        case INSTR_RECV_ACT: return need_in(ex, instr, idx);
        case INSTR_SEND_ACT:
        case INSTR_WAIT_ACT: return is_share ? need_in(ex, instr, idx) : need_out(ex, instr, idx);
        case INSTR_RECV_GRAD: return is_share ? need_din(ex, instr, idx) : need_dout(ex, instr, idx);
        default: return need_din(ex, instr, idx);
    }
}

// --- who and when ----------------------------------------------------------------------------------------
// What such an instruction has to do with that row.
static Status check_kind(const Executor* ex, const PlanInstr* instr, const Row* row) {
    bool is_here = row->is_share && row->before >= 0;  // between the last chunk and a share of one rank
    switch (instr->kind) {
        case INSTR_FWD: return row->is_mine ? STATUS_OK : executor_fail(ex, instr, "its chunk is elsewhere");
        case INSTR_REC:
        case INSTR_BWD:
            if (row->is_mine && !row->is_share) { return STATUS_OK; }
            return executor_fail(ex, instr, "a share of the head has fwd and wgt only");
        case INSTR_WGT: return row->is_mine ? STATUS_OK : executor_fail(ex, instr, "its chunk is elsewhere");
        case INSTR_RECV_ACT:
        case INSTR_SEND_GRAD:
        case INSTR_WAIT_GRAD:
            if (row->before_stage < 0) {
                return executor_fail(ex, instr, "the first chunk has nobody before it");
            }
            if (row->before < 0) { return STATUS_OK; }
            return executor_fail(ex, instr, "what goes into it is made on this rank");
        case INSTR_SEND_ACT:
        case INSTR_RECV_GRAD:
        case INSTR_WAIT_ACT:
            if (row->is_end) { return executor_fail(ex, instr, "the last chunk has nobody behind it"); }
            if (row->is_share ? !row->is_mine : row->behind < 0) { return STATUS_OK; }
            return executor_fail(ex, instr, "what it makes is taken on this rank");
        default:
            if (executor_by_vocabulary(ex, row) && row->is_mine == (instr->kind == INSTR_RECV_FACT) &&
                !(is_here && row->is_mine)) {
                return STATUS_OK;
            }
            return executor_fail(ex, instr,
                                 "factors go from the last chunk to shares by vocabulary elsewhere");
    }
}

static Status check_peer(const Executor* ex, const PlanInstr* instr, const Row* row) {
    if (instr->kind <= INSTR_REC) { return STATUS_OK; }
    bool is_behind = row->is_share ? !row->is_mine
                                   : instr->kind == INSTR_SEND_ACT || instr->kind == INSTR_WAIT_ACT ||
                                         instr->kind == INSTR_RECV_GRAD;
    int32_t stage = !is_behind ? row->before_stage : row->is_share ? row->stage : row->behind_stage;
    if (instr->peer == ex->first_rank + stage) { return STATUS_OK; }
    return executor_fail(ex, instr, "its peer is not the rank of the chunk at the other end");
}

static Status need_seen(const Executor* ex, const PlanInstr* instr, int32_t idx, InstrKind kind) {
    if (idx < 0 || executor_state(ex, idx, instr->mb)->seen & 1u << kind) { return STATUS_OK; }
    char why[96];
    TransferName before = {(int32_t)kind, ex->rows[idx].row, instr->mb};
    bool is_same = ex->rows[idx].row == instr->chunk;
    snprintf(why, sizeof why, "comes before %s",
             is_same ? trace_kind_text((int32_t)kind) : TRANSFER_WORDS(&ex->transfers, before));
    return executor_fail(ex, instr, why);
}

// All parts of the head's shares are there.
static Status need_parts(const Executor* ex, const PlanInstr* instr) {
    for (int32_t i = 0; i < ex->num_rows; i++) {
        if (!ex->rows[i].is_share) { continue; }
        TRY(need_seen(ex, instr, i, ex->rows[i].is_mine ? INSTR_FWD : INSTR_RECV_GRAD));
    }
    return STATUS_OK;
}

// What the instruction builds on came before it.
static Status check_before(const Executor* ex, const PlanInstr* instr, int32_t idx) {
    const Row* row = &ex->rows[idx];
    switch (instr->kind) {
        case INSTR_FWD:
            if (row->before >= 0) { return need_seen(ex, instr, row->before, INSTR_FWD); }
            return row->is_first ? STATUS_OK : need_seen(ex, instr, idx, INSTR_RECV_ACT);
        case INSTR_REC: return need_seen(ex, instr, idx, INSTR_FWD);
        case INSTR_BWD: {
            bool has_rec = executor_state(ex, idx, instr->mb)->has_rec;
            TRY(need_seen(ex, instr, idx, has_rec ? INSTR_REC : INSTR_FWD));
            if (row->feeds) { return need_parts(ex, instr); }
            if (row->behind >= 0) { return need_seen(ex, instr, row->behind, INSTR_BWD); }
            return row->is_end ? STATUS_OK : need_seen(ex, instr, idx, INSTR_RECV_GRAD);
        }
        case INSTR_WGT:
            if (!row->is_share) { return need_seen(ex, instr, idx, INSTR_BWD); }
            TRY(need_seen(ex, instr, idx, INSTR_FWD));
            if (!executor_by_vocabulary(ex, row)) { return STATUS_OK; }
            return row->before >= 0 ? need_seen(ex, instr, row->before, INSTR_BWD)
                                    : need_seen(ex, instr, idx, INSTR_RECV_FACT);
        case INSTR_SEND_ACT: return need_seen(ex, instr, row->is_share ? row->before : idx, INSTR_FWD);
        case INSTR_SEND_GRAD: return need_seen(ex, instr, idx, row->is_share ? INSTR_FWD : INSTR_BWD);
        case INSTR_SEND_FACT: return need_seen(ex, instr, row->before, INSTR_BWD);
        case INSTR_WAIT_ACT: return need_seen(ex, instr, idx, INSTR_SEND_ACT);
        case INSTR_WAIT_GRAD: return need_seen(ex, instr, idx, INSTR_SEND_GRAD);
        case INSTR_WAIT_FACT: return need_seen(ex, instr, idx, INSTR_SEND_FACT);
        default: return STATUS_OK;
    }
}

// Each instruction once per micro-batch and chunk, after what it builds on, and with the right rank.
static Status check_order(const Executor* ex, const PlanInstr* instr, int32_t idx) {
    RowState* state = executor_state(ex, idx, instr->mb);
    TRY(check_kind(ex, instr, &ex->rows[idx]));
    TRY(check_before(ex, instr, idx));
    if (state->seen & 1u << instr->kind) { return executor_fail(ex, instr, "twice in the list"); }
    state->seen |= 1u << instr->kind;
    return check_peer(ex, instr, &ex->rows[idx]);
}

// --- all of it -------------------------------------------------------------------------------------------
// What the plan was made for is what the model gets.
static Status check_counts(const Executor* ex, int32_t m, const DynapipeBatch* b) {
    const MbShape* shape = &ex->step->plan->mbs[m].shape;
    bool is_same = b->num_seqs == shape->num_seqs && b->num_tokens == shape->enc_tokens &&
                   b->num_squares == shape->enc_squares && b->num_dec_tokens == shape->dec_tokens &&
                   b->num_dec_squares == shape->dec_squares && b->num_cross == shape->cross_products &&
                   b->num_rows == shape->supervised_tokens;
    if (is_same) { return STATUS_OK; }
    return FAIL(
        STATUS_INVALID_PLAN,
        "rank %d: mb %d: a batch of %d sequences, %d + %d tokens (squares %lld + %lld, products %lld) "
        "and %d rows, the plan has %lld, %lld + %lld (%lld + %lld, %lld) and %lld",
        (int)ex->rank, (int)m, (int)b->num_seqs, (int)b->num_tokens, (int)b->num_dec_tokens,
        (long long)b->num_squares, (long long)b->num_dec_squares, (long long)b->num_cross, (int)b->num_rows,
        (long long)shape->num_seqs, (long long)shape->enc_tokens, (long long)shape->dec_tokens,
        (long long)shape->enc_squares, (long long)shape->dec_squares, (long long)shape->cross_products,
        (long long)shape->supervised_tokens);
}

// A micro-batch that the list has: of all rows, since each looks at its neighbours'.
static Status meet_batch(Executor* ex, int32_t m, const DynapipeBatch* batch) {
    if (executor_state(ex, 0, m)->present) { return STATUS_OK; }
    TRY(check_counts(ex, m, batch));
    for (int32_t i = 0; i < ex->num_rows; i++) {
        RowState* state = executor_state(ex, i, m);
        executor_measure(ex, i, batch, state);
        state->present = true;
    }
    return STATUS_OK;
}

static bool makes_losses(const Executor* ex, int32_t idx) {
    const Row* row = &ex->rows[idx];
    return row->is_end || (row->feeds && ex->placement->head == HEAD_BY_VOCABULARY) ||
           executor_by_rows(ex, row);
}

static Status meet_instr(Executor* ex, const PlanRank* rank, int32_t i, int32_t M) {
    const ExecutorStep* step = ex->step;
    const PlanInstr* instr = &rank->instrs[i];
    int32_t idx = instr->kind < INSTR_COUNT ? executor_end_of(ex, instr) : -1;
    if (instr->kind >= INSTR_COUNT || instr->mb < 0 || instr->mb >= M) {
        return FAIL(STATUS_INVALID_PLAN, "rank %d: instruction %d has kind %d, mb %d", (int)ex->rank, (int)i,
                    (int)instr->kind, (int)instr->mb);
    }
    if (idx < 0) {
        return executor_fail(ex, instr, "this rank has no such chunk, or its peer is not the rank of one");
    }
    const DynapipeBatch* batch = step->batches[instr->mb];
    if (batch == NULL) { return executor_fail(ex, instr, "no batch for it on this rank"); }
    if (makes_losses(ex, idx) && (step->losses == NULL || step->losses[instr->mb] == NULL) &&
        batch->num_rows > 0) {
        return executor_fail(ex, instr, "nowhere to put its losses");
    }
    TRY(meet_batch(ex, instr->mb, batch));
    RowState* state = executor_state(ex, idx, instr->mb);
    state->has_wgt |= instr->kind == INSTR_WGT;
    state->has_rec |= instr->kind == INSTR_REC;
    return STATUS_OK;
}

Status executor_prepare(Executor* ex, const PlanRank* rank, int32_t M) {
    TRY(place_buffers(ex, rank, M));
    for (int32_t i = 0; i < rank->num_instrs; i++) { TRY(meet_instr(ex, rank, i, M)); }
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        const PlanInstr* instr = &rank->instrs[i];
        int32_t idx = executor_end_of(ex, instr);
        TRY(check_order(ex, instr, idx));
        TRY(check_buffers(ex, instr, idx));
    }
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        const PlanInstr* instr = &rank->instrs[i];
        int32_t idx = executor_end_of(ex, instr);
        if (instr->kind == INSTR_FWD && ex->rows[idx].is_share &&
            !executor_state(ex, idx, instr->mb)->has_wgt) {
            return executor_fail(ex, instr, "a share of the head without wgt");
        }
    }
    return STATUS_OK;
}
