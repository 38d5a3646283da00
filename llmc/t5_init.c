// Hugging Face's distributions (T5PreTrainedModel._init_weights), in our own order of draws: the file's
// tensors stack by stack, layer by layer; its padding rows stay zero. Scores are not scaled, so q is drawn
// smaller instead.
#include <math.h>
#include <stdlib.h>

#include "model.h"
#include "llmc_error.h"
#include "mt19937.h"
#include "t5_layer.h"

enum { OUTSIDE = -1 };  // the layer of a tensor that belongs to none

typedef struct {
    Model* model;
    Mt19937 generator;
    float* values;  // room for the largest tensor: normals are drawn in blocks of one
} Draws;

// Rows [begin, begin + num_rows) of a tensor; `layer` counts in its stack.
static void draw(Draws* d, T5Tensor tensor, int layer, int64_t begin, int64_t num_rows, double std) {
    Model* model = d->model;
    const TensorSlice* slice = model_find(model, (int)tensor, layer);
    const int64_t C = t5_kind.tensor(&model->config, tensor).cols, num_values = num_rows * C;
    if (slice == NULL) {
        mt19937_normal_skip(&d->generator, (size_t)num_values);
        return;
    }
    mt19937_normal(&d->generator, d->values, (size_t)num_values, 0.0f, (float)std);
    model_set_values(model, slice, d->values, begin * C, num_values);
}

static void draw_layer(Draws* d, T5Side side, int layer) {
    const ModelConfig* config = &d->model->config;
    const T5StackTensors* tensors = &t5_stack_tensors[side];
    const int64_t C = config->channels, HS = config->head_size, I = t5_inner(d->model);
    const double std = pow((double)C, -0.5), q_std = pow((double)(C * HS), -0.5),
                 o_std = pow((double)I, -0.5);
    draw(d, tensors->qkv, layer, 0, I, q_std);
    draw(d, tensors->qkv, layer, I, I, std);
    draw(d, tensors->qkv, layer, 2 * I, I, std);
    draw(d, tensors->o, layer, 0, C, o_std);
    if (side == T5_DEC) {
        draw(d, T5_dec_xq, layer, 0, I, q_std);
        draw(d, T5_dec_xkv, layer, 0, I, std);
        draw(d, T5_dec_xkv, layer, I, I, std);
        draw(d, T5_dec_xo, layer, 0, C, o_std);
    }
    draw(d, tensors->wi, layer, 0, t5_ffn_rows(d->model), std);
    draw(d, tensors->wo, layer, 0, C, pow((double)config->ffn_channels, -0.5));
    if (config->bias_per_layer) { draw(d, tensors->bias, layer, 0, config->num_buckets, std); }
}

static void draw_stack(Draws* d, T5Side side) {
    const ModelConfig* config = &d->model->config;
    const int num_layers = side == T5_ENC ? config->num_layers : config->num_dec_layers;
    for (int l = 0; l < num_layers; l++) { draw_layer(d, side, l); }
    if (config->bias_per_layer) { return; }
    draw(d, t5_stack_tensors[side].bias, OUTSIDE, 0, config->num_buckets,
         pow((double)config->channels, -0.5));
}

static bool is_norm(int tensor) {
    switch (tensor) {
        case T5_enc_norm1:
        case T5_enc_norm2:
        case T5_enc_norm:
        case T5_dec_norm1:
        case T5_dec_norm2:
        case T5_dec_norm3:
        case T5_dec_norm: return true;
        default: return false;
    }
}

void t5_init_random(Model* model, uint32_t seed) {
    ops_zero(model->ops, model->params, (size_t)model->num_params * sizeof(floatX));
    int64_t largest = 0;
    for (int i = 0; i < model->num_slices; i++) {
        const TensorSlice* slice = &model->slices[i];
        const int64_t whole = model_tensor_values(&model->config, slice->tensor);
        if (whole > largest) { largest = whole; }
        if (!is_norm(slice->tensor)) { continue; }
        device_values_fill(model->ops, model->params + slice->offset, 1.0f, (size_t)slice->num_values);
    }
    Draws d = {.model = model,
               .values = llmc_alloc((size_t)largest * sizeof(float), "a tensor's random values")};
    mt19937_seed(&d.generator, seed);
    draw(&d, T5_shared, OUTSIDE, 0, model->config.vocab, 1.0);
    draw_stack(&d, T5_ENC);
    draw_stack(&d, T5_DEC);
    if (!model->config.tied_head) { draw(&d, T5_head, OUTSIDE, 0, model->config.vocab, 1.0); }
    free(d.values);
}
