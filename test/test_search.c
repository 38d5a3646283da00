// test_search.c -- the search: what it hands out is what the simulator says, never worse than where it began,
// within the freedom and the budget it was given; and no batch, however odd, upsets it.
#include "../dynapipe_plugin/plan/bound.h"
#include "../dynapipe_plugin/plan/simulate.h"
#include "../dynapipe_plugin/plan/schedule.h"
#include "../dynapipe_plugin/plan/planner.h"
#include "../dynapipe_plugin/plan/placement.h"
#include "../dynapipe_plugin/plan/search/search.h"
#include "../dynapipe_plugin/plan/search/search_first.h"
#include "../dynapipe_plugin/plan/search/search_moves.h"
#include "random_plan.h"
#include "random_problem.h"
#include "search_check.h"
#include "test.h"

static uint64_t seed;
static int32_t times = 1;  // as many rounds
static RandomProblem about;

// --- improvement ------------------------------------------------------------------------------------------

// In the order in which a state may begin: some samples, any partition of them, any mode.
static bool begin_state(SearchState* out, PlanProblem* problem, Rng* rng, Arena* arena) {
    random_problem(&about, rng, rng_between(rng, 1, 40));
    about.request.memory_rule = rng_below(rng, 2) ? MEMORY_BUFFERS : MEMORY_ACTIVATIONS;
    if (rng_below(rng, 3) > 0) {
        random_placement(&about.request.placement, rng, about.request.P,
                         about.costs.num_enc_layers + about.costs.num_dec_layers);
    }
    if (rng_below(rng, 3) > 0) { random_problem_limit_memory(&about, rng_between(rng, 0, 300)); }
    if (plan_problem_init(problem, &about.request, &about.costs, about.samples, about.num_samples)) {
        return false;
    }
    int32_t N = about.num_samples, M = rng_between(rng, 1, N), mb_of[64];
    for (int32_t i = 0; i < N; i++) { mb_of[i] = i < M ? i : (int32_t)rng_below(rng, (uint32_t)M); }
    CHECK_OK(search_state_init(out, problem, 0, rng_below(rng, 2) ? LAYOUT_RAGGED : LAYOUT_PADDED,
                               random_order(rng, N, arena), N, mb_of, M,
                               problem->modes[rng_below(rng, (uint32_t)problem->num_modes)],
                               rng_below(rng, 2), &problem->placement, arena));
    return true;
}

static bool same_state(const SearchState* a, const SearchState* b) {
    size_t N = (size_t)a->N, M = (size_t)a->M, K = (size_t)a->K;
    return a->M == b->M && a->makespan_ns == b->makespan_ns &&
           memcmp(a->mb_of, b->mb_of, N * sizeof *a->mb_of) == 0 &&
           memcmp(a->order, b->order, M * sizeof *a->order) == 0 && memcmp(a->mode, b->mode, M * K) == 0 &&
           memcmp(&a->rule, &b->rule, sizeof a->rule) == 0 &&
           memcmp(&a->placement, &b->placement, sizeof a->placement) == 0;
}

static void check_freedom(const SearchState* was, const SearchState* is, const SearchFreedom* freedom) {
    size_t K = (size_t)was->K, M = (size_t)was->M;
    for (int32_t i = 0; i < was->N; i++) { CHECK_EQ(was->ids[i], is->ids[i]); }
    if (!freedom->samples) {
        CHECK_EQ(was->M, is->M);
        CHECK(memcmp(was->mb_of, is->mb_of, (size_t)was->N * sizeof *was->mb_of) == 0);
    }
    if (!freedom->modes && !freedom->samples) { CHECK(memcmp(was->mode, is->mode, K * M) == 0); }
    if (!freedom->modes) {  // micro-batches may come and go, but all had one mode
        for (int32_t i = 0; i < is->K * is->M; i++) { CHECK_EQ(is->mode[i], was->mode[0]); }
    }
    if (!freedom->placement) { CHECK(memcmp(&was->placement, &is->placement, sizeof was->placement) == 0); }
    CHECK_OK(placement_check(&is->placement, is->P, about.costs.num_enc_layers + about.costs.num_dec_layers,
                             false));
    CHECK_EQ(was->rule.split_backward, is->rule.split_backward);
}

