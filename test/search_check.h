// search_check.h -- is a SearchState what its own samples, modes, stages and order say? By another path: a
// list of micro-batches (microbatch.c) and the scheduling problem of the replica (replica_problem.c).
#pragma once

#include "../dynapipe_plugin/plan/search/search_state.h"

// Every sample in exactly one chain, none empty; shapes, prices, tails and limits as computed anew; the order
// a permutation; the makespan, where it is known, that of the simulator. False with a line that says what is
// wrong. Whatever it allocates is in `arena`.
bool search_state_is_sound(const SearchState* state, Arena* arena);
