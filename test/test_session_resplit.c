// test_session_resplit.c -- --resplit as text, the placement that a checkpoint keeps, the rules by which
// layers move; values that travel between ranks.
#include <stdbool.h>
#include <stdlib.h>

#include "../dynapipe_plugin/plan/placement.h"
#include "../dynapipe_plugin/run/session.h"
#include "../util/numbers.h"
#include "ranks.h"
#include "test.h"

static uint64_t seed;

// --- the option -------------------------------------------------------------------------------------------

static void the_option_is_a_word_or_steps_with_placements(void) {
    static const struct {
        const char* text;
        ResplitKind kind;
    } right[] = {{"auto", RESPLIT_AUTO}, {"off", RESPLIT_OFF}, {"0:1,2/7:2,1", RESPLIT_TOLD}};
    static const char* const wrong[] = {
        "",   "on",     "3",           "3:",     "3:1,2/",       "3:1,2/3:2,1",
        ":1", "-3:1,2", "4:1,2/3:2,1", "3 :1,2", "3:1,2//4:1,2", "99999999999:1,2"};
    SessionResplit resplit;
    for (int i = 0; i < 3; i++) {
        CHECK_OK(session_resplit_parse(&resplit, right[i].text));
        CHECK_EQ(resplit.kind, right[i].kind);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK_FAILS(session_resplit_parse(&resplit, wrong[i]), STATUS_BAD_OPTION,
                    "---> auto, off, or STEP:L,L");
    }
}

// 3 stages, 4 encoder and 4 decoder layers; on a rank that prints nothing.
static void session_with(Dynapipe* dp, const char* option) {
    const BlockRange stages[3] = {{0, 3}, {3, 6}, {6, 8}};
    *dp = (Dynapipe){.num_stages = 3, .num_replicas = 1, .transport.rank = 1, .num_steps = 100};
    dp->costs.chain = plan_chain_whole(4, 4);
    CHECK_OK(session_resplit_parse(&dp->resplit, option));
    dp->request.P = 3;
    placement_linear(&dp->request.placement, stages, 3);
}

// The same on a vee of 6 chunks, the head by vocabulary.
static void session_with_vee(Dynapipe* dp, const char* option) {
    session_with(dp, option);
    Placement* placement = &dp->request.placement;
    CHECK_OK(placement_parse(placement, 3, &dp->costs.chain, false, "0:1,1:1,2:2,2:1,1:1,0:2"));
    CHECK_OK(placement_parse_head(placement, 3, "vocabulary:300,300,424"));
}

// Layers alone are those of the stages; the head stays, unless it is given after '+'.
static void a_placement_is_given_for_its_step(void) {
    static Dynapipe dp;
    static const char* const words[] = {"0:1,1:1,2:6+vocabulary:300,300,424", "2:4,1:2,0:2+rows:0,512,512",
                                        "0:1,1:2,2:5+vocabulary:0,24,1000"};
    static const char* const wrong[] = {"2:0:4,1:4", "2:0:4,1:2,3:2", "2:0:4,1:2,2:2+half",
                                        "2:1,7",     "2:1,1,2,1,1,2", "50:1,2,5+vocabulary:1,2,3"};
    Placement told;
    bool found;
    session_with_vee(&dp, "2:1,1,6/3:2:4,1:2,0:2+rows:0,512,512/4:1,2,5+vocabulary:0,24,1000");
    for (dp.next_step = 2; dp.next_step < 6; dp.next_step++) {
        Placement expected = {0};
        char text[PLACEMENT_CHARS];
        CHECK_OK(session_resplit_told(&dp, &told, &found));
        CHECK_EQ(found, dp.next_step < 5);
        if (!found) { continue; }
        snprintf(text, sizeof text, "%s", words[dp.next_step - 2]);
        char* head = strchr(text, '+');
        *head++ = '\0';
        CHECK_OK(placement_parse(&expected, 3, &dp.costs.chain, false, text));
        CHECK_OK(placement_parse_head(&expected, 3, head));
        CHECK(placement_equal(&told, &expected, 3));
        dp.request.placement = told;
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        session_with_vee(&dp, wrong[i]);
        CHECK_FAILS(session_resplit_told(&dp, &told, &found), STATUS_BAD_OPTION,
                    "no split of 8 layers onto 3 stages --->");
    }
}

