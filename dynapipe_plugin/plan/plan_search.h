/*
plan_search.h -- our own method: searched drafts, until one fits.
*/
#pragma once

#include "plan_drafts.h"

// How much buffers take beside activations shows in the lists only: where they do not fit, the search is told
// to leave as much free as was missing. What still does not fit then is made to. STATUS_OK also where nothing
// fits.
Status plan_search(PlanDrafts* drafts);

// A search that ended early did so with the first micro-batches that were good enough, often the largest: the
// same again in less and less memory, as long as that is about as fast.
Status plan_search_leaner(PlanDrafts* drafts);
