#include "mini.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// --- parameters ------------------------------------------------------------------------------------------
// The embedding, layer by layer (norm1, qkv, o, norm2, f, d), the last norm, the head.

typedef struct {
    float *norm1, *qkv, *o, *norm2, *f, *d;
} Layer;

static size_t layer_size(MiniConfig c) {
    return (size_t)c.channels * (size_t)(2 + 4 * c.channels + 2 * c.hidden);
}

static size_t embedding_size(MiniConfig c) {
    return (size_t)c.vocab * (size_t)c.channels;
}

static Layer layer_of(const Mini* m, float* values, int l) {
    size_t C = (size_t)m->config.channels, F = (size_t)m->config.hidden;
    float* at = values + (m->parts & MINI_EMBEDDING ? embedding_size(m->config) : 0) +
                (size_t)l * layer_size(m->config);
    Layer layer = {at, at + C, at + C + 3 * C * C, NULL, NULL, NULL};
    layer.norm2 = layer.o + C * C;
    layer.f = layer.norm2 + C;
    layer.d = layer.f + F * C;
    return layer;
}

static float* last_norm(const Mini* m, float* values) {
    return layer_of(m, values, m->config.num_layers).norm1;
}

// Numbers in [-1, 1) times `scale`, from a state that begins with tensor and layer.
static void fill(float* to, size_t count, float scale, int tensor, int layer) {
    unsigned long long state = (1009ULL + (unsigned)tensor) * 1013 + (unsigned)layer + 1;
    for (size_t i = 0; i < count; i++) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        to[i] = scale * ((float)(unsigned)(state >> 40) / 8388608.0f - 1.0f);
    }
}

static void ones(float* to, size_t count) {
    for (size_t i = 0; i < count; i++) { to[i] = 1.0f; }
}

static void init(Mini* m) {
    size_t C = (size_t)m->config.channels, F = (size_t)m->config.hidden;
    float scale = sqrtf(3.0f / (float)C), scale_f = sqrtf(3.0f / (float)F);
    if (m->parts & MINI_HEAD) {
        ones(last_norm(m, m->params), C);
        fill(m->params + m->head_begin, embedding_size(m->config), 0.1f, m->config.tied ? 0 : 1, 0);
    }
    if (m->parts & MINI_EMBEDDING) { fill(m->params, embedding_size(m->config), 0.1f, 0, 0); }
    for (int l = 0; l < m->config.num_layers; l++) {
        Layer p = layer_of(m, m->params, l);
        int layer = m->first_layer + l;
        ones(p.norm1, C);
        ones(p.norm2, C);
        fill(p.qkv, 3 * C * C, scale, 2, layer);
        fill(p.o, C * C, scale, 3, layer);
        fill(p.f, F * C, scale, 4, layer);
        fill(p.d, C * F, scale_f, 5, layer);
    }
}

int mini_make(Mini* out, MiniConfig config, int parts, int first_layer, int num_layers, int has_values) {
    int shared = config.tied && (parts & MINI_EMBEDDING);
    memset(out, 0, sizeof *out);
    out->config = config;
    out->config.num_layers = num_layers;
    out->parts = parts;
    out->first_layer = first_layer;
    out->num_params =
        (parts & MINI_EMBEDDING ? embedding_size(config) : 0) + (size_t)num_layers * layer_size(config);
    if (parts & MINI_HEAD) {
        out->num_params += (size_t)config.channels;
        out->head_begin = shared ? 0 : out->num_params;
        out->num_params += shared ? 0 : embedding_size(config);
    }
    if (!has_values) { return 0; }
    out->params = (float*)calloc(out->num_params, sizeof(float));
    out->grads = (float*)calloc(out->num_params, sizeof(float));
    if (out->params == NULL || out->grads == NULL) { return 1; }
    init(out);
    return 0;
}

void mini_free(Mini* m) {
    free(m->params);
    free(m->grads);
}

// --- operations ------------------------------------------------------------------------------------------

