// plan_diff.h -- what differs between two plans, for people: one line each.
#pragma once

#include <stdio.h>

#include "../dynapipe_plugin/plan/lists/plan.h"

// *num_differences: lines printed to `out` (long lists are cut, and counted in full). Both plans must have
// passed plan_check.
Status plan_diff(const Plan* a, const Plan* b, FILE* out, int32_t* num_differences, Arena* arena);
