// test_trace_writer.c -- the trace is JSON with every event once, in rows that nest, with arrows and memory.
#include "../dynapipe_plugin/run/trace.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../dynapipe_plugin/plan/memory_layout.h"
#include "../dynapipe_plugin/plan/plan_message.h"
#include "random_plan.h"
#include "test.h"

static uint64_t seed;

enum { NUM_STEPS = 2 };

// --- a file ------------------------------------------------------------------------------------------------

// What a rank might have done of its list: jobs one after the other, about when they were planned; transfers
// begun early and seen late, so that they overlap as they like.
static TraceRank measured_rank(Rng* rng, const Plan* plan, int32_t r, int64_t zero_ns, Arena* arena) {
    const PlanRank* list = &plan->ranks[r];
    TraceRank out = {.rank = r, .begin_ns = zero_ns, .end_ns = zero_ns};
    out.events = ARENA_NEW(arena, TraceEvent, list->num_instrs + 1);
    for (int32_t i = 0; i < list->num_instrs; i++) {
        const PlanInstr* instr = &list->instrs[i];
        if (plan_instr_is_wait(instr->kind)) { continue; }
        TraceEvent* e = &out.events[out.num_events++];
        *e = (TraceEvent){.kind = instr->kind, .chunk = instr->chunk, .mb = instr->mb, .peer = instr->peer};
        int64_t begin_ns = zero_ns + 1000 * instr->begin_ns, ns = 1000 * (instr->end_ns - instr->begin_ns);
        bool is_job = trace_kind_is_job(instr->kind);
        e->begin_ns = !is_job                 ? begin_ns - rng_between(rng, 0, 3000)
                      : out.end_ns > begin_ns ? out.end_ns
                                              : begin_ns;
        e->end_ns = is_job ? e->begin_ns + ns : begin_ns + ns + rng_between(rng, 1, 900);
        if (e->begin_ns < zero_ns) { e->begin_ns = zero_ns; }
        if (is_job) { out.end_ns = e->end_ns; }
    }
    out.events[out.num_events++] = (TraceEvent){.kind = TRACE_REDUCE,
                                                .chunk = -1,
                                                .mb = -1,
                                                .peer = -1,
                                                .begin_ns = out.end_ns,
                                                .end_ns = out.end_ns + 5};
    return out;
}

// Writes NUM_STEPS steps of a random plan; returns the file's events.
static json_t* make_trace(Plan* plan, Rng* rng, bool has_measured, Arena* arena) {
    RandomPlan about = {.P = rng_between(rng, 2, 5), .R = rng_between(rng, 1, 2), .num_samples = 20};
    about.num_layers = about.P + 2;
    about.max_tokens = 50;
    about.placed = rng_below(rng, 2);
    random_plan(plan, rng, &about, arena);
    char path[] = "/tmp/test_trace_writer_XXXXXX";
    close(mkstemp(path));
    TraceWriter writer;
    CHECK_OK(trace_writer_open(&writer, path));
    int32_t num_ranks = plan->P * plan->R;
    for (int64_t step = 0; step < NUM_STEPS; step++) {
        TraceRank* ranks = ARENA_NEW(arena, TraceRank, num_ranks);
        for (int32_t r = 0; r < num_ranks; r++) {
            ranks[num_ranks - 1 - r] = measured_rank(rng, plan, r, 77 + step * 1000000000, arena);
        }
        TraceStep of = {
            .step = step, .plan = plan, .ranks = has_measured ? ranks : NULL, .num_ranks = num_ranks};
        CHECK_OK(trace_writer_add_step(&writer, &of));
    }
    CHECK_OK(trace_writer_close(&writer));
    CHECK_OK(trace_writer_close(&writer));
    json_error_t error;
    json_t* root = json_load_file(path, 0, &error);
    if (root == NULL) { printf("%s:%d: %s\n", path, error.line, error.text); }
    CHECK(root != NULL);
    json_t* events = json_incref(json_object_get(root, "traceEvents"));
    json_decref(root);
    unlink(path);
    return events;
}

static const char* text_of(const json_t* event, const char* key) {
    const char* text = json_string_value(json_object_get(event, key));
    return text != NULL ? text : "";
}

static int32_t int_of(const json_t* event, const char* key) {
    return (int32_t)json_integer_value(json_object_get(event, key));
}

static int32_t arg_of(const json_t* event, const char* key) {
    return int_of(json_object_get(event, "args"), key);
}

static int64_t ns_of(const json_t* event, const char* key) {
    return (int64_t)(json_number_value(json_object_get(event, key)) * 1e3 + 0.5);
}

static bool is_phase(const json_t* event, const char* phase) {
    return strcmp(text_of(event, "ph"), phase) == 0;
}

