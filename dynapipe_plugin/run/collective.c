// collective.c -- rounds of small messages: post round k + 1, wait for round k, add while k + 1 is under way.
#include "collective.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "transport.h"
#include "../../util/numbers.h"
#include "../../util/program.h"

static const char* const op_text[] = {"all_reduce",    "reduce_scatter", "all_gather", "broadcast",
                                      "gather",        "clock_offset",   "barrier",    "share",
                                      "moving pieces", "measuring links"};

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
    out->ranks = (int32_t*)malloc((size_t)num_ranks * sizeof *ranks);
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

static Status collective_need_temp(Collective* c, size_t num_bytes) {
    if (num_bytes <= c->temp_bytes) { return STATUS_OK; }
    free(c->temp);
    c->temp = (unsigned char*)malloc(num_bytes);
    c->temp_bytes = c->temp == NULL ? 0 : num_bytes;
    if (c->temp == NULL) { return FAIL(STATUS_NO_MEMORY, "collective: %zu bytes", num_bytes); }
    return STATUS_OK;
}

// --- messages --------------------------------------------------------------------------------------------
static Status post(Collective* c, CollectiveOp op, int64_t round, bool is_receive, int32_t idx, void* data,
                   size_t num_bytes) {
    if (c->num_requests == c->max_requests) {
        int32_t max_requests = c->max_requests * 2 + 16;
        CollectiveRequest* grown =
            (CollectiveRequest*)realloc(c->requests, (size_t)max_requests * sizeof *grown);
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

Status collective_send(Collective* c, CollectiveOp op, int64_t round, int32_t idx, const void* data,
                       size_t num_bytes) {
    return post(c, op, round, false, idx, (void*)(uintptr_t)data, num_bytes);  // handed on as const
}

Status collective_receive(Collective* c, CollectiveOp op, int64_t round, int32_t idx, void* data,
                          size_t num_bytes) {
    return post(c, op, round, true, idx, data, num_bytes);
}

// Test every request once; completed ones leave the list. Sets *moved if there was one, and *missing to one
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
        if (done) {  // completed, also with an error
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
        TRY(collective_receive(c, COLLECTIVE_REDUCE_SCATTER, round, i, reduce_temp(c, a, round, i),
                               my_bytes));
    }
    for (int32_t d = 1; d < c->num_ranks; d++) {  // each rank begins with another peer
        int32_t i = (c->my_idx + d) % c->num_ranks;
        Span theirs = slice_part(c, a->num_values, i, round, a->chunk);
        size_t their_bytes = span_bytes(theirs, a->bytes_per_value);
        if (their_bytes == 0) { continue; }
        TRY(collective_send(c, COLLECTIVE_REDUCE_SCATTER, round, i,
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
        int64_t count = mine.end - begin < ADD_BLOCK_FLOATS ? mine.end - begin : (int64_t)ADD_BLOCK_FLOATS;
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
    Summed array = {.values = (unsigned char*)values,
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
            TRY(collective_receive(c, COLLECTIVE_ALL_GATHER, round, i,
                                   values + theirs.begin * bytes_per_value, their_bytes));
        }
        if (my_bytes > 0) {
            TRY(collective_send(c, COLLECTIVE_ALL_GATHER, round, i, values + mine.begin * bytes_per_value,
                                my_bytes));
        }
    }
    return STATUS_OK;
}

Status collective_all_gather(Collective* c, void* values, int64_t num_values, int32_t bytes_per_value) {
    if (c->num_ranks == 1 || num_values == 0) { return STATUS_OK; }
    int64_t chunk = COLLECTIVE_CHUNK_BYTES / bytes_per_value;
    int64_t rounds = num_rounds(c, num_values, chunk);
    TRY(post_all_gather(c, (unsigned char*)values, num_values, bytes_per_value, 0, chunk));
    for (int64_t round = 0; round < rounds; round++) {
        if (round + 1 < rounds) {
            TRY(post_all_gather(c, (unsigned char*)values, num_values, bytes_per_value, round + 1, chunk));
        }
        TRY(collective_wait(c, COLLECTIVE_ALL_GATHER, round));
    }
    return STATUS_OK;
}

Status collective_sum_copies(Collective* c, void* values, int64_t num_values, DynapipeType type) {
    TRY(collective_reduce_scatter_sum(c, values, num_values, type));
    return collective_all_gather(c, values, num_values, collective_type_bytes(type));
}

enum { CLOCK_TRIPS = 8 };

// --- few values ------------------------------------------------------------------------------------------

// Pairs of neighbours become one where the group is not a power of two: then 2^n members remain, `place`
// among them. -1: not this one.
typedef struct {
    int32_t num_places, num_pairs;
} Halving;

static Halving halving_of(int32_t num_ranks) {
    Halving halving = {.num_places = 1};
    while (halving.num_places <= num_ranks / 2) { halving.num_places *= 2; }
    halving.num_pairs = num_ranks - halving.num_places;
    return halving;
}

static int32_t place_of(Halving halving, int32_t idx) {
    if (idx >= 2 * halving.num_pairs) { return idx - halving.num_pairs; }
    return idx % 2 == 0 ? idx / 2 : -1;
}

static int32_t idx_at(Halving halving, int32_t place) {
    return place < halving.num_pairs ? 2 * place : place + halving.num_pairs;
}

// One message of a sum: out, in, or both at once.
static Status swap_values(Collective* c, CollectiveOp op, int32_t round, int32_t idx, const double* away,
                          double* in, size_t num_bytes) {
    if (in != NULL) { TRY(collective_receive(c, op, round, idx, in, num_bytes)); }
    if (away != NULL) { TRY(collective_send(c, op, round, idx, away, num_bytes)); }
    return collective_wait(c, op, round);
}

// The later value is added to the earlier, so that both of a pair get the same bits.
static void add_values(double* values, const double* other, int32_t num_values, bool other_is_before) {
    for (int32_t k = 0; k < num_values; k++) {
        values[k] = other_is_before ? other[k] + values[k] : values[k] + other[k];
    }
}

// Recursive doubling: after round d a member has the sum of the 2^(d + 1) members around it.
static Status sum_by_doubling(Collective* c, CollectiveOp op, double* values, int32_t num_values) {
    if (c->num_ranks <= 1 || num_values == 0) { return STATUS_OK; }
    const size_t num_bytes = (size_t)num_values * sizeof *values;
    const Halving halving = halving_of(c->num_ranks);
    const int32_t place = place_of(halving, c->my_idx);
    TRY(collective_need_temp(c, num_bytes));
    double* other = (double*)(void*)c->temp;
    if (place < 0) {  // the member before adds my values, and gives me the sum
        TRY(swap_values(c, op, 0, c->my_idx - 1, values, NULL, num_bytes));
        return swap_values(c, op, 1, c->my_idx - 1, NULL, values, num_bytes);
    }
    if (place < halving.num_pairs) {
        TRY(swap_values(c, op, 0, c->my_idx + 1, NULL, other, num_bytes));
        add_values(values, other, num_values, false);
    }
    for (int32_t d = 1; d < halving.num_places; d *= 2) {
        TRY(swap_values(c, op, d, idx_at(halving, place ^ d), values, other, num_bytes));
        add_values(values, other, num_values, (place & d) != 0);
    }
    if (place >= halving.num_pairs) { return STATUS_OK; }
    return swap_values(c, op, halving.num_places, c->my_idx + 1, values, NULL, num_bytes);
}

Status collective_all_reduce_sum(Collective* c, double* values, int32_t num_values) {
    return sum_by_doubling(c, COLLECTIVE_ALL_REDUCE, values, num_values);
}

Status collective_barrier(Collective* c) {
    double nothing = 0;
    return sum_by_doubling(c, COLLECTIVE_BARRIER, &nothing, 1);
}

// Bruck et al. 1997: with blocks counted from my own, what I have is doubled in every round.
Status collective_share(Collective* c, void* blocks, size_t num_bytes) {
    unsigned char* all = (unsigned char*)blocks;
    const int32_t R = c->num_ranks, me = c->my_idx;
    if (R <= 1 || num_bytes == 0) { return STATUS_OK; }
    TRY(collective_need_temp(c, (size_t)R * num_bytes));
    memcpy(c->temp, all + (size_t)me * num_bytes, num_bytes);
    for (int32_t have = 1; have < R; have *= 2) {
        int32_t count = have <= R - have ? have : R - have;
        size_t moved_bytes = (size_t)count * num_bytes;
        TRY(collective_receive(c, COLLECTIVE_SHARE, have, (me + have) % R, c->temp + (size_t)have * num_bytes,
                               moved_bytes));
        TRY(collective_send(c, COLLECTIVE_SHARE, have, (me - have + R) % R, c->temp, moved_bytes));
        TRY(collective_wait(c, COLLECTIVE_SHARE, have));
    }
    memcpy(all + (size_t)me * num_bytes, c->temp, (size_t)(R - me) * num_bytes);
    memcpy(all, c->temp + (size_t)(R - me) * num_bytes, (size_t)me * num_bytes);
    return STATUS_OK;
}

static Status fail_unequal(const Collective* c, const uint64_t* all, int32_t i, const char* what) {
    return FAIL(STATUS_MISMATCH,
                "%s: rank %d has %016llx, rank %d has %016llx ---> all ranks need the same program, data, "
                "cost file and options",
                what, (int)c->ranks[i], (unsigned long long)all[i], (int)c->ranks[0],
                (unsigned long long)all[0]);
}

Status collective_all_equal_u64(Collective* c, uint64_t value, const char* what) {
    uint64_t* all = (uint64_t*)malloc((size_t)c->num_ranks * sizeof *all);
    if (all == NULL) { return FAIL(STATUS_NO_MEMORY, "collective: %d values", (int)c->num_ranks); }
    all[c->my_idx] = value;
    Status status = collective_share(c, all, sizeof *all);
    for (int32_t i = 1; i < c->num_ranks && status == STATUS_OK; i++) {
        if (all[i] != all[0]) { status = fail_unequal(c, all, i, what); }
    }
    free(all);
    return status;
}

// --- bytes -----------------------------------------------------------------------------------------------

// A chain root -> root + 1 -> ...: part k is sent on while part k + 1 is received.
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
            size_t count = num_bytes - begin < COLLECTIVE_CHUNK_BYTES ? num_bytes - begin
                                                                      : (size_t)COLLECTIVE_CHUNK_BYTES;
            TRY(collective_receive(c, COLLECTIVE_BROADCAST, round + 1, prev, (unsigned char*)data + begin,
                                   count));
        }
        if (round < 0) { continue; }
        TRY(collective_wait(c, COLLECTIVE_BROADCAST, round));
        begin = (size_t)round * COLLECTIVE_CHUNK_BYTES;
        if (place < R - 1) {
            size_t count = num_bytes - begin < COLLECTIVE_CHUNK_BYTES ? num_bytes - begin
                                                                      : (size_t)COLLECTIVE_CHUNK_BYTES;
            TRY(collective_send(c, COLLECTIVE_BROADCAST, round + 2, next, (unsigned char*)data + begin,
                                count));
        }
    }
    return collective_wait(c, COLLECTIVE_BROADCAST, rounds + 2);
}

