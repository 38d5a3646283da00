// executor_jobs.c -- calls of the model.
#include <stdio.h>

#include "../../util/program.h"
#include "executor_parts.h"

TraceEvent* executor_job_begin(Executor* ex, TransferName name, int64_t before_ns, Status* status) {
    *status = transfers_wait_for_room(&ex->transfers);
    TraceEvent* event = transfers_event(&ex->transfers, name, -1);
    event->wait_ns = event->begin_ns - before_ns;
    if (*status != STATUS_OK) { return event; }
    *status = job_marks_open(&ex->transfers.jobs, (int32_t)(event - ex->transfers.trace.events));
    const DynapipeDevice_v1* device = ex->device.api;
    if (device != NULL && device->range_begin != NULL) {
        device->range_begin(ex->device.ctx, TRANSFER_WORDS(&ex->transfers, name));
    }
    return event;
}

Status executor_job_end(Executor* ex, const Row* row, TraceEvent* event, int rc) {
    const DynapipeDevice_v1* device = ex->device.api;
    if (device != NULL && device->range_end != NULL) { device->range_end(ex->device.ctx); }
    event->end_ns = clock_now_ns();
    if (device == NULL) { ex->transfers.trace.busy_ns += event->end_ns - event->begin_ns; }
    if (rc == 0) { return job_marks_close(&ex->transfers.jobs); }
    Status status = rc > 0 && rc < STATUS_COUNT ? (Status)rc : STATUS_OUT_OF_RANGE;
    TransferName name = {event->kind, event->chunk, event->mb};
    return FAIL(status, "rank %d: %s: the model %s returned error %d", (int)ex->rank,
                TRANSFER_WORDS(&ex->transfers, name), row->api->name, rc);
}

// --- a chunk ---------------------------------------------------------------------------------------------
static int forward(const Executor* ex, int32_t idx, const PlanInstr* instr) {
    const Row* row = &ex->rows[idx];
    const RowState* state = executor_state(ex, idx, instr->mb);
    bool is_again = instr->kind == INSTR_REC, drops = state->has_rec && !is_again;
    void* out = is_again ? NULL : executor_out(ex, idx, instr->mb);  // of rec: it went out long ago
    float* losses = row->is_end && !drops ? ex->step->losses[instr->mb] : NULL;
    return row->api->forward(row->model, ex->step->batches[instr->mb], executor_in(ex, idx, instr->mb), out,
                             state->buffer[drops ? BUFFER_FORWARD : BUFFER_ACTS], ex->scratch, losses,
                             drops ? 0 : KEEP | HEAD);
}

// From the parts of a head shared by vocabulary to the gradient of its inputs; by rows they lie there.
static int combine(const Executor* ex, int32_t idx, int32_t mb) {
    const Row* row = &ex->rows[idx];
    const void* parts[PLAN_MAX_STAGES];
    void* factors[PLAN_MAX_STAGES];
    int32_t num_parts = 0;
    for (int32_t i = 0; i < ex->num_rows; i++) {
        if (!executor_by_vocabulary(ex, &ex->rows[i])) { continue; }
        parts[num_parts] = executor_din(ex, i, mb);
        factors[num_parts++] = executor_dout(ex, i, mb);
    }
    if (num_parts == 0 || ex->step->batches[mb]->num_rows == 0) { return 0; }
    return row->api->combine(row->model, ex->step->batches[mb], num_parts, parts, executor_dout(ex, idx, mb),
                             factors, ex->step->losses[mb]);
}

static int backward(const Executor* ex, int32_t idx, int32_t mb) {
    const Row* row = &ex->rows[idx];
    const RowState* state = executor_state(ex, idx, mb);
    const DynapipeBatch* batch = ex->step->batches[mb];
    void *acts = state->buffer[BUFFER_ACTS], *dout = executor_dout(ex, idx, mb);
    int rc = row->feeds ? combine(ex, idx, mb) : 0;
    if (rc != 0) { return rc; }
    rc = row->api->backward_inputs(row->model, batch, executor_in(ex, idx, mb), acts, dout,
                                   executor_din(ex, idx, mb), ex->scratch);
    if (rc != 0 || state->has_wgt || row->api->backward_weights == NULL) { return rc; }
    return row->api->backward_weights(row->model, batch, acts, dout, ex->scratch);
}

