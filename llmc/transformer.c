/*
transformer.c -- the passes of any model: embedding, blocks of self-attention, cross-attention and
feed-forward, final norm, head; forward, backward in two jobs, generation. The tables of a kind (ModelKind,
ModelStack) select them:

    layer:  x = x + o(attention(norm x));  decoder: x = x + xo(attention(norm x, enc_out));
            x = x + wo(act(wi(norm x)))
    end:    logits = head(norm x), of the supervised rows; an encoder's end: enc_out = norm x

x_l is the input of the stack's layer l in this range; x_0 the embedding's output or `in`, x_n the final
norm's input, or `out`. The sum that ends a sublayer and the next norm are fused into one pass.

Memory. With KEEP each layer has its own buffers, and rows of slots have one slot more than layers, so that a
gradient is one slot after its activation and overwrites only values that the layer above no longer needs:

    qkv            | qkv_0  | ... | qkv_n-1 |          |        dqkv_l in slot l + 1
    xq, xkv        the same of the cross-attention; xkv has the encoder's tokens
    residual_cross | r_0    | ... | r_n-1   |          |        dr_l   in slot l + 1
    residual_ffn   | r_0    | ... | r_n-1   |          |        dr_l   in slot l + 1
    stream         | x_0    | ... | x_n-1   | x_n      |     |  dx_l   in slot l + 1

(x_0 has a slot only if the stack begins here, x_n and dx_n only if it ends here.) A range with decoder layers
keeps enc_out for their weight gradients. Its gradient is summed from the last decoder layer down: in `din`,
or, if the encoder's end is also in this range, in the encoder's spare slot of residual_ffn, which is free
until the lower layers write to it. Backward of inputs also turns h into dh. Without KEEP all layers of a
stack share one set, and h and the cross-attention overlap qkv and atty.

At a boundary:  inside the first stack x (T, C);  between the stacks enc_out (T enc, C);  inside the decoder
enc_out, then x (T dec, C), each with its tokens rounded up to 16;  after the last layer x, or, of a range
that feeds the head's shares, the normed rows (num_rows, C).

Dropout. Forward drops in place, right after the operation. Backward applies the same mask to the gradient,
recomputed; if the unmasked gradient is still needed, on the way to scratch.
*/
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "head.h"
#include "llmc_error.h"
#include "model.h"

typedef enum { ENC, DEC } Side;     // the first stack, and a decoder after it
enum { HEAD_ROWS_AT_A_TIME = 64 };  // rows of logits, without KEEP

static const int64_t X_BYTES = sizeof(floatX), FLOAT_BYTES = sizeof(float);

// --- what this range has -----------------------------------------------------------------------------------

static const ModelStack* stack_of(const Model* m, Side side) {
    return &m->config.kind->stacks[side];
}

static Side last_side(const Model* m) {
    return m->config.kind->has_decoder ? DEC : ENC;
}

static int first_layer(const Model* m, Side side) {  // counted from the stack's first
    return side == ENC ? model_enc_begin(m) : model_dec_begin(m);
}

static int layers_of(const Model* m, Side side) {
    return side == ENC ? model_enc_end(m) - model_enc_begin(m) : model_dec_end(m) - model_dec_begin(m);
}

// Does the stack begin here, with its embedding? Does it end here, with the head or the encoder's norm?
static bool begins(const Model* m, Side side) {
    return layers_of(m, side) > 0 && first_layer(m, side) == 0;
}
static bool ends(const Model* m, Side side) {
    if (side == last_side(m)) { return m->is_last; }
    return layers_of(m, ENC) > 0 && model_enc_end(m) == m->config.num_layers;
}
static bool ends_encoder(const Model* m) {
    return m->config.kind->has_decoder && ends(m, ENC);
}

static int heads_width(const Model* m) {  // I
    return m->config.num_heads * model_head_size(&m->config);
}
static int ffn_rows(const Model* m) {  // F2: of both halves, where it is gated
    return m->config.gated ? 2 * model_ffn_channels(&m->config) : model_ffn_channels(&m->config);
}

static int head_tensor(const Model* m) {
    return model_head_tensor(&m->config);
}
// The factor between the final norm and a tied head.
static float head_scale(const Model* m) {
    return m->config.tied_head ? 1.0f / sqrtf((float)m->config.channels) : 1.0f;
}

// --- memory ------------------------------------------------------------------------------------------------

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

// The offset of the decoder's x in a boundary buffer before layer `layer` of the chain. (The encoder's part
// begins at 0.)
static int64_t boundary_dec_values(const Model* m, int layer, int num_tokens) {
    const bool inside = layer > m->config.num_layers && layer < model_num_layers(&m->config);
    return inside ? round_up_16(num_tokens) * m->config.channels : 0;
}

int64_t model_boundary_bytes(const Model* m, const ModelBatch* batch, bool is_behind) {
    if (is_behind ? model_feeds_head(m) : model_is_share(m)) {
        return head_rows_bytes(&m->config, batch->num_rows);
    }
    const int layer = is_behind ? m->layer_end : m->layer_begin;
    const int64_t dec_begin = boundary_dec_values(m, layer, batch->num_tokens);
    const int64_t num_tokens = layer <= m->config.num_layers ? batch->num_tokens : batch->num_dec_tokens;
    return (dec_begin + round_up_16(num_tokens) * m->config.channels) * X_BYTES;
}

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
static int64_t skip(int64_t* at, int64_t num_bytes) {
    int64_t begin = *at;
    *at += num_bytes;
    return begin;
}

// Statistics of a norm's rows; an RMS norm has no mean.
typedef struct {
    float *mean, *rstd;
} Stats;

static bool has_mean(const Model* m) {
    return stack_of(m, ENC)->norm_self.bias != 0;
}
static int64_t stats_floats(const Model* m) {
    return has_mean(m) ? 2 : 1;
}
static Stats take_stats(const Model* m, char** cursor, int64_t num_rows) {
    Stats stats = {NULL, NULL};
    if (has_mean(m)) { stats.mean = take_floats(cursor, num_rows); }
    stats.rstd = take_floats(cursor, num_rows);
    return stats;
}

// One layer's buffers; T are its own stack's tokens, Te the encoder's.
typedef struct {
    floatX *x, *x_next;                         // (T, C); NULL where it is `in` or `out`
    floatX *norm_self, *norm_cross, *norm_ffn;  // (T, C) what each sublayer reads
    Stats stats_self, stats_cross, stats_ffn;
    floatX *qkv, *atty;                     // (T, 3I), (T, I)
    float *lse, *xlse;                      // (NH, T)
    floatX *residual_cross, *residual_ffn;  // (T, C) the stream before these sublayers
    floatX *h, *act;                        // (T, F2), (T, F); act without KEEP: scratch
    floatX *xq, *xkv, *xatty;               // (T, I), (Te, 2I), (T, I); decoder
    floatX *dqkv, *dxq, *dxkv;              // with KEEP only
    floatX *dresidual_cross, *dresidual_ffn;
    floatX *dx, *dx_next;  // NULL where it is `din` or `dout`
} Layer;

// Offsets of the parts of acts, in bytes.
typedef struct {
    int64_t T, layer_bytes;
    int64_t layers;  // buffers of layer 0, then layer 1's; or the shared set
    int64_t qkv, xq, xkv, residual_cross, residual_ffn, x;  // slot 0; with KEEP
} StackMap;
typedef struct {
    StackMap stacks[2];
    int64_t enc_stats, enc_out, head, end;
} Map;

// A layer's own buffers with KEEP; returns their bytes.
static int64_t own_buffers(Layer* out, const Model* m, Side side, int64_t T, char* memory) {
    const int64_t C = m->config.channels, I = heads_width(m), NH = m->config.num_heads;
    char* cursor = memory;
    out->norm_self = take(&cursor, T * C);
    out->norm_ffn = take(&cursor, T * C);
    out->atty = take(&cursor, T * I);
    out->h = take(&cursor, T * ffn_rows(m));
    out->act = take(&cursor, T * model_ffn_channels(&m->config));
    out->lse = take_floats(&cursor, T * NH);
    out->stats_self = take_stats(m, &cursor, T);
    out->stats_ffn = take_stats(m, &cursor, T);
    if (side == DEC) {
        out->norm_cross = take(&cursor, T * C);
        out->xatty = take(&cursor, T * I);
        out->xlse = take_floats(&cursor, T * NH);
        out->stats_cross = take_stats(m, &cursor, T);
    }
    return cursor - memory;
}

// The set shared by all layers without KEEP, except for xkv; returns its bytes.
static int64_t shared_buffers(Layer* out, const Model* m, Side side, int64_t T, char* memory) {
    const int64_t C = m->config.channels, I = heads_width(m);
    char* cursor = memory;
    out->x = out->x_next = take(&cursor, T * C);
    out->residual_ffn = take(&cursor, T * C);
    out->norm_self = out->norm_cross = out->norm_ffn = take(&cursor, T * C);
    if (side == DEC) { out->residual_cross = take(&cursor, T * C); }
    out->h = out->qkv = out->xq = take(&cursor, T * larger(4 * I, ffn_rows(m)));
    out->atty = out->xatty = out->qkv + T * 3 * I;
    out->lse = out->xlse = take_floats(&cursor, T * m->config.num_heads);
    out->stats_self = out->stats_cross = out->stats_ffn = take_stats(m, &cursor, T);
    return cursor - memory;
}

