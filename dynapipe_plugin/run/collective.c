// collective.c -- rounds of small messages: post round k + 1, wait for round k, add while k + 1 is under way.
#include "collective.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "transport.h"
#include "../../util/numbers.h"
#include "../../util/program.h"

static const char* const op_text[] = {"all_reduce", "reduce_scatter", "all_gather",
                                      "broadcast",  "clock_offset",   "barrier",
                                      "share",      "moving pieces",  "measuring links"};

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
    *out = (Collective){.transport = transport, .timeout_ns = timeout_ns, .num_ranks = num_ranks};
    while (ranks[out->my_idx] != transport->rank) { out->my_idx++; }
    out->ranks = (int32_t*)malloc((size_t)num_ranks * sizeof *ranks);
    if (out->ranks == NULL) { return FAIL(STATUS_NO_MEMORY, "collective: group of %d", (int)num_ranks); }
    memcpy(out->ranks, ranks, (size_t)num_ranks * sizeof *ranks);
    return STATUS_OK;
}

void collective_free(Collective* c) {
    free(c->ranks);
    free(c->requests);
    free(c->temp);
    free(c->each);
    *c = (Collective){0};
}

static Status need(unsigned char** memory, size_t* has_bytes, size_t num_bytes) {
    if (num_bytes <= *has_bytes) { return STATUS_OK; }
    free(*memory);
    *memory = (unsigned char*)malloc(num_bytes);
    *has_bytes = *memory == NULL ? 0 : num_bytes;
    return *memory != NULL ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "collective: %zu bytes", num_bytes);
}

static Status collective_need_temp(Collective* c, size_t num_bytes) {
    return need(&c->temp, &c->temp_bytes, num_bytes);
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
        if (!backoff_next(&backoff, moved, c->timeout_ns)) {
            return FAIL(
                STATUS_COMM,
                "%s: rank %d waits for rank %s to %s %zu bytes, nothing moved for %.1f s ---> see what "
                "rank %d does, or raise --comm-timeout",
                op_text[op], (int)c->transport->rank, TRANSPORT_RANK(c->transport, c->ranks[missing->idx]),
                missing->is_receive ? "send" : "take", missing->num_bytes, (double)c->timeout_ns / 1e9,
                (int)c->ranks[missing->idx]);
        }
    }
}

// --- many values -----------------------------------------------------------------------------------------

// An array that is summed or gathered, slice by slice.
typedef struct {
    unsigned char* values;
    int64_t num_values, chunk;  // chunk: values of a message
    int32_t value_bytes;
    DynapipeType type;  // of a sum
} Array;

typedef struct {
    int64_t begin, num;  // values
} Span;

// Part `round` of the slice of group index idx.
static Span part_of(const Collective* c, const Array* a, int32_t idx, int64_t round) {
    int64_t end = collective_slice(a->num_values, c->num_ranks, idx + 1);
    int64_t begin = collective_slice(a->num_values, c->num_ranks, idx) + round * a->chunk;
    if (begin > end) { begin = end; }
    return (Span){begin, end - begin < a->chunk ? end - begin : a->chunk};
}

// Where the values of group index idx arrive, in this round: two halves of temp take turns.
static unsigned char* arrival_of(const Collective* c, const Array* a, int64_t round, int32_t idx) {
    int64_t row = round % 2 * (c->num_ranks - 1) + (idx < c->my_idx ? idx : idx - 1);
    return c->temp + row * a->chunk * a->value_bytes;
}

