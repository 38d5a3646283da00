// executor.c -- one rank's instruction list, in order; transfers in the background.
#include "executor.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../util/program.h"
#include "../plan/plan_message.h"
#include "transfers.h"

// A row is a chunk, or K + s, the head's share of stage s (plan.h). This rank has some; on the last chunk's
// rank the shares of others are rows too, for the parts it receives from them.

enum { EXECUTOR_SPARE_EVENTS = 8, KEEP = DYNAPIPE_FORWARD_KEEP, HEAD = DYNAPIPE_FORWARD_HEAD };

// OUT of a share, DOUT of a share: at the last chunk's end, its hidden states and its part.
typedef enum { LINK_IN, LINK_DOUT, LINK_OUT, LINK_DIN, LINK_FACT, LINK_COUNT } Link;

typedef struct {
    int16_t row, stage;
    bool is_mine;   // else another stage's share, seen from the last chunk
    bool is_share;  // of the head
    bool is_first;  // no input
    bool is_end;    // the last chunk, and it has the whole head
    bool feeds;     // the last chunk, and the head is shared
    // Rows of this rank, -1: elsewhere or none. A share's `prev` is the last chunk.
    int16_t prev, next;
    int16_t prev_stage, next_stage;  // -1: none
    const DynapipeModel_v1* api;     // another's share: of the last chunk, which knows its lengths
    void* model;
} Row;

// State of one microbatch in one row in this step.
typedef struct {
    unsigned char* buffer[BUFFER_COUNT];  // NULL: none
    int64_t buffer_bytes[BUFFER_COUNT];
    DynapipeBatch own;             // a share by rows: the batch with its rows only; a chunk with a piece of a
                                   // sample: with this range's kept keys and values
    int32_t first_row;             // the first of these
    int64_t part_at;               // and where they begin in (num_rows, C), in bytes
    int64_t in_bytes, out_bytes;   // of the activation that enters and leaves
    int64_t grad_bytes;            // of a share: its part
    int64_t fact_bytes;            // its factors
    uint8_t transfer[LINK_COUNT];  // TransferState
    bool has_own, has_wgt, has_rec;
} RowState;

struct Executor {
    ExecutorRange* ranges;  // [num_ranges]
    int32_t num_ranges;
    Transfers transfers;
    Device device;
    RowState* states;  // [num_mbs][num_rows]
    int64_t max_states;
    int32_t rank;
    // of the step in progress
    const Placement* placement;
    int32_t stage, num_stages, first_rank;  // first_rank: of my replica
    Row rows[PLAN_MAX_ROWS];                // chunks ascending, then shares
    int32_t num_rows;
    int16_t idx_of[PLAN_MAX_ROWS];    // index in `rows` of a row of the plan, -1: not here
    int16_t place_of[PLAN_MAX_ROWS];  // index of a row among those of its stage
    int32_t most_places;              // rows of the stage with most rows
    unsigned char* scratch;
    int64_t scratch_bytes;
    const ExecutorStep* step;
};

static inline RowState* executor_state(const Executor* ex, int32_t idx, int32_t mb) {
    return &ex->states[(int64_t)mb * ex->num_rows + idx];
}

static inline bool executor_by_rows(const Executor* ex, const Row* row) {
    return row->is_share && ex->placement->head == HEAD_BY_ROWS;
}
static inline bool executor_by_vocabulary(const Executor* ex, const Row* row) {
    return row->is_share && ex->placement->head == HEAD_BY_VOCABULARY;
}

// === rows: which pieces of the model are on this rank, their neighbours, where their data are ===

static Row* add_row(Executor* ex, int32_t r, int32_t stage) {
    const Placement* placement = ex->placement;
    const int32_t K = placement->num_chunks, before = r < K ? r - 1 : K - 1;
    const bool is_last = r == K - 1, is_shared = placement->head != HEAD_WHOLE;
    Row* row = &ex->rows[ex->num_rows];
    *row = (Row){.row = (int16_t)r,
                 .stage = (int16_t)stage,
                 .is_mine = stage == ex->stage,
                 .is_share = r >= K,
                 .is_first = r == 0,
                 .is_end = is_last && !is_shared,
                 .feeds = is_last && is_shared,
                 .prev = before >= 0 ? ex->idx_of[before] : (int16_t)-1,
                 .next = -1,
                 .prev_stage = before >= 0 ? placement->stage_of[before] : (int16_t)-1,
                 .next_stage = r < K - 1 ? placement->stage_of[r + 1] : (int16_t)-1};
    ex->idx_of[r] = (int16_t)ex->num_rows++;
    if (r < K && row->prev >= 0) { ex->rows[row->prev].next = ex->idx_of[r]; }
    return row;
}

bool executor_can_share(const DynapipeModel_v1* api, HeadSplit head) {
    bool has_calls = api->part_bytes != NULL && api->factor_bytes != NULL && api->combine != NULL;
    return head != HEAD_BY_VOCABULARY || (has_calls && api->backward_weights != NULL);
}

