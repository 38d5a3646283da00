#include "nccl_world.h"

#include <stdbool.h>
#include <stdlib.h>

#include "../base/clock.h"
#include "../run/backoff.h"

// A transfer of the pipeline gets at most so many thread blocks: 2 to 4 fill a link of NVLink with messages
// of 1 to 50 MB, and a receive that waits for its sender holds them while the model computes.
enum { PIPELINE_CTAS = 4, WARM_UP_FLOATS = 8 };

Status nccl_fail(ncclResult_t result, const char* call) {
    return FAIL(STATUS_COMM, "%s: %s (%s) ---> NCCL_DEBUG=WARN says more; --transport mpi goes without NCCL",
                call, ncclGetErrorString(result), ncclGetLastError(NULL));
}

static Status check_comm(ncclComm_t comm) {
    if (comm == NULL) { return STATUS_OK; }
    ncclResult_t result = ncclSuccess;
    NCCL_TRY(ncclCommGetAsyncError(comm, &result));
    return result == ncclSuccess || result == ncclInProgress ? STATUS_OK : nccl_fail(result, "a transfer");
}

Status nccl_world_check(const NcclWorld* world) {
    TRY(check_comm(world->pipeline));
    TRY(check_comm(world->replicas));
    return check_comm(world->ends);
}

// --- warming up ------------------------------------------------------------------------------------------
static Status exchange(const NcclWorld* world, float* data, int32_t peer) {
    NCCL_TRY(ncclSend(data, 1, ncclFloat32, peer, world->pipeline, world->stream));
    NCCL_TRY(ncclRecv(data + 1, 1, ncclFloat32, peer, world->pipeline, world->stream));
    return STATUS_OK;
}

static Status warm_up_comms(const NcclWorld* world, float* data, int32_t rank, int32_t num_stages) {
    int32_t stage = rank % num_stages;
    NCCL_TRY(ncclGroupStart());
    if (stage > 0) { TRY(exchange(world, data, rank - 1)); }
    if (stage < num_stages - 1) { TRY(exchange(world, data + 2, rank + 1)); }
    NCCL_TRY(ncclGroupEnd());
    ncclComm_t sums[2] = {world->ends, world->replicas};
    for (int i = 0; i < 2; i++) {
        if (sums[i] == NULL) { continue; }
        NCCL_TRY(ncclAllReduce(data + 4, data + 5, 1, ncclFloat32, ncclSum, sums[i], world->stream));
    }
    return STATUS_OK;
}

static Status wait_for_stream(const NcclWorld* world, int64_t timeout_ns) {
    Backoff backoff = {0};
    int64_t begin_ns = clock_now_ns();
    CUDA_TRY(cudaEventRecord(world->done, world->stream));
    for (int done = 0;;) {
        TRY(cuda_event_is_done(world->done, &done));
        if (done) { return STATUS_OK; }
        TRY(nccl_world_check(world));
        backoff_pause(&backoff);
        if (timeout_ns > 0 && clock_now_ns() - begin_ns > timeout_ns) {
            return FAIL(STATUS_COMM,
                        "NCCL: no connection with the neighbours in %.0f s ---> NCCL_DEBUG=INFO says what it "
                        "tries; --transport mpi goes without NCCL",
                        (double)timeout_ns / 1e9);
        }
    }
}

static Status warm_up(NcclWorld* world, int32_t rank, int32_t num_stages, int64_t timeout_ns) {
    float* data;
    CUDA_TRY(cudaMalloc((void**)&data, WARM_UP_FLOATS * sizeof *data));
    CUDA_TRY(cudaMemsetAsync(data, 0, WARM_UP_FLOATS * sizeof *data, world->stream));
    TRY(warm_up_comms(world, data, rank, num_stages));
    TRY(wait_for_stream(world, timeout_ns));
    CUDA_TRY(cudaFree(data));
    return STATUS_OK;
}

// --- open, close -----------------------------------------------------------------------------------------
static Status open_comms(NcclWorld* w, Collective* world, int32_t num_stages) {
    int32_t rank = world->transport->rank, stage = rank % num_stages;
    ncclUniqueId id;
    if (rank == 0) { NCCL_TRY(ncclGetUniqueId(&id)); }
    TRY(collective_broadcast(world, &id, sizeof id, 0));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    ncclConfig_t few = config;
    few.minCTAs = 1;
    few.maxCTAs = PIPELINE_CTAS;
    NCCL_TRY(ncclCommInitRankConfig(&w->pipeline, world->num_ranks, id, rank, &few));
    bool is_end = num_stages > 1 && (stage == 0 || stage == num_stages - 1);
    int no_color = NCCL_SPLIT_NOCOLOR;
    NCCL_TRY(ncclCommSplit(w->pipeline, w->num_replicas > 1 ? stage : no_color, rank, &w->replicas, &config));
    NCCL_TRY(ncclCommSplit(w->pipeline, is_end ? w->replica : no_color, rank, &w->ends, &config));
    return STATUS_OK;
}

static Status open_world(NcclWorld* w, Collective* world, int32_t num_stages) {
    int lowest, highest;
    CUDA_TRY(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    CUDA_TRY(cudaStreamCreateWithPriority(&w->stream, cudaStreamNonBlocking, highest));
    CUDA_TRY(cudaEventCreateWithFlags(&w->ready, cudaEventDisableTiming));
    CUDA_TRY(cudaEventCreateWithFlags(&w->done, cudaEventDisableTiming));
    TRY(open_comms(w, world, num_stages));
    return warm_up(w, world->transport->rank, num_stages, world->timeout_ns);
}

Status nccl_world_open(NcclWorld** out, CudaDevice* device, Collective* world, int32_t num_stages,
                       int32_t num_replicas) {
    NcclWorld* w = calloc(1, sizeof *w);
    if (w == NULL) { return FAIL(STATUS_NO_MEMORY, "NCCL: no memory"); }
    w->device = device;
    w->num_replicas = num_replicas;
    w->replica = world->transport->rank / num_stages;
    *out = w;  // also after a failure: the caller closes it
    return open_world(w, world, num_stages);
}

void nccl_world_abort(NcclWorld* w) {
    ncclComm_t* comms[3] = {&w->replicas, &w->ends, &w->pipeline};
    for (int i = 0; i < 3; i++) {
        ncclComm_t comm = *comms[i];
        *comms[i] = NULL;
        if (comm != NULL) { (void)ncclCommAbort(comm); }
    }
}

void nccl_world_close(NcclWorld* w) {
    if (w == NULL) { return; }
    ncclComm_t comms[3] = {w->replicas, w->ends, w->pipeline};
    for (int i = 0; i < 3; i++) {
        if (comms[i] != NULL) { (void)ncclCommDestroy(comms[i]); }
    }
    if (w->ready != NULL) { (void)cudaEventDestroy(w->ready); }
    if (w->done != NULL) { (void)cudaEventDestroy(w->done); }
    if (w->stream != NULL) { (void)cudaStreamDestroy(w->stream); }
    free(w);
}
