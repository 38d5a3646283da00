/*
trace_file.h -- reads a trace that training wrote (--trace, run/trace_writer.h) back: one step, what every rank did.

Whatever the file holds, what comes out is safe to work with: ranks, chunks, micro-batches and times are in
range, instructions are on the ranks where their chunks lie, no event ends before it begins.
*/
#pragma once

#include "../dynapipe_plugin/plan/lists/plan_message.h"
#include "../dynapipe_plugin/run/trace.h"

enum { TRACE_MAX_EVENTS = 1 << 22, TRACE_MAX_MBS = 1 << 16 };

typedef struct {
    TraceEvent event;
    int32_t row;         // plan_instr_row(); -1: of no micro-batch
    int64_t planned_ns;  // -1: not known
} TraceFileEvent;

typedef struct {
    int32_t num_events;
    TraceFileEvent* events;  // in the order they were started
} TraceFileRank;

typedef struct {
    int32_t P, R, M;      // M: beyond every micro-batch
    Placement placement;  // without layers
    int64_t step;
    char plan_hash[20], policy[32], schedule[32];
    bool has_errors;
    SessionErrors errors;
    TraceClock worst_clock;  // of the rank whose clock is known least
    TraceFileRank* ranks;    // [P * R]
} TraceFile;

// The first step of the file. STATUS_BAD_FORMAT names file and event.
Status trace_file_load(TraceFile* out, const char* path, Arena* arena);
