// test_session_resplit.c -- the laws of a module, part by part.
#include <stdbool.h>
#include <stdlib.h>

#include "../dynapipe_plugin/plan/placement.h"
#include "../dynapipe_plugin/run/session.h"
#include "../util/numbers.h"
#include "ranks.h"
#include "test.h"

// === session_resplit =====================================================================================
// --resplit as text, the split that a checkpoint keeps (read back as it was
// written, and taken only where it belongs), and the rules by which splits change.

// --- the option -------------------------------------------------------------------------------------------

static void the_option_is_a_word_or_steps_with_splits(void) {
    SessionResplit resplit;
    CHECK_OK(session_resplit_parse(&resplit, "auto"));
    CHECK_EQ(resplit.kind, RESPLIT_AUTO);
    CHECK_OK(session_resplit_parse(&resplit, "off"));
    CHECK_EQ(resplit.kind, RESPLIT_OFF);
    CHECK_OK(session_resplit_parse(&resplit, "0:1,2/7:2,1"));
    CHECK_EQ(resplit.kind, RESPLIT_TOLD);
    static const char* const wrong[] = {
        "",   "on",     "3",           "3:",     "3:1,2/",       "3:1,2/3:2,1",
        ":1", "-3:1,2", "4:1,2/3:2,1", "3 :1,2", "3:1,2//4:1,2", "99999999999:1,2"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK_FAILS(session_resplit_parse(&resplit, wrong[i]), STATUS_BAD_OPTION,
                    "---> auto, off, or STEP:L,L");
    }
}

// 3 stages, 4 encoder and 4 decoder layers.
static void session_with(Dynapipe* dp, const char* option) {
    *dp = (Dynapipe){.num_stages = 3, .num_replicas = 1};
    dp->costs.num_enc_layers = dp->costs.num_dec_layers = 4;
    CHECK_OK(session_resplit_parse(&dp->resplit, option));
    dp->request.P = 3;
    const LayerRange stages[3] = {{0, 3}, {3, 6}, {6, 8}};
    placement_linear(&dp->request.placement, stages, 3);
}

// The same on a vee of 6 chunks, the head by vocabulary.
static void session_with_vee(Dynapipe* dp, const char* option) {
    session_with(dp, option);
    Placement* placement = &dp->request.placement;
    CHECK_OK(placement_parse(placement, 3, 4, 4, false, "0:1,1:1,2:2,2:1,1:1,0:2"));
    CHECK_OK(placement_parse_head(placement, 3, "vocabulary:300,300,424"));
}

// Layers alone are those of the chunks that there are then, behind what was told before; what is said of
// stages is a placement of its own, and what stands behind '+' is the head.
static void a_placement_is_told_for_its_step(void) {
    static Dynapipe dp;
    Placement told, expected;
    bool found;
    session_with_vee(&dp, "2:2,1,1,1,1,2/3:2:4,1:2,0:2+rows:0,512,512/4:1,1,6+vocabulary:0,24,1000");
    for (dp.next_step = 2; dp.next_step < 6; dp.next_step++) {
        char text[PLACEMENT_CHARS];
        CHECK_OK(session_resplit_told(&dp, &told, &found));
        CHECK_EQ(found, dp.next_step < 5);
        if (!found) { continue; }
        static const char* const words[] = {"0:2,1:1,2:1,2:1,1:1,0:2+vocabulary:300,300,424",
                                            "2:4,1:2,0:2+rows:0,512,512", "2:1,1:1,0:6+vocabulary:0,24,1000"};
        placement_print(text, &told, 3);
        CHECK_EQ(strcmp(text, words[dp.next_step - 2]), 0);
        dp.request.placement = told;
    }
    expected = dp.request.placement;
    CHECK(placement_equal(&expected, &dp.request.placement, 3));
    expected.head_begin[1]++;
    CHECK(!placement_equal(&expected, &dp.request.placement, 3));
    static const char* const wrong[] = {"2:0:4,1:4", "2:0:4,1:2,3:2", "2:0:4,1:2,2:2+half",
                                        "2:1,1,2,1,1,2+vocabulary:1,2,3"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        session_with_vee(&dp, wrong[i]);
        CHECK_FAILS(session_resplit_told(&dp, &told, &found), STATUS_BAD_OPTION, "no split of 8 layers onto");
    }
}

