#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "../plan/cost_model.h"
#include "../plan/planner.h"
#include "../plan/placement.h"
#include "../plan/types.h"
#include "session.h"
#include "transport.h"
#include "../../util/numbers.h"
#include "../../util/program.h"

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

// --- piece_move --------------------

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

// --- session_resplit --------------------

// Times of a rank, against those of the others, that are off by less than this since the split was searched:
// another search finds the same.
static const double LEAST_CHANGE = 0.05;
// What a move must win of a step; back to the split before, more: times that go to and fro are no reason to
// carry layers after them.
static const double LEAST_GAIN = 0.05, LEAST_GAIN_BACK = 0.10;
enum { REST_STEPS = 10 };             // between two moves
#define SEARCH_NS INT64_C(600000000)  // of planning
// Pages of arrays that are new, and the copy of what stays on its rank: 0.5 s of a core a GiB.
static const double COPY_NS_PER_BYTE = 0.5;

void session_resplit_free(SessionResplit* resplit) {
    arena_free(&resplit->arena);
    free(resplit->times_then);
    free(resplit->position);
    free(resplit->record);
}

static bool is_present(const Dynapipe* dp, const Placement* placement) {
    return placement_equal(placement, &dp->request.placement, dp->num_stages);
}

// --- is there something to look at? ------------------------------------------------------------------------

