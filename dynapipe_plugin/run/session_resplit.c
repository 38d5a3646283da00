// session_resplit.c -- layers that move between ranks during a run, and how their values travel.
#include <ctype.h>
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
// --- who sends which values to whom --------------------------------------------------------------------

typedef struct {
    const PieceTable* tables;
    int32_t num_ranks, num_stages, me;
    PieceRoute* out;
    Arena* arena;
} Routing;

static int64_t row_end(const PieceRow* row) {
    return row->begin + row->count;
}

// Distance of a copy on rank `from` for rank `to`: less is nearer, 0 its own.
static int64_t distance(const Routing* r, int32_t from, int32_t to) {
    bool same_replica = from / r->num_stages == to / r->num_stages;
    return labs((long)from - to) + (same_replica ? 0 : r->num_ranks);
}

// The best copy of value `at` for rank `to`, from = -1: there is none; and the next boundary of any piece of
// the array after it: up to there the answer is the same.
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

// The transfers of row `idx` wanted by rank `to`, as far as they concern this rank. Missing values are found
// by the rank that wants them.
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

// Can the piece concern this rank? Saves a search through all ranks' pieces.
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

// --- pieces of all ranks -----------------------------------------------------------------------------------

static void put_rows(PieceRow* out, const DynapipePiece_v1* pieces, int32_t num) {
    for (int32_t i = 0; i < num; i++) {
        out[i] =
            (PieceRow){pieces[i].key, pieces[i].begin, pieces[i].count, (int64_t)pieces[i].bytes_per_value};
    }
}

