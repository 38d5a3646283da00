#include "t5_golden.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpt2_golden.h"

const char* const t5_golden_names[T5_NUM_GOLDENS] = {"v10", "v11", "umt5"};

enum { MAGIC = 20191023, HEADER_INTS = 16 };

static void give_up(const char* path, const char* why) {
    fprintf(stderr,
            "%s: %s ---> run tests from the repository's root; python dev/golden_t5.py makes the file\n",
            path, why);
    exit(1);
}

static char* read_whole(const char* path, long* num_bytes) {
    FILE* file = fopen(path, "rb");
    if (file == NULL) { give_up(path, "cannot open"); }
    fseek(file, 0, SEEK_END);
    *num_bytes = ftell(file);
    rewind(file);
    char* bytes = malloc((size_t)*num_bytes);
    if (bytes == NULL || fread(bytes, 1, (size_t)*num_bytes, file) != (size_t)*num_bytes) {
        give_up(path, "cannot read");
    }
    fclose(file);
    return bytes;
}

static ModelConfig config_of(const int32_t* header) {
    return (ModelConfig){
        .kind = &t5_kind,
        .max_seq_len = 256,
        .vocab = header[1],
        .padded_vocab = (header[1] + 127) / 128 * 128,
        .channels = header[2],
        .num_heads = header[3],
        .head_size = header[4],
        .ffn_channels = header[5],
        .num_layers = header[6],
        .num_dec_layers = header[7],
        .gated = header[8] != 0,
        .tied_head = header[9] != 0,
        .bias_per_layer = header[10] != 0,
        .num_buckets = header[11],
        .max_distance = header[12],
    };
}

static const void* take(const char** cursor, int64_t num_values) {
    const char* begin = *cursor;
    *cursor += 4 * num_values;
    return begin;
}

static int longest(const int32_t* cu_seqlens, int num_seqs) {
    int most = 0;
    for (int i = 0; i < num_seqs; i++) {
        int num_tokens = cu_seqlens[i + 1] - cu_seqlens[i];
        if (num_tokens > most) { most = num_tokens; }
    }
    return most;
}

void t5_golden_load(T5Golden* out, const char* name) {
    char path[64];
    snprintf(path, sizeof path, "test/golden/t5_%s.bin", name);
    long num_bytes;
    char* bytes = read_whole(path, &num_bytes);
    const int32_t* header = (const int32_t*)bytes;
    if (num_bytes < 4 * HEADER_INTS || header[0] != MAGIC) { give_up(path, "wrong magic"); }
    *out = (T5Golden){.memory = bytes, .config = config_of(header)};
    ModelBatch* batch = &out->batch;
    *batch = (ModelBatch){.num_seqs = header[13], .num_tokens = header[14], .num_dec_tokens = header[15]};
    const char* cursor = bytes + 4 * HEADER_INTS;
    batch->cu_seqlens = take(&cursor, batch->num_seqs + 1);
    batch->tokens = take(&cursor, batch->num_tokens);
    batch->dec_cu_seqlens = take(&cursor, batch->num_seqs + 1);
    batch->dec_tokens = take(&cursor, batch->num_dec_tokens);
    batch->targets = take(&cursor, batch->num_dec_tokens);
    batch->token_keys = take(&cursor, batch->num_tokens);
    batch->dec_token_keys = take(&cursor, batch->num_dec_tokens);
    batch->num_rows = batch->num_dec_tokens;
    batch->max_seq_tokens = longest(batch->cu_seqlens, batch->num_seqs);
    batch->max_dec_seq_tokens = longest(batch->dec_cu_seqlens, batch->num_seqs);
    batch->loss_scale = 1.0f / (float)batch->num_rows;
    out->rows = malloc(sizeof *out->rows * (size_t)batch->num_rows);
    for (int i = 0; i < batch->num_rows; i++) { out->rows[i] = i; }
    batch->rows = out->rows;
    out->num_params = model_num_params(&out->config);
    out->losses = take(&cursor, batch->num_rows);
    out->dropped_losses = take(&cursor, batch->num_rows);
    out->logits = take(&cursor, (int64_t)batch->num_rows * out->config.vocab);
    out->grads = take(&cursor, out->num_params);
    if (cursor != bytes + num_bytes) { give_up(path, "wrong length"); }
}

void t5_golden_free(T5Golden* golden) {
    free(golden->memory);
    free(golden->rows);
}

void t5_golden_params(Model* model) {
    const int64_t C = model->config.channels, V = model->config.vocab;
    for (int i = 0; i < model->num_slices; i++) {
        const TensorSlice* slice = &model->slices[i];
        const char* name = t5_kind.tensor(&model->config, slice->tensor).name;
        const bool is_norm = strstr(name, "norm") != NULL, is_bias = strstr(name, "bias") != NULL;
        const bool has_padding = slice->tensor == T5_shared || slice->tensor == T5_head;
        const float scale = is_bias || slice->tensor == T5_shared ? 1.0f : 0.25f;
        for (int64_t j = 0; j < slice->num_values; j++) {
            float value = gpt2_golden_value(slice->file_offset + j) * scale + (is_norm ? 1.0f : 0.0f);
            model->params[slice->offset + j] = has_padding && slice->first + j >= V * C ? 0.0f : value;
        }
    }
}
