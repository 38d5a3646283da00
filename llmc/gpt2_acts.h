/*
gpt2_acts.h -- where everything a micro-batch leaves behind lies in `acts` and `scratch` (internal to gpt2).

x_l is the input of the range's layer l: x_0 the embedding's output (first range) or `in`, x_L the last
layer's output (last range) or `out`. With KEEP each layer has its own buffers, and three rows of slots hold
one slot more than there are layers, so that a gradient lies one slot behind its activation and overwrites
only what the layer above is done with:

    qkv        | qkv_0  | qkv_1  | ... | qkv_L-1 |          |        dqkv_l in slot l + 1
    residual2  | r_0    | r_1    | ... | r_L-1   |          |        dr_l   in slot l + 1
    stream     | x_0    | x_1    | ... | x_L-1   | x_L      |     |  dx_l   in slot l + 1

(x_0 has a slot in the first range only, x_L and dx_L in the last only.) Backward of inputs also turns fch
into dfch. Without KEEP all layers share one set, and fch lies over qkv and atty. A range of norm and head
alone reads x_L from `in`, writes dx_L to `din`, and has the head's buffers only; one that feeds the head's
shares has these without lnf and logits: the normed rows are its `out`.
*/
#pragma once

#include "gpt2.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { GPT2_HEAD_CHUNK_ROWS = 64 };  // rows of logits at a time, without KEEP

// One layer's buffers.
typedef struct {
    floatX *x, *x_next;                                // (T, C); NULL where it is `in` or `out`
    floatX *ln1, *ln2;                                 // (T, C)
    float *ln1_mean, *ln1_rstd, *ln2_mean, *ln2_rstd;  // (T)
    floatX* qkv;                                       // (T, 3C)
    floatX* atty;                                      // (T, C)
    float* lse;                                        // (NH, T)
    floatX* residual2;                                 // (T, C)
    floatX *fch, *fch_gelu;                            // (T, 4C); fch_gelu without KEEP: scratch
    // with KEEP only
    floatX* dqkv;          // (T, 3C)
    floatX* dresidual2;    // (T, C)
    floatX *dx, *dx_next;  // (T, C); NULL where it is `din` or `dout`
} Gpt2LayerActs;

typedef struct {
    floatX *rows, *lnf;  // (num_rows, C); lnf NULL where the head is shared
    float *mean, *rstd;  // (num_rows)
    floatX* logits;      // (num_rows, Vp), with KEEP their gradients; NULL where the head is shared
    int num_rows;        // that fit
} Gpt2HeadActs;

typedef struct {
    floatX* columns;  // (T, C)  the output of a matrix product on its way into a sum or a norm
    floatX* wide;     // (T, 4C) or attention's scratch; the embedding's backward has all of scratch
} Gpt2Scratch;

Gpt2LayerActs gpt2_acts_layer(const Model* model, void* acts, int num_tokens, int local_layer, int flags);
Gpt2HeadActs gpt2_acts_head(const Model* model, void* acts, int num_tokens, int num_rows, int flags);
Gpt2Scratch gpt2_scratch_split(const Model* model, void* scratch, int num_tokens);

// A copy of `batch` whose arrays are the device's, as long as one job's are (ops_stage); the others are NULL.
// Begins a job's staging. An id out of range ends the program.
enum {
    GPT2_BATCH_SEQS = 1,
    GPT2_BATCH_TOKENS = 2,
    GPT2_BATCH_ROWS = 4,
    GPT2_BATCH_TARGETS = 8,
    GPT2_BATCH_KEYS = 16,  // of dropout, where there is any
};
ModelBatch gpt2_batch_stage(const Model* model, const ModelBatch* batch, int arrays);

// Dropout as in GPT-2 (Radford et al. 2019): of the embedding, of attention's probabilities, of what
// attention and the feed-forward add. A place is a number for each of them.
enum { GPT2_DROP_EMBEDDING = 0, GPT2_DROP_ATTENTION = 1, GPT2_DROP_ATTPROJ = 2, GPT2_DROP_FCPROJ = 3 };
static inline uint32_t gpt2_drop_place(int layer, int which) {
    return (uint32_t)(layer + 1) * 4 + (uint32_t)which;
}
static inline bool gpt2_drops(const Model* model, const ModelBatch* batch) {
    return model->dropout > 0 && batch->token_keys != NULL;
}
// out = in with the values of this place dropped; a no-op in place where nothing is.
void gpt2_drop(const Model* model, const ModelBatch* batch, floatX* out, const floatX* in, uint32_t place);
// The layer's attention as the general operation, which can drop.
Attention gpt2_dropped_attention(const Model* model, const ModelBatch* batch, const floatX* qkv,
                                 int local_layer);

#ifdef __cplusplus
}
#endif
