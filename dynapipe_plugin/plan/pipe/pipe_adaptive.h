/*
pipe_adaptive.h -- the memory-aware greedy order: backward first, then forward, then weight gradients.

Walks through time once. Whenever a stage is free it runs
    B  of a chunk whose gradient is there, or F of its share of the head (R before B where F dropped its
       activations): the oldest micro-batch's, of one micro-batch the later chunk's
    F  of a chunk whose input is there and which the admission rule lets in: the later chunk's
    R  ahead of time, of the micro-batch whose B comes next
    W  the oldest (only where backward is split; of a share always)
in this order of preference; all micro-batches keep one order on all chunks. It is the `cyclic` schedule of
DynaPipe (spec section e.3) with real durations in place of cycles, and with W as filler (Zero Bubble,
Qi et al., ICLR'24). With wait_permille a W does not begin where a B or F comes within that part of it.

A micro-batch that is much longer than others holds up the step if it has to wait at every stage. So first of
all comes a ready F or B that is critical: what can only run after it, down to B of chunk 0, takes longer than
all that is left to do on the stage; of several the one with most behind it. critical_permille scales that.

Admission: of chunk k at most max_in_flight[k] micro-batches have begun F and not B; and a stage's memory is
kept in a safe state (Dijkstra's banker): a job gets memory only if after it every micro-batch that has begun
on the stage could still be run to its end there, the oldest first, with what those before it give back. So
only the order of jobs on a stage decides what may be admitted there, never the state of another stage: the
limit holds whatever the jobs really take, and replaying the order (pipe_simulate) gives the times that were
seen here. Where a micro-batch's needs exceed a stage's limit if all that it drops comes back at a time,
micro-batches run one by one; where one alone does not fit, STATUS_INFEASIBLE names stage and bytes. The order
never deadlocks: the oldest micro-batch is always admitted.
*/
#pragma once

#include "pipe.h"

typedef struct {
    bool split_backward;
    int32_t wait_permille;                   // of a W; 0: it begins at once
    int32_t critical_permille;               // of a tail that is longer than a stage's work; 0: none is
    int32_t max_in_flight[PLAN_MAX_CHUNKS];  // F begun, B not begun; >= 1
    int64_t most_bytes[PLAN_MAX_STAGES];     // no more, even where the problem's limit is higher; 0: that one
} PipeAdaptiveRule;

// 2 (K - k) - 1 of chunk k: what `cyclic` holds; 1F1B's P - s plus as many again as slack.
PipeAdaptiveRule pipe_adaptive_rule(const PipeProblem* problem, bool split_backward);

Status pipe_adaptive_build(PipeSchedule* out, const PipeProblem* problem, const int32_t* order,
                           const PipeAdaptiveRule* rule, Arena* arena);

// The makespan alone, for inner loops: what pipe_simulate gives for that schedule. INT64_MAX where memory
// does not allow the order, or as soon as it is certain to exceed cutoff_ns. The work is taken from *budget:
// one for each job that was walked, and one for every two cells of the problem. Temporaries stay in `arena`.
Status pipe_adaptive_makespan(int64_t* makespan_ns, const PipeProblem* problem, const int32_t* order,
                              const PipeAdaptiveRule* rule, int64_t cutoff_ns, int64_t* budget, Arena* arena);
