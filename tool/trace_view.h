/*
trace_view.h -- reads a trace that training wrote (--trace, run/trace.h), replays the step and explains it.
The reader validates everything: ranks, chunks, micro-batches and times are in range, instructions are on the
ranks of their chunks, no event ends before it begins.
*/
#pragma once

#include <jansson.h>

#include "../dynapipe_plugin/plan/plan_message.h"
#include "../dynapipe_plugin/run/trace.h"

enum { TRACE_MAX_EVENTS = 1 << 22, TRACE_MAX_MBS = 1 << 16 };

typedef struct {
    TraceEvent event;
    int32_t row;         // plan_instr_row(); -1: without a micro-batch
    int64_t planned_ns;  // -1: not known
} TraceFileEvent;

typedef struct {
    int32_t num_events;
    TraceFileEvent* events;  // in the order they were started
} TraceFileRank;

typedef struct {
    int32_t P, R, M;      // M: larger than every micro-batch
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

    end(node) = max(end(before[0]) + gap, end(before[1]) ...) + duration

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
    NODE_JOIN,     // combines many messages that one job reads
    NODE_KIND_COUNT
} TraceNodeKind;

enum { TRACE_MAX_BEFORE = 4 };

// Kinds of jobs: by instruction, then those of head shares.
enum { TRACE_JOB_HEAD = INSTR_REC + 1, TRACE_JOB_HEAD_WEIGHTS, TRACE_JOB_COUNT };

typedef struct {
    uint8_t kind;        // TraceNodeKind
    uint8_t event_kind;  // InstrKind or TraceKind
    uint8_t job;         // TRACE_JOB_* for a job, otherwise its instruction
    int32_t rank, mb;    // of a message: its receiver
    int32_t row;         // plan_instr_row(); -1: of no micro-batch
    int32_t num_before, before[TRACE_MAX_BEFORE];
    int32_t num_posts;    // of a message: the first of these are posts, the others jobs
    int64_t gap_ns;       // after before[0]; may be negative for a post: a device runs jobs meanwhile
    int64_t ns, late_ns;  // duration; of a message without its lateness
    int64_t planned_ns;   // -1: not known
    int64_t end_ns;       // after trace_graph_run()
    int32_t because;      // index into before: the last dependency to finish
} TraceNode;

typedef struct {
    int32_t num_ranks, num_nodes;
    TraceNode* nodes;     // [0] is the beginning
    int32_t* order;       // [num_nodes] topological order
    int32_t last;         // the node that ends last, after a run
    int64_t measured_ns;  // from the first beginning to the last end in the trace
} TraceGraph;

// STATUS_BAD_FORMAT: the trace holds no step that can be replayed. On success it has been run.
Status trace_graph_make(TraceGraph* out, const TraceFile* trace, Arena* arena);
// The step's duration with these durations in the order of a plan's lists; messages take no time.
// STATUS_MISMATCH: the plan has other ranks, or jobs that the trace lacks.
Status trace_graph_ordered(int64_t* out_ns, const TraceFile* trace, const TraceGraph* graph, const Plan* plan,
                           Arena* arena);

int64_t trace_graph_run(TraceGraph* graph);  // fills end_ns and because; the makespan

// Changes for a replay; all zero: none.
typedef struct {
    double link;                // factor on the speed of messages; 0: unchanged
    const double* rank_speeds;  // [num_ranks] factors on the speed of jobs; NULL: unchanged
    bool no_jitter;             // every job takes its planned time x the median ratio of its rank and kind
    bool as_planned;            // every job takes its planned time
    bool no_late;               // messages begin when both ends have posted them
} TraceWhatIf;

// Runs a changed copy; `graph` is unchanged.
Status trace_graph_change(TraceGraph* out, const TraceGraph* graph, const TraceWhatIf* change, Arena* arena);

// The time of the last run by parts, along its critical path. The parts sum to the makespan.
typedef struct {
    int64_t makespan_ns;
    int64_t jobs_ns[TRACE_JOB_COUNT];
    int64_t late_jobs_ns;  // measured minus planned, over all jobs; signed
    int64_t wire_ns, late_ns, between_ns, reduce_ns;
    int64_t* rank_jobs_ns;      // [num_ranks]
    int32_t *nodes, num_nodes;  // of the path, first to last
} TracePath;

Status trace_graph_path(TracePath* out, const TraceGraph* graph, Arena* arena);

// --- explanation ------------------------------------------------------------------------------------------
// Shared by `./dynapipe replay --trace` (text) and `./dynapipe report --trace` (page).

enum { TRACE_MAX_ROWS = 16 };

typedef struct {
    char name[80];    // "link=2x"
    char about[160];  // in words
    int64_t ns;       // duration of the step with the change
} TraceRow;

typedef struct {
    TraceFile file;
    TraceGraph graph;
    int64_t replayed_ns;
    TracePath path;
    int32_t num_rows;
    TraceRow rows[TRACE_MAX_ROWS];
} TraceReplay;

// what_if: "link=2x,rank=2:1.5x,jitter=0,jobs=planned,late=0,order=FILE.plan", one row each; + combines
// changes: "link=2x+late=0"; factors of the same link or rank multiply. NULL: a default set.
// STATUS_BAD_OPTION names the unknown word.
Status trace_replay_make(TraceReplay* out, const char* path, const char* what_if, Arena* arena);

// A description of a part of the path, 0 .. TRACE_NUM_PARTS - 1; *ns: its length.
enum { TRACE_NUM_PARTS = 10 };
const char* trace_replay_part(const TraceReplay* replay, int32_t part, int64_t* ns);

void trace_replay_print(const TraceReplay* replay, FILE* out);

// For tool/report.html (a new reference): step, num_ranks, measured_ns, replayed_ns, errors {.._ns} if known,
// jobs and path [[rank, kind, begin, duration, planned, micro-batch, piece, name]], parts and what_if [[name,
// ns]].
json_t* trace_replay_json(const TraceReplay* replay);
