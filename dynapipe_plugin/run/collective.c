// collective.c -- rounds of small messages: post round k + 1, wait for round k, add while k + 1 is under way.
#include "collective.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "../../util/program.h"
#include "../../util/numbers.h"
#include "backoff.h"
#include "collective_parts.h"
#include "tags.h"

static const char* const op_text[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                      "gather",     "clock_offset",   "barrier",    "share"};

enum { MIN_CHUNK_BYTES = 8 * 1024, ADD_BLOCK_FLOATS = 1024 };

struct CollectiveRequest {
    void* handle;
    int32_t idx;  // peer, in the group
    int64_t round;
    bool is_receive;
    size_t num_bytes;
};

Status collective_init(Collective* out, Transport* transport, const int32_t* ranks, int32_t num_ranks,
                       int64_t timeout_ns) {
    int32_t my_idx = -1;
    for (int32_t i = 0; i < num_ranks; i++) {
        if (ranks[i] < 0 || ranks[i] >= transport->num_ranks) {
            return FAIL(STATUS_OUT_OF_RANGE, "collective: rank %d of the group, there are %d", (int)ranks[i],
                        (int)transport->num_ranks);
        }
        if (ranks[i] == transport->rank) { my_idx = i; }
    }
    if (my_idx < 0) {
        return FAIL(STATUS_OUT_OF_RANGE, "collective: rank %d is not in the group", (int)transport->rank);
    }
    *out = (Collective){
        .transport = transport, .timeout_ns = timeout_ns, .num_ranks = num_ranks, .my_idx = my_idx};
    out->ranks = malloc((size_t)num_ranks * sizeof *ranks);
    if (out->ranks == NULL) { return FAIL(STATUS_NO_MEMORY, "collective: group of %d", (int)num_ranks); }
    memcpy(out->ranks, ranks, (size_t)num_ranks * sizeof *ranks);
    return STATUS_OK;
}

void collective_free(Collective* c) {
    free(c->ranks);
    free(c->requests);
    free(c->temp);
    *c = (Collective){0};
}

Status collective_need_temp(Collective* c, size_t num_bytes) {
    if (num_bytes <= c->temp_bytes) { return STATUS_OK; }
    free(c->temp);
    c->temp = malloc(num_bytes);
    c->temp_bytes = c->temp == NULL ? 0 : num_bytes;
    if (c->temp == NULL) { return FAIL(STATUS_NO_MEMORY, "collective: %zu bytes", num_bytes); }
    return STATUS_OK;
}

// --- messages --------------------------------------------------------------------------------------------
static Status post(Collective* c, CollectiveOp op, int64_t round, bool is_receive, int32_t idx, void* data,
                   size_t num_bytes) {
    if (c->num_requests == c->max_requests) {
        int32_t max_requests = c->max_requests * 2 + 16;
        CollectiveRequest* grown = realloc(c->requests, (size_t)max_requests * sizeof *grown);
        if (grown == NULL) { return FAIL(STATUS_NO_MEMORY, "collective: %d requests", (int)max_requests); }
        c->requests = grown;
        c->max_requests = max_requests;
    }
    CollectiveRequest request = {
        .idx = idx, .round = round, .is_receive = is_receive, .num_bytes = num_bytes};
    const DynapipeTransport_v1* api = c->transport->api;
    int32_t peer = c->ranks[idx], tag = TAG_COLLECTIVE + (int32_t)op;
    TRY(is_receive ? api->irecv(c->transport->ctx, peer, tag, data, num_bytes, &request.handle)
                   : api->isend(c->transport->ctx, peer, tag, data, num_bytes, &request.handle));
    c->requests[c->num_requests++] = request;
    return STATUS_OK;
}

Status collective_post_send(Collective* c, CollectiveOp op, int64_t round, int32_t idx, const void* data,
                            size_t num_bytes) {
    return post(c, op, round, false, idx, (void*)(uintptr_t)data, num_bytes);  // handed on as const
}

Status collective_post_receive(Collective* c, CollectiveOp op, int64_t round, int32_t idx, void* data,
                               size_t num_bytes) {
    return post(c, op, round, true, idx, data, num_bytes);
}

// Test every request once; finished ones leave the list. Sets *moved if there was one, and *missing to one
// that is still needed for `round`, or NULL.
static Status poll_requests(Collective* c, int64_t round, bool* moved, const CollectiveRequest** missing) {
    int32_t kept = 0;
    Status status = STATUS_OK;
    *missing = NULL;
    for (int32_t i = 0; i < c->num_requests; i++) {
        int done = 0;
        if (status == STATUS_OK) {
            status = c->transport->api->test(c->transport->ctx, c->requests[i].handle, &done);
        }
        if (done) {  // gone, with an error too
            *moved = true;
            continue;
        }
        c->requests[kept] = c->requests[i];
        if (c->requests[kept].round <= round) { *missing = &c->requests[kept]; }
        kept++;
    }
    c->num_requests = kept;
    return status;
}