// Fills the members under "of the step in progress": the models of this rank's rows are in the order in which
// they were given.
static void executor_place(Executor* ex, const Placement* placement, int32_t num_stages) {
    const int32_t K = placement->num_chunks;
    int16_t num_places[PLAN_MAX_STAGES] = {0};
    int32_t num_mine = 0;
    ex->placement = placement;
    ex->num_stages = num_stages;
    ex->stage = ex->rank % num_stages;
    ex->first_rank = ex->rank - ex->stage;
    ex->num_rows = 0;
    ex->most_places = 1;
    ex->transfers.says_chunks = K != num_stages || placement->head != HEAD_WHOLE;
    memset(ex->idx_of, -1, sizeof ex->idx_of);
    for (int32_t r = 0; r < K + num_stages; r++) {
        int32_t s = r < K ? placement->stage_of[r] : r - K;
        if (r >= K && !placement_has_share(placement, s)) { continue; }
        ex->place_of[r] = num_places[s]++;
        if (num_places[s] > ex->most_places) { ex->most_places = num_places[s]; }
        if (s != ex->stage && (r < K || placement->stage_of[K - 1] != ex->stage)) { continue; }
        Row* row = add_row(ex, r, s);
        row->api = row->is_mine ? ex->ranges[num_mine].api : ex->rows[row->prev].api;
        row->model = row->is_mine ? ex->ranges[num_mine].model : ex->rows[row->prev].model;
        num_mine += row->is_mine;
    }
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

int32_t executor_peers(int32_t out[PLAN_MAX_STAGES], const Placement* placement, int32_t num_stages,
                       int32_t stage) {
    bool has[PLAN_MAX_STAGES] = {false};
    const int32_t K = placement->num_chunks, last = K > 0 ? placement->stage_of[K - 1] : 0;
    int32_t num_peers = 0;
    for (int32_t k = 0; k + 1 < (K > 0 ? K : num_stages); k++) {
        int32_t a = K > 0 ? placement->stage_of[k] : k, b = K > 0 ? placement->stage_of[k + 1] : k + 1;
        has[a] |= b == stage;
        has[b] |= a == stage;
    }
    for (int32_t s = 0; s < num_stages && K > 0; s++) {
        if (!placement_has_share(placement, s)) { continue; }
        has[s] |= last == stage;
        has[last] |= s == stage;
    }
    for (int32_t s = 0; s < num_stages; s++) {
        if (has[s] && s != stage) { out[num_peers++] = s; }
    }
    return num_peers;
}

// --- batches, lengths ------------------------------------------------------------------------------------
// The batch as a row's model gets it: a share by rows gets its rows only, from *first on.
static DynapipeBatch executor_rows_of(const Executor* ex, const Row* row, const DynapipeBatch* batch,
                                      int32_t* first) {
    DynapipeBatch part = *batch;
    int32_t end;
    *first = 0;
    if (!executor_by_rows(ex, row)) { return part; }
    executor_loss_rows(ex->placement, row->stage, batch->num_rows, first, &end);
    part.num_rows = end - *first;
    if (batch->rows != NULL) { part.rows += *first; }
    if (batch->targets != NULL) { part.targets += *first; }
    if (batch->row_tasks != NULL) { part.row_tasks += *first; }
    return part;
}

// The batch of microbatch mb with this range's buffers of its piece.
static void executor_keep(const Executor* ex, int32_t idx, int32_t mb, const DynapipeBatch* batch) {
    const RowState* first = executor_state(ex, idx, plan_first_piece(ex->step->plan, mb));
    RowState* state = executor_state(ex, idx, mb);
    state->has_own = true;
    state->own = *batch;
    state->own.kept = first->buffer[BUFFER_KEPT];
    state->own.dkept = first->buffer[BUFFER_DKEPT];
}

// Sets the state's lengths; batch: whole.
static void executor_measure(const Executor* ex, int32_t idx, const DynapipeBatch* batch, RowState* out) {
    const Row* row = &ex->rows[idx];
    if (!row->is_share) {
        if (!row->is_first) { out->in_bytes = row->api->boundary_bytes(row->model, batch, 0); }
        if (!row->is_end) { out->out_bytes = row->api->boundary_bytes(row->model, batch, 1); }
        return;
    }
    DynapipeBatch ahead = *batch;
    out->own = executor_rows_of(ex, row, batch, &ahead.num_rows);
    out->has_own = executor_by_rows(ex, row);
    out->first_row = ahead.num_rows;
    out->in_bytes = row->api->boundary_bytes(row->model, &out->own, row->is_mine ? 0 : 1);
    if (executor_by_rows(ex, row)) {
        const Row* last = row->prev >= 0 ? &ex->rows[row->prev] : NULL;
        out->grad_bytes = out->in_bytes;
        if (last != NULL) { out->part_at = last->api->boundary_bytes(last->model, &ahead, 1); }
    } else if (batch->num_rows > 0) {
        out->grad_bytes = row->api->part_bytes(row->model, batch, KEEP | HEAD);
        out->fact_bytes = row->api->factor_bytes(row->model, batch);
    }
}

static const DynapipeBatch* executor_batch(const Executor* ex, int32_t idx, int32_t mb) {
    return executor_state(ex, idx, mb)->has_own ? &executor_state(ex, idx, mb)->own : ex->step->batches[mb];
}

// --- links ------------------------------------------------------------------------------------------------
// Where this rank has its end of a message: at a share, or at its own chunk.
static int32_t message_idx(const Executor* ex, PlanMessage message, int32_t own_idx) {
    return message.row >= ex->placement->num_chunks ? ex->idx_of[message.row] : own_idx;
}

// `row` of the plan: of the message, the one it is the input of.
static int32_t executor_tag(const Executor* ex, int32_t mb, int32_t row, int32_t message_kind) {
    return (mb * ex->most_places + ex->place_of[row]) * 3 + message_kind;
}

// What an instruction is about as this rank sees it: a row, and of a transfer or wait a link of it, with the
// tag of the row whose input it is.
typedef struct {
    int32_t idx;
    Link link;
    int32_t tag;
    bool is_send;
} End;

static End end_of(const Executor* ex, const PlanInstr* instr) {
    static const Link links[PLAN_MESSAGE_KINDS][2] = {
        {LINK_IN, LINK_OUT}, {LINK_DOUT, LINK_DIN}, {LINK_FACT, LINK_FACT}};
    PlanMessage message;
    End end = {ex->idx_of[instr->chunk], LINK_IN, 0, !plan_instr_is_recv(instr->kind)};
    if (plan_message_of(&message, ex->placement, ex->num_stages, instr)) {
        end.idx = message_idx(ex, message, end.idx);
        end.link = links[message.kind][end.is_send];
        end.tag = executor_tag(ex, instr->mb, message.row, message.kind);
    }
    return end;
}

static int64_t link_bytes(const Row* row, const RowState* state, Link link) {
    bool is_grad = link == LINK_DIN || link == LINK_DOUT;
    if (link == LINK_FACT) { return state->fact_bytes; }
    if (row->is_share) { return is_grad ? state->grad_bytes : state->in_bytes; }
    return link == LINK_IN || link == LINK_DIN ? state->in_bytes : state->out_bytes;
}

// Where a row's data are: in which buffer, of which row of this rank, at which offset. idx -1: nowhere.
typedef struct {
    int32_t idx;
    BufferKind kind;
    int64_t at_bytes;
} Place;

static Place link_place(const Executor* ex, int32_t idx, int32_t mb, Link link) {
    static const Place nowhere = {-1, BUFFER_IN, 0};
    const Row* row = &ex->rows[idx];
    int64_t part_at = row->is_share ? executor_state(ex, idx, mb)->part_at : 0;
    if (row->is_share && link == LINK_OUT) { link = LINK_IN; }
    if (row->is_share && link == LINK_DOUT) { link = LINK_DIN; }
    switch (link) {
        case LINK_IN:
            if (row->is_first) { return nowhere; }
            if (!row->is_share || row->prev < 0) { return (Place){idx, BUFFER_IN, 0}; }
            return (Place){row->prev, BUFFER_OUT, part_at};
        case LINK_OUT:
            if (row->is_end) { return nowhere; }
            return row->next >= 0 ? (Place){row->next, BUFFER_IN, 0} : (Place){idx, BUFFER_OUT, 0};
        case LINK_DIN:
            if (row->is_first) { return nowhere; }
            if (row->prev < 0) { return (Place){idx, BUFFER_DIN, 0}; }
            if (executor_by_vocabulary(ex, row)) { return (Place){idx, BUFFER_PART, 0}; }
            return (Place){row->prev, BUFFER_DOUT, part_at};
        case LINK_DOUT: return row->is_end ? nowhere : (Place){idx, BUFFER_DOUT, 0};
        default: return executor_by_vocabulary(ex, row) ? (Place){idx, BUFFER_FACT, 0} : nowhere;
    }
}

static unsigned char* link_data(const Executor* ex, int32_t idx, int32_t mb, Link link) {
    Place place = link_place(ex, idx, mb, link);
    unsigned char* begin = place.idx < 0 ? NULL : executor_state(ex, place.idx, mb)->buffer[place.kind];
    return begin == NULL ? NULL : begin + place.at_bytes;
}

// === checks of a rank's list against its models, before anything is sent (plan_check has passed it) ===

#define X(name, text) text,
static const char* const buffer_text[] = {BUFFER_LIST(X)};
#undef X

// --- buffers ---------------------------------------------------------------------------------------------
static Status place_buffers(Executor* ex, const PlanRank* rank) {
    const ExecutorStep* step = ex->step;
    ex->scratch = NULL;
    ex->scratch_bytes = 0;
    if (rank->arena_bytes > step->arena_bytes || (uintptr_t)step->arena % PLAN_BUFFER_ALIGN != 0) {
        return FAIL(
            STATUS_INVALID_PLAN,
            "rank %d: the plan lays out %lld bytes, the arena has %lld at %p (needs a multiple of %d)",
            (int)ex->rank, (long long)rank->arena_bytes, (long long)step->arena_bytes, step->arena,
            (int)PLAN_BUFFER_ALIGN);
    }
    for (int32_t i = 0; i < rank->num_buffers; i++) {
        const PlanBuffer* b = &rank->buffers[i];
        unsigned char* place = (unsigned char*)step->arena + b->offset_bytes;
        if (b->kind == BUFFER_SCRATCH) {
            ex->scratch = place;
            ex->scratch_bytes = b->num_bytes;
        } else {
            RowState* state = executor_state(ex, ex->idx_of[b->chunk], b->mb);
            state->buffer[b->kind] = place;
            state->buffer_bytes[b->kind] = b->num_bytes;
        }
    }
    return STATUS_OK;
}

static Status need_buffer(const Executor* ex, const PlanInstr* instr, int32_t idx, BufferKind kind,
                          int64_t num_bytes) {
    int64_t has_bytes =
        kind == BUFFER_SCRATCH ? ex->scratch_bytes : executor_state(ex, idx, instr->mb)->buffer_bytes[kind];
    if (num_bytes <= has_bytes) { return STATUS_OK; }
    return FAIL(
        STATUS_INVALID_PLAN,
        "rank %d: %s needs %lld bytes of %s, the plan gives %lld ---> its bytes must come from counts as "
        "dynapipe.h describes: see what dynapipe_check_model() finds",
        (int)ex->rank, TRANSFER_WORDS(&ex->transfers, instr), (long long)num_bytes, buffer_text[kind],
        (long long)has_bytes);
}

// The link's data have the length they need.
static Status need_link(const Executor* ex, const PlanInstr* instr, int32_t idx, Link link) {
    Place place = link_place(ex, idx, instr->mb, link);
    if (place.idx < 0) { return STATUS_OK; }
    int64_t num_bytes = link_bytes(&ex->rows[idx], executor_state(ex, idx, instr->mb), link);
    return need_buffer(ex, instr, place.idx, place.kind, place.at_bytes + num_bytes);
}

// The piece's keys and values, and their gradients, are with the sample's first piece.
static Status need_kept(const Executor* ex, const PlanInstr* instr, int32_t idx) {
    const Row* row = &ex->rows[idx];
    PlanInstr first = *instr;
    first.mb = plan_first_piece(ex->step->plan, instr->mb);
    for (int is_gradient = 0; is_gradient < 2; is_gradient++) {
        TRY(need_buffer(ex, &first, idx, is_gradient ? BUFFER_DKEPT : BUFFER_KEPT,
                        row->api->kept_bytes(row->model, executor_batch(ex, idx, instr->mb), is_gradient)));
    }
    return STATUS_OK;
}

// A share by rows without rows in this microbatch runs nothing.
static Status need_for_forward(const Executor* ex, const PlanInstr* instr, int32_t idx) {
    const Row* row = &ex->rows[idx];
    const DynapipeBatch* batch = executor_batch(ex, idx, instr->mb);
    bool keeps = instr->kind == INSTR_REC || !executor_state(ex, idx, instr->mb)->has_rec;
    if (!row->is_share || batch->num_rows > 0) {
        TRY(need_buffer(ex, instr, idx, keeps ? BUFFER_ACTS : BUFFER_FORWARD,
                        row->api->acts_bytes(row->model, batch, keeps ? KEEP | HEAD : 0)));
        TRY(need_buffer(ex, instr, idx, BUFFER_SCRATCH, row->api->scratch_bytes(row->model, batch)));
    }
    if (!row->is_share && plan_has_piece(ex->step->plan, instr->mb)) { TRY(need_kept(ex, instr, idx)); }
    TRY(need_link(ex, instr, idx, LINK_IN));
    if (row->is_share) { return need_link(ex, instr, idx, LINK_DIN); }
    return instr->kind == INSTR_FWD ? need_link(ex, instr, idx, LINK_OUT) : STATUS_OK;
}

// Every buffer of the instruction exists and is large enough for this model.
static Status check_buffers(const Executor* ex, const PlanInstr* instr) {
    const End end = end_of(ex, instr);
    switch (instr->kind) {
        case INSTR_FWD:
        case INSTR_REC: return need_for_forward(ex, instr, end.idx);
        case INSTR_WGT:
            return need_link(ex, instr, end.idx, ex->rows[end.idx].is_share ? LINK_FACT : LINK_DOUT);
        case INSTR_BWD: break;
        default: return need_link(ex, instr, end.idx, end.link);
    }
    TRY(need_link(ex, instr, end.idx, LINK_DIN));
    TRY(need_link(ex, instr, end.idx, LINK_DOUT));
    for (int32_t i = 0; ex->rows[end.idx].feeds && i < ex->num_rows; i++) {
        if (!executor_by_vocabulary(ex, &ex->rows[i])) { continue; }
        TRY(need_link(ex, instr, i, LINK_DIN));
        TRY(need_link(ex, instr, i, LINK_FACT));
    }
    return STATUS_OK;
}

// --- all of it -------------------------------------------------------------------------------------------
// Lengths of all rows, since each looks at its neighbours'.
static void meet_batch(Executor* ex, int32_t m, const DynapipeBatch* b) {
    for (int32_t i = 0; i < ex->num_rows; i++) {
        executor_measure(ex, i, b, executor_state(ex, i, m));
        if (!ex->rows[i].is_share && plan_has_piece(ex->step->plan, m)) { executor_keep(ex, i, m, b); }
    }
}

// === calls of the model ===

// Around a call of the model. before_ns: when the rank turned to this job.
static Status executor_job_begin(Executor* ex, TraceEvent** out, const PlanInstr* instr, int64_t before_ns) {
    const DynapipeDevice_v1* device = ex->device.api;
    TRY(transfers_wait_for_room(&ex->transfers));
    TraceEvent* event = *out = transfers_event(&ex->transfers, instr);
    event->wait_ns = event->begin_ns - before_ns;
    TRY(job_marks_open(&ex->transfers.jobs, (int32_t)(event - ex->transfers.trace.events)));
    if (device != NULL && device->range_begin != NULL) {
        device->range_begin(ex->device.ctx, TRANSFER_WORDS(&ex->transfers, instr));
    }
    return STATUS_OK;
}

// rc: what the model returned.
static Status executor_job_end(Executor* ex, const Row* row, TraceEvent* event, int rc) {
    const DynapipeDevice_v1* device = ex->device.api;
    if (device != NULL && device->range_end != NULL) { device->range_end(ex->device.ctx); }
    event->end_ns = clock_now_ns();
    if (device == NULL) { ex->transfers.trace.busy_ns += event->end_ns - event->begin_ns; }
    if (rc == 0) { return job_marks_close(&ex->transfers.jobs); }
    Status status = rc > 0 && rc < STATUS_COUNT ? (Status)rc : STATUS_OUT_OF_RANGE;
    return FAIL(status, "rank %d: %s: the model %s returned error %d", (int)ex->rank,
                TRANSFER_WORDS(&ex->transfers, event), row->api->name, rc);
}

// A share of the head computes the gradient of its inputs at once.
static int forward(const Executor* ex, int32_t idx, const PlanInstr* instr) {
    const Row* row = &ex->rows[idx];
    const RowState* state = executor_state(ex, idx, instr->mb);
    const DynapipeBatch* batch = executor_batch(ex, idx, instr->mb);
    const bool is_again = instr->kind == INSTR_REC, drops = state->has_rec && !is_again;
    void *in = link_data(ex, idx, instr->mb, LINK_IN), *out = NULL,
         *acts = state->buffer[drops ? BUFFER_FORWARD : BUFFER_ACTS];
    float* losses = NULL;
    if (!row->is_share && !is_again) { out = link_data(ex, idx, instr->mb, LINK_OUT); }
    if (executor_by_rows(ex, row) || (row->is_end && !drops)) {
        losses = ex->step->losses[instr->mb] + state->first_row;
    }
    int rc =
        row->api->forward(row->model, batch, in, out, acts, ex->scratch, losses, drops ? 0 : KEEP | HEAD);
    if (rc != 0 || !row->is_share) { return rc; }
    return row->api->backward_inputs(row->model, batch, in, acts, NULL,
                                     link_data(ex, idx, instr->mb, LINK_DIN), ex->scratch);
}

// From the parts of a head shared by vocabulary to the gradient of its inputs; by rows the parts are that
// gradient.
static int combine(const Executor* ex, int32_t idx, int32_t mb) {
    const Row* row = &ex->rows[idx];
    const void* parts[PLAN_MAX_STAGES];
    void* factors[PLAN_MAX_STAGES];
    int32_t num_parts = 0;
    for (int32_t i = 0; i < ex->num_rows; i++) {
        if (!executor_by_vocabulary(ex, &ex->rows[i])) { continue; }
        parts[num_parts] = link_data(ex, i, mb, LINK_DIN);
        factors[num_parts++] = link_data(ex, i, mb, LINK_FACT);
    }
    if (num_parts == 0 || ex->step->batches[mb]->num_rows == 0) { return 0; }
    return row->api->combine(row->model, ex->step->batches[mb], num_parts, parts,
                             link_data(ex, idx, mb, LINK_DOUT), factors, ex->step->losses[mb]);
}

static int backward(const Executor* ex, int32_t idx, int32_t mb) {
    const Row* row = &ex->rows[idx];
    const RowState* state = executor_state(ex, idx, mb);
    const DynapipeBatch* batch = executor_batch(ex, idx, mb);
    void *acts = state->buffer[BUFFER_ACTS], *dout = link_data(ex, idx, mb, LINK_DOUT);
    int rc = row->feeds ? combine(ex, idx, mb) : 0;
    if (rc != 0) { return rc; }
    rc = row->api->backward_inputs(row->model, batch, link_data(ex, idx, mb, LINK_IN), acts, dout,
                                   link_data(ex, idx, mb, LINK_DIN), ex->scratch);
    if (rc != 0 || state->has_wgt || row->api->backward_weights == NULL) { return rc; }
    return row->api->backward_weights(row->model, batch, acts, dout, ex->scratch);
}

static int backward_weights(const Executor* ex, int32_t idx, int32_t mb) {
    const Row* row = &ex->rows[idx];
    if (row->api->backward_weights == NULL) { return 0; }
    return row->api->backward_weights(
        row->model, executor_batch(ex, idx, mb), executor_state(ex, idx, mb)->buffer[BUFFER_ACTS],
        link_data(ex, idx, mb, row->is_share ? LINK_FACT : LINK_DOUT), ex->scratch);
}

static int call_model(const Executor* ex, int32_t idx, const PlanInstr* instr) {
    if (ex->rows[idx].is_share && executor_batch(ex, idx, instr->mb)->num_rows == 0) { return 0; }
    switch (instr->kind) {
        case INSTR_FWD:
        case INSTR_REC: return forward(ex, idx, instr);
        case INSTR_BWD: return backward(ex, idx, instr->mb);
        default: return backward_weights(ex, idx, instr->mb);
    }
}

// Waits until the job's inputs have arrived. The inputs of a recomputation came before its forward.
static Status wait_for_inputs(Executor* ex, int32_t idx, const PlanInstr* instr) {
    static const Link links[PLAN_MESSAGE_KINDS] = {LINK_IN, LINK_DOUT, LINK_FACT};
    PlanMessage reads[PLAN_MAX_MESSAGES];
    JobKind kind = plan_instr_job((InstrKind)instr->kind);
    int32_t num_reads = plan_job_reads(reads, ex->placement, ex->num_stages, kind, ex->rows[idx].row);
    for (int32_t i = 0; i < num_reads; i++) {
        if (plan_message_maker(ex->placement, reads[i]).stage == ex->stage) { continue; }
        RowState* state = executor_state(ex, message_idx(ex, reads[i], idx), instr->mb);
        TRY(transfers_wait(&ex->transfers, &state->transfer[links[reads[i].kind]], instr));
    }
    return STATUS_OK;
}

static Status executor_run_job(Executor* ex, const PlanInstr* instr) {
    int32_t idx = ex->idx_of[instr->chunk];
    int64_t before_ns = clock_now_ns();
    TRY(wait_for_inputs(ex, idx, instr));
    TraceEvent* event;
    TRY(executor_job_begin(ex, &event, instr, before_ns));
    return executor_job_end(ex, &ex->rows[idx], event, call_model(ex, idx, instr));
}

// === a step ===

Status executor_create(Executor** out, const ExecutorRange* ranges, int32_t num_ranges, Transport* transport,
                       int64_t timeout_ns) {
    Executor* ex = (Executor*)calloc(1, sizeof *ex);
    if (ex != NULL) { ex->ranges = (ExecutorRange*)calloc((size_t)num_ranges, sizeof *ex->ranges); }
    if (ex == NULL || ex->ranges == NULL) {
        free(ex);
        return FAIL(STATUS_NO_MEMORY, "executor: no memory");
    }
    memcpy(ex->ranges, ranges, (size_t)num_ranges * sizeof *ranges);
    ex->num_ranges = num_ranges;
    ex->transfers.transport = transport;
    ex->transfers.timeout_ns = timeout_ns;
    ex->rank = transport->rank;
    *out = ex;
    return STATUS_OK;
}

void executor_free(Executor* ex) {
    if (ex == NULL) { return; }
    transfers_free(&ex->transfers);
    free(ex->states);
    free(ex->ranges);
    free(ex);
}

void executor_use_device(Executor* ex, Device device) {
    ex->device = device;
    ex->transfers.jobs.device = device;
}

void executor_position(const Executor* ex, char* out, size_t out_bytes) {
    transfers_position(&ex->transfers, out, out_bytes);
}

const TraceRank* executor_trace(const Executor* ex) {
    return &ex->transfers.trace;
}

void executor_trace_add(Executor* ex, TraceKind kind, int64_t begin_ns, int64_t end_ns) {
    TraceRank* trace = &ex->transfers.trace;
    if (trace->num_events >= ex->transfers.max_events) { return; }
    trace->events[trace->num_events++] = (TraceEvent){
        .kind = (int32_t)kind, .chunk = -1, .mb = -1, .peer = -1, .begin_ns = begin_ns, .end_ns = end_ns};
    if (end_ns > trace->end_ns) { trace->end_ns = end_ns; }
}

// Room for M microbatches, kept for the next step.
static Status reserve_states(Executor* ex, int32_t M) {
    int64_t num_states = (int64_t)M * ex->num_rows;
    if (num_states > ex->max_states) {
        free(ex->states);
        ex->states = (RowState*)malloc((size_t)num_states * sizeof *ex->states);
        ex->max_states = ex->states == NULL ? 0 : num_states;
        if (ex->states == NULL) { return FAIL(STATUS_NO_MEMORY, "executor: %d microbatches", (int)M); }
    }
    if (num_states > 0) { memset(ex->states, 0, (size_t)num_states * sizeof *ex->states); }
    return STATUS_OK;
}

// --- instructions ----------------------------------------------------------------------------------------
static Status run_transfer(Executor* ex, const PlanInstr* instr) {
    const End end = end_of(ex, instr);
    RowState* state = executor_state(ex, end.idx, instr->mb);
    return transfers_post(&ex->transfers, instr, end.tag, link_data(ex, end.idx, instr->mb, end.link),
                          link_bytes(&ex->rows[end.idx], state, end.link), &state->transfer[end.link]);
}

static Status run_wait(Executor* ex, const PlanInstr* instr) {
    const End end = end_of(ex, instr);
    TraceEvent* event = transfers_event(&ex->transfers, instr);
    TRY(transfers_wait(&ex->transfers, &executor_state(ex, end.idx, instr->mb)->transfer[end.link], instr));
    event->end_ns = clock_now_ns();
    event->wait_ns = event->end_ns - event->begin_ns;
    return STATUS_OK;
}

Status executor_prepare_step(Executor* ex, const ExecutorStep* step, StepClaim* claim) {
    const Plan* plan = step->plan;
    const PlanRank* rank = &plan->ranks[ex->rank];
    ex->step = step;
    executor_place(ex, &plan->placement, plan->P);
    int32_t most_mbs = TAG_FORWARD / 3 / ex->most_places;
    if (plan->M >= most_mbs) {
        return FAIL(STATUS_OUT_OF_RANGE,
                    "%d microbatches in a step, less than %d are supported ---> smaller -d or larger ones",
                    (int)plan->M, (int)most_mbs);
    }
    TRY(reserve_states(ex, plan->M));
    TRY(place_buffers(ex, rank));
    for (int32_t m = 0; m < plan->M; m++) {
        if (step->batches[m] != NULL) { meet_batch(ex, m, step->batches[m]); }
    }
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        const PlanInstr* instr = &rank->instrs[i];
        if (instr->kind > INSTR_REC) { continue; }
        RowState* state = executor_state(ex, ex->idx_of[instr->chunk], instr->mb);
        state->has_wgt |= instr->kind == INSTR_WGT;
        state->has_rec |= instr->kind == INSTR_REC;
    }
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        const PlanInstr* instr = &rank->instrs[i];
        TRY(check_buffers(ex, instr));
        if (instr->kind <= INSTR_REC || plan_instr_is_wait(instr->kind) || claim == NULL) { continue; }
        const End end = end_of(ex, instr);
        step_claim_add(&claim->with[instr->peer - ex->first_rank], end.is_send, end.tag,
                       link_bytes(&ex->rows[end.idx], executor_state(ex, end.idx, instr->mb), end.link));
    }
    return STATUS_OK;
}

