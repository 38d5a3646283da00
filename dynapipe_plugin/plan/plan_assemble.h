/*
plan_assemble.h -- the finished parts of a step as one Plan.
*/
#pragma once

#include "draft/memory_fit.h"

// Copies micro-batches, sequences and segments of `list` into plan order, and the replicas' lists (whose
// memory it borrows). `bound_ns` of the result is 0.
Status plan_assemble(Plan* out, const PlanProblem* problem, const MicrobatchList* list,
                     const ReplicaPlan* replicas, Arena* arena);

// A wrong bound makes no plan wrong: it is cut to the makespan, and bound_over_ns has the rest. Who trains
// goes on, the tool says that it is an error.
void plan_set_bound(Plan* plan, int64_t bound_ns);
