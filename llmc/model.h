/*
model.h -- what all models here have in common: a transformer as a chain of blocks, any range of its layers as
a slice, flat parameters, and a table of functions.

    ModelConfig config;
    if (!model_parse(&config, &t5_kind, "t5:small", vocab, 512, error)) { ... }
    Model model;
    model_init(&model, &config, layer_begin, layer_end, is_last, ops);
    model_alloc_grads(&model);
    config.kind->init_random(&model, 42);
    config.kind->forward(&model, &batch, in, out, acts, scratch, losses, MODEL_KEEP | MODEL_HEAD);

A pipeline stage is a slice; the single-device model is the slice [0, L). Layers are numbered along the chain:
GPT-2's L layers; T5's encoder layers [0, Le), then its decoder layers [Le, Le + Ld). The first slice has the
embedding, the one where the decoder begins that stack's embedding, the last one the head; the head may be a
slice alone, [L, L). Trainer, optimizer, checkpoints and profiler know nothing else of a model.

A kind is one file of each: t5.h (the tensors), t5_config.c, t5_acts.c, t5_forward.c, t5_backward.c ...
*/
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include "ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Model Model;
typedef struct ModelKind ModelKind;

typedef struct {
    int max_seq_len;   // maxT, longest sequence (T5 has no such limit: what the run asks for)
    int vocab;         // V
    int num_layers;    // L; of an encoder-decoder the encoder's
    int num_heads;     // NH
    int channels;      // C
    int padded_vocab;  // Vp: V rounded up to 128
    // of encoder-decoder models (T5); 0 elsewhere
    int num_dec_layers;
    int head_size;                  // HS; NH * HS need not be C
    int ffn_channels;               // F
    int num_buckets, max_distance;  // of the relative position bias
    bool gated;                     // feed-forward: gelu(x W0) * (x W1); else relu(x W)
    bool tied_head;                 // head = embedding, hidden states times C^-1/2
    bool bias_per_layer;            // umT5; else one table of biases for each stack
    const ModelKind* kind;
} ModelConfig;

// What a job reads of a micro-batch (host memory, free once the call returned). Same conventions as ops.h.
typedef struct {
    int num_seqs, num_tokens, num_rows, max_seq_tokens;
    const int32_t *cu_seqlens, *tokens, *positions;
    const int32_t *rows, *targets;  // (num_rows) supervised tokens (of the decoder, where there is one)
    float loss_scale;               // of every row's gradient: 1 / supervised tokens of the step
    const int32_t* seq_lens;        // (num_seqs) tokens of each that are not padding; NULL: all
    const uint32_t* token_keys;     // (num_tokens) of dropout; NULL: nothing is dropped (evaluation)
    // the decoder's side of the same sequences; 0 and NULL elsewhere
    int num_dec_tokens, max_dec_seq_tokens;
    const int32_t *dec_cu_seqlens, *dec_tokens, *dec_positions, *dec_seq_lens;
    const uint32_t* dec_token_keys;
} ModelBatch;

// Keys and values of what was said so far, for generation: of each slot (a sequence) up to max_tokens tokens
// (a decoder's, where there is one; the cross-attention's besides).
typedef struct {
    int num_slots, max_tokens;
    int max_enc_tokens;         // of a slot's encoder side; 0 without
    const int32_t* slots;       // (batch.num_seqs) the slot of each sequence of the batch
    const int32_t* num_before;  // (batch.num_seqs) tokens that the slot has; the batch's come behind them
    const int32_t* num_enc;     // (batch.num_seqs) encoder tokens of the slot, this batch's included
    void* memory;               // of the device, cache_bytes()
} ModelCache;

enum {
    MODEL_KEEP = 1,  // acts must serve a later backward
    MODEL_HEAD = 2   // the last slice computes losses
};

// --- tensors -----------------------------------------------------------------------------------------------

enum { MODEL_MAX_TENSORS = 32 };

typedef enum { TENSOR_WHOLE, TENSOR_PER_LAYER, TENSOR_PER_DEC_LAYER } TensorPlace;

// A tensor of the kind's numbering, for one config. rows 0: this config has none.
typedef struct {
    const char* name;
    TensorPlace place;
    int64_t rows, cols;
    bool decay;  // a matrix: weight decay applies
} TensorInfo;