static Status run_instr(Executor* ex, const PlanInstr* instr) {
    bool moved = false;
    if (ex->device.api == NULL) { TRY(transfers_poll(&ex->transfers, &moved)); }  // else the host runs ahead
    if (instr->kind <= INSTR_REC) { return executor_run_job(ex, instr); }
    return plan_instr_is_wait(instr->kind) ? run_wait(ex, instr) : run_transfer(ex, instr);
}

Status executor_start(Executor* ex) {
    const PlanRank* rank = &ex->step->plan->ranks[ex->rank];
    TRY(transfers_begin(&ex->transfers, rank->num_instrs + EXECUTOR_SPARE_EVENTS));
    for (int32_t i = 0; i < rank->num_instrs; i++) { TRY(run_instr(ex, &rank->instrs[i])); }
    return STATUS_OK;
}

Status executor_queue_begin(Executor* ex, TraceKind kind) {
    const PlanInstr none = {.kind = (uint8_t)kind, .chunk = -1, .mb = -1, .peer = -1};
    TraceEvent* event = transfers_event(&ex->transfers, &none);
    return job_marks_open(&ex->transfers.jobs, (int32_t)(event - ex->transfers.trace.events));
}

Status executor_queue_end(Executor* ex) {
    return job_marks_close(&ex->transfers.jobs);
}

