// test_trace.c -- the trace is JSON with every event once, in rows that nest, with arrows and memory.
#include "../dynapipe_plugin/run/trace.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../dynapipe_plugin/plan/memory_layout.h"
#include "../dynapipe_plugin/plan/plan_message.h"
#include "random_plan.h"
#include "test.h"

static uint64_t seed;

// --- a file ------------------------------------------------------------------------------------------------

// What a rank might have done of its list: jobs one after the other, about when they were planned; transfers
// begun early and seen late, so that they overlap as they like.
static TraceRank measured_rank(Rng* rng, const Plan* plan, int32_t r, int64_t zero_ns, Arena* arena) {
    const PlanRank* list = &plan->ranks[r];
    TraceRank out = {.rank = r, .begin_ns = zero_ns, .end_ns = zero_ns};
    out.events = ARENA_NEW(arena, TraceEvent, list->num_instrs + 1);
    for (int32_t i = 0; i < list->num_instrs; i++) {
        const PlanInstr* instr = &list->instrs[i];
        TraceEvent* e = &out.events[out.num_events++];
        *e = (TraceEvent){.kind = instr->kind, .chunk = instr->chunk, .mb = instr->mb, .peer = instr->peer};
        int64_t begin_ns = zero_ns + 1000 * instr->begin_ns, ns = 1000 * (instr->end_ns - instr->begin_ns);
        bool is_job = plan_instr_is_job((InstrKind)instr->kind);
        if (plan_instr_is_wait(instr->kind)) { begin_ns = ns = 0, is_job = true; }  // once it is there
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

// Writes a step of a random plan; returns the file's events.
static json_t* make_trace(Plan* plan, Rng* rng, Arena* arena) {
    RandomPlan about = {.P = rng_between(rng, 2, 5), .R = rng_between(rng, 1, 2), .num_samples = 20};
    about.num_layers = about.P + 2;
    about.max_tokens = 50;
    about.placed = rng_below(rng, 2);
    random_plan(plan, rng, &about, arena);
    char path[] = "/tmp/test_trace_writer_XXXXXX";
    close(mkstemp(path));
    int32_t num_ranks = plan->P * plan->R;
    TraceRank* ranks = ARENA_NEW(arena, TraceRank, num_ranks);
    for (int32_t r = 0; r < num_ranks; r++) {
        ranks[num_ranks - 1 - r] = measured_rank(rng, plan, r, 77000000, arena);
    }
    CHECK_OK(trace_write(path, 7, plan, ranks));
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

// Rows: one kind of thing, of one rank, with one name, one after the other. Returns how many names are those
// of second lanes.
static int32_t check_rows(const json_t* events) {
    int32_t num_second_lanes = 0;
    size_t i, k;
    json_t *e, *other;
    json_array_foreach((json_t*)(uintptr_t)events, i, e) {
        if (!is_phase(e, "X")) { continue; }
        int32_t num_names = 0;
        bool is_transfer = strcmp(text_of(e, "cat"), "transfer") == 0;
        json_array_foreach((json_t*)(uintptr_t)events, k, other) {
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
    return num_second_lanes;
}

// Every send with a length has an arrow, from inside it into its receive.
static void check_arrows(const json_t* events) {
    int32_t num_sends = 0, num_arrows = 0;
    size_t i, k;
    json_t *e, *other;
    json_array_foreach((json_t*)(uintptr_t)events, i, e) {
        num_sends += is_phase(e, "X") && strstr(text_of(e, "name"), "send_") != NULL && ns_of(e, "dur") > 0;
        if (!is_phase(e, "s")) { continue; }
        const json_t *end = NULL, *from = event_at(events, e, ns_of(e, "ts")), *to = NULL;
        num_arrows++;
        json_array_foreach((json_t*)(uintptr_t)events, k, other) {
            if (!is_phase(other, "f") || int_of(other, "id") != int_of(e, "id")) { continue; }
            CHECK(end == NULL);
            end = other;
            to = event_at(events, end, ns_of(end, "ts"));
        }
        CHECK(from != NULL && to != NULL);
        if (from == NULL || to == NULL) { continue; }
        const char *sent = text_of(from, "name"), *received = text_of(to, "name");
        CHECK(ns_of(end, "ts") >= ns_of(e, "ts") && int_of(end, "pid") == int_of(e, "pid"));
        CHECK(strncmp(sent, "send_", 5) == 0 && strncmp(received, "recv_", 5) == 0);
        CHECK_EQ(strncmp(sent + 5, received + 5, 3), 0);
        CHECK_EQ(arg_of(from, "mb"), arg_of(to, "mb"));
        CHECK_EQ(arg_of(from, "peer"), arg_of(to, "rank"));
        CHECK_EQ(arg_of(to, "peer"), arg_of(from, "rank"));
    }
    CHECK_EQ(num_arrows, num_sends);
}

// A rank's counter has the peak of its list, predicted and by whatever times, and ends with nothing.
static void check_memory(const json_t* events, const Plan* plan, int32_t r, Arena* arena) {
    MemoryCurve curve;
    double most[3] = {0}, last[3] = {1, 1, 1};
    int64_t last_ns[3] = {0};
    char name[32];
    size_t i;
    json_t* e;
    CHECK_OK(memory_curve_make(&curve, &plan->ranks[r], MEMORY_BUFFERS, arena));
    snprintf(name, sizeof name, "rank %d memory", r);
    json_array_foreach((json_t*)(uintptr_t)events, i, e) {
        if (!is_phase(e, "C") || strcmp(text_of(e, "name"), name) != 0) { continue; }
        int32_t process = int_of(e, "pid");
        last[process] = json_number_value(json_object_get(json_object_get(e, "args"), "MiB"));
        most[process] = fmax(last[process], most[process]);
        CHECK(ns_of(e, "ts") >= last_ns[process]);
        last_ns[process] = ns_of(e, "ts");
    }
    for (int process = 1; process <= 2; process++) {
        CHECK_NEAR(most[process], (double)curve.peak_bytes / 1048576, 1e-3);
        CHECK_NEAR(last[process], 0, 1e-12);
    }
}

static void every_instruction_is_drawn_once(void) {
    Rng rng = rng_seed(seed);
    int32_t num_second_lanes = 0;
    for (int trial = 0; trial < test_rounds(20); trial++) {
        Arena arena = {0};
        Plan plan;
        int32_t num_waits = 0, expected = 0, found[3] = {0};
        json_t *events = make_trace(&plan, &rng, &arena), *e;
        size_t i;
        for (int32_t r = 0; r < plan.P * plan.R; r++) {
            check_memory(events, &plan, r, &arena);
            for (int32_t k = 0; k < plan.ranks[r].num_instrs; k++) {
                bool is_wait = plan_instr_is_wait(plan.ranks[r].instrs[k].kind);
                num_waits += is_wait;
                expected += !is_wait;
            }
        }
        json_array_foreach(events, i, e) {
            CHECK(int_of(e, "pid") == 1 || int_of(e, "pid") == 2);
            if (is_phase(e, "X")) { found[int_of(e, "pid")]++; }
            if (!is_phase(e, "M")) { CHECK(ns_of(e, "ts") >= 0); }
        }
        CHECK_EQ(found[1], expected);
        CHECK_EQ(found[2], expected + num_waits + (plan.P * plan.R + 1));
        num_second_lanes += check_rows(events);
        check_arrows(events);
        json_decref(events);
        arena_free(&arena);
    }
    CHECK(num_second_lanes > 0);  // else this test has seen no overlap
    CHECK_FAILS(trace_write("/nonexistent/trace.json", 7, &(Plan){.P = 2, .R = 2}, NULL), STATUS_IO,
                "/nonexistent/trace.json");
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

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(every_instruction_is_drawn_once);
    RUN(idle_is_what_no_job_fills);
    return test_end();
}
