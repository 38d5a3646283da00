#include "piece_route.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const PieceTable* tables;
    int32_t num_ranks, num_stages, me;
    PieceRoute* out;
    Arena* arena;
} Routing;

static int64_t row_end(const PieceRow* row) {
    return row->begin + row->count;
}

// How far off a copy on rank `from` is for rank `to`: less is nearer, 0 its own.
static int64_t distance(const Routing* r, int32_t from, int32_t to) {
    bool same_replica = from / r->num_stages == to / r->num_stages;
    return labs((long)from - to) + (same_replica ? 0 : r->num_ranks);
}

// The best copy of value `at` for rank `to`, from = -1: there is none; and where, behind it, any piece of the
// array begins or ends: up to there the answer is the same.
static PieceTransfer best_copy(const Routing* r, const PieceRow* want, int64_t at, int32_t to) {
    PieceTransfer best = {.from = -1, .to = to, .begin = at};
    int64_t until = row_end(want);
    for (int32_t rank = 0; rank < r->num_ranks; rank++) {
        const PieceTable* table = &r->tables[rank];
        for (int32_t i = 0; i < table->num_have; i++) {
            const PieceRow* have = &table->have[i];
            if (have->key != want->key || have->bytes_per_value != want->bytes_per_value) { continue; }
            if (row_end(have) <= at) { continue; }
            int64_t edge = have->begin > at ? have->begin : row_end(have);
            until = edge < until ? edge : until;
            if (have->begin > at) { continue; }
            if (best.from >= 0 && distance(r, rank, to) >= distance(r, best.from, to)) { continue; }
            best.from = rank;
            best.have_idx = i;
        }
    }
    best.count = until - at;
    return best;
}

static Status add(Routing* r, const PieceTransfer* transfer) {
    PieceRoute* out = r->out;
    PieceTransfer* last = out->num_transfers > 0 ? &out->transfers[out->num_transfers - 1] : NULL;
    if (last != NULL && last->from == transfer->from && last->to == transfer->to &&
        last->have_idx == transfer->have_idx && last->want_idx == transfer->want_idx &&
        last->begin + last->count == transfer->begin) {
        last->count += transfer->count;
        return STATUS_OK;
    }
    if (out->num_transfers == out->max_transfers) {
        int32_t most = 2 * out->max_transfers + 64;
        PieceTransfer* grown = ARENA_NEW(r->arena, PieceTransfer, most);
        if (grown == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d transfers", most); }
        if (last != NULL) { memcpy(grown, out->transfers, sizeof *grown * (size_t)out->num_transfers); }
        out->transfers = grown;
        out->max_transfers = most;
    }
    out->transfers[out->num_transfers++] = *transfer;
    return STATUS_OK;
}

// What rank `to` wants with row `idx`, as far as this rank has to do with it. What others miss, they find.
static Status route_row(Routing* r, int32_t to, int32_t idx) {
    const PieceRow* want = &r->tables[to].want[idx];
    for (int64_t at = want->begin; at < row_end(want);) {
        PieceTransfer transfer = best_copy(r, want, at, to);
        transfer.want_idx = idx;
        at += transfer.count;
        if (transfer.from < 0 && to == r->me) {
            return FAIL(STATUS_MISMATCH,
                        "rank %d wants values %lld to %lld of array %016llx (%lld bytes each), which no rank "
                        "has ---> all ranks call dynapipe_move() with what they have, and the same keys",
                        to, (long long)transfer.begin, (long long)at - 1, (unsigned long long)want->key,
                        (long long)want->bytes_per_value);
        }
        if (transfer.from < 0 || (transfer.from != r->me && to != r->me)) { continue; }
        TRY(add(r, &transfer));
    }
    return STATUS_OK;
}

// Can this rank have to do with it? Spares a look at all ranks' pieces.
static bool concerns(const Routing* r, int32_t to, const PieceRow* want) {
    const PieceTable* mine = &r->tables[r->me];
    bool overlaps = to == r->me;
    for (int32_t i = 0; i < mine->num_have && !overlaps; i++) {
        const PieceRow* have = &mine->have[i];
        overlaps = have->key == want->key && have->begin < row_end(want) && want->begin < row_end(have);
    }
    return overlaps;
}

Status piece_route(PieceRoute* out, const PieceTable* tables, int32_t num_ranks, int32_t num_stages,
                   int32_t me, Arena* arena) {
    *out = (PieceRoute){.num_transfers = 0};
    Routing r = {.tables = tables,
                 .num_ranks = num_ranks,
                 .num_stages = num_stages,
                 .me = me,
                 .out = out,
                 .arena = arena};
    for (int32_t to = 0; to < num_ranks; to++) {
        for (int32_t i = 0; i < tables[to].num_want; i++) {
            if (concerns(&r, to, &tables[to].want[i])) { TRY(route_row(&r, to, i)); }
        }
    }
    return STATUS_OK;
}
