// test_search_state.c -- whatever is done to a state of the search, it stays what its samples, modes,
// placement and order say; and the makespan that the search sees is the simulator's.
#include "../dynapipe_plugin/plan/schedule.h"
#include "../dynapipe_plugin/plan/simulate.h"
#include "../dynapipe_plugin/plan/placement.h"
#include "../dynapipe_plugin/plan/search/search_state.h"
#include "random_plan.h"
#include "random_problem.h"
#include "search_check.h"
#include "test.h"

static uint64_t seed;
static int32_t times = 1;  // as many rounds
static RandomProblem about;

// What the test itself knows of a state: who is where, in which chunks, in which mode.
typedef struct {
    int32_t M, N;
    int32_t id[RANDOM_MAX_SAMPLES], mb_of[RANDOM_MAX_SAMPLES];
    Placement placement;
} Mirror;

static bool is_mirrored(const SearchState* state, const Mirror* mirror) {
    bool same = state->M == mirror->M && state->N == mirror->N;
    for (int32_t i = 0; i < mirror->N && same; i++) {
        same = state->ids[i] == mirror->id[i] && state->mb_of[i] == mirror->mb_of[i];
    }
    return same && memcmp(&state->placement, &mirror->placement, sizeof mirror->placement) == 0;
}

static void mirror_take(Mirror* mirror, const SearchState* state) {
    mirror->M = state->M;
    for (int32_t i = 0; i < state->N; i++) { mirror->mb_of[i] = state->mb_of[i]; }
}

// A random problem, some of its samples as one replica (the rest can be exchanged for), no micro-batch empty.
static bool make_state(SearchState* out, PlanProblem* problem, Mirror* mirror, Rng* rng, Arena* arena) {
    random_problem(&about, rng, rng_between(rng, 2, 40));
    about.request.memory_rule = rng_below(rng, 2) ? MEMORY_BUFFERS : MEMORY_ACTIVATIONS;
    if (rng_below(rng, 3) > 0) {
        random_placement(&about.request.placement, rng, about.request.P,
                         about.costs.num_enc_layers + about.costs.num_dec_layers);
    }
    if (rng_below(rng, 3) > 0) { random_problem_limit_memory(&about, rng_between(rng, 0, 300)); }
    if (plan_problem_init(problem, &about.request, &about.costs, about.samples, about.num_samples)) {
        return false;
    }
    int32_t* ids = random_order(rng, about.num_samples, arena);
    mirror->N = rng_between(rng, 1, about.num_samples);
    mirror->M = rng_between(rng, 1, mirror->N < 12 ? mirror->N : 12);
    for (int32_t i = 0; i < mirror->N; i++) {
        mirror->id[i] = ids[i];
        mirror->mb_of[i] = i < mirror->M ? i : (int32_t)rng_below(rng, (uint32_t)mirror->M);
    }
    mirror->placement = problem->placement;
    RecomputeMode mode = problem->modes[rng_below(rng, (uint32_t)problem->num_modes)];
    MbLayout layout = rng_below(rng, 2) ? LAYOUT_RAGGED : LAYOUT_PADDED;
    CHECK_OK(search_state_init(out, problem, 0, layout, ids, mirror->N, mirror->mb_of, mirror->M, mode,
                               rng_below(rng, 2), &problem->placement, arena));
    for (int32_t i = 0; i < problem->K * mirror->M; i++) { CHECK_EQ(out->mode[i], mode); }
    return true;
}

// --- operations -------------------------------------------------------------------------------------------

static void move(SearchState* state, Mirror* mirror, Rng* rng) {
    int32_t i = (int32_t)rng_below(rng, (uint32_t)state->N), to = (int32_t)rng_below(rng, (uint32_t)state->M);
    int32_t from = state->mb_of[i];
    if (from == to || state->count[from] == 1) { return; }
    search_state_move_sample(state, i, to);
    mirror->mb_of[i] = to;
    search_state_price(state, from);
    search_state_price(state, to);
    search_state_limits(state);
}