static char nowhere[1];  // base if only bytes are needed

static void map_stack(Map* map, const Model* m, Side side, bool keep, int64_t* at) {
    StackMap* stack = &map->stacks[side];
    const int64_t C = m->config.channels, I = heads_width(m), n = layers_of(m, side), T = stack->T;
    const int64_t Te = map->stacks[ENC].T;
    Layer layer;
    if (!keep) {
        stack->layers = skip(at, shared_buffers(&layer, m, side, T, nowhere));
        if (side == DEC) { stack->xkv = skip(at, Te * 2 * I * X_BYTES); }
        return;
    }
    stack->layer_bytes = own_buffers(&layer, m, side, T, nowhere);
    stack->layers = skip(at, n * stack->layer_bytes);
    stack->qkv = skip(at, (n + 1) * T * 3 * I * X_BYTES);
    stack->residual_ffn = skip(at, (n + 1) * T * C * X_BYTES);
    if (side == DEC) {
        stack->residual_cross = skip(at, (n + 1) * T * C * X_BYTES);
        stack->xq = skip(at, (n + 1) * T * I * X_BYTES);
        stack->xkv = skip(at, (n + 1) * Te * 2 * I * X_BYTES);
    }
    stack->x = skip(at, (n + begins(m, side) + ends(m, side)) * T * C * X_BYTES);
    if (!begins(m, side)) { stack->x -= T * C * X_BYTES; }  // no slot for x_0
}

typedef struct {
    floatX *rows, *norm;  // (num_rows, C); norm NULL where the head is shared
    Stats stats;          // (num_rows)
    uint32_t* keys;       // (num_rows) of dropout, where rows are dropped
    floatX* logits;       // (num_rows, Vp), with KEEP their gradients; NULL where the head is shared
    int num_rows;         // capacity
} Head;

static int64_t head_buffers(Head* out, const Model* m, int num_rows, int flags, char* memory) {
    const int64_t C = m->config.channels;
    int64_t R = round_up_16(num_rows);
    if (!(flags & MODEL_KEEP) && R > HEAD_ROWS_AT_A_TIME) { R = HEAD_ROWS_AT_A_TIME; }
    char* cursor = memory;
    *out = (Head){.num_rows = (int)R, .rows = take(&cursor, R * C)};
    if (m->has_head) { out->norm = take(&cursor, R * C); }
    out->stats = take_stats(m, &cursor, R);
    if (m->config.kind->drops_more) { out->keys = (uint32_t*)(void*)take_floats(&cursor, R); }
    if (m->has_head) { out->logits = take(&cursor, R * m->config.padded_vocab); }
    return cursor - memory;
}

static Map map_acts(const Model* m, const ModelBatch* batch, int flags) {
    const int64_t C = m->config.channels, Te = round_up_16(batch->num_tokens);
    const bool keep = flags & MODEL_KEEP;
    Map map = {.stacks = {{.T = Te}, {.T = round_up_16(batch->num_dec_tokens)}}};
    int64_t at = 0;
    Head head;
    for (int side = ENC; side <= DEC; side++) {
        if (layers_of(m, (Side)side) > 0) { map_stack(&map, m, (Side)side, keep, &at); }
    }
    if (keep && ends_encoder(m)) { map.enc_stats = skip(&at, Te * stats_floats(m) * FLOAT_BYTES); }
    if (layers_of(m, DEC) > 0 && (keep || ends_encoder(m))) { map.enc_out = skip(&at, Te * C * X_BYTES); }
    map.head = at;
    if (m->is_last && (flags & MODEL_HEAD || model_feeds_head(m))) {
        at += head_buffers(&head, m, batch->num_rows, flags, nowhere);
    }
    map.end = at;
    return map;
}

int64_t model_acts_bytes(const Model* m, const ModelBatch* batch, int flags) {
    return model_is_share(m) ? head_acts_bytes(m, batch, flags) : map_acts(m, batch, flags).end;
}

// --- a micro-batch on the device ---------------------------------------------------------------------------

typedef struct {
    int num_tokens;
    const int32_t *cu_seqlens, *seq_lens, *tokens, *positions;  // seq_lens NULL: all
    const uint32_t* keys;                                       // of dropout
} BatchSide;

typedef struct {
    int num_seqs, num_rows;
    float dropout;  // the model's if keys were requested and exist; else 0
    BatchSide sides[2];
    const int32_t *rows, *targets;
} Batch;

// Arrays that a job reads; TOKENS if a stack begins here, SEQS and KEYS if it has layers.
enum { BATCH_SEQS = 1, BATCH_KEYS = 2, BATCH_TOKENS = 4, BATCH_ROWS = 8, BATCH_TARGETS = 16 };

static BatchSide host_side(const ModelBatch* b, Side side) {
    return side == ENC ? (BatchSide){b->num_tokens, b->cu_seqlens, b->seq_lens,
                                     b->tokens,     b->positions,  b->token_keys}
                       : (BatchSide){b->num_dec_tokens, b->dec_cu_seqlens, b->dec_seq_lens,
                                     b->dec_tokens,     b->dec_positions,  b->dec_token_keys};
}

static void stage_tokens(const Model* m, const BatchSide* host, BatchSide* out, Side side) {
    const bool has_decoder = m->config.kind->has_decoder;
    const char* what = !has_decoder ? "token" : side == ENC ? "encoder token" : "decoder token";
    batch_check_range(what, host->tokens, host->num_tokens, m->config.vocab);
    out->tokens = batch_stage(m->ops, host->tokens, host->num_tokens);
    if (m->config.kind->positions != 0) {
        batch_check_range("position", host->positions, host->num_tokens, m->config.max_seq_len);
        out->positions = batch_stage(m->ops, host->positions, host->num_tokens);
    }
}

// Begins a job's staging. An id out of range ends the program.
static Batch stage_batch(const Model* m, const ModelBatch* batch, int arrays) {
    const int R = batch->num_rows;
    const Side last = last_side(m);
    Batch staged = {.num_seqs = batch->num_seqs, .num_rows = R};
    if (arrays & BATCH_KEYS && batch->token_keys != NULL) { staged.dropout = m->dropout; }
    ops_stage_begin(m->ops);
    for (int i = ENC; i <= (int)last; i++) {
        const Side side = (Side)i;
        const BatchSide host = host_side(batch, side);
        BatchSide* out = &staged.sides[side];
        out->num_tokens = host.num_tokens;
        // decoder layers look at the encoder's side
        const bool has_layers = layers_of(m, side) > 0 || layers_of(m, DEC) > 0;
        if (arrays & BATCH_SEQS && has_layers) {
            out->cu_seqlens = batch_stage(m->ops, host.cu_seqlens, batch->num_seqs + 1);
            // self-attention with a causal mask never sees padding
            if (last == DEC) { out->seq_lens = batch_stage(m->ops, host.seq_lens, batch->num_seqs); }
        }
        const bool drops_rows = side == last && m->is_last && m->config.kind->drops_more;
        if (staged.dropout > 0.0f && (has_layers || drops_rows)) {
            assert(host.keys != NULL);
            out->keys = (const uint32_t*)batch_stage(m->ops, (const int32_t*)host.keys, host.num_tokens);
        }
        if (arrays & BATCH_TOKENS && begins(m, side)) { stage_tokens(m, &host, out, side); }
    }
    if (arrays & BATCH_ROWS) {
        batch_check_range("row", batch->rows, R, staged.sides[last].num_tokens);
        staged.rows = batch_stage(m->ops, batch->rows, R);
    }
    if (arrays & BATCH_TARGETS) {
        batch_check_range("target", batch->targets, R, m->config.vocab);
        staged.targets = batch_stage(m->ops, batch->targets, R);
    }
    return staged;
}

// The rows of new tokens in a cache of keys and values, and what attention then reads (ops.h:
// Attention.k_lens, q_starts, place_rows). A slot has room for max_tokens contiguous rows; a sequence's new
// tokens follow its num_before earlier ones. All but `memory` are device memory for one job (ops_stage).
typedef struct {
    const int32_t* rows;       // (new tokens) of the cache
    const int32_t* begins;     // (num_seqs) first row of the sequence's slot
    const int32_t* lens;       // (num_seqs) tokens after this call
    const int32_t* starts;     // (num_seqs) tokens before this call
    const int32_t* last_rows;  // (num_seqs) the last new token of each, among the new tokens
    void* memory;              // of the host
} CacheRows;

