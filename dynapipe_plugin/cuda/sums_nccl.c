#include "sums_nccl.h"

#include <stdlib.h>

// The sum begins when what is queued on the compute stream so far is done ...
static Status begin(const NcclWorld* world) {
    CUDA_TRY(cudaEventRecord(world->ready, world->device->compute));
    CUDA_TRY(cudaStreamWaitEvent(world->stream, world->ready, 0));
    return STATUS_OK;
}

// ... and what is queued from here on waits for it.
static Status end(const NcclWorld* world) {
    CUDA_TRY(cudaEventRecord(world->done, world->stream));
    CUDA_TRY(cudaStreamWaitEvent(world->device->compute, world->done, 0));
    return STATUS_OK;
}

// The two ends add a + b and b + a: the same bits.
static Status pair_sum(void* ctx, float* values, int64_t num_values) {
    const NcclWorld* world = ctx;
    TRY(begin(world));
    NCCL_TRY(
        ncclAllReduce(values, values, (size_t)num_values, ncclFloat32, ncclSum, world->ends, world->stream));
    return end(world);
}

// Slices of unequal length: one operation for each, all together.
static Status reduce_slices(const NcclWorld* world, float* values, int64_t num_values) {
    NCCL_TRY(ncclGroupStart());
    for (int32_t r = 0; r < world->num_replicas; r++) {
        int64_t from = collective_slice(num_values, world->num_replicas, r);
        size_t count = (size_t)(collective_slice(num_values, world->num_replicas, r + 1) - from);
        if (count == 0) { continue; }
        NCCL_TRY(ncclReduce(values + from, values + from, count, ncclFloat32, ncclSum, r, world->replicas,
                            world->stream));
    }
    NCCL_TRY(ncclGroupEnd());
    return STATUS_OK;
}

static Status reduce_scatter(void* ctx, float* values, int64_t num_values) {
    const NcclWorld* world = ctx;
    if (world->num_replicas == 1) { return STATUS_OK; }
    TRY(begin(world));
    if (num_values % world->num_replicas == 0) {
        int64_t count = num_values / world->num_replicas;
        NCCL_TRY(ncclReduceScatter(values, values + count * world->replica, (size_t)count, ncclFloat32,
                                   ncclSum, world->replicas, world->stream));
    } else {
        TRY(reduce_slices(world, values, num_values));
    }
    return end(world);
}

static Status broadcast_slices(const NcclWorld* world, unsigned char* values, int64_t num_values,
                               int32_t bytes_per_value) {
    NCCL_TRY(ncclGroupStart());
    for (int32_t r = 0; r < world->num_replicas; r++) {
        int64_t from = collective_slice(num_values, world->num_replicas, r) * bytes_per_value;
        int64_t to = collective_slice(num_values, world->num_replicas, r + 1) * bytes_per_value;
        if (to == from) { continue; }
        NCCL_TRY(ncclBroadcast(values + from, values + from, (size_t)(to - from), ncclChar, r,
                               world->replicas, world->stream));
    }
    NCCL_TRY(ncclGroupEnd());
    return STATUS_OK;
}

static Status all_gather(void* ctx, void* values, int64_t num_values, int32_t bytes_per_value) {
    const NcclWorld* world = ctx;
    if (world->num_replicas == 1) { return STATUS_OK; }
    TRY(begin(world));
    if (num_values % world->num_replicas == 0) {
        int64_t num_bytes = num_values / world->num_replicas * bytes_per_value;
        NCCL_TRY(ncclAllGather((unsigned char*)values + num_bytes * world->replica, values, (size_t)num_bytes,
                               ncclChar, world->replicas, world->stream));
    } else {
        TRY(broadcast_slices(world, values, num_values, bytes_per_value));
    }
    return end(world);
}

static void close_nothing(void* ctx) {
    (void)ctx;
}

static const SumsApi nccl_sums = {.name = "nccl",
                                  .is_queued = true,
                                  .pair_sum = pair_sum,
                                  .reduce_scatter = reduce_scatter,
                                  .all_gather = all_gather,
                                  .close = close_nothing};

Status sums_nccl_open(Sums* out, NcclWorld* world) {
    *out = (Sums){&nccl_sums, world};
    return STATUS_OK;
}
