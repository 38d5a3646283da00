/*
executor_forward.c -- forward only, micro-batch after micro-batch.

A rank runs its rows (executor_parts.h) in waves: in wave w chunk k is at batch w - k, shares of the head at
w - K, and their parts are combined in wave w - K - 1. What a wave makes is read in the next, so two inputs
and two outputs of every row take turns, and the messages of a wave are the same set on all ranks: where a
transport has groups it gets them as one, and nothing can wait in a circle.
*/
#include <string.h>

#include "../../util/program.h"
#include "executor_parts.h"

// Places of a row's two inputs and two outputs in the arena. Of a chunk that feeds the head, `out` are hidden
// states; of a share, `in` are these, `out` its part; at the last chunk's end nothing of a share of this
// rank.
typedef struct {
    int64_t in, out;              // offsets
    int64_t in_bytes, out_bytes;  // of one, rounded up
} RowPlaces;

typedef struct {
    RowPlaces rows[PLAN_MAX_ROWS];
    int64_t acts, scratch, end;  // offsets
} Layout;

static int64_t aligned(int64_t num_bytes) {
    return (num_bytes + PLAN_BUFFER_ALIGN - 1) / PLAN_BUFFER_ALIGN * PLAN_BUFFER_ALIGN;
}

static void raise_to(int64_t* largest, int64_t num_bytes) {
    if (aligned(num_bytes) > *largest) { *largest = aligned(num_bytes); }
}

// --- lengths ---------------------------------------------------------------------------------------------
// A share that lies with the last chunk reads its hidden states there.
static int64_t in_bytes(const Executor* ex, const Row* row, const DynapipeBatch* batch) {
    if (row->is_first) { return 0; }
    DynapipeBatch part = executor_rows_of(ex, row, batch);
    return row->api->boundary_bytes(row->model, &part, row->is_mine ? 0 : 1);
}

static int64_t out_bytes(const Executor* ex, const Row* row, const DynapipeBatch* batch) {
    if (row->is_end || executor_by_rows(ex, row)) { return 0; }
    if (row->is_share) { return batch->num_rows > 0 ? row->api->part_bytes(row->model, batch, HEAD) : 0; }
    return row->api->boundary_bytes(row->model, batch, 1);
}

static bool needs_in(const Row* row) {
    return !row->is_first && !(row->is_share && row->before >= 0);
}

static bool needs_out(const Row* row) {
    return row->is_share || row->behind < 0;
}

static void make_layout(Layout* out, const Executor* ex, const ExecutorForward* f) {
    int64_t acts_bytes = 0, scratch_bytes = 0, at = 0;
    *out = (Layout){0};
    for (int32_t i = 0; i < ex->num_rows; i++) {
        const Row* row = &ex->rows[i];
        RowPlaces* places = &out->rows[i];
        for (int32_t b = 0; b < f->num_batches; b++) {
            const DynapipeBatch* batch = &f->batches[b];
            if (needs_in(row)) { raise_to(&places->in_bytes, in_bytes(ex, row, batch)); }
            if (needs_out(row)) { raise_to(&places->out_bytes, out_bytes(ex, row, batch)); }
            if (!row->is_mine) { continue; }
            DynapipeBatch part = executor_rows_of(ex, row, batch);
            raise_to(&acts_bytes, row->api->acts_bytes(row->model, &part, HEAD));
            raise_to(&scratch_bytes, row->api->scratch_bytes(row->model, &part));
        }
        places->in = at;
        places->out = at + 2 * places->in_bytes;
        at = places->out + 2 * places->out_bytes;
    }
    out->acts = at;
    out->scratch = at + acts_bytes;
    out->end = out->scratch + scratch_bytes;
}

Status executor_forward_bytes(int64_t* num_bytes, Executor* ex, const ExecutorForward* f) {
    Layout layout;
    TRY(executor_place(ex, f->placement, f->num_stages));
    make_layout(&layout, ex, f);
    *num_bytes = layout.end;
    return STATUS_OK;
}

// --- places ----------------------------------------------------------------------------------------------
typedef struct {
    Executor* ex;
    const ExecutorForward* f;
    Layout layout;
} Forward;

static unsigned char* at(const Forward* fw, int64_t offset) {
    return (unsigned char*)fw->f->arena + offset;
}

static unsigned char* out_place(const Forward* fw, int32_t idx, int32_t b);

static unsigned char* in_place(const Forward* fw, int32_t idx, int32_t b) {
    const Executor* ex = fw->ex;
    const Row* row = &ex->rows[idx];
    const RowPlaces* places = &fw->layout.rows[idx];
    if (row->is_first) { return NULL; }
    if (needs_in(row)) { return at(fw, places->in + b % 2 * places->in_bytes); }
    RowState state = {0};
    executor_measure(ex, idx, &fw->f->batches[b], &state);
    return out_place(fw, row->before, b) + state.part_at;
}

