// test_replay_plan.c -- plans of any placement, the head whole or shared: replayed, they end when the
// simulator says, and so they do where cores are shared.
#include "../dynapipe_plugin/plan/replay.h"
#include "../dynapipe_plugin/plan/simulate.h"

#include "../dynapipe_plugin/plan/plan_message.h"
#include "random_plan.h"
#include "test.h"
#include "timed_plan.h"

static uint64_t seed;

typedef struct {
    Placement placement;
    PipeProblem pipe;
    PipeSchedule schedule;
    PipeTimeline timeline;
    Plan plan;  // one replica
} Placed;

static void random_times(Placed* placed, Rng* rng) {
    for (int32_t i = 0; i < pipe_num_rows(&placed->pipe) * placed->pipe.M; i++) {
        PipeCost* cost = (PipeCost*)(uintptr_t)&placed->pipe.cost[i];
        for (int32_t k = 0; k < JOB_COUNT; k++) { cost->job_ns[k] = rng_between(rng, 0, 5000); }
        cost->transfer_ns = rng_between(rng, 0, 2000);
        cost->part_ns = rng_between(rng, 0, 1000);
        cost->factor_ns = rng_between(rng, 0, 500);
        if (!cost->drops) { cost->job_ns[JOB_R] = 0; }
    }
}

static void placed_simulate(Placed* placed, Arena* arena) {
    CHECK_OK(pipe_simulate(&placed->timeline, &placed->pipe, &placed->schedule, arena));
    placed->plan = timed_plan(&placed->pipe, 1, placed->pipe.M, arena);
    timed_plan_add_replica(&placed->plan, &placed->pipe, &placed->schedule, arena);
}

static void random_placed(Placed* out, Rng* rng, bool pulls, Arena* arena) {
    RandomPipe about = {.transfers = true, .drops_percent = 30};
    int32_t P = rng_between(rng, 1, 6), M = rng_between(rng, 1, 12);
    *out = (Placed){0};
    random_placement(&out->placement, rng, P, 12);
    out->pipe = random_placed_pipe(rng, P, M, &out->placement, &about, arena);
    out->pipe.pulls = pulls;
    random_times(out, rng);
    out->schedule = random_jobs(rng, &out->pipe, arena);
    placed_simulate(out, arena);
}

// What instructions are planned to take, of every stage.
static void list_times(const int64_t* instr_ns[PLAN_MAX_STAGES], const Plan* plan, Arena* arena) {
    for (int32_t s = 0; s < plan->P; s++) {
        int64_t* ns = ARENA_NEW(arena, int64_t, plan->ranks[s].num_instrs);
        for (int32_t i = 0; i < plan->ranks[s].num_instrs; i++) {
            ns[i] = plan->ranks[s].instrs[i].end_ns - plan->ranks[s].instrs[i].begin_ns;
        }
        instr_ns[s] = ns;
    }
}

// Lists of the same transfers, each in its place; with other times the order of messages may be another.
static bool same_lists(const Plan* a, const Plan* b) {
    bool same = true;
    for (int32_t s = 0; s < a->P; s++) {
        for (int32_t i = 0; same && i < a->ranks[s].num_instrs; i++) {
            const PlanInstr *x = &a->ranks[s].instrs[i], *y = &b->ranks[s].instrs[i];
            same = x->kind == y->kind && x->chunk == y->chunk && x->mb == y->mb && x->peer == y->peer;
        }
    }
    return same;
}

// The simulator, which knows nothing of lists, with other times of the same jobs: plan_makespan finds the
// same, given these times.
static void placed_plans_end_when_the_simulator_says(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    int32_t num_shared = 0, num_changed = 0;
    for (int32_t round = 0; round < 500; round++) {
        arena_reset(&arena);
        Placed placed;
        const int64_t* instr_ns[PLAN_MAX_STAGES];
        int64_t makespan_ns;
        random_placed(&placed, &rng, round % 2, &arena);
        num_shared += placed.placement.head != HEAD_WHOLE;
        CHECK_OK(plan_makespan(&makespan_ns, &placed.plan, 0, NULL, &arena));
        CHECK_EQ(makespan_ns, placed.timeline.last_end_ns);
        Placed changed = placed;
        random_times(&changed, &rng);
        placed_simulate(&changed, &arena);
        if (placed.pipe.pulls || !same_lists(&placed.plan, &changed.plan)) { continue; }
        list_times(instr_ns, &changed.plan, &arena);
        CHECK_OK(plan_makespan(&makespan_ns, &placed.plan, 0, instr_ns, &arena));
        CHECK_EQ(makespan_ns, changed.timeline.last_end_ns);
        num_changed++;
    }
    CHECK(num_shared > 200 && num_changed > 20);
    arena_free(&arena);
}

