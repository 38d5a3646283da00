// links_nccl.c -- see links_nccl.h.
#include "links_nccl.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "../run/transport.h"
#include "../../util/program.h"

/*
A thread that ends the process when a call into a library does not come back.

The executor checks the time whenever nothing moves (run/transfers.c), but a host that is blocked inside a
call checks nothing: while it connects, NCCL waits there forever for missing ranks. So such
calls stand between begin() and end(), which cost two stores. Time is counted in naps of the thread: a process
that is stopped does not age.
*/
enum { NAPS = 16 };  // of a timeout: the process ends at most this much too late

struct CallWatch {
    Transport* transport;
    int64_t timeout_ns;
    _Atomic(const char*) what;  // NULL: no call is under way
    atomic_uint num_calls;      // begun so far
    atomic_bool is_closed;      // then the thread frees it after its nap
};

static void* run(void* ctx) {
    CallWatch* watch = ctx;
    const int64_t nap_ns = watch->timeout_ns / NAPS;
    const struct timespec nap = {(time_t)(nap_ns / 1000000000), (long)(nap_ns % 1000000000)};
    unsigned seen = 0;
    for (int num_naps = 0; num_naps < NAPS && !atomic_load(&watch->is_closed);) {
        nanosleep(&nap, NULL);
        unsigned num_calls = atomic_load(&watch->num_calls);
        num_naps = atomic_load(&watch->what) != NULL && num_calls == seen ? num_naps + 1 : 0;
        seen = num_calls;
    }
    if (!atomic_load(&watch->is_closed)) {
        char why[320];
        const Transport* transport = watch->transport;
        snprintf(why, sizeof why,
                 "rank %d: error: %s: the host waits inside for %.1f s ---> see what the other ranks do "
                 "(NCCL_DEBUG=INFO), or raise --comm-timeout; --transport mpi goes without NCCL",
                 transport->rank, atomic_load(&watch->what), (double)watch->timeout_ns / 1e9);
        if (transport->api->abort != NULL) { transport->api->abort(transport->ctx, why); }
        fprintf(stderr, "%s\n", why);
        _exit(1);
    }
    free(watch);
    return NULL;
}