// A program that never calls dynapipe_resplit() refuses placements at its start, or after its first step.
static void a_program_that_never_asks_refuses(void) {
    static const char* const words[] = {"auto", "off", "2:1,1,6"};
    static Dynapipe dp;
    for (int i = 0; i < 12; i++) {
        session_with(&dp, words[i / 4]);
        dp.first_step = 7;
        dp.next_step = 7 + i % 2;
        dp.run.keeps_layers = i / 2 % 2;
        Status status = session_resplit_check(&dp);
        CHECK_EQ(status, i >= 9 ? STATUS_BAD_OPTION : STATUS_OK);
        if (status != STATUS_OK) {
            CHECK(strstr(status_message(), "never calls dynapipe_resplit()") != NULL);
        }
        dp.resplit.is_asked = true;
        dp.run.keeps_layers = 0;
        CHECK_OK(session_resplit_check(&dp));
    }
}

// --- the record -------------------------------------------------------------------------------------------

static const char place[] = "where the loader stands";

// The record of a session after step 12 that has `placement`, and where the loader stands.
static void record_of(Text* out, const char* chunks, const char* head, bool has_moved) {
    static Dynapipe dp;
    session_with_vee(&dp, "auto");
    if (chunks != NULL) {
        CHECK_OK(placement_parse(&dp.request.placement, 3, &dp.costs.chain, false, chunks));
    }
    if (head != NULL) { CHECK_OK(placement_parse_head(&dp.request.placement, 3, head)); }
    dp.resplit.has_moved = has_moved;
    dp.resplit.moved_step = has_moved ? 12 : 0;
    dp.request.effort = 345;
    dp.resplit.is_due = true;
    CHECK_OK(text_open(out));
    CHECK_OK(session_resplit_write(&dp, out->out));
    fwrite(place, 1, sizeof place, out->out);
    CHECK_OK(text_close(out));
    session_resplit_free(&dp.resplit);
}

// What the session makes of it; the record is removed.
static void restore(Dynapipe* dp, const Text* record) {
    size_t num_bytes = record->num_chars;
    const void* position = record->text;
    session_resplit_restore(dp, &position, &num_bytes);
    CHECK(num_bytes == sizeof place && memcmp(position, place, sizeof place) == 0);
    CHECK(dp->resplit.has_restored || dp->request.effort == 0);
    CHECK(!dp->resplit.has_restored || dp->request.effort == 345);
}

static void a_checkpoint_keeps_any_placement(void) {
    static const char* const kinds[][2] = {
        {"0:1,1:1,2:1,2:2,1:1,0:2", NULL}, {NULL, "rows:1000,0,24"}, {"1:3,0:3,2:2", NULL}};
    static Dynapipe dp;
    Text record;
    for (int kind = 0; kind < 3; kind++) {
        Placement expected;
        record_of(&record, kinds[kind][0], kinds[kind][1], true);
        session_with_vee(&dp, "auto");
        expected = dp.request.placement;
        if (kinds[kind][0] != NULL) {
            CHECK_OK(placement_parse(&expected, 3, &dp.costs.chain, false, kinds[kind][0]));
        }
        if (kinds[kind][1] != NULL) { CHECK_OK(placement_parse_head(&expected, 3, kinds[kind][1])); }
        restore(&dp, &record);
        CHECK(dp.resplit.has_restored && placement_equal(&dp.resplit.restored, &expected, 3));
        CHECK_EQ(dp.resplit.moved_step, 12);
        CHECK(dp.resplit.is_due);
        session_resplit_free(&dp.resplit);
        free(record.text);
    }
}

