#include "nccl_world.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../util/program.h"
#include "../run/backoff.h"

// A transfer of the pipeline gets at most so many thread blocks: 2 to 4 fill a link of NVLink with messages
// of 1 to 50 MB, and a receive that waits for its sender holds them while the model computes.
// Communicators for copies of parameters come when memory has been shared out: each with few buffers.
// Where they are many (a part of the vocabulary for each stage), with fewer still: their buffers add up.
enum { PIPELINE_CTAS = 4, HOLDERS_CTAS = 8, MANY_HOLDERS = 4, MANY_HOLDERS_CTAS = 2 };

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
    for (int32_t h = 0; h < world->num_holders; h++) { TRY(check_comm(world->holders[h])); }
    return check_comm(world->replicas);
}

// --- warming up ------------------------------------------------------------------------------------------
static Status exchange(const NcclWorld* world, float* data, int32_t peer) {
    NCCL_TRY(ncclSend(data, 1, ncclFloat32, peer, world->pipeline, world->stream));
    NCCL_TRY(ncclRecv(data + 1, 1, ncclFloat32, peer, world->pipeline, world->stream));
    return STATUS_OK;
}

// What sums_nccl.c uses: kernels are loaded, and who does not come is found out here.
static Status warm_up_sum(const NcclWorld* world, float* data, ncclComm_t comm) {
    if (comm == NULL) { return STATUS_OK; }
    int me;
    NCCL_TRY(ncclCommUserRank(comm, &me));
    NCCL_TRY(ncclReduceScatter(data, data + me, 1, ncclFloat32, ncclSum, comm, world->stream));
    NCCL_TRY(ncclAllGather(data + me, data, 1, ncclFloat32, comm, world->stream));
    NCCL_TRY(ncclReduce(data, data, 1, ncclFloat32, ncclSum, 0, comm, world->stream));
    NCCL_TRY(ncclBroadcast(data, data, 1, ncclFloat32, 0, comm, world->stream));
    return STATUS_OK;
}

// One group: no order of pairs to agree on. data: 2 values for each peer.
static Status warm_up_peers(const NcclWorld* world, float* data, const int32_t* peers, int32_t num_peers) {
    NCCL_TRY(ncclGroupStart());
    for (int32_t i = 0; i < num_peers; i++) { TRY(exchange(world, data + 2 * i, peers[i])); }
    NCCL_TRY(ncclGroupEnd());
    return STATUS_OK;
}

static Status warm_up_holders(const NcclWorld* world, float* data) {
    for (int32_t h = 0; h < world->num_holders; h++) { TRY(warm_up_sum(world, data, world->holders[h])); }
    return STATUS_OK;
}

static Status wait_for_stream(const NcclWorld* world, int64_t timeout_ns) {
    Backoff backoff = {0};
    CUDA_TRY(cudaEventRecord(world->done, world->stream));
    for (int done = 0;;) {
        TRY(cuda_event_is_done(world->done, &done));
        if (done) { return STATUS_OK; }
        TRY(nccl_world_check(world));
        if (backoff_gives_up(&backoff, timeout_ns)) {
            return FAIL(STATUS_COMM,
                        "NCCL: no connection with other ranks in %.0f s ---> NCCL_DEBUG=INFO says what it "
                        "tries; --transport mpi goes without NCCL",
                        (double)timeout_ns / 1e9);
        }
        backoff_pause(&backoff);
    }
}

// What may connect, behind each other: peers, then a sum over the replicas, or over all holders.
typedef struct {
    const int32_t* peers;
    int32_t num_peers;
    bool replicas, holders;
} WarmUp;

static Status queue_warm_up(const NcclWorld* world, float* data, WarmUp what) {
    if (what.num_peers > 0) { TRY(warm_up_peers(world, data, what.peers, what.num_peers)); }
    if (what.replicas) { TRY(warm_up_sum(world, data, world->replicas)); }
    return what.holders ? warm_up_holders(world, data) : STATUS_OK;
}

static Status warm_up(NcclWorld* world, const Collective* ranks, WarmUp what) {
    float* data;
    size_t num_bytes = 2 * (size_t)ranks->num_ranks * sizeof *data;
    CUDA_TRY(cudaMalloc((void**)&data, num_bytes));
    CUDA_TRY(cudaMemsetAsync(data, 0, num_bytes, world->stream));
    call_watch_begin(world->watch, "NCCL: connecting ranks");
    Status status = queue_warm_up(world, data, what);
    call_watch_end(world->watch);
    TRY(status);
    TRY(wait_for_stream(world, ranks->timeout_ns));
    CUDA_TRY(cudaFree(data));
    return STATUS_OK;
}

// --- open, close -----------------------------------------------------------------------------------------
// Unless the environment says otherwise.
static Status connect_early(int32_t rank) {
    if (setenv("NCCL_RUNTIME_CONNECT", "0", 0) != 0) { return FAIL(STATUS_NO_MEMORY, "setenv"); }
    const char* value = getenv("NCCL_RUNTIME_CONNECT");
    if (rank == 0 && strcmp(value, "0") != 0) {
        fprintf(stderr,
                "warning: NCCL_RUNTIME_CONNECT=%.20s is set: NCCL connects sums in the steps that first need "
                "them, in memory that the plan may have filled ---> unset it, and they are connected and "
                "counted before step 1\n",
                value);
    }
    return STATUS_OK;
}

