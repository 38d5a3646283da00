// test_session_errors.c -- the parts of an error add up, nothing is off where all went as planned, and what
// is late is counted where it belongs.
#include "../dynapipe_plugin/run/trace.h"

#include "../dynapipe_plugin/plan/plan_message.h"
#include "../dynapipe_plugin/plan/simulate.h"
#include "random_plan.h"
#include "test.h"

static uint64_t seed;

typedef struct {
    Arena arena;
    Plan plan;
    SessionSpan** spans;
    SessionSpans it;
} Step;

// Executed as planned, to the ns; receives posted when the step begins.
static void step_init(Step* step, Rng* rng) {
    RandomPlan about = {.P = rng_between(rng, 1, 5), .R = 1, .num_samples = rng_between(rng, 1, 30)};
    about.num_layers = about.P + rng_between(rng, 0, 3);
    about.max_tokens = 50;
    about.recompute = rng_below(rng, 2);
    about.placed = rng_below(rng, 2);
    *step = (Step){0};
    random_plan(&step->plan, rng, &about, &step->arena);
    step->spans = ARENA_NEW(&step->arena, SessionSpan*, step->plan.P);
    for (int32_t s = 0; s < step->plan.P; s++) {
        const PlanRank* list = &step->plan.ranks[s];
        step->spans[s] = ARENA_NEW(&step->arena, SessionSpan, list->num_instrs);
        for (int32_t i = 0; i < list->num_instrs; i++) {
            const PlanInstr* instr = &list->instrs[i];
            step->spans[s][i] = (SessionSpan){instr->begin_ns, instr->end_ns};
            if (plan_instr_is_recv(instr->kind)) { step->spans[s][i].begin_ns = 0; }
        }
    }
    step->it = (SessionSpans){.plan = &step->plan, .spans = (const SessionSpan* const*)step->spans};
}

static int64_t makespan_of(Step* step) {
    int64_t ns = 0;
    CHECK_OK(plan_makespan(&ns, &step->plan, 0, NULL, &step->arena));
    return ns;
}

static void as_planned_nothing_is_off(void) {
    Rng rng = rng_seed(seed);
    for (int32_t round = 0; round < 60; round++) {
        Step step;
        step_init(&step, &rng);
        SessionErrors errors = {0};
        CHECK_OK(session_errors_split(&errors, &step.it, &step.arena));
        CHECK_EQ(errors.jobs_ns, 0);
        CHECK_EQ(errors.transfers_ns, 0);
        CHECK_EQ(makespan_of(&step), step.plan.makespan_ns);
        arena_free(&step.arena);
    }
}

// Every stage in turn: the last job that ends is on the critical path, so is all of a single stage.
static void a_late_job_that_is_waited_for_counts_whole(void) {
    Rng rng = rng_seed(seed + 1);
    int32_t num_tried = 0;
    for (int32_t round = 0; round < 60; round++) {
        Step step;
        step_init(&step, &rng);
        int32_t last_s = 0, last_i = 0, first_s = step.plan.placement.stage_of[0], first_i = -1;
        for (int32_t s = 0; s < step.plan.P; s++) {
            for (int32_t i = 0; i < step.plan.ranks[s].num_instrs; i++) {
                const PlanInstr* instr = &step.plan.ranks[s].instrs[i];
                if (!plan_instr_is_job((InstrKind)instr->kind)) { continue; }
                if (s == first_s && first_i < 0) { first_i = i; }
                if (instr->end_ns > step.plan.ranks[last_s].instrs[last_i].end_ns) { last_s = s, last_i = i; }
            }
        }
        const int32_t late[2][2] = {{last_s, last_i}, {first_s, first_i}};
        for (int k = 0; k < 2; k++) {
            SessionSpan* span = &step.spans[late[k][0]][late[k][1]];
            SessionErrors errors = {0};
            if (span->end_ns == span->begin_ns) { continue; }  // a job of no length is one that did not run
            span->end_ns += 12345;
            CHECK_OK(session_errors_split(&errors, &step.it, &step.arena));
            CHECK_EQ(errors.jobs_ns, 12345);  // the first job of the first chunk: everything waits for it
            span->end_ns -= 12345;
            num_tried++;
        }
        arena_free(&step.arena);
    }
    CHECK(num_tried > 40);
}

// Two stages, one microbatch: F 0..100, act 100..110, F 110..200, B 200..400, grad 400..420, B 420..700.
static PlanInstr chain_a[] = {{INSTR_FWD, 0, 0, -1, 0, 100},
                              {INSTR_SEND_ACT, 0, 0, 1, 100, 110},
                              {INSTR_RECV_GRAD, 0, 0, 1, 400, 420},
                              {INSTR_BWD, 0, 0, -1, 420, 700}};
static PlanInstr chain_b[] = {{INSTR_RECV_ACT, 1, 0, 0, 100, 110},
                              {INSTR_FWD, 1, 0, -1, 110, 200},
                              {INSTR_BWD, 1, 0, -1, 200, 400},
                              {INSTR_SEND_GRAD, 1, 0, 0, 400, 420}};
static PlanRank chain_ranks[] = {{.num_instrs = 4, .instrs = chain_a}, {.num_instrs = 4, .instrs = chain_b}};
static PlanMicrobatch chain_mbs[1];

static Plan chain_plan(void) {
    Plan plan = {.P = 2, .R = 1, .M = 1, .mbs = chain_mbs, .ranks = chain_ranks, .makespan_ns = 700};
    placement_linear(&plan.placement, plan.placement.chunks, 2);
    return plan;
}

