/*
model.h -- the common part of all models: a transformer as a chain of blocks, ranges of them on a rank, flat
parameters, and a table of functions.

    ModelConfig config;
    if (!model_parse(&config, &t5_kind, "t5:small", vocab, 512)) { ... }
    ModelPart part = {.num_ranges = 2, .ranges = {{0, 5}, {25, 30, MODEL_HAS_HEAD}}};
    Model model;
    model_init_part(&model, &config, &part, ops);  // one array of parameters, each tensor once
    model_alloc_grads(&model);
    model_init_random(&model, 42);
    Model view = model_view(&model, 1);  // of one range, in the same arrays
    model_forward(&view, &batch, in, out, acts, scratch, losses, MODEL_KEEP | MODEL_HEAD);

A block is a step of the residual stream: of each layer attention and feed-forward, of a decoder's after an
encoder self-attention, cross-attention and feed-forward. Blocks are numbered along the chain, N in all:
GPT-2's and Llama's 2 L; T5's 2 Le of the encoder, then 3 Ld of the decoder. A range may begin and end with
any. The first one has the embedding, the one where the decoder begins that stack's embedding, the last one
the head, or the input of the head's shares on all ranks. The head may be a range of its own, [N, N). The
single-device model is the range [0, N).

A kind is a few tables (kinds.c): its tensors, which of them each block of its stacks uses. model.c has what a
rank has, transformer.c the passes, head.c those of a share of the head.
*/
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../dynapipe_plugin/dynapipe.h"
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
    int ffn_channels;  // F
    int norm_eps;      // times 1e9
    int tied_head;     // 0, 1: head = embedding (T5: hidden states times C^-1/2)
    int exact_gelu;    // 0, 1: of GPT-2, GELU by erf, not by tanh
    // of T5, some of Llama; 0 elsewhere
    int num_dec_layers;
    int head_size;                  // HS; NH * HS need not be C; 0: C / NH
    int num_buckets, max_distance;  // of the relative position bias
    int gated;                      // 0, 1: feed-forward act(x W0) * (x W1); else act(x W)
    int bias_per_layer;             // 0, 1: umT5; else one table of biases for each stack
    // of Llama and its like; 0 elsewhere
    int num_kv_heads;  // NKV: of keys and values, each read by NH / NKV heads of queries; 0: NH
    int rope_theta;    // base of the angles of rotary positions
    int qkv_bias;      // 0, 1: Qwen2
    // of angles scaled for texts longer than in pretraining; factors times 1000
    int rope_factor;                    // by which slow ones are divided; 0: none
    int rope_original;                  // tokens of pretraining ("llama3"); 0: all angles are slow ("linear")
    int rope_low_freq, rope_high_freq;  // turns within these tokens of slow and of unscaled angles
    const ModelKind* kind;
} ModelConfig;

// Input of a job for a microbatch (host memory), the cache of generation, flags of a forward: the plugin's.
typedef DynapipeBatch ModelBatch;
typedef DynapipeCache ModelCache;
enum { MODEL_KEEP = DYNAPIPE_FORWARD_KEEP, MODEL_HEAD = DYNAPIPE_FORWARD_HEAD };

// --- tensors -----------------------------------------------------------------------------------------------

enum { MODEL_MAX_TENSORS = 32 };

typedef enum { TENSOR_WHOLE, TENSOR_PER_LAYER, TENSOR_PER_DEC_LAYER } TensorPlace;

// A tensor of the kind's numbering, for one config. rows 0: not in this config.
typedef struct {
    const char* name;
    TensorPlace place;
    int64_t rows, cols;
    bool decay;            // a matrix: weight decay applies
    const char* hf_names;  // in Hugging Face's files; %d: the layer, {a,b}: equal parts of the rows
} TensorInfo;

// The position of a tensor (per layer, for per-layer ones) in this rank's flat array and in the whole
// model.
typedef struct {
    int tensor;
    int layer;            // of its stack; -1 for tensors outside the layers
    int64_t offset;       // in the rank's params and grads, in values
    int64_t file_offset;  // in the body of a checkpoint, in values
    int64_t num_values;
    int64_t first;  // first value of the tensor: 0, except for a share of the head's rows
    bool decay;
    bool tied_copy;  // an earlier rank in the chain has it too and counts it
    bool tied;       // several ranks may have it (or parts): its gradient is the sum of theirs
} TensorSlice;

