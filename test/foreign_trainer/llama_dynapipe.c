/*
llama_dynapipe.c -- the Llama of llama.h on DynaPipe: its kernels behind DynapipeModel_v1, and a training
loop.

A range of blocks is a model with fewer layers. Sequences of a micro-batch lie one after the other, without
padding; what works on rows takes all of them at once, RoPE and attention are called for each. backward_inputs
leaves in acts, in place of activations that nobody reads again, the gradients that backward_weights
multiplies.
*/
#include "llama_dynapipe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

enum { SEED = 1 };

// --- bytes -----------------------------------------------------------------------------------------------

// Of a layer, for N tokens: (N, C) each but k, v (N, KC), gate, up, act (N, F), r1, r2 (N), att (NH, T, T) of
// every sequence. dy: gradient of what the layer gives.
typedef struct {
    float *x, *h1, *q, *ao, *xa, *h2, *dy, *k, *v, *gate, *up, *act, *r1, *r2, *att;
} LayerActs;

static float* take(float** at, int64_t count) {
    float* begin = *at;
    *at += count;
    return begin;
}

static int key_channels(const LlamaConfig* c) {
    return c->channels / c->num_heads * c->num_kv_heads;
}

static int64_t layer_values(const LlamaConfig* c, const DynapipeBatch* batch) {
    int64_t of_token = 7 * c->channels + 2 * key_channels(c) + 3 * c->hidden + 2;
    return batch->num_tokens * of_token + batch->num_squares * c->num_heads;
}

static LayerActs point_layer(const Slice* s, const DynapipeBatch* batch, void* acts, int l) {
    const LlamaConfig* c = &s->config;
    LayerActs a;
    int64_t N = batch->num_tokens;
    float* at = (float*)acts + l * layer_values(c, batch);
    float** of_channels[] = {&a.x, &a.h1, &a.q, &a.ao, &a.xa, &a.h2, &a.dy};
    float** of_hidden[] = {&a.gate, &a.up, &a.act};
    for (int i = 0; i < 7; i++) { *of_channels[i] = take(&at, N * c->channels); }
    for (int i = 0; i < 3; i++) { *of_hidden[i] = take(&at, N * c->hidden); }
    a.k = take(&at, N * key_channels(c));
    a.v = take(&at, N * key_channels(c));
    a.r1 = take(&at, N);
    a.r2 = take(&at, N);
    a.att = at;
    return a;
}

// Of the head, for R supervised rows: what enters it, (R, C); normed; r (R); gradients of logits (R, V).
typedef struct {
    float *x, *hf, *rf, *dlogits;
} HeadActs;

static HeadActs point_head(const Slice* s, const DynapipeBatch* batch, void* acts, int num_layers) {
    HeadActs a;
    float* at = (float*)acts + num_layers * layer_values(&s->config, batch);
    a.x = take(&at, (int64_t)batch->num_rows * s->config.channels);
    a.hf = take(&at, (int64_t)batch->num_rows * s->config.channels);
    a.rf = take(&at, batch->num_rows);
    a.dlogits = at;
    return a;
}

// What keeps nothing goes through its layers in the place of one.
static int kept_layers(const Slice* s, int flags) {
    return flags & DYNAPIPE_FORWARD_KEEP ? s->config.num_layers : s->config.num_layers > 0;
}

static int64_t acts_bytes(void* model, const DynapipeBatch* batch, int flags) {
    const Slice* s = (const Slice*)model;
    int64_t of_head = (int64_t)batch->num_rows * (2 * s->config.channels + 1 + s->config.vocab_size);
    int has_head = (s->parts & LLAMA_HEAD) && (flags & DYNAPIPE_FORWARD_HEAD);
    return 4 * (kept_layers(s, flags) * layer_values(&s->config, batch) + (has_head ? of_head : 0));
}

