// test_replay.c -- plans with other durations, and with fewer cores.
#include "../dynapipe_plugin/plan/instructions.h"
#include "../dynapipe_plugin/plan/plan_message.h"
#include "../dynapipe_plugin/plan/planner.h"
#include "../dynapipe_plugin/plan/replay.h"
#include "../dynapipe_plugin/plan/schedule.h"
#include "../dynapipe_plugin/plan/simulate.h"
#include "random_plan.h"
#include "random_problem.h"
#include "test.h"

#include <stdio.h>
#include <math.h>

static uint64_t seed;

static void add_instr(PlanRank* rank, uint8_t kind, int32_t chunk, int32_t mb, int32_t peer,
                      const PipeSpan* span) {
    rank->instrs[rank->num_instrs++] = (PlanInstr){.kind = kind,
                                                   .chunk = (int16_t)chunk,
                                                   .mb = mb,
                                                   .peer = peer,
                                                   .begin_ns = span->begin_ns,
                                                   .end_ns = span->end_ns};
}

// Receives, or sends, that stand at most before job `pos`, from *next on.
static void add_transfers(const Plan* plan, PlanRank* rank, const CommOrder* order, int32_t s, int32_t P,
                          bool receives, int32_t pos, int32_t* next) {
    for (; *next < order->num_ops[s] && order->ops[s][*next].pos <= pos; ++*next) {
        const CommOp* op = &order->ops[s][*next];
        if (plan_instr_is_recv(op->kind) != receives) { continue; }
        add_instr(rank, op->kind, op->chunk, plan->M + op->mb, plan->R * P + op->peer,
                  &(PipeSpan){op->begin_ns, op->end_ns});
    }
}

static void timed_plan_add_replica(Plan* plan, const PipeProblem* problem, const PipeSchedule* schedule,
                                   Arena* arena) {
    static const uint8_t instr_of[JOB_COUNT] = {
        [JOB_F] = INSTR_FWD, [JOB_B] = INSTR_BWD, [JOB_W] = INSTR_WGT, [JOB_R] = INSTR_REC};
    PipeTimeline timeline;
    CommOrder order;
    CHECK_OK(pipe_simulate(&timeline, problem, schedule, arena));
    CHECK_OK(comm_order_make(&order, problem, schedule, &timeline, arena));
    for (int32_t s = 0; s < problem->P; s++) {
        PlanRank* rank = &plan->ranks[plan->R * problem->P + s];
        rank->instrs = ARENA_NEW(arena, PlanInstr, schedule->num_jobs[s] + order.num_ops[s]);
        add_transfers(plan, rank, &order, s, problem->P, true, INT32_MAX, &(int32_t){0});
        for (int32_t i = 0, k = 0; i <= schedule->num_jobs[s]; i++) {
            add_transfers(plan, rank, &order, s, problem->P, false, i, &k);
            if (i == schedule->num_jobs[s]) { break; }
            PipeJob job = schedule->jobs[s][i];
            add_instr(rank, instr_of[job.kind], job.chunk, plan->M + job.mb, -1, &timeline.job[s][i]);
        }
    }
    for (int32_t m = 0; m < problem->M; m++) { plan->mbs[plan->M++].replica = plan->R; }
    if (timeline.makespan_ns > plan->makespan_ns) { plan->makespan_ns = timeline.makespan_ns; }
    plan->R++;
}

static Plan timed_plan(const PipeProblem* problem, int32_t most_replicas, int32_t most_mbs, Arena* arena) {
    Plan plan = {.P = problem->P, .pulls = problem->pulls};
    if (problem->placement == NULL) {
        placement_linear(&plan.placement, plan.placement.chunks, plan.P);
    } else {
        plan.placement = *problem->placement;
    }
    plan.mbs = ARENA_NEW(arena, PlanMicrobatch, most_mbs);
    plan.ranks = ARENA_NEW(arena, PlanRank, problem->P * most_replicas);
    return plan;
}

// --- replay ----------------------------------------------------------------------------------------------
// makespans under noise: exact without, equal to a longest path of the test's own with.

