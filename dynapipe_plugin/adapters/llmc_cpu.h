/*
llmc_cpu.h -- llm.c's CPU trainer on a slice of its model: the calls of gpt2_forward() and gpt2_backward()
that a slice makes in another way.

Included in the tree's train_gpt2.c before gpt2_forward(), with llmc_cpu_main.h before main(). What lies
between is not edited: the calls named below are wrapped by macros that do as ever unless a slice is at work.

    encoder_*        the range with the embedding only, window by window (positions begin anew)
    attention_*      window by window: tokens of all windows lie one after the other, without padding
    final layernorm, head, softmax, cross entropy: the range with the head only; all but the layernorm on
                     supervised tokens only

A slice is a GPT2 of theirs ("view") with its layers only, with a micro-batch of n tokens as B = n, T = 1: all
else that they compute is token by token. Tensors of activations have the places and sizes that their own
tables say, so what a fork adds there works. A call that is not made under these names would be computed with
T = 1, so each of them is counted. Without -DDYNAPIPE this file is empty.
*/
#pragma once
#ifdef DYNAPIPE

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include "llmc_run.h"

// A range of blocks: their model with so many layers, its tensors where `slice` says.
typedef struct {
    DynapipeSlice slice;
    GPT2 model;
} DynapipeCpuRange;

// Wrapped calls of one forward or backward.
enum {
    DYNAPIPE_CPU_ENCODER,
    DYNAPIPE_CPU_ATTENTION,
    DYNAPIPE_CPU_FINAL_NORM,
    DYNAPIPE_CPU_HEAD,
    DYNAPIPE_CPU_SOFTMAX,
    DYNAPIPE_CPU_LOSS,
    DYNAPIPE_CPU_CALLS
};

// One call of their forward or backward.
typedef struct {
    const DynapipeCpuRange* range;
    const DynapipeBatch* batch;
    int has_first;  // the embedding is a part of it
    int has_head;   // losses are asked for, or came from here
    GPT2 view;
    float* att;        // (L, NH * num_squares) kept from forward to backward
    float* rows;       // (num_rows, C) inputs of the head, of supervised tokens; kept
    float* attention;  // (2, NH, T, T) scratch for the longest window
    float* drows;      // (num_rows, C) scratch
    float* losses;     // (num_rows) of forward
    int calls[DYNAPIPE_CPU_CALLS];
} DynapipeCpuJob;

static DynapipeCpuJob* dynapipe_cpu_job;  // NULL: their own loop

// --- calls of their forward ------------------------------------------------------------------------------

static inline int dynapipe_cpu_window(const DynapipeCpuJob* job, int i, int* num_tokens) {
    *num_tokens = job->batch->cu_seqlens[i + 1] - job->batch->cu_seqlens[i];
    return job->batch->cu_seqlens[i];
}

static inline void dynapipe_cpu_encode(DynapipeCpuJob* job) {
    job->calls[DYNAPIPE_CPU_ENCODER]++;
    const GPT2* v = &job->view;
    int C = v->config.channels, T;
    for (int i = 0; i < job->batch->num_seqs && job->has_first; i++) {
        int t = dynapipe_cpu_window(job, i, &T);
        float* wpe = v->params.wpe + (size_t)job->batch->positions[t] * C;
        encoder_forward(v->acts.encoded + (size_t)t * C, v->inputs + t, v->params.wte, wpe, 1, T, C);
    }
}

// Of which layer their pointer into a tensor of (L, n, NH) values is: that is all they use it for here.
static inline size_t dynapipe_cpu_layer(const DynapipeCpuJob* job, const float* att) {
    size_t layer_values = (size_t)job->batch->num_tokens * job->view.config.num_heads;
    return (size_t)(att - job->view.acts.att) / layer_values;
}

static inline void dynapipe_cpu_attend(DynapipeCpuJob* job, float* out, const float* att, float* qkv) {
    job->calls[DYNAPIPE_CPU_ATTENTION]++;
    int C = job->view.config.channels, NH = job->view.config.num_heads, T;
    float* place = job->att + dynapipe_cpu_layer(job, att) * NH * (size_t)job->batch->num_squares;
    for (int i = 0; i < job->batch->num_seqs; i++) {
        size_t t = (size_t)dynapipe_cpu_window(job, i, &T);
        attention_forward(out + t * C, job->attention, place, qkv + t * 3 * C, 1, T, C, NH);
        place += (size_t)NH * T * T;
    }
}

