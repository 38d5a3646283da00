// test_rank_list.c -- slack for ranks that are late: never more memory than allowed, the same order, fewer
// waits.
#include "../dynapipe_plugin/plan/lists/replica_lists.h"
#include "random_plan.h"
#include "test.h"

static uint64_t seed;

typedef struct {
    PipeProblem problem;
    PipeSchedule schedule;
    PipeTimeline timeline;
    CommOrder order;
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
    CHECK_OK(comm_order_make(&it->order, &it->problem, &it->schedule, &it->timeline, arena));
}

static void make(PlanRank* out, const Case* it, int32_t s, bool with_slack, int64_t enough_bytes,
                 Arena* arena) {
    RankListInput input = {.problem = &it->problem,
                           .schedule = &it->schedule,
                           .timeline = &it->timeline,
                           .order = &it->order,
                           .bytes = it->bytes,
                           .with_slack = with_slack};
    *out = (PlanRank){0};
    CHECK_OK(rank_list_make(out, &input, s, 1000, enough_bytes, arena));
}

static bool is_wait(const PlanInstr* instr) {
    return instr->kind == INSTR_WAIT_ACT || instr->kind == INSTR_WAIT_GRAD;
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

static int64_t aligned(int64_t num_bytes) {
    return (num_bytes + PLAN_BUFFER_ALIGN - 1) / PLAN_BUFFER_ALIGN * PLAN_BUFFER_ALIGN;
}

// Buffers as the scheduling problem counts them (pipe_problem.h): acts and what is sent, inputs from F on.
static void count_buffers(Case* it) {
    for (int32_t row = 0; row < pipe_num_rows(&it->problem); row++) {
        for (int32_t m = 0; m < it->problem.M; m++) {
            PipeCost* cost = (PipeCost*)(uintptr_t)pipe_cost(&it->problem, row, m);
            const RankBytes* bytes = &it->bytes[row * it->problem.M + m];
            cost->stored_bytes = aligned(bytes->acts_bytes) + aligned(bytes->out_bytes);
            cost->input_bytes = aligned(bytes->in_bytes);
            cost->forward_bytes = cost->drops ? aligned(bytes->forward_bytes) + aligned(bytes->out_bytes) : 0;
        }
    }
}

// Limits as the planner has them: what the jobs hold at most, one gradient to send, scratch. Lists whose
// receives are posted early do not keep them; in time, nearly all do (the rest is the layout's and the
// sender's, whose messages wait), and the timeline says what that costs.
static void lists_fit_where_their_jobs_fit(void) {
    Rng rng = rng_seed(seed + 1);
    Arena arena = {0};
    int32_t num_early = 0, num_late = 0, num_all = 0;
    double slower = 0;
    for (int32_t round = 0; round < 400; round++) {
        arena_reset(&arena);
        Case it;
        Placement placement;
        draw(&it, &rng, round, &arena);
        int32_t P = it.problem.P, M = it.problem.M;
        do { random_placement(&placement, &rng, P, 3 * P); } while (placement.head != HEAD_WHOLE);
        RandomPipe about = {.transfers = round % 3 > 0, .drops_percent = round % 2 * 30};
        it.problem = random_placed_pipe(&rng, P, M, &placement, &about, &arena);
        it.bytes = ARENA_NEW(&arena, RankBytes, (int64_t)placement.num_chunks * M);
        for (int32_t m = 0; m < M; m++) {
            int64_t link_bytes = rng_between(&rng, 1000, 8000);
            for (int32_t k = 0; k < placement.num_chunks; k++) {
                it.bytes[k * M + m] = (RankBytes){.acts_bytes = rng_between(&rng, 5000, 20000),
                                                  .forward_bytes = 2000,
                                                  .in_bytes = k > 0 ? link_bytes : 0,
                                                  .out_bytes = k < placement.num_chunks - 1 ? link_bytes : 0};
            }
        }
        count_buffers(&it);
        int32_t* enter = random_order(&rng, M, &arena);
        CHECK_OK(pipe_policy_adaptive.build(&it.schedule, &it.problem, enter, round % 2, &arena));
        CHECK_OK(pipe_simulate(&it.timeline, &it.problem, &it.schedule, &arena));
        int64_t scratch_bytes[PLAN_MAX_STAGES];
        ReplicaListsInput input = {.problem = &it.problem,
                                   .schedule = &it.schedule,
                                   .bytes = it.bytes,
                                   .scratch_bytes = scratch_bytes};
        PlanRank ranks[PLAN_MAX_STAGES] = {0};
        int64_t limits[PLAN_MAX_STAGES];
        for (int32_t s = 0; s < P; s++) {
            scratch_bytes[s] = 1000;
            input.enough_bytes[s] = INT64_MAX;
            limits[s] = it.timeline.peak_bytes[s] + aligned(1000) + aligned(8000);
        }
        PipeTimeline late = it.timeline;
        CHECK_OK(replica_lists_make(ranks, &late, &input, &arena));
        CHECK_EQ(late.makespan_ns, it.timeline.makespan_ns);
        bool early_fits = true, late_fits = true;
        for (int32_t s = 0; s < P; s++) {
            early_fits &= ranks[s].arena_bytes <= limits[s];
            input.enough_bytes[s] = limits[s];
        }
        CHECK_OK(replica_lists_make(ranks, &late, &input, &arena));
        for (int32_t s = 0; s < P; s++) { late_fits &= ranks[s].arena_bytes <= limits[s]; }
        num_early += early_fits;
        num_late += late_fits;
        num_all++;
        slower += (double)late.makespan_ns / (double)it.timeline.makespan_ns - 1;
    }
    printf("     %d of %d fit as predicted, %d where receives wait; %.2f %% slower\n", num_early, num_all,
           num_late, 100 * slower / num_all);
    arena_free(&arena);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(slack_stays_within_memory);
    RUN(lists_fit_where_their_jobs_fit);
    return test_end();
}
