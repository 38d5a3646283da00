// collective.c -- rounds of small messages: post round k + 1, wait for round k, add while k + 1 is under way.
#include "collective.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "../base/clock.h"
#include "../base/half.h"
#include "backoff.h"

typedef enum {
    OP_ALL_REDUCE,
    OP_REDUCE_SCATTER,
    OP_ALL_GATHER,
    OP_BROADCAST,
    OP_GATHER,
    OP_CLOCK,
    OP_BARRIER
} Op;

static const char* const op_text[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                      "gather",     "clock_offset",   "barrier"};

enum { MIN_CHUNK_BYTES = 8 * 1024, CLOCK_TRIPS = 8, ADD_BLOCK_FLOATS = 1024 };

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

static Status need_temp(Collective* c, size_t num_bytes) {
    if (num_bytes <= c->temp_bytes) { return STATUS_OK; }
    free(c->temp);
    c->temp = malloc(num_bytes);
    c->temp_bytes = c->temp == NULL ? 0 : num_bytes;
    if (c->temp == NULL) { return FAIL(STATUS_NO_MEMORY, "collective: %zu bytes", num_bytes); }
    return STATUS_OK;
}

// --- messages --------------------------------------------------------------------------------------------
static Status post(Collective* c, Op op, int64_t round, bool is_receive, int32_t idx, void* data,
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
    int32_t peer = c->ranks[idx], tag = COLLECTIVE_TAG_BASE + (int32_t)op;
    TRY(is_receive ? api->irecv(c->transport->ctx, peer, tag, data, num_bytes, &request.handle)
                   : api->isend(c->transport->ctx, peer, tag, data, num_bytes, &request.handle));
    c->requests[c->num_requests++] = request;
    return STATUS_OK;
}

static Status post_send(Collective* c, Op op, int64_t round, int32_t idx, const void* data,
                        size_t num_bytes) {
    return post(c, op, round, false, idx, (void*)(uintptr_t)data, num_bytes);  // handed on as const
}

