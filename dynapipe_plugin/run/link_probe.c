#include "link_probe.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "../base/clock.h"
#include "backoff.h"

enum { SMALL_BYTES = 1024, NUM_ROUNDS = 12, TAG = 0 };

static Status wait_for(const Transport* links, void* request, int64_t timeout_ns) {
    Backoff backoff = {0};
    int64_t begin_ns = clock_now_ns();
    for (int done = 0;;) {
        TRY(links->api->test(links->ctx, request, &done));
        if (done) { return STATUS_OK; }
        backoff_pause(&backoff);
        if (clock_now_ns() - begin_ns > timeout_ns) {
            return FAIL(STATUS_COMM,
                        "rank %d: no message between ranks 0 and 1 in %.0f s ---> see if both run",
                        (int)links->rank, (double)timeout_ns / 1e9);
        }
    }
}

static Status move(const Transport* links, void* memory, size_t num_bytes, bool sends, int64_t timeout_ns) {
    int32_t peer = 1 - links->rank;
    void* request;
    TRY(sends ? links->api->isend(links->ctx, peer, TAG, memory, num_bytes, &request)
              : links->api->irecv(links->ctx, peer, TAG, memory, num_bytes, &request));
    return wait_for(links, request, timeout_ns);
}

// Half of the quickest round trip.
static Status one_way_ns(double* out, const Transport* links, void* memory, size_t num_bytes,
                         int64_t timeout_ns) {
    bool is_first = links->rank == 0;
    int64_t best_ns = INT64_MAX;
    for (int round = 0; round < NUM_ROUNDS; round++) {
        int64_t begin_ns = clock_now_ns();
        TRY(move(links, memory, num_bytes, is_first, timeout_ns));
        TRY(move(links, memory, num_bytes, !is_first, timeout_ns));
        int64_t ns = clock_now_ns() - begin_ns;
        best_ns = ns < best_ns ? ns : best_ns;
    }
    *out = (double)best_ns / 2;
    return STATUS_OK;
}

Status link_probe_run(LinkCosts* out, const Transport* links, void* memory, int64_t timeout_ns) {
    *out = (LinkCosts){0};
    if (links->num_ranks < 2 || links->rank > 1) { return STATUS_OK; }
    if (links->api->reserve != NULL) { TRY(links->api->reserve(links->ctx, 2)); }
    double small_ns, large_ns;
    TRY(one_way_ns(&small_ns, links, memory, SMALL_BYTES, timeout_ns));
    TRY(one_way_ns(&large_ns, links, memory, LINK_PROBE_BYTES, timeout_ns));
    double beyond_ns = large_ns - small_ns;
    out->latency_ns = small_ns;
    out->bytes_per_ns = beyond_ns > 1 ? (LINK_PROBE_BYTES - SMALL_BYTES) / beyond_ns : 1e3;
    return STATUS_OK;
}

#ifndef DYNAPIPE_CUDA
Status link_probe(LinkCosts* out, Collective* world, void* stream, TransportChoice choice) {
    (void)stream, (void)choice;
    void* memory = calloc(1, LINK_PROBE_BYTES);
    if (memory == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a message"); }
    Status status = link_probe_run(out, world->transport, memory, world->timeout_ns);
    free(memory);
    return status;
}
#endif