Status collective_gather_bytes(Collective* c, const void* data, size_t num_bytes, CollectiveBytes* out,
                               Arena* arena) {
    uint64_t* lengths;
    ARENA_TRY_NEW(lengths, arena, uint64_t, c->num_ranks);
    lengths[c->my_idx] = num_bytes;
    TRY(collective_share(c, lengths, sizeof *lengths));
    if (c->my_idx != 0) {
        if (num_bytes > 0) { TRY(collective_send(c, COLLECTIVE_GATHER, 0, 0, data, num_bytes)); }
        return collective_wait(c, COLLECTIVE_GATHER, 0);
    }
    for (int32_t i = 0; i < c->num_ranks; i++) {
        out[i].num_bytes = lengths[i];
        ARENA_TRY_NEW(out[i].data, arena, unsigned char, lengths[i]);
        if (i > 0 && lengths[i] > 0) {
            TRY(collective_receive(c, COLLECTIVE_GATHER, 0, i, out[i].data, out[i].num_bytes));
        }
    }
    memcpy(out[0].data, data, num_bytes);
    return collective_wait(c, COLLECTIVE_GATHER, 0);
}

// All in blocks of the longest one's length, which are then moved together.
Status collective_share_bytes(Collective* c, const void* data, size_t num_bytes, unsigned char** out,
                              Arena* arena) {
    uint64_t *lengths, longest = 0, total_bytes = 0;
    ARENA_TRY_NEW(lengths, arena, uint64_t, c->num_ranks);
    lengths[c->my_idx] = num_bytes;
    TRY(collective_share(c, lengths, sizeof *lengths));
    for (int32_t i = 0; i < c->num_ranks; i++) { longest = lengths[i] > longest ? lengths[i] : longest; }
    ARENA_TRY_NEW(*out, arena, unsigned char, longest*(uint64_t)c->num_ranks);
    memcpy(*out + longest * (uint64_t)c->my_idx, data, num_bytes);
    TRY(collective_share(c, *out, longest));
    for (int32_t i = 0; i < c->num_ranks; i++) {
        memmove(*out + total_bytes, *out + longest * (uint64_t)i, lengths[i]);
        total_bytes += lengths[i];
    }
    return STATUS_OK;
}