Status collective_wait(Collective* c, CollectiveOp op, int64_t round) {
    Backoff backoff = {0};
    for (;;) {
        bool moved = false;
        const CollectiveRequest* missing;
        TRY(poll_requests(c, round, &moved, &missing));
        if (missing == NULL) { return STATUS_OK; }
        if (moved) {
            backoff = (Backoff){0};
            continue;
        }
        if (backoff_gives_up(&backoff, c->timeout_ns)) {
            return FAIL(
                STATUS_COMM,
                "%s: rank %d waits for rank %s to %s %zu bytes, nothing moved for %.1f s ---> see what "
                "rank %d does, or raise --comm-timeout",
                op_text[op], (int)c->transport->rank, TRANSPORT_RANK(c->transport, c->ranks[missing->idx]),
                missing->is_receive ? "send" : "take", missing->num_bytes, (double)c->timeout_ns / 1e9,
                (int)c->ranks[missing->idx]);
        }
        backoff_pause(&backoff);
    }
}

// --- many values -----------------------------------------------------------------------------------------
typedef struct {
    int64_t begin, end;  // values
} Span;

// An array that is summed, and how it travels.
typedef struct {
    unsigned char* values;
    int64_t num_values;
    DynapipeType type;
    int32_t bytes_per_value;
    int64_t chunk;  // values of a message
} Summed;

// Part `round` of the slice of group index idx.
static Span slice_part(const Collective* c, int64_t n, int32_t idx, int64_t round, int64_t chunk) {
    Span slice = {collective_slice(n, c->num_ranks, idx), collective_slice(n, c->num_ranks, idx + 1)};
    Span part = {slice.begin + round * chunk, slice.begin + (round + 1) * chunk};
    if (part.begin > slice.end) { part.begin = slice.end; }
    if (part.end > slice.end) { part.end = slice.end; }
    return part;
}

static size_t span_bytes(Span span, int32_t bytes_per_value) {
    return (size_t)(span.end - span.begin) * (size_t)bytes_per_value;
}

static int64_t num_rounds(const Collective* c, int64_t n, int64_t chunk) {
    int64_t longest = (n + c->num_ranks - 1) / c->num_ranks;
    return (longest + chunk - 1) / chunk;
}

static int64_t reduce_chunk(const Collective* c, int64_t n, int32_t bytes_per_value) {
    int64_t longest = (n + c->num_ranks - 1) / c->num_ranks;
    int64_t bytes = COLLECTIVE_TEMP_BYTES / (2 * (c->num_ranks - 1));
    if (bytes > COLLECTIVE_CHUNK_BYTES) { bytes = COLLECTIVE_CHUNK_BYTES; }
    if (bytes < MIN_CHUNK_BYTES) { bytes = MIN_CHUNK_BYTES; }
    int64_t chunk = bytes / bytes_per_value;
    return chunk < longest ? chunk : longest;
}

// Where the values of group index idx arrive, in this round: two halves of temp take turns.
static unsigned char* reduce_temp(const Collective* c, const Summed* a, int64_t round, int32_t idx) {
    int32_t row = idx < c->my_idx ? idx : idx - 1;
    int64_t rows_before = (round % 2) * (c->num_ranks - 1) + row;
    return c->temp + rows_before * a->chunk * a->bytes_per_value;
}

static Status post_reduce(Collective* c, const Summed* a, int64_t round) {
    size_t my_bytes =
        span_bytes(slice_part(c, a->num_values, c->my_idx, round, a->chunk), a->bytes_per_value);
    for (int32_t i = 0; i < c->num_ranks; i++) {
        if (i == c->my_idx || my_bytes == 0) { continue; }
        TRY(collective_post_receive(c, COLLECTIVE_REDUCE_SCATTER, round, i, reduce_temp(c, a, round, i),
                                    my_bytes));
    }
    for (int32_t d = 1; d < c->num_ranks; d++) {  // each rank begins with another peer
        int32_t i = (c->my_idx + d) % c->num_ranks;
        Span theirs = slice_part(c, a->num_values, i, round, a->chunk);
        size_t their_bytes = span_bytes(theirs, a->bytes_per_value);
        if (their_bytes == 0) { continue; }
        TRY(collective_post_send(c, COLLECTIVE_REDUCE_SCATTER, round, i,
                                 a->values + theirs.begin * a->bytes_per_value, their_bytes));
    }
    return STATUS_OK;
}

// `from` as floats: itself, or in `room`.
static const float* as_floats(float* room, const unsigned char* from, int64_t count, DynapipeType type) {
    if (type == DYNAPIPE_FLOAT32) { return (const float*)(const void*)from; }
    for (int64_t k = 0; k < count; k++) {
        uint16_t half;
        memcpy(&half, from + 2 * k, sizeof half);
        room[k] = type == DYNAPIPE_BFLOAT16 ? half_from_bfloat16(half) : half_from_float16(half);
    }
    return room;
}