static const PipePolicy* const policies[] = {&pipe_policy_gpipe, &pipe_policy_1f1b, &pipe_policy_adaptive};

static PipeSchedule random_schedule(const PipeProblem* problem, Rng* rng, Arena* arena) {
    PipeSchedule schedule;
    CHECK_OK(policies[rng_below(rng, 3)]->build(&schedule, problem, random_order(rng, problem->M, arena),
                                                rng_below(rng, 2), arena));
    return schedule;
}

// Times of random_pipe are tens of ns: too small to be noisy.
static PipeProblem random_long_pipe(Rng* rng, int32_t P, int32_t M, int64_t scale, Arena* arena) {
    RandomPipe about = {.transfers = rng_below(rng, 2), .drops_percent = 30, .zero_times = rng_below(rng, 2)};
    PipeProblem problem = random_pipe(rng, P, M, &about, arena);
    for (int32_t i = 0; i < P * M; i++) {
        PipeCost* cost = (PipeCost*)(uintptr_t)&problem.cost[i];
        for (int32_t k = 0; k < JOB_COUNT; k++) { cost->job_ns[k] *= scale; }
        cost->transfer_ns *= scale;
    }
    int64_t tail_ns = rng_between(rng, 0, 100) * scale;  // a plan has one for all
    for (int32_t s = 0; s < P; s++) { problem.tail_ns[s] = tail_ns; }
    return problem;
}

// One replica.
static Status replay(ReplayResult* out, const PipeProblem* problem, const PipeSchedule* schedule,
                     const ReplayNoise* noise, Arena* arena) {
    Plan plan = timed_plan(problem, 1, problem->M, arena);
    timed_plan_add_replica(&plan, problem, schedule, arena);
    return plan_replay(out, &plan, noise, arena);
}

// --- an independent longest path -------------------------------------------------------------------------
enum { MAX_P = 6, MAX_M = 12, SEND_ACT = 4, SEND_GRAD = 5 };

__extension__ typedef __int128 Wide;

// As replay.h describes it, in wider integers.
static int64_t noisy_ns(int64_t ns, int32_t permille, uint64_t pair_seed, int32_t s, int32_t m, int32_t kind,
                        int32_t sign) {
    uint64_t key = ((uint64_t)s << 40 | (uint64_t)m << 8 | (uint64_t)kind) * 0x9e3779b97f4a7c15u;
    uint64_t bits = rng_mix(pair_seed + key);
    Wide z = 0;
    for (int32_t i = 0; i < 4; i++) { z += (int64_t)(bits >> 16 * i & 0xffff); }
    z -= 2 * 65535;
    Wide unit = (((Wide)permille << 40) + 37837228 / 2) / 37837228;
    Wide factor = (z < 0 ? -z : z) * unit / (1 << 20), most = (1 << 20) / 20 * 19;
    if (factor > most) { factor = most; }
    Wide off = (ns * factor + (1 << 19)) >> 20;
    return ns + (int64_t)((z < 0 ? -off : off) * sign);
}

static bool splits(const PipeSchedule* schedule, int32_t s, int32_t m) {
    for (int32_t i = 0; i < schedule->num_jobs[s]; i++) {
        PipeJob job = schedule->jobs[s][i];
        if (job.kind == JOB_W && job.mb == m) { return true; }
    }
    return false;
}

