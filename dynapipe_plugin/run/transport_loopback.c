// transport_loopback.c -- ranks as threads of one process: a hub of posted sends and receives under one lock.
//
// A message is copied when its second half is posted, directly from the sender's buffer into the receiver's,
// so a send without a receive never ends: the strictest rendezvous, which shows every deadlock. Copies happen
// under the hub's lock; this transport is for tests and for one rank.
#include "transport.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum { HALF_POSTED, HALF_DONE, HALF_MISMATCH } HalfState;

// One posted send or receive, until its owner has seen that it is done.
typedef struct Half Half;
struct Half {
    Half* next;
    bool is_receive;
    int32_t owner, peer, tag;
    void* data;
    size_t num_bytes, other_bytes;
    HalfState state;
};

typedef struct Hub Hub;
typedef struct {
    Hub* hub;
    int32_t rank;
    bool closed;
} End;

struct Hub {
    pthread_mutex_t lock;
    int32_t num_open;
    int32_t aborted_by;  // -1: none
    char why[512];
    Half* halves;  // of all ranks, oldest first
    End* ends;     // [num_ranks]
};

static Status check_alive(const Hub* hub, int32_t peer) {
    if (hub->aborted_by >= 0) {
        return FAIL(STATUS_COMM, "loopback: rank %d gave up: %s", (int)hub->aborted_by, hub->why);
    }
    if (hub->ends[peer].closed) { return FAIL(STATUS_COMM, "loopback: rank %d has left already", (int)peer); }
    return STATUS_OK;
}

static void join(Half* one, Half* other) {
    Half *send = one->is_receive ? other : one, *receive = one->is_receive ? one : other;
    bool fits = send->num_bytes == receive->num_bytes;
    send->other_bytes = receive->num_bytes;
    receive->other_bytes = send->num_bytes;
    if (fits && send->num_bytes > 0) { memcpy(receive->data, send->data, send->num_bytes); }
    send->state = receive->state = fits ? HALF_DONE : HALF_MISMATCH;
}

// Joins the oldest other half, if there is one.
static Status post_locked(const End* end, const Half* wanted, void** request) {
    TRY(check_alive(end->hub, wanted->peer));
    Half *half = (Half*)malloc(sizeof *half), **at = &end->hub->halves;
    if (half == NULL) { return FAIL(STATUS_NO_MEMORY, "loopback: no memory for a request"); }
    *half = *wanted;
    half->owner = end->rank;
    for (; *at != NULL; at = &(*at)->next) {
        Half* other = *at;
        bool is_other = other->is_receive != half->is_receive && other->owner == half->peer &&
                        other->peer == half->owner && other->tag == half->tag;
        if (is_other && other->state == HALF_POSTED && half->state == HALF_POSTED) { join(half, other); }
    }
    *request = *at = half;
    return STATUS_OK;
}

static Status post(const End* end, const Half* wanted, void** request) {
    pthread_mutex_lock(&end->hub->lock);
    Status status = post_locked(end, wanted, request);
    pthread_mutex_unlock(&end->hub->lock);
    return status;
}

static Status loopback_isend(void* ctx, int32_t peer, int32_t tag, const void* data, size_t num_bytes,
                             void** request) {
    // The data of a send is only ever read; Half has one pointer for both directions.
    Half send = {.peer = peer, .tag = tag, .data = (void*)(uintptr_t)data, .num_bytes = num_bytes};
    return post((const End*)ctx, &send, request);
}

static Status loopback_irecv(void* ctx, int32_t peer, int32_t tag, void* data, size_t num_bytes,
                             void** request) {
    Half receive = {.is_receive = true, .peer = peer, .tag = tag, .data = data, .num_bytes = num_bytes};
    return post((const End*)ctx, &receive, request);
}

static void drop(Hub* hub, Half* half) {
    Half** at = &hub->halves;
    while (*at != half) { at = &(*at)->next; }
    *at = half->next;
    free(half);
}

static Status test_locked(const End* end, Half* half, int* done) {
    Status status = STATUS_OK;
    if (half->state == HALF_POSTED) { return check_alive(end->hub, half->peer); }
    if (half->state == HALF_MISMATCH) {
        status =
            FAIL(STATUS_MISMATCH, "loopback: rank %d %s %zu bytes, tag %d, but rank %d %s %zu",
                 (int)half->owner, half->is_receive ? "expects" : "sends", half->num_bytes, (int)half->tag,
                 (int)half->peer, half->is_receive ? "sends" : "expects", half->other_bytes);
    }
    *done = 1;
    drop(end->hub, half);
    return status;
}

static Status loopback_test(void* ctx, void* request, int* done) {
    const End* end = (const End*)ctx;
    *done = 0;
    pthread_mutex_lock(&end->hub->lock);
    Status status = test_locked(end, (Half*)request, done);
    pthread_mutex_unlock(&end->hub->lock);
    return status;
}

// Nothing is posted once this returns, so no memory is accessed any more.
static void loopback_abort(void* ctx, const char* why) {
    const End* end = (const End*)ctx;
    Hub* hub = end->hub;
    pthread_mutex_lock(&hub->lock);
    if (hub->aborted_by < 0) {
        hub->aborted_by = end->rank;
        snprintf(hub->why, sizeof hub->why, "%s", why);
    }
    pthread_mutex_unlock(&hub->lock);
}

static Status loopback_close(void* ctx) {
    End* end = (End*)ctx;
    Hub* hub = end->hub;
    int32_t rank = end->rank, in_flight = 0;
    pthread_mutex_lock(&hub->lock);
    for (Half *half = hub->halves, *next; half != NULL; half = next) {
        next = half->next;
        if (half->owner != rank) { continue; }
        in_flight++;
        drop(hub, half);
    }
    end->closed = true;
    bool aborted = hub->aborted_by >= 0, is_last = --hub->num_open == 0;
    pthread_mutex_unlock(&hub->lock);
    if (is_last) {
        pthread_mutex_destroy(&hub->lock);
        free(hub->ends);
        free(hub);
    }
    if (in_flight == 0 || aborted) { return STATUS_OK; }
    return FAIL(STATUS_COMM, "loopback: rank %d closes with %d requests in flight", (int)rank,
                (int)in_flight);
}

static const DynapipeTransport_v1 loopback_api = {
    .isend = loopback_isend,
    .irecv = loopback_irecv,
    .test = loopback_test,
    .abort = loopback_abort,
    .close = loopback_close,
};

Status transport_loopback_open(Transport* out, int32_t num_ranks) {
    Hub* hub = (Hub*)calloc(1, sizeof *hub);
    End* ends = (End*)calloc((size_t)num_ranks, sizeof *ends);
    if (hub == NULL || ends == NULL) {
        free(hub);
        free(ends);
        return FAIL(STATUS_NO_MEMORY, "loopback: no memory for %d ranks", (int)num_ranks);
    }
    hub->num_open = num_ranks;
    hub->aborted_by = -1;
    hub->ends = ends;
    pthread_mutex_init(&hub->lock, NULL);
    for (int32_t r = 0; r < num_ranks; r++) {
        ends[r] = (End){.hub = hub, .rank = r};
        out[r] = (Transport){.api = &loopback_api, .ctx = &ends[r], .rank = r, .num_ranks = num_ranks};
    }
    return STATUS_OK;
}