static bool is_of_row(const json_t* a, const json_t* b) {
    return int_of(a, "pid") == int_of(b, "pid") && int_of(a, "tid") == int_of(b, "tid");
}

// The event of that row during which `at_ns` is; NULL: none.
static const json_t* event_at(const json_t* events, const json_t* row, int64_t at_ns) {
    size_t i;
    json_t* e;
    json_array_foreach((json_t*)(uintptr_t)events, i, e) {
        if (!is_phase(e, "X") || !is_of_row(e, row)) { continue; }
        if (ns_of(e, "ts") <= at_ns && at_ns < ns_of(e, "ts") + ns_of(e, "dur")) { return e; }
    }
    return NULL;
}

// --- laws --------------------------------------------------------------------------------------------------

static void every_instruction_is_there_once(void) {
    Rng rng = rng_seed(seed);
    for (int trial = 0; trial < 20; trial++) {
        Arena arena = {0};
        Plan plan;
        int32_t expected[3] = {0}, found[3] = {0};
        json_t* events = make_trace(&plan, &rng, trial > 0, &arena);
        for (int32_t r = 0; r < plan.P * plan.R; r++) {
            for (int32_t i = 0; i < plan.ranks[r].num_instrs; i++) {
                expected[1] += NUM_STEPS * !plan_instr_is_wait(plan.ranks[r].instrs[i].kind);
            }
        }
        expected[2] = trial > 0 ? expected[1] + NUM_STEPS * (plan.P * plan.R + 1) : 0;
        size_t i;
        json_t* e;
        json_array_foreach(events, i, e) {
            CHECK(int_of(e, "pid") == 1 || (int_of(e, "pid") == 2 && trial > 0));
            if (is_phase(e, "X")) { found[int_of(e, "pid")]++; }
            if (!is_phase(e, "M")) { CHECK(ns_of(e, "ts") >= 0); }
        }
        CHECK_EQ(found[1], expected[1]);
        CHECK_EQ(found[2], expected[2]);
        json_decref(events);
        arena_free(&arena);
    }
}

// Whatever a row has, it comes one after the other; a row has one kind of thing, of one rank, and one name.
static void rows_nest_and_have_one_name(void) {
    Rng rng = rng_seed(seed + 1);
    int32_t num_second_lanes = 0;
    for (int trial = 0; trial < 10; trial++) {
        Arena arena = {0};
        Plan plan;
        json_t* events = make_trace(&plan, &rng, true, &arena);
        size_t i, k;
        json_t *e, *other;
        json_array_foreach(events, i, e) {
            if (!is_phase(e, "X")) { continue; }
            int32_t num_names = 0;
            bool is_transfer = strcmp(text_of(e, "cat"), "transfer") == 0;
            json_array_foreach(events, k, other) {
                if (!is_of_row(e, other)) { continue; }
                if (strcmp(text_of(other, "name"), "thread_name") == 0) {
                    const char* name = text_of(json_object_get(other, "args"), "name");
                    num_names++;
                    num_second_lanes += strstr(name, "receives (2)") != NULL;
                    CHECK_EQ(is_transfer, strstr(name, "receives") != NULL || strstr(name, "sends") != NULL);
                }
                if (!is_phase(other, "X") || k == i) { continue; }
                int64_t begin_ns = ns_of(e, "ts"), other_ns = ns_of(other, "ts");
                CHECK(begin_ns + ns_of(e, "dur") <= other_ns || other_ns + ns_of(other, "dur") <= begin_ns);
                CHECK_EQ(arg_of(e, "rank"), arg_of(other, "rank"));
                CHECK_EQ(is_transfer, strcmp(text_of(other, "cat"), "transfer") == 0);
            }
            CHECK_EQ(num_names, 1);
        }
        json_decref(events);
        arena_free(&arena);
    }
    CHECK(num_second_lanes > 0);  // else this test has seen no overlap
}