// num_before NULL: 0. cu_seqlens NULL: nothing new; otherwise every sequence has at least one new token. A
// slot overflow ends the program.
static CacheRows cache_rows_stage(int num_seqs, const int32_t* cu_seqlens, const int32_t* slots,
                                  const int32_t* num_before, int max_tokens, OpsContext* ops) {
    size_t n = (size_t)num_seqs, T = cu_seqlens != NULL ? (size_t)cu_seqlens[num_seqs] : 0;
    int32_t* memory = llmc_alloc((T + 4 * n) * sizeof(int32_t), "rows of a cache");
    int32_t *rows = memory, *begins = rows + T, *lens = begins + n, *starts = lens + n,
            *last_rows = starts + n;
    for (int b = 0; b < num_seqs; b++) {
        int num_new = cu_seqlens != NULL ? cu_seqlens[b + 1] - cu_seqlens[b] : 0;
        begins[b] = slots[b] * max_tokens;
        starts[b] = num_before != NULL ? num_before[b] : 0;
        lens[b] = starts[b] + num_new;
        last_rows[b] = num_new > 0 ? cu_seqlens[b + 1] - 1 : 0;
        if (lens[b] > max_tokens || (cu_seqlens != NULL && num_new < 1)) {
            fprintf(stderr, "cache: slot %d has %d tokens, %d more do not fit into %d\n", slots[b], starts[b],
                    num_new, max_tokens);
            exit(1);
        }
        for (int i = 0; i < num_new; i++) { rows[cu_seqlens[b] + i] = begins[b] + starts[b] + i; }
    }
    return (CacheRows){
        .rows = T > 0 ? ops_stage(ops, rows, T) : NULL,
        .begins = ops_stage(ops, begins, n),
        .lens = ops_stage(ops, lens, n),
        .starts = ops_stage(ops, starts, n),
        .last_rows = ops_stage(ops, last_rows, n),
        .memory = memory,
    };
}

static void cache_rows_free(CacheRows* rows) {
    free(rows->memory);
    rows->memory = NULL;
}

// --- a job -------------------------------------------------------------------------------------------------

// One pass of a range over a micro-batch.
typedef struct {
    Model* model;
    const ModelBatch* host;
    Batch batch;
    Map map;
    char *acts, *scratch;
    int flags;
    const ModelCache* cache;  // generation
    CacheRows said, asked;    // rows of its tokens; asked: an encoder's
} Job;

static Job begin_job(Model* m, const ModelBatch* batch, int arrays, void* acts, void* scratch, int flags) {
    return (Job){.model = m,
                 .host = batch,
                 .batch = stage_batch(m, batch, arrays),
                 .map = map_acts(m, batch, flags),
                 .acts = (char*)acts,
                 .scratch = (char*)scratch,
                 .flags = flags};
}

static const floatX* param(const Job* job, int tensor, int l) {
    return model_tensor(job->model, tensor, l);
}
static float* grad(const Job* job, int tensor, int l) {
    return model_grad(job->model, tensor, l);
}
// Of a bias that the kind may lack.
static const floatX* bias_param(const Job* job, int tensor, int l) {
    return tensor != 0 ? param(job, tensor, l) : NULL;
}
static float* bias_grad(const Job* job, int tensor, int l) {
    return tensor != 0 ? grad(job, tensor, l) : NULL;
}

static floatX* slot(const Job* job, int64_t begin, int64_t idx, int64_t slot_values) {
    return (floatX*)(void*)(job->acts + begin + idx * slot_values * X_BYTES);
}

static Layer kept_layer(const Job* job, Side side, int64_t l) {
    const StackMap* map = &job->map.stacks[side];
    const int64_t TC = map->T * job->model->config.channels, TI = map->T * heads_width(job->model);
    Layer layer = {.x = slot(job, map->x, l, TC)};
    own_buffers(&layer, job->model, side, map->T, job->acts + map->layers + l * map->layer_bytes);
    layer.qkv = slot(job, map->qkv, l, 3 * TI);
    layer.dqkv = slot(job, map->qkv, l + 1, 3 * TI);
    layer.residual_ffn = slot(job, map->residual_ffn, l, TC);
    layer.dresidual_ffn = slot(job, map->residual_ffn, l + 1, TC);
    layer.x_next = layer.dx = slot(job, map->x, l + 1, TC);
    layer.dx_next = slot(job, map->x, l + 2, TC);
    if (side == ENC) { return layer; }
    const int64_t xkv_values = job->map.stacks[ENC].T * 2 * heads_width(job->model);
    layer.residual_cross = slot(job, map->residual_cross, l, TC);
    layer.dresidual_cross = slot(job, map->residual_cross, l + 1, TC);
    layer.xq = slot(job, map->xq, l, TI);
    layer.dxq = slot(job, map->xq, l + 1, TI);
    layer.xkv = slot(job, map->xkv, l, xkv_values);
    layer.dxkv = slot(job, map->xkv, l + 1, xkv_values);
    return layer;
}

static Layer layer_at(const Job* job, Side side, int l) {
    const Model* m = job->model;
    const StackMap* map = &job->map.stacks[side];
    Layer layer = {.x = NULL};
    if (job->flags & MODEL_KEEP) {
        layer = kept_layer(job, side, l);
    } else {
        shared_buffers(&layer, m, side, map->T, job->acts + map->layers);
        layer.xkv = slot(job, map->xkv, 0, 0);
    }
    if (l == 0 && !begins(m, side)) { layer.x = layer.dx = NULL; }
    if (l == layers_of(m, side) - 1 && !ends(m, side)) { layer.x_next = layer.dx_next = NULL; }
    return layer;
}

typedef struct {
    floatX* x_end;              // (Te, C) x_n of the encoder
    Stats stats;                // (Te) of its final norm
    floatX* enc_out;            // (Te, C); NULL where it is `in` or `out`
    floatX *denc_out, *dx_end;  // (Te, C) with KEEP only
} EncoderEnd;

static EncoderEnd encoder_end(const Job* job) {
    const Model* m = job->model;
    EncoderEnd end = {.enc_out = NULL};
    if (layers_of(m, DEC) > 0 && (job->flags & MODEL_KEEP || ends_encoder(m))) {
        end.enc_out = slot(job, job->map.enc_out, 0, 0);
    }
    if (!ends_encoder(m)) { return end; }
    const Layer layer = layer_at(job, ENC, layers_of(m, ENC) - 1);
    char* stats = job->acts + job->map.enc_stats;
    end.x_end = layer.x_next;
    end.stats = job->flags & MODEL_KEEP ? take_stats(m, &stats, job->map.stacks[ENC].T) : layer.stats_ffn;
    end.denc_out = layer.dresidual_ffn;
    end.dx_end = layer.dx_next;
    return end;
}

// --- scratch -----------------------------------------------------------------------------------------------

typedef struct {
    floatX* columns;  // (T, C)  the output of a matrix product on its way into a sum or a norm
    floatX* wide;     // (T, F) or (T, I) with attention's scratch after it, or (T or Te, C)
    void* attention;  // after (T, I) of wide
    float* bias;      // (num_buckets, NH) the stack's table
} Scratch;

// The two stacks' bias tables, first in every scratch.
static int64_t table_bytes(const Model* m) {
    return round_up_64((int64_t)m->config.num_buckets * m->config.num_heads * FLOAT_BYTES);
}

static Scratch split_scratch(const Job* job, Side side) {
    const Model* m = job->model;
    const int64_t T = job->map.stacks[side].T;
    char* cursor = job->scratch + 2 * table_bytes(m);
    Scratch parts = {.bias = (float*)(void*)(job->scratch + side * table_bytes(m))};
    parts.columns = take(&cursor, T * m->config.channels);
    parts.wide = take(&cursor, T * heads_width(m));
    parts.attention = cursor;
    return parts;
}

static floatX* scratch_rows(const Job* job) {  // 2 (num_rows, C), of the head's backward
    return (floatX*)(void*)(job->scratch + 2 * table_bytes(job->model));
}

// --- dropout -----------------------------------------------------------------------------------------------

// A place is numbered in the whole model; `l` is local to range and stack.
static uint32_t drop_place(const Job* job, Side side, int l, ModelDrop drop) {
    return model_drop_place(&job->model->config, side == DEC, first_layer(job->model, side) + l, drop);
}

// x (num_rows, width) in place; nothing without dropout.
static void drop(const Job* job, floatX* x, const uint32_t* keys, uint32_t place, int num_rows, int width) {
    const float p = job->batch.dropout;
    if (p > 0.0f) { dropout_apply(x, x, keys, place, p, num_rows, width, job->model->ops); }
}

// dx (tokens of the stack, C), masked into `into` if the model has dropout.
static const floatX* dropped(const Job* job, Side side, const floatX* dx, floatX* into, uint32_t place) {
    const BatchSide* batch = &job->batch.sides[side];
    if (job->batch.dropout == 0.0f) { return dx; }
    dropout_apply(into, dx, batch->keys, place, job->batch.dropout, batch->num_tokens,
                  job->model->config.channels, job->model->ops);
    return into;
}

// --- norms -------------------------------------------------------------------------------------------------