Status executor_finish(Executor* ex) {
    TRY(transfers_finish(&ex->transfers));
    ex->transfers.trace.end_ns = clock_now_ns();
    TRY(job_marks_read(&ex->transfers.jobs, &ex->transfers.trace));
    for (int32_t i = 0; i < ex->num_ranges; i++) {
        const DynapipeModel_v1* api = ex->ranges[i].api;
        int rc = api->finish == NULL ? 0 : api->finish(ex->ranges[i].model);
        if (rc != 0) {
            return FAIL(STATUS_COMM, "rank %d: the model %s returned error %d at the end of a step",
                        (int)ex->rank, api->name, rc);
        }
    }
    return STATUS_OK;
}

// === forward only: validation, and generation with a cache ===
// Microbatch after microbatch passes through the chunks of one replica. A rank runs its rows in waves: in
// wave w chunk k runs batch w - k, shares of the head w - K, and their parts are combined in wave w - K - 1.
// The output of a wave is read in the next, so two inputs and two outputs of every row alternate, and the
// messages of a wave are the same set on all ranks: a transport with groups gets them as one, and no ranks
// wait for each other in a circle. In generation (one batch) the shares by vocabulary answer, or by rows the
// first of them, for all sequences; the last chunk's rank picks the best answer.
typedef struct {
    bool takes_part;              // generation uses only the first share by rows
    bool returns_part;            // a share whose part, or answer, the last chunk's rank combines with others
    bool has_in;                  // in a place of its own; a share that lies with the last chunk reads there
    bool has_out;                 // else it is in the input of the next row
    int64_t in, out;              // offsets in the arena
    int64_t in_bytes, out_bytes;  // of one of the two, rounded up
} PassRow;

