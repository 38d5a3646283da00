/*
pipe.h -- one replica's pipeline as a scheduling problem, the order of its jobs, and the simulated timeline.

    PipeProblem   P stages, K chunks on them (Placement), M micro-batches: what each job takes and holds
    PipeSchedule  one job order per stage
    PipeTimeline  begin and end of every job and transfer, memory over time: what the simulator makes of both

A row is a chunk, or, where the head is shared, K + s, the share of stage s. A micro-batch's jobs:
    F  of chunk 0, 1, .. K - 1; then, where the head is shared, of every share, once the last chunk's output
       is there: its forward and the gradient of its inputs in one
    B  of chunk K - 1 (once every share's part is back), K - 2, .. 0
    W  of a chunk any time after its B, if it is a job of its own; of a share (always one) after its F, or, by
       vocabulary, once the factors are there that B of the last chunk sends
Between two rows of one stage nothing is sent.
Integers only. Everything lives in the arena that the caller passes.
*/
#pragma once

#include "../../../util/arena.h"
#include "../../../util/status.h"
#include "../types/plan_types.h"

typedef struct {
    int64_t job_ns[JOB_COUNT];  // B is without W; a joint backward takes B + W
    int64_t stored_bytes;       // from F begin (R begin where F drops it) to B end, or W end if split
    int64_t input_bytes;        // received activation: from F begin to B end; of a share in stored_bytes
    int64_t forward_bytes;      // only while F runs, where F drops
    int64_t transfer_ns;     // over the boundary behind this chunk, either direction; of a share: its hidden
                             // states. 0 where both ends are on one stage
    int64_t part_ns;         // of a share: what it sends back
    int64_t factor_ns;       // of a share by vocabulary: the transfer that its W waits for
    int64_t boundary_bytes;  // the message of transfer_ns
    RecomputeMode mode;
    bool drops;  // F keeps nothing: a job R before B brings the activations back
} PipeCost;

typedef struct {
    int32_t P, M;
    const Placement* placement;                   // NULL: chunk s on stage s, the head whole
    const PipeCost* cost;                         // [rows * M], cost[row * M + m]
    int64_t memory_limit_bytes[PLAN_MAX_STAGES];  // for activations: limit - state - scratch; INT64_MAX: none
    int64_t tail_ns[PLAN_MAX_STAGES];             // gradient reduction after a stage's last job
    bool pulls;  // a stage takes its messages itself, between two jobs (machine.h, pipe_pulled.h)
} PipeProblem;

typedef struct {
    uint8_t kind;   // JobKind
    int16_t chunk;  // row
    int32_t mb;
} PipeJob;

// A chunk without a JOB_W for a micro-batch runs a joint backward for it.
typedef struct {
    int32_t num_jobs[PLAN_MAX_STAGES];
    PipeJob* jobs[PLAN_MAX_STAGES];
} PipeSchedule;

typedef struct {
    int64_t begin_ns, end_ns;
} PipeSpan;

typedef struct {
    int64_t makespan_ns;  // with tail_ns
    int64_t last_end_ns;  // of any job
    int64_t peak_bytes[PLAN_MAX_STAGES];
    int64_t busy_ns[PLAN_MAX_STAGES];
    PipeSpan* job[PLAN_MAX_STAGES];   // per job, in the schedule's order
    PipeSpan* send[PLAN_MAX_STAGES];  // the transfers caused by that job, one after the other; else 0,0
} PipeTimeline;

static inline int32_t pipe_num_chunks(const PipeProblem* problem) {
    return problem->placement == NULL ? problem->P : problem->placement->num_chunks;
}

static inline bool pipe_shares_head(const PipeProblem* problem) {
    return problem->placement != NULL && problem->placement->head != HEAD_WHOLE;
}

// Rows of `cost`, those of stages without a share included.
static inline int32_t pipe_num_rows(const PipeProblem* problem) {
    return pipe_num_chunks(problem) + (pipe_shares_head(problem) ? problem->P : 0);
}

static inline bool pipe_has_row(const PipeProblem* problem, int32_t row) {
    int32_t K = pipe_num_chunks(problem);
    return row < K || placement_has_share(problem->placement, row - K);
}

static inline int32_t pipe_stage_of(const PipeProblem* problem, int32_t row) {
    int32_t K = pipe_num_chunks(problem);
    return row >= K ? row - K : problem->placement == NULL ? row : problem->placement->stage_of[row];
}

static inline const PipeCost* pipe_cost(const PipeProblem* problem, int32_t row, int32_t m) {
    return &problem->cost[(int64_t)row * problem->M + m];
}

// What a job hands on, in the order in which the link of its stage sends it.
typedef enum { MESSAGE_ACT, MESSAGE_GRAD, MESSAGE_FACTORS } PipeMessageKind;
typedef struct {
    uint8_t kind;   // PipeMessageKind
    int16_t row;    // whose input it is: an activation of this row, a gradient of its output, its factors
    int16_t stage;  // of that row
    bool is_sent;   // false: on the same stage, at once
    int64_t transfer_ns;
} PipeMessage;
enum { PIPE_MAX_MESSAGES = PLAN_MAX_STAGES + 1 };

int32_t pipe_messages(PipeMessage out[PIPE_MAX_MESSAGES], const PipeProblem* problem, PipeJob job);

// Run the schedule: each stage starts its next job as soon as its input is there; one sending link per stage
// for both directions, first come first served, or, with `pulls`, messages that their receiver takes. Memory
// that ends at an instant is free for what begins at it; it depends on the order of a stage's jobs alone.
// Keeps no order of events, only the longest path: linear in the number of jobs. `arena` holds the timeline
// (and temporaries). STATUS_DEADLOCK names the stages and jobs that wait for each other; STATUS_INVALID_PLAN
// a job that is missing, twice there, or before what it needs.
Status pipe_simulate(PipeTimeline* out, const PipeProblem* problem, const PipeSchedule* schedule,
                     Arena* arena);

// A policy turns a problem into a schedule; `order` is the sequence in which micro-batches enter stage 0.
typedef struct {
    const char* name;
    const char* help;
    Status (*build)(PipeSchedule* out, const PipeProblem* problem, const int32_t* order, bool split_backward,
                    Arena* arena);
} PipePolicy;

extern const PipePolicy pipe_policy_gpipe, pipe_policy_1f1b, pipe_policy_adaptive;
extern const PipePolicy pipe_policy_cyclic, pipe_policy_cyclic_limited;  // the original's