// dx, dh, dq (N, C); dact (N, F); dk, dv (N, KC); a row of attention.
static int64_t scratch_bytes(void* model, const DynapipeBatch* batch) {
    const LlamaConfig* c = &((const Slice*)model)->config;
    int64_t of_token = 3 * c->channels + c->hidden + 2 * key_channels(c);
    return 4 * (batch->num_tokens * of_token + batch->max_seq_tokens);
}

static int64_t boundary_bytes(void* model, const DynapipeBatch* batch, int is_behind) {
    (void)is_behind;
    return 4 * (int64_t)batch->num_tokens * ((const Slice*)model)->config.channels;
}

// --- forward ---------------------------------------------------------------------------------------------

static void add(float* to, const float* from, int count) {
    for (int i = 0; i < count; i++) { to[i] += from[i]; }
}

// q, k turned; ao.
static void sequences_forward(const LlamaConfig* c, const DynapipeBatch* batch, LayerActs* a) {
    int C = c->channels, HS = C / c->num_heads, KC = key_channels(c);
    float* att = a->att;
    for (int i = 0; i < batch->num_seqs; i++) {
        int begin = batch->cu_seqlens[i], T = batch->cu_seqlens[i + 1] - begin;
        rope(a->q + begin * C, T, c->num_heads, HS, 1);
        rope(a->k + begin * KC, T, c->num_kv_heads, HS, 1);
        attention_forward(a->ao + begin * C, att, a->q + begin * C, a->k + begin * KC, a->v + begin * KC, T,
                          c->num_heads, c->num_kv_heads, HS);
        att += c->num_heads * T * T;
    }
}

// x (N, C): in and out.
static void layer_forward(const Slice* s, int l, const DynapipeBatch* batch, LayerActs* a, float* x,
                          float* room) {
    const LlamaConfig* c = &s->config;
    const LlamaTensors* p = &s->params;
    int N = batch->num_tokens, C = c->channels, F = c->hidden, KC = key_channels(c);
    memcpy(a->x, x, sizeof(float) * (size_t)(N * C));
    rmsnorm_forward(a->h1, a->r1, x, p->norm1 + l * C, N, C);
    matmul_forward(a->q, a->h1, p->wq + l * C * C, N, C, C);
    matmul_forward(a->k, a->h1, p->wk + l * KC * C, N, C, KC);
    matmul_forward(a->v, a->h1, p->wv + l * KC * C, N, C, KC);
    sequences_forward(c, batch, a);
    matmul_forward(room, a->ao, p->wo + l * C * C, N, C, C);
    add(x, room, N * C);
    memcpy(a->xa, x, sizeof(float) * (size_t)(N * C));
    rmsnorm_forward(a->h2, a->r2, x, p->norm2 + l * C, N, C);
    matmul_forward(a->gate, a->h2, p->wgate + l * F * C, N, C, F);
    matmul_forward(a->up, a->h2, p->wup + l * F * C, N, C, F);
    swiglu_forward(a->act, a->gate, a->up, N * F);
    matmul_forward(room, a->act, p->wdown + l * C * F, N, F, C);
    add(x, room, N * C);
}

static void head_forward(const Slice* s, const DynapipeBatch* batch, HeadActs a, const float* x,
                         float* losses) {
    int R = batch->num_rows, C = s->config.channels, V = s->config.vocab_size;
    for (int i = 0; i < R * C; i++) { a.x[i] = x[batch->rows[i / C] * C + i % C]; }
    rmsnorm_forward(a.hf, a.rf, a.x, s->params.normf, R, C);
    matmul_forward(a.dlogits, a.hf, s->params.head, R, C, V);
    crossentropy_forward_backward(losses, a.dlogits, batch->targets, batch->loss_scale, R, V);
}

