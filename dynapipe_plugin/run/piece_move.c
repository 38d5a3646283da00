#include "piece_move.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "transport.h"
#include "interface.h"
#include "piece_route.h"

// --- what everybody has and wants --------------------------------------------------------------------------

static void put_rows(PieceRow* out, const DynapipePiece_v1* pieces, int32_t num) {
    for (int32_t i = 0; i < num; i++) {
        out[i] =
            (PieceRow){pieces[i].key, pieces[i].begin, pieces[i].count, (int64_t)pieces[i].bytes_per_value};
    }
}

// As it travels: two numbers, the rows that a rank has, those it wants.
static Status tell(PieceTable* tables, Collective* world, const PieceLists* lists, Arena* arena) {
    size_t num_rows = (size_t)lists->num_have + (size_t)lists->num_want;
    size_t num_bytes = 2 * sizeof(int64_t) + num_rows * sizeof(PieceRow);
    int64_t* mine = arena_alloc(arena, num_bytes);
    unsigned char* all = NULL;
    if (mine == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %zu pieces", num_rows); }
    mine[0] = lists->num_have;
    mine[1] = lists->num_want;
    PieceRow* rows = (PieceRow*)(void*)(mine + 2);
    put_rows(rows, lists->have, lists->num_have);
    put_rows(rows + lists->num_have, lists->want, lists->num_want);
    TRY(collective_share_bytes(world, mine, num_bytes, &all, arena));
    for (int32_t r = 0; r < world->num_ranks; r++) {
        const int64_t* counts = (const int64_t*)(const void*)all;
        const PieceRow* have = (const PieceRow*)(const void*)(counts + 2);
        tables[r] = (PieceTable){have, have + counts[0], (int32_t)counts[0], (int32_t)counts[1]};
        all += 2 * sizeof(int64_t) + (size_t)(counts[0] + counts[1]) * sizeof(PieceRow);
    }
    return STATUS_OK;
}

// Before anything travels: a rank that cannot go on takes the others with it.
static Status agree(Collective* world, Status mine) {
    double failures = mine != STATUS_OK;
    char message[1024];
    snprintf(message, sizeof message, "%s", mine != STATUS_OK ? status_message() : "");
    TRY(collective_all_reduce_sum(world, &failures, 1));
    if (mine != STATUS_OK) { return FAIL(mine, "%s", message); }
    if (failures > 0) {
        return FAIL(STATUS_MISMATCH, "%.0f of the other ranks cannot move pieces", failures);
    }
    return STATUS_OK;
}

// --- lanes -------------------------------------------------------------------------------------------------

typedef struct {
    void* request;
    unsigned char *at, *stage;  // where it belongs; where it is on its way, the same or host memory
    size_t num_bytes;
} Part;

// What goes between this rank and another, one way, in the order of the route.
typedef struct {
    int32_t peer;
    bool is_receive;
    int32_t transfer;   // in hand; num_transfers: none left
    size_t done_bytes;  // of it, that parts were made of
    Part parts[PIECE_PARTS_AHEAD];
    int32_t first, num_parts;  // in flight: a ring
    unsigned char* room;       // [PIECE_PARTS_AHEAD * PIECE_PART_BYTES], NULL where none is needed
} Lane;

typedef struct {
    Collective* world;
    const PieceMemory* memory;
    const PieceLists* lists;
    PieceRoute route;
    Lane* lanes;  // [num_lanes]
    int32_t num_lanes;
    double moved_bytes;  // that came here
    bool is_under_way;   // parts may be in flight: their memory stays
} Mover;

static bool is_remote(const Mover* mover) {
    return mover->memory != NULL && mover->memory->read != NULL;
}

static const DynapipePiece_v1* piece_of(const Mover* mover, const PieceTransfer* t, bool is_wanted) {
    return is_wanted ? &mover->lists->want[t->want_idx] : &mover->lists->have[t->have_idx];
}

static unsigned char* place_of(const Mover* mover, const PieceTransfer* t, bool is_wanted) {
    const DynapipePiece_v1* piece = piece_of(mover, t, is_wanted);
    return (unsigned char*)piece->values + (t->begin - piece->begin) * piece->bytes_per_value;
}

static size_t transfer_bytes(const Mover* mover, const PieceTransfer* t) {
    bool is_wanted = t->to == mover->world->transport->rank;
    return (size_t)(t->count * piece_of(mover, t, is_wanted)->bytes_per_value);
}

static bool is_of_lane(const PieceTransfer* t, const Lane* lane, int32_t me) {
    return lane->is_receive ? t->to == me && t->from == lane->peer : t->from == me && t->to == lane->peer;
}

static void next_transfer(const Mover* mover, Lane* lane) {
    const PieceRoute* route = &mover->route;
    int32_t me = mover->world->transport->rank;
    do {
        lane->transfer++;
    } while (lane->transfer < route->num_transfers &&
             !is_of_lane(&route->transfers[lane->transfer], lane, me));
    lane->done_bytes = 0;
}

static Status open_lanes(Mover* mover, Arena* arena) {
    int32_t num_ranks = mover->world->num_ranks, me = mover->world->transport->rank;
    mover->lanes = ARENA_NEW(arena, Lane, 2 * num_ranks);
    if (mover->lanes == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d ranks", num_ranks); }
    for (int32_t i = 0; i < 2 * num_ranks; i++) {
        Lane lane = {.peer = i / 2, .is_receive = i % 2 == 0, .transfer = -1};
        if (lane.peer == me) { continue; }
        next_transfer(mover, &lane);
        if (lane.transfer == mover->route.num_transfers) { continue; }
        if (is_remote(mover)) {
            lane.room = arena_alloc_raw(arena, (size_t)PIECE_PARTS_AHEAD * PIECE_PART_BYTES);
            if (lane.room == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory to move pieces through"); }
        }
        mover->lanes[mover->num_lanes++] = lane;
    }
    return STATUS_OK;
}

static Status post_part(Mover* mover, Lane* lane) {
    const Transport* transport = mover->world->transport;
    const PieceTransfer* t = &mover->route.transfers[lane->transfer];
    int32_t slot = (lane->first + lane->num_parts) % PIECE_PARTS_AHEAD;
    size_t left = transfer_bytes(mover, t) - lane->done_bytes;
    Part part = {.at = place_of(mover, t, lane->is_receive) + lane->done_bytes,
                 .num_bytes = left < PIECE_PART_BYTES ? left : PIECE_PART_BYTES};
    part.stage = lane->room != NULL ? lane->room + (size_t)slot * PIECE_PART_BYTES : part.at;
    if (!lane->is_receive && lane->room != NULL) {
        TRY(mover->memory->read(mover->memory->ctx, part.stage, part.at, part.num_bytes));
    }
    const DynapipeTransport_v1* api = transport->api;
    TRY(lane->is_receive
            ? api->irecv(transport->ctx, lane->peer, TAG_PIECES, part.stage, part.num_bytes, &part.request)
            : api->isend(transport->ctx, lane->peer, TAG_PIECES, part.stage, part.num_bytes, &part.request));
    lane->parts[slot] = part;
    lane->num_parts++;
    lane->done_bytes += part.num_bytes;
    if (part.num_bytes == left) { next_transfer(mover, lane); }
    return STATUS_OK;
}

// Takes what has come, in order, and posts what there is room for.
static Status step_lane(Mover* mover, Lane* lane, bool* moved) {
    const Transport* transport = mover->world->transport;
    int done = 1;
    while (lane->num_parts > 0 && done) {
        Part* part = &lane->parts[lane->first];
        TRY(transport->api->test(transport->ctx, part->request, &done));
        if (!done) { break; }
        if (lane->is_receive && lane->room != NULL) {
            TRY(mover->memory->write(mover->memory->ctx, part->at, part->stage, part->num_bytes));
        }
        if (lane->is_receive) { mover->moved_bytes += (double)part->num_bytes; }
        lane->first = (lane->first + 1) % PIECE_PARTS_AHEAD;
        lane->num_parts--;
        *moved = true;
    }
    while (lane->num_parts < PIECE_PARTS_AHEAD && lane->transfer < mover->route.num_transfers) {
        TRY(post_part(mover, lane));
    }
    return STATUS_OK;
}

static Status run_lanes(Mover* mover) {
    const Collective* world = mover->world;
    Backoff backoff = {0};
    for (;;) {
        bool moved = false;
        const Lane* missing = NULL;
        for (int32_t i = 0; i < mover->num_lanes; i++) {
            Lane* lane = &mover->lanes[i];
            TRY(step_lane(mover, lane, &moved));
            if (lane->num_parts > 0) { missing = lane; }
        }
        if (missing == NULL) { return STATUS_OK; }
        if (moved) {
            backoff = (Backoff){0};
            continue;
        }
        if (backoff_gives_up(&backoff, world->timeout_ns)) {
            return FAIL(STATUS_COMM,
                        "moving pieces: rank %d waits for rank %s to %s, nothing moved for %.1f s ---> see "
                        "what rank %d does, or raise --comm-timeout",
                        world->transport->rank, TRANSPORT_RANK(world->transport, missing->peer),
                        missing->is_receive ? "send" : "take", (double)world->timeout_ns / 1e9,
                        missing->peer);
        }
        backoff_pause(&backoff);
    }
}

// --- all of it ---------------------------------------------------------------------------------------------

// What this rank has itself. The two places are different memory.
static Status copy_own(const Mover* mover, const PieceTransfer* t, Arena* arena) {
    unsigned char *to = place_of(mover, t, true), *from = place_of(mover, t, false);
    size_t num_bytes = transfer_bytes(mover, t);
    if (!is_remote(mover)) {
        memcpy(to, from, num_bytes);
        return STATUS_OK;
    }
    arena_reset(arena);
    unsigned char* room = arena_alloc_raw(arena, PIECE_PART_BYTES);
    if (room == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory to copy pieces through"); }
    for (size_t at = 0; at < num_bytes; at += PIECE_PART_BYTES) {
        size_t part_bytes = num_bytes - at < PIECE_PART_BYTES ? num_bytes - at : PIECE_PART_BYTES;
        TRY(mover->memory->read(mover->memory->ctx, room, from + at, part_bytes));
        TRY(mover->memory->write(mover->memory->ctx, to + at, room, part_bytes));
    }
    return STATUS_OK;
}

static Status copy_all_own(const Mover* mover) {
    int32_t me = mover->world->transport->rank;
    Arena arena = {0};
    Status status = STATUS_OK;
    for (int32_t i = 0; i < mover->route.num_transfers && status == STATUS_OK; i++) {
        const PieceTransfer* t = &mover->route.transfers[i];
        if (t->from == me && t->to == me) { status = copy_own(mover, t, &arena); }
    }
    arena_free(&arena);
    return status;
}

static Status check_lists(const PieceLists* lists) {
    for (int32_t i = 0; i < lists->num_have; i++) { TRY(interface_check_piece("have", i, &lists->have[i])); }
    for (int32_t i = 0; i < lists->num_want; i++) { TRY(interface_check_piece("want", i, &lists->want[i])); }
    return STATUS_OK;
}

static Status move_all(Mover* mover, int32_t num_stages, Arena* arena) {
    Collective* world = mover->world;
    PieceTable* tables = ARENA_NEW(arena, PieceTable, world->num_ranks);
    if (tables == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d ranks", world->num_ranks); }
    TRY(agree(world, check_lists(mover->lists)));
    TRY(tell(tables, world, mover->lists, arena));
    Status status =
        piece_route(&mover->route, tables, world->num_ranks, num_stages, world->transport->rank, arena);
    if (status == STATUS_OK) { status = open_lanes(mover, arena); }
    TRY(agree(world, status));
    TRY(copy_all_own(mover));
    mover->is_under_way = true;
    TRY(run_lanes(mover));
    mover->is_under_way = false;
    return collective_all_reduce_sum(world, &mover->moved_bytes, 1);
}

Status piece_move(Collective* world, int32_t num_stages, const PieceMemory* memory, const PieceLists* lists,
                  int64_t* moved_bytes) {
    Arena arena = {0};
    Mover mover = {.world = world, .memory = memory, .lists = lists};
    Status status = move_all(&mover, num_stages, &arena);
    if (!mover.is_under_way) { arena_free(&arena); }
    if (status == STATUS_OK && moved_bytes != NULL) { *moved_bytes = (int64_t)mover.moved_bytes; }
    return status;
}