static void norm_forward(const Job* job, ModelLinear norm, int l, floatX* out, const Stats* stats,
                         const floatX* inp, float scale, int num_rows) {
    const int C = job->model->config.channels;
    OpsContext* ops = job->model->ops;
    if (norm.bias != 0) {
        layernorm_forward(out, stats->mean, stats->rstd, inp, param(job, norm.weight, l),
                          param(job, norm.bias, l), num_rows, C, ops);
    } else {
        rmsnorm_forward(out, stats->rstd, inp, param(job, norm.weight, l), scale, num_rows, C, ops);
    }
}

// residual = a + b, out = norm of it.
static void add_norm_forward(const Job* job, ModelLinear norm, int l, floatX* residual, floatX* out,
                             const Stats* stats, const floatX* a, const floatX* b, int T) {
    const int C = job->model->config.channels;
    OpsContext* ops = job->model->ops;
    if (norm.bias != 0) {
        residual_layernorm_forward(residual, out, stats->mean, stats->rstd, a, b, param(job, norm.weight, l),
                                   param(job, norm.bias, l), T, C, ops);
    } else {
        residual_rmsnorm_forward(residual, out, stats->rstd, a, b, param(job, norm.weight, l), 1.0f, T, C,
                                 ops);
    }
}

// dinp = dresidual (NULL: zero) + the gradient through the norm; the norm's own gradients are added.
static void norm_backward(const Job* job, ModelLinear norm, int l, floatX* dinp, const floatX* dresidual,
                          const floatX* dout, const floatX* inp, const Stats* stats, float scale,
                          int num_rows) {
    const int C = job->model->config.channels;
    OpsContext* ops = job->model->ops;
    if (norm.bias != 0) {
        layernorm_backward(dinp, grad(job, norm.weight, l), grad(job, norm.bias, l), dresidual, dout, inp,
                           param(job, norm.weight, l), stats->mean, stats->rstd, num_rows, C, ops);
    } else {
        rmsnorm_backward(dinp, grad(job, norm.weight, l), dresidual, dout, inp, param(job, norm.weight, l),
                         stats->rstd, scale, num_rows, C, ops);
    }
}

// --- matrices ----------------------------------------------------------------------------------------------

static void linear_forward(const Job* job, ModelLinear w, int l, floatX* out, const floatX* inp, int num_rows,
                           int num_inputs, int num_outputs) {
    matmul_forward(out, inp, param(job, w.weight, l), bias_param(job, w.bias, l), num_rows, num_inputs,
                   num_outputs, job->model->ops);
}

static void linear_backward_input(const Job* job, ModelLinear w, int l, floatX* dinp, const floatX* dout,
                                  int num_rows, int num_inputs, int num_outputs) {
    matmul_backward_input(dinp, dout, param(job, w.weight, l), num_rows, num_inputs, num_outputs,
                          job->model->ops);
}

static void linear_backward_weight(const Job* job, ModelLinear w, int l, const floatX* dout,
                                   const floatX* inp, int num_rows, int num_inputs, int num_outputs) {
    matmul_backward_weight(grad(job, w.weight, l), bias_grad(job, w.bias, l), dout, inp, num_rows, num_inputs,
                           num_outputs, job->model->ops);
}

// columns (T, C) = the sublayer's addition to the stream.
static void output_forward(const Job* job, Side side, ModelLinear w, int l, floatX* columns,
                           const floatX* inp, int num_inputs, ModelDrop where) {
    const BatchSide* batch = &job->batch.sides[side];
    const int T = batch->num_tokens, C = job->model->config.channels;
    linear_forward(job, w, l, columns, inp, T, num_inputs, C);
    drop(job, columns, batch->keys, drop_place(job, side, l, where), T, C);
}

static void output_backward_weight(const Job* job, Side side, ModelLinear w, int l, const floatX* dstream,
                                   const floatX* inp, int num_inputs, ModelDrop where) {
    const Scratch scratch = split_scratch(job, side);
    const floatX* dy = dropped(job, side, dstream, scratch.columns, drop_place(job, side, l, where));
    linear_backward_weight(job, w, l, dy, inp, job->batch.sides[side].num_tokens, num_inputs,
                           job->model->config.channels);
}

// --- attention ---------------------------------------------------------------------------------------------

static Attention attention_between(const Job* job, Side q_side, Side k_side, uint32_t place) {
    const ModelConfig* config = &job->model->config;
    const BatchSide *q = &job->batch.sides[q_side], *k = &job->batch.sides[k_side];
    const int HS = model_head_size(config);
    return (Attention){
        .cu_q = q->cu_seqlens,
        .cu_k = k->cu_seqlens,
        .k_lens = k->seq_lens,
        .num_seqs = job->batch.num_seqs,
        .num_q_tokens = q->num_tokens,
        .num_k_tokens = k->num_tokens,
        .num_heads = config->num_heads,
        .head_size = HS,
        .scale = config->kind->scaled_scores ? 1.0f / sqrtf((float)HS) : 1.0f,
        .dropout = job->batch.dropout,
        .dropout_place = place,
        .q_keys = q->keys,
        .k_keys = k->keys,
    };
}

static Attention self_attention(const Job* job, const Layer* layer, Side side, int l) {
    const Model* m = job->model;
    const int I = heads_width(m);
    Attention about = attention_between(job, side, side, drop_place(job, side, l, MODEL_DROP_PROBABILITIES));
    about.q = layer->qkv;
    about.k = layer->qkv + I;
    about.v = layer->qkv + 2 * I;
    about.q_stride = about.kv_stride = 3 * I;
    about.causal = stack_of(m, side)->is_causal;
    if (stack_of(m, side)->bias != 0) {
        about.bias = split_scratch(job, side).bias;
        about.num_buckets = m->config.num_buckets;
        about.max_distance = m->config.max_distance;
        about.bias_bidirectional = !about.causal;
    }
    return about;
}

static Attention cross_attention(const Job* job, const Layer* layer, int l) {
    const int I = heads_width(job->model);
    Attention about =
        attention_between(job, DEC, ENC, drop_place(job, DEC, l, MODEL_DROP_CROSS_PROBABILITIES));
    about.q = layer->xq;
    about.k = layer->xkv;
    about.v = layer->xkv + I;
    about.q_stride = I;
    about.kv_stride = 2 * I;
    return about;
}

// The stack's bias table, as floats in scratch: before the first layer for all, or before each layer if
// each has its own.
static void load_bias(const Job* job, Side side, bool of_layer, int l) {
    const Model* m = job->model;
    const int tensor = stack_of(m, side)->bias;
    if (tensor == 0 || of_layer != m->config.bias_per_layer) { return; }
    values_to_floats(split_scratch(job, side).bias, param(job, tensor, l),
                     (size_t)m->config.num_buckets * (size_t)m->config.num_heads, m->ops);
}

// --- generation: keys and values of tokens before ----------------------------------------------------------

static int64_t said_values(const Model* m, const ModelCache* cache) {
    return (int64_t)cache->num_slots * cache->max_tokens * heads_width(m);
}

// Of each layer of the last stack: keys and values of its tokens, (num_slots * max_tokens, I) each, and of
// the encoder's tokens, (num_slots * max_enc_tokens, 2I).
static int64_t cached_layer_values(const Model* m, const ModelCache* cache) {
    const int64_t of_encoder = 2 * (int64_t)cache->num_slots * cache->max_enc_tokens * heads_width(m);
    return 2 * said_values(m, cache) + (m->config.kind->has_decoder ? of_encoder : 0);
}

int64_t model_cache_bytes(const Model* m, const ModelCache* cache) {
    return layers_of(m, last_side(m)) * cached_layer_values(m, cache) * X_BYTES;
}

static floatX* cached_layer(const Job* job, int l) {
    return (floatX*)job->cache->memory + l * cached_layer_values(job->model, job->cache);
}

// Appends the new keys and values to the cache; attention then reads these.
static void attend_said(const Job* job, Attention* about, const Layer* layer, int T, int l) {
    const Model* m = job->model;
    const int I = heads_width(m);
    floatX *keys = cached_layer(job, l), *values = keys + said_values(m, job->cache);
    place_rows(keys, I, layer->qkv + I, 3 * I, job->said.rows, T, I, m->ops);
    place_rows(values, I, layer->qkv + 2 * I, 3 * I, job->said.rows, T, I, m->ops);
    about->k = keys;
    about->v = values;
    about->kv_stride = I;
    about->cu_k = job->said.begins;
    about->k_lens = job->said.lens;
    about->q_starts = job->said.starts;
    about->num_k_tokens = job->cache->num_slots * job->cache->max_tokens;
}

static void attend_asked(const Job* job, Attention* about, const Layer* layer, int Te, int l) {
    const Model* m = job->model;
    const int I = heads_width(m);
    floatX* kv = cached_layer(job, l) + 2 * said_values(m, job->cache);
    if (Te > 0) { place_rows(kv, 2 * I, layer->xkv, 2 * I, job->asked.rows, Te, 2 * I, m->ops); }
    about->k = kv;
    about->v = kv + I;
    about->cu_k = job->asked.begins;
    about->k_lens = job->asked.lens;
    about->num_k_tokens = job->cache->num_slots * job->cache->max_enc_tokens;
}