static int forward(void* model, const DynapipeBatch* batch, const void* in, void* out, void* acts,
                   void* scratch, float* losses, int flags) {
    const Slice* s = (const Slice*)model;
    int N = batch->num_tokens, C = s->config.channels;
    size_t bytes = sizeof(float) * (size_t)(N * C);
    float *x = (float*)scratch, *room = x + N * C;
    if (in == NULL) {
        embedding_forward(x, batch->tokens, s->params.wte, N, C);
    } else {
        memcpy(x, in, bytes);
    }
    for (int l = 0; l < s->config.num_layers; l++) {
        LayerActs a = point_layer(s, batch, acts, flags & DYNAPIPE_FORWARD_KEEP ? l : 0);
        layer_forward(s, l, batch, &a, x, room);
    }
    if (out != NULL) { memcpy(out, x, bytes); }
    if (!(s->parts & LLAMA_HEAD) || !(flags & DYNAPIPE_FORWARD_HEAD)) { return 0; }
    head_forward(s, batch, point_head(s, batch, acts, kept_layers(s, flags)), x, losses);
    return 0;
}

// --- backward --------------------------------------------------------------------------------------------

// What backward_inputs works in.
typedef struct {
    float *dx, *dh, *dq, *dact, *dk, *dv, *datt;
    int64_t num_values;  // from dh on, without datt
} Room;

static Room point_room(const LlamaConfig* c, const DynapipeBatch* batch, void* scratch) {
    Room r;
    int64_t N = batch->num_tokens;
    float* at = (float*)scratch;
    r.dx = take(&at, N * c->channels);
    r.dh = take(&at, N * c->channels);
    r.dq = take(&at, N * c->channels);
    r.dact = take(&at, N * c->hidden);
    r.dk = take(&at, N * key_channels(c));
    r.dv = take(&at, N * key_channels(c));
    r.datt = at;
    r.num_values = at - r.dh;
    return r;
}

static void head_backward(const Slice* s, const DynapipeBatch* batch, HeadActs a, Room r) {
    int R = batch->num_rows, C = s->config.channels;
    float *dhf = r.dh, *drows = r.dq;
    memset(dhf, 0, sizeof(float) * (size_t)(R * C));
    memset(drows, 0, sizeof(float) * (size_t)(R * C));
    matmul_backward(dhf, NULL, a.dlogits, NULL, s->params.head, R, C, s->config.vocab_size);
    rmsnorm_backward(drows, s->grads.normf, dhf, a.x, s->params.normf, a.rf, R, C);
    memset(r.dx, 0, sizeof(float) * (size_t)(batch->num_tokens * C));
    for (int i = 0; i < R * C; i++) { r.dx[batch->rows[i / C] * C + i % C] += drows[i]; }
}

// dq, dk, dv of all sequences from dh, the gradient of ao; then they take the places of q, k, v.
static void sequences_backward(const LlamaConfig* c, const DynapipeBatch* batch, LayerActs* a, Room r) {
    int C = c->channels, HS = C / c->num_heads, KC = key_channels(c);
    const float* att = a->att;
    for (int i = 0; i < batch->num_seqs; i++) {
        int begin = batch->cu_seqlens[i], T = batch->cu_seqlens[i + 1] - begin;
        attention_backward(r.dq + begin * C, r.dk + begin * KC, r.dv + begin * KC, r.datt, r.dh + begin * C,
                           a->q + begin * C, a->k + begin * KC, a->v + begin * KC, att, T, c->num_heads,
                           c->num_kv_heads, HS);
        rope(r.dq + begin * C, T, c->num_heads, HS, -1);
        rope(r.dk + begin * KC, T, c->num_kv_heads, HS, -1);
        att += c->num_heads * T * T;
    }
    memcpy(a->q, r.dq, sizeof(float) * (size_t)(batch->num_tokens * C));
    memcpy(a->k, r.dk, sizeof(float) * (size_t)(batch->num_tokens * KC));
    memcpy(a->v, r.dv, sizeof(float) * (size_t)(batch->num_tokens * KC));
}

