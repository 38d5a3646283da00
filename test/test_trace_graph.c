// test_trace_graph.c -- a step that ran, replayed from its file: the same ends, and laws of what might have
// been otherwise.
#include "../tool/trace_view.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "random_plan.h"
#include "test.h"

static uint64_t seed;
static char path[] = "/tmp/test_trace_graph_XXXXXX";
static TraceReplay replay;

// A random plan as if it had run, its times warped by a random clock that never goes back: jobs take up to
// ten times as long as others, and still everything comes after what it waits for. Returns the last job's
// end.
static int64_t write_step(Rng* rng, bool exact, Arena* arena) {
    RandomPlan about = {.P = rng_between(rng, 1, 8), .R = rng_between(rng, 1, 2), .num_samples = 20};
    Plan plan;
    about.num_layers = about.P + 2;
    about.max_tokens = 50;
    about.recompute = rng_below(rng, 2);
    about.placed = rng_below(rng, 2);
    random_plan(&plan, rng, &about, arena);
    int64_t* clock_ns = ARENA_NEW(arena, int64_t, plan.makespan_ns + 1);
    for (int64_t i = 0; i < plan.makespan_ns; i++) {
        clock_ns[i + 1] = clock_ns[i] + (exact ? 1000 : rng_between(rng, 200, 2000));
    }
    SessionErrors errors = {100, 130, 25, -5, 10};
    TraceClock clocks[16] = {{0, 0}, {-700, 30}};
    TraceStep step = {.step = 7,
                      .plan = &plan,
                      .plan_hash = 0x123,
                      .errors = &errors,
                      .clocks = clocks,
                      .num_ranks = plan.P * plan.R};
    TraceRank* ranks = ARENA_NEW(arena, TraceRank, step.num_ranks);
    step.ranks = ranks;
    int64_t last_ns = 0;
    for (int32_t r = 0; r < step.num_ranks; r++) {
        PlanRank* list = &plan.ranks[r];
        int64_t before_ns = 0;
        ranks[r] = (TraceRank){.rank = r, .events = ARENA_NEW(arena, TraceEvent, list->num_instrs + 1)};
        for (int32_t i = 0; i < list->num_instrs; i++) {
            PlanInstr* instr = &list->instrs[i];
            int64_t begin_ns = clock_ns[instr->begin_ns], end_ns = clock_ns[instr->end_ns], wait_ns = 0;
            instr->begin_ns *= 1000;
            instr->end_ns *= 1000;
            if (plan_instr_is_job((InstrKind)instr->kind)) {
                wait_ns = begin_ns - before_ns;
                before_ns = end_ns;
                last_ns = end_ns > last_ns ? end_ns : last_ns;
            }
            ranks[r].events[ranks[r].num_events++] =
                (TraceEvent){instr->kind, instr->chunk, instr->mb, instr->peer, begin_ns, end_ns, wait_ns};
        }
    }
    CHECK_OK(trace_write(path, &step));
    return last_ns;
}

static int64_t what_if_ns(const char* row, Arena* arena) {
    CHECK_OK(trace_replay_make(&replay, path, row, arena));
    return replay.rows[0].ns;
}

static void a_step_ends_when_it_did_and_changes_keep_their_laws(void) {
    Rng rng = rng_seed(seed);
    for (int32_t round = 0; round < test_rounds(60); round++) {
        Arena arena = {0};
        bool exact = round % 3 == 0;
        int64_t last_ns = write_step(&rng, exact, &arena), sum_ns = 0, jobs_ns = 0, ranks_ns = 0;
        int64_t ns = what_if_ns("link=1x", &arena);
        CHECK_EQ(ns, last_ns);
        CHECK_EQ(replay.replayed_ns, last_ns);
        CHECK_EQ(replay.measured_ns, last_ns);
        CHECK(replay.step == 7 && replay.has_errors && replay.errors.waiting_ns == 10);
        CHECK(strcmp(replay.plan_hash, "0000000000000123") == 0 && replay.errors.transfers_ns == -5);
        const int32_t num_ranks = replay.P * replay.R;
        CHECK_EQ(replay.clock_error_ns, num_ranks > 1 ? 30 : 0);
        for (int32_t k = 0; k < TRACE_PARTS; k++) { sum_ns += replay.part_ns[k]; }
        for (int32_t k = 0; k < TRACE_PART_WIRE; k++) { jobs_ns += replay.part_ns[k]; }
        for (int32_t r = 0; r < num_ranks; r++) { ranks_ns += replay.rank_jobs_ns[r]; }
        CHECK_EQ(sum_ns, ns);
        CHECK_EQ(ranks_ns, jobs_ns);
        CHECK(what_if_ns("late=0", &arena) <= ns);
        CHECK_EQ(what_if_ns("late=0+link=2x+link=3x", &arena), what_if_ns("link=6x+late=0", &arena));
        int64_t twice_ns = what_if_ns("link=2x", &arena);
        CHECK(twice_ns <= ns && what_if_ns("link=4x", &arena) <= twice_ns);
        char all[512] = "link=2x";
        for (int32_t r = 0; r < num_ranks; r++) {
            char row[32];
            snprintf(row, sizeof row, "rank=%d:2x", r);
            int64_t faster_ns = what_if_ns(row, &arena);
            CHECK(faster_ns <= ns && faster_ns >= ns / 2);
            snprintf(row, sizeof row, "rank=%d:0.5x", r);
            CHECK(what_if_ns(row, &arena) >= ns);
            snprintf(all + strlen(all), sizeof all - strlen(all), "+rank=%d:2x", r);
        }
        int64_t all_ns = what_if_ns(all, &arena);
        CHECK(all_ns <= ns && all_ns >= ns / 2);
        if (exact) {  // every job took what was planned
            CHECK_EQ(what_if_ns("jobs=planned", &arena), ns);
            CHECK_EQ(what_if_ns("jitter=0", &arena), ns);
        }
        arena_free(&arena);
    }
    const char* const wrong[] = {"",       "link",     "link=0x", "link=2",           "rank=99:2x",
                                 "rank=0", "jitter=1", "late=0+", "link=20x+link=20x"};
    Arena arena = {0};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        CHECK_FAILS(trace_replay_make(&replay, path, wrong[i], &arena), STATUS_BAD_OPTION, "--->");
    }
    arena_free(&arena);
}

