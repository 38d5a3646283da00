/*
gpt2_golden.h -- the small GPT-2 of dev/golden_gpt2.py: its batch, parameters, and what PyTorch says about it.
*/
#pragma once

#include "../llmc/kinds.h"

typedef struct {
    ModelConfig config;
    ModelBatch batch;  // points into `memory`
    const float *losses, *logits, *grads;
    int64_t num_params;
    void* memory;
} Gpt2Golden;

// Exits 1 with a message where the file is absent or not what it should be.
void gpt2_golden_load(Gpt2Golden* out);
void gpt2_golden_free(Gpt2Golden* golden);

// The parameters the golden values belong to, or this slice's part of them (any config, any slice).
void gpt2_golden_params(Model* model);

// Uniform in [-1, 1): the values that goldens' parameters are made of, by their index in the checkpoint.
float gpt2_golden_value(int64_t idx);
