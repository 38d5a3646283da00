// executor_rows.c -- which pieces of the model are on this rank, whom each talks to, where its data lie.
#include <string.h>

#include "../plan/lists/plan_message.h"
#include "executor_parts.h"

// --- a placement -----------------------------------------------------------------------------------------
static bool shares_head(const Executor* ex) {
    return ex->placement->head != HEAD_WHOLE;
}

static Row* add_row(Executor* ex, int32_t row, int32_t stage) {
    Row* out = &ex->rows[ex->num_rows];
    *out = (Row){.row = (int16_t)row, .stage = (int16_t)stage, .is_mine = stage == ex->stage};
    out->before = out->behind = out->before_stage = out->behind_stage = -1;
    ex->idx_of[row] = (int16_t)ex->num_rows++;
    return out;
}

static void add_chunk(Executor* ex, int32_t k) {
    const Placement* placement = ex->placement;
    bool is_last = k == placement->num_chunks - 1;
    Row* row = add_row(ex, k, placement->stage_of[k]);
    row->is_first = k == 0;
    row->is_end = is_last && !shares_head(ex);
    row->feeds = is_last && shares_head(ex);
    if (k > 0) { row->before_stage = placement->stage_of[k - 1]; }
    if (!is_last) { row->behind_stage = placement->stage_of[k + 1]; }
    if (k > 0 && ex->idx_of[k - 1] >= 0) {
        row->before = ex->idx_of[k - 1];
        ex->rows[row->before].behind = ex->idx_of[k];
    }
}

static void add_share(Executor* ex, int32_t s) {
    int32_t K = ex->placement->num_chunks;
    Row* row = add_row(ex, K + s, s);
    row->is_share = true;
    row->before_stage = ex->placement->stage_of[K - 1];
    row->before = ex->idx_of[K - 1];
}

static void number_places(Executor* ex) {
    const Placement* placement = ex->placement;
    int16_t num_rows[PLAN_MAX_STAGES] = {0};
    ex->most_places = 1;
    for (int32_t row = 0; row < placement->num_chunks + ex->num_stages; row++) {
        bool is_chunk = row < placement->num_chunks;
        int32_t s = is_chunk ? placement->stage_of[row] : row - placement->num_chunks;
        if (!is_chunk && !placement_has_share(placement, s)) { continue; }
        ex->place_of[row] = num_rows[s]++;
        if (num_rows[s] > ex->most_places) { ex->most_places = num_rows[s]; }
    }
}

static Status check_placement(const Executor* ex, const Placement* placement, int32_t num_stages) {
    if (plan_placement_is_sane(placement, num_stages)) { return STATUS_OK; }
    return FAIL(STATUS_INVALID_PLAN, "rank %d: a placement of %d chunks on %d stages that is none",
                (int)ex->rank, (int)placement->num_chunks, (int)num_stages);
}

bool executor_can_share(const DynapipeModel_v1* api, HeadSplit head) {
    bool has_calls = api->part_bytes != NULL && api->factor_bytes != NULL && api->combine != NULL;
    return head == HEAD_WHOLE || (has_calls && (head == HEAD_BY_ROWS || api->backward_weights != NULL));
}

// The models of this rank's rows, in the order in which they were given.
static Status take_ranges(Executor* ex) {
    int32_t num_mine = 0;
    for (int32_t i = 0; i < ex->num_rows; i++) {
        Row* row = &ex->rows[i];
        if (row->is_mine && num_mine < ex->num_ranges) {
            row->api = ex->ranges[num_mine].api;
            row->model = ex->ranges[num_mine].model;
        }
        num_mine += row->is_mine;
    }
    if (num_mine != ex->num_ranges) {
        return FAIL(STATUS_INVALID_PLAN, "rank %d: the plan has %d pieces of the model here, %d are attached",
                    (int)ex->rank, (int)num_mine, (int)ex->num_ranges);
    }
    for (int32_t i = 0; i < ex->num_rows; i++) {
        Row* row = &ex->rows[i];
        if (!row->is_mine) {
            row->api = ex->rows[row->before].api;
            row->model = ex->rows[row->before].model;
        }
        if ((row->is_share || row->feeds) && !executor_can_share(row->api, (HeadSplit)ex->placement->head)) {
            return FAIL(STATUS_INVALID_PLAN,
                        "rank %d: the model %s cannot share its head like this: no part_bytes, factor_bytes, "
                        "combine, or, by vocabulary, backward_weights ---> --head whole",
                        (int)ex->rank, row->api->name);
        }
    }
    return STATUS_OK;
}

