/*
trace.h -- what every rank did and when; predicted and measured timelines in one Chrome/Perfetto file.

    TraceWriter writer;
    TRY(trace_writer_open(&writer, "trace.json"));
    TRY(trace_writer_add_step(&writer, &step));   // any number of steps
    TRY(trace_writer_close(&writer));

The file is Chrome's "Trace Event Format" (object form, complete events "X", times in microseconds): process
1 "predicted" and process 2 "measured", in each one row of jobs and one row of transfers per rank, events
named like plan lines ("fwd mb 3"), and a row of steps. Open it in ui.perfetto.dev or chrome://tracing.
"args" of a measured event say all that is known of it, in ns (begin_ns, end_ns, wait_ns), with what was
planned for it (planned_ns) and how much longer a job took (off_ns); those of a step its error and what of
that is jobs, transfers, waiting (session_errors.h). "otherData" has stages, replicas and every rank's clock:
its offset, which is taken off, and by how much that may be wrong. tool/trace_file.h reads the file back.
*/
#pragma once

#include <stdio.h>

#include "../base/arena.h"
#include "../base/status.h"
#include "../plan/lists/plan.h"
#include "session_errors.h"

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
    int32_t kind;  // InstrKind or TraceKind
    int32_t mb;    // -1: none
    int32_t peer;  // rank at the other end; -1 for jobs
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

// To bytes and back, for gathering on rank 0. The bytes of another build or a cut message are
// STATUS_BAD_FORMAT.
size_t trace_rank_packed_bytes(const TraceRank* rank);
void trace_rank_pack(const TraceRank* rank, void* out);
Status trace_rank_unpack(TraceRank* out, const void* data, size_t num_bytes, Arena* arena);

// Part of the plan's makespan in which that rank runs no job.
double trace_rank_idle_predicted(const Plan* plan, int32_t rank);

// Of a rank to rank 0's, and by how much that may be off.
typedef struct {
    int64_t offset_ns, error_ns;
} TraceClock;

typedef struct {
    int64_t step;
    const Plan* plan;
    uint64_t plan_hash;
    const SessionErrors* errors;  // NULL: not known
    const TraceClock* clocks;     // [num_ranks]; NULL: one clock
    const TraceRank* ranks;       // in any order, their times by rank 0's clock
    int32_t num_ranks;
} TraceStep;

#define TRACE_FORMAT "dynapipe-trace 1"

typedef struct {
    FILE* file;
    const char* path;   // borrowed
    int64_t origin_ns;  // clock value shown as time 0
    int32_t num_steps;
    bool any_event;
} TraceWriter;

Status trace_writer_open(TraceWriter* writer, const char* path);
// The predicted timeline of a step begins where its measured one begins.
Status trace_writer_add_step(TraceWriter* writer, const TraceStep* step);
Status trace_writer_close(TraceWriter* writer);  // an all-zero or closed writer is fine