static bool is_here(const Mirror* mirror, int32_t id) {
    for (int32_t i = 0; i < mirror->N; i++) {
        if (mirror->id[i] == id) { return true; }
    }
    return false;
}

static void replace(SearchState* state, Mirror* mirror, Rng* rng) {
    int32_t i = (int32_t)rng_below(rng, (uint32_t)state->N),
            id = (int32_t)rng_below(rng, (uint32_t)about.num_samples);
    if (is_here(mirror, id)) { return; }
    search_state_replace(state, i, id);
    mirror->id[i] = id;
}

// Modes of the micro-batch that a sample is in, before and after: numbers may change, the column may not.
static void check_column(const SearchState* before, int32_t old_m, const SearchState* state, int32_t m) {
    for (int32_t k = 0; k < state->K; k++) {
        CHECK_EQ(state->mode[k * state->M + m], before->mode[k * before->M + old_m]);
    }
}

// Place of micro-batch m in the order.
static int32_t place_of(const SearchState* state, int32_t m) {
    int32_t k = 0;
    while (k < state->M && state->order[k] != m) { k++; }
    return k;
}

static void merge(SearchState* state, Mirror* mirror, Rng* rng, Arena* arena) {
    if (state->M < 2) { return; }
    SearchState before;
    CHECK_OK(search_state_copy(&before, state, arena));
    int32_t to = (int32_t)rng_below(rng, (uint32_t)state->M),
            from = (int32_t)rng_below(rng, (uint32_t)state->M - 1);
    from += from >= to;
    search_state_merge(state, to, from);
    CHECK_EQ(state->M, before.M - 1);
    // the same partition but for the two, and the same relative order
    for (int32_t i = 0; i < state->N; i++) {
        int32_t old_i = before.mb_of[i] == from ? to : before.mb_of[i];
        for (int32_t j = 0; j < i; j++) {
            int32_t old_j = before.mb_of[j] == from ? to : before.mb_of[j];
            CHECK_EQ(state->mb_of[i] == state->mb_of[j], old_i == old_j);
            CHECK_EQ(place_of(state, state->mb_of[i]) < place_of(state, state->mb_of[j]),
                     place_of(&before, old_i) < place_of(&before, old_j));
        }
        check_column(&before, old_i, state, state->mb_of[i]);
    }
    mirror_take(mirror, state);
}

static void divide(SearchState* state, Mirror* mirror, Rng* rng, Arena* arena) {
    SearchState before;
    CHECK_OK(search_state_copy(&before, state, arena));
    int32_t m = (int32_t)rng_below(rng, (uint32_t)state->M);
    bool divided = search_state_divide(state, m);
    CHECK_EQ(divided, before.M < before.max_mbs && before.count[m] > 1);
    if (!divided) {
        CHECK(is_mirrored(state, mirror));
        return;
    }
    CHECK_EQ(state->M, before.M + 1);
    CHECK_EQ(state->count[before.M], before.count[m] / 2);
    for (int32_t i = 0; i < state->N; i++) {
        bool moved = state->mb_of[i] != before.mb_of[i];
        CHECK(!moved || (before.mb_of[i] == m && state->mb_of[i] == before.M));
        check_column(&before, before.mb_of[i], state, state->mb_of[i]);
    }
    CHECK_EQ(place_of(state, before.M), place_of(state, m) + 1);
    for (int32_t k = 0, old = 0; k < state->M; k++) {
        if (state->order[k] != before.M) { CHECK_EQ(state->order[k], before.order[old++]); }
    }
    mirror_take(mirror, state);
}

