/*
schedule.h -- one replica's pipeline as a scheduling problem, the order of its jobs, and the simulated
timeline.

    PipeProblem   P stages, K chunks on them (Placement), M microbatches: what each job takes and holds
    PipeSchedule  one job order per stage
    PipeTimeline  begin and end of every job and transfer, memory over time: what the simulator makes of both

A row is a chunk, or, where the head is shared, K + s, the share of stage s. A microbatch's jobs:
    F  of chunk 0, 1, .. K - 1; then, where the head is shared, of every share, once the last chunk's output
       is there: its forward and the gradient of its inputs in one
    B  of chunk K - 1 (once every share's part is back), K - 2, .. 0
    W  of a chunk any time after its B, if it is a job of its own; of a share (always one) after its F, or, by
       vocabulary, once the factors are there that B of the last chunk sends
Between two rows of one stage nothing is sent. Of a sample that is cut into pieces, a microbatch has one, and
on every chunk F of its pieces ascend and B descend: a piece attends to those before it, and adds to the
gradients of their keys and values. Integers only. Everything lives in the arena that the caller passes.
*/
#pragma once

#include "types.h"
#include "../../util/arena.h"
#include "../../util/status.h"

typedef struct {
    int64_t job_ns[JOB_COUNT];  // B is without W; a joint backward takes B + W
    int64_t stored_bytes;       // from F begin (R begin where F drops it) to B end, or W end if split
    int64_t input_bytes;        // received activation: from F begin to B end; of a share in stored_bytes
    int64_t forward_bytes;      // only while F runs, where F drops
    int64_t transfer_ns;     // over the boundary after this chunk, either direction; of a share: its hidden
                             // states. 0 where both ends are on one stage
    int64_t part_ns;         // of a share: what it sends back
    int64_t factor_ns;       // of a share by vocabulary: the transfer that its W waits for
    int64_t boundary_bytes;  // the message of transfer_ns
    // Of a chunk, with the first piece of a sample: keys and values of all its pieces, from F to B, or W if
    // split; their gradients, from B of the last piece on. 0 elsewhere.
    int64_t kept_bytes, kept_grad_bytes;
    RecomputeMode mode;
    bool drops;  // F keeps nothing: a job R before B brings the activations back
} PipeCost;

typedef struct {
    int32_t P, M;
    const Placement* placement;                   // NULL: chunk s on stage s, the head whole
    const PipeCost* cost;                         // [rows * M], cost[row * M + m]
    const int32_t* piece_before;                  // [M] the microbatch with the piece of a sample before its
                                                  // own; -1: none. NULL: no sample is cut
    int64_t memory_limit_bytes[PLAN_MAX_STAGES];  // for activations: limit - state - scratch; INT64_MAX: none
    int64_t tail_ns[PLAN_MAX_STAGES];             // gradient reduction after a stage's last job
    bool pulls;  // a stage takes its messages itself, between two jobs (cost_model.h, simulate.h)
} PipeProblem;

typedef struct {
    uint8_t kind;   // JobKind
    int16_t chunk;  // row
    int32_t mb;
} PipeJob;

// A chunk without a JOB_W for a microbatch runs a joint backward for it.
typedef struct {
    int32_t num_jobs[PLAN_MAX_STAGES];
    PipeJob* jobs[PLAN_MAX_STAGES];
} PipeSchedule;

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

static inline int32_t pipe_piece_before(const PipeProblem* problem, int32_t m) {
    return problem->piece_before == NULL ? -1 : problem->piece_before[m];
}

// The microbatch with the first piece of the sample that microbatch m has a piece of; else m.
static inline int32_t pipe_first_piece(const PipeProblem* problem, int32_t m) {
    for (int32_t before; (before = pipe_piece_before(problem, m)) >= 0;) { m = before; }
    return m;
}

// A policy turns a problem into a schedule; `order` is the sequence in which microbatches enter stage 0, the
// pieces of a sample one after the other. 1F1B and GPipe take no pieces.
typedef struct {
    const char* name;
    Status (*build)(PipeSchedule* out, const PipeProblem* problem, const int32_t* order, bool split_backward,
                    Arena* arena);
    bool keeps_limit;  // waits where memory is short
} PipePolicy;

extern const PipePolicy pipe_policy_gpipe, pipe_policy_1f1b, pipe_policy_adaptive;

