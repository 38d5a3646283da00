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

// Where a micro-batch's instructions are in a rank's list: at[instr kind], -1 where there is none.
typedef struct {
    int32_t at[INSTR_COUNT];
    int32_t buffer[BUFFER_COUNT];  // into PlanRank.buffers
} PlanPlaces;

// The micro-batches of one replica, which stand side by side in a plan that plan_check_batches has passed.
typedef struct {
    int32_t mb_begin, mb_end;
    PlanPlaces* places;  // [P * (mb_end - mb_begin)]
} PlanReplicaPlaces;

static inline PlanPlaces* plan_places(const PlanReplicaPlaces* replica, int32_t s, int32_t m) {
    return &replica->places[(int64_t)s * (replica->mb_end - replica->mb_begin) + m - replica->mb_begin];
}

// Fills the places of this rank's stage. Temporaries in `arena`.
Status plan_check_rank(const Plan* plan, int32_t rank, PlanReplicaPlaces* replica, Arena* arena);

// All ranks; replicas[r].
Status plan_check_comm(const Plan* plan, const PlanReplicaPlaces* replicas, Arena* arena);
