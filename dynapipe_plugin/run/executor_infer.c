/*
executor_infer.c -- new tokens of some sequences through the chunks of one replica, behind a cache.

The last chunk's hidden states go to every share of the head by vocabulary, or by rows to the first of them,
which takes all sequences; their answers come back, and the last chunk's rank picks the best.
*/
#include "../../util/program.h"
#include "executor_parts.h"

static int64_t aligned(int64_t num_bytes) {
    return (num_bytes + PLAN_BUFFER_ALIGN - 1) / PLAN_BUFFER_ALIGN * PLAN_BUFFER_ALIGN;
}

typedef struct {
    Executor* ex;
    const ExecutorInfer* f;
    DynapipeBatch rows;  // as hidden states have them: one of each sequence
    int64_t in[PLAN_MAX_ROWS], out[PLAN_MAX_ROWS], scratch, end;  // offsets
} Infer;

// The shares that answer.
static bool answers(const Executor* ex, const Row* row) {
    if (!row->is_share) { return false; }
    if (ex->placement->head == HEAD_BY_VOCABULARY) { return true; }
    for (int32_t s = 0; s < row->stage; s++) {
        if (placement_has_share(ex->placement, s)) { return false; }
    }
    return true;
}

static bool has_part(const Executor* ex, const Row* row) {
    return !row->is_share || answers(ex, row);
}

static const DynapipeBatch* batch_of(const Infer* it, const Row* row) {
    return row->is_share ? &it->rows : it->f->batch;
}

static int64_t in_bytes(const Infer* it, const Row* row) {
    if (row->is_first) { return 0; }
    return row->api->boundary_bytes(row->model, batch_of(it, row), row->is_mine ? 0 : 1);
}

static int64_t out_bytes(const Infer* it, const Row* row) {
    if (row->is_end) { return 0; }
    if (row->is_share) { return row->api->pick_bytes(row->model, &it->rows); }
    return row->api->boundary_bytes(row->model, row->feeds ? &it->rows : it->f->batch, 1);
}

static Status open_infer(Infer* out, Executor* ex, const ExecutorInfer* f) {
    int64_t at = 0, scratch_bytes = 0;
    TRY(executor_place(ex, f->placement, f->num_stages));
    *out = (Infer){.ex = ex, .f = f, .rows = *f->batch};
    out->rows.num_rows = f->batch->num_seqs;
    for (int32_t i = 0; i < ex->num_rows; i++) {
        const Row* row = &ex->rows[i];
        if (!has_part(ex, row)) { continue; }
        out->in[i] = at;
        out->out[i] = at + aligned(in_bytes(out, row));
        at = out->out[i] + aligned(out_bytes(out, row));
        int64_t num_bytes = row->is_mine ? row->api->infer_bytes(row->model, f->batch) : 0;
        if (num_bytes > scratch_bytes) { scratch_bytes = num_bytes; }
    }
    out->scratch = at;
    out->end = at + aligned(scratch_bytes);
    return STATUS_OK;
}

Status executor_infer_bytes(int64_t* num_bytes, Executor* ex, const ExecutorInfer* f) {
    Infer it;
    TRY(open_infer(&it, ex, f));
    *num_bytes = it.end;
    return STATUS_OK;
}

static int64_t cache_bytes(const Row* row, const DynapipeCache* cache) {
    return row->is_mine && !row->is_share ? aligned(row->api->cache_bytes(row->model, cache)) : 0;
}

Status executor_cache_bytes(int64_t* num_bytes, Executor* ex, const ExecutorInfer* f) {
    TRY(executor_place(ex, f->placement, f->num_stages));
    *num_bytes = 0;
    for (int32_t i = 0; i < ex->num_rows; i++) { *num_bytes += cache_bytes(&ex->rows[i], f->cache); }
    return STATUS_OK;
}

// --- transfers -------------------------------------------------------------------------------------------
static unsigned char* at(const Infer* it, int64_t offset) {
    return (unsigned char*)it->f->arena + offset;
}

static Status post(const Infer* it, int32_t idx, InstrKind kind, int32_t stage, int32_t input_row, Link link,
                   void* data, int64_t num_bytes) {
    Executor* ex = it->ex;
    bool is_pick = kind == INSTR_SEND_GRAD || kind == INSTR_RECV_GRAD;
    return transfers_post(&ex->transfers, (TransferName){(int32_t)kind, ex->rows[idx].row, 0},
                          ex->first_rank + stage, TAG_FORWARD + executor_tag(ex, 0, input_row, is_pick), data,
                          num_bytes, &executor_state(ex, idx, 0)->transfer[link]);
}

// What goes into a row: NULL where nothing does.
static void* in_place(const Infer* it, int32_t idx) {
    const Row* row = &it->ex->rows[idx];
    if (row->is_first) { return NULL; }
    return at(it, row->before >= 0 ? it->out[row->before] : it->in[idx]);
}

