/*
timed_plan.h -- plans that have jobs and transfers with their times, and nothing else: no samples, no memory.
What a replay looks at, of any pipeline and order of its jobs.
*/
#pragma once

#include "../dynapipe_plugin/plan/plan.h"

// Without replicas yet; room for so many, with so many micro-batches together. Its placement is the
// problem's.
Plan timed_plan(const PipeProblem* problem, int32_t most_replicas, int32_t most_mbs, Arena* arena);

// One more replica, simulated; receives are posted at once. The makespan becomes that of the slowest.
void timed_plan_add_replica(Plan* plan, const PipeProblem* problem, const PipeSchedule* schedule,
                            Arena* arena);
