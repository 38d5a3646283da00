// test_session_machine.c -- what a session knows of its ranks: speeds as measured, memory as each has it; one
// number for all where that serves.
#include <stdlib.h>

#include "../dynapipe_plugin/run/session.h"
#include "ranks.h"
#include "test.h"

#define MIB (INT64_C(1) << 20)
enum { NUM_RANKS = 3 };

typedef struct {
    int64_t mine_bytes[NUM_RANKS], given_bytes, taken_bytes[NUM_RANKS];
    bool with_speeds;
    // expected
    int64_t common_bytes, own_bytes[NUM_RANKS];
} Case;

static const MachineRank speeds[NUM_RANKS] = {
    {.slow = {1, 1, 1, 1}}, {.slow = {2, 2, 2, 2}}, {.slow = {3, 1, 1, 3}}};

static Status body(Transport* t, void* arg) {
    const Case* c = arg;
    const int32_t all[NUM_RANKS] = {0, 1, 2};
    Dynapipe dp = {.transport = *t, .options.memory_limit_bytes = c->given_bytes, .machine.pulls = true};
    const Machine measured = {.num_ranks = c->with_speeds ? NUM_RANKS : 0, .ranks = speeds};
    TRY(collective_init(&dp.world, &dp.transport, all, NUM_RANKS, INT64_C(20000000000)));
    TRY(session_machine_take(&dp, &measured));
    EXPECT(dp.request.machine == &dp.machine && dp.machine.pulls);
    TRY(session_machine_limit(&dp, c->mine_bytes[t->rank]));
    if (c->taken_bytes[0] > 0) { TRY(session_machine_take_bytes(&dp, c->taken_bytes[t->rank])); }
    EXPECT(dp.options.memory_limit_bytes == c->common_bytes);
    EXPECT(dp.request.memory_limit_bytes == c->common_bytes);
    bool differ = c->with_speeds;
    for (int32_t r = 0; r < NUM_RANKS; r++) {
        MachineRank rank = machine_rank(&dp.machine, r);
        EXPECT(rank.memory_limit_bytes == c->own_bytes[r]);
        EXPECT(rank.slow[JOB_F] == (c->with_speeds ? speeds[r].slow[JOB_F] : 1));
        differ |= c->own_bytes[r] > 0;
    }
    EXPECT(dp.machine.num_ranks == (differ ? NUM_RANKS : 0));
    int64_t own = c->own_bytes[t->rank];
    EXPECT(session_machine_limit_bytes(&dp) == (own > 0 ? own : c->common_bytes));
    TRY(machine_check(&dp.machine, NUM_RANKS));
    session_machine_free(&dp);
    collective_free(&dp.world);
    return STATUS_OK;
}

static void run_case(Case c) {
    static RankResult results[RANKS_MAX];
    CHECK_EQ(ranks_run(NUM_RANKS, RANKS_CHECKED, body, &c, results, 1), 0);
}

static void memory_that_is_alike_is_the_least(void) {
    run_case((Case){.mine_bytes = {6400 * MIB, 6401 * MIB, 6464 * MIB}, .common_bytes = 6400 * MIB});
}

static void a_rank_that_has_less_has_its_own(void) {
    run_case((Case){.mine_bytes = {6400 * MIB, 3200 * MIB, 6464 * MIB},
                    .common_bytes = 6464 * MIB,
                    .own_bytes = {6400 * MIB, 3200 * MIB, 0}});
}

static void a_limit_that_is_given_holds_for_those_that_have_it(void) {
    run_case((Case){.mine_bytes = {6400 * MIB, 3200 * MIB, 6464 * MIB},
                    .given_bytes = 5 * MIB + 1,
                    .common_bytes = 5 * MIB + 1});
    run_case((Case){.mine_bytes = {6400 * MIB, 3200 * MIB, -1},
                    .given_bytes = 5000 * MIB,
                    .with_speeds = true,
                    .common_bytes = 5000 * MIB,
                    .own_bytes = {0, 3200 * MIB, 64 * MIB}});
}

static void what_is_taken_later_is_taken_from_all(void) {
    run_case((Case){.mine_bytes = {6400 * MIB, 3200 * MIB, 6464 * MIB},
                    .taken_bytes = {MIB, 65 * MIB, -MIB},
                    .common_bytes = 6336 * MIB,
                    .own_bytes = {6272 * MIB, 3072 * MIB, 0}});
}

int main(void) {
    RUN(memory_that_is_alike_is_the_least);
    RUN(a_rank_that_has_less_has_its_own);
    RUN(a_limit_that_is_given_holds_for_those_that_have_it);
    RUN(what_is_taken_later_is_taken_from_all);
    return test_end();
}
