/*
trace_view.h -- reads a trace that training wrote (--trace, run/trace.h), replays the step and explains it.
The reader validates everything: ranks, chunks, microbatches and times are in range, instructions are on the
ranks of their chunks, no event ends before it begins.
*/
#pragma once

#include <jansson.h>

#include "../dynapipe_plugin/plan/plan_message.h"
#include "../dynapipe_plugin/run/trace.h"

enum { TRACE_MAX_EVENTS = 1 << 22, TRACE_MAX_MBS = 1 << 16 };

typedef struct {
    TraceEvent event;
    int32_t row;         // plan_instr_row(); -1: without a microbatch
    int64_t planned_ns;  // -1: not known
} TraceFileEvent;

typedef struct {
    int32_t num_events;
    TraceFileEvent* events;  // in the order they were started
} TraceFileRank;

typedef struct {
    int32_t P, R, M;      // M: larger than every microbatch
    Placement placement;  // without layers
    int64_t step;
    char plan_hash[20], policy[32], schedule[32];
    bool has_errors;
    SessionErrors errors;
    TraceClock worst_clock;  // of the rank with the least certain clock
    TraceFileRank* ranks;    // [P * R]
} TraceFile;

// The first step of the file. STATUS_BAD_FORMAT names file and event.
Status trace_file_load(TraceFile* out, const char* path, Arena* arena);

// --- the step as a graph -----------------------------------------------------------------------------------
/*
A measured step as a graph of its jobs, waits and messages: its critical path, and replays with changed
durations. After dPRO (Hu et al., arXiv 2205.02473).

    end(node) = max(end(previous) + gap, end(other nodes that it waits for) ...) + duration

Every event comes after the previous one on its rank, `gap` later (the executor's work in between). A job also
waits for its message, a wait_* for the end of its send. A message begins when both ends have posted it. If it
was detected right after a job of one of them, it begins after that job; so transfers during computation are
not delayed. It lasts until its reader continued: at most the planned transfer time is its "wire" time, the
rest is "late". If no rank waited for it, its arrival is unknown and it takes the planned time.

Without changes every node ends at its measured time, up to clock differences between hosts. The graph covers
the step from its begin to the gradient reduction; update and parameter exchange are left out.
*/

typedef enum {
    NODE_BEGIN,
    NODE_JOB,
    NODE_POST,     // of a send or receive
    NODE_WAIT,     // wait_act, wait_grad
    NODE_REDUCE,   // gradient reduction
    NODE_MESSAGE,  // until its reader has it
    NODE_RELEASE,  // until its sender's buffer is free
} TraceNodeKind;

// Kinds of jobs: by instruction, then those of head shares.
enum { TRACE_JOB_HEAD = INSTR_REC + 1, TRACE_JOB_HEAD_WEIGHTS, TRACE_JOB_COUNT };

typedef struct {
    uint8_t kind;             // TraceNodeKind
    uint8_t event_kind;       // InstrKind or TraceKind
    uint8_t job;              // TRACE_JOB_* of a job
    int32_t rank, mb;         // of a message: its receiver
    int32_t row;              // plan_instr_row(); -1: of no microbatch
    int32_t previous;         // of a message: the post of its send
    int32_t edges;            // the first of the others; 0: none
    int64_t gap_ns;           // after `previous`; may be negative for a post: a device runs jobs meanwhile
    int64_t ns, late_ns;      // duration; of a message without its lateness
    int64_t planned_ns;       // -1: not known
    int64_t measured_ns;      // its end in the trace, from the begin of the step
    const TraceEvent* event;  // NULL: none of its own
    int64_t end_ns;           // after a run
    int32_t because;          // the node that was the last to finish of those before it
} TraceNode;

typedef struct {
    int32_t before, next;  // next edge of the same node; 0: none
    bool is_late;          // a message that waits for a job
} TraceEdge;

typedef struct {
    int32_t num_ranks, num_nodes, num_edges;
    TraceNode* nodes;     // [0] is the beginning
    TraceEdge* edges;     // [0] is none
    int32_t* order;       // [num_nodes] topological order
    int32_t last;         // the node that ends last, after a run
    int64_t measured_ns;  // from the first beginning to the last end in the trace
} TraceGraph;

// STATUS_BAD_FORMAT: the trace holds no step that can be replayed. On success it has been run.
Status trace_graph_make(TraceGraph* out, const TraceFile* trace, Arena* arena);

// Changes for a replay; all zero: none.
typedef struct {
    double link;                // factor on the speed of messages; 0: unchanged
    const double* rank_speeds;  // [num_ranks] factors on the speed of jobs; NULL: unchanged
    bool no_jitter;             // every job takes its planned time x the median ratio of its rank and kind
    bool as_planned;            // every job takes its planned time
    bool no_late;               // messages begin when both ends have posted them
} TraceWhatIf;

// The makespan with these changes; `graph` is unchanged.
Status trace_graph_change(int64_t* out_ns, const TraceGraph* graph, const TraceWhatIf* change, Arena* arena);

// --- explanation ------------------------------------------------------------------------------------------
// Shared by `./dynapipe replay --trace` (text) and `./dynapipe report --trace` (page).

// The time of the step by parts, along its critical path. The parts sum to the makespan.
enum {
    TRACE_PART_WIRE = TRACE_JOB_COUNT,
    TRACE_PART_LATE,
    TRACE_PART_BETWEEN,
    TRACE_PART_REDUCE,
    TRACE_PARTS
};

enum { TRACE_MAX_ROWS = 16 };

typedef struct {
    char name[80];  // "link=2x"
    int64_t ns;     // duration of the step with the change
} TraceRow;

typedef struct {
    TraceFile file;
    TraceGraph graph;
    int64_t replayed_ns;
    int64_t part_ns[TRACE_PARTS];  // of the critical path
    int64_t* rank_jobs_ns;         // [num_ranks] of it
    int64_t late_jobs_ns;          // measured minus planned, over its jobs; signed
    int32_t *path, path_nodes;     // first to last
    int32_t num_rows;
    TraceRow rows[TRACE_MAX_ROWS];
} TraceReplay;

// what_if: "link=2x,rank=2:1.5x,jitter=0,jobs=planned,late=0", one row each; + combines changes:
// "link=2x+late=0"; factors of the same link or rank multiply. NULL: a default set. STATUS_BAD_OPTION names
// the unknown word.
Status trace_replay_make(TraceReplay* out, const char* path, const char* what_if, Arena* arena);
void trace_replay_print(const TraceReplay* replay, FILE* out);

// For tool/report.html (a new reference): step, num_ranks, measured_ns, replayed_ns, errors {.._ns} if known,
// jobs and path [[rank, kind, begin, duration, planned, microbatch, piece, name]], parts and what_if [[name,
// ns]].
json_t* trace_replay_json(const TraceReplay* replay);