static Status open_comms(NcclWorld* w, Collective* world, int32_t num_stages) {
    int32_t rank = world->transport->rank, stage = rank % num_stages;
    ncclUniqueId id;
    TRY(connect_early(rank));
    if (rank == 0) { NCCL_TRY(ncclGetUniqueId(&id)); }
    TRY(collective_broadcast(world, &id, sizeof id, 0));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    ncclConfig_t few = config;
    few.minCTAs = 1;
    few.maxCTAs = PIPELINE_CTAS;
    NCCL_TRY(ncclCommInitRankConfig(&w->pipeline, world->num_ranks, id, rank, &few));
    int no_color = NCCL_SPLIT_NOCOLOR;
    NCCL_TRY(ncclCommSplit(w->pipeline, w->num_replicas > 1 ? stage : no_color, rank, &w->replicas, &config));
    return STATUS_OK;
}

static Status open_world(NcclWorld* w, Collective* world, int32_t num_stages) {
    int lowest, highest;
    CUDA_TRY(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    CUDA_TRY(cudaStreamCreateWithPriority(&w->stream, cudaStreamNonBlocking, highest));
    CUDA_TRY(cudaEventCreateWithFlags(&w->ready, cudaEventDisableTiming));
    CUDA_TRY(cudaEventCreateWithFlags(&w->done, cudaEventDisableTiming));
    TRY(call_watch_open(&w->watch, world->transport, world->timeout_ns));
    call_watch_begin(w->watch, "NCCL: connecting all ranks");
    Status status = open_comms(w, world, num_stages);
    call_watch_end(w->watch);
    TRY(status);
    return warm_up(w, world, (WarmUp){.replicas = true});
}

Status nccl_world_open(NcclWorld** out, CudaDevice* device, Collective* world, int32_t num_stages,
                       int32_t num_replicas) {
    NcclWorld* w = calloc(1, sizeof *w);
    if (w == NULL) { return FAIL(STATUS_NO_MEMORY, "NCCL: no memory"); }
    w->device = device;
    w->is_connected = calloc((size_t)world->num_ranks, sizeof *w->is_connected);
    if (w->is_connected == NULL) {
        free(w);
        return FAIL(STATUS_NO_MEMORY, "NCCL: no memory");
    }
    w->num_replicas = num_replicas;
    w->replica = world->transport->rank / num_stages;
    *out = w;  // also after a failure: the caller closes it
    return open_world(w, world, num_stages);
}

Status nccl_world_connect(NcclWorld* w, Collective* ranks, const int32_t* peers, int32_t num_peers) {
    int32_t num_new = 0, *fresh = malloc((size_t)ranks->num_ranks * sizeof *fresh);
    if (fresh == NULL) { return FAIL(STATUS_NO_MEMORY, "NCCL: no memory for %d peers", (int)num_peers); }
    for (int32_t i = 0; i < num_peers; i++) {
        bool* is_connected = &w->is_connected[peers[i]];
        if (!*is_connected) { fresh[num_new++] = peers[i]; }
        *is_connected = true;
    }
    Status status = warm_up(w, ranks, (WarmUp){.peers = fresh, .num_peers = num_new});
    free(fresh);
    return status;
}

// Every rank splits, also where it is none of them: a communicator for each set, of each replica its own.
static Status split_holders(NcclWorld* w, const TiedGroups* tied, int32_t rank) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    config.minCTAs = 1;
    config.maxCTAs = tied->num_holders > MANY_HOLDERS ? MANY_HOLDERS_CTAS : HOLDERS_CTAS;
    for (int32_t h = 0; h < tied->num_holders; h++) {
        bool is_mine = tied->holders[h].ranks.num_ranks > 0;
        int color = is_mine ? w->replica : NCCL_SPLIT_NOCOLOR;
        NCCL_TRY(ncclCommSplit(w->pipeline, color, rank, &w->holders[h], &config));
    }
    return STATUS_OK;
}

// Where layers have moved, other ranks have copies than before.
static void close_holders(NcclWorld* w) {
    for (int32_t h = 0; h < w->num_holders; h++) {
        if (w->holders[h] != NULL) { (void)ncclCommDestroy(w->holders[h]); }
    }
    free(w->holders);
    w->holders = NULL;
    w->num_holders = 0;
}

Status nccl_world_open_holders(NcclWorld* w, Collective* ranks, const TiedGroups* tied) {
    close_holders(w);
    if (tied->num_holders == 0) { return STATUS_OK; }
    w->holders = calloc((size_t)tied->num_holders, sizeof(ncclComm_t));
    if (w->holders == NULL) { return FAIL(STATUS_NO_MEMORY, "NCCL: no memory"); }
    w->num_holders = tied->num_holders;
    call_watch_begin(w->watch, "NCCL: connecting ranks that have copies of parameters");
    Status status = split_holders(w, tied, ranks->transport->rank);
    call_watch_end(w->watch);
    TRY(status);
    return warm_up(w, ranks, (WarmUp){.holders = true});
}

static void abort_comm(ncclComm_t* place) {
    ncclComm_t comm = *place;
    *place = NULL;
    if (comm != NULL) { (void)ncclCommAbort(comm); }
}

void nccl_world_abort(NcclWorld* w) {
    abort_comm(&w->replicas);
    for (int32_t h = 0; h < w->num_holders; h++) { abort_comm(&w->holders[h]); }
    abort_comm(&w->pipeline);
}

void nccl_world_close(NcclWorld* w) {
    if (w == NULL) { return; }
    call_watch_close(w->watch);
    close_holders(w);
    if (w->replicas != NULL) { (void)ncclCommDestroy(w->replicas); }
    if (w->pipeline != NULL) { (void)ncclCommDestroy(w->pipeline); }
    if (w->ready != NULL) { (void)cudaEventDestroy(w->ready); }
    if (w->done != NULL) { (void)cudaEventDestroy(w->done); }
    if (w->stream != NULL) { (void)cudaStreamDestroy(w->stream); }
    free(w->is_connected);
    free(w);
}
