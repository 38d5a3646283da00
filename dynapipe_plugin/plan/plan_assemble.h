/*
plan_assemble.h -- the finished parts of a step as one Plan.
*/
#pragma once

#include "replica_fit.h"

// Copies micro-batches, sequences and segments of `list` into plan order, and the replicas' lists (whose
// memory it borrows). `bound_ns` of the result is 0.
Status plan_assemble(Plan* out, const MicrobatchProblem* problem, const MicrobatchList* list,
                     const ReplicaPlan* replicas, Arena* arena);