// --- lists being written -----------------------------------------------------------------------------

// Empty lists with room for every job of every microbatch (F, R, B, W).
Status pipe_schedule_init(PipeSchedule* out, const PipeProblem* problem, Arena* arena);

static inline void pipe_schedule_push(PipeSchedule* schedule, int32_t s, JobKind kind, int32_t row,
                                      int32_t m) {
    schedule->jobs[s][schedule->num_jobs[s]++] =
        (PipeJob){.kind = (uint8_t)kind, .chunk = (int16_t)row, .mb = m};
}

// [R] B [W] of a chunk one after the other.
void pipe_schedule_push_backward(PipeSchedule* schedule, const PipeProblem* problem, int32_t s, int32_t chunk,
                                 int32_t m, bool split_backward);

// F of its chunks, its share, [R] B of its chunks, one microbatch after the other on every stage: the least
// memory that any schedule needs.
Status pipe_schedule_one_by_one(PipeSchedule* out, const PipeProblem* problem, const int32_t* order,
                                Arena* arena);

// Bytes that microbatch m needs on stage s when it is alone there; of a first piece those of all pieces, of
// the others 0.
int64_t pipe_alone_bytes(const PipeProblem* problem, int32_t s, int32_t m);

// STATUS_INFEASIBLE where some microbatch does not fit even alone; names stage, microbatch and bytes over.
Status pipe_problem_check_fits(const PipeProblem* problem);

// --- the adaptive policy -----------------------------------------------------------------------------

/*
The memory-aware greedy order: backward first, then forward, then weight gradients.

Walks through time once. Whenever a stage is free it runs
    B  of a chunk whose gradient is there, or F of its share of the head (R before B where F dropped its
       activations): the oldest microbatch's, of one microbatch the later chunk's
    F  of a chunk whose input is there and which the admission rule lets in: the later chunk's
    R  ahead of time, of the microbatch whose B comes next
    W  the oldest (only where backward is split; of a share always)
in this order of preference; all microbatches have one order on all chunks. It is the `cyclic` schedule of
DynaPipe (spec section e.3) with real durations in place of cycles, and with W as filler (Zero Bubble,
Qi et al., ICLR'24).

A microbatch that is much longer than others holds up the step if it has to wait at every stage. So first of
all comes a ready F or B that is critical: what can only run after it, down to B of chunk 0, takes longer than
half of all that is left to do on the stage; of several the one with most after it.

Admission: of chunk k at most max_in_flight[k] microbatches have begun F and not B; and a stage's memory is
kept in a safe state (Dijkstra's banker): a job gets memory only if after it every microbatch that has begun
on the stage could still be run to its end there, the oldest first, with what those before it give back. So
only the order of jobs on a stage decides what may be admitted there, never the state of another stage: the
limit holds whatever the jobs really take, and replaying the order (pipe_simulate) gives the times that were
seen here. Where a microbatch's needs exceed a stage's limit if all that it drops comes back at a time,
microbatches run one by one; where one alone does not fit, STATUS_INFEASIBLE names stage and bytes. The order
never deadlocks: the oldest microbatch is always admitted.
*/

typedef struct {
    bool split_backward;
    int32_t max_in_flight[PLAN_MAX_CHUNKS];  // F begun, B not begun; >= 1
} PipeAdaptiveRule;

// 2 (K - k) - 1 of chunk k: as in `cyclic`; 1F1B's P - s plus as many again as slack.
PipeAdaptiveRule pipe_adaptive_rule(const PipeProblem* problem, bool split_backward);

Status pipe_adaptive_build(PipeSchedule* out, const PipeProblem* problem, const int32_t* order,
                           const PipeAdaptiveRule* rule, Arena* arena);

// The makespan alone, for inner loops: the one that pipe_simulate gives for that schedule. INT64_MAX where
// memory does not allow the order, or as soon as it is certain to exceed cutoff_ns. The work is subtracted
// from *budget: one for each job that was walked, and one for every two cells of the problem. Temporaries
// stay in `arena`.
Status pipe_adaptive_makespan(int64_t* makespan_ns, const PipeProblem* problem, const int32_t* order,
                              const PipeAdaptiveRule* rule, int64_t cutoff_ns, int64_t* budget, Arena* arena);
