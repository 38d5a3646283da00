// test_policy_drafts.c -- drafts of the batching policies: what they say is what the simulator says, and the
// fastest come first.
#include "../rivals/rivals.h"
#include "../dynapipe_plugin/plan/simulate.h"
#include "../dynapipe_plugin/plan/schedule.h"
#include "random_problem.h"
#include "test.h"

static uint64_t seed;
static RandomProblem about;

// As the draft says, built and simulated anew; INT64_MAX where that does not fit.
static int64_t replica_ns(const Draft* draft, const PlanProblem* problem, int32_t r, Arena* arena) {
    const DraftReplica* replica = &draft->replica[r];
    int32_t M = replica->M;
    ReplicaProblem made;
    PipeSchedule schedule;
    PipeTimeline timeline = {0};
    int32_t* order = ARENA_NEW(arena, int32_t, M);
    CHECK_OK(replica_problem_make(&made, problem, &draft->list, r, replica->mbs, M, replica->modes, arena));
    for (int32_t m = 0; m < M; m++) { order[m] = m; }
    Status status = pipe_variant_build(&schedule, &made.pipe, order, &replica->variant, arena);
    if (status == STATUS_INFEASIBLE) { return INT64_MAX; }
    CHECK_OK(status);
    CHECK_OK(pipe_simulate(&timeline, &made.pipe, &schedule, arena));
    for (int32_t s = 0; s < problem->P; s++) {
        if (timeline.peak_bytes[s] > made.pipe.memory_limit_bytes[s]) { return INT64_MAX; }
    }
    return timeline.makespan_ns;
}

static void drafts_are_what_they_say(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    int32_t num_drafts = 0, num_recomputed = 0, num_unfit = 0;
    for (int32_t round = 0; round < 300; round++) {
        Draft drafts[RIVAL_MAX_DRAFTS];
        PlanProblem problem;
        int32_t num = 0;
        arena_reset(&arena);
        random_problem(&about, &rng, rng_between(&rng, 1, 40));
        about.request.batching = (Batching)(1 + round % (BATCHING_COUNT - 1));
        about.request.schedule = (ScheduleChoice)rng_below(&rng, SCHEDULE_COUNT);
        about.request.split_backward = (SplitBackward)rng_below(&rng, 3);
        about.request.memory_rule = rng_below(&rng, 2) ? MEMORY_BUFFERS : MEMORY_ACTIVATIONS;
        about.request.max_seq_tokens = 40000;
        if (round % 2) { random_problem_limit_memory(&about, rng_between(&rng, 0, 200)); }
        CHECK_OK(plan_problem_init(&problem, &about.request, &about.costs, about.samples, about.num_samples));
        Status status = rival_drafts(drafts, &num, &problem, &problem, rng_between(&rng, 1, 120), &arena);
        if (status == STATUS_INFEASIBLE) { continue; }
        CHECK_OK(status);
        CHECK(num >= 1 && num <= RIVAL_MAX_DRAFTS);
        for (int32_t i = 0; i < num; i++) {
            int64_t slowest_ns = 0;
            for (int32_t r = 0; r < problem.R; r++) {
                if (drafts[i].replica[r].M == 0) { continue; }
                int64_t ns = replica_ns(&drafts[i], &problem, r, &arena);
                CHECK_EQ(drafts[i].replica[r].makespan_ns, ns);
                slowest_ns = ns > slowest_ns ? ns : slowest_ns;
                num_recomputed += drafts[i].replica[r].modes != NULL;
            }
            CHECK_EQ(drafts[i].makespan_ns, slowest_ns);
            CHECK(i == 0 || drafts[i].makespan_ns >= drafts[i - 1].makespan_ns);
            num_unfit += slowest_ns == INT64_MAX;
            num_drafts++;
        }
        if (test_failures > 0) {
            printf("seed %llu, round %d: %s, schedule %d\n", (unsigned long long)seed, round,
                   batching_policy(about.request.batching)->name, about.request.schedule);
            break;
        }
    }
    printf("     %d drafts, %d that do not fit as they are, %d replicas recomputed\n", num_drafts, num_unfit,
           num_recomputed);
    CHECK(num_drafts > 250 && num_unfit > 0 && num_recomputed > 0);
    arena_free(&arena);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(drafts_are_what_they_say);
    return test_end();
}