static inline void dynapipe_cpu_head(DynapipeCpuJob* job, const float* lnf, float* weight) {
    job->calls[DYNAPIPE_CPU_HEAD]++;
    int C = job->view.config.channels, num_rows = job->batch->num_rows;
    if (!job->has_head || num_rows == 0) { return; }
    for (int i = 0; i < num_rows; i++) {
        memcpy(job->rows + (size_t)i * C, lnf + (size_t)job->batch->rows[i] * C, sizeof(float) * (size_t)C);
    }
    matmul_forward(job->view.acts.logits, job->rows, weight, NULL, num_rows, 1, C,
                   job->view.config.padded_vocab_size);
}

static inline void dynapipe_cpu_softmax(DynapipeCpuJob* job) {
    job->calls[DYNAPIPE_CPU_SOFTMAX]++;
    const GPT2* v = &job->view;
    if (!job->has_head || job->batch->num_rows == 0) { return; }
    softmax_forward(v->acts.probs, v->acts.logits, job->batch->num_rows, 1, v->config.vocab_size,
                    v->config.padded_vocab_size);
}

static inline void dynapipe_cpu_losses(DynapipeCpuJob* job) {
    job->calls[DYNAPIPE_CPU_LOSS]++;
    if (!job->has_head || job->batch->num_rows == 0) { return; }
    crossentropy_forward(job->losses, job->view.acts.probs, (int*)job->batch->targets, job->batch->num_rows,
                         1, job->view.config.padded_vocab_size);
}

// The final layernorm, of forward and backward: is it passed over?
static inline int dynapipe_cpu_passes_norm(DynapipeCpuJob* job) {
    job->calls[DYNAPIPE_CPU_FINAL_NORM]++;
    return !job->has_head;
}

// --- calls of their backward -----------------------------------------------------------------------------

static inline void dynapipe_cpu_dlogits(DynapipeCpuJob* job, float* dlosses) {
    job->calls[DYNAPIPE_CPU_LOSS]++;
    const GPT2* v = &job->view;
    if (!job->has_head || job->batch->num_rows == 0) { return; }
    for (int i = 0; i < job->batch->num_rows; i++) { dlosses[i] = job->batch->loss_scale; }
    crossentropy_softmax_backward(v->grads_acts.logits, dlosses, v->acts.probs, (int*)job->batch->targets,
                                  job->batch->num_rows, 1, v->config.vocab_size, v->config.padded_vocab_size);
}

static inline void dynapipe_cpu_head_backward(DynapipeCpuJob* job, float* dlnf, float* dweight,
                                              float* weight) {
    job->calls[DYNAPIPE_CPU_HEAD]++;
    int C = job->view.config.channels, num_rows = job->batch->num_rows;
    if (!job->has_head || num_rows == 0) { return; }
    memset(job->drows, 0, sizeof(float) * (size_t)num_rows * C);
    matmul_backward(job->drows, dweight, NULL, job->view.grads_acts.logits, job->rows, weight, num_rows, 1, C,
                    job->view.config.padded_vocab_size);
    for (int i = 0; i < num_rows; i++) {
        memcpy(dlnf + (size_t)job->batch->rows[i] * C, job->drows + (size_t)i * C, sizeof(float) * (size_t)C);
    }
}

static inline void dynapipe_cpu_attend_backward(DynapipeCpuJob* job, float* dqkv, float* dout, float* qkv,
                                                const float* att) {
    job->calls[DYNAPIPE_CPU_ATTENTION]++;
    int C = job->view.config.channels, NH = job->view.config.num_heads, T;
    float* place = job->att + dynapipe_cpu_layer(job, att) * NH * (size_t)job->batch->num_squares;
    for (int i = 0; i < job->batch->num_seqs; i++) {
        size_t t = (size_t)dynapipe_cpu_window(job, i, &T), num_values = (size_t)NH * T * T;
        memset(job->attention, 0, sizeof(float) * 2 * num_values);
        attention_backward(dqkv + t * 3 * C, job->attention, job->attention + num_values, dout + t * C,
                           qkv + t * 3 * C, place, 1, T, C, NH);
        place += num_values;
    }
}

