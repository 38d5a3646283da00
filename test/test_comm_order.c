// test_comm_order.c -- both ends of every pair see one order, nothing deadlocks, and plans keep every rule.
#include "../dynapipe_plugin/plan/instructions.h"
#include "../dynapipe_plugin/plan/simulate.h"
#include "../dynapipe_plugin/plan/plan_message.h"
#include "random_plan.h"
#include "test.h"

static uint64_t seed;

static RandomPlan random_about(Rng* rng, int32_t round) {
    int32_t P = rng_between(rng, 1, 6);
    return (RandomPlan){.P = P,
                        .R = rng_between(rng, 1, 3),
                        .num_layers = P + rng_between(rng, 0, 5),
                        .num_samples = rng_between(rng, 1, 40),
                        .max_tokens = rng_between(rng, 1, 300),
                        .packed = round % 2,
                        .recompute = round % 3 > 0,
                        .placed = round % 4 > 0,
                        .tight = round % 2};
}

// random_plan runs plan_check on each: order of jobs, buffers, sizes, rendezvous without buffers.
static void plans_of_random_pipelines_keep_every_rule(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    for (int32_t round = 0; round < 400; round++) {
        arena_reset(&arena);
        RandomPlan about = random_about(&rng, round);
        Plan plan;
        PlanSample* samples = random_plan(&plan, &rng, &about, &arena);
        CHECK_OK(plan_check(&plan, samples, about.num_samples));
    }
    arena_free(&arena);
}

// Transfers between two stages, as one of them lists them, in words that both ends share.
static int32_t pair_order(const CommOrder* order, const Placement* placement, int32_t P, int32_t s,
                          int32_t peer, int32_t* out) {
    int32_t num = 0;
    for (int32_t i = 0; i < order->num_ops[s]; i++) {
        const CommOp* op = &order->ops[s][i];
        PlanMessage message;
        PlanInstr instr = {.kind = op->kind, .chunk = op->chunk, .peer = op->peer};
        if (op->peer != peer) { continue; }
        CHECK(plan_message_of(&message, placement, P, &instr));
        out[num++] = (op->mb * 1000 + message.row) * PLAN_MESSAGE_KINDS + message.kind;
    }
    return num;
}

// The job that makes (reads) what a transfer moves; its number on that stage.
static int32_t job_at(const PipeSchedule* schedule, int32_t s, PlanJobAt job, int32_t m) {
    for (int32_t i = 0; i < schedule->num_jobs[s]; i++) {
        PipeJob other = schedule->jobs[s][i];
        if (other.mb == m && other.kind == job.kind && other.chunk == job.chunk) { return i; }
    }
    return -1;
}

// Sends stand behind their job, receives no later than the job that runs when their data comes, and never
// behind the one that needs it; late ones as few jobs ahead of that as is asked for.
static void check_place(const CommOrder* order, const PipeSchedule* schedule, const PipeTimeline* timeline,
                        const Placement* placement, int32_t P, int32_t s, int32_t i, int32_t jobs_ahead) {
    const CommOp* op = &order->ops[s][i];
    PlanMessage message;
    PlanInstr instr = {.kind = op->kind, .chunk = op->chunk, .peer = op->peer};
    CHECK(plan_message_of(&message, placement, P, &instr));
    if (plan_instr_is_send(op->kind)) {
        int32_t maker = job_at(schedule, s, plan_message_maker(placement, message), op->mb);
        CHECK(maker >= 0 && op->pos > maker && op->behind > maker);
        CHECK(timeline->job[s][maker].end_ns <= op->begin_ns);
        return;
    }
    int32_t reader = job_at(schedule, s, plan_message_reader(placement, message), op->mb);
    CHECK(reader >= 0 && op->pos <= reader);
    CHECK(op->end_ns <= timeline->job[s][reader].begin_ns);
    int32_t running = 0, ahead = i > 0 ? order->ops[s][i - 1].pos : 0;
    while (running < schedule->num_jobs[s] && timeline->job[s][running].end_ns <= op->begin_ns) { running++; }
    CHECK(jobs_ahead < INT32_MAX || op->pos <= running || op->pos == ahead);
    CHECK(reader - op->pos <= jobs_ahead || op->behind < reader - jobs_ahead);  // let go, or all would wait
}

static void check_order(const CommOrder* order, const PipeProblem* problem, const PipeSchedule* schedule,
                        const PipeTimeline* timeline, const int32_t* jobs_ahead) {
    static int32_t mine[4096], theirs[4096];
    int32_t P = problem->P;
    for (int32_t s = 0; s < P; s++) {
        for (int32_t peer = 0; peer < s; peer++) {
            int32_t num = pair_order(order, problem->placement, P, s, peer, mine);
            CHECK_EQ(pair_order(order, problem->placement, P, peer, s, theirs), num);
            CHECK(memcmp(mine, theirs, (size_t)num * sizeof *mine) == 0);
        }
        for (int32_t i = 0; i < order->num_ops[s]; i++) {
            CHECK(i == 0 || order->ops[s][i - 1].pos <= order->ops[s][i].pos);
            check_place(order, schedule, timeline, problem->placement, P, s, i,
                        jobs_ahead == NULL ? INT32_MAX : jobs_ahead[s]);
        }
    }
}

// Of any placement and order of jobs, as simulated and late.
static void both_ends_see_one_order(void) {
    Rng rng = rng_seed(seed + 1);
    Arena arena = {0};
    int32_t num_slower = 0;
    for (int32_t round = 0; round < 500; round++) {
        arena_reset(&arena);
        int32_t P = rng_between(&rng, 2, 6), M = rng_between(&rng, 1, 8), jobs_ahead[PLAN_MAX_STAGES];
        RandomPipe about = {.transfers = round % 2, .zero_times = round % 3 == 0, .drops_percent = 20};
        Placement placement;
        random_placement(&placement, &rng, P, 3 * P);
        PipeProblem problem = random_placed_pipe(&rng, P, M, &placement, &about, &arena);
        problem.pulls = round % 5 == 0;
        PipeSchedule schedule;
        PipeTimeline timeline, late;
        CommOrder order;
        int32_t* enter = random_order(&rng, M, &arena);
        if (round % 7) {
            CHECK_OK(pipe_policy_adaptive.build(&schedule, &problem, enter, round % 2, &arena));
        } else {
            schedule = random_jobs(&rng, &problem, &arena);
        }
        CHECK_OK(pipe_simulate(&timeline, &problem, &schedule, &arena));
        CHECK_OK(comm_order_make(&order, &problem, &schedule, &timeline, &arena));
        check_order(&order, &problem, &schedule, &timeline, NULL);
        bool all_early = true;
        for (int32_t s = 0; s < P; s++) {
            jobs_ahead[s] = rng_below(&rng, 2) ? INT32_MAX : rng_between(&rng, 0, 3);
            all_early &= jobs_ahead[s] == INT32_MAX;
        }
        CHECK_OK(comm_order_make_late(&order, &late, &problem, &schedule, &timeline, jobs_ahead, &arena));
        check_order(&order, &problem, &schedule, &late, jobs_ahead);
        num_slower += late.makespan_ns > timeline.makespan_ns;
        if (all_early && !problem.pulls) { CHECK_EQ(late.makespan_ns, timeline.makespan_ns); }
    }
    CHECK(num_slower > 50);
    arena_free(&arena);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(plans_of_random_pipelines_keep_every_rule);
    RUN(both_ends_see_one_order);
    return test_end();
}
