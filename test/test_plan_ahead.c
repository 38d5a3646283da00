// test_plan_ahead.c -- every step once, in order, never in a slot that is in use; errors cross threads; no
// hang.
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#include "../util/numbers.h"
#include "../dynapipe_plugin/run/session.h"
#include "test.h"

static uint64_t seed;

enum { MAX_SLOTS = 8 };

typedef struct {
    int64_t slot_step[MAX_SLOTS];  // plain memory: the thread sanitizer sees any sharing that is not ordered
    int64_t next_step, fail_at;
    atomic_int num_made;
    int32_t make_us;
    bool disorder;
} Maker;

static void pause_us(int32_t us) {
    struct timespec nap = {0, us * 1000};
    nanosleep(&nap, NULL);
}

static Status make(void* ctx, int64_t step, int32_t slot) {
    Maker* maker = ctx;
    maker->disorder |= step != maker->next_step;
    maker->next_step = step + 1;
    if (maker->make_us > 0) { pause_us(maker->make_us); }
    if (step == maker->fail_at) { return FAIL(STATUS_INFEASIBLE, "step %lld does not fit", (long long)step); }
    maker->slot_step[slot] = step;
    atomic_fetch_add(&maker->num_made, 1);
    return STATUS_OK;
}

static void every_step_comes_once_and_stays_until_the_next(void) {
    Rng rng = rng_seed(seed);
    for (int trial = 0; trial < 60; trial++) {
        int32_t num_ahead = rng_between(&rng, 0, MAX_SLOTS - 1);
        int64_t first = rng_between(&rng, 0, 1000), num_steps = rng_between(&rng, 0, 40);
        Maker maker = {.next_step = first, .fail_at = -1, .make_us = rng_between(&rng, 0, 60)};
        PlanAhead* ahead;
        CHECK_OK(plan_ahead_start(&ahead, make, &maker, first, first + num_steps, num_ahead));
        for (int64_t step = first; step < first + num_steps; step++) {
            int32_t slot = -1;
            CHECK_OK(plan_ahead_get(ahead, step, &slot));
            CHECK(slot >= 0 && slot <= num_ahead);
            if (slot < 0) { break; }
            for (int look = 0; look < 3; look++) {
                CHECK_EQ(maker.slot_step[slot], step);
                pause_us(rng_between(&rng, 0, 30));
            }
            PlanAheadStats stats = plan_ahead_stats(ahead);
            CHECK(stats.make_ns >= maker.make_us * 1000 && stats.wait_ns >= 0 && stats.make_cpu_ns >= 0);
        }
        int32_t slot;
        CHECK_FAILS(plan_ahead_get(ahead, first + num_steps, &slot), STATUS_OUT_OF_RANGE, "was asked for");
        plan_ahead_stop(ahead);
        CHECK_EQ(atomic_load(&maker.num_made), num_steps);
        CHECK(!maker.disorder);
    }
}

static void steps_are_asked_for_in_order(void) {
    Maker maker = {.next_step = 5, .fail_at = -1};
    PlanAhead* ahead;
    int32_t slot;
    CHECK_OK(plan_ahead_start(&ahead, make, &maker, 5, 20, 2));
    CHECK_FAILS(plan_ahead_get(ahead, 6, &slot), STATUS_OUT_OF_RANGE, "step 6 was asked for, next is 5");
    CHECK_OK(plan_ahead_get(ahead, 5, &slot));
    CHECK_FAILS(plan_ahead_get(ahead, 5, &slot), STATUS_OUT_OF_RANGE, "step 5 was asked for, next is 6");
    CHECK_OK(plan_ahead_get(ahead, 6, &slot));
    plan_ahead_stop(ahead);
    CHECK_FAILS(plan_ahead_start(&ahead, make, &maker, 0, 1, -1), STATUS_OUT_OF_RANGE, "-1 steps");
    plan_ahead_stop(NULL);
}

