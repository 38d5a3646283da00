// test_step_agreement.c -- a wrong length is found before anything is sent; lists that agree always pass.
#include "../dynapipe_plugin/run/executor.h"
#include "ranks.h"
#include "test.h"
#include "toy_plan.h"

enum { MAX_MBS = 24 };

typedef struct {
    const ToyPlan* toy;
    int32_t wrong_rank;                  // its model says that a boundary is four bytes longer; -1: none
    bool wrong_behind;                   // which
    uint64_t other_plan, other_replica;  // hashes of the last rank's plan
    Status agreed[RANKS_MAX];
    char message[RANKS_MAX][512];
} Case;

static uint64_t seed;
static RankResult results[RANKS_MAX];

static int64_t longer_before(void* model, const DynapipeBatch* batch, int is_behind) {
    return toy_api.boundary_bytes(model, batch, is_behind) + (is_behind ? 0 : 4);
}

static int64_t longer_behind(void* model, const DynapipeBatch* batch, int is_behind) {
    return toy_api.boundary_bytes(model, batch, is_behind) + (is_behind ? 4 : 0);
}

// A rank that sends or receives an activation; false: there is none.
static bool draw_end(const ToyPlan* toy, Rng* rng, int32_t* rank, bool* is_behind) {
    int32_t num_choices = 0;
    for (int32_t r = 0; r < toy->plan.P * toy->plan.R; r++) {
        for (int32_t i = 0; i < toy->plan.ranks[r].num_instrs; i++) {
            const PlanInstr* instr = &toy->plan.ranks[r].instrs[i];
            bool is_act = instr->kind == INSTR_SEND_ACT || instr->kind == INSTR_RECV_ACT;
            if (!is_act || rng_below(rng, (uint32_t)++num_choices) > 0) { continue; }
            *rank = r;
            *is_behind = instr->kind == INSTR_SEND_ACT;
        }
    }
    return num_choices > 0;
}

static Status body(Transport* t, void* arg) {
    Case* it = arg;
    const Plan* plan = &it->toy->plan;
    ToyModel models[TOY_MAX_ROWS_HERE];
    ExecutorRange pieces[TOY_MAX_ROWS_HERE];
    int32_t rows[TOY_MAX_ROWS_HERE], num_here = toy_plan_rows(it->toy, t->rank, rows);
    DynapipeModel_v1 api = toy_api;
    const DynapipeBatch* batches[MAX_MBS];
    int32_t ranks[RANKS_MAX];
    Executor* executor;
    Collective world;
    if (t->rank == it->wrong_rank) { api.boundary_bytes = it->wrong_behind ? longer_behind : longer_before; }
    for (int32_t i = 0; i < num_here; i++) {
        models[i] = toy_plan_model(it->toy, rows[i]);
        pieces[i] = (ExecutorRange){&api, &models[i]};
    }
    for (int32_t r = 0; r < t->num_ranks; r++) { ranks[r] = r; }
    for (int32_t m = 0; m < plan->M; m++) {
        batches[m] = plan->mbs[m].replica == t->rank / plan->P ? &it->toy->batches[m].batch : NULL;
    }
    TRY(collective_init(&world, t, ranks, t->num_ranks, (int64_t)20 * 1000000000));
    TRY(executor_create(&executor, pieces, num_here, t, 0));
    ExecutorStep step = {.plan = plan, .batches = batches};
    StepClaim claim = {0};
    if (t->rank == t->num_ranks - 1) {
        claim.plan_hash = it->other_plan;
        claim.replica_hash = it->other_replica;
    }
    TRY(executor_claim(executor, &step, &claim));
    it->agreed[t->rank] = step_agree(&world, plan->P, &claim, 7);
    snprintf(it->message[t->rank], sizeof it->message[0], "%s", status_message());
    TRY(collective_barrier(&world));  // all have heard of it, and nothing is under way
    executor_free(executor);
    collective_free(&world);
    return STATUS_OK;
}

static void expect(Case* it, const char* words) {
    int32_t num_ranks = it->toy->plan.P * it->toy->plan.R;
    CHECK_EQ(ranks_run(num_ranks, RANKS_PLAIN, body, it, results, 1), 0);
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
        Case it = {.toy = &toy, .wrong_rank = -1};
        expect(&it, NULL);
        if (!draw_end(&toy, rng, &it.wrong_rank, &it.wrong_behind)) { continue; }
        char words[64];
        snprintf(words, sizeof words, " rank %d ", (int)it.wrong_rank);
        expect(&it, words);
        arena_reset(&arena);
    }
    arena_free(&arena);
}

static void another_plan_is_named_with_its_rank(void) {
    Rng random = rng_seed(seed), *rng = &random;
    Arena arena = {0};
    ToyPlan toy;
    toy_plan_make(&toy, rng, 3, 1, 4, &arena);
    Case it = {.toy = &toy, .wrong_rank = -1, .other_plan = 9};
    expect(&it, "hash of the plan of step 7: rank 2 has 0000000000000009, rank 0 has");
    Case lists = {.toy = &toy, .wrong_rank = -1, .other_replica = 7};
    expect(&lists, "step 7, what a replica's ranks know of it: rank 2 has 0000000000000007, rank 0 has "
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
    RUN(a_wrong_length_is_found_before_anything_is_sent);
    RUN(another_plan_is_named_with_its_rank);
    RUN(sums_tell_messages_apart);
    return test_end();
}
