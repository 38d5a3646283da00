/*
transformer.c -- the passes of any model: forward, backward in two jobs, generation. Of a stack this range has
some blocks (ModelBlock), from any to any, numbered here from 0 to N - 1:

    x_0 = embedding or `in`;   x_i+1 = x_i + out(inner(in(norm x_i)))
    inner:  attention of q, k, v = in(...);  with q = in(...), k, v = kv(enc_out);  or an activation
            (with rotary positions of rope(in(...)), which is made in scratch, again in backward)
    logits = head(norm x_N); an encoder's end: enc_out = norm x_N

Nothing reads the last feed-forward's output for tokens without loss. So from the chain's last block on the
stream has the supervised rows only (num_rows, C), in generation the sequences' last tokens: the block before
it ends with a gather of rows, and its backward begins with zeros for the other tokens.

The sum that ends a block and the next block's norm are fused into one pass, within a range.

Memory. With KEEP each block has its own buffers, and rows of slots have one slot more than blocks, so that a
gradient is one slot after its activation and overwrites only what the block above no longer needs: dx_i is in
slot i + 1 of x, and the l-th attention's dqkv (dq, dkv of a cross-attention) in slot l + 1 of qkv. (x_0 has a
slot only if the stack begins here, dx_N only if it ends here.) A range with cross-attention keeps enc_out for
its weight gradients. Its gradient is summed from the last cross-attention down, in `din` or, if the encoder's
end is also here, in `denc`. An activation's gradient replaces its input. Without KEEP the blocks of a stack
share one set.

At a boundary:  inside the first stack x (T, C);  between the stacks enc_out (T enc, C);  inside the decoder
enc_out, then x (T dec, C), each with its tokens rounded up to 16;  before the last block, which reads no
enc_out, and after it x (num_rows, C), or, of a range that feeds the head's shares, the same rows normed.

Pieces. Window 0 may be a piece of a sample that is cut along its tokens (dynapipe.h). The last stack's
attentions then read its keys and values from batch->kept, where every forward copies those of its own tokens:
of each self-attention (kept_tokens, 2I), then of each cross-attention (kept_enc_tokens, 2I). batch->dkept has
the same places. Encoder tokens of the sample are in its first piece, whose backward is the last one: it finds
the sums of all pieces' gradients of their keys, and gives enc_out its gradient.

Dropout. Forward drops in place, right after the operation. Backward applies the same mask to the gradient,
recomputed; if the unmasked gradient is still needed, on the way to scratch.
*/
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "llmc_error.h"
#include "model.h"

typedef enum { ENC, DEC } Side;  // the first stack, and a decoder after it
enum { INFER = 4 };              // a flag beside KEEP and HEAD: rows are the sequences' last tokens

static const int64_t X_BYTES = sizeof(floatX), FLOAT_BYTES = sizeof(float);

// --- what this range has -----------------------------------------------------------------------------------

static const ModelStack* stack_of(const Model* m, Side side) {
    return &m->config.kind->stacks[side];
}
static Side last_side(const Model* m) {
    return m->config.kind->has_decoder ? DEC : ENC;
}
static int blocks_of(const Model* m, Side side) {
    const ModelBlocks blocks = model_blocks(m, side);
    return blocks.end - blocks.begin;
}
static const ModelBlock* block_about(const Model* m, Side side, int i) {
    const ModelStack* stack = stack_of(m, side);
    return &stack->blocks[(model_blocks(m, side).begin + i) % stack->num_blocks];
}
static int num_of_type(const Model* m, Side side, ModelBlockType type) {
    int num = 0;
    for (int i = 0; i < blocks_of(m, side); i++) { num += block_about(m, side, i)->type == type; }
    return num;
}

// Has x_i supervised rows only?
static bool is_in_rows(const Model* m, Side side, int i) {
    return side == last_side(m) &&
           model_blocks(m, side).begin + i >= model_stack_blocks(&m->config, side) - 1;
}

// Does the stack begin here, with its embedding? Does it end here, with the head or the encoder's norm?
static bool begins(const Model* m, Side side) {
    return blocks_of(m, side) > 0 && model_blocks(m, side).begin == 0;
}
static bool ends(const Model* m, Side side) {
    if (side == last_side(m)) { return m->is_last; }
    return blocks_of(m, ENC) > 0 && model_blocks(m, ENC).end == model_stack_blocks(&m->config, ENC);
}

static int heads_width(const Model* m) {  // I
    return m->config.num_heads * model_head_size(&m->config);
}
// Values per token that a block's `in` makes, and its `out` reads.
static int in_width(const Model* m, ModelBlockType type) {
    const int F = m->config.ffn_channels, I = heads_width(m);
    return type == BLOCK_FFN    ? (m->config.gated ? 2 * F : F)
           : type == BLOCK_SELF ? model_qkv_width(&m->config)
                                : I;
}
static int inner_width(const Model* m, ModelBlockType type) {
    return type == BLOCK_FFN ? m->config.ffn_channels : heads_width(m);
}
// The factor between the final norm and a tied head.
static float head_scale(const Model* m) {
    const bool is_scaled = m->config.kind->scaled_head && m->config.tied_head;
    return is_scaled ? 1.0f / sqrtf((float)m->config.channels) : 1.0f;
}
static float norm_eps(const Model* m) {
    return (float)(m->config.norm_eps * 1e-9);
}
// Is the activation part of the matrix product before it (and of its gradient's)?
static bool fuses_gelu(const Model* m, const ModelBlock* block) {
    return block->type == BLOCK_FFN && m->config.kind->activation == MODEL_GELU && !m->config.exact_gelu;
}

// --- memory ------------------------------------------------------------------------------------------------

static int64_t round_up_64(int64_t num_bytes) {
    return (num_bytes + 63) / 64 * 64;
}
static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

// The offset of the decoder's x in a boundary buffer before block `block` of the chain. (The encoder's part
// begins at 0.)
static int64_t boundary_dec_values(const Model* m, int block, int num_tokens) {
    const bool inside =
        block > model_stack_blocks(&m->config, ENC) && block < model_num_blocks(&m->config) - 1;
    return inside ? model_round_up(num_tokens) * m->config.channels : 0;
}

int64_t model_boundary_bytes(const Model* m, const ModelBatch* batch, bool is_behind) {
    const int block = is_behind ? m->block_end : m->block_begin;
    if (block >= model_num_blocks(&m->config) - 1) { return head_rows_bytes(&m->config, batch->num_rows); }
    const bool in_decoder = block > model_stack_blocks(&m->config, ENC);
    const int64_t dec_begin = boundary_dec_values(m, block, batch->num_tokens);
    const int64_t num_tokens = in_decoder ? batch->num_dec_tokens : batch->num_tokens;
    return (dec_begin + model_round_up(num_tokens) * m->config.channels) * X_BYTES;
}

static floatX* take(char** cursor, int64_t num_values) {
    return (floatX*)(void*)model_take(cursor, num_values * X_BYTES);
}
static float* take_floats(char** cursor, int64_t num_values) {
    return (float*)(void*)model_take(cursor, num_values * FLOAT_BYTES);
}

// Statistics of a norm's rows; an RMS norm has no mean.
typedef struct {
    float *mean, *rstd;
} Stats;

static Stats take_stats(const Model* m, char** cursor, int64_t num_rows) {
    Stats stats = {NULL, NULL};
    if (stack_of(m, ENC)->norm_end.bias != 0) { stats.mean = take_floats(cursor, num_rows); }
    stats.rstd = take_floats(cursor, num_rows);
    return stats;
}

// A block of the range. T: its stack's tokens, or (the chain's last block) the supervised ones; Te: the
// encoder's.
typedef struct {
    const ModelBlock* about;
    Side side;
    int number;          // in its stack
    int l;               // among those of its kind in this range
    floatX *x, *x_next;  // (T, C); x_next may be NULL: not needed
    const floatX* x_in;  // x, or the range's `in`
    floatX* norm;        // (T, C) normed x
    Stats stats;         // (T)
    floatX *in, *din;    // (T, in_width); of an activation the same
    floatX *kv, *dkv;    // (Te, 2I) of a cross-attention
    floatX* inner;       // (T, inner_width)
    float* lse;          // (NH, T) of an attention
    floatX* dx;          // with KEEP, as din and dkv
    const floatX* dx_next;
    // the chain's last block; the one before it, where x_next and dx_next have rows
    bool in_rows, before_rows;
    int T;
    const uint32_t* keys;  // (T) of dropout
} Block;

