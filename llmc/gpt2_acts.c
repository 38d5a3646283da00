#include "gpt2_acts.h"

#include <stddef.h>

// 16 values are 64 bytes in float32, and 16 rows of an even number of bf16 values: rounding tokens and rows
// up keeps every buffer aligned.
static int64_t round_up_16(int64_t count) {
    return (count + 15) / 16 * 16;
}

static const int64_t X_BYTES = sizeof(floatX), FLOAT_BYTES = sizeof(float);

static floatX* take(char** cursor, int64_t num_values) {
    char* begin = *cursor;
    *cursor += num_values * X_BYTES;
    return (floatX*)(void*)begin;
}

static float* take_floats(char** cursor, int64_t num_values) {
    char* begin = *cursor;
    *cursor += num_values * FLOAT_BYTES;
    return (float*)(void*)begin;
}

// Bytes per token of one layer's own buffers with KEEP, in the order gpt2_acts_layer takes them.
static int64_t layer_bytes(const ModelConfig* config) {
    return 11 * X_BYTES * config->channels + FLOAT_BYTES * (config->num_heads + 4);
}

// x_0 is kept by the first range, x_L and dx_L by the last; see the picture in gpt2_acts.h.
static int64_t stream_slots(const Model* model) {
    return model->layer_end - model->layer_begin + model->is_first + model->is_last;
}

// Bytes per token without the head.
static int64_t token_bytes(const Model* model, int flags) {
    const int64_t C = model->config.channels, L = model->layer_end - model->layer_begin;
    if (L == 0) { return 0; }
    if (!(flags & MODEL_KEEP)) { return 7 * C * X_BYTES + (model->config.num_heads + 2) * FLOAT_BYTES; }
    return L * layer_bytes(&model->config) + ((L + 1) * 4 + stream_slots(model)) * C * X_BYTES;
}

static int64_t head_rows(int num_rows, int flags) {
    int64_t rows = round_up_16(num_rows);
    return flags & MODEL_KEEP || rows <= GPT2_HEAD_CHUNK_ROWS ? rows : GPT2_HEAD_CHUNK_ROWS;
}

// Of the head's own buffers, in the order gpt2_acts_head takes them.
static int64_t row_bytes(const Model* model) {
    const int64_t C = model->config.channels;
    return (model->has_head ? 2 * C + model->config.padded_vocab : C) * X_BYTES + 2 * FLOAT_BYTES;
}

int64_t gpt2_acts_bytes(const Model* model, int num_tokens, int num_rows, int flags) {
    int64_t num_bytes = round_up_16(num_tokens) * token_bytes(model, flags);
    if (model->is_last && (flags & MODEL_HEAD || model_feeds_head(model))) {
        num_bytes += head_rows(num_rows, flags) * row_bytes(model);
    }
    return num_bytes;
}

int64_t gpt2_scratch_bytes(const Model* model, int num_tokens, int num_rows, int max_seq_tokens) {
    const int64_t C = model->config.channels, value = X_BYTES;
    int64_t tokens = round_up_16(num_tokens), rows = round_up_16(num_rows);
    if (model->layer_begin == model->layer_end) { return 2 * rows * C * value; }
    int64_t wide_bytes = tokens * 4 * C * value;
    int64_t attention_bytes = (int64_t)attention_backward_scratch_bytes(
        (int)tokens, (int)C, model->config.num_heads, (int)round_up_16(max_seq_tokens), model->ops);
    if (attention_bytes > wide_bytes) { wide_bytes = attention_bytes; }
    if (model->dropout > 0) {
        ModelBatch counts = {.num_tokens = (int)tokens, .num_seqs = 1};
        Attention about = gpt2_dropped_attention(model, &counts, NULL, 0);
        int64_t dropped_bytes = (int64_t)attention_general_scratch_bytes(&about, model->ops);
        if (dropped_bytes > wide_bytes) { wide_bytes = dropped_bytes; }
    }
    if (model->is_last && rows > tokens) { wide_bytes += 2 * (rows - tokens) * C * value; }
    int64_t num_bytes = tokens * C * value + (wide_bytes + 63) / 64 * 64;
    if (!model->is_first) { return num_bytes; }
    int64_t embedding_bytes = (int64_t)embedding_backward_scratch_bytes((int)tokens, (int)C, model->ops);
    return embedding_bytes > num_bytes ? (embedding_bytes + 63) / 64 * 64 : num_bytes;
}