// Every end is raised to what it must wait for, again and again until nothing moves.
static int64_t longest_path(const PipeProblem* problem, const PipeSchedule* schedule, int32_t permille,
                            uint64_t pair_seed, int32_t sign) {
    static int64_t job_end[MAX_P][4 * MAX_M], arrives[2][MAX_P][MAX_M];
    memset(job_end, 0, sizeof job_end);
    memset(arrives, 0, sizeof arrives);
    int64_t makespan = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int32_t s = 0; s < problem->P; s++) {
            int64_t before = 0, link = 0;
            for (int32_t i = 0; i < schedule->num_jobs[s]; i++) {
                PipeJob job = schedule->jobs[s][i];
                const PipeCost* cost = pipe_cost(problem, s, job.mb);
                int64_t ns = cost->job_ns[job.kind], begin = before;
                if (job.kind == JOB_B && !splits(schedule, s, job.mb)) { ns += cost->job_ns[JOB_W]; }
                if (job.kind == JOB_F && arrives[0][s][job.mb] > begin) { begin = arrives[0][s][job.mb]; }
                if (job.kind == JOB_B && arrives[1][s][job.mb] > begin) { begin = arrives[1][s][job.mb]; }
                int64_t end = begin + noisy_ns(ns, permille, pair_seed, s, job.mb, job.kind, sign);
                moved |= end != job_end[s][i];
                before = job_end[s][i] = end;
                bool act = job.kind == JOB_F && s < problem->P - 1, grad = job.kind == JOB_B && s > 0;
                if (!act && !grad) { continue; }
                const PipeCost* boundary = pipe_cost(problem, act ? s : s - 1, job.mb);
                link = (end > link ? end : link) + noisy_ns(boundary->transfer_ns, permille, pair_seed, s,
                                                            job.mb, act ? SEND_ACT : SEND_GRAD, sign);
                int64_t* arrival = &arrives[grad][act ? s + 1 : s - 1][job.mb];
                moved |= *arrival != link;
                *arrival = link;
            }
            if (before + problem->tail_ns[s] > makespan) { makespan = before + problem->tail_ns[s]; }
        }
    }
    return makespan;
}

static int64_t quantile(const int64_t* sorted, int32_t num, int32_t percent) {
    int32_t k = 0;
    while (100 * (k + 1) < percent * num) { k++; }
    return sorted[k];
}

static void quantiles_equal_an_independent_longest_path(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    for (int32_t round = 0; round < 300; round++) {
        arena_reset(&arena);
        int64_t scale = round % 10 == 0 ? 1000000000 : round % 2 ? 1 : 1000;
        PipeProblem problem =
            random_long_pipe(&rng, rng_between(&rng, 1, MAX_P), rng_between(&rng, 1, MAX_M), scale, &arena);
        PipeSchedule schedule = random_schedule(&problem, &rng, &arena);
        int32_t permille = rng_between(&rng, 0, round % 3 ? 200 : 1000), trials = rng_between(&rng, 1, 23);
        uint64_t replay_seed = rng_u64(&rng);
        int64_t expected[24], sum = 0;
        Rng pairs = rng_seed(replay_seed);
        for (int32_t t = 0; t < trials; t += 2) {
            uint64_t pair_seed = rng_u64(&pairs);
            expected[t] = longest_path(&problem, &schedule, permille, pair_seed, 1);
            expected[t + 1] = longest_path(&problem, &schedule, permille, pair_seed, -1);
        }
        for (int32_t i = 0; i < trials; i++) {
            sum += expected[i];
            for (int32_t k = i; k > 0 && expected[k - 1] > expected[k]; k--) {
                int64_t ns = expected[k];
                expected[k] = expected[k - 1];
                expected[k - 1] = ns;
            }
        }
        ReplayResult result;
        ReplayNoise noise = {.noise_permille = permille, .trials = trials, .seed = replay_seed};
        CHECK_OK(replay(&result, &problem, &schedule, &noise, &arena));
        CHECK_EQ(result.p50_ns, quantile(expected, trials, 50));
        CHECK_EQ(result.p90_ns, quantile(expected, trials, 90));
        CHECK_EQ(result.worst_ns, expected[trials - 1]);
        CHECK_NEAR(result.mean_ns, (double)sum / trials, 1);
        CHECK_EQ(result.planned_ns, longest_path(&problem, &schedule, 0, 0, 1));
        CHECK(result.p50_ns <= result.p90_ns && result.p90_ns <= result.worst_ns);
        ReplayResult again;
        CHECK_OK(replay(&again, &problem, &schedule, &noise, &arena));
        CHECK(memcmp(&again, &result, sizeof result) == 0);
    }
    arena_free(&arena);
}

static Plan parsed_copy(const Plan* plan, Arena* arena) {
    char* text = NULL;
    size_t num_bytes = 0;
    FILE* file = open_memstream(&text, &num_bytes);
    plan_print(plan, file);
    fclose(file);
    Plan copy = {0};
    CHECK_OK(plan_parse(&copy, text, "copy", arena));
    free(text);
    return copy;
}

