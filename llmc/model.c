// What is asked of any model: memory, counts, headers. model_part.c: what a rank has of one.
#include "model.h"

#include <stdlib.h>

#include "llmc_error.h"

bool model_parse(ModelConfig* out, const ModelKind* kind, const char* descriptor, int vocab, int max_seq_len,
                 char* error) {
    if (!kind->parse(out, descriptor, vocab, max_seq_len, error)) { return false; }
    out->kind = kind;
    return true;
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
        num_params += model_num_copies(config, &info) * info.rows * info.cols;
    }
    return num_params;
}

int64_t model_tensor_values(const ModelConfig* config, int tensor) {
    const TensorInfo info = config->kind->tensor(config, tensor);
    return info.rows * info.cols;
}

int model_num_copies(const ModelConfig* config, const TensorInfo* info) {
    return info->rows == 0                       ? 0
           : info->place == TENSOR_PER_LAYER     ? config->num_layers
           : info->place == TENSOR_PER_DEC_LAYER ? config->num_dec_layers
                                                 : 1;
}

int model_num_tensors(const ModelConfig* config) {
    int num_tensors = 0;
    for (int t = 0; t < config->kind->num_tensors; t++) {
        TensorInfo info = config->kind->tensor(config, t);
        num_tensors += model_num_copies(config, &info);
    }
    return num_tensors;
}

int model_tensor_number(const ModelConfig* config, const TensorSlice* slice) {
    int number = slice->layer > 0 ? slice->layer : 0;
    for (int t = 0; t < slice->tensor; t++) {
        TensorInfo info = config->kind->tensor(config, t);
        number += model_num_copies(config, &info);
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
