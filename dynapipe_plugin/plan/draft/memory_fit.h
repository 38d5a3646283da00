/*
memory_fit.h -- turns a replica's chosen schedule into instruction lists that surely fit in memory.

    schedule -> timeline -> communication order -> lists with buffers -> bytes of every rank
Where a rank comes out over the limit, though its receives are as late as can be (replica_lists.h), in this
order, until it fits:
    1. --schedule auto: adaptive instead of a policy that does not look at memory
    2. adaptive: lower that stage's limit by what it is over (a few times)
    3. where allowed: recompute fully, on that stage, the micro-batches that hold most
    4. auto, adaptive: micro-batches one by one
then STATUS_INFEASIBLE names stage, bytes over, and what would help.
*/
#pragma once

#include "pipe_variant.h"
#include "../simulate.h"

typedef struct {
    ReplicaProblem problem;  // micro-batches in the order they enter stage 0
    PipeVariant variant;
    PipeSchedule schedule;
    PipeTimeline timeline;
    PlanRank ranks[PLAN_MAX_STAGES];
} ReplicaPlan;

// `plan` comes with problem and variant, and gets those that fit, and their timeline. Whatever is tried lives
// in `scratch`, which is reset.
Status memory_fit(ReplicaPlan* plan, const PlanProblem* problem, const MicrobatchList* list, Arena* scratch);

// The lists of what memory_fit has found, in `arena`; first_mb and first_rank are those of the replica in
// the plan.
Status replica_plan_emit(ReplicaPlan* plan, const PlanProblem* problem, int32_t first_mb, int32_t first_rank,
                         Arena* arena);

// One attempt: over_bytes[s] is raised to what stage s is over the limit, if it is; nothing is changed to
// make it fit.
Status memory_try(int64_t over_bytes[PLAN_MAX_STAGES], ReplicaPlan* plan, const PlanProblem* problem,
                  const MicrobatchList* list, Arena* scratch);
