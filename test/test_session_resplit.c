// test_session_resplit.c -- --resplit as text, the split that a checkpoint keeps (read back as it was
// written, and taken only where it belongs), and the rules by which splits change.
#include "../dynapipe_plugin/run/session.h"

#include <stdlib.h>

#include "test.h"

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
    dp->request.placement.chunks[0] = (LayerRange){0, 3};
    dp->request.placement.chunks[1] = (LayerRange){3, 6};
    dp->request.placement.chunks[2] = (LayerRange){6, 8};
}

static void a_split_is_told_for_its_step(void) {
    static Dynapipe dp;
    LayerRange stages[PLAN_MAX_STAGES];
    bool found;
    session_with(&dp, "2:1,1,6/5:3,5,0");
    for (dp.next_step = 0; dp.next_step < 8; dp.next_step++) {
        CHECK_OK(session_resplit_told(&dp, stages, &found));
        CHECK_EQ(found, dp.next_step == 2 || dp.next_step == 5);
        if (dp.next_step == 2) { CHECK(stages[1].layer_begin == 1 && stages[1].layer_end == 2); }
        if (dp.next_step == 5) { CHECK(stages[2].layer_begin == 8 && stages[2].layer_end == 8); }
    }
    static const char* const wrong[] = {"2:1,1", "2:1,1,7", "2:3,3,2/4:8,0,0", "2:1,1,6x"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        session_with(&dp, wrong[i]);  // of any step
        CHECK_FAILS(session_resplit_told(&dp, stages, &found), STATUS_BAD_OPTION,
                    "no split of 8 layers onto 3");
    }
}

// --- the record -------------------------------------------------------------------------------------------

static const char place[] = "where the loader stands";

static void moved(Dynapipe* dp) {
    memcpy(dp->resplit.before, dp->request.placement.chunks, sizeof dp->resplit.before);
    dp->request.placement.chunks[0].layer_end = dp->request.placement.chunks[1].layer_begin = 2;
    dp->resplit.has_moved = true;
    dp->resplit.moved_step = 12;
    dp->request.effort = 345;
    dp->resplit.is_due = true;
    dp->resplit.times_then = malloc(3 * sizeof(double));
    for (int r = 0; r < 3; r++) { dp->resplit.times_then[r] = 10 * r + 1; }
}

static void a_checkpoint_keeps_the_split(void) {
    static Dynapipe dp, other;
    const void* position = place;
    size_t num_bytes = sizeof place;
    session_with(&dp, "auto");
    CHECK_OK(session_resplit_position(&dp, &position, &num_bytes));
    CHECK(position == place && num_bytes == sizeof place);  // nothing moved, nothing kept
    moved(&dp);
    for (int i = 0; i < 2; i++) {
        position = place;
        num_bytes = sizeof place;
        CHECK_OK(session_resplit_position(&dp, &position, &num_bytes));
    }
    CHECK(num_bytes > sizeof place && memcmp(position, place, sizeof place) == 0);
    session_with(&other, "auto");
    size_t left_bytes = num_bytes;
    session_resplit_restore(&other, position, &left_bytes);
    CHECK_EQ(left_bytes, sizeof place);
    CHECK(other.resplit.has_restored && other.resplit.has_moved);
    CHECK_EQ(other.resplit.moved_step, 12);
    CHECK_EQ(other.request.effort, 345);
    CHECK(memcmp(other.resplit.restored, dp.request.placement.chunks, 3 * sizeof(LayerRange)) == 0);
    CHECK(memcmp(other.resplit.before, dp.resplit.before, 3 * sizeof(LayerRange)) == 0);
    CHECK(other.resplit.is_due && other.resplit.times_then[2] == 21);
    session_resplit_free(&dp.resplit);
    session_resplit_free(&other.resplit);
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

static void a_step_is_reported_before_layers_move(void) {
    static Dynapipe dp;
    const DynapipeReport_v1 report = {.step = 3};
    session_with(&dp, "auto");
    CHECK_FAILS((Status)dynapipe_report(&dp, &report), STATUS_OUT_OF_RANGE,
                "---> report before dynapipe_resplit()");
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
        session_with(&other, kind == 0 ? "off" : kind == 5 ? "20:2,2,4" : "auto");
        if (kind == 1 || kind == 5) { other.options.stage_split = "3,3,2"; }
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
}

static void going_back_takes_a_tenth(void) {
    ResplitOffer offer = {.present_ns = 1000000, .then_ns = 901000, .steps_left = 10, .is_back = true};
    CHECK(!session_resplit_pays(&offer));
    offer.then_ns = 899000;
    CHECK(session_resplit_pays(&offer));
    offer.then_ns = 901000;
    offer.is_back = false;
    CHECK(session_resplit_pays(&offer));
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

int main(int argc, char** argv) {
    (void)test_seed(argc, argv);
    RUN(the_option_is_a_word_or_steps_with_splits);
    RUN(a_split_is_told_for_its_step);
    RUN(a_checkpoint_keeps_the_split);
    RUN(a_damaged_record_is_left);
    RUN(what_was_looked_at_is_kept);
    RUN(a_restore_forgets_the_position_behind_a_move);
    RUN(a_step_is_reported_before_layers_move);
    RUN(whether_messages_are_pulled_stays);
    RUN(it_is_taken_where_it_belongs);
    RUN(a_rank_that_changes_is_worth_a_look);
    RUN(a_move_wins_a_twentieth_and_what_it_costs);
    RUN(going_back_takes_a_tenth);
    RUN(a_split_rests_and_what_is_told_stays);
    RUN(a_program_that_never_asks_is_told);
    return test_end();
}
