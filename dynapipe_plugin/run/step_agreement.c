#include "step_agreement.h"

#include "../base/hash.h"

void step_claim_add(uint64_t* sum, bool is_send, int32_t tag, int64_t num_bytes) {
    if (num_bytes == 0) { return; }
    const int64_t message[2] = {tag, num_bytes};
    uint64_t hash = hash_finish(hash_bytes(HASH_SEED, message, sizeof message));
    *sum += is_send ? hash : 0 - hash;
}

enum { CLAIM_PLAN, CLAIM_TO_PREV, CLAIM_TO_NEXT, NUM_CLAIMS };

Status step_agree(Collective* world, const StepClaim* mine, int32_t step) {
    const uint64_t claims[NUM_CLAIMS] = {mine->plan_hash, mine->to_prev, mine->to_next};
    const uint64_t* all;
    TRY(collective_share_u64(world, claims, NUM_CLAIMS, &all));
    for (int32_t r = 1; r < world->num_ranks; r++) {
        if (all[r * NUM_CLAIMS + CLAIM_PLAN] == all[CLAIM_PLAN]) { continue; }
        return FAIL(
            STATUS_MISMATCH,
            "hash of the plan of step %d: rank %d has %016llx, rank 0 has %016llx ---> all ranks need "
            "the same program, data, cost file and options",
            (int)step, (int)r, (unsigned long long)all[r * NUM_CLAIMS + CLAIM_PLAN],
            (unsigned long long)all[CLAIM_PLAN]);
    }
    for (int32_t r = 1; r < world->num_ranks; r++) {
        if (all[(r - 1) * NUM_CLAIMS + CLAIM_TO_NEXT] + all[r * NUM_CLAIMS + CLAIM_TO_PREV] == 0) {
            continue;
        }
        return FAIL(
            STATUS_MISMATCH,
            "step %d: what rank %d sends is not what rank %d receives, or the other way round; nothing "
            "was sent ---> the model's boundary_bytes must come from a batch's counts alone, alike on "
            "both sides: see what dynapipe_check_model() finds",
            (int)step, (int)(r - 1), (int)r);
    }
    return STATUS_OK;
}