// Whatever byte is wrong or missing, the loader finds that the position is none of its own.
static void a_damaged_record_is_left(void) {
    static Dynapipe dp;
    Text record;
    record_of(&record, NULL, NULL, true);
    const size_t record_chars = record.num_chars - sizeof place;
    for (size_t at = 0; at < 2 * record_chars; at++) {
        bool is_cut = at >= record_chars;
        size_t num_bytes = is_cut ? at - record_chars : record.num_chars, left_bytes = num_bytes;
        const void* position = record.text;
        if (!is_cut) { record.text[at] ^= 0x10; }
        session_with(&dp, "auto");
        session_resplit_restore(&dp, &position, &left_bytes);
        CHECK(left_bytes == num_bytes && position == record.text);
        CHECK(!dp.resplit.has_restored && dp.request.effort == 0);
        if (!is_cut) { record.text[at] ^= 0x10; }
    }
    free(record.text);
}

// A shape's word agrees with any layers, a list with its own; otherwise the run has what its options give.
static void options_go_before_the_checkpoint(void) {
    static const struct {
        const char *placement, *head, *resplit;
        bool is_taken;
    } told[] = {
        {NULL, NULL, "auto", true},
        {"vee", "vocabulary", "auto", true},
        {"stacks", "vocabulary:300,300,424", "auto", true},
        {"0:2,1:1,2:1,2:1,1:1,0:2", "auto", "auto", true},
        {"interleaved", "auto", "auto", false},
        {"linear", "auto", "auto", false},
        {"vee", "rows", "auto", false},
        {"auto", "whole", "auto", false},
        {"vee", "vocabulary:300,301,423", "auto", false},
        {"0:1,1:2,2:1,2:1,1:1,0:2", "auto", "auto", false},
        {"3,3,2", "auto", "auto", false},
        {"auto", "auto", "off", false},
        {"linear", "whole", "13:0:4,1:2,2:2", false},  // later than the checkpoint
        {"linear", "whole", "12:0:4,1:2,2:2", true},
    };
    static Dynapipe dp;
    Text record;
    record_of(&record, "0:2,1:1,2:1,2:1,1:1,0:2", NULL, true);
    for (size_t i = 0; i < sizeof told / sizeof *told; i++) {
        session_with(&dp, told[i].resplit);
        dp.options.placement = told[i].placement;
        dp.options.head = told[i].head;
        dp.first_step = 12;
        restore(&dp, &record);
        CHECK_EQ(dp.resplit.has_restored, told[i].is_taken);
        if (test_failures > 0) { printf("told %zu\n", i); }
        session_resplit_free(&dp.resplit);
    }
    free(record.text);
}

// A run that has not moved chooses for itself: its own placement unless that was chosen with other costs.
static void a_choice_is_kept_with_its_costs(void) {
    enum { SAME, OTHER_PLACEMENT, OTHER_COSTS, OTHER_STAGES, OTHER_MODEL };
    static Dynapipe dp;
    Text record;
    record_of(&record, NULL, NULL, false);
    for (int kind = SAME; kind <= OTHER_MODEL; kind++) {
        session_with_vee(&dp, kind == OTHER_COSTS ? "off" : "auto");
        dp.resplit.has_saved_costs = kind == OTHER_COSTS;
        if (kind == OTHER_PLACEMENT) { session_with(&dp, "auto"); }
        if (kind == OTHER_STAGES) { dp.num_stages = 4; }
        if (kind == OTHER_MODEL) { dp.costs.chain.num_dec_layers = 5; }
        dp.resplit.position = malloc(8);  // of the run before the restore
        dp.resplit.position_bytes = 8;
        restore(&dp, &record);
        CHECK_EQ(dp.resplit.has_restored, kind == OTHER_COSTS);
        CHECK_EQ(dp.resplit.is_due, kind == SAME || kind == OTHER_COSTS);
        CHECK(!dp.resplit.has_moved && dp.resplit.position == NULL);
        const void* position;
        size_t num_bytes;
        CHECK_FAILS((Status)dynapipe_position(&dp, &position, &num_bytes), STATUS_OUT_OF_RANGE,
                    "no step has run");
        session_resplit_free(&dp.resplit);
    }
    free(record.text);
}

