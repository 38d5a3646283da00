/*
replica_search.h -- order and schedule of one replica's micro-batches, with the simulator in the loop.

A variant is a policy with its settings. Every allowed variant is tried on the order that the batching pass
gave; where the search may reorder, micro-batches are then moved and swapped while the makespan falls. What is
spent is counted in simulations, never in seconds, so that all ranks stop at the same place.
*/
#pragma once

#include "../pipe/pipe_adaptive.h"
#include "pipe_problem.h"

typedef struct {
    const char* name;          // "1f1b", "adaptive", with "+w" where backward is split
    const PipePolicy* policy;  // NULL: one by one
    bool split_backward;
    bool tight;  // adaptive: in flight as 1F1B (P - s) rather than 2 (P - s) - 1
    bool has_rule;
    PipeAdaptiveRule rule;  // adaptive: in place of the above
} PipeVariant;

enum { MAX_VARIANTS = 8 };

// The variants that a request allows, the most promising first. Returns how many.
int32_t replica_variants(PipeVariant out[MAX_VARIANTS], const PlanRequest* request);

typedef struct {
    int64_t makespan_ns;  // INT64_MAX: none fits in memory
    int32_t variant;
} ReplicaBest;

// Best of `num_variants` variants on `order`; spends as many simulations. Temporaries: `scratch` is reset.
Status replica_search_variants(ReplicaBest* out, const PipeProblem* pipe, const int32_t* order,
                               const PipeVariant* variants, int32_t num_variants, Arena* scratch);

// Improves order (in place) for one variant with at most *budget simulations, which are taken from it. Stops
// early at `good_enough_ns`. Deterministic.
Status replica_search_order(ReplicaBest* best, const PipeProblem* pipe, int32_t* order,
                            const PipeVariant* variant, int64_t good_enough_ns, int32_t* budget,
                            Arena* scratch);

Status replica_variant_build(PipeSchedule* out, const PipeProblem* pipe, const int32_t* order,
                             const PipeVariant* variant, Arena* arena);
