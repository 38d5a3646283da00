// T5 as a kind of model: its tensors and the slices that have them, its header, its functions.
#include "t5.h"

#include <stdio.h>

static TensorInfo tensor_info(const ModelConfig* config, int tensor) {
    const int64_t C = config->channels, Vp = config->padded_vocab, F = config->ffn_channels;
    const int64_t NH = config->num_heads, I = NH * config->head_size, NB = config->num_buckets;
    const int64_t F2 = config->gated ? 2 * F : F, head_rows = config->tied_head ? 0 : Vp;
    const TensorPlace enc_bias_place = config->bias_per_layer ? TENSOR_PER_LAYER : TENSOR_WHOLE;
    const TensorPlace dec_bias_place = config->bias_per_layer ? TENSOR_PER_DEC_LAYER : TENSOR_WHOLE;
    switch ((T5Tensor)tensor) {
#define X(name, place, rows, cols, decay) \
    case T5_##name: return (TensorInfo){#name, place, rows, cols, decay};
        T5_TENSORS(X)
#undef X
        default: return (TensorInfo){0};
    }
}

static bool has_enc_layers(const Model* model) {
    return model_enc_begin(model) < model_enc_end(model);
}

static bool has_dec_layers(const Model* model) {
    return model_dec_begin(model) < model_dec_end(model);
}

static bool begins_decoder(const Model* model) {
    return has_dec_layers(model) && model_dec_begin(model) == 0;
}

static bool has_tensor(const Model* view, int tensor) {
    switch (tensor) {
        case T5_shared:
            return view->is_first || begins_decoder(view) || (view->has_head && view->config.tied_head);
        case T5_enc_bias: return has_enc_layers(view);
        case T5_enc_norm: return has_enc_layers(view) && model_enc_end(view) == view->config.num_layers;
        case T5_dec_bias: return has_dec_layers(view);
        case T5_dec_norm: return view->is_last;
        default: return view->has_head && !view->config.tied_head;  // T5_head
    }
}

static bool is_copy(const Model* view, int tensor) {
    switch (tensor) {
        case T5_shared: return !view->is_first;
        case T5_enc_bias: return model_enc_begin(view) > 0;
        case T5_dec_bias: return model_dec_begin(view) > 0;
        default: return false;
    }
}

static int head_tensor(const ModelConfig* config) {
    return config->tied_head ? T5_shared : T5_head;
}

static bool is_tied(const ModelConfig* config, int tensor) {
    return tensor == T5_shared ||
           (!config->bias_per_layer && (tensor == T5_enc_bias || tensor == T5_dec_bias));
}

// Words 2 to 7 are llm.c's.
static void to_header(int32_t* header, const ModelConfig* config) {
    model_to_header(header, config);
    header[8] = config->num_dec_layers;
    header[9] = config->head_size;
    header[10] = config->ffn_channels;
    header[11] = config->num_buckets;
    header[12] = config->max_distance;
    header[13] = config->gated;
    header[14] = config->tied_head;
    header[15] = config->bias_per_layer;
}

static void from_header(ModelConfig* out, const int32_t* header) {
    model_from_header(out, header);
    out->num_dec_layers = header[8];
    out->head_size = header[9];
    out->ffn_channels = header[10];
    out->num_buckets = header[11];
    out->max_distance = header[12];
    out->gated = header[13] != 0;
    out->tied_head = header[14] != 0;
    out->bias_per_layer = header[15] != 0;
}

static void describe(char* out, size_t out_chars, const ModelConfig* config) {
    snprintf(out, out_chars, "%d + %d layers, %d channels, %d heads of %d, %sfeed-forward of %d",
             config->num_layers, config->num_dec_layers, config->channels, config->num_heads,
             config->head_size, config->gated ? "gated " : "", config->ffn_channels);
}

const ModelKind t5_kind = {
    .name = "t5",
    .title = "T5",
    .usual = "t5:small",
    .has_decoder = true,
    .num_tensors = T5_NUM_TENSORS,
    .checkpoint_magic = 20191023,  // of the paper, arXiv 1910.10683
    .parse = t5_config_parse,
    .check = t5_config_check,
    .to_header = to_header,
    .from_header = from_header,
    .describe = describe,
    .tensor = tensor_info,
    .has_tensor = has_tensor,
    .is_copy = is_copy,
    .is_tied = is_tied,
    .head_tensor = head_tensor,
    .init_random = t5_init_random,
    .flops = t5_flops,
    .acts_bytes = t5_acts_bytes,
    .scratch_bytes = t5_scratch_bytes,
    .boundary_bytes = t5_boundary_bytes,
    .forward = t5_forward,
    .backward_inputs = t5_backward_inputs,
    .backward_weights = t5_backward_weights,
    .cache_bytes = t5_cache_bytes,
    .infer_bytes = t5_infer_bytes,
    .infer = t5_infer,
};