// --- the rules --------------------------------------------------------------------------------------------

static void a_move_saves_a_twentieth_and_twice_its_cost(void) {
    Rng rng = rng_seed(seed);
    for (int i = 0; i < 2000; i++) {
        int64_t present = rng_between(&rng, 1000, 100000), then = present * rng_between(&rng, 50, 110) / 100;
        int64_t move = rng_between(&rng, 0, 1000000), gain = present - then;
        int32_t horizon = rng_between(&rng, 0, 100);
        bool pays = session_resplit_pays(present, then, move, horizon);
        if (pays) { CHECK(20 * gain > present && gain * horizon >= 2 * move); }
        if (!pays && 20 * gain > present + 20) { CHECK(gain * horizon <= 2 * move + 2 * horizon); }
    }
}

// Another program slows one rank for a while, again and again: by the rule, moves cost at most half of what
// the run would have lost by them being late, and few are made when the run is about to end.
static void load_that_comes_and_goes_costs_little(void) {
    enum { STEPS = 2000, SLOW_NS = 150, FAST_NS = 100 };
    static Dynapipe dp;
    Rng rng = rng_seed(seed);
    for (int trial = 0; trial < 200; trial++) {
        int64_t move_ns = rng_between(&rng, 50, 20000), moves_ns = 0, lost_ns = 0;
        int32_t period = rng_between(&rng, 4, 400), last_move = 0;
        session_with(&dp, "auto");
        dp.num_steps = STEPS;
        bool is_moved = false;
        for (dp.next_step = 1; dp.next_step <= STEPS; dp.next_step++) {
            bool is_loaded = dp.next_step / period % 2 == 1, is_wrong = is_loaded != is_moved;
            lost_ns += is_wrong ? SLOW_NS - FAST_NS : 0;
            int32_t horizon = session_resplit_horizon(&dp);
            if (!is_wrong || !session_resplit_pays(SLOW_NS, FAST_NS, move_ns, horizon)) { continue; }
            moves_ns += move_ns;
            is_moved = is_loaded;
            dp.resplit.moved_step = last_move = dp.next_step;
        }
        CHECK(2 * moves_ns <= (SLOW_NS - FAST_NS) * (int64_t)STEPS);
        if (last_move > 0) { CHECK((SLOW_NS - FAST_NS) * (int64_t)(STEPS - last_move) >= 2 * move_ns); }
        CHECK(lost_ns <= (SLOW_NS - FAST_NS) * (int64_t)STEPS);
    }
}

static void what_is_given_stays(void) {
    static const struct {
        const char *resplit, *placement, *head;
        bool may;
    } cases[] = {{"auto", NULL, NULL, true},
                 {"auto", "3,3,2", NULL, false},
                 {"auto", "0:3,1:3,2:2", NULL, false},
                 {"auto", "linear", "rows", true},
                 {"auto", NULL, "rows:300,300,424", false},
                 {"off", NULL, NULL, false},
                 {"30:1,1,6", NULL, NULL, false}};
    static Dynapipe dp;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        session_with(&dp, cases[i].resplit);
        dp.options.placement = cases[i].placement;
        dp.options.head = cases[i].head;
        dp.next_step = dp.resplit.moved_step = 4;
        CHECK(!session_resplit_may_look(&dp));  // moved just now
        dp.next_step = 20;
        CHECK_EQ(session_resplit_may_look(&dp), cases[i].may);
        dp.next_step = dp.num_steps;
        CHECK(!session_resplit_may_look(&dp));
    }
}

// === pieces ==============================================================================================
// Every value that is wanted arrives, from the nearest rank that has it; none travels that is there already;
// what nobody has is named before anything moves.

static RankResult results[RANKS_MAX];

enum { MAX_ARRAYS = 3, MAX_PIECES = 32 };

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

// In the lowest byte the rank that it comes from.
static uint64_t value_of(int32_t array, int64_t k, int32_t rank) {
    return rng_mix((uint64_t)array * 1000003 + (uint64_t)k) << 8 | (uint64_t)rank;
}