typedef struct {
    Executor* ex;
    const ExecutorPass* of;
    bool infers;             // generation
    DynapipeBatch seq_rows;  // of generation: the batch as the hidden states have it, a row of each sequence
    PassRow rows[PLAN_MAX_ROWS];
    int64_t acts, scratch, end;  // offsets
} Pass;

static int64_t aligned(int64_t num_bytes) {
    return (num_bytes + PLAN_BUFFER_ALIGN - 1) / PLAN_BUFFER_ALIGN * PLAN_BUFFER_ALIGN;
}

static void raise_to(int64_t* largest, int64_t num_bytes) {
    if (aligned(num_bytes) > *largest) { *largest = aligned(num_bytes); }
}

// --- lengths and places ------------------------------------------------------------------------------------
static DynapipeBatch pass_batch(const Pass* pass, int32_t idx, int32_t b, int32_t* first) {
    const Row* row = &pass->ex->rows[idx];
    *first = 0;
    if (pass->infers) { return row->is_share ? pass->seq_rows : pass->of->batches[b]; }
    return executor_rows_of(pass->ex, row, &pass->of->batches[b], first);
}

static int64_t pass_in_bytes(const Pass* pass, int32_t idx, int32_t b) {
    const Row* row = &pass->ex->rows[idx];
    int32_t first;
    DynapipeBatch part = pass_batch(pass, idx, b, &first);
    return row->is_first ? 0 : row->api->boundary_bytes(row->model, &part, row->is_mine ? 0 : 1);
}

