/*
plan_verify.h -- is a plan true? Its structure, and with a problem also samples, times and memory, all counted
again from the problem's costs.
*/
#pragma once

#include "../dynapipe_plugin/plan/lists/plan.h"
#include "problem.h"

// Every rule of plan_check, with the samples that the plan itself tells of (lengths as its sequences say).
Status plan_verify_structure(const Plan* plan, Arena* arena);

// Also: made of this problem's samples, on its stages and replicas; state and makespan are what its costs
// give in the simulator; memory by the problem's rule stays under its limit. STATUS_INVALID_PLAN or, for
// memory, STATUS_INFEASIBLE.
Status plan_verify_problem(const Plan* plan, const Problem* problem, Arena* arena);