// out = x / rms(x) * weight; r (N) is kept for backward.
static void norm(float* out, float* r, const float* x, const float* weight, int N, int C) {
    for (int n = 0; n < N; n++, x += C, out += C) {
        float squares = 0;
        for (int c = 0; c < C; c++) { squares += x[c] * x[c]; }
        r[n] = 1.0f / sqrtf(squares / (float)C + 1e-5f);
        for (int c = 0; c < C; c++) { out[c] = x[c] * r[n] * weight[c]; }
    }
}

static void norm_backward(float* dx, float* dweight, const float* dout, const float* x, const float* weight,
                          const float* r, int N, int C) {
    for (int n = 0; n < N; n++, x += C, dout += C, dx += C) {
        float dot = 0, s = r[n];
        for (int c = 0; c < C; c++) {
            dweight[c] += dout[c] * x[c] * s;
            dot += dout[c] * weight[c] * x[c];
        }
        for (int c = 0; c < C; c++) { dx[c] += s * (dout[c] * weight[c] - x[c] * s * s * dot / (float)C); }
    }
}

// out (N, OC) = x (N, C) times the rows of weight (OC, C).
static void product(float* out, const float* x, const float* weight, int N, int C, int OC) {
    for (int i = 0; i < N * OC; i++) {
        float sum = 0;
        for (int c = 0; c < C; c++) { sum += x[i / OC * C + c] * weight[i % OC * C + c]; }
        out[i] = sum;
    }
}

// dx is written, dweight added to.
static void product_inputs(float* dx, const float* dout, const float* weight, int N, int C, int OC) {
    memset(dx, 0, sizeof(float) * (size_t)(N * C));
    for (int i = 0; i < N * OC; i++) {
        for (int c = 0; c < C; c++) { dx[i / OC * C + c] += dout[i] * weight[i % OC * C + c]; }
    }
}

static void product_weights(float* dweight, const float* dout, const float* x, int N, int C, int OC) {
    for (int i = 0; i < N * OC; i++) {
        for (int c = 0; c < C; c++) { dweight[i % OC * C + c] += dout[i] * x[i / OC * C + c]; }
    }
}

// Causal, of a window: qkv (T, 3C), att (T, T). Scores fall with the distance.
static void attend(float* out, float* att, const float* qkv, int T, int C) {
    for (int t = 0; t < T; t++, att += T, out += C) {
        float sum = 0;
        for (int s = 0; s <= t; s++) {
            float score = 0.1f * (float)(s - t);
            for (int c = 0; c < C; c++) {
                score += qkv[t * 3 * C + c] * qkv[s * 3 * C + C + c] / sqrtf((float)C);
            }
            sum += att[s] = expf(score);
        }
        for (int c = 0; c < C; c++) { out[c] = 0; }
        for (int s = 0; s <= t; s++) {
            att[s] /= sum;
            for (int c = 0; c < C; c++) { out[c] += att[s] * qkv[s * 3 * C + 2 * C + c]; }
        }
    }
}

// dqkv (T, 3C) is added to; datt (T): room.
static void attend_backward(float* dqkv, float* datt, const float* dout, const float* qkv, const float* att,
                            int T, int C) {
    for (int t = 0; t < T; t++, att += T, dout += C) {
        float dot = 0;
        for (int s = 0; s <= t; s++) {
            datt[s] = 0;
            for (int c = 0; c < C; c++) {
                datt[s] += dout[c] * qkv[s * 3 * C + 2 * C + c];
                dqkv[s * 3 * C + 2 * C + c] += att[s] * dout[c];
            }
            dot += att[s] * datt[s];
        }
        for (int s = 0; s <= t; s++) {
            float slope = att[s] * (datt[s] - dot) / sqrtf((float)C);
            for (int c = 0; c < C; c++) {
                dqkv[t * 3 * C + c] += slope * qkv[s * 3 * C + C + c];
                dqkv[s * 3 * C + C + c] += slope * qkv[t * 3 * C + c];
            }
        }
    }
}

// --- layers ----------------------------------------------------------------------------------------------

static float* take(float* memory, size_t* used, size_t count) {
    *used += count;
    return memory != NULL ? memory + *used - count : NULL;
}