static int64_t pass_out_bytes(const Pass* pass, int32_t idx, int32_t b) {
    const Row* row = &pass->ex->rows[idx];
    const DynapipeBatch* batch = &pass->of->batches[b];
    if (row->is_end || (row->is_share && !pass->rows[idx].returns_part)) { return 0; }
    if (row->is_share && pass->infers) { return row->api->pick_bytes(row->model, &pass->seq_rows); }
    if (row->is_share) { return batch->num_rows > 0 ? row->api->part_bytes(row->model, batch, HEAD) : 0; }
    return row->api->boundary_bytes(row->model, row->feeds && pass->infers ? &pass->seq_rows : batch, 1);
}

static void pass_layout(Pass* pass) {
    const Executor* ex = pass->ex;
    const Placement* placement = ex->placement;
    const int32_t num_batches = pass->of->num_batches, num_each = num_batches > 1 ? 2 : 1;
    int64_t acts_bytes = 0, scratch_bytes = 0, at = 0;
    int32_t first_share = 0;
    while (first_share < ex->num_stages && !placement_has_share(placement, first_share)) { first_share++; }
    for (int32_t i = 0; i < ex->num_rows; i++) {
        const Row* row = &ex->rows[i];
        PassRow* places = &pass->rows[i];
        const bool by_rows = executor_by_rows(ex, row);
        *places = (PassRow){.takes_part = !pass->infers || !by_rows || row->stage == first_share,
                            .has_in = !row->is_first && !(row->is_share && row->prev >= 0),
                            .has_out = row->is_share || row->next < 0,
                            .in = at};
        places->returns_part = row->is_share && places->takes_part && (pass->infers || !by_rows);
        for (int32_t b = 0; b < num_batches && places->takes_part; b++) {
            int32_t first;
            DynapipeBatch part = pass_batch(pass, i, b, &first);
            if (places->has_in) { raise_to(&places->in_bytes, pass_in_bytes(pass, i, b)); }
            if (places->has_out) { raise_to(&places->out_bytes, pass_out_bytes(pass, i, b)); }
            if (row->is_mine && pass->infers) {
                raise_to(&scratch_bytes, row->api->infer_bytes(row->model, &pass->of->batches[b]));
            } else if (row->is_mine) {
                raise_to(&acts_bytes, row->api->acts_bytes(row->model, &part, HEAD));
                raise_to(&scratch_bytes, row->api->scratch_bytes(row->model, &part));
            }
        }
        places->out = at + num_each * places->in_bytes;
        at = places->out + num_each * places->out_bytes;
    }
    pass->acts = at;
    pass->scratch = at + acts_bytes;
    pass->end = pass->scratch + scratch_bytes;
}

