// transport_check.c -- a decorator that watches every message of another transport; for tests, host memory
// only.
//
// Each message is preceded by a header (length and hash of the data) on a tag of its own, HEADER_TAG_BIT
// above the message's. The receiver posts the message itself only when the header agrees with what it
// expects, in posting order per (peer, tag), so the order of equal tags stays as it was. Until then, the
// receive buffer is filled with bytes 0xff, a NaN in every floating-point format, and must stay so.
#include "transport.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../util/numbers.h"

enum { HEADER_TAG_BIT = TRANSPORT_TAG_END, POISON = 0xff };
#define HEADER_MAGIC 0x64706368656b3031u

typedef struct {
    uint64_t magic, num_bytes, hash;
} Header;

typedef struct CheckRequest CheckRequest;
struct CheckRequest {
    CheckRequest* next;  // in posting order
    bool is_receive, done;
    int32_t peer, tag;
    unsigned char* data;
    size_t num_bytes;
    Header header;
    void *header_request, *data_request;  // of the inner transport; NULL: done, or (data) not posted yet
    bool data_posted;
};

typedef struct {
    Transport inner;
    CheckRequest* first;  // live requests
    bool aborted;
    char name[64];
    DynapipeTransport_v1 api;  // own copy: its name includes the inner one's
} Check;

static uint64_t data_hash(const CheckRequest* r) {
    return hash_finish(hash_bytes(HASH_SEED, r->data, r->num_bytes));
}

static const char* verb(const CheckRequest* r) {
    return r->is_receive ? "receive from" : "send to";
}

// Two requests in flight must not share bytes if one of them writes.
static Status check_overlap(const Check* check, const CheckRequest* fresh) {
    for (const CheckRequest* r = check->first; r != NULL; r = r->next) {
        bool apart = fresh->data + fresh->num_bytes <= r->data || r->data + r->num_bytes <= fresh->data;
        if (apart || r->done || (!r->is_receive && !fresh->is_receive)) { continue; }
        return FAIL(STATUS_INVALID_PLAN,
                    "check: rank %d, %s rank %d tag %d: its buffer is still in flight (%s rank %d tag %d)",
                    (int)check->inner.rank, verb(fresh), (int)fresh->peer, (int)fresh->tag, verb(r),
                    (int)r->peer, (int)r->tag);
    }
    return STATUS_OK;
}

static Status post_inner(Check* check, CheckRequest* r) {
    Transport* inner = &check->inner;
    int32_t header_tag = r->tag | HEADER_TAG_BIT;
    if (r->is_receive) {
        memset(r->data, POISON, r->num_bytes);
        return inner->api->irecv(inner->ctx, r->peer, header_tag, &r->header, sizeof r->header,
                                 &r->header_request);
    }
    r->header = (Header){HEADER_MAGIC, r->num_bytes, data_hash(r)};
    TRY(inner->api->isend(inner->ctx, r->peer, header_tag, &r->header, sizeof r->header, &r->header_request));
    TRY(inner->api->isend(inner->ctx, r->peer, r->tag, r->data, r->num_bytes, &r->data_request));
    r->data_posted = true;
    return STATUS_OK;
}

static Status post(Check* check, CheckRequest wanted, void** request) {
    if (wanted.tag < 0 || wanted.tag >= HEADER_TAG_BIT) {
        return FAIL(STATUS_OUT_OF_RANGE, "check: tag %d, valid are 0..%d", (int)wanted.tag,
                    HEADER_TAG_BIT - 1);
    }
    if (wanted.peer < 0 || wanted.peer >= check->inner.num_ranks || wanted.peer == check->inner.rank) {
        return FAIL(STATUS_OUT_OF_RANGE, "check: rank %d has no peer %d", (int)check->inner.rank,
                    (int)wanted.peer);
    }
    TRY(check_overlap(check, &wanted));
    CheckRequest* r = (CheckRequest*)malloc(sizeof *r);
    if (r == NULL) { return FAIL(STATUS_NO_MEMORY, "check: no memory for a request"); }
    *r = wanted;
    CheckRequest** last = &check->first;
    while (*last != NULL) { last = &(*last)->next; }
    *last = r;
    *request = r;
    return post_inner(check, r);
}

static Status check_isend(void* ctx, int32_t peer, int32_t tag, const void* data, size_t num_bytes,
                          void** request) {
    // Only receives are written through this pointer.
    CheckRequest r = {
        .peer = peer, .tag = tag, .data = (unsigned char*)(uintptr_t)data, .num_bytes = num_bytes};
    return post((Check*)ctx, r, request);
}

static Status check_irecv(void* ctx, int32_t peer, int32_t tag, void* data, size_t num_bytes,
                          void** request) {
    CheckRequest r = {
        .is_receive = true, .peer = peer, .tag = tag, .data = (unsigned char*)data, .num_bytes = num_bytes};
    return post((Check*)ctx, r, request);
}

static Status test_inner(Check* check, void** inner_request) {
    if (*inner_request == NULL) { return STATUS_OK; }
    int done = 0;
    TRY(check->inner.api->test(check->inner.ctx, *inner_request, &done));
    if (done) { *inner_request = NULL; }
    return STATUS_OK;
}

