#include "llama.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

// --- parameters ------------------------------------------------------------------------------------------

static float* take(float** memory, size_t* used, size_t count) {
    float* at = *memory ? *memory + *used : NULL;
    *used += count;
    return at;
}

size_t llama_point(LlamaTensors* t, LlamaConfig config, int parts, float* memory) {
    size_t used = 0, L = (size_t)config.num_layers, C = (size_t)config.channels, F = (size_t)config.hidden;
    size_t KC = C / (size_t)config.num_heads * (size_t)config.num_kv_heads, V = (size_t)config.vocab_size;
    memset(t, 0, sizeof *t);
    if (parts & LLAMA_EMBEDDING) { t->wte = take(&memory, &used, V * C); }
    t->norm1 = take(&memory, &used, L * C);
    t->wq = take(&memory, &used, L * C * C);
    t->wk = take(&memory, &used, L * KC * C);
    t->wv = take(&memory, &used, L * KC * C);
    t->wo = take(&memory, &used, L * C * C);
    t->norm2 = take(&memory, &used, L * C);
    t->wgate = take(&memory, &used, L * F * C);
    t->wup = take(&memory, &used, L * F * C);
    t->wdown = take(&memory, &used, L * C * F);
    if (!(parts & LLAMA_HEAD)) { return used; }
    t->normf = take(&memory, &used, C);
    int shared = config.tied && (parts & LLAMA_EMBEDDING);
    t->head = shared ? t->wte : take(&memory, &used, V * C);
    return used;
}

// Numbers in [-1, 1) times `scale`, from a state that begins with seed, tensor and layer.
static void fill(float* to, size_t count, float scale, unsigned seed, unsigned tensor, unsigned layer) {
    unsigned long long state = ((unsigned long long)seed * 1009 + tensor) * 1013 + layer + 1;
    for (size_t i = 0; i < count; i++) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        to[i] = scale * ((float)(unsigned)(state >> 40) / 8388608.0f - 1.0f);
    }
}

static void ones(float* to, size_t count) {
    for (size_t i = 0; i < count; i++) { to[i] = 1.0f; }
}

void llama_init_params(LlamaTensors* t, LlamaConfig config, int parts, int first_layer, unsigned seed) {
    size_t C = (size_t)config.channels, F = (size_t)config.hidden, V = (size_t)config.vocab_size;
    size_t KC = C / (size_t)config.num_heads * (size_t)config.num_kv_heads;
    float scale = sqrtf(3.0f / (float)C), scale_f = sqrtf(3.0f / (float)F);
    if (parts & LLAMA_EMBEDDING) { fill(t->wte, V * C, 0.1f, seed, 0, 0); }
    ones(t->norm1, (size_t)config.num_layers * C);
    ones(t->norm2, (size_t)config.num_layers * C);
    for (size_t l = 0; l < (size_t)config.num_layers; l++) {
        unsigned layer = (unsigned)first_layer + (unsigned)l;
        fill(t->wq + l * C * C, C * C, scale, seed, 1, layer);
        fill(t->wk + l * KC * C, KC * C, scale, seed, 2, layer);
        fill(t->wv + l * KC * C, KC * C, scale, seed, 3, layer);
        fill(t->wo + l * C * C, C * C, scale / 2, seed, 4, layer);
        fill(t->wgate + l * F * C, F * C, scale, seed, 5, layer);
        fill(t->wup + l * F * C, F * C, scale, seed, 6, layer);
        fill(t->wdown + l * C * F, C * F, scale_f / 2, seed, 7, layer);
    }
    if (!(parts & LLAMA_HEAD)) { return; }
    ones(t->normf, C);
    if (t->head != t->wte) { fill(t->head, V * C, 0.1f, seed, config.tied ? 0 : 8, 0); }
}

static float* floats(size_t count) {
    float* memory = (float*)calloc(count + 1, sizeof(float));
    if (memory == NULL) {
        fprintf(stderr, "llama: no memory for %zu values\n", count);
        exit(EXIT_FAILURE);
    }
    return memory;
}

void llama_build(Llama* model, LlamaConfig config, unsigned seed) {
    memset(model, 0, sizeof *model);
    model->config = config;
    model->num_parameters = llama_point(&model->params, config, LLAMA_EMBEDDING | LLAMA_HEAD, NULL);
    model->params_memory = floats(model->num_parameters);
    model->grads_memory = floats(model->num_parameters);
    model->m_memory = floats(model->num_parameters);
    model->v_memory = floats(model->num_parameters);
    llama_point(&model->params, config, LLAMA_EMBEDDING | LLAMA_HEAD, model->params_memory);
    llama_point(&model->grads, config, LLAMA_EMBEDDING | LLAMA_HEAD, model->grads_memory);
    llama_init_params(&model->params, config, LLAMA_EMBEDDING | LLAMA_HEAD, 0, seed);
}

