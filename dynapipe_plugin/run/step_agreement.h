/*
step_agreement.h -- before anything of a step is sent: all ranks run the same plan, and what each one sends is
what its neighbour receives.

A transport may write past a receive that is too short (transport_mpi.c), so lengths are compared beforehand.
Over each link the sender of a message adds hash(tag, bytes) to its sum, the receiver takes it away: both
ends' sums make 0 (mod 2^64) where each message that one sends is one that the other expects. 32 bytes a rank,
in one exchange with the hash of the plan.
*/
#pragma once

#include <stdbool.h>

#include "collective.h"

typedef struct {
    uint64_t plan_hash;         // of what all ranks know of it: plan_hash_decisions()
    uint64_t replica_hash;      // of what the ranks of a replica know besides: plan_hash_replica()
    uint64_t to_prev, to_next;  // over the links to the ranks before and behind this one; no such rank: 0
} StepClaim;

// A message over the link whose sum that is. Nothing travels where there are no bytes, and nothing is added.
void step_claim_add(uint64_t* sum, bool is_send, int32_t tag, int64_t num_bytes);

// STATUS_MISMATCH on every member names what differs, and between which ranks. `world` is all ranks in their
// order, num_stages of them a replica. `step` counts from 1, for the message. Test: test_step_agreement.c.
Status step_agree(Collective* world, int32_t num_stages, const StepClaim* mine, int32_t step);
