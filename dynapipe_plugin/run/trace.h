/*
trace.h -- what every rank did and when; a step's error; the file of --trace.
*/
#pragma once

#include <stdio.h>
#include "../plan/plan.h"
#include "../plan/types.h"
#include "../../util/arena.h"
#include "../../util/status.h"

// Work of a rank besides its instructions.
typedef enum {
    TRACE_REDUCE = INSTR_COUNT,  // sum gradients over replicas and tied stages
    TRACE_UPDATE,                // optimizer
    TRACE_SHARE,                 // gather updated parameters
    TRACE_KIND_COUNT
} TraceKind;

// Jobs: begin when their inputs were there, wait_ns is the wait for them before. Transfers: from posting
// until this rank saw them done.
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
    TraceEvent* events;        // one of each instruction of the rank's list, in its order, then others
    int64_t begin_ns, end_ns;  // of the step; same clock as the events
    int64_t busy_ns;           // inside jobs
    int64_t wait_ns;           // jobs, and waits for transfers
} TraceRank;

const char* trace_kind_text(int32_t kind);  // "fwd", "send_act", "reduce" ...

// Part of the plan's makespan in which that rank runs no job.
double trace_rank_idle_predicted(const Plan* plan, int32_t rank);

// --- a step's error --------------------------------------------------------------------------------------
// By how much a step took longer than predicted, and whether jobs, transfers or waiting did: the time that
// the step would have lost by each alone, in the plan's order (m: measured, p: predicted).
//
//     measured - predicted = jobs + transfers + waiting          > 0: the step took longer
//     jobs       makespan(jobs m, transfers p) - makespan(jobs p, transfers p)
//     transfers  makespan(jobs m, transfers m) - makespan(jobs m, transfers p)
//     waiting    the rest: sends that block, messages that begin late, planning, first touch of memory,
//                reduction, the update
//
// The whole step is measured: from its beginning, the wait for its plan included, until parameters are
// updated. A transfer took: from when both ends had posted it until its receiver saw it done; of that, beyond
// what was planned, only time in which neither end was inside a job (where the transport moves data by
// itself, all of it).

typedef struct {
    int64_t predicted_ns, measured_ns;
    int64_t jobs_ns, transfers_ns, waiting_ns;  // signed; together measured - predicted
} SessionErrors;

// Of one instruction of the plan: jobs from begin to end, transfers from posting until seen done. Both 0: it
// did not run.
typedef struct {
    int64_t begin_ns, end_ns;
} SessionSpan;

// What one replica did. All times by one clock.
typedef struct {
    const Plan* plan;
    int32_t replica;
    const SessionSpan* const* spans;  // [P][num_instrs]
    bool moves_alone;                 // transfers, while jobs run
} SessionSpans;

// Fills jobs_ns and transfers_ns.
Status session_errors_split(SessionErrors* out, const SessionSpans* replica, Arena* scratch);

// Of a part, or of measured - predicted: as a part of what was predicted. 0 where nothing was.
double session_errors_part(const SessionErrors* errors, int64_t part_ns);

// --- the file ----------------------------------------------------------------------------------------------
// The predicted and the measured timeline of a step in Chrome's "Trace Event Format" (object form, times in
// microseconds): open it in ui.perfetto.dev or chrome://tracing.
//
//     rank 0             | fwd 0 | fwd 1 |       | bwd 0 |     process 1 is "predicted", process 2 "measured"
//     rank 0 sends       |       | act 0 | act 1 |
//     rank 0 receives    |  grad 0 ...                  |      a row has one event at a time:
//     rank 0 receives 2  |           grad 1 ...         |      what overlaps gets a row of its own
//
// Events "X" are named like plan lines ("fwd mb 3", "fwd mb 3 chunk 5"); "s" and "f" are the arrow from a
// message's send to its receive; counters "C" are the bytes of a rank's buffers that are alive, by the times
// of its jobs. "args" of a measured event have its wait and what was planned. dev/check_trace.py checks a
// file.

// ranks: [P * R] in any order, their times by one clock.
Status trace_write(const char* path, int64_t step, const Plan* plan, const TraceRank* ranks);
