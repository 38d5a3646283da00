// GPT-2 as a kind of model: its tensors in llm.c's order, its header, its functions.
#include "gpt2.h"

#include <stdio.h>

#include "head.h"

static TensorInfo tensor_info(const ModelConfig* config, int tensor) {
    const int64_t C = config->channels, Vp = config->padded_vocab, maxT = config->max_seq_len;
    switch ((Gpt2Tensor)tensor) {
#define X(name, per_layer, rows, cols, decay) \
    case GPT2_##name:                         \
        return (TensorInfo){#name, per_layer ? TENSOR_PER_LAYER : TENSOR_WHOLE, rows, cols, decay};
        GPT2_TENSORS(X)
#undef X
        default: return (TensorInfo){0};
    }
}

static bool has_tensor(const Model* view, int tensor) {
    switch (tensor) {
        case GPT2_wte: return view->is_first || view->has_head;
        case GPT2_wpe: return view->is_first;
        default: return view->is_last;  // the final norm
    }
}

static bool is_copy(const Model* view, int tensor) {
    return tensor == GPT2_wte && !view->is_first;
}

static int head_tensor(const ModelConfig* config) {
    (void)config;
    return GPT2_wte;
}

static bool is_tied(const ModelConfig* config, int tensor) {
    (void)config;
    return tensor == GPT2_wte;
}

static void describe(char* out, size_t out_chars, const ModelConfig* config) {
    snprintf(out, out_chars, "%d layers, %d channels, %d heads", config->num_layers, config->channels,
             config->num_heads);
}

static int64_t acts_bytes(const Model* model, const ModelBatch* batch, int flags) {
    if (model_is_share(model)) { return head_acts_bytes(model, batch, flags); }
    return gpt2_acts_bytes(model, batch->num_tokens, batch->num_rows, flags);
}

static int64_t scratch_bytes(const Model* model, const ModelBatch* batch) {
    if (model_is_share(model)) { return 0; }
    return gpt2_scratch_bytes(model, batch->num_tokens, batch->num_rows, batch->max_seq_tokens);
}

static int64_t boundary_bytes(const Model* model, const ModelBatch* batch, int is_behind) {
    const bool is_rows = is_behind ? model_feeds_head(model) : model_is_share(model);
    return is_rows ? head_rows_bytes(&model->config, batch->num_rows)
                   : gpt2_boundary_bytes(model, batch->num_tokens);
}

const ModelKind gpt2_kind = {
    .name = "gpt2",
    .title = "GPT-2",
    .usual = "d12",
    .num_tensors = GPT2_NUM_TENSORS,
    .checkpoint_magic = 20240326,
    .parse = gpt2_config_parse,
    .check = gpt2_config_check,
    .to_header = model_to_header,
    .from_header = model_from_header,
    .describe = describe,
    .tensor = tensor_info,
    .has_tensor = has_tensor,
    .is_copy = is_copy,
    .is_tied = is_tied,
    .head_tensor = head_tensor,
    .init_random = gpt2_init_random,
    .flops = gpt2_flops,
    .acts_bytes = acts_bytes,
    .scratch_bytes = scratch_bytes,
    .boundary_bytes = boundary_bytes,
    .forward = gpt2_forward,
    .backward_inputs = gpt2_backward_inputs,
    .backward_weights = gpt2_backward_weights,
    .cache_bytes = gpt2_cache_bytes,
    .infer_bytes = gpt2_infer_bytes,
    .infer = gpt2_infer,
};