// --- forward: a layer --------------------------------------------------------------------------------------

// From norm_self to self-attention's output, in `columns`.
static void self_attention_forward(const Job* job, Side side, const Layer* layer, floatX* columns, int l) {
    const Model* m = job->model;
    const ModelStack* stack = stack_of(m, side);
    const int T = job->batch.sides[side].num_tokens, C = m->config.channels, I = heads_width(m);
    load_bias(job, side, true, l);
    linear_forward(job, stack->qkv, l, layer->qkv, layer->norm_self, T, C, 3 * I);
    Attention about = self_attention(job, layer, side, l);
    if (job->cache != NULL && side == last_side(m)) { attend_said(job, &about, layer, T, l); }
    attention_forward(layer->atty, layer->lse, &about, m->ops);
    output_forward(job, side, stack->o, l, columns, layer->atty, I, MODEL_DROP_ATTENTION);
}

// From norm_cross and enc_out to cross-attention's output.
static void cross_attention_forward(const Job* job, const Layer* layer, const floatX* enc_out,
                                    floatX* columns, int l) {
    const Model* m = job->model;
    const ModelStack* stack = stack_of(m, DEC);
    const int Te = job->batch.sides[ENC].num_tokens, T = job->batch.sides[DEC].num_tokens;
    const int C = m->config.channels, I = heads_width(m);
    linear_forward(job, stack->xq, l, layer->xq, layer->norm_cross, T, C, I);
    if (Te > 0) { linear_forward(job, stack->xkv, l, layer->xkv, enc_out, Te, C, 2 * I); }
    Attention about = cross_attention(job, layer, l);
    if (job->cache != NULL) { attend_asked(job, &about, layer, Te, l); }
    attention_forward(layer->xatty, layer->xlse, &about, m->ops);
    output_forward(job, DEC, stack->xo, l, columns, layer->xatty, I, MODEL_DROP_CROSS);
}

// From norm_ffn to act.
static void activation_forward(const Job* job, Side side, const Layer* layer, int l) {
    const Model* m = job->model;
    const ModelLinear wi = stack_of(m, side)->wi;
    const int T = job->batch.sides[side].num_tokens, C = m->config.channels,
              F = model_ffn_channels(&m->config);
    if (m->config.kind->activation == MODEL_GELU) {
        matmul_gelu_forward(layer->act, layer->h, layer->norm_ffn, param(job, wi.weight, l),
                            bias_param(job, wi.bias, l), T, C, F, m->ops);
    } else {
        linear_forward(job, wi, l, layer->h, layer->norm_ffn, T, C, ffn_rows(m));
        if (m->config.gated) {
            gated_gelu_forward(layer->act, layer->h, T, F, m->ops);
        } else {
            relu_forward(layer->act, layer->h, (size_t)T * (size_t)F, m->ops);
        }
    }
    if (m->config.kind->drops_more) {
        drop(job, layer->act, job->batch.sides[side].keys, drop_place(job, side, l, MODEL_DROP_ACTIVATION), T,
             F);
    }
}

static void ffn_output_forward(const Job* job, Side side, const Layer* layer, floatX* columns, int l) {
    output_forward(job, side, stack_of(job->model, side)->wo, l, columns, layer->act,
                   model_ffn_channels(&job->model->config), MODEL_DROP_FFN);
}

// Up to act. norm_self is already computed with the sum that ends the layer below.
static void layer_forward(const Job* job, Side side, const Layer* layer, const floatX* x,
                          const floatX* enc_out, floatX* columns, int l) {
    const ModelStack* stack = stack_of(job->model, side);
    const int T = job->batch.sides[side].num_tokens;
    self_attention_forward(job, side, layer, columns, l);
    if (side == DEC) {
        add_norm_forward(job, stack->norm_cross, l, layer->residual_cross, layer->norm_cross,
                         &layer->stats_cross, x, columns, T);
        cross_attention_forward(job, layer, enc_out, columns, l);
        x = layer->residual_cross;
    }
    add_norm_forward(job, stack->norm_ffn, l, layer->residual_ffn, layer->norm_ffn, &layer->stats_ffn, x,
                     columns, T);
    activation_forward(job, side, layer, l);
}

// --- forward: a stack --------------------------------------------------------------------------------------

static void embed(const Job* job, Side side, floatX* x) {
    const BatchSide* batch = &job->batch.sides[side];
    const int C = job->model->config.channels;
    embedding_forward(x, batch->tokens, batch->positions, param(job, MODEL_EMBEDDING, 0),
                      bias_param(job, job->model->config.kind->positions, 0), batch->num_tokens, C,
                      job->model->ops);
    drop(job, x, batch->keys,
         model_drop_place_outside(&job->model->config, side == DEC, MODEL_DROP_EMBEDDING), batch->num_tokens,
         C);
}

// Without KEEP act is temporary.
static Layer layer_to_fill(const Job* job, Side side, const Scratch* scratch, int l) {
    Layer layer = layer_at(job, side, l);
    if (layer.act == NULL) { layer.act = scratch->wide; }
    return layer;
}

// All layers of a stack, from `x` (NULL: its tokens) up to the last one's act, whose addition to
// residual_ffn is left to the caller. Returns the last layer's buffers.
static Layer layers_forward(const Job* job, Side side, const floatX* x, const floatX* enc_out) {
    const ModelLinear norm_self = stack_of(job->model, side)->norm_self;
    const int T = job->batch.sides[side].num_tokens, n = layers_of(job->model, side);
    const Scratch scratch = split_scratch(job, side);
    Layer layer = layer_to_fill(job, side, &scratch, 0);
    load_bias(job, side, false, 0);
    if (begins(job->model, side)) {
        embed(job, side, layer.x);
        x = layer.x;
    }
    norm_forward(job, norm_self, 0, layer.norm_self, &layer.stats_self, x, 1.0f, T);
    for (int l = 0;; l++) {
        layer_forward(job, side, &layer, x, enc_out, scratch.columns, l);
        if (l + 1 == n) { return layer; }
        ffn_output_forward(job, side, &layer, scratch.columns, l);
        const Layer next = layer_to_fill(job, side, &scratch, l + 1);
        add_norm_forward(job, norm_self, l + 1, next.x, next.norm_self, &next.stats_self, layer.residual_ffn,
                         scratch.columns, T);
        layer = next;
        x = layer.x;
    }
}

// The last layer's output x_n, to `out`; NULL: not needed.
static void stack_output(const Job* job, Side side, const Layer* last, floatX* out) {
    if (out == NULL) { return; }
    const size_t num_values = (size_t)job->batch.sides[side].num_tokens * (size_t)job->model->config.channels;
    const Scratch scratch = split_scratch(job, side);
    ffn_output_forward(job, side, last, scratch.columns, layers_of(job->model, side) - 1);
    residual_forward(out, last->residual_ffn, scratch.columns, num_values, job->model->ops);
}

// x_n and its norm, to the range's own enc_out or to `out`; if both are missing, only for backward.
static const floatX* encoder_end_forward(const Job* job, const Layer* last, floatX* out) {
    const Model* m = job->model;
    const BatchSide* batch = &job->batch.sides[ENC];
    const int T = batch->num_tokens;
    const Scratch scratch = split_scratch(job, ENC);
    const EncoderEnd end = encoder_end(job);
    floatX* enc_out = end.enc_out != NULL ? end.enc_out : out;
    ffn_output_forward(job, ENC, last, scratch.columns, layers_of(m, ENC) - 1);
    add_norm_forward(job, stack_of(m, ENC)->norm_end, 0, end.x_end, enc_out != NULL ? enc_out : scratch.wide,
                     &end.stats, last->residual_ffn, scratch.columns, T);
    if (enc_out != NULL && m->config.kind->drops_more) {
        drop(job, enc_out, batch->keys, model_drop_place_outside(&m->config, false, MODEL_DROP_END), T,
             m->config.channels);
    }
    return enc_out;
}

// Encoder layers from `in` on, to `out` or this range's own enc_out; returns enc_out if the encoder ends
// here.
static const floatX* encoder_forward(const Job* job, const floatX* in, floatX* out) {
    const Layer last = layers_forward(job, ENC, in, NULL);
    if (ends(job->model, ENC)) { return encoder_end_forward(job, &last, out); }
    stack_output(job, ENC, &last, out);
    return NULL;
}

