#include "machine.h"

#include "../../../util/numbers.h"

static const char* const job_name[JOB_COUNT] = {"F", "B", "W", "R"};

Status machine_check(const Machine* machine, int32_t num_ranks) {
    if (machine == NULL || machine->num_ranks == 0) { return STATUS_OK; }
    if (machine->num_ranks != num_ranks) {
        return FAIL(STATUS_OUT_OF_RANGE, "machine: tells of %d ranks, there are %d ---> one entry for each",
                    machine->num_ranks, num_ranks);
    }
    for (int32_t r = 0; r < num_ranks; r++) {
        const MachineRank* rank = &machine->ranks[r];
        for (int kind = 0; kind < JOB_COUNT; kind++) {
            if (!(rank->slow[kind] >= MACHINE_LEAST_SLOW && rank->slow[kind] <= MACHINE_MOST_SLOW)) {
                return FAIL(STATUS_OUT_OF_RANGE,
                            "machine: rank %d takes %g times as long for %s ---> a number from %g to %g", r,
                            rank->slow[kind], job_name[kind], MACHINE_LEAST_SLOW, MACHINE_MOST_SLOW);
            }
        }
        if (rank->memory_limit_bytes < 0 || rank->memory_limit_bytes > COST_LIMIT) {
            return FAIL(STATUS_OUT_OF_RANGE, "machine: rank %d has %lld bytes ---> 0 (as all) or more", r,
                        (long long)rank->memory_limit_bytes);
        }
        bool is_sane = rank->link_bytes_per_ns >= 0 && rank->link_bytes_per_ns < 1e9 &&
                       rank->link_latency_ns >= 0 && rank->link_latency_ns < 1e12;
        if (!is_sane) {
            return FAIL(STATUS_OUT_OF_RANGE,
                        "machine: the link behind rank %d has %g bytes a ns after %g ns ---> numbers of at "
                        "least 0",
                        r, rank->link_bytes_per_ns, rank->link_latency_ns);
        }
    }
    return STATUS_OK;
}

MachineRank machine_rank(const Machine* machine, int32_t rank) {
    if (machine == NULL || rank >= machine->num_ranks) { return (MachineRank){.slow = {1, 1, 1, 1}}; }
    return machine->ranks[rank];
}

static bool rank_differs(const MachineRank* rank) {
    bool differs = rank->memory_limit_bytes != 0 || rank->link_bytes_per_ns > 0;
    for (int kind = 0; kind < JOB_COUNT; kind++) { differs = differs || rank->slow[kind] != 1; }
    return differs;
}

bool machine_differs(const Machine* machine) {
    bool differs = false;
    for (int32_t r = 0; machine != NULL && r < machine->num_ranks && !differs; r++) {
        differs = rank_differs(&machine->ranks[r]);
    }
    return differs;
}

const MachineRank* machine_replica(const Machine* machine, int32_t first_rank) {
    return machine == NULL || machine->num_ranks == 0 ? NULL : machine->ranks + first_rank;
}

int64_t machine_job_ns(const MachineRank* rank, JobKind kind, int64_t job_ns) {
    double slow = rank == NULL ? 1 : rank->slow[kind];
    return slow == 1 ? job_ns : cost_round((double)job_ns * slow);
}

int64_t machine_transfer_ns(const MachineRank* rank, const CostModel* costs, int64_t num_bytes) {
    if (rank == NULL || rank->link_bytes_per_ns <= 0) { return cost_transfer_ns(costs, num_bytes); }
    return cost_round(rank->link_latency_ns + (double)num_bytes / rank->link_bytes_per_ns);
}

int64_t machine_between_ns(const MachineRank* replica, const CostModel* costs, int32_t from, int32_t to,
                           int64_t num_bytes) {
    int32_t first = from < to ? from : to, last = from < to ? to : from;
    int64_t slowest_ns = 0;
    if (replica == NULL) { return from == to ? 0 : cost_transfer_ns(costs, num_bytes); }
    for (int32_t s = first; s < last; s++) {
        int64_t link_ns = machine_transfer_ns(&replica[s], costs, num_bytes);
        slowest_ns = link_ns > slowest_ns ? link_ns : slowest_ns;
    }
    return slowest_ns;
}

int64_t machine_update_ns(const MachineRank* rank, const CostModel* costs, const CostStage* stage) {
    return cost_update_ns(costs, stage, rank == NULL ? 1 : rank->slow[JOB_W]);
}

int64_t machine_limit_bytes(const MachineRank* rank, int64_t common_bytes) {
    return rank == NULL || rank->memory_limit_bytes == 0 ? common_bytes : rank->memory_limit_bytes;
}

const char* machine_limit_words(char out[MACHINE_LIMIT_CHARS], const MachineRank* rank, int32_t rank_idx) {
    if (machine_limit_bytes(rank, 0) == 0) {
        snprintf(out, MACHINE_LIMIT_CHARS, "--memory-limit");
    } else {
        snprintf(out, MACHINE_LIMIT_CHARS, "rank %d's own memory (./dynapipe plan: --rank-memory)", rank_idx);
    }
    return out;
}

double machine_slow(const MachineRank* rank) {
    return rank == NULL ? 1 : (rank->slow[JOB_F] + rank->slow[JOB_B] + rank->slow[JOB_W]) / 3;
}

uint64_t machine_hash(const Machine* machine) {
    if (machine == NULL || (machine->num_ranks == 0 && !machine->pulls)) { return 0; }
    uint64_t hash = hash_bytes(HASH_SEED, &machine->num_ranks, sizeof machine->num_ranks);
    uint8_t pulls = machine->pulls;
    hash = hash_bytes(hash, &pulls, sizeof pulls);
    for (int32_t r = 0; r < machine->num_ranks; r++) {  // field by field: padding is nobody's
        const MachineRank* rank = &machine->ranks[r];
        hash = hash_bytes(hash, rank->slow, sizeof rank->slow);
        hash = hash_bytes(hash, &rank->memory_limit_bytes, sizeof rank->memory_limit_bytes);
        hash = hash_bytes(hash, &rank->link_latency_ns, sizeof rank->link_latency_ns);
        hash = hash_bytes(hash, &rank->link_bytes_per_ns, sizeof rank->link_bytes_per_ns);
    }
    hash = hash_finish(hash);
    return hash != 0 ? hash : 1;
}
