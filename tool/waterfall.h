/*
waterfall.h -- splits the time between a plan's bound and its makespan into parts that sum to it exactly.

Obstacles are removed from the plan one after the other; the decrease of the makespan is that obstacle's part.
Jobs keep their order on each stage unless a freer order is faster:
    makespan        as predicted
    communication   transfers and gradient reduction take no time
    memory          no limit: receives as early as data comes, and the adaptive order with the same
                    microbatches
    recompute       nothing is recomputed
    launch          no per-microbatch constants, no floors
    padding         true lengths
    order           jobs never wait but at the begin and end of the step (each stage: arrival + work + tail)
    ramp            only the work of the slowest stage of the slowest replica
    stages          work spread evenly over the stages of each replica
    replicas        and over the replicas
    efficiency      curves at the cheapest rate that a microbatch of this batch could have: the bound
Each level is at least the next, so no part is negative. A level below the bound counts as the bound, so
unavoidable costs (a head larger than a stage; constants, recomputation and layer splits that memory enforces)
are not charged. test_waterfall.c
*/
#pragma once

#include <stdio.h>
#include "../dynapipe_plugin/plan/cost_model.h"
#include "../dynapipe_plugin/plan/plan.h"
#include "../dynapipe_plugin/plan/problem.h"
#include "../dynapipe_plugin/plan/simulate.h"

// clang-format off
#define WATERFALL_LIST(X)                                                                       \
    X(WATERFALL_COMMUNICATION, "communication")     /* and gradient reduction */                \
    X(WATERFALL_MEMORY,        "memory")            /* waiting caused by the memory limit */       \
    X(WATERFALL_RECOMPUTE,     "recompute")                                                     \
    X(WATERFALL_LAUNCH,        "launch overhead")   /* per microbatch constants and floors */  \
    X(WATERFALL_PADDING,       "padding")                                                       \
    X(WATERFALL_ORDER,         "order")             /* the rest: waits inside the step */       \
    X(WATERFALL_RAMP,          "ramp")              /* filling and draining the pipeline */     \
    X(WATERFALL_STAGES,        "stage imbalance")                                               \
    X(WATERFALL_REPLICAS,      "replica imbalance")                                             \
    X(WATERFALL_EFFICIENCY,    "efficiency")        /* kernels slower on small microbatches */
// clang-format on

#define X(name, text) name,
typedef enum { WATERFALL_LIST(X) WATERFALL_COUNT } WaterfallPart;
#undef X

// --- a plan as a problem
// ------------------------------------------------------------------------------------

// What the plan solves: its placement, no memory limit.
Status plan_batch_make(const PlanProblem** out, const Plan* plan, const PlanRequest* request,
                       const CostModel* costs, const PlanSample* samples, Arena* arena);
// Replica r of the plan, which has passed plan_check, with the costs of that problem; the makespan is by its
// lists.
Status plan_replica_simulate(PipeTimeline* out, const Plan* plan, const PlanProblem* batch, int32_t r,
                             Arena* arena);

// --- where its time goes
// ------------------------------------------------------------------------------------

typedef struct {
    int64_t makespan_ns, bound_ns;
    int64_t jobs_ns;                   // makespan of the plan's jobs in their order, received as data comes
    int64_t part_ns[WATERFALL_COUNT];  // >= 0; their sum is makespan_ns - bound_ns
    // Without memory limit and recomputation, and what the busiest stage would then move to its host, and as
    // much back; 0: nothing.
    int64_t offloaded_ns;
    double offload_bytes_per_ns;
} Waterfall;

extern const char* const waterfall_names[WATERFALL_COUNT];

// For a plan made with this request, costs and batch. `arena` holds temporaries.
Status waterfall_make(Waterfall* out, const Plan* plan, const CostModel* costs, const PlanRequest* request,
                      const PlanSample* samples, Arena* arena);

// Prints a table: part, milliseconds, percent of the makespan, and a bar with one column per 2 % of the
// makespan. Each bar begins at the end of the one above. Parts under half a column may have no bar.
void waterfall_print(const Waterfall* waterfall, FILE* out);
