/*
plan_ahead.h -- makes the next steps' plans in a background thread while the current step runs.

    PlanAhead* ahead;
    TRY(plan_ahead_start(&ahead, make, ctx, first_step, end_step, num_ahead));
    for (int64_t step = first_step; step < end_step; step++) {
        int32_t slot;
        TRY(plan_ahead_get(ahead, step, &slot));   // waits if the plan is not there yet
        ... run the plan in slot; it stays as it is until the next get ...
    }
    plan_ahead_stop(ahead);

The caller owns num_ahead + 1 slots (an arena, a plan, collated batches, each); make(ctx, step, slot) fills
one. It is called for first_step, first_step + 1, ... in order, always by the same one thread, and never for
a slot that the step in progress uses; so what only `make` touches needs no lock. It must not use MPI.

num_ahead 0 plans inside get(), without a thread: what planning costs when it is not hidden.
*/
#pragma once

#include <stdint.h>

#include "../../util/status.h"

typedef struct PlanAhead PlanAhead;

// Returns a Status and, where it fails, leaves a message with FAIL(); both reach the caller of get().
typedef Status (*PlanAheadMake)(void* ctx, int64_t step, int32_t slot);

typedef struct {
    int64_t make_ns;      // wall time of making that step's plan
    int64_t make_cpu_ns;  // the same in time on a core
    int64_t wait_ns;      // how long get() stood still for it
} PlanAheadStats;

// Steps [first_step, end_step). num_ahead >= 0.
Status plan_ahead_start(PlanAhead** out, PlanAheadMake make, void* ctx, int64_t first_step, int64_t end_step,
                        int32_t num_ahead);

// The slot that holds `step`, which is first_step at first and then one more each time (else
// STATUS_OUT_OF_RANGE). Gives the slot of the step before back to the planner. A failed make() returns its
// status and message here, and for every later step.
Status plan_ahead_get(PlanAhead* ahead, int64_t step, int32_t* slot);

// Until every step that has a slot is made (with num_ahead >= the number of steps: all). For measurements in
// which planning must cost nothing. A failed make() is reported here and by the get() of its step.
Status plan_ahead_wait_all(PlanAhead* ahead);

// Of the step that get() handed out last.
PlanAheadStats plan_ahead_stats(const PlanAhead* ahead);

// Waits for a make() in progress, then ends the thread. NULL is fine.
void plan_ahead_stop(PlanAhead* ahead);
