/*
plan_check_parts.h -- the three parts of plan_check; each relies on the ones before it.

    plan_check_batches  layers, micro-batches, sequences, samples: what is computed
    plan_check_rank     one rank's instructions and buffers: in which order, and where in memory
    plan_check_comm     all ranks together: messages meet, and nobody waits for ever

They know only plan.h, nothing of the passes that make plans.
*/
#pragma once

#include "plan.h"

Status plan_check_batches(const Plan* plan, const PlanSample* samples, int32_t num_samples, Arena* arena);

// Where instructions and buffers of a micro-batch and row (plan_row) are in the list of the rank that has it:
// -1 where there is none.
typedef struct {
    int32_t at[INSTR_COUNT];
    int32_t buffer[BUFFER_COUNT];  // into PlanRank.buffers
} PlanPlaces;

// The micro-batches of one replica, which stand side by side in a plan that plan_check_batches has passed.
typedef struct {
    int32_t mb_begin, mb_end;
    PlanPlaces* places;  // [rows * (mb_end - mb_begin)]
} PlanReplicaPlaces;

static inline PlanPlaces* plan_places(const PlanReplicaPlaces* replica, int32_t row, int32_t m) {
    return &replica->places[(int64_t)row * (replica->mb_end - replica->mb_begin) + m - replica->mb_begin];
}

static inline bool plan_shares_head(const Plan* plan) {
    return plan->placement.head != HEAD_WHOLE;
}

static inline bool plan_is_by_vocabulary(const Plan* plan) {
    return plan->placement.head == HEAD_BY_VOCABULARY;
}

static inline int32_t plan_num_rows(const Plan* plan) {
    return plan->placement.num_chunks + (plan_shares_head(plan) ? 2 * plan->P : 0);
}

// The stage whose rank has the row; -1: a share that is not there, or its end at the last chunk.
static inline int32_t plan_stage_of(const Plan* plan, int32_t row) {
    const Placement* placement = &plan->placement;
    int32_t K = placement->num_chunks, share = row < K + plan->P ? row - K : row - K - plan->P;
    if (row < K) { return placement->stage_of[row]; }
    if (!placement_has_share(placement, share)) { return -1; }
    return row < K + plan->P ? share : placement->stage_of[K - 1];
}

// Fills the places of this rank's rows. Temporaries in `arena`.
Status plan_check_rank(const Plan* plan, int32_t rank, PlanReplicaPlaces* replica, Arena* arena);

// All ranks; replicas[r].
Status plan_check_comm(const Plan* plan, const PlanReplicaPlaces* replicas, Arena* arena);
