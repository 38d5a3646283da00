// test_original.c -- the original's method: cyclic orders, largest differencing, orders tried, and what it
// reached on the shared cases.
#include "../rivals/balance.h"
#include "../dynapipe_plugin/plan/simulate.h"
#include "../rivals/rivals.h"
#include "case_problem.h"
#include "list_check.h"
#include "random_problem.h"
#include "test.h"

static uint64_t seed;
static RandomProblem problem;
static CaseProblem a_case;
static PlanProblem mp;

// --- the cyclic order ------------------------------------------------------------------------------------

enum { MAX_P = 8, MAX_M = 20 };

static PipeProblem random_pipe(PipeCost* costs, int32_t P, int32_t M, Rng* rng) {
    for (int32_t i = 0; i < P * M; i++) {
        costs[i] = (PipeCost){.job_ns = {rng_between(rng, 1, 9), rng_between(rng, 1, 9)},
                              .stored_bytes = rng_between(rng, 1, 100),
                              .transfer_ns = rng_between(rng, 0, 5)};
    }
    PipeProblem pipe = {.P = P, .M = M, .cost = costs};
    for (int32_t s = 0; s < P; s++) { pipe.memory_limit_bytes[s] = INT64_MAX; }
    return pipe;
}

// Stage s runs F(k) in cycle s + k and B(k) in cycle 2P - 1 - s + k, backward first: its list is exactly
// that, whatever the jobs take; and it holds 2 (P - s) - 1 micro-batches at most.
static void cyclic_runs_each_job_in_its_cycle(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    static PipeCost costs[MAX_P * MAX_M];
    for (int32_t P = 1; P <= MAX_P; P++) {
        for (int32_t M = 1; M <= MAX_M; M++) {
            PipeProblem pipe = random_pipe(costs, P, M, &rng);
            PipeSchedule schedule;
            PipeTimeline timeline;
            int32_t order[MAX_M];
            for (int32_t i = 0; i < M; i++) { order[i] = (i * 7 + 3) % M; }
            for (int32_t i = 0; i < M && M % 7 == 0; i++) { order[i] = M - 1 - i; }
            CHECK_OK(pipe_policy_cyclic.build(&schedule, &pipe, order, false, &arena));
            CHECK_OK(pipe_simulate(&timeline, &pipe, &schedule, &arena));
            for (int32_t s = 0; s < P; s++) {
                int32_t i = 0, held = 0, most = 0;
                for (int32_t cycle = 0; cycle < 2 * P + M; cycle++) {
                    int32_t b = cycle - (2 * P - 1 - s), f = cycle - s;
                    if (b >= 0 && b < M) {
                        CHECK(schedule.jobs[s][i].kind == JOB_B && schedule.jobs[s][i].mb == order[b]);
                        i++, held--;
                    }
                    if (f >= 0 && f < M) {
                        CHECK(schedule.jobs[s][i].kind == JOB_F && schedule.jobs[s][i].mb == order[f]);
                        i++, held++;
                    }
                    most = held > most ? held : most;
                }
                CHECK_EQ(schedule.num_jobs[s], i);
                CHECK_EQ(most, M < 2 * (P - s) - 1 ? M : 2 * (P - s) - 1);
            }
            arena_reset(&arena);
        }
    }
    arena_free(&arena);
}

