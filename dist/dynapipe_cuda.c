// dynapipe_cuda.c -- the library with GPUs: the translation unit in place of dynapipe.c
// DynaPipe for llm.c 74a992d23900. Made by `make dist` of these files' sources: do not edit.
//
// MIT License
//
// Copyright (c) 2026 the DynaPipe for llm.c authors
//
// Permission is hereby granted, free of charge, to any person obtaining a copy
// of this software and associated documentation files (the "Software"), to deal
// in the Software without restriction, including without limitation the rights
// to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
// copies of the Software, and to permit persons to whom the Software is
// furnished to do so, subject to the following conditions:
//
// The above copyright notice and this permission notice shall be included in all
// copies or substantial portions of the Software.
//
// THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
// IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
// FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
// AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
// LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
// OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
// SOFTWARE.
#define DYNAPIPE_CUDA
#include "dynapipe.c"
#include <cuda_runtime.h>
#ifndef DYNAPIPE_NO_NCCL
#include <nccl.h>
#endif

// ===== dynapipe_plugin/cuda/device_cuda.h ==================================================================

typedef struct {
    cudaStream_t compute;  // borrowed: the trainer's
    cudaEvent_t* marks;
    int32_t num_marks, max_marks;
    cudaEvent_t origin;
    int64_t origin_ns;  // clock_now_ns() when `origin` was reached
} CudaDevice;

// The current device. *cuda lives as long as *out is open.
static Status cuda_device_open(Device* out, CudaDevice** cuda, cudaStream_t compute);

// When a timed event was reached, in clock_now_ns() time.
static Status cuda_device_event_ns(const CudaDevice* device, cudaEvent_t event, int64_t* out_ns);

// cudaEventQuery; errors of earlier work come out here.
static Status cuda_event_is_done(cudaEvent_t event, int* done);

