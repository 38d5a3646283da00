/*
comm_order.h -- the order in which ranks exchange activations and gradients, taken from the simulated
timeline.

Jobs and transfers are put into one sequence by their simulated begin, everything after what it needs (spec
section e.6). Both ends of a transfer take it from there, so every pair of ranks sees one order, and nothing
can wait in a circle even where a rank runs its transfers strictly one after the other (NCCL on one stream):
whatever a transfer needs stands before it in that one sequence.

A transfer's place in a rank's list is `pos`: right before job number pos of that rank. Moving a transfer
ahead past jobs, but never past another transfer, keeps the argument: it can only be ready earlier. So a send
stands right behind its job, and a receive is posted before the job that runs while its data comes, or, where
messages are pulled, before the job in front of which it is taken.
*/
#pragma once

#include "../pipe/pipe.h"
#include "plan.h"

typedef struct {
    uint8_t kind;   // INSTR_SEND_ACT, INSTR_RECV_ACT, INSTR_SEND_GRAD, INSTR_RECV_GRAD
    int16_t chunk;  // whose input or output moves
    int32_t mb;
    int32_t pos;  // before this job of the stage; num_jobs: behind the last
    int64_t begin_ns, end_ns;
} CommOp;

typedef struct {
    int32_t num_ops[PLAN_MAX_STAGES];
    CommOp* ops[PLAN_MAX_STAGES];  // pos ascending
} CommOrder;

Status comm_order_make(CommOrder* out, const PipeProblem* problem, const PipeSchedule* schedule,
                       const PipeTimeline* timeline, Arena* arena);
