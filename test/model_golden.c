#include "model_golden.h"

#include <stdio.h>
#include <stdlib.h>

static const char* const paths[MODEL_NUM_GOLDENS] = {
    "test/golden/gpt2_small.bin", "test/golden/t5_v10.bin",    "test/golden/t5_v11.bin",
    "test/golden/t5_umt5.bin",    "test/golden/llama_own.bin", "test/golden/llama_tied.bin",
    "test/golden/gpt2_like.bin"};
enum { GPT2_MAGIC = 20240601, T5_MAGIC = 20191023, LLAMA_MAGIC = 20230227, HEADER_INTS = 16 };

static void give_up(const char* path, const char* why) {
    fprintf(stderr,
            "%s: %s ---> run tests from the repository's root; python dev/golden_*.py makes the file\n", path,
            why);
    exit(1);
}

static char* read_whole(const char* path, long* num_bytes) {
    FILE* file = fopen(path, "rb");
    if (file == NULL) { give_up(path, "cannot open"); }
    fseek(file, 0, SEEK_END);
    *num_bytes = ftell(file);
    rewind(file);
    char* bytes = malloc((size_t)*num_bytes);
    if (fread(bytes, 1, (size_t)*num_bytes, file) != (size_t)*num_bytes) { give_up(path, "cannot read"); }
    fclose(file);
    return bytes;
}

static const void* take(const char** cursor, int64_t num_values) {
    const char* begin = *cursor;
    *cursor += 4 * num_values;
    return begin;
}

static int longest(const int32_t* cu_seqlens, int num_seqs) {
    int most = 0;
    for (int i = 0; i < num_seqs; i++) {
        const int num_tokens = cu_seqlens[i + 1] - cu_seqlens[i];
        most = num_tokens > most ? num_tokens : most;
    }
    return most;
}

// counts: sequences, tokens, rows.
static void read_one_stack(ModelGolden* out, const int32_t* counts, const char** cursor) {
    ModelBatch* batch = &out->batch;
    *batch = (ModelBatch){.num_seqs = counts[0], .num_tokens = counts[1], .num_rows = counts[2]};
    batch->cu_seqlens = take(cursor, batch->num_seqs + 1);
    batch->tokens = take(cursor, batch->num_tokens);
    batch->positions = take(cursor, batch->num_tokens);
    batch->rows = take(cursor, batch->num_rows);
    batch->targets = take(cursor, batch->num_rows);
    out->losses = take(cursor, batch->num_rows);
}

static void read_gpt2(ModelGolden* out, const int32_t* h, const char** cursor) {
    out->config = (ModelConfig){.kind = &gpt2_kind, .max_seq_len = h[1], .vocab = h[2], .num_layers = h[3]};
    out->config.num_heads = h[4];
    out->config.channels = h[5];
    out->config.padded_vocab = h[6];
    out->config.ffn_channels = h[10];
    out->config.norm_eps = h[11];
    out->config.exact_gelu = h[12];
    out->config.tied_head = h[13];
    read_one_stack(out, h + 7, cursor);
}

static void read_llama(ModelGolden* out, const int32_t* h, const char** cursor) {
    out->config = (ModelConfig){.kind = &llama_kind,
                                .max_seq_len = 64,
                                .vocab = h[1],
                                .padded_vocab = (h[1] + 127) / 128 * 128,
                                .channels = h[2],
                                .num_heads = h[3],
                                .head_size = h[4],
                                .ffn_channels = h[5],
                                .num_layers = h[6],
                                .num_kv_heads = h[7],
                                .tied_head = h[8],
                                .qkv_bias = h[9],
                                .rope_theta = h[10],
                                .norm_eps = h[11],
                                .gated = 1};
    read_one_stack(out, h + 12, cursor);
}