static void improvement_keeps_its_word(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0}, work = {0}, simulator = {0};
    int32_t num_better = 0, num_found = 0, num_states = 0;
    for (int32_t round = 0; round < 1200 * times; round++) {
        SearchState state, was, again;
        PlanProblem problem;
        arena_reset(&arena);
        if (!begin_state(&state, &problem, &rng, &arena)) { continue; }
        num_states++;
        int64_t unlimited = INT64_MAX;
        CHECK_OK(search_state_simulate(&state.makespan_ns, &state, INT64_MAX, &unlimited, &simulator));
        CHECK_OK(search_state_copy(&was, &state, &arena));
        CHECK_OK(search_state_copy(&again, &state, &arena));
        SearchFreedom freedom = {rng_below(&rng, 4) > 0, rng_below(&rng, 4) > 0, rng_below(&rng, 4) > 0};
        int64_t budget = rng_below(&rng, 10) == 0 ? 0 : rng_between(&rng, 1, 20000), spent = budget;
        int64_t good_enough_ns = rng_below(&rng, 4) || was.makespan_ns == INT64_MAX
                                     ? 0
                                     : was.makespan_ns / 100 * rng_between(&rng, 80, 100);
        Rng moves = rng_seed((uint64_t)round), moves_again = moves;
        CHECK_OK(search_improve(&state, &freedom, good_enough_ns, &spent, &moves, &work, &simulator));
        int64_t longest =
            5 * (int64_t)state.num_rows * state.max_mbs;  // jobs of the last simulation, and its cells
        CHECK(spent <= budget && spent > -longest);
        CHECK(state.makespan_ns <= was.makespan_ns);
        num_better += was.makespan_ns < INT64_MAX && state.makespan_ns < was.makespan_ns;
        num_found += was.makespan_ns == INT64_MAX && state.makespan_ns < INT64_MAX;
        check_freedom(&was, &state, &freedom);
        arena_reset(&work);
        CHECK(search_state_is_sound(&state, &work));
        arena_reset(&work);
        int64_t spent_again = budget;
        CHECK_OK(
            search_improve(&again, &freedom, good_enough_ns, &spent_again, &moves_again, &work, &simulator));
        CHECK(spent == spent_again && same_state(&state, &again));
        arena_reset(&work);
        if (test_failures > 0) {
            printf("seed %llu, round %d\n", (unsigned long long)seed, round);
            break;
        }
    }
    printf("     %d states: %d got faster, %d more came to fit in memory\n", num_states, num_better,
           num_found);
    CHECK(num_better > num_states / 3);
    arena_free(&arena);
    arena_free(&work);
    arena_free(&simulator);
}

// --- drafts -----------------------------------------------------------------------------------------------

enum { ODD_EQUAL, ODD_GIANT, ODD_ONES, ODD_SPARSE, ODD_ALONE, ODD_NOTHING, ODD_KINDS };