// `transport` (borrowed): its abort() ends the run. timeout_ns 0: *out is NULL, no watch.
static Status call_watch_open(CallWatch** out, Transport* transport, int64_t timeout_ns) {
    pthread_t thread;
    *out = NULL;
    if (timeout_ns <= 0) { return STATUS_OK; }
    CallWatch* watch = calloc(1, sizeof *watch);
    if (watch == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a watch"); }
    watch->transport = transport;
    watch->timeout_ns = timeout_ns;
    if (pthread_create(&thread, NULL, run, watch) != 0) {
        free(watch);
        return FAIL(STATUS_NO_MEMORY, "no thread for a watch ---> ulimit -u");
    }
    pthread_detach(thread);
    *out = watch;
    return STATUS_OK;
}

// `what`: a string that stays, "NCCL: the first sum"; one call at a time.
static void call_watch_begin(CallWatch* watch, const char* what) {
    if (watch == NULL) { return; }
    atomic_fetch_add(&watch->num_calls, 1);
    atomic_store(&watch->what, what);
}

static void call_watch_end(CallWatch* watch) {
    if (watch != NULL) { atomic_store(&watch->what, NULL); }
}

// === communicators ===

// A transfer of the pipeline gets at most this many thread blocks: 2 to 4 saturate an NVLink connection with
// messages of 1 to 50 MB, and a receive that waits for its sender holds them while the model computes.
// Communicators for copies of parameters are made after memory has been shared out, with few buffers each;
// where there are many (a part of the vocabulary for each stage), with fewer still: their buffers add up.
enum { PIPELINE_CTAS = 4, HOLDERS_CTAS = 8, MANY_HOLDERS = 4, MANY_HOLDERS_CTAS = 2 };

Status nccl_fail(ncclResult_t result, const char* call) {
    return FAIL(STATUS_COMM,
                "%s: %s (%s) ---> NCCL_DEBUG=WARN prints more; --transport mpi goes without NCCL", call,
                ncclGetErrorString(result), ncclGetLastError(NULL));
}

static Status check_comm(ncclComm_t comm) {
    if (comm == NULL) { return STATUS_OK; }
    ncclResult_t result = ncclSuccess;
    NCCL_TRY(ncclCommGetAsyncError(comm, &result));
    return result == ncclSuccess || result == ncclInProgress ? STATUS_OK : nccl_fail(result, "a transfer");
}

static Status nccl_world_check(const NcclWorld* world) {
    TRY(check_comm(world->pipeline));
    for (int32_t h = 0; h < world->num_holders; h++) { TRY(check_comm(world->holders[h])); }
    return check_comm(world->replicas);
}

// --- warming up ------------------------------------------------------------------------------------------
// The operations that sums below use: kernels are loaded, and missing ranks are found here.
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

// One group: no order of pairs to agree on. data: 2 values for each rank.
static Status exchange_with(NcclWorld* world, float* data, const int32_t* peers, int32_t num_peers) {
    NCCL_TRY(ncclGroupStart());
    for (int32_t i = 0; i < num_peers; i++) {
        if (world->is_connected[peers[i]]) { continue; }
        world->is_connected[peers[i]] = true;
        NCCL_TRY(ncclSend(data + 2 * i, 1, ncclFloat32, peers[i], world->pipeline, world->stream));
        NCCL_TRY(ncclRecv(data + 2 * i + 1, 1, ncclFloat32, peers[i], world->pipeline, world->stream));
    }
    NCCL_TRY(ncclGroupEnd());
    return STATUS_OK;
}

static Status wait_for_stream(const NcclWorld* world, int64_t timeout_ns) {
    Backoff backoff = {0};
    CUDA_TRY(cudaEventRecord(world->done, world->stream));
    for (int done = 0;;) {
        TRY(cuda_event_is_done(world->done, &done));
        if (done) { return STATUS_OK; }
        TRY(nccl_world_check(world));
        if (!backoff_next(&backoff, false, timeout_ns)) {
            return FAIL(STATUS_COMM,
                        "NCCL: no connection with other ranks in %.0f s ---> NCCL_DEBUG=INFO prints what it "
                        "tries; --transport mpi goes without NCCL",
                        (double)timeout_ns / 1e9);
        }
    }
}

// Around calls that connect: room for their values, the watch, and a wait for the queue.
static Status warm_up_begin(NcclWorld* world, const Collective* ranks, float** data) {
    size_t num_bytes = 2 * (size_t)ranks->num_ranks * sizeof **data;
    CUDA_TRY(cudaMalloc((void**)data, num_bytes));
    CUDA_TRY(cudaMemsetAsync(*data, 0, num_bytes, world->stream));
    call_watch_begin(world->watch, "NCCL: connecting ranks");
    return STATUS_OK;
}

static Status warm_up_end(NcclWorld* world, const Collective* ranks, float* data, Status queued) {
    call_watch_end(world->watch);
    TRY(queued);
    TRY(wait_for_stream(world, ranks->timeout_ns));
    CUDA_TRY(cudaFree(data));
    return STATUS_OK;
}

// --- open, close -----------------------------------------------------------------------------------------
// Unless the environment sets it.
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

// The replicas of this rank's stage.
static Status open_replicas(NcclWorld* w, int32_t rank, int32_t num_stages, int32_t num_replicas) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    w->num_replicas = num_replicas;
    w->replica = rank / num_stages;
    const int color = num_replicas > 1 ? rank % num_stages : NCCL_SPLIT_NOCOLOR;
    NCCL_TRY(ncclCommSplit(w->pipeline, color, rank, &w->replicas, &config));
    return STATUS_OK;
}

