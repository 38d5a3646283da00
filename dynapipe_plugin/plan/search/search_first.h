/*
search_first.h -- first answers of the search, by rule: placement, how many micro-batches, how they taper,
what is recomputed, how many are in flight.

    search_places   placements that the request allows
    search_deal     who gets which samples
    search_try      candidates, filled and simulated on a few replicas
    search_tune     the best of the most promising placements, tuned, and a little of the local search

The best of these is the answer, on every replica.
*/
#pragma once

#include "search_fill.h"
#include "search_state.h"

typedef struct {
    const PlanProblem* problem;
    int32_t R;
    int64_t budget;          // jobs that simulations may still walk
    int64_t good_enough_ns;  // the search ends there: no plan is faster
    int64_t fastest_ns;      // makespan before memory was saved; 0: it was not
    bool split_backward;
    SearchWeights weights;
    double* slow;  // [R] of the plan: how much longer a replica takes for the same samples; NULL: all alike
    int32_t* replica;        // [R] of the plan, by state: those that settings are tried on first
    SearchState* state;      // [R] the best so far; N = 0: a replica without samples
    Placement placement;     // in: where to begin
    Arena lists;             // states and weights
    Arena tries, simulator;  // of one candidate; of one simulation
} Search;

// Fills weights, state and stages; takes what it spends from the budget. Makespans are INT64_MAX where
// nothing fits. Where ranks differ: in rounds, by the speed that the replicas turned out to have
// (search_replicas.c).
Status search_first(Search* search);
Status search_first_round(Search* search);
