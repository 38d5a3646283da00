// test_collective.c -- few values and bytes reach everybody, the same bits on every rank; failures are named.
// A wrong length is found before anything of a step is sent. (Sums of many values: test_tied_groups.c)
#include <math.h>
#include <stdbool.h>

#include "../util/numbers.h"
#include "../dynapipe_plugin/run/transport.h"
#include "../dynapipe_plugin/run/collective.h"
#include "../dynapipe_plugin/run/executor.h"
#include "ranks.h"
#include "test.h"
#include "toy_model.h"

static uint64_t seed;
static RankResult results[RANKS_MAX];

enum { SECOND_NS = 1000000000 };

// The group is every rank, in a shuffled order that is the same on all ranks.
static Status group_init(Collective* c, Transport* t, uint64_t group_seed) {
    int32_t ranks[RANKS_MAX];
    Rng rng = rng_seed(group_seed);
    for (int32_t i = 0; i < t->num_ranks; i++) {
        int32_t k = rng_between(&rng, 0, i);
        ranks[i] = ranks[k];
        ranks[k] = i;
    }
    return collective_init(c, t, ranks, t->num_ranks, (int64_t)20 * SECOND_NS);
}

// Value k of the rank at group index `idx`; not exactly representable sums, so the order of adding shows.
static float rough(uint64_t run_seed, int32_t idx, int64_t k) {
    uint64_t bits = rng_mix(run_seed + (uint64_t)idx * 7919 + (uint64_t)k * 104729);
    return ((float)(bits >> 40) / 8388608.0f - 1.0f) * (bits & 1 ? 1.0f : 1e-3f);
}

typedef struct {
    uint64_t seed;
    int64_t num_values;
} Case;

static double expected_sum(const double* of_members, int32_t num_ranks) {
    double sum[RANKS_MAX];
    memcpy(sum, of_members, (size_t)num_ranks * sizeof *sum);
    for (int32_t d = 1; d < num_ranks; d *= 2) {
        for (int32_t i = 0; i + d < num_ranks; i += 2 * d) { sum[i] += sum[i + d]; }
    }
    return sum[0];
}

static Status share_body(Transport* t, void* arg) {
    const Case* it = arg;
    Collective c;
    TRY(group_init(&c, t, it->seed));
    size_t n = (size_t)it->num_values, all_bytes = (size_t)c.num_ranks * n;
    unsigned char* blocks = malloc(all_bytes + 1);
    EXPECT(blocks != NULL);
    memset(blocks, 255, all_bytes + 1);
    for (size_t k = 0; k < n; k++) { blocks[(size_t)c.my_idx * n + k] = (unsigned char)(c.my_idx * 16 + 3); }
    Status status = collective_share(&c, blocks, n);
    bool right = blocks[all_bytes] == 255;
    for (size_t k = 0; k < all_bytes; k++) { right &= blocks[k] == (unsigned char)(k / n * 16 + 3); }
    free(blocks);
    collective_free(&c);
    EXPECT(right || status != STATUS_OK);
    return status;
}

static void shared_blocks_are_everybodys(void) {
    int64_t lengths[] = {0, 1, 72, 5000};
    for (int32_t R = 1; R <= 9; R++) {
        for (size_t i = 0; i < 4; i++) {
            Case it = {seed + i, lengths[i]};
            CHECK_EQ(ranks_run(R, share_body, &it, results, 1), 0);
        }
    }
}

static Status small_body(Transport* t, void* arg) {
    uint64_t run_seed = *(uint64_t*)arg;
    Collective c;
    TRY(group_init(&c, t, run_seed));
    for (int32_t n = 0; n < 6; n++) {
        double values[6], expected[6], of_members[RANKS_MAX];
        for (int32_t k = 0; k < n; k++) {
            values[k] = (double)rough(run_seed, c.my_idx, k) / 3;
            for (int32_t i = 0; i < c.num_ranks; i++) { of_members[i] = (double)rough(run_seed, i, k) / 3; }
            expected[k] = expected_sum(of_members, c.num_ranks);
        }
        TRY(collective_all_reduce_sum(&c, values, n));
        EXPECT(memcmp(values, expected, (size_t)n * sizeof *values) == 0);
    }
    TRY(collective_barrier(&c));
    TRY(collective_all_equal_u64(&c, 0x1234567890abcdefu, "hash"));
    int64_t offset_ns;
    TRY(collective_clock_offset(&c, &offset_ns));  // one clock: the offset is the error of the method
    EXPECT(llabs(offset_ns) < SECOND_NS / 100);
    collective_free(&c);
    return STATUS_OK;
}

static void few_values_agree_everywhere(void) {
    for (int32_t R = 1; R <= 9; R++) { CHECK_EQ(ranks_run(R, small_body, &seed, results, 1), 0); }
}

