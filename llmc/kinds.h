/*
kinds.h -- the kinds of models: their tensors, and the descriptors that name them.

GPT-2: "d12" (llm.c's table: d6 ... d48 ...), "gpt3:c768", or layers, channels, heads: "l4c128h4". Tensors in
llm.c's order, shapes, initialisation and numerics llm.c's. Defaults: vocabulary 50257, longest sequence 1024
(gpt3: 2048). Hugging Face's files may name another F (4 C), another eps of the norms (1e-5), exact GELU and a
head of its own; checkpoints of those have a magic that llm.c does not take.

T5 (Raffel et al. 2020) and its descendants:

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

Llama (Touvron et al. 2023) and its like, in Hugging Face's numerics:

    x = x + o(attention(turn q, turn k, v)),  q, k, v = qkv(norm1 x);  x = x + down(silu(gate) * up),
    gate, up = gate_up(norm2 x);  logits: head(norm x), or of the embedding if the head is tied

Positions turn queries and keys (RoFormer: Su et al. 2021), NKV heads of keys and values serve NH of queries
(Ainslie et al. 2023). Qwen2 has biases of q, k and v and eps 1e-6 instead of 1e-5. A shape is
"llama:l4c128h4", with the rest given "qwen2:l4c128h4g2k32f352": NKV, head size, F (else NH, C / NH, 8/3 C
rounded up to 8); also "tinyllama:1.1b", "qwen2:0.5b".

A T5's descriptor is a family and one of its sizes, "flan-t5:base", or a shape, "byt5:l2c64h4" (layers of each
stack, channels, heads; the head size is channels / heads, F the family's ratio: 4 C for t5, 5/2 C rounded up
to 8 for the gated ones), or with everything given, "t5:l2d3c64h4k16f256" (encoder and decoder layers,
channels, heads, head size, F). Default longest sequence: 1024.
*/
#pragma once

#include <string.h>

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const ModelKind gpt2_kind, t5_kind, llama_kind;

// In file order; a tensor that a config lacks has 0 rows. F2: F, gated 2F (wi_0, then wi_1). T5's bias tables
// are whole, or (umT5) of each layer. Last the tensor's names in Hugging Face's files: {a,b} are equal parts
// of its rows.
// clang-format off
#define GPT2_TENSORS(X) /* name place  rows  cols  decay */ \
    X(wte,      WHOLE, Vp,   C,   true,  "wte.weight") \
    X(wpe,      WHOLE, maxT, C,   true,  "wpe.weight") \
    X(ln1w,     LAYER, 1,    C,   false, "h.%d.ln_1.weight") \
    X(ln1b,     LAYER, 1,    C,   false, "h.%d.ln_1.bias") \
    X(qkvw,     LAYER, 3*C,  C,   true,  "h.%d.attn.c_attn.weight") \
    X(qkvb,     LAYER, 1,    3*C, false, "h.%d.attn.c_attn.bias") \
    X(attprojw, LAYER, C,    C,   true,  "h.%d.attn.c_proj.weight") \
    X(attprojb, LAYER, 1,    C,   false, "h.%d.attn.c_proj.bias") \
    X(ln2w,     LAYER, 1,    C,   false, "h.%d.ln_2.weight") \
    X(ln2b,     LAYER, 1,    C,   false, "h.%d.ln_2.bias") \
    X(fcw,      LAYER, F,    C,   true,  "h.%d.mlp.c_fc.weight") \
    X(fcb,      LAYER, 1,    F,   false, "h.%d.mlp.c_fc.bias") \
    X(fcprojw,  LAYER, C,    F,   true,  "h.%d.mlp.c_proj.weight") \
    X(fcprojb,  LAYER, 1,    C,   false, "h.%d.mlp.c_proj.bias") \
    X(lnfw,     WHOLE, 1,    C,   false, "ln_f.weight") \
    X(lnfb,     WHOLE, 1,    C,   false, "ln_f.bias") \
    X(head,     WHOLE, head_rows, C, true, "lm_head.weight")
