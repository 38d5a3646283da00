// search_replicas.h -- replicas that differ in speed: which of them the search looks at first, and how fast
// they turn out to be.
#pragma once

#include "search_first.h"

// search->replica, where it is not set: settings are tried on the slowest replica and the fastest; those
// without samples come last. num_of: of samples or micro-batches, by replica of the plan. In their order
// where all are alike.
Status search_replicas_order(Search* search, const int32_t* num_of);
