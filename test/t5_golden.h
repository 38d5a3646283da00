/*
t5_golden.h -- the small T5s of dev/golden_t5.py: their batch, parameters, and what Hugging Face says about
them.
*/
#pragma once

#include "../llmc/kinds.h"

enum { T5_NUM_GOLDENS = 3 };
static const float T5_GOLDEN_DROPOUT = 0.25f;
extern const char* const t5_golden_names[T5_NUM_GOLDENS];

typedef struct {
    ModelConfig config;
    ModelBatch batch;  // points into `memory`; every decoder token is supervised
    const float *losses, *logits, *grads;
    const float* dropped_losses;  // with T5_GOLDEN_DROPOUT and the batch's keys
    int64_t num_params;
    void* memory;
    int32_t* rows;
} T5Golden;

// Exits 1 with a message where the file is absent or not what it should be.
void t5_golden_load(T5Golden* out, const char* name);
void t5_golden_free(T5Golden* golden);

// The parameters the golden values belong to, or this slice's part of them (any config, any slice).
void t5_golden_params(Model* model);