static Status bytes_body(Transport* t, void* arg) {
    const Case* it = arg;
    Collective c;
    TRY(group_init(&c, t, it->seed));
    size_t n = (size_t)it->num_values;
    unsigned char* data = malloc(n + 1);
    EXPECT(data != NULL);
    for (int32_t root = 0; root < c.num_ranks; root++) {
        for (size_t k = 0; k < n; k++) {
            data[k] = c.my_idx == root ? (unsigned char)rng_mix(k + (size_t)root) : 0;
        }
        TRY(collective_broadcast(&c, data, n, root));
        for (size_t k = 0; k < n; k++) { EXPECT(data[k] == (unsigned char)rng_mix(k + (size_t)root)); }
    }
    // each member another length, index 1 nothing
    Arena arena = {0};
    unsigned char* all;
    size_t mine = c.my_idx == 1 ? 0 : n / (size_t)(c.my_idx + 1);
    memset(data, 100 + c.my_idx, mine);
    TRY(collective_share_bytes(&c, data, mine, &all, &arena));
    for (int32_t i = 0; i < c.num_ranks; i++) {
        for (size_t k = i == 1 ? n : 0; k < n / (size_t)(i + 1); k++) { EXPECT(*all++ == 100 + i); }
    }
    arena_free(&arena);
    free(data);
    collective_free(&c);
    return STATUS_OK;
}

static void bytes_reach_everybody_and_come_back(void) {
    int64_t lengths[] = {0, 1, 1 << 20, (5 << 19) + 1};
    for (int32_t R = 1; R <= 4; R++) {
        for (size_t i = 0; i < 4; i++) {
            Case it = {seed + i, lengths[i]};
            CHECK_EQ(ranks_run(R, bytes_body, &it, results, 1), 0);
        }
    }
}

static Status unequal_body(Transport* t, void* arg) {
    (void)arg;
    Collective c;
    TRY(ranks_world(&c, t));
    Status status = collective_all_equal_u64(&c, t->rank == 2 ? 7 : 5, "hash of the plan of step 12");
    EXPECT(status == STATUS_MISMATCH);
    EXPECT(strstr(status_message(), "step 12: rank 2 has 0000000000000007, rank 0 has") != NULL);
    TRY(collective_barrier(&c));  // everybody has heard of it, so all still work together
    collective_free(&c);
    return STATUS_OK;
}

static void a_rank_that_differs_is_named_on_every_rank(void) {
    CHECK_EQ(ranks_run(4, unequal_body, NULL, results, 1), 0);
}

// Rank 1 never comes: the one that waits for it says so within the timeout.
static Status absent_body(Transport* t, void* arg) {
    (void)arg;
    Collective c;
    int32_t ranks[] = {0, 1};
    float values[100] = {0};
    void* request;
    TRY(collective_init(&c, t, ranks, 2, SECOND_NS / 20));
    Status status;
    if (t->rank == 0) {
        status = collective_reduce_scatter_sum(&c, values, 100, DYNAPIPE_FLOAT32);
    } else {  // alive, but busy with something else
        TRY(t->api->irecv(t->ctx, 0, 1, values, 4, &request));
        status = ranks_wait(t, request);
    }
    if (status != STATUS_OK) {
        char why[1024];
        snprintf(why, sizeof why, "%s", status_message());
        t->api->abort(t->ctx, why);  // before `values` goes out of scope
        status = FAIL(status, "%s", why);
    }
    collective_free(&c);
    return status;
}

static void a_rank_that_does_not_come_is_named(void) {
    CHECK_EQ(ranks_run(2, absent_body, NULL, results, 0), 2);
    CHECK_EQ(results[0].status, STATUS_COMM);
    CHECK(strstr(results[0].message, "reduce_scatter: rank 0 waits for rank 1 to") != NULL);
    CHECK(strstr(results[0].message, "---> see what rank 1 does") != NULL);
}

// A rank that gives up while the other is in a sum of one value: neither may think that it was met.
static Status one_gives_up_body(Transport* t, void* arg) {
    (void)arg;
    Collective c;
    double value = 1;
    TRY(collective_init(&c, t, (int32_t[]){0, 1}, 2, SECOND_NS / 2));
    Status status = t->rank == 0 ? collective_barrier(&c) : collective_all_reduce_sum(&c, &value, 1);
    char why[1024];
    snprintf(why, sizeof why, "%s", status_message());
    if (status != STATUS_OK) { t->api->abort(t->ctx, why); }  // before `value` goes out of scope
    collective_free(&c);
    return status == STATUS_OK ? STATUS_OK : FAIL(status, "%s", why);
}

static void a_barrier_is_no_sum(void) {
    CHECK_EQ(ranks_run(2, one_gives_up_body, NULL, results, 0), 2);
    CHECK_EQ(results[0].status, STATUS_COMM);
    CHECK_EQ(results[1].status, STATUS_COMM);
}