// What a block does not share with others, with KEEP.
static void take_own(Block* b, const Model* m, ModelBlockType type, int64_t T, char** cursor) {
    b->norm = take(cursor, T * m->config.channels);
    b->inner = take(cursor, T * inner_width(m, type));
    b->stats = take_stats(m, cursor, T);
    if (type == BLOCK_FFN) {
        b->in = b->din = take(cursor, T * in_width(m, type));
    } else {
        b->lse = take_floats(cursor, T * m->config.num_heads);
    }
}

typedef struct {
    int64_t T, R;  // tokens and rows, rounded up
    char* own;     // with KEEP each block's own buffers
    int64_t layer_bytes;
    floatX *x, *in[2], *kv;  // slot 0; in: of each attention
    Block shared;            // without KEEP
} StackActs;

typedef struct {
    int num_rows;    // capacity
    floatX* norm;    // (num_rows, C); NULL where the head is shared
    Stats stats;     // (num_rows)
    floatX* logits;  // (num_rows, Vp), with KEEP their gradients; NULL where the head is shared
} Head;

typedef struct {
    StackActs stacks[2];
    Stats enc_stats;         // of the encoder's final norm
    floatX *enc_out, *denc;  // (Te, C); NULL where it is `in` or `out`, `din` or `dout`
    Head head;
    int64_t num_bytes;
} Acts;

static void take_kept(StackActs* s, const Model* m, Side side, int64_t Te, char** cursor) {
    const int num_blocks = blocks_of(m, side), of_layer = stack_of(m, side)->num_blocks;
    const int64_t TC = s->T * m->config.channels, RC = s->R * m->config.channels;
    const bool has_rows = is_in_rows(m, side, num_blocks - 1);
    s->own = *cursor;
    for (int i = 0; i < num_blocks; i++) {
        Block block;
        if (i == of_layer) { s->layer_bytes = *cursor - s->own; }
        take_own(&block, m, block_about(m, side, i)->type, is_in_rows(m, side, i) ? s->R : s->T, cursor);
    }
    for (ModelBlockType type = BLOCK_SELF; type <= BLOCK_CROSS; type++) {
        const int64_t n = num_of_type(m, side, type);
        if (n == 0) { continue; }
        s->in[type] = take(cursor, (n + 1) * s->T * in_width(m, type));
        if (type == BLOCK_CROSS) { s->kv = take(cursor, (n + 1) * Te * 2 * heads_width(m)); }
    }
    // slot N, of x_N or dx_N-1, and the one after it have rows
    const int num_slots = num_blocks + begins(m, side) + ends(m, side),
              num_rows_slots = has_rows ? 1 + ends(m, side) : 0;
    s->x = take(cursor, (num_slots - num_rows_slots) * TC + num_rows_slots * RC);
    if (!begins(m, side)) { s->x -= TC; }  // no slot for x_0
}

static void take_shared(StackActs* s, const Model* m, Side side, int64_t Te, char** cursor) {
    const int64_t T = s->T, C = m->config.channels, I = heads_width(m);
    Block* b = &s->shared;
    s->x = take(cursor, 2 * T * C);
    b->norm = take(cursor, T * C);
    b->in = take(cursor, T * larger(4 * I, in_width(m, BLOCK_FFN)));
    b->inner = b->in + T * 3 * I;
    b->lse = take_floats(cursor, T * m->config.num_heads);
    b->stats = take_stats(m, cursor, T);
    if (side == DEC) { b->kv = take(cursor, Te * 2 * I); }
}

static Head take_head(const Model* m, int64_t num_rows, int flags, char** cursor) {
    const int64_t C = m->config.channels;
    int64_t R = model_round_up(num_rows);
    if (!(flags & (MODEL_KEEP | INFER)) && R > MODEL_HEAD_ROWS) { R = MODEL_HEAD_ROWS; }
    Head head = {.num_rows = (int)R};
    if (m->has_head) { head.norm = take(cursor, R * C); }
    head.stats = take_stats(m, cursor, R);
    if (m->has_head) { head.logits = take(cursor, R * m->config.padded_vocab); }
    return head;
}

static char nowhere[1];  // base if only bytes are needed

static Acts lay_out(const Model* m, const ModelBatch* batch, int flags, void* memory) {
    const int64_t C = m->config.channels, Te = model_round_up(batch->num_tokens);
    const bool keep = flags & MODEL_KEEP, has_cross = num_of_type(m, DEC, BLOCK_CROSS) > 0;
    const bool ends_encoder = last_side(m) == DEC && ends(m, ENC);
    Acts acts = {.stacks = {{.T = Te}, {.T = model_round_up(batch->num_dec_tokens)}}};
    StackActs* last = &acts.stacks[last_side(m)];
    last->R = model_round_up(batch->num_rows);
    if (is_in_rows(m, last_side(m), 0)) { last->T = last->R; }
    char* const begin = memory != NULL ? (char*)memory : nowhere;
    char* cursor = begin;
    for (int side = ENC; side <= DEC; side++) {
        if (blocks_of(m, (Side)side) == 0) { continue; }
        (keep ? take_kept : take_shared)(&acts.stacks[side], m, (Side)side, Te, &cursor);
    }
    if (ends_encoder) {
        acts.enc_stats = keep ? take_stats(m, &cursor, Te) : acts.stacks[ENC].shared.stats;
        if (keep && has_cross) { acts.denc = take(&cursor, Te * C); }
    }
    if (has_cross && (keep || ends_encoder)) { acts.enc_out = take(&cursor, Te * C); }
    if (m->is_last && (flags & (MODEL_HEAD | INFER) || model_feeds_head(m))) {
        acts.head = take_head(m, batch->num_rows, flags, &cursor);
    }
    acts.num_bytes = cursor - begin;
    return acts;
}

int64_t model_acts_bytes(const Model* m, const ModelBatch* batch, int flags) {
    return model_is_share(m) ? head_acts_bytes(m, batch, flags) : lay_out(m, batch, flags, NULL).num_bytes;
}

// --- a microbatch on the device ----------------------------------------------------------------------------

typedef struct {
    int num_tokens;
    const int32_t *cu_seqlens, *seq_lens, *tokens, *positions;  // seq_lens NULL: all
    const uint32_t* keys;                                       // of dropout
} BatchSide;

// Of tokens in a cache of keys and values (ops.h: Attention.k_lens, q_starts, place_rows). A slot has room
// for max_tokens contiguous rows; a sequence's new tokens follow its earlier ones.
typedef struct {
    const int32_t* rows;  // (new tokens) of the cache
    const int32_t *begins, *lens,
        *starts;  // (num_seqs) first row of the slot; tokens after and before this call
} CacheRows;

// Where window 0 is a piece: keys of the last stack's self-attention, or of its cross-attention.
typedef struct {
    int num_keys, own_begin;     // of window 0; the first own_begin are earlier pieces'
    const int32_t *cu_k, *rows;  // rows (num_keys - own_begin): of `kept`, for its own
    const uint32_t* k_keys;
} PieceKeys;

// One pass of a range over a microbatch.
typedef struct {
    Model* model;
    const ModelBatch* host;
    Acts acts;
    char* scratch;
    int flags;
    BatchSide sides[2];
    int num_seqs, num_rows;
    const int32_t *rows, *targets;
    const uint32_t* row_keys;       // of dropout
    float dropout;                  // the model's if the batch has keys; else 0
    const floatX *in[2], *dout[2];  // x_0 of the stacks and the gradient of x_N where not in acts ...
    floatX *out[2], *din[2];        // ... and x_N and the gradient of x_0
    const floatX* enc_out;          // read by cross-attentions
    const floatX* denc_from;        // backward: the sum of its gradients so far, NULL: zero ...
    floatX* denc;                   // ... and with the next one
    const ModelCache* cache;        // generation
    CacheRows cache_rows[2];        // of the last stack's tokens, of the encoder's
    PieceKeys piece[2];             // the same
    int32_t* numbers;               // of the host, until the job is done
} Job;

static BatchSide host_side(const ModelBatch* b, Side side) {
    return side == ENC ? (BatchSide){b->num_tokens, b->cu_seqlens, b->seq_lens,
                                     b->tokens,     b->positions,  b->token_keys}
                       : (BatchSide){b->num_dec_tokens, b->dec_cu_seqlens, b->dec_seq_lens,
                                     b->dec_tokens,     b->dec_positions,  b->dec_token_keys};
}

