// collective_few.c -- few values, and bytes: sums and blocks in log R rounds, broadcast, gather, clocks.
#include <stdlib.h>
#include <string.h>

#include "../../util/program.h"
#include "collective_parts.h"

enum { CLOCK_TRIPS = 8 };

// --- few values ------------------------------------------------------------------------------------------

// Index 0 gets num_bytes from each member i into temp + i * num_bytes; its own are copied there.
static Status gather_equal(Collective* c, CollectiveOp op, const void* data, size_t num_bytes) {
    TRY(collective_need_temp(c, (size_t)c->num_ranks * num_bytes));
    if (c->my_idx != 0) {
        TRY(collective_post_send(c, op, 0, 0, data, num_bytes));
        return collective_wait(c, op, 0);
    }
    memcpy(c->temp, data, num_bytes);
    for (int32_t i = 1; i < c->num_ranks; i++) {
        TRY(collective_post_receive(c, op, 0, i, c->temp + (size_t)i * num_bytes, num_bytes));
    }
    return collective_wait(c, op, 0);
}

// Pairs of neighbours become one where the group is no power of two: then 2^n members are left, `place` among
// them. -1: not this one.
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

// One message of a sum: away, in, or both at once.
static Status swap_values(Collective* c, CollectiveOp op, int32_t round, int32_t idx, const double* away,
                          double* in, size_t num_bytes) {
    if (in != NULL) { TRY(collective_post_receive(c, op, round, idx, in, num_bytes)); }
    if (away != NULL) { TRY(collective_post_send(c, op, round, idx, away, num_bytes)); }
    return collective_wait(c, op, round);
}

// What lies behind is added to what lies before, so that both of a pair get the same bits.
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
    if (place < 0) {  // the one before has my values, and gives me the sum
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
    unsigned char* all = blocks;
    const int32_t R = c->num_ranks, me = c->my_idx;
    if (R <= 1 || num_bytes == 0) { return STATUS_OK; }
    TRY(collective_need_temp(c, (size_t)R * num_bytes));
    memcpy(c->temp, all + (size_t)me * num_bytes, num_bytes);
    for (int32_t have = 1; have < R; have *= 2) {
        int32_t count = have <= R - have ? have : R - have;
        size_t moved_bytes = (size_t)count * num_bytes;
        TRY(collective_post_receive(c, COLLECTIVE_SHARE, have, (me + have) % R,
                                    c->temp + (size_t)have * num_bytes, moved_bytes));
        TRY(collective_post_send(c, COLLECTIVE_SHARE, have, (me - have + R) % R, c->temp, moved_bytes));
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
    uint64_t* all = malloc((size_t)c->num_ranks * sizeof *all);
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
            TRY(collective_post_receive(c, COLLECTIVE_BROADCAST, round + 1, prev,
                                        (unsigned char*)data + begin, count));
        }
        if (round < 0) { continue; }
        TRY(collective_wait(c, COLLECTIVE_BROADCAST, round));
        begin = (size_t)round * COLLECTIVE_CHUNK_BYTES;
        if (place < R - 1) {
            size_t count =
                num_bytes - begin < COLLECTIVE_CHUNK_BYTES ? num_bytes - begin : COLLECTIVE_CHUNK_BYTES;
            TRY(collective_post_send(c, COLLECTIVE_BROADCAST, round + 2, next, (unsigned char*)data + begin,
                                     count));
        }
    }
    return collective_wait(c, COLLECTIVE_BROADCAST, rounds + 2);
}

Status collective_gather_bytes(Collective* c, const void* data, size_t num_bytes, CollectiveBytes* out,
                               Arena* arena) {
    uint64_t length = num_bytes;
    TRY(gather_equal(c, COLLECTIVE_GATHER, &length, sizeof length));
    if (c->my_idx != 0) {
        if (num_bytes > 0) { TRY(collective_post_send(c, COLLECTIVE_GATHER, 0, 0, data, num_bytes)); }
        return collective_wait(c, COLLECTIVE_GATHER, 0);
    }
    const uint64_t* lengths = (const uint64_t*)(const void*)c->temp;
    for (int32_t i = 0; i < c->num_ranks; i++) {
        out[i].num_bytes = lengths[i];
        out[i].data = arena_alloc(arena, lengths[i]);
        if (out[i].data == NULL) {
            return FAIL(STATUS_NO_MEMORY, "gather: %zu bytes of rank %d", out[i].num_bytes, (int)c->ranks[i]);
        }
        if (i > 0 && lengths[i] > 0) {
            TRY(collective_post_receive(c, COLLECTIVE_GATHER, 0, i, out[i].data, out[i].num_bytes));
        }
    }
    memcpy(out[0].data, data, num_bytes);
    return collective_wait(c, COLLECTIVE_GATHER, 0);
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

Status collective_clock_offset(Collective* c, int64_t* out_ns, int64_t* error_ns) {
    int64_t theirs_ns = 0, best_trip_ns = INT64_MAX;
    *out_ns = 0;
    int32_t first = c->my_idx == 0 ? 1 : 0, last = c->my_idx == 0 ? c->num_ranks : 1;
    for (int32_t i = first; i < last; i++) {
        for (int trip = 0; trip < CLOCK_TRIPS; trip++) {
            int64_t begin_ns = clock_now_ns();
            if (c->my_idx == 0) {
                TRY(collective_post_receive(c, COLLECTIVE_CLOCK, 0, i, &theirs_ns, sizeof theirs_ns));
                TRY(collective_wait(c, COLLECTIVE_CLOCK, 0));
                int64_t mine_ns = clock_now_ns();
                TRY(collective_post_send(c, COLLECTIVE_CLOCK, 0, i, &mine_ns, sizeof mine_ns));
                TRY(collective_wait(c, COLLECTIVE_CLOCK, 0));
                continue;
            }
            TRY(collective_post_receive(c, COLLECTIVE_CLOCK, 0, 0, &theirs_ns, sizeof theirs_ns));
            TRY(collective_post_send(c, COLLECTIVE_CLOCK, 0, 0, &begin_ns, sizeof begin_ns));
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