// A number for each chunk that there is at that step, or else stages with them: said before the first step.
static void layers_are_those_of_as_many_chunks(void) {
    static Dynapipe dp;
    Placement told;
    bool found;
    static const struct {
        const char *option, *message;
    } wrong[] = {
        {"2:1,7",
         "--resplit 2:1,7: layers of 2 chunks, there are 6 then (0:1,1:1,2:2,2:1,1:1,0:2+vocabulary"},
        {"2:1,1,6", "---> a number for each of these, or stage:layers, such as 2:0:L,1:L,.. for one on each"},
        {"2:1,1,1,1,1,3/3:0:1,1:1,2:6/7:1,1,1,1,1,3",
         "--resplit 7:1,1,1,1,1,3: layers of 6 chunks, there are 3"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        session_with_vee(&dp, wrong[i].option);
        CHECK_FAILS(session_resplit_told(&dp, &told, &found), STATUS_BAD_OPTION, wrong[i].message);
    }
    session_with_vee(&dp,
                     "2:1,7/4:0:2,1:3,2:3/5:1,1,6");  // it goes on behind step 3, so the first does not count
    dp.next_step = 3;
    CHECK_OK(session_resplit_told(&dp, &told, &found));
    CHECK(!found);
}

// --- the record -------------------------------------------------------------------------------------------

static const char place[] = "where the loader stands";

static void moved(Dynapipe* dp) {
    dp->resplit.before = dp->request.placement;
    dp->request.placement.chunks[0].layer_end = dp->request.placement.chunks[1].layer_begin = 2;
    dp->resplit.has_moved = true;
    dp->resplit.moved_step = 12;
    dp->request.effort = 345;
    dp->resplit.is_due = true;
    dp->resplit.times_then = malloc(3 * sizeof(double));
    for (int r = 0; r < 3; r++) { dp->resplit.times_then[r] = 10 * r + 1; }
}

// Of any shape, and from one to another.
static void a_checkpoint_keeps_any_placement(void) {
    static Dynapipe dp, other;
    for (int kind = 0; kind < 3; kind++) {
        const void* position = place;
        size_t num_bytes = sizeof place;
        session_with_vee(&dp, "auto");
        moved(&dp);  // one layer from chunk 0 to chunk 1, as it were
        dp.request.placement = dp.resplit.before;
        dp.request.placement.chunks[2].layer_end = dp.request.placement.chunks[3].layer_begin = 3;
        if (kind == 1) { CHECK_OK(placement_parse_head(&dp.request.placement, 3, "rows:1000,0,24")); }
        if (kind == 2) { CHECK_OK(placement_parse(&dp.request.placement, 3, 4, 4, false, "1:3,0:3,2:2")); }
        CHECK_OK(session_resplit_position(&dp, &position, &num_bytes));
        session_with_vee(&other, "auto");
        session_resplit_restore(&other, position, &num_bytes);
        CHECK_EQ(num_bytes, sizeof place);
        CHECK(other.resplit.has_restored && other.resplit.has_moved);
        CHECK(placement_equal(&other.resplit.restored, &dp.request.placement, 3));
        CHECK(placement_equal(&other.resplit.before, &dp.resplit.before, 3));
        CHECK_EQ(other.resplit.moved_step, 12);
        CHECK_EQ(other.request.effort, 345);
        CHECK(other.resplit.is_due && other.resplit.times_then[2] == 21);
        session_resplit_free(&dp.resplit);
        session_resplit_free(&other.resplit);
    }
}

// Whatever byte is wrong, the loader finds that it is none of its own.
static void a_damaged_record_is_left(void) {
    static Dynapipe dp, other;
    const void* position = place;
    size_t num_bytes = sizeof place;
    session_with(&dp, "auto");
    moved(&dp);
    CHECK_OK(session_resplit_position(&dp, &position, &num_bytes));
    char* bytes = (char*)(uintptr_t)position;
    for (size_t at = sizeof place; at < num_bytes; at++) {
        size_t left_bytes = num_bytes;
        bytes[at] ^= 0x10;
        session_with(&other, "auto");
        session_resplit_restore(&other, bytes, &left_bytes);
        CHECK(left_bytes == num_bytes && !other.resplit.has_restored && other.request.effort == 0);
        bytes[at] ^= 0x10;
    }
    session_resplit_free(&dp.resplit);
}

// A search that moved nothing: the run that goes on compares with the same times, where its split is the
// same.
static void what_was_looked_at_is_kept(void) {
    static Dynapipe dp, other;
    for (int i = 0; i < 3; i++) {
        const void* position = place;
        size_t num_bytes = sizeof place;
        session_with(&dp, "auto");
        moved(&dp);
        dp.resplit.has_moved = false;
        dp.resplit.has_searched = true;
        CHECK_OK(session_resplit_position(&dp, &position, &num_bytes));
        session_with(&other, "auto");
        other.options.effort = 7;
        if (i > 0) { other.request.placement = dp.request.placement; }
        if (i == 2) { other.num_replicas = 2; }
        session_resplit_restore(&other, position, &num_bytes);
        CHECK_EQ(num_bytes, sizeof place);
        CHECK(!other.resplit.has_restored && !other.resplit.has_moved && other.request.effort == 0);
        CHECK_EQ(other.resplit.is_due, i == 1);
        CHECK_EQ(other.resplit.has_searched, i == 1);
        session_resplit_free(&dp.resplit);
        session_resplit_free(&other.resplit);
    }
}

// The position behind a move is that of the run before the restore.
static void a_restore_forgets_the_position_behind_a_move(void) {
    static Dynapipe dp;
    size_t num_bytes = sizeof place;
    session_with(&dp, "auto");
    dp.resplit.position = malloc(8);
    dp.resplit.position_bytes = 8;
    dp.resplit.has_moved = true;
    session_resplit_restore(&dp, place, &num_bytes);
    CHECK(dp.resplit.position == NULL && !dp.resplit.has_moved);
    const void* position;
    CHECK_FAILS((Status)dynapipe_position(&dp, &position, &num_bytes), STATUS_OUT_OF_RANGE,
                "no step has run");
    session_resplit_free(&dp.resplit);
}

// By the clock: a run goes on with what the checkpoint has, split and effort included; where it is told, not.
static void whether_messages_are_pulled_stays(void) {
    static Dynapipe dp, other;
    for (int kind = 0; kind < 5; kind++) {
        const void* position = place;
        size_t num_bytes = sizeof place;
        session_with(&dp, "auto");
        dp.progress.reason = "measured";
        dp.machine.pulls = true;
        dp.request.effort = 345;
        CHECK_OK(session_resplit_position(&dp, &position, &num_bytes));
        session_with(&other, kind == 4 ? "off" : "auto");
        other.transport.rank = 1;  // that says nothing
        other.progress.reason = kind == 1 ? NULL : "measured";
        if (kind == 2) { other.options.progress = PROGRESS_ON; }
        other.machine.pulls = kind == 3;
        size_t left_bytes = num_bytes;
        session_resplit_restore(&other, position, &left_bytes);
        CHECK_EQ(left_bytes, sizeof place);
        CHECK_EQ(other.machine.pulls, kind == 0 || kind >= 3);
        CHECK_EQ(other.resplit.has_restored, kind == 0);
        CHECK(!other.resplit.has_moved);
        CHECK_EQ(other.request.effort, kind == 0 ? 345 : 0);
        session_resplit_free(&dp.resplit);
        dp.resplit.record = NULL;
    }
}

// Taken off wherever it is there, used only by a run that may move layers, of as many stages and layers.
static void it_is_taken_where_it_belongs(void) {
    static Dynapipe dp, other;
    const void* position = place;
    size_t num_bytes = sizeof place;
    session_with(&dp, "auto");
    moved(&dp);
    CHECK_OK(session_resplit_position(&dp, &position, &num_bytes));
    for (int kind = 0; kind < 6; kind++) {
        session_with(&other, kind == 0 ? "off" : kind == 5 ? "12:2,4,2/20:2,2,4" : "auto");
        if (kind == 1 || kind == 5) { other.options.stage_split = "3,3,2"; }
        other.first_step = 12;
        other.transport.rank = 1;  // that says nothing
        if (kind == 2) { other.num_stages = 4; }
        if (kind == 3) { other.costs.num_dec_layers = 5; }
        size_t left_bytes = num_bytes;
        session_resplit_restore(&other, position, &left_bytes);
        CHECK_EQ(left_bytes, sizeof place);
        CHECK_EQ(other.resplit.has_restored, kind >= 4);
        CHECK_EQ(other.request.effort, kind >= 4 ? 345 : 0);
        session_resplit_free(&other.resplit);
    }
    for (size_t cut = 0; cut < num_bytes; cut++) {  // no record, or a part of one: left as it is
        session_with(&other, "auto");
        size_t left_bytes = cut;
        session_resplit_restore(&other, position, &left_bytes);
        CHECK(left_bytes == cut && !other.resplit.has_restored);
    }
    session_resplit_free(&dp.resplit);
}

// What is told and what the checkpoint has: a shape's word agrees with any layers, a list with its own. Where
// they disagree, the run has what it is told.
static void what_is_told_is_not_what_the_checkpoint_has(void) {
    static const struct {
        const char *placement, *head, *split, *resplit;
        bool is_taken;
    } told[] = {
        {NULL, NULL, NULL, "auto", true},
        {"auto", "auto", NULL, "auto", true},
        {"vee", "auto", NULL, "auto", true},
        {"vee", "vocabulary", NULL, "auto", true},
        {"stacks", "vocabulary:300,300,424", NULL, "auto", true},
        {"0:2,1:1,2:1,2:1,1:1,0:2", "auto", NULL, "auto", true},
        {"interleaved", "auto", NULL, "auto", false},
        {"linear", "auto", NULL, "auto", false},
        {"vee", "rows", NULL, "auto", false},
        {"auto", "whole", NULL, "auto", false},
        {"vee", "vocabulary:300,301,423", NULL, "auto", false},
        {"0:1,1:2,2:1,2:1,1:1,0:2", "auto", NULL, "auto", false},
        {"auto", "auto", "3,3,2", "auto", false},
        {"auto", "auto", NULL, "off", false},
        {"linear", "whole", NULL, "13:0:4,1:2,2:2", false},  // later than the checkpoint
        {"linear", "whole", NULL, "12:0:4,1:2,2:2", true},
    };
    static Dynapipe dp, other;
    const void* position = place;
    size_t num_bytes = sizeof place;
    session_with_vee(&dp, "auto");
    moved(&dp);
    dp.request.placement = dp.resplit.before;
    CHECK_OK(placement_parse(&dp.request.placement, 3, 4, 4, false, "0:2,1:1,2:1,2:1,1:1,0:2"));
    CHECK_OK(session_resplit_position(&dp, &position, &num_bytes));
    for (size_t i = 0; i < sizeof told / sizeof *told; i++) {
        session_with(&other, told[i].resplit);
        other.options.placement = told[i].placement;
        other.options.head = told[i].head;
        other.options.stage_split = told[i].split;
        other.first_step = 12;
        other.transport.rank = 1;
        size_t left_bytes = num_bytes;
        session_resplit_restore(&other, position, &left_bytes);
        CHECK_EQ(left_bytes, sizeof place);
        CHECK_EQ(other.resplit.has_restored, told[i].is_taken);
        CHECK_EQ(other.request.effort, told[i].is_taken ? 345 : 0);
        if (test_failures > 0) { printf("told %zu\n", i); }
        session_resplit_free(&other.resplit);
    }
    session_resplit_free(&dp.resplit);
}

// --- the rules --------------------------------------------------------------------------------------------

// Speeds count against each other, and by more than 5 %.
static void a_rank_that_changes_is_worth_a_look(void) {
    const double then[4] = {10, 20, 0, 40}, same[4] = {15, 30, 7, 60}, near[4] = {10.4, 20, 0, 40},
                 slow[4] = {10.6, 20, 0, 40}, fast[4] = {10, 18.8, 0, 40};
    CHECK(!session_resplit_differs(then, then, 4));
    CHECK(!session_resplit_differs(then, same, 2));  // all slower alike
    CHECK(!session_resplit_differs(then, near, 4));
    CHECK(session_resplit_differs(then, slow, 4));
    CHECK(session_resplit_differs(then, fast, 4));
    CHECK(!session_resplit_differs(then, slow, 1));
}

static void a_move_wins_a_twentieth_and_what_it_costs(void) {
    ResplitOffer offer = {.present_ns = 1000000, .then_ns = 949000, .move_ns = 0, .steps_left = 10};
    CHECK(session_resplit_pays(&offer));
    offer.then_ns = 951000;  // 4.9 %
    CHECK(!session_resplit_pays(&offer));
    offer.then_ns = 1100000;
    CHECK(!session_resplit_pays(&offer));
    offer.then_ns = 900000;  // 10 steps win 1 ms
    offer.move_ns = 999990;
    CHECK(session_resplit_pays(&offer));
    offer.move_ns = 1000010;
    CHECK(!session_resplit_pays(&offer));
    offer.steps_left = 11;
    CHECK(session_resplit_pays(&offer));
    offer.steps_left = 0;
    CHECK(!session_resplit_pays(&offer));
    for (int is_back = 0; is_back < 2; is_back++) {  // going back takes a tenth
        offer =
            (ResplitOffer){.present_ns = 1000000, .then_ns = 901000, .steps_left = 10, .is_back = is_back};
        CHECK_EQ(session_resplit_pays(&offer), !is_back);
    }
}

static void a_split_rests_and_what_is_told_stays(void) {
    static Dynapipe dp;
    session_with(&dp, "auto");
    dp.num_steps = 100;
    dp.next_step = 4;
    CHECK(session_resplit_may_look(&dp));
    dp.resplit.has_moved = true;
    dp.resplit.moved_step = 4;
    for (dp.next_step = 4; dp.next_step <= 100; dp.next_step++) {
        CHECK_EQ(session_resplit_may_look(&dp), dp.next_step >= 14 && dp.next_step < 100);
    }
    dp.next_step = 20;
    dp.options.stage_split = "3,3,2";
    CHECK(!session_resplit_may_look(&dp));
    dp.options.stage_split = NULL;
    dp.options.placement = "0:3,1:3,2:2";
    CHECK(!session_resplit_may_look(&dp));
    dp.options.placement = "linear";
    CHECK(session_resplit_may_look(&dp));
    dp.options.head = "rows:300,300,424";
    CHECK(!session_resplit_may_look(&dp));
    dp.options.head = "rows";
    CHECK(session_resplit_may_look(&dp));
    static const char* const others[] = {"off", "30:1,1,6"};
    for (int i = 0; i < 2; i++) {
        session_with(&dp, others[i]);
        dp.num_steps = 100;
        CHECK(!session_resplit_may_look(&dp));
    }
}

// A program that never calls dynapipe_resplit() hears of it behind its first step, if it was told splits.
static void a_program_that_never_asks_is_told(void) {
    static const char* const words[] = {"auto", "off", "2:1,1,6"};
    for (int i = 0; i < 3; i++) {
        static Dynapipe dp;
        session_with(&dp, words[i]);
        dp.first_step = dp.next_step = 7;
        CHECK_OK(session_resplit_check(&dp));
        dp.next_step = 8;
        if (i < 2) { CHECK_OK(session_resplit_check(&dp)); }
        if (i < 2) { continue; }
        CHECK_FAILS(session_resplit_check(&dp), STATUS_BAD_OPTION,
                    "--resplit 2:1,1,6: this program cannot move layers (it never calls dynapipe_resplit())");
        dp.resplit.is_asked = true;
        CHECK_OK(session_resplit_check(&dp));
    }
}

// === piece_move ==========================================================================================
// Values travel from the ranks that have them to those that want them: every one
// arrives, whatever ranks have and want; none travels that is there already; copies are taken from the
// nearest; what nobody has is named before anything moves.

static uint64_t seed;
static RankResult results[RANKS_MAX];

enum { MAX_ARRAYS = 3, MAX_PIECES = 32 };
#define TIMEOUT_NS INT64_C(20000000000)

// --- random layouts ----------------------------------------------------------------------------------------

typedef struct {
    int32_t array;
    int64_t begin, count;
} Interval;

typedef struct {
    Interval have[MAX_PIECES], want[MAX_PIECES];
    int32_t num_have, num_want;
} Layout;

typedef struct {
    int32_t num_ranks, num_stages, num_arrays;
    int64_t length[MAX_ARRAYS];
    int32_t bytes_per_value[MAX_ARRAYS];
    Layout ranks[RANKS_MAX];
    bool is_remote;
    int64_t travelling_bytes;  // of wanted values that their rank has not got
} Case;

static int64_t below(Rng* rng, int64_t end) {
    return (int64_t)(rng_u64(rng) % (uint64_t)end);
}

static Interval any_interval(const Case* it, Rng* rng) {
    int32_t array = rng_between(rng, 0, it->num_arrays - 1);
    int64_t begin = below(rng, it->length[array]);
    return (Interval){array, begin, 1 + below(rng, it->length[array] - begin)};
}

static bool has_value(const Layout* layout, int32_t array, int64_t at) {
    bool has = false;
    for (int32_t i = 0; i < layout->num_have; i++) {
        const Interval* have = &layout->have[i];
        has |= have->array == array && have->begin <= at && at < have->begin + have->count;
    }
    return has;
}

// Each array is cut among the ranks at random, so that every value is somewhere; copies come on top.
static void draw_case(Case* it, Rng* rng, int64_t most_values) {
    *it = (Case){.num_stages = rng_between(rng, 1, 4), .is_remote = rng_below(rng, 2) == 0};
    it->num_ranks = it->num_stages * rng_between(rng, 1, 3);
    it->num_arrays = rng_between(rng, 1, MAX_ARRAYS);
    for (int32_t a = 0; a < it->num_arrays; a++) {
        static const int32_t bytes[] = {1, 2, 4, 8};
        it->length[a] = 1 + below(rng, most_values);
        it->bytes_per_value[a] = bytes[rng_below(rng, 4)];
        int64_t at = 0;
        for (int32_t cut = 0; at < it->length[a]; cut++) {
            Layout* layout = &it->ranks[rng_between(rng, 0, it->num_ranks - 1)];
            if (layout->num_have == MAX_PIECES) { continue; }
            int64_t left = it->length[a] - at, count = cut > 6 ? left : 1 + below(rng, left);
            layout->have[layout->num_have++] = (Interval){a, at, count};
            at += count;
        }
    }
    for (int32_t r = 0; r < it->num_ranks; r++) {
        Layout* layout = &it->ranks[r];
        int32_t copies = rng_between(rng, 0, 2);
        while (copies-- > 0 && layout->num_have < MAX_PIECES) {
            layout->have[layout->num_have++] = any_interval(it, rng);
        }
        layout->num_want = rng_between(rng, 0, 4);
        for (int32_t i = 0; i < layout->num_want; i++) {
            Interval want = layout->want[i] = any_interval(it, rng);
            for (int64_t k = want.begin; k < want.begin + want.count; k++) {
                if (has_value(layout, want.array, k)) { continue; }
                it->travelling_bytes += it->bytes_per_value[want.array];
            }
        }
    }
}

static uint64_t value_of(int32_t array, int64_t k) {
    return rng_mix((uint64_t)array * 1000003 + (uint64_t)k);
}

// --- memory that only copies can look at -------------------------------------------------------

#define FAR ((uintptr_t)1 << 48)  // above any address of a process

static Status far_copy(void* ctx, void* to, const void* from, int64_t num_bytes) {
    (void)ctx;
    uintptr_t to_at = (uintptr_t)to, from_at = (uintptr_t)from;
    memcpy((void*)(to_at >= FAR ? to_at - FAR : to_at), (void*)(from_at >= FAR ? from_at - FAR : from_at),
           (size_t)num_bytes);
    return STATUS_OK;
}

static const DynapipeDevice_v1 far_api = {.name = "far", .copy = far_copy};

// --- moving --------------------------------------------------------------------------------------------

static Status make_pieces(DynapipePiece_v1* out, const Case* it, const Interval* intervals, int32_t num,
                          bool is_filled) {
    for (int32_t i = 0; i < num; i++) {
        const Interval* in = &intervals[i];
        int32_t bytes = it->bytes_per_value[in->array];
        unsigned char* values = malloc((size_t)(in->count * bytes));
        EXPECT(values != NULL);
        memset(values, 0xee, (size_t)(in->count * bytes));
        for (int64_t k = 0; k < in->count && is_filled; k++) {
            uint64_t value = value_of(in->array, in->begin + k);
            memcpy(values + k * bytes, &value, (size_t)bytes);
        }
        out[i] = (DynapipePiece_v1){.key = 77 + (uint64_t)in->array,
                                    .begin = in->begin,
                                    .count = in->count,
                                    .bytes_per_value = bytes,
                                    .values = it->is_remote ? (void*)((uintptr_t)values + FAR) : values};
    }
    return STATUS_OK;
}

static void* memory_of(const Case* it, const DynapipePiece_v1* piece) {
    return it->is_remote ? (void*)((uintptr_t)piece->values - FAR) : piece->values;
}

static bool all_arrived(const Case* it, const DynapipePiece_v1* piece) {
    const unsigned char* values = memory_of(it, piece);
    bool right = true;
    for (int64_t k = 0; k < piece->count; k++) {
        uint64_t value = value_of((int32_t)(piece->key - 77), piece->begin + k);
        right &= memcmp(values + k * piece->bytes_per_value, &value, (size_t)piece->bytes_per_value) == 0;
    }
    return right;
}

static Status world_init(Collective* world, Transport* t) {
    int32_t ranks[RANKS_MAX];
    for (int32_t r = 0; r < t->num_ranks; r++) { ranks[r] = r; }
    return collective_init(world, t, ranks, t->num_ranks, TIMEOUT_NS);
}

static Status move_body(Transport* t, void* arg) {
    const Case* it = arg;
    const Layout* mine = &it->ranks[t->rank];
    DynapipePiece_v1 have[MAX_PIECES], want[MAX_PIECES];
    Collective world;
    int64_t moved_bytes = -1;
    TRY(world_init(&world, t));
    TRY(make_pieces(have, it, mine->have, mine->num_have, true));
    TRY(make_pieces(want, it, mine->want, mine->num_want, false));
    PieceLists lists = {have, want, mine->num_have, mine->num_want};
    TRY(piece_move(&world, it->num_stages, (Device){it->is_remote ? &far_api : NULL, NULL}, &lists,
                   &moved_bytes));
    for (int32_t i = 0; i < mine->num_want; i++) { EXPECT(all_arrived(it, &want[i])); }
    for (int32_t i = 0; i < mine->num_have; i++) { EXPECT(all_arrived(it, &have[i])); }
    EXPECT(moved_bytes == it->travelling_bytes);
    for (int32_t i = 0; i < mine->num_have; i++) { free(memory_of(it, &have[i])); }
    for (int32_t i = 0; i < mine->num_want; i++) { free(memory_of(it, &want[i])); }
    collective_free(&world);
    return STATUS_OK;
}

static void every_value_arrives_and_none_in_vain(void) {
    static Case it;
    Rng rng = rng_seed(seed);
    for (int trial = 0; trial < 60; trial++) {
        draw_case(&it, &rng, trial % 3 == 0 ? 20 : 3000);
        int failed = ranks_run(it.num_ranks, move_body, &it, results, 1);
        CHECK_EQ(failed, 0);
        if (failed > 0) { printf("trial %d\n", trial); }
    }
}

// Of more parts than are under way at a time, here and on a device.
static void long_pieces_travel_in_parts(void) {
    static Case it;
    int64_t n = (int64_t)PIECE_PART_BYTES / 8 * 9 + 13;
    for (int remote = 0; remote < 2; remote++) {
        it = (Case){.num_ranks = 2, .num_stages = 2, .num_arrays = 1, .is_remote = remote};
        it.length[0] = n;
        it.bytes_per_value[0] = 8;
        it.ranks[0] = (Layout){.have = {{0, 0, n}}, .num_have = 1};
        it.ranks[1] = (Layout){.want = {{0, 0, n}}, .num_want = 1};
        it.travelling_bytes = 8 * n;
        CHECK_EQ(ranks_run(2, move_body, &it, results, 1), 0);
    }
}

// --- who is asked --------------------------------------------------------------------------------------

// 2 replicas of 3 stages, ranks 0 1 2 | 3 4 5. All but rank 4 have values 0 to 9 (5: 4 to 9 alone).
static void the_nearest_copy_is_taken(void) {
    PieceRow all = {7, 0, 10, 4}, end = {7, 4, 6, 4}, some = {7, 2, 4, 4};
    PieceTable tables[6] = {{&all, NULL, 1, 0}, {&all, &all, 1, 1},  {&all, NULL, 1, 0},
                            {&all, NULL, 1, 0}, {NULL, &some, 0, 1}, {&end, NULL, 1, 0}};
    Arena arena = {0};
    PieceRoute route;
    CHECK_OK(piece_route(&route, tables, 6, 3, 1, &arena));  // its own copy
    CHECK_EQ(route.num_transfers, 1);
    CHECK(route.transfers[0].from == 1 && route.transfers[0].to == 1 && route.transfers[0].count == 10);
    CHECK_OK(piece_route(&route, tables, 6, 3, 4, &arena));  // of 3 and 5, as near, the lower: all of it
    CHECK_EQ(route.num_transfers, 1);
    CHECK(route.transfers[0].from == 3 && route.transfers[0].begin == 2 && route.transfers[0].count == 4);
    tables[3].num_have = 0;  // then 5 as far as it goes, and another replica's
    CHECK_OK(piece_route(&route, tables, 6, 3, 4, &arena));
    CHECK_EQ(route.num_transfers, 2);
    CHECK(route.transfers[0].from == 2 && route.transfers[0].begin == 2 && route.transfers[0].count == 2);
    CHECK(route.transfers[1].from == 5 && route.transfers[1].begin == 4 && route.transfers[1].count == 2);
    CHECK_OK(piece_route(&route, tables, 6, 3, 5, &arena));  // the same, from its side
    CHECK_EQ(route.num_transfers, 1);
    CHECK(route.transfers[0].to == 4 && route.transfers[0].begin == 4 && route.transfers[0].count == 2);
    arena_free(&arena);
}

// --- what cannot be ------------------------------------------------------------------------------------

static Status missing_body(Transport* t, void* arg) {
    int32_t kind = *(const int32_t*)arg;
    float values[8] = {0};
    Collective world;
    TRY(world_init(&world, t));
    DynapipePiece_v1 have = {.key = 1, .count = 8, .bytes_per_value = 4, .values = values};
    DynapipePiece_v1 want = {.key = 1, .begin = 4, .count = 2, .bytes_per_value = 4, .values = values};
    float room[8];
    want.values = room;
    if (t->rank == 1 && kind == 0) { want.count = 5; }
    if (t->rank == 1 && kind == 1) { want.bytes_per_value = 2; }
    if (t->rank == 1 && kind == 2) { want.values = NULL; }
    if (t->rank == 1 && kind == 3) { want.reserved[1] = 1; }
    static const char* const words[] = {"rank 1 wants values 8 to 8 of array 0000000000000001 (4 bytes each)",
                                        "(2 bytes each), which no rank has", "want[0]: 2 values from 4",
                                        "DynapipePiece_v1.reserved[1] is set"};
    PieceLists lists = {&have, &want, 1, 1};
    Status status = piece_move(&world, 3, (Device){0}, &lists, NULL);
    if (t->rank == 1) {
        EXPECT(status == (kind < 2 ? STATUS_MISMATCH : STATUS_OUT_OF_RANGE));
        EXPECT(strstr(status_message(), words[kind]) != NULL);
    } else {
        EXPECT(status == STATUS_MISMATCH);
        EXPECT(strstr(status_message(), "1 of the other ranks cannot move pieces") != NULL);
    }
    collective_free(&world);
    return STATUS_OK;
}

static void what_nobody_has_is_named_before_anything_moves(void) {
    for (int32_t kind = 0; kind < 4; kind++) { CHECK_EQ(ranks_run(3, missing_body, &kind, results, 1), 0); }
}

int main(int argc, char** argv) {
    (void)test_seed(argc, argv);
    RUN(the_option_is_a_word_or_steps_with_splits);
    RUN(a_placement_is_told_for_its_step);
    RUN(layers_are_those_of_as_many_chunks);
    RUN(a_checkpoint_keeps_any_placement);
    RUN(a_damaged_record_is_left);
    RUN(what_was_looked_at_is_kept);
    RUN(a_restore_forgets_the_position_behind_a_move);
    RUN(whether_messages_are_pulled_stays);
    RUN(it_is_taken_where_it_belongs);
    RUN(what_is_told_is_not_what_the_checkpoint_has);
    RUN(a_rank_that_changes_is_worth_a_look);
    RUN(a_move_wins_a_twentieth_and_what_it_costs);
    RUN(a_split_rests_and_what_is_told_stays);
    RUN(a_program_that_never_asks_is_told);
    seed = test_seed(argc, argv);
    RUN(every_value_arrives_and_none_in_vain);
    RUN(long_pieces_travel_in_parts);
    RUN(the_nearest_copy_is_taken);
    RUN(what_nobody_has_is_named_before_anything_moves);
    return test_end();
}
