/*
mini.h -- a small decoder: RMS norm, attention of one head that prefers near tokens, SiLU; the head tied to
the embedding or not. Plain loops, float32. Backward functions add to gradients; forward ones write.
*/
#pragma once

#include <stddef.h>

typedef struct {
    int vocab, num_layers, channels, hidden;
    int tied;  // the head is the embedding
} MiniConfig;

// Windows one after the other: window i is tokens [begins[i], begins[i + 1]).
typedef struct {
    int num_seqs, num_tokens, num_rows;
    const int *begins, *tokens;
    const int *rows, *targets;  // (num_rows) which tokens have a loss, and what comes next there
    float scale;                // of every row's gradient
} MiniBatch;

// Some layers of the model, perhaps with the embedding and the head: one array of parameters, one of
// gradients.
enum { MINI_EMBEDDING = 1, MINI_HEAD = 2 };
typedef struct {
    MiniConfig config;  // num_layers: of this piece
    int first_layer, parts;
    size_t num_params, head_begin;  // of the head's matrix (tied: the embedding, where that is here, too)
    float *params, *grads;
} Mini;

// Sizes; with has_values memory, and values that depend on tensor and layer of the whole model alone.
// Returns 0, or 1 without memory.
int mini_make(Mini* out, MiniConfig config, int parts, int first_layer, int num_layers, int has_values);
void mini_free(Mini* m);

// Activations of a layer: (N, C), qkv (N, 3C), f and g (N, F), r1 and r2 (N), att (T, T) of every window.
typedef struct {
    float *x, *h1, *ao, *x2, *h2, *dy, *qkv, *f, *g, *r1, *r2, *att;
} MiniLayer;
// Of the head: x and h (R, C), r (R), dlogits (R, V).
typedef struct {
    float *x, *h, *r, *dlogits;
} MiniHead;
// Point into `memory` (NULL: count only); return the number of values. squares: of the windows' lengths.
size_t mini_point_layer(MiniLayer* out, const Mini* m, size_t num_tokens, size_t squares, float* memory);
size_t mini_point_head(MiniHead* out, const Mini* m, size_t num_rows, float* memory);
// Values that forward and backward of a layer or the head work in, for windows of at most `longest` tokens.
size_t mini_room(const Mini* m, size_t num_tokens, size_t longest);

void mini_embed(const Mini* m, const MiniBatch* b, float* x);
void mini_embed_backward(Mini* m, const MiniBatch* b, const float* dx);
// x and dx (N, C): in and out. backward_inputs leaves in `a` what backward_weights multiplies.
void mini_layer_forward(const Mini* m, int l, const MiniBatch* b, MiniLayer* a, float* x, float* room);
void mini_layer_backward_inputs(Mini* m, int l, const MiniBatch* b, MiniLayer* a, float* dx, float* room);
void mini_layer_backward_weights(Mini* m, int l, const MiniBatch* b, const MiniLayer* a);
// dx (N, C) is written. losses (R) in nats.
void mini_head_forward(const Mini* m, const MiniBatch* b, MiniHead* a, const float* x, float* losses);
void mini_head_backward_inputs(Mini* m, const MiniBatch* b, MiniHead* a, float* dx, float* room);
void mini_head_backward_weights(Mini* m, const MiniBatch* b, const MiniHead* a);

// One step of AdamW for values [begin, end) of these arrays; step counts from 1.
void mini_update(Mini* m, float* m1, float* m2, size_t begin, size_t end, float lr, float scale, int step);