// Format of a message: two numbers, the rows that a rank has, those it wants.
static Status tell(PieceTable* tables, Collective* world, const PieceLists* lists, Arena* arena) {
    size_t num_rows = (size_t)lists->num_have + (size_t)lists->num_want;
    size_t num_bytes = 2 * sizeof(int64_t) + num_rows * sizeof(PieceRow);
    int64_t* mine = (int64_t*)arena_alloc(arena, num_bytes);
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

// Before anything travels: a rank that cannot continue ends the others too.
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

// A part of a transfer, under way: its place, and its place during the transfer, the same or host memory.
typedef struct {
    unsigned char *at, *stage;
    size_t num_bytes;
    bool is_receive;
} Part;

// Transfers run in the order of the route, which is the same on all ranks: of the unfinished ones, the first
// has both its ends posted.
typedef struct {
    Collective* world;
    Device device;
    const PieceLists* lists;
    PieceRoute route;
    Part parts[PIECE_PARTS_AHEAD];  // a ring
    int64_t num_posted, num_done;
    unsigned char* room;  // [PIECE_PARTS_AHEAD * PIECE_PART_BYTES] on a device; else NULL
    double moved_bytes;   // received
    bool is_under_way;    // parts may be in flight: their memory is kept
} Mover;

static const DynapipePiece_v1* piece_of(const Mover* mover, const PieceTransfer* t, bool is_wanted) {
    return is_wanted ? &mover->lists->want[t->want_idx] : &mover->lists->have[t->have_idx];
}

static unsigned char* place_of(const Mover* mover, const PieceTransfer* t, bool is_wanted) {
    const DynapipePiece_v1* piece = piece_of(mover, t, is_wanted);
    return (unsigned char*)piece->values + (t->begin - piece->begin) * piece->bytes_per_value;
}

static size_t transfer_bytes(const Mover* mover, const PieceTransfer* t) {
    bool is_wanted = t->to == mover->world->my_idx;
    return (size_t)(t->count * piece_of(mover, t, is_wanted)->bytes_per_value);
}

// Completes the oldest part.
static Status end_part(Mover* mover) {
    const Part* part = &mover->parts[mover->num_done % PIECE_PARTS_AHEAD];
    TRY(collective_wait(mover->world, COLLECTIVE_PIECES, mover->num_done++));
    if (!part->is_receive) { return STATUS_OK; }
    mover->moved_bytes += (double)part->num_bytes;
    return mover->room == NULL ? STATUS_OK
                               : session_copy(mover->device, part->at, part->stage, part->num_bytes);
}

static Status post_part(Mover* mover, const PieceTransfer* t, size_t at_byte, size_t num_bytes) {
    bool is_receive = t->to == mover->world->my_idx;
    int64_t round = mover->num_posted;
    size_t slot = (size_t)(round % PIECE_PARTS_AHEAD);
    Part* part = &mover->parts[slot];
    if (round - mover->num_done == PIECE_PARTS_AHEAD) { TRY(end_part(mover)); }
    *part = (Part){
        .at = place_of(mover, t, is_receive) + at_byte, .num_bytes = num_bytes, .is_receive = is_receive};
    part->stage = mover->room != NULL ? mover->room + slot * PIECE_PART_BYTES : part->at;
    mover->num_posted++;
    if (is_receive) {
        return collective_receive(mover->world, COLLECTIVE_PIECES, round, t->from, part->stage, num_bytes);
    }
    if (mover->room != NULL) { TRY(session_copy(mover->device, part->stage, part->at, num_bytes)); }
    return collective_send(mover->world, COLLECTIVE_PIECES, round, t->to, part->stage, num_bytes);
}

static Status run_transfers(Mover* mover) {
    for (int32_t i = 0; i < mover->route.num_transfers; i++) {
        const PieceTransfer* t = &mover->route.transfers[i];
        size_t num_bytes = t->from != t->to ? transfer_bytes(mover, t) : 0;
        for (size_t at = 0; at < num_bytes; at += PIECE_PART_BYTES) {
            size_t left = num_bytes - at;
            TRY(post_part(mover, t, at, left < PIECE_PART_BYTES ? left : (size_t)PIECE_PART_BYTES));
        }
    }
    while (mover->num_done < mover->num_posted) { TRY(end_part(mover)); }
    return STATUS_OK;
}

// --- all of it ---------------------------------------------------------------------------------------------

// Values that this rank has itself. Source and target are different memory.
static Status copy_own(const Mover* mover, const PieceTransfer* t) {
    unsigned char *to = place_of(mover, t, true), *from = place_of(mover, t, false);
    size_t num_bytes = transfer_bytes(mover, t);
    return session_copy(mover->device, to, from, num_bytes);
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
    if (status == STATUS_OK && mover->device.api != NULL) {
        mover->room = (unsigned char*)arena_alloc_raw(arena, (size_t)PIECE_PARTS_AHEAD * PIECE_PART_BYTES);
        if (mover->room == NULL) { status = FAIL(STATUS_NO_MEMORY, "no memory to move pieces through"); }
    }
    TRY(agree(world, status));
    for (int32_t i = 0; i < mover->route.num_transfers; i++) {
        const PieceTransfer* t = &mover->route.transfers[i];
        if (t->from == t->to) { TRY(copy_own(mover, t)); }
    }
    mover->is_under_way = true;
    TRY(run_transfers(mover));
    mover->is_under_way = false;
    return collective_all_reduce_sum(world, &mover->moved_bytes, 1);
}

Status piece_move(Collective* world, int32_t num_stages, Device device, const PieceLists* lists,
                  int64_t* moved_bytes) {
    Arena arena = {0};
    Mover mover = {.world = world, .device = device, .lists = lists};
    Status status = move_all(&mover, num_stages, &arena);
    if (!mover.is_under_way) { arena_free(&arena); }
    if (status == STATUS_OK && moved_bytes != NULL) { *moved_bytes = (int64_t)mover.moved_bytes; }
    return status;
}

// --- placements given by --resplit ---------------------------------------------------------------------

// One "STEP:PLACEMENT", up to a '/' or the end; *next is what comes after it, NULL: nothing.
typedef struct {
    int32_t step;
    char placement[PLACEMENT_CHARS];
} Told;

static bool next_told(Told* out, const char** next) {
    char* end = NULL;
    long step = isdigit((unsigned char)**next) ? strtol(*next, &end, 10) : -1;
    if (step < 0 || step > INT32_MAX || *end != ':') { return false; }
    const char* text = end + 1;
    size_t num_chars = strcspn(text, "/");
    if (num_chars == 0 || num_chars >= sizeof out->placement) { return false; }
    out->step = (int32_t)step;
    memcpy(out->placement, text, num_chars);
    out->placement[num_chars] = '\0';
    *next = text[num_chars] == '/' ? text + num_chars + 1 : NULL;
    return true;
}

static const char* first_told(const SessionResplit* resplit) {
    return resplit->kind == RESPLIT_TOLD ? resplit->told : NULL;
}

Status session_resplit_parse(SessionResplit* out, const char* text) {
    *out = (SessionResplit){.kind = RESPLIT_TOLD, .told = text};
    if (strcmp(text, "auto") == 0 || strcmp(text, "off") == 0) {
        out->kind = strcmp(text, "off") == 0 ? RESPLIT_OFF : RESPLIT_AUTO;
        return STATUS_OK;
    }
    Told told;
    int32_t last_step = -1;
    for (const char* next = text; next != NULL; last_step = told.step) {
        if (next_told(&told, &next) && told.step > last_step) { continue; }
        return FAIL(STATUS_BAD_OPTION,
                    "--resplit %.60s ---> auto, off, or STEP:L,L,.. (layers of each chunk after that step), "
                    "STEP:STAGE:L,STAGE:L,..[+HEAD], more of these after /",
                    text);
    }
    return STATUS_OK;
}

// "L,L,..": layers of each chunk of *out, these where they are; else any placement. After '+' the head.
static Status parse_placement(const Dynapipe* dp, Placement* out, Told* told) {
    const CostModel* costs = &dp->costs;
    const bool head_has_layer = dp->request.rules.head_has_layer;
    int32_t num_layers = costs->num_enc_layers + costs->num_dec_layers, num_numbers = 1;
    char *text = told->placement, *head = strchr(text, '+'), present[PLACEMENT_CHARS];
    if (head != NULL) { *head++ = '\0'; }
    bool is_layers = isdigit((unsigned char)text[0]) && strchr(text, ':') == NULL;
    for (const char* at = text; *at != '\0'; at++) { num_numbers += *at == ','; }
    if (is_layers && num_numbers != out->num_chunks) {
        placement_print(present, out, dp->num_stages);
        return FAIL(
            STATUS_BAD_OPTION,
            "--resplit %d:%.60s: layers of %d chunks, there are %d then (%.160s) ---> a number for each of "
            "these, or stage:layers, such as %d:0:L,1:L,.. for one on each stage",
            told->step, text, num_numbers, out->num_chunks, present, told->step);
    }
    Status status = is_layers
                        ? stage_split_parse(out->chunks, out->num_chunks, num_layers, head_has_layer, text)
                        : placement_parse(out, dp->num_stages, costs->num_enc_layers, costs->num_dec_layers,
                                          head_has_layer, text);
    if (status == STATUS_OK && head != NULL) { status = placement_parse_head(out, dp->num_stages, head); }
    if (status == STATUS_OK || status == STATUS_NO_MEMORY) { return status; }
    return FAIL(STATUS_BAD_OPTION,
                "--resplit ..:%.60s%s%.60s: no split of %d layers onto %d %s ---> as --stage-split, or as "
                "--placement and, after +, --head",
                text, head != NULL ? "+" : "", head != NULL ? head : "", num_layers,
                is_layers ? out->num_chunks : dp->num_stages, is_layers ? "chunks" : "stages");
}

// Later steps are parsed too: each from the one before.
Status session_resplit_told(const Dynapipe* dp, Placement* out, bool* found) {
    Told told;
    *found = false;
    Placement placement = dp->resplit.has_restored ? dp->resplit.restored : dp->request.placement;
    const char* next = first_told(&dp->resplit);
    while (next != NULL && next_told(&told, &next)) {
        if (told.step < dp->next_step) { continue; }  // done
        TRY(parse_placement(dp, &placement, &told));
        if (told.step != dp->next_step) { continue; }
        *out = placement;
        *found = true;
    }
    return STATUS_OK;
}

// --- checkpoint ------------------------------------------------------------------------------------------
// Placements, and the other decision that depends on measured times: whether messages are pulled.

static const char RESPLIT_MAGIC[8] = {'D', 'P', 'S', 'P', 'L', 'I', 'T', '3'};

enum { MOST_RANKS = PLAN_MAX_STAGES * PLAN_MAX_REPLICAS, MOST_EFFORT = 1000000000 };  // as --debug effort=N

// Read from its end: num_values int32 (the placement now, then the one before the last move), times_then of
// all ranks, then this.
typedef struct {
    int32_t moved_step, effort, num_stages, num_layers, num_ranks, num_values;
    uint8_t has_moved, has_searched, is_due, pulls;
    int32_t unused;
    uint64_t hash;  // of all before it
    char magic[8];
} Record;

_Static_assert(sizeof(Record) == 48, "no padding in it");

enum { MOST_VALUES = 2 * (2 + 2 * PLAN_MAX_CHUNKS + PLAN_MAX_STAGES + 1) };

static size_t values_bytes(const Record* record) {
    return (size_t)record->num_values * sizeof(int32_t);
}

static size_t times_bytes(const Record* record) {
    return (size_t)record->num_ranks * sizeof(double);
}

static uint64_t record_hash(const void* data, size_t data_bytes, const Record* record) {
    uint64_t hash = hash_bytes(HASH_SEED, data, data_bytes);
    return hash_finish(hash_bytes(hash, record, offsetof(Record, hash)));
}

// Chunks and head: where each chunk ends, its stage, where each share begins. Returns the number of values.
static int32_t put_placement(int32_t* out, const Placement* placement, int32_t P) {
    int32_t num = 0;
    out[num++] = placement->num_chunks;
    out[num++] = placement->head;
    for (int32_t k = 0; k < placement->num_chunks; k++) {
        out[num++] = placement->chunks[k].layer_end;
        out[num++] = placement->stage_of[k];
    }
    for (int32_t s = 0; s <= P; s++) {
        out[num++] = placement->head != HEAD_WHOLE ? placement->head_begin[s] : 0;
    }
    return num;
}

// Values [*at, num) of a record; false: invalid for such a model.
static bool take_placement(Placement* out, const int32_t* values, int32_t num, int32_t* at, int32_t P,
                           int32_t num_layers) {
    *out = (Placement){0};
    if (num - *at < 2) { return false; }
    int32_t K = values[*at], head = values[*at + 1];
    bool good =
        K >= 1 && K <= PLAN_MAX_CHUNKS && head >= 0 && head < HEAD_COUNT && num - *at >= 2 + 2 * K + P + 1;
    if (!good) { return false; }
    const int32_t *chunk = values + *at + 2, *begin = chunk + 2 * (int64_t)K;
    for (int32_t k = 0; k < K; k++) {
        out->chunks[k] = (LayerRange){k > 0 ? chunk[2 * k - 2] : 0, chunk[2 * k]};
        good = good && chunk[2 * k + 1] >= 0 && chunk[2 * k + 1] < P;
        out->stage_of[k] = (int16_t)chunk[2 * k + 1];
    }
    for (int32_t s = 0; s <= P; s++) {
        good = good && begin[s] >= 0 && begin[s] <= HEAD_UNITS;
        out->head_begin[s] = (int16_t)begin[s];
    }
    out->num_chunks = K;
    out->head = (uint8_t)head;
    *at += 2 + 2 * K + P + 1;
    return good && placement_check(out, P, num_layers, false) == STATUS_OK;
}

// Whether messages are pulled was measured in this run.
static bool has_choice(const Dynapipe* dp) {
    return dp->num_stages > 1 && dp->progress.reason != NULL;
}

Status session_resplit_position(Dynapipe* dp, const void** position, size_t* num_bytes) {
    SessionResplit* resplit = &dp->resplit;
    const int32_t P = dp->num_stages;
    bool may_move = resplit->kind == RESPLIT_AUTO && (resplit->has_searched || resplit->is_due);
    bool has_costs = P > 1 && dp->costs.num_enc_layers > 0;  // they chose the placement
    if (!resplit->has_moved && !may_move && !has_choice(dp) && !has_costs) { return STATUS_OK; }
    int32_t values[MOST_VALUES];
    Record record = {.moved_step = resplit->moved_step,
                     .effort = dp->request.effort,
                     .num_stages = P,
                     .num_layers = dp->costs.num_enc_layers + dp->costs.num_dec_layers,
                     .num_ranks = resplit->times_then != NULL ? P * dp->num_replicas : 0,
                     .has_moved = resplit->has_moved,
                     .has_searched = resplit->has_searched,
                     .is_due = resplit->is_due,
                     .pulls = dp->machine.pulls};
    memcpy(record.magic, RESPLIT_MAGIC, sizeof RESPLIT_MAGIC);
    const Placement* before = resplit->has_moved ? &resplit->before : &dp->request.placement;
    record.num_values = put_placement(values, &dp->request.placement, P);
    record.num_values += put_placement(values + record.num_values, before, P);
    size_t body_bytes = values_bytes(&record) + times_bytes(&record);
    char* body = (char*)malloc(body_bytes + sizeof record);
    if (body == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for the position in the data"); }
    memcpy(body, values, values_bytes(&record));
    if (record.num_ranks > 0) {
        memcpy(body + values_bytes(&record), resplit->times_then, times_bytes(&record));
    }
    record.hash = record_hash(body, body_bytes, &record);
    memcpy(body + body_bytes, &record, sizeof record);
    Status status =
        session_position_append(&resplit->record, position, num_bytes, body, body_bytes + sizeof record);
    free(body);
    return status;
}

// The record at the end, if there is a complete one; *body is what comes before it.
static bool find_record(Record* out, const char** body, const char* bytes, size_t num_bytes) {
    if (num_bytes < sizeof *out) { return false; }
    size_t left_bytes = num_bytes - sizeof *out;
    memcpy(out, bytes + left_bytes, sizeof *out);
    bool is_sane = memcmp(out->magic, RESPLIT_MAGIC, sizeof RESPLIT_MAGIC) == 0 && out->num_stages >= 1 &&
                   out->num_stages <= PLAN_MAX_STAGES && out->num_ranks >= 0 &&
                   out->num_ranks <= MOST_RANKS && out->num_values >= 0 && out->num_values <= MOST_VALUES;
    size_t body_bytes = is_sane ? values_bytes(out) + times_bytes(out) : 0;
    if (!is_sane || left_bytes < body_bytes) { return false; }
    *body = bytes + left_bytes - body_bytes;
    return out->hash == record_hash(*body, body_bytes, out);
}

// Unless the options ask for something else; a step of --resplit that is done does not count.
static bool is_taken(const Dynapipe* dp, const Placement* saved) {
    Told told;
    const char* next = first_told(&dp->resplit);
    if (dp->resplit.kind == RESPLIT_OFF && !dp->resplit.has_saved_costs) { return false; }
    bool has_told = next != NULL && next_told(&told, &next) && told.step <= dp->first_step;
    return has_told || session_placed_fits(dp, saved);
}

static void print_left(const Dynapipe* dp, const Placement* saved) {
    char now[PLACEMENT_CHARS], before[PLACEMENT_CHARS];
    const Placement* placement = &dp->request.placement;
    if (dp->transport.rank != 0 || placement_equal(saved, placement, dp->num_stages)) { return; }
    placement_print(now, placement, dp->num_stages);
    placement_print(before, saved, dp->num_stages);
    printf("layers are placed by this run's options: %s\n"
           "        (the checkpoint was saved with %s)\n",
           now, before);
    fflush(stdout);
}

// On the same number of ranks; otherwise times are those that the cost file predicts.
static void take_times(SessionResplit* resplit, const Record* record, const char* times, int32_t num_ranks) {
    if (record->num_ranks != num_ranks) { return; }
    if (resplit->times_then == NULL) { resplit->times_then = (double*)malloc(times_bytes(record)); }
    if (resplit->times_then == NULL) { return; }
    memcpy(resplit->times_then, times, times_bytes(record));
    resplit->has_restored_times = true;
    resplit->has_searched = record->has_searched != 0;
    resplit->is_due = record->is_due != 0;
}

// Measured again, the answer might differ: the run resumes with that of the checkpoint, unless an option sets
// it.
static bool take_pulls(Dynapipe* dp, const Record* record) {
    bool pulls = record->pulls != 0;
    bool is_other = has_choice(dp) && record->num_stages == dp->num_stages &&
                    dp->options.progress == PROGRESS_AUTO && pulls != dp->machine.pulls;
    if (!is_other) { return false; }
    dp->machine.pulls = pulls;
    if (dp->transport.rank == 0) {
        printf("messages: the checkpoint's plans assume that they %s (--debug progress=on|off decides)\n",
               progress_words(pulls));
        fflush(stdout);
    }
    return true;
}

// Of another number of stages or model, or other than requested: removed and ignored.
void session_resplit_restore(Dynapipe* dp, const void* position, size_t* num_bytes) {
    SessionResplit* resplit = &dp->resplit;
    const int32_t P = dp->num_stages, num_layers = dp->costs.num_enc_layers + dp->costs.num_dec_layers;
    Record record;
    const char* body;
    Placement now, before;
    int32_t values[MOST_VALUES], at = 0;
    resplit->has_restored = resplit->has_restored_times = resplit->has_moved = false;
    resplit->has_searched = resplit->is_due = false;
    free(resplit->position);  // of the run as it was
    resplit->position = NULL;
    resplit->position_bytes = 0;
    if (!find_record(&record, &body, (const char*)position, *num_bytes)) { return; }
    *num_bytes = (size_t)(body - (const char*)position);
    memcpy(values, body, values_bytes(&record));
    // then so may be the split that was chosen here, and its effort
    bool is_other = take_pulls(dp, &record) || resplit->has_saved_costs;
    bool is_of_model = record.num_stages == P && record.num_layers == num_layers && record.moved_step >= 0 &&
                       record.effort >= 0 && record.effort <= MOST_EFFORT;
    if (!is_of_model || !take_placement(&now, values, record.num_values, &at, P, num_layers)) { return; }
    if (!is_taken(dp, &now)) {
        print_left(dp, &now);
        return;
    }
    bool has_moved =
        record.has_moved != 0 && take_placement(&before, values, record.num_values, &at, P, num_layers);
    if (!has_moved && !is_other && !placement_equal(&now, &dp->request.placement, P)) { return; }
    take_times(resplit, &record, body + values_bytes(&record), P * dp->num_replicas);
    if (!has_moved && !is_other) { return; }
    resplit->restored = now;
    resplit->before = has_moved ? before : now;
    resplit->has_restored = true;
    resplit->has_moved = has_moved;
    resplit->moved_step = record.moved_step;
    if (dp->options.effort == 0) { dp->request.effort = record.effort; }
}

// --- is a search worthwhile? -------------------------------------------------------------------------------

// Times of a rank, relative to the others, that changed by less than this since the last search: another
// search would find the same.
static const double LEAST_CHANGE = 0.05;
// What a move must save of a step; back to the placement before, more, so that layers do not follow times
// that alternate.
static const double LEAST_GAIN = 0.05, LEAST_GAIN_BACK = 0.10;
enum { REST_STEPS = 10 };             // between two moves
#define SEARCH_NS INT64_C(600000000)  // of planning
// New pages of arrays, and the copy of what stays on its rank: 0.5 s of a core a GiB.
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

static void add_jobs(int64_t job_ns[JOB_COUNT], const CostJobs* jobs) {
    for (int32_t kind = JOB_F; kind <= JOB_W; kind++) { job_ns[kind] += jobs->job_ns[kind]; }
}

// Time of the jobs of every rank for the samples of all batches, in one micro-batch, in its chunks and its
// share of the head: only compared with itself.
static void rank_times(double* out, const Dynapipe* dp, const CostModel* costs, const Machine* machine) {
    const SessionResplit* resplit = &dp->resplit;
    const Placement* placement = &dp->request.placement;
    int64_t job_ns[PLAN_MAX_STAGES][JOB_COUNT] = {{0}};
    MbShape shape = {0};
    CostTable table;
    CostParts parts;
    CostJobs jobs;
    for (int32_t b = 0; b < resplit->num_batches; b++) {
        for (int32_t i = 0; i < resplit->batches[b].num_samples; i++) {
            const PlanSample* sample = &resplit->batches[b].samples[i];
            mb_shape_add(&shape, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
        }
    }
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
        resplit->times_then = (double*)calloc((size_t)num_ranks, sizeof *resplit->times_then);
    }
    if (resplit->times_then == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d ranks", num_ranks); }
    rank_times(resplit->times_then, dp, costs, machine);
    return STATUS_OK;
}

bool session_resplit_differs(const double* then, const double* now, int32_t num_ranks) {
    double least = INFINITY, most = 0;
    for (int32_t r = 0; r < num_ranks; r++) {
        double ratio = then[r] > 0 ? now[r] / then[r] : 1;
        least = fmin(least, ratio);
        most = fmax(most, ratio);
    }
    return most > least * (1 + LEAST_CHANGE);
}

static Status has_changed(bool* out, const Dynapipe* dp, const CostModel* costs, const Machine* machine) {
    int32_t num_ranks = dp->num_stages * dp->num_replicas;
    double* now = (double*)malloc((size_t)num_ranks * sizeof *now);
    if (now == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d ranks", num_ranks); }
    rank_times(now, dp, costs, machine);
    *out = session_resplit_differs(dp->resplit.times_then, now, num_ranks);
    free(now);
    return STATUS_OK;
}

// --- does a move pay? --------------------------------------------------------------------------------------

bool session_resplit_pays(const ResplitOffer* offer) {
    double least_gain = offer->is_back ? LEAST_GAIN_BACK : LEAST_GAIN;
    int64_t gain_ns = offer->present_ns - offer->then_ns;
    return (double)gain_ns > least_gain * (double)offer->present_ns && offer->steps_left > 0 &&
           gain_ns > offer->move_ns / offer->steps_left;
}

// From the present placement to that of `choice`, which shortens a step of an average batch by this much.
// During a move a rank holds its old and its new layers. A move takes at most the transfer of all values of
// the largest rank, their copy, and the planning of steps while no rank computes.
static bool pays(const Dynapipe* dp, const CostModel* costs, const Machine* machine,
                 const StageChoice* choice, int64_t present_ns) {
    const SessionResplit* resplit = &dp->resplit;
    CostRank before[PLAN_MAX_STAGES], after[PLAN_MAX_STAGES];
    int64_t most_bytes = 0;
    cost_ranks_make(before, costs, &dp->request.placement, dp->num_stages);
    cost_ranks_make(after, costs, &choice->placement, dp->num_stages);
    for (int32_t r = 0; r < dp->num_stages * dp->num_replicas; r++) {
        int32_t s = r % dp->num_stages;
        int64_t own_bytes = machine_rank(machine, r).memory_limit_bytes;
        int64_t limit_bytes = own_bytes > 0 ? own_bytes : dp->options.memory_limit_bytes;
        int64_t then_bytes = cost_rank_state_bytes(costs, &after[s]);
        if (limit_bytes > 0 && cost_rank_state_bytes(costs, &before[s]) + then_bytes > limit_bytes) {
            return false;
        }
        most_bytes = then_bytes > most_bytes ? then_bytes : most_bytes;
    }
    int64_t planning_ns = session_planning_ns(choice->makespan_ns, dp->plan_threads, dp->num_replicas);
    ResplitOffer offer = {.present_ns = present_ns,
                          .then_ns = choice->makespan_ns,
                          .move_ns = cost_transfer_ns(costs, most_bytes) +
                                     (int64_t)(COPY_NS_PER_BYTE * (double)most_bytes) +
                                     planning_ns * (dp->options.plan_ahead + 1),
                          .steps_left = dp->num_steps - dp->next_step,
                          .is_back = resplit->has_moved &&
                                     placement_equal(&choice->placement, &resplit->before, dp->num_stages)};
    return session_resplit_pays(&offer);
}

static void print_move(const Dynapipe* dp, const Placement* placement, const char* why) {
    char from[PLACEMENT_CHARS], to[PLACEMENT_CHARS];
    if (dp->transport.rank != 0) { return; }
    placement_print(from, &dp->request.placement, dp->num_stages);
    placement_print(to, placement, dp->num_stages);
    int column = printf("layers move after step %d: stages %s become %s", dp->next_step, from, to);
    printf(column + strlen(why) > 97 ? "\n  (%s)\n" : " (%s)\n", why);
    fflush(stdout);
}

// The placement for the corrected costs; `placement` unchanged: none. A step planned with other costs than
// those of the search is assumed to take as long.
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
    bool moves =
        present_ns > 0 && !is_present(dp, &choice.placement) && pays(dp, costs, machine, &choice, present_ns);
    if (!moves) { return STATUS_OK; }
    char why[160];
    snprintf(why, sizeof why, "a step of about %s in place of %s; %d splits looked at in %.1f s",
             TIME_TEXT(choice.makespan_ns, 3), TIME_TEXT(present_ns, 3), choice.num_splits, search_s);
    print_move(dp, &choice.placement, why);
    *placement = choice.placement;
    if (dp->options.effort == 0 && choice.makespan_ns > 0) {
        int64_t planning_ns = session_planning_ns(choice.makespan_ns, dp->plan_threads, dp->num_replicas);
        resplit->effort_then = plan_effort(&dp->request, planning_ns);
    }
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

// The placement from here on; *moves false: the present one. After a restore it was decided before the
// checkpoint was saved.
static Status decide(Dynapipe* dp, Placement* placement, bool* moves) {
    SessionResplit* resplit = &dp->resplit;
    bool is_told;
    *placement = dp->request.placement;
    TRY(session_resplit_told(dp, placement, &is_told));
    bool is_restored = resplit->has_restored && !is_told;
    if (is_restored) { *placement = resplit->restored; }
    resplit->has_restored = false;
    resplit->effort_then = dp->request.effort;
    if (!is_told && !is_restored && dp->now != NULL) { TRY(look(dp, placement)); }
    *moves = !is_present(dp, placement);
    if (*moves && (is_told || is_restored)) {
        print_move(dp, placement, is_told ? "as given" : "as in the checkpoint");
    }
    if (*moves && !is_restored) {
        resplit->before = dp->request.placement;
        resplit->has_moved = true;
        resplit->moved_step = dp->next_step;
    }
    return STATUS_OK;
}

// --- moving ------------------------------------------------------------------------------------------------

// Planned steps are dropped; their samples are drawn again.
static Status unplan(Dynapipe* dp) {
    SessionResplit* resplit = &dp->resplit;
    if (dp->now == NULL) {  // no step yet, or moved just now
        session_plan_stop(dp);
        return STATUS_OK;
    }
    const LoaderBatch* batch = &dp->now->batch;
    void* position = malloc(batch->position_bytes);
    if (position == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for the position in the data"); }
    memcpy(position, batch->position, batch->position_bytes);
    free(resplit->position);
    resplit->position = position;
    resplit->position_bytes = batch->position_bytes;
    session_plan_stop(dp);
    return loader_restore(dp->train, (const uint8_t*)resplit->position, resplit->position_bytes);
}

static Status apply(Dynapipe* dp, const Placement* placement) {
    SessionResplit* resplit = &dp->resplit;
    const CostModel* costs;
    const Machine* machine;
    char what[64], text[PLACEMENT_CHARS];
    placement_print(text, placement, dp->num_stages);
    uint64_t hash = hash_finish(hash_bytes(HASH_SEED, text, strlen(text)));
    snprintf(what, sizeof what, "hash of the stages after step %d", dp->next_step);
    TRY(collective_all_equal_u64(&dp->world, hash, what));
    TRY(unplan(dp));
    if (resplit->moved_step == dp->next_step) { session_refit_hasten(&dp->refit, dp->next_step); }
    session_model_detach(dp);
    dp->request.effort = resplit->effort_then;  // nothing is being planned
    dp->request.placement = *placement;
    resplit->is_moving = true;
    resplit->moved_bytes = 0;
    // times of ranks with their layers from now on; a resumed run has them from the time of the search
    if (resplit->has_restored_times) { return STATUS_OK; }
    (void)session_refit_now(dp, &costs, &machine);
    return keep_times(dp, costs, machine);
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
    return moves ? session_ranges(dp, out, max_ranges, num_ranges) : STATUS_OK;
}

int dynapipe_resplit(Dynapipe* dp, DynapipeRange* out, int32_t max_ranges, int32_t* num_ranges) {
    *num_ranges = 0;
    return (int)resplit(dp, out, max_ranges, num_ranges);
}

int dynapipe_move(Dynapipe* dp, const DynapipePiece_v1* have, int32_t num_have, const DynapipePiece_v1* want,
                  int32_t num_want) {
    const PieceLists lists = {have, want, num_have, num_want};
    int64_t moved_bytes = 0;
    Status status = piece_move(&dp->world, dp->num_stages, dp->device, &lists, &moved_bytes);
    dp->resplit.moved_bytes += moved_bytes;
    dp->resplit.moved_ns = clock_now_ns();
    return (int)status;
}

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
