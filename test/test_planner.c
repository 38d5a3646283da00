// test_planner.c -- plan_make: every plan keeps every rule, whatever is asked for; the same twice; messages.
#include "../util/program.h"
#include "../dynapipe_plugin/plan/batching.h"
#include "../dynapipe_plugin/plan/bound.h"
#include "../dynapipe_plugin/plan/planner.h"
#include "random_plan.h"
#include "random_problem.h"
#include "test.h"

static uint64_t seed;
static int32_t times = 1;  // as many rounds against the baselines
static RandomProblem problem;

static Status make(Plan* out, Arena* arena) {
    return plan_make(out, &problem.request, &problem.costs, problem.samples, problem.num_samples, arena);
}

static void random_request(Rng* rng, int32_t round) {
    PlanRequest* request = &problem.request;
    request->batching = (Batching)(round % BATCHING_COUNT);
    request->schedule = (ScheduleChoice)rng_below(rng, SCHEDULE_COUNT);
    request->recompute = (RecomputeChoice)rng_below(rng, 3);
    request->split_backward = (SplitBackward)rng_below(rng, 3);
    request->effort = rng_below(rng, 4) == 0 ? rng_between(rng, 1, 100) : 40;
    request->memory_rule = rng_below(rng, 2) ? MEMORY_BUFFERS : MEMORY_ACTIVATIONS;
    request->choose_stages = rng_below(rng, 4) == 0;
    if (request->max_seq_tokens == 0) { request->max_seq_tokens = 40000; }
    for (int32_t i = 0; i < problem.num_samples; i++) {
        if (problem.samples[i].enc_tokens > request->max_seq_tokens) {
            problem.samples[i].enc_tokens = request->max_seq_tokens;
        }
    }
}

// Hundreds of random problems, every batching, schedule, layout and recompute choice: plan_make has checked
// the plan (test_plan_check shows what that means); here, that what was asked for was obeyed.
static void check_obeys(const Plan* plan) {
    const PlanRequest* request = &problem.request;
    CHECK_OK(plan_check(plan, problem.samples, problem.num_samples));
    CHECK(plan->makespan_ns >= plan->bound_ns && plan->bound_ns > 0 && plan->bound_over_ns == 0);
    int32_t num_wgt = 0, num_bwd = 0;
    for (int32_t r = 0; r < plan->P * plan->R; r++) {
        for (int32_t i = 0; i < plan->ranks[r].num_instrs; i++) {
            num_wgt += plan->ranks[r].instrs[i].kind == INSTR_WGT;
            num_bwd += plan->ranks[r].instrs[i].kind == INSTR_BWD;
        }
    }
    CHECK_EQ(num_bwd, plan->M * plan->P);
    if (request->split_backward == SPLIT_BACKWARD_OFF) { CHECK_EQ(num_wgt, 0); }
    bool says_split = strstr(plan->schedule, "+w") != NULL;
    if (strcmp(plan->schedule, "mixed") != 0) { CHECK_EQ(num_wgt, says_split ? num_bwd : 0); }
    static const char* const names[SCHEDULE_COUNT] = {"", "gpipe", "1f1b", "adaptive"};
    bool named = strncmp(plan->schedule, names[request->schedule], strlen(names[request->schedule])) == 0;
    CHECK(named || (request->schedule == SCHEDULE_ADAPTIVE && strcmp(plan->schedule, "mixed") == 0));
    for (int32_t m = 0; m < plan->M; m++) {
        for (int32_t s = 0; s < plan->P; s++) {
            if (request->recompute == RECOMPUTE_CHOICE_NONE) {
                CHECK_EQ(plan->mbs[m].recompute[s], RECOMPUTE_NONE);
            }
            if (request->recompute == RECOMPUTE_CHOICE_FULL) {
                CHECK_EQ(plan->mbs[m].recompute[s], RECOMPUTE_FULL);
            }
        }
        bool packed = request->batching == BATCHING_PACKED;
        CHECK_EQ(plan->mbs[m].layout == LAYOUT_PACKED, packed);
    }
    for (int32_t r = 0; r < plan->P * plan->R; r++) {
        const PlanRank* rank = &plan->ranks[r];
        int64_t own_bytes = machine_rank(request->machine, r).memory_limit_bytes;
        int64_t limit_bytes =
            own_bytes > 0 && plan->memory_limit_bytes > 0 ? own_bytes : plan->memory_limit_bytes;
        CHECK(limit_bytes == 0 || rank->arena_bytes + rank->state_bytes <= limit_bytes);
    }
}