// Every plan, also read back from its text, has its own makespan without noise; the seed alone decides.
static void plans_replay_to_their_makespan(void) {
    static RandomProblem problem;
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    int32_t num_plans = 0;
    for (int32_t round = 0; round < 120; round++) {
        arena_reset(&arena);
        Plan plan;
        if (round % 2) {
            int32_t P = rng_between(&rng, 1, 5), N = rng_between(&rng, 1, 40);
            RandomPlan about = {P,    rng_between(&rng, 1, 3), P + 2, N,    200, true, true, NULL,
                                NULL, round % 4 == 1,          false, false};
            random_plan(&plan, &rng, &about, &arena);
        } else {
            random_problem(&problem, &rng, rng_between(&rng, 1, 40));
            problem.request.effort = 30;
            problem.request.batching = (Batching)(round / 2 % BATCHING_COUNT);
            if (round % 4) { random_problem_limit_memory(&problem, 100); }
            Status status = plan_make(&plan, &problem.request, &problem.costs, problem.samples,
                                      problem.num_samples, &arena);
            if (status != STATUS_OK) { continue; }
        }
        num_plans++;
        Plan copy = parsed_copy(&plan, &arena);
        ReplayResult result, other;
        ReplayNoise noise = {.trials = 5, .seed = seed};
        CHECK_OK(plan_replay(&result, &copy, &noise, &arena));
        CHECK_EQ(result.planned_ns, plan.makespan_ns);
        CHECK_EQ(result.p50_ns, plan.makespan_ns);
        CHECK_EQ(result.worst_ns, plan.makespan_ns);
        noise.noise_permille = 100;
        CHECK_OK(plan_replay(&result, &copy, &noise, &arena));
        CHECK_EQ(result.planned_ns, plan.makespan_ns);
        CHECK(result.p50_ns <= result.p90_ns && result.p90_ns <= result.worst_ns);
        CHECK_OK(plan_replay(&other, &plan, &noise, &arena));
        CHECK(memcmp(&result, &other, sizeof result) == 0);
    }
    CHECK(num_plans > 90);
    arena_free(&arena);
}

// A plan that nobody checked: jobs and transfers moved, dropped, of other microbatches, with other times.
static void broken_plans_do_no_harm(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    int32_t num_refused = 0, num_stuck = 0;
    for (int32_t round = 0; round < 2000; round++) {
        arena_reset(&arena);
        Plan plan;
        RandomPlan about = {rng_between(&rng, 1, 4),
                            rng_between(&rng, 1, 3),
                            5,
                            12,
                            50,
                            true,
                            true,
                            NULL,
                            NULL,
                            round % 2,
                            false,
                            false};
        random_plan(&plan, &rng, &about, &arena);
        for (int32_t k = rng_between(&rng, 1, 5); k > 0; k--) {
            PlanRank* rank = &plan.ranks[rng_between(&rng, 0, plan.P * plan.R - 1)];
            if (rank->num_instrs == 0) { continue; }
            PlanInstr* a = &rank->instrs[rng_between(&rng, 0, rank->num_instrs - 1)];
            PlanInstr *b = &rank->instrs[rng_between(&rng, 0, rank->num_instrs - 1)], kept = *a;
            switch (rng_below(&rng, 8)) {
                case 0: a->kind = (uint8_t)rng_below(&rng, INSTR_COUNT); break;
                case 1: a->mb = rng_between(&rng, -1, plan.M); break;
                case 2: a->end_ns = rng_below(&rng, 2) ? INT64_MAX : a->begin_ns - 1; break;
                case 3: rank->num_instrs--; break;
                case 4: a->chunk = (int16_t)rng_between(&rng, -2, 2 * plan.P + 1); break;
                case 5:
                    plan.placement.head = (uint8_t)rng_below(&rng, HEAD_COUNT + 1);
                    plan.placement.stage_of[0] = (int16_t)rng_between(&rng, -1, plan.P);
                    plan.placement.head_begin[plan.P] = HEAD_UNITS;
                    break;
                case 6: plan.mbs[rng_between(&rng, 0, plan.M - 1)].replica = rng_between(&rng, 0, 4); break;
                default:
                    *a = *b;
                    *b = kept;
                    break;
            }
        }
        ReplayResult result;
        ReplayNoise noise = {.noise_permille = 1000, .trials = 3, .seed = seed, .slow_permille = 100000};
        Status status = plan_replay(&result, &plan, &noise, &arena);
        num_refused += status != STATUS_OK;
        num_stuck += status == STATUS_DEADLOCK;
    }
    CHECK(num_refused > 200 && num_refused < 2000 && num_stuck > 50);
    arena_free(&arena);
}

