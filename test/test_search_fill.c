// test_search_fill.c -- first answers of the search: weights, replicas, and samples into micro-batches that
// taper.
#include "../dynapipe_plugin/plan/search/search_fill.h"
#include "../dynapipe_plugin/plan/types.h"
#include "random_plan.h"
#include "random_problem.h"
#include "test.h"

static uint64_t seed;
static RandomProblem about;

static bool make_problem(PlanProblem* out, Rng* rng, int32_t num_samples) {
    random_problem(&about, rng, num_samples);
    about.request.R = rng_between(rng, 1, 12);
    return plan_problem_init(out, &about.request, &about.costs, about.samples, about.num_samples) ==
           STATUS_OK;
}

// --- weights ----------------------------------------------------------------------------------------------

// Positive parts of the whole, ids by size without one missing. Where costs are additive, a sample's weight
// is its share of the work.
static void weights_are_shares(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    for (int32_t round = 0; round < 400; round++) {
        PlanProblem problem;
        SearchWeights w;
        arena_reset(&arena);
        int32_t N = rng_between(&rng, 1, 60);
        CHECK(make_problem(&problem, &rng, N));
        bool linear = round % 2 == 0;
        if (linear) {
            linear_cost_model(&about.costs, &rng, 4, 0);
            about.request.P = 1;
            equal_stages(&about.request, 4);
            for (int32_t i = 0; i < N; i++) { about.samples[i].dec_tokens = 0; }
            CHECK_OK(plan_problem_init(&problem, &about.request, &about.costs, about.samples, N));
        }
        CHECK_OK(search_weights_make(&w, &problem, problem.modes[0], rng_between(&rng, 1, 200), &arena));
        CHECK_EQ(w.num_resources, about.costs.num_dec_layers > 0 ? 2 : 1);
        bool seen[RANDOM_MAX_SAMPLES] = {false};
        int64_t sum_ns = 0;
        for (int32_t i = 0; i < N; i++) {
            MbShape shape = {0};
            mb_shape_add(&shape, about.samples[i].enc_tokens, 0, about.samples[i].supervised_tokens);
            sum_ns += linear ? microbatch_work_ns(&problem, problem.modes[0], &shape) : 0;
        }
        for (int32_t k = 0; k < N; k++) {
            int32_t id = w.by_size[k];
            CHECK(id >= 0 && id < N && !seen[id]);
            seen[id] = true;
            CHECK(k == 0 || w.size[id] <= w.size[w.by_size[k - 1]]);
            CHECK(k == 0 || w.size[id] < w.size[w.by_size[k - 1]] || id > w.by_size[k - 1]);
        }
        for (int32_t q = 0; q < w.num_resources; q++) {
            int64_t sum = 0;
            for (int32_t i = 0; i < N; i++) {
                CHECK(w.weight[q][i] > 0 && w.weight[q][i] <= w.size[i]);
                sum += w.weight[q][i];
            }
            CHECK(sum >= INT64_C(1) << 40 && sum <= (INT64_C(1) << 40) + N);
        }
        for (int32_t i = 0; i < N && linear; i++) {
            MbShape shape = {0};
            mb_shape_add(&shape, about.samples[i].enc_tokens, 0, about.samples[i].supervised_tokens);
            double share = (double)microbatch_work_ns(&problem, problem.modes[0], &shape) / (double)sum_ns;
            CHECK_NEAR((double)w.weight[0][i] / (double)(INT64_C(1) << 40), share, 1e-5);  // roundings to ns
        }
    }
    arena_free(&arena);
}

// --- replicas ---------------------------------------------------------------------------------------------

// No replica is further above the average than the largest sample (twice that with two resources); none is
// empty where there are samples enough, save where a sample weighs next to nothing.
static void replicas_are_balanced(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    for (int32_t round = 0; round < 1000; round++) {
        PlanProblem problem;
        SearchWeights w;
        arena_reset(&arena);
        int32_t N = rng_between(&rng, 1, 80), replica_of[80];
        CHECK(make_problem(&problem, &rng, N));
        CHECK_OK(search_weights_make(&w, &problem, problem.modes[0], 40, &arena));
        CHECK_OK(search_fill_replicas(replica_of, &w, NULL, &arena));
        int32_t R = problem.R, num[12] = {0};
        int64_t total = 0, most = 0;
        for (int32_t q = 0; q < w.num_resources; q++) {
            int64_t load[12] = {0}, sum = 0;
            for (int32_t i = 0; i < N; i++) {
                CHECK(replica_of[i] >= 0 && replica_of[i] < R);
                load[replica_of[i]] += w.weight[q][i];
                sum += w.weight[q][i];
                num[replica_of[i]]++;
            }
            total += sum;
            for (int32_t r = 0; r < R; r++) { most = load[r] > most ? load[r] : most; }
        }
        CHECK(most <= total / R + w.size[w.by_size[0]] + (total >> 10));
        int32_t num_empty = 0;
        for (int32_t r = 0; r < R; r++) {
            CHECK(num[r] == 0 || num_empty == 0);
            num_empty += num[r] == 0;
        }
        if (w.size[w.by_size[N - 1]] > 1 << 13) { CHECK_EQ(num_empty, N < R ? R - N : 0); }
    }
    arena_free(&arena);
}