// --- what a rank has ---------------------------------------------------------------------------------------

typedef enum {
    MODEL_GOES_ON,    // more blocks follow, in another range
    MODEL_HAS_HEAD,   // final norm, head, losses
    MODEL_FEEDS_HEAD  // final norm of the supervised rows, which the head's shares read
} ModelEnd;

typedef struct {
    int block_begin, block_end;  // over the whole chain
    ModelEnd end;                // if not GOES_ON, block_end is the chain's end
} ModelRange;

// How the ranks of a replica share the head. By rows: stage s has the whole matrix, and of a microbatch's
// supervised rows those from begin[s] to begin[s + 1], in 1024ths. By vocabulary: it has these rows of the
// padded matrix, and computes the logits of their ids.
typedef enum { MODEL_HEAD_WHOLE, MODEL_HEAD_BY_ROWS, MODEL_HEAD_BY_VOCAB } ModelSharing;
enum { MODEL_HEAD_PLACES = 1024 };
typedef struct {
    ModelSharing sharing;
    int num_stages;                     // <= OPS_MAX_SHARES; 0 with MODEL_HEAD_WHOLE
    int32_t begin[OPS_MAX_SHARES + 1];  // ascending from 0; by vocabulary to Vp, by rows to MODEL_HEAD_PLACES
} ModelHead;

enum { MODEL_MAX_RANGES = 64 };
typedef struct {
    int num_ranges;
    ModelRange ranges[MODEL_MAX_RANGES];  // ascending, disjoint
    ModelHead head;
    int stage;       // where the head is shared: of this rank
    bool has_share;  // of the head, possibly of no rows
} ModelPart;

// Everything on a rank, or a view of one range of it, or of its share of the head; a model of one range is
// its own view. Views borrow all memory.
struct Model {
    ModelConfig config;
    ModelPart part;      // of the rank
    OpsContext* ops;     // borrowed
    int64_t num_params;  // of the rank, tied copies included
    floatX* params;      // flat, of the device
    float* grads;        // flat, same layout, of the device; NULL until model_alloc_grads
    int num_slices;
    TensorSlice* slices;  // ascending offset
    float dropout;        // p; 0: none
    Rope rope;            // of kinds with rotary positions

    // of a view
    int block_begin, block_end;
    bool is_first;                     // has the (encoder's) embedding
    bool is_last;                      // has the final norm
    bool has_head;                     // is_last: the whole one, else a share of it
    int64_t head_offset;               // in params and grads: its first row of the matrix
    int head_id, head_ids;             // ids [head_id, head_id + head_ids) ...
    int head_rows;                     // ... are the first of so many rows; after them is padding
    int slice_idx[MODEL_MAX_TENSORS];  // slices[slice_idx[tensor] + l] is the view's l-th; -1: not here
    const floatX* last_logits;  // (rows, Vp): the first (up to 64) rows of the last forward with head and
                                // without keep, or all of the last infer with head; in that forward's acts or
                                // that infer's scratch, on the device
};

// The work of a step without padding and recomputation: sums over its samples of t tokens each.
typedef struct {
    int64_t tokens, squares;          // through the (encoder's) layers: t, and t^2
    int64_t dec_tokens, dec_squares;  // through a decoder's; 0 without
    int64_t cross_products;           // encoder tokens times decoder tokens
    int64_t rows;                     // supervised tokens
} ModelWork;

// --- kinds -------------------------------------------------------------------------------------------------

enum { MODEL_EMBEDDING = 0 };  // the first tensor of every kind

// A matrix or norm; bias 0: none. (A norm without bias is RMS norm, with one layer norm.)
typedef struct {
    int weight, bias;
} ModelLinear;