// SIGSTOP, a paused machine: time in which nobody looked is not time that nothing came.
static void who_was_stopped_looks_again(void) {
    const int64_t ms = 1000000, timeout_ns = 5000 * ms;
    Backoff wait = {0};
    int64_t now_ns = 77 * ms;
    CHECK(!backoff_gives_up_at(&wait, timeout_ns, now_ns));
    for (int32_t i = 0; i < 499; i++) { CHECK(!backoff_gives_up_at(&wait, timeout_ns, now_ns += 10 * ms)); }
    CHECK(!backoff_gives_up_at(&wait, timeout_ns, now_ns += 3600 * 1000 * ms));  // an hour
    int32_t num_looks = 0;
    while (!backoff_gives_up_at(&wait, timeout_ns, now_ns += 10 * ms)) { num_looks++; }
    CHECK_EQ(num_looks, 100);
    Backoff of_starved = {0};  // looks that are always that far apart: it ends all the same
    int32_t num_far = 0;
    while (num_far < 1000 && !backoff_gives_up_at(&of_starved, timeout_ns, now_ns += 2000 * ms)) {
        num_far++;
    }
    CHECK(num_far > 50 && num_far < 100);
    Backoff of_ever = {0};
    for (int32_t i = 0; i < 1000; i++) { CHECK(!backoff_gives_up_at(&of_ever, 0, now_ns += 90 * ms)); }
    Backoff of_busy = {0};  // a busy machine: looks 60 ms apart count
    int32_t num_late = 0;
    while (!backoff_gives_up_at(&of_busy, 100 * ms, now_ns += 60 * ms)) { num_late++; }
    CHECK_EQ(num_late, 2);
}

// --- agreement before a step -------------------------------------------------------------------------------

enum { MAX_MBS = 24 };

typedef struct {
    const ToyPlan* toy;
    int32_t wrong_rank;                  // its model counts four bytes too few for a boundary; -1: none
    bool wrong_after;                    // which
    uint64_t other_plan, other_replica;  // hashes of the last rank's plan
    Status agreed[RANKS_MAX];
    char message[RANKS_MAX][512];
} Agreement;

static int64_t shorter(void* model, const DynapipeBatch* batch, int is_after, bool wanted) {
    int64_t num_bytes = toy_api.boundary_bytes(model, batch, is_after);
    return wanted && num_bytes > 0 ? num_bytes - 4 : num_bytes;
}

static int64_t shorter_before(void* model, const DynapipeBatch* batch, int is_after) {
    return shorter(model, batch, is_after, !is_after);
}

static int64_t shorter_after(void* model, const DynapipeBatch* batch, int is_after) {
    return shorter(model, batch, is_after, is_after);
}

// A rank that sends or receives an activation; false: there is none.
static bool draw_end(const ToyPlan* toy, Rng* rng, int32_t* rank, bool* is_after) {
    int32_t num_choices = 0;
    for (int32_t r = 0; r < toy->plan.P * toy->plan.R; r++) {
        for (int32_t i = 0; i < toy->plan.ranks[r].num_instrs; i++) {
            const PlanInstr* instr = &toy->plan.ranks[r].instrs[i];
            bool is_act = (instr->kind == INSTR_SEND_ACT || instr->kind == INSTR_RECV_ACT) &&
                          toy->batches[instr->mb].batch.num_rows > 0;  // else there may be no bytes
            if (!is_act || rng_below(rng, (uint32_t)++num_choices) > 0) { continue; }
            *rank = r;
            *is_after = instr->kind == INSTR_SEND_ACT;
        }
    }
    return num_choices > 0;
}