// Layers of the last stack. enc_out: of an encoder in this range; otherwise the beginning of `in`, which
// KEEP copies. Returns x_n if the stack ends here.
static const floatX* last_stack_forward(const Job* job, const floatX* enc_out, const floatX* in,
                                        floatX* out) {
    const Model* m = job->model;
    const Side side = last_side(m);
    const int Te = side == DEC ? job->batch.sides[ENC].num_tokens : 0;
    const size_t enc_bytes = (size_t)Te * (size_t)m->config.channels * sizeof(floatX);
    if (Te > 0 && enc_out == NULL) {
        const EncoderEnd end = encoder_end(job);
        if (end.enc_out != NULL) { ops_copy(m->ops, end.enc_out, in, enc_bytes); }
        enc_out = in;
    }
    const floatX* x = in != NULL ? in + boundary_dec_values(m, m->layer_begin, Te) : NULL;
    const Layer last = layers_forward(job, side, x, enc_out);
    if (ends(m, side)) {
        stack_output(job, side, &last, last.x_next);
        return last.x_next;
    }
    if (out == NULL) { return NULL; }
    const int64_t dec_begin = boundary_dec_values(m, m->layer_end, Te);
    if (dec_begin > 0) { ops_copy(m->ops, out, enc_out, enc_bytes); }  // later ranges read it
    stack_output(job, side, &last, out + dec_begin);
    return NULL;
}

// --- forward: the head -------------------------------------------------------------------------------------

static Head head_at(const Job* job, int flags) {
    Head head;
    head_buffers(&head, job->model, job->batch.num_rows, flags, job->acts + job->map.head);
    return head;
}

static bool drops_rows(const Job* job) {
    return job->batch.dropout > 0.0f && job->model->config.kind->drops_more;
}

static void drop_head_rows(const Job* job, const Head* head, floatX* x, int num_rows) {
    const Model* m = job->model;
    if (!drops_rows(job)) { return; }
    drop(job, x, head->keys, model_drop_place_outside(&m->config, last_side(m) == DEC, MODEL_DROP_END),
         num_rows, m->config.channels);
}

// The final norm of `num_rows` supervised rows from `begin` on, from x_n, and its dropout.
static void head_norm_forward(const Job* job, const Head* head, floatX* norm, const floatX* x, int begin,
                              int num_rows) {
    const Model* m = job->model;
    const Side side = last_side(m);
    const int32_t* rows = job->batch.rows + begin;
    gather_rows(head->rows, x, rows, num_rows, m->config.channels, m->ops);
    if (drops_rows(job)) {  // 32 bits, carried as values
        gather_rows((floatX*)(void*)head->keys, (const floatX*)(const void*)job->batch.sides[side].keys, rows,
                    num_rows, (int)(sizeof(uint32_t) / sizeof(floatX)), m->ops);
    }
    norm_forward(job, stack_of(m, side)->norm_end, 0, norm, &head->stats, head->rows, head_scale(m),
                 num_rows);
    drop_head_rows(job, head, norm, num_rows);
}

static void logits_forward(const Job* job, floatX* logits, const floatX* norm, int num_rows) {
    const ModelConfig* config = &job->model->config;
    matmul_forward(logits, norm, param(job, head_tensor(job->model), 0), NULL, num_rows, config->channels,
                   config->padded_vocab, job->model->ops);
}

static void rows_forward(const Job* job, const Head* head, const floatX* x, int begin, int num_rows,
                         float* losses, float dlogits_scale) {
    const ModelConfig* config = &job->model->config;
    head_norm_forward(job, head, head->norm, x, begin, num_rows);
    logits_forward(job, head->logits, head->norm, num_rows);
    fused_classifier(losses, head->logits, job->batch.targets + begin, dlogits_scale, num_rows, config->vocab,
                     config->padded_vocab, job->model->ops);
}

static void whole_head_forward(const Job* job, const floatX* x, float* losses) {
    Model* m = job->model;
    const int R = job->batch.num_rows;
    const bool keep = job->flags & MODEL_KEEP;
    const Head head = head_at(job, job->flags);
    m->last_logits = keep ? NULL : head.logits;
    if (R == 0) { return; }
    float* results = ops_results(m->ops, losses, (size_t)R);
    if (keep) {
        assert(job->host->loss_scale != 0.0f);  // 0 would leave logits in place of the gradients
        rows_forward(job, &head, x, 0, R, results, job->host->loss_scale);
    } else {
        // The first rows are computed last, so that last_logits contains them.
        for (int begin = (R - 1) / head.num_rows * head.num_rows; begin >= 0; begin -= head.num_rows) {
            const int num_rows = R - begin < head.num_rows ? R - begin : head.num_rows;
            rows_forward(job, &head, x, begin, num_rows, results + begin, 0.0f);
        }
    }
    ops_deliver(m->ops, losses, results, (size_t)R);
}

// Normed rows, for the head's shares; `out` NULL: only for backward.
static void feed_head(const Job* job, const floatX* x, floatX* out) {
    const int R = job->batch.num_rows;
    const Head head = head_at(job, job->flags);
    for (int begin = 0; begin < R; begin += head.num_rows) {
        const int num_rows = R - begin < head.num_rows ? R - begin : head.num_rows;
        floatX* norm = out != NULL ? out + (int64_t)begin * job->model->config.channels : scratch_rows(job);
        head_norm_forward(job, &head, norm, x, begin, num_rows);
    }
}

void model_forward(Model* m, const ModelBatch* batch, const void* in, void* out, void* acts, void* scratch,
                   float* losses, int flags) {
    if (model_is_share(m)) {
        head_forward(m, batch, in, out, acts, losses, flags);
        return;
    }
    if (m->has_head && flags == 0) { return; }  // no output is read before the recompute
    const bool with_head = m->has_head && flags & MODEL_HEAD, feeds = model_feeds_head(m);
    const int arrays = BATCH_SEQS | BATCH_KEYS | BATCH_TOKENS | (with_head || feeds ? BATCH_ROWS : 0) |
                       (with_head ? BATCH_TARGETS : 0);
    const Job job = begin_job(m, batch, arrays, acts, scratch, flags);
    const floatX *enc_out = NULL, *x_end = (const floatX*)in;
    if (m->config.kind->has_decoder && layers_of(m, ENC) > 0) {
        enc_out = encoder_forward(&job, (const floatX*)in, (floatX*)out);
    }
    if (layers_of(m, last_side(m)) > 0) {
        x_end = last_stack_forward(&job, enc_out, (const floatX*)in, (floatX*)out);
    }
    if (with_head) { whole_head_forward(&job, x_end, losses); }
    if (feeds) { feed_head(&job, x_end, (floatX*)out); }
}

// --- generation --------------------------------------------------------------------------------------------

// Scratch of a call: acts of a forward without KEEP, scratch, and the head of the sequences' last tokens.
static int64_t split_infer(Job* job, Head* head, const Model* m, const ModelBatch* batch, char* memory) {
    const int64_t acts = round_up_64(job->map.end), scratch = round_up_64(model_scratch_bytes(m, batch));
    job->acts = memory;
    job->scratch = memory + acts;
    int64_t num_bytes = acts + scratch;
    *head = (Head){.num_rows = 0};
    if (m->is_last) {  // all rows at once
        num_bytes += head_buffers(head, m, batch->num_seqs, MODEL_KEEP, memory + num_bytes);
    }
    return num_bytes;
}

// Counts tokens and sequences; there are no rows.
static ModelBatch without_rows(const ModelBatch* batch) {
    ModelBatch copy = *batch;
    copy.num_rows = 0;
    copy.token_keys = copy.dec_token_keys = NULL;
    return copy;
}

int64_t model_infer_bytes(const Model* m, const ModelBatch* batch) {
    if (model_is_share(m)) { return head_infer_bytes(m, batch); }
    const ModelBatch copy = without_rows(batch);
    Job job = {.map = map_acts(m, &copy, 0)};
    Head head;
    return split_infer(&job, &head, m, &copy, nowhere);
}

// If the head is shared, to the rows that its shares read.
static void infer_head(const Job* job, const Head* head, const floatX* x, floatX* out, int32_t* next) {
    Model* m = job->model;
    const int B = job->batch.num_seqs;
    gather_rows(head->rows, x, job->said.last_rows, B, m->config.channels, m->ops);
    norm_forward(job, stack_of(m, last_side(m))->norm_end, 0, m->has_head ? head->norm : out, &head->stats,
                 head->rows, head_scale(m), B);
    if (!m->has_head) { return; }
    logits_forward(job, head->logits, head->norm, B);
    argmax_rows(next, head->logits, B, m->config.vocab, m->config.padded_vocab, m->ops);
    m->last_logits = head->logits;
}

// All encoder tokens of a sequence are in one call: those in the cache are this batch's, or (without
// encoder tokens) an earlier call's.
static void stage_cache_rows(Job* job, const ModelBatch* batch) {
    const ModelCache* cache = job->cache;
    OpsContext* ops = job->model->ops;
    const bool has_decoder = job->model->config.kind->has_decoder;
    job->said = cache_rows_stage(batch->num_seqs, has_decoder ? batch->dec_cu_seqlens : batch->cu_seqlens,
                                 cache->slots, cache->num_before, cache->max_tokens, ops);
    if (layers_of(job->model, DEC) == 0) { return; }
    const bool asks = batch->num_tokens > 0;
    job->asked = cache_rows_stage(batch->num_seqs, asks ? batch->cu_seqlens : NULL, cache->slots,
                                  asks ? NULL : cache->num_enc, cache->max_enc_tokens, ops);
}

