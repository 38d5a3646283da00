// test_search.c -- the search: its makespans are the simulator's, nothing is changed that the request
// prescribes, and no batch, however odd, upsets it.
#include "../dynapipe_plugin/plan/bound.h"
#include "../dynapipe_plugin/plan/simulate.h"
#include "../dynapipe_plugin/plan/schedule.h"
#include "../dynapipe_plugin/plan/planner.h"
#include "../dynapipe_plugin/plan/placement.h"
#include "../dynapipe_plugin/plan/search.h"
#include "random_problem.h"
#include "test.h"

static uint64_t seed;
static int32_t times = 1;  // as many rounds
static RandomProblem about;
static int32_t num_pieces;  // in drafts, but for first ones

// --- drafts -----------------------------------------------------------------------------------------------

enum { ODD_EQUAL, ODD_GIANT, ODD_ONES, ODD_SPARSE, ODD_ALONE, ODD_NOTHING, ODD_KINDS };

// Tiny and odd: few samples or one, all alike, one giant, only single tokens, nothing to predict, a decoder
// with nothing in it; few or many stages and replicas.
static void odd_problem(Rng* rng, int32_t round) {
    int32_t P = rng_below(rng, 4) == 0 ? rng_between(rng, 7, 16) : rng_between(rng, 1, 6);
    int32_t R = rng_below(rng, 4) == 0 ? rng_between(rng, 5, 64) : rng_between(rng, 1, 4);
    int32_t N = rng_below(rng, 3) == 0 ? rng_between(rng, 1, 4) : rng_between(rng, 1, 40);
    random_problem(&about, rng, N);
    int32_t num_enc = rng_between(rng, P, 2 * P), num_dec = about.costs.chain.num_dec_layers;
    about.costs.chain.num_enc_layers = num_enc;
    about.request.P = P;
    about.request.R = R;
    equal_stages(&about.request, plan_chain_num_blocks(&about.costs.chain));
    about.request.memory_rule = rng_below(rng, 2) ? MEMORY_BUFFERS : MEMORY_ACTIVATIONS;
    about.request.choose_stages = rng_below(rng, 3) == 0;
    if (about.request.P > 1 && rng_below(rng, 2) == 0) {
        about.request.placements = (PlacementChoice)rng_below(rng, 2) ? PLACEMENT_AUTO : PLACEMENT_GIVEN;
        about.request.heads = (HeadChoice)rng_below(rng, HEAD_CHOICE_COUNT);
    }
    about.request.recompute = (RecomputeChoice)rng_below(rng, 3);
    about.request.split_backward = (SplitBackward)rng_below(rng, 3);
    about.request.max_seq_tokens = 40000;
    about.request.max_pieces = rng_between(rng, 0, PLAN_MAX_PIECES);
    about.costs.kept[0][0].bytes = rng_between(rng, 0, 3000);
    about.costs.kept[1][0].bytes = rng_between(rng, 0, 6000);
    int32_t kind = round % (2 * ODD_KINDS);
    for (int32_t i = 0; i < N; i++) {
        PlanSample* sample = &about.samples[i];
        if (kind == ODD_EQUAL) { *sample = about.samples[0]; }
        if (kind == ODD_ONES) { *sample = plan_sample(1, num_dec > 0, rng_below(rng, 2)); }
        if (kind == ODD_SPARSE) { sample->dec_tokens = 0; }
        if (kind == ODD_SPARSE || kind == ODD_NOTHING) { sample->supervised_tokens = 0; }
    }
    if (kind == ODD_GIANT) { about.samples[rng_below(rng, (uint32_t)N)].enc_tokens = 40000; }
    if (kind == ODD_ALONE) { about.num_samples = 1; }
    if (rng_below(rng, 2)) { random_problem_limit_memory(&about, rng_between(rng, 0, 300)); }
    if (rng_below(rng, 4) == 0) {  // tighter: what fits only recomputed, or not at all
        about.request.memory_limit_bytes -= about.request.memory_limit_bytes / 100 * rng_between(rng, 0, 60);
    }
}

