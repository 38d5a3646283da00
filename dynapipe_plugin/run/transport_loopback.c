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

// One posted send or receive.
typedef struct Half Half;
struct Half {
    Half* next_waiting;           // in the list of its pair, while HALF_POSTED
    Half *next_live, *prev_live;  // of its owner's live requests
    bool is_receive;
    int32_t owner, peer, tag;
    void* data;
    size_t num_bytes, other_bytes;
    HalfState state;
};

// Waiting halves of messages src -> dst, oldest first.
typedef struct {
    Half *first_send, *first_receive;
} Pair;

typedef struct Hub Hub;
typedef struct {
    Hub* hub;
    int32_t rank;
    bool closed;
    Half* live;   // requests not yet reported done
    Half* spare;  // used ones, kept for the next message
} End;

struct Hub {
    pthread_mutex_t lock;
    int32_t num_ranks, num_open;
    int32_t aborted_by;  // -1: none
    char why[512];
    Pair* pairs;  // [num_ranks * num_ranks], pairs[src * num_ranks + dst]
    End* ends;    // [num_ranks]
};

static void hub_free(Hub* hub) {
    pthread_mutex_destroy(&hub->lock);
    free(hub->pairs);
    free(hub->ends);
    free(hub);
}

static Half** pair_list(Hub* hub, const Half* half, bool receives) {
    int32_t src = half->is_receive ? half->peer : half->owner;
    int32_t dst = half->is_receive ? half->owner : half->peer;
    Pair* pair = &hub->pairs[(size_t)src * (size_t)hub->num_ranks + (size_t)dst];
    return receives ? &pair->first_receive : &pair->first_send;
}

// Take the oldest half with this tag out of the list.
static Half* list_take(Half** list, int32_t tag) {
    for (; *list != NULL; list = &(*list)->next_waiting) {
        if ((*list)->tag == tag) {
            Half* found = *list;
            *list = found->next_waiting;
            return found;
        }
    }
    return NULL;
}

static void list_append(Half** list, Half* half) {
    while (*list != NULL) { list = &(*list)->next_waiting; }
    half->next_waiting = NULL;
    *list = half;
}

static void list_remove(Half** list, const Half* half) {
    for (; *list != NULL; list = &(*list)->next_waiting) {
        if (*list == half) {
            *list = half->next_waiting;
            return;
        }
    }
}

static void halves_join(Half* send, Half* receive) {
    send->other_bytes = receive->num_bytes;
    receive->other_bytes = send->num_bytes;
    bool fits = send->num_bytes == receive->num_bytes;
    if (fits && send->num_bytes > 0) { memcpy(receive->data, send->data, send->num_bytes); }
    send->state = receive->state = fits ? HALF_DONE : HALF_MISMATCH;
}

static Half* half_create(End* end) {
    Half* half = end->spare;
    if (half != NULL) {
        end->spare = half->next_live;
    } else {
        half = (Half*)malloc(sizeof *half);
        if (half == NULL) { return NULL; }
    }
    *half = (Half){.next_live = end->live, .owner = end->rank};
    if (end->live != NULL) { end->live->prev_live = half; }
    end->live = half;
    return half;
}

static void half_release(End* end, Half* half) {
    if (half->prev_live != NULL) {
        half->prev_live->next_live = half->next_live;
    } else {
        end->live = half->next_live;
    }
    if (half->next_live != NULL) { half->next_live->prev_live = half->prev_live; }
    half->next_live = end->spare;
    end->spare = half;
}

static Status hub_check_alive(const Hub* hub, int32_t peer) {
    if (hub->aborted_by >= 0) {
        return FAIL(STATUS_COMM, "loopback: rank %d gave up: %s", (int)hub->aborted_by, hub->why);
    }
    if (hub->ends[peer].closed) { return FAIL(STATUS_COMM, "loopback: rank %d has left already", (int)peer); }
    return STATUS_OK;
}

static Status post_locked(End* end, const Half* wanted, void** request) {
    Hub* hub = end->hub;
    TRY(hub_check_alive(hub, wanted->peer));
    Half* half = half_create(end);
    if (half == NULL) { return FAIL(STATUS_NO_MEMORY, "loopback: no memory for a request"); }
    half->is_receive = wanted->is_receive;
    half->peer = wanted->peer;
    half->tag = wanted->tag;
    half->data = wanted->data;
    half->num_bytes = wanted->num_bytes;
    Half* other = list_take(pair_list(hub, half, !half->is_receive), half->tag);
    if (other == NULL) {
        list_append(pair_list(hub, half, half->is_receive), half);
    } else {
        halves_join(half->is_receive ? other : half, half->is_receive ? half : other);
    }
    *request = half;
    return STATUS_OK;
}

static Status post(End* end, const Half* wanted, void** request) {
    if (wanted->peer < 0 || wanted->peer >= end->hub->num_ranks || wanted->tag < 0) {
        return FAIL(STATUS_OUT_OF_RANGE, "loopback: rank %d, tag %d from rank %d: there are ranks 0..%d",
                    (int)wanted->peer, (int)wanted->tag, (int)end->rank, (int)end->hub->num_ranks - 1);
    }
    pthread_mutex_lock(&end->hub->lock);
    Status status = post_locked(end, wanted, request);
    pthread_mutex_unlock(&end->hub->lock);
    return status;
}