// Several replicas count with the slowest, each with noise of its own.
static void replicas_count_with_the_slowest(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    enum { REPLICAS = 3, MOST_M = 8 };
    for (int32_t round = 0; round < 300; round++) {
        arena_reset(&arena);
        Plan plan = {0};
        int64_t slowest_ns = 0;
        ReplayNoise noise = {.noise_permille = 80, .trials = 1, .seed = rng_u64(&rng)};
        ReplayResult result;
        for (int32_t r = 0; r < REPLICAS; r++) {
            PipeProblem problem = random_long_pipe(&rng, 3, rng_between(&rng, 1, MOST_M), 1000, &arena);
            PipeSchedule schedule = random_schedule(&problem, &rng, &arena);
            for (int32_t s = 0; s < 3; s++) { problem.tail_ns[s] = 0; }  // a plan has one for all
            problem.pulls = round % 2;
            if (r == 0) { plan = timed_plan(&problem, REPLICAS, REPLICAS * MOST_M, &arena); }
            timed_plan_add_replica(&plan, &problem, &schedule, &arena);
            ReplayNoise own = noise;
            own.seed = replay_replica_seed(noise.seed, r);
            CHECK_OK(replay(&result, &problem, &schedule, &own, &arena));
            slowest_ns = result.worst_ns > slowest_ns ? result.worst_ns : slowest_ns;
        }
        CHECK_OK(plan_replay(&result, &plan, &noise, &arena));
        CHECK_EQ(result.worst_ns, slowest_ns);
    }
    arena_free(&arena);
}

// One job alone shows the noise itself: mean 1, the deviation asked for, the P90 of a sum of four uniforms
// (1.29 deviations: Irwin-Hall); and never 0 or below.
static void noise_is_what_was_asked_for(void) {
    const int64_t ns = 1000000000;
    Arena arena = {0};
    PipeCost cost = {.job_ns = {[JOB_F] = ns}};
    PipeProblem problem = {.P = 1, .M = 1, .cost = &cost, .memory_limit_bytes = {INT64_MAX}};
    PipeSchedule schedule;
    CHECK_OK(pipe_policy_1f1b.build(&schedule, &problem, &(int32_t){0}, false, &arena));
    for (int32_t permille = 10; permille <= 1000; permille *= 10) {
        ReplayNoise noise = {.noise_permille = permille, .trials = 20000, .seed = seed};
        ReplayResult result;
        CHECK_OK(replay(&result, &problem, &schedule, &noise, &arena));
        CHECK_NEAR(result.mean_ns, ns, 1);
        CHECK(result.worst_ns <= 2 * ns);
        if (permille > 270) { continue; }  // clipped
        CHECK_NEAR((double)result.p90_ns / (double)ns, 1 + 1.29 * permille / 1000, 0.05 * permille / 1000);
    }
    arena_free(&arena);
}