// A step of the stream of a layer: attention among a stack's own tokens, to the encoder's output,
// feed-forward.
typedef enum { BLOCK_SELF, BLOCK_CROSS, BLOCK_FFN, BLOCK_NUM_TYPES } ModelBlockType;
typedef struct {
    ModelBlockType type;
    ModelLinear norm, in, kv, out;  // in: q, k and v; q; or up. kv: of BLOCK_CROSS
} ModelBlock;

enum { MODEL_MAX_BLOCKS = 3 };
typedef struct {
    int num_blocks;  // of a layer
    ModelBlock blocks[MODEL_MAX_BLOCKS];
    ModelLinear norm_end;
    int bias;  // of relative positions; 0: none
    bool is_causal;
} ModelStack;

// Where config.gated, MODEL_SILU is silu(a) * b, the others gelu(a) * b.
typedef enum { MODEL_GELU, MODEL_RELU, MODEL_SILU } ModelActivation;

// Standard deviations of the usual initialisation.
typedef struct {
    float embedding, positions, q, kv, o, wi, wo, bias, head;
} ModelStds;

struct ModelKind {
    const char* name;   // "gpt2", "t5", "llama"
    const char* title;  // "GPT-2", "T5", "Llama"
    const char* usual;  // the default descriptor: "d12"
    bool has_decoder;   // two stacks: batches have an encoder's and a decoder's side
    int num_tensors;
    int checkpoint_magic;
    ModelStack stacks[2];  // the decoder, or an encoder and its decoder
    int positions;         // learned positions, added to the embedding; 0: none
    int head;              // the head's own matrix, unless tied
    ModelActivation activation;
    bool scaled_scores;  // by 1 / sqrt(head size)
    bool rotary;         // positions turn queries and keys (ops.h: rope_forward)
    bool scaled_head;    // hidden states times C^-1/2 before a tied head
    bool drops_more;     // dropout also after activations and after the final norms
    TensorInfo (*tensor)(const ModelConfig* config, int tensor);
    ModelStds (*stds)(const ModelConfig* config);
};

// --- functions of a config (kinds.c) ----------------------------------------------------------------------

// Parses a descriptor ("d12", "flan-t5:base", "byt5:l2c64h4"). vocab and max_seq_len: 0: the kind's defaults.
// false: status_message() lists the valid ones.
bool model_parse(ModelConfig* out, const ModelKind* kind, const char* descriptor, int vocab, int max_seq_len);
// Is the config valid? false: the message begins with `what` (a file or option) and names the field.
bool model_check(const ModelConfig* config, const char* what);
// A checkpoint's header, 256 int32: [0] magic, [2] maxT, V, L, NH, C, [7] Vp, as llm.c's, and from [8] on
// what else the kind has (kinds.c: fields); the rest is 0. The caller sets the version [1]. A GPT-2 that
// llm.c could not compute has another magic.
void model_to_header(int32_t* header, const ModelConfig* config);
const ModelKind* model_header_kind(const int32_t* header);  // by the magic; NULL: none
void model_from_header(ModelConfig* out, const ModelKind* kind, const int32_t* header);
// "12 layers, 768 channels, 12 heads", for messages.
void model_describe(char* out, size_t out_chars, const ModelConfig* config);
// Model FLOPs of a step, forward and (twice as many) backward, of matrix products and attention only: a
// multiply-add is two; causal attention counts t^2 / 2 pairs; the head and the last feed-forward count
// supervised tokens. (PaLM, appendix B, counts t^2, and all tokens everywhere.)
double model_flops(const ModelConfig* config, const ModelWork* work);
int64_t model_num_params(const ModelConfig* config);  // of the whole model, tied tensors counted once
int64_t model_tensor_values(const ModelConfig* config, int tensor);  // of one layer
int model_num_blocks(const ModelConfig* config);                     // of the whole chain
static inline int model_stack_blocks(const ModelConfig* config, int stack) {
    return (stack == 0 ? config->num_layers : config->num_dec_layers) *
           config->kind->stacks[stack].num_blocks;
}
static inline int model_head_size(const ModelConfig* config) {
    return config->head_size > 0 ? config->head_size : config->channels / config->num_heads;
}
static inline int model_kv_heads(const ModelConfig* config) {
    return config->num_kv_heads > 0 ? config->num_kv_heads : config->num_heads;
}
// Rows of the matrix of q, k and v.
static inline int model_qkv_width(const ModelConfig* config) {
    return (config->num_heads + 2 * model_kv_heads(config)) * model_head_size(config);
}
static inline int model_head_tensor(const ModelConfig* config) {  // the head's matrix, (Vp, C)
    return config->tied_head ? MODEL_EMBEDDING : config->kind->head;
}
// The number of layers with such a tensor; 1: outside the layers, 0: none.
int model_num_copies(const ModelConfig* config, const TensorInfo* info);
// An index for each tensor of the whole model (of each layer), for sums by tensor over slices.
int model_num_tensors(const ModelConfig* config);
int model_tensor_number(const ModelConfig* config, const TensorSlice* slice);

