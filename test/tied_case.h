/*
tied_case.h -- random tied groups on stages x replicas, alike on every rank, and what their sums must be: by
plain loops over all copies, in the order of ranks.
*/
#pragma once

#include <stdbool.h>

#include "../util/numbers.h"
#include "../dynapipe_plugin/run/sums.h"
#include "ranks.h"

enum { TIED_CASE_GROUPS = 7 };

// Which stages have which group, and where.
typedef struct {
    uint64_t seed;
    DynapipeType type;  // of gradients: what the functions below return is representable
    int32_t num_stages, num_replicas, num_groups;
    int32_t numbers[TIED_CASE_GROUPS];  // of the groups, distinct
    int64_t counts[TIED_CASE_GROUPS];
    bool has[TIED_CASE_GROUPS][RANKS_MAX];        // [stage]
    int64_t begins[TIED_CASE_GROUPS][RANKS_MAX];  // [stage]
    int64_t num_params[RANKS_MAX];                // [stage]
    int32_t listed[RANKS_MAX][TIED_CASE_GROUPS];  // [stage] in which order it tells what it has
} TiedCase;

// Group 0 has `longest` values, the others few.
void tied_case_draw(TiedCase* out, Rng* rng, int32_t num_stages, int32_t num_replicas, int64_t longest);
// What a stage tells; how many.
int32_t tied_case_list(const TiedCase* it, int32_t stage, DynapipeTied out[TIED_CASE_GROUPS]);

// Value k of an array of that type.
void tied_case_store(const TiedCase* it, void* values, int64_t k, float value);
float tied_case_load(const TiedCase* it, const void* values, int64_t k);

// Value k of a rank's gradients. is_rough: sums are not exact, so the order of adding shows; else small
// integers.
float tied_case_value(const TiedCase* it, bool is_rough, int32_t rank, int64_t k);
// The same after the groups of its replica are summed, and after the replicas are.
float tied_case_after_groups(const TiedCase* it, bool is_rough, int32_t rank, int64_t k);
float tied_case_after_replicas(const TiedCase* it, bool is_rough, int32_t stage, int64_t k);