// Here before the model is called, which may wait inside the call, where no deadline is looked at.
static Status receive(const Infer* it, int32_t idx, InstrKind kind, int32_t stage, Link link, void* data,
                      int64_t num_bytes) {
    Executor* ex = it->ex;
    const Row* row = &ex->rows[idx];
    if (num_bytes == 0) { return STATUS_OK; }
    TRY(post(it, idx, kind, stage, row->row, link, data, num_bytes));
    TransferName name = {INSTR_FWD, row->row, 0};
    return transfers_wait(&ex->transfers, &executor_state(ex, idx, 0)->transfer[link], name);
}

// --- jobs ------------------------------------------------------------------------------------------------
static Status run_row(const Infer* it, int32_t idx, const DynapipeCache* cache) {
    Executor* ex = it->ex;
    const Row* row = &ex->rows[idx];
    int64_t before_ns = clock_now_ns();
    if (!row->is_first && row->before < 0) {
        TRY(receive(it, idx, INSTR_RECV_ACT, row->before_stage, LINK_IN, at(it, it->in[idx]),
                    in_bytes(it, row)));
        TRY(transfers_finish(&ex->transfers));
    }
    Status status;
    TraceEvent* event = executor_job_begin(ex, (TransferName){INSTR_FWD, row->row, 0}, before_ns, &status);
    TRY(status);
    int rc = row->api->infer(row->model, it->f->batch, row->is_share ? NULL : cache, in_place(it, idx),
                             row->is_end ? NULL : at(it, it->out[idx]), at(it, it->scratch),
                             row->is_end ? it->f->next : NULL);
    return executor_job_end(ex, row, event, rc);
}

static Status send_row(const Infer* it, int32_t idx) {
    Executor* ex = it->ex;
    const Row* row = &ex->rows[idx];
    void* out = at(it, it->out[idx]);
    if (row->is_share) {
        if (row->before >= 0) { return STATUS_OK; }
        return post(it, idx, INSTR_SEND_GRAD, row->before_stage, row->row, LINK_DIN, out, out_bytes(it, row));
    }
    if (row->is_end || row->behind >= 0) { return STATUS_OK; }
    if (!row->feeds) {
        return post(it, idx, INSTR_SEND_ACT, row->behind_stage, row->row + 1, LINK_OUT, out,
                    out_bytes(it, row));
    }
    for (int32_t i = 0; i < ex->num_rows; i++) {
        const Row* share = &ex->rows[i];
        if (share->is_mine || !answers(ex, share)) { continue; }
        TRY(post(it, i, INSTR_SEND_ACT, share->stage, share->row, LINK_OUT, out, out_bytes(it, row)));
    }
    return STATUS_OK;
}

// The likeliest of what the shares answered, where the last chunk is.
static Status pick(const Infer* it) {
    Executor* ex = it->ex;
    const Row* last = NULL;
    const void* picks[PLAN_MAX_STAGES];
    int32_t num_picks = 0;
    for (int32_t i = 0; i < ex->num_rows; i++) {
        const Row* row = &ex->rows[i];
        if (row->feeds) { last = row; }
        if (last == NULL || !answers(ex, row)) { continue; }
        picks[num_picks++] = at(it, it->out[i]);
        if (row->is_mine) { continue; }
        TRY(receive(it, i, INSTR_RECV_GRAD, row->stage, LINK_DOUT, at(it, it->out[i]), out_bytes(it, row)));
    }
    if (last == NULL || it->rows.num_rows == 0) { return STATUS_OK; }
    TRY(transfers_finish(&ex->transfers));
    Status status;
    TransferName name = {INSTR_FWD, last->row, 0};
    TraceEvent* event = executor_job_begin(ex, name, clock_now_ns(), &status);
    TRY(status);
    return executor_job_end(ex, last, event,
                            last->api->pick(last->model, it->f->batch, num_picks, picks, it->f->next));
}

// in and out are empty where the batch has no tokens for the layers on that side (an encoder that is done).
Status executor_run_infer(Executor* ex, const ExecutorInfer* f) {
    Infer it;
    TRY(open_infer(&it, ex, f));
    if (it.end > f->arena_bytes) {
        return FAIL(STATUS_OUT_OF_RANGE, "rank %d: inference needs %lld bytes, the arena has %lld",
                    (int)ex->rank, (long long)it.end, (long long)f->arena_bytes);
    }
    TRY(executor_reserve(ex, 1, 4 * (ex->num_rows + 1)));
    DynapipeCache cache = *f->cache;
    for (int32_t i = 0; i < ex->num_rows; i++) {
        const Row* row = &ex->rows[i];
        if (!row->is_mine || !has_part(ex, row)) { continue; }
        TRY(run_row(&it, i, &cache));
        TRY(send_row(&it, i));
        cache.memory = (unsigned char*)cache.memory + cache_bytes(row, f->cache);
    }
    TRY(pick(&it));
    return executor_finish(ex);
}