// The header is there: does it describe what this receive expects, and was the buffer left alone?
static Status check_header(const Check* check, const CheckRequest* r) {
    if (r->header.magic != HEADER_MAGIC) {
        return FAIL(STATUS_MISMATCH, "check: rank %d: no header from rank %d, tag %d ---> wrap both ends",
                    (int)check->inner.rank, (int)r->peer, (int)r->tag);
    }
    if (r->header.num_bytes != r->num_bytes) {
        return FAIL(STATUS_MISMATCH, "check: rank %d expects %zu bytes, tag %d, but rank %d sends %llu",
                    (int)check->inner.rank, r->num_bytes, (int)r->tag, (int)r->peer,
                    (unsigned long long)r->header.num_bytes);
    }
    for (size_t i = 0; i < r->num_bytes; i++) {
        if (r->data[i] != POISON) {
            return FAIL(STATUS_INVALID_PLAN,
                        "check: rank %d wrote byte %zu of a buffer in flight (receive from rank %d, tag %d)",
                        (int)check->inner.rank, i, (int)r->peer, (int)r->tag);
        }
    }
    return STATUS_OK;
}

// An older receive of the same peer and tag that has not posted its data yet: this one must wait for it.
static bool must_wait(const Check* check, const CheckRequest* r) {
    for (const CheckRequest* older = check->first; older != r; older = older->next) {
        if (older->is_receive && older->peer == r->peer && older->tag == r->tag && !older->data_posted) {
            return true;
        }
    }
    return false;
}

static Status advance(Check* check, CheckRequest* r) {
    Transport* inner = &check->inner;
    TRY(test_inner(check, &r->header_request));
    if (r->is_receive && r->header_request == NULL && !r->data_posted && !must_wait(check, r)) {
        TRY(check_header(check, r));
        TRY(inner->api->irecv(inner->ctx, r->peer, r->tag, r->data, r->num_bytes, &r->data_request));
        r->data_posted = true;
    }
    TRY(test_inner(check, &r->data_request));
    r->done = r->header_request == NULL && r->data_posted && r->data_request == NULL;
    if (r->done && data_hash(r) != r->header.hash) {
        return FAIL(STATUS_INVALID_PLAN, "check: rank %d, %s rank %d tag %d: %s", (int)inner->rank, verb(r),
                    (int)r->peer, (int)r->tag,
                    r->is_receive ? "the data is not what was posted" : "the buffer changed in flight");
    }
    return STATUS_OK;
}

static Status check_test(void* ctx, void* request, int* done) {
    Check* check = (Check*)ctx;
    *done = 0;
    for (CheckRequest* r = check->first; r != NULL; r = r->next) {
        if (!r->done) { TRY(advance(check, r)); }
    }
    CheckRequest** link = &check->first;
    while (*link != NULL && *link != request) { link = &(*link)->next; }
    if (*link == NULL) { return FAIL(STATUS_OUT_OF_RANGE, "check: test of a request that is not in flight"); }
    CheckRequest* r = *link;
    if (r->done) {
        *done = 1;
        *link = r->next;
        free(r);
    }
    return STATUS_OK;
}

static void check_abort(void* ctx, const char* why) {
    Check* check = (Check*)ctx;
    check->aborted = true;
    if (check->inner.api->abort != NULL) { check->inner.api->abort(check->inner.ctx, why); }
}

static Status check_close(void* ctx) {
    Check* check = (Check*)ctx;
    Status status = STATUS_OK;
    char words[160] = "";
    int32_t in_flight = 0;
    for (const CheckRequest* r = check->first; r != NULL; r = r->next) {
        if (in_flight++ == 0) {
            snprintf(words, sizeof words, "%s rank %d tag %d, %zu bytes", verb(r), (int)r->peer, (int)r->tag,
                     r->num_bytes);
        }
    }
    int32_t rank = check->inner.rank;
    bool aborted = check->aborted;
    Status inner_status = transport_close(&check->inner);  // before the headers in flight are freed
    while (check->first != NULL) {
        CheckRequest* next = check->first->next;
        free(check->first);
        check->first = next;
    }
    free(check);
    if (in_flight > 0 && !aborted) {
        status = FAIL(STATUS_COMM, "check: rank %d closes with %d requests in flight, the oldest a %s",
                      (int)rank, (int)in_flight, words);
    }
    return status != STATUS_OK ? status : inner_status;
}

Status transport_check_open(Transport* out, Transport inner) {
    Check* check = (Check*)calloc(1, sizeof *check);
    if (check == NULL) { return FAIL(STATUS_NO_MEMORY, "check: no memory to wrap %s", inner.api->name); }
    check->inner = inner;
    snprintf(check->name, sizeof check->name, "%s+check", inner.api->name);
    check->api = (DynapipeTransport_v1){
        .name = check->name,
        .isend = check_isend,
        .irecv = check_irecv,
        .test = check_test,
        .abort = check_abort,
        .close = check_close,
    };
    *out = (Transport){.api = &check->api,
                       .ctx = check,
                       .rank = inner.rank,
                       .num_ranks = inner.num_ranks,
                       .hosts = inner.hosts};
    return STATUS_OK;
}
