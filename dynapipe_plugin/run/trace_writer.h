/*
trace_writer.h -- predicted and measured timelines of steps in one Chrome/Perfetto file.

    TraceWriter writer;
    TRY(trace_writer_open(&writer, "trace.json"));
    TRY(trace_writer_add_step(&writer, &step));   // any number of steps
    TRY(trace_writer_close(&writer));

The file is Chrome's "Trace Event Format" (object form, times in microseconds). Process 1 is "predicted",
process 2 "measured"; in each, every rank has a row of jobs, and rows of sends and of receives, as many as are
under way at once (trace_rows.h). Complete events "X" are named like plan lines ("fwd mb 3", and where stages
are more than one chunk each "fwd mb 3 chunk 5" or "fwd mb 3 head"); flow events "s" and "f" are the arrow
from a message's send to its receive; counters "C" are the bytes of a rank's buffers that are alive
(memory_curve.h, by the measured times of jobs where there are any). dev/check_trace.py says whether a file
keeps what viewers need. Open it in ui.perfetto.dev or chrome://tracing.

"args" of a measured event say all that is known of it, in ns (begin_ns, end_ns, wait_ns), with what was
planned for it (planned_ns) and how much longer a job took (off_ns); those of a step its error and what of
that is jobs, transfers, waiting (session_errors.h). "otherData" has stages, replicas, the placement of chunks
and every rank's clock: its offset, which is taken off, and by how much that may be wrong. tool/trace_file.h
reads the file back.
*/
#pragma once

#include <stdio.h>

#include "../plan/types/plan_request.h"
#include "session_errors.h"
#include "trace.h"

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
    const TraceRank* ranks;       // in any order, their times by rank 0's clock; NULL: nothing was measured
    int32_t num_ranks;
    MemoryRule memory_rule;  // which buffers the counters count
} TraceStep;

#define TRACE_FORMAT "dynapipe-trace 2"

typedef struct {
    FILE* file;
    const char* path;   // borrowed
    int64_t origin_ns;  // clock value shown as time 0
    int64_t num_arrows;
    int32_t num_steps;
    int32_t* num_named;  // [2 processes * ranks * TRACE_SIDES] rows that have a name
    bool any_event;
} TraceWriter;

Status trace_writer_open(TraceWriter* writer, const char* path);
// The predicted timeline of a step begins where its measured one begins.
Status trace_writer_add_step(TraceWriter* writer, const TraceStep* step);
Status trace_writer_close(TraceWriter* writer);  // an all-zero or closed writer is fine
