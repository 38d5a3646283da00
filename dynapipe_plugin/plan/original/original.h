// original.h -- the draft by the method of the paper (DynaPipe, EuroSys'24), all of it.
#pragma once

#include "../draft/draft.h"

// STATUS_INFEASIBLE: no micro-batches fit even one at a time (message: stage, bytes over, remedy).
Status original_draft(Draft* out, const PlanProblem* problem, Arena* arena);