// Tiny and odd: few samples or one, all alike, one giant, only single tokens, nothing to predict, a decoder
// with nothing in it; few or many stages and replicas.
static void odd_problem(Rng* rng, int32_t round) {
    int32_t P = rng_below(rng, 4) == 0 ? rng_between(rng, 7, 16) : rng_between(rng, 1, 6);
    int32_t R = rng_below(rng, 4) == 0 ? rng_between(rng, 5, 64) : rng_between(rng, 1, 4);
    int32_t N = rng_below(rng, 3) == 0 ? rng_between(rng, 1, 4) : rng_between(rng, 1, 40);
    random_problem(&about, rng, N);
    int32_t num_enc = rng_between(rng, P, 2 * P), num_dec = about.costs.num_dec_layers;
    about.costs.num_enc_layers = num_enc;
    about.request.P = P;
    about.request.R = R;
    equal_stages(&about.request, num_enc + num_dec);
    about.request.memory_rule = rng_below(rng, 2) ? MEMORY_BUFFERS : MEMORY_ACTIVATIONS;
    about.request.choose_stages = rng_below(rng, 3) == 0;
    if (about.request.P > 1 && rng_below(rng, 2) == 0) {
        about.request.placements = (PlacementChoice)rng_below(rng, 2) ? PLACEMENT_AUTO : PLACEMENT_GIVEN;
        about.request.heads = (HeadChoice)rng_below(rng, HEAD_CHOICE_COUNT);
    }
    about.request.recompute = (RecomputeChoice)rng_below(rng, 3);
    about.request.split_backward = (SplitBackward)rng_below(rng, 3);
    about.request.max_seq_tokens = 40000;
    int32_t kind = round % (2 * ODD_KINDS);
    for (int32_t i = 0; i < N; i++) {
        PlanSample* sample = &about.samples[i];
        if (kind == ODD_EQUAL) { *sample = about.samples[0]; }
        if (kind == ODD_ONES) { *sample = (PlanSample){1, num_dec > 0, rng_below(rng, 2)}; }
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

static int64_t first_answer_ns(const PlanProblem* problem, int64_t good_enough_ns, int64_t budget) {
    Search search = {.problem = problem,
                     .R = problem->R,
                     .budget = budget,
                     .good_enough_ns = good_enough_ns,
                     .split_backward = problem->request->split_backward != SPLIT_BACKWARD_OFF};
    search.placement = problem->placement;
    int64_t slowest_ns = 0;
    if (search_first(&search) != STATUS_OK) { slowest_ns = INT64_MAX; }
    for (int32_t r = 0; r < search.R && slowest_ns < INT64_MAX; r++) {
        if (search.state[r].makespan_ns > slowest_ns) { slowest_ns = search.state[r].makespan_ns; }
    }
    arena_free(&search.lists);
    arena_free(&search.tries);
    arena_free(&search.simulator);
    return slowest_ns;
}

// Every sample once; every replica's makespan as the simulator has it.
static void check_draft(const Draft* draft, const PlanProblem* problem, Arena* arena) {
    int32_t num_seen = 0;
    bool seen[64] = {false};
    for (int32_t k = 0; k < draft->list.num_segments; k++) {
        int32_t id = draft->list.segments[k].sample_idx;
        CHECK(id >= 0 && id < problem->num_samples && !seen[id]);
        seen[id] = true;
        num_seen++;
    }
    CHECK_EQ(num_seen, problem->num_samples);
    CHECK_EQ(draft->replicas.begin[problem->R], draft->list.num_mbs);
    PlanRequest request = *problem->request;
    PlanProblem with_stages;
    request.placement = draft->placement;
    CHECK_OK(
        plan_problem_init(&with_stages, &request, problem->costs, problem->samples, problem->num_samples));
    int64_t slowest_ns = 0;
    for (int32_t r = 0; r < problem->R; r++) {
        const DraftReplica* replica = &draft->replica[r];
        int32_t begin = draft->replicas.begin[r], M = draft->replicas.begin[r + 1] - begin;
        ReplicaProblem made, ordered;
        PipeSchedule schedule;
        PipeTimeline timeline;
        if (M == 0) { continue; }
        CHECK_OK(replica_problem_make(&made, &with_stages, &draft->list, r, draft->replicas.mbs + begin, M,
                                      replica->modes, arena));
        CHECK_OK(replica_problem_permute(&ordered, &made, replica->order, arena));
        int32_t* order = ARENA_NEW(arena, int32_t, M);
        for (int32_t m = 0; m < M; m++) { order[m] = m; }
        CHECK(replica->variant.has_rule);
        CHECK_OK(pipe_adaptive_build(&schedule, &ordered.pipe, order, &replica->variant.rule, arena));
        CHECK_OK(pipe_simulate(&timeline, &ordered.pipe, &schedule, arena));
        CHECK_EQ(timeline.makespan_ns, replica->makespan_ns);
        if (timeline.makespan_ns > slowest_ns) { slowest_ns = timeline.makespan_ns; }
        for (int32_t s = 0; s < problem->P; s++) {
            CHECK(timeline.peak_bytes[s] <= ordered.pipe.memory_limit_bytes[s]);
            CHECK(request.choose_stages || request.placements != PLACEMENT_GIVEN ||
                  draft->placement.chunks[s].layer_end == problem->request->placement.chunks[s].layer_end);
        }
        for (int32_t k = 0; k < draft->placement.num_chunks; k++) {
            for (int32_t m = 0; m < M; m++) {
                RecomputeMode mode = ordered.pipe.cost[k * M + m].mode;
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
    for (int32_t round = 0; round < 500 * times; round++) {
        PlanProblem problem;
        Draft draft, again;
        LowerBound bound;
        arena_reset(&arena);
        odd_problem(&rng, round);
        Status status =
            plan_problem_init(&problem, &about.request, &about.costs, about.samples, about.num_samples);
        if (status != STATUS_OK) { continue; }
        int32_t effort = rng_between(&rng, 1, 60);
        lower_bound_make(&bound, &problem, about.request.split_backward == SPLIT_BACKWARD_OFF);
        status = search_draft(&draft, &problem, effort, 1, bound.bound_ns, &arena);
        int64_t first_ns =
            first_answer_ns(&problem, bound.bound_ns, (int64_t)effort * 15 * problem.P * problem.P);
        if (status == STATUS_INFEASIBLE) {
            CHECK(about.request.memory_limit_bytes > 0);
            num_none++;
        } else {
            CHECK_OK(status);
            check_draft(&draft, &problem, &arena);
            CHECK(draft.makespan_ns >= bound.bound_ns && draft.makespan_ns <= first_ns);
            CHECK_OK(search_draft(&again, &problem, effort, 1, bound.bound_ns, &arena));
            CHECK(same_draft(&draft, &again, problem.R));
            num_drafts++;
        }
        if (test_failures > 0) {
            printf("seed %llu, round %d: P %d R %d N %d kind %d\n", (unsigned long long)seed, round,
                   problem.P, problem.R, about.num_samples, round % (2 * ODD_KINDS));
            break;
        }
    }
    printf("     %d drafts, nothing found for %d\n", num_drafts, num_none);
    CHECK(num_drafts > 250 * times && num_none < num_drafts / 2);
    arena_free(&arena);
}

// The whole planner on the same: a plan (which it has checked), or a reason that names what was asked for.
static void plans_of_odd_problems(void) {
    Rng rng = rng_seed(seed + 1);
    Arena arena = {0};
    int32_t num_plans = 0, num_none = 0;
    for (int32_t round = 0; round < 500 * times; round++) {
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
    CHECK(num_plans > 300 * times && num_none > 10 * times);
    arena_free(&arena);
}

// --seed N: another one; --times N: as many rounds.
int main(int argc, char** argv) {
    if (argc == 5 && strcmp(argv[3], "--times") == 0) { times = atoi(argv[4]); }
    seed = test_seed(argc < 3 ? argc : 3, argv);
    RUN(improvement_keeps_its_word);
    RUN(drafts_keep_their_word);
    RUN(plans_of_odd_problems);
    return test_end();
}
