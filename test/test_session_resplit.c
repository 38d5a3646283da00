// test_session_resplit.c -- --resplit as text, and the split that a checkpoint keeps: read back as it was
// written, and taken only where it belongs.
#include "../dynapipe_plugin/run/session.h"

#include "test.h"

// --- the option
// ----------------------------------------------------------------------------------------------

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
    dp->request.stages[0] = (StageLayers){0, 3};
    dp->request.stages[1] = (StageLayers){3, 6};
    dp->request.stages[2] = (StageLayers){6, 8};
}

static void a_split_is_told_for_its_step(void) {
    static Dynapipe dp;
    StageLayers stages[PLAN_MAX_STAGES];
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

// --- the record
// ----------------------------------------------------------------------------------------------

static const char place[] = "where the loader stands";

static void moved(Dynapipe* dp) {
    memcpy(dp->resplit.before, dp->request.stages, sizeof dp->resplit.before);
    dp->request.stages[0].layer_end = dp->request.stages[1].layer_begin = 2;
    dp->resplit.has_moved = true;
    dp->resplit.moved_step = 12;
    dp->request.effort = 345;
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
    CHECK(memcmp(other.resplit.restored, dp.request.stages, 3 * sizeof(StageLayers)) == 0);
    CHECK(memcmp(other.resplit.before, dp.resplit.before, 3 * sizeof(StageLayers)) == 0);
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
        session_with(&other, kind == 0 ? "off" : kind == 5 ? "20:2,2,4" : "auto");
        if (kind == 1 || kind == 5) { other.options.stage_split = "3,3,2"; }
        if (kind == 2) { other.num_stages = 4; }
        if (kind == 3) { other.costs.num_dec_layers = 5; }
        size_t left_bytes = num_bytes;
        session_resplit_restore(&other, position, &left_bytes);
        CHECK_EQ(left_bytes, sizeof place);
        CHECK_EQ(other.resplit.has_restored, kind >= 4);
        CHECK_EQ(other.request.effort, kind >= 4 ? 345 : 0);
    }
    for (size_t cut = 0; cut < num_bytes; cut++) {  // no record, or a part of one: left as it is
        session_with(&other, "auto");
        size_t left_bytes = cut;
        session_resplit_restore(&other, position, &left_bytes);
        CHECK(left_bytes == cut && !other.resplit.has_restored);
    }
    session_resplit_free(&dp.resplit);
}

int main(int argc, char** argv) {
    (void)test_seed(argc, argv);
    RUN(the_option_is_a_word_or_steps_with_splits);
    RUN(a_split_is_told_for_its_step);
    RUN(a_checkpoint_keeps_the_split);
    RUN(whether_messages_are_pulled_stays);
    RUN(it_is_taken_where_it_belongs);
    return test_end();
}