// Other layers in the same number of chunks, sometimes none in the last one; other stages and shares.
static void set_placement(SearchState* state, Mirror* mirror, Rng* rng) {
    int32_t K = state->K, L = about.costs.num_enc_layers + about.costs.num_dec_layers, begin = 0;
    Placement other, placement = state->placement;
    random_placement(&other, rng, state->P, L);
    if (other.head != HEAD_WHOLE && placement.head != HEAD_WHOLE) {
        placement.head = other.head;
        memcpy(placement.head_begin, other.head_begin, sizeof other.head_begin);
    }
    if (other.num_chunks == K) { memcpy(placement.stage_of, other.stage_of, sizeof other.stage_of); }
    for (int32_t k = 0; k < K; k++) {
        int32_t left = K - 1 - k, most = L - begin - (left > 1 ? left - 1 : 0);
        int32_t num = k == K - 1 ? L - begin : rng_between(rng, 1, most < 1 ? 1 : most);
        placement.chunks[k] = (LayerRange){begin, begin + num};
        begin += num;
    }
    if (placement_check(&placement, state->P, L, false) != STATUS_OK) { return; }
    PlanRequest request = about.request;
    PlanProblem problem;
    request.placement = placement;
    Status status = plan_problem_init(&problem, &request, &about.costs, about.samples, about.num_samples);
    bool fits = search_state_set_placement(state, &placement);
    CHECK_EQ(fits, status == STATUS_OK);
    if (fits) { mirror->placement = placement; }
}

// Of the definition: the first mode that keeps to its share, else the last.
static void fit_modes(SearchState* state, Rng* rng) {
    int32_t percent = rng_between(rng, 1, 300), in_flight[PLAN_MAX_STAGES] = {0};
    const PlanProblem* problem = state->problem;
    PlanRequest request = about.request;
    PlanProblem other;
    request.placement = state->placement;
    CHECK_OK(plan_problem_init(&other, &request, &about.costs, about.samples, about.num_samples));
    search_state_fit_modes(state, percent);
    for (int32_t k = 0; k < state->K; k++) {  // a full pipeline holds P (K - k) / K of chunk k
        in_flight[state->placement.stage_of[k]] += (state->P * (state->K - k) + state->K - 1) / state->K;
    }
    for (int32_t m = 0; m < state->M; m++) {
        for (int32_t k = 0; k < state->K; k++) {
            int32_t s = state->placement.stage_of[k];
            RecomputeMode expected = problem->modes[problem->num_modes - 1];
            for (int32_t i = problem->num_modes - 1; i >= 0; i--) {
                CostJobs jobs[PLAN_MAX_ROWS];
                microbatch_jobs(jobs, &other, problem->modes[i], &state->shape[m]);
                int64_t share = other.available_bytes[s] / in_flight[s] / 100 * percent;
                if (jobs[k].stored_bytes <= share) { expected = problem->modes[i]; }
            }
            CHECK_EQ(state->mode[k * state->M + m], expected);
        }
    }
}

static void change_mode(SearchState* state, Rng* rng) {
    int32_t m = (int32_t)rng_below(rng, (uint32_t)state->M), k = (int32_t)rng_below(rng, (uint32_t)state->K);
    const PlanProblem* problem = state->problem;
    state->mode[k * state->M + m] = (uint8_t)problem->modes[rng_below(rng, (uint32_t)problem->num_modes)];
    search_state_price(state, m);
    search_state_limits(state);
}

static int64_t work_ns(const SearchState* state, int32_t m) {
    int64_t ns = 0;
    for (int32_t row = 0; row < state->num_rows; row++) {
        for (int kind = 0; kind < JOB_COUNT; kind++) { ns += pipe_cost(&state->pipe, row, m)->job_ns[kind]; }
    }
    return ns;
}

// Up to the largest, then down again.
static void small_ends(SearchState* state, Arena* arena) {
    CHECK_OK(search_state_small_ends(state, arena));
    bool down = false;
    for (int32_t k = 1; k < state->M; k++) {
        int64_t step = work_ns(state, state->order[k]) - work_ns(state, state->order[k - 1]);
        down |= step < 0;
        CHECK(!down || step <= 0);
    }
}

