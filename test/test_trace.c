// test_trace.c -- records survive packing, idle time is right, the trace is valid JSON with every event once.
#include <jansson.h>
#include <stdbool.h>
#include <unistd.h>

#include "../dynapipe_plugin/run/trace.h"
#include "test.h"
#include "toy_plan.h"

static uint64_t seed;

static TraceRank random_rank(Rng* rng, int32_t rank, Arena* arena) {
    TraceRank out = {
        .rank = rank, .num_events = rng_between(rng, 0, 40), .begin_ns = rng_between(rng, 0, 1000)};
    out.events = ARENA_NEW(arena, TraceEvent, out.num_events);
    out.end_ns = out.begin_ns;
    for (int32_t i = 0; i < out.num_events; i++) {
        TraceEvent* e = &out.events[i];
        int32_t kind = rng_between(rng, 0, TRACE_KIND_COUNT - 1);
        *e = (TraceEvent){.kind = kind,
                          .chunk = kind < INSTR_COUNT ? rng_between(rng, 0, 3) : -1,
                          .mb = kind < INSTR_COUNT ? rng_between(rng, 0, 9) : -1,
                          .peer = kind >= INSTR_RECV_ACT && kind < INSTR_COUNT ? rng_between(rng, 0, 3) : -1,
                          .begin_ns = out.end_ns + rng_between(rng, 0, 500),
                          .wait_ns = rng_between(rng, 0, 3)};
        out.end_ns = e->end_ns = e->begin_ns + rng_between(rng, 0, 900);
        if (kind <= INSTR_REC) { out.busy_ns += e->end_ns - e->begin_ns; }
    }
    return out;
}

// The same at another time: steps follow each other.
static void move_rank(TraceRank* rank, int64_t by_ns) {
    rank->begin_ns += by_ns;
    rank->end_ns += by_ns;
    for (int32_t i = 0; i < rank->num_events; i++) {
        rank->events[i].begin_ns += by_ns;
        rank->events[i].end_ns += by_ns;
    }
}

static bool same_rank(const TraceRank* a, const TraceRank* b) {
    bool same = a->rank == b->rank && a->num_events == b->num_events && a->begin_ns == b->begin_ns &&
                a->end_ns == b->end_ns && a->busy_ns == b->busy_ns && a->wait_ns == b->wait_ns;
    for (int32_t i = 0; same && i < a->num_events; i++) {
        const TraceEvent *x = &a->events[i], *y = &b->events[i];
        same = x->kind == y->kind && x->chunk == y->chunk && x->mb == y->mb && x->peer == y->peer &&
               x->begin_ns == y->begin_ns && x->end_ns == y->end_ns && x->wait_ns == y->wait_ns;
    }
    return same;
}

static void records_survive_packing(void) {
    Arena arena = {0};
    Rng rng = rng_seed(seed);
    for (int trial = 0; trial < 50; trial++) {
        TraceRank rank = random_rank(&rng, trial, &arena), back;
        size_t num_bytes = trace_rank_packed_bytes(&rank);
        unsigned char* bytes = malloc(num_bytes);
        trace_rank_pack(&rank, bytes);
        CHECK_OK(trace_rank_unpack(&back, bytes, num_bytes, &arena));
        CHECK(same_rank(&rank, &back));
        for (size_t cut = 0; cut < num_bytes; cut += 1 + num_bytes / 7) {
            CHECK_FAILS(trace_rank_unpack(&back, bytes, cut, &arena), STATUS_BAD_FORMAT, "trace:");
        }
        bytes[3] ^= 1;
        CHECK_FAILS(trace_rank_unpack(&back, bytes, num_bytes, &arena), STATUS_BAD_FORMAT,
                    "---> run the same");
        free(bytes);
        arena_reset(&arena);
    }
    arena_free(&arena);
}

static void idle_is_what_no_job_fills(void) {
    PlanInstr first[] = {{.kind = INSTR_FWD, .begin_ns = 0, .end_ns = 30},
                         {.kind = INSTR_SEND_ACT, .begin_ns = 30, .end_ns = 90},
                         {.kind = INSTR_BWD, .begin_ns = 40, .end_ns = 90}};
    PlanInstr second[] = {{.kind = INSTR_WGT, .begin_ns = 10, .end_ns = 20}};
    PlanRank lists[] = {{.num_instrs = 3, .instrs = first}, {.num_instrs = 1, .instrs = second}};
    Plan plan = {.P = 2, .R = 1, .makespan_ns = 100, .ranks = lists};
    CHECK_NEAR(trace_rank_idle_predicted(&plan, 0), 0.2, 1e-12);
    CHECK_NEAR(trace_rank_idle_predicted(&plan, 1), 0.9, 1e-12);
}

typedef struct {
    int32_t num_jobs[3], num_transfers[3], num_others[3], num_names;
    double first_us[3];
} Tally;

