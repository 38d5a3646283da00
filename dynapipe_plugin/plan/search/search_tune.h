/*
search_tune.h -- the most promising candidates of the search: numbers in flight, tapers, orders and numbers of
micro-batches around theirs, single layers from chunk to chunk, and a little of the local search.
*/
#pragma once

#include "search_try.h"

// The candidate that is tuned: its settings, and the probes as they are with it.
typedef struct {
    Firsts* firsts;
    First first;
    Placement placement;
    SearchState* states;  // [num_probes]
    SearchState* spare;
    Arena* arenas;        // two, in turn: of `states` and of what is tried
    int64_t stop_budget;  // tuning ends where the search's budget has fallen to this
} Tuned;

// The candidate with everything tuned takes the place of `best` if it is faster. Spends up to twice
// may_spend.
Status search_tune(Tuned* best, Firsts* firsts, const First* first, int64_t may_spend);