// A copy owns what it has: changes of one are not seen by the other; assigning brings all of it back.
static void copy_and_back(SearchState* state, const Mirror* mirror, Rng* rng, Arena* arena) {
    static Mirror other;
    SearchState copy;
    other = *mirror;
    CHECK_OK(search_state_copy(&copy, state, arena));
    for (int k = 0; k < 3; k++) {
        move(state, &other, rng);
        replace(state, &other, rng);
        divide(state, &other, rng, arena);
        merge(state, &other, rng, arena);
    }
    set_placement(state, &other, rng);
    CHECK(is_mirrored(&copy, mirror) && search_state_is_sound(&copy, arena));
    search_state_assign(state, &copy);
    CHECK(is_mirrored(state, mirror));
}

static void random_operations_keep_a_state_sound(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0}, checks = {0};
    static Mirror mirror;
    int32_t num_states = 0, num_fitting = 0;
    for (int32_t round = 0; round < 1500 * times; round++) {
        SearchState state;
        PlanProblem problem;
        arena_reset(&arena);
        if (!make_state(&state, &problem, &mirror, &rng, &arena)) { continue; }
        num_states++;
        for (int32_t step = 0; step < 16; step++) {
            uint32_t what = rng_below(&rng, 10);
            int64_t unlimited = INT64_MAX;
            int32_t before = test_failures;
            switch (what) {
                case 0:
                case 1: move(&state, &mirror, &rng); break;
                case 2: replace(&state, &mirror, &rng); break;
                case 3: merge(&state, &mirror, &rng, &arena); break;
                case 4: divide(&state, &mirror, &rng, &arena); break;
                case 5: set_placement(&state, &mirror, &rng); break;
                case 6: fit_modes(&state, &rng); break;
                case 7: change_mode(&state, &rng); break;
                case 8: small_ends(&state, &arena); break;
                default: copy_and_back(&state, &mirror, &rng, &arena); break;
            }
            CHECK_OK(search_state_simulate(&state.makespan_ns, &state, INT64_MAX, &unlimited, &checks));
            num_fitting += state.makespan_ns < INT64_MAX;
            arena_reset(&checks);
            CHECK(is_mirrored(&state, &mirror) && search_state_is_sound(&state, &checks));
            if (test_failures > before) {
                printf("seed %llu, round %d, step %d: operation %u\n", (unsigned long long)seed, round, step,
                       what);
                goto end;
            }
        }
    }
end:
    printf("     %d states, %d that fit in memory\n", num_states, num_fitting);
    CHECK(num_states > 1000 * times && num_fitting > 5000 * times);
    arena_free(&arena);
    arena_free(&checks);
}

// --- the makespan alone -----------------------------------------------------------------------------------

