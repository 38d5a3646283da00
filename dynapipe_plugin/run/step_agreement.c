#include "step_agreement.h"

#include <stdlib.h>

#include "../base/hash.h"

void step_claim_add(uint64_t* sum, bool is_send, int32_t tag, int64_t num_bytes) {
    if (num_bytes == 0) { return; }
    const int64_t message[2] = {tag, num_bytes};
    uint64_t hash = hash_finish(hash_bytes(HASH_SEED, message, sizeof message));
    *sum += is_send ? hash : 0 - hash;
}

static Status plans_agree(const Collective* world, int32_t num_stages, const StepClaim* all, int32_t step) {
    const Transport* t = world->transport;
    for (int32_t r = 1; r < world->num_ranks; r++) {
        const StepClaim *mine = &all[r], *first = &all[r / num_stages * num_stages];  // of the same replica
        bool is_other = mine->plan_hash != all->plan_hash;
        if (!is_other && mine->replica_hash == first->replica_hash) { continue; }
        const StepClaim* other = is_other ? all : first;
        return FAIL(
            STATUS_MISMATCH,
            "hash of the plan of step %d%s: rank %s has %016llx, rank %s has %016llx ---> all ranks need "
            "the same program, data, cost file and options",
            (int)step, is_other ? "" : ", what a replica's ranks know of it", TRANSPORT_RANK(t, r),
            (unsigned long long)(is_other ? mine->plan_hash : mine->replica_hash),
            TRANSPORT_RANK(t, (int32_t)(other - all)),
            (unsigned long long)(is_other ? other->plan_hash : other->replica_hash));
    }
    return STATUS_OK;
}

static Status lengths_agree(const Collective* world, const StepClaim* all, int32_t step) {
    const Transport* t = world->transport;
    for (int32_t r = 1; r < world->num_ranks; r++) {
        if (all[r - 1].to_next + all[r].to_prev == 0) { continue; }
        return FAIL(
            STATUS_MISMATCH,
            "step %d: what rank %s sends is not what rank %s receives, or the other way round; nothing "
            "was sent ---> the model's boundary_bytes must come from a batch's counts alone, alike on "
            "both sides: see what dynapipe_check_model() finds",
            (int)step, TRANSPORT_RANK(t, r - 1), TRANSPORT_RANK(t, r));
    }
    return STATUS_OK;
}

Status step_agree(Collective* world, int32_t num_stages, const StepClaim* mine, int32_t step) {
    StepClaim* all = calloc((size_t)world->num_ranks, sizeof *all);
    if (all == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d ranks", (int)world->num_ranks); }
    all[world->my_idx] = *mine;
    Status status = collective_share(world, all, sizeof *all);
    if (status == STATUS_OK) { status = plans_agree(world, num_stages, all, step); }
    if (status == STATUS_OK) { status = lengths_agree(world, all, step); }
    free(all);
    return status;
}