// Do two configs describe the same model? false: `field` names a difference, with both values.
typedef struct {
    const char *field, *remedy;
    int theirs, ours;
} ModelDifference;
bool model_config_equal(const ModelConfig* theirs, const ModelConfig* ours, ModelDifference* difference);

// --- passes (transformer.c) -------------------------------------------------------------------------------
// All take a view: of a range as described here, or of a share of the head as described below.

// Buffers, in bytes, from the counts of `batch` only (all tokens, rows, num_seqs, longest): linear in the
// counts rounded up to 16. acts: kept for backward (KEEP) or of a forward without KEEP; scratch: of any
// job; boundary: the activation (and its gradient) before (0) or after (1) the range. Around the
// chain's last block, and after a range that feeds the head: (num_rows, C) of hidden states.
int64_t model_acts_bytes(const Model* model, const ModelBatch* batch, int flags);
int64_t model_scratch_bytes(const Model* model, const ModelBatch* batch);
int64_t model_boundary_bytes(const Model* model, const ModelBatch* batch, bool is_behind);
int64_t model_kept_bytes(const Model* model, const ModelBatch* batch, bool is_gradient);  // of pieces

// in: NULL on the first range; out: NULL on the head's. losses (num_rows): with HEAD on the head's range;
// host memory, valid after ops_sync(). KEEP | HEAD: batch->loss_scale != 0. Flags 0: only `out` is needed
// (on the head's range nothing), and the same call with KEEP (and HEAD) later recomputes bit for bit; `out`
// may then be NULL. A token, position or target out of range ends the program.
void model_forward(Model* model, const ModelBatch* batch, const void* in, void* out, void* acts,
                   void* scratch, float* losses, int flags);
// acts: of a forward with KEEP and HEAD. dout: NULL on the head's range; din: NULL on the first. Turns
// acts into what backward_weights needs; gradients of small parameters (norms, bias tables) are added here.
void model_backward_inputs(Model* model, const ModelBatch* batch, const void* in, void* acts,
                           const void* dout, void* din, void* scratch);
// Once, at any time after backward_inputs, with the same dout.
void model_backward_weights(Model* model, const ModelBatch* batch, void* acts, const void* dout,
                            void* scratch);

// Generation: the new tokens of some slots, following those in the cache. On the head's range, the most
// likely next token of each sequence goes to `next` (num_seqs, host); a range that feeds the head writes
// (num_seqs, C) of hidden states to `out`, a share its picks. No dropout. (Encoder-decoder: a batch has
// encoder tokens, once, or decoder tokens, or both.) scratch: model_infer_bytes().
int64_t model_cache_bytes(const Model* model, const ModelCache* cache);
int64_t model_infer_bytes(const Model* model, const ModelBatch* batch);
void model_infer(Model* model, const ModelBatch* batch, const ModelCache* cache, const void* in, void* out,
                 void* scratch, int32_t* next);