static void tally_events(const json_t* events, Tally* tally) {
    *tally = (Tally){.first_us = {1e30, 1e30, 1e30}};
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t* e = json_array_get(events, i);
        const char* phase = json_string_value(json_object_get(e, "ph"));
        int32_t pid = (int32_t)json_integer_value(json_object_get(e, "pid"));
        int32_t tid = (int32_t)json_integer_value(json_object_get(e, "tid"));
        CHECK(phase != NULL && (pid == 1 || pid == 2));
        if (phase == NULL || pid < 1 || pid > 2) { continue; }
        if (strcmp(phase, "M") == 0) {
            tally->num_names++;
            continue;
        }
        const char* category = json_string_value(json_object_get(e, "cat"));
        double begin_us = json_number_value(json_object_get(e, "ts"));
        CHECK(category != NULL && json_number_value(json_object_get(e, "dur")) >= 0);
        CHECK_EQ(strcmp(category, "transfer") == 0, tid % 2);
        if (begin_us < tally->first_us[pid]) { tally->first_us[pid] = begin_us; }
        *(strcmp(category, "job") == 0        ? &tally->num_jobs[pid]
          : strcmp(category, "transfer") == 0 ? &tally->num_transfers[pid]
                                              : &tally->num_others[pid]) += 1;
    }
}

static bool is_wait(int32_t kind) {
    return kind == INSTR_WAIT_ACT || kind == INSTR_WAIT_GRAD || kind == INSTR_WAIT_FACT;
}

static void the_file_is_json_with_every_event_once(void) {
    Arena arena = {0};
    Rng rng = rng_seed(seed + 1);
    ToyPlan toy;
    toy_plan_make(&toy, &rng, 2, 2, 8, &arena);
    char path[] = "/tmp/test_trace_XXXXXX";
    close(mkstemp(path));
    TraceWriter writer;
    Tally expected = {0}, found;
    CHECK_OK(trace_writer_open(&writer, path));
    for (int64_t step = 0; step < 3; step++) {
        TraceRank ranks[4];
        for (int32_t r = 0; r < 4; r++) {
            ranks[3 - r] = random_rank(&rng, r, &arena);
            move_rank(&ranks[3 - r], step * 10000000);
            for (int32_t i = 0; i < ranks[3 - r].num_events; i++) {
                int32_t kind = ranks[3 - r].events[i].kind;
                expected.num_jobs[2] += kind <= INSTR_REC;
                expected.num_others[2] += kind >= INSTR_COUNT || is_wait(kind);
                expected.num_transfers[2] += kind > INSTR_REC && kind < INSTR_COUNT && !is_wait(kind);
            }
            for (int32_t i = 0; i < toy.plan.ranks[r].num_instrs; i++) {
                int32_t kind = toy.plan.ranks[r].instrs[i].kind;
                expected.num_jobs[1] += kind <= INSTR_REC;
                expected.num_transfers[1] += kind > INSTR_REC && !is_wait(kind);
            }
        }
        expected.num_others[2]++;  // the step itself
        TraceStep about = {.step = step, .plan = &toy.plan, .ranks = ranks, .num_ranks = 4};
        CHECK_OK(trace_writer_add_step(&writer, &about));
    }
    TraceStep three = {.step = 3, .plan = &toy.plan, .num_ranks = 3};
    CHECK_FAILS(trace_writer_add_step(&writer, &three), STATUS_OUT_OF_RANGE, "3 records");
    CHECK_OK(trace_writer_close(&writer));
    CHECK_OK(trace_writer_close(&writer));
    json_error_t error;
    json_t* root = json_load_file(path, 0, &error);
    CHECK(root != NULL);
    if (root == NULL) { printf("%s:%d: %s\n", path, error.line, error.text); }
    tally_events(json_object_get(root, "traceEvents"), &found);
    for (int process = 1; process <= 2; process++) {
        CHECK_EQ(found.num_jobs[process], expected.num_jobs[process]);
        CHECK_EQ(found.num_transfers[process], expected.num_transfers[process]);
        CHECK_EQ(found.num_others[process], expected.num_others[process]);
        CHECK(found.first_us[process] >= 0);
    }
    CHECK_EQ(found.num_names, 2 * (1 + 2 * 4) + 1);
    json_decref(root);
    unlink(path);
    arena_free(&arena);
}

static void a_path_that_cannot_be_written_is_named(void) {
    TraceWriter writer;
    CHECK_FAILS(trace_writer_open(&writer, "/nonexistent/trace.json"), STATUS_IO, "/nonexistent/trace.json");
    CHECK_EQ(strcmp(trace_kind_text(INSTR_SEND_ACT), "send_act"), 0);
    CHECK_EQ(strcmp(trace_kind_text(TRACE_SHARE), "share"), 0);
    CHECK_EQ(strcmp(trace_kind_text(TRACE_KIND_COUNT), "unknown"), 0);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(records_survive_packing);
    RUN(idle_is_what_no_job_fills);
    RUN(the_file_is_json_with_every_event_once);
    RUN(a_path_that_cannot_be_written_is_named);
    return test_end();
}
