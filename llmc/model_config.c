// model_config.c -- functions of a model's config: counts, headers, checks, FLOPs.
#include <stdio.h>

#include "llmc_error.h"
#include "model.h"
#include "t5_bucket.h"

bool model_parse(ModelConfig* out, const ModelKind* kind, const char* descriptor, int vocab,
                 int max_seq_len) {
    return kind->parse(out, descriptor, vocab, max_seq_len);
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
    const int32_t common[] = {config->max_seq_len, config->vocab,    config->num_layers,
                              config->num_heads,   config->channels, config->padded_vocab};
    const int32_t decoder[] = {config->num_dec_layers, config->head_size,     config->ffn_channels,
                               config->num_buckets,    config->max_distance,  config->gated,
                               config->tied_head,      config->bias_per_layer};
    memcpy(&header[2], common, sizeof common);
    if (config->kind->has_decoder) { memcpy(&header[8], decoder, sizeof decoder); }
}

void model_from_header(ModelConfig* out, const ModelKind* kind, const int32_t* header) {
    *out = (ModelConfig){.max_seq_len = header[2],
                         .vocab = header[3],
                         .num_layers = header[4],
                         .num_heads = header[5],
                         .channels = header[6],
                         .padded_vocab = header[7],
                         .kind = kind};
    if (!kind->has_decoder) { return; }
    out->num_dec_layers = header[8];
    out->head_size = header[9];
    out->ffn_channels = header[10];
    out->num_buckets = header[11];
    out->max_distance = header[12];
    out->gated = header[13] != 0;
    out->tied_head = header[14] != 0;
    out->bias_per_layer = header[15] != 0;
}

void model_describe(char* out, size_t out_chars, const ModelConfig* config) {
    if (!config->kind->has_decoder) {
        snprintf(out, out_chars, "%d layers, %d channels, %d heads", config->num_layers, config->channels,
                 config->num_heads);
        return;
    }
    snprintf(out, out_chars, "%d + %d layers, %d channels, %d heads of %d, %sfeed-forward of %d",
             config->num_layers, config->num_dec_layers, config->channels, config->num_heads,
             config->head_size, config->gated ? "gated " : "", config->ffn_channels);
}

bool model_check(const ModelConfig* config, const char* what) {
    enum { MAX_HEAD_SIZE = 256, OF_BOTH = 7 };
    const bool has_decoder = config->kind->has_decoder;
    const struct {
        const char* name;
        int value, min, max;
    } fields[] = {
        {"the longest sequence", config->max_seq_len, 1, OPS_MAX_IDS},
        {"the vocabulary", config->vocab, has_decoder ? 2 : 1, OPS_MAX_IDS},  // pad and end
        {has_decoder ? "encoder layers" : "layers", config->num_layers, 1, 1 << 12},
        {"decoder layers", config->num_dec_layers, has_decoder ? 1 : 0, has_decoder ? 1 << 12 : 0},
        {"heads", config->num_heads, 1, 1 << 12},
        {"channels", config->channels, 1, 1 << 16},
        {"the padded vocabulary", config->padded_vocab, 1, OPS_MAX_IDS},
        {"the head size", config->head_size, 1, MAX_HEAD_SIZE},
        {"feed-forward channels", config->ffn_channels, 1, 1 << 18},
        {"position buckets", config->num_buckets, 4, T5_MAX_BUCKETS},
        {"the buckets' distance", config->max_distance, config->num_buckets / 2 + 1, 1 << 24},
    };
    const int num_fields = has_decoder ? (int)(sizeof fields / sizeof *fields) : OF_BOTH;
    for (int i = 0; i < num_fields; i++) {
        if (fields[i].value >= fields[i].min && fields[i].value <= fields[i].max) { continue; }
        return llmc_fail("%s: %s %d ---> must be %d to %d", what, fields[i].name, fields[i].value,
                         fields[i].min, fields[i].max);
    }
    if (config->num_buckets % 2 != 0) {
        return llmc_fail("%s: position buckets %d ---> must be even, half for each direction", what,
                         config->num_buckets);
    }
    if (config->padded_vocab < config->vocab) {
        return llmc_fail("%s: padded vocabulary %d is less than the vocabulary %d ---> use another file",
                         what, config->padded_vocab, config->vocab);
    }
    return config->head_size > 0 || config->channels % config->num_heads == 0 ||
           llmc_fail("%s: %d channels cannot be shared by %d heads ---> make channels a multiple of heads",
                     what, config->channels, config->num_heads);
}

double model_flops(const ModelConfig* config, const ModelWork* work) {
    const double C = config->channels, I = (double)config->num_heads * model_head_size(config);
    const double ffn = (config->gated ? 3 : 2) * C * model_ffn_channels(config);  // weights
    const double pairs = config->kind->stacks[0].is_causal ? 2 : 4;
    const double layer = 2 * (4 * C * I + ffn) * (double)work->tokens + pairs * I * (double)work->squares;
    const double dec_layer = 2 * (6 * C * I + ffn) * (double)work->dec_tokens +
                             4 * C * I * (double)work->tokens +  // keys and values of the encoder's output
                             2 * I * (double)work->dec_squares + 4 * I * (double)work->cross_products;
    const double head = 2 * C * config->vocab * (double)work->rows;
    return 3 * (config->num_layers * layer + config->num_dec_layers * dec_layer + head);
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