static Status loopback_isend(void* ctx, int32_t peer, int32_t tag, const void* data, size_t num_bytes,
                             void** request) {
    // The data of a send is only ever read; Half has one pointer for both directions.
    Half send = {.peer = peer, .tag = tag, .data = (void*)(uintptr_t)data, .num_bytes = num_bytes};
    return post((End*)ctx, &send, request);
}

static Status loopback_irecv(void* ctx, int32_t peer, int32_t tag, void* data, size_t num_bytes,
                             void** request) {
    Half receive = {.is_receive = true, .peer = peer, .tag = tag, .data = data, .num_bytes = num_bytes};
    return post((End*)ctx, &receive, request);
}

static Status test_locked(End* end, Half* half, int* done) {
    if (half->state == HALF_POSTED) { return hub_check_alive(end->hub, half->peer); }
    Status status = STATUS_OK;
    if (half->state == HALF_MISMATCH) {
        status =
            FAIL(STATUS_MISMATCH, "loopback: rank %d %s %zu bytes, tag %d, but rank %d %s %zu",
                 (int)half->owner, half->is_receive ? "expects" : "sends", half->num_bytes, (int)half->tag,
                 (int)half->peer, half->is_receive ? "sends" : "expects", half->other_bytes);
    }
    *done = 1;
    half_release(end, half);
    return status;
}

static Status loopback_test(void* ctx, void* request, int* done) {
    End* end = (End*)ctx;
    *done = 0;
    pthread_mutex_lock(&end->hub->lock);
    Status status = test_locked(end, (Half*)request, done);
    pthread_mutex_unlock(&end->hub->lock);
    return status;
}

// No memory is accessed any more once this returns.
static void loopback_abort(void* ctx, const char* why) {
    End* end = (End*)ctx;
    Hub* hub = end->hub;
    pthread_mutex_lock(&hub->lock);
    if (hub->aborted_by < 0) {
        hub->aborted_by = end->rank;
        snprintf(hub->why, sizeof hub->why, "%s", why);
        memset(hub->pairs, 0, (size_t)hub->num_ranks * (size_t)hub->num_ranks * sizeof *hub->pairs);
    }
    pthread_mutex_unlock(&hub->lock);
}

static void free_list(Half* half) {
    while (half != NULL) {
        Half* next = half->next_live;
        free(half);
        half = next;
    }
}

static Status loopback_close(void* ctx) {
    End* end = (End*)ctx;
    Hub* hub = end->hub;
    pthread_mutex_lock(&hub->lock);
    int32_t in_flight = 0;
    for (Half* half = end->live; half != NULL; half = half->next_live) {
        in_flight++;
        if (half->state == HALF_POSTED) { list_remove(pair_list(hub, half, half->is_receive), half); }
    }
    free_list(end->live);
    free_list(end->spare);
    end->live = end->spare = NULL;
    end->closed = true;
    bool aborted = hub->aborted_by >= 0;
    int32_t rank = end->rank;
    bool is_last = --hub->num_open == 0;
    pthread_mutex_unlock(&hub->lock);
    if (is_last) { hub_free(hub); }
    if (in_flight > 0 && !aborted) {
        return FAIL(STATUS_COMM, "loopback: rank %d closes with %d requests in flight", (int)rank,
                    (int)in_flight);
    }
    return STATUS_OK;
}

static const DynapipeTransport_v1 loopback_api = {
    .name = "loopback",
    .isend = loopback_isend,
    .irecv = loopback_irecv,
    .test = loopback_test,
    .abort = loopback_abort,
    .close = loopback_close,
};

Status transport_loopback_open(Transport* out, int32_t num_ranks) {
    if (num_ranks < 1) { return FAIL(STATUS_OUT_OF_RANGE, "loopback: %d ranks", (int)num_ranks); }
    size_t R = (size_t)num_ranks;
    Hub* hub = (Hub*)calloc(1, sizeof *hub);
    Pair* pairs = (Pair*)calloc(R * R, sizeof *pairs);
    End* ends = (End*)calloc(R, sizeof *ends);
    if (hub == NULL || pairs == NULL || ends == NULL) {
        free(hub);
        free(pairs);
        free(ends);
        return FAIL(STATUS_NO_MEMORY, "loopback: no memory for %d ranks", (int)num_ranks);
    }
    *hub =
        (Hub){.num_ranks = num_ranks, .num_open = num_ranks, .aborted_by = -1, .pairs = pairs, .ends = ends};
    pthread_mutex_init(&hub->lock, NULL);
    for (int32_t r = 0; r < num_ranks; r++) {
        ends[r] = (End){.hub = hub, .rank = r};
        out[r] = (Transport){.api = &loopback_api, .ctx = &ends[r], .rank = r, .num_ranks = num_ranks};
    }
    return STATUS_OK;
}