static void stage_side(Job* job, Side side) {
    const Model* m = job->model;
    const bool has_decoder = last_side(m) == DEC;
    const BatchSide host = host_side(job->host, side);
    BatchSide* out = &job->sides[side];
    out->num_tokens = host.num_tokens;
    const bool has_blocks =
        blocks_of(m, side) > 0 || blocks_of(m, DEC) > 0;  // cross-attention has both sides
    if (has_blocks) {
        out->cu_seqlens = batch_stage(m->ops, host.cu_seqlens, job->num_seqs + 1);
        // self-attention with a causal mask never sees padding
        if (has_decoder) { out->seq_lens = batch_stage(m->ops, host.seq_lens, job->num_seqs); }
    }
    if (job->dropout > 0.0f && has_blocks) {
        out->keys = (const uint32_t*)batch_stage(m->ops, (const int32_t*)host.keys, host.num_tokens);
    }
    const bool turns = m->config.kind->rotary && blocks_of(m, side) > 0;
    if (turns || (begins(m, side) && m->config.kind->positions != 0)) {
        out->positions = batch_stage(m->ops, host.positions, host.num_tokens);
    }
    if (!begins(m, side)) { return; }
    batch_check_range(!has_decoder  ? "token"
                      : side == ENC ? "encoder token"
                                    : "decoder token",
                      host.tokens, host.num_tokens, m->config.vocab);
    out->tokens = batch_stage(m->ops, host.tokens, host.num_tokens);
    if (m->config.kind->positions != 0) {
        batch_check_range("position", host.positions, host.num_tokens, m->config.max_seq_len);
    }
}

// Keys of window 0 that are in no microbatch but an earlier piece's.
static int piece_own_begin(const ModelBatch* batch, bool is_cross) {
    return !is_cross ? batch->kept_begin : batch->kept_begin > 0 ? batch->kept_enc_tokens : 0;
}

// Does another piece of the sample come after this one?
static bool piece_goes_on(const Model* m, const ModelBatch* batch) {
    return batch->kept_tokens > batch->kept_begin + host_side(batch, last_side(m)).cu_seqlens[1];
}

// `numbers`: room for num_seqs + 1 and all keys. Returns its end.
static int32_t* stage_piece(Job* job, bool is_cross, int32_t* numbers) {
    const ModelBatch* batch = job->host;
    const BatchSide host = host_side(batch, is_cross ? ENC : last_side(job->model));
    const uint32_t* before = is_cross ? batch->kept_enc_keys : batch->kept_keys;
    const int own_begin = piece_own_begin(batch, is_cross), num_keys = own_begin + host.num_tokens;
    OpsContext* ops = job->model->ops;
    PieceKeys* piece = &job->piece[is_cross];
    int32_t *cu_k = numbers, *keys = numbers + job->num_seqs + 1;
    piece->own_begin = own_begin;
    piece->num_keys = own_begin + host.cu_seqlens[1];
    for (int i = 0; i <= job->num_seqs; i++) { cu_k[i] = host.cu_seqlens[i] + (i > 0 ? own_begin : 0); }
    piece->cu_k = ops_stage(ops, cu_k, (size_t)job->num_seqs + 1);
    piece->rows = batch_stage(ops, host.positions, host.cu_seqlens[1]);
    if (job->dropout == 0.0f) { return keys; }
    for (int i = 0; i < num_keys; i++) {
        keys[i] = (int32_t)(i < own_begin ? before[i] : host.keys[i - own_begin]);
    }
    piece->k_keys = (const uint32_t*)ops_stage(ops, keys, (size_t)num_keys);
    return keys + num_keys;
}

static void stage_pieces(Job* job, int32_t* numbers) {
    int32_t* end = stage_piece(job, false, numbers);
    if (last_side(job->model) == DEC) { stage_piece(job, true, end); }
}

static void stage_rows(Job* job, int32_t* keys) {
    const ModelBatch* batch = job->host;
    const BatchSide host = host_side(batch, last_side(job->model));
    batch_check_range("row", batch->rows, job->num_rows, host.num_tokens);
    job->rows = batch_stage(job->model->ops, batch->rows, job->num_rows);
    for (int i = 0; i < job->num_rows && job->dropout > 0.0f; i++) {
        keys[i] = (int32_t)host.keys[batch->rows[i]];
    }
    if (job->dropout > 0.0f) {
        job->row_keys = (const uint32_t*)batch_stage(job->model->ops, keys, job->num_rows);
    }
}

// Begins a job's staging. An id out of range ends the program.
static Job begin_job(Model* m, const ModelBatch* batch, void* acts, void* scratch, int flags) {
    Job job = {.model = m,
               .host = batch,
               .acts = lay_out(m, batch, flags, acts),
               .scratch = (char*)scratch,
               .flags = flags,
               .num_seqs = batch->num_seqs,
               .num_rows = batch->num_rows,
               .dropout = batch->token_keys != NULL ? m->dropout : 0.0f};
    const bool has_pieces = batch->kept_tokens > 0 && blocks_of(m, last_side(m)) > 0;
    const bool has_rows = m->block_end >= model_num_blocks(&m->config) - 1 && !(flags & INFER);
    ops_stage_begin(m->ops);
    for (int side = ENC; side <= (int)last_side(m); side++) { stage_side(&job, (Side)side); }
    if (has_pieces || has_rows) {
        const int of_pieces = 2 * (job.num_seqs + 1) + batch->kept_begin + batch->kept_enc_tokens +
                              batch->num_tokens + batch->num_dec_tokens;
        job.numbers = (int32_t*)llmc_alloc((size_t)(of_pieces + job.num_rows) * sizeof(int32_t), "keys");
        if (has_pieces) { stage_pieces(&job, job.numbers); }
        if (has_rows) { stage_rows(&job, job.numbers + of_pieces); }
    }
    if (flags & MODEL_HEAD && m->has_head && has_rows) {
        batch_check_range("target", batch->targets, job.num_rows, m->config.vocab);
        job.targets = batch_stage(m->ops, batch->targets, job.num_rows);
    }
    return job;
}

static const floatX* param(const Job* job, int tensor, int l) {
    return model_tensor(job->model, tensor, l);
}
static float* grad(const Job* job, int tensor, int l) {
    return model_grad(job->model, tensor, l);
}
// Of a tensor that the kind or the config may lack.
static bool has_bias(const Job* job, int tensor) {
    return tensor != 0 && job->model->slice_idx[tensor] >= 0;
}
static const floatX* bias_param(const Job* job, int tensor, int l) {
    return has_bias(job, tensor) ? param(job, tensor, l) : NULL;
}
static float* bias_grad(const Job* job, int tensor, int l) {
    return has_bias(job, tensor) ? grad(job, tensor, l) : NULL;
}

typedef struct {
    floatX* columns;           // (T, C)  the output of a matrix product on its way into a sum or a norm
    floatX *turned, *dturned;  // (T, 3I) with rotary positions: what attention reads, and its gradient
    floatX* wide;              // (T, F) or (T, I) with attention's scratch after it, or (T or Te, C)
    void* attention;           // after (T, I) of wide
    float* bias;               // (num_buckets, NH) the stack's table
} Scratch;

// The two stacks' bias tables, first in every scratch.
static int64_t table_bytes(const Model* m) {
    return round_up_64((int64_t)m->config.num_buckets * m->config.num_heads * FLOAT_BYTES);
}
static char* scratch_begin(const Job* job) {
    return job->scratch + 2 * table_bytes(job->model);
}

static int64_t turned_values(const Model* m, int64_t T) {
    return m->config.kind->rotary ? T * 3 * heads_width(m) : 0;
}

static Scratch split_scratch(const Job* job, Side side) {
    const Model* m = job->model;
    const int64_t T = job->acts.stacks[side].T;
    char* cursor = scratch_begin(job);
    Scratch parts = {.bias = (float*)(void*)(job->scratch + side * table_bytes(m))};
    parts.columns = take(&cursor, T * m->config.channels);
    parts.turned = take(&cursor, turned_values(m, T));
    parts.dturned = take(&cursor, turned_values(m, T));
    parts.wide = take(&cursor, T * heads_width(m));
    parts.attention = cursor;
    return parts;
}

