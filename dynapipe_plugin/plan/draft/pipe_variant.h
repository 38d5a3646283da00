/*
pipe_variant.h -- the schedule of one replica's micro-batches that the simulator finds fastest.

A variant is a policy with its settings. Every allowed variant is tried on the order that the batching pass
gave.
*/
#pragma once

#include "../schedule.h"
#include "replica_problem.h"

typedef struct {
    const char* name;          // "1f1b", "adaptive", with "+w" where backward is split
    const PipePolicy* policy;  // NULL: one by one
    bool split_backward;
    bool tight;  // adaptive: in flight as 1F1B (K - k) rather than 2 (K - k) - 1
    bool has_rule;
    PipeAdaptiveRule rule;  // adaptive: in place of the above
} PipeVariant;

enum { MAX_VARIANTS = 8 };

// The variants that a request (with its placement) allows, the most promising first. Returns how many.
int32_t pipe_variants(PipeVariant out[MAX_VARIANTS], const PlanRequest* request);

typedef struct {
    int64_t makespan_ns;  // INT64_MAX: none fits in memory
    int32_t variant;
} PipeVariantBest;

// Best of `num_variants` variants on `order`; spends as many simulations. Temporaries: `scratch` is reset.
Status pipe_variants_best(PipeVariantBest* out, const PipeProblem* pipe, const int32_t* order,
                          const PipeVariant* variants, int32_t num_variants, Arena* scratch);

Status pipe_variant_build(PipeSchedule* out, const PipeProblem* pipe, const int32_t* order,
                          const PipeVariant* variant, Arena* arena);