static int backward_weights(const Executor* ex, int32_t idx, int32_t mb) {
    const Row* row = &ex->rows[idx];
    if (row->api->backward_weights == NULL) { return 0; }
    return row->api->backward_weights(row->model, executor_batch(ex, idx, mb),
                                      executor_state(ex, idx, mb)->buffer[BUFFER_ACTS],
                                      executor_dout(ex, idx, mb), ex->scratch);
}

// --- a share of the head ---------------------------------------------------------------------------------
// Forward and the gradient of inputs, in one.
static int share_forward(const Executor* ex, int32_t idx, int32_t mb) {
    const Row* row = &ex->rows[idx];
    const DynapipeBatch* batch = executor_batch(ex, idx, mb);
    void *in = executor_in(ex, idx, mb), *acts = executor_state(ex, idx, mb)->buffer[BUFFER_ACTS];
    float* losses = NULL;
    if (executor_by_rows(ex, row)) {
        losses = ex->step->losses[mb] + executor_first_row(ex, row, ex->step->batches[mb]);
    }
    int rc = row->api->forward(row->model, batch, in, NULL, acts, ex->scratch, losses, KEEP | HEAD);
    if (rc != 0) { return rc; }
    return row->api->backward_inputs(row->model, batch, in, acts, NULL, executor_din(ex, idx, mb),
                                     ex->scratch);
}

// --- any -------------------------------------------------------------------------------------------------
static int call_model(const Executor* ex, int32_t idx, const PlanInstr* instr) {
    bool is_share = ex->rows[idx].is_share;
    if (is_share && executor_batch(ex, idx, instr->mb)->num_rows == 0) { return 0; }
    switch (instr->kind) {
        case INSTR_FWD: return is_share ? share_forward(ex, idx, instr->mb) : forward(ex, idx, instr);
        case INSTR_REC: return forward(ex, idx, instr);
        case INSTR_BWD: return backward(ex, idx, instr->mb);
        default: return backward_weights(ex, idx, instr->mb);
    }
}

static Status wait_for(Executor* ex, int32_t idx, const PlanInstr* instr, Link link) {
    TransferName name = {instr->kind, instr->chunk, instr->mb};
    return transfers_wait(&ex->transfers, &executor_state(ex, idx, instr->mb)->transfer[link], name);
}

// Until what the job reads has arrived.
static Status wait_for_inputs(Executor* ex, int32_t idx, const PlanInstr* instr) {
    const Row* row = &ex->rows[idx];
    bool is_backward = instr->kind == INSTR_BWD || instr->kind == INSTR_WGT;
    if (!is_backward) {
        return row->is_first || row->before >= 0 ? STATUS_OK : wait_for(ex, idx, instr, LINK_IN);
    }
    if (row->is_share) {
        bool has_factors = executor_by_vocabulary(ex, row) && row->before < 0;
        return has_factors ? wait_for(ex, idx, instr, LINK_FACT) : STATUS_OK;
    }
    for (int32_t i = 0; row->feeds && i < ex->num_rows; i++) {
        if (!ex->rows[i].is_share || ex->rows[i].is_mine) { continue; }
        TRY(wait_for(ex, i, instr, LINK_DOUT));
    }
    bool is_received = !row->is_end && !row->feeds && row->behind < 0;
    return is_received ? wait_for(ex, idx, instr, LINK_DOUT) : STATUS_OK;
}

Status executor_run_job(Executor* ex, const PlanInstr* instr) {
    int32_t idx = ex->idx_of[instr->chunk];
    int64_t before_ns = clock_now_ns();
    TRY(wait_for_inputs(ex, idx, instr));
    Status status;
    TransferName name = {instr->kind, instr->chunk, instr->mb};
    TraceEvent* event = executor_job_begin(ex, name, before_ns, &status);
    TRY(status);
    return executor_job_end(ex, &ex->rows[idx], event, call_model(ex, idx, instr));
}