static void store_floats(unsigned char* to, const float* sum, int64_t count, DynapipeType type) {
    if (type == DYNAPIPE_FLOAT32) {
        memcpy(to, sum, (size_t)count * sizeof *sum);
        return;
    }
    for (int64_t k = 0; k < count; k++) {
        uint16_t half = type == DYNAPIPE_BFLOAT16 ? half_to_bfloat16(sum[k]) : half_to_float16(sum[k]);
        memcpy(to + 2 * k, &half, sizeof half);
    }
}

static void add_in_order(const Collective* c, const Summed* a, int64_t round) {
    float sum[ADD_BLOCK_FLOATS], room[ADD_BLOCK_FLOATS];
    Span mine = slice_part(c, a->num_values, c->my_idx, round, a->chunk);
    for (int64_t begin = mine.begin; begin < mine.end; begin += ADD_BLOCK_FLOATS) {
        int64_t count = mine.end - begin < ADD_BLOCK_FLOATS ? mine.end - begin : ADD_BLOCK_FLOATS;
        unsigned char* my_values = a->values + begin * a->bytes_per_value;
        for (int32_t i = 0; i < c->num_ranks; i++) {
            const unsigned char* from =
                i == c->my_idx ? my_values
                               : reduce_temp(c, a, round, i) + (begin - mine.begin) * a->bytes_per_value;
            const float* floats = as_floats(room, from, count, a->type);
            if (i == 0) { memcpy(sum, floats, (size_t)count * sizeof *sum); }
            for (int64_t k = 0; k < count && i > 0; k++) { sum[k] += floats[k]; }
        }
        store_floats(my_values, sum, count, a->type);
    }
}

Status collective_reduce_scatter_sum(Collective* c, void* values, int64_t num_values, DynapipeType type) {
    if (c->num_ranks == 1 || num_values == 0) { return STATUS_OK; }
    int32_t bytes_per_value = collective_type_bytes(type);
    Summed array = {.values = values,
                    .num_values = num_values,
                    .type = type,
                    .bytes_per_value = bytes_per_value,
                    .chunk = reduce_chunk(c, num_values, bytes_per_value)};
    int64_t rounds = num_rounds(c, num_values, array.chunk);
    TRY(collective_need_temp(c, (size_t)(2 * (c->num_ranks - 1) * array.chunk * bytes_per_value)));
    TRY(post_reduce(c, &array, 0));
    for (int64_t round = 0; round < rounds; round++) {
        if (round + 1 < rounds) { TRY(post_reduce(c, &array, round + 1)); }
        TRY(collective_wait(c, COLLECTIVE_REDUCE_SCATTER, round));
        add_in_order(c, &array, round);
    }
    return STATUS_OK;
}

static Status post_all_gather(Collective* c, unsigned char* values, int64_t n, int32_t bytes_per_value,
                              int64_t round, int64_t chunk) {
    Span mine = slice_part(c, n, c->my_idx, round, chunk);
    for (int32_t d = 1; d < c->num_ranks; d++) {
        int32_t i = (c->my_idx + d) % c->num_ranks;
        Span theirs = slice_part(c, n, i, round, chunk);
        size_t their_bytes = span_bytes(theirs, bytes_per_value),
               my_bytes = span_bytes(mine, bytes_per_value);
        if (their_bytes > 0) {
            TRY(collective_post_receive(c, COLLECTIVE_ALL_GATHER, round, i,
                                        values + theirs.begin * bytes_per_value, their_bytes));
        }
        if (my_bytes > 0) {
            TRY(collective_post_send(c, COLLECTIVE_ALL_GATHER, round, i,
                                     values + mine.begin * bytes_per_value, my_bytes));
        }
    }
    return STATUS_OK;
}

Status collective_all_gather(Collective* c, void* values, int64_t num_values, int32_t bytes_per_value) {
    if (c->num_ranks == 1 || num_values == 0) { return STATUS_OK; }
    int64_t chunk = COLLECTIVE_CHUNK_BYTES / bytes_per_value;
    int64_t rounds = num_rounds(c, num_values, chunk);
    TRY(post_all_gather(c, values, num_values, bytes_per_value, 0, chunk));
    for (int64_t round = 0; round < rounds; round++) {
        if (round + 1 < rounds) {
            TRY(post_all_gather(c, values, num_values, bytes_per_value, round + 1, chunk));
        }
        TRY(collective_wait(c, COLLECTIVE_ALL_GATHER, round));
    }
    return STATUS_OK;
}

Status collective_sum_copies(Collective* c, void* values, int64_t num_values, DynapipeType type) {
    TRY(collective_reduce_scatter_sum(c, values, num_values, type));
    return collective_all_gather(c, values, num_values, collective_type_bytes(type));
}
