// placement_peers.h -- with whom a rank exchanges messages: what is connected before the first step.
#pragma once

#include "../plan/types/plan_types.h"

// The other stages of a replica that have a chunk before or behind one of `stage`, or, where the head is
// shared, the last chunk while `stage` has a share, or the other way round. Ascending; returns how many. Of
// any two stages either both have each other, or neither. num_chunks 0: the plain pipeline.
int32_t placement_peers(int32_t out[PLAN_MAX_STAGES], const Placement* placement, int32_t num_stages,
                        int32_t stage);
