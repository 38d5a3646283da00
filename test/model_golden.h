/*
model_golden.h -- the small models of dev/golden_gpt2.py, golden_t5.py and golden_llama.py: batch, parameters,
and what PyTorch and Hugging Face compute.
*/
#pragma once

#include "../llmc/kinds.h"

enum { MODEL_NUM_GOLDENS = 7 };
static const float MODEL_GOLDEN_DROPOUT = 0.25f;

typedef struct {
    ModelConfig config;
    ModelBatch batch;  // points into `memory` and `rows`
    const float *losses, *logits, *grads;
    const float* dropped_losses;  // T5: with MODEL_GOLDEN_DROPOUT and the batch's keys
    void* memory;
    int32_t* rows;
} ModelGolden;

// Exits 1 with a message where the file is absent or not what it should be.
void model_golden_load(ModelGolden* out, int idx);
void model_golden_free(ModelGolden* golden);
// The parameters the golden values belong to, or this slice's part of them (any config, any slice).
void model_golden_params(Model* model);