// --- a shared head (head.c)
// -----------------------------------------------------------------------------------
/*
The head shared by the ranks of a replica: the work of each share, and how their parts are combined.

    range that feeds the head           each share of it (model_share_view)
    forward: hidden states of rows ---> H: forward(KEEP | HEAD, in: rows), backward_inputs(din: its part)
    head_combine() (by vocabulary)  <-- part
      losses, gradient of the rows
      factors  -----------------------> V: backward_weights(dout: factors), any time
    backward_inputs(dout: gradient)

Hidden states are those of the supervised rows after the final norm (and after dropout and T5's C^-1/2),
(num_rows, C). By rows: a share gets the rows of its places, with their targets, as its whole batch. It
computes their losses, and its part is their gradient (num_rows, C), adjacent to the others', so nothing is
combined and dout of V is NULL. By vocabulary: a share gets all rows and processes its ids (Yeung et al. 2025;
formulas: ops.h). It leaves `losses` unchanged, and without KEEP (validation) its `out` is a part with losses
only. Shares do not depend on the kind of model, and only generation uses scratch.
*/

// places: [num_stages + 1] at which stages begin, ascending, 0 to MODEL_HEAD_PLACES. By vocabulary the
// corresponding rows of the matrix: multiples of 16, or all of them.
ModelHead head_of_places(const ModelConfig* config, ModelSharing sharing, int num_stages,
                         const int32_t* places);
// The supervised row of a microbatch at which a place begins.
static inline int head_batch_row(int num_rows, int place) {
    return (int)((int64_t)num_rows * place / MODEL_HEAD_PLACES);
}

// Bytes of hidden states and of their gradient; num_rows rows are contiguous.
int64_t head_rows_bytes(const ModelConfig* config, int num_rows);
// By vocabulary; flags as in the share's forward. A part with losses only is the beginning of one with
// gradients.
int64_t head_part_bytes(const ModelConfig* config, int num_rows, int flags);
int64_t head_factor_bytes(int num_rows);

// By vocabulary; `view` is the range that feeds the head. parts: of all stages with a share, ascending, on
// the device. losses (num_rows): host memory, valid after ops_sync(). dout (num_rows, C), for
// backward_inputs, and every share's factors; both NULL: only losses.
void head_combine(Model* view, const ModelBatch* batch, int num_parts, const void* const* parts, void* dout,
                  void* const* factors, float* losses);

// A share's infer() takes one row of hidden states per sequence and writes its picks to `out`, on the
// device: its most likely id, and the logit. By rows every share has all ids, so one share suffices.
int64_t head_pick_bytes(const ModelBatch* batch);
// Combines picks of shares, ascending: the most likely ids, the first of equals, to `next` (num_seqs,
// host).
void head_pick(const Model* view, const ModelBatch* batch, int num_picks, const void* const* picks,
               int32_t* next);

// Jobs of a share, and what it has in common with the range that has the whole head; called by transformer.c.
int64_t head_acts_bytes(const Model* share, const ModelBatch* batch, int flags);
void head_forward(const Model* share, const ModelBatch* batch, const void* in, void* out, void* acts,
                  float* losses, int flags);
void head_backward_inputs(const Model* share, const ModelBatch* batch, void* acts, void* din);
void head_backward_weights(const Model* share, const ModelBatch* batch, void* acts, const void* dout);
int64_t head_infer_bytes(const Model* share, const ModelBatch* batch);
void head_infer(const Model* share, const ModelBatch* batch, const void* in, void* out, void* scratch);
enum { MODEL_HEAD_ROWS = 64 };  // rows of logits at a time, without KEEP
const floatX* head_matrix(const Model* view);
// numbers: losses, or by vocabulary classifier_share()'s stats; as in fused_classifier().
void head_rows_forward(const Model* view, float* numbers, floatX* logits, const floatX* rows,
                       const int32_t* targets, int num_rows, float dlogits_scale);
void head_likeliest(const Model* view, int32_t* next, floatX* logits, const floatX* rows, int num_rows);

// 16 values are 64 bytes in float32, and 16 rows of an even number of bf16 values: rounding tokens and rows
// up keeps every buffer aligned.
static inline int64_t model_round_up(int64_t count) {
    return (count + 15) / 16 * 16;
}
static inline char* model_take(char** cursor, int64_t num_bytes) {
    char* begin = *cursor;
    *cursor += num_bytes;
    return begin;
}

// --- the model of a rank (model.c) ------------------------------------------------------------------------

