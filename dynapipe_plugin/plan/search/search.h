/*
search.h -- our method: first answers by rule, then local search, all judged in the simulator.

    replicas        samples balanced over the replicas (search_fill)
    first answers   for each placement, recompute rule, number of micro-batches and taper: fill, simulate; the
                    slower drop out
    tuning          of the best placements: numbers in flight, orders, and, where the request leaves it open,
                    single layers from chunk to chunk
    improvement     of every replica by itself (search_moves), the slowest most
    exchange        of samples between the slowest and the fastest replica
*/
#pragma once

#include "../draft/draft.h"
#include "search_state.h"

// Simulations of about that long altogether on one core: 1 ... INT32_MAX.
int32_t search_effort(int32_t P, int64_t search_ns);

// effort: simulations (of 5 P micro-batches each; longer ones count for more); 0: those of about 25 ms on one
// core per replica of a few hundred samples, more for large batches, less per replica where there are many;
// one of effort_parts of that is spent.
// The search ends at good_enough_ns. STATUS_INFEASIBLE: nothing was found that fits in memory; less ambitious
// methods may find something.
Status search_draft(Draft* out, const PlanProblem* problem, int32_t effort, int32_t effort_parts,
                    int64_t good_enough_ns, Arena* arena);
