/*
trace_view.h -- a measured step: its trace read back, run again as a graph, explained. Reads a trace that
training wrote (--trace, run/trace.h) back: one step, what every rank did.

Whatever the file holds, what comes out is safe to work with: ranks, chunks, micro-batches and times are in
range, instructions are on the ranks where their chunks lie, no event ends before it begins.
*/
#pragma once

#include <jansson.h>

#include "../dynapipe_plugin/plan/plan_message.h"
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

// --- the step as a graph -----------------------------------------------------------------------------------
/*
A measured step as a graph of its jobs, waits and messages: run again, its critical path, and
what the step would have taken if something had been otherwise. After dPRO (Hu et al., arXiv 2205.02473).

    end(node) = max(end(before[0]) + gap, end(before[1]) ...) + duration

Every event comes after the one before it on its rank, `gap` later (what the executor did in between). A job
waits for its message besides, a wait_* until its send is through. A message begins when both ends have posted
it, and, where it was seen only right after a job of one of them, after that job: data that moves while the
model computes is not held up so. It takes from there until its reader went on: of that at most what was
planned for the transfer is its "wire" time, the rest it was "late". Where nobody waited for it, when it came
is not known, and it takes what was planned.

So with nothing changed every node ends when it was measured to end, as far as clocks of hosts agree. From the
beginning of the step until gradients are summed; update and exchange of parameters are left out.
*/

typedef enum {
    NODE_BEGIN,
    NODE_JOB,
    NODE_POST,     // of a send or receive
    NODE_WAIT,     // wait_act, wait_grad
    NODE_REDUCE,   // gradients summed
    NODE_MESSAGE,  // until its reader has it
    NODE_RELEASE,  // until its sender's buffer is free
    NODE_JOIN,     // of messages that one job reads, where these are many
    NODE_KIND_COUNT
} TraceNodeKind;

enum { TRACE_MAX_BEFORE = 4 };

// Jobs as they are told apart: by their instruction, those of shares of the head after them.
enum { TRACE_JOB_HEAD = INSTR_REC + 1, TRACE_JOB_HEAD_WEIGHTS, TRACE_JOB_COUNT };

typedef struct {
    uint8_t kind;        // TraceNodeKind
    uint8_t event_kind;  // InstrKind or TraceKind
    uint8_t job;         // of a job: TRACE_JOB_*, else its instruction
    int32_t rank, mb;    // of a message: its receiver
    int32_t row;         // plan_instr_row(); -1: of no micro-batch
    int32_t num_before, before[TRACE_MAX_BEFORE];
    int32_t num_posts;    // of a message: the first of these are where its ends post it, the others jobs
    int64_t gap_ns;       // after before[0]; of a post it may be negative: a device runs jobs meanwhile
    int64_t ns, late_ns;  // duration; of a message without what it was late
    int64_t planned_ns;   // -1: not known
    int64_t end_ns;       // after trace_graph_run()
    int32_t because;      // index into before: what it waited for
} TraceNode;

typedef struct {
    int32_t num_ranks, num_nodes;
    TraceNode* nodes;     // [0] is the beginning
    int32_t* order;       // [num_nodes] everything after what it waits for
    int32_t last;         // the node that ends last, after a run
    int64_t measured_ns;  // from the first beginning to the last end in the trace
} TraceGraph;

// STATUS_BAD_FORMAT: the trace holds no step that could have run. Has been run.
Status trace_graph_make(TraceGraph* out, const TraceFile* trace, Arena* arena);
// What the step takes with these durations in the order of a plan's lists; messages move at once.
// STATUS_MISMATCH: the plan has other ranks, or jobs that the trace has not.
Status trace_graph_ordered(int64_t* out_ns, const TraceFile* trace, const TraceGraph* graph, const Plan* plan,
                           Arena* arena);

int64_t trace_graph_run(TraceGraph* graph);  // fills end_ns and because; the makespan

// What might have been otherwise; all zero: nothing.
typedef struct {
    double link;                // messages move so many times as fast; 0: as they did
    const double* rank_speeds;  // [num_ranks] its jobs run so many times as fast; NULL: as they did
    bool no_jitter;             // every job takes its plan's time, x the median of its rank and kind
    bool as_planned;            // every job takes its plan's time
    bool no_late;               // messages begin to move as soon as both ends have posted them
} TraceWhatIf;

// Another graph, run; `graph` stays.
Status trace_graph_change(TraceGraph* out, const TraceGraph* graph, const TraceWhatIf* change, Arena* arena);

// Where the time of the last run went, along the path that decided its end. All parts add up to the makespan.
typedef struct {
    int64_t makespan_ns;
    int64_t jobs_ns[TRACE_JOB_COUNT];
    int64_t late_jobs_ns;  // of all jobs, beyond what was planned; signed
    int64_t wire_ns, late_ns, between_ns, reduce_ns;
    int64_t* rank_jobs_ns;      // [num_ranks]
    int32_t *nodes, num_nodes;  // of the path, first to last
} TracePath;

Status trace_graph_path(TracePath* out, const TraceGraph* graph, Arena* arena);

// --- explained ---------------------------------------------------------------------------------------------
/*
A measured step explained: run again, its critical path, what would have made it shorter.

Shared by `./dynapipe replay --trace` (text) and `./dynapipe report --trace` (page).
*/

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

// For tool/report.html (a new reference): step, num_ranks, measured_ns, replayed_ns, errors {.._ns} if known,
// jobs and path [[rank, kind, begin, duration, planned, micro-batch, piece, name]], parts and what_if [[name,
// ns]].
json_t* trace_replay_json(const TraceReplay* replay);