// What each replica's ranks make: the same decisions, their own lists, no others.
static void check_parts(const Plan* whole, Arena* arena) {
    PlanRequest* request = &problem.request;
    request->one_replica = true;
    for (int32_t r = 0; r < whole->R; r++) {
        Plan part;
        request->my_replica = r;
        CHECK_OK(make(&part, arena));
        CHECK_OK(plan_check(&part, problem.samples, problem.num_samples));
        CHECK(plan_hash_decisions(&part) == plan_hash_decisions(whole));
        CHECK(plan_hash_replica(&part, r) == plan_hash_replica(whole, r));
        for (int32_t rank = 0; rank < whole->P * whole->R; rank++) {
            const PlanRank* list = &part.ranks[rank];
            bool is_empty = list->num_instrs == 0 && list->num_buffers == 0 && list->arena_bytes == 0;
            CHECK(is_empty || rank / whole->P == r);
        }
    }
    request->my_replica = whole->R;
    Plan none;
    CHECK_EQ(make(&none, arena), STATUS_OUT_OF_RANGE);
    request->one_replica = false;
}

// Hundreds of random problems, every batching, schedule, layout and recompute choice.
static void random_problems_give_valid_plans(void) {
    static RandomMachine machine;
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    int32_t num_infeasible = 0;
    for (int32_t round = 0; round < test_rounds(420); round++) {
        arena_reset(&arena);
        random_problem(&problem, &rng, rng_between(&rng, 1, round % 7 == 0 ? 150 : 25));
        random_request(&rng, round);
        if (round % 2) { random_problem_limit_memory(&problem, rng_between(&rng, 0, 300)); }
        if (round % 10 == 5) {  // of ranks that differ, too, each plans the same
            random_machine(&machine, &problem, &rng);
            problem.request.machine = &machine.machine;
        }
        Plan plan, again;
        Status status = make(&plan, &arena);
        if (status == STATUS_INFEASIBLE) {
            // Each sample fits alone and keeps its activations: adapting to memory always finds a way.
            bool adapts =
                problem.request.schedule == SCHEDULE_AUTO || problem.request.schedule == SCHEDULE_ADAPTIVE;
            bool free_batching = problem.request.batching == BATCHING_DYNAMIC &&
                                 !problem.request.choose_stages && problem.request.machine == NULL &&
                                 problem.request.recompute != RECOMPUTE_CHOICE_FULL;
            if (adapts && free_batching) { printf("round %d: %s\n", round, status_message()); }
            CHECK(!(adapts && free_batching));
            CHECK(problem.request.memory_limit_bytes > 0);
            CHECK(strstr(status_message(), "---> ") != NULL);
            num_infeasible++;
            continue;
        }
        CHECK_EQ(status, STATUS_OK);
        if (status != STATUS_OK) {
            printf("seed %llu, round %d: %s\n", (unsigned long long)seed, round, status_message());
            continue;
        }
        int32_t before = test_failures;
        check_obeys(&plan);
        if (round % 5 == 0) {
            CHECK_OK(make(&again, &arena));
            CHECK(plan_hash(&plan) == plan_hash(&again));
            check_parts(&plan, &arena);
        }
        if (test_failures > before) {
            printf("seed %llu, round %d: batching %d schedule %d (%s) recompute %d split %d\n",
                   (unsigned long long)seed, round, problem.request.batching, problem.request.schedule,
                   plan.schedule, problem.request.recompute, problem.request.split_backward);
        }
    }
    printf("     %d of 420 random problems are infeasible\n", num_infeasible);
    CHECK(num_infeasible > test_rounds(5) && num_infeasible < test_rounds(120));
    arena_free(&arena);
}