static Status agree_body(Transport* t, void* arg) {
    Agreement* it = arg;
    const Plan* plan = &it->toy->plan;
    ToyModel models[TOY_MAX_ROWS_HERE];
    ExecutorRange pieces[TOY_MAX_ROWS_HERE];
    int32_t rows[TOY_MAX_ROWS_HERE], num_here = toy_plan_rows(it->toy, t->rank, rows);
    DynapipeModel_v1 api = toy_api;
    const DynapipeBatch* batches[MAX_MBS];
    Executor* executor;
    Collective world;
    if (t->rank == it->wrong_rank) { api.boundary_bytes = it->wrong_after ? shorter_after : shorter_before; }
    for (int32_t i = 0; i < num_here; i++) {
        models[i] = toy_plan_model(it->toy, rows[i]);
        pieces[i] = (ExecutorRange){&api, &models[i]};
    }
    for (int32_t m = 0; m < plan->M; m++) {
        batches[m] = plan->mbs[m].replica == t->rank / plan->P ? &it->toy->batches[m].batch : NULL;
    }
    TRY(ranks_world(&world, t));
    TRY(executor_create(&executor, pieces, num_here, t, 0));
    float room[TOY_MAX_ROWS], *losses[MAX_MBS];
    for (int32_t m = 0; m < plan->M; m++) { losses[m] = room; }
    ExecutorStep step = {.plan = plan,
                         .batches = batches,
                         .losses = losses,
                         .arena = (void*)(uintptr_t)PLAN_BUFFER_ALIGN,  // nothing is read or written
                         .arena_bytes = INT64_MAX};
    StepClaim claim = {0};
    if (t->rank == t->num_ranks - 1) {
        claim.plan_hash = it->other_plan;
        claim.replica_hash = it->other_replica;
    }
    TRY(executor_prepare_step(executor, &step, &claim));
    it->agreed[t->rank] = step_agree(&world, plan->P, &claim, 7);
    snprintf(it->message[t->rank], sizeof it->message[0], "%s", status_message());
    TRY(collective_barrier(&world));  // all have heard of it, and nothing is under way
    executor_free(executor);
    collective_free(&world);
    return STATUS_OK;
}

static void expect_agreement(Agreement* it, const char* words) {
    int32_t num_ranks = it->toy->plan.P * it->toy->plan.R;
    CHECK_EQ(ranks_run(num_ranks, agree_body, it, results, 1), 0);
    for (int32_t r = 0; r < num_ranks; r++) {
        CHECK_EQ(it->agreed[r], words == NULL ? STATUS_OK : STATUS_MISMATCH);
        CHECK(words == NULL || strstr(it->message[r], words) != NULL);
    }
}

static void a_wrong_length_is_found_before_anything_is_sent(void) {
    Rng random = rng_seed(seed), *rng = &random;
    Arena arena = {0};
    for (int trial = 0; trial < 30; trial++) {
        int32_t P = rng_between(rng, 2, 5), R = rng_between(rng, 1, 2);
        ToyPlan toy;
        toy_plan_make(&toy, rng, P, R, rng_between(rng, 1, 8), &arena);
        Agreement it = {.toy = &toy, .wrong_rank = -1};
        expect_agreement(&it, NULL);
        if (!draw_end(&toy, rng, &it.wrong_rank, &it.wrong_after)) { continue; }
        char words[64];
        snprintf(words, sizeof words, " rank %d ", (int)it.wrong_rank);
        expect_agreement(&it, words);
        arena_reset(&arena);
    }
    arena_free(&arena);
}

static void another_plan_is_named_with_its_rank(void) {
    Rng random = rng_seed(seed), *rng = &random;
    Arena arena = {0};
    ToyPlan toy;
    toy_plan_make(&toy, rng, 3, 1, 4, &arena);
    Agreement it = {.toy = &toy, .wrong_rank = -1, .other_plan = 9};
    expect_agreement(&it, "hash of the plan of step 7: rank 2 has 0000000000000009, rank 0 has");
    Agreement lists = {.toy = &toy, .wrong_rank = -1, .other_replica = 7};
    expect_agreement(&lists,
                     "step 7, what a replica's ranks know of it: rank 2 has 0000000000000007, rank 0 has "
                     "0000000000000000");
    arena_free(&arena);
}

// Two messages of one link with their lengths exchanged, or one twice: the sums differ.
static void sums_tell_messages_apart(void) {
    Rng random = rng_seed(seed), *rng = &random;
    for (int trial = 0; trial < 100; trial++) {
        int64_t a_bytes = rng_between(rng, 1, 1000), b_bytes = a_bytes + rng_between(rng, 1, 1000);
        uint64_t right = 0, swapped = 0, twice = 0;
        step_claim_add(&right, true, 2, a_bytes);
        step_claim_add(&right, false, 3, b_bytes);
        step_claim_add(&swapped, false, 2, b_bytes);
        step_claim_add(&swapped, true, 3, a_bytes);
        step_claim_add(&twice, false, 2, a_bytes);
        step_claim_add(&twice, false, 2, a_bytes);
        CHECK(right + swapped != 0);
        CHECK(right + twice != 0);
        step_claim_add(&right, false, 2, a_bytes);
        step_claim_add(&right, true, 3, b_bytes);
        CHECK(right == 0);
    }
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(few_values_agree_everywhere);
    RUN(shared_blocks_are_everybodys);
    RUN(who_was_stopped_looks_again);
    RUN(bytes_reach_everybody_and_come_back);
    RUN(a_rank_that_differs_is_named_on_every_rank);
    RUN(a_rank_that_does_not_come_is_named);
    RUN(a_barrier_is_no_sum);
    RUN(a_wrong_length_is_found_before_anything_is_sent);
    RUN(another_plan_is_named_with_its_rank);
    RUN(sums_tell_messages_apart);
    return test_end();
}