// A core for every rank: jobs take what was planned, and the step too.
static void placed_plans_with_enough_cores_stay(void) {
    Rng rng = rng_seed(seed + 1);
    Arena arena = {0};
    for (int32_t round = 0; round < 300; round++) {
        arena_reset(&arena);
        Placed placed;
        random_placed(&placed, &rng, round % 2, &arena);
        int32_t host[PLAN_MAX_STAGES] = {0}, P = placed.plan.P, threads = 1, cores = P;
        SharedCores shared = {1, host, &cores, &threads, &P, &P};
        const int64_t* planned_ns[PLAN_MAX_STAGES];
        int64_t **ns, out_ns, work_ns = 0;
        CHECK_OK(shared_cores_stretch(&ns, &out_ns, &placed.plan, 0, &shared, &arena));
        CHECK_EQ(out_ns, placed.timeline.last_end_ns);
        list_times(planned_ns, &placed.plan, &arena);
        for (int32_t s = 0; s < P; s++) {
            size_t num_bytes = (size_t)placed.plan.ranks[s].num_instrs * sizeof **ns;
            CHECK(memcmp(ns[s], planned_ns[s], num_bytes) == 0);
            work_ns += placed.timeline.busy_ns[s];
        }
        cores = 1;  // of P that want one: no sooner, and no later than one job after the other
        CHECK_OK(shared_cores_stretch(&ns, &out_ns, &placed.plan, 0, &shared, &arena));
        CHECK(out_ns >= placed.timeline.last_end_ns && out_ns >= work_ns);
    }
    arena_free(&arena);
}

// Receives stand before everything else.
static void post_at_once(Plan* plan) {
    for (int32_t s = 0; s < plan->P; s++) {
        PlanInstr* instrs = plan->ranks[s].instrs;
        for (int32_t i = 0, num = 0; i < plan->ranks[s].num_instrs; i++) {
            PlanInstr receive = instrs[i];
            if (!plan_instr_is_recv(receive.kind)) { continue; }
            memmove(&instrs[num + 1], &instrs[num], (size_t)(i - num) * sizeof *instrs);
            instrs[num++] = receive;
        }
    }
}

// Plans whose receives are late where memory is short, as a list says and the simulator does not know: they
// end when they say, and so they do with a core for every rank.
static void late_receives_hold_transfers_up(void) {
    Rng rng = rng_seed(seed + 2);
    Arena arena = {0};
    int32_t num_late = 0;
    for (int32_t round = 0; round < 200; round++) {
        arena_reset(&arena);
        Plan plan;
        int32_t P = rng_between(&rng, 2, 5), host[PLAN_MAX_STAGES] = {0}, threads = 1;
        RandomPlan about = {.P = P,
                            .R = 1,
                            .num_layers = P + 2,
                            .num_samples = rng_between(&rng, 10, 40),
                            .max_tokens = 200,
                            .packed = true,
                            .recompute = true,
                            .placed = round % 2,
                            .tight = true};
        SharedCores shared = {1, host, &P, &threads, &P, &P};
        int64_t **ns, makespan_ns, shared_ns, last_ns;
        random_plan(&plan, &rng, &about, &arena);
        last_ns = plan.makespan_ns - plan_tail_ns(&plan);
        CHECK_OK(plan_makespan(&makespan_ns, &plan, 0, NULL, &arena));
        CHECK_EQ(makespan_ns, last_ns);
        CHECK_OK(shared_cores_stretch(&ns, &shared_ns, &plan, 0, &shared, &arena));
        CHECK_EQ(shared_ns, last_ns);
        post_at_once(&plan);
        CHECK_OK(plan_makespan(&makespan_ns, &plan, 0, NULL, &arena));
        CHECK(makespan_ns <= last_ns);
        num_late += makespan_ns < last_ns;
    }
    printf("     %d of 200 plans end later by that\n", num_late);
    CHECK(num_late > 0);
    arena_free(&arena);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(placed_plans_end_when_the_simulator_says);
    RUN(placed_plans_with_enough_cores_stay);
    RUN(late_receives_hold_transfers_up);
    return test_end();
}