static MbShape shape_of_batches(const Dynapipe* dp) {
    MbShape shape = {0};
    for (int32_t b = 0; b < dp->resplit.num_batches; b++) {
        const StageBatch* batch = &dp->resplit.batches[b];
        for (int32_t i = 0; i < batch->num_samples; i++) {
            const PlanSample* sample = &batch->samples[i];
            mb_shape_add(&shape, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
        }
    }
    return shape;
}

static void add_jobs(int64_t job_ns[JOB_COUNT], const CostJobs* jobs) {
    for (int32_t kind = JOB_F; kind <= JOB_W; kind++) { job_ns[kind] += jobs->job_ns[kind]; }
}

// What the jobs of every rank take of the samples of all batches, in one micro-batch, in its chunks and its
// share of the head: to be compared with itself.
static void rank_times(double* out, const Dynapipe* dp, const CostModel* costs, const Machine* machine) {
    const Placement* placement = &dp->request.placement;
    int64_t job_ns[PLAN_MAX_STAGES][JOB_COUNT] = {{0}};
    MbShape shape = shape_of_batches(dp);
    CostTable table;
    CostParts parts;
    CostJobs jobs;
    cost_table_init(&table, costs);
    cost_parts(&parts, &table, RECOMPUTE_NONE, &shape);
    for (int32_t k = 0; k < placement->num_chunks; k++) {
        CostStage chunk = cost_chunk_make(costs, placement, k);
        cost_jobs_of_stage(&jobs, costs, &chunk, &parts);
        add_jobs(job_ns[placement->stage_of[k]], &jobs);
    }
    for (int32_t s = 0; s < dp->num_stages && placement->head != HEAD_WHOLE; s++) {
        cost_jobs_of_share(&jobs, costs, cost_share_of(placement, s), &parts);
        add_jobs(job_ns[s], &jobs);
    }
    for (int32_t r = 0; r < dp->num_stages * dp->num_replicas; r++) {
        MachineRank about = machine_rank(machine, r);
        out[r] = 0;
        for (int32_t kind = JOB_F; kind <= JOB_W; kind++) {
            out[r] += (double)machine_job_ns(&about, (JobKind)kind, job_ns[r % dp->num_stages][kind]);
        }
    }
}

static Status keep_times(Dynapipe* dp, const CostModel* costs, const Machine* machine) {
    SessionResplit* resplit = &dp->resplit;
    int32_t num_ranks = dp->num_stages * dp->num_replicas;
    if (resplit->times_then == NULL) {
        resplit->times_then = calloc((size_t)num_ranks, sizeof *resplit->times_then);
    }
    if (resplit->times_then == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d ranks", num_ranks); }
    rank_times(resplit->times_then, dp, costs, machine);
    return STATUS_OK;
}

bool session_resplit_differs(const double* then, const double* now, int32_t num_ranks) {
    double least = INFINITY, most = 0;
    for (int32_t r = 0; r < num_ranks; r++) {
        double ratio = then[r] > 0 ? now[r] / then[r] : 1;
        least = ratio < least ? ratio : least;
        most = ratio > most ? ratio : most;
    }
    return most > least * (1 + LEAST_CHANGE);
}

static Status has_changed(bool* out, const Dynapipe* dp, const CostModel* costs, const Machine* machine) {
    int32_t num_ranks = dp->num_stages * dp->num_replicas;
    double* now = malloc((size_t)num_ranks * sizeof *now);
    if (now == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d ranks", num_ranks); }
    rank_times(now, dp, costs, machine);
    *out = session_resplit_differs(dp->resplit.times_then, now, num_ranks);
    free(now);
    return STATUS_OK;
}

// --- does it pay? ------------------------------------------------------------------------------------------

// While layers move, a rank holds what it had and what it gets.
static bool both_fit(const Dynapipe* dp, const CostModel* costs, const Machine* machine,
                     const Placement* placement) {
    CostRank before[PLAN_MAX_STAGES], behind[PLAN_MAX_STAGES];
    bool fits = true;
    cost_ranks_make(before, costs, &dp->request.placement, dp->num_stages);
    cost_ranks_make(behind, costs, placement, dp->num_stages);
    for (int32_t r = 0; r < dp->num_stages * dp->num_replicas; r++) {
        int32_t s = r % dp->num_stages;
        int64_t own_bytes = machine_rank(machine, r).memory_limit_bytes;
        int64_t limit_bytes = own_bytes > 0 ? own_bytes : dp->options.memory_limit_bytes;
        fits &= limit_bytes == 0 ||
                cost_rank_state_bytes(costs, &before[s]) + cost_rank_state_bytes(costs, &behind[s]) <=
                    limit_bytes;
    }
    return fits;
}

// Where each layer is.
static void stages_of_layers(int16_t out[COST_MAX_LAYERS], const Placement* placement) {
    for (int32_t k = 0; k < placement->num_chunks; k++) {
        const LayerRange* layers = &placement->chunks[k];
        for (int32_t l = layers->layer_begin; l < layers->layer_end; l++) { out[l] = placement->stage_of[k]; }
    }
}

// Units of the head that stage s has in `now` and had not before.
static int32_t gained_units(const Placement* before, const Placement* now, int32_t s) {
    if (now->head == HEAD_WHOLE || before->head != now->head) { return 0; }
    int32_t begin = now->head_begin[s], end = now->head_begin[s + 1];
    int32_t kept_begin = before->head_begin[s] > begin ? before->head_begin[s] : begin;
    int32_t kept_end = before->head_begin[s + 1] < end ? before->head_begin[s + 1] : end;
    return end - begin - (kept_end > kept_begin ? kept_end - kept_begin : 0);
}

// The most that a stage gets of what it has not.
static int64_t most_gained_bytes(const CostModel* costs, const Placement* before, const Placement* now,
                                 int32_t P) {
    static const int32_t units = HEAD_UNITS;
    int16_t was[COST_MAX_LAYERS] = {0}, is[COST_MAX_LAYERS] = {0};
    int64_t gained_bytes[PLAN_MAX_STAGES] = {0}, most_bytes = 0;
    stages_of_layers(was, before);
    stages_of_layers(is, now);
    for (int32_t l = 0; l < costs->num_enc_layers + costs->num_dec_layers; l++) {
        CostPart part = l < costs->num_enc_layers ? PART_ENC_LAYER : PART_DEC_LAYER;
        if (was[l] != is[l]) { gained_bytes[is[l]] += costs->part_state_bytes[part]; }
    }
    for (int32_t s = 0; s < P; s++) {
        gained_bytes[s] += costs->head_state_bytes / units * gained_units(before, now, s);
        most_bytes = gained_bytes[s] > most_bytes ? gained_bytes[s] : most_bytes;
    }
    return most_bytes;
}

// What the rank that gets most gets, at the pace of a link; what the largest rank copies; and the steps that
// are planned anew while nobody computes.
static int64_t move_ns(const Dynapipe* dp, const CostModel* costs, const StageChoice* choice) {
    int64_t state_bytes = 0;
    CostRank has[PLAN_MAX_STAGES];
    cost_ranks_make(has, costs, &choice->placement, dp->num_stages);
    for (int32_t s = 0; s < dp->num_stages; s++) {
        int64_t all_bytes = cost_rank_state_bytes(costs, &has[s]);
        state_bytes = all_bytes > state_bytes ? all_bytes : state_bytes;
    }
    int64_t moved_bytes =
        most_gained_bytes(costs, &dp->request.placement, &choice->placement, dp->num_stages);
    int64_t planning_ns = session_planning_ns(choice->makespan_ns, dp->plan_threads, dp->num_replicas);
    return cost_transfer_ns(costs, moved_bytes) + (int64_t)(COPY_NS_PER_BYTE * (double)state_bytes) +
           planning_ns * (dp->options.plan_ahead + 1);
}

bool session_resplit_pays(const ResplitOffer* offer) {
    double least_gain = offer->is_back ? LEAST_GAIN_BACK : LEAST_GAIN;
    int64_t gain_ns = offer->present_ns - offer->then_ns;
    return (double)gain_ns > least_gain * (double)offer->present_ns && offer->steps_left > 0 &&
           gain_ns > offer->move_ns / offer->steps_left;
}

// From the present split to that of `choice`, which makes a step of an average batch so much shorter.
static bool pays(const Dynapipe* dp, const CostModel* costs, const StageChoice* choice, int64_t present_ns) {
    const SessionResplit* resplit = &dp->resplit;
    bool is_back =
        resplit->has_moved && placement_equal(&choice->placement, &resplit->before, dp->num_stages);
    ResplitOffer offer = {.present_ns = present_ns,
                          .then_ns = choice->makespan_ns,
                          .move_ns = move_ns(dp, costs, choice),
                          .steps_left = dp->num_steps - dp->next_step,
                          .is_back = is_back};
    return session_resplit_pays(&offer);
}

static void say_move(const Dynapipe* dp, const Placement* placement, const char* why) {
    char from[PLACEMENT_CHARS], to[PLACEMENT_CHARS];
    if (dp->transport.rank != 0) { return; }
    placement_print(from, &dp->request.placement, dp->num_stages);
    placement_print(to, placement, dp->num_stages);
    int column = printf("layers move behind step %d: stages %s become %s", dp->next_step, from, to);
    printf(column + strlen(why) > 97 ? "\n  (%s)\n" : " (%s)\n", why);
    fflush(stdout);
}

// A step that is planned with other costs than those of the search plans as long as a step of that length.
static int32_t effort_for(const Dynapipe* dp, int64_t makespan_ns) {
    if (dp->options.effort != 0 || makespan_ns == 0) { return dp->request.effort; }
    int64_t planning_ns = session_planning_ns(makespan_ns, dp->plan_threads, dp->num_replicas);
    return plan_effort(&dp->request, planning_ns);
}

// What the corrected costs ask for; `placement` as it is: nothing.
static Status search(Dynapipe* dp, const CostModel* costs, const Machine* machine, Placement* placement) {
    SessionResplit* resplit = &dp->resplit;
    StageChoice choice;
    int64_t present_ns, begin_ns = clock_now_ns();
    PlanRequest request = dp->request;
    request.machine = machine;
    request.choose_stages = true;
    request.placements = PLACEMENT_GIVEN;
    request.heads = HEAD_CHOICE_GIVEN;
    TRY(keep_times(dp, costs, machine));
    resplit->has_searched = true;
    TRY(stage_search_again(&choice, &present_ns, &request, costs, resplit->batches, resplit->num_batches,
                           SEARCH_NS));
    double search_s = (double)(clock_now_ns() - begin_ns) / 1e9;
    bool moves = present_ns > 0 && !is_present(dp, &choice.placement) &&
                 pays(dp, costs, &choice, present_ns) && both_fit(dp, costs, machine, &choice.placement);
    if (!moves) { return STATUS_OK; }
    char why[160];
    snprintf(why, sizeof why, "a step of about %s in place of %s; %d splits looked at in %.1f s",
             TIME_TEXT(choice.makespan_ns, 3), TIME_TEXT(present_ns, 3), choice.num_splits, search_s);
    say_move(dp, &choice.placement, why);
    *placement = choice.placement;
    resplit->effort_then = effort_for(dp, choice.makespan_ns);
    return STATUS_OK;
}

bool session_resplit_may_look(const Dynapipe* dp) {
    const SessionResplit* resplit = &dp->resplit;
    bool rests = resplit->has_moved && dp->next_step < resplit->moved_step + REST_STEPS;
    bool is_fixed = resplit->kind != RESPLIT_AUTO || session_placed_by_list(dp) || dp->num_stages == 1;
    return !rests && !is_fixed && dp->next_step < dp->num_steps;
}

static Status look(Dynapipe* dp, Placement* placement) {
    SessionResplit* resplit = &dp->resplit;
    const CostModel* costs;
    const Machine* machine;
    if (session_refit_now(dp, &costs, &machine)) { resplit->is_due = true; }
    if (!resplit->is_due || !session_resplit_may_look(dp)) { return STATUS_OK; }
    resplit->is_due = false;
    bool changed = false;
    TRY(has_changed(&changed, dp, costs, machine));
    return changed ? search(dp, costs, machine, placement) : STATUS_OK;
}

// The placement from here on; *moves false: the present one.
static Status decide(Dynapipe* dp, Placement* placement, bool* moves) {
    SessionResplit* resplit = &dp->resplit;
    bool is_told;
    *placement = dp->request.placement;
    TRY(session_resplit_told(dp, placement, &is_told));
    bool is_restored = resplit->has_restored && !is_told;
    if (is_restored) { *placement = resplit->restored; }
    resplit->has_restored = false;
    resplit->effort_then = dp->request.effort;
    // Behind a checkpoint's step it was decided before that was saved.
    bool is_resumed = dp->now == NULL;
    if (!is_told && !is_restored && !is_resumed) { TRY(look(dp, placement)); }
    *moves = !is_present(dp, placement);
    if (*moves && (is_told || is_restored)) {
        say_move(dp, placement, is_told ? "as told" : "as the checkpoint has it");
    }
    if (*moves && !is_restored) {
        resplit->before = dp->request.placement;
        resplit->has_moved = true;
        resplit->moved_step = dp->next_step;
    }
    return STATUS_OK;
}

// --- moving ------------------------------------------------------------------------------------------------

// Steps that are planned go; their samples are drawn again.
static Status unplan(Dynapipe* dp) {
    SessionResplit* resplit = &dp->resplit;
    if (dp->now == NULL) {  // no step yet, or moved just now
        session_plan_stop(dp);
        return STATUS_OK;
    }
    void* position = malloc(dp->now->batch.position_bytes);
    if (position == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for the position in the data"); }
    memcpy(position, dp->now->batch.position, dp->now->batch.position_bytes);
    free(resplit->position);
    resplit->position = position;
    resplit->position_bytes = dp->now->batch.position_bytes;
    session_plan_stop(dp);
    return loader_restore(dp->train, resplit->position, resplit->position_bytes);
}

// What ranks take of their layers from now on; a run that goes on has it from where the whole one looked.
static Status renew_times(Dynapipe* dp) {
    SessionResplit* resplit = &dp->resplit;
    const CostModel* costs;
    const Machine* machine;
    if (resplit->has_restored_times) { return STATUS_OK; }
    (void)session_refit_now(dp, &costs, &machine);
    return keep_times(dp, costs, machine);
}

static Status apply(Dynapipe* dp, const Placement* placement) {
    char what[64], text[PLACEMENT_CHARS];
    placement_print(text, placement, dp->num_stages);
    uint64_t hash = hash_finish(hash_bytes(HASH_SEED, text, strlen(text)));
    snprintf(what, sizeof what, "hash of the stages behind step %d", dp->next_step);
    TRY(collective_all_equal_u64(&dp->world, hash, what));
    TRY(unplan(dp));
    if (dp->resplit.moved_step == dp->next_step) { session_refit_hasten(&dp->refit, dp->next_step); }
    session_model_detach(dp);
    dp->request.effort = dp->resplit.effort_then;  // nobody plans
    dp->request.placement = *placement;
    dp->resplit.is_moving = true;
    dp->resplit.moved_bytes = 0;
    return renew_times(dp);
}

static Status resplit(Dynapipe* dp, DynapipeRange* out, int32_t max_ranges, int32_t* num_ranges) {
    Placement placement;
    bool moves;
    dp->resplit.is_asked = true;
    dp->resplit.asked_ns = clock_now_ns();
    TRY(session_need_model(dp));
    if (max_ranges < 1) { return FAIL(STATUS_OUT_OF_RANGE, "no room for this rank's range of blocks"); }
    TRY(decide(dp, &placement, &moves));
    if (moves) { TRY(apply(dp, &placement)); }
    dp->resplit.has_restored_times = false;
    if (!moves) { return STATUS_OK; }
    TRY(session_ranges(dp, out, max_ranges, num_ranges));
    return STATUS_OK;
}

int dynapipe_resplit(Dynapipe* dp, DynapipeRange* out, int32_t max_ranges, int32_t* num_ranges) {
    *num_ranges = 0;
    return (int)resplit(dp, out, max_ranges, num_ranges);
}

static Status read_device(void* ctx, void* to, const void* from, size_t num_bytes) {
    return session_device_read(ctx, to, from, num_bytes);
}

static Status write_device(void* ctx, void* to, const void* from, size_t num_bytes) {
    return session_device_write(ctx, to, from, num_bytes);
}

int dynapipe_move(Dynapipe* dp, const DynapipePiece_v1* have, int32_t num_have, const DynapipePiece_v1* want,
                  int32_t num_want) {
    const PieceMemory device = {.read = read_device, .write = write_device, .ctx = dp};
    const PieceLists lists = {have, want, num_have, num_want};
    int64_t moved_bytes = 0;
    Status status =
        piece_move(&dp->world, dp->num_stages, dp->device.api != NULL ? &device : NULL, &lists, &moved_bytes);
    dp->resplit.moved_bytes += moved_bytes;
    dp->resplit.moved_ns = clock_now_ns();
    return (int)status;
}

// --- around it ---------------------------------------------------------------------------------------------

Status session_resplit_begin(Dynapipe* dp) {
    Placement placement;
    bool found;
    TRY(session_resplit_told(dp, &placement, &found));
    return keep_times(dp, &dp->costs, dp->request.machine);
}

Status session_resplit_check(Dynapipe* dp) {
    SessionResplit* resplit = &dp->resplit;
    if (resplit->kind == RESPLIT_TOLD && !resplit->is_asked && dp->next_step > dp->first_step) {
        return FAIL(STATUS_BAD_OPTION,
                    "--resplit %.60s: this program cannot move layers (it never calls dynapipe_resplit()) "
                    "---> leave it out, or --resplit off",
                    resplit->told);
    }
    if (resplit->is_moving && dp->transport.rank == 0) {
        printf("moved %s between ranks in %s\n", BYTES_TEXT(resplit->moved_bytes),
               TIME_TEXT(resplit->moved_ns - resplit->asked_ns, 3));
        fflush(stdout);
    }
    resplit->is_moving = false;
    return STATUS_OK;
}
