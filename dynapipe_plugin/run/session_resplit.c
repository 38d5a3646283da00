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

// --- values from the ranks that have them to those that want them -----------------------------------------
// Every rank tells all others what it has and wants. Then all walk through the same transfers in the same
// order, so of those that are not done the first has both its ends posted.

// As it travels between ranks.
typedef struct {
    uint64_t key;
    int64_t begin, end, bytes_per_value;
} PieceRow;

typedef struct {
    const PieceRow *have, *want;
    int64_t num_have, num_want;
} PieceTable;

// A part of a transfer, under way: its place, and its place during the transfer, the same or host memory.
typedef struct {
    unsigned char *at, *stage;
    size_t num_bytes;
    bool is_receive;
} Part;

typedef struct {
    Collective* world;
    int32_t num_stages;
    Device device;
    const PieceLists* lists;
    PieceTable* tables;             // [num_ranks]
    Part parts[PIECE_PARTS_AHEAD];  // a ring
    int64_t num_posted, num_done;
    unsigned char* room;  // [PIECE_PARTS_AHEAD * PIECE_PART_BYTES] on a device; else NULL
    double moved_bytes;   // received
    bool is_under_way;    // parts may be in flight: their memory is kept
} Mover;

static Status check_pieces(const char* list, const DynapipePiece_v1* pieces, int32_t num) {
    for (int32_t i = 0; i < num; i++) {
        const DynapipePiece_v1* p = &pieces[i];
        if (p->values == NULL || p->begin < 0 || p->count < 1 || p->bytes_per_value < 1 ||
            p->begin > INT64_MAX / p->bytes_per_value - p->count) {
            return FAIL(STATUS_OUT_OF_RANGE,
                        "%s[%d]: %lld values from %lld, %d bytes each, at %p ---> DynapipePiece_v1: values, "
                        "and begin and count of what there is",
                        list, i, (long long)p->count, (long long)p->begin, p->bytes_per_value, p->values);
        }
        TRY(CHECK_RESERVED(DynapipePiece_v1, reserved, p));
    }
    return STATUS_OK;
}

static PieceRow* put_rows(PieceRow* out, const DynapipePiece_v1* pieces, int32_t num) {
    for (int32_t i = 0; i < num; i++) {
        const DynapipePiece_v1* piece = &pieces[i];
        *out++ = (PieceRow){piece->key, piece->begin, piece->begin + piece->count, piece->bytes_per_value};
    }
    return out;
}