// INT64_MAX where memory cannot be divided, or the cutoff is exceeded; else what the simulator says of the
// schedule that is built. Both memory rules (with and without inputs), drops, tails, any rule.
static void makespan_is_the_simulators(void) {
    Rng rng = rng_seed(seed + 1);
    Arena arena = {0};
    int32_t num_cut = 0, num_undivided = 0, num_limited = 0;
    for (int32_t round = 0; round < 12000 * times; round++) {
        arena_reset(&arena);
        int32_t P = rng_between(&rng, 1, 8), M = rng_between(&rng, 1, 16);
        RandomPipe kind = {.transfers = round % 2,
                           .zero_times = round % 5 == 0,
                           .drops_percent = round % 4 * 33,
                           .placed = round % 3 > 0};
        PipeProblem pipe = random_pipe(&rng, P, M, &kind, &arena);
        PipeCost* costs = (PipeCost*)(uintptr_t)pipe.cost;
        bool inputs = rng_below(&rng, 2), limited = rng_below(&rng, 3) > 0, split = rng_below(&rng, 2);
        int32_t rows = pipe_num_rows(&pipe);
        for (int32_t i = 0; i < rows * M && !inputs; i++) { costs[i].input_bytes = 0; }
        PipeAdaptiveRule rule = pipe_adaptive_rule(&pipe, split);
        for (int32_t s = 0; s < P; s++) {
            pipe.tail_ns[s] = rng_below(&rng, 2) ? rng_between(&rng, 0, 500) : 0;
        }
        for (int32_t k = 0; k < pipe_num_chunks(&pipe); k++) {
            if (rng_below(&rng, 2)) { rule.max_in_flight[k] = rng_between(&rng, 1, M + 1); }
        }
        if (limited) { random_pipe_limit(&pipe, &rng, 10, 40); }
        rule.critical_permille = rng_below(&rng, 2) ? rng_between(&rng, 0, 3000) : 1000;
        rule.wait_permille = rng_below(&rng, 2) ? rng_between(&rng, 0, 1500) : 0;
        int32_t* order = random_order(&rng, M, &arena);
        PipeSchedule schedule, alone;
        PipeTimeline timeline;
        int64_t ns, cut_ns, budget = 0, left;
        CHECK_OK(pipe_adaptive_build(&schedule, &pipe, order, &rule, &arena));
        CHECK_OK(pipe_simulate(&timeline, &pipe, &schedule, &arena));
        CHECK_OK(pipe_adaptive_makespan(&ns, &pipe, order, &rule, INT64_MAX, &budget, &arena));
        if (ns == INT64_MAX) {  // then the schedule is one micro-batch at a time
            CHECK(limited && kind.placed && kind.drops_percent > 0);
            CHECK_OK(pipe_schedule_one_by_one(&alone, &pipe, order, &arena));
            for (int32_t s = 0; s < P; s++) {
                CHECK_EQ(alone.num_jobs[s], schedule.num_jobs[s]);
                CHECK(memcmp(alone.jobs[s], schedule.jobs[s], sizeof(PipeJob) * (size_t)alone.num_jobs[s]) ==
                      0);
            }
            num_undivided++;
            continue;
        }
        CHECK_EQ(ns, timeline.makespan_ns);
        for (int32_t s = 0; s < P; s++) { CHECK(timeline.peak_bytes[s] <= pipe.memory_limit_bytes[s]); }
        int64_t num_jobs = 0, cells = (int64_t)rows * M;
        for (int32_t s = 0; s < P; s++) { num_jobs += schedule.num_jobs[s]; }
        CHECK(-budget >= num_jobs && -budget <= num_jobs + (cells + 1) / 2);
        left = budget;
        num_limited += limited;
        int64_t cutoff_ns = ns + rng_between(&rng, -3, 3);
        if (rng_below(&rng, 2)) { cutoff_ns = ns * rng_between(&rng, 0, 200) / 100; }
        CHECK_OK(pipe_adaptive_makespan(&cut_ns, &pipe, order, &rule, cutoff_ns, &left, &arena));
        CHECK_EQ(cut_ns, ns > cutoff_ns ? INT64_MAX : ns);
        CHECK(left <= budget && left >= 2 * budget);
        num_cut += cut_ns == INT64_MAX;
        if (test_failures > 0) {
            printf("seed %llu, round %d\n", (unsigned long long)seed, round);
            break;
        }
    }
    printf("     %d limited, %d beyond the cutoff, %d one at a time\n", num_limited, num_cut, num_undivided);
    CHECK(num_cut > 1000 * times && num_limited > 1000 * times && num_undivided > 50 * times);
    arena_free(&arena);
}

// --seed N: another one; --times N: as many rounds.
int main(int argc, char** argv) {
    if (argc == 5 && strcmp(argv[3], "--times") == 0) { times = atoi(argv[4]); }
    seed = test_seed(argc < 3 ? argc : 3, argv);
    RUN(random_operations_keep_a_state_sound);
    RUN(makespan_is_the_simulators);
    return test_end();
}
