// simulate.h -- the timeline of a schedule. (The adaptive policy, which makes its order as it goes, is in
// simulate.c, too, and declared in schedule.h.)
#pragma once

#include "plan.h"
#include "schedule.h"

typedef struct {
    int64_t begin_ns, end_ns;
} PipeSpan;

typedef struct {
    int64_t makespan_ns;  // with tail_ns
    int64_t peak_bytes[PLAN_MAX_STAGES];
    int64_t busy_ns[PLAN_MAX_STAGES];
    PipeSpan* job[PLAN_MAX_STAGES];   // per job, in the schedule's order
    PipeSpan* send[PLAN_MAX_STAGES];  // the transfers caused by that job, one after the other; else 0,0
} PipeTimeline;

// A message of a job, in the order in which the link of its stage sends them.
typedef enum { MESSAGE_ACT, MESSAGE_GRAD, MESSAGE_FACTORS } PipeMessageKind;
typedef struct {
    uint8_t kind;   // PipeMessageKind
    int16_t row;    // its reader: an activation of this row, a gradient of its output, its factors
    int16_t stage;  // of that row
    bool is_sent;   // false: on the same stage, without a transfer
    int64_t transfer_ns;
} PipeMessage;
enum { PIPE_MAX_MESSAGES = PLAN_MAX_STAGES + 1 };

int32_t pipe_messages(PipeMessage out[PIPE_MAX_MESSAGES], const PipeProblem* problem, PipeJob job);

// Run the schedule: each stage starts its next job as soon as its input is there; one sending link per stage
// for both directions, first come first served, or, with `pulls`, messages that their receiver takes. Memory
// freed at an instant is available to what begins at it; it depends on the order of a stage's jobs alone.
// `arena` holds the timeline (and temporaries). STATUS_DEADLOCK names the stages and jobs that wait for each
// other; STATUS_INVALID_PLAN a job that is missing, repeated, or before its inputs.
Status pipe_simulate(PipeTimeline* out, const PipeProblem* problem, const PipeSchedule* schedule,
                     Arena* arena);

// When the last job of a replica ends, by the lists of its ranks, of a plan that has passed plan_check:
// orders as planned, also of what a stage's link sends, which leaves no sooner than its receiver's list posts
// it (where memory is short that is late); pulled messages in the order of their planned times. Instruction i
// of stage s takes instr_ns[s][i] ns: jobs, and sends, wherever messages are taken; of others it is not read.
// instr_ns NULL: what was planned. Temporaries stay in `scratch`.
Status plan_makespan(int64_t* out_ns, const Plan* plan, int32_t replica, const int64_t* const* instr_ns,
                     Arena* scratch);