// A slow stage is a problem with larger times; the others wait for it.
static void a_slow_stage_takes_its_factor(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    for (int32_t round = 0; round < 200; round++) {
        arena_reset(&arena);
        int32_t P = rng_between(&rng, 1, 5), slow = rng_between(&rng, 0, P - 1);
        PipeProblem problem = random_long_pipe(&rng, P, rng_between(&rng, 1, 12), 1000, &arena);
        PipeSchedule schedule = random_schedule(&problem, &rng, &arena);
        ReplayNoise noise = {
            .trials = 2, .seed = seed, .slow_stage = slow, .slow_permille = rng_between(&rng, 500, 3000)};
        ReplayResult result;
        CHECK_OK(replay(&result, &problem, &schedule, &noise, &arena));
        for (int32_t m = 0; m < problem.M; m++) {
            PipeCost* cost = (PipeCost*)(uintptr_t)pipe_cost(&problem, slow, m);
            for (int32_t k = 0; k < JOB_COUNT; k++) {
                cost->job_ns[k] = cost->job_ns[k] * noise.slow_permille / 1000;
            }
        }
        PipeTimeline timeline;
        CHECK_OK(pipe_simulate(&timeline, &problem, &schedule, &arena));
        CHECK_EQ(result.p50_ns, timeline.makespan_ns);
        CHECK_EQ(result.worst_ns, timeline.makespan_ns);
    }
    arena_free(&arena);
}

static void impossible_noise_is_refused(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    PipeProblem problem = random_pipe(&rng, 2, 2, &(RandomPipe){.equal = true}, &arena);
    PipeSchedule schedule = random_schedule(&problem, &rng, &arena);
    ReplayResult result;
    static const ReplayNoise impossible[] = {{.noise_permille = 1001, .trials = 1},
                                             {.noise_permille = -1, .trials = 1},
                                             {.noise_permille = 10},
                                             {.trials = 1, .slow_stage = 2, .slow_permille = 1200}};
    for (int i = 0; i < 4; i++) {
        CHECK_FAILS(replay(&result, &problem, &schedule, &impossible[i], &arena), STATUS_OUT_OF_RANGE,
                    "a stage from 0 to 1");
    }
    arena_free(&arena);
}

// --- replay plan -----------------------------------------------------------------------------------------
// plans of any placement, the head whole or shared: replayed, they end when the
// simulator says, and so they do where cores are shared.

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
        ReplayResult result;
        CHECK_OK(plan_replay(&result, &placed.plan, &(ReplayNoise){.trials = 3, .seed = seed}, &arena));
        CHECK_EQ(result.planned_ns, placed.timeline.makespan_ns);
        CHECK(result.p50_ns == result.planned_ns && result.worst_ns == result.planned_ns);
        for (int32_t s = 0; s < placed.pipe.P; s++) {
            int32_t num_jobs = placed.schedule.num_jobs[s];
            int64_t end_ns = num_jobs > 0 ? placed.timeline.job[s][num_jobs - 1].end_ns : 0;
            CHECK_EQ(result.planned_wait_ns[s], end_ns - placed.timeline.busy_ns[s]);
            CHECK_EQ(result.mean_wait_ns[s], result.planned_wait_ns[s]);
        }
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
// end when they say.
static void late_receives_hold_transfers_up(void) {
    Rng rng = rng_seed(seed + 2);
    Arena arena = {0};
    int32_t num_late = 0;
    for (int32_t round = 0; round < 200; round++) {
        arena_reset(&arena);
        Plan plan;
        int32_t P = rng_between(&rng, 2, 5);
        RandomPlan about = {.P = P,
                            .R = 1,
                            .num_layers = P + 2,
                            .num_samples = rng_between(&rng, 10, 40),
                            .max_tokens = 200,
                            .packed = true,
                            .recompute = true,
                            .placed = round % 2,
                            .tight = true};
        int64_t makespan_ns, last_ns;
        random_plan(&plan, &rng, &about, &arena);
        last_ns = plan.makespan_ns - plan_tail_ns(&plan);
        CHECK_OK(plan_makespan(&makespan_ns, &plan, 0, NULL, &arena));
        CHECK(makespan_ns == last_ns ||
              (plan.pulls && makespan_ns < last_ns));  // pulled in no time: replay.c
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
    RUN(quantiles_equal_an_independent_longest_path);
    RUN(plans_replay_to_their_makespan);
    RUN(broken_plans_do_no_harm);
    RUN(replicas_count_with_the_slowest);
    RUN(noise_is_what_was_asked_for);
    RUN(a_slow_stage_takes_its_factor);
    RUN(impossible_noise_is_refused);
    RUN(placed_plans_end_when_the_simulator_says);
    RUN(late_receives_hold_transfers_up);
    return test_end();
}
