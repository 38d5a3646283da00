/*
mini_dynapipe.c -- the port: the model of mini.h behind DynapipeModel_v1 and DynapipeBlocks_v1.

A range of blocks is a model with fewer layers. Windows of a microbatch lie one after the other, without
padding.
*/
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../dynapipe_plugin/dynapipe.h"
#include "mini.h"

DynapipeModel_v1 mini_table(void);
DynapipeBlocks_v1 mini_blocks(const DynapipeModel_v1* api, MiniConfig* config);

static MiniBatch batch_of(const DynapipeBatch* batch) {
    MiniBatch b;
    b.num_seqs = batch->num_seqs;
    b.num_tokens = batch->num_tokens;
    b.num_rows = batch->num_rows;
    b.begins = batch->cu_seqlens;
    b.tokens = batch->tokens;
    b.rows = batch->rows;
    b.targets = batch->targets;
    b.scale = batch->loss_scale;
    return b;
}

// --- bytes: from counts alone ----------------------------------------------------------------------------

// The activations of layer l in `acts`; returns their values.
static size_t layer_at(MiniLayer* out, const Mini* m, const DynapipeBatch* batch, void* acts, int l) {
    size_t N = (size_t)batch->num_tokens, squares = (size_t)batch->num_squares;
    size_t of_layer = mini_point_layer(out, m, N, squares, NULL);
    if (acts != NULL) { mini_point_layer(out, m, N, squares, (float*)acts + (size_t)l * of_layer); }
    return of_layer;
}

// What keeps nothing goes through its layers in the place of one.
static int kept_layers(const Mini* m, int flags) {
    return flags & DYNAPIPE_FORWARD_KEEP ? m->config.num_layers : m->config.num_layers > 0;
}

static size_t head_at(MiniHead* out, const Mini* m, const DynapipeBatch* batch, void* acts, int num_layers) {
    MiniLayer layer;
    float* end = (float*)acts + (size_t)num_layers * layer_at(&layer, m, batch, NULL, 0);
    return mini_point_head(out, m, (size_t)batch->num_rows, acts != NULL ? end : NULL);
}

static int64_t acts_bytes(void* model, const DynapipeBatch* batch, int flags) {
    const Mini* m = (const Mini*)model;
    MiniLayer layer;
    MiniHead head;
    size_t values = (size_t)kept_layers(m, flags) * layer_at(&layer, m, batch, NULL, 0);
    if ((m->parts & MINI_HEAD) && (flags & DYNAPIPE_FORWARD_HEAD)) {
        values += head_at(&head, m, batch, NULL, 0);
    }
    return (int64_t)(values * sizeof(float));
}

// x or dx, then room for a layer.
static int64_t scratch_bytes(void* model, const DynapipeBatch* batch) {
    const Mini* m = (const Mini*)model;
    size_t N = (size_t)batch->num_tokens, of_x = N * (size_t)m->config.channels;
    return (int64_t)((of_x + mini_room(m, N, (size_t)batch->max_seq_tokens)) * sizeof(float));
}

static int64_t boundary_bytes(void* model, const DynapipeBatch* batch, int is_behind) {
    (void)is_behind;
    return (int64_t)sizeof(float) * batch->num_tokens * ((const Mini*)model)->config.channels;
}

// --- jobs ------------------------------------------------------------------------------------------------

static int forward(void* model, const DynapipeBatch* batch, const void* in, void* out, void* acts,
                   void* scratch, float* losses, int flags) {
    const Mini* m = (const Mini*)model;
    MiniBatch b = batch_of(batch);
    MiniLayer layer;
    MiniHead head;
    size_t of_x = (size_t)(b.num_tokens * m->config.channels);
    float* x = (float*)scratch;
    if (in == NULL) {
        mini_embed(m, &b, x);
    } else {
        memcpy(x, in, of_x * sizeof *x);
    }
    for (int l = 0; l < m->config.num_layers; l++) {
        layer_at(&layer, m, batch, acts, flags & DYNAPIPE_FORWARD_KEEP ? l : 0);
        mini_layer_forward(m, l, &b, &layer, x, x + of_x);
    }
    if (out != NULL) { memcpy(out, x, of_x * sizeof *x); }
    if (!(m->parts & MINI_HEAD) || !(flags & DYNAPIPE_FORWARD_HEAD)) { return 0; }
    head_at(&head, m, batch, acts, kept_layers(m, flags));
    mini_head_forward(m, &b, &head, x, losses);
    return 0;
}