static Block block_at(const Job* job, Side side, int i) {
    const Model* m = job->model;
    const StackActs* s = &job->acts.stacks[side];
    const int num_blocks = blocks_of(m, side), of_layer = stack_of(m, side)->num_blocks, l = i / of_layer;
    const ModelBlock* about = block_about(m, side, i);
    const ModelBlockType type = about->type;
    const int64_t TC = s->T * m->config.channels;
    Block b = s->shared;
    if (job->flags & MODEL_KEEP) {
        char* cursor = s->own + l * s->layer_bytes;
        for (int k = l * of_layer; k <= i; k++) {
            take_own(&b, m, block_about(m, side, k)->type, is_in_rows(m, side, k) ? s->R : s->T, &cursor);
        }
        if (type != BLOCK_FFN) {
            b.in = s->in[type] + l * s->T * in_width(m, type);
            b.din = b.in + s->T * in_width(m, type);
        }
        if (type == BLOCK_CROSS) {
            b.kv = s->kv + l * job->acts.stacks[ENC].T * 2 * heads_width(m);
            b.dkv = b.kv + job->acts.stacks[ENC].T * 2 * heads_width(m);
        }
        b.x = s->x + i * TC;
        b.x_next = b.dx = b.x + TC;
        b.dx_next = b.x_next + (is_in_rows(m, side, i) ? s->R * m->config.channels : TC);
    } else {
        b.x = s->x + i % 2 * TC;
        b.x_next = s->x + (i + 1) % 2 * TC;
        if (type == BLOCK_FFN) { b.inner = split_scratch(job, side).wide; }
    }
    b.about = about;
    b.side = side;
    b.number = model_blocks(m, side).begin + i;
    b.in_rows = is_in_rows(m, side, i);
    b.before_rows = !b.in_rows && is_in_rows(m, side, i + 1);
    b.T = b.in_rows ? job->num_rows : job->sides[side].num_tokens;
    b.keys = b.in_rows ? job->row_keys : job->sides[side].keys;
    b.l = l;
    b.x_in = b.x;
    if (i == 0 && !begins(m, side)) {
        b.x_in = job->in[side];
        b.dx = job->din[side];
    }
    if (i == num_blocks - 1 && !ends(m, side)) {
        b.x_next = job->out[side];
        b.dx_next = job->dout[side];
    }
    return b;
}

// With KEEP the gradient of x_N, where the stack ends here.
static floatX* dx_end(const Job* job, Side side) {
    return (floatX*)(uintptr_t)block_at(job, side, blocks_of(job->model, side) - 1).dx_next;
}

// --- dropout -----------------------------------------------------------------------------------------------

// Numbered in the whole model, so that the mask does not depend on the ranges. `inner`: of probabilities or
// activations; else of the block's output.
static uint32_t drop_place(const Job* job, const Block* b, bool inner) {
    const Model* m = job->model;
    const int layer =
        (b->side == DEC ? m->config.num_layers : 0) + b->number / stack_of(m, b->side)->num_blocks;
    return (uint32_t)layer * 2 * BLOCK_NUM_TYPES + 2 * (uint32_t)b->about->type + !inner;
}

// Of a stack's embedding, and of its final norm.
typedef enum { DROP_EMBEDDING, DROP_END } OuterDrop;
static uint32_t outer_place(const Job* job, Side side, OuterDrop drop) {
    const ModelConfig* config = &job->model->config;
    const uint32_t num_layers = (uint32_t)(config->num_layers + config->num_dec_layers);
    return num_layers * 2 * BLOCK_NUM_TYPES + 2 * (uint32_t)drop + (uint32_t)side;
}

// out (num_rows, width) = x masked; without dropout x is returned.
static const floatX* dropped(const Job* job, floatX* out, const floatX* x, const uint32_t* keys,
                             uint32_t place, int num_rows, int width) {
    if (job->dropout == 0.0f) { return x; }
    dropout_apply(out, x, keys, place, job->dropout, num_rows, width, job->model->ops);
    return out;
}
static void drop(const Job* job, Side side, floatX* x, uint32_t place, int width) {
    dropped(job, x, x, job->sides[side].keys, place, job->sides[side].num_tokens, width);
}
static void drop_in_block(const Job* job, const Block* b, floatX* x, bool inner, int width) {
    dropped(job, x, x, b->keys, drop_place(job, b, inner), b->T, width);
}
static void drop_end(const Job* job, floatX* enc_out) {
    if (!job->model->config.kind->drops_more) { return; }
    drop(job, ENC, enc_out, outer_place(job, ENC, DROP_END), job->model->config.channels);
}

// --- norms and matrices ------------------------------------------------------------------------------------

// out = norm(inp), or with `add`: residual = inp + add, out = norm of it.
static void norm_forward(const Job* job, ModelLinear norm, int l, floatX* out, const Stats* stats,
                         const floatX* inp, floatX* residual, const floatX* add, float scale, int num_rows) {
    if (num_rows == 0) { return; }
    const int C = job->model->config.channels;
    const floatX *w = param(job, norm.weight, l), *bias = bias_param(job, norm.bias, l);
    OpsContext* ops = job->model->ops;
    if (bias != NULL && add != NULL) {
        residual_layernorm_forward(residual, out, stats->mean, stats->rstd, inp, add, w, bias,
                                   norm_eps(job->model), num_rows, C, ops);
    } else if (bias != NULL) {
        layernorm_forward(out, stats->mean, stats->rstd, inp, w, bias, norm_eps(job->model), num_rows, C,
                          ops);
    } else if (add != NULL) {
        residual_rmsnorm_forward(residual, out, stats->rstd, inp, add, w, scale, norm_eps(job->model),
                                 num_rows, C, ops);
    } else {
        rmsnorm_forward(out, stats->rstd, inp, w, scale, norm_eps(job->model), num_rows, C, ops);
    }
}

// dinp = dresidual (NULL: zero) + the gradient through the norm; the norm's own gradients are added.
static void norm_backward(const Job* job, ModelLinear norm, int l, floatX* dinp, const floatX* dresidual,
                          const floatX* dout, const floatX* inp, const Stats* stats, float scale,
                          int num_rows) {
    const int C = job->model->config.channels;
    const floatX* w = param(job, norm.weight, l);
    OpsContext* ops = job->model->ops;
    if (norm.bias != 0) {
        layernorm_backward(dinp, grad(job, norm.weight, l), grad(job, norm.bias, l), dresidual, dout, inp, w,
                           stats->mean, stats->rstd, num_rows, C, ops);
    } else {
        rmsnorm_backward(dinp, grad(job, norm.weight, l), dresidual, dout, inp, w, stats->rstd, scale,
                         num_rows, C, ops);
    }
}

static void linear_forward(const Job* job, ModelLinear w, int l, floatX* out, const floatX* inp, int num_rows,
                           int num_inputs, int num_outputs) {
    matmul_forward(out, inp, param(job, w.weight, l), bias_param(job, w.bias, l), num_rows, num_inputs,
                   num_outputs, job->model->ops);
}
static void linear_backward_input(const Job* job, ModelLinear w, int l, floatX* dinp, const floatX* dout,
                                  int num_rows, int num_inputs, int num_outputs) {
    matmul_backward_input(dinp, dout, param(job, w.weight, l), num_rows, num_inputs, num_outputs,
                          job->model->ops);
}
static void linear_backward_weight(const Job* job, ModelLinear w, int l, const floatX* dout,
                                   const floatX* inp, int num_rows, int num_inputs, int num_outputs) {
    matmul_backward_weight(grad(job, w.weight, l), bias_grad(job, w.bias, l), dout, inp, num_rows, num_inputs,
                           num_outputs, job->model->ops);
}

// --- attention ---------------------------------------------------------------------------------------------

// Where the l-th attention of that type of the last stack begins in `kept`. Of each (rows, 2I).
static int64_t kept_values(const Model* m, const ModelBatch* batch, bool is_cross, int64_t l) {
    const int64_t num_before = is_cross ? num_of_type(m, last_side(m), BLOCK_SELF) : l;
    const int64_t num_rows = num_before * model_round_up(batch->kept_tokens) +
                             (is_cross ? l * model_round_up(batch->kept_enc_tokens) : 0);
    return num_rows * 2 * heads_width(m);
}

int64_t model_kept_bytes(const Model* m, const ModelBatch* batch, bool is_gradient) {
    const int num_cross = num_of_type(m, last_side(m), BLOCK_CROSS);
    return kept_values(m, batch, true, num_cross) * (is_gradient ? FLOAT_BYTES : X_BYTES);
}

static bool is_piece(const Job* job, const Block* b) {
    return b->side == last_side(job->model) && job->host != NULL && job->host->kept_tokens > 0;
}

