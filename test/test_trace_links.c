// test_trace_links.c -- a link is as slow as its quickest messages: those that wait for the rank at the other
// end do not count, nor those that this rank did not look at.
#include <stdlib.h>

#include "../dynapipe_plugin/plan/cost_model.h"
#include "../dynapipe_plugin/plan/planner.h"
#include "../dynapipe_plugin/run/trace_links.h"
#include "test.h"

enum { MBS = 64, RANK = 4 };  // stage 1 of replica 1, 3 stages

static CostModel costs;
static PlanMicrobatch mbs[MBS];
static const Plan plan = {.P = 3, .R = 2, .M = MBS, .mbs = mbs, .stages = {{0, 2}, {2, 4}, {4, 6}}};
static MachineRank ranks[6];
static const Machine machine = {.num_ranks = 6, .ranks = ranks};

static void begin(void) {
    CostAnalytic about = {.num_layers = 6,
                          .channels = 64,
                          .num_heads = 4,
                          .padded_vocab = 256,
                          .max_tokens = 4096,
                          .bytes_per_value = 4,
                          .flops_per_ns = 10,
                          .attention_flops_per_ns = 5,
                          .bytes_per_ns = 10,
                          .launch_ns = 1e3,
                          .comm_latency_ns = 10e3,
                          .comm_bytes_per_ns = 2,
                          .num_replicas = 2};
    cost_model_analytic_gpt(&costs, &about);
    for (int32_t m = 0; m < MBS; m++) { mb_shape_add(&mbs[m].shape, 100 + 10 * m, 0, 50); }
    for (int32_t r = 0; r < 6; r++) { ranks[r] = machine_rank(NULL, r); }
    ranks[RANK].link_latency_ns = 50e3;  // of the one behind the rank; the other is the cost model's
    ranks[RANK].link_bytes_per_ns = 0.5;
}

static double expected_ns(bool is_act, int32_t mb) {
    CostStage stage = cost_stage_make(&costs, &plan.stages[is_act ? 1 : 0], is_act ? 1 : 0, plan.P);
    double num_bytes = (double)cost_boundary_bytes(&costs, &stage, &mbs[mb].shape);
    return is_act ? 50e3 + num_bytes / 0.5 : 10e3 + num_bytes / 2;
}

// A step's sends, each `times` as long as predicted; of every four the last three later still. is_hidden:
// this rank runs a job meanwhile.
static void add_step(TraceLinks* links, double times, int32_t num, bool is_hidden, bool knows_when) {
    TraceEvent events[4 * MBS];
    TraceRank trace = {.rank = RANK, .events = events};
    int64_t at_ns = 1000000;
    for (int32_t i = 0; i < 2 * num; i++) {
        bool is_act = i % 2 == 0;
        double more = i / 2 % 4 == 0 ? 1 : 1 + i / 2 % 4;
        int64_t ns = (int64_t)(times * more * expected_ns(is_act, i / 2));
        TraceEvent send = {is_act ? INSTR_SEND_ACT : INSTR_SEND_GRAD, i / 2, 0, at_ns, at_ns + ns, 0};
        TraceEvent job = {INSTR_FWD, i / 2, -1, at_ns + ns / 2, at_ns + ns / 2 + 1, 0};
        events[trace.num_events++] = send;
        if (is_hidden) { events[trace.num_events++] = job; }
        at_ns += ns;
    }
    trace_links_add(links, &plan, &trace, &costs, &machine, knows_when);
}

static void the_quickest_messages_are_the_links(void) {
    static TraceLinks links;
    const double times[] = {1.5, 4, 20};
    for (int i = 0; i < 3; i++) {
        add_step(&links, times[i], MBS, false, false);
        CHECK_NEAR(trace_links_take(&links, LINK_BEHIND), times[i], 1e-3);
        CHECK_NEAR(trace_links_take(&links, LINK_BEFORE), times[i], 1e-3);
        CHECK_EQ(trace_links_take(&links, LINK_BEHIND), 0);  // forgotten
    }
}

// A host's send that is through early may be a copy; a device knows.
static void only_a_device_knows_that_a_link_is_faster(void) {
    static TraceLinks links;
    for (int knows = 0; knows < 2; knows++) {
        add_step(&links, 0.5, MBS, false, knows);
        CHECK_NEAR(trace_links_take(&links, LINK_BEHIND), knows ? 0.5 : 1, 1e-3);
        links.num[LINK_BEFORE] = 0;
    }
}

static void sends_beside_a_job_say_nothing(void) {
    static TraceLinks links;
    add_step(&links, 3, MBS, true, false);
    CHECK_EQ(links.num[LINK_BEHIND] + links.num[LINK_BEFORE], 0);
    add_step(&links, 3, MBS, true, true);
    CHECK_NEAR(trace_links_take(&links, LINK_BEFORE), 3, 1e-3);
}

static void few_say_nothing_and_many_are_bounded(void) {
    static TraceLinks links;
    add_step(&links, 2, TRACE_LINKS_LEAST - 1, false, false);
    CHECK_EQ(trace_links_take(&links, LINK_BEHIND), 0);
    for (int i = 0; i < 20; i++) { add_step(&links, 2, MBS, false, false); }
    CHECK_EQ(links.num[LINK_BEHIND], TRACE_LINKS_MOST);
    CHECK_NEAR(trace_links_take(&links, LINK_BEHIND), 2, 1e-3);
}

int main(void) {
    begin();
    RUN(the_quickest_messages_are_the_links);
    RUN(only_a_device_knows_that_a_link_is_faster);
    RUN(sends_beside_a_job_say_nothing);
    RUN(few_say_nothing_and_many_are_bounded);
    return test_end();
}
