#include "transport_nccl.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

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
    bool has_held;  // only with DYNAPIPE_FAULT_SWAPPED_SEND
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
