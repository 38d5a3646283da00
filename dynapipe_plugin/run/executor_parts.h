/*
executor_parts.h -- the inside of an Executor: what its files share.

    executor.c          create, a step from begin to end, what it sends and receives
    executor_rows.c     which pieces of the model are here, whom each talks to, where its data lie
    executor_check.c    a plan against the model, before anything is sent
    executor_jobs.c     calls of the model
    executor_forward.c  forward only
    executor_infer.c    generation

A row is a chunk, or K + s, the head's share of stage s (plan.h). This rank has some; on the last chunk's rank
the shares of others are rows too, whose parts come there.
*/
#pragma once

#include <stdbool.h>

#include "executor.h"
#include "tags.h"
#include "transfers.h"

enum { EXECUTOR_SPARE_EVENTS = 8, KEEP = DYNAPIPE_FORWARD_KEEP, HEAD = DYNAPIPE_FORWARD_HEAD };

// OUT of a share, DOUT of a share: at the last chunk's end, its hidden states and its part.
typedef enum { LINK_IN, LINK_DOUT, LINK_OUT, LINK_DIN, LINK_FACT, LINK_COUNT } Link;

typedef struct {
    int16_t row, stage;
    bool is_mine;   // else another stage's share, seen from the last chunk
    bool is_share;  // of the head
    bool is_first;  // nothing goes in
    bool is_end;    // the last chunk, and it has the whole head
    bool feeds;     // the last chunk, and the head is shared
    // Rows of this rank, -1: elsewhere or none. A share's `before` is the last chunk.
    int16_t before, behind;
    int16_t before_stage, behind_stage;  // -1: none
    const DynapipeModel_v1* api;         // another's share: of the last chunk, which knows its lengths
    void* model;
} Row;

// What this rank knows of one micro-batch in one row in this step.
typedef struct {
    unsigned char* buffer[BUFFER_COUNT];  // NULL: none
    int64_t buffer_bytes[BUFFER_COUNT];
    DynapipeBatch part;            // a share by rows: the batch with its rows only
    int64_t part_at;               // and where these begin in (num_rows, C), in bytes
    int64_t in_bytes, out_bytes;   // of the activation before and behind
    int64_t grad_bytes;            // of a share: its part
    int64_t fact_bytes;            // its factors
    uint8_t transfer[LINK_COUNT];  // TransferState
    uint32_t seen;                 // while checking: bit per InstrKind that the list had so far
    bool present, has_wgt, has_rec;
} RowState;

struct Executor {
    ExecutorRange* ranges;  // [num_ranges]
    int32_t num_ranges;
    Transfers transfers;
    Device device;
    RowState* states;  // [num_mbs][num_rows]
    int64_t max_states;
    uint8_t* grouped;     // [max_instrs] transfer_groups.h
    int32_t* group_room;  // [max_instrs]
    int32_t max_instrs;
    int32_t rank;
    // of the step in progress
    const Placement* placement;
    int32_t stage, num_stages, first_rank;  // first_rank: of my replica
    Row rows[PLAN_MAX_ROWS];                // chunks ascending, then shares
    int32_t num_rows;
    int16_t idx_of[PLAN_MAX_ROWS];    // index in `rows` of a row of the plan, -1: not here
    int16_t place_of[PLAN_MAX_ROWS];  // index of a row among those of its stage
    int32_t most_places;              // rows of the stage that has most
    unsigned char* scratch;
    const ExecutorStep* step;
};

static inline RowState* executor_state(const Executor* ex, int32_t idx, int32_t mb) {
    return &ex->states[(int64_t)mb * ex->num_rows + idx];
}

// Room for a step of M micro-batches and num_events records; kept for the next.
Status executor_reserve(Executor* ex, int32_t M, int32_t num_events);

// --- executor_rows.c -------------------------------------------------------------------------------------
// Fills what stands under "of the step in progress". STATUS_INVALID_PLAN: another number of ranges, or a head
// that the model cannot share.
Status executor_place(Executor* ex, const Placement* placement, int32_t num_stages);
static inline bool executor_by_rows(const Executor* ex, const Row* row) {
    return row->is_share && ex->placement->head == HEAD_BY_ROWS;
}
static inline bool executor_by_vocabulary(const Executor* ex, const Row* row) {
    return row->is_share && ex->placement->head == HEAD_BY_VOCABULARY;
}
// The head's share of a batch: its own rows by rows, else all of them.
DynapipeBatch executor_rows_of(const Executor* ex, const Row* row, const DynapipeBatch* batch);
// By rows: which of the batch's rows its first one is.
int32_t executor_first_row(const Executor* ex, const Row* row, const DynapipeBatch* batch);
// What the state knows of lengths; batch: whole.
void executor_measure(const Executor* ex, int32_t idx, const DynapipeBatch* batch, RowState* out);
// The batch as a row's model gets it.
const DynapipeBatch* executor_batch(const Executor* ex, int32_t idx, int32_t mb);
// Row whose end of a transfer that is, -1: this rank has no part in it. fact, and what goes between the last
// chunk and a share: the share.
int32_t executor_end_of(const Executor* ex, const PlanInstr* instr);
// direction 0: activations, 1: gradients, 2: factors. `row` of the plan: of the transfer, the one it is the
// input of.
int32_t executor_tag(const Executor* ex, int32_t mb, int32_t row, int32_t direction);
// Where they lie; NULL: none.
unsigned char* executor_in(const Executor* ex, int32_t idx, int32_t mb);
unsigned char* executor_out(const Executor* ex, int32_t idx, int32_t mb);
unsigned char* executor_dout(const Executor* ex, int32_t idx, int32_t mb);
unsigned char* executor_din(const Executor* ex, int32_t idx, int32_t mb);

// --- executor_check.c ------------------------------------------------------------------------------------
Status executor_fail(const Executor* ex, const PlanInstr* instr, const char* why);
// The list against the model; buffers have their places then.
Status executor_prepare(Executor* ex, const PlanRank* rank, int32_t M);

// --- executor_jobs.c -------------------------------------------------------------------------------------
// Around a call of the model. before_ns: when the rank turned to this job. rc: what the model returned.
TraceEvent* executor_job_begin(Executor* ex, TransferName name, int64_t before_ns, Status* status);
Status executor_job_end(Executor* ex, const Row* row, TraceEvent* event, int rc);
Status executor_run_job(Executor* ex, const PlanInstr* instr);