int64_t gpt2_boundary_bytes(const Model* model, int num_tokens) {
    return round_up_16(num_tokens) * model->config.channels * (int64_t)sizeof(floatX);
}

static Gpt2LayerActs shared_layer(const Model* model, void* acts, int64_t T) {
    const int64_t C = model->config.channels;
    char* cursor = acts;
    Gpt2LayerActs layer = {.x = take(&cursor, T * C), .residual2 = take(&cursor, T * C)};
    layer.x_next = layer.x;
    layer.ln1 = layer.ln2 = take(&cursor, T * C);
    layer.qkv = layer.fch = take(&cursor, T * 3 * C);
    layer.atty = take(&cursor, T * C);
    layer.lse = take_floats(&cursor, T * model->config.num_heads);
    layer.ln1_mean = layer.ln2_mean = take_floats(&cursor, T);
    layer.ln1_rstd = layer.ln2_rstd = take_floats(&cursor, T);
    return layer;
}

Gpt2LayerActs gpt2_acts_layer(const Model* model, void* acts, int num_tokens, int local_layer, int flags) {
    const int64_t C = model->config.channels, T = round_up_16(num_tokens), l = local_layer;
    const int64_t L = model->layer_end - model->layer_begin;
    bool x_is_in = l == 0 && !model->is_first, x_next_is_out = l == L - 1 && !model->is_last;
    Gpt2LayerActs layer;
    if (!(flags & MODEL_KEEP)) {
        layer = shared_layer(model, acts, T);
        if (x_is_in) { layer.x = NULL; }
        if (x_next_is_out) { layer.x_next = NULL; }
        return layer;
    }
    char* cursor = (char*)acts + l * T * layer_bytes(&model->config);
    layer = (Gpt2LayerActs){.ln1 = take(&cursor, T * C), .ln2 = take(&cursor, T * C)};
    layer.atty = take(&cursor, T * C);
    layer.fch = take(&cursor, T * 4 * C);
    layer.fch_gelu = take(&cursor, T * 4 * C);
    layer.lse = take_floats(&cursor, T * model->config.num_heads);
    layer.ln1_mean = take_floats(&cursor, T);
    layer.ln1_rstd = take_floats(&cursor, T);
    layer.ln2_mean = take_floats(&cursor, T);
    layer.ln2_rstd = take_floats(&cursor, T);

    cursor = (char*)acts + L * T * layer_bytes(&model->config);
    floatX* qkv_slots = take(&cursor, 0);
    floatX* residual2_slots = qkv_slots + (L + 1) * T * 3 * C;
    floatX* stream = residual2_slots + (L + 1) * T * C - (model->is_first ? 0 : T * C);  // no slot for x_0
    layer.qkv = qkv_slots + l * T * 3 * C;
    layer.dqkv = layer.qkv + T * 3 * C;
    layer.residual2 = residual2_slots + l * T * C;
    layer.dresidual2 = layer.residual2 + T * C;
    layer.x = x_is_in ? NULL : stream + l * T * C;
    layer.x_next = x_next_is_out ? NULL : stream + (l + 1) * T * C;
    layer.dx = x_is_in ? NULL : stream + (l + 1) * T * C;
    layer.dx_next = x_next_is_out ? NULL : stream + (l + 2) * T * C;
    return layer;
}

Gpt2HeadActs gpt2_acts_head(const Model* model, void* acts, int num_tokens, int num_rows, int flags) {
    const int64_t C = model->config.channels, R = head_rows(num_rows, flags);
    char* cursor = (char*)acts + round_up_16(num_tokens) * token_bytes(model, flags);
    Gpt2HeadActs head = {.num_rows = (int)R, .rows = take(&cursor, R * C)};
    if (model->has_head) { head.lnf = take(&cursor, R * C); }
    head.mean = take_floats(&cursor, R);
    head.rstd = take_floats(&cursor, R);
    if (model->has_head) { head.logits = take(&cursor, R * model->config.padded_vocab); }
    return head;
}

Gpt2Scratch gpt2_scratch_split(const Model* model, void* scratch, int num_tokens) {
    floatX* columns = scratch;
    return (Gpt2Scratch){.columns = columns,
                         .wide = columns + round_up_16(num_tokens) * model->config.channels};
}
