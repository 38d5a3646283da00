/*
t5_layer.h -- what forward and backward of a T5's layers share: which tensor is which, attention, dropout
(internal to t5).

Forward drops in place, right behind the operation. Backward drops the gradient by the same bits, made again;
where the gradient is still needed as it is, on its way into scratch. Without dropout none of it costs a pass
over memory.
*/
#pragma once

#include "t5_acts.h"

#ifdef __cplusplus
extern "C" {
#endif

// The tensors of a layer that both stacks have.
typedef struct {
    T5Tensor norm_self, qkv, o, norm_ffn, wi, wo, bias;
} T5StackTensors;
extern const T5StackTensors t5_stack_tensors[2];

static inline T5Tensor t5_head_tensor(const Model* m) {
    return (T5Tensor)m->config.kind->head_tensor(&m->config);
}
float t5_head_scale(const Model* model);  // between the decoder's norm and the head

// One job of a slice on a micro-batch.
typedef struct {
    Model* model;
    const ModelBatch* host;
    T5Batch batch;
    void *acts, *scratch;
    int flags;
} T5Job;

// --- attention --------------------------------------------------------------------------------------------

// The stack's bias table, as floats in scratch: for all layers before the first, umT5's again before each.
void t5_load_bias(const T5Job* job, T5Side side);
void t5_load_layer_bias(const T5Job* job, T5Side side, int l);

Attention t5_self_attention(const T5Job* job, const T5LayerActs* layer, T5Side side, int l);
Attention t5_cross_attention(const T5Job* job, const T5LayerActs* layer, int l);

// Encoder layers from `in` on, to `out` or this slice's own enc_out; returns enc_out where the encoder ends
// here.
const floatX* t5_encoder_forward(const T5Job* job, const floatX* in, floatX* out);

// --- dropout ----------------------------------------------------------------------------------------------

// The places of one layer of the chain; those outside the layers are numbered behind its last.
typedef enum {
    T5_DROP_PROBABILITIES,
    T5_DROP_ATTENTION,
    T5_DROP_CROSS_PROBABILITIES,
    T5_DROP_CROSS,
    T5_DROP_ACTIVATION,
    T5_DROP_FFN,
    T5_DROPS_PER_LAYER
} T5Drop;
typedef enum { T5_DROP_EMBEDDING, T5_DROP_END } T5OuterDrop;  // behind embedding, behind final norm

// Of the whole model, whatever its slices; `l` is local to slice and stack.
uint32_t t5_place(const Model* model, T5Side side, int l, T5Drop drop);
uint32_t t5_outer_place(const Model* model, T5Side side, T5OuterDrop drop);

// x (num_rows, width) in place; nothing where the model has no dropout.
void t5_drop(const T5Job* job, floatX* x, const uint32_t* keys, uint32_t place, int num_rows, int width);
// dx (tokens of the stack, C), or what is left of it, in `into`, where the model has dropout.
const floatX* t5_dropped(const T5Job* job, T5Side side, const floatX* dx, floatX* into, uint32_t place);

#ifdef __cplusplus
}
#endif
