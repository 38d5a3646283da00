/*
executor_parts.h -- the inside of an Executor: what executor.c (a plan's list) and executor_forward.c share.
*/
#pragma once

#include <stdbool.h>

#include "executor.h"
#include "tags.h"
#include "transfers.h"

enum { EXECUTOR_SPARE_EVENTS = 8, KEEP = DYNAPIPE_FORWARD_KEEP, HEAD = DYNAPIPE_FORWARD_HEAD };

typedef enum { LINK_IN, LINK_DOUT, LINK_OUT, LINK_DIN, LINK_COUNT } Link;

// What this rank knows of one micro-batch in this step.
typedef struct {
    unsigned char* buffer[BUFFER_COUNT];  // NULL: none
    int64_t buffer_bytes[BUFFER_COUNT];
    int64_t in_bytes, out_bytes;   // of the activation before and behind this stage
    uint8_t transfer[LINK_COUNT];  // TransferState
    uint32_t seen;                 // while checking: bit per InstrKind that the list had so far
    bool present, has_wgt, has_rec;
} MbState;

struct Executor {
    const DynapipeModel_v1* api;
    void* model;
    Transfers transfers;
    Device device;
    MbState* mbs;
    int32_t max_mbs;
    uint8_t* grouped;     // [max_instrs] transfer_groups.h
    int32_t* group_room;  // [max_instrs]
    int32_t max_instrs;
    int32_t rank, stage, num_stages;  // of the step in progress
    unsigned char* scratch;
    const ExecutorStep* step;
};

// Room for a step of M micro-batches and num_instrs instructions; kept for the next.
Status executor_reserve(Executor* ex, int32_t M, int32_t num_instrs);
// Around a call of the model. before_ns: when the rank turned to this job. rc: what the model returned.
TraceEvent* executor_job_begin(Executor* ex, int32_t kind, int32_t mb, int64_t before_ns, Status* status);
Status executor_job_end(Executor* ex, TraceEvent* event, int rc);
