/*
policy_drafts.h -- micro-batches by a batching policy, replicas by their sums, schedules by the known rules.

Every candidate of the policy is simulated with every schedule that the request allows. This is all there is
for the baselines; for our own method it is what is left where a schedule is prescribed, or where memory is so
short that the search finds nothing.
*/
#pragma once

#include "../draft/draft.h"

enum { POLICY_MAX_DRAFTS = 8 };

// out[0 .. *num), fastest first. `batching` is the problem as the batching pass sees it: as `problem`, or
// with less memory. effort: simulations. STATUS_INFEASIBLE: not even one micro-batch at a time fits.
Status policy_drafts(Draft out[POLICY_MAX_DRAFTS], int32_t* num, const PlanProblem* problem,
                     const PlanProblem* batching, int32_t effort, Arena* arena);