// Whatever the batch: what trainers do today is hardly ever faster, under the same schedules, though the
// search is given no more than some forty candidates.
static void baselines_are_hardly_ever_faster(void) {
    static const Batching known[] = {BATCHING_TOKENS, BATCHING_KK, BATCHING_PACKED_RAGGED};
    Arena arena = {0};
    int32_t num_compared = 0, num_faster = 0;
    double sum = 0;
    for (int32_t round = 0; round < 200 * times; round++) {
        Rng rng = rng_seed(seed * 1000003 + (uint64_t)round);
        Plan plan;
        PlanRequest* request = &problem.request;
        random_problem(&problem, &rng, rng_between(&rng, 1, 60));
        random_request(&rng, BATCHING_DYNAMIC);
        request->schedule = rng_below(&rng, 2) ? SCHEDULE_AUTO : SCHEDULE_ADAPTIVE;
        if (rng_below(&rng, 2)) { random_problem_limit_memory(&problem, rng_between(&rng, 0, 300)); }
        arena_reset(&arena);
        Status status = make(&plan, &arena);
        CHECK(status == STATUS_OK || status == STATUS_INFEASIBLE);
        if (status != STATUS_OK) { continue; }
        int64_t ours_ns = plan.makespan_ns;
        for (int k = 0; k < (request->layout == LAYOUT_PADDED ? 1 : 3); k++) {
            request->batching = known[k];
            arena_reset(&arena);
            if (make(&plan, &arena) != STATUS_OK) { continue; }
            double ratio = (double)ours_ns / (double)plan.makespan_ns;
            num_compared++;
            sum += ratio;
            num_faster += ratio > 1.001;
            if (ratio < 1.1) { continue; }
            printf("seed %llu, round %d: %s %lld ns, ours %lld\n", (unsigned long long)seed, round,
                   batching_policy(known[k])->name, (long long)plan.makespan_ns, (long long)ours_ns);
        }
    }
    printf("     %d of %d plans are faster than ours; ours take %.3f of the time, in the mean\n", num_faster,
           num_compared, sum / num_compared);
    CHECK(num_compared > 200 * times && num_faster < num_compared / 20 && sum < 0.9 * num_compared);
    arena_free(&arena);
}

static void gpt_problem(int32_t P, int32_t R, int32_t num_samples, uint64_t sample_seed) {
    Rng rng = rng_seed(sample_seed);
    cost_model_analytic_gpt(&problem.costs, &(CostAnalytic){.num_layers = 12,
                                                            .channels = 768,
                                                            .ffn_channels = 3072,
                                                            .tied_head = true,
                                                            .num_heads = 12,
                                                            .padded_vocab = 50304,
                                                            .max_tokens = 4096,
                                                            .bytes_per_value = 4,
                                                            .flops_per_ns = 50,
                                                            .attention_flops_per_ns = 20,
                                                            .bytes_per_ns = 10,
                                                            .launch_ns = 5000,
                                                            .comm_latency_ns = 20000,
                                                            .comm_bytes_per_ns = 2});
    problem.request = (PlanRequest){.batching = BATCHING_DYNAMIC,
                                    .recompute = RECOMPUTE_CHOICE_AUTO,
                                    .P = P,
                                    .R = R,
                                    .max_seq_tokens = 4096,
                                    .mb_tokens = 4096};
    equal_stages(&problem.request, 12);
    problem.num_samples = num_samples;
    random_samples(problem.samples, num_samples, &rng, 0, false);
}

