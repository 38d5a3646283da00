/*
random_plan.h -- random pipelines, cost models, batches and requests, the same for the same seed.

Shared by the tests of the planner and of the executor: any plan they lead to must hold every rule.
*/
#pragma once

#include "../dynapipe_plugin/base/rng.h"
#include "../dynapipe_plugin/plan/lists/plan.h"
#include "../dynapipe_plugin/plan/lists/rank_list.h"

typedef struct {
    bool equal;       // all micro-batches and stages alike
    bool transfers;   // links take time
    bool zero_times;  // some jobs take no time at all
    int32_t drops_percent;
} RandomPipe;

// Memory limits are INT64_MAX; lives in `arena`.
PipeProblem random_pipe(Rng* rng, int32_t P, int32_t M, const RandomPipe* about, Arena* arena);

// A shuffle of 0 .. M - 1.
int32_t* random_order(Rng* rng, int32_t M, Arena* arena);

// A plan from random times, made without cost model or search: any policy, split or joint backward, ragged,
// padded or packed micro-batches, replicas that may be empty, recomputation here and there, the head alone on
// the last stage.
typedef struct {
    int32_t P, R;
    int32_t num_layers;  // >= P
    int32_t num_samples;
    int32_t max_tokens;  // of one sample
    bool packed;         // packed micro-batches may occur
    bool recompute;      // full recomputation of some micro-batches on some stages
    // What the buffers of micro-batch m on stage s take, and the scratch it needs there. in_bytes of stage s
    // must equal out_bytes of stage s - 1. NULL: random.
    void (*bytes)(RankBytes* out, int64_t* scratch_bytes, const Plan* plan, int32_t m, int32_t s,
                  void* context);
    void* context;
} RandomPlan;

// Has passed plan_check. Returns the samples it is made for, [about->num_samples]; all in `arena`.
PlanSample* random_plan(Plan* out, Rng* rng, const RandomPlan* about, Arena* arena);
