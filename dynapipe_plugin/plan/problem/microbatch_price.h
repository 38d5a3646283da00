/*
microbatch_price.h -- microbatch_cost prepared for one mode and one share of memory: for loops over all
intervals of a batch. The same numbers (test_microbatch_dp.c): stages that have the same parts are priced
once, and of those only the ones that can be the slowest or the fullest.
*/
#pragma once

#include "microbatch.h"

typedef enum { BOUNDARY_NONE, BOUNDARY_ENC, BOUNDARY_DEC } BoundaryKind;

// Stages alike in parts and neighbours; what the tightest of them has.
typedef struct {
    int32_t count[PIECE_COUNT];
    BoundaryKind in, out;
    int64_t alone_limit_bytes, held_limit_bytes;
} PriceMemory;

typedef struct {
    const PlanProblem* problem;  // borrowed
    RecomputeMode mode;
    MicrobatchShare share;
    bool is_linear;                              // else every shape is priced anew
    bool is_job;                                 // the mode drops activations
    int32_t num_slow, num_memory;                // of these
    int32_t slow[PLAN_MAX_STAGES][PIECE_COUNT];  // parts of stages that no other stage dominates
    int32_t stage_of[PLAN_MAX_STAGES];           // of `slow`: whose ranks they run on
    PriceMemory memory[PLAN_MAX_STAGES];
} MicrobatchPricer;

void microbatch_pricer_make(MicrobatchPricer* out, const PlanProblem* problem, RecomputeMode mode,
                            MicrobatchShare share);
MicrobatchCost microbatch_price(const MicrobatchPricer* pricer, const MbShape* shape);

// A line below the work of the slowest stage: work >= constant + sum of slope * feature, up to the rounding
// of its jobs (less than 1 ns each). Where features add up, so does the line.
void microbatch_price_line(double* constant, double slope[FEATURE_COUNT], const MicrobatchPricer* pricer);
