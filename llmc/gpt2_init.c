// llm.c's order of draws: wte (V rows; the padding's stay zero), wpe, then per layer its four matrices. The
// two that write into the residual stream are scaled by 1 / sqrt(2 L) (Radford et al. 2019), L being the
// whole model's.
#include <math.h>
#include <stdlib.h>

#include "model.h"
#include "gpt2_acts.h"
#include "llmc_error.h"
#include "mt19937.h"

enum { OUTSIDE = -1 };  // the layer of a tensor that belongs to none

// `values` has room for the largest tensor: normals are drawn in blocks of one.
static void draw(Model* model, Mt19937* generator, float* values, Gpt2Tensor tensor, int layer,
                 int64_t num_values, float std) {
    const TensorSlice* slice = model_find(model, (int)tensor, layer);
    if (slice != NULL) {
        mt19937_normal(generator, values, (size_t)num_values, 0.0f, std);
        model_set_values(model, slice, values, 0, num_values);
    } else {
        mt19937_normal_skip(generator, (size_t)num_values);
    }
}

static void fill_ones(Model* model, int tensor) {
    for (int i = 0; i < model->num_slices; i++) {
        const TensorSlice* slice = &model->slices[i];
        if (slice->tensor != tensor) { continue; }
        device_values_fill(model->ops, model->params + slice->offset, 1.0f, (size_t)slice->num_values);
    }
}

static float* alloc_largest_tensor(const Model* model) {
    int64_t num_values = 0;
    for (int i = 0; i < model->num_slices; i++) {
        const int64_t whole = model_tensor_values(&model->config, model->slices[i].tensor);
        if (whole > num_values) { num_values = whole; }
    }
    return llmc_alloc((size_t)num_values * sizeof(float), "a tensor's random values");
}

void gpt2_init_random(Model* model, uint32_t seed) {
    const int64_t C = model->config.channels, V = model->config.vocab, maxT = model->config.max_seq_len;
    const int L = model->config.num_layers;
    ops_zero(model->ops, model->params, (size_t)model->num_params * sizeof(floatX));
    float* values = alloc_largest_tensor(model);
    Mt19937 generator;
    mt19937_seed(&generator, seed);
    const float std = 0.02f, residual_std = 0.02f * (1.0f / sqrtf(2.0f * (float)L));
    draw(model, &generator, values, GPT2_wte, OUTSIDE, V * C, std);
    draw(model, &generator, values, GPT2_wpe, OUTSIDE, maxT * C, std);
    for (int l = 0; l < L; l++) {
        draw(model, &generator, values, GPT2_qkvw, l, 3 * C * C, std);
        draw(model, &generator, values, GPT2_attprojw, l, C * C, residual_std);
        draw(model, &generator, values, GPT2_fcw, l, 4 * C * C, std);
        draw(model, &generator, values, GPT2_fcprojw, l, 4 * C * C, residual_std);
    }
    free(values);
    fill_ones(model, GPT2_ln1w);
    fill_ones(model, GPT2_ln2w);
    fill_ones(model, GPT2_lnfw);
}
