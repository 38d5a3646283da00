#include "t5_acts.h"

#include <assert.h>
#include <stddef.h>

#include "head.h"

// 16 values are 64 bytes in float32, and 16 rows of an even number of bf16 values: rounding tokens and rows
// up keeps every buffer aligned.
static int64_t round_up_16(int64_t count) {
    return (count + 15) / 16 * 16;
}

static int64_t round_up_64(int64_t num_bytes) {
    return (num_bytes + 63) / 64 * 64;
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
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

// --- where the parts of acts begin, in bytes --------------------------------------------------------------

typedef struct {
    int64_t T, layer_bytes;
    int64_t layers;  // own buffers of layer 0, then layer 1's; or the shared set
    int64_t qkv, xq, xkv, residual_cross, residual_ffn, x;  // slot 0; with KEEP
} StackMap;

typedef struct {
    StackMap stacks[2];
    int64_t enc_rstd, enc_out, head, end;
} ActsMap;

static int64_t skip(int64_t* at, int64_t num_bytes) {
    int64_t begin = *at;
    *at += num_bytes;
    return begin;
}

// Per token of a layer's own buffers with KEEP, in the order own_buffers() takes them.
static int64_t own_bytes(const Model* model, T5Side side) {
    const int64_t C = model->config.channels, I = t5_inner(model), NH = model->config.num_heads;
    const int64_t F = model->config.ffn_channels, F2 = t5_ffn_rows(model);
    int64_t num_bytes = (2 * C + I + F2 + F) * X_BYTES + (NH + 2) * FLOAT_BYTES;
    return side == T5_ENC ? num_bytes : num_bytes + (C + I) * X_BYTES + (NH + 1) * FLOAT_BYTES;
}

// Per token of the set that all layers share without KEEP, but for xkv: x, residuals, norm, one of qkv + atty
// and h.
static int64_t shared_wide(const Model* model) {
    return larger(4 * t5_inner(model), t5_ffn_rows(model));
}
static int64_t shared_bytes(const Model* model, T5Side side) {
    const int64_t C = model->config.channels;
    return ((side == T5_ENC ? 3 : 4) * C + shared_wide(model)) * X_BYTES +
           (model->config.num_heads + 1) * FLOAT_BYTES;
}

static void map_kept(StackMap* stack, const Model* model, T5Side side, int64_t enc_tokens, int64_t* at) {
    const int64_t C = model->config.channels, I = t5_inner(model), n = t5_num_layers(model, side),
                  T = stack->T;
    const bool begins = t5_begins(model, side);
    stack->layer_bytes = T * own_bytes(model, side);
    stack->layers = skip(at, n * stack->layer_bytes);
    stack->qkv = skip(at, (n + 1) * T * 3 * I * X_BYTES);
    stack->residual_ffn = skip(at, (n + 1) * T * C * X_BYTES);
    if (side == T5_DEC) {
        stack->residual_cross = skip(at, (n + 1) * T * C * X_BYTES);
        stack->xq = skip(at, (n + 1) * T * I * X_BYTES);
        stack->xkv = skip(at, (n + 1) * enc_tokens * 2 * I * X_BYTES);
    }
    stack->x = skip(at, (n + begins + t5_ends(model, side)) * T * C * X_BYTES);
    if (!begins) { stack->x -= T * C * X_BYTES; }  // no slot for x_0
}

static void map_shared(StackMap* stack, const Model* model, T5Side side, int64_t enc_tokens, int64_t* at) {
    stack->layers = skip(at, stack->T * shared_bytes(model, side));
    if (side == T5_DEC) { stack->xkv = skip(at, enc_tokens * 2 * t5_inner(model) * X_BYTES); }
}

static int64_t head_rows(int num_rows, int flags) {
    int64_t rows = round_up_16(num_rows);
    return flags & MODEL_KEEP || rows <= T5_HEAD_CHUNK_ROWS ? rows : T5_HEAD_CHUNK_ROWS;
}

// Of the head's own buffers, in the order t5_acts_head takes them.
static int64_t row_bytes(const Model* model) {
    const int64_t C = model->config.channels;
    return (model->has_head ? 2 * C + model->config.padded_vocab : C) * X_BYTES + 2 * FLOAT_BYTES;
}

static ActsMap map_acts(const Model* model, const ModelBatch* batch, int flags) {
    const int64_t C = model->config.channels, Te = round_up_16(batch->num_tokens);
    const bool keep = flags & MODEL_KEEP, has_dec = t5_num_layers(model, T5_DEC) > 0;
    ActsMap map = {.stacks = {{.T = Te}, {.T = round_up_16(batch->num_dec_tokens)}}};
    int64_t at = 0;
    for (T5Side side = T5_ENC; side <= T5_DEC; side++) {
        if (t5_num_layers(model, side) == 0) { continue; }
        (keep ? map_kept : map_shared)(&map.stacks[side], model, side, Te, &at);
    }
    if (keep && t5_ends(model, T5_ENC)) { map.enc_rstd = skip(&at, Te * FLOAT_BYTES); }
    if (has_dec && (keep || t5_ends(model, T5_ENC))) { map.enc_out = skip(&at, Te * C * X_BYTES); }
    map.head = at;
    if (model->is_last && (flags & MODEL_HEAD || model_feeds_head(model))) {
        at += head_rows(batch->num_rows, flags) * row_bytes(model);
    }
    map.end = at;
    return map;
}

int64_t t5_acts_bytes(const Model* model, const ModelBatch* batch, int flags) {
    if (model_is_share(model)) { return head_acts_bytes(model, batch, flags); }
    return map_acts(model, batch, flags).end;
}

// --- one layer, the encoder's end, the head ---------------------------------------------------------------

static T5LayerActs own_buffers(const Model* model, char* cursor, const StackMap* stack, T5Side side) {
    const int64_t C = model->config.channels, I = t5_inner(model), NH = model->config.num_heads, T = stack->T;
    const char* end = cursor + stack->layer_bytes;
    T5LayerActs layer = {.norm_self = take(&cursor, T * C), .norm_ffn = take(&cursor, T * C)};
    layer.atty = take(&cursor, T * I);
    layer.h = take(&cursor, T * t5_ffn_rows(model));
    layer.act = take(&cursor, T * model->config.ffn_channels);
    layer.lse = take_floats(&cursor, T * NH);
    layer.rstd_self = take_floats(&cursor, T);
    layer.rstd_ffn = take_floats(&cursor, T);
    if (side == T5_DEC) {
        layer.norm_cross = take(&cursor, T * C);
        layer.xatty = take(&cursor, T * I);
        layer.xlse = take_floats(&cursor, T * NH);
        layer.rstd_cross = take_floats(&cursor, T);
    }
    assert(cursor == end);
    (void)end;
    return layer;
}

static floatX* slot(void* acts, int64_t begin, int64_t idx, int64_t slot_values) {
    return (floatX*)(void*)((char*)acts + begin + idx * slot_values * X_BYTES);
}

static T5LayerActs kept_layer(const Model* model, void* acts, const ActsMap* map, T5Side side, int64_t l) {
    const StackMap* stack = &map->stacks[side];
    const int64_t TC = stack->T * model->config.channels, TI = stack->T * t5_inner(model);
    T5LayerActs layer = own_buffers(model, (char*)acts + stack->layers + l * stack->layer_bytes, stack, side);
    layer.qkv = slot(acts, stack->qkv, l, 3 * TI);
    layer.dqkv = slot(acts, stack->qkv, l + 1, 3 * TI);
    layer.residual_ffn = slot(acts, stack->residual_ffn, l, TC);
    layer.dresidual_ffn = slot(acts, stack->residual_ffn, l + 1, TC);
    layer.x = slot(acts, stack->x, l, TC);
    layer.x_next = layer.dx = slot(acts, stack->x, l + 1, TC);
    layer.dx_next = slot(acts, stack->x, l + 2, TC);
    if (side == T5_ENC) { return layer; }
    const int64_t xkv_values = map->stacks[T5_ENC].T * 2 * t5_inner(model);
    layer.residual_cross = slot(acts, stack->residual_cross, l, TC);
    layer.dresidual_cross = slot(acts, stack->residual_cross, l + 1, TC);
    layer.xq = slot(acts, stack->xq, l, TI);
    layer.dxq = slot(acts, stack->xq, l + 1, TI);
    layer.xkv = slot(acts, stack->xkv, l, xkv_values);
    layer.dxkv = slot(acts, stack->xkv, l + 1, xkv_values);
    return layer;
}

static T5LayerActs shared_layer(const Model* model, void* acts, const ActsMap* map, T5Side side) {
    const StackMap* stack = &map->stacks[side];
    const int64_t T = stack->T, C = model->config.channels, I = t5_inner(model);
    char* cursor = (char*)acts + stack->layers;
    T5LayerActs layer = {.x = take(&cursor, T * C), .residual_ffn = take(&cursor, T * C)};
    layer.x_next = layer.x;
    layer.norm_self = layer.norm_cross = layer.norm_ffn = take(&cursor, T * C);
    if (side == T5_DEC) { layer.residual_cross = take(&cursor, T * C); }
    layer.h = layer.qkv = layer.xq = take(&cursor, T * shared_wide(model));
    layer.atty = layer.xatty = layer.qkv + T * 3 * I;
    layer.lse = layer.xlse = take_floats(&cursor, T * model->config.num_heads);
    layer.rstd_self = layer.rstd_cross = layer.rstd_ffn = take_floats(&cursor, T);
    layer.xkv = slot(acts, stack->xkv, 0, 0);
    return layer;
}

T5LayerActs t5_acts_layer(const Model* model, void* acts, const ModelBatch* batch, T5Side side,
                          int local_layer, int flags) {
    const ActsMap map = map_acts(model, batch, flags);
    T5LayerActs layer = flags & MODEL_KEEP ? kept_layer(model, acts, &map, side, local_layer)
                                           : shared_layer(model, acts, &map, side);
    if (local_layer == 0 && !t5_begins(model, side)) { layer.x = layer.dx = NULL; }
    if (local_layer == t5_num_layers(model, side) - 1 && !t5_ends(model, side)) {
        layer.x_next = layer.dx_next = NULL;
    }
    return layer;
}

T5EncEndActs t5_acts_enc_end(const Model* model, void* acts, const ModelBatch* batch, int flags) {
    const ActsMap map = map_acts(model, batch, flags);
    const int n = t5_num_layers(model, T5_ENC);
    const bool keep = flags & MODEL_KEEP, has_dec = t5_num_layers(model, T5_DEC) > 0;
    T5EncEndActs end = {0};
    if (has_dec && (keep || t5_ends(model, T5_ENC))) { end.enc_out = slot(acts, map.enc_out, 0, 0); }
    if (!t5_ends(model, T5_ENC)) { return end; }
    T5LayerActs layer = t5_acts_layer(model, acts, batch, T5_ENC, n - 1, flags);
    end.x_end = layer.x_next;
    end.rstd = keep ? (float*)(void*)((char*)acts + map.enc_rstd) : layer.rstd_ffn;
    end.denc_out = layer.dresidual_ffn;
    end.dx_end = layer.dx_next;
    return end;
}

T5HeadActs t5_acts_head(const Model* model, void* acts, const ModelBatch* batch, int flags) {
    const int64_t C = model->config.channels, R = head_rows(batch->num_rows, flags);
    char* cursor = (char*)acts + map_acts(model, batch, flags).head;
    T5HeadActs head = {.num_rows = (int)R, .rows = take(&cursor, R * C)};
    if (model->has_head) { head.norm = take(&cursor, R * C); }
    head.rstd = take_floats(&cursor, R);
    head.keys = (uint32_t*)(void*)take_floats(&cursor, R);
    if (model->has_head) { head.logits = take(&cursor, R * model->config.padded_vocab); }
    return head;
}

// --- scratch, boundaries ----------------------------------------------------------------------------------

// The two stacks' bias tables, first in every scratch.
static int64_t bias_bytes(const Model* model) {
    return round_up_64((int64_t)model->config.num_buckets * model->config.num_heads * FLOAT_BYTES);
}

static int64_t attention_bytes(const Model* model, int num_seqs, int64_t num_q_tokens, int64_t num_k_tokens,
                               bool has_bias, bool causal) {
    static const float any_table[1];  // only whether there is one matters
    const Attention about = {
        .num_seqs = num_seqs,
        .num_q_tokens = (int)num_q_tokens,
        .num_k_tokens = (int)num_k_tokens,
        .num_heads = model->config.num_heads,
        .head_size = model->config.head_size,
        .q_stride = (has_bias ? 3 : 1) * t5_inner(model),
        .kv_stride = (has_bias ? 3 : 2) * t5_inner(model),
        .causal = causal,
        .scale = 1.0f,
        .bias = has_bias ? any_table : NULL,
        .num_buckets = model->config.num_buckets,
        .max_distance = model->config.max_distance,
        .bias_bidirectional = !causal,
        .dropout = model->dropout,
    };
    return (int64_t)attention_general_scratch_bytes(&about, model->ops);
}

static int64_t side_bytes(const Model* model, const ModelBatch* batch, T5Side side) {
    const int64_t C = model->config.channels, I = t5_inner(model), F = model->config.ffn_channels;
    const int64_t Te = round_up_16(batch->num_tokens);
    const int64_t T = side == T5_ENC ? Te : round_up_16(batch->num_dec_tokens);
    int64_t attention = attention_bytes(model, batch->num_seqs, T, T, true, side == T5_DEC);
    if (side == T5_DEC) {
        attention = larger(attention, attention_bytes(model, batch->num_seqs, T, Te, false, false));
    }
    int64_t wide = larger(T * larger(F, C) * X_BYTES, T * I * X_BYTES + attention);
    if (side == T5_DEC) { wide = larger(wide, Te * C * X_BYTES); }
    return T * C * X_BYTES + round_up_64(wide);
}

int64_t t5_scratch_bytes(const Model* model, const ModelBatch* batch) {
    const int64_t C = model->config.channels;
    int64_t num_bytes = 0;
    if (model_is_share(model)) { return 0; }
    for (T5Side side = T5_ENC; side <= T5_DEC; side++) {
        const int num_tokens = side == T5_ENC ? batch->num_tokens : batch->num_dec_tokens;
        if (t5_num_layers(model, side) > 0) { num_bytes = larger(num_bytes, side_bytes(model, batch, side)); }
        if (t5_begins(model, side)) {
            num_bytes = larger(num_bytes, round_up_64((int64_t)embedding_backward_scratch_bytes(
                                              (int)round_up_16(num_tokens), (int)C, model->ops)));
        }
    }
    if (model->is_last) { num_bytes = larger(num_bytes, 2 * round_up_16(batch->num_rows) * C * X_BYTES); }
    return 2 * bias_bytes(model) + num_bytes;
}

T5Scratch t5_scratch_split(const Model* model, void* scratch, const ModelBatch* batch, T5Side side) {
    const int64_t T = round_up_16(side == T5_ENC ? batch->num_tokens : batch->num_dec_tokens);
    char* cursor = scratch;
    T5Scratch parts = {.bias = (float*)(void*)(cursor + side * bias_bytes(model))};
    cursor += 2 * bias_bytes(model);
    parts.columns = take(&cursor, T * model->config.channels);
    parts.wide = take(&cursor, T * t5_inner(model));
    parts.attention = cursor;
    return parts;
}

floatX* t5_scratch_rows(const Model* model, void* scratch) {
    return (floatX*)(void*)((char*)scratch + 2 * bias_bytes(model));
}

int64_t t5_boundary_bytes(const Model* model, const ModelBatch* batch, int is_behind) {
    if (is_behind ? model_feeds_head(model) : model_is_share(model)) {
        return head_rows_bytes(&model->config, batch->num_rows);
    }
    const int layer = is_behind ? model->layer_end : model->layer_begin;
    const int64_t dec_begin = t5_boundary_dec_values(model, layer, batch->num_tokens);
    const int64_t num_tokens = layer <= model->config.num_layers ? batch->num_tokens : batch->num_dec_tokens;
    return (dec_begin + round_up_16(num_tokens) * model->config.channels) * X_BYTES;
}