void llama_free(Llama* model) {
    free(model->params_memory);
    free(model->grads_memory);
    free(model->m_memory);
    free(model->v_memory);
    free(model->acts_memory);
}

// --- forward and backward --------------------------------------------------------------------------------

// Activations of a layer, (N, ...).
typedef struct {
    float *x, *r1, *h1, *q, *k, *v, *att, *ao, *xa, *r2, *h2, *gate, *up, *act;
} BlockActs;

static size_t point_acts(BlockActs* a, LlamaConfig c, int B, int T, float* memory) {
    size_t used = 0, N = (size_t)B * (size_t)T, C = (size_t)c.channels, F = (size_t)c.hidden;
    size_t KC = C / (size_t)c.num_heads * (size_t)c.num_kv_heads;
    float** of_channels[] = {&a->x, &a->h1, &a->q, &a->ao, &a->xa, &a->h2};
    float** of_hidden[] = {&a->gate, &a->up, &a->act};
    for (int i = 0; i < 6; i++) { *of_channels[i] = take(&memory, &used, N * C); }
    for (int i = 0; i < 3; i++) { *of_hidden[i] = take(&memory, &used, N * F); }
    a->k = take(&memory, &used, N * KC);
    a->v = take(&memory, &used, N * KC);
    a->r1 = take(&memory, &used, N);
    a->r2 = take(&memory, &used, N);
    a->att = take(&memory, &used, N * (size_t)T * (size_t)c.num_heads);
    return used;
}

static void add(float* to, const float* from, size_t count) {
    for (size_t i = 0; i < count; i++) { to[i] += from[i]; }
}

// x (N, C): in and out. Activations are kept in a.
static void block_forward(const Llama* model, int l, BlockActs* a, float* x, float* room, int B, int T) {
    LlamaConfig c = model->config;
    const LlamaTensors* p = &model->params;
    int N = B * T, C = c.channels, F = c.hidden, HS = C / c.num_heads, KC = HS * c.num_kv_heads;
    size_t NC = (size_t)N * (size_t)C;
    memcpy(a->x, x, NC * sizeof *x);
    rmsnorm_forward(a->h1, a->r1, x, p->norm1 + l * C, N, C);
    matmul_forward(a->q, a->h1, p->wq + l * C * C, N, C, C);
    matmul_forward(a->k, a->h1, p->wk + l * KC * C, N, C, KC);
    matmul_forward(a->v, a->h1, p->wv + l * KC * C, N, C, KC);
    for (int b = 0; b < B; b++) {
        rope(a->q + b * T * C, T, c.num_heads, HS, 1);
        rope(a->k + b * T * KC, T, c.num_kv_heads, HS, 1);
        attention_forward(a->ao + b * T * C, a->att + b * T * T * c.num_heads, a->q + b * T * C,
                          a->k + b * T * KC, a->v + b * T * KC, T, c.num_heads, c.num_kv_heads, HS);
    }
    matmul_forward(room, a->ao, p->wo + l * C * C, N, C, C);
    add(x, room, NC);
    memcpy(a->xa, x, NC * sizeof *x);
    rmsnorm_forward(a->h2, a->r2, x, p->norm2 + l * C, N, C);
    matmul_forward(a->gate, a->h2, p->wgate + l * F * C, N, C, F);
    matmul_forward(a->up, a->h2, p->wup + l * F * C, N, C, F);
    swiglu_forward(a->act, a->gate, a->up, N * F);
    matmul_forward(room, a->act, p->wdown + l * C * F, N, F, C);
    add(x, room, NC);
}

