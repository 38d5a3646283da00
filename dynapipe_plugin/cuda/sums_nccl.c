#include "sums_nccl.h"

#include <stdlib.h>

typedef struct {
    const NcclWorld* world;
    const TiedGroups* tied;
} NcclSums;

// Who takes part in a sum, and which of them I am.
typedef struct {
    ncclComm_t comm;
    cudaStream_t stream;
    int32_t num_ranks, my_idx;
} Members;

static Members replicas_of(const NcclSums* sums) {
    const NcclWorld* world = sums->world;
    return (Members){world->replicas, world->stream, world->num_replicas, world->replica};
}

static Members holders_of(const NcclSums* sums, int32_t holders) {
    const Collective* ranks = &sums->tied->holders[holders].ranks;
    return (Members){sums->world->holders[holders], sums->world->stream, ranks->num_ranks, ranks->my_idx};
}

// The sum begins when what is queued on the compute stream so far is done ...
static Status begin(const NcclWorld* world) {
    CUDA_TRY(cudaEventRecord(world->ready, world->device->compute));
    CUDA_TRY(cudaStreamWaitEvent(world->stream, world->ready, 0));
    call_watch_begin(world->watch, "NCCL: a sum of gradients");
    return STATUS_OK;
}

// ... and what is queued from here on waits for it.
static Status end(const NcclWorld* world, Status queued) {
    call_watch_end(world->watch);
    TRY(queued);
    CUDA_TRY(cudaEventRecord(world->done, world->stream));
    CUDA_TRY(cudaStreamWaitEvent(world->device->compute, world->done, 0));
    return STATUS_OK;
}

static ncclDataType_t nccl_type(DynapipeType type) {
    return type == DYNAPIPE_FLOAT32 ? ncclFloat32 : type == DYNAPIPE_BFLOAT16 ? ncclBfloat16 : ncclFloat16;
}

// Slices of unequal length: one operation for each, all together.
static Status reduce_slices(Members m, unsigned char* values, int64_t num_values, DynapipeType type) {
    NCCL_TRY(ncclGroupStart());
    for (int32_t r = 0; r < m.num_ranks; r++) {
        int64_t from = collective_slice(num_values, m.num_ranks, r);
        size_t count = (size_t)(collective_slice(num_values, m.num_ranks, r + 1) - from);
        if (count == 0) { continue; }
        unsigned char* slice = values + from * collective_type_bytes(type);
        NCCL_TRY(ncclReduce(slice, slice, count, nccl_type(type), ncclSum, r, m.comm, m.stream));
    }
    NCCL_TRY(ncclGroupEnd());
    return STATUS_OK;
}

static Status queue_reduce_scatter(Members m, unsigned char* values, int64_t num_values, DynapipeType type) {
    if (num_values % m.num_ranks != 0) { return reduce_slices(m, values, num_values, type); }
    int64_t count = num_values / m.num_ranks;
    unsigned char* mine = values + count * m.my_idx * collective_type_bytes(type);
    NCCL_TRY(ncclReduceScatter(values, mine, (size_t)count, nccl_type(type), ncclSum, m.comm, m.stream));
    return STATUS_OK;
}

static Status broadcast_slices(Members m, unsigned char* values, int64_t num_values,
                               int32_t bytes_per_value) {
    NCCL_TRY(ncclGroupStart());
    for (int32_t r = 0; r < m.num_ranks; r++) {
        int64_t from = collective_slice(num_values, m.num_ranks, r) * bytes_per_value;
        int64_t to = collective_slice(num_values, m.num_ranks, r + 1) * bytes_per_value;
        if (to == from) { continue; }
        NCCL_TRY(
            ncclBroadcast(values + from, values + from, (size_t)(to - from), ncclChar, r, m.comm, m.stream));
    }
    NCCL_TRY(ncclGroupEnd());
    return STATUS_OK;
}

static Status queue_all_gather(Members m, unsigned char* values, int64_t num_values,
                               int32_t bytes_per_value) {
    if (num_values % m.num_ranks != 0) { return broadcast_slices(m, values, num_values, bytes_per_value); }
    int64_t num_bytes = num_values / m.num_ranks * bytes_per_value;
    NCCL_TRY(
        ncclAllGather(values + num_bytes * m.my_idx, values, (size_t)num_bytes, ncclChar, m.comm, m.stream));
    return STATUS_OK;
}

// Not ncclAllReduce: that does not promise the same bits on all ranks. Here each value has one owner.
static Status sum_copies(void* ctx, int32_t holders, void* values, int64_t num_values, DynapipeType type) {
    const NcclSums* sums = ctx;
    Members m = holders_of(sums, holders);
    TRY(begin(sums->world));
    Status status = queue_reduce_scatter(m, values, num_values, type);
    if (status == STATUS_OK) {
        status = queue_all_gather(m, values, num_values, collective_type_bytes(type));
    }
    return end(sums->world, status);
}

static Status reduce_scatter(void* ctx, void* values, int64_t num_values, DynapipeType type) {
    const NcclSums* sums = ctx;
    if (sums->world->num_replicas == 1) { return STATUS_OK; }
    TRY(begin(sums->world));
    return end(sums->world, queue_reduce_scatter(replicas_of(sums), values, num_values, type));
}

static Status all_gather(void* ctx, void* values, int64_t num_values, int32_t bytes_per_value) {
    const NcclSums* sums = ctx;
    if (sums->world->num_replicas == 1) { return STATUS_OK; }
    TRY(begin(sums->world));
    return end(sums->world, queue_all_gather(replicas_of(sums), values, num_values, bytes_per_value));
}

static const SumsApi nccl_sums = {.name = "nccl",
                                  .is_queued = true,
                                  .sum_copies = sum_copies,
                                  .reduce_scatter = reduce_scatter,
                                  .all_gather = all_gather,
                                  .close = free};

Status sums_nccl_open(Sums* out, const NcclWorld* world, const TiedGroups* tied) {
    NcclSums* sums = malloc(sizeof *sums);
    if (sums == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for sums"); }
    *sums = (NcclSums){.world = world, .tied = tied};
    *out = (Sums){&nccl_sums, sums};
    return STATUS_OK;
}
