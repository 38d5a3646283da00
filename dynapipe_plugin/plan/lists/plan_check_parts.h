/*
plan_check_parts.h -- the three parts of plan_check; each relies on the ones before it.

    plan_check_batches  layers, micro-batches, sequences, samples: what is computed
    plan_check_rank     one rank's instructions and buffers: in which order, and where in memory
    plan_check_comm     all ranks together: messages meet, and nobody waits for ever

They know only plan.h, nothing of the passes that make plans.
*/
#pragma once

#include "plan_message.h"

Status plan_check_batches(const Plan* plan, const PlanSample* samples, int32_t num_samples, Arena* arena);

// Instructions and buffers of a micro-batch in a place (plan_place_of) of the rank that has it: -1 where
// there is none.
typedef struct {
    int32_t at[INSTR_COUNT];
    int32_t buffer[BUFFER_COUNT];  // into PlanRank.buffers
} PlanPlaces;

// The micro-batches of one replica, which stand side by side in a plan that plan_check_batches has passed.
typedef struct {
    int32_t mb_begin, mb_end;
    PlanPlaces* places;  // [places * (mb_end - mb_begin)]
} PlanReplicaPlaces;

static inline PlanPlaces* plan_places(const PlanReplicaPlaces* replica, int32_t place, int32_t m) {
    return &replica->places[(int64_t)place * (replica->mb_end - replica->mb_begin) + m - replica->mb_begin];
}

static inline bool plan_shares_head(const Plan* plan) {
    return plan->placement.head != HEAD_WHOLE;
}

static inline bool plan_is_by_vocabulary(const Plan* plan) {
    return plan->placement.head == HEAD_BY_VOCABULARY;
}

// The stage whose rank has the place (plan_place_of); -1: a share that is not there.
static inline int32_t plan_stage_of_place(const Plan* plan, int32_t place) {
    const Placement* placement = &plan->placement;
    int32_t K = placement->num_chunks, is_end = place >= K + plan->P;
    if (!plan_has_row(placement, plan->P, is_end ? place - plan->P : place)) { return -1; }
    return placement_stage_of(placement, is_end ? K - 1 : place);
}

// Fills the places of this rank. Temporaries in `arena`.
Status plan_check_rank(const Plan* plan, int32_t rank, PlanReplicaPlaces* replica, Arena* arena);

// All ranks; replicas[r].
Status plan_check_comm(const Plan* plan, const PlanReplicaPlaces* replicas, Arena* arena);