// Planning runs at most num_ahead steps ahead of the step in use, and does run that far.
static void the_planner_runs_num_ahead_steps_ahead(void) {
    Maker maker = {.next_step = 0, .fail_at = -1};
    PlanAhead* ahead;
    int32_t slot;
    CHECK_OK(plan_ahead_start(&ahead, make, &maker, 0, 100, 3));
    CHECK_OK(plan_ahead_wait_all(ahead));
    CHECK_EQ(atomic_load(&maker.num_made), 4);  // nothing is in use yet
    CHECK_OK(plan_ahead_get(ahead, 0, &slot));
    pause_us(2000);
    CHECK_EQ(atomic_load(&maker.num_made), 4);  // step 0 keeps its slot
    CHECK_OK(plan_ahead_get(ahead, 1, &slot));
    CHECK_OK(plan_ahead_wait_all(ahead));
    CHECK_EQ(atomic_load(&maker.num_made), 5);
    CHECK_EQ(slot, 1);
    CHECK_EQ(maker.slot_step[0], 4);
    plan_ahead_stop(ahead);
}

static void waiting_is_measured(void) {
    for (int32_t num_ahead = 0; num_ahead < 2; num_ahead++) {
        Maker maker = {.next_step = 0, .fail_at = -1, .make_us = 20000};
        PlanAhead* ahead;
        int32_t slot;
        CHECK_OK(plan_ahead_start(&ahead, make, &maker, 0, 2, num_ahead));
        CHECK_OK(plan_ahead_get(ahead, 0, &slot));
        CHECK(plan_ahead_stats(ahead).wait_ns > 10000000);
        if (num_ahead > 0) { CHECK_OK(plan_ahead_wait_all(ahead)); }
        CHECK_OK(plan_ahead_get(ahead, 1, &slot));
        PlanAheadStats stats = plan_ahead_stats(ahead);
        CHECK(stats.make_ns >= 20000000);
        CHECK(num_ahead == 0 ? stats.wait_ns >= 20000000 : stats.wait_ns < 10000000);
        plan_ahead_stop(ahead);
    }
}

static void a_failure_arrives_with_its_message_at_its_step(void) {
    for (int32_t num_ahead = 0; num_ahead < 5; num_ahead++) {
        Maker maker = {.next_step = 0, .fail_at = 3};
        PlanAhead* ahead;
        int32_t slot;
        CHECK_OK(plan_ahead_start(&ahead, make, &maker, 0, 10, num_ahead));
        for (int64_t step = 0; step < 3; step++) { CHECK_OK(plan_ahead_get(ahead, step, &slot)); }
        CHECK_FAILS(plan_ahead_get(ahead, 3, &slot), STATUS_INFEASIBLE, "step 3 does not fit");
        CHECK_FAILS(plan_ahead_get(ahead, 4, &slot), STATUS_INFEASIBLE, "step 3 does not fit");
        CHECK_FAILS(plan_ahead_wait_all(ahead), STATUS_INFEASIBLE, "step 3 does not fit");
        plan_ahead_stop(ahead);
        CHECK_EQ(maker.next_step, 4);  // nothing was tried after it
    }
}

static void stopping_early_ends_cleanly(void) {
    for (int i = 0; i < 50; i++) {
        Maker maker = {.next_step = 0, .fail_at = -1, .make_us = i};
        PlanAhead* ahead;
        CHECK_OK(plan_ahead_start(&ahead, make, &maker, 0, 1000, 1 + i % 4));
        int32_t slot;
        if (i % 2) { CHECK_OK(plan_ahead_get(ahead, 0, &slot)); }
        plan_ahead_stop(ahead);
        CHECK(atomic_load(&maker.num_made) <= 6);
    }
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(every_step_comes_once_and_stays_until_the_next);
    RUN(steps_are_asked_for_in_order);
    RUN(the_planner_runs_num_ahead_steps_ahead);
    RUN(waiting_is_measured);
    RUN(a_failure_arrives_with_its_message_at_its_step);
    RUN(stopping_early_ends_cleanly);
    return test_end();
}
