/*
trace.h -- what every rank did and when: records, their kinds, and their way to rank 0. trace_writer.h writes
them to a file.
*/
#pragma once

#include "../../util/arena.h"
#include "../../util/status.h"
#include "../plan/lists/plan.h"

// What a rank does besides its instructions.
typedef enum {
    TRACE_REDUCE = INSTR_COUNT,  // sum gradients over replicas and tied stages
    TRACE_UPDATE,                // optimizer
    TRACE_SHARE,                 // gather updated parameters
    TRACE_KIND_COUNT
} TraceKind;

// Jobs: begin when their inputs were there, wait_ns is how long they waited for that before. Transfers: from
// posting until this rank saw them done.
typedef struct {
    int32_t kind;   // InstrKind or TraceKind
    int32_t chunk;  // as in PlanInstr; -1: none
    int32_t mb;     // -1: none
    int32_t peer;   // rank at the other end; -1 for jobs
    int64_t begin_ns, end_ns, wait_ns;
} TraceEvent;

typedef struct {
    int32_t rank;
    int32_t num_events;
    TraceEvent* events;        // in the order they were started
    int64_t begin_ns, end_ns;  // of the step; same clock as the events
    int64_t busy_ns;           // inside jobs
    int64_t wait_ns;           // jobs and waits standing still for a transfer
} TraceRank;

const char* trace_kind_text(int32_t kind);  // "fwd", "send_act", "reduce" ...
bool trace_kind_is_job(int32_t kind);
bool trace_kind_is_transfer(int32_t kind);  // a send or a receive

// To bytes and back, for gathering on rank 0. The bytes of another build or a cut message are
// STATUS_BAD_FORMAT.
size_t trace_rank_packed_bytes(const TraceRank* rank);
void trace_rank_pack(const TraceRank* rank, void* out);
Status trace_rank_unpack(TraceRank* out, const void* data, size_t num_bytes, Arena* arena);

// Part of the plan's makespan in which that rank runs no job.
double trace_rank_idle_predicted(const Plan* plan, int32_t rank);