static void use_kept(const Job* job, const Block* b, Attention* about) {
    const Model* m = job->model;
    const ModelBatch* batch = job->host;
    const bool is_cross = b->about->type == BLOCK_CROSS;
    const PieceKeys* piece = &job->piece[is_cross];
    const int I = heads_width(m);
    const int64_t at = kept_values(m, batch, is_cross, b->l);
    const floatX* keys = (const floatX*)batch->kept + at;
    float* dkeys = batch->dkept != NULL ? (float*)batch->dkept + at : NULL;
    about->cu_k = piece->cu_k;
    about->k_keys = piece->k_keys;
    about->num_k_tokens += piece->own_begin;
    about->kept = (AttentionKept){.k = keys,
                                  .v = keys + I,
                                  .stride = 2 * I,
                                  .num_keys = piece->num_keys,
                                  .own_begin = piece->own_begin,
                                  .q_start = is_cross ? 0 : piece->own_begin,
                                  .dk = dkeys,
                                  .dv = dkeys != NULL ? dkeys + I : NULL,
                                  .is_last = !piece_goes_on(m, batch)};
}

// q, k and v of a block's own tokens as attention reads them.
static floatX* attention_input(const Job* job, const Block* b) {
    return job->model->config.kind->rotary ? split_scratch(job, b->side).turned : b->in;
}
static void turn(const Job* job, const Block* b) {
    const BatchSide* batch = &job->sides[b->side];
    if (!job->model->config.kind->rotary) { return; }
    rope_forward(attention_input(job, b), b->in, batch->positions, &job->model->rope, batch->num_tokens,
                 job->model->ops);
}

static Attention attention_of(const Job* job, const Block* b) {
    const ModelConfig* config = &job->model->config;
    const ModelStack* stack = stack_of(job->model, b->side);
    const bool is_cross = b->about->type == BLOCK_CROSS;
    const BatchSide *q = &job->sides[b->side], *k = is_cross ? &job->sides[ENC] : q;
    const int I = heads_width(job->model), HS = model_head_size(config);
    const floatX *in = attention_input(job, b), *kv = is_cross ? b->kv : in + I;
    Attention about = {
        .q = in,
        .k = kv,
        .v = kv + I,
        .q_stride = is_cross ? I : 3 * I,
        .kv_stride = is_cross ? 2 * I : 3 * I,
        .cu_q = q->cu_seqlens,
        .cu_k = k->cu_seqlens,
        .num_seqs = job->num_seqs,
        .num_q_tokens = q->num_tokens,
        .num_k_tokens = k->num_tokens,
        .num_heads = config->num_heads,
        .head_size = HS,
        .k_lens = k->seq_lens,
        .causal = !is_cross && stack->is_causal,
        .scale = config->kind->scaled_scores ? 1.0f / sqrtf((float)HS) : 1.0f,
        .dropout = job->dropout,
        .dropout_place = drop_place(job, b, true),
        .q_keys = q->keys,
        .k_keys = k->keys,
    };
    if (!is_cross && stack->bias != 0) {
        about.bias = split_scratch(job, b->side).bias;
        about.num_buckets = config->num_buckets;
        about.max_distance = config->max_distance;
        about.bias_bidirectional = !about.causal;
    }
    if (is_piece(job, b)) { use_kept(job, b, &about); }
    return about;
}

// The stack's bias table, as floats in scratch: before block 0 for all, or, if each layer has its own, before
// its attention.
static void load_bias(const Job* job, Side side, bool of_layer, int l) {
    const Model* m = job->model;
    const int tensor = stack_of(m, side)->bias;
    if (tensor == 0 || of_layer != m->config.bias_per_layer) { return; }
    values_to_floats(split_scratch(job, side).bias, param(job, tensor, l),
                     (size_t)m->config.num_buckets * (size_t)m->config.num_heads, m->ops);
}

// Where the l-th attention of that type of the last stack begins in the cache. Of each self-attention: keys,
// then values, of its tokens, (num_slots * max_tokens, I) each; of each cross-attention after these: both of
// the encoder's tokens, (num_slots * max_enc_tokens, 2I).
static int64_t cached_values(const Model* m, const ModelCache* cache, bool is_cross, int64_t l) {
    const int64_t num_before = is_cross ? num_of_type(m, last_side(m), BLOCK_SELF) : l;
    const int64_t num_rows = num_before * cache->max_tokens + (is_cross ? l * cache->max_enc_tokens : 0);
    return num_rows * cache->num_slots * 2 * heads_width(m);
}

int64_t model_cache_bytes(const Model* m, const ModelCache* cache) {
    return cached_values(m, cache, true, num_of_type(m, last_side(m), BLOCK_CROSS)) * X_BYTES;
}

// Appends the new keys and values to the cache; attention then reads these.
static void use_cache(const Job* job, const Block* b, Attention* about) {
    const Model* m = job->model;
    const ModelCache* cache = job->cache;
    const bool is_cross = b->about->type == BLOCK_CROSS;
    const CacheRows* rows = &job->cache_rows[is_cross];
    const int I = heads_width(m), T = about->num_k_tokens;
    floatX *keys = (floatX*)cache->memory + cached_values(m, cache, is_cross, b->l), *values;
    if (is_cross) {
        values = keys + I;
        if (T > 0) { place_rows(keys, 2 * I, about->k, 2 * I, rows->rows, T, 2 * I, m->ops); }
    } else {
        values = keys + (int64_t)cache->num_slots * cache->max_tokens * I;
        place_rows(keys, I, about->k, about->kv_stride, rows->rows, T, I, m->ops);
        place_rows(values, I, about->v, about->kv_stride, rows->rows, T, I, m->ops);
        about->kv_stride = I;
    }
    about->q_starts = rows->starts;  // (of cross-attention: behind all keys, which hides none)
    about->k = keys;
    about->v = values;
    about->cu_k = rows->begins;
    about->k_lens = rows->lens;
    about->num_k_tokens = cache->num_slots * (is_cross ? cache->max_enc_tokens : cache->max_tokens);
}

// --- forward -----------------------------------------------------------------------------------------------

// From the normed x to what `out` reads.
static void block_forward(const Job* job, const Block* b) {
    const Model* m = job->model;
    const ModelBlock* about = b->about;
    const int T = b->T, Te = job->sides[ENC].num_tokens, C = m->config.channels;
    const int width = inner_width(m, about->type), l = b->l;
    if (fuses_gelu(m, about)) {
        matmul_gelu_forward(b->inner, b->in, b->norm, param(job, about->in.weight, l),
                            bias_param(job, about->in.bias, l), T, C, width, m->ops);
    } else {
        linear_forward(job, about->in, l, b->in, b->norm, T, C, in_width(m, about->type));
    }
    if (about->type == BLOCK_FFN) {
        if (m->config.kind->activation == MODEL_SILU) {
            gated_silu_forward(b->inner, b->in, T, width, m->ops);
        } else if (m->config.gated) {
            gated_gelu_forward(b->inner, b->in, T, width, m->ops);
        } else if (m->config.exact_gelu) {
            exact_gelu_forward(b->inner, b->in, (size_t)T * (size_t)width, m->ops);
        } else if (m->config.kind->activation == MODEL_RELU) {
            relu_forward(b->inner, b->in, (size_t)T * (size_t)width, m->ops);
        }
        if (m->config.kind->drops_more) { drop_in_block(job, b, b->inner, true, width); }
        return;
    }
    if (about->type == BLOCK_SELF) { load_bias(job, b->side, true, l); }
    if (about->type == BLOCK_CROSS && Te > 0) {
        linear_forward(job, about->kv, l, b->kv, job->enc_out, Te, C, 2 * width);
    }
    turn(job, b);
    Attention attention = attention_of(job, b);
    if (job->cache != NULL && b->side == last_side(m)) { use_cache(job, b, &attention); }
    if (is_piece(job, b)) {
        const PieceKeys* piece = &job->piece[about->type == BLOCK_CROSS];
        place_rows((floatX*)(uintptr_t)attention.kept.k, attention.kept.stride, attention.k,
                   attention.kv_stride, piece->rows, piece->num_keys - piece->own_begin, 2 * width, m->ops);
    }
    attention_forward(b->inner, b->lse, &attention, m->ops);
}

// What the next block begins with: the stream `x` plus what this block adds to it, both (T, C).
typedef struct {
    const floatX *x, *added;
    int T;
} Sum;