static unsigned char* out_place(const Forward* fw, int32_t idx, int32_t b) {
    const Row* row = &fw->ex->rows[idx];
    const RowPlaces* places = &fw->layout.rows[idx];
    if (row->is_end || executor_by_rows(fw->ex, row)) { return NULL; }
    if (!needs_out(row)) { return in_place(fw, row->behind, b); }
    return at(fw, places->out + b % 2 * places->out_bytes);
}

// --- transfers -------------------------------------------------------------------------------------------
static Status post(const Forward* fw, int32_t idx, int32_t b, InstrKind kind, int32_t stage,
                   int32_t input_row, Link link, void* data, int64_t num_bytes) {
    Executor* ex = fw->ex;
    bool is_part = kind == INSTR_SEND_GRAD || kind == INSTR_RECV_GRAD;
    TransferName name = {(int32_t)kind, ex->rows[idx].row, b};
    return transfers_post(&ex->transfers, name, ex->first_rank + stage,
                          TAG_FORWARD + executor_tag(ex, 0, input_row, is_part), data, num_bytes,
                          &executor_state(ex, idx, b)->transfer[link]);
}

static bool has_batch(const Forward* fw, int32_t b) {
    return b >= 0 && b < fw->f->num_batches;
}

// The batch that a row is at; shares of others are looked at where their part is combined.
static int32_t batch_of(const Executor* ex, const Row* row, int32_t wave) {
    return wave - (row->is_share ? ex->placement->num_chunks : row->row);
}

// Of what the wave before makes: what this rank's rows read in it.
static Status receive(const Forward* fw, int32_t wave) {
    Executor* ex = fw->ex;
    for (int32_t i = 0; i < ex->num_rows; i++) {
        const Row* row = &ex->rows[i];
        int32_t b = batch_of(ex, row, wave) - !row->is_mine;  // a part is a wave later
        if (!has_batch(fw, b)) { continue; }
        const DynapipeBatch* batch = &fw->f->batches[b];
        if (row->is_mine && row->before < 0 && !row->is_first) {
            TRY(post(fw, i, b, INSTR_RECV_ACT, row->before_stage, row->row, LINK_IN, in_place(fw, i, b),
                     in_bytes(ex, row, batch)));
        } else if (!row->is_mine && !executor_by_rows(ex, row)) {
            TRY(post(fw, i, b, INSTR_RECV_GRAD, row->stage, row->row, LINK_DOUT, out_place(fw, i, b),
                     out_bytes(ex, row, batch)));
        }
    }
    return STATUS_OK;
}

static Status send_hidden(const Forward* fw, int32_t b) {
    Executor* ex = fw->ex;
    for (int32_t i = 0; i < ex->num_rows; i++) {
        const Row* row = &ex->rows[i];
        if (row->is_mine) { continue; }
        TRY(post(fw, i, b, INSTR_SEND_ACT, row->stage, row->row, LINK_OUT, in_place(fw, i, b),
                 in_bytes(ex, row, &fw->f->batches[b])));
    }
    return STATUS_OK;
}

// What this rank's rows made in the wave.
static Status send(const Forward* fw, int32_t wave) {
    Executor* ex = fw->ex;
    for (int32_t i = 0; i < ex->num_rows; i++) {
        const Row* row = &ex->rows[i];
        int32_t b = batch_of(ex, row, wave);
        if (!row->is_mine || row->is_end || !has_batch(fw, b)) { continue; }
        const DynapipeBatch* batch = &fw->f->batches[b];
        if (row->feeds) {
            TRY(send_hidden(fw, b));
        } else if (row->is_share && row->before < 0 && !executor_by_rows(ex, row)) {
            TRY(post(fw, i, b, INSTR_SEND_GRAD, row->before_stage, row->row, LINK_DIN, out_place(fw, i, b),
                     out_bytes(ex, row, batch)));
        } else if (!row->is_share && row->behind < 0) {
            TRY(post(fw, i, b, INSTR_SEND_ACT, row->behind_stage, row->row + 1, LINK_OUT, out_place(fw, i, b),
                     out_bytes(ex, row, batch)));
        }
    }
    return STATUS_OK;
}

// --- jobs ------------------------------------------------------------------------------------------------
static Status wait_for(const Forward* fw, int32_t idx, int32_t b, Link link, const Row* who) {
    TransferName name = {INSTR_FWD, who->row, b};
    uint8_t* state = &executor_state(fw->ex, idx, b)->transfer[link];
    return *state == TRANSFER_NONE ? STATUS_OK : transfers_wait(&fw->ex->transfers, state, name);
}

