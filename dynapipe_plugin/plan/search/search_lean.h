/*
search_lean.h -- of plans that are about as fast, the one that holds least.

A stage that is never short of memory runs W only when nothing else is left, and lets in as many micro-batches
as its rule allows: the last stage, which never waits, holds the whole batch until the end. Here every stage
gets a limit of its own (PipeAdaptiveRule.most_bytes), as low as the makespan allows: first all stages alike,
between what one micro-batch needs and what the stage held, then one stage after the other. What is made small
is the sum over the stages of what each holds at its peak.
*/
#pragma once

#include "search_state.h"

// The rule of `state`, so that it takes no longer than most_ns; left as it is where that needs no less.
// Spends at most *budget, and a few simulations.
Status search_lean(SearchState* state, int64_t most_ns, int64_t* budget, Arena* scratch);