static Sum block_output(const Job* job, const Block* b) {
    const int C = job->model->config.channels, R = job->num_rows;
    const Scratch scratch = split_scratch(job, b->side);
    linear_forward(job, b->about->out, b->l, scratch.columns, b->inner, b->T,
                   inner_width(job->model, b->about->type), C);
    drop_in_block(job, b, scratch.columns, false, C);
    if (!b->before_rows) { return (Sum){b->x_in, scratch.columns, b->T}; }
    gather_rows(b->x_next, b->x_in, job->rows, R, C, job->model->ops);
    gather_rows(scratch.wide, scratch.columns, job->rows, R, C, job->model->ops);
    return (Sum){b->x_next, scratch.wide, R};
}

static void embed(const Job* job, Side side, floatX* x) {
    const BatchSide* batch = &job->sides[side];
    const int C = job->model->config.channels;
    embedding_forward(x, batch->tokens, batch->positions, param(job, MODEL_EMBEDDING, 0),
                      bias_param(job, job->model->config.kind->positions, 0), batch->num_tokens, C,
                      job->model->ops);
    drop(job, side, x, outer_place(job, side, DROP_EMBEDDING), C);
}

// Returns x_N, which is left out where nothing reads it (NULL), or enc_out where the encoder ends here.
static const floatX* stack_forward(Job* job, Side side, const floatX* in, floatX* out) {
    Model* m = job->model;
    const int N = blocks_of(m, side);
    job->in[side] = in;
    job->out[side] = out;
    Block b = block_at(job, side, 0);
    load_bias(job, side, false, 0);
    if (begins(m, side)) { embed(job, side, b.x); }
    norm_forward(job, b.about->norm, 0, b.norm, &b.stats, b.x_in, NULL, NULL, 1.0f, b.T);
    for (int i = 1; i < N; i++) {
        const Block next = block_at(job, side, i);
        block_forward(job, &b);
        const Sum sum = block_output(job, &b);
        norm_forward(job, next.about->norm, next.l, next.norm, &next.stats, sum.x, next.x, sum.added, 1.0f,
                     sum.T);
        b = next;
    }
    if (b.in_rows && b.T == 0) { return b.x_next; }
    block_forward(job, &b);
    if (side != last_side(m) && ends(m, side)) {
        floatX* enc_out = job->acts.enc_out != NULL ? job->acts.enc_out : out;
        if (enc_out == NULL) { enc_out = split_scratch(job, side).wide; }  // x_N is for backward
        const Sum sum = block_output(job, &b);
        norm_forward(job, stack_of(m, side)->norm_end, 0, enc_out, &job->acts.enc_stats, sum.x, b.x_next,
                     sum.added, 1.0f, sum.T);
        drop_end(job, enc_out);
        return enc_out;
    }
    if (b.x_next == NULL) { return NULL; }
    const Sum sum = block_output(job, &b);
    if (sum.T > 0) {
        residual_forward(b.x_next, sum.x, sum.added, (size_t)sum.T * (size_t)m->config.channels, m->ops);
    }
    return b.x_next;
}

// All blocks; returns x_N of the last stack.
static const floatX* blocks_forward(Job* job, const floatX* in, floatX* out) {
    const Model* m = job->model;
    const Side last = last_side(m);
    const int Te = job->sides[ENC].num_tokens;
    const size_t enc_bytes = (size_t)Te * (size_t)m->config.channels * sizeof(floatX);
    if (last == DEC && Te > 0) {
        if (blocks_of(m, ENC) > 0) {
            job->enc_out = stack_forward(job, ENC, in, out);
        } else if (blocks_of(m, DEC) > 0) {
            job->enc_out = in;
            if (job->acts.enc_out != NULL) { ops_copy(m->ops, job->acts.enc_out, in, enc_bytes); }
        }
    }
    if (blocks_of(m, last) == 0) { return in; }
    const int64_t in_begin = last == DEC ? boundary_dec_values(m, m->block_begin, Te) : 0;
    const int64_t out_begin = last == DEC ? boundary_dec_values(m, m->block_end, Te) : 0;
    if (out_begin > 0 && out != NULL && job->enc_out != out) {
        ops_copy(m->ops, out, job->enc_out, enc_bytes);
    }  // later ranges read it
    return stack_forward(job, last, in != NULL ? in + in_begin : NULL, out != NULL ? out + out_begin : NULL);
}

// The final norm of the rows [begin, begin + num_rows) of x_N, and its dropout.
static void drop_rows(const Job* job, floatX* rows, int begin, int num_rows) {
    const Model* m = job->model;
    if (!m->config.kind->drops_more || job->dropout == 0.0f) { return; }
    dropped(job, rows, rows, job->row_keys + begin, outer_place(job, last_side(m), DROP_END), num_rows,
            m->config.channels);
}
static void rows_norm_forward(const Job* job, floatX* norm, const floatX* x, int begin, int num_rows) {
    const Model* m = job->model;
    norm_forward(job, stack_of(m, last_side(m))->norm_end, 0, norm, &job->acts.head.stats,
                 x + (int64_t)begin * m->config.channels, NULL, NULL, head_scale(m), num_rows);
    drop_rows(job, norm, begin, num_rows);
}

// Losses, or the normed rows for the head's shares (`out` NULL: only for backward).
static void rows_forward(const Job* job, const floatX* x, floatX* out, float* losses) {
    Model* m = job->model;
    const Head* head = &job->acts.head;
    const int R = job->num_rows, C = m->config.channels;
    const bool keep = job->flags & MODEL_KEEP;
    assert(!m->has_head || !keep ||
           job->host->loss_scale != 0.0f);  // 0 would leave logits in place of gradients
    if (m->has_head) { m->last_logits = keep ? NULL : head->logits; }
    if (R == 0) { return; }
    float* results = m->has_head ? ops_results(m->ops, losses, (size_t)R) : NULL;
    // The first rows are computed last, so that last_logits contains them.
    for (int begin = (R - 1) / head->num_rows * head->num_rows; begin >= 0; begin -= head->num_rows) {
        const int num_rows = R - begin < head->num_rows ? R - begin : head->num_rows;
        floatX* norm = m->has_head   ? head->norm
                       : out != NULL ? out + (int64_t)begin * C
                                     : (floatX*)(void*)scratch_begin(job);
        rows_norm_forward(job, norm, x, begin, num_rows);
        if (!m->has_head) { continue; }
        head_rows_forward(m, results + begin, head->logits, norm, job->targets + begin, num_rows,
                          keep ? job->host->loss_scale : 0.0f);
    }
    if (m->has_head) { ops_deliver(m->ops, losses, results, (size_t)R); }
}

void model_forward(Model* m, const ModelBatch* batch, const void* in, void* out, void* acts, void* scratch,
                   float* losses, int flags) {
    if (model_is_share(m)) {
        head_forward(m, batch, in, out, acts, losses, flags);
        return;
    }
    // no output is read before the recompute, but a later piece reads keys
    if (m->has_head && flags == 0 && !piece_goes_on(m, batch)) { return; }
    Job job = begin_job(m, batch, acts, scratch, flags);
    const floatX* x = blocks_forward(&job, (const floatX*)in, (floatX*)out);
    if (m->is_last && (flags & MODEL_HEAD || model_feeds_head(m))) {
        rows_forward(&job, x, (floatX*)out, losses);
    }
    free(job.numbers);
}

// --- generation --------------------------------------------------------------------------------------------

// In scratch: acts of a forward without KEEP, with the sequences' last tokens as rows; scratch.
static ModelBatch infer_batch(const ModelBatch* batch) {
    ModelBatch copy = *batch;
    copy.num_rows = batch->num_seqs;
    copy.token_keys = copy.dec_token_keys = NULL;
    return copy;
}

int64_t model_infer_bytes(const Model* m, const ModelBatch* batch) {
    if (model_is_share(m)) { return head_infer_bytes(m, batch); }
    const ModelBatch copy = infer_batch(batch);
    return round_up_64(lay_out(m, &copy, INFER, NULL).num_bytes) + model_scratch_bytes(m, &copy);
}

