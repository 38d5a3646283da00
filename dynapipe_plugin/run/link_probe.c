#include "link_probe.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "../../util/program.h"
#include "transport.h"

enum { SMALL_BYTES = 1024, NUM_ROUNDS = 9, NUM_SUMS = 5 };

static int compare_times(const void* a, const void* b) {
    int64_t x = *(const int64_t*)a, y = *(const int64_t*)b;
    return (x > y) - (x < y);
}

static double median_ns(int64_t* ns, int num_times) {
    qsort(ns, (size_t)num_times, sizeof *ns, compare_times);
    return (double)ns[num_times / 2];
}

// --- links -------------------------------------------------------------------------------------------------

// This rank's end of one link.
typedef struct {
    const Transport* links;
    void* memory;
    int32_t peer;
    int64_t timeout_ns;  // 0: for ever
} End;

static Status wait_for(const End* end, void* request) {
    const Transport* links = end->links;
    Backoff backoff = {0};
    for (int done = 0;;) {
        TRY(links->api->test(links->ctx, request, &done));
        if (done) { return STATUS_OK; }
        if (backoff_gives_up(&backoff, end->timeout_ns)) {
            return FAIL(STATUS_COMM,
                        "measuring links: rank %d waits for rank %s, nothing moved for %.1f s ---> see what "
                        "rank %d does, or raise --comm-timeout",
                        (int)links->rank, TRANSPORT_RANK(links, end->peer), (double)end->timeout_ns / 1e9,
                        (int)end->peer);
        }
        backoff_pause(&backoff);
    }
}

static Status move(const End* end, size_t num_bytes, bool sends) {
    const Transport* links = end->links;
    void* request;
    TRY(sends ? links->api->isend(links->ctx, end->peer, TAG_LINK, end->memory, num_bytes, &request)
              : links->api->irecv(links->ctx, end->peer, TAG_LINK, end->memory, num_bytes, &request));
    return wait_for(end, request);
}

// The first round trip opens connections: it does not count.
static Status one_way_ns(double* out, const End* end, size_t num_bytes) {
    bool is_first = end->links->rank < end->peer;
    int64_t ns[NUM_ROUNDS];
    for (int round = -1; round < NUM_ROUNDS; round++) {
        int64_t begin_ns = clock_now_ns();
        TRY(move(end, num_bytes, is_first));
        TRY(move(end, num_bytes, !is_first));
        if (round >= 0) { ns[round] = clock_now_ns() - begin_ns; }
    }
    *out = median_ns(ns, NUM_ROUNDS) / 2;
    return STATUS_OK;
}

static Status probe_end(LinkCosts* out, const End* end) {
    double small_ns, large_ns;
    TRY(one_way_ns(&small_ns, end, SMALL_BYTES));
    TRY(one_way_ns(&large_ns, end, LINK_PROBE_BYTES));
    double beyond_ns = large_ns - small_ns;
    out->latency_ns = small_ns;
    out->bytes_per_ns = beyond_ns > 1 ? (LINK_PROBE_BYTES - SMALL_BYTES) / beyond_ns : 1e3;
    return STATUS_OK;
}

// All begin together: no pair has the machine for itself. Of a pair, the first rank's numbers are told to
// all.
static Status probe_pairs(LinkCosts* out, const Transport* links, Collective* world, void* memory,
                          int32_t odd) {
    int32_t rank = links->rank, first = rank % 2 == odd ? rank : rank - 1;
    End end = {links, memory, first == rank ? rank + 1 : first, world->timeout_ns};
    LinkCosts mine;
    TRY(collective_barrier(world));
    if (first < 0 || first + 1 >= links->num_ranks) { return STATUS_OK; }
    TRY(probe_end(&mine, &end));
    if (first == rank) { out[rank] = mine; }
    return STATUS_OK;
}

Status link_probe_run(LinkCosts* out, const Transport* links, Collective* world, void* memory) {
    int32_t num_links = links->num_ranks - 1;
    if (num_links < 1) { return STATUS_OK; }
    memset(out, 0, (size_t)num_links * sizeof *out);
    if (links->api->reserve != NULL) { TRY(links->api->reserve(links->ctx, 2)); }
    for (int32_t odd = 0; odd < 2; odd++) { TRY(probe_pairs(out, links, world, memory, odd)); }
    return collective_all_reduce_sum(world, &out[0].latency_ns, 2 * num_links);  // of each, one rank knows
}

#ifndef DYNAPIPE_CUDA
Status link_probe(LinkCosts* out, Collective* world, void* stream, TransportChoice choice) {
    (void)stream, (void)choice;
    void* memory = malloc(LINK_PROBE_BYTES);
    if (memory == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a message"); }
    memset(memory, 0, LINK_PROBE_BYTES);  // its pages are there
    Status status = link_probe_run(out, world->transport, world, memory);
    free(memory);
    return status;
}
#endif

// --- sums --------------------------------------------------------------------------------------------------

static Status sums_ns(double* out, Collective* group, float* values, int64_t num_values) {
    int64_t ns[NUM_SUMS];
    for (int round = -1; round < NUM_SUMS; round++) {  // the first makes its memory
        TRY(collective_barrier(group));
        int64_t begin_ns = clock_now_ns();
        TRY(collective_reduce_scatter_sum(group, values, num_values, DYNAPIPE_FLOAT32));
        TRY(collective_all_gather(group, values, num_values, sizeof *values));
        TRY(collective_barrier(group));  // the next step needs all of them
        if (round >= 0) { ns[round] = clock_now_ns() - begin_ns; }
    }
    *out = median_ns(ns, NUM_SUMS);
    return STATUS_OK;
}

Status link_probe_sums(double* bytes_per_ns, Collective* group) {
    const int64_t num_values = LINK_PROBE_BYTES / sizeof(float);
    double ns, passes = 2.0 * (group->num_ranks - 1) / group->num_ranks;
    float* values = malloc(LINK_PROBE_BYTES);
    if (values == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for sums"); }
    memset(values, 0, LINK_PROBE_BYTES);
    Status status = sums_ns(&ns, group, values, num_values);
    free(values);
    if (status == STATUS_OK) { *bytes_per_ns = passes * LINK_PROBE_BYTES / (ns > 1 ? ns : 1); }
    return status;
}