// r.dx (N, C): in and out.
static void layer_backward(const Slice* s, int l, const DynapipeBatch* batch, LayerActs* a, Room r) {
    const LlamaConfig* c = &s->config;
    const LlamaTensors* p = &s->params;
    int N = batch->num_tokens, C = c->channels, F = c->hidden, KC = key_channels(c);
    size_t bytes = sizeof(float) * (size_t)(N * C);
    memset(r.dh, 0, sizeof(float) * (size_t)r.num_values);
    memcpy(a->dy, r.dx, bytes);
    matmul_backward(r.dact, NULL, r.dx, NULL, p->wdown + l * C * F, N, F, C);
    swiglu_backward(a->gate, a->up, r.dact, N * F);
    matmul_backward(r.dh, NULL, a->gate, NULL, p->wgate + l * F * C, N, C, F);
    matmul_backward(r.dh, NULL, a->up, NULL, p->wup + l * F * C, N, C, F);
    rmsnorm_backward(r.dx, s->grads.norm2 + l * C, r.dh, a->xa, p->norm2 + l * C, a->r2, N, C);
    memcpy(a->xa, r.dx, bytes);
    memset(r.dh, 0, bytes);
    matmul_backward(r.dh, NULL, r.dx, NULL, p->wo + l * C * C, N, C, C);
    sequences_backward(c, batch, a, r);
    memset(r.dh, 0, bytes);
    matmul_backward(r.dh, NULL, a->q, NULL, p->wq + l * C * C, N, C, C);
    matmul_backward(r.dh, NULL, a->k, NULL, p->wk + l * KC * C, N, C, KC);
    matmul_backward(r.dh, NULL, a->v, NULL, p->wv + l * KC * C, N, C, KC);
    rmsnorm_backward(r.dx, s->grads.norm1 + l * C, r.dh, a->x, p->norm1 + l * C, a->r1, N, C);
}

static int backward_inputs(void* model, const DynapipeBatch* batch, const void* in, void* acts,
                           const void* dout, void* din, void* scratch) {
    const Slice* s = (const Slice*)model;
    int L = s->config.num_layers, N = batch->num_tokens, C = s->config.channels;
    size_t bytes = sizeof(float) * (size_t)(N * C);
    Room r = point_room(&s->config, batch, scratch);
    (void)in;
    if (dout == NULL) {
        head_backward(s, batch, point_head(s, batch, acts, L), r);
    } else {
        memcpy(r.dx, dout, bytes);
    }
    for (int l = L - 1; l >= 0; l--) {
        LayerActs a = point_layer(s, batch, acts, l);
        layer_backward(s, l, batch, &a, r);
    }
    if (din != NULL) {
        memcpy(din, r.dx, bytes);
    } else {
        embedding_backward(s->grads.wte, batch->tokens, r.dx, N, C);
    }
    return 0;
}

static int backward_weights(void* model, const DynapipeBatch* batch, void* acts, const void* dout,
                            void* scratch) {
    const Slice* s = (const Slice*)model;
    const LlamaConfig* c = &s->config;
    const LlamaTensors* g = &s->grads;
    int N = batch->num_tokens, C = c->channels, F = c->hidden, KC = key_channels(c);
    (void)dout;
    (void)scratch;
    for (int l = 0; l < c->num_layers; l++) {
        LayerActs a = point_layer(s, batch, acts, l);
        matmul_backward(NULL, g->wdown + l * C * F, a.dy, a.act, NULL, N, F, C);
        matmul_backward(NULL, g->wgate + l * F * C, a.gate, a.h2, NULL, N, C, F);
        matmul_backward(NULL, g->wup + l * F * C, a.up, a.h2, NULL, N, C, F);
        matmul_backward(NULL, g->wo + l * C * C, a.xa, a.ao, NULL, N, C, C);
        matmul_backward(NULL, g->wq + l * C * C, a.q, a.h1, NULL, N, C, C);
        matmul_backward(NULL, g->wk + l * KC * C, a.k, a.h1, NULL, N, C, KC);
        matmul_backward(NULL, g->wv + l * KC * C, a.v, a.h1, NULL, N, C, KC);
    }
    if (!(s->parts & LLAMA_HEAD)) { return 0; }
    HeadActs a = point_head(s, batch, acts, c->num_layers);
    matmul_backward(NULL, g->head, a.dlogits, a.hf, NULL, batch->num_rows, C, c->vocab_size);
    return 0;
}

