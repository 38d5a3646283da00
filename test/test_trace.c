// test_trace.c -- the trace is JSON with every event once, in rows that nest, with arrows and memory; what
// sends tell of links: a slow one is found; busy senders, ranks that look seldom, tiny messages and loaded
// machines make none slow.
#include "../dynapipe_plugin/run/trace.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../dynapipe_plugin/plan/memory_layout.h"
#include "../dynapipe_plugin/plan/plan_message.h"
#include "../dynapipe_plugin/plan/planner.h"
#include "random_plan.h"
#include "random_problem.h"
#include "refit_case.h"
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

// --- links -------------------------------------------------------------------------------------------------

enum { P = 4, NUM_SAMPLES = 60, NUM_RANKS = P };

static CostModel costs;

// How the messages of a step fare.
typedef struct {
    double slow[NUM_RANKS];  // of the link behind a rank
    double delay_ns;         // of a message at most, any less as likely
    bool during_jobs;        // the sender computes meanwhile
    double step_ms;
} Network;

static void costs_make(double bytes_per_ns) {
    refit_case_costs(&costs, (RefitCaseModel){256, 4096, 1000, bytes_per_ns});
}

static void plan_step(Plan* plan, Rng* rng, Arena* arena) {
    PlanSample samples[NUM_SAMPLES];
    PlanRequest request = {.P = P, .R = 1, .max_seq_tokens = 2048, .effort = 10};
    equal_stages(&request, plan_chain_num_blocks(&costs.chain));
    random_samples(samples, NUM_SAMPLES, rng, 0, false);
    CHECK_OK(plan_make(plan, &request, &costs, samples, NUM_SAMPLES, arena));
}

static double send_ns(const Plan* plan, const PlanInstr* instr, int32_t rank, const Network* network,
                      Rng* rng) {
    int32_t from = instr->kind == INSTR_SEND_ACT ? rank : rank - 1;
    CostStage stage = cost_chunk_make(&costs, &plan->placement, from);
    double num_bytes = (double)cost_boundary_bytes(&costs, &stage, &plan->mbs[instr->mb].shape);
    double delay_ns = network->delay_ns * rng_below(rng, 1 << 20) / (1 << 20);
    return network->slow[from] * (costs.comm_latency_ns + num_bytes / costs.comm_bytes_per_ns) + delay_ns;
}

// Jobs end before the sends that follow them begin, or go on meanwhile.
static void run_step(TraceLinks* links, const Plan* plan, int32_t rank, const Network* network, Rng* rng,
                     Arena* arena) {
    const PlanRank* list = &plan->ranks[rank];
    TraceRank trace = {.rank = rank, .events = ARENA_NEW(arena, TraceEvent, list->num_instrs)};
    int64_t now_ns = 0;
    for (int32_t i = 0; i < list->num_instrs; i++) {
        const PlanInstr* instr = &list->instrs[i];
        bool is_send = instr->kind == INSTR_SEND_ACT || instr->kind == INSTR_SEND_GRAD;
        bool is_job = instr->kind == INSTR_FWD || instr->kind == INSTR_BWD;
        double ns = is_send ? send_ns(plan, instr, rank, network, rng) : is_job ? 1e5 : 0;
        TraceEvent event = {.kind = instr->kind,
                            .chunk = instr->chunk,
                            .mb = instr->mb,
                            .peer = instr->peer,
                            .begin_ns = now_ns,
                            .end_ns = now_ns + (int64_t)ns};
        if (is_job || !network->during_jobs) { now_ns = event.end_ns; }
        trace.events[trace.num_events++] = event;
    }
    trace.end_ns = (int64_t)(network->step_ms * 1e6);
    trace_links_add(links, plan, &trace, &costs, NULL, false);
}

// What two agreements, each after four steps, make of the links behind ranks 0 .. P - 2.
static void settle(double link[P - 1], const Network rounds[2], Rng* rng) {
    double seen[2][P - 1];
    Arena arena = {0};
    for (int round = 0; round < 2; round++) {
        static TraceLinks links[NUM_RANKS];
        for (int32_t r = 0; r < NUM_RANKS; r++) { trace_links_forget(&links[r]); }
        for (int step = 0; step < 4; step++) {
            Plan plan;
            arena_reset(&arena);
            plan_step(&plan, rng, &arena);
            for (int32_t r = 0; r < NUM_RANKS; r++) {
                run_step(&links[r], &plan, r, &rounds[round], rng, &arena);
            }
        }
        for (int32_t r = 0; r < P - 1; r++) {
            seen[round][r] = trace_links_both(trace_links_take(&links[r], LINK_BEHIND),
                                              trace_links_take(&links[r + 1], LINK_BEFORE));
        }
    }
    for (int32_t r = 0; r < P - 1; r++) { link[r] = trace_links_settle(seen[0][r], seen[1][r]); }
    arena_free(&arena);
}

