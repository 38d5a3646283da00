/*
problem_machine.h -- ranks and links of a problem that differ, from options.
*/
#pragma once

#include "problem.h"

// --rank-speed, --rank-memory, --link-rate -> request->machine, in `arena`. STATUS_BAD_OPTION says how many
// numbers it must be, and of what.
Status problem_machine_make(Problem* out, const ProblemOptions* options, Arena* arena);
// What rank may hold, model state included; 0: no limit.
int64_t problem_limit_bytes(const PlanRequest* request, int32_t rank);