Status collective_clock_offset(Collective* c, int64_t* out_ns, int64_t* error_ns) {
    int64_t theirs_ns = 0, best_trip_ns = INT64_MAX;
    *out_ns = 0;
    int32_t first = c->my_idx == 0 ? 1 : 0, last = c->my_idx == 0 ? c->num_ranks : 1;
    for (int32_t i = first; i < last; i++) {
        for (int trip = 0; trip < CLOCK_TRIPS; trip++) {
            int64_t begin_ns = clock_now_ns();
            if (c->my_idx == 0) {
                TRY(collective_receive(c, COLLECTIVE_CLOCK, 0, i, &theirs_ns, sizeof theirs_ns));
                TRY(collective_wait(c, COLLECTIVE_CLOCK, 0));
                int64_t mine_ns = clock_now_ns();
                TRY(collective_send(c, COLLECTIVE_CLOCK, 0, i, &mine_ns, sizeof mine_ns));
                TRY(collective_wait(c, COLLECTIVE_CLOCK, 0));
                continue;
            }
            TRY(collective_receive(c, COLLECTIVE_CLOCK, 0, 0, &theirs_ns, sizeof theirs_ns));
            TRY(collective_send(c, COLLECTIVE_CLOCK, 0, 0, &begin_ns, sizeof begin_ns));
            TRY(collective_wait(c, COLLECTIVE_CLOCK, 0));
            int64_t end_ns = clock_now_ns();
            if (end_ns - begin_ns < best_trip_ns) {
                best_trip_ns = end_ns - begin_ns;
                *out_ns = begin_ns + (end_ns - begin_ns) / 2 - theirs_ns;
            }
        }
    }
    if (error_ns != NULL) { *error_ns = c->my_idx == 0 ? 0 : (best_trip_ns + 1) / 2; }
    return STATUS_OK;
}