static void expect(const Network* first, const Network* second, const double expected[P - 1]) {
    const Network rounds[2] = {*first, *second};
    Rng rng = rng_seed(seed);
    double link[P - 1];
    settle(link, rounds, &rng);
    for (int32_t r = 0; r < P - 1; r++) { CHECK_NEAR(link[r], expected[r], 0.15 * expected[r]); }
}

static const double as_predicted[P - 1] = {1, 1, 1};
static const Network quiet = {.slow = {1, 1, 1, 1}, .delay_ns = 20e3, .step_ms = 100};

// --- laws ------------------------------------------------------------------------------------------------

// 0.3 bytes a ns: a message of 100 tokens takes 0.3 ms.
static void a_slow_link_is_found_and_no_other(void) {
    Network network = quiet;
    const double expected[P - 1] = {1, 3, 1};
    costs_make(0.3);
    expect(&quiet, &quiet, as_predicted);
    network.slow[1] = 3;
    expect(&network, &network, expected);
    network.delay_ns = 3e6;  // most messages wait for their receiver, too
    Network less = network;
    less.delay_ns = 1e6;
    const Network rounds[2] = {network, less};
    Rng rng = rng_seed(seed);
    double link[P - 1];
    settle(link, rounds, &rng);
    CHECK(link[1] >= 2.4 && link[0] < link[1]);
}

static void one_round_is_no_round(void) {
    Network network = quiet;
    costs_make(1);
    network.slow[0] = network.slow[2] = 16;
    expect(&network, &quiet, as_predicted);
    expect(&quiet, &network, as_predicted);
}

static void sends_during_jobs_say_nothing(void) {
    Network network = {.slow = {16, 16, 16, 16}, .during_jobs = true, .step_ms = 100};
    costs_make(1);
    expect(&network, &network, as_predicted);
}

// Tiny messages on a loaded machine; messages that take their part of a step, each delayed by up to a
// hundredth of it; a slow link that the step does not feel.
static void what_a_step_does_not_feel_makes_no_link_slow(void) {
    for (double delay_ns = 100e3; delay_ns < 200e6; delay_ns *= 4) {
        Network network = {.slow = {1, 1, 1, 1}, .delay_ns = delay_ns, .step_ms = 1000};
        costs_make(100);
        expect(&network, &network, as_predicted);
        network.step_ms = 300;
        costs_make(1);
        if (delay_ns <= 3e6) { expect(&network, &network, as_predicted); }
    }
    Network network = quiet;
    network.slow[1] = 3;
    network.step_ms = 1e5;
    expect(&network, &network, as_predicted);
}

static void both_ends_must_say_so(void) {
    const LinkSeen slow = {3, 0.1}, slower = {4, 0.1}, fast = {0.8, 0.1}, same = {1, 0.1}, none = {0, 0};
    CHECK(trace_links_both(slow, slower) == 3);
    CHECK(trace_links_both(slower, slow) == 3);
    CHECK(trace_links_both(slow, same) == 1);
    CHECK(trace_links_both(fast, slow) == 1);
    CHECK(trace_links_both(fast, fast) == 0.8);
    CHECK(trace_links_both(slow, none) == 0);
    CHECK(trace_links_both(none, none) == 0);
    CHECK(trace_links_both((LinkSeen){3, 0.002}, (LinkSeen){3, 0.002}) == 1);
    CHECK(trace_links_both((LinkSeen){1.09, 1}, (LinkSeen){1.09, 1}) == 1);
    CHECK(trace_links_both((LinkSeen){90, 1}, (LinkSeen){90, 1}) == 16);
    CHECK(trace_links_settle(0, 3) == 1);
    CHECK(trace_links_settle(2, 3) == 2);
    CHECK(trace_links_settle(3, 2) == 2);
    CHECK(trace_links_settle(1, 2) == 1);
    CHECK(trace_links_settle(0.7, 2) == 1);
    CHECK(trace_links_settle(0.7, 0.8) == 0.8);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(every_instruction_is_drawn_once);
    RUN(idle_is_what_no_job_fills);
    RUN(a_slow_link_is_found_and_no_other);
    RUN(one_round_is_no_round);
    RUN(sends_during_jobs_say_nothing);
    RUN(what_a_step_does_not_feel_makes_no_link_slow);
    RUN(both_ends_must_say_so);
    return test_end();
}