// Format of a message: two numbers, the rows that a rank has, those it wants.
static Status tell(Mover* mover, Arena* arena) {
    const PieceLists* lists = mover->lists;
    size_t num_rows = (size_t)lists->num_have + (size_t)lists->num_want;
    size_t num_bytes = 2 * sizeof(int64_t) + num_rows * sizeof(PieceRow);
    int64_t* mine = (int64_t*)arena_alloc(arena, num_bytes);
    unsigned char* all = NULL;
    ARENA_TRY_NEW(mover->tables, arena, PieceTable, mover->world->num_ranks);
    if (mine == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %zu pieces", num_rows); }
    mine[0] = lists->num_have;
    mine[1] = lists->num_want;
    PieceRow* rows = (PieceRow*)(void*)(mine + 2);
    put_rows(put_rows(rows, lists->have, lists->num_have), lists->want, lists->num_want);
    TRY(collective_share_bytes(mover->world, mine, num_bytes, &all, arena));
    for (int32_t r = 0; r < mover->world->num_ranks; r++) {
        const int64_t* counts = (const int64_t*)(const void*)all;
        const PieceRow* have = (const PieceRow*)(const void*)(counts + 2);
        mover->tables[r] = (PieceTable){have, have + counts[0], counts[0], counts[1]};
        all += 2 * sizeof(int64_t) + (size_t)(counts[0] + counts[1]) * sizeof(PieceRow);
    }
    return STATUS_OK;
}

// Before anything travels: a rank that cannot continue ends the others too.
static Status agree(Collective* world, Status mine) {
    double failures = mine != STATUS_OK;
    char message[STATUS_MESSAGE_BYTES];
    snprintf(message, sizeof message, "%s", mine != STATUS_OK ? status_message() : "");
    TRY(collective_all_reduce_sum(world, &failures, 1));
    if (mine != STATUS_OK) { return FAIL(mine, "%s", message); }
    if (failures > 0) {
        return FAIL(STATUS_MISMATCH, "%.0f of the other ranks cannot move pieces", failures);
    }
    return STATUS_OK;
}

// Of a rank's pieces the one with value `at` of the wanted array, -1: none. Lowers *until to the next
// boundary after `at`: up to there the answer is the same.
static int64_t find_copy(const PieceTable* table, const PieceRow* want, int64_t at, int64_t* until) {
    int64_t found = -1;
    for (int64_t i = 0; i < table->num_have; i++) {
        const PieceRow* have = &table->have[i];
        if (have->key != want->key || have->bytes_per_value != want->bytes_per_value || have->end <= at) {
            continue;
        }
        int64_t edge = have->begin > at ? have->begin : have->end;
        if (edge < *until) { *until = edge; }
        if (have->begin <= at && found < 0) { found = i; }
    }
    return found;
}

// A rank's own copy, else the nearest of its replica's stages, else the nearest rank's; the lower rank's of
// two as near.
static int64_t distance(const Mover* mover, int32_t from, int32_t to) {
    bool same_replica = from / mover->num_stages == to / mover->num_stages;
    return labs((long)from - to) + (same_replica ? 0 : mover->world->num_ranks);
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

static Status post_part(Mover* mover, int32_t peer, bool is_receive, unsigned char* at, size_t num_bytes) {
    int64_t round = mover->num_posted;
    size_t slot = (size_t)(round % PIECE_PARTS_AHEAD);
    if (round - mover->num_done == PIECE_PARTS_AHEAD) { TRY(end_part(mover)); }
    unsigned char* stage = mover->room != NULL ? mover->room + slot * PIECE_PART_BYTES : at;
    mover->parts[slot] = (Part){at, stage, num_bytes, is_receive};
    mover->num_posted++;
    if (is_receive) {
        return collective_receive(mover->world, COLLECTIVE_PIECES, round, peer, stage, num_bytes);
    }
    if (mover->room != NULL) { TRY(session_copy(mover->device, stage, at, num_bytes)); }
    return collective_send(mover->world, COLLECTIVE_PIECES, round, peer, stage, num_bytes);
}

static unsigned char* place_of(const DynapipePiece_v1* piece, int64_t at) {
    return (unsigned char*)piece->values + (at - piece->begin) * piece->bytes_per_value;
}

// Values of row `idx` that rank `to` wants, as far as they concern this rank. Only looks: do some rank's
// pieces have all that this rank wants?
static Status walk_row(Mover* mover, int32_t to, int64_t idx, bool only_looks) {
    const PieceRow* want = &mover->tables[to].want[idx];
    const int32_t me = mover->world->my_idx;
    for (int64_t at = want->begin, until; at < want->end; at = until) {
        int32_t from = -1;
        int64_t have_idx = -1;
        until = want->end;
        for (int32_t r = 0; r < mover->world->num_ranks; r++) {
            int64_t found = find_copy(&mover->tables[r], want, at, &until);
            if (found < 0 || (from >= 0 && distance(mover, r, to) >= distance(mover, from, to))) { continue; }
            from = r;
            have_idx = found;
        }
        if (from < 0 && to == me) {
            return FAIL(STATUS_MISMATCH,
                        "rank %d wants values %lld to %lld of array %016llx (%lld bytes each), which no rank "
                        "has ---> all ranks call dynapipe_move() with what they have, and the same keys",
                        to, (long long)at, (long long)until - 1, (unsigned long long)want->key,
                        (long long)want->bytes_per_value);
        }
        if (only_looks || (from != me && to != me)) { continue; }
        const PieceLists* lists = mover->lists;
        unsigned char* source = from == me ? place_of(&lists->have[have_idx], at) : NULL;
        unsigned char* target = to == me ? place_of(&lists->want[idx], at) : NULL;
        size_t num_bytes = (size_t)((until - at) * want->bytes_per_value), done = 0;
        if (from == to) { TRY(session_copy(mover->device, target, source, num_bytes)); }
        for (size_t part; from != to && done < num_bytes; done += part) {
            part = num_bytes - done < PIECE_PART_BYTES ? num_bytes - done : (size_t)PIECE_PART_BYTES;
            bool is_receive = to == me;
            TRY(post_part(mover, is_receive ? from : to, is_receive, (is_receive ? target : source) + done,
                          part));
        }
    }
    return STATUS_OK;
}

// Can the row concern this rank? Saves a search through all ranks' pieces.
static bool concerns(const Mover* mover, int32_t to, const PieceRow* want) {
    const PieceTable* mine = &mover->tables[mover->world->my_idx];
    bool overlaps = to == mover->world->my_idx;
    for (int64_t i = 0; i < mine->num_have && !overlaps; i++) {
        const PieceRow* have = &mine->have[i];
        overlaps = have->key == want->key && have->begin < want->end && want->begin < have->end;
    }
    return overlaps;
}

static Status walk(Mover* mover, bool only_looks) {
    for (int32_t to = 0; to < mover->world->num_ranks; to++) {
        const PieceTable* table = &mover->tables[to];
        for (int64_t i = 0; i < table->num_want; i++) {
            if (concerns(mover, to, &table->want[i])) { TRY(walk_row(mover, to, i, only_looks)); }
        }
    }
    while (mover->num_done < mover->num_posted) { TRY(end_part(mover)); }
    return STATUS_OK;
}

static Status move_all(Mover* mover, Arena* arena) {
    const PieceLists* lists = mover->lists;
    Status valid = check_pieces("have", lists->have, lists->num_have);
    if (valid == STATUS_OK) { valid = check_pieces("want", lists->want, lists->num_want); }
    TRY(agree(mover->world, valid));
    TRY(tell(mover, arena));
    Status status = walk(mover, true);
    if (status == STATUS_OK && mover->device.api != NULL) {
        mover->room = (unsigned char*)arena_alloc_raw(arena, (size_t)PIECE_PARTS_AHEAD * PIECE_PART_BYTES);
        if (mover->room == NULL) { status = FAIL(STATUS_NO_MEMORY, "no memory to move pieces through"); }
    }
    TRY(agree(mover->world, status));
    mover->is_under_way = true;
    TRY(walk(mover, false));
    mover->is_under_way = false;
    return collective_all_reduce_sum(mover->world, &mover->moved_bytes, 1);
}

Status piece_move(Collective* world, int32_t num_stages, Device device, const PieceLists* lists,
                  int64_t* moved_bytes) {
    Arena arena = {0};
    Mover mover = {.world = world, .num_stages = num_stages, .device = device, .lists = lists};
    Status status = move_all(&mover, &arena);
    if (!mover.is_under_way) { arena_free(&arena); }
    if (status == STATUS_OK && moved_bytes != NULL) { *moved_bytes = (int64_t)mover.moved_bytes; }
    return status;
}

// --- placements given by --resplit -------------------------------------------------------------------------

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
    snprintf(out->placement, sizeof out->placement, "%.*s", (int)num_chars, text);
    *next = text[num_chars] == '/' ? text + num_chars + 1 : NULL;
    return true;
}

Status session_resplit_parse(SessionResplit* out, const char* text) {
    *out = (SessionResplit){.kind = RESPLIT_TOLD, .told = text};
    if (strcmp(text, "auto") == 0 || strcmp(text, "off") == 0) {
        *out = (SessionResplit){.kind = strcmp(text, "off") == 0 ? RESPLIT_OFF : RESPLIT_AUTO};
        return STATUS_OK;
    }
    Told told;
    int32_t last_step = -1;
    for (const char* next = text; next != NULL; last_step = told.step) {
        if (next_told(&told, &next) && told.step > last_step) { continue; }
        return FAIL(STATUS_BAD_OPTION,
                    "--resplit %.60s ---> auto, off, or STEP:L,L,.. (layers of each stage after that step), "
                    "STEP:STAGE:L,STAGE:L,..[+HEAD], more of these after /",
                    text);
    }
    return STATUS_OK;
}

// As --placement takes it. After '+' the head, which else stays.
static Status parse_placement(const Dynapipe* dp, Placement* out, Told* told) {
    const PlanChain* chain = &dp->costs.chain;
    const int32_t P = dp->num_stages;
    char *text = told->placement, *head = strchr(text, '+');
    if (head != NULL) { *head++ = '\0'; }
    Status status = placement_parse(out, P, chain, dp->request.rules.head_has_layer, text);
    if (status == STATUS_OK && head != NULL) { status = placement_parse_head(out, P, head); }
    if (status == STATUS_OK || status == STATUS_NO_MEMORY) { return status; }
    return FAIL(STATUS_BAD_OPTION,
                "--resplit %d:%.60s%s%.60s: no split of %d layers onto %d stages ---> as "
                "--placement and, after +, --head",
                told->step, text, head != NULL ? "+" : "", head != NULL ? head : "",
                chain->num_enc_layers + chain->num_dec_layers, P);
}

// Later steps are parsed too.
Status session_resplit_told(const Dynapipe* dp, Placement* out, bool* found) {
    Told told;
    *found = false;
    Placement placement = dp->resplit.has_restored ? dp->resplit.restored : dp->request.placement;
    const char* next = dp->resplit.told;
    while (next != NULL && next_told(&told, &next)) {
        if (told.step < dp->next_step) { continue; }  // done
        TRY(parse_placement(dp, &placement, &told));
        if (told.step != dp->next_step) { continue; }
        *out = placement;
        *found = true;
    }
    return STATUS_OK;
}

// --- checkpoint --------------------------------------------------------------------------------------------
// The placement, and what the next decision depends on: "12:0:3,1:5,0:2/1 0 50", as --resplit has a step and
// its placement; has_moved, is_due, the effort.

static const char RESPLIT_MAGIC[] = "dpsplit5";

enum { MOST_EFFORT = 1000000000 };  // as --debug effort=N

Status session_resplit_write(const Dynapipe* dp, FILE* out) {
    const SessionResplit* resplit = &dp->resplit;
    const int32_t P = dp->num_stages;
    char placement[PLACEMENT_CHARS];
    Text text;
    if (P == 1) { return STATUS_OK; }
    TRY(text_open(&text));
    placement_print(placement, &dp->request.placement, &dp->costs.chain, P);
    fprintf(text.out, "%d:%s/%d %d %d", resplit->moved_step, placement, resplit->has_moved, resplit->is_due,
            dp->request.effort);
    return section_write(out, RESPLIT_MAGIC, &text);
}

// Unless the options ask for something else; a step of --resplit that is done does not count.
static bool is_taken(const Dynapipe* dp, const Placement* saved) {
    Told told;
    const char* next = dp->resplit.told;
    if (dp->resplit.kind == RESPLIT_OFF && !dp->resplit.has_saved_costs) { return false; }
    bool has_told = next != NULL && next_told(&told, &next) && told.step <= dp->first_step;
    return has_told || session_placed_fits(dp, saved);
}

static void print_left(const Dynapipe* dp, const Placement* saved) {
    char now[PLACEMENT_CHARS], before[PLACEMENT_CHARS];
    const Placement* placement = &dp->request.placement;
    if (dp->transport.rank != 0 || placement_equal(saved, placement, dp->num_stages)) { return; }
    placement_print(now, placement, &dp->costs.chain, dp->num_stages);
    placement_print(before, saved, &dp->costs.chain, dp->num_stages);
    printf("layers are placed by this run's options: %s\n"
           "        (the checkpoint was saved with %s)\n",
           now, before);
    fflush(stdout);
}

static void take_record(Dynapipe* dp, const char* record) {
    SessionResplit* resplit = &dp->resplit;
    Told told;
    Placement then = dp->request.placement;
    int has_moved, is_due, effort;
    then.head = HEAD_WHOLE;
    bool is_of_model = next_told(&told, &record) && record != NULL &&
                       sscanf(record, "%d %d %d", &has_moved, &is_due, &effort) == 3 && effort >= 0 &&
                       effort <= MOST_EFFORT && parse_placement(dp, &then, &told) == STATUS_OK;
    if (!is_of_model) { return; }
    if (!is_taken(dp, &then)) {
        print_left(dp, &then);
        return;
    }
    // With other costs, the choice that was made here and its effort may be others, too.
    bool is_other = has_moved != 0 || resplit->has_saved_costs;
    if (!is_other && !placement_equal(&then, &dp->request.placement, dp->num_stages)) { return; }
    resplit->is_due = is_due != 0;
    resplit->moved_step = told.step;
    if (!is_other) { return; }
    resplit->restored = then;
    resplit->has_restored = true;
    resplit->has_moved = has_moved != 0;
    if (dp->options.effort == 0) { dp->request.effort = effort; }
}

// Of another number of stages or model, or other than requested: removed and ignored.
void session_resplit_restore(Dynapipe* dp, const void** position, size_t* num_bytes) {
    SessionResplit* resplit = &dp->resplit;
    resplit->has_restored = resplit->has_moved = resplit->is_due = false;
    resplit->moved_step = dp->first_step;
    free(resplit->position);  // of the run as it was
    resplit->position = NULL;
    resplit->position_bytes = 0;
    char* record = section_take(RESPLIT_MAGIC, position, num_bytes, NULL);
    if (record != NULL) { take_record(dp, record); }
    free(record);
}

// --- does a move pay? --------------------------------------------------------------------------------------

static const double LEAST_GAIN = 0.05;  // what a move must save of a step
enum { MARGIN = 2 };                    // and of all steps to come, times the cost of the move
#define SEARCH_NS INT64_C(600000000)    // of planning
// New pages of arrays, and the copy of what stays on its rank: 0.5 s of a core a GiB.
static const double COPY_NS_PER_BYTE = 0.5;

void session_resplit_free(SessionResplit* resplit) {
    arena_free(&resplit->arena);
    free(resplit->position);
}

static bool is_present(const Dynapipe* dp, const Placement* placement) {
    return placement_equal(placement, &dp->request.placement, dp->num_stages);
}

int32_t session_resplit_horizon(const Dynapipe* dp) {
    int32_t done = dp->next_step - dp->resplit.moved_step, left = dp->num_steps - dp->next_step;
    return done < left ? done : left;
}

bool session_resplit_pays(int64_t present_ns, int64_t then_ns, int64_t move_ns, int32_t horizon) {
    int64_t gain_ns = present_ns - then_ns;
    return horizon > 0 && (double)gain_ns > LEAST_GAIN * (double)present_ns &&
           gain_ns > MARGIN * move_ns / horizon;
}

// From the present placement to that of `choice`, which shortens a step of an average batch by this much.
// During a move a rank holds its old and its new layers. A move takes at most the transfer of all values of
// the largest rank, their copy, and the planning of steps while no rank computes.
static bool pays(const Dynapipe* dp, const Machine* machine, const StageChoice* choice, int64_t present_ns) {
    const CostModel* costs = &dp->costs;
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
    int64_t move_ns = cost_transfer_ns(costs, most_bytes) + (int64_t)(COPY_NS_PER_BYTE * (double)most_bytes) +
                      planning_ns * (dp->options.plan_ahead + 1);
    return session_resplit_pays(present_ns, choice->makespan_ns, move_ns, session_resplit_horizon(dp));
}

static void print_move(const Dynapipe* dp, const Placement* placement, const char* why) {
    char from[PLACEMENT_CHARS], to[PLACEMENT_CHARS];
    if (dp->transport.rank != 0) { return; }
    placement_print(from, &dp->request.placement, &dp->costs.chain, dp->num_stages);
    placement_print(to, placement, &dp->costs.chain, dp->num_stages);
    int column = printf("layers move after step %d: stages %s become %s", dp->next_step, from, to);
    printf(column + (int)strlen(why) > 97 ? "\n  (%s)\n" : " (%s)\n", why);
    fflush(stdout);
}

// The placement for the ranks as they are now; `placement` unchanged: none.
static Status search(Dynapipe* dp, const Machine* machine, Placement* placement) {
    SessionResplit* resplit = &dp->resplit;
    StageChoice choice;
    int64_t present_ns, begin_ns = clock_now_ns();
    PlanRequest request = dp->request;
    request.machine = machine;
    request.choose_stages = true;
    request.placements = PLACEMENT_GIVEN;
    request.heads = HEAD_CHOICE_GIVEN;
    TRY(stage_search_again(&choice, &present_ns, &request, &dp->costs, resplit->batches, resplit->num_batches,
                           SEARCH_NS));
    double search_s = (double)(clock_now_ns() - begin_ns) / 1e9;
    bool moves =
        present_ns > 0 && !is_present(dp, &choice.placement) && pays(dp, machine, &choice, present_ns);
    if (!moves) { return STATUS_OK; }
    char why[160];
    snprintf(why, sizeof why, "a step of about %s in place of %s; %d placement%s compared in %.1f s",
             TIME_TEXT(choice.makespan_ns, 3), TIME_TEXT(present_ns, 3), choice.num_splits,
             choice.num_splits == 1 ? "" : "s", search_s);
    print_move(dp, &choice.placement, why);
    *placement = choice.placement;
    resplit->effort_then = session_effort(dp, choice.makespan_ns);
    return STATUS_OK;
}

bool session_resplit_may_look(const Dynapipe* dp) {
    return dp->resplit.kind == RESPLIT_AUTO && !session_placed_by_list(dp) && dp->num_stages > 1 &&
           session_resplit_horizon(dp) > 0;
}

// Once refit has found something, as soon as the search, in which no rank computes, takes less than the steps
// that it is for.
static Status look(Dynapipe* dp, Placement* placement) {
    SessionResplit* resplit = &dp->resplit;
    const Machine* machine;
    if (session_refit_now(dp, &machine)) { resplit->is_due = true; }
    if (!resplit->is_due || !session_resplit_may_look(dp)) { return STATUS_OK; }
    if (dp->now->plan.makespan_ns < SEARCH_NS / session_resplit_horizon(dp)) { return STATUS_OK; }
    resplit->is_due = false;
    return search(dp, machine, placement);
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
    char what[64], text[PLACEMENT_CHARS];
    placement_print(text, placement, &dp->costs.chain, dp->num_stages);
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
    return STATUS_OK;
}

int dynapipe_resplit(Dynapipe* dp, DynapipeRange* out, int32_t max_ranges, int32_t* num_ranges) {
    Placement placement;
    bool moves;
    *num_ranges = 0;
    dp->resplit.is_asked = true;
    dp->resplit.asked_ns = clock_now_ns();
    TRY(session_need_model(dp));
    if (max_ranges < 1) { return FAIL(STATUS_OUT_OF_RANGE, "no room for this rank's range of blocks"); }
    TRY(decide(dp, &placement, &moves));
    if (moves) { TRY(apply(dp, &placement)); }
    return moves ? session_ranges(dp, out, max_ranges, num_ranges) : STATUS_OK;
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

Status session_resplit_check(Dynapipe* dp) {
    SessionResplit* resplit = &dp->resplit;
    bool never_asks = dp->run.keeps_layers != 0 || (!resplit->is_asked && dp->next_step > dp->first_step);
    if (resplit->kind == RESPLIT_TOLD && never_asks) {
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
