// test_instructions.c -- messages in one order, instruction lists and their buffers.
#include "../dynapipe_plugin/plan/instructions.h"
#include "../dynapipe_plugin/plan/plan_message.h"
#include "../dynapipe_plugin/plan/simulate.h"
#include "random_plan.h"
#include "test.h"

static uint64_t seed;

// --- comm order ------------------------------------------------------------------------------------------
// both ends of every pair see one order, nothing deadlocks, and plans keep every rule.

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

// --- rank list -------------------------------------------------------------------------------------------
// slack for ranks that are late: never more memory than allowed, the same order, fewer
// waits.

typedef struct {
    PipeProblem problem;
    PipeSchedule schedule;
    PipeTimeline timeline;
    RankBytes* bytes;
} Case;

static void draw(Case* it, Rng* rng, int32_t round, Arena* arena) {
    int32_t P = rng_between(rng, 2, 6), M = rng_between(rng, 1, 16);
    RandomPipe about = {
        .transfers = round % 3 > 0, .zero_times = round % 7 == 0, .drops_percent = round % 2 * 30};
    *it = (Case){.problem = random_pipe(rng, P, M, &about, arena)};
    it->problem.pulls = round % 2;
    it->bytes = ARENA_NEW(arena, RankBytes, (int64_t)P * M);
    for (int32_t m = 0; m < M; m++) {
        int64_t link_bytes = rng_between(rng, 1, 2000);  // activations take about 30 times as much
        for (int32_t s = 0; s < P; s++) {
            it->bytes[s * M + m] = (RankBytes){.acts_bytes = rng_between(rng, 10000, 100000),
                                               .forward_bytes = 5000,
                                               .in_bytes = s > 0 ? link_bytes : 0,
                                               .out_bytes = s < P - 1 ? link_bytes : 0};
        }
    }
    int32_t* enter = random_order(rng, M, arena);
    CHECK_OK(pipe_policy_adaptive.build(&it->schedule, &it->problem, enter, round % 2, arena));
    CHECK_OK(pipe_simulate(&it->timeline, &it->problem, &it->schedule, arena));
}

static void make(PlanRank* out, const Case* it, int32_t s, bool with_slack, int64_t enough_bytes,
                 Arena* arena) {
    PlanRank ranks[PLAN_MAX_STAGES] = {0};
    int64_t scratch_bytes[PLAN_MAX_STAGES];
    PipeTimeline timeline = it->timeline;
    ReplicaListsInput input = {.problem = &it->problem,
                               .schedule = &it->schedule,
                               .bytes = it->bytes,
                               .scratch_bytes = scratch_bytes,
                               .with_slack = with_slack};
    for (int32_t k = 0; k < it->problem.P; k++) {
        scratch_bytes[k] = 1000;
        input.enough_bytes[k] = k == s ? enough_bytes : INT64_MAX;
    }
    CHECK_OK(replica_lists_make(ranks, &timeline, &input, arena));
    *out = ranks[s];
}

static bool is_wait(const PlanInstr* instr) {
    return plan_instr_is_wait(instr->kind);
}

// Jobs and transfers each in the same order; between them slack moves what it likes.
static void check_same_order(const PlanRank* a, const PlanRank* b) {
    CHECK_EQ(a->num_instrs, b->num_instrs);
    for (int jobs = 0; jobs < 2; jobs++) {
        for (int32_t i = 0, j = 0; i < a->num_instrs && j < b->num_instrs; i++, j++) {
            while (i < a->num_instrs && (is_wait(&a->instrs[i]) || (a->instrs[i].peer < 0) != jobs)) { i++; }
            while (j < b->num_instrs && (is_wait(&b->instrs[j]) || (b->instrs[j].peer < 0) != jobs)) { j++; }
            CHECK_EQ(i == a->num_instrs, j == b->num_instrs);
            if (i == a->num_instrs || j == b->num_instrs) { break; }
            CHECK_EQ(a->instrs[i].kind, b->instrs[j].kind);
            CHECK_EQ(a->instrs[i].mb, b->instrs[j].mb);
        }
    }
}