// Of one range; has_head: with norm and head, then block_end is the chain's end. Only the chain's last
// range may have no block.
void model_init(Model* model, const ModelConfig* config, int block_begin, int block_end, bool has_head,
                OpsContext* ops);
void model_init_part(Model* model, const ModelConfig* config, const ModelPart* part, OpsContext* ops);
// With gradients; values of both are uninitialised.
void model_init_raw(Model* model, const ModelConfig* config, const ModelPart* part, OpsContext* ops);
// Without values: for sizes, counts and tensors only.
void model_init_counts(Model* model, const ModelConfig* config, const ModelPart* part, OpsContext* ops);
ModelPart model_part(int block_begin, int block_end, bool has_head);  // of one range

// Of range `idx`, after gradients and dropout are set; valid as long as the model, not freed.
Model model_view(const Model* model, int idx);
// Of the rank's share of the head, if it has one.
Model model_share_view(const Model* model);

void model_alloc_grads(Model* model);
void model_free_grads(Model* model);
void model_zero_grads(Model* model);
void model_free(Model* model);
// llm.c's initialisation of GPT-2, Hugging Face's of the others. Draws the whole model and keeps this rank's
// part, so that the values do not depend on the layout.
void model_init_random(Model* model, uint32_t seed);

// The slice of a tensor (of a layer of its stack; -1: outside the layers); NULL: not here.
const TensorSlice* model_find(const Model* model, int tensor, int layer);
// Copies from values [first, first + num_values) of the slice's tensor (host memory) those in the slice.
void model_set_values(Model* model, const TensorSlice* slice, const float* values, int64_t first,
                      int64_t num_values);

// Values that other ranks may have copies of; all copies have the same number. A matrix whose head is
// shared by vocabulary is tied in pieces, one per share; a rank with all of it has all pieces.
typedef struct {
    int group;
    int64_t offset, num_values;  // in params and grads
} ModelTied;
enum { MODEL_MAX_TIED = (int)MODEL_MAX_TENSORS + (int)OPS_MAX_SHARES };
int model_tied(const Model* model, ModelTied out[MODEL_MAX_TIED]);  // how many; ascending offset

static inline bool model_feeds_head(const Model* view) {
    return view->is_last && !view->has_head;
}
static inline bool model_is_share(const Model* view) {
    return view->has_head && !view->is_last;
}

// A view's tensor of its l-th block that has it (0 for those outside the layers).
static inline floatX* model_tensor(const Model* model, int tensor, int l) {
    return model->params + model->slices[model->slice_idx[tensor] + l].offset;
}
static inline float* model_grad(const Model* model, int tensor, int l) {
    return model->grads + model->slices[model->slice_idx[tensor] + l].offset;
}

// Blocks of the view that belong to a stack (0, or 1: the decoder after an encoder), counted from the stack's
// first.
typedef struct {
    int begin, end;
} ModelBlocks;
static inline int model_block_within(int block, int num_blocks) {
    return block < 0 ? 0 : block < num_blocks ? block : num_blocks;
}
static inline ModelBlocks model_blocks(const Model* view, int stack) {
    const int first = stack == 0 ? 0 : model_stack_blocks(&view->config, 0);
    const int num = model_stack_blocks(&view->config, stack);
    ModelBlocks blocks;
    blocks.begin = model_block_within(view->block_begin - first, num);
    blocks.end = model_block_within(view->block_end - first, num);
    return blocks;
}

// --- values and batches to and from the device ------------------------------------------------------------

// float32 of the host to and from floatX on the device. Both wait, like ops_upload() and ops_download(). To
// float32 is exact; to bf16 rounds to nearest.
void device_values_upload(OpsContext* ops, floatX* memory, const float* host, size_t num_values);
void device_values_download(OpsContext* ops, float* host, const floatX* memory, size_t num_values);

// Ends the program unless the ids are within [0, limit); `what` names them in the message.
void batch_check_range(const char* what, const int32_t* values, int num_values, int limit);
// As ops_stage(); NULL for NULL.
const int32_t* batch_stage(OpsContext* ops, const int32_t* values, int num_values);

#ifdef __cplusplus
}
#endif
