// The slice's flat array has the tensors in checkpoint order, each with this slice's layers; for the whole
// model it is the body of a checkpoint.
#include "model.h"

#include <assert.h>
#include <stdlib.h>

#include "llmc_error.h"

bool model_parse(ModelConfig* out, const ModelKind* kind, const char* descriptor, int vocab, int max_seq_len,
                 char* error) {
    if (!kind->parse(out, descriptor, vocab, max_seq_len, error)) { return false; }
    out->kind = kind;
    return true;
}

// Layers of the whole model that have such a tensor; 1 for one outside the layers.
static int num_copies(const ModelConfig* config, const TensorInfo* info) {
    return info->rows == 0                       ? 0
           : info->place == TENSOR_PER_LAYER     ? config->num_layers
           : info->place == TENSOR_PER_DEC_LAYER ? config->num_dec_layers
                                                 : 1;
}

// Layers of its stack that this slice has of it, half-open; of one outside the layers [0, 1) or nothing.
static void local_range(const Model* model, int tensor, const TensorInfo* info, int* begin, int* end) {
    switch (info->place) {
        case TENSOR_PER_LAYER:
            *begin = model_enc_begin(model);
            *end = model_enc_end(model);
            break;
        case TENSOR_PER_DEC_LAYER:
            *begin = model_dec_begin(model);
            *end = model_dec_end(model);
            break;
        default: *begin = 0; *end = model->config.kind->has_tensor(model, tensor) ? 1 : 0;
    }
    if (info->rows == 0) { *end = *begin; }
}

static void make_slices(Model* model) {
    const ModelKind* kind = model->config.kind;
    int num_layers = model->layer_end - model->layer_begin;
    assert(kind->num_tensors <= MODEL_MAX_TENSORS);
    model->slices =
        llmc_alloc(sizeof *model->slices * (size_t)(kind->num_tensors * (num_layers + 1)), "tensor table");
    int64_t file_offset = 0;
    for (int t = 0; t < kind->num_tensors; t++) {
        TensorInfo info = kind->tensor(&model->config, t);
        int64_t num_values = info.rows * info.cols;
        int begin, end;
        local_range(model, t, &info, &begin, &end);
        model->slice_idx[t] = begin < end ? model->num_slices : -1;
        bool is_whole = info.place == TENSOR_WHOLE;
        for (int layer = begin; layer < end; layer++) {
            model->slices[model->num_slices++] = (TensorSlice){
                .tensor = t,
                .layer = is_whole ? -1 : layer,
                .offset = model->num_params,
                .file_offset = file_offset + layer * num_values,
                .num_values = num_values,
                .decay = info.decay,
                .tied_copy = is_whole && kind->is_copy(model, t),
                .tied = is_whole && kind->is_tied(&model->config, t),
            };
            model->num_params += num_values;
        }
        file_offset += num_copies(&model->config, &info) * num_values;
    }
}

static void init_slice(Model* model, const ModelConfig* config, int layer_begin, int layer_end, bool is_last,
                       OpsContext* ops) {
    assert(0 <= layer_begin && layer_begin <= layer_end && layer_end <= model_num_layers(config));
    assert(is_last ? layer_end == model_num_layers(config) : layer_begin < layer_end);
    *model = (Model){
        .config = *config,
        .layer_begin = layer_begin,
        .layer_end = layer_end,
        .is_first = layer_begin == 0,
        .is_last = is_last,
        .ops = ops,
    };
    make_slices(model);
}

void model_init_raw(Model* model, const ModelConfig* config, int layer_begin, int layer_end, bool is_last,
                    OpsContext* ops) {
    init_slice(model, config, layer_begin, layer_end, is_last, ops);
    model->params = ops_alloc_raw(ops, (size_t)model->num_params * sizeof(floatX), "parameters");
    model->grads = ops_alloc_raw(ops, (size_t)model->num_params * sizeof(float), "gradients");
}

void model_init(Model* model, const ModelConfig* config, int layer_begin, int layer_end, bool is_last,
                OpsContext* ops) {
    init_slice(model, config, layer_begin, layer_end, is_last, ops);
    model->params = ops_alloc(ops, (size_t)model->num_params * sizeof(floatX), "parameters");
}

