// links_staged.c -- see links_staged.h.
#include "links_staged.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { SLOT_BYTES = 1 << 20, NUM_SLOTS = 4 };

typedef struct Request Request;
struct Request {
    Request* next;      // on its link, in posting order; or in the list of free ones
    cudaEvent_t ready;  // on the compute stream, when it was posted
    unsigned char* data;
    size_t num_bytes;
    int32_t tag;
    int64_t num_pieces, num_begun, num_copied, num_ended;  // copied: the copy is queued
    int32_t last_slot;                                     // of the last piece
    bool is_done;
    struct Link* link;
};

typedef struct {
    unsigned char* memory;  // pinned, SLOT_BYTES
    cudaEvent_t copied;
    void* request;  // of the host transport; NULL: none
    Request* owner;
    int64_t piece;
} Slot;

// One peer, one direction. Slots begun[..) hold pieces num_ended .. num_moved .. num_begun of the link.
typedef struct Link {
    int32_t peer;
    bool is_receive;
    Slot slots[NUM_SLOTS];
    int64_t num_begun, num_moved, num_ended;  // moved: the second half of its path has begun
    Request *first, *last;                    // not yet done
} Link;

typedef struct {
    CudaDevice* device;
    Transport* host;
    cudaStream_t out, in;  // copies from and to the GPU
    Link** links;          // [num_links]
    int32_t num_links;
    Request** requests;
    Request* free;
    int32_t num_requests, num_in_flight;
} Staged;

// --- requests --------------------------------------------------------------------------------------------
static Status add_request(Staged* staged) {
    Request* request = calloc(1, sizeof *request);
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
    Request** grown = realloc(staged->requests, (size_t)num_requests * sizeof *grown);
    if (grown == NULL) {
        return FAIL(STATUS_NO_MEMORY, "transport mpi: room for %d requests", (int)num_requests);
    }
    staged->requests = grown;
    while (staged->num_requests < num_requests) { TRY(add_request(staged)); }
    return STATUS_OK;
}

static size_t piece_bytes(const Slot* slot) {
    size_t begin = (size_t)slot->piece * SLOT_BYTES, left = slot->owner->num_bytes - begin;
    return left < SLOT_BYTES ? left : SLOT_BYTES;
}

