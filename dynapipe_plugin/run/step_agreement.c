#include "step_agreement.h"

#include <stdlib.h>
#include <string.h>

#include "../../util/numbers.h"

void step_claim_add(uint64_t* sum, bool is_send, int32_t tag, int64_t num_bytes) {
    if (num_bytes == 0) { return; }
    const int64_t message[2] = {tag, num_bytes};
    uint64_t hash = hash_finish(hash_bytes(HASH_SEED, message, sizeof message));
    *sum += is_send ? hash : 0 - hash;
}

// What travels.
typedef struct {
    uint64_t plan_hash, replica_hash, messages;
} Said;

// An odd number of that pair of stages.
static uint64_t pair_factor(int32_t a, int32_t b) {
    const int64_t pair[2] = {a < b ? a : b, a < b ? b : a};
    return hash_finish(hash_bytes(HASH_SEED, pair, sizeof pair)) | 1;
}

static uint64_t all_messages(const StepClaim* mine, int32_t num_stages, int32_t stage) {
    uint64_t sum = 0;
    for (int32_t s = 0; s < num_stages; s++) { sum += mine->with[s] * pair_factor(s, stage); }
    return sum;
}

static Status plans_agree(const Collective* world, int32_t num_stages, const Said* all, int32_t step) {
    const Transport* t = world->transport;
    for (int32_t r = 1; r < world->num_ranks; r++) {
        const Said *mine = &all[r], *first = &all[r / num_stages * num_stages];  // of the same replica
        bool is_other = mine->plan_hash != all->plan_hash;
        if (!is_other && mine->replica_hash == first->replica_hash) { continue; }
        const Said* other = is_other ? all : first;
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

static bool lengths_agree(const Said* all, int32_t num_ranks, int32_t num_stages) {
    for (int32_t first = 0; first < num_ranks; first += num_stages) {
        uint64_t sum = 0;
        for (int32_t s = 0; s < num_stages; s++) { sum += all[first + s].messages; }
        if (sum != 0) { return false; }
    }
    return true;
}

// with: (num_ranks, num_stages) of all ranks.
static Status name_pair(const Collective* world, int32_t num_stages, const uint64_t* with, int32_t step) {
    const Transport* t = world->transport;
    for (int32_t r = 0; r < world->num_ranks; r++) {
        int32_t first = r / num_stages * num_stages;
        for (int32_t other = r + 1; other < first + num_stages; other++) {
            uint64_t sum = with[r * num_stages + other - first] + with[other * num_stages + r - first];
            if (sum == 0) { continue; }
            return FAIL(
                STATUS_MISMATCH,
                "step %d: what rank %s sends is not what rank %s receives, or the other way round; nothing "
                "was sent ---> the model's boundary_bytes (and part_bytes, factor_bytes) must come from a "
                "batch's counts alone, alike on both sides: see what dynapipe_check_model() finds",
                (int)step, TRANSPORT_RANK(t, r), TRANSPORT_RANK(t, other));
        }
    }
    return FAIL(STATUS_MISMATCH, "step %d: some rank sends what no other receives; nothing was sent",
                (int)step);
}

static Status find_pair(Collective* world, int32_t num_stages, const StepClaim* mine, int32_t step) {
    size_t row_bytes = (size_t)num_stages * sizeof *mine->with;
    uint64_t* with = calloc((size_t)world->num_ranks, row_bytes);
    if (with == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d ranks", (int)world->num_ranks); }
    memcpy(with + world->my_idx * num_stages, mine->with, row_bytes);
    Status status = collective_share(world, with, row_bytes);
    if (status == STATUS_OK) { status = name_pair(world, num_stages, with, step); }
    free(with);
    return status;
}

Status step_agree(Collective* world, int32_t num_stages, const StepClaim* mine, int32_t step) {
    Said* all = calloc((size_t)world->num_ranks, sizeof *all);
    if (all == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d ranks", (int)world->num_ranks); }
    all[world->my_idx] = (Said){mine->plan_hash, mine->replica_hash,
                                all_messages(mine, num_stages, world->my_idx % num_stages)};
    Status status = collective_share(world, all, sizeof *all);
    if (status == STATUS_OK) { status = plans_agree(world, num_stages, all, step); }
    bool is_same = status != STATUS_OK || lengths_agree(all, world->num_ranks, num_stages);
    free(all);
    return is_same ? status : find_pair(world, num_stages, mine, step);
}