void model_alloc_grads(Model* model) {
    if (model->grads == NULL) {
        model->grads = ops_alloc(model->ops, (size_t)model->num_params * sizeof(float), "gradients");
    }
}

void model_free_grads(Model* model) {
    ops_release(model->ops, model->grads);
    model->grads = NULL;
}

void model_zero_grads(Model* model) {
    ops_zero(model->ops, model->grads, (size_t)model->num_params * sizeof(float));
}

void model_free(Model* model) {
    if (model == NULL || model->ops == NULL) { return; }
    ops_release(model->ops, model->params);
    ops_release(model->ops, model->grads);
    free(model->slices);
    *model = (Model){0};
}

int model_num_layers(const ModelConfig* config) {
    return config->num_layers + config->num_dec_layers;
}

int64_t model_num_params(const ModelConfig* config) {
    int64_t num_params = 0;
    for (int t = 0; t < config->kind->num_tensors; t++) {
        TensorInfo info = config->kind->tensor(config, t);
        num_params += num_copies(config, &info) * info.rows * info.cols;
    }
    return num_params;
}

int model_num_tensors(const ModelConfig* config) {
    int num_tensors = 0;
    for (int t = 0; t < config->kind->num_tensors; t++) {
        TensorInfo info = config->kind->tensor(config, t);
        num_tensors += num_copies(config, &info);
    }
    return num_tensors;
}

int model_tensor_number(const ModelConfig* config, const TensorSlice* slice) {
    int number = slice->layer > 0 ? slice->layer : 0;
    for (int t = 0; t < slice->tensor; t++) {
        TensorInfo info = config->kind->tensor(config, t);
        number += num_copies(config, &info);
    }
    return number;
}

void model_to_header(int32_t* header, const ModelConfig* config) {
    header[2] = config->max_seq_len;
    header[3] = config->vocab;
    header[4] = config->num_layers;
    header[5] = config->num_heads;
    header[6] = config->channels;
    header[7] = config->padded_vocab;
}

void model_from_header(ModelConfig* out, const int32_t* header) {
    *out = (ModelConfig){.max_seq_len = header[2],
                         .vocab = header[3],
                         .num_layers = header[4],
                         .num_heads = header[5],
                         .channels = header[6],
                         .padded_vocab = header[7]};
}

static const char MODEL_REMEDY[] = "give this checkpoint to -e, or leave -e out";

bool model_config_equal(const ModelConfig* theirs, const ModelConfig* ours, ModelDifference* difference) {
    const ModelDifference fields[] = {
        {"vocabulary", "use data made with this checkpoint's tokenizer", theirs->vocab, ours->vocab},
        {"padded vocabulary", "use another checkpoint", theirs->padded_vocab, ours->padded_vocab},
        {"layers", MODEL_REMEDY, theirs->num_layers, ours->num_layers},
        {"channels", MODEL_REMEDY, theirs->channels, ours->channels},
        {"heads", MODEL_REMEDY, theirs->num_heads, ours->num_heads},
        {"decoder layers", MODEL_REMEDY, theirs->num_dec_layers, ours->num_dec_layers},
        {"head size", MODEL_REMEDY, theirs->head_size, ours->head_size},
        {"feed-forward channels", MODEL_REMEDY, theirs->ffn_channels, ours->ffn_channels},
        {"relative position buckets", MODEL_REMEDY, theirs->num_buckets, ours->num_buckets},
        {"largest relative distance", MODEL_REMEDY, theirs->max_distance, ours->max_distance},
        {"gated feed-forward (0 or 1)", MODEL_REMEDY, theirs->gated, ours->gated},
        {"tied head (0 or 1)", MODEL_REMEDY, theirs->tied_head, ours->tied_head},
        {"bias table per layer (0 or 1)", MODEL_REMEDY, theirs->bias_per_layer, ours->bias_per_layer},
        // positions are parameters of some models; others have no such limit
        {"longest sequence", "start with the same -t", theirs->max_seq_len, ours->max_seq_len},
    };
    int num_fields = (int)(sizeof fields / sizeof *fields) - (ours->kind->has_decoder ? 1 : 0);
    for (int i = 0; i < num_fields; i++) {
        if (fields[i].theirs != fields[i].ours) {
            *difference = fields[i];
            return false;
        }
    }
    return true;
}