// --- micro-batches ----------------------------------------------------------------------------------------

enum { MAX_BINS = 64 };

typedef struct {
    int64_t load[2];
    int32_t num, percent;
} Bin;

static double fullness(const Bin* bin, const SearchWeights* w, int32_t id) {
    int64_t most = bin->load[0] + w->weight[0][id];
    if (w->num_resources == 2 && bin->load[1] + w->weight[1][id] > most) {
        most = bin->load[1] + w->weight[1][id];
    }
    return (double)most / bin->percent;
}

static int32_t percent_of(const MicrobatchTaper* taper, int32_t b) {
    int32_t from_end = taper->num_mbs - 1 - b, end = b < from_end ? b : from_end;
    if (end >= taper->depth) { return 100; }
    return taper->end_percent + (100 - taper->end_percent) * end / taper->depth;
}

// The rule as it is written down, bins looked at one by one: `bin_of` must obey it. Which of the bins that
// are equally full (within `slack`: fixed point) is taken is left open.
static void check_greedy(const int32_t* mb_of, const SearchWeights* w, const int32_t* ids, int32_t num_ids,
                         const MicrobatchTaper* taper, Arena* arena) {
    // Bins are renumbered by load in the end: their contents are what can be compared. Replay with the same
    // contents: sample by sample, the bin that was taken must have been among the least full.
    int32_t M = taper->num_mbs, num_empty = M;
    Bin bins[MAX_BINS] = {{{0}, 0, 0}};
    int32_t bin_of_mb[MAX_BINS];  // which bin became micro-batch m: -1 not known yet
    (void)arena;
    for (int32_t b = 0; b < M; b++) {
        bins[b].percent = percent_of(taper, b);
        bin_of_mb[b] = -1;
    }
    const double slack = 1.002;
    for (int32_t i = 0; i < num_ids; i++) {
        bool must_be_empty = num_ids - i == num_empty;
        double least = 1e300;
        int32_t first = -1;
        for (int32_t b = 0; b < M; b++) {
            if (must_be_empty && bins[b].num > 0) { continue; }
            double full = fullness(&bins[b], w, ids[i]);
            if (full < least) { least = full; }
        }
        int32_t m = mb_of[i], taken = bin_of_mb[m];
        for (int32_t b = 0; b < M && taken < 0; b++) {  // the fullest empty bin that may be it
            if (bins[b].num > 0) { continue; }
            double full = fullness(&bins[b], w, ids[i]);
            if (full <= least * slack + 64 && (first < 0 || bins[b].percent > bins[first].percent)) {
                first = b;
            }
        }
        if (taken < 0 && must_be_empty) {  // any empty one will do
            for (int32_t b = 0; b < M && first < 0; b++) { first = bins[b].num == 0 ? b : first; }
        }
        if (taken < 0) { taken = bin_of_mb[m] = first; }
        CHECK(taken >= 0);
        if (taken < 0) { return; }
        CHECK(!must_be_empty || bins[taken].num == 0);
        CHECK(must_be_empty || fullness(&bins[taken], w, ids[i]) <= least * slack + 64);
        for (int32_t q = 0; q < w->num_resources; q++) { bins[taken].load[q] += w->weight[q][ids[i]]; }
        num_empty -= bins[taken].num++ == 0;
    }
}

// What follows from the rule: with capacity c[b] of C altogether, a micro-batch with more than one sample,
// the last of them w, holds at most c[b] / C (all that came before + M w).
static void check_bound(const int32_t* mb_of, const SearchWeights* w, const int32_t* ids, int32_t num_ids,
                        const MicrobatchTaper* taper) {
    int32_t M = taper->num_mbs, num[MAX_BINS] = {0};
    int64_t load[MAX_BINS] = {0}, last[MAX_BINS] = {0}, total = 0, capacity = 0;
    for (int32_t b = 0; b < M; b++) { capacity += percent_of(taper, b); }
    for (int32_t i = 0; i < num_ids; i++) {
        int32_t m = mb_of[i];
        load[m] += w->weight[0][ids[i]];
        last[m] = w->weight[0][ids[i]];
        num[m]++;
        total += w->weight[0][ids[i]];
    }
    for (int32_t m = 0; m < M; m++) {
        CHECK(num[m] > 0);
        double most = 100.0 / (double)capacity * ((double)total + M * (double)last[m]);
        CHECK(num[m] == 1 || (double)load[m] <= most * 1.003 + 64 * M);
    }
}