// A rank's own copy, else the nearest stage's of its replica, else the nearest rank's; of two the lower.
static int32_t source_of(const Case* it, int32_t array, int64_t k, int32_t to) {
    int32_t best = -1, best_distance = 0;
    for (int32_t r = 0; r < it->num_ranks; r++) {
        int32_t far = r / it->num_stages == to / it->num_stages ? 0 : it->num_ranks;
        int32_t distance = abs(r - to) + far;
        if (!has_value(&it->ranks[r], array, k) || (best >= 0 && distance >= best_distance)) { continue; }
        best = r;
        best_distance = distance;
    }
    return best;
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

static const DynapipeDevice_v1 far_api = {.copy = far_copy};

// --- moving --------------------------------------------------------------------------------------------

static Status make_pieces(DynapipePiece_v1* out, const Case* it, const Interval* intervals, int32_t num,
                          bool is_filled, int32_t rank) {
    for (int32_t i = 0; i < num; i++) {
        const Interval* in = &intervals[i];
        int32_t bytes = it->bytes_per_value[in->array];
        unsigned char* values = malloc((size_t)(in->count * bytes));
        EXPECT(values != NULL);
        memset(values, 0xee, (size_t)(in->count * bytes));
        for (int64_t k = 0; k < in->count && is_filled; k++) {
            uint64_t value = value_of(in->array, in->begin + k, rank);
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

static bool all_arrived(const Case* it, const DynapipePiece_v1* piece, int32_t rank) {
    const unsigned char* values = memory_of(it, piece);
    bool right = true;
    for (int64_t k = 0; k < piece->count; k++) {
        int32_t array = (int32_t)(piece->key - 77);
        uint64_t value = value_of(array, piece->begin + k, source_of(it, array, piece->begin + k, rank));
        right &= memcmp(values + k * piece->bytes_per_value, &value, (size_t)piece->bytes_per_value) == 0;
    }
    return right;
}

static Status move_body(Transport* t, void* arg) {
    const Case* it = arg;
    const Layout* mine = &it->ranks[t->rank];
    DynapipePiece_v1 have[MAX_PIECES], want[MAX_PIECES];
    Collective world;
    int64_t moved_bytes = -1;
    TRY(ranks_world(&world, t));
    TRY(make_pieces(have, it, mine->have, mine->num_have, true, t->rank));
    TRY(make_pieces(want, it, mine->want, mine->num_want, false, t->rank));
    PieceLists lists = {have, want, mine->num_have, mine->num_want};
    TRY(piece_move(&world, it->num_stages, (Device){it->is_remote ? &far_api : NULL, NULL}, &lists,
                   &moved_bytes));
    for (int32_t i = 0; i < mine->num_want; i++) { EXPECT(all_arrived(it, &want[i], t->rank)); }
    for (int32_t i = 0; i < mine->num_have; i++) { EXPECT(all_arrived(it, &have[i], t->rank)); }
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

// --- what cannot be ------------------------------------------------------------------------------------

static Status missing_body(Transport* t, void* arg) {
    int32_t kind = *(const int32_t*)arg;
    float values[8] = {0};
    Collective world;
    TRY(ranks_world(&world, t));
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
    seed = test_seed(argc, argv);
    RUN(the_option_is_a_word_or_steps_with_placements);
    RUN(a_placement_is_given_for_its_step);
    RUN(a_program_that_never_asks_refuses);
    RUN(a_checkpoint_keeps_any_placement);
    RUN(a_damaged_record_is_left);
    RUN(options_go_before_the_checkpoint);
    RUN(a_choice_is_kept_with_its_costs);
    RUN(a_move_saves_a_twentieth_and_twice_its_cost);
    RUN(load_that_comes_and_goes_costs_little);
    RUN(what_is_given_stays);
    RUN(every_value_arrives_and_none_in_vain);
    RUN(long_pieces_travel_in_parts);
    RUN(what_nobody_has_is_named_before_anything_moves);
    return test_end();
}