#define T5_TENSORS(X) /* name   place      rows  cols  decay */ \
    X(shared,    WHOLE,          Vp,   C,  true,  "shared.weight") \
    X(enc_norm1, LAYER,          1,    C,  false, ENC "0.layer_norm.weight") \
    X(enc_qkv,   LAYER,          3*I,  C,  true,  ENC "0.SelfAttention.{q,k,v}.weight") \
    X(enc_o,     LAYER,          C,    I,  true,  ENC "0.SelfAttention.o.weight") \
    X(enc_norm2, LAYER,          1,    C,  false, ENC "1.layer_norm.weight") \
    X(enc_wi,    LAYER,          F2,   C,  true,  config->gated ? ENC "1.DenseReluDense.{wi_0,wi_1}.weight" : ENC "1.DenseReluDense.wi.weight") \
    X(enc_wo,    LAYER,          C,    F,  true,  ENC "1.DenseReluDense.wo.weight") \
    X(enc_bias,  enc_bias_place, NB,   NH, false, ENC "0.SelfAttention.relative_attention_bias.weight") \
    X(enc_norm,  WHOLE,          1,    C,  false, "encoder.final_layer_norm.weight") \
    X(dec_norm1, DEC_LAYER,      1,    C,  false, DEC "0.layer_norm.weight") \
    X(dec_qkv,   DEC_LAYER,      3*I,  C,  true,  DEC "0.SelfAttention.{q,k,v}.weight") \
    X(dec_o,     DEC_LAYER,      C,    I,  true,  DEC "0.SelfAttention.o.weight") \
    X(dec_norm2, DEC_LAYER,      1,    C,  false, DEC "1.layer_norm.weight") \
    X(dec_xq,    DEC_LAYER,      I,    C,  true,  DEC "1.EncDecAttention.q.weight") \
    X(dec_xkv,   DEC_LAYER,      2*I,  C,  true,  DEC "1.EncDecAttention.{k,v}.weight") \
    X(dec_xo,    DEC_LAYER,      C,    I,  true,  DEC "1.EncDecAttention.o.weight") \
    X(dec_norm3, DEC_LAYER,      1,    C,  false, DEC "2.layer_norm.weight") \
    X(dec_wi,    DEC_LAYER,      F2,   C,  true,  config->gated ? DEC "2.DenseReluDense.{wi_0,wi_1}.weight" : DEC "2.DenseReluDense.wi.weight") \
    X(dec_wo,    DEC_LAYER,      C,    F,  true,  DEC "2.DenseReluDense.wo.weight") \
    X(dec_bias,  dec_bias_place, NB,   NH, false, DEC "0.SelfAttention.relative_attention_bias.weight") \
    X(dec_norm,  WHOLE,          1,    C,  false, "decoder.final_layer_norm.weight") \
    X(head,      WHOLE,   head_rows,   C,  true,  "lm_head.weight")
#define LLAMA_TENSORS(X) /* name place  rows  cols  decay */ \
    X(wte,      WHOLE, Vp,   C,   true,  "model.embed_tokens.weight") \
    X(norm1,    LAYER, 1,    C,   false, "model.layers.%d.input_layernorm.weight") \
    X(qkv,      LAYER, W,    C,   true,  "model.layers.%d.self_attn.{q,k,v}_proj.weight") \
    X(qkvb,     LAYER, bias, W,   false, "model.layers.%d.self_attn.{q,k,v}_proj.bias") \
    X(o,        LAYER, C,    I,   true,  "model.layers.%d.self_attn.o_proj.weight") \
    X(norm2,    LAYER, 1,    C,   false, "model.layers.%d.post_attention_layernorm.weight") \
    X(gate_up,  LAYER, 2*F,  C,   true,  "model.layers.%d.mlp.{gate,up}_proj.weight") \
    X(down,     LAYER, C,    F,   true,  "model.layers.%d.mlp.down_proj.weight") \
    X(norm,     WHOLE, 1,    C,   false, "model.norm.weight") \
    X(head,     WHOLE, head_rows, C, true, "lm_head.weight")
// clang-format on

#define X(name, place, rows, cols, decay, hf_names) GPT2_##name,
typedef enum { GPT2_TENSORS(X) GPT2_NUM_TENSORS } Gpt2Tensor;
#undef X
#define X(name, place, rows, cols, decay, hf_names) T5_##name,
typedef enum { T5_TENSORS(X) T5_NUM_TENSORS } T5Tensor;
#undef X
#define X(name, place, rows, cols, decay, hf_names) LLAMA_##name,
typedef enum { LLAMA_TENSORS(X) LLAMA_NUM_TENSORS } LlamaTensor;
#undef X

// By the family's name before the colon: t5: t5v1.1: flan-t5: byt5: mt5: umt5:, llama: tinyllama: qwen2:.
// gpt2_kind if it is neither; model_parse() then lists the valid descriptors.
static inline const ModelKind* models_kind_of(const char* descriptor) {
    static const char* const words[] = {"t5", "llama", "qwen"};
    for (int i = 0; i < 3; i++) {
        const char *colon = strchr(descriptor, ':'), *found = strstr(descriptor, words[i]);
        if (found != NULL && (colon == NULL || found < colon)) { return i == 0 ? &t5_kind : &llama_kind; }
    }
    return &gpt2_kind;
}

// What costs of a model depend on besides its vocabulary: "gpt2 C 768 NH 12", "t5 C 512 NH 6 HS 64 F
// 1024 gated", "llama C 896 NH 14 KV 2 HS 64 F 4864".
void models_signature(char* out, size_t out_bytes, const ModelConfig* config);

#ifdef __cplusplus
}
#endif
