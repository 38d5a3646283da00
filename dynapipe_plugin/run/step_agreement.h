/*
step_agreement.h -- before anything of a step is sent: all ranks run the same plan, and what each one sends is
what its neighbour receives.

A transport may write past a receive that is too short (transport_mpi.c), so lengths are compared beforehand.
For each pair of ranks the sender of a message adds hash(tag, bytes) to its sum, the receiver takes it away:
both ends' sums make 0 (mod 2^64) where each message that one sends is one that the other expects. What is
exchanged is one number a rank, these sums each times an odd number of the pair's, so 24 bytes in one exchange
with the hash of the plan; only where all ranks' numbers do not make 0 do they exchange all, to name the pair.
*/
#pragma once

#include <stdbool.h>

#include "../plan/types/plan_types.h"
#include "collective.h"

typedef struct {
    uint64_t plan_hash;              // of what all ranks know of it: plan_hash_decisions()
    uint64_t replica_hash;           // of what the ranks of a replica know besides: plan_hash_replica()
    uint64_t with[PLAN_MAX_STAGES];  // with the rank of each stage of my replica
} StepClaim;

// A message with the rank whose sum that is. Nothing travels where there are no bytes, and nothing is added.
void step_claim_add(uint64_t* sum, bool is_send, int32_t tag, int64_t num_bytes);

// STATUS_MISMATCH on every member names what differs, and between which ranks. `world` is all ranks in their
// order, num_stages of them a replica. `step` counts from 1, for the message. Test: test_step_agreement.c.
Status step_agree(Collective* world, int32_t num_stages, const StepClaim* mine, int32_t step);