// Waits that another job follows: there the rank may stop.
static int32_t num_early_waits(const PlanRank* rank) {
    int32_t num = 0, pending = 0;
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        pending += is_wait(&rank->instrs[i]);
        if (rank->instrs[i].peer >= 0) { continue; }
        num += pending;
        pending = 0;
    }
    return num;
}

static void slack_stays_within_memory(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    int32_t num_tight = 0, num_slack = 0, num_grown = 0;
    for (int32_t round = 0; round < 300; round++) {
        arena_reset(&arena);
        Case it;
        draw(&it, &rng, round, &arena);
        for (int32_t s = 0; s < it.problem.P; s++) {
            PlanRank tight, slack;
            make(&tight, &it, s, false, INT64_MAX, &arena);
            int64_t tight_bytes = tight.arena_bytes;
            int64_t limits[] = {INT64_MAX, tight_bytes, tight_bytes + rng_below(&rng, 4000)};
            for (int32_t k = 0; k < 3; k++) {
                make(&slack, &it, s, true, limits[k], &arena);
                CHECK(slack.arena_bytes <= limits[k]);
                CHECK(slack.arena_bytes <= tight_bytes + tight_bytes / 16);
                check_same_order(&tight, &slack);
                num_grown += slack.arena_bytes > tight_bytes;
                num_slack += k == 0 ? num_early_waits(&slack) : 0;
            }
            num_tight += num_early_waits(&tight);
        }
    }
    CHECK(num_grown > 100);
    CHECK(num_slack < num_tight / 4);
    arena_free(&arena);
}

// --- where memory is short --------------------------------------------------------------------------------

enum { SCRATCH_BYTES = 1000, MOST_LINK_BYTES = 8000 };

static int64_t aligned(int64_t num_bytes) {
    return (num_bytes + PLAN_BUFFER_ALIGN - 1) / PLAN_BUFFER_ALIGN * PLAN_BUFFER_ALIGN;
}

// Chunks anywhere; the scheduling problem counts buffers as the planner's does (replica_problem.h): acts and
// what is sent, inputs from F on.
static void draw_placed(Case* it, Placement* placement, Rng* rng, int32_t round, Arena* arena) {
    int32_t P = rng_between(rng, 2, 6), M = rng_between(rng, 1, 16), K;
    do { random_placement(placement, rng, P, 3 * P); } while (placement->head != HEAD_WHOLE);
    K = placement->num_chunks;
    RandomPipe about = {.transfers = round % 3 > 0, .drops_percent = round % 2 * 30};
    *it = (Case){.problem = random_placed_pipe(rng, P, M, placement, &about, arena),
                 .bytes = ARENA_NEW(arena, RankBytes, (int64_t)K * M)};
    for (int32_t m = 0; m < M; m++) {
        int64_t link_bytes = rng_between(rng, MOST_LINK_BYTES / 8, MOST_LINK_BYTES);
        for (int32_t k = 0; k < K; k++) {
            RankBytes* bytes = &it->bytes[k * M + m];
            PipeCost* cost = (PipeCost*)(uintptr_t)pipe_cost(&it->problem, k, m);
            *bytes = (RankBytes){.acts_bytes = rng_between(rng, 5000, 20000),
                                 .forward_bytes = 2000,
                                 .in_bytes = k > 0 ? link_bytes : 0,
                                 .out_bytes = k < K - 1 ? link_bytes : 0};
            cost->stored_bytes = aligned(bytes->acts_bytes) + aligned(bytes->out_bytes);
            cost->input_bytes = aligned(bytes->in_bytes);
            cost->forward_bytes = aligned(bytes->forward_bytes) + aligned(bytes->out_bytes);
        }
    }
    int32_t* enter = random_order(rng, M, arena);
    CHECK_OK(pipe_policy_adaptive.build(&it->schedule, &it->problem, enter, round % 2, arena));
    CHECK_OK(pipe_simulate(&it->timeline, &it->problem, &it->schedule, arena));
}