// num_before NULL: 0. cu_seqlens NULL: nothing new; otherwise every sequence has at least one new token. A
// slot overflow ends the program. `numbers`: room for the new tokens and 4 num_seqs; the last part becomes
// the last new token of each sequence, among the new tokens.
static CacheRows stage_cache_rows(const Job* job, const int32_t* cu_seqlens, const int32_t* num_before,
                                  int max_tokens, int32_t* numbers) {
    const size_t n = (size_t)job->num_seqs, T = cu_seqlens != NULL ? (size_t)cu_seqlens[n] : 0;
    OpsContext* ops = job->model->ops;
    int32_t *begins = numbers + n, *lens = begins + n, *starts = lens + n, *rows = starts + n;
    for (size_t b = 0; b < n; b++) {
        const int num_new = cu_seqlens != NULL ? cu_seqlens[b + 1] - cu_seqlens[b] : 0;
        begins[b] = job->cache->slots[b] * max_tokens;
        starts[b] = num_before != NULL ? num_before[b] : 0;
        lens[b] = starts[b] + num_new;
        numbers[b] = num_new > 0 ? cu_seqlens[b + 1] - 1 : 0;
        if (lens[b] > max_tokens || (cu_seqlens != NULL && num_new < 1)) {
            fprintf(stderr, "cache: slot %d has %d tokens, %d more do not fit into %d\n",
                    job->cache->slots[b], starts[b], num_new, max_tokens);
            exit(1);
        }
        for (int i = 0; i < num_new; i++) { rows[cu_seqlens[b] + i] = begins[b] + starts[b] + i; }
    }
    return (CacheRows){batch_stage(ops, rows, (int)T), ops_stage(ops, begins, n), ops_stage(ops, lens, n),
                       ops_stage(ops, starts, n)};
}

// All encoder tokens of a sequence are in one call: those in the cache are this batch's, or (without
// encoder tokens) an earlier call's.
static void stage_cache(Job* job, const ModelCache* cache) {
    const ModelBatch* batch = job->host;
    const bool has_decoder = last_side(job->model) == DEC, has_encoder = batch->num_tokens > 0;
    const int n = job->num_seqs, T = has_decoder ? batch->num_dec_tokens : batch->num_tokens;
    job->numbers =
        (int32_t*)llmc_alloc((size_t)(batch->num_tokens + T + 8 * n) * sizeof(int32_t), "rows of a cache");
    job->cache = cache;
    if (has_decoder) {
        job->cache_rows[1] =
            stage_cache_rows(job, has_encoder ? batch->cu_seqlens : NULL, has_encoder ? NULL : cache->num_enc,
                             cache->max_enc_tokens, job->numbers + T + 4 * n);
    }
    job->cache_rows[0] = stage_cache_rows(job, has_decoder ? batch->dec_cu_seqlens : batch->cu_seqlens,
                                          cache->num_before, cache->max_tokens, job->numbers);
    job->rows = ops_stage(job->model->ops, job->numbers, (size_t)n);
}

void model_infer(Model* m, const ModelBatch* batch, const ModelCache* cache, const void* in, void* out,
                 void* scratch, int32_t* next) {
    if (model_is_share(m)) {
        head_infer(m, batch, in, out, scratch);
        return;
    }
    const ModelBatch copy = infer_batch(batch);
    Job job = begin_job(m, &copy, scratch, NULL, INFER);
    const Head* head = &job.acts.head;
    job.scratch = (char*)scratch + round_up_64(job.acts.num_bytes);
    if (blocks_of(m, last_side(m)) > 0 || m->is_last) { stage_cache(&job, cache); }
    const floatX* x = blocks_forward(&job, (const floatX*)in, (floatX*)out);
    m->last_logits = m->has_head ? head->logits : NULL;
    if (m->is_last) { rows_norm_forward(&job, m->has_head ? head->norm : (floatX*)out, x, 0, job.num_seqs); }
    if (m->has_head) { head_likeliest(m, next, head->logits, head->norm, job.num_seqs); }
    free(job.numbers);
}

// --- backward: the chain of input gradients; output gradients of matrices stay in acts ---------------------

// The gradient of the stream after the block, of all its tokens; `room`: (T, C).
static const floatX* dx_of_tokens(const Job* job, const Block* b, floatX* room) {
    if (!b->before_rows) { return b->dx_next; }
    scatter_rows(room, b->dx_next, job->rows, job->num_rows, b->T, job->model->config.channels,
                 job->model->ops);
    return room;
}

// The gradient of the block's output, masked.
static const floatX* dropped_output(const Job* job, const Block* b) {
    floatX* columns = split_scratch(job, b->side).columns;
    return dropped(job, columns, dx_of_tokens(job, b, columns), b->keys, drop_place(job, b, false), b->T,
                   job->model->config.channels);
}

// A cross-attention's share of the gradient of enc_out.
static void add_enc_gradient(Job* job, const Block* b, floatX* wide) {
    const Model* m = job->model;
    const int Te = job->sides[ENC].num_tokens, C = m->config.channels;
    floatX* mine = job->denc_from == NULL ? job->denc : wide;
    linear_backward_input(job, b->about->kv, b->l, mine, b->dkv, Te, C, 2 * heads_width(m));
    if (mine == wide) { residual_forward(job->denc, job->denc_from, mine, (size_t)Te * (size_t)C, m->ops); }
    job->denc_from = job->denc;
}

static void block_backward_inputs(Job* job, const Block* b) {
    const Model* m = job->model;
    const ModelBlock* about = b->about;
    const Scratch scratch = split_scratch(job, b->side);
    const int T = b->T, C = m->config.channels, l = b->l;
    const int width = inner_width(m, about->type), I = heads_width(m);
    floatX* dinner = scratch.wide;
    const floatX* dy = dropped_output(job, b);
    if (fuses_gelu(m, about)) {
        matmul_gelu_backward_input(b->din, b->in, dinner, dy, param(job, about->out.weight, l), T, width, C,
                                   m->ops);
    } else {
        linear_backward_input(job, about->out, l, dinner, dy, T, width, C);
    }
    if (about->type != BLOCK_FFN) {
        const bool is_cross = about->type == BLOCK_CROSS;
        floatX* din = m->config.kind->rotary ? scratch.dturned : b->din;
        floatX* dkv = is_cross ? b->dkv : din + I;
        const int bias = is_cross ? 0 : stack_of(m, b->side)->bias;
        if (!is_cross) { load_bias(job, b->side, true, l); }
        turn(job, b);  // again: so what is kept has only the heads that there are
        const Attention attention = attention_of(job, b);
        attention_backward(din, dkv, dkv + I, bias_grad(job, bias, m->config.bias_per_layer ? l : 0),
                           scratch.attention, dinner, b->inner, b->lse, &attention, m->ops);
        if (din != b->din) { rope_backward(b->din, din, job->sides[b->side].positions, &m->rope, T, m->ops); }
        if (is_cross) { add_enc_gradient(job, b, scratch.wide); }
    } else if (!fuses_gelu(m, about)) {
        if (m->config.kind->drops_more) { drop_in_block(job, b, dinner, true, width); }
        if (m->config.kind->activation == MODEL_SILU) {
            gated_silu_backward(b->din, dinner, b->in, T, width, m->ops);
        } else if (m->config.gated) {
            gated_gelu_backward(b->din, dinner, b->in, T, width, m->ops);
        } else if (m->config.exact_gelu) {
            exact_gelu_backward(b->din, dinner, b->in, (size_t)T * (size_t)width, m->ops);
        } else {
            relu_backward(b->din, dinner, b->in, (size_t)T * (size_t)width, m->ops);
        }
    }
    linear_backward_input(job, about->in, l, scratch.columns, b->din, T, C, in_width(m, about->type));
    norm_backward(job, about->norm, l, b->dx, dx_of_tokens(job, b, b->dx), scratch.columns, b->x_in,
                  &b->stats, 1.0f, T);
}

static void stack_backward_inputs(Job* job, Side side, const floatX* in, floatX* din) {
    job->in[side] = in;
    job->din[side] = din;
    load_bias(job, side, false, 0);
    for (int i = blocks_of(job->model, side) - 1; i >= 0; i--) {
        const Block b = block_at(job, side, i);
        if (b.T > 0) { block_backward_inputs(job, &b); }
    }
}

// From dlogits, or from the gradient of the normed rows, to that of x_N.
static void rows_backward_inputs(const Job* job, const floatX* dfed, const floatX* x, floatX* dx) {
    const Model* m = job->model;
    const Head* head = &job->acts.head;
    const int R = job->num_rows;
    floatX* dnorm = (floatX*)(void*)scratch_begin(job);
    if (R == 0) { return; }
    if (m->has_head) {
        matmul_backward_input(dnorm, head->logits, head_matrix(m), R, m->config.channels, m->head_rows,
                              m->ops);
    } else {
        ops_copy(m->ops, dnorm, dfed, (size_t)head_rows_bytes(&m->config, R));
    }
    drop_rows(job, dnorm, 0, R);
    norm_backward(job, stack_of(m, last_side(m))->norm_end, 0, dx, NULL, dnorm, x, &head->stats,
                  head_scale(m), R);
}

