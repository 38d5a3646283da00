#include "gpt2_golden.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char path[] = "test/golden/gpt2_small.bin";
enum { MAGIC = 20240601, HEADER_INTS = 16 };

static void give_up(const char* why) {
    fprintf(stderr,
            "%s: %s ---> run tests from the repository's root; python dev/golden_gpt2.py makes the file\n",
            path, why);
    exit(1);
}

static char* read_whole(long* num_bytes) {
    FILE* file = fopen(path, "rb");
    if (file == NULL) { give_up("cannot open"); }
    fseek(file, 0, SEEK_END);
    *num_bytes = ftell(file);
    rewind(file);
    char* bytes = malloc((size_t)*num_bytes);
    if (bytes == NULL || fread(bytes, 1, (size_t)*num_bytes, file) != (size_t)*num_bytes) {
        give_up("cannot read");
    }
    fclose(file);
    return bytes;
}

static const void* take(const char** cursor, int64_t num_values) {
    const char* begin = *cursor;
    *cursor += 4 * num_values;
    return begin;
}

void gpt2_golden_load(Gpt2Golden* out) {
    long num_bytes;
    char* bytes = read_whole(&num_bytes);
    const int32_t* header = (const int32_t*)bytes;
    if (num_bytes < 4 * HEADER_INTS || header[0] != MAGIC) { give_up("wrong magic"); }
    *out = (Gpt2Golden){.memory = bytes};
    out->config = (ModelConfig){
        .kind = &gpt2_kind, .max_seq_len = header[1], .vocab = header[2], .num_layers = header[3]};
    out->config.num_heads = header[4];
    out->config.channels = header[5];
    out->config.padded_vocab = header[6];
    ModelBatch* batch = &out->batch;
    *batch = (ModelBatch){.num_seqs = header[7], .num_tokens = header[8], .num_rows = header[9]};
    const char* cursor = bytes + 4 * HEADER_INTS;
    batch->cu_seqlens = take(&cursor, batch->num_seqs + 1);
    batch->tokens = take(&cursor, batch->num_tokens);
    batch->positions = take(&cursor, batch->num_tokens);
    batch->rows = take(&cursor, batch->num_rows);
    batch->targets = take(&cursor, batch->num_rows);
    for (int i = 0; i < batch->num_seqs; i++) {
        int num_tokens = batch->cu_seqlens[i + 1] - batch->cu_seqlens[i];
        if (num_tokens > batch->max_seq_tokens) { batch->max_seq_tokens = num_tokens; }
    }
    out->num_params = model_num_params(&out->config);
    out->losses = take(&cursor, batch->num_rows);
    out->logits = take(&cursor, (int64_t)batch->num_rows * out->config.vocab);
    out->grads = take(&cursor, out->num_params);
    if (cursor != bytes + num_bytes) { give_up("wrong length"); }
}

void gpt2_golden_free(Gpt2Golden* golden) {
    free(golden->memory);
}

// splitmix64's mixer, as in dev/golden_gpt2.py.
float gpt2_golden_value(int64_t idx) {
    uint64_t x = ((uint64_t)idx + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    return (float)((double)(x >> 40) * 0x1p-23 - 1.0);
}

void gpt2_golden_params(Model* model) {
    for (int i = 0; i < model->num_slices; i++) {
        const TensorSlice* slice = &model->slices[i];
        bool is_norm = slice->tensor == GPT2_ln1w || slice->tensor == GPT2_ln2w || slice->tensor == GPT2_lnfw;
        int64_t num_used = slice->tensor == GPT2_wte ? (int64_t)model->config.vocab * model->config.channels
                                                     : slice->num_values;
        for (int64_t j = 0; j < slice->num_values; j++) {
            float value = gpt2_golden_value(slice->file_offset + j) * 0.25f + (is_norm ? 1.0f : 0.0f);
            model->params[slice->offset + j] = slice->first + j < num_used ? value : 0.0f;
        }
    }
}