static Status post_receive(Collective* c, Op op, int64_t round, int32_t idx, void* data, size_t num_bytes) {
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

// Until every request of rounds 0..round is done.
static Status wait_round(Collective* c, Op op, int64_t round) {
    Backoff backoff = {0};
    int64_t last_ns = clock_now_ns();
    for (;;) {
        bool moved = false;
        const CollectiveRequest* missing;
        TRY(poll_requests(c, round, &moved, &missing));
        if (missing == NULL) { return STATUS_OK; }
        if (moved) {
            backoff = (Backoff){0};
            last_ns = clock_now_ns();
            continue;
        }
        backoff_pause(&backoff);
        if (c->timeout_ns > 0 && clock_now_ns() - last_ns > c->timeout_ns) {
            return FAIL(
                STATUS_COMM,
                "%s: rank %d waits for rank %d to %s %zu bytes, nothing moved for %.1f s ---> see what "
                "rank %d does, or raise --comm-timeout",
                op_text[op], (int)c->transport->rank, (int)c->ranks[missing->idx],
                missing->is_receive ? "send" : "take", missing->num_bytes, (double)c->timeout_ns / 1e9,
                (int)c->ranks[missing->idx]);
        }
    }
}

// --- few values ------------------------------------------------------------------------------------------

// Index 0 gets num_bytes from each member i into temp + i * num_bytes; its own are copied there.
static Status gather_equal(Collective* c, Op op, const void* data, size_t num_bytes) {
    TRY(need_temp(c, (size_t)c->num_ranks * num_bytes));
    if (c->my_idx != 0) {
        TRY(post_send(c, op, 0, 0, data, num_bytes));
        return wait_round(c, op, 0);
    }
    memcpy(c->temp, data, num_bytes);
    for (int32_t i = 1; i < c->num_ranks; i++) {
        TRY(post_receive(c, op, 0, i, c->temp + (size_t)i * num_bytes, num_bytes));
    }
    return wait_round(c, op, 0);
}

static Status scatter_same(Collective* c, Op op, void* data, size_t num_bytes) {
    if (c->my_idx != 0) {
        TRY(post_receive(c, op, 0, 0, data, num_bytes));
    } else {
        for (int32_t i = 1; i < c->num_ranks; i++) { TRY(post_send(c, op, 0, i, data, num_bytes)); }
    }
    return wait_round(c, op, 0);
}

// `values` are the sums over the group, at index 0 first and then everywhere.
static Status reduce_at_first(Collective* c, Op op, double* values, int32_t num_values) {
    if (c->num_ranks == 1 || num_values == 0) { return STATUS_OK; }
    size_t num_bytes = (size_t)num_values * sizeof *values;
    TRY(gather_equal(c, op, values, num_bytes));
    if (c->my_idx == 0) {
        for (int32_t i = 1; i < c->num_ranks; i++) {
            const double* other = (const double*)(const void*)(c->temp + (size_t)i * num_bytes);
            for (int32_t k = 0; k < num_values; k++) { values[k] += other[k]; }
        }
    }
    return scatter_same(c, op, values, num_bytes);
}

Status collective_all_reduce_sum(Collective* c, double* values, int32_t num_values) {
    return reduce_at_first(c, OP_ALL_REDUCE, values, num_values);
}

Status collective_barrier(Collective* c) {
    double nothing = 0;
    return reduce_at_first(c, OP_BARRIER, &nothing, 1);
}

Status collective_all_equal_u64(Collective* c, uint64_t value, const char* what) {
    size_t num_bytes = (size_t)c->num_ranks * sizeof value;
    TRY(gather_equal(c, OP_GATHER, &value, sizeof value));
    TRY(need_temp(c, num_bytes));
    TRY(scatter_same(c, OP_GATHER, c->temp, num_bytes));
    const uint64_t* all = (const uint64_t*)(const void*)c->temp;
    for (int32_t i = 1; i < c->num_ranks; i++) {
        if (all[i] == all[0]) { continue; }
        return FAIL(
            STATUS_MISMATCH,
            "%s: rank %d has %016llx, rank %d has %016llx ---> all ranks need the same program, data, "
            "cost file and options",
            what, (int)c->ranks[i], (unsigned long long)all[i], (int)c->ranks[0], (unsigned long long)all[0]);
    }
    return STATUS_OK;
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
        TRY(post_receive(c, OP_REDUCE_SCATTER, round, i, reduce_temp(c, a, round, i), my_bytes));
    }
    for (int32_t d = 1; d < c->num_ranks; d++) {  // each rank begins with another peer
        int32_t i = (c->my_idx + d) % c->num_ranks;
        Span theirs = slice_part(c, a->num_values, i, round, a->chunk);
        size_t their_bytes = span_bytes(theirs, a->bytes_per_value);
        if (their_bytes == 0) { continue; }
        TRY(post_send(c, OP_REDUCE_SCATTER, round, i, a->values + theirs.begin * a->bytes_per_value,
                      their_bytes));
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
    TRY(need_temp(c, (size_t)(2 * (c->num_ranks - 1) * array.chunk * bytes_per_value)));
    TRY(post_reduce(c, &array, 0));
    for (int64_t round = 0; round < rounds; round++) {
        if (round + 1 < rounds) { TRY(post_reduce(c, &array, round + 1)); }
        TRY(wait_round(c, OP_REDUCE_SCATTER, round));
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
            TRY(post_receive(c, OP_ALL_GATHER, round, i, values + theirs.begin * bytes_per_value,
                             their_bytes));
        }
        if (my_bytes > 0) {
            TRY(post_send(c, OP_ALL_GATHER, round, i, values + mine.begin * bytes_per_value, my_bytes));
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
        TRY(wait_round(c, OP_ALL_GATHER, round));
    }
    return STATUS_OK;
}

Status collective_sum_copies(Collective* c, void* values, int64_t num_values, DynapipeType type) {
    TRY(collective_reduce_scatter_sum(c, values, num_values, type));
    return collective_all_gather(c, values, num_values, collective_type_bytes(type));
}

// --- bytes -----------------------------------------------------------------------------------------------

// A chain root -> root + 1 -> ...: part k goes on while part k + 1 comes in.
Status collective_broadcast(Collective* c, void* data, size_t num_bytes, int32_t root_idx) {
    if (root_idx < 0 || root_idx >= c->num_ranks) {
        return FAIL(STATUS_OUT_OF_RANGE, "broadcast: root %d in a group of %d", (int)root_idx,
                    (int)c->num_ranks);
    }
    int32_t R = c->num_ranks, place = (c->my_idx - root_idx + R) % R;
    int32_t prev = (c->my_idx - 1 + R) % R, next = (c->my_idx + 1) % R;
    int64_t rounds = (int64_t)((num_bytes + COLLECTIVE_CHUNK_BYTES - 1) / COLLECTIVE_CHUNK_BYTES);
    for (int64_t round = -1; R > 1 && round < rounds; round++) {
        size_t begin = (size_t)(round + 1) * COLLECTIVE_CHUNK_BYTES;
        if (place > 0 && round + 1 < rounds) {
            size_t count =
                num_bytes - begin < COLLECTIVE_CHUNK_BYTES ? num_bytes - begin : COLLECTIVE_CHUNK_BYTES;
            TRY(post_receive(c, OP_BROADCAST, round + 1, prev, (unsigned char*)data + begin, count));
        }
        if (round < 0) { continue; }
        TRY(wait_round(c, OP_BROADCAST, round));
        begin = (size_t)round * COLLECTIVE_CHUNK_BYTES;
        if (place < R - 1) {
            size_t count =
                num_bytes - begin < COLLECTIVE_CHUNK_BYTES ? num_bytes - begin : COLLECTIVE_CHUNK_BYTES;
            TRY(post_send(c, OP_BROADCAST, round + 2, next, (unsigned char*)data + begin, count));
        }
    }
    return wait_round(c, OP_BROADCAST, rounds + 2);
}

Status collective_gather_bytes(Collective* c, const void* data, size_t num_bytes, CollectiveBytes* out,
                               Arena* arena) {
    uint64_t length = num_bytes;
    TRY(gather_equal(c, OP_GATHER, &length, sizeof length));
    if (c->my_idx != 0) {
        if (num_bytes > 0) { TRY(post_send(c, OP_GATHER, 0, 0, data, num_bytes)); }
        return wait_round(c, OP_GATHER, 0);
    }
    const uint64_t* lengths = (const uint64_t*)(const void*)c->temp;
    for (int32_t i = 0; i < c->num_ranks; i++) {
        out[i].num_bytes = lengths[i];
        out[i].data = arena_alloc(arena, lengths[i]);
        if (out[i].data == NULL) {
            return FAIL(STATUS_NO_MEMORY, "gather: %zu bytes of rank %d", out[i].num_bytes, (int)c->ranks[i]);
        }
        if (i > 0 && lengths[i] > 0) { TRY(post_receive(c, OP_GATHER, 0, i, out[i].data, out[i].num_bytes)); }
    }
    memcpy(out[0].data, data, num_bytes);
    return wait_round(c, OP_GATHER, 0);
}

Status collective_share_bytes(Collective* c, const void* data, size_t num_bytes, unsigned char** out,
                              Arena* arena) {
    CollectiveBytes* of_rank = ARENA_NEW(arena, CollectiveBytes, c->num_ranks);
    if (of_rank == NULL) { return FAIL(STATUS_NO_MEMORY, "share: no memory for %d ranks", c->num_ranks); }
    TRY(collective_gather_bytes(c, data, num_bytes, of_rank, arena));
    uint64_t total_bytes = 0;
    for (int32_t i = 0; c->my_idx == 0 && i < c->num_ranks; i++) { total_bytes += of_rank[i].num_bytes; }
    TRY(collective_broadcast(c, &total_bytes, sizeof total_bytes, 0));
    *out = arena_alloc(arena, total_bytes);
    if (*out == NULL) { return FAIL(STATUS_NO_MEMORY, "share: %llu bytes", (unsigned long long)total_bytes); }
    unsigned char* at = *out;
    for (int32_t i = 0; c->my_idx == 0 && i < c->num_ranks; i++) {
        memcpy(at, of_rank[i].data, of_rank[i].num_bytes);
        at += of_rank[i].num_bytes;
    }
    return collective_broadcast(c, *out, total_bytes, 0);
}

Status collective_clock_offset(Collective* c, int64_t* out_ns) {
    int64_t theirs_ns = 0, best_trip_ns = INT64_MAX;
    *out_ns = 0;
    int32_t first = c->my_idx == 0 ? 1 : 0, last = c->my_idx == 0 ? c->num_ranks : 1;
    for (int32_t i = first; i < last; i++) {
        for (int trip = 0; trip < CLOCK_TRIPS; trip++) {
            int64_t begin_ns = clock_now_ns();
            if (c->my_idx == 0) {
                TRY(post_receive(c, OP_CLOCK, 0, i, &theirs_ns, sizeof theirs_ns));
                TRY(wait_round(c, OP_CLOCK, 0));
                int64_t mine_ns = clock_now_ns();
                TRY(post_send(c, OP_CLOCK, 0, i, &mine_ns, sizeof mine_ns));
                TRY(wait_round(c, OP_CLOCK, 0));
                continue;
            }
            TRY(post_receive(c, OP_CLOCK, 0, 0, &theirs_ns, sizeof theirs_ns));
            TRY(post_send(c, OP_CLOCK, 0, 0, &begin_ns, sizeof begin_ns));
            TRY(wait_round(c, OP_CLOCK, 0));
            int64_t end_ns = clock_now_ns();
            if (end_ns - begin_ns < best_trip_ns) {
                best_trip_ns = end_ns - begin_ns;
                *out_ns = begin_ns + (end_ns - begin_ns) / 2 - theirs_ns;
            }
        }
    }
    return STATUS_OK;
}