Status executor_place(Executor* ex, const Placement* placement, int32_t num_stages) {
    TRY(check_placement(ex, placement, num_stages));
    ex->placement = placement;
    ex->num_stages = num_stages;
    ex->stage = ex->rank % num_stages;
    ex->first_rank = ex->rank - ex->stage;
    ex->num_rows = 0;
    ex->transfers.says_chunks = placement->num_chunks != num_stages || shares_head(ex);
    memset(ex->idx_of, -1, sizeof ex->idx_of);
    number_places(ex);
    int32_t K = placement->num_chunks;
    for (int32_t k = 0; k < K; k++) {
        if (placement->stage_of[k] == ex->stage) { add_chunk(ex, k); }
    }
    for (int32_t s = 0; s < num_stages; s++) {
        bool is_seen = s == ex->stage || placement->stage_of[K - 1] == ex->stage;
        if (is_seen && placement_has_share(placement, s)) { add_share(ex, s); }
    }
    return take_ranges(ex);
}

void executor_loss_rows(const Placement* placement, int32_t stage, int32_t num_rows, int32_t* begin,
                        int32_t* end) {
    *begin = *end = 0;
    if (placement->head == HEAD_BY_ROWS) {
        *begin = (int32_t)((int64_t)num_rows * placement->head_begin[stage] / HEAD_UNITS);
        *end = (int32_t)((int64_t)num_rows * placement->head_begin[stage + 1] / HEAD_UNITS);
    } else if (placement->stage_of[placement->num_chunks - 1] == stage) {
        *end = num_rows;
    }
}

// --- batches, lengths ------------------------------------------------------------------------------------
DynapipeBatch executor_rows_of(const Executor* ex, const Row* row, const DynapipeBatch* batch) {
    DynapipeBatch part = *batch;
    if (!executor_by_rows(ex, row)) { return part; }
    int32_t begin, end;
    executor_loss_rows(ex->placement, row->stage, batch->num_rows, &begin, &end);
    part.num_rows = end - begin;
    if (batch->rows != NULL) { part.rows += begin; }
    if (batch->targets != NULL) { part.targets += begin; }
    if (batch->row_tasks != NULL) { part.row_tasks += begin; }
    return part;
}

int32_t executor_first_row(const Executor* ex, const Row* row, const DynapipeBatch* batch) {
    int32_t begin, end;
    executor_loss_rows(ex->placement, row->stage, batch->num_rows, &begin, &end);
    return begin;
}

static void measure_share(const Executor* ex, const Row* row, const DynapipeBatch* batch, RowState* out) {
    out->part = executor_rows_of(ex, row, batch);
    out->in_bytes = row->api->boundary_bytes(row->model, &out->part, row->is_mine ? 0 : 1);
    if (executor_by_rows(ex, row)) {
        out->grad_bytes = out->in_bytes;
        if (row->before < 0) { return; }
        DynapipeBatch ahead = out->part;
        int32_t end;
        executor_loss_rows(ex->placement, row->stage, batch->num_rows, &ahead.num_rows, &end);
        const Row* last = &ex->rows[row->before];
        out->part_at = last->api->boundary_bytes(last->model, &ahead, 1);
    } else if (batch->num_rows > 0) {
        out->grad_bytes = row->api->part_bytes(row->model, batch, KEEP | HEAD);
        out->fact_bytes = row->api->factor_bytes(row->model, batch);
    }
}

