// test_rank_list.c -- slack for ranks that are late: never more memory than allowed, the same order, fewer
// waits.
#include "../dynapipe_plugin/plan/lists/rank_list.h"
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
            it->bytes[s * M + m] = (RankBytes){rng_between(rng, 10000, 100000), 5000, s > 0 ? link_bytes : 0,
                                               s < P - 1 ? link_bytes : 0};
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

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(slack_stays_within_memory);
    return test_end();
}