// Every sample once, or its first piece; every replica's makespan as the simulator has it.
static void check_draft(const Draft* draft, const PlanProblem* problem, Arena* arena) {
    int32_t num_seen = 0;
    bool seen[64] = {false};
    for (int32_t k = 0; k < draft->list.num_segments; k++) {
        int32_t id = draft->list.segments[k].sample_idx;
        if (draft->list.segments[k].first_token > 0) {
            num_pieces++;
            continue;
        }
        CHECK(id >= 0 && id < problem->num_samples && !seen[id]);
        seen[id] = true;
        num_seen++;
    }
    CHECK_EQ(num_seen, problem->num_samples);
    PlanRequest request = *problem->request;
    PlanProblem with_stages;
    request.placement = draft->placement;
    CHECK_OK(
        plan_problem_init(&with_stages, &request, problem->costs, problem->samples, problem->num_samples));
    int64_t slowest_ns = 0;
    for (int32_t r = 0; r < problem->R; r++) {
        const DraftReplica* replica = &draft->replica[r];
        int32_t M = replica->M;
        ReplicaProblem made;
        PipeSchedule schedule;
        PipeTimeline timeline;
        if (M == 0) { continue; }
        CHECK_OK(replica_problem_make(&made, &with_stages, &draft->list, r, replica->mbs, M, replica->modes,
                                      arena));
        int32_t* order = ARENA_NEW(arena, int32_t, M);
        for (int32_t m = 0; m < M; m++) { order[m] = m; }
        CHECK_OK(pipe_variant_build(&schedule, &made.pipe, order, &replica->variant, arena));
        CHECK_OK(pipe_simulate(&timeline, &made.pipe, &schedule, arena));
        CHECK_EQ(timeline.makespan_ns, replica->makespan_ns);
        if (timeline.makespan_ns > slowest_ns) { slowest_ns = timeline.makespan_ns; }
        for (int32_t s = 0; s < problem->P; s++) {
            CHECK(timeline.peak_bytes[s] <= made.pipe.memory_limit_bytes[s]);
            CHECK(request.choose_stages || request.placements != PLACEMENT_GIVEN ||
                  draft->placement.chunks[s].end == problem->request->placement.chunks[s].end);
        }
        for (int32_t k = 0; k < draft->placement.num_chunks; k++) {
            for (int32_t m = 0; m < M; m++) {
                RecomputeMode mode = made.modes[m * draft->placement.num_chunks + k];
                CHECK(request.recompute == RECOMPUTE_CHOICE_AUTO ||
                      (mode == RECOMPUTE_FULL) == (request.recompute == RECOMPUTE_CHOICE_FULL));
            }
        }
    }
    CHECK_EQ(slowest_ns, draft->makespan_ns);
}

static bool same_draft(const Draft* a, const Draft* b, int32_t R) {
    bool same = a->makespan_ns == b->makespan_ns && a->list.num_mbs == b->list.num_mbs;
    for (int32_t k = 0; k < a->list.num_segments && same; k++) {
        same = a->list.segments[k].sample_idx == b->list.segments[k].sample_idx;
    }
    for (int32_t r = 0; r < R && same; r++) { same = a->replica[r].makespan_ns == b->replica[r].makespan_ns; }
    return same;
}

static void drafts_keep_their_word(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    int32_t num_drafts = 0, num_none = 0;
    for (int32_t round = 0; round < test_rounds(500) * times; round++) {
        PlanProblem problem;
        Draft draft, again;
        LowerBound bound;
        arena_reset(&arena);
        odd_problem(&rng, round);
        Status status =
            plan_problem_init(&problem, &about.request, &about.costs, about.samples, about.num_samples);
        if (status != STATUS_OK) { continue; }
        static Placement field[PLACEMENT_FIELD];
        int32_t num_places;
        about.request.effort = rng_between(&rng, 1, 60);
        CHECK_OK(placement_field(field, &num_places, &about.request, &about.costs, about.samples,
                                 about.num_samples, ROOM_WANTED));
        lower_bound_make(&bound, &problem);
        CHECK_OK(search_draft(&draft, &problem, field, num_places, NULL, &arena));
        if (draft.makespan_ns == INT64_MAX) {
            CHECK(about.request.memory_limit_bytes > 0);
            num_none++;
        } else {
            check_draft(&draft, &problem, &arena);
            CHECK(draft.makespan_ns >= bound.bound_ns);
            CHECK_OK(search_draft(&again, &problem, field, num_places, NULL, &arena));
            CHECK(same_draft(&draft, &again, problem.R));
            num_drafts++;
        }
        if (test_failures > 0) {
            printf("seed %llu, round %d: P %d R %d N %d kind %d\n", (unsigned long long)seed, round,
                   problem.P, problem.R, about.num_samples, round % (2 * ODD_KINDS));
            break;
        }
    }
    printf("     %d drafts, %d more pieces of samples, nothing found for %d\n", num_drafts, num_pieces,
           num_none);
    CHECK(num_pieces > test_rounds(200) * times);
    CHECK(num_drafts > test_rounds(250) * times && num_none < num_drafts / 2);
    arena_free(&arena);
}