// Sends with a length that were begun before they arrived: both ends of each have an arrow's end inside.
static void arrows_lead_from_send_to_receive(void) {
    Rng rng = rng_seed(seed + 2);
    for (int trial = 0; trial < 10; trial++) {
        Arena arena = {0};
        Plan plan;
        json_t* events = make_trace(&plan, &rng, true, &arena);
        int32_t num_sends = 0, num_arrows = 0;
        size_t i, k;
        json_t *e, *other, *end;
        json_array_foreach(events, i, e) {
            num_sends +=
                is_phase(e, "X") && strstr(text_of(e, "name"), "send_") != NULL && ns_of(e, "dur") > 0;
            if (!is_phase(e, "s")) { continue; }
            num_arrows++;
            end = NULL;
            json_array_foreach(events, k, other) {
                bool is_it = is_phase(other, "f") && int_of(other, "id") == int_of(e, "id");
                CHECK(!is_it || end == NULL);
                if (is_it) { end = other; }
            }
            CHECK(end != NULL && ns_of(end, "ts") >= ns_of(e, "ts") &&
                  int_of(end, "pid") == int_of(e, "pid"));
            if (end == NULL) { continue; }
            const json_t *from = event_at(events, e, ns_of(e, "ts")),
                         *to = event_at(events, end, ns_of(end, "ts"));
            CHECK(from != NULL && to != NULL);
            if (from == NULL || to == NULL) { continue; }
            const char *sent = text_of(from, "name"), *received = text_of(to, "name");
            CHECK(strncmp(sent, "send_", 5) == 0 && strncmp(received, "recv_", 5) == 0);
            CHECK_EQ(strncmp(sent + 5, received + 5, 3), 0);
            CHECK_EQ(arg_of(from, "mb"), arg_of(to, "mb"));
            CHECK_EQ(arg_of(from, "step"), arg_of(to, "step"));
            CHECK_EQ(arg_of(from, "peer"), arg_of(to, "rank"));
            CHECK_EQ(arg_of(to, "peer"), arg_of(from, "rank"));
        }
        CHECK_EQ(num_arrows, num_sends);
        json_decref(events);
        arena_free(&arena);
    }
}

// A rank's job begins or ends then, or a step does.
static bool is_turn(const json_t* events, int32_t rank, int64_t at_ns) {
    size_t i;
    json_t* e;
    json_array_foreach((json_t*)(uintptr_t)events, i, e) {
        bool is_step = strcmp(text_of(e, "cat"), "step") == 0;
        bool is_job = strcmp(text_of(e, "cat"), "job") == 0 && arg_of(e, "rank") == rank;
        if (int_of(e, "pid") != 2 || (!is_step && !is_job)) { continue; }
        if (ns_of(e, "ts") == at_ns || (is_job && ns_of(e, "ts") + ns_of(e, "dur") == at_ns)) { return true; }
    }
    return false;
}

// Every rank's counter has the peak of its list, predicted and by whatever times, and ends with nothing.
static void memory_is_that_of_the_lists(void) {
    Rng rng = rng_seed(seed + 3);
    for (int trial = 0; trial < 10; trial++) {
        Arena arena = {0};
        Plan plan;
        json_t* events = make_trace(&plan, &rng, true, &arena);
        for (int32_t r = 0; r < plan.P * plan.R; r++) {
            MemoryCurve curve;
            double most[3] = {0}, last[3] = {1, 1, 1};
            int64_t last_ns[3] = {0};
            char name[32];
            size_t i;
            json_t* e;
            CHECK_OK(memory_curve_make(&curve, &plan.ranks[r], MEMORY_BUFFERS, &arena));
            snprintf(name, sizeof name, "rank %d memory", r);
            json_array_foreach(events, i, e) {
                if (!is_phase(e, "C") || strcmp(text_of(e, "name"), name) != 0) { continue; }
                int32_t process = int_of(e, "pid");
                last[process] = json_number_value(json_object_get(json_object_get(e, "args"), "MiB"));
                most[process] = last[process] > most[process] ? last[process] : most[process];
                CHECK(ns_of(e, "ts") >= last_ns[process]);
                last_ns[process] = ns_of(e, "ts");
                CHECK(process == 1 || is_turn(events, r, last_ns[2]));
            }
            for (int process = 1; process <= 2; process++) {
                CHECK_NEAR(most[process], (double)curve.peak_bytes / 1048576, 1e-3);
                CHECK_NEAR(last[process], 0, 1e-12);
            }
        }
        json_decref(events);
        arena_free(&arena);
    }
}

static void what_cannot_be_written_is_named(void) {
    TraceWriter writer;
    Arena arena = {0};
    Rng rng = rng_seed(seed);
    Plan plan;
    RandomPlan about = {.P = 2, .R = 2, .num_samples = 4, .num_layers = 2, .max_tokens = 9};
    random_plan(&plan, &rng, &about, &arena);
    TraceStep three = {.plan = &plan, .num_ranks = 3};
    CHECK_FAILS(trace_writer_open(&writer, "/nonexistent/trace.json"), STATUS_IO, "/nonexistent/trace.json");
    CHECK_OK(trace_writer_open(&writer, "/dev/null"));
    CHECK_FAILS(trace_writer_add_step(&writer, &three), STATUS_OUT_OF_RANGE, "3 records");
    CHECK_OK(trace_writer_close(&writer));
    arena_free(&arena);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(every_instruction_is_there_once);
    RUN(rows_nest_and_have_one_name);
    RUN(arrows_lead_from_send_to_receive);
    RUN(memory_is_that_of_the_lists);
    RUN(what_cannot_be_written_is_named);
    return test_end();
}