// `text` with a word that is another, once, at its first place.
static void write_text(const char* text, const char* word, const char* other) {
    const char* at = strstr(text, word);
    FILE* file = fopen(path, "w");
    CHECK(at != NULL && file != NULL);
    if (at == NULL || file == NULL) { return; }
    fprintf(file, "%.*s%s%s", (int)(at - text), text, other, at + strlen(word));
    fclose(file);
}

#define EVENT(kind, rank, mb, chunk, peer, begin, end, more)                                               \
    "{\"ph\":\"X\",\"pid\":2,\"cat\":\"x\",\"args\":{\"kind\":\"" kind "\",\"rank\":" #rank ",\"mb\":" #mb \
    ",\"chunk\":" #chunk ",\"peer\":" #peer ",\"step\":1,\"begin_ns\":" #begin ",\"end_ns\":" #end more "}}"

// A message that begins to move when its sender is done with another job; then what cannot be is named.
static void a_late_message_and_broken_files(void) {
    static const char text[] =
        "{\"otherData\":{\"format\":\"" TRACE_FORMAT "\",\"stages\":2,\"replicas\":1,\"microbatches\":2,"
        "\"stage_of\":[0,1],\"head\":0},\"traceEvents\":["                                //
        EVENT("fwd", 0, 0, 0, -1, 0, 10000000, "") ","                                    //
        EVENT("send_act", 0, 0, 0, 1, 10000000, 41000000, ",\"planned_ns\":1000000") ","  //
        EVENT("fwd", 0, 1, 0, -1, 10000000, 40000000, "") ","                             //
        EVENT("recv_act", 1, 0, 1, 0, 0, 41000000, "") ","                                //
        EVENT("fwd", 1, 0, 1, -1, 41000000, 50000000, ",\"wait_ns\":41000000") "]}";
    static const struct {
        const char *word, *other, *expected;
    } cases[] = {{":40000000", ":4000", "event 2: times that cannot be --->"},
                 {":40000000", ":99999999999999999", "event 2: times that cannot be --->"},
                 {"fwd", "fwdd", "event 0: no such kind of event or microbatch --->"},
                 {"\"mb\":1", "\"mb\":2", "event 2: no such kind of event or microbatch --->"},
                 {"\"mb\":1", "\"mb\":0", "rank 0: fwd of microbatch 0 is there twice --->"},
                 {"\"rank\":0", "\"rank\":1", "event 0: no such chunk on this rank --->"},
                 {"[0,1]", "[0,2]", "no such stages, replicas, microbatches or chunks --->"},
                 {"\"microbatches\":2", "\"microbatches\":60000", "not a whole step --->"},
                 {TRACE_FORMAT, "other", "no format"}};
    Arena arena = {0};
    write_text(text, "fwd", "fwd");
    CHECK_EQ(what_if_ns("link=1x", &arena), 50000000);
    CHECK_EQ(replay.part_ns[TRACE_PART_LATE], 30000000);
    CHECK_EQ(what_if_ns("late=0", &arena), 40000000);  // the sender's own end
    CHECK_EQ(what_if_ns("link=2x", &arena), 49500000);
    CHECK_EQ(what_if_ns("rank=0:2x", &arena), 45000000);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_text(text, cases[i].word, cases[i].other);
        CHECK_FAILS(trace_replay_make(&replay, path, NULL, &arena), STATUS_BAD_FORMAT, cases[i].expected);
    }
    arena_free(&arena);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    close(mkstemp(path));
    RUN(a_step_ends_when_it_did_and_changes_keep_their_laws);
    RUN(a_late_message_and_broken_files);
    unlink(path);
    return test_end();
}
