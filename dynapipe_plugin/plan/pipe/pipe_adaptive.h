/*
pipe_adaptive.h -- the memory-aware greedy order: backward first, then forward, then weight gradients.

Walks through time once. Whenever a stage is free it runs
    B  of the next micro-batch, if its gradient is there (R before it where F dropped its activations)
    F  of the next micro-batch, if its activation is there and the admission rule lets it in
    R  ahead of time, of the micro-batch whose B comes next
    W  the oldest (only where backward is split)
in this order of preference; all micro-batches keep one order on all stages. It is the `cyclic` schedule of
DynaPipe (spec section e.3) with real durations in place of cycles, and with W as filler (Zero Bubble,
Qi et al., ICLR'24).

Admission: stage s holds at most max_in_flight[s] micro-batches, and its memory is divided once into a part
for what its own jobs hold and a part for inputs that wait or are kept. The second part is guarded by stage
s - 1, which counts an input from the begin of its F to the begin of its own B. So only the order of jobs on a
stage decides what may be admitted there, never the state of another stage: the limit holds whatever the jobs
really take, and replaying the order (pipe_simulate) gives the times that were seen here.
Where such a division does not exist for a whole pipeline, micro-batches run one by one; where one alone does
not fit, STATUS_INFEASIBLE names stage and bytes. The order never deadlocks: the oldest micro-batch is always
admitted.
*/
#pragma once

#include "pipe.h"

typedef struct {
    bool split_backward;
    int32_t max_in_flight[PLAN_MAX_STAGES];  // F begun, B not begun; >= 1
    int64_t most_bytes[PLAN_MAX_STAGES];     // no more, even where the problem's limit is higher; 0: that one
} PipeAdaptiveRule;

// 2 (P - s) - 1 on every stage: what `cyclic` holds; 1F1B's P - s plus as many again as slack.
PipeAdaptiveRule pipe_adaptive_rule(const PipeProblem* problem, bool split_backward);

Status pipe_adaptive_build(PipeSchedule* out, const PipeProblem* problem, const int32_t* order,
                           const PipeAdaptiveRule* rule, Arena* arena);

// The makespan alone, for inner loops: what pipe_simulate gives for that schedule. INT64_MAX where memory
// cannot be divided, or as soon as it is certain to exceed cutoff_ns. The work is taken from *budget: one for
// each job that was walked, and one for every two cells of the problem. Temporaries stay in `arena`.
Status pipe_adaptive_makespan(int64_t* makespan_ns, const PipeProblem* problem, const int32_t* order,
                              const PipeAdaptiveRule* rule, int64_t cutoff_ns, int64_t* budget, Arena* arena);