// Where a tensor (of one layer, for per-layer ones) lies in this slice's flat array and in the whole model.
typedef struct {
    int tensor;
    int layer;            // of its stack; -1 for tensors outside the layers
    int64_t offset;       // in the slice's params and grads, in values
    int64_t file_offset;  // in the body of a checkpoint, in values
    int64_t num_values;
    bool decay;
    bool tied_copy;  // another slice, before this one in the chain, has it too: counted there
    bool tied;       // more than one slice may have it: its gradient is the sum of theirs
} TensorSlice;

struct Model {
    ModelConfig config;
    int layer_begin, layer_end;  // over the whole chain
    bool is_first, is_last;      // has the (encoder's) embedding; the head
    OpsContext* ops;             // borrowed
    int64_t num_params;          // of this slice, tied copies included
    floatX* params;              // flat, of the device
    float* grads;                // flat, same layout, of the device; NULL until model_alloc_grads
    int num_slices;
    TensorSlice* slices;               // ascending offset
    int slice_idx[MODEL_MAX_TENSORS];  // slices[slice_idx[tensor] + l] is local layer l's; -1: not here
    float dropout;                     // p; 0: none
    const floatX* last_logits;  // (rows, Vp): the first (up to 64) rows of the last forward with head and
                                // without keep; lies in that forward's acts, on the device
};

// --- kinds -------------------------------------------------------------------------------------------------

struct ModelKind {
    const char* name;   // "gpt2", "t5"
    const char* title;  // "GPT-2", "T5"
    const char* usual;  // the descriptor where none is given: "d12"
    bool has_decoder;   // two sides: batches have an encoder's and a decoder's
    int num_tensors;
    int checkpoint_magic;

    // A descriptor ("d12", "flan-t5:base", "byt5:l2c64h4"). vocab and max_seq_len are the caller's; 0: the
    // kind's defaults. false: `error` (256 characters) says what would be valid.
    bool (*parse)(ModelConfig* out, const char* descriptor, int vocab, int max_seq_len, char* error);
    // Is this a model at all? false: `error` begins with `what` (a file or option) and names the field.
    bool (*check)(const ModelConfig* config, const char* what, char* error);
    // A checkpoint's header, 256 int32; [0] and [1] are magic and version, the caller's.
    void (*to_header)(int32_t* header, const ModelConfig* config);
    void (*from_header)(ModelConfig* out, const int32_t* header);
    // "12 layers, 768 channels, 12 heads", for messages.
    void (*describe)(char* out, size_t out_chars, const ModelConfig* config);

    TensorInfo (*tensor)(const ModelConfig* config, int tensor);
    // Of a tensor outside the layers: has the slice one, and has one before it in the chain one?
    bool (*has_tensor)(const Model* model, int tensor);
    bool (*is_copy)(const Model* model, int tensor);
    // May several slices have it?
    bool (*is_tied)(const ModelConfig* config, int tensor);
    // The kind's usual initialisation; the whole model's draws are made and this slice's part kept, so that
    // it does not depend on slices.
    void (*init_random)(Model* model, uint32_t seed);

    // Buffers, in bytes, from the counts of `batch` alone (all tokens, rows, num_seqs, longest): linear in
    // the counts after rounding them up to 16. acts: kept for backward (KEEP) or of a forward that keeps
    // nothing; scratch: of any job; boundary: the activation (and its gradient) before (0) or behind (1) this
    // slice.
    int64_t (*acts_bytes)(const Model* model, const ModelBatch* batch, int flags);
    int64_t (*scratch_bytes)(const Model* model, const ModelBatch* batch);
    int64_t (*boundary_bytes)(const Model* model, const ModelBatch* batch, int is_behind);

