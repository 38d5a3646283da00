/*
bound_chain.h -- samples alone on a given placement, in whole ns: the longest way through it, and how early or
late each stage can be needed.

A chain is all forwards in the order of the chunks, the slowest share of the head where it is shared, all
backwards, then on each stage what it owes after its last one; transfers between stages only. Jobs are the
shortest of any micro-batch that holds the sample, on the fastest rank of their stage: jobs only grow with
their shape.
*/
#pragma once

#include "bound_line.h"

// Minima over all samples, of each stage.
typedef struct {
    int64_t arrival_ns[PLAN_MAX_STAGES];  // before its first forward, its lowest chunk's
    int64_t turn_ns[PLAN_MAX_STAGES];     // before its first backward, its highest chunk's
    int64_t tail_ns[PLAN_MAX_STAGES];     // after its last backward, its lowest chunk's, upstream
    int64_t reduce_ns[PLAN_MAX_STAGES];   // after its last job
    int64_t longest_ns;                   // the longest chain of a sample ...
    int32_t longest_sample;               // ... and whose
} BoundChains;

// STATUS_NO_MEMORY of the host, or STATUS_OK.
Status bound_chains_make(BoundChains* out, const BoundLines* lines, Arena* arena);
