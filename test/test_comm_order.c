// test_comm_order.c -- both ends of every pair see one order, nothing deadlocks, and plans keep every rule.
#include "../dynapipe_plugin/plan/lists/comm_order.h"
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
                        .recompute = round % 3 > 0};
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

// Transfers of a pair, as each end lists them.
static int32_t pair_order(const CommOrder* order, int32_t s, int32_t peer, int32_t* out) {
    int32_t num = 0;
    for (int32_t i = 0; i < order->num_ops[s]; i++) {
        CommOp op = order->ops[s][i];
        bool with_next = op.kind == INSTR_SEND_ACT || op.kind == INSTR_RECV_GRAD;
        bool is_act = op.kind == INSTR_SEND_ACT || op.kind == INSTR_RECV_ACT;
        if ((with_next ? s + 1 : s - 1) == peer) { out[num++] = op.mb * 2 + is_act; }
    }
    return num;
}

// Ends agree; positions and times ascend; sends stand behind their job, receives no later than the job that
// runs when their data comes, and never behind the job that needs it.
static void both_ends_see_one_order(void) {
    Rng rng = rng_seed(seed + 1);
    Arena arena = {0};
    for (int32_t round = 0; round < 500; round++) {
        arena_reset(&arena);
        int32_t P = rng_between(&rng, 2, 6), M = rng_between(&rng, 1, 15);
        RandomPipe about = {.transfers = round % 2, .zero_times = round % 3 == 0, .drops_percent = 20};
        PipeProblem problem = random_pipe(&rng, P, M, &about, &arena);
        problem.pulls = round % 5 == 0;
        PipeSchedule schedule;
        PipeTimeline timeline;
        CommOrder order;
        int32_t* enter = random_order(&rng, M, &arena);
        CHECK_OK(pipe_policy_adaptive.build(&schedule, &problem, enter, round % 2, &arena));
        CHECK_OK(pipe_simulate(&timeline, &problem, &schedule, &arena));
        CHECK_OK(comm_order_make(&order, &problem, &schedule, &timeline, &arena));
        for (int32_t s = 0; s < P; s++) {
            int32_t mine[64], theirs[64];
            if (s < P - 1) {
                int32_t num = pair_order(&order, s, s + 1, mine);
                CHECK_EQ(num, 2 * M);
                CHECK_EQ(pair_order(&order, s + 1, s, theirs), num);
                CHECK(memcmp(mine, theirs, (size_t)num * sizeof *mine) == 0);
            }
            for (int32_t i = 0; i < order.num_ops[s]; i++) {
                CommOp op = order.ops[s][i];
                CHECK(i == 0 || order.ops[s][i - 1].pos <= op.pos);
                CHECK(i == 0 || problem.pulls || order.ops[s][i - 1].begin_ns <= op.begin_ns);
                if (op.kind == INSTR_RECV_ACT || op.kind == INSTR_RECV_GRAD) {
                    int32_t running = 0, ahead = i > 0 ? order.ops[s][i - 1].pos : 0;
                    while (running < schedule.num_jobs[s] && timeline.job[s][running].end_ns <= op.begin_ns) {
                        running++;
                    }
                    CHECK(op.pos <= running || op.pos == ahead);
                }
                for (int32_t j = 0; j < schedule.num_jobs[s]; j++) {
                    PipeJob job = schedule.jobs[s][j];
                    if (job.mb != op.mb) { continue; }
                    if (job.kind == JOB_F && op.kind == INSTR_SEND_ACT) { CHECK(op.pos > j); }
                    if (job.kind == JOB_B && op.kind == INSTR_SEND_GRAD) { CHECK(op.pos > j); }
                    if (job.kind == JOB_F && op.kind == INSTR_RECV_ACT) { CHECK(op.pos <= j); }
                    if (job.kind == JOB_B && op.kind == INSTR_RECV_GRAD) { CHECK(op.pos <= j); }
                }
            }
        }
    }
    arena_free(&arena);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(plans_of_random_pipelines_keep_every_rule);
    RUN(both_ends_see_one_order);
    return test_end();
}