// With a limit under which each fits alone: everything runs, nothing is ever over; without pressure it is the
// order without a limit; and one that does not fit alone is reported.
static void limited_cyclic_keeps_the_limit(void) {
    Rng rng = rng_seed(seed + 1);
    Arena arena = {0};
    static PipeCost costs[MAX_P * MAX_M];
    int waited = 0;
    for (int round = 0; round < 300; round++) {
        int32_t P = rng_between(&rng, 1, MAX_P), M = rng_between(&rng, 1, MAX_M), order[MAX_M];
        PipeProblem pipe = random_pipe(costs, P, M, &rng);
        PipeSchedule free_schedule, schedule;
        PipeTimeline timeline;
        int64_t limit = rng_between(&rng, 100, 800);
        for (int32_t i = 0; i < M; i++) { order[i] = i; }
        CHECK_OK(pipe_policy_cyclic.build(&free_schedule, &pipe, order, false, &arena));
        CHECK_OK(pipe_policy_cyclic_limited.build(&schedule, &pipe, order, false, &arena));
        for (int32_t s = 0; s < P; s++) {
            CHECK_EQ(memcmp(schedule.jobs[s], free_schedule.jobs[s], (size_t)M * 2 * sizeof(PipeJob)), 0);
            pipe.memory_limit_bytes[s] = limit;
        }
        CHECK_OK(pipe_policy_cyclic_limited.build(&schedule, &pipe, order, false, &arena));
        CHECK_OK(pipe_simulate(&timeline, &pipe, &schedule, &arena));
        bool same = true;
        for (int32_t s = 0; s < P; s++) {
            CHECK(timeline.peak_bytes[s] <= limit);
            same &= memcmp(schedule.jobs[s], free_schedule.jobs[s], (size_t)M * 2 * sizeof(PipeJob)) == 0;
        }
        waited += !same;
        costs[rng_below(&rng, (uint32_t)(P * M))].stored_bytes = limit + 1;
        CHECK_FAILS(pipe_policy_cyclic_limited.build(&schedule, &pipe, order, false, &arena),
                    STATUS_INFEASIBLE, "1 bytes over");
        arena_reset(&arena);
    }
    CHECK(waited > 50);
    arena_free(&arena);
}

// --- replicas --------------------------------------------------------------------------------------------

enum { KK_MAX = 24 };
typedef struct {
    int64_t sum[KK_MAX];
    int32_t owner[KK_MAX];  // of each job: bin, or -1
    int64_t age;
} NaiveTuple;

static void naive_sort(NaiveTuple* t, int32_t M, int32_t R) {
    for (int32_t pass = 0; pass < R; pass++) {
        for (int32_t k = 0; k + 1 < R; k++) {
            if (t->sum[k] <= t->sum[k + 1]) { continue; }
            int64_t sum = t->sum[k];
            t->sum[k] = t->sum[k + 1], t->sum[k + 1] = sum;
            for (int32_t i = 0; i < M; i++) {
                t->owner[i] = t->owner[i] == k ? k + 1 : t->owner[i] == k + 1 ? k : t->owner[i];
            }
        }
    }
}

static int32_t naive_take(NaiveTuple* tuples, int32_t* num, int32_t R, NaiveTuple* out) {
    int32_t best = 0;
    for (int32_t i = 1; i < *num; i++) {
        int64_t a = tuples[i].sum[R - 1] - tuples[i].sum[0],
                b = tuples[best].sum[R - 1] - tuples[best].sum[0];
        if (a > b || (a == b && tuples[i].age < tuples[best].age)) { best = i; }
    }
    *out = tuples[best];
    tuples[best] = tuples[--*num];
    return best;
}

// The definition word for word, with lists that are searched from end to end.
static void differencing_is_karmarkar_karp(void) {
    Rng rng = rng_seed(seed + 2);
    Arena arena = {0};
    static NaiveTuple tuples[KK_MAX];
    for (int round = 0; round < 500; round++) {
        int32_t M = rng_between(&rng, 1, KK_MAX), R = rng_between(&rng, 1, 6), num = 0, replica_of[KK_MAX];
        int64_t work[KK_MAX];
        int32_t most = rng_below(&rng, 2) ? 20 : 1000000;  // many ties, or none
        bool used[KK_MAX] = {false};
        for (int32_t i = 0; i < M; i++) { work[i] = rng_between(&rng, 1, most); }
        for (int32_t k = 0; k < M; k++) {
            int32_t best = -1;
            for (int32_t i = 0; i < M; i++) {
                if (!used[i] && (best < 0 || work[i] > work[best])) { best = i; }
            }
            used[best] = true;
            NaiveTuple t = {.age = k};
            for (int32_t i = 0; i < M; i++) { t.owner[i] = i == best ? R - 1 : -1; }
            t.sum[R - 1] = work[best];
            tuples[num++] = t;
        }
        for (int64_t age = M; num > 1; age++) {
            NaiveTuple a, b;
            naive_take(tuples, &num, R, &a);
            naive_take(tuples, &num, R, &b);
            for (int32_t k = 0; k < R; k++) { a.sum[k] += b.sum[R - 1 - k]; }
            for (int32_t i = 0; i < M; i++) {
                if (b.owner[i] >= 0) { a.owner[i] = R - 1 - b.owner[i]; }
            }
            naive_sort(&a, M, R);
            a.age = age;
            tuples[num++] = a;
        }
        CHECK_OK(balance_difference(replica_of, work, M, R, &arena));
        for (int32_t i = 0; i < M; i++) { CHECK_EQ(replica_of[i], tuples[0].owner[i]); }
        arena_reset(&arena);
    }
    arena_free(&arena);
}

