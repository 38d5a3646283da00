/*
t5.h -- T5 (Raffel et al. 2020) and its descendants as a range of layers of both stacks.

    encoder:  x = x + o(attention(norm1 x)),  x = x + wo(act(wi(norm2 x)));  enc_out = enc_norm x
    decoder:  x = x + o(attention(norm1 x)),  x = x + xo(attention(norm2 x, enc_out)),
              x = x + wo(act(wi(norm3 x)))
    logits:   head(norm x), or shared(norm x * C^-1/2) if the head is tied

    t5:       ReLU, tied head                        flan-t5:, t5v1.1:, mt5:   gelu(a) * b, head of its own
    byt5:     the same, deep encoder, 384 bytes      umt5:                     gelu(a) * b, tied, bias per
layer

Numerics are Hugging Face's: RMS norm (eps 1e-6), unscaled scores with a bias by log buckets of positions
(bidirectional in the encoder, causal in the decoder, none in cross-attention), no other biases. Dropout is at
T5's places: the embedding of each stack, probabilities, the attention's output, after the feed-forward's
activation, its output, after each final norm. I = heads * head size need not be C.

A descriptor is a family and one of its sizes, "flan-t5:base", or a shape, "byt5:l2c64h4" (layers of each
stack, channels, heads; the head size is channels / heads, F the family's ratio: 4 C for t5, 5/2 C rounded up
to 8 for the gated ones), or with everything given, "t5:l2d3c64h4k16f256" (encoder and decoder layers,
channels, heads, head size, F). Default longest sequence: 1024.
*/
#pragma once

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const ModelKind t5_kind;

// In file order; a tensor that a config lacks has 0 rows. F2: F, gated 2F (wi_0, then wi_1). Bias tables
// are whole, or (umT5) of each layer.
// clang-format off
#define T5_TENSORS(X) /* name  place             rows  cols  decay */ \
    X(shared,     TENSOR_WHOLE,         Vp,   C,  true)   \
    X(enc_norm1,  TENSOR_PER_LAYER,     1,    C,  false)  \
    X(enc_qkv,    TENSOR_PER_LAYER,     3*I,  C,  true)   \
    X(enc_o,      TENSOR_PER_LAYER,     C,    I,  true)   \
    X(enc_norm2,  TENSOR_PER_LAYER,     1,    C,  false)  \
    X(enc_wi,     TENSOR_PER_LAYER,     F2,   C,  true)   \
    X(enc_wo,     TENSOR_PER_LAYER,     C,    F,  true)   \
    X(enc_bias,   enc_bias_place,       NB,   NH, false)  \
    X(enc_norm,   TENSOR_WHOLE,         1,    C,  false)  \
    X(dec_norm1,  TENSOR_PER_DEC_LAYER, 1,    C,  false)  \
    X(dec_qkv,    TENSOR_PER_DEC_LAYER, 3*I,  C,  true)   \
    X(dec_o,      TENSOR_PER_DEC_LAYER, C,    I,  true)   \
    X(dec_norm2,  TENSOR_PER_DEC_LAYER, 1,    C,  false)  \
    X(dec_xq,     TENSOR_PER_DEC_LAYER, I,    C,  true)   \
    X(dec_xkv,    TENSOR_PER_DEC_LAYER, 2*I,  C,  true)   \
    X(dec_xo,     TENSOR_PER_DEC_LAYER, C,    I,  true)   \
    X(dec_norm3,  TENSOR_PER_DEC_LAYER, 1,    C,  false)  \
    X(dec_wi,     TENSOR_PER_DEC_LAYER, F2,   C,  true)   \
    X(dec_wo,     TENSOR_PER_DEC_LAYER, C,    F,  true)   \
    X(dec_bias,   dec_bias_place,       NB,   NH, false)  \
    X(dec_norm,   TENSOR_WHOLE,         1,    C,  false)  \
    X(head,       TENSOR_WHOLE,         head_rows, C, true)
// clang-format on

#define X(name, place, rows, cols, decay) T5_##name,
typedef enum { T5_TENSORS(X) T5_NUM_TENSORS } T5Tensor;
#undef X

#ifdef __cplusplus
}
#endif