static inline void dynapipe_cpu_encode_backward(DynapipeCpuJob* job) {
    job->calls[DYNAPIPE_CPU_ENCODER]++;
    const GPT2* v = &job->view;
    int C = v->config.channels, T;
    for (int i = 0; i < job->batch->num_seqs && job->has_first; i++) {
        int t = dynapipe_cpu_window(job, i, &T);
        float* dwpe = v->grads.wpe + (size_t)job->batch->positions[t] * C;
        encoder_backward(v->grads.wte, dwpe, v->grads_acts.encoded + (size_t)t * C, v->inputs + t, 1, T, C);
    }
}

// --- their names, until llmc_cpu_main.h ------------------------------------------------------------------

// Is this the view's own tensor? A tensor that a slice lacks has an address of its own all the same.
#define DYNAPIPE_CPU_IS(pointer, tensor) \
    (dynapipe_cpu_job != NULL && (pointer) == dynapipe_cpu_job->view.tensor)
#define DYNAPIPE_CPU_PASSES(pointer, tensor) \
    (DYNAPIPE_CPU_IS(pointer, tensor) && dynapipe_cpu_passes_norm(dynapipe_cpu_job))

#define encoder_forward(...) \
    (dynapipe_cpu_job != NULL ? dynapipe_cpu_encode(dynapipe_cpu_job) : (encoder_forward)(__VA_ARGS__))
#define attention_forward(out, preatt, att, qkv, ...)                                \
    (dynapipe_cpu_job != NULL ? dynapipe_cpu_attend(dynapipe_cpu_job, out, att, qkv) \
                              : (attention_forward)(out, preatt, att, qkv, __VA_ARGS__))
#define layernorm_forward(out, ...) \
    (DYNAPIPE_CPU_PASSES(out, acts.lnf) ? (void)0 : (layernorm_forward)(out, __VA_ARGS__))
#define matmul_forward(out, inp, weight, ...)                                             \
    (DYNAPIPE_CPU_IS(out, acts.logits) ? dynapipe_cpu_head(dynapipe_cpu_job, inp, weight) \
                                       : (matmul_forward)(out, inp, weight, __VA_ARGS__))
#define softmax_forward(...) \
    (dynapipe_cpu_job != NULL ? dynapipe_cpu_softmax(dynapipe_cpu_job) : (softmax_forward)(__VA_ARGS__))
#define crossentropy_forward(...) \
    (dynapipe_cpu_job != NULL ? dynapipe_cpu_losses(dynapipe_cpu_job) : (crossentropy_forward)(__VA_ARGS__))

#define crossentropy_softmax_backward(dlogits, dlosses, ...)                    \
    (dynapipe_cpu_job != NULL ? dynapipe_cpu_dlogits(dynapipe_cpu_job, dlosses) \
                              : (crossentropy_softmax_backward)(dlogits, dlosses, __VA_ARGS__))
#define matmul_backward(dinp, dweight, dbias, dout, inp, weight, ...)          \
    (DYNAPIPE_CPU_IS(dinp, grads_acts.lnf)                                     \
         ? dynapipe_cpu_head_backward(dynapipe_cpu_job, dinp, dweight, weight) \
         : (matmul_backward)(dinp, dweight, dbias, dout, inp, weight, __VA_ARGS__))
#define layernorm_backward(dinp, dweight, ...) \
    (DYNAPIPE_CPU_PASSES(dweight, grads.lnfw) ? (void)0 : (layernorm_backward)(dinp, dweight, __VA_ARGS__))
#define attention_backward(dqkv, dpreatt, datt, dout, qkv, att, ...)                                 \
    (dynapipe_cpu_job != NULL ? dynapipe_cpu_attend_backward(dynapipe_cpu_job, dqkv, dout, qkv, att) \
                              : (attention_backward)(dqkv, dpreatt, datt, dout, qkv, att, __VA_ARGS__))
#define encoder_backward(...)                                                  \
    (dynapipe_cpu_job != NULL ? dynapipe_cpu_encode_backward(dynapipe_cpu_job) \
                              : (encoder_backward)(__VA_ARGS__))

#endif