// --- the path of a piece -----------------------------------------------------------------------------------
static Status copy(Staged* staged, Link* link, Slot* slot) {
    Request* r = slot->owner;
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
static Request* next_to_begin(const Link* link) {
    Request* r = link->first;
    while (r != NULL && r->num_begun == r->num_pieces) { r = r->next; }
    return r;
}

// First half: a send is copied into its slot, a receive waits for its message there.
static Status begin_pieces(Staged* staged, Link* link) {
    for (Request* r; link->num_begun - link->num_ended < NUM_SLOTS && (r = next_to_begin(link)) != NULL;) {
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

// Second half: the slot's contents are sent, or the received message is copied to the GPU.
static Status move_pieces(Staged* staged, Link* link) {
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

static Status end_pieces(Staged* staged, Link* link) {
    for (; link->num_ended < link->num_moved; link->num_ended++) {
        Slot* slot = &link->slots[link->num_ended % NUM_SLOTS];
        int done = 0;
        TRY(link->is_receive ? cuda_event_is_done(slot->copied, &done) : host_is_done(staged, slot, &done));
        if (!done) { break; }
        slot->request = NULL;
        Request* r = slot->owner;
        if (++r->num_ended < r->num_pieces) { continue; }
        r->is_done = true;
        link->first = r->next;  // pieces end in order, so it is the first
        if (link->first == NULL) { link->last = NULL; }
    }
    return STATUS_OK;
}

static Status move_links(Staged* staged) {
    for (int32_t i = 0; i < staged->num_links; i++) {
        Link* link = staged->links[i];
        TRY(end_pieces(staged, link));
        TRY(begin_pieces(staged, link));
        TRY(move_pieces(staged, link));
    }
    return STATUS_OK;
}

// --- run/transport.h -------------------------------------------------------------------------------------
static Link* find_link(Staged* staged, int32_t peer, bool is_receive) {
    for (int32_t i = 0; i < staged->num_links; i++) {
        Link* link = staged->links[i];
        if (link->peer == peer && link->is_receive == is_receive) { return link; }
    }
    return NULL;
}

static Status post(Staged* staged, int32_t peer, int32_t tag, void* data, size_t num_bytes, bool is_receive,
                   void** request) {
    Link* link = find_link(staged, peer, is_receive);
    if (link == NULL) {
        return FAIL(STATUS_OUT_OF_RANGE, "transport mpi: rank %d is no peer of rank %d", (int)peer,
                    (int)staged->host->rank);
    }
    Request* r = staged->free;
    if (r == NULL) {
        return FAIL(STATUS_OUT_OF_RANGE, "transport mpi: more than %d transfers at a time",
                    (int)staged->num_requests);
    }
    staged->free = r->next;
    *r = (Request){.ready = r->ready, .data = data, .num_bytes = num_bytes, .tag = tag, .link = link};
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
    return post(ctx, peer, tag, (void*)(uintptr_t)data, num_bytes, false, request);  // read only
}

static Status staged_irecv(void* ctx, int32_t peer, int32_t tag, void* data, size_t num_bytes,
                           void** request) {
    return post(ctx, peer, tag, data, num_bytes, true, request);
}

static Status staged_test(void* ctx, void* request, int* done) {
    Staged* staged = ctx;
    Request* r = request;
    TRY(move_links(staged));
    *done = r->is_done;
    if (!r->is_done) { return STATUS_OK; }
    r->next = staged->free;
    staged->free = r;
    staged->num_in_flight--;
    return STATUS_OK;
}

// A receive is in place after the copy of its last piece, a send's buffer is free after it. Pieces are
// copied in order, so the last copy is enough.
static Status staged_join(void* ctx, void* request, int* joined) {
    Staged* staged = ctx;
    const Request* r = request;
    *joined = r->is_done || r->num_copied == r->num_pieces;
    if (r->is_done || !*joined) { return STATUS_OK; }
#ifdef DYNAPIPE_FAULT_NO_EVENT  // a fault for test_cuda_train.sh to find
    return STATUS_OK;
#endif
    CUDA_TRY(cudaStreamWaitEvent(staged->device->compute, r->link->slots[r->last_slot].copied, 0));
    return STATUS_OK;
}

static void free_link(Link* link) {
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
    .isend = staged_isend,
    .irecv = staged_irecv,
    .test = staged_test,
    .close = staged_close,
    .reserve = staged_reserve,
    .join = staged_join,
};

// --- open ------------------------------------------------------------------------------------------------
static Status make_slots(Link* link) {
    for (int32_t i = 0; i < NUM_SLOTS; i++) {
        CUDA_TRY(cudaMallocHost((void**)&link->slots[i].memory, SLOT_BYTES));
        CUDA_TRY(cudaEventCreateWithFlags(&link->slots[i].copied, cudaEventDisableTiming));
    }
    return STATUS_OK;
}

static Status add_link(Staged* staged, int32_t peer, bool is_receive) {
    if (find_link(staged, peer, is_receive) != NULL) { return STATUS_OK; }
    Link** grown = realloc(staged->links, (size_t)(staged->num_links + 1) * sizeof *grown);
    if (grown == NULL) { return FAIL(STATUS_NO_MEMORY, "transport mpi: no memory for a link"); }
    staged->links = grown;
    Link* link = calloc(1, sizeof *link);
    if (link == NULL) { return FAIL(STATUS_NO_MEMORY, "transport mpi: no memory for a link"); }
    link->peer = peer;
    link->is_receive = is_receive;
    staged->links[staged->num_links++] = link;  // also after a failure: close() frees it
    return make_slots(link);
}

Status transport_staged_connect(Transport* transport, const int32_t* peers, int32_t num_peers) {
    for (int32_t i = 0; i < num_peers; i++) {
        for (int is_receive = 0; is_receive < 2; is_receive++) {
            TRY(add_link(transport->ctx, peers[i], is_receive));
        }
    }
    return STATUS_OK;
}

static Status open_streams(Staged* staged) {
    CUDA_TRY(cudaStreamCreateWithFlags(&staged->out, cudaStreamNonBlocking));
    CUDA_TRY(cudaStreamCreateWithFlags(&staged->in, cudaStreamNonBlocking));
    return STATUS_OK;
}

Status transport_staged_open(Transport* out, CudaDevice* device, Transport* host) {
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