// --- orders ----------------------------------------------------------------------------------------------

static bool is_permutation(const int32_t* order, int32_t M) {
    bool seen[64] = {false};
    for (int32_t i = 0; i < M; i++) {
        if (order[i] < 0 || order[i] >= M || seen[order[i]]) { return false; }
        seen[order[i]] = true;
    }
    return true;
}

static void orders_are_those_of_the_original(void) {
    Rng rng = rng_seed(seed + 3);
    Arena arena = {0};
    for (int round = 0; round < 200; round++) {
        int32_t M = rng_between(&rng, 1, 40), num = 0, order[64], k = M > 20 ? 3 : 4;
        static int32_t tried[32][64];
        OriginalPoint points[64];
        int32_t num_groups = rng_between(&rng, 1, k), group[64];
        for (int32_t m = 0; m < M; m++) {  // groups far apart: k-means must find them where there are k
            group[m] = m < num_groups ? m : (int32_t)rng_below(&rng, (uint32_t)num_groups);
            for (int i = 0; i < ORIGINAL_FEATURES; i++) {
                points[m].us[i] = 1000000 * group[m] * (i + 1) + rng_between(&rng, 0, 3);
            }
        }
        OriginalOrders orders;
        CHECK_OK(original_orders_init(&orders, points, M, &rng, &arena));
        while (num < 32 && original_orders_next(&orders, order, &rng)) {
            CHECK(is_permutation(order, M));
            memcpy(tried[num++], order, sizeof order);
            int32_t changes = 0;
            for (int32_t i = 1; i < M; i++) { changes += group[order[i]] != group[order[i - 1]]; }
            bool identity_or_small = M <= k || num == (k == 3 ? 7 : 25);
            if (!identity_or_small && num_groups == k) { CHECK_EQ(changes, k - 1); }
        }
        static const int32_t factorial[] = {1, 1, 2, 6, 24};
        if (M <= k) {
            CHECK_EQ(num, factorial[M]);
        } else {
            CHECK(num <= factorial[k] + 1 && (num_groups < k || num == factorial[k] + 1));
            for (int32_t m = 0; m < M; m++) { CHECK_EQ(tried[num - 1][m], m); }
        }
        for (int32_t a = 0; a < num && M <= k; a++) {
            for (int32_t b = 0; b < a; b++) { CHECK(memcmp(tried[a], tried[b], (size_t)M * 4) != 0); }
        }
        arena_reset(&arena);
    }
    arena_free(&arena);
}

// --- drafts ----------------------------------------------------------------------------------------------