size_t mini_point_layer(MiniLayer* out, const Mini* m, size_t num_tokens, size_t squares, float* memory) {
    size_t used = 0, NC = num_tokens * (size_t)m->config.channels, NF = num_tokens * (size_t)m->config.hidden;
    float** of_channels[] = {&out->x, &out->h1, &out->ao, &out->x2, &out->h2, &out->dy};
    for (int i = 0; i < 6; i++) { *of_channels[i] = take(memory, &used, NC); }
    out->qkv = take(memory, &used, 3 * NC);
    out->f = take(memory, &used, NF);
    out->g = take(memory, &used, NF);
    out->r1 = take(memory, &used, num_tokens);
    out->r2 = take(memory, &used, num_tokens);
    out->att = take(memory, &used, squares);
    return used;
}

size_t mini_point_head(MiniHead* out, const Mini* m, size_t num_rows, float* memory) {
    size_t used = 0;
    out->x = take(memory, &used, num_rows * (size_t)m->config.channels);
    out->h = take(memory, &used, num_rows * (size_t)m->config.channels);
    out->r = take(memory, &used, num_rows);
    out->dlogits = take(memory, &used, num_rows * (size_t)m->config.vocab);
    return used;
}

// dh (N, C), dqkv (N, 3C), dg (N, F), a row of attention.
size_t mini_room(const Mini* m, size_t num_tokens, size_t longest) {
    return num_tokens * (size_t)(4 * m->config.channels + m->config.hidden) + longest;
}

void mini_embed(const Mini* m, const MiniBatch* b, float* x) {
    int C = m->config.channels;
    for (int i = 0; i < b->num_tokens * C; i++) { x[i] = m->params[b->tokens[i / C] * C + i % C]; }
}

void mini_embed_backward(Mini* m, const MiniBatch* b, const float* dx) {
    int C = m->config.channels;
    for (int i = 0; i < b->num_tokens * C; i++) { m->grads[b->tokens[i / C] * C + i % C] += dx[i]; }
}

static void add(float* to, const float* from, int count) {
    for (int i = 0; i < count; i++) { to[i] += from[i]; }
}

void mini_layer_forward(const Mini* m, int l, const MiniBatch* b, MiniLayer* a, float* x, float* room) {
    Layer p = layer_of(m, m->params, l);
    int N = b->num_tokens, C = m->config.channels, F = m->config.hidden;
    float* att = a->att;
    memcpy(a->x, x, sizeof(float) * (size_t)(N * C));
    norm(a->h1, a->r1, x, p.norm1, N, C);
    product(a->qkv, a->h1, p.qkv, N, C, 3 * C);
    for (int i = 0; i < b->num_seqs; i++) {
        int begin = b->begins[i], T = b->begins[i + 1] - begin;
        attend(a->ao + begin * C, att, a->qkv + begin * 3 * C, T, C);
        att += T * T;
    }
    product(room, a->ao, p.o, N, C, C);
    add(x, room, N * C);
    memcpy(a->x2, x, sizeof(float) * (size_t)(N * C));
    norm(a->h2, a->r2, x, p.norm2, N, C);
    product(a->f, a->h2, p.f, N, C, F);
    for (int i = 0; i < N * F; i++) { a->g[i] = a->f[i] / (1.0f + expf(-a->f[i])); }
    product(room, a->g, p.d, N, F, C);
    add(x, room, N * C);
}