static SessionErrors split_of(const Plan* plan, const SessionSpan* a, const SessionSpan* b,
                              bool moves_alone) {
    Arena arena = {0};
    const SessionSpan* spans[2] = {a, b};
    SessionSpans it = {.plan = plan, .spans = spans, .moves_alone = moves_alone};
    SessionErrors errors = {0};
    CHECK_OK(session_errors_split(&errors, &it, &arena));
    arena_free(&arena);
    return errors;
}

static void a_transfer_counts_while_both_ends_are_free(void) {
    Plan plan = chain_plan();
    // the activation takes 50 instead of 10, both ends stand still
    SessionSpan a[] = {{0, 100}, {100, 150}, {110, 460}, {460, 740}};
    SessionSpan b[] = {{0, 150}, {150, 240}, {240, 440}, {440, 460}};
    SessionErrors errors = split_of(&plan, a, b, false);
    CHECK_EQ(errors.jobs_ns, 0);
    CHECK_EQ(errors.transfers_ns, 40);
    // the sender is inside another job meanwhile: the message waited for it
    SessionSpan busy[] = {{0, 100}, {100, 150}, {110, 460}, {105, 150}};
    errors = split_of(&plan, busy, b, false);
    CHECK_EQ(errors.transfers_ns, 0);
    errors = split_of(&plan, busy, b, true);  // a transport that needs nobody: it was slow
    CHECK_EQ(errors.transfers_ns, 40);
    // a gradient that is there sooner than planned: 5 instead of 20
    SessionSpan early[] = {{0, 100}, {100, 110}, {110, 405}, {405, 685}};
    SessionSpan early_b[] = {{0, 110}, {110, 200}, {200, 400}, {400, 405}};
    errors = split_of(&plan, early, early_b, false);
    CHECK_EQ(errors.transfers_ns, -15);
    CHECK_EQ(errors.jobs_ns, 0);
}

static void a_late_job_that_nobody_waits_for_counts_nothing(void) {
    Plan plan = chain_plan();
    SessionSpan a[] = {{0, 100}, {100, 110}, {110, 420}, {420, 700}};
    SessionSpan b[] = {{0, 110}, {110, 230}, {230, 400}, {400, 420}};  // F 30 longer, B 30 shorter
    SessionErrors errors = split_of(&plan, a, b, false);
    CHECK_EQ(errors.jobs_ns, 0);
    SessionSpan none[4] = {{0}};  // nothing was recorded: nothing is known to be off
    errors = split_of(&plan, none, none, false);
    CHECK_EQ(errors.jobs_ns, 0);
    CHECK_EQ(errors.transfers_ns, 0);
}

// One chunk on stage 0, the head by vocabulary on both: F 0..100, act 100..110, H 100..200 and 110..210, part
// 210..220, B 220..400, factors 400..405, V 400..450 and 405..500.
static PlanInstr head_a[] = {{INSTR_FWD, 0, 0, -1, 0, 100},        {INSTR_SEND_ACT, 0, 0, 1, 100, 110},
                             {INSTR_RECV_GRAD, 0, 0, 1, 210, 220}, {INSTR_FWD, 1, 0, -1, 100, 200},
                             {INSTR_BWD, 0, 0, -1, 220, 400},      {INSTR_SEND_FACT, 2, 0, 1, 400, 405},
                             {INSTR_WGT, 1, 0, -1, 400, 450}};
static PlanInstr head_b[] = {{INSTR_RECV_ACT, 2, 0, 0, 100, 110},
                             {INSTR_FWD, 2, 0, -1, 110, 210},
                             {INSTR_SEND_GRAD, 2, 0, 0, 210, 220},
                             {INSTR_RECV_FACT, 2, 0, 0, 400, 405},
                             {INSTR_WGT, 2, 0, -1, 405, 500}};

// Who has the last chunk waits for the slower part; the last factors for their transfer.
static void a_shared_head_waits_for_all_of_its_parts(void) {
    PlanRank ranks[] = {{.num_instrs = 7, .instrs = head_a}, {.num_instrs = 5, .instrs = head_b}};
    Plan plan = {.P = 2, .R = 1, .M = 1, .mbs = chain_mbs, .ranks = ranks, .makespan_ns = 500};
    plan.placement = (Placement){.num_chunks = 1, .head = HEAD_BY_VOCABULARY, .head_begin = {0, 512, 1024}};
    SessionSpan a[] = {{0, 100}, {100, 110}, {110, 220}, {100, 200}, {220, 400}, {400, 405}, {400, 450}};
    SessionSpan b[] = {{0, 110}, {110, 210}, {210, 220}, {220, 405}, {405, 500}};
    SessionErrors errors = split_of(&plan, a, b, true);
    CHECK_EQ(errors.jobs_ns, 0);
    CHECK_EQ(errors.transfers_ns, 0);
    a[3].end_ns = 215;  // its own part 15 later: the other's comes later still
    errors = split_of(&plan, a, b, true);
    CHECK_EQ(errors.jobs_ns, 0);
    a[3].end_ns = 250;
    errors = split_of(&plan, a, b, true);
    CHECK_EQ(errors.jobs_ns, 30);
    a[3].end_ns = 200;
    a[2].end_ns = 260;  // the other's part takes 50 instead of 10
    errors = split_of(&plan, a, b, true);
    CHECK_EQ(errors.jobs_ns, 0);
    CHECK_EQ(errors.transfers_ns, 40);
    a[2].end_ns = 220;
    b[3].end_ns = 430;  // factors: 30 instead of 5, V begins 25 later
    errors = split_of(&plan, a, b, true);
    CHECK_EQ(errors.transfers_ns, 25);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(as_planned_nothing_is_off);
    RUN(a_late_job_that_is_waited_for_counts_whole);
    RUN(a_transfer_counts_while_both_ends_are_free);
    RUN(a_late_job_that_nobody_waits_for_counts_nothing);
    RUN(a_shared_head_waits_for_all_of_its_parts);
    return test_end();
}