static void zero_gradients(void* model) {
    Slice* s = (Slice*)model;
    memset(s->about.grads, 0, sizeof(float) * (size_t)s->about.num_params);
}

// --- ranges ----------------------------------------------------------------------------------------------

// Blocks: 0 the embedding, 1 ... L the layers, L + 1 the head.
int llama_make_slice(void* ctx, DynapipeRange blocks, int has_values, void** model,
                     DynapipeParams_v1* params) {
    const LlamaConfig* whole = (const LlamaConfig*)ctx;
    Slice* s = (Slice*)calloc(1, sizeof *s);
    if (s == NULL) { return 1; }
    int head = whole->num_layers + 1, last_layer = blocks.end < head ? blocks.end : head;
    s->parts = (blocks.begin == 0 ? LLAMA_EMBEDDING : 0) | (blocks.end > head ? LLAMA_HEAD : 0);
    s->first_layer = blocks.begin > 0 ? blocks.begin - 1 : 0;
    s->config = *whole;
    s->config.num_layers = last_layer - 1 - s->first_layer;
    s->about.num_params = (int64_t)llama_point(&s->params, s->config, s->parts, NULL);
    s->about.param_type = s->about.grad_type = DYNAPIPE_FLOAT32;
    if (whole->tied && s->parts != 0) {  // what both ends have a copy of: group 0
        s->tied.count = (int64_t)whole->vocab_size * whole->channels;
        s->tied.begin = s->parts & LLAMA_EMBEDDING ? 0 : s->about.num_params - s->tied.count;
        s->about.num_tied = 1;
        s->about.tied = &s->tied;
    }
    *model = s;
    if (has_values) {
        s->about.params = calloc((size_t)s->about.num_params, sizeof(float));
        s->about.grads = calloc((size_t)s->about.num_params, sizeof(float));
        if (s->about.params == NULL || s->about.grads == NULL) { return 1; }
        llama_point(&s->params, s->config, s->parts, (float*)s->about.params);
        llama_point(&s->grads, s->config, s->parts, (float*)s->about.grads);
        llama_init_params(&s->params, s->config, s->parts, s->first_layer, SEED);
    }
    *params = s->about;
    return 0;
}

void llama_drop_slice(void* ctx, void* model) {
    Slice* s = (Slice*)model;
    (void)ctx;
    free(s->about.params);
    free(s->about.grads);
    free(s);
}

DynapipeModel_v1 llama_table(void) {
    DynapipeModel_v1 api;
    memset(&api, 0, sizeof api);
    api.name = "llama";
    api.acts_bytes = acts_bytes;
    api.scratch_bytes = scratch_bytes;
    api.boundary_bytes = boundary_bytes;
    api.forward = forward;
    api.backward_inputs = backward_inputs;
    api.backward_weights = backward_weights;
    api.zero_gradients = zero_gradients;
    return api;
}

DynapipeBlocks_v1 llama_blocks(const DynapipeModel_v1* api, LlamaConfig* config, char signature[128],
                               int threads) {
    DynapipeBlocks_v1 blocks;
    memset(&blocks, 0, sizeof blocks);
    snprintf(signature, 128, "llama C %d F %d NH %d NKV %d V %d fp32 threads %d", config->channels,
             config->hidden, config->num_heads, config->num_kv_heads, config->vocab_size, threads);
    blocks.api = api;
    blocks.ctx = config;
    blocks.signature = signature;
    blocks.num_layers = config->num_layers;
    blocks.vocab = config->vocab_size;
    blocks.optimizer_bytes = 8;  // m and v
    blocks.make = llama_make_slice;
    blocks.drop = llama_drop_slice;
    return blocks;
}