// Do all ranks keep the planner's limits: what the jobs hold at most, one gradient to send, scratch?
static bool fit(const Case* it, const PlanRank* ranks, int64_t limits[PLAN_MAX_STAGES]) {
    bool all_fit = true;
    for (int32_t s = 0; s < it->problem.P; s++) {
        limits[s] = it->timeline.peak_bytes[s] + aligned(SCRATCH_BYTES) + aligned(MOST_LINK_BYTES);
        all_fit &= ranks[s].arena_bytes <= limits[s];
    }
    return all_fit;
}

// Run through again, the lists take what they say: where a transfer waits for its sender, its link and its
// receive.
static void lists_run_as_predicted(const Case* it, PlanRank* ranks, const PipeTimeline* timeline,
                                   Arena* arena) {
    int64_t makespan_ns;
    Plan plan = {
        .P = it->problem.P, .R = 1, .M = it->problem.M, .placement = *it->problem.placement, .ranks = ranks};
    plan.mbs = ARENA_NEW(arena, PlanMicrobatch, plan.M);
    CHECK_OK(plan_makespan(&makespan_ns, &plan, 0, NULL, arena));
    CHECK_EQ(makespan_ns, timeline->makespan_ns);  // no stage has a tail
}

// Lists whose receives are posted early do not; in time, nearly all do (the rest is the layout's and the
// senders', whose messages wait), and the timeline says what that costs.
static void lists_fit_where_their_jobs_fit(void) {
    Rng rng = rng_seed(seed + 1);
    Arena arena = {0};
    int32_t num_early = 0, num_late = 0, num_rounds = 400;
    double slower = 0;
    for (int32_t round = 0; round < num_rounds; round++) {
        arena_reset(&arena);
        Case it;
        Placement placement;
        draw_placed(&it, &placement, &rng, round, &arena);
        int64_t scratch_bytes[PLAN_MAX_STAGES];
        PlanRank ranks[PLAN_MAX_STAGES] = {0};
        ReplicaListsInput input = {.problem = &it.problem,
                                   .schedule = &it.schedule,
                                   .bytes = it.bytes,
                                   .scratch_bytes = scratch_bytes};
        for (int32_t s = 0; s < it.problem.P; s++) {
            scratch_bytes[s] = SCRATCH_BYTES;
            input.enough_bytes[s] = INT64_MAX;
        }
        PipeTimeline late = it.timeline;
        CHECK_OK(replica_lists_make(ranks, &late, &input, &arena));
        CHECK_EQ(late.makespan_ns, it.timeline.makespan_ns);
        lists_run_as_predicted(&it, ranks, &late, &arena);
        input.with_slack = round % 2;
        bool is_early = fit(&it, ranks, input.enough_bytes);
        CHECK_OK(replica_lists_make(ranks, &late, &input, &arena));
        CHECK(!is_early || late.makespan_ns == it.timeline.makespan_ns);
        num_early += is_early;
        num_late += fit(&it, ranks, input.enough_bytes);
        lists_run_as_predicted(&it, ranks, &late, &arena);
        slower += (double)late.makespan_ns / (double)it.timeline.makespan_ns - 1;
    }
    printf("     %d of %d fit as predicted, %d where receives wait, %.2f %% slower\n", num_early, num_rounds,
           num_late, 100 * slower / num_rounds);
    CHECK(num_early < 90 * num_rounds / 100 && num_late >= 95 * num_rounds / 100);
    arena_free(&arena);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(both_ends_see_one_order);
    RUN(slack_stays_within_memory);
    RUN(lists_fit_where_their_jobs_fit);
    return test_end();
}