// --- agreement before a step -------------------------------------------------------------------------------

void step_claim_add(uint64_t* sum, bool is_send, int32_t tag, int64_t num_bytes) {
    if (num_bytes == 0) { return; }
    const int64_t message[2] = {tag, num_bytes};
    uint64_t hash = hash_finish(hash_bytes(HASH_SEED, message, sizeof message));
    *sum += is_send ? hash : 0 - hash;
}

// What a rank sends: the hashes of its plan, then its sums with each stage of its replica.
enum { CLAIM_PLAN, CLAIM_REPLICA, CLAIM_SUMS };

static Status plans_agree(const Collective* world, int32_t num_stages, const uint64_t* all, int32_t step) {
    const Transport* t = world->transport;
    const int32_t row = CLAIM_SUMS + num_stages;
    for (int32_t r = 1; r < world->num_ranks; r++) {
        bool is_other = all[r * row + CLAIM_PLAN] != all[CLAIM_PLAN];
        int32_t other = is_other ? 0 : r / num_stages * num_stages;  // the first of the same replica
        int32_t hash = is_other ? CLAIM_PLAN : CLAIM_REPLICA;
        if (all[r * row + hash] == all[other * row + hash]) { continue; }
        return FAIL(
            STATUS_MISMATCH,
            "hash of the plan of step %d%s: rank %s has %016llx, rank %s has %016llx ---> all ranks need "
            "the same program, data, cost file and options",
            (int)step, is_other ? "" : ", what a replica's ranks know of it", TRANSPORT_RANK(t, r),
            (unsigned long long)all[r * row + hash], TRANSPORT_RANK(t, other),
            (unsigned long long)all[other * row + hash]);
    }
    return STATUS_OK;
}

static Status messages_agree(const Collective* world, int32_t num_stages, const uint64_t* all, int32_t step) {
    const Transport* t = world->transport;
    const int32_t row = CLAIM_SUMS + num_stages;
    for (int32_t r = 0; r < world->num_ranks; r++) {
        int32_t first = r / num_stages * num_stages;
        for (int32_t other = r; other < first + num_stages; other++) {
            uint64_t sum =
                all[r * row + CLAIM_SUMS + other - first] + all[other * row + CLAIM_SUMS + r - first];
            if (sum == 0) { continue; }
            return FAIL(
                STATUS_MISMATCH,
                "step %d: what rank %s sends is not what rank %s receives, or the other way round; nothing "
                "was sent ---> the model's boundary_bytes (and part_bytes, factor_bytes) must come from a "
                "batch's counts alone, alike on both sides: see what dynapipe_check_model() finds",
                (int)step, TRANSPORT_RANK(t, r), TRANSPORT_RANK(t, other));
        }
    }
    return STATUS_OK;
}

Status step_agree(Collective* world, int32_t num_stages, const StepClaim* mine, int32_t step) {
    const size_t row = CLAIM_SUMS + (size_t)num_stages;
    uint64_t* all = (uint64_t*)calloc((size_t)world->num_ranks * row, sizeof *all);
    if (all == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d ranks", (int)world->num_ranks); }
    uint64_t* own = all + (size_t)world->my_idx * row;
    own[CLAIM_PLAN] = mine->plan_hash;
    own[CLAIM_REPLICA] = mine->replica_hash;
    memcpy(own + CLAIM_SUMS, mine->with, (size_t)num_stages * sizeof *own);
    Status status = collective_share(world, all, row * sizeof *all);
    if (status == STATUS_OK) { status = plans_agree(world, num_stages, all, step); }
    if (status == STATUS_OK) { status = messages_agree(world, num_stages, all, step); }
    free(all);
    return status;
}
