// test_original_order.c -- the original's order of encoder-decoder samples: clusters by definition, and the
// path through them against the shortest there is.
#include "../rivals/rivals.h"

#include "../rivals/microbatch_dp.h"
#include "../dynapipe_plugin/plan/problem.h"
#include "case_problem.h"
#include "random_problem.h"
#include "test.h"

static uint64_t seed;
static PlanSample samples[RANDOM_MAX_SAMPLES];
static int32_t cluster_of[RANDOM_MAX_SAMPLES], order[RANDOM_MAX_SAMPLES];
static CaseProblem a_case;

static int64_t distance2(int32_t i, int32_t j) {
    int64_t x = samples[i].enc_tokens - samples[j].enc_tokens,
            y = samples[i].dec_tokens - samples[j].dec_tokens;
    return x * x + y * y;
}

static void random_lengths(int32_t num, Rng* rng, int32_t most_enc, int32_t most_dec) {
    for (int32_t i = 0; i < num; i++) {
        samples[i] = (PlanSample){rng_between(rng, 1, most_enc), rng_between(rng, 2, most_dec), 1};
    }
}

// --- clusters --------------------------------------------------------------------------------------------

// Farthest pair between two clusters (or within one).
static int64_t farthest2(const int32_t* of, int32_t num, int32_t a, int32_t b) {
    int64_t most = 0;
    for (int32_t i = 0; i < num; i++) {
        for (int32_t j = 0; j < num; j++) {
            if (of[i] == a && of[j] == b && distance2(i, j) > most) { most = distance2(i, j); }
        }
    }
    return most;
}

// The definition: merge the closest two until none are closer than 16. False where a tie leaves a choice.
static bool link_naively(int32_t* of, int32_t num) {
    for (int32_t i = 0; i < num; i++) { of[i] = i; }
    for (;;) {
        int64_t least = 256;
        int32_t a = -1, b = -1, num_least = 0;
        for (int32_t i = 0; i < num; i++) {
            for (int32_t j = 0; j < i; j++) {
                if (of[i] != i || of[j] != j) { continue; }
                int64_t d = farthest2(of, num, i, j);
                if (d < least) { least = d, a = j, b = i, num_least = 0; }
                num_least += d == least && least < 256;
            }
        }
        if (a < 0) { return true; }
        if (num_least > 1 && least > 0) { return false; }
        for (int32_t i = 0; i < num; i++) { of[i] = of[i] == b ? a : of[i]; }
    }
}

static void clusters_are_complete_linkage(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    int exact = 0;
    for (int round = 0; round < 400; round++) {
        int32_t num = rng_between(&rng, 1, 24), num_clusters, naive[24];
        random_lengths(num, &rng, rng_between(&rng, 20, 200), rng_between(&rng, 4, 60));
        CHECK_OK(original_clusters_make(cluster_of, &num_clusters, samples, num, &arena));
        for (int32_t a = 0; a < num_clusters; a++) {
            for (int32_t b = 0; b <= a; b++) {
                int64_t d = farthest2(cluster_of, num, a, b);
                CHECK(a == b ? d < 256 : d >= 256);
            }
        }
        if (link_naively(naive, num)) {
            exact++;
            for (int32_t i = 0; i < num; i++) {
                for (int32_t j = 0; j < i; j++) {
                    CHECK_EQ(cluster_of[i] == cluster_of[j], naive[i] == naive[j]);
                }
            }
        }
        arena_reset(&arena);
    }
    CHECK(exact > 30);
    arena_free(&arena);
}

static void many_lengths_are_clustered_as_tightly(void) {
    Rng rng = rng_seed(seed + 1);
    Arena arena = {0};
    int32_t num = RANDOM_MAX_SAMPLES, num_clusters;
    random_lengths(num, &rng, 2000, 500);
    CHECK_OK(original_clusters_make(cluster_of, &num_clusters, samples, num, &arena));
    for (int32_t i = 0; i < num; i++) {
        for (int32_t j = 0; j < i; j++) { CHECK(cluster_of[i] != cluster_of[j] || distance2(i, j) < 256); }
    }
    CHECK(num_clusters < num * 9 / 10);
    arena_free(&arena);
}