// Up to the largest and down again: the smallest come first and last.
static void check_small_ends(const int32_t* mb_of, const SearchWeights* w, const int32_t* ids,
                             int32_t num_ids, int32_t M) {
    int64_t load[MAX_BINS][2] = {{0}}, most[MAX_BINS] = {0};
    for (int32_t i = 0; i < num_ids; i++) {
        for (int32_t q = 0; q < w->num_resources; q++) { load[mb_of[i]][q] += w->weight[q][ids[i]]; }
    }
    bool down = false;
    for (int32_t m = 0; m < M; m++) {
        most[m] = load[m][0] > load[m][1] ? load[m][0] : load[m][1];
        down |= m > 0 && most[m] < most[m - 1];
        CHECK(m == 0 || !down || most[m] <= most[m - 1]);
    }
    for (int32_t m = 1; m < M - 1; m++) { CHECK(most[m] >= most[0] && most[m] >= most[M - 1]); }
    CHECK(most[0] <= most[M - 1]);
}

static void micro_batches_fill_by_capacity(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    for (int32_t round = 0; round < 3000; round++) {
        PlanProblem problem;
        SearchWeights w;
        arena_reset(&arena);
        int32_t N = rng_between(&rng, 1, 150), *mb_of, num_ids = 0;
        CHECK(make_problem(&problem, &rng, N));
        CHECK_OK(search_weights_make(&w, &problem, problem.modes[0], 40, &arena));
        int32_t ids[150];
        for (int32_t k = 0; k < N; k++) {  // largest first, as one replica of several has them
            if (round % 2 == 0 || rng_below(&rng, 3) == 0) { ids[num_ids++] = w.by_size[k]; }
        }
        if (num_ids == 0) { ids[num_ids++] = w.by_size[0]; }
        MicrobatchTaper taper = {.num_mbs = rng_between(&rng, 1, num_ids < MAX_BINS ? num_ids : MAX_BINS),
                                 .depth = rng_between(&rng, 0, 12),
                                 .end_percent = rng_between(&rng, 10, 100)};
        if (round % 7 == 0) { taper.num_mbs = num_ids < MAX_BINS ? num_ids : MAX_BINS; }
        mb_of = ARENA_NEW(&arena, int32_t, num_ids);
        CHECK_OK(search_fill(mb_of, &w, ids, num_ids, &taper, &arena));
        for (int32_t i = 0; i < num_ids; i++) { CHECK(mb_of[i] >= 0 && mb_of[i] < taper.num_mbs); }
        if (test_failures == 0) {
            check_greedy(mb_of, &w, ids, num_ids, &taper, &arena);
            check_small_ends(mb_of, &w, ids, num_ids, taper.num_mbs);
            if (w.num_resources == 1) { check_bound(mb_of, &w, ids, num_ids, &taper); }
        }
        if (test_failures > 0) {
            printf("seed %llu, round %d: %d samples, %d micro-batches, depth %d, ends %d %%\n",
                   (unsigned long long)seed, round, num_ids, taper.num_mbs, taper.depth, taper.end_percent);
            break;
        }
    }
    arena_free(&arena);
}

// Equal samples, equal capacities: numbers differ by one at most. A taper: the ends get about its percent.
static void equal_samples_show_the_taper(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    PlanProblem problem;
    SearchWeights w;
    int32_t mb_of[2000], num[20];
    CHECK(make_problem(&problem, &rng, 2000));
    linear_cost_model(&about.costs, &rng, 8, 0);
    about.request.P = 4;
    equal_stages(&about.request, 8);
    for (int32_t i = 0; i < 2000; i++) { about.samples[i] = (PlanSample){100, 0, 100}; }
    CHECK_OK(plan_problem_init(&problem, &about.request, &about.costs, about.samples, 2000));
    CHECK_OK(search_weights_make(&w, &problem, problem.modes[0], 40, &arena));
    for (int32_t percent = 20; percent <= 100; percent += 10) {
        MicrobatchTaper taper = {.num_mbs = 20, .depth = 4, .end_percent = percent};
        CHECK_OK(search_fill(mb_of, &w, w.by_size, 2000, &taper, &arena));
        memset(num, 0, sizeof num);
        for (int32_t i = 0; i < 2000; i++) { num[mb_of[i]]++; }
        for (int32_t m = 0; m < 20; m++) {
            int32_t end = m < 19 - m ? m : 19 - m;
            double expected = end >= 4 ? 100 : percent + (100 - percent) * end / 4;
            double all = 12 * 100 + 2 * (4 * percent + (100 - percent) * 6 / 4.0);
            CHECK_NEAR(num[m], 2000 * expected / all, 2);
        }
    }
    arena_free(&arena);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(weights_are_shares);
    RUN(replicas_are_balanced);
    RUN(micro_batches_fill_by_capacity);
    RUN(equal_samples_show_the_taper);
    return test_end();
}
