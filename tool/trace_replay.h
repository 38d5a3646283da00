/*
trace_replay.h -- a measured step explained: run again, its critical path, what would have made it shorter.

Shared by `./dynapipe replay --trace` (text) and `./dynapipe report --trace` (page).
*/
#pragma once

#include "trace_graph.h"

enum { TRACE_MAX_ROWS = 16 };

typedef struct {
    char name[80];    // "link=2x"
    char about[160];  // in words
    int64_t ns;       // what the step would have taken
} TraceRow;

typedef struct {
    TraceFile file;
    TraceGraph graph;
    int64_t replayed_ns;
    TracePath path;
    int32_t num_rows;
    TraceRow rows[TRACE_MAX_ROWS];
} TraceReplay;

// what_if: "link=2x,rank=2:1.5x,jitter=0,jobs=planned,late=0,order=FILE.plan", a row each; with + between
// them several at once: "link=2x+late=0"; factors of the same link or rank multiply. NULL: those that most
// often tell something. STATUS_BAD_OPTION names what it does not understand.
Status trace_replay_make(TraceReplay* out, const char* path, const char* what_if, Arena* arena);

// A part of the path in words, 0 .. TRACE_NUM_PARTS - 1; *ns: its length.
enum { TRACE_NUM_PARTS = 10 };
const char* trace_replay_part(const TraceReplay* replay, int32_t part, int64_t* ns);

void trace_replay_print(const TraceReplay* replay, FILE* out);