static unsigned char* pass_at(const Pass* pass, int64_t offset) {
    return (unsigned char*)pass->of->arena + offset;
}

static unsigned char* pass_out(const Pass* pass, int32_t idx, int32_t b);

static unsigned char* pass_in(const Pass* pass, int32_t idx, int32_t b) {
    const Row* row = &pass->ex->rows[idx];
    const PassRow* places = &pass->rows[idx];
    RowState state = {0};
    if (row->is_first) { return NULL; }
    if (places->has_in) { return pass_at(pass, places->in + b % 2 * places->in_bytes); }
    if (!pass->infers) { executor_measure(pass->ex, idx, &pass->of->batches[b], &state); }
    return pass_out(pass, row->prev, b) + state.part_at;
}

static unsigned char* pass_out(const Pass* pass, int32_t idx, int32_t b) {
    const Row* row = &pass->ex->rows[idx];
    const PassRow* places = &pass->rows[idx];
    if (row->is_end || (row->is_share && !places->returns_part)) { return NULL; }
    if (!places->has_out) { return pass_in(pass, row->next, b); }
    return pass_at(pass, places->out + b % 2 * places->out_bytes);
}

// --- transfers -------------------------------------------------------------------------------------------
static bool has_batch(const Pass* pass, int32_t b) {
    return b >= 0 && b < pass->of->num_batches;
}

// The batch that a row runs in a wave.
static int32_t batch_in(const Executor* ex, const Row* row, int32_t wave) {
    return wave - (row->is_share ? ex->placement->num_chunks : row->row);
}

static Status pass_post(const Pass* pass, int32_t idx, int32_t b, InstrKind kind, int32_t stage, Link link) {
    Executor* ex = pass->ex;
    const Row* row = &ex->rows[idx];
    if (!has_batch(pass, b)) { return STATUS_OK; }
    bool is_part = kind == INSTR_SEND_GRAD || kind == INSTR_RECV_GRAD;
    bool is_next = !row->is_share && link == LINK_OUT;
    bool is_in = link == LINK_IN || (row->is_share && link == LINK_OUT);
    void* data = is_in ? pass_in(pass, idx, b) : pass_out(pass, idx, b);
    int64_t num_bytes = is_in ? pass_in_bytes(pass, idx, b) : pass_out_bytes(pass, idx, b);
    const PlanInstr instr = {
        .kind = (uint8_t)kind, .chunk = row->row, .mb = b, .peer = ex->first_rank + stage};
    return transfers_post(&ex->transfers, &instr,
                          TAG_FORWARD + executor_tag(ex, 0, row->row + is_next, is_part), data, num_bytes,
                          &executor_state(ex, idx, b)->transfer[link]);
}

// The inputs of this rank's rows in that wave, or their outputs. Hidden states go to every share on other
// ranks; their parts are read a wave after they are made.
static Status pass_exchange(const Pass* pass, int32_t wave, bool sends) {
    const Executor* ex = pass->ex;
    for (int32_t i = 0; i < ex->num_rows; i++) {
        const Row* row = &ex->rows[i];
        const bool returns = pass->rows[i].returns_part, comes = row->prev < 0 && !row->is_first;
        const int32_t b = batch_in(ex, row, wave);
        if (!pass->rows[i].takes_part) { continue; }
        if (!row->is_mine) {
            if (sends) { TRY(pass_post(pass, i, b + 1, INSTR_SEND_ACT, row->stage, LINK_OUT)); }
            if (!sends && returns) { TRY(pass_post(pass, i, b - 1, INSTR_RECV_GRAD, row->stage, LINK_DOUT)); }
        } else if (!sends && comes) {
            TRY(pass_post(pass, i, b, INSTR_RECV_ACT, row->prev_stage, LINK_IN));
        } else if (sends && row->is_share && comes && returns) {
            TRY(pass_post(pass, i, b, INSTR_SEND_GRAD, row->prev_stage, LINK_DIN));
        } else if (sends && !row->is_share && row->next_stage >= 0 && row->next < 0) {
            TRY(pass_post(pass, i, b, INSTR_SEND_ACT, row->next_stage, LINK_OUT));
        }
    }
    return STATUS_OK;
}

static Status pass_wait(const Pass* pass, int32_t idx, int32_t b, Link link, const Row* who) {
    const PlanInstr name = {.kind = INSTR_FWD, .chunk = who->row, .mb = b, .peer = -1};
    uint8_t* state = &executor_state(pass->ex, idx, b)->transfer[link];
    return *state == TRANSFER_NONE ? STATUS_OK : transfers_wait(&pass->ex->transfers, state, &name);
}

// --- jobs ------------------------------------------------------------------------------------------------
static int64_t cache_bytes(const Row* row, const DynapipeCache* cache) {
    return row->is_mine && !row->is_share ? aligned(row->api->cache_bytes(row->model, cache)) : 0;
}

static int call_infer(const Pass* pass, int32_t idx) {
    const ExecutorPass* of = pass->of;
    const Row* row = &pass->ex->rows[idx];
    DynapipeCache cache = *of->cache;
    for (int32_t i = 0; i < idx; i++) {
        cache.memory = (unsigned char*)cache.memory + cache_bytes(&pass->ex->rows[i], of->cache);
    }
    return row->api->infer(row->model, of->batches, row->is_share ? NULL : &cache, pass_in(pass, idx, 0),
                           pass_out(pass, idx, 0), pass_at(pass, pass->scratch),
                           row->is_end ? of->next : NULL);
}