// Less memory never makes a plan impossible until a sample does not fit by itself; then the message says so.
static void memory_gets_tighter(void) {
    Arena arena = {0};
    gpt_problem(4, 1, 60, 3);
    Plan plan = {0};
    CHECK_OK(make(&plan, &arena));
    int64_t roomy_ns = plan.makespan_ns, limit_bytes = 0;
    for (int32_t r = 0; r < 4; r++) {
        int64_t bytes = plan.ranks[r].arena_bytes + plan.ranks[r].state_bytes;
        if (bytes > limit_bytes) { limit_bytes = bytes; }
    }
    random_problem_limit_memory(&problem, 0);
    int64_t least_bytes = problem.request.memory_limit_bytes;
    for (int32_t step = 0; step <= 6; step++) {
        arena_reset(&arena);
        problem.request.memory_limit_bytes = limit_bytes + (least_bytes - limit_bytes) / 6 * step;
        if (step == 6) { problem.request.memory_limit_bytes = least_bytes; }
        CHECK_OK(make(&plan, &arena));
        printf("     limit %.2f GB: %.1f ms, %d microbatches, %s\n",
               (double)problem.request.memory_limit_bytes / 1e9, (double)plan.makespan_ns / 1e6, plan.M,
               plan.schedule);
        CHECK(plan.makespan_ns >= roomy_ns * 95 / 100);
    }
    problem.request.memory_limit_bytes = least_bytes / 2;
    CHECK_FAILS(make(&plan, &arena), STATUS_INFEASIBLE, "---> ");
    problem.request.memory_limit_bytes = 1000;
    CHECK_FAILS(make(&plan, &arena), STATUS_INFEASIBLE, "--memory-limit");
    arena_free(&arena);
}

static void odd_layouts_work(void) {
    Arena arena = {0};
    Plan plan = {0};
    gpt_problem(1, 1, 10, 1);  // one rank: no transfers at all
    CHECK_OK(make(&plan, &arena));
    for (int32_t i = 0; i < plan.ranks[0].num_instrs; i++) { CHECK_EQ(plan.ranks[0].instrs[i].peer, -1); }
    gpt_problem(2, 6, 2, 1);  // more replicas than samples: empty lists
    CHECK_OK(make(&plan, &arena));
    int32_t num_empty = 0;
    for (int32_t r = 0; r < 12; r++) { num_empty += plan.ranks[r].num_instrs == 0; }
    CHECK(num_empty >= 8);
    problem.request.layout = LAYOUT_PADDED;  // the search ends, too, and looks at replicas that have samples
    problem.request.choose_stages = true;
    CHECK_OK(make(&plan, &arena));
    gpt_problem(12, 1, 30, 1);  // one layer per stage
    CHECK_OK(make(&plan, &arena));
    problem.request.placement.chunks[3].end++;
    CHECK_FAILS(make(&plan, &arena), STATUS_OUT_OF_RANGE, "chunk 4");
    gpt_problem(2, 1, 1, 1);
    problem.num_samples = 0;
    CHECK_FAILS(make(&plan, &arena), STATUS_OUT_OF_RANGE, "at least one");
    problem.request.P = PLAN_MAX_STAGES + 1;
    CHECK_FAILS(make(&plan, &arena), STATUS_OUT_OF_RANGE, "--stages");
    arena_free(&arena);
}

// One plan for all compilers and optimisation levels.
static void plan_is_golden(void) {
    Arena arena = {0};
    Plan plan = {0};
    gpt_problem(2, 2, 24, 5);
    CHECK_OK(make(&plan, &arena));
    CHECK(plan_text_is(&plan, "plan_gpt", 0xef42a7e94dbbd975u));
    arena_free(&arena);
}

// --seed N: another one; --times N: as many rounds.
int main(int argc, char** argv) {
    if (argc == 5 && strcmp(argv[3], "--times") == 0) { times = atoi(argv[4]); }
    seed = test_seed(argc < 3 ? argc : 3, argv);
    RUN(random_problems_give_valid_plans);
    RUN(baselines_are_hardly_ever_faster);
    RUN(memory_gets_tighter);
    RUN(odd_layouts_work);
    RUN(plan_is_golden);
    return test_end();
}