static Status open_comms(NcclWorld* w, Collective* world, int32_t num_stages, int32_t num_replicas) {
    int32_t rank = world->transport->rank;
    ncclUniqueId id;
    TRY(connect_early(rank));
    if (rank == 0) { NCCL_TRY(ncclGetUniqueId(&id)); }
    TRY(collective_broadcast(world, &id, sizeof id, 0));
    ncclConfig_t few = NCCL_CONFIG_INITIALIZER;
    few.blocking = 1;
    few.minCTAs = 1;
    few.maxCTAs = PIPELINE_CTAS;
    NCCL_TRY(ncclCommInitRankConfig(&w->pipeline, world->num_ranks, id, rank, &few));
    return open_replicas(w, rank, num_stages, num_replicas);
}

static Status open_world(NcclWorld* w, Collective* world, int32_t num_stages, int32_t num_replicas) {
    int lowest, highest;
    CUDA_TRY(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    CUDA_TRY(cudaStreamCreateWithPriority(&w->stream, cudaStreamNonBlocking, highest));
    CUDA_TRY(cudaEventCreateWithFlags(&w->ready, cudaEventDisableTiming));
    CUDA_TRY(cudaEventCreateWithFlags(&w->done, cudaEventDisableTiming));
    TRY(call_watch_open(&w->watch, world->transport, world->timeout_ns));
    call_watch_begin(w->watch, "NCCL: connecting all ranks");
    Status status = open_comms(w, world, num_stages, num_replicas);
    call_watch_end(w->watch);
    TRY(status);
    float* data;
    TRY(warm_up_begin(w, world, &data));
    return warm_up_end(w, world, data, warm_up_sum(w, data, w->replicas));
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
    *out = w;  // also after a failure: the caller closes it
    return open_world(w, world, num_stages, num_replicas);
}

Status nccl_world_set_stages(NcclWorld* w, Collective* world, int32_t num_stages, int32_t num_replicas) {
    if (w->num_replicas == num_replicas) { return STATUS_OK; }
    if (w->replicas != NULL) { (void)ncclCommDestroy(w->replicas); }
    w->replicas = NULL;
    call_watch_begin(w->watch, "NCCL: connecting replicas");
    Status status = open_replicas(w, world->transport->rank, num_stages, num_replicas);
    call_watch_end(w->watch);
    TRY(status);
    float* data;
    TRY(warm_up_begin(w, world, &data));
    return warm_up_end(w, world, data, warm_up_sum(w, data, w->replicas));
}

Status nccl_world_connect(NcclWorld* w, Collective* ranks, const int32_t* peers, int32_t num_peers) {
    float* data;
    TRY(warm_up_begin(w, ranks, &data));
    return warm_up_end(w, ranks, data, exchange_with(w, data, peers, num_peers));
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

// After layers have moved, other ranks have copies than before.
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
    float* data;
    TRY(warm_up_begin(w, ranks, &data));
    for (int32_t h = 0; h < w->num_holders && status == STATUS_OK; h++) {
        status = warm_up_sum(w, data, w->holders[h]);
    }
    return warm_up_end(w, ranks, data, status);
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
    if (w->watch != NULL) { atomic_store(&w->watch->is_closed, true); }
    close_holders(w);
    if (w->replicas != NULL) { (void)ncclCommDestroy(w->replicas); }
    if (w->pipeline != NULL) { (void)ncclCommDestroy(w->pipeline); }
    if (w->ready != NULL) { (void)cudaEventDestroy(w->ready); }
    if (w->done != NULL) { (void)cudaEventDestroy(w->done); }
    if (w->stream != NULL) { (void)cudaStreamDestroy(w->stream); }
    free(w->is_connected);
    free(w);
}

// === transfers ===

typedef struct Request Request;
struct Request {
    Request* next;            // in the list of free ones
    cudaEvent_t begin, done;  // on the communication stream, timed
    bool is_posted;           // events are recorded: not so while its group is still open
};

typedef struct {
    Request* request;
    const void* source;  // of a send; NULL: a receive
    void* target;
    size_t num_bytes;
    int32_t peer;
} Op;

typedef struct {
    NcclWorld* world;
    Request** requests;  // [num_requests] all of them
    Request* free;
    Request* last_done;  // for when(): its events stay as they are until the next post
    int32_t num_requests, num_in_flight;
    cudaEvent_t ready;  // on the compute stream
    Op* ops;            // [num_requests] of the group that is open
    int32_t num_ops;
    bool in_group;
} Nccl;

static Status add_request(Nccl* nccl) {
    Request* request = calloc(1, sizeof *request);
    if (request == NULL) { return FAIL(STATUS_NO_MEMORY, "NCCL: no memory for a request"); }
    nccl->requests[nccl->num_requests++] = request;
    request->next = nccl->free;
    nccl->free = request;
    CUDA_TRY(cudaEventCreate(&request->begin));
    CUDA_TRY(cudaEventCreate(&request->done));
    return STATUS_OK;
}

static Status nccl_reserve(void* ctx, int32_t num_requests) {
    Nccl* nccl = ctx;
    if (num_requests <= nccl->num_requests) { return STATUS_OK; }
    Request** grown = realloc(nccl->requests, (size_t)num_requests * sizeof *grown);
    if (grown == NULL) { return FAIL(STATUS_NO_MEMORY, "NCCL: room for %d requests", (int)num_requests); }
    nccl->requests = grown;
    Op* ops = realloc(nccl->ops, (size_t)num_requests * sizeof *ops);
    if (ops == NULL) { return FAIL(STATUS_NO_MEMORY, "NCCL: room for %d requests", (int)num_requests); }
    nccl->ops = ops;
    while (nccl->num_requests < num_requests) { TRY(add_request(nccl)); }
    return STATUS_OK;
}

static Status queue_ops(const Nccl* nccl) {
    ncclComm_t comm = nccl->world->pipeline;
    cudaStream_t stream = nccl->world->stream;
    NCCL_TRY(ncclGroupStart());
    for (int32_t i = 0; i < nccl->num_ops; i++) {
        const Op* op = &nccl->ops[i];
        NCCL_TRY(op->source != NULL ? ncclSend(op->source, op->num_bytes, ncclChar, op->peer, comm, stream)
                                    : ncclRecv(op->target, op->num_bytes, ncclChar, op->peer, comm, stream));
    }
    NCCL_TRY(ncclGroupEnd());
    return STATUS_OK;
}

// All operations collected, as one.
static Status start_ops(Nccl* nccl) {
    cudaStream_t stream = nccl->world->stream;
#ifndef DYNAPIPE_FAULT_NO_EVENT  // a fault for test_cuda_train.sh to find
    CUDA_TRY(cudaEventRecord(nccl->ready, nccl->world->device->compute));
    CUDA_TRY(cudaStreamWaitEvent(stream, nccl->ready, 0));
#endif
    for (int32_t i = 0; i < nccl->num_ops; i++) {
        CUDA_TRY(cudaEventRecord(nccl->ops[i].request->begin, stream));
    }
    call_watch_begin(nccl->world->watch, "NCCL: a transfer");
    Status status = queue_ops(nccl);
    call_watch_end(nccl->world->watch);
    TRY(status);
    for (int32_t i = 0; i < nccl->num_ops; i++) {
        CUDA_TRY(cudaEventRecord(nccl->ops[i].request->done, stream));
        nccl->ops[i].request->is_posted = true;
    }
    nccl->num_ops = 0;
    return STATUS_OK;
}

static Status post(Nccl* nccl, Op op, void** request) {
    if (nccl->free == NULL) {
        return FAIL(STATUS_OUT_OF_RANGE, "NCCL: more than %d transfers at a time", (int)nccl->num_requests);
    }
    op.request = nccl->free;
    nccl->free = op.request->next;
    op.request->is_posted = false;
    nccl->num_in_flight++;
    nccl->ops[nccl->num_ops++] = op;
    *request = op.request;
    return nccl->in_group ? STATUS_OK : start_ops(nccl);
}

static Status nccl_isend(void* ctx, int32_t peer, int32_t tag, const void* data, size_t num_bytes,
                         void** request) {
    (void)tag;
    return post(ctx, (Op){.source = data, .num_bytes = num_bytes, .peer = peer}, request);
}

static Status nccl_irecv(void* ctx, int32_t peer, int32_t tag, void* data, size_t num_bytes, void** request) {
    (void)tag;
    return post(ctx, (Op){.target = data, .num_bytes = num_bytes, .peer = peer}, request);
}

static Status nccl_test(void* ctx, void* request, int* done) {
    Nccl* nccl = ctx;
    Request* r = request;
    *done = 0;
    if (r->is_posted) { TRY(cuda_event_is_done(r->done, done)); }
    if (!*done) { return nccl_world_check(nccl->world); }
    r->next = nccl->free;
    nccl->free = r;
    nccl->last_done = r;
    nccl->num_in_flight--;
    return STATUS_OK;
}

static Status nccl_join(void* ctx, void* request, int* joined) {
    Nccl* nccl = ctx;
    const Request* r = request;
    *joined = r->is_posted;
    if (!r->is_posted) { return STATUS_OK; }
    CUDA_TRY(cudaStreamWaitEvent(nccl->world->device->compute, r->done, 0));
    return STATUS_OK;
}

static Status nccl_group_begin(void* ctx) {
    ((Nccl*)ctx)->in_group = true;
    return STATUS_OK;
}

static Status nccl_group_end(void* ctx) {
    Nccl* nccl = ctx;
    nccl->in_group = false;
    return nccl->num_ops > 0 ? start_ops(nccl) : STATUS_OK;
}

static Status nccl_when(void* ctx, int64_t* begin_ns, int64_t* end_ns) {
    const Nccl* nccl = ctx;
    TRY(cuda_device_event_ns(nccl->world->device, nccl->last_done->begin, begin_ns));
    return cuda_device_event_ns(nccl->world->device, nccl->last_done->done, end_ns);
}

static Status nccl_close(void* ctx) {
    Nccl* nccl = ctx;
    int32_t num_in_flight = nccl->num_in_flight;
    for (int32_t i = 0; i < nccl->num_requests; i++) {
        if (num_in_flight == 0) {  // otherwise the stream may never reach them
            (void)cudaEventDestroy(nccl->requests[i]->begin);
            (void)cudaEventDestroy(nccl->requests[i]->done);
        }
        free(nccl->requests[i]);
    }
    (void)cudaEventDestroy(nccl->ready);
    free(nccl->ops);
    free(nccl->requests);
    free(nccl);
    return num_in_flight == 0
               ? STATUS_OK
               : FAIL(STATUS_COMM, "NCCL: closed with %d transfers in flight", (int)num_in_flight);
}

static const DynapipeTransport_v1 nccl_api = {
    .isend = nccl_isend,
    .irecv = nccl_irecv,
    .test = nccl_test,
    .close = nccl_close,
    .reserve = nccl_reserve,
    .join = nccl_join,
    .group_begin = nccl_group_begin,
    .group_end = nccl_group_end,
    .when = nccl_when,
};

Status transport_nccl_open(Transport* out, NcclWorld* world, int32_t rank, int32_t num_ranks) {
    Nccl* nccl = calloc(1, sizeof *nccl);
    if (nccl == NULL) { return FAIL(STATUS_NO_MEMORY, "NCCL: no memory for a transport"); }
    nccl->world = world;
    cudaError_t error = cudaEventCreateWithFlags(&nccl->ready, cudaEventDisableTiming);
    if (error != cudaSuccess) {
        free(nccl);
        return cuda_fail(error, "cudaEventCreateWithFlags");
    }
    *out = (Transport){.api = &nccl_api, .ctx = nccl, .rank = rank, .num_ranks = num_ranks};
    return STATUS_OK;
}

// === sums ===

typedef struct {
    const NcclWorld* world;
    const TiedGroups* tied;
} NcclSums;

// The members of a sum, and my index.
typedef struct {
    ncclComm_t comm;
    int32_t num_ranks, my_idx;
} Members;

// Everybody's slices to their owners and added there, or from their owners to all. Slices of unequal length:
// one operation for each, all together.
static Status queue_slices(const NcclWorld* world, Members m, unsigned char* values, int64_t num_values,
                           DynapipeType type, int32_t value_bytes, bool reduces) {
    const ncclDataType_t of_values = type == DYNAPIPE_FLOAT32    ? ncclFloat32
                                     : type == DYNAPIPE_BFLOAT16 ? ncclBfloat16
                                                                 : ncclFloat16;
    if (num_values % m.num_ranks == 0) {
        size_t count = (size_t)(num_values / m.num_ranks), num_bytes = count * (size_t)value_bytes;
        unsigned char* mine = values + num_bytes * (size_t)m.my_idx;
        NCCL_TRY(reduces ? ncclReduceScatter(values, mine, count, of_values, ncclSum, m.comm, world->stream)
                         : ncclAllGather(mine, values, num_bytes, ncclChar, m.comm, world->stream));
        return STATUS_OK;
    }
    NCCL_TRY(ncclGroupStart());
    for (int32_t r = 0; r < m.num_ranks; r++) {
        int64_t from = collective_slice(num_values, m.num_ranks, r);
        size_t count = (size_t)(collective_slice(num_values, m.num_ranks, r + 1) - from);
        unsigned char* slice = values + from * value_bytes;
        if (count == 0) { continue; }
        NCCL_TRY(reduces ? ncclReduce(slice, slice, count, of_values, ncclSum, r, m.comm, world->stream)
                         : ncclBroadcast(slice, slice, count * (size_t)value_bytes, ncclChar, r, m.comm,
                                         world->stream));
    }
    NCCL_TRY(ncclGroupEnd());
    return STATUS_OK;
}

// After the work queued on the compute stream so far; later work there waits for it.
static Status run_sum(const NcclWorld* world, Members m, void* values, int64_t num_values, DynapipeType type,
                      int32_t value_bytes, bool reduces, bool gathers) {
    Status status = STATUS_OK;
    if (m.num_ranks == 1) { return STATUS_OK; }
    CUDA_TRY(cudaEventRecord(world->ready, world->device->compute));
    CUDA_TRY(cudaStreamWaitEvent(world->stream, world->ready, 0));
    call_watch_begin(world->watch, "NCCL: a sum of gradients");
    if (reduces) { status = queue_slices(world, m, values, num_values, type, value_bytes, true); }
    if (gathers && status == STATUS_OK) {
        status = queue_slices(world, m, values, num_values, type, value_bytes, false);
    }
    call_watch_end(world->watch);
    TRY(status);
    CUDA_TRY(cudaEventRecord(world->done, world->stream));
    CUDA_TRY(cudaStreamWaitEvent(world->device->compute, world->done, 0));
    return STATUS_OK;
}

static Members replicas_of(const NcclWorld* world) {
    return (Members){world->replicas, world->num_replicas, world->replica};
}

// Not ncclAllReduce: that does not promise the same bits on all ranks. Here each value has one owner.
static Status sum_copies(void* ctx, int32_t holders, void* values, int64_t num_values, DynapipeType type) {
    const NcclSums* sums = ctx;
    const Collective* ranks = &sums->tied->holders[holders].ranks;
    const Members m = {sums->world->holders[holders], ranks->num_ranks, ranks->my_idx};
    return run_sum(sums->world, m, values, num_values, type, collective_type_bytes(type), true, true);
}

static Status reduce_scatter(void* ctx, void* values, int64_t num_values, DynapipeType type) {
    const NcclWorld* world = ((const NcclSums*)ctx)->world;
    return run_sum(world, replicas_of(world), values, num_values, type, collective_type_bytes(type), true,
                   false);
}

static Status all_gather(void* ctx, void* values, int64_t num_values, int32_t bytes_per_value) {
    const NcclWorld* world = ((const NcclSums*)ctx)->world;
    return run_sum(world, replicas_of(world), values, num_values, DYNAPIPE_FLOAT32, bytes_per_value, false,
                   true);
}

static const SumsApi nccl_sums = {.is_queued = true,
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
