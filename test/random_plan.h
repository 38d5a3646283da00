/*
random_plan.h -- random pipelines, cost models, batches and requests, the same for the same seed.

Shared by the tests of the planner and of the executor: any plan they lead to must hold every rule.
*/
#pragma once

#include "../util/numbers.h"
#include "../dynapipe_plugin/plan/plan.h"
#include "../dynapipe_plugin/plan/instructions.h"

typedef struct {
    bool equal;       // all microbatches and stages alike
    bool transfers;   // links take time
    bool zero_times;  // some jobs take no time at all
    int32_t drops_percent;
    bool placed;  // chunks anywhere, every stage has one; the head whole or shared
    bool pieces;  // some microbatches have a piece of the sample of which the one before has one
} RandomPipe;

// Memory limits are INT64_MAX; lives in `arena`.
PipeProblem random_pipe(Rng* rng, int32_t P, int32_t M, const RandomPipe* about, Arena* arena);

// A limit for every stage: `tenths` / 10 of what the largest microbatch needs alone, at least.
void random_pipe_limit(PipeProblem* problem, Rng* rng, int32_t least_tenths, int32_t most_tenths);

// A shuffle of 0 .. M - 1; of microbatches, where pieces of a sample stay together.
int32_t* random_order(Rng* rng, int32_t M, Arena* arena);
int32_t* random_pipe_order(Rng* rng, const PipeProblem* problem, Arena* arena);

// A problem of that placement, which it borrows (NULL: linear); costs of shares among it.
PipeProblem random_placed_pipe(Rng* rng, int32_t P, int32_t M, const Placement* placement,
                               const RandomPipe* about, Arena* arena);

// Any placement of the layers on P stages: linear, interleaved, vee, or chunks anywhere, several in a row on
// one stage among them; the head whole, alone, or shared in uneven parts, some of nothing.
void random_placement(Placement* out, Rng* rng, int32_t P, int32_t num_layers);

// Jobs in any order that can run, backward split or joint by chance.
PipeSchedule random_jobs(Rng* rng, const PipeProblem* problem, Arena* arena);

// A plan from random times, made without cost model or search: any policy or order, split or joint backward,
// ragged, padded or packed microbatches, replicas that may be empty, recomputation here and there, the head
// alone on the last stage.
typedef struct {
    int32_t P, R;
    int32_t num_layers;  // >= P
    int32_t num_samples;
    int32_t max_tokens;  // of one sample
    bool packed;         // packed microbatches may occur
    bool recompute;      // full recomputation of some microbatches on some chunks
    // What the buffers of microbatch m of a row (a chunk; K + s: a share) take, and the scratch it needs
    // there. in_bytes of a chunk must equal out_bytes of the one before. NULL: random.
    void (*bytes)(RankBytes* out, int64_t* scratch_bytes, const Plan* plan, int32_t m, int32_t row,
                  void* context);
    void* context;
    bool placed;  // any placement; else chunk s on stage s and the head whole
    bool tight;   // ranks may have less memory than they would take: some receives are late
    bool pieces;  // some samples are cut
} RandomPlan;

// Has passed plan_check. Returns the samples it is made for, [about->num_samples]; all in `arena`.
PlanSample* random_plan(Plan* out, Rng* rng, const RandomPlan* about, Arena* arena);

// Whether the plan's text has this hash: any change of the form, of a policy or of the layout shows. The text
// is left in build/NAME.txt, and the new hash printed.
bool plan_text_is(const Plan* plan, const char* name, uint64_t hash);