// Everybody's part of my slice comes, or mine goes to all. Each rank begins with another peer.
static Status post_round(Collective* c, CollectiveOp op, const Array* a, int64_t round) {
    const Span mine = part_of(c, a, c->my_idx, round);
    for (int32_t d = 1; d < c->num_ranks; d++) {
        int32_t i = (c->my_idx + d) % c->num_ranks;
        const Span theirs = part_of(c, a, i, round);
        const bool gathers = op == COLLECTIVE_ALL_GATHER;
        const Span in = gathers ? theirs : mine, out = gathers ? mine : theirs;
        unsigned char* to = gathers ? a->values + in.begin * a->value_bytes : arrival_of(c, a, round, i);
        if (in.num > 0) { TRY(collective_receive(c, op, round, i, to, (size_t)(in.num * a->value_bytes))); }
        if (out.num > 0) {
            TRY(collective_send(c, op, round, i, a->values + out.begin * a->value_bytes,
                                (size_t)(out.num * a->value_bytes)));
        }
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

static void add_in_order(const Collective* c, const Array* a, int64_t round) {
    float sum[ADD_BLOCK_FLOATS], room[ADD_BLOCK_FLOATS];
    const Span mine = part_of(c, a, c->my_idx, round);
    for (int64_t at = 0; at < mine.num; at += ADD_BLOCK_FLOATS) {
        int64_t count = mine.num - at < ADD_BLOCK_FLOATS ? mine.num - at : (int64_t)ADD_BLOCK_FLOATS;
        unsigned char* my_values = a->values + (mine.begin + at) * a->value_bytes;
        for (int32_t i = 0; i < c->num_ranks; i++) {
            const unsigned char* from =
                i == c->my_idx ? my_values : arrival_of(c, a, round, i) + at * a->value_bytes;
            const float* floats = as_floats(room, from, count, a->type);
            if (i == 0) { memcpy(sum, floats, (size_t)count * sizeof *sum); }
            for (int64_t k = 0; k < count && i > 0; k++) { sum[k] += floats[k]; }
        }
        store_floats(my_values, sum, count, a->type);
    }
}

static Status run_rounds(Collective* c, CollectiveOp op, const Array* a) {
    int64_t longest = (a->num_values + c->num_ranks - 1) / c->num_ranks;
    int64_t num_rounds = (longest + a->chunk - 1) / a->chunk;
    TRY(post_round(c, op, a, 0));
    for (int64_t round = 0; round < num_rounds; round++) {
        if (round + 1 < num_rounds) { TRY(post_round(c, op, a, round + 1)); }
        TRY(collective_wait(c, op, round));
        if (op == COLLECTIVE_REDUCE_SCATTER) { add_in_order(c, a, round); }
    }
    return STATUS_OK;
}

Status collective_reduce_scatter_sum(Collective* c, void* values, int64_t num_values, DynapipeType type) {
    const int32_t R = c->num_ranks, value_bytes = collective_type_bytes(type);
    if (R == 1 || num_values == 0) { return STATUS_OK; }
    int64_t chunk_bytes = COLLECTIVE_TEMP_BYTES / (2 * (R - 1)), longest = (num_values + R - 1) / R;
    if (chunk_bytes > COLLECTIVE_CHUNK_BYTES) { chunk_bytes = COLLECTIVE_CHUNK_BYTES; }
    if (chunk_bytes < MIN_CHUNK_BYTES) { chunk_bytes = MIN_CHUNK_BYTES; }
    Array array = {(unsigned char*)values, num_values, chunk_bytes / value_bytes, value_bytes, type};
    if (array.chunk > longest) { array.chunk = longest; }
    TRY(collective_need_temp(c, (size_t)(2 * (R - 1) * array.chunk * value_bytes)));
    return run_rounds(c, COLLECTIVE_REDUCE_SCATTER, &array);
}

Status collective_all_gather(Collective* c, void* values, int64_t num_values, int32_t bytes_per_value) {
    Array array = {(unsigned char*)values, num_values, COLLECTIVE_CHUNK_BYTES / bytes_per_value,
                   bytes_per_value, DYNAPIPE_FLOAT32};
    if (c->num_ranks == 1 || num_values == 0) { return STATUS_OK; }
    return run_rounds(c, COLLECTIVE_ALL_GATHER, &array);
}

Status collective_sum_copies(Collective* c, void* values, int64_t num_values, DynapipeType type) {
    TRY(collective_reduce_scatter_sum(c, values, num_values, type));
    return collective_all_gather(c, values, num_values, collective_type_bytes(type));
}

// --- few values ------------------------------------------------------------------------------------------
// A binomial tree: counted from the root, member i has parent i - d and children i + d / 2, i + d / 4, ...,
// where d is the lowest bit of i.

// Down the tree. `d`: mine; of the root, a power of two from which all can be reached.
static Status spread(Collective* c, CollectiveOp op, void* data, size_t num_bytes, int32_t root, int32_t d) {
    const int32_t R = c->num_ranks, place = (c->my_idx - root + R) % R;
    if (place > 0) {
        TRY(collective_receive(c, op, 0, (c->my_idx - d + R) % R, data, num_bytes));
        TRY(collective_wait(c, op, 0));
    }
    for (d /= 2; d > 0; d /= 2) {
        if (place + d < R) { TRY(collective_send(c, op, 1, (c->my_idx + d) % R, data, num_bytes)); }
    }
    return collective_wait(c, op, 1);
}

static Status sum_by_tree(Collective* c, CollectiveOp op, double* values, int32_t num_values) {
    const size_t num_bytes = (size_t)num_values * sizeof *values;
    int32_t d = 1;
    if (c->num_ranks <= 1 || num_values == 0) { return STATUS_OK; }
    TRY(collective_need_temp(c, num_bytes));
    const double* other = (const double*)(const void*)c->temp;
    for (; d < c->num_ranks && (c->my_idx & d) == 0; d *= 2) {
        if (c->my_idx + d >= c->num_ranks) { continue; }
        TRY(collective_receive(c, op, 0, c->my_idx + d, c->temp, num_bytes));
        TRY(collective_wait(c, op, 0));
        for (int32_t k = 0; k < num_values; k++) { values[k] += other[k]; }
    }
    if (c->my_idx > 0) {
        TRY(collective_send(c, op, 0, c->my_idx - d, values, num_bytes));
        TRY(collective_wait(c, op, 0));
    }
    return spread(c, op, values, num_bytes, 0, d);
}

Status collective_all_reduce_sum(Collective* c, double* values, int32_t num_values) {
    return sum_by_tree(c, COLLECTIVE_ALL_REDUCE, values, num_values);
}

Status collective_barrier(Collective* c) {
    double nothing = 0;
    return sum_by_tree(c, COLLECTIVE_BARRIER, &nothing, 1);
}

Status collective_broadcast(Collective* c, void* data, size_t num_bytes, int32_t root_idx) {
    const int32_t R = c->num_ranks, place = (c->my_idx - root_idx + R) % R;
    int32_t d = 1;
    while (d < R && (place & d) == 0) { d *= 2; }
    return num_bytes > 0 ? spread(c, COLLECTIVE_BROADCAST, data, num_bytes, root_idx, d) : STATUS_OK;
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

Status collective_each(Collective* c, const void* mine, size_t num_bytes, const void** all) {
    TRY(need(&c->each, &c->each_bytes, (size_t)c->num_ranks * num_bytes));
    memcpy(c->each + (size_t)c->my_idx * num_bytes, mine, num_bytes);
    *all = c->each;
    return collective_share(c, c->each, num_bytes);
}

Status collective_all_equal_u64(Collective* c, uint64_t value, const char* what) {
    const void* shared;
    TRY(collective_each(c, &value, sizeof value, &shared));
    const uint64_t* all = (const uint64_t*)shared;
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

// --- bytes -----------------------------------------------------------------------------------------------

// All in blocks of the longest one's length, which are then moved together.
Status collective_share_bytes(Collective* c, const void* data, size_t num_bytes, unsigned char** out,
                              Arena* arena) {
    uint64_t mine_bytes = num_bytes, longest = 0, total_bytes = 0;
    const void* shared;
    TRY(collective_each(c, &mine_bytes, sizeof mine_bytes, &shared));
    const uint64_t* lengths = (const uint64_t*)shared;
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

Status collective_clock_offset(Collective* c, int64_t* out_ns) {
    enum { TRIPS = 8 };
    const bool is_root = c->my_idx == 0;
    int64_t theirs_ns = 0, best_trip_ns = INT64_MAX;
    *out_ns = 0;
    for (int32_t i = is_root ? 1 : 0; i < (is_root ? c->num_ranks : 1); i++) {
        for (int trip = 0; trip < TRIPS; trip++) {
            int64_t begin_ns = clock_now_ns();
            TRY(collective_receive(c, COLLECTIVE_CLOCK, 0, i, &theirs_ns, sizeof theirs_ns));
            if (is_root) {
                TRY(collective_wait(c, COLLECTIVE_CLOCK, 0));
                begin_ns = clock_now_ns();
            }
            TRY(collective_send(c, COLLECTIVE_CLOCK, 0, i, &begin_ns, sizeof begin_ns));
            TRY(collective_wait(c, COLLECTIVE_CLOCK, 0));
            int64_t trip_ns = clock_now_ns() - begin_ns;
            if (is_root || trip_ns >= best_trip_ns) { continue; }
            best_trip_ns = trip_ns;
            *out_ns = begin_ns + trip_ns / 2 - theirs_ns;
        }
    }
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

// Of rank r: are its hashes those of rank 0 and of the first of its replica, its messages what others expect?
static Status rank_agrees(const Collective* world, int32_t num_stages, const uint64_t* all, int32_t r,
                          int32_t step) {
    const Transport* t = world->transport;
    const int32_t row = CLAIM_SUMS + num_stages, first = r / num_stages * num_stages;
    for (int32_t hash = CLAIM_PLAN; hash <= CLAIM_REPLICA; hash++) {
        int32_t other = hash == CLAIM_PLAN ? 0 : first;
        if (all[r * row + hash] == all[other * row + hash]) { continue; }
        return FAIL(
            STATUS_MISMATCH,
            "hash of the plan of step %d%s: rank %s has %016llx, rank %s has %016llx ---> all ranks need "
            "the same program, data, cost file and options",
            (int)step, hash == CLAIM_PLAN ? "" : ", what a replica's ranks know of it", TRANSPORT_RANK(t, r),
            (unsigned long long)all[r * row + hash], TRANSPORT_RANK(t, other),
            (unsigned long long)all[other * row + hash]);
    }
    for (int32_t other = first; other < first + num_stages; other++) {
        if (all[r * row + CLAIM_SUMS + other - first] + all[other * row + CLAIM_SUMS + r - first] == 0) {
            continue;
        }
        return FAIL(
            STATUS_MISMATCH,
            "step %d: what rank %s sends is not what rank %s receives, or the other way round; nothing "
            "was sent ---> the model's boundary_bytes (and part_bytes, factor_bytes) must come from a "
            "batch's counts alone, alike on both sides: see what dynapipe_check_model() finds",
            (int)step, TRANSPORT_RANK(t, r), TRANSPORT_RANK(t, other));
    }
    return STATUS_OK;
}

Status step_agree(Collective* world, int32_t num_stages, const StepClaim* mine, int32_t step) {
    uint64_t own[CLAIM_SUMS + PLAN_MAX_STAGES] = {mine->plan_hash, mine->replica_hash};
    const void* all;
    memcpy(own + CLAIM_SUMS, mine->with, (size_t)num_stages * sizeof *own);
    TRY(collective_each(world, own, (CLAIM_SUMS + (size_t)num_stages) * sizeof *own, &all));
    for (int32_t r = 0; r < world->num_ranks; r++) {
        TRY(rank_agrees(world, num_stages, (const uint64_t*)all, r, step));
    }
    return STATUS_OK;
}
