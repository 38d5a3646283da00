// test_balance.c -- against the optimum of tiny instances, and laws on large ones.
#include "../rivals/balance.h"

#include "../util/numbers.h"
#include "test.h"

static uint64_t seed;

static int64_t fullest_of(const int32_t* replica_of, const int64_t* work, int32_t M, int32_t R) {
    int64_t sum[PLAN_MAX_REPLICAS] = {0}, fullest = 0;
    for (int32_t i = 0; i < M; i++) { sum[replica_of[i]] += work[i]; }
    for (int32_t r = 0; r < R; r++) { fullest = sum[r] > fullest ? sum[r] : fullest; }
    return fullest;
}

static int64_t optimum(const int64_t* work, int32_t M, int32_t R) {
    int64_t best = INT64_MAX, num = 1;
    int32_t replica_of[16];
    for (int32_t i = 0; i < M; i++) { num *= R; }
    for (int64_t code = 0; code < num; code++) {
        int64_t rest = code;
        for (int32_t i = 0; i < M; i++, rest /= R) { replica_of[i] = (int32_t)(rest % R); }
        int64_t fullest = fullest_of(replica_of, work, M, R);
        best = fullest < best ? fullest : best;
    }
    return best;
}

// Largest differencing is within 4/3 - 1/(3 (R - 1)) of the optimum for R > 2 and 7/6 for R = 2 (Fischetti &
// Martello 1987; Michiels et al. 2003); moves and swaps only help. Mostly it is the optimum.
static void close_to_the_optimum(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    int exact = 0, rounds = 200;
    for (int round = 0; round < rounds; round++) {
        int64_t work[8];
        int32_t replica_of[8], M = rng_between(&rng, 1, 8), R = rng_between(&rng, 1, 4);
        for (int32_t i = 0; i < M; i++) { work[i] = rng_between(&rng, 1, round % 2 ? 100 : 10000000); }
        CHECK_OK(balance_assign(replica_of, work, M, R, &arena));
        int64_t best = optimum(work, M, R), found = fullest_of(replica_of, work, M, R);
        double ratio = R <= 2 ? 7.0 / 6 : 4.0 / 3 - 1.0 / (3 * (R - 1));
        CHECK(found >= best && (double)found <= ratio * (double)best + 1e-6);
        exact += found == best;
        arena_reset(&arena);
    }
    printf("%d of %d are optimal\n", exact, rounds);
    CHECK(exact > rounds * 9 / 10);
    arena_free(&arena);
}

// The classic example of differencing: 4 5 6 7 8 into two is 8 + 6 + ... with difference 2; swaps make it
// even.
static void swaps_improve_on_differencing(void) {
    Arena arena = {0};
    int64_t work[] = {4, 5, 6, 7, 8};
    int32_t replica_of[5];
    CHECK_OK(balance_assign(replica_of, work, 5, 2, &arena));
    CHECK_EQ(fullest_of(replica_of, work, 5, 2), 15);
    arena_free(&arena);
}

// Largest differencing leaves two bins of n random jobs n^(-O(log n)) apart (Yakir 1996); merging in any
// other order, swaps included, leaves 1e-6 and more of 100 jobs.
static void many_jobs_balance_to_almost_nothing(void) {
    Rng rng = rng_seed(seed + 3);
    Arena arena = {0};
    double mean = 0;
    for (int round = 0; round < 20; round++) {
        int64_t work[100], total = 0;
        int32_t replica_of[100];
        for (int32_t i = 0; i < 100; i++) { total += work[i] = rng_between(&rng, 1, 10000000); }
        CHECK_OK(balance_assign(replica_of, work, 100, 2, &arena));
        mean += (2.0 * (double)fullest_of(replica_of, work, 100, 2) / (double)total - 1) / 20;
        arena_reset(&arena);
    }
    CHECK(mean < 1e-7);
    arena_free(&arena);
}

static void everyone_gets_something(void) {
    Rng rng = rng_seed(seed + 1);
    Arena arena = {0};
    for (int round = 0; round < 100; round++) {
        int64_t work[300];
        int32_t replica_of[300], again[300], M = rng_between(&rng, 1, 300), R = rng_between(&rng, 1, 40);
        int64_t total = 0, longest = 0;
        for (int32_t i = 0; i < M; i++) {
            work[i] = round % 4 == 0 ? 0 : round % 4 == 1 ? 7 : rng_between(&rng, 0, 1000000);
            if (round % 4 == 3 && i == 0) { work[i] = INT64_MAX; }
            total += round % 4 == 3 ? 0 : work[i];
            longest = work[i] > longest ? work[i] : longest;
        }
        CHECK_OK(balance_assign(replica_of, work, M, R, &arena));
        CHECK_OK(balance_assign(again, work, M, R, &arena));
        CHECK_EQ(memcmp(replica_of, again, (size_t)M * sizeof *again), 0);
        int32_t count[40] = {0}, used = 0;
        for (int32_t i = 0; i < M; i++) {
            CHECK(replica_of[i] >= 0 && replica_of[i] < R);
            used += count[replica_of[i]]++ == 0;
        }
        CHECK_EQ(used, M < R ? M : R);
        if (round % 4 < 3) { CHECK(fullest_of(replica_of, work, M, R) <= total / R + longest); }
        arena_reset(&arena);
    }
    CHECK_FAILS(balance_assign(NULL, NULL, 0, 1, &arena), STATUS_OUT_OF_RANGE, "0 jobs");
    arena_free(&arena);
}

// Lists hold every micro-batch once, in list order; a choice made by the batching pass is kept.
static void lists_partition_the_micro_batches(void) {
    Rng rng = rng_seed(seed + 2);
    Arena arena = {0};
    for (int round = 0; round < 60; round++) {
        Microbatch mbs[50] = {{.replica = 0}};
        MicrobatchList list = {.num_mbs = rng_between(&rng, 1, 50), .mbs = mbs};
        ReplicaMbs lists;
        int32_t R = rng_between(&rng, 1, 8), seen = 0;
        bool chosen = round % 2;
        for (int32_t m = 0; m < list.num_mbs; m++) {
            mbs[m].work_ns = rng_between(&rng, 1, 1000);
            mbs[m].replica = chosen ? (int32_t)rng_below(&rng, (uint32_t)R) : -1;
        }
        CHECK_OK(balance_replicas(&lists, &list, R, NULL, &arena));
        for (int32_t r = 0; r < R; r++) {
            int64_t sum = 0;
            for (int32_t k = lists.begin[r]; k < lists.begin[r + 1]; k++, seen++) {
                CHECK(k == lists.begin[r] || lists.mbs[k] > lists.mbs[k - 1]);
                CHECK(!chosen || mbs[lists.mbs[k]].replica == r);
                sum += mbs[lists.mbs[k]].work_ns;
            }
            CHECK_EQ(sum, lists.work_ns[r]);
        }
        CHECK_EQ(seen, list.num_mbs);
        arena_reset(&arena);
    }
    arena_free(&arena);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(close_to_the_optimum);
    RUN(swaps_improve_on_differencing);
    RUN(many_jobs_balance_to_almost_nothing);
    RUN(everyone_gets_something);
    RUN(lists_partition_the_micro_batches);
    return test_end();
}
