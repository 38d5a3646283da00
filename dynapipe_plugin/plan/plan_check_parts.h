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

// places[m] for every micro-batch m of the plan (-1 everywhere for those of other replicas).
Status plan_check_rank(const Plan* plan, int32_t rank, PlanPlaces* places);

// places[rank * M + m]
Status plan_check_comm(const Plan* plan, const PlanPlaces* places, Arena* arena);