static int backward_inputs(void* model, const DynapipeBatch* batch, const void* in, void* acts,
                           const void* dout, void* din, void* scratch) {
    Mini* m = (Mini*)model;
    MiniBatch b = batch_of(batch);
    MiniLayer layer;
    MiniHead head;
    int L = m->config.num_layers;
    size_t of_x = (size_t)(b.num_tokens * m->config.channels);
    float* dx = (float*)scratch;
    (void)in;
    if (dout == NULL) {
        head_at(&head, m, batch, acts, L);
        mini_head_backward_inputs(m, &b, &head, dx, dx + of_x);
    } else {
        memcpy(dx, dout, of_x * sizeof *dx);
    }
    for (int l = L - 1; l >= 0; l--) {
        layer_at(&layer, m, batch, acts, l);
        mini_layer_backward_inputs(m, l, &b, &layer, dx, dx + of_x);
    }
    if (din != NULL) { memcpy(din, dx, of_x * sizeof *dx); }
    if (din == NULL) { mini_embed_backward(m, &b, dx); }
    return 0;
}

static int backward_weights(void* model, const DynapipeBatch* batch, void* acts, const void* dout,
                            void* scratch) {
    Mini* m = (Mini*)model;
    MiniBatch b = batch_of(batch);
    MiniLayer layer;
    MiniHead head;
    (void)dout;
    (void)scratch;
    for (int l = 0; l < m->config.num_layers; l++) {
        layer_at(&layer, m, batch, acts, l);
        mini_layer_backward_weights(m, l, &b, &layer);
    }
    if (!(m->parts & MINI_HEAD)) { return 0; }
    head_at(&head, m, batch, acts, m->config.num_layers);
    mini_head_backward_weights(m, &b, &head);
    return 0;
}

static void zero_gradients(void* model) {
    Mini* m = (Mini*)model;
    memset(m->grads, 0, m->num_params * sizeof(float));
}

// --- ranges ----------------------------------------------------------------------------------------------

typedef struct {
    Mini mini;  // first: it is the model
    DynapipeTied tied;
} Slice;

// Blocks: 0 the embedding, 1 ... L the layers, L + 1 the head.
static int make_slice(void* ctx, DynapipeRange blocks, int has_values, void** model,
                      DynapipeParams_v1* params) {
    const MiniConfig* whole = (const MiniConfig*)ctx;
    int head = whole->num_layers + 1, first = blocks.begin > 0 ? blocks.begin - 1 : 0;
    int parts = (blocks.begin == 0 ? MINI_EMBEDDING : 0) | (blocks.end > head ? MINI_HEAD : 0);
    Slice* s = (Slice*)calloc(1, sizeof *s);
    if (s == NULL) { return 1; }
    *model = s;
    if (mini_make(&s->mini, *whole, parts, first, (blocks.end < head ? blocks.end : head) - 1 - first,
                  has_values) != 0) {
        return 1;
    }
    params->params = s->mini.params;
    params->grads = s->mini.grads;
    params->num_params = (int64_t)s->mini.num_params;
    params->param_type = params->grad_type = DYNAPIPE_FLOAT32;
    if (whole->tied && parts != 0) {  // what both ends have a copy of: group 0
        s->tied.begin = (int64_t)s->mini.head_begin;
        s->tied.count = (int64_t)whole->vocab * whole->channels;
        params->num_tied = 1;
        params->tied = &s->tied;
    }
    return 0;
}

static void drop_slice(void* ctx, void* model) {
    (void)ctx;
    mini_free((Mini*)model);
    free(model);
}

DynapipeModel_v1 mini_table(void) {
    DynapipeModel_v1 api;
    memset(&api, 0, sizeof api);
    api.name = "mini";
    api.acts_bytes = acts_bytes;
    api.scratch_bytes = scratch_bytes;
    api.boundary_bytes = boundary_bytes;
    api.forward = forward;
    api.backward_inputs = backward_inputs;
    api.backward_weights = backward_weights;
    api.zero_gradients = zero_gradients;
    return api;
}

// api and config must outlive the result.
DynapipeBlocks_v1 mini_blocks(const DynapipeModel_v1* api, MiniConfig* config) {
    static char signature[128];
    DynapipeBlocks_v1 blocks;
    memset(&blocks, 0, sizeof blocks);
    snprintf(signature, sizeof signature, "mini C %d F %d V %d fp32", config->channels, config->hidden,
             config->vocab);
    blocks.api = api;
    blocks.ctx = config;
    blocks.signature = signature;
    blocks.num_layers = config->num_layers;
    blocks.vocab = config->vocab;
    blocks.optimizer_bytes = 8;  // two moments
    blocks.make = make_slice;
    blocks.drop = drop_slice;
    return blocks;
}