void model_infer(Model* m, const ModelBatch* batch, const ModelCache* cache, const void* in, void* out,
                 void* scratch, int32_t* next) {
    if (model_is_share(m)) {
        head_infer(m, batch, in, out, scratch);
        return;
    }
    const ModelBatch copy = without_rows(batch);
    const floatX *enc_out = NULL, *x_end = (const floatX*)in;
    const bool has_last_layers = layers_of(m, last_side(m)) > 0;
    Head head;
    Job job = begin_job(m, &copy, BATCH_SEQS | BATCH_TOKENS, NULL, NULL, 0);
    split_infer(&job, &head, m, &copy, (char*)scratch);
    job.cache = cache;
    if (m->config.kind->has_decoder && layers_of(m, ENC) > 0 && batch->num_tokens > 0) {
        enc_out = encoder_forward(&job, (const floatX*)in, (floatX*)out);
    }
    m->last_logits = NULL;
    if (!has_last_layers && !m->is_last) { return; }
    stage_cache_rows(&job, batch);
    if (has_last_layers) { x_end = last_stack_forward(&job, enc_out, (const floatX*)in, (floatX*)out); }
    if (m->is_last) { infer_head(&job, &head, x_end, (floatX*)out, next); }
    cache_rows_free(&job.said);
    cache_rows_free(&job.asked);
}

// --- backward: the chain of input gradients; output gradients of matrices stay in acts --------------------

// Does backward start from the head, or from the gradient of the normed rows?
static bool starts_at_rows(const Model* m, const void* dout) {
    return dout == NULL || model_feeds_head(m);
}

// From dlogits, or from the gradient of the normed rows, to dx_n, which is zero except in supervised rows.
static void rows_backward_inputs(const Job* job, const floatX* dfed, floatX* dx) {
    const Model* m = job->model;
    const Side side = last_side(m);
    const int R = job->batch.num_rows, C = m->config.channels;
    const Head head = head_at(job, job->flags | MODEL_HEAD);
    floatX *dnorm = scratch_rows(job), *drows = dnorm + (int64_t)head.num_rows * C;
    if (R > 0) {
        if (m->has_head) {
            matmul_backward_input(dnorm, head.logits, param(job, head_tensor(m), 0), R, C,
                                  m->config.padded_vocab, m->ops);
        } else {
            ops_copy(m->ops, dnorm, dfed, (size_t)head_rows_bytes(&m->config, R));
        }
        drop_head_rows(job, &head, dnorm, R);
        norm_backward(job, stack_of(m, side)->norm_end, 0, drows, NULL, dnorm, head.rows, &head.stats,
                      head_scale(m), R);
    }
    scatter_rows(dx, drows, job->batch.rows, R, job->batch.sides[side].num_tokens, C, m->ops);
}

// h becomes dh; returns the gradient of residual_ffn.
static const floatX* ffn_backward_inputs(const Job* job, Side side, const Layer* layer, const floatX* dx_next,
                                         const Scratch* scratch, int l) {
    const Model* m = job->model;
    const ModelStack* stack = stack_of(m, side);
    const BatchSide* batch = &job->batch.sides[side];
    const int T = batch->num_tokens, C = m->config.channels, F = model_ffn_channels(&m->config);
    floatX *columns = scratch->columns, *dact = scratch->wide;
    const floatX* dy = dropped(job, side, dx_next, columns, drop_place(job, side, l, MODEL_DROP_FFN));
    if (m->config.kind->activation == MODEL_GELU) {
        matmul_gelu_backward_input(layer->h, layer->h, dact, dy, param(job, stack->wo.weight, l), T, F, C,
                                   m->ops);
    } else {
        linear_backward_input(job, stack->wo, l, dact, dy, T, F, C);
        drop(job, dact, batch->keys, drop_place(job, side, l, MODEL_DROP_ACTIVATION), T, F);
        if (m->config.gated) {
            gated_gelu_backward(layer->h, dact, layer->h, T, F, m->ops);
        } else {
            relu_backward(layer->h, dact, layer->h, (size_t)T * (size_t)F, m->ops);
        }
    }
    linear_backward_input(job, stack->wi, l, columns, layer->h, T, C, ffn_rows(m));
    norm_backward(job, stack->norm_ffn, l, layer->dresidual_ffn, dx_next, columns, layer->residual_ffn,
                  &layer->stats_ffn, 1.0f, T);
    return layer->dresidual_ffn;
}

// Gradient of residual_cross; that of enc_out is added to `denc_from` (NULL: zero) and stored in denc_out.
static const floatX* cross_backward_inputs(const Job* job, const Layer* layer, const floatX* dresidual,
                                           const floatX* denc_from, floatX* denc_out, const Scratch* scratch,
                                           int l) {
    const Model* m = job->model;
    const ModelStack* stack = stack_of(m, DEC);
    const int Te = job->batch.sides[ENC].num_tokens, T = job->batch.sides[DEC].num_tokens;
    const int C = m->config.channels, I = heads_width(m);
    floatX *columns = scratch->columns, *dxatty = scratch->wide;
    const floatX* dy = dropped(job, DEC, dresidual, columns, drop_place(job, DEC, l, MODEL_DROP_CROSS));
    linear_backward_input(job, stack->xo, l, dxatty, dy, T, I, C);
    const Attention about = cross_attention(job, layer, l);
    attention_backward(layer->dxq, layer->dxkv, layer->dxkv + I, NULL, scratch->attention, dxatty,
                       layer->xatty, layer->xlse, &about, m->ops);
    floatX* mine = denc_from == NULL ? denc_out : scratch->wide;
    linear_backward_input(job, stack->xkv, l, mine, layer->dxkv, Te, C, 2 * I);
    if (denc_from != NULL) { residual_forward(denc_out, denc_from, mine, (size_t)Te * (size_t)C, m->ops); }
    linear_backward_input(job, stack->xq, l, columns, layer->dxq, T, C, I);
    norm_backward(job, stack->norm_cross, l, layer->dresidual_cross, dresidual, columns,
                  layer->residual_cross, &layer->stats_cross, 1.0f, T);
    return layer->dresidual_cross;
}

// Gradient of the layer's input x, to dx.
static void self_backward_inputs(const Job* job, Side side, const Layer* layer, const floatX* x,
                                 const floatX* dresidual, floatX* dx, const Scratch* scratch, int l) {
    const Model* m = job->model;
    const ModelStack* stack = stack_of(m, side);
    const int T = job->batch.sides[side].num_tokens, C = m->config.channels, I = heads_width(m);
    floatX *columns = scratch->columns, *datty = scratch->wide;
    const floatX* dy = dropped(job, side, dresidual, columns, drop_place(job, side, l, MODEL_DROP_ATTENTION));
    linear_backward_input(job, stack->o, l, datty, dy, T, I, C);
    load_bias(job, side, true, l);
    const Attention about = self_attention(job, layer, side, l);
    attention_backward(layer->dqkv, layer->dqkv + I, layer->dqkv + 2 * I,
                       bias_grad(job, stack->bias, m->config.bias_per_layer ? l : 0), scratch->attention,
                       datty, layer->atty, layer->lse, &about, m->ops);
    linear_backward_input(job, stack->qkv, l, columns, layer->dqkv, T, C, 3 * I);
    norm_backward(job, stack->norm_self, l, dx, dresidual, columns, x, &layer->stats_self, 1.0f, T);
}

// All layers of a stack, last one first, from the gradient of x_n down; x and dx are those of x_0 if the
// stack does not begin here. Decoder: the gradient of enc_out is `denc_from` plus that of the layers.
static void layers_backward_inputs(const Job* job, Side side, const floatX* dx_next, const floatX* x,
                                   floatX* dx, const floatX* denc_from, floatX* denc_out) {
    const Scratch scratch = split_scratch(job, side);
    load_bias(job, side, false, 0);
    for (int l = layers_of(job->model, side) - 1; l >= 0; l--) {
        const Layer layer = layer_at(job, side, l);
        const floatX* dresidual = ffn_backward_inputs(job, side, &layer, dx_next, &scratch, l);
        if (side == DEC) {
            dresidual = cross_backward_inputs(job, &layer, dresidual, denc_from, denc_out, &scratch, l);
            denc_from = denc_out;
        }
        floatX* dx_here = layer.dx != NULL ? layer.dx : dx;
        self_backward_inputs(job, side, &layer, layer.x != NULL ? layer.x : x, dresidual, dx_here, &scratch,
                             l);
        dx_next = dx_here;
    }
}

