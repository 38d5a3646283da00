/*
planner.h -- lengths + costs + memory limit + layout + options -> plan. A pure function.

No I/O, no clock, no threads, no globals: the same arguments give the same plan, byte for byte, on every rank,
compiler and optimisation level.

    problem     the request checked; where the search for a placement begins
    construct   search.h: candidates for placement and settings, simulated, halved, tuned
    improve     search.h: local search on every replica
    fit         draft.h: schedules whose instruction lists fit in memory; where that costs time, the search
                again with so much less memory
    lists       instructions.h, memory_layout.h
    check       bound.h, plan_check.c

Methods of others (batching.h) take the place of the search where a program links rivals/. In training the
placement is chosen once a run, from a sample of the mixture (stage_search.h). In words, with a worked step:
doc/method.md.
*/
#pragma once

#include "../../util/arena.h"
#include "cost_model.h"
#include "plan.h"
#include "types.h"

// Fill `out`, all memory from `arena`. Returns STATUS_INFEASIBLE with stage, bytes over and a remedy where
// nothing fits; every plan returned has passed plan_check.
Status plan_make(Plan* out, const PlanRequest* request, const CostModel* costs, const PlanSample* samples,
                 int32_t num_samples, Arena* arena);

// The --effort that takes about this long on one core; 0 (the default) where the request leaves nothing to
// search. From counts alone, not a clock: the same on every machine.
int32_t plan_effort(const PlanRequest* request, int64_t planning_ns);

// Does this program have methods besides ours (batching.h)?
bool plan_has_rivals(void);

// Of --slices: auto, off, or the most pieces of a sample.
Status plan_slices_parse(int32_t* max_pieces, const char* text);