// Every decoder token is supervised.
static void read_t5(ModelGolden* out, const int32_t* h, const char** cursor) {
    ModelBatch* batch = &out->batch;
    int32_t header[32] = {[2] = 256, h[1],  h[6],       h[3],  h[2],  (h[1] + 127) / 128 * 128,
                          h[7],      h[4],  h[5],       h[11], h[12], h[8],
                          h[9],      h[10], [18] = 1000};
    model_from_header(&out->config, &t5_kind, header);
    *batch = (ModelBatch){.num_seqs = h[13], .num_tokens = h[14], .num_rows = h[15]};
    batch->num_dec_tokens = batch->num_rows;
    batch->cu_seqlens = take(cursor, batch->num_seqs + 1);
    batch->tokens = take(cursor, batch->num_tokens);
    batch->dec_cu_seqlens = take(cursor, batch->num_seqs + 1);
    batch->dec_tokens = take(cursor, batch->num_dec_tokens);
    batch->targets = take(cursor, batch->num_dec_tokens);
    batch->token_keys = take(cursor, batch->num_tokens);
    batch->dec_token_keys = take(cursor, batch->num_dec_tokens);
    batch->max_dec_seq_tokens = longest(batch->dec_cu_seqlens, batch->num_seqs);
    batch->rows = out->rows = malloc(sizeof *out->rows * (size_t)batch->num_rows);
    for (int i = 0; i < batch->num_rows; i++) { out->rows[i] = i; }
    out->losses = take(cursor, batch->num_rows);
    out->dropped_losses = take(cursor, batch->num_rows);
}

void model_golden_load(ModelGolden* out, int idx) {
    long num_bytes;
    char* bytes = read_whole(paths[idx], &num_bytes);
    const int32_t* header = (const int32_t*)bytes;
    const char* cursor = bytes + 4 * HEADER_INTS;
    if (num_bytes < 4 * HEADER_INTS ||
        (header[0] != GPT2_MAGIC && header[0] != T5_MAGIC && header[0] != LLAMA_MAGIC)) {
        give_up(paths[idx], "wrong magic");
    }
    *out = (ModelGolden){.memory = bytes};
    (header[0] == GPT2_MAGIC ? read_gpt2
     : header[0] == T5_MAGIC ? read_t5
                             : read_llama)(out, header, &cursor);
    out->batch.max_seq_tokens = longest(out->batch.cu_seqlens, out->batch.num_seqs);
    out->batch.loss_scale = 1.0f / (float)out->batch.num_rows;
    out->logits = take(&cursor, (int64_t)out->batch.num_rows * out->config.vocab);
    out->grads = take(&cursor, model_num_params(&out->config));
    if (cursor != bytes + num_bytes) { give_up(paths[idx], "wrong length"); }
}

void model_golden_free(ModelGolden* golden) {
    free(golden->memory);
    free(golden->rows);
}

// Uniform in [-1, 1), by the index in the checkpoint: splitmix64's mixer, as in dev/golden_gpt2.py.
static float value_at(int64_t idx) {
    uint64_t x = ((uint64_t)idx + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    return (float)((double)(x >> 40) * 0x1p-23 - 1.0);
}

void model_golden_params(Model* model) {
    const ModelConfig* config = &model->config;
    const bool is_t5 = config->kind == &t5_kind;
    for (int i = 0; i < model->num_slices; i++) {
        const TensorSlice* slice = &model->slices[i];
        const char* name = config->kind->tensor(config, slice->tensor).name;
        const bool is_norm =
            strstr(name, "norm") != NULL || (strncmp(name, "ln", 2) == 0 && strchr(name, 'w') != NULL);
        const bool is_wide = is_t5 && (strstr(name, "bias") != NULL || slice->tensor == T5_shared);
        const bool has_padding =
            slice->tensor == MODEL_EMBEDDING || slice->tensor == model_head_tensor(config);
        const int64_t end = has_padding ? (int64_t)config->vocab * config->channels : INT64_MAX;
        for (int64_t j = 0; j < slice->num_values; j++) {
            const float value =
                value_at(slice->file_offset + j) * (is_wide ? 1.0f : 0.25f) + (is_norm ? 1.0f : 0.0f);
            model->params[slice->offset + j] = slice->first + j < end ? value : 0.0f;
        }
    }
}
