/*
microbatch_cost.h -- what one micro-batch takes and holds on every stage.

Memory of one micro-batch on stage s (buffers only where count_buffers), over its chunks and its share:
    held  = acts + in            from F to B; several micro-batches at a time (SHARE_PIPELINE)
    alone = all that is kept, and of one chunk the larger of B: acts (where dropped) + in + out, and F:
            forward_bytes (where it keeps nothing) + out, plus scratch    must fit in available_bytes[s]
*/
#pragma once

#include "plan_problem.h"

// What one micro-batch costs on an average rank in every chunk, and in every share of the head: [num_rows].
void microbatch_jobs(CostJobs* out, const PlanProblem* problem, RecomputeMode mode, const MbShape* shape);

// F + B + W + R.
int64_t microbatch_jobs_ns(const CostJobs* jobs);

// F + B + W + R on the slowest stage.
int64_t microbatch_work_ns(const PlanProblem* problem, RecomputeMode mode, const MbShape* shape);

// Bytes on stage s (see the top).
int64_t microbatch_alone_bytes(const PlanProblem* problem, int32_t s, RecomputeMode mode,
                               const MbShape* shape);

// Everything about one shape at once, each part of the cost model evaluated once: for inner loops.
typedef struct {
    int64_t work_ns;
    bool fits_alone;  // alone <= available on every stage, and the kernels take it
    bool fits_held;   // and held <= available / share on every stage
} MicrobatchCost;

// How many micro-batches a stage should be able to hold: of chunk k of K as many as are under way in a full
// pipeline, P (K - k) / K rounded up (P - s, what 1F1B keeps in flight), or P everywhere as the original
// does, or 1 (no share).
typedef enum { SHARE_ALONE, SHARE_PIPELINE, SHARE_UNIFORM } MicrobatchShare;
int32_t microbatch_in_flight(int32_t P, int32_t K, int32_t k);
MicrobatchCost microbatch_cost(const PlanProblem* problem, RecomputeMode mode, MicrobatchShare share,
                               const MbShape* shape);

// The message for a micro-batch that does not fit alone in any allowed mode; `what` begins it, e.g. "sample
// 17".
Status microbatch_infeasible(const PlanProblem* problem, const MbShape* shape, const char* what);
