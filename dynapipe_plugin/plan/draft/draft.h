/*
draft.h -- a plan before its instruction lists: which micro-batches, on which replica, in which order and
mode.

Every method ends in one: search_draft (ours), original_draft (the paper's), policy_drafts (all others).
planner.c fits it into memory, writes the lists and checks them.
*/
#pragma once

#include "balance.h"
#include "pipe_variant.h"

typedef struct {
    PipeVariant variant;
    int32_t* order;  // [M] places in the replica's part of `replicas.mbs`, as they enter stage 0
    uint8_t* modes;  // [K * M] RecomputeMode, by place in `replicas.mbs`; NULL: what each micro-batch assumed
    int64_t makespan_ns;  // INT64_MAX: does not fit as it is
} DraftReplica;

typedef struct {
    MicrobatchList list;
    ReplicaMbs replicas;
    DraftReplica* replica;  // [R]
    Placement placement;    // that of the request, unless it may be chosen
    int64_t makespan_ns;    // of the slowest
    int64_t fastest_ns;     // before it was made to hold less; 0: it was not
} Draft;
