/*
t5_acts.h -- where everything a micro-batch leaves behind lies in `acts` and `scratch`, and what its jobs
share (internal to t5).

Both stacks alike, each with its own tokens: x_l is the input of the stack's layer l in this slice; x_0 the
embedding's output or `in`, x_n what the final norm (of the encoder, of the head) reads, or `out`. With KEEP
each layer has its own buffers, and rows of slots hold one slot more than there are layers, so that a gradient
lies one slot behind its activation and overwrites only what the layer above is done with:

    qkv            | qkv_0  | ... | qkv_n-1 |          |        dqkv_l in slot l + 1
    xq, xkv        the same of the cross-attention; xkv has the encoder's tokens
    residual_cross | r_0    | ... | r_n-1   |          |        dr_l   in slot l + 1
    residual_ffn   | r_0    | ... | r_n-1   |          |        dr_l   in slot l + 1
    stream         | x_0    | ... | x_n-1   | x_n      |     |  dx_l   in slot l + 1

(x_0 has a slot only where the stack begins, x_n and dx_n only where it ends.) A range with decoder layers
keeps enc_out, which their weights' gradients need. Its gradient is summed from the last decoder layer down:
in `din`, or, where the encoder's end is in this range too, in the encoder's spare slot of residual_ffn, which
is free until the layers below write there. Backward of inputs also turns h into dh. Without KEEP all layers
of a stack share one set, and h and the cross-attention lie over qkv and atty.

At a boundary:  inside the encoder x (T enc, C);  behind it enc_out (T enc, C);  inside the decoder enc_out,
then x (T dec, C), each with its tokens rounded up to 16;  behind the decoder x (T dec, C), or, of a range
that feeds the head's shares, the normed rows (num_rows, C).
*/
#pragma once

#include "t5.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { T5_HEAD_CHUNK_ROWS = 64 };  // rows of logits at a time, without KEEP

typedef enum { T5_ENC, T5_DEC } T5Side;

// --- a micro-batch on the device ---------------------------------------------------------------------------

typedef struct {
    int num_tokens;
    const int32_t *cu_seqlens, *seq_lens, *tokens;  // seq_lens may be NULL: all
    const uint32_t* keys;
} T5BatchSide;

typedef struct {
    int num_seqs, num_rows;
    float dropout;  // the model's, where KEYS were asked for and there are some; else 0
    T5BatchSide sides[2];
    const int32_t *rows, *targets;
} T5Batch;

// The arrays of `batch` that this slice needs, as long as one job's are (ops_stage); the others are NULL.
// Begins a job's staging. SEQS: lengths, KEYS: of dropout if there is any, both of each side that the slice
// has layers of. An id out of range ends the program.
enum { T5_BATCH_SEQS = 1, T5_BATCH_KEYS = 2, T5_BATCH_TOKENS = 4, T5_BATCH_ROWS = 8, T5_BATCH_TARGETS = 16 };
T5Batch t5_batch_stage(const Model* model, const ModelBatch* batch, int arrays);

// --- memory -----------------------------------------------------------------------------------------------

// One layer's buffers; T are its own stack's tokens, Te the encoder's. F2: F, gated 2F.
typedef struct {
    floatX *x, *x_next;                         // (T, C); NULL where it is `in` or `out`
    floatX *norm_self, *norm_cross, *norm_ffn;  // (T, C) what each sublayer reads
    float *rstd_self, *rstd_cross, *rstd_ffn;   // (T)
    floatX* qkv;                                // (T, 3I)
    floatX* atty;                               // (T, I)
    float* lse;                                 // (NH, T)
    floatX *residual_cross, *residual_ffn;      // (T, C) the stream before these sublayers
    floatX *h, *act;                            // (T, F2), (T, F); act without KEEP: scratch
    floatX *xq, *xkv, *xatty;                   // (T, I), (Te, 2I), (T, I); decoder
    float* xlse;                                // (NH, T)
    // with KEEP only
    floatX *dqkv, *dxq, *dxkv;
    floatX *dresidual_cross, *dresidual_ffn;
    floatX *dx, *dx_next;  // NULL where it is `din` or `dout`
} T5LayerActs;

typedef struct {
    floatX* x_end;    // (Te, C) x_n of the encoder
    float* rstd;      // (Te) of its final norm
    floatX* enc_out;  // (Te, C); NULL where it is `in` or `out`
    // with KEEP only
    floatX *denc_out, *dx_end;  // (Te, C)
} T5EncEndActs;

typedef struct {
    floatX *rows, *norm;  // (num_rows, C); norm NULL where the head is shared
    float* rstd;          // (num_rows)
    uint32_t* keys;       // (num_rows) of dropout
    floatX* logits;       // (num_rows, Vp), with KEEP their gradients; NULL where the head is shared
    int num_rows;         // that fit
} T5HeadActs;

typedef struct {
    floatX* columns;  // (T, C)  the output of a matrix product on its way into a sum or a norm
    floatX* wide;     // (T, F) or (T, I) with attention's scratch behind it, or (T or Te, C)
    void* attention;  // behind (T, I) of wide
    float* bias;      // (num_buckets, NH) the stack's table
} T5Scratch;

T5LayerActs t5_acts_layer(const Model* model, void* acts, const ModelBatch* batch, T5Side side,
                          int local_layer, int flags);
T5EncEndActs t5_acts_enc_end(const Model* model, void* acts, const ModelBatch* batch, int flags);
T5HeadActs t5_acts_head(const Model* model, void* acts, const ModelBatch* batch, int flags);
T5Scratch t5_scratch_split(const Model* model, void* scratch, const ModelBatch* batch, T5Side side);
floatX* t5_scratch_rows(const Model* model, void* scratch);  // 2 (num_rows, C), of the head's backward

// --- what this slice has ----------------------------------------------------------------------------------

static inline int t5_num_layers(const Model* m, T5Side side) {
    return side == T5_ENC ? model_enc_end(m) - model_enc_begin(m) : model_dec_end(m) - model_dec_begin(m);
}
// Does the stack begin (with its embedding) here, does it end here (the encoder with its norm, the decoder
// with the head)?
static inline bool t5_begins(const Model* m, T5Side side) {
    if (t5_num_layers(m, side) == 0) { return false; }
    return (side == T5_ENC ? model_enc_begin(m) : model_dec_begin(m)) == 0;
}
static inline bool t5_ends(const Model* m, T5Side side) {
    if (side == T5_DEC) { return m->is_last; }
    return t5_num_layers(m, T5_ENC) > 0 && model_enc_end(m) == m->config.num_layers;
}

// Where a boundary buffer before layer `layer` of the chain has the decoder's x. (The encoder's part begins
// at 0.)
static inline int64_t t5_boundary_dec_values(const Model* m, int layer, int num_tokens) {
    const bool inside =
        layer > m->config.num_layers && layer < m->config.num_layers + m->config.num_dec_layers;
    return inside ? (int64_t)(num_tokens + 15) / 16 * 16 * m->config.channels : 0;
}

static inline int t5_inner(const Model* m) {  // I
    return m->config.num_heads * m->config.head_size;
}
static inline int t5_ffn_rows(const Model* m) {  // F2
    return m->config.gated ? 2 * m->config.ffn_channels : m->config.ffn_channels;
}

#ifdef __cplusplus
}
#endif