// dx (N, C): in and out. room: (N, 2 C + F + 2 KC) and T.
static void block_backward(Llama* model, int l, BlockActs* a, float* dx, float* room, int B, int T) {
    LlamaConfig c = model->config;
    const LlamaTensors *p = &model->params, *g = &model->grads;
    int N = B * T, C = c.channels, F = c.hidden, HS = C / c.num_heads, KC = HS * c.num_kv_heads;
    float *dh = room, *dact = dh + N * C, *dq = dact + N * F, *dk = dq + N * C, *dv = dk + N * KC,
          *datt = dv + N * KC;
    memset(room, 0, (size_t)(datt - room) * sizeof *room);
    matmul_backward(dact, g->wdown + l * C * F, dx, a->act, p->wdown + l * C * F, N, F, C);
    swiglu_backward(a->gate, a->up, dact, N * F);
    matmul_backward(dh, g->wgate + l * F * C, a->gate, a->h2, p->wgate + l * F * C, N, C, F);
    matmul_backward(dh, g->wup + l * F * C, a->up, a->h2, p->wup + l * F * C, N, C, F);
    rmsnorm_backward(dx, g->norm2 + l * C, dh, a->xa, p->norm2 + l * C, a->r2, N, C);
    memset(dh, 0, (size_t)(N * C) * sizeof *dh);
    matmul_backward(dh, g->wo + l * C * C, dx, a->ao, p->wo + l * C * C, N, C, C);
    for (int b = 0; b < B; b++) {
        attention_backward(dq + b * T * C, dk + b * T * KC, dv + b * T * KC, datt, dh + b * T * C,
                           a->q + b * T * C, a->k + b * T * KC, a->v + b * T * KC,
                           a->att + b * T * T * c.num_heads, T, c.num_heads, c.num_kv_heads, HS);
        rope(dq + b * T * C, T, c.num_heads, HS, -1);
        rope(dk + b * T * KC, T, c.num_kv_heads, HS, -1);
    }
    memset(dh, 0, (size_t)(N * C) * sizeof *dh);
    matmul_backward(dh, g->wq + l * C * C, dq, a->h1, p->wq + l * C * C, N, C, C);
    matmul_backward(dh, g->wk + l * KC * C, dk, a->h1, p->wk + l * KC * C, N, C, KC);
    matmul_backward(dh, g->wv + l * KC * C, dv, a->h1, p->wv + l * KC * C, N, C, KC);
    rmsnorm_backward(dx, g->norm1 + l * C, dh, a->x, p->norm1 + l * C, a->r1, N, C);
}

double llama_forward_backward(Llama* model, const int* tokens, const int* targets, int B, int T,
                              float scale) {
    LlamaConfig c = model->config;
    int N = B * T, C = c.channels, KC = C / c.num_heads * c.num_kv_heads;
    BlockActs a;
    size_t NC = (size_t)N * (size_t)C, NV = (size_t)N * (size_t)c.vocab_size;
    size_t of_layer = point_acts(&a, c, B, T, NULL), of_room = NC * 3 + (size_t)(N * (c.hidden + 2 * KC) + T);
    size_t needed = of_layer * (size_t)c.num_layers + of_room + 3 * NC + NV + 2 * (size_t)N;
    if (needed > model->num_acts) {
        free(model->acts_memory);
        model->acts_memory = floats(needed);
        model->num_acts = needed;
    }
    float* layers = model->acts_memory;
    float *x = layers + of_layer * (size_t)c.num_layers, *hf = x + NC, *dhf = hf + NC, *logits = dhf + NC,
          *rf = logits + NV, *room = rf + N;
    model->losses = room + of_room;
    embedding_forward(x, tokens, model->params.wte, N, C);
    for (int l = 0; l < c.num_layers; l++) {
        point_acts(&a, c, B, T, layers + (size_t)l * of_layer);
        block_forward(model, l, &a, x, room, B, T);
    }
    rmsnorm_forward(hf, rf, x, model->params.normf, N, C);
    matmul_forward(logits, hf, model->params.head, N, C, c.vocab_size);
    double sum = 0;
    for (int n = 0; n < N; n++) {
        int target = targets[n] >= 0 ? targets[n] : 0;
        float of_row = targets[n] >= 0 ? scale : 0;
        crossentropy_forward_backward(&model->losses[n], logits + n * c.vocab_size, &target, of_row, 1,
                                      c.vocab_size);
        sum += targets[n] >= 0 ? (double)model->losses[n] : 0;
    }
    float* dx = room + of_room - NC;
    memset(dx, 0, NC * sizeof *dx);
    memset(dhf, 0, NC * sizeof *dhf);
    matmul_backward(dhf, model->grads.head, logits, hf, model->params.head, N, C, c.vocab_size);
    rmsnorm_backward(dx, model->grads.normf, dhf, x, model->params.normf, rf, N, C);
    for (int l = c.num_layers - 1; l >= 0; l--) {
        point_acts(&a, c, B, T, layers + (size_t)l * of_layer);
        block_backward(model, l, &a, dx, room, B, T);
    }
    embedding_backward(model->grads.wte, tokens, dx, N, C);
    return sum;
}

// --- optimizer -------------------------------------------------------------------------------------------

double squared_norm(const float* grads, size_t begin, size_t end) {
    double sum = 0;
    for (size_t i = begin; i < end; i++) { sum += (double)grads[i] * (double)grads[i]; }
    return sum;
}

void adamw_update(float* params, const float* grads, float* m, float* v, size_t begin, size_t end, float lr,
                  float grad_scale, int step) {
    float correct1 = 1.0f - powf(0.9f, (float)step), correct2 = 1.0f - powf(0.95f, (float)step);
    for (size_t i = begin; i < end; i++) {
        float g = grads[i] * grad_scale;
        m[i] = 0.9f * m[i] + 0.1f * g;
        v[i] = 0.95f * v[i] + 0.05f * g * g;
        params[i] -= lr * (m[i] / correct1 / (sqrtf(v[i] / correct2) + 1e-6f) + 0.01f * params[i]);
    }
}
