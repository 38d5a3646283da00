/*
trace_view.h -- reads a trace that training wrote (--trace, run/trace.h), runs its step again and explains it.

    begin(job) = max(end(job before it on its rank) + gap, end(job that makes a message it reads) + delay ...)

Jobs keep their measured durations. If a job waited for its messages, the one whose maker ended last explains
when it began: of its delay, at most the planned transfer time is the "wire", the rest is "late". Other
messages take at most the planned time. What a rank does between two jobs (posting, waiting until a buffer is
free) is the gap. So without changes every job ends when it did, and with changes the step is what it would
have been. After dPRO (Hu et al., arXiv 2205.02473). The step ends with the reduction of gradients; update and
exchange of parameters are left out.
*/
#pragma once

#include <jansson.h>

#include "../dynapipe_plugin/plan/plan_message.h"
#include "../dynapipe_plugin/run/trace.h"

// The time of the step by parts, along its critical path: kinds of jobs by instruction, then those of shares
// of the head, then the rest. The parts sum to the whole.
enum {
    TRACE_JOB_HEAD = INSTR_REC + 1,
    TRACE_JOB_HEAD_WEIGHTS,
    TRACE_PART_WIRE,
    TRACE_PART_LATE,
    TRACE_PART_BETWEEN,
    TRACE_PART_REDUCE,
    TRACE_PARTS
};

enum { TRACE_MAX_ROWS = 16, TRACE_MAX_MBS = 1 << 16 };

typedef struct TraceNode TraceNode;
typedef struct TraceEdge TraceEdge;

typedef struct {
    int32_t P, R, M;
    Placement placement;  // without layers
    int64_t step;
    char plan_hash[20], policy[32], schedule[32];
    bool has_errors;
    SessionErrors errors;
    int64_t clock_error_ns;  // of the rank with the least certain clock
    TraceNode* nodes;        // [num_nodes] jobs by their begin, then reductions
    TraceEdge* edges;
    int32_t num_nodes, num_edges;
    int64_t measured_ns, replayed_ns;
    int64_t part_ns[TRACE_PARTS];  // of the critical path
    int64_t* rank_jobs_ns;         // [P * R] of it
    int64_t late_jobs_ns;          // measured minus planned, over its jobs; signed
    int32_t *path, path_nodes;     // first to last
    int32_t num_rows;              // what if
    struct {
        char name[80];  // "link=2x"
        int64_t ns;     // duration of the step with the change
    } rows[TRACE_MAX_ROWS];
} TraceReplay;

// The first step of the file, which is checked: STATUS_BAD_FORMAT names file and event. what_if:
// "link=2x,rank=2:1.5x,jitter=0,jobs=planned,late=0", one row each; + combines changes: "link=2x+late=0";
// factors of the same link or rank multiply. NULL: a default set. STATUS_BAD_OPTION names the unknown word.
Status trace_replay_make(TraceReplay* out, const char* path, const char* what_if, Arena* arena);
void trace_replay_print(const TraceReplay* replay, FILE* out);

// For tool/report.html (a new reference): step, num_ranks, measured_ns, replayed_ns, errors {.._ns} if known,
// jobs and path [[rank, kind, begin, duration, planned, microbatch, piece, name]], parts and what_if [[name,
// ns]].
json_t* trace_replay_json(const TraceReplay* replay);
