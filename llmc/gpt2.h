/*
gpt2.h -- GPT-2 as a range of layers [layer_begin, layer_end), written once on ops.h.

The single-device model is the range [0, L). The first range also has the token and position embedding, the
last the final norm and the (tied) head, or the norm alone where the head is shared (head.h); either may be a
range alone, [L, L), behind one that ends at L without it. Nothing here knows of pipelines: a range turns an
activation (T, C) into an activation, and gradients back.

Losses are summed by the caller; logits exist for supervised rows only. Shapes of checkpoints, initialisation
and numerics are llm.c's (file format: checkpoint.h).
*/
#pragma once

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const ModelKind gpt2_kind;

// "d12" (llm.c's table: d6 ... d48 ...), "gpt3:c768", or "l4c128h4" (layers, channels, heads). vocab and
// max_seq_len are the caller's; 0: llm.c's defaults (50257; 1024, gpt3: 2048).
bool gpt2_config_parse(ModelConfig* out, const char* descriptor, int vocab, int max_seq_len);
bool gpt2_config_check(const ModelConfig* config, const char* what);
double gpt2_flops(const ModelConfig* config, const ModelWork* work);

// clang-format off
#define GPT2_TENSORS(X) /* name     per layer  rows  cols  decay */ \
    X(wte,      false, Vp,  C,  true)   \
    X(wpe,      false, maxT, C, true)   \
    X(ln1w,     true,  1,   C,  false)  \
    X(ln1b,     true,  1,   C,  false)  \
    X(qkvw,     true,  3*C, C,  true)   \
    X(qkvb,     true,  1, 3*C,  false)  \
    X(attprojw, true,  C,   C,  true)   \
    X(attprojb, true,  1,   C,  false)  \
    X(ln2w,     true,  1,   C,  false)  \
    X(ln2b,     true,  1,   C,  false)  \
    X(fcw,      true,  4*C, C,  true)   \
    X(fcb,      true,  1, 4*C,  false)  \
    X(fcprojw,  true,  C, 4*C,  true)   \
    X(fcprojb,  true,  1,   C,  false)  \
    X(lnfw,     false, 1,   C,  false)  \
    X(lnfb,     false, 1,   C,  false)
// clang-format on

#define X(name, per_layer, rows, cols, decay) GPT2_##name,
typedef enum { GPT2_TENSORS(X) GPT2_NUM_TENSORS } Gpt2Tensor;
#undef X

// llm.c's initialisation, bit for bit (bf16: rounded from it): Mersenne twister, seed 42 by default.
void gpt2_init_random(Model* model, uint32_t seed);

// Buffers, in bytes, linear in tokens and rows after rounding both up to 16 (so a planner can price them):
// acts kept for backward (KEEP), acts of a forward that keeps nothing, scratch of any job. (The head without
// keep needs no more rows than 64, and scratch no less than attention's.) All buffers begin at multiples of
// 64 bytes where acts and scratch do and C is even.
int64_t gpt2_acts_bytes(const Model* model, int num_tokens, int num_rows, int flags);
int64_t gpt2_scratch_bytes(const Model* model, int num_tokens, int num_rows, int max_seq_tokens);
int64_t gpt2_boundary_bytes(const Model* model, int num_tokens);

// As in model.h, with activations (T, C). KEEP without HEAD where the whole head is keeps the layers only
// (there must be one): backward then starts from a `dout` of the last layer's output.
void gpt2_forward(Model* model, const ModelBatch* batch, const void* in, void* out, void* acts, void* scratch,
                  float* losses, int flags);
void gpt2_backward_inputs(Model* model, const ModelBatch* batch, const void* in, void* acts, const void* dout,
                          void* din, void* scratch);
void gpt2_backward_weights(Model* model, const ModelBatch* batch, void* acts, const void* dout,
                           void* scratch);

// gpt2_infer.c; scratch: gpt2_infer_bytes().
int64_t gpt2_cache_bytes(const Model* model, const ModelCache* cache);
int64_t gpt2_infer_bytes(const Model* model, const ModelBatch* batch);
void gpt2_infer(Model* model, const ModelBatch* batch, const ModelCache* cache, const void* in, void* out,
                void* scratch, int32_t* next);

#ifdef __cplusplus
}
#endif
