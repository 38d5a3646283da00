/*
llama.h -- a small Llama: RoPE, RMS norm, SwiGLU, heads that share keys and values; head tied to the embedding
or not. Parameters are one flat array, gradients another. Fixed length: B sequences of T tokens.
*/
#pragma once

#include <stddef.h>

typedef struct {
    int vocab_size, num_layers, num_heads, num_kv_heads;
    int channels, hidden;  // hidden: of the feed-forward
    int tied;              // the head is the embedding
} LlamaConfig;

// Which parts besides the layers an array of parameters has.
enum { LLAMA_EMBEDDING = 1, LLAMA_HEAD = 2 };

// Tensors of all layers lie together, as llm.c has them: (L, ...).
typedef struct {
    float* wte;            // (V, C)
    float *norm1, *norm2;  // (L, C)
    float *wq, *wo;        // (L, C, C)
    float *wk, *wv;        // (L, KC, C), KC = channels / num_heads * num_kv_heads
    float *wgate, *wup;    // (L, F, C)
    float* wdown;          // (L, C, F)
    float* normf;          // (C)
    float* head;           // (V, C); tied: the embedding where that is here too
} LlamaTensors;

// Points into `memory` for a model of config.num_layers layers and these parts; returns the number of values.
size_t llama_point(LlamaTensors* t, LlamaConfig config, int parts, float* memory);
// New values; layers begin at first_layer of the model, so that a part of it begins as the whole does.
void llama_init_params(LlamaTensors* t, LlamaConfig config, int parts, int first_layer, unsigned seed);

typedef struct {
    LlamaConfig config;
    size_t num_parameters;
    float *params_memory, *grads_memory, *m_memory, *v_memory;
    LlamaTensors params, grads;
    float* acts_memory;  // of the largest B * T so far
    size_t num_acts;
    float* losses;  // (B * T), points into acts_memory
} Llama;

void llama_build(Llama* model, LlamaConfig config, unsigned seed);
void llama_free(Llama* model);
// Gradients of scale * (sum of losses) are added. targets (B, T): -1 where there is no loss. Returns that
// sum.
double llama_forward_backward(Llama* model, const int* tokens, const int* targets, int B, int T, float scale);

// One step for values [begin, end) of these arrays; step counts from 1.
void adamw_update(float* params, const float* grads, float* m, float* v, size_t begin, size_t end, float lr,
                  float grad_scale, int step);
double squared_norm(const float* grads, size_t begin, size_t end);
