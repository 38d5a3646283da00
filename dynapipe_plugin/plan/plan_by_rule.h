/*
plan_by_rule.h -- plans without a search: the methods of others, and what is left where nothing else fits.

STATUS_OK also where nothing fits: then drafts->failure says why, of the first attempt.
*/
#pragma once

#include "plan_drafts.h"

// By the batching of the request: drafts of its policy (policy_drafts.h), or the paper's. Micro-batches that
// fit one at a time need not fit together: scratch is that of the largest, and buffers leave gaps. So where
// no draft fits, smaller ones are made, for 90, 75 and 50 % of the memory.
Status plan_by_rule(PlanDrafts* drafts);

// What trainers do today, on the same samples: some batch suits one of these better than all that the search
// has seen. No plan of ours is slower, unless it is as good as the bound; batches of thousands are left out,
// where any composition is even and these cost a third of the search.
Status plan_by_baselines(PlanDrafts* drafts);
