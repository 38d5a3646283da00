/*
comm_order.h -- the order in which ranks exchange activations and gradients, taken from the simulated
timeline.

Jobs and transfers are put into one sequence by their simulated begin, everything after what it needs (spec
section e.6): a transfer after the job that makes it, a job after its transfers, whatever stages they join and
however many transfers a job has. Both ends of a transfer take it from there, so every pair of ranks sees one
order, and nothing can wait in a circle even where a rank runs its transfers strictly one after the other
(NCCL on one stream) and a send is done only together with its receive: let x be the first of the sequence
that is not done. What stands before x in the lists of its ranks, and what it needs, stands before it in the
sequence, too, and is done; so x goes on.

A transfer's place in a rank's list is `pos`: right before job number pos of that rank. Moving a transfer
ahead past jobs, but never past another transfer, keeps the argument: it can only be ready earlier. So a send
stands right behind its job, and a receive is posted before the job that runs while its data comes, or, where
messages are pulled, before the job in front of which it is taken. A wait for a send stands behind it in the
sequence (`behind`).

A receive takes memory from there on. Where a stage has little, it posts receives later
(comm_order_make_late): a transfer enters the sequence only when its receiver is `jobs_ahead` jobs before the
one that needs it, and others overtake it. That is a sequence again, in which transfers wait for memory as
jobs do for their inputs, and it has times of its own.
*/
#pragma once

#include "../pipe/pipe.h"
#include "plan.h"

typedef struct {
    uint8_t kind;   // INSTR_SEND_*, INSTR_RECV_*
    int16_t chunk;  // as in PlanInstr
    int16_t peer;   // stage at the other end
    int32_t mb;
    int32_t pos;     // before this job of the stage; num_jobs: behind the last
    int32_t behind;  // the stage's first job that stands behind it in the sequence
    int64_t begin_ns, end_ns;
} CommOp;

typedef struct {
    int32_t num_ops[PLAN_MAX_STAGES];
    CommOp* ops[PLAN_MAX_STAGES];  // pos ascending
} CommOrder;

Status comm_order_make(CommOrder* out, const PipeProblem* problem, const PipeSchedule* schedule,
                       const PipeTimeline* timeline, Arena* arena);

// jobs_ahead: [P] so many jobs before the one that needs it a stage posts a receive, at most; 0: right before
// it; INT32_MAX: as early as data comes. Where all
// would wait for ever then, one receive is posted all the same. *late: the timeline with those waits
// (peak_bytes and busy_ns are those of `timeline`); where messages are pulled it is an estimate.
Status comm_order_make_late(CommOrder* out, PipeTimeline* late, const PipeProblem* problem,
                            const PipeSchedule* schedule, const PipeTimeline* timeline,
                            const int32_t* jobs_ahead, Arena* arena);