#define CUDA_TRY(call)                                                            \
    do {                                                                          \
        cudaError_t cuda_error_ = (call);                                         \
        if (cuda_error_ != cudaSuccess) { return cuda_fail(cuda_error_, #call); } \
    } while (0)
static Status cuda_fail(cudaError_t error, const char* call);

// ===== dynapipe_plugin/cuda/device_cuda.c ==================================================================

#ifdef DYNAPIPE_NVTX
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#include <nvtx3/nvToolsExt.h>
#pragma GCC diagnostic pop
#endif

static Status cuda_fail(cudaError_t error, const char* call) {
    return FAIL(STATUS_DEVICE, "%s: %s ---> see nvidia-smi; compute-sanitizer finds the operation", call,
                cudaGetErrorString(error));
}

static Status cuda_event_is_done(cudaEvent_t event, int* done) {
    cudaError_t error = cudaEventQuery(event);
    *done = error == cudaSuccess;
    return error == cudaSuccess || error == cudaErrorNotReady ? STATUS_OK
                                                              : cuda_fail(error, "cudaEventQuery");
}

static Status cuda_device_event_ns(const CudaDevice* device, cudaEvent_t event, int64_t* out_ns) {
    float ms;
    CUDA_TRY(cudaEventElapsedTime(&ms, device->origin, event));
    *out_ns = device->origin_ns + (int64_t)((double)ms * 1e6);
    return STATUS_OK;
}

// --- run/device.h ----------------------------------------------------------------------------------------
static Status device_alloc(void* ctx, void** out, int64_t num_bytes) {
    (void)ctx;
    void* memory = NULL;
    if (cudaMalloc(&memory, (size_t)num_bytes) != cudaSuccess) {
        size_t free_bytes = 0, total_bytes = 0;
        (void)cudaGetLastError();  // it is dealt with here
        CUDA_TRY(cudaMemGetInfo(&free_bytes, &total_bytes));
        return FAIL(STATUS_NO_MEMORY,
                    "no memory for %lld bytes, the GPU has %zu of %zu left ---> a smaller --memory-limit",
                    (long long)num_bytes, free_bytes, total_bytes);
    }
    *out = memory;
    return STATUS_OK;
}

static void device_release(void* ctx, void* memory) {
    (void)ctx;
    if (memory != NULL) { (void)cudaFree(memory); }
}

static Status device_memory_bytes(void* ctx, int64_t* free_bytes, int64_t* total_bytes) {
    (void)ctx;
    size_t left, total;
    CUDA_TRY(cudaMemGetInfo(&left, &total));
    *free_bytes = (int64_t)left;
    *total_bytes = (int64_t)total;
    return STATUS_OK;
}

static Status device_copy(void* ctx, void* to, const void* from, int64_t num_bytes) {
    const CudaDevice* device = ctx;
    CUDA_TRY(cudaStreamSynchronize(device->compute));
    CUDA_TRY(cudaMemcpy(to, from, (size_t)num_bytes, cudaMemcpyDefault));
    return STATUS_OK;
}

static Status device_begin(void* ctx, int32_t num_marks) {
    CudaDevice* device = ctx;
    device->num_marks = 0;
    if (num_marks <= device->max_marks) { return STATUS_OK; }
    cudaEvent_t* grown = realloc(device->marks, (size_t)num_marks * sizeof(cudaEvent_t));
    if (grown == NULL) { return FAIL(STATUS_NO_MEMORY, "cuda: room for %d marks", (int)num_marks); }
    device->marks = grown;
    for (; device->max_marks < num_marks; device->max_marks++) {
        CUDA_TRY(cudaEventCreate(&device->marks[device->max_marks]));
    }
    return STATUS_OK;
}

static Status device_mark(void* ctx, int32_t* out) {
    CudaDevice* device = ctx;
    if (device->num_marks == device->max_marks) {
        return FAIL(STATUS_OUT_OF_RANGE, "cuda: more than %d marks", (int)device->max_marks);
    }
    *out = device->num_marks++;
    CUDA_TRY(cudaEventRecord(device->marks[*out], device->compute));
    return STATUS_OK;
}

static Status device_is_done(void* ctx, int32_t mark, int* done) {
    CudaDevice* device = ctx;
    return cuda_event_is_done(device->marks[mark], done);
}

static Status device_mark_ns(void* ctx, int32_t mark, int64_t* out_ns) {
    CudaDevice* device = ctx;
    return cuda_device_event_ns(device, device->marks[mark], out_ns);
}

static Status device_settle(void* ctx) {
    CudaDevice* device = ctx;
    CUDA_TRY(cudaEventRecord(device->origin, device->compute));
    CUDA_TRY(cudaEventSynchronize(device->origin));
    device->origin_ns = clock_now_ns();
    return STATUS_OK;
}

#ifdef DYNAPIPE_NVTX
static void device_range_begin(void* ctx, const char* text) {
    (void)ctx;
    nvtxRangePushA(text);
}

static void device_range_end(void* ctx) {
    (void)ctx;
    nvtxRangePop();
}
#endif

static void device_close_cuda(void* ctx) {
    CudaDevice* device = ctx;
    for (int32_t i = 0; i < device->max_marks; i++) { (void)cudaEventDestroy(device->marks[i]); }
    (void)cudaEventDestroy(device->origin);
    free(device->marks);
    free(device);
}

static const DynapipeDevice_v1 cuda_device = {
    .name = "cuda",
    .alloc = device_alloc,
    .release = device_release,
    .memory_bytes = device_memory_bytes,
    .copy = device_copy,
    .begin = device_begin,
    .mark = device_mark,
    .is_done = device_is_done,
    .mark_ns = device_mark_ns,
    .settle = device_settle,
#ifdef DYNAPIPE_NVTX
    .range_begin = device_range_begin,
    .range_end = device_range_end,
#endif
    .close = device_close_cuda,
};

static Status cuda_device_open(Device* out, CudaDevice** cuda, cudaStream_t compute) {
    CudaDevice* device = calloc(1, sizeof *device);
    if (device == NULL) { return FAIL(STATUS_NO_MEMORY, "cuda: no memory for a device"); }
    device->compute = compute;
    cudaError_t error = cudaEventCreate(&device->origin);
    if (error != cudaSuccess) {
        free(device);
        return cuda_fail(error, "cudaEventCreate");
    }
    *out = (Device){&cuda_device, device};
    *cuda = device;
    return device_settle(device);
}

// ===== dynapipe_plugin/cuda/links_nccl.h ===================================================================
#ifndef DYNAPIPE_NO_NCCL

#ifdef __cplusplus
#include <nccl.h>
#else
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes"  // nccl.h is written for C++
#include <nccl.h>
#pragma GCC diagnostic pop
#endif

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 18, 1)
#error "NCCL before 2.18 (ncclCommSplit) ---> a newer one, NCCL_HOME=/path; or NO_NCCL=1"
#endif

typedef struct CallWatch CallWatch;

typedef struct {
    CudaDevice* device;  // borrowed
    CallWatch* watch;    // of calls that may connect
    cudaStream_t stream;
    ncclComm_t pipeline;  // all ranks, numbered as in the plan
    bool* is_connected;   // [ranks] sends to and receives from it were
    ncclComm_t replicas;  // NULL where the rank is alone
    ncclComm_t* holders;  // [num_holders] those of TiedGroups.holders in my replica; NULL: I am none of them
    int32_t num_holders;
    int32_t num_replicas, replica;
    cudaEvent_t ready, done;  // of sums
} NcclWorld;

// A collective of all ranks (`world`, which bootstraps). rank = replica * num_stages + stage.
static Status nccl_world_open(NcclWorld** out, CudaDevice* device, Collective* world, int32_t num_stages,
                       int32_t num_replicas);
// Both directions between this rank and each of `peers` (other ranks, none twice), as far as they are not
// connected yet. A collective of all ranks, some with no peers: whoever is in another's list has that one in
// its own.
static Status nccl_world_connect(NcclWorld* world, Collective* ranks, const int32_t* peers, int32_t num_peers);
// Once tied groups are known; a collective of all ranks too.
static Status nccl_world_open_holders(NcclWorld* world, Collective* ranks, const TiedGroups* tied);
static void nccl_world_abort(NcclWorld* world);  // what runs ends; the communicators are gone
static void nccl_world_close(NcclWorld* world);  // NULL is fine

#define NCCL_TRY(call)                                                              \
    do {                                                                            \
        ncclResult_t nccl_result_ = (call);                                         \
        if (nccl_result_ != ncclSuccess) { return nccl_fail(nccl_result_, #call); } \
    } while (0)
static Status nccl_fail(ncclResult_t result, const char* call);

// --- transport_nccl --------------------
/*
transport_nccl.h -- activations and gradients between GPUs by NCCL, as run/transport.h has it.

A transfer waits on the device for what the compute stream had queued when it was posted; join() makes the
compute stream wait for the transfer. The host never waits. NCCL knows no tags: messages of two ranks meet in
posting order, which is the same on both sides (plan_check), and sizes are the plan's. A group may have any
transfers that follow each other, as one message to all shares of the head, or one from each.
*/

// `world` is borrowed.
static Status transport_nccl_open(Transport* out, NcclWorld* world, int32_t rank, int32_t num_ranks);

// --- sums_nccl --------------------
// sums_nccl.h -- sums of gradients between GPUs by NCCL, queued behind what they sum (run/sums.h).

// Both are borrowed; `world` has the communicators of `tied` (nccl_world_open_holders).
static Status sums_nccl_open(Sums* out, const NcclWorld* world, const TiedGroups* tied);
#endif

// ===== dynapipe_plugin/cuda/links_nccl.c ===================================================================
#ifndef DYNAPIPE_NO_NCCL

/*
call_watch.h -- a thread that ends the process when a call into a library does not come back.

The executor looks at the time whenever nothing moves (run/transfers.c), but a host that is blocked inside a
call looks at nothing: NCCL waits there for ranks that do not come, without an end, while it connects. So such
calls stand between begin() and end(), which cost two stores. Time is counted in naps of the thread: a process
that is stopped does not age.
*/
enum { NAPS = 16 };  // of a timeout: the end comes at most so much too late

struct CallWatch {
    Transport* transport;
    int64_t timeout_ns;
    _Atomic(const char*) what;  // NULL: no call is under way
    atomic_uint num_calls;      // begun so far
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t closing;
    bool is_closing;
};

static void end_run(const CallWatch* watch, const char* what) {
    char why[320];
    const Transport* transport = watch->transport;
    snprintf(why, sizeof why,
             "rank %d: error: %s: the host waits inside for %.1f s ---> see what the other ranks do "
             "(NCCL_DEBUG=INFO), or raise --comm-timeout; --transport mpi goes without NCCL",
             transport->rank, what, (double)watch->timeout_ns / 1e9);
    if (transport->api->abort != NULL) { transport->api->abort(transport->ctx, why); }
    fprintf(stderr, "%s\n", why);
    _exit(1);
}

static bool links_nccl_nap(CallWatch* watch) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    int64_t ns = until.tv_nsec + watch->timeout_ns / NAPS;
    until.tv_sec += (time_t)(ns / 1000000000);
    until.tv_nsec = (long)(ns % 1000000000);
    pthread_mutex_lock(&watch->lock);
    if (!watch->is_closing) { pthread_cond_timedwait(&watch->closing, &watch->lock, &until); }
    bool go_on = !watch->is_closing;
    pthread_mutex_unlock(&watch->lock);
    return go_on;
}

static void* run(void* ctx) {
    CallWatch* watch = ctx;
    unsigned seen = 0;
    for (int num_naps = 0; links_nccl_nap(watch);) {
        unsigned num_calls = atomic_load(&watch->num_calls);
        const char* what = atomic_load(&watch->what);
        num_naps = what != NULL && num_calls == seen ? num_naps + 1 : 0;
        seen = num_calls;
        if (num_naps == NAPS) { end_run(watch, what); }
    }
    return NULL;
}

static void free_watch(CallWatch* watch) {
    pthread_cond_destroy(&watch->closing);
    pthread_mutex_destroy(&watch->lock);
    free(watch);
}

// `transport` (borrowed): its abort() ends the run. timeout_ns 0: *out is NULL, nobody watches.
static Status call_watch_open(CallWatch** out, Transport* transport, int64_t timeout_ns) {
    *out = NULL;
    if (timeout_ns <= 0) { return STATUS_OK; }
    CallWatch* watch = calloc(1, sizeof *watch);
    if (watch == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a watch"); }
    watch->transport = transport;
    watch->timeout_ns = timeout_ns;
    pthread_mutex_init(&watch->lock, NULL);
    pthread_cond_init(&watch->closing, NULL);
    if (pthread_create(&watch->thread, NULL, run, watch) != 0) {
        free_watch(watch);
        return FAIL(STATUS_NO_MEMORY, "no thread for a watch ---> ulimit -u");
    }
    *out = watch;
    return STATUS_OK;
}

static void call_watch_close(CallWatch* watch) {
    if (watch == NULL) { return; }
    pthread_mutex_lock(&watch->lock);
    watch->is_closing = true;
    pthread_cond_signal(&watch->closing);
    pthread_mutex_unlock(&watch->lock);
    pthread_join(watch->thread, NULL);
    free_watch(watch);
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

// --- nccl_world --------------------

// A transfer of the pipeline gets at most so many thread blocks: 2 to 4 fill a link of NVLink with messages
// of 1 to 50 MB, and a receive that waits for its sender holds them while the model computes.
// Communicators for copies of parameters come when memory has been shared out: each with few buffers.
// Where they are many (a part of the vocabulary for each stage), with fewer still: their buffers add up.
enum { PIPELINE_CTAS = 4, HOLDERS_CTAS = 8, MANY_HOLDERS = 4, MANY_HOLDERS_CTAS = 2 };

static Status nccl_fail(ncclResult_t result, const char* call) {
    return FAIL(STATUS_COMM, "%s: %s (%s) ---> NCCL_DEBUG=WARN says more; --transport mpi goes without NCCL",
                call, ncclGetErrorString(result), ncclGetLastError(NULL));
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
static Status links_nccl_exchange(const NcclWorld* world, float* data, int32_t peer) {
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
    for (int32_t i = 0; i < num_peers; i++) { TRY(links_nccl_exchange(world, data + 2 * i, peers[i])); }
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

static Status links_nccl_warm_up(NcclWorld* world, const Collective* ranks, WarmUp what) {
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
    return links_nccl_warm_up(w, world, (WarmUp){.replicas = true});
}

static Status nccl_world_open(NcclWorld** out, CudaDevice* device, Collective* world, int32_t num_stages,
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

static Status nccl_world_connect(NcclWorld* w, Collective* ranks, const int32_t* peers, int32_t num_peers) {
    int32_t num_new = 0, *fresh = malloc((size_t)ranks->num_ranks * sizeof *fresh);
    if (fresh == NULL) { return FAIL(STATUS_NO_MEMORY, "NCCL: no memory for %d peers", (int)num_peers); }
    for (int32_t i = 0; i < num_peers; i++) {
        bool* is_connected = &w->is_connected[peers[i]];
        if (!*is_connected) { fresh[num_new++] = peers[i]; }
        *is_connected = true;
    }
    Status status = links_nccl_warm_up(w, ranks, (WarmUp){.peers = fresh, .num_peers = num_new});
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

static Status nccl_world_open_holders(NcclWorld* w, Collective* ranks, const TiedGroups* tied) {
    close_holders(w);
    if (tied->num_holders == 0) { return STATUS_OK; }
    w->holders = calloc((size_t)tied->num_holders, sizeof(ncclComm_t));
    if (w->holders == NULL) { return FAIL(STATUS_NO_MEMORY, "NCCL: no memory"); }
    w->num_holders = tied->num_holders;
    call_watch_begin(w->watch, "NCCL: connecting ranks that have copies of parameters");
    Status status = split_holders(w, tied, ranks->transport->rank);
    call_watch_end(w->watch);
    TRY(status);
    return links_nccl_warm_up(w, ranks, (WarmUp){.holders = true});
}

static void abort_comm(ncclComm_t* place) {
    ncclComm_t comm = *place;
    *place = NULL;
    if (comm != NULL) { (void)ncclCommAbort(comm); }
}

static void nccl_world_abort(NcclWorld* w) {
    abort_comm(&w->replicas);
    for (int32_t h = 0; h < w->num_holders; h++) { abort_comm(&w->holders[h]); }
    abort_comm(&w->pipeline);
}

static void nccl_world_close(NcclWorld* w) {
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

// --- transport_nccl --------------------

typedef struct LinksNcclRequest LinksNcclRequest;
struct LinksNcclRequest {
    LinksNcclRequest* next;            // in the list of free ones
    cudaEvent_t begin, done;  // on the communication stream, timed
    bool is_posted;           // events are recorded: not so while its group is still open
};

typedef struct {
    LinksNcclRequest* request;
    const void* source;  // of a send; NULL: a receive
    void* target;
    size_t num_bytes;
    int32_t peer;
} Op;

typedef struct {
    NcclWorld* world;
    LinksNcclRequest** requests;  // [num_requests] all of them
    LinksNcclRequest* free;
    LinksNcclRequest* last_done;  // for when(): its events stay as they are until the next post
    int32_t num_requests, num_in_flight;
    cudaEvent_t ready;  // on the compute stream
    Op* ops;            // [num_requests] of the group that is open
    int32_t num_ops;
    bool in_group;
    bool has_held;  // only with DYNAPIPE_FAULT_SWAPPED_SEND
} Nccl;

static Status links_nccl_add_request(Nccl* nccl) {
    LinksNcclRequest* request = calloc(1, sizeof *request);
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
    LinksNcclRequest** grown = realloc(nccl->requests, (size_t)num_requests * sizeof *grown);
    if (grown == NULL) { return FAIL(STATUS_NO_MEMORY, "NCCL: room for %d requests", (int)num_requests); }
    nccl->requests = grown;
    Op* ops = realloc(nccl->ops, (size_t)num_requests * sizeof *ops);
    if (ops == NULL) { return FAIL(STATUS_NO_MEMORY, "NCCL: room for %d requests", (int)num_requests); }
    nccl->ops = ops;
    while (nccl->num_requests < num_requests) { TRY(links_nccl_add_request(nccl)); }
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

static Status links_nccl_post(Nccl* nccl, Op op, void** request) {
    if (nccl->free == NULL) {
        return FAIL(STATUS_OUT_OF_RANGE, "NCCL: more than %d transfers at a time", (int)nccl->num_requests);
    }
    op.request = nccl->free;
    nccl->free = op.request->next;
    op.request->is_posted = false;
    nccl->num_in_flight++;
    nccl->ops[nccl->num_ops++] = op;
    *request = op.request;
#ifdef DYNAPIPE_FAULT_SWAPPED_SEND  // a fault for test_cuda_train.sh to find: the first send after what
                                    // follows
    bool hold = !nccl->has_held && op.source != NULL;
    nccl->has_held = true;
    if (hold) { return STATUS_OK; }
    if (nccl->num_ops == 2 && !nccl->in_group) {
        Op held = nccl->ops[0];
        nccl->ops[0] = nccl->ops[1];
        nccl->num_ops = 1;
        TRY(start_ops(nccl));
        nccl->ops[0] = held;
        nccl->num_ops = 1;
    }
#endif
    return nccl->in_group ? STATUS_OK : start_ops(nccl);
}

static Status nccl_isend(void* ctx, int32_t peer, int32_t tag, const void* data, size_t num_bytes,
                         void** request) {
    (void)tag;
    return links_nccl_post(ctx, (Op){.source = data, .num_bytes = num_bytes, .peer = peer}, request);
}

static Status nccl_irecv(void* ctx, int32_t peer, int32_t tag, void* data, size_t num_bytes, void** request) {
    (void)tag;
    return links_nccl_post(ctx, (Op){.target = data, .num_bytes = num_bytes, .peer = peer}, request);
}

static Status nccl_test(void* ctx, void* request, int* done) {
    Nccl* nccl = ctx;
    LinksNcclRequest* r = request;
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
    const LinksNcclRequest* r = request;
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
        if (num_in_flight == 0) {  // else the stream may never come to them
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
    .name = "nccl",
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

static Status transport_nccl_open(Transport* out, NcclWorld* world, int32_t rank, int32_t num_ranks) {
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

// --- sums_nccl --------------------

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
static Status links_nccl_sum_copies(void* ctx, int32_t holders, void* values, int64_t num_values, DynapipeType type) {
    const NcclSums* sums = ctx;
    Members m = holders_of(sums, holders);
    TRY(begin(sums->world));
    Status status = queue_reduce_scatter(m, values, num_values, type);
    if (status == STATUS_OK) {
        status = queue_all_gather(m, values, num_values, collective_type_bytes(type));
    }
    return end(sums->world, status);
}

static Status links_nccl_reduce_scatter(void* ctx, void* values, int64_t num_values, DynapipeType type) {
    const NcclSums* sums = ctx;
    if (sums->world->num_replicas == 1) { return STATUS_OK; }
    TRY(begin(sums->world));
    return end(sums->world, queue_reduce_scatter(replicas_of(sums), values, num_values, type));
}

static Status links_nccl_all_gather(void* ctx, void* values, int64_t num_values, int32_t bytes_per_value) {
    const NcclSums* sums = ctx;
    if (sums->world->num_replicas == 1) { return STATUS_OK; }
    TRY(begin(sums->world));
    return end(sums->world, queue_all_gather(replicas_of(sums), values, num_values, bytes_per_value));
}

static const SumsApi nccl_sums = {.name = "nccl",
                                  .is_queued = true,
                                  .sum_copies = links_nccl_sum_copies,
                                  .reduce_scatter = links_nccl_reduce_scatter,
                                  .all_gather = links_nccl_all_gather,
                                  .close = free};

static Status sums_nccl_open(Sums* out, const NcclWorld* world, const TiedGroups* tied) {
    NcclSums* sums = malloc(sizeof *sums);
    if (sums == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for sums"); }
    *sums = (NcclSums){.world = world, .tied = tied};
    *out = (Sums){&nccl_sums, sums};
    return STATUS_OK;
}
#endif

// ===== dynapipe_plugin/cuda/links_staged.h =================================================================

// Both borrowed; `host` has all ranks.
static Status transport_staged_open(Transport* out, CudaDevice* device, Transport* host);
// Slots for messages to and from `peers` (other ranks), as far as there are none yet: 8 MiB of pinned memory
// each. Before the first message to them; this rank's alone.
static Status transport_staged_connect(Transport* transport, const int32_t* peers, int32_t num_peers);

// --- sums_staged --------------------
// sums_staged.h -- sums of gradients between GPUs through pinned memory and a host transport (run/sums.h): in
// the fixed order of collective.h, so the same bits in every run.

// All are borrowed. The mirror in pinned memory has room for arrays of at most mirror_bytes.
static Status sums_staged_open(Sums* out, CudaDevice* device, Collective* replicas, TiedGroups* tied,
                        int64_t mirror_bytes);

// ===== dynapipe_plugin/cuda/links_staged.c =================================================================

enum { SLOT_BYTES = 1 << 20, NUM_SLOTS = 4 };

typedef struct LinksStagedRequest LinksStagedRequest;
struct LinksStagedRequest {
    LinksStagedRequest* next;      // on its link, in posting order; or in the list of free ones
    cudaEvent_t ready;  // on the compute stream, when it was posted
    unsigned char* data;
    size_t num_bytes;
    int32_t tag;
    int64_t num_pieces, num_begun, num_copied, num_ended;  // copied: the copy is queued
    int32_t last_slot;                                     // of the last piece
    bool is_done;
    struct LinksStagedLink* link;
};

typedef struct {
    unsigned char* memory;  // pinned, SLOT_BYTES
    cudaEvent_t copied;
    void* request;  // of the host transport; NULL: none
    LinksStagedRequest* owner;
    int64_t piece;
} Slot;

// One peer, one direction. Slots begun[..) hold pieces num_ended .. num_moved .. num_begun of the link.
typedef struct LinksStagedLink {
    int32_t peer;
    bool is_receive;
    Slot slots[NUM_SLOTS];
    int64_t num_begun, num_moved, num_ended;  // moved: the second half of its way has begun
    LinksStagedRequest *first, *last;                    // not yet done
} LinksStagedLink;

typedef struct {
    CudaDevice* device;
    Transport* host;
    cudaStream_t out, in;  // copies from and to the GPU
    LinksStagedLink** links;          // [num_links]
    int32_t num_links;
    LinksStagedRequest** requests;
    LinksStagedRequest* free;
    int32_t num_requests, num_in_flight;
} Staged;

// --- requests --------------------------------------------------------------------------------------------
static Status links_staged_add_request(Staged* staged) {
    LinksStagedRequest* request = calloc(1, sizeof *request);
    if (request == NULL) { return FAIL(STATUS_NO_MEMORY, "transport mpi: no memory for a request"); }
    staged->requests[staged->num_requests++] = request;
    request->next = staged->free;
    staged->free = request;
    CUDA_TRY(cudaEventCreateWithFlags(&request->ready, cudaEventDisableTiming));
    return STATUS_OK;
}

static Status staged_reserve(void* ctx, int32_t num_requests) {
    Staged* staged = ctx;
    if (num_requests <= staged->num_requests) { return STATUS_OK; }
    LinksStagedRequest** grown = realloc(staged->requests, (size_t)num_requests * sizeof *grown);
    if (grown == NULL) {
        return FAIL(STATUS_NO_MEMORY, "transport mpi: room for %d requests", (int)num_requests);
    }
    staged->requests = grown;
    while (staged->num_requests < num_requests) { TRY(links_staged_add_request(staged)); }
    return STATUS_OK;
}

static size_t piece_bytes(const Slot* slot) {
    size_t begin = (size_t)slot->piece * SLOT_BYTES, left = slot->owner->num_bytes - begin;
    return left < SLOT_BYTES ? left : SLOT_BYTES;
}

// --- the way of a piece ----------------------------------------------------------------------------------
static Status copy(Staged* staged, LinksStagedLink* link, Slot* slot) {
    LinksStagedRequest* r = slot->owner;
    unsigned char* data = r->data + (size_t)slot->piece * SLOT_BYTES;
    cudaStream_t stream = link->is_receive ? staged->in : staged->out;
    if (slot->piece == 0) { CUDA_TRY(cudaStreamWaitEvent(stream, r->ready, 0)); }
    size_t num_bytes = piece_bytes(slot);
    if (num_bytes > 0) {
        CUDA_TRY(link->is_receive
                     ? cudaMemcpyAsync(data, slot->memory, num_bytes, cudaMemcpyHostToDevice, stream)
                     : cudaMemcpyAsync(slot->memory, data, num_bytes, cudaMemcpyDeviceToHost, stream));
    }
    CUDA_TRY(cudaEventRecord(slot->copied, stream));
    r->num_copied++;
    return STATUS_OK;
}

// The next request of the link with a piece that has not begun; NULL: none.
static LinksStagedRequest* next_to_begin(const LinksStagedLink* link) {
    LinksStagedRequest* r = link->first;
    while (r != NULL && r->num_begun == r->num_pieces) { r = r->next; }
    return r;
}

// First half: a send is copied into its slot, a receive waits for its message there.
static Status begin_pieces(Staged* staged, LinksStagedLink* link) {
    for (LinksStagedRequest* r; link->num_begun - link->num_ended < NUM_SLOTS && (r = next_to_begin(link)) != NULL;) {
        int32_t idx = (int32_t)(link->num_begun % NUM_SLOTS);
        Slot* slot = &link->slots[idx];
        slot->owner = r;
        slot->piece = r->num_begun++;
        if (r->num_begun == r->num_pieces) { r->last_slot = idx; }
        link->num_begun++;
        if (link->is_receive) {
            const Transport* host = staged->host;
            TRY(host->api->irecv(host->ctx, link->peer, r->tag, slot->memory, piece_bytes(slot),
                                 &slot->request));
        } else {
            TRY(copy(staged, link, slot));
        }
    }
    return STATUS_OK;
}

static Status host_is_done(const Staged* staged, Slot* slot, int* done) {
    return staged->host->api->test(staged->host->ctx, slot->request, done);
}

// Second half: what is in its slot goes out, what has arrived is copied to the GPU.
static Status move_pieces(Staged* staged, LinksStagedLink* link) {
    const Transport* host = staged->host;
    for (; link->num_moved < link->num_begun; link->num_moved++) {
        Slot* slot = &link->slots[link->num_moved % NUM_SLOTS];
        int done = 0;
        if (link->is_receive) {
            TRY(host_is_done(staged, slot, &done));
            if (!done) { break; }
            slot->request = NULL;
            TRY(copy(staged, link, slot));
        } else {
            TRY(cuda_event_is_done(slot->copied, &done));
            if (!done) { break; }
            TRY(host->api->isend(host->ctx, link->peer, slot->owner->tag, slot->memory, piece_bytes(slot),
                                 &slot->request));
        }
    }
    return STATUS_OK;
}

static Status end_pieces(Staged* staged, LinksStagedLink* link) {
    for (; link->num_ended < link->num_moved; link->num_ended++) {
        Slot* slot = &link->slots[link->num_ended % NUM_SLOTS];
        int done = 0;
        TRY(link->is_receive ? cuda_event_is_done(slot->copied, &done) : host_is_done(staged, slot, &done));
        if (!done) { break; }
        slot->request = NULL;
        LinksStagedRequest* r = slot->owner;
        if (++r->num_ended < r->num_pieces) { continue; }
        r->is_done = true;
        link->first = r->next;  // pieces end in order, so it is the first
        if (link->first == NULL) { link->last = NULL; }
    }
    return STATUS_OK;
}

static Status move_links(Staged* staged) {
    for (int32_t i = 0; i < staged->num_links; i++) {
        LinksStagedLink* link = staged->links[i];
        TRY(end_pieces(staged, link));
        TRY(begin_pieces(staged, link));
        TRY(move_pieces(staged, link));
    }
    return STATUS_OK;
}

// --- run/transport.h -------------------------------------------------------------------------------------
static LinksStagedLink* find_link(Staged* staged, int32_t peer, bool is_receive) {
    for (int32_t i = 0; i < staged->num_links; i++) {
        LinksStagedLink* link = staged->links[i];
        if (link->peer == peer && link->is_receive == is_receive) { return link; }
    }
    return NULL;
}

static Status links_staged_post(Staged* staged, int32_t peer, int32_t tag, void* data, size_t num_bytes, bool is_receive,
                   void** request) {
    LinksStagedLink* link = find_link(staged, peer, is_receive);
    if (link == NULL) {
        return FAIL(STATUS_OUT_OF_RANGE, "transport mpi: rank %d is no peer of rank %d", (int)peer,
                    (int)staged->host->rank);
    }
    LinksStagedRequest* r = staged->free;
    if (r == NULL) {
        return FAIL(STATUS_OUT_OF_RANGE, "transport mpi: more than %d transfers at a time",
                    (int)staged->num_requests);
    }
    staged->free = r->next;
    *r = (LinksStagedRequest){.ready = r->ready, .data = data, .num_bytes = num_bytes, .tag = tag, .link = link};
    r->num_pieces = num_bytes == 0 ? 1 : (int64_t)((num_bytes + SLOT_BYTES - 1) / SLOT_BYTES);
    CUDA_TRY(cudaEventRecord(r->ready, staged->device->compute));
    *(link->last != NULL ? &link->last->next : &link->first) = r;
    link->last = r;
    staged->num_in_flight++;
    *request = r;
    return move_links(staged);
}

static Status staged_isend(void* ctx, int32_t peer, int32_t tag, const void* data, size_t num_bytes,
                           void** request) {
    return links_staged_post(ctx, peer, tag, (void*)(uintptr_t)data, num_bytes, false, request);  // read only
}

static Status staged_irecv(void* ctx, int32_t peer, int32_t tag, void* data, size_t num_bytes,
                           void** request) {
    return links_staged_post(ctx, peer, tag, data, num_bytes, true, request);
}

static Status staged_test(void* ctx, void* request, int* done) {
    Staged* staged = ctx;
    LinksStagedRequest* r = request;
    TRY(move_links(staged));
    *done = r->is_done;
    if (!r->is_done) { return STATUS_OK; }
    r->next = staged->free;
    staged->free = r;
    staged->num_in_flight--;
    return STATUS_OK;
}

// A receive is in place behind the copy of its last piece, a send's buffer is free behind it. Pieces are
// copied in order, so the last copy is enough.
static Status staged_join(void* ctx, void* request, int* joined) {
    Staged* staged = ctx;
    const LinksStagedRequest* r = request;
    *joined = r->is_done || r->num_copied == r->num_pieces;
    if (r->is_done || !*joined) { return STATUS_OK; }
#ifdef DYNAPIPE_FAULT_NO_EVENT  // a fault for test_cuda_train.sh to find
    return STATUS_OK;
#endif
    CUDA_TRY(cudaStreamWaitEvent(staged->device->compute, r->link->slots[r->last_slot].copied, 0));
    return STATUS_OK;
}

static void free_link(LinksStagedLink* link) {
    for (int32_t i = 0; i < NUM_SLOTS; i++) {
        if (link->slots[i].copied != NULL) { (void)cudaEventDestroy(link->slots[i].copied); }
        if (link->slots[i].memory != NULL) { (void)cudaFreeHost(link->slots[i].memory); }
    }
    free(link);
}

static Status staged_close(void* ctx) {
    Staged* staged = ctx;
    int32_t num_in_flight = staged->num_in_flight;
    for (int32_t i = 0; i < staged->num_requests; i++) {
        (void)cudaEventDestroy(staged->requests[i]->ready);
        free(staged->requests[i]);
    }
    // Messages in flight still need their slots.
    for (int32_t i = 0; num_in_flight == 0 && i < staged->num_links; i++) { free_link(staged->links[i]); }
    if (staged->out != NULL) { (void)cudaStreamDestroy(staged->out); }
    if (staged->in != NULL) { (void)cudaStreamDestroy(staged->in); }
    free(staged->links);
    free(staged->requests);
    free(staged);
    return num_in_flight == 0
               ? STATUS_OK
               : FAIL(STATUS_COMM, "transport mpi: closed with %d transfers in flight", (int)num_in_flight);
}

static const DynapipeTransport_v1 staged_api = {
    .name = "mpi",
    .isend = staged_isend,
    .irecv = staged_irecv,
    .test = staged_test,
    .close = staged_close,
    .reserve = staged_reserve,
    .join = staged_join,
};

// --- open ------------------------------------------------------------------------------------------------
static Status make_slots(LinksStagedLink* link) {
    for (int32_t i = 0; i < NUM_SLOTS; i++) {
        CUDA_TRY(cudaMallocHost((void**)&link->slots[i].memory, SLOT_BYTES));
        CUDA_TRY(cudaEventCreateWithFlags(&link->slots[i].copied, cudaEventDisableTiming));
    }
    return STATUS_OK;
}

static Status links_staged_add_link(Staged* staged, int32_t peer, bool is_receive) {
    if (find_link(staged, peer, is_receive) != NULL) { return STATUS_OK; }
    LinksStagedLink** grown = realloc(staged->links, (size_t)(staged->num_links + 1) * sizeof *grown);
    if (grown == NULL) { return FAIL(STATUS_NO_MEMORY, "transport mpi: no memory for a link"); }
    staged->links = grown;
    LinksStagedLink* link = calloc(1, sizeof *link);
    if (link == NULL) { return FAIL(STATUS_NO_MEMORY, "transport mpi: no memory for a link"); }
    link->peer = peer;
    link->is_receive = is_receive;
    staged->links[staged->num_links++] = link;  // also after a failure: close() frees it
    return make_slots(link);
}

static Status transport_staged_connect(Transport* transport, const int32_t* peers, int32_t num_peers) {
    for (int32_t i = 0; i < num_peers; i++) {
        for (int is_receive = 0; is_receive < 2; is_receive++) {
            TRY(links_staged_add_link(transport->ctx, peers[i], is_receive));
        }
    }
    return STATUS_OK;
}

static Status open_streams(Staged* staged) {
    CUDA_TRY(cudaStreamCreateWithFlags(&staged->out, cudaStreamNonBlocking));
    CUDA_TRY(cudaStreamCreateWithFlags(&staged->in, cudaStreamNonBlocking));
    return STATUS_OK;
}

static Status transport_staged_open(Transport* out, CudaDevice* device, Transport* host) {
    Staged* staged = calloc(1, sizeof *staged);
    if (staged == NULL) { return FAIL(STATUS_NO_MEMORY, "transport mpi: no memory"); }
    staged->device = device;
    staged->host = host;
    Status status = open_streams(staged);
    if (status != STATUS_OK) {
        (void)staged_close(staged);
        return status;
    }
    *out = (Transport){.api = &staged_api,
                       .ctx = staged,
                       .rank = host->rank,
                       .num_ranks = host->num_ranks,
                       .hosts = host->hosts};
    return STATUS_OK;
}

// --- sums_staged --------------------

typedef struct {
    CudaDevice* device;
    Collective* replicas;
    TiedGroups* tied;
    unsigned char* mirror;  // pinned
    int64_t mirror_bytes;
} SumsStagedStaged;

typedef struct {
    int64_t begin, end;  // bytes
} Span;

static Span my_slice(const SumsStagedStaged* s, int64_t num_values, int32_t bytes_per_value) {
    const Collective* c = s->replicas;
    return (Span){collective_slice(num_values, c->num_ranks, c->my_idx) * bytes_per_value,
                  collective_slice(num_values, c->num_ranks, c->my_idx + 1) * bytes_per_value};
}

// Waits: the values are in the mirror, and earlier copies out of it are done too.
static Status download(SumsStagedStaged* s, const void* values, Span span) {
    if (span.end > s->mirror_bytes) {
        return FAIL(STATUS_OUT_OF_RANGE, "sums: %lld bytes, the mirror has %lld", (long long)span.end,
                    (long long)s->mirror_bytes);
    }
    if (span.end > span.begin) {
        CUDA_TRY(cudaMemcpyAsync(s->mirror + span.begin, (const unsigned char*)values + span.begin,
                                 (size_t)(span.end - span.begin), cudaMemcpyDeviceToHost,
                                 s->device->compute));
    }
    CUDA_TRY(cudaStreamSynchronize(s->device->compute));
    return STATUS_OK;
}

static Status upload(const SumsStagedStaged* s, void* values, Span span) {
    if (span.end == span.begin) { return STATUS_OK; }
    CUDA_TRY(cudaMemcpyAsync((unsigned char*)values + span.begin, s->mirror + span.begin,
                             (size_t)(span.end - span.begin), cudaMemcpyHostToDevice, s->device->compute));
    return STATUS_OK;
}

static Status links_staged_sum_copies(void* ctx, int32_t holders, void* values, int64_t num_values, DynapipeType type) {
    SumsStagedStaged* s = ctx;
    Span all = {0, num_values * collective_type_bytes(type)};
    TRY(download(s, values, all));
    TRY(collective_sum_copies(&s->tied->holders[holders].ranks, s->mirror, num_values, type));
    return upload(s, values, all);
}

static Status links_staged_reduce_scatter(void* ctx, void* values, int64_t num_values, DynapipeType type) {
    SumsStagedStaged* s = ctx;
    if (s->replicas->num_ranks == 1) { return STATUS_OK; }
    TRY(download(s, values, (Span){0, num_values * collective_type_bytes(type)}));
    TRY(collective_reduce_scatter_sum(s->replicas, s->mirror, num_values, type));
    return upload(s, values, my_slice(s, num_values, collective_type_bytes(type)));
}

static Status links_staged_all_gather(void* ctx, void* values, int64_t num_values, int32_t bytes_per_value) {
    SumsStagedStaged* s = ctx;
    if (s->replicas->num_ranks == 1) { return STATUS_OK; }
    TRY(download(s, values, my_slice(s, num_values, bytes_per_value)));
    TRY(collective_all_gather(s->replicas, s->mirror, num_values, bytes_per_value));
    return upload(s, values, (Span){0, num_values * bytes_per_value});
}

static void sums_staged_staged_close(void* ctx) {
    SumsStagedStaged* s = ctx;
    if (s->mirror != NULL) { (void)cudaFreeHost(s->mirror); }
    free(s);
}

static const SumsApi staged_sums = {.name = "mpi",
                                    .sum_copies = links_staged_sum_copies,
                                    .reduce_scatter = links_staged_reduce_scatter,
                                    .all_gather = links_staged_all_gather,
                                    .close = sums_staged_staged_close};

static Status sums_staged_open(Sums* out, CudaDevice* device, Collective* replicas, TiedGroups* tied,
                        int64_t mirror_bytes) {
    SumsStagedStaged* s = calloc(1, sizeof *s);
    if (s == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for sums"); }
    *s = (SumsStagedStaged){
        .device = device, .replicas = replicas, .tied = tied, .mirror_bytes = mirror_bytes};
    cudaError_t error =
        mirror_bytes > 0 ? cudaMallocHost((void**)&s->mirror, (size_t)mirror_bytes) : cudaSuccess;
    if (error != cudaSuccess) {
        free(s);
        return FAIL(STATUS_NO_MEMORY, "no pinned memory for %lld bytes of gradients ---> --transport nccl",
                    (long long)mirror_bytes);
    }
    *out = (Sums){&staged_sums, s};
    return STATUS_OK;
}

// ===== dynapipe_plugin/cuda/session_cuda.c =================================================================

typedef struct {
    int32_t stage;
    bool has[PLAN_MAX_STAGES];
} Peers;

// Messages pass between stages a and b.
static void session_cuda_add_pair(Peers* peers, int32_t a, int32_t b) {
    if (a == b) { return; }
    if (a == peers->stage) { peers->has[b] = true; }
    if (b == peers->stage) { peers->has[a] = true; }
}

// The other stages of a replica that have a chunk before or after one of `stage`, or, where the head is
// shared, the last chunk while `stage` has a share, or the other way round. Ascending; returns how many. Of
// any two stages either both have each other, or neither. num_chunks 0: the plain pipeline.
static int32_t placement_peers(int32_t out[PLAN_MAX_STAGES], const Placement* placement, int32_t num_stages,
                               int32_t stage) {
    Peers peers = {.stage = stage};
    const int32_t K = placement->num_chunks;
    int32_t num_peers = 0;
    for (int32_t k = 0; k + 1 < K; k++) {
        session_cuda_add_pair(&peers, placement->stage_of[k], placement->stage_of[k + 1]);
    }
    for (int32_t s = 0; K > 0 && s < num_stages; s++) {
        if (placement_has_share(placement, s)) { session_cuda_add_pair(&peers, placement->stage_of[K - 1], s); }
    }
    for (int32_t s = 0; K == 0 && s + 1 < num_stages; s++) { session_cuda_add_pair(&peers, s, s + 1); }
    for (int32_t s = 0; s < num_stages; s++) {
        if (peers.has[s]) { out[num_peers++] = s; }
    }
    return num_peers;
}

// Left free for what libraries load and allocate later (kernels, their local memory, NCCL's buffers): per
// rank.
#define MARGIN_BYTES (INT64_C(512) << 20)

struct SessionDevice {
    CudaDevice* cuda;
    Transport links;
    int32_t num_sharing;  // ranks on the card that has the most
    int64_t free_bytes;   // on my card, before the model
    bool limit_is_mine;   // --memory-limit was not given
    bool use_nccl;
#ifndef DYNAPIPE_NO_NCCL
    NcclWorld* nccl;
#endif
};

// --- which card ------------------------------------------------------------------------------------------

// What each rank knows of itself, for all to see; doubles hold 52 bits of a hash.
typedef struct {
    double *host, *num_cards, *card;  // [num_ranks] each
} Ranks;

static double as_double(uint64_t hash) {
    return (double)(hash_finish(hash) >> 12);
}

static double host_hash(void) {
    char name[256] = "";
    gethostname(name, sizeof name - 1);
    return as_double(hash_bytes(HASH_SEED, name, strlen(name)));
}

// Ranks below this one for which values[r] is equal.
static int32_t count_equal(const double* values, int32_t begin, int32_t end, double value) {
    int32_t count = 0;
    for (int32_t r = begin; r < end; r++) { count += values[r] == value; }
    return count;
}

static int32_t most_sharing(const Ranks* ranks, int32_t num_ranks) {
    int32_t most = 1;
    for (int32_t r = 0; r < num_ranks; r++) {
        int32_t count = count_equal(ranks->card, 0, num_ranks, ranks->card[r]);
        most = count > most ? count : most;
    }
    return most;
}

#ifndef DYNAPIPE_NO_NCCL
static int32_t count_cards(const Ranks* ranks, int32_t num_ranks) {
    int32_t count = 0;
    for (int32_t r = 0; r < num_ranks; r++) { count += count_equal(ranks->card, 0, r, ranks->card[r]) == 0; }
    return count;
}
#endif

static Status find_cards(Dynapipe* dp, Ranks* ranks) {
    int32_t num_ranks = dp->transport.num_ranks, me = dp->transport.rank;
    int num_cards = 0;
    cudaError_t error = cudaGetDeviceCount(&num_cards);
    if (error != cudaSuccess) { num_cards = 0; }
    ranks->host[me] = host_hash();
    ranks->num_cards[me] = num_cards;
    TRY(collective_all_reduce_sum(&dp->world, ranks->host, 2 * num_ranks));
    for (int32_t r = 0; r < num_ranks; r++) {
        if (ranks->num_cards[r] >= 1) { continue; }
        return FAIL(
            STATUS_NO_DEVICE,
            "rank %d finds no GPU (%s) ---> make train_gpt2, make train_t5: the same on CPUs; nvidia-smi "
            "shows cards and driver",
            r, num_cards == 0 && error != cudaSuccess ? cudaGetErrorString(error) : "none there");
    }
    int32_t local_rank = count_equal(ranks->host, 0, me, ranks->host[me]);
    int card = local_rank % num_cards;
    CUDA_TRY(cudaSetDevice(card));
    struct cudaDeviceProp about;
    CUDA_TRY(cudaGetDeviceProperties(&about, card));
    uint64_t hash = hash_bytes(HASH_SEED, &ranks->host[me], sizeof(double));
    hash = hash_bytes(hash, &about.uuid, sizeof about.uuid);
    hash = hash_bytes(hash, &about.pciBusID, sizeof about.pciBusID);
    ranks->card[me] = as_double(hash_bytes(hash, &card, sizeof card));
    return collective_all_reduce_sum(&dp->world, ranks->card, num_ranks);
}

static Status check_transport(const Dynapipe* dp, const Ranks* ranks) {
    int32_t num_ranks = dp->transport.num_ranks;
    SessionDevice* on = dp->on;
    on->num_sharing = most_sharing(ranks, num_ranks);
#ifdef DYNAPIPE_NO_NCCL
    if (dp->options.transport != TRANSPORT_CHOICE_NCCL) { return STATUS_OK; }
    return FAIL(STATUS_BAD_OPTION,
                "--transport nccl: built without NCCL ---> --transport mpi, or install libnccl-dev and make "
                "again");
#else
    bool wanted = dp->options.transport != TRANSPORT_CHOICE_MPI;
    int32_t num_cards = count_cards(ranks, num_ranks);
    if (wanted && on->num_sharing > 1) {
        return FAIL(
            STATUS_NO_DEVICE,
            "%d ranks on %d GPU%s, NCCL needs one for each ---> --transport mpi shares them, or mpirun "
            "-np %d",
            num_ranks, num_cards, num_cards == 1 ? "" : "s", num_cards);
    }
    on->use_nccl = wanted && num_ranks > 1;
    return STATUS_OK;
#endif
}

static Status session_device_find(Dynapipe* dp) {
    size_t num_ranks = (size_t)dp->transport.num_ranks;
    dp->on = calloc(1, sizeof *dp->on);
    double* values = calloc(3 * num_ranks, sizeof *values);
    Ranks ranks = {values, values + num_ranks, values + 2 * num_ranks};
    Status status = dp->on == NULL || values == NULL
                        ? FAIL(STATUS_NO_MEMORY, "no memory for %zu ranks", num_ranks)
                        : find_cards(dp, &ranks);
    if (status == STATUS_OK) { status = check_transport(dp, &ranks); }
    free(values);
    return status;
}

// --- device, links, sums ---------------------------------------------------------------------------------
// Whoever this rank exchanges messages with in that placement; a collective of all ranks.
static Status connect_peers(Dynapipe* dp, const Placement* placement) {
    int32_t peers[PLAN_MAX_STAGES], first = dp->replica * dp->num_stages;
    int32_t num_peers = placement_peers(peers, placement, dp->num_stages, dp->stage);
    for (int32_t i = 0; i < num_peers; i++) { peers[i] += first; }
#ifndef DYNAPIPE_NO_NCCL
    if (dp->on->use_nccl) { return nccl_world_connect(dp->on->nccl, &dp->world, peers, num_peers); }
#endif
    return transport_staged_connect(&dp->on->links, peers, num_peers);
}

// Before memory is counted. No placement is known yet, but all have messages between neighbours.
static Status connect_neighbours(Dynapipe* dp) {
    return connect_peers(dp, &(Placement){0});
}

static Status session_device_open(Dynapipe* dp, void* stream) {
    SessionDevice* on = dp->on;
    TRY(cuda_device_open(&dp->device, &on->cuda, (cudaStream_t)stream));
    dp->links = &on->links;
#ifndef DYNAPIPE_NO_NCCL
    if (on->use_nccl) {
        TRY(nccl_world_open(&on->nccl, on->cuda, &dp->world, dp->num_stages, dp->num_replicas));
        TRY(transport_nccl_open(&on->links, on->nccl, dp->transport.rank, dp->transport.num_ranks));
        on->links.hosts = dp->transport.hosts;
        return connect_neighbours(dp);
    }
#endif
    TRY(transport_staged_open(&on->links, on->cuda, &dp->transport));
    return connect_neighbours(dp);
}

#ifndef DYNAPIPE_NO_NCCL
// What is known once there is a model: who else is a peer, who has copies of what.
static Status connect_model(Dynapipe* dp) {
    int64_t before_bytes, after_bytes, total_bytes;
    TRY(dp->device.api->memory_bytes(dp->device.ctx, &before_bytes, &total_bytes));
    TRY(connect_peers(dp, &dp->request.placement));
    TRY(nccl_world_open_holders(dp->on->nccl, &dp->world, &dp->tied));
    TRY(dp->device.api->memory_bytes(dp->device.ctx, &after_bytes, &total_bytes));
    dp->on->free_bytes -= before_bytes - after_bytes;  // not the model's
    // these come when memory has been shared out
    return dp->on->limit_is_mine ? session_machine_take_bytes(dp, before_bytes - after_bytes) : STATUS_OK;
}
#endif

static Status session_sums_open(Dynapipe* dp) {
    const DynapipeParams_v1* params = &dp->params;
#ifndef DYNAPIPE_NO_NCCL
    if (dp->on->use_nccl) {
        TRY(connect_model(dp));
        return sums_nccl_open(&dp->sums, dp->on->nccl, &dp->tied);
    }
#endif
    TRY(connect_peers(dp, &dp->request.placement));
    int32_t grad_bytes = collective_type_bytes((DynapipeType)params->grad_type);
    int32_t param_bytes = collective_type_bytes((DynapipeType)params->param_type);
    int32_t bytes_per_value = grad_bytes > param_bytes ? grad_bytes : param_bytes;
    int64_t num_values = dp->num_replicas > 1 ? params->num_params : tied_groups_longest(&dp->tied);
    return sums_staged_open(&dp->sums, dp->on->cuda, &dp->replicas, &dp->tied, num_values * bytes_per_value);
}

// --- memory ----------------------------------------------------------------------------------------------
static Status session_device_write(const Dynapipe* dp, void* to, const void* from, size_t num_bytes) {
    cudaStream_t stream = (cudaStream_t)dp->stream;
    CUDA_TRY(cudaMemcpyAsync(to, from, num_bytes, cudaMemcpyHostToDevice, stream));
    CUDA_TRY(cudaStreamSynchronize(stream));
    return STATUS_OK;
}

static Status session_device_read(const Dynapipe* dp, void* to, const void* from, size_t num_bytes) {
    cudaStream_t stream = (cudaStream_t)dp->stream;
    CUDA_TRY(cudaMemcpyAsync(to, from, num_bytes, cudaMemcpyDeviceToHost, stream));
    CUDA_TRY(cudaStreamSynchronize(stream));
    return STATUS_OK;
}

// What is left on the card now, before the model takes any of it and when everybody's libraries are loaded.
static void session_device_print_version(FILE* out) {
#ifdef DYNAPIPE_NO_NCCL
    fprintf(out, "NCCL: none, GPUs talk through MPI\n");
#else
    int version = 0;  // 23007: 2.30.7
    if (ncclGetVersion(&version) != ncclSuccess) { return; }
    fprintf(out, "NCCL: %d.%d.%d\n", version / 10000, version / 100 % 100, version % 100);
#endif
}

static Status session_device_limit(Dynapipe* dp) {
    SessionDevice* on = dp->on;
    int64_t total_bytes;
    TRY(collective_barrier(&dp->world));
    TRY(dp->device.api->memory_bytes(dp->device.ctx, &on->free_bytes, &total_bytes));
    on->limit_is_mine = dp->options.memory_limit_bytes == 0;
    // also behind a limit that was given: nobody allocates before all have looked
    return session_machine_limit(dp, on->free_bytes / on->num_sharing - MARGIN_BYTES);
}

// What model and step took of the card, to compare with the plan: without what the arena has in reserve for
// larger steps. Of a card that ranks share, an equal part.
static int64_t session_device_used_bytes(const Dynapipe* dp) {
    int64_t free_bytes, total_bytes;
    if (dp->device.api->memory_bytes(dp->device.ctx, &free_bytes, &total_bytes) != STATUS_OK) { return 0; }
    int64_t reserve_bytes = dp->memory_bytes - dp->now->plan.ranks[dp->transport.rank].arena_bytes;
    return (dp->on->free_bytes - free_bytes) / dp->on->num_sharing - reserve_bytes;
}

// --- end -------------------------------------------------------------------------------------------------
static void session_device_abort(Dynapipe* dp) {
#ifndef DYNAPIPE_NO_NCCL
    if (dp->on != NULL && dp->on->nccl != NULL) { nccl_world_abort(dp->on->nccl); }
#else
    (void)dp;
#endif
}

static void session_device_close(Dynapipe* dp) {
    if (dp->on == NULL) { return; }
    sums_close(&dp->sums);
    transport_close(&dp->on->links);
#ifndef DYNAPIPE_NO_NCCL
    nccl_world_close(dp->on->nccl);
#endif
    device_close(&dp->device);
    free(dp->on);
    dp->on = NULL;
}

// --- link_probe_cuda --------------------
// link_probe_cuda.c -- the links of training opened for a measurement: NCCL, or staging through MPI where
// ranks share a card.

// Ranks of one machine take its cards in turn (session_cuda.c).
static Status ranks_share_cards(int32_t* share, Collective* world) {
    int num_cards = 0;
    CUDA_TRY(cudaGetDeviceCount(&num_cards));
    double too_many = local_ranks_count(world->num_ranks) > num_cards;
    TRY(collective_all_reduce_sum(world, &too_many, 1));
    *share = too_many > 0;
    return STATUS_OK;
}

// The ranks before and behind this one, in the line of all; how many.
static int32_t find_peers(int32_t peers[2], const Collective* world) {
    int32_t num_peers = 0, rank = world->transport->rank;
    if (rank > 0) { peers[num_peers++] = rank - 1; }
    if (rank < world->num_ranks - 1) { peers[num_peers++] = rank + 1; }
    return num_peers;
}

static Status run_nccl(LinkCosts* out, Collective* world, CudaDevice* cuda, void* memory) {
#ifndef DYNAPIPE_NO_NCCL
    NcclWorld* nccl = NULL;
    Transport links = {0};
    int32_t num_ranks = world->num_ranks, peers[2], num_peers = find_peers(peers, world);
    Status status = nccl_world_open(&nccl, cuda, world, num_ranks, 1);
    if (status == STATUS_OK) { status = nccl_world_connect(nccl, world, peers, num_peers); }
    if (status == STATUS_OK) {
        status = transport_nccl_open(&links, nccl, world->transport->rank, num_ranks);
    }
    if (status == STATUS_OK) { status = link_probe_run(out, &links, world, memory); }
    if (status == STATUS_OK) { status = transport_close(&links); }
    nccl_world_close(nccl);
    return status;
#else
    (void)out, (void)world, (void)cuda, (void)memory;
    return FAIL(STATUS_BAD_OPTION, "built without NCCL ---> --transport mpi");
#endif
}

static Status run_staged(LinkCosts* out, Collective* world, CudaDevice* cuda, void* memory) {
    Transport links = {0};
    int32_t peers[2], num_peers = find_peers(peers, world);
    TRY(transport_staged_open(&links, cuda, world->transport));
    Status status = transport_staged_connect(&links, peers, num_peers);
    if (status == STATUS_OK) { status = link_probe_run(out, &links, world, memory); }
    return status == STATUS_OK ? transport_close(&links) : status;
}

static Status link_probe(LinkCosts* out, Collective* world, void* stream, TransportChoice choice) {
    if (world->num_ranks < 2) { return STATUS_OK; }
    int32_t share = 0;
    TRY(ranks_share_cards(&share, world));
#ifdef DYNAPIPE_NO_NCCL
    share = share || choice == TRANSPORT_CHOICE_AUTO;
#endif
    Device device = {0};
    CudaDevice* cuda;
    void* memory;
    TRY(cuda_device_open(&device, &cuda, (cudaStream_t)stream));
    Status status = device.api->alloc(device.ctx, &memory, LINK_PROBE_BYTES);
    if (status == STATUS_OK) {
        bool staged = choice == TRANSPORT_CHOICE_MPI || (choice == TRANSPORT_CHOICE_AUTO && share);
        status = staged ? run_staged(out, world, cuda, memory) : run_nccl(out, world, cuda, memory);
        device.api->release(device.ctx, memory);
    }
    device_close(&device);
    return status;
}
#undef MARGIN_BYTES