static int call_forward(const Pass* pass, int32_t idx, int32_t b) {
    const Executor* ex = pass->ex;
    const Row* row = &ex->rows[idx];
    DynapipeBatch* part = &executor_state(ex, idx, b)->own;  // stays while the call is under way
    int32_t first;
    *part = pass_batch(pass, idx, b, &first);
    if (row->is_share && part->num_rows == 0) { return 0; }
    float* losses = row->is_end || executor_by_rows(ex, row) ? pass->of->losses[b] + first : NULL;
    return row->api->forward(row->model, part, pass_in(pass, idx, b), pass_out(pass, idx, b),
                             pass_at(pass, pass->acts), pass_at(pass, pass->scratch), losses, HEAD);
}

// The calls of generation may wait inside, without a timeout: everything arrives before.
static Status pass_job_begin(const Pass* pass, TraceEvent** event, const Row* row, int32_t b,
                             int64_t before_ns) {
    if (pass->infers) { TRY(transfers_finish(&pass->ex->transfers)); }
    const PlanInstr job = {.kind = INSTR_FWD, .chunk = row->row, .mb = b, .peer = -1};
    return executor_job_begin(pass->ex, event, &job, before_ns);
}

// Once its input is there, and its output's place, used by batch b - 2, is free.
static Status pass_run_row(const Pass* pass, int32_t idx, int32_t b) {
    const Executor* ex = pass->ex;
    const Row* row = &ex->rows[idx];
    int64_t before_ns = clock_now_ns();
    TraceEvent* event;
    TRY(pass_wait(pass, idx, b, LINK_IN, row));
    for (int32_t i = 0; i < ex->num_rows && b >= 2; i++) {
        if (i == idx || row->feeds) { TRY(pass_wait(pass, i, b - 2, LINK_OUT, row)); }
        if (i == idx) { TRY(pass_wait(pass, i, b - 2, LINK_DIN, row)); }
    }
    TRY(pass_job_begin(pass, &event, row, b, before_ns));
    int rc = pass->infers ? call_infer(pass, idx) : call_forward(pass, idx, b);
    return executor_job_end(pass->ex, row, event, rc);
}

// Losses from the parts of a head shared by vocabulary, or the likeliest token among the answers of its
// shares.
static Status pass_combine(const Pass* pass, int32_t b) {
    Executor* ex = pass->ex;
    const DynapipeBatch* batch = &pass->of->batches[b];
    const Row* last = NULL;
    const void* parts[PLAN_MAX_STAGES];
    int32_t num_parts = 0;
    int64_t before_ns = clock_now_ns();
    TraceEvent* event;
    for (int32_t i = 0; i < ex->num_rows; i++) {
        const Row* row = &ex->rows[i];
        if (row->feeds) { last = row; }
        if (last == NULL || !pass->rows[i].returns_part) { continue; }
        TRY(pass_wait(pass, i, b, LINK_DOUT, row));
        parts[num_parts++] = pass_out(pass, i, b);
    }
    if (num_parts == 0 || (pass->infers ? batch->num_seqs : batch->num_rows) == 0) { return STATUS_OK; }
    TRY(pass_job_begin(pass, &event, last, b, before_ns));
    int rc = pass->infers
                 ? last->api->pick(last->model, batch, num_parts, parts, pass->of->next)
                 : last->api->combine(last->model, batch, num_parts, parts, NULL, NULL, pass->of->losses[b]);
    return executor_job_end(ex, last, event, rc);
}

// --- waves -----------------------------------------------------------------------------------------------
static Status pass_wave(const Pass* pass, int32_t wave) {
    const Executor* ex = pass->ex;
    const Transport* transport = ex->transfers.transport;
    const bool has_groups = transport->api->group_begin != NULL;
    const int32_t combined = wave - ex->placement->num_chunks - 1;
    if (!has_groups) { TRY(pass_exchange(pass, wave + 1, false)); }
    if (has_batch(pass, combined)) { TRY(pass_combine(pass, combined)); }
    for (int32_t i = ex->num_rows - 1; i >= 0; i--) {  // a row's input is read before it is overwritten
        int32_t b = batch_in(ex, &ex->rows[i], wave);
        bool runs = ex->rows[i].is_mine && has_batch(pass, b) && pass->rows[i].takes_part;
        if (runs) { TRY(pass_run_row(pass, i, b)); }
    }
    if (has_groups) {
        TRY(transport->api->group_begin(transport->ctx));
        TRY(pass_exchange(pass, wave + 1, false));
    }
    TRY(pass_exchange(pass, wave, true));
    return has_groups ? transport->api->group_end(transport->ctx) : STATUS_OK;
}

static void pass_open(Pass* pass, Executor* ex, const ExecutorPass* of) {
    *pass = (Pass){.ex = ex, .of = of, .infers = of->cache != NULL};
    if (pass->infers) {
        pass->seq_rows = *of->batches;
        pass->seq_rows.num_rows = of->batches->num_seqs;
    }
    executor_place(ex, of->placement, of->num_stages);
    pass_layout(pass);
}

void executor_pass_bytes(int64_t* num_bytes, int64_t* num_cache_bytes, Executor* ex, const ExecutorPass* of) {
    Pass pass;
    pass_open(&pass, ex, of);
    *num_bytes = pass.end;
    for (int32_t i = 0; i < ex->num_rows && pass.infers; i++) {
        *num_cache_bytes += cache_bytes(&ex->rows[i], of->cache);
    }
}

// in and out are empty where the batch has no tokens for the layers on that side (an encoder that is done).
Status executor_run_pass(Executor* ex, const ExecutorPass* of) {
    Pass pass;
    pass_open(&pass, ex, of);
    if (pass.end > of->arena_bytes) {
        return FAIL(STATUS_OUT_OF_RANGE, "rank %d: a forward pass needs %lld bytes, the arena has %lld",
                    (int)ex->rank, (long long)pass.end, (long long)of->arena_bytes);
    }
    TRY(reserve_states(ex, of->num_batches));
    TRY(transfers_begin(&ex->transfers, 4 * of->num_batches * (ex->num_rows + 1) + EXECUTOR_SPARE_EVENTS));
    int32_t num_waves = of->num_batches + ex->placement->num_chunks + 1;
    for (int32_t wave = 0; wave < num_waves; wave++) { TRY(pass_wave(&pass, wave)); }
    return executor_finish(ex);
}