// Clusters stand together, each in the samples' own order; decoder-only samples are sorted.
static void order_keeps_clusters_together(void) {
    Rng rng = rng_seed(seed + 2);
    Arena arena = {0};
    for (int round = 0; round < 100; round++) {
        int32_t num = rng_between(&rng, 1, 300), num_clusters, changes = 0, sorted[300];
        random_lengths(num, &rng, 400, 100);
        CHECK_OK(original_clusters_make(cluster_of, &num_clusters, samples, num, &arena));
        CHECK_OK(original_order_make(order, samples, num, &arena));
        bool seen[300] = {false};
        for (int32_t k = 0; k < num; k++) {
            CHECK(order[k] >= 0 && order[k] < num && !seen[order[k]]);
            seen[order[k]] = true;
            bool same = k > 0 && cluster_of[order[k]] == cluster_of[order[k - 1]];
            changes += k > 0 && !same;
            CHECK(!same || order[k] > order[k - 1]);
        }
        CHECK_EQ(changes, num_clusters - 1);
        for (int32_t i = 0; i < num; i++) { samples[i].dec_tokens = 0; }
        CHECK_OK(original_order_make(order, samples, num, &arena));
        CHECK_OK(sample_order_sorted(sorted, samples, num, &arena));
        CHECK_EQ(memcmp(order, sorted, (size_t)num * sizeof *order), 0);
        arena_reset(&arena);
    }
    arena_free(&arena);
}

// --- the path --------------------------------------------------------------------------------------------

enum { EXACT_MOST = 12 };

static int64_t path_length(const int32_t* path, const PathPoint* points, int32_t num) {
    int64_t length = 0;
    for (int32_t i = 1; i < num; i++) {
        length += llabs((long long)points[path[i]].x - points[path[i - 1]].x) +
                  llabs((long long)points[path[i]].y - points[path[i - 1]].y);
    }
    return length;
}

// Held and Karp 1962: shortest[set][last] over all sets of points.
static int64_t shortest_path(const PathPoint* points, int32_t num) {
    static int64_t shortest[1 << EXACT_MOST][EXACT_MOST];
    int64_t best = INT64_MAX;
    for (uint32_t set = 1; set < 1u << num; set++) {
        for (int32_t last = 0; last < num; last++) {
            int64_t least = INT64_MAX;
            if (!(set >> last & 1)) { continue; }
            uint32_t rest = set & ~(1u << last);
            for (int32_t k = 0; k < num; k++) {
                if (!(rest >> k & 1)) { continue; }
                int64_t d = shortest[rest][k] + llabs((long long)points[k].x - points[last].x) +
                            llabs((long long)points[k].y - points[last].y);
                least = d < least ? d : least;
            }
            shortest[set][last] = rest == 0 ? 0 : least;
            if (set == (1u << num) - 1 && shortest[set][last] < best) { best = shortest[set][last]; }
        }
    }
    return best;
}

static void path_is_close_to_the_shortest(void) {
    Rng rng = rng_seed(seed + 3);
    Arena arena = {0};
    double worst = 1, sum = 0;
    int num_exact = 0, rounds = 200;
    for (int round = 0; round < rounds; round++) {
        PathPoint points[EXACT_MOST];
        int32_t num = rng_between(&rng, 1, EXACT_MOST), path[EXACT_MOST];
        bool seen[EXACT_MOST] = {false};
        int32_t most_x = rng_between(&rng, 1, 1000), most_y = rng_between(&rng, 1, 1000);
        for (int32_t i = 0; i < num; i++) {
            points[i] = (PathPoint){rng_between(&rng, 0, most_x), rng_between(&rng, 0, most_y)};
        }
        CHECK_OK(short_path_make(path, points, num, &arena));
        for (int32_t i = 0; i < num; i++) {
            CHECK(path[i] >= 0 && path[i] < num && !seen[path[i]]);
            seen[path[i]] = true;
        }
        int64_t ours = path_length(path, points, num), best = shortest_path(points, num);
        CHECK(ours >= best);
        double ratio = best > 0 ? (double)ours / (double)best : 1;
        worst = ratio > worst ? ratio : worst;
        sum += ratio;
        num_exact += ours == best;
        arena_reset(&arena);
    }
    printf("up to %d points: shortest in %d of %d, mean %.4f, worst %.4f\n", EXACT_MOST, num_exact, rounds,
           sum / rounds, worst);
    CHECK(num_exact >= rounds * 9 / 10 && worst < 1.1);
    arena_free(&arena);
}

