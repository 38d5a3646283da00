// llm.c's order of draws: wte (V rows; the padding's stay zero), wpe, then per layer its four matrices. The
// two that write into the residual stream are scaled by 1 / sqrt(2 L) (Radford et al. 2019), L being the
// whole model's.
#include <math.h>

#include "gpt2_acts.h"
#include "mt19937.h"

enum { OUTSIDE = -1 };  // the layer of a tensor that belongs to none

static void draw(Gpt2* model, Mt19937* generator, Gpt2Tensor tensor, int layer, int64_t num_values,
                 float std) {
    int local_layer = layer == OUTSIDE ? 0 : layer - model->layer_begin;
    bool here = model->slice_idx[tensor] >= 0 && local_layer >= 0 && layer < model->layer_end;
    if (here) {
        mt19937_normal(generator, gpt2_tensor(model, model->params, tensor, local_layer), (size_t)num_values,
                       0.0f, std);
    } else {
        mt19937_normal_skip(generator, (size_t)num_values);
    }
}

static void fill(Gpt2* model, Gpt2Tensor tensor, float value) {
    for (int i = 0; i < model->num_slices; i++) {
        const Gpt2TensorSlice* slice = &model->slices[i];
        if (slice->tensor != tensor) { continue; }
        for (int64_t j = 0; j < slice->num_values; j++) { model->params[slice->offset + j] = value; }
    }
}

void gpt2_init_random(Gpt2* model, uint32_t seed) {
    const int64_t C = model->config.channels, V = model->config.vocab, maxT = model->config.max_seq_len;
    const int L = model->config.num_layers;
    for (int64_t i = 0; i < model->num_params; i++) { model->params[i] = 0.0f; }
    Mt19937 generator;
    mt19937_seed(&generator, seed);
    const float std = 0.02f, residual_std = 0.02f * (1.0f / sqrtf(2.0f * (float)L));
    draw(model, &generator, GPT2_wte, OUTSIDE, V * C, std);
    draw(model, &generator, GPT2_wpe, OUTSIDE, maxT * C, std);
    for (int l = 0; l < L; l++) {
        draw(model, &generator, GPT2_qkvw, l, 3 * C * C, std);
        draw(model, &generator, GPT2_attprojw, l, C * C, residual_std);
        draw(model, &generator, GPT2_fcw, l, 4 * C * C, std);
        draw(model, &generator, GPT2_fcprojw, l, 4 * C * C, residual_std);
    }
    fill(model, GPT2_ln1w, 1.0f);
    fill(model, GPT2_ln2w, 1.0f);
    fill(model, GPT2_lnfw, 1.0f);
}