void executor_measure(const Executor* ex, int32_t idx, const DynapipeBatch* batch, RowState* out) {
    const Row* row = &ex->rows[idx];
    if (row->is_share) {
        measure_share(ex, row, batch, out);
        return;
    }
    if (!row->is_first) { out->in_bytes = row->api->boundary_bytes(row->model, batch, 0); }
    if (!row->is_end) { out->out_bytes = row->api->boundary_bytes(row->model, batch, 1); }
}

const DynapipeBatch* executor_batch(const Executor* ex, int32_t idx, int32_t mb) {
    return executor_by_rows(ex, &ex->rows[idx]) ? &executor_state(ex, idx, mb)->part : ex->step->batches[mb];
}

// --- transfers -------------------------------------------------------------------------------------------
int32_t executor_end_of(const Executor* ex, const PlanInstr* instr) {
    int32_t row = instr->chunk, K = ex->placement->num_chunks;
    if (row < 0 || row >= K + ex->num_stages || ex->idx_of[row] < 0) { return -1; }
    bool is_behind =
        instr->kind == INSTR_SEND_ACT || instr->kind == INSTR_WAIT_ACT || instr->kind == INSTR_RECV_GRAD;
    if (!is_behind || !ex->rows[ex->idx_of[row]].feeds) { return ex->idx_of[row]; }
    int32_t s = instr->peer - ex->first_rank;
    return s >= 0 && s < ex->num_stages ? ex->idx_of[K + s] : -1;
}

int32_t executor_tag(const Executor* ex, int32_t mb, int32_t row, int32_t direction) {
    return (mb * ex->most_places + ex->place_of[row]) * 3 + direction;
}

// --- places ----------------------------------------------------------------------------------------------
static unsigned char* buffer(const Executor* ex, int32_t idx, int32_t mb, BufferKind kind) {
    return executor_state(ex, idx, mb)->buffer[kind];
}

static unsigned char* buffer_at(const Executor* ex, int32_t idx, int32_t mb, BufferKind kind,
                                int64_t at_bytes) {
    unsigned char* begin = buffer(ex, idx, mb, kind);
    return begin == NULL ? NULL : begin + at_bytes;
}

unsigned char* executor_in(const Executor* ex, int32_t idx, int32_t mb) {
    const Row* row = &ex->rows[idx];
    if (row->is_first) { return NULL; }
    if (!row->is_share || row->before < 0) { return buffer(ex, idx, mb, BUFFER_IN); }
    return buffer_at(ex, row->before, mb, BUFFER_OUT, executor_state(ex, idx, mb)->part_at);
}

unsigned char* executor_out(const Executor* ex, int32_t idx, int32_t mb) {
    const Row* row = &ex->rows[idx];
    if (row->is_end || row->is_share) { return NULL; }
    return row->behind >= 0 ? buffer(ex, row->behind, mb, BUFFER_IN) : buffer(ex, idx, mb, BUFFER_OUT);
}

unsigned char* executor_dout(const Executor* ex, int32_t idx, int32_t mb) {
    const Row* row = &ex->rows[idx];
    if (row->is_end || executor_by_rows(ex, row)) { return NULL; }
    return buffer(ex, idx, mb, row->is_share ? BUFFER_FACT : BUFFER_DOUT);
}

unsigned char* executor_din(const Executor* ex, int32_t idx, int32_t mb) {
    const Row* row = &ex->rows[idx];
    if (row->is_first) { return NULL; }
    if (row->before < 0) { return buffer(ex, idx, mb, BUFFER_DIN); }
    if (executor_by_vocabulary(ex, row)) { return buffer(ex, idx, mb, BUFFER_PART); }
    return buffer_at(ex, row->before, mb, BUFFER_DOUT, executor_state(ex, idx, mb)->part_at);
}