// From the gradient of enc_out to that of the encoder's x_N.
static void encoder_end_backward_inputs(const Job* job, const floatX* denc) {
    const Model* m = job->model;
    const Block last = block_at(job, ENC, blocks_of(m, ENC) - 1);
    if (m->config.kind->drops_more) {
        denc = dropped(job, split_scratch(job, ENC).columns, denc, job->sides[ENC].keys,
                       outer_place(job, ENC, DROP_END), job->sides[ENC].num_tokens, m->config.channels);
    }
    norm_backward(job, stack_of(m, ENC)->norm_end, 0, dx_end(job, ENC), NULL, denc, last.x_next,
                  &job->acts.enc_stats, 1.0f, job->sides[ENC].num_tokens);
}

// Gradients of x_N where the stacks do not end here.
static void find_dout(Job* job, const floatX* dout) {
    const Model* m = job->model;
    const Side last = last_side(m);
    if (dout == NULL) { return; }
    job->dout[ENC] = dout;
    if (last == DEC) { job->dout[DEC] = dout + boundary_dec_values(m, m->block_end, job->host->num_tokens); }
}

void model_backward_inputs(Model* m, const ModelBatch* batch, const void* in, void* acts, const void* dout,
                           void* din, void* scratch) {
    if (model_is_share(m)) {
        head_backward_inputs(m, batch, acts, din);
        return;
    }
    const Side last = last_side(m);
    const int64_t dec_begin = last == DEC ? boundary_dec_values(m, m->block_begin, batch->num_tokens) : 0;
    const size_t enc_bytes = (size_t)batch->num_tokens * (size_t)m->config.channels * sizeof(floatX);
    Job job = begin_job(m, batch, acts, scratch, MODEL_KEEP | MODEL_HEAD);
    find_dout(&job, (const floatX*)dout);
    if (m->is_last && blocks_of(m, last) > 0) {
        rows_backward_inputs(&job, (const floatX*)dout, block_at(&job, last, blocks_of(m, last) - 1).x_next,
                             dx_end(&job, last));
    } else if (m->is_last) {
        rows_backward_inputs(&job, (const floatX*)dout, (const floatX*)in, (floatX*)din);
    }
    const bool is_enc_later = blocks_of(m, DEC) == 0 || job.dout[DEC] != job.dout[ENC];
    job.denc = job.acts.denc != NULL ? job.acts.denc : (floatX*)din;
    job.denc_from = is_enc_later ? (const floatX*)dout : NULL;
    if (blocks_of(m, last) > 0) {
        stack_backward_inputs(&job, last, in != NULL ? (const floatX*)in + dec_begin : NULL,
                              din != NULL ? (floatX*)din + dec_begin : NULL);
    }
    if (last == DEC && blocks_of(m, ENC) > 0) {
        if (ends(m, ENC)) { encoder_end_backward_inputs(&job, job.denc_from); }
        stack_backward_inputs(&job, ENC, (const floatX*)in, (floatX*)din);
    } else if (blocks_of(m, DEC) > 0 && job.denc_from != NULL && job.denc_from != job.denc) {
        ops_copy(m->ops, job.denc, job.denc_from, enc_bytes);  // no cross-attention here
    }
    free(job.numbers);
}

// --- backward: one product per matrix from the kept gradients and activations ------------------------------

static void block_backward_weights(const Job* job, const Block* b) {
    const Model* m = job->model;
    const ModelBlock* about = b->about;
    const int T = b->T, C = m->config.channels, l = b->l;
    if (T == 0) { return; }
    linear_backward_weight(job, about->out, l, dropped_output(job, b), b->inner, T,
                           inner_width(m, about->type), C);
    linear_backward_weight(job, about->in, l, b->din, b->norm, T, C, in_width(m, about->type));
    if (about->type != BLOCK_CROSS) { return; }
    linear_backward_weight(job, about->kv, l, b->dkv, job->acts.enc_out, job->sides[ENC].num_tokens, C,
                           2 * heads_width(m));
}

// dx_0 goes through the embedding's dropout, in place, into the table's gradient.
static void embedding_backward_weights(const Job* job, Side side) {
    const Model* m = job->model;
    const BatchSide* batch = &job->sides[side];
    const int T = batch->num_tokens, C = m->config.channels;
    floatX* dx = block_at(job, side, 0).dx;
    drop(job, side, dx, outer_place(job, side, DROP_EMBEDDING), C);
    embedding_backward(grad(job, MODEL_EMBEDDING, 0), bias_grad(job, m->config.kind->positions, 0),
                       job->scratch, dx, batch->tokens, batch->positions, T, C, m->ops);
}

void model_backward_weights(Model* m, const ModelBatch* batch, void* acts, const void* dout, void* scratch) {
    if (model_is_share(m)) {
        head_backward_weights(m, batch, acts, dout);
        return;
    }
    Job job = begin_job(m, batch, acts, scratch, MODEL_KEEP | MODEL_HEAD);
    find_dout(&job, (const floatX*)dout);
    if (m->has_head && batch->num_rows > 0) {
        matmul_backward_weight(m->grads + m->head_offset, NULL, job.acts.head.logits, job.acts.head.norm,
                               batch->num_rows, m->config.channels, m->head_rows, m->ops);
    }
    for (int i = ENC; i <= (int)last_side(m); i++) {
        for (int k = blocks_of(m, (Side)i) - 1; k >= 0; k--) {
            const Block b = block_at(&job, (Side)i, k);
            block_backward_weights(&job, &b);
        }
        if (begins(m, (Side)i)) { embedding_backward_weights(&job, (Side)i); }
    }
    free(job.numbers);
}

// --- scratch, in bytes -------------------------------------------------------------------------------------

// From counts only, with attentions that begin and end wherever.
static int64_t side_scratch_bytes(const Model* m, const ModelBatch* batch, Side side) {
    const ModelStack* stack = stack_of(m, side);
    const int64_t C = m->config.channels, I = heads_width(m), F = m->config.ffn_channels;
    const int64_t Te = model_round_up(batch->num_tokens);
    const int64_t T = side == ENC ? Te : model_round_up(batch->num_dec_tokens);
    Job job = {.model = (Model*)(uintptr_t)m,
               .scratch = nowhere,
               .num_seqs = batch->num_seqs,
               .dropout = m->dropout};
    job.sides[ENC].num_tokens = (int)Te;
    job.sides[side].num_tokens = (int)T;
    int64_t wide = larger(T * larger(F, C), side == DEC ? Te * C : 0) * X_BYTES;
    for (int j = 0; j < stack->num_blocks; j++) {
        floatX* const none = (floatX*)(void*)nowhere;
        const Block b = {.about = &stack->blocks[j], .side = side, .in = none, .kv = none};
        if (b.about->type == BLOCK_FFN) { continue; }
        Attention about = attention_of(&job, &b);
        if (side == last_side(m)) {
            const bool is_cross = b.about->type == BLOCK_CROSS;
            const int num_own = is_cross || side == ENC ? batch->num_tokens : batch->num_dec_tokens;
            about.num_k_tokens = (int)model_round_up(num_own + piece_own_begin(batch, is_cross));
        }
        wide = larger(wide, T * I * X_BYTES + (int64_t)attention_scratch_bytes(&about, m->ops));
    }
    return (T * C + 2 * turned_values(m, T)) * X_BYTES + round_up_64(wide);
}

int64_t model_scratch_bytes(const Model* m, const ModelBatch* batch) {
    const int64_t C = m->config.channels;
    int64_t num_bytes = 0;
    if (model_is_share(m)) { return 0; }
    for (int i = ENC; i <= (int)last_side(m); i++) {
        const Side side = (Side)i;
        const int64_t T = model_round_up(side == ENC ? batch->num_tokens : batch->num_dec_tokens);
        if (blocks_of(m, side) > 0) { num_bytes = larger(num_bytes, side_scratch_bytes(m, batch, side)); }
        if (begins(m, side)) {
            num_bytes = larger(
                num_bytes, round_up_64((int64_t)embedding_backward_scratch_bytes((int)T, (int)C, m->ops)));
        }
    }
    if (m->is_last) { num_bytes = larger(num_bytes, model_round_up(batch->num_rows) * C * X_BYTES); }
    return 2 * table_bytes(m) + num_bytes;
}
