/*
pipe.h -- one replica's pipeline as a scheduling problem, the order of its jobs, and the simulated timeline.

    PipeProblem   P stages, M micro-batches: what each job takes and holds
    PipeSchedule  one job order per stage
    PipeTimeline  begin and end of every job and transfer, memory over time: what the simulator makes of both

Integers only. Everything lives in the arena that the caller passes.
*/
#pragma once

#include <stdio.h>
#include "../../base/arena.h"
#include "../../base/status.h"
#include "../types/plan_types.h"

typedef struct {
    int64_t job_ns[JOB_COUNT];  // B is without W; a joint backward takes B + W
    int64_t stored_bytes;       // from F begin (R begin where F drops it) to B end, or W end if split
    int64_t input_bytes;        // received activation: from its arrival to B end
    int64_t forward_bytes;      // only while F runs, where F drops
    int64_t transfer_ns;        // over the boundary behind this stage, either direction
    int64_t boundary_bytes;     // its message
    RecomputeMode mode;
    bool drops;  // F keeps nothing: a job R before B brings the activations back
} PipeCost;

typedef struct {
    int32_t P, M;
    const PipeCost* cost;                         // [P * M], cost[s * M + m]
    int64_t memory_limit_bytes[PLAN_MAX_STAGES];  // for activations: limit - state - scratch; INT64_MAX: none
    int64_t tail_ns[PLAN_MAX_STAGES];             // gradient reduction after a stage's last job
    bool pulls;  // a stage takes its messages itself, between two jobs (machine.h, pipe_pulled.h)
} PipeProblem;

typedef struct {
    uint8_t kind;  // JobKind
    int32_t mb;
} PipeJob;

// A stage without a JOB_W for a micro-batch runs a joint backward for it.
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
    PipeSpan* send[PLAN_MAX_STAGES];  // transfer caused by that job (F forward, B backward); else 0,0
} PipeTimeline;

static inline const PipeCost* pipe_cost(const PipeProblem* problem, int32_t s, int32_t m) {
    return &problem->cost[(int64_t)s * problem->M + m];
}

// Run the schedule: each stage starts its next job as soon as its input is there; one sending link per stage
// for both directions, first come first served, or, with `pulls`, messages that their receiver takes. Memory
// that ends at an instant is free for what begins at it. Keeps no order of events, only the longest path:
// linear in the number of jobs. `arena` holds the timeline (and temporaries). STATUS_DEADLOCK names the
// stages and jobs that wait for each other; STATUS_INVALID_PLAN a job that is missing, twice there, or before
// what it needs.
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

// ASCII rows as in STYLE.md 4.5, `width` characters for the makespan.
void pipe_timeline_print(const PipeProblem* problem, const PipeSchedule* schedule,
                         const PipeTimeline* timeline, int32_t width, FILE* out);