// On a square full of points the shortest path has about one step per point: L1 distance 1 on a grid.
static void grid_is_walked_nearly_straight(void) {
    Rng rng = rng_seed(seed + 4);
    Arena arena = {0};
    static PathPoint points[900];
    static int32_t path[900];
    for (int32_t side = 2; side <= 30; side += 4) {
        int32_t num = side * side;
        for (int32_t i = 0; i < num; i++) { points[i] = (PathPoint){10 * (i % side), 10 * (i / side)}; }
        for (int32_t i = num - 1; i > 0; i--) {
            int32_t j = rng_between(&rng, 0, i);
            PathPoint swapped = points[i];
            points[i] = points[j];
            points[j] = swapped;
        }
        CHECK_OK(short_path_make(path, points, num, &arena));
        CHECK((double)path_length(path, points, num) <= 1.08 * 10 * (num - 1));
        arena_reset(&arena);
    }
    arena_free(&arena);
}

// Random points in a square: the shortest L1 tour is near 0.9 sqrt(num * area) (Euclidean 0.7124, and L1
// lengths are 4 / pi longer on average). Wrongly kept moves and kicks show here, where small cases forgive
// them.
static void random_square_is_walked_well(void) {
    Rng rng = rng_seed(seed + 5);
    Arena arena = {0};
    static PathPoint points[400];
    static int32_t path[400];
    double sum = 0;
    for (int round = 0; round < 10; round++) {
        for (int32_t i = 0; i < 400; i++) {
            points[i] = (PathPoint){rng_between(&rng, 0, 10000), rng_between(&rng, 0, 10000)};
        }
        CHECK_OK(short_path_make(path, points, 400, &arena));
        sum += (double)path_length(path, points, 400) / (20 * 10000.0);
        arena_reset(&arena);
    }
    printf("400 points in a square: %.3f sqrt(num * area)\n", sum / 10);
    CHECK(sum / 10 < 1.0);
    arena_free(&arena);
}

// Objective and number of micro-batches with this order, beside the original's.
static void cases_come_close_to_the_original(void) {
    Arena arena = {0};
    for (int i = 0; case_names[i]; i++) {
        CaseReference reference;
        static PlanProblem mp;
        MicrobatchList list;
        if (!case_problem_load(&a_case, case_names[i]) || !case_reference_load(&reference, case_names[i])) {
            test_failures++;
            continue;
        }
        if (!a_case.encoder_decoder) { continue; }
        CHECK_OK(case_problem_init(&mp, &a_case));
        CHECK_OK(microbatch_dp_build_original(&list, &mp, &arena));
        double objective_ms = (double)list.objective_ns / 1e6;
        printf("%s: objective %.1f ms, %d micro-batches; the original %.1f ms, %d\n", case_names[i],
               objective_ms, list.num_mbs, reference.objective_ms, reference.num_mbs);
        CHECK_NEAR(objective_ms / reference.objective_ms, 1, 0.01);
        CHECK_NEAR((double)list.num_mbs / reference.num_mbs, 1, 0.15);
        arena_reset(&arena);
    }
    arena_free(&arena);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(clusters_are_complete_linkage);
    RUN(many_lengths_are_clustered_as_tightly);
    RUN(order_keeps_clusters_together);
    RUN(path_is_close_to_the_shortest);
    RUN(grid_is_walked_nearly_straight);
    RUN(random_square_is_walked_well);
    if (case_available()) {
        RUN(cases_come_close_to_the_original);
    } else {
        SKIP(cases_come_close_to_the_original, "../shared/cases is not there");
    }
    return test_end();
}