    // in: NULL on the first slice; out: NULL on the last. losses (num_rows): with HEAD on the last; host
    // memory, there after ops_sync(). KEEP | HEAD: batch->loss_scale != 0. Flags 0: only `out` matters (on
    // the last slice nothing does), and the same call with KEEP (and HEAD) later recomputes, bit for bit;
    // `out` may then be NULL. A token, position or target out of range ends the program.
    void (*forward)(Model* model, const ModelBatch* batch, const void* in, void* out, void* acts,
                    void* scratch, float* losses, int flags);
    // acts: of a forward with KEEP (and HEAD). dout: NULL on the last slice; din: NULL on the first. Turns
    // acts into what backward_weights needs; small parameters' gradients (norms, bias tables) are added here.
    void (*backward_inputs)(Model* model, const ModelBatch* batch, const void* in, void* acts,
                            const void* dout, void* din, void* scratch);
    // Any time after backward_inputs, once, with the same dout.
    void (*backward_weights)(Model* model, const ModelBatch* batch, void* acts, const void* dout,
                             void* scratch);

    // Generation: the new tokens of some slots, behind what the cache has of them. The last slice writes the
    // likeliest next token of each sequence (after its last new one) to `next` (num_seqs, host). No dropout.
    // (Encoder-decoder: a batch has encoder tokens, once, or decoder tokens, or both.) scratch:
    // infer_bytes().
    int64_t (*cache_bytes)(const Model* model, const ModelCache* cache);
    int64_t (*infer_bytes)(const Model* model, const ModelBatch* batch);
    void (*infer)(Model* model, const ModelBatch* batch, const ModelCache* cache, const void* in, void* out,
                  void* scratch, int32_t* next);
};

// kind->parse, and sets out->kind.
bool model_parse(ModelConfig* out, const ModelKind* kind, const char* descriptor, int vocab, int max_seq_len,
                 char* error);

// is_last: with the head; layer_end is the chain's end then. Only such a slice may have no layer.
void model_init(Model* model, const ModelConfig* config, int layer_begin, int layer_end, bool is_last,
                OpsContext* ops);
// With gradients; values of both are rubbish.
void model_init_raw(Model* model, const ModelConfig* config, int layer_begin, int layer_end, bool is_last,
                    OpsContext* ops);
void model_alloc_grads(Model* model);
void model_free_grads(Model* model);
void model_zero_grads(Model* model);
void model_free(Model* model);
int64_t model_num_params(const ModelConfig* config);  // of the whole model, tied tensors counted once
int model_num_layers(const ModelConfig* config);      // of the whole chain
static inline int model_head_size(const ModelConfig* config) {
    return config->head_size > 0 ? config->head_size : config->channels / config->num_heads;
}
// One number for each tensor of the whole model (of each layer), for sums by tensor over slices.
int model_num_tensors(const ModelConfig* config);
int model_tensor_number(const ModelConfig* config, const TensorSlice* slice);

// What every kind's checkpoint header begins with, as llm.c's: [2] maxT, V, L, NH, C, [7] Vp. From: the rest
// is zero.
void model_to_header(int32_t* header, const ModelConfig* config);
void model_from_header(ModelConfig* out, const int32_t* header);

// Do two configs describe the same model? false: `field` names one that differs, with both values.
typedef struct {
    const char *field, *remedy;
    int theirs, ours;
} ModelDifference;
bool model_config_equal(const ModelConfig* theirs, const ModelConfig* ours, ModelDifference* difference);

// A tensor of a local layer of its stack (0 for those outside the layers).
static inline floatX* model_tensor(const Model* model, int tensor, int local_layer) {
    return model->params + model->slices[model->slice_idx[tensor] + local_layer].offset;
}
static inline float* model_grad(const Model* model, int tensor, int local_layer) {
    return model->grads + model->slices[model->slice_idx[tensor] + local_layer].offset;
}

// Which layers of the slice are the encoder's and the decoder's, counted from the stack's first.
static inline int model_enc_begin(const Model* m) {
    return m->layer_begin < m->config.num_layers ? m->layer_begin : m->config.num_layers;
}
static inline int model_enc_end(const Model* m) {
    return m->layer_end < m->config.num_layers ? m->layer_end : m->config.num_layers;
}
static inline int model_dec_begin(const Model* m) {
    return m->layer_begin > m->config.num_layers ? m->layer_begin - m->config.num_layers : 0;
}
static inline int model_dec_end(const Model* m) {
    return m->layer_end > m->config.num_layers ? m->layer_end - m->config.num_layers : 0;
}

#ifdef __cplusplus
}
#endif
