/*
search_moves.h -- local search on one replica: every change is judged by simulating the whole pipeline.

Moves: micro-batches change places in the order, samples change micro-batches, what is recomputed where, how
many micro-batches a chunk may hold and how long W waits; where the caller allows it, layers change chunks
and shares of the head stages. A move stays if the
makespan does not grow by more than a tolerance of a thousandth that falls to nothing (threshold accepting,
Dueck & Scheuer 1990, next to hill climbing); the best state seen is what is left at the end. Spends
simulations, never seconds.
*/
#pragma once

#include "../../../util/numbers.h"
#include "search_state.h"

typedef struct {
    bool samples;    // may samples change micro-batches?
    bool modes;      // may recompute modes change?
    bool placement;  // may layers change chunks, and shares of the head stages?
} SearchFreedom;

// Takes what it spends from *budget. Stops early at good_enough_ns.
Status search_improve(SearchState* state, const SearchFreedom* freedom, int64_t good_enough_ns,
                      int64_t* budget, Rng* rng, Arena* arena, Arena* scratch);