// The whole planner on the same: a plan (which it has checked), or a reason that names what was asked for.
static void plans_of_odd_problems(void) {
    Rng rng = rng_seed(seed + 1);
    Arena arena = {0};
    int32_t num_plans = 0, num_none = 0;
    for (int32_t round = 0; round < test_rounds(500) * times; round++) {
        Plan plan;
        arena_reset(&arena);
        odd_problem(&rng, round);
        about.request.batching = BATCHING_DYNAMIC;
        about.request.schedule = rng_below(&rng, 2) ? SCHEDULE_AUTO : SCHEDULE_ADAPTIVE;
        about.request.effort = rng_between(&rng, 1, 40);
        Status status =
            plan_make(&plan, &about.request, &about.costs, about.samples, about.num_samples, &arena);
        if (status == STATUS_INFEASIBLE) {
            const char* message = status_message();
            CHECK(about.request.memory_limit_bytes > 0);
            CHECK(strstr(message, "--memory-limit") && strstr(message, "stage") && strstr(message, "bytes") &&
                  strstr(message, "---> "));
            num_none++;
        } else {
            CHECK_OK(status);
            CHECK(plan.makespan_ns >= plan.bound_ns && plan.bound_over_ns == 0);
            num_plans++;
        }
        if (test_failures > 0) {
            printf("seed %llu, round %d: P %d R %d N %d: %s\n", (unsigned long long)seed, round,
                   about.request.P, about.request.R, about.num_samples,
                   status == STATUS_OK ? "ok" : status_message());
            break;
        }
    }
    printf("     %d plans, none for %d\n", num_plans, num_none);
    CHECK(num_plans > test_rounds(300) * times && num_none > test_rounds(10) * times);
    arena_free(&arena);
}

// Unequal replicas in another order: the same batch in the same time.
static void replicas_may_change_places(void) {
    static RandomMachine machine;
    Rng rng = rng_seed(seed + 2);
    Arena arena = {0};
    for (int32_t round = 0; round < test_rounds(30); round++) {
        MachineRank before[64];
        Plan plan, moved;
        arena_reset(&arena);
        random_problem(&about, &rng, 60);
        about.request.R = 3;
        about.request.batching = BATCHING_DYNAMIC;
        random_machine(&machine, &about, &rng);
        about.request.machine = &machine.machine;
        size_t P = (size_t)about.request.P;
        CHECK_OK(plan_make(&plan, &about.request, &about.costs, about.samples, about.num_samples, &arena));
        memcpy(before, machine.ranks, 3 * P * sizeof *before);
        for (size_t r = 0; r < 3; r++) {
            memcpy(&machine.ranks[r * P], &before[(r + 1) % 3 * P], P * sizeof *before);
        }
        CHECK_OK(plan_make(&moved, &about.request, &about.costs, about.samples, about.num_samples, &arena));
        CHECK_NEAR(moved.makespan_ns, plan.makespan_ns, 0.02 * (double)plan.makespan_ns);
    }
    arena_free(&arena);
}

// --seed N: another one; --times N: as many rounds.
int main(int argc, char** argv) {
    if (argc == 5 && strcmp(argv[3], "--times") == 0) { times = atoi(argv[4]); }
    seed = test_seed(argc < 3 ? argc : 3, argv);
    RUN(drafts_keep_their_word);
    RUN(plans_of_odd_problems);
    RUN(replicas_may_change_places);
    return test_end();
}
