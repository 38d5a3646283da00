/*
gpt2_work.h -- a small GPT-2 and the micro-batches of a plan for it; and the plainest way to do them: one
slice, one window at a time, without padding. What every plan must agree with.

Tokens are drawn from a seed by sample and place, so whatever groups the samples, they stay the same. The last
rows of a sample are the supervised ones.
*/
#pragma once

#include "../dynapipe_plugin/plan/plan.h"
#include "../llmc/gpt2.h"
#include "../trainer/llmc_model.h"

enum { GPT2_WORK_LONGEST = 24 };  // tokens of a sample; a packed window holds up to four

extern const ModelConfig gpt2_work_config;

typedef struct {
    const Plan* plan;           // borrowed, as are the samples
    const PlanSample* samples;  // at most GPT2_WORK_LONGEST tokens each
    uint64_t seed;
    DynapipeBatch* batches;  // [M] as the plan has them
    float** losses;          // [M][rows]
    int64_t num_rows;        // of all
} Gpt2Work;

// All memory from `arena`.
Gpt2Work gpt2_work_make(const Plan* plan, const PlanSample* samples, uint64_t seed, Arena* arena);

// Adds to the gradients of `model`, the slice of all layers; losses[m], [rows], are those of micro-batch m.
void gpt2_work_run_plainly(Model* model, const Gpt2Work* work, float** losses, Arena* arena);

// Memory full of NaN, for the executor or a job. Free with free().
void* gpt2_work_memory(int64_t num_bytes);