// From the gradient of enc_out to that of x_n.
static const floatX* encoder_end_backward_inputs(const Job* job, const floatX* denc_out) {
    const Model* m = job->model;
    const EncoderEnd end = encoder_end(job);
    if (m->config.kind->drops_more) {
        denc_out = dropped(job, ENC, denc_out, split_scratch(job, ENC).columns,
                           model_drop_place_outside(&m->config, false, MODEL_DROP_END));
    }
    norm_backward(job, stack_of(m, ENC)->norm_end, 0, end.dx_end, NULL, denc_out, end.x_end, &end.stats, 1.0f,
                  job->batch.sides[ENC].num_tokens);
    return end.dx_end;
}

static floatX* shifted(const void* boundary, int64_t num_values) {
    return boundary != NULL ? (floatX*)(uintptr_t)boundary + num_values : NULL;
}

void model_backward_inputs(Model* m, const ModelBatch* batch, const void* in, void* acts, const void* dout,
                           void* din, void* scratch) {
    if (model_is_share(m)) {
        head_backward_inputs(m, batch, acts, din);
        return;
    }
    const bool at_rows = starts_at_rows(m, dout);
    const Side last = last_side(m);
    const int num_last = layers_of(m, last);
    const Job job =
        begin_job(m, batch, BATCH_SEQS | BATCH_KEYS | (at_rows ? BATCH_ROWS : 0), acts, scratch, MODEL_KEEP);
    const int64_t in_begin = boundary_dec_values(m, m->layer_begin, batch->num_tokens);
    const int64_t out_begin = boundary_dec_values(m, m->layer_end, batch->num_tokens);
    const floatX *dx_next = shifted(dout, out_begin), *denc_out = (const floatX*)dout;
    if (at_rows) {
        floatX* dx = num_last > 0 ? layer_at(&job, last, num_last - 1).dx_next : (floatX*)din;
        rows_backward_inputs(&job, (const floatX*)dout, dx);
        dx_next = dx;
    }
    if (num_last > 0) {
        floatX* sum = ends_encoder(m) ? encoder_end(&job).denc_out : (floatX*)din;
        layers_backward_inputs(&job, last, dx_next, shifted(in, in_begin), shifted(din, in_begin),
                               out_begin > 0 ? (const floatX*)dout : NULL, sum);
        denc_out = sum;
    }
    if (m->config.kind->has_decoder && layers_of(m, ENC) > 0) {
        dx_next = ends(m, ENC) ? encoder_end_backward_inputs(&job, denc_out) : denc_out;
        layers_backward_inputs(&job, ENC, dx_next, (const floatX*)in, (floatX*)din, NULL, NULL);
    }
}

// --- backward: one product per matrix from the kept gradients and activations -----------------------------

static void layer_backward_weights(const Job* job, Side side, const Layer* layer, const floatX* dx_next,
                                   const floatX* enc_out, int l) {
    const Model* m = job->model;
    const ModelStack* stack = stack_of(m, side);
    const int T = job->batch.sides[side].num_tokens, C = m->config.channels, I = heads_width(m);
    const floatX* dresidual_self = side == DEC ? layer->dresidual_cross : layer->dresidual_ffn;
    output_backward_weight(job, side, stack->wo, l, dx_next, layer->act, model_ffn_channels(&m->config),
                           MODEL_DROP_FFN);
    linear_backward_weight(job, stack->wi, l, layer->h, layer->norm_ffn, T, C, ffn_rows(m));
    output_backward_weight(job, side, stack->o, l, dresidual_self, layer->atty, I, MODEL_DROP_ATTENTION);
    linear_backward_weight(job, stack->qkv, l, layer->dqkv, layer->norm_self, T, C, 3 * I);
    if (side == ENC) { return; }
    const int Te = job->batch.sides[ENC].num_tokens;
    output_backward_weight(job, DEC, stack->xo, l, layer->dresidual_ffn, layer->xatty, I, MODEL_DROP_CROSS);
    linear_backward_weight(job, stack->xq, l, layer->dxq, layer->norm_cross, T, C, I);
    linear_backward_weight(job, stack->xkv, l, layer->dxkv, enc_out, Te, C, 2 * I);
}

// Of a stack that begins here: dx_0 goes through the embedding's dropout, in place, into the table's
// gradient.
static void embedding_backward_weights(const Job* job, Side side) {
    const Model* m = job->model;
    const BatchSide* batch = &job->batch.sides[side];
    const int T = batch->num_tokens, C = m->config.channels;
    floatX* dx = layer_at(job, side, 0).dx;
    drop(job, dx, batch->keys, model_drop_place_outside(&m->config, side == DEC, MODEL_DROP_EMBEDDING), T, C);
    embedding_backward(grad(job, MODEL_EMBEDDING, 0), bias_grad(job, m->config.kind->positions, 0),
                       job->scratch, dx, batch->tokens, batch->positions, T, C, m->ops);
}

void model_backward_weights(Model* m, const ModelBatch* batch, void* acts, const void* dout, void* scratch) {
    if (model_is_share(m)) {
        head_backward_weights(m, batch, acts, dout);
        return;
    }
    const bool at_rows = starts_at_rows(m, dout);
    const Job job = begin_job(m, batch, BATCH_KEYS | BATCH_TOKENS, acts, scratch, MODEL_KEEP);
    const int R = batch->num_rows;
    if (m->has_head && at_rows && R > 0) {
        const Head head = head_at(&job, MODEL_KEEP | MODEL_HEAD);
        matmul_backward_weight(grad(&job, head_tensor(m), 0), NULL, head.logits, head.norm, R,
                               m->config.channels, m->config.padded_vocab, m->ops);
    }
    const floatX* enc_out = encoder_end(&job).enc_out;
    const int64_t out_begin = boundary_dec_values(m, m->layer_end, batch->num_tokens);
    for (int i = ENC; i <= (int)last_side(m); i++) {
        const Side side = (Side)i;
        for (int l = layers_of(m, side) - 1; l >= 0; l--) {
            const Layer layer = layer_at(&job, side, l);
            const bool is_top = l == layers_of(m, side) - 1;
            const bool is_dout = is_top && (side == last_side(m) ? !at_rows : !ends(m, ENC));
            const floatX* dx_next = is_dout ? shifted(dout, side == DEC ? out_begin : 0) : layer.dx_next;
            layer_backward_weights(&job, side, &layer, dx_next, enc_out, l);
        }
        if (begins(m, side)) { embedding_backward_weights(&job, side); }
    }
}

// --- scratch, in bytes -------------------------------------------------------------------------------------

// From counts only, assuming that the stack has self-attention and an encoder.
static int64_t attention_bytes(const Model* m, const ModelBatch* batch, Side side) {
    const int T = (int)round_up_16(side == ENC ? batch->num_tokens : batch->num_dec_tokens);
    const int Te = (int)round_up_16(batch->num_tokens);
    static const float any_table[1] = {0};  // only whether there is one matters
    const Layer nothing = {.x = NULL};
    Job job = {
        .model = (Model*)(uintptr_t)m,
        .batch = {.num_seqs = batch->num_seqs, .dropout = m->dropout, .sides = {{.num_tokens = Te}, {0}}},
        .scratch = nowhere};
    job.batch.sides[side].num_tokens = T;
    Attention self = self_attention(&job, &nothing, side, 0), cross = cross_attention(&job, &nothing, 0);
    if (self.bias != NULL) { self.bias = any_table; }
    int64_t num_bytes = (int64_t)attention_scratch_bytes(&self, m->ops);
    if (side == DEC) { num_bytes = larger(num_bytes, (int64_t)attention_scratch_bytes(&cross, m->ops)); }
    return num_bytes;
}

static int64_t side_scratch_bytes(const Model* m, const ModelBatch* batch, Side side) {
    const int64_t C = m->config.channels, I = heads_width(m), F = model_ffn_channels(&m->config);
    const int64_t Te = round_up_16(batch->num_tokens);
    const int64_t T = side == ENC ? Te : round_up_16(batch->num_dec_tokens);
    int64_t wide = larger(T * larger(F, C) * X_BYTES, T * I * X_BYTES + attention_bytes(m, batch, side));
    if (side == DEC) { wide = larger(wide, Te * C * X_BYTES); }
    return T * C * X_BYTES + round_up_64(wide);
}

int64_t model_scratch_bytes(const Model* m, const ModelBatch* batch) {
    const int64_t C = m->config.channels;
    int64_t num_bytes = 0;
    if (model_is_share(m)) { return 0; }
    for (int i = ENC; i <= (int)last_side(m); i++) {
        const Side side = (Side)i;
        const int64_t T = round_up_16(side == ENC ? batch->num_tokens : batch->num_dec_tokens);
        if (layers_of(m, side) > 0) { num_bytes = larger(num_bytes, side_scratch_bytes(m, batch, side)); }
        if (begins(m, side)) {
            const int64_t embedding = (int64_t)embedding_backward_scratch_bytes((int)T, (int)C, m->ops);
            num_bytes = larger(num_bytes, round_up_64(embedding));
        }
    }
    if (m->is_last) { num_bytes = larger(num_bytes, 2 * round_up_16(batch->num_rows) * C * X_BYTES); }
    return 2 * table_bytes(m) + num_bytes;
}
