/*
gpt2.h -- GPT-2 as a range of layers [layer_begin, layer_end), written once on ops.h.

A pipeline stage is a slice; the single-device model is the slice [0, L). The first slice also has the token
and position embedding, the last the final norm and the (tied) head; the head may be a slice alone, [L, L),
behind one that ends at L without it. Nothing here knows of pipelines: a slice turns an activation (T, C) into
an activation, and gradients back.

Losses are summed by the caller; logits exist for supervised rows only. Shapes of checkpoints, initialisation
and numerics are llm.c's (file format: checkpoint.h).
*/
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include "ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int max_seq_len;   // maxT
    int vocab;         // V
    int num_layers;    // L
    int num_heads;     // NH
    int channels;      // C
    int padded_vocab;  // Vp: V rounded up to 128
} Gpt2Config;

// "d12" (llm.c's table: d6 ... d48 ...), "gpt3:c768", or "l4c128h4" (layers, channels, heads). vocab and
// max_seq_len are the caller's; 0: llm.c's defaults (50257; 1024, gpt3: 2048).
// false: `error` (256 characters) says what would be valid.
bool gpt2_config_parse(Gpt2Config* out, const char* descriptor, int vocab, int max_seq_len, char* error);
// Is this a model at all? false: `error` (256 characters) begins with `what` (a file or option) and names the
// field.
bool gpt2_config_check(const Gpt2Config* config, const char* what, char* error);

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

// Where a tensor (of one layer, for per-layer ones) lies in this slice's flat array and in the whole model.
typedef struct {
    Gpt2Tensor tensor;
    int layer;            // of the whole model; -1 for tensors outside the layers
    int64_t offset;       // in the slice's params and grads, in values
    int64_t file_offset;  // in the body of a version 3 checkpoint, in values
    int64_t num_values;
    bool decay;
    bool tied_copy;  // wte of a last slice that is not also the first: counted elsewhere
} Gpt2TensorSlice;

typedef struct {
    Gpt2Config config;
    int layer_begin, layer_end;
    bool is_first, is_last;
    OpsContext* ops;     // borrowed
    int64_t num_params;  // of this slice, tied copy included
    floatX* params;      // flat, of the device
    float* grads;        // flat, same layout, of the device; NULL until gpt2_alloc_grads
    int num_slices;
    Gpt2TensorSlice* slices;          // ascending offset
    int slice_idx[GPT2_NUM_TENSORS];  // slices[slice_idx[tensor] + l] is local layer l's; -1: not here
    const char* const* names;         // [GPT2_NUM_TENSORS]
    const floatX* last_logits;  // (rows, Vp): the first (up to 64) rows of the last forward with head and
                                // without keep; lies in that forward's acts, on the device
} Gpt2;

// What a job reads of a micro-batch (host memory, free once the call returned). Same conventions as ops.h.
typedef struct {
    int num_seqs, num_tokens, num_rows, max_seq_tokens;
    const int32_t *cu_seqlens, *tokens, *positions, *rows, *targets;
} Gpt2Batch;

enum { GPT2_KEEP = 1, GPT2_HEAD = 2 };

// is_last: with final norm and head; layer_end is L then. Only such a slice may have no layer.
void gpt2_init(Gpt2* model, Gpt2Config config, int layer_begin, int layer_end, bool is_last, OpsContext* ops);
void gpt2_alloc_grads(Gpt2* model);
void gpt2_free(Gpt2* model);
int64_t gpt2_num_params(const Gpt2Config* config);  // of the whole model, wte counted once

// llm.c's initialisation, bit for bit (bf16: rounded from it): Mersenne twister, seed 42 by default, the
// whole model's draws made and this slice's part kept.
void gpt2_init_random(Gpt2* model, uint32_t seed);

// Buffers, in bytes, linear in tokens and rows after rounding both up to 16 (so a planner can price them):
// acts kept for backward (KEEP), acts of a forward that keeps nothing, scratch of any job. (The head without
// keep needs no more rows than 64, and scratch no less than attention's.) All buffers begin at multiples of
// 64 bytes where acts and scratch do and C is even.
int64_t gpt2_acts_bytes(const Gpt2* model, int num_tokens, int num_rows, int flags);
int64_t gpt2_scratch_bytes(const Gpt2* model, int num_tokens, int num_rows, int max_seq_tokens);
int64_t gpt2_boundary_bytes(const Gpt2* model, int num_tokens);

// in (T, C): NULL on the first slice; out (T, C): NULL on the last. losses (num_rows): with GPT2_HEAD on the
// last; host memory, they are there after ops_sync(). KEEP | HEAD: loss_scale != 0; the logits become their
// gradients at once. KEEP without HEAD on the last slice keeps the layers only (it must have one): backward
// then starts from a `dout` of the last layer's output. Flags 0: only `out` matters (on the last slice
// nothing does, and nothing is computed), and the same call with KEEP (and HEAD) later recomputes, bit for
// bit; `out` may then be NULL, which saves a matrix product. A token, position or target out of range ends
// the program.
void gpt2_forward(Gpt2* model, const Gpt2Batch* batch, const floatX* in, floatX* out, void* acts,
                  void* scratch, float* losses, float loss_scale, int flags);
// acts: of a forward with KEEP (and HEAD on the last slice). dout (T, C): NULL on the last slice; din (T, C):
// NULL on the first. Turns acts into what backward_weights needs; norms' gradients are added here.
void gpt2_backward_inputs(Gpt2* model, const Gpt2Batch* batch, const floatX* in, void* acts,
                          const floatX* dout, floatX* din, void* scratch);
// Any time after backward_inputs, once, with the same dout.
void gpt2_backward_weights(Gpt2* model, const Gpt2Batch* batch, void* acts, const floatX* dout,
                           void* scratch);
void gpt2_zero_grads(Gpt2* model);

#ifdef __cplusplus
}
#endif