// What the draft says, simulated again from its parts; INT64_MAX where it does not fit.
static int64_t simulate_again(const Draft* draft, int32_t r, Arena* arena) {
    ReplicaProblem replica;
    PipeSchedule schedule;
    PipeTimeline timeline;
    const DraftReplica* d = &draft->replica[r];
    int32_t M = d->M, identity[4096];
    for (int32_t i = 0; i < M; i++) { identity[i] = i; }
    CHECK_OK(replica_problem_make(&replica, &mp, &draft->list, r, d->mbs, M, d->modes, arena));
    if (pipe_variant_build(&schedule, &replica.pipe, identity, &d->variant, arena)) { return INT64_MAX; }
    CHECK_OK(pipe_simulate(&timeline, &replica.pipe, &schedule, arena));
    for (int32_t s = 0; s < mp.P; s++) {
        if (timeline.peak_bytes[s] > replica.pipe.memory_limit_bytes[s]) { return INT64_MAX; }
    }
    return timeline.makespan_ns;
}

static void draft_check(const Draft* draft, Arena* arena) {
    int64_t slowest_ns = 0;
    CHECK_OK(list_check(&draft->list, &mp, arena));
    for (int32_t r = 0; r < mp.R; r++) {
        int64_t makespan_ns = simulate_again(draft, r, arena);
        CHECK_EQ(makespan_ns, draft->replica[r].makespan_ns);
        slowest_ns = makespan_ns > slowest_ns ? makespan_ns : slowest_ns;
    }
    CHECK_EQ(slowest_ns, draft->makespan_ns);
    bool seen[4096] = {false};
    for (int32_t r = 0; r < mp.R; r++) {
        for (int32_t i = 0; i < draft->replica[r].M; i++) {
            CHECK(!seen[draft->replica[r].mbs[i]]);
            seen[draft->replica[r].mbs[i]] = true;
        }
    }
    for (int32_t m = 0; m < draft->list.num_mbs; m++) { CHECK(seen[m]); }
}

static void drafts_are_what_they_say(void) {
    Rng rng = rng_seed(seed + 4);
    Arena arena = {0};
    int fits = 0;
    for (int round = 0; round < 100; round++) {
        Draft draft, again;
        random_problem(&problem, &rng, rng_between(&rng, 1, 100));
        if (rng_below(&rng, 2)) { random_problem_limit_memory(&problem, (int32_t)rng_below(&rng, 300)); }
        problem.request.layout = LAYOUT_PADDED;
        CHECK_OK(
            plan_problem_init(&mp, &problem.request, &problem.costs, problem.samples, problem.num_samples));
        Status status = original_draft(&draft, &mp, &arena);
        CHECK(status == STATUS_OK || status == STATUS_INFEASIBLE);
        if (status == STATUS_OK) {
            draft_check(&draft, &arena);
            CHECK_OK(original_draft(&again, &mp, &arena));
            CHECK_EQ(draft.makespan_ns, again.makespan_ns);
            fits += draft.makespan_ns < INT64_MAX;
        }
        arena_reset(&arena);
    }
    CHECK(fits > 40);
    arena_free(&arena);
}

// The original's makespans, within 5 %: its random orders have no seed.
static void cases_come_out_as_the_original(void) {
    Arena arena = {0};
    for (int i = 0; case_names[i]; i++) {
        CaseReference reference;
        Draft draft;
        if (!case_problem_load(&a_case, case_names[i]) || !case_reference_load(&reference, case_names[i])) {
            test_failures++;
            continue;
        }
        CHECK_OK(case_problem_init(&mp, &a_case));
        CHECK_OK(original_draft(&draft, &mp, &arena));
        draft_check(&draft, &arena);
        double makespan_ms = (double)draft.makespan_ns / 1e6;
        printf("%-24s %9.2f ms, reference %9.2f ms\n", case_names[i], makespan_ms, reference.makespan_ms);
        CHECK_NEAR(makespan_ms / reference.makespan_ms, 1, 0.05);
        arena_reset(&arena);
    }
    arena_free(&arena);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(cyclic_runs_each_job_in_its_cycle);
    RUN(limited_cyclic_keeps_the_limit);
    RUN(differencing_is_karmarkar_karp);
    RUN(orders_are_those_of_the_original);
    RUN(drafts_are_what_they_say);
    if (case_available()) {
        RUN(cases_come_out_as_the_original);
    } else {
        SKIP(cases_come_out_as_the_original, "../shared/cases is not there");
    }
    return test_end();
}