// Its input is there, and its output's place free, which batch b - 2 had.
static Status wait_for_places(const Forward* fw, int32_t idx, int32_t b) {
    const Executor* ex = fw->ex;
    const Row* row = &ex->rows[idx];
    TRY(wait_for(fw, idx, b, LINK_IN, row));
    if (b < 2) { return STATUS_OK; }
    TRY(wait_for(fw, idx, b - 2, LINK_OUT, row));
    TRY(wait_for(fw, idx, b - 2, LINK_DIN, row));
    for (int32_t i = 0; row->feeds && i < ex->num_rows; i++) { TRY(wait_for(fw, i, b - 2, LINK_OUT, row)); }
    return STATUS_OK;
}

static int call_model(const Forward* fw, int32_t idx, int32_t b) {
    const Executor* ex = fw->ex;
    const Row* row = &ex->rows[idx];
    const DynapipeBatch* batch = &fw->f->batches[b];
    DynapipeBatch* part = &executor_state(ex, idx, b)->part;  // stays while the call is under way
    float* losses = row->is_end ? fw->f->losses[b] : NULL;
    *part = executor_rows_of(ex, row, batch);
    if (row->is_share && part->num_rows == 0) { return 0; }
    if (executor_by_rows(ex, row)) { losses = fw->f->losses[b] + executor_first_row(ex, row, batch); }
    return row->api->forward(row->model, part, in_place(fw, idx, b), out_place(fw, idx, b),
                             at(fw, fw->layout.acts), at(fw, fw->layout.scratch), losses, HEAD);
}

static Status run_row(const Forward* fw, int32_t idx, int32_t b) {
    Executor* ex = fw->ex;
    int64_t before_ns = clock_now_ns();
    TRY(wait_for_places(fw, idx, b));
    Status status;
    TransferName name = {INSTR_FWD, ex->rows[idx].row, b};
    TraceEvent* event = executor_job_begin(ex, name, before_ns, &status);
    TRY(status);
    return executor_job_end(ex, &ex->rows[idx], event, call_model(fw, idx, b));
}

// Losses from the parts of a head shared by vocabulary.
static Status combine(const Forward* fw, int32_t b) {
    Executor* ex = fw->ex;
    const Row* last = NULL;
    const void* parts[PLAN_MAX_STAGES];
    int32_t num_parts = 0;
    for (int32_t i = 0; i < ex->num_rows; i++) {
        const Row* row = &ex->rows[i];
        if (row->feeds) { last = row; }
        if (!executor_by_vocabulary(ex, row)) { continue; }
        TRY(wait_for(fw, i, b, LINK_DOUT, row));
        parts[num_parts++] = out_place(fw, i, b);
    }
    if (last == NULL || num_parts == 0 || fw->f->batches[b].num_rows == 0) { return STATUS_OK; }
    int64_t before_ns = clock_now_ns();
    Status status;
    TraceEvent* event = executor_job_begin(ex, (TransferName){INSTR_FWD, last->row, b}, before_ns, &status);
    TRY(status);
    return executor_job_end(
        ex, last, event,
        last->api->combine(last->model, &fw->f->batches[b], num_parts, parts, NULL, NULL, fw->f->losses[b]));
}

// --- waves -----------------------------------------------------------------------------------------------
static Status run_jobs(const Forward* fw, int32_t wave) {
    const Executor* ex = fw->ex;
    int32_t combined = wave - ex->placement->num_chunks - 1;
    if (has_batch(fw, combined)) { TRY(combine(fw, combined)); }
    for (int32_t i = ex->num_rows - 1; i >= 0; i--) {  // a row's input is read before it is written anew
        int32_t b = batch_of(ex, &ex->rows[i], wave);
        if (ex->rows[i].is_mine && has_batch(fw, b)) { TRY(run_row(fw, i, b)); }
    }
    return STATUS_OK;
}

static Status run_wave(const Forward* fw, int32_t wave) {
    const Transport* transport = fw->ex->transfers.transport;
    if (transport->api->group_begin == NULL) {
        TRY(receive(fw, wave + 1));
        TRY(run_jobs(fw, wave));
        return send(fw, wave);
    }
    TRY(run_jobs(fw, wave));
    TRY(transport->api->group_begin(transport->ctx));
    TRY(receive(fw, wave + 1));
    TRY(send(fw, wave));
    return transport->api->group_end(transport->ctx);
}

Status executor_run_forward(Executor* ex, const ExecutorForward* f) {
    Forward fw = {.ex = ex, .f = f};
    TRY(executor_place(ex, f->placement, f->num_stages));
    make_layout(&fw.layout, ex, f);
    if (fw.layout.end > f->arena_bytes) {
        return FAIL(STATUS_OUT_OF_RANGE, "rank %d: forward needs %lld bytes, the arena has %lld",
                    (int)ex->rank, (long long)fw.layout.end, (long long)f->arena_bytes);
    }
    TRY(executor_reserve(ex, f->num_batches, 4 * f->num_batches * (ex->num_rows + 1)));
    int32_t num_waves = f->num_batches + ex->placement->num_chunks + 1;
    for (int32_t wave = 0; wave < num_waves; wave++) { TRY(run_wave(&fw, wave)); }
    return executor_finish(ex);
}
