// test_trace_links.c -- what sends say of links: one that is slow is found; senders that are busy, ranks that
// look seldom, tiny messages and loaded machines make none slow. Steps are made up.
#include "../dynapipe_plugin/run/trace.h"

#include <math.h>

#include "../dynapipe_plugin/plan/planner.h"
#include "random_problem.h"
#include "refit_case.h"
#include "test.h"

enum { P = 4, NUM_SAMPLES = 60, NUM_RANKS = P };

static uint64_t seed;
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
    equal_stages(&request, costs.num_enc_layers);
    random_samples(samples, NUM_SAMPLES, rng, 0, false);
    CHECK_OK(plan_make(plan, &request, &costs, samples, NUM_SAMPLES, arena));
}

static double send_ns(const Plan* plan, const PlanInstr* instr, int32_t rank, const Network* network,
                      Rng* rng) {
    int32_t from = instr->kind == INSTR_SEND_ACT ? rank : rank - 1;
    CostStage stage = cost_stage_make(&costs, &plan->placement.chunks[from], from, P);
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
    for (int32_t r = 0; r < P - 1; r++) { CHECK_NEAR(link[r], expected[r], 0.1 * expected[r]); }
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

// 100 bytes a ns: what takes 1 us reads 0.05 ms on a loaded machine, 16 times as long and more.
static void tiny_messages_make_no_link_slow(void) {
    costs_make(100);
    for (double delay_ns = 100e3; delay_ns < 200e6; delay_ns *= 4) {
        Network network = {.slow = {1, 1, 1, 1}, .delay_ns = delay_ns, .step_ms = 1000};
        expect(&network, &network, as_predicted);
    }
}

// Messages that take their part of a step are delayed, too: by up to a hundredth of it, each of them.
static void a_loaded_machine_makes_no_link_slow(void) {
    costs_make(1);
    for (double delay_ns = 100e3; delay_ns <= 3e6; delay_ns *= 2) {
        Network network = {.slow = {1, 1, 1, 1}, .delay_ns = delay_ns, .step_ms = 300};
        expect(&network, &network, as_predicted);
    }
}

static void what_a_step_does_not_feel_is_left_out(void) {
    Network network = quiet;
    costs_make(1);
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
    RUN(a_slow_link_is_found_and_no_other);
    RUN(one_round_is_no_round);
    RUN(sends_during_jobs_say_nothing);
    RUN(tiny_messages_make_no_link_slow);
    RUN(a_loaded_machine_makes_no_link_slow);
    RUN(what_a_step_does_not_feel_is_left_out);
    RUN(both_ends_must_say_so);
    return test_end();
}