// The gradient of each product's output takes the place of what nobody reads again: dy, f, x2, qkv.
void mini_layer_backward_inputs(Mini* m, int l, const MiniBatch* b, MiniLayer* a, float* dx, float* room) {
    Layer p = layer_of(m, m->params, l), g = layer_of(m, m->grads, l);
    int N = b->num_tokens, C = m->config.channels, F = m->config.hidden;
    size_t bytes = sizeof(float) * (size_t)(N * C);
    float *dh = room, *dqkv = dh + N * C, *dg = dqkv + 3 * N * C, *datt = dg + N * F;
    const float* att = a->att;
    memcpy(a->dy, dx, bytes);
    product_inputs(dg, dx, p.d, N, F, C);
    for (int i = 0; i < N * F; i++) {
        float sigmoid = 1.0f / (1.0f + expf(-a->f[i]));
        a->f[i] = dg[i] * sigmoid * (1.0f + a->f[i] * (1.0f - sigmoid));
    }
    product_inputs(dh, a->f, p.f, N, C, F);
    norm_backward(dx, g.norm2, dh, a->x2, p.norm2, a->r2, N, C);
    memcpy(a->x2, dx, bytes);
    product_inputs(dh, dx, p.o, N, C, C);
    memset(dqkv, 0, 3 * bytes);
    for (int i = 0; i < b->num_seqs; i++) {
        int begin = b->begins[i], T = b->begins[i + 1] - begin;
        attend_backward(dqkv + begin * 3 * C, datt, dh + begin * C, a->qkv + begin * 3 * C, att, T, C);
        att += T * T;
    }
    memcpy(a->qkv, dqkv, 3 * bytes);
    product_inputs(dh, a->qkv, p.qkv, N, C, 3 * C);
    norm_backward(dx, g.norm1, dh, a->x, p.norm1, a->r1, N, C);
}

void mini_layer_backward_weights(Mini* m, int l, const MiniBatch* b, const MiniLayer* a) {
    Layer g = layer_of(m, m->grads, l);
    int N = b->num_tokens, C = m->config.channels, F = m->config.hidden;
    product_weights(g.d, a->dy, a->g, N, F, C);
    product_weights(g.f, a->f, a->h2, N, C, F);
    product_weights(g.o, a->x2, a->ao, N, C, C);
    product_weights(g.qkv, a->qkv, a->h1, N, C, 3 * C);
}

// --- head ------------------------------------------------------------------------------------------------

void mini_head_forward(const Mini* m, const MiniBatch* b, MiniHead* a, const float* x, float* losses) {
    int R = b->num_rows, C = m->config.channels, V = m->config.vocab;
    for (int i = 0; i < R * C; i++) { a->x[i] = x[b->rows[i / C] * C + i % C]; }
    norm(a->h, a->r, a->x, last_norm(m, m->params), R, C);
    product(a->dlogits, a->h, m->params + m->head_begin, R, C, V);
    for (int r = 0; r < R; r++) {
        float *logits = a->dlogits + r * V, sum = 0;
        for (int v = 0; v < V; v++) { sum += expf(logits[v]); }
        losses[r] = logf(sum) - logits[b->targets[r]];
        for (int v = 0; v < V; v++) {
            logits[v] = b->scale * (expf(logits[v]) / sum - (v == b->targets[r] ? 1.0f : 0.0f));
        }
    }
}

void mini_head_backward_inputs(Mini* m, const MiniBatch* b, MiniHead* a, float* dx, float* room) {
    int R = b->num_rows, C = m->config.channels;
    float *dh = room, *dr = room + R * C;
    product_inputs(dh, a->dlogits, m->params + m->head_begin, R, C, m->config.vocab);
    memset(dr, 0, sizeof(float) * (size_t)(R * C));
    norm_backward(dr, last_norm(m, m->grads), dh, a->x, last_norm(m, m->params), a->r, R, C);
    memset(dx, 0, sizeof(float) * (size_t)(b->num_tokens * C));
    for (int i = 0; i < R * C; i++) { dx[b->rows[i / C] * C + i % C] += dr[i]; }
}

void mini_head_backward_weights(Mini* m, const MiniBatch* b, const MiniHead* a) {
    product_weights(m->grads + m->head_begin, a->dlogits, a->h, b->num_rows, m->config.channels,
                    m->config.vocab);
}

void mini_update(Mini* m, float* m1, float* m2, size_t begin, size_t end, float lr, float scale, int step) {
    float correct1 = 1.0f - powf(0.9f, (float)step), correct2 = 1.0f - powf(0.95f, (float)step);
    for (size_t i = begin; i < end; i++) {
        float g = m->grads[i] * scale;
        m1[i] = 0.9f * m1[i] + 0.1f * g;
        m2[i] = 0.95f * m2[i] + 0.05f * g * g;
        m->params[i] -= lr * (m1[i] / correct1 / (sqrtf(m2[i] / correct2) + 1e-6f) + 0.01f * m->params[i]);
    }
}
