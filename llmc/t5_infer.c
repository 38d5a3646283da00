// Generation. The encoder runs once, as in training; then each call gives decoder layers one more token of
// every sequence. Of each layer the cache has keys and values of what was said, (num_slots * max_tokens, I)
// each, and of the encoder's tokens, (num_slots * max_enc_tokens, 2I).
#include "model.h"
#include "head.h"
#include "t5_layer.h"

typedef struct {
    floatX *x, *norm, *qkv, *atty, *xq, *xkv, *residual, *columns, *h, *act;
    floatX *rows, *last_norm, *logits;  // of the sequences' last tokens
    float *rstd, *lse;
    void *acts, *scratch;  // of the encoder's layers; the decoder's bias table lies in scratch, too
} Buffers;

typedef struct {
    T5Job job;
    const ModelCache* cache;
    CacheRows said, asked;  // asked: only where there are encoder tokens
    Buffers b;
} Infer;

static int64_t round_up(int64_t count) {
    return (count + 15) / 16 * 16;
}

static void* take(char** cursor, int64_t num_values, size_t value_bytes) {
    char* begin = *cursor;
    *cursor += (num_values * (int64_t)value_bytes + 63) / 64 * 64;
    return begin;
}

// The encoder's side alone: what its layers' forward needs.
static ModelBatch encoder_only(const ModelBatch* batch) {
    ModelBatch enc = *batch;
    enc.num_dec_tokens = enc.max_dec_seq_tokens = enc.num_rows = 0;
    return enc;
}

static int64_t split(Buffers* out, const Model* model, const ModelBatch* batch, void* memory) {
    const int64_t T = round_up(batch->num_dec_tokens), Te = round_up(batch->num_tokens);
    const int64_t B = round_up(batch->num_seqs), C = model->config.channels, I = t5_inner(model);
    const ModelBatch enc = encoder_only(batch);
    char* cursor = memory;
    *out = (Buffers){.acts = take(&cursor, t5_acts_bytes(model, &enc, 0), 1)};
    out->scratch = take(&cursor, t5_scratch_bytes(model, batch), 1);
    if (t5_num_layers(model, T5_DEC) > 0) {
        out->x = take(&cursor, T * C, sizeof(floatX));
        out->norm = take(&cursor, T * C, sizeof(floatX));
        out->qkv = take(&cursor, 3 * T * I, sizeof(floatX));
        out->atty = take(&cursor, T * I, sizeof(floatX));
        out->xq = take(&cursor, T * I, sizeof(floatX));
        out->xkv = take(&cursor, 2 * Te * I, sizeof(floatX));
        out->residual = take(&cursor, T * C, sizeof(floatX));
        out->columns = take(&cursor, T * C, sizeof(floatX));
        out->h = take(&cursor, T * t5_ffn_rows(model), sizeof(floatX));
        out->act = take(&cursor, T * model->config.ffn_channels, sizeof(floatX));
        out->lse = take(&cursor, T * model->config.num_heads, sizeof(float));
    }
    out->rstd = take(&cursor, T > B ? T : B, sizeof(float));
    if (model->is_last) { out->rows = take(&cursor, B * C, sizeof(floatX)); }
    if (model->has_head) {
        out->last_norm = take(&cursor, B * C, sizeof(floatX));
        out->logits = take(&cursor, B * model->config.padded_vocab, sizeof(floatX));
    }
    return cursor - (char*)memory;
}

int64_t t5_infer_bytes(const Model* model, const ModelBatch* batch) {
    static char nowhere[1];
    Buffers buffers;
    if (model_is_share(model)) { return head_infer_bytes(model, batch); }
    return split(&buffers, model, batch, nowhere);
}

static int64_t said_values(const Model* model, const ModelCache* cache) {
    return (int64_t)cache->num_slots * cache->max_tokens * t5_inner(model);
}

static int64_t layer_values(const Model* model, const ModelCache* cache) {
    return 2 * said_values(model, cache) +
           2 * (int64_t)cache->num_slots * cache->max_enc_tokens * t5_inner(model);
}

int64_t t5_cache_bytes(const Model* model, const ModelCache* cache) {
    return t5_num_layers(model, T5_DEC) * layer_values(model, cache) * (int64_t)sizeof(floatX);
}

static const floatX* param(const Infer* f, T5Tensor tensor, int l) {
    return model_tensor(f->job.model, tensor, l);
}

// --- one decoder layer -------------------------------------------------------------------------------------

static void attend_said(const Infer* f, floatX* keys, int l) {
    const Model* model = f->job.model;
    const int T = f->job.batch.sides[T5_DEC].num_tokens, I = t5_inner(model);
    const Buffers* b = &f->b;
    floatX* values = keys + said_values(model, f->cache);
    place_rows(keys, I, b->qkv + I, 3 * I, f->said.rows, T, I, model->ops);
    place_rows(values, I, b->qkv + 2 * I, 3 * I, f->said.rows, T, I, model->ops);
    const T5LayerActs layer = {.qkv = b->qkv};
    Attention about = t5_self_attention(&f->job, &layer, T5_DEC, l);
    about.k = keys;
    about.v = values;
    about.kv_stride = I;
    about.cu_k = f->said.begins;
    about.k_lens = f->said.lens;
    about.q_starts = f->said.starts;
    about.num_k_tokens = f->cache->num_slots * f->cache->max_tokens;
    about.dropout = 0.0f;
    attention_general_forward(b->atty, b->lse, &about, model->ops);
}

static void attend_asked(const Infer* f, floatX* kv, const floatX* enc_out, int l) {
    const Model* model = f->job.model;
    const int Te = f->job.batch.sides[T5_ENC].num_tokens, C = model->config.channels, I = t5_inner(model);
    const Buffers* b = &f->b;
    if (Te > 0) {
        matmul_forward(b->xkv, enc_out, param(f, T5_dec_xkv, l), NULL, Te, C, 2 * I, model->ops);
        place_rows(kv, 2 * I, b->xkv, 2 * I, f->asked.rows, Te, 2 * I, model->ops);
    }
    const T5LayerActs layer = {.xq = b->xq, .xkv = kv};
    Attention about = t5_cross_attention(&f->job, &layer, l);
    about.cu_k = f->asked.begins;
    about.k_lens = f->asked.lens;
    about.num_k_tokens = f->cache->num_slots * f->cache->max_enc_tokens;
    about.dropout = 0.0f;
    attention_general_forward(b->atty, b->lse, &about, model->ops);
}

// residual = x + inp W^T, norm of it.
static void add_and_norm(const Infer* f, const floatX* x, const floatX* inp, const floatX* weight,
                         const floatX* norm_weight) {
    const Model* model = f->job.model;
    const int T = f->job.batch.sides[T5_DEC].num_tokens, C = model->config.channels;
    matmul_forward(f->b.columns, inp, weight, NULL, T, t5_inner(model), C, model->ops);
    residual_rmsnorm_forward(f->b.residual, f->b.norm, f->b.rstd, x, f->b.columns, norm_weight, 1.0f, T, C,
                             model->ops);
}

static void decoder_layer(const Infer* f, const floatX* x, floatX* out, const floatX* enc_out, int l) {
    const Model* model = f->job.model;
    const int T = f->job.batch.sides[T5_DEC].num_tokens, C = model->config.channels, I = t5_inner(model);
    const int F = model->config.ffn_channels;
    const Buffers* b = &f->b;
    OpsContext* ops = model->ops;
    floatX* keys = (floatX*)f->cache->memory + l * layer_values(model, f->cache);
    t5_load_layer_bias(&f->job, T5_DEC, l);
    rmsnorm_forward(b->norm, b->rstd, x, param(f, T5_dec_norm1, l), 1.0f, T, C, ops);
    matmul_forward(b->qkv, b->norm, param(f, T5_dec_qkv, l), NULL, T, C, 3 * I, ops);
    attend_said(f, keys, l);
    add_and_norm(f, x, b->atty, param(f, T5_dec_o, l), param(f, T5_dec_norm2, l));
    matmul_forward(b->xq, b->norm, param(f, T5_dec_xq, l), NULL, T, C, I, ops);
    attend_asked(f, keys + 2 * said_values(model, f->cache), enc_out, l);
    add_and_norm(f, b->residual, b->atty, param(f, T5_dec_xo, l), param(f, T5_dec_norm3, l));
    matmul_forward(b->h, b->norm, param(f, T5_dec_wi, l), NULL, T, C, t5_ffn_rows(model), ops);
    if (model->config.gated) {
        gated_gelu_forward(b->act, b->h, T, F, ops);
    } else {
        relu_forward(b->act, b->h, (size_t)T * (size_t)F, ops);
    }
    matmul_forward(b->columns, b->act, param(f, T5_dec_wo, l), NULL, T, F, C, ops);
    residual_forward(out, b->residual, b->columns, (size_t)T * (size_t)C, ops);
}

// --- a call ------------------------------------------------------------------------------------------------

// From x (NULL: the tokens) to the last layer's output, in `out` or the slice's own place.
static const floatX* decoder_layers(const Infer* f, const floatX* x, floatX* out, const floatX* enc_out) {
    const Model* model = f->job.model;
    const T5BatchSide* batch = &f->job.batch.sides[T5_DEC];
    const int n = t5_num_layers(model, T5_DEC);
    t5_load_bias(&f->job, T5_DEC);
    if (t5_begins(model, T5_DEC)) {
        embedding_forward(f->b.x, batch->tokens, NULL, param(f, T5_shared, 0), NULL, batch->num_tokens,
                          model->config.channels, model->ops);
        x = f->b.x;
    }
    for (int l = 0; l < n; l++) {
        floatX* x_next = l == n - 1 && out != NULL ? out : f->b.x;
        decoder_layer(f, x, x_next, enc_out, l);
        x = x_next;
    }
    return x;
}

// Where the head is shared, to the rows that its shares look at.
static void head(const Infer* f, const floatX* x, floatX* out, int32_t* next) {
    const Model* model = f->job.model;
    const int B = f->job.batch.num_seqs, C = model->config.channels, Vp = model->config.padded_vocab;
    const Buffers* b = &f->b;
    gather_rows(b->rows, x, f->said.last_rows, B, C, model->ops);
    rmsnorm_forward(model->has_head ? b->last_norm : out, b->rstd, b->rows, param(f, T5_dec_norm, 0),
                    t5_head_scale(model), B, C, model->ops);
    if (!model->has_head) { return; }
    matmul_forward(b->logits, b->last_norm, param(f, t5_head_tensor(model), 0), NULL, B, C, Vp, model->ops);
    argmax_rows(next, b->logits, B, model->config.vocab, Vp, model->ops);
}

// Where the call's tokens go. A sequence has all of its encoder tokens in one call: those in the cache are
// this batch's, or (no encoder tokens now) an earlier call's.
static void stage_rows(Infer* f, const ModelBatch* batch) {
    const ModelCache* cache = f->cache;
    OpsContext* ops = f->job.model->ops;
    f->said = cache_rows_stage(batch->num_seqs, batch->dec_cu_seqlens, cache->slots, cache->num_before,
                               cache->max_tokens, ops);
    if (t5_num_layers(f->job.model, T5_DEC) == 0) { return; }
    const bool asks = batch->num_tokens > 0;
    f->asked = cache_rows_stage(batch->num_seqs, asks ? batch->cu_seqlens : NULL, cache->slots,
                                asks ? NULL : cache->num_enc, cache->max_enc_tokens, ops);
}

static void infer_decoder(Infer* f, const floatX* in, floatX* out, const floatX* enc_out, int32_t* next) {
    const Model* model = f->job.model;
    const int Te = f->job.batch.sides[T5_ENC].num_tokens;
    const floatX* x = in;
    if (t5_num_layers(model, T5_DEC) > 0) {
        const int64_t in_dec = t5_boundary_dec_values(model, model->layer_begin, Te);
        const int64_t out_dec = t5_boundary_dec_values(model, model->layer_end, Te);
        if (enc_out == NULL) { enc_out = in; }
        if (out != NULL && out_dec > 0) {  // layers behind this slice look at the encoder
            ops_copy(model->ops, out, enc_out, (size_t)Te * (size_t)model->config.channels * sizeof(floatX));
        }
        x = decoder_layers(f, in != NULL ? in + in_dec : NULL, model->is_last ? NULL : out + out_dec,
                           enc_out);
    }
    if (model->is_last) { head(f, x, out, next); }
}

void t5_infer(Model* model, const ModelBatch* batch, const ModelCache* cache, const void* in, void* out,
              void* scratch, int32_t* next) {
    Infer f = {.cache = cache};
    if (model_is_share(model)) {
        head_infer(model, batch, in, out, scratch);
        return;
    }
    split(&f.b, model, batch, scratch);
    ModelBatch whole = *batch;
    whole.token_keys = whole.dec_token_keys = NULL;
    f.job = (T5Job){.model = model,
                    .host = &whole,
                    .batch = t5_batch_stage(model, &whole, T5_BATCH_SEQS | T5_BATCH_TOKENS),
                    .acts = f.b.acts,
                    .scratch = f.b.scratch};
    const floatX* enc_out = NULL;
    if (t5_num_layers(model, T5_ENC) > 0 && batch->num_tokens > 0) {
        const ModelBatch enc = encoder_only(&whole);
        T5Job job = f.job;
        job.host = &enc;
        enc_out = t5_encoder_forward(&job, in, out);
    }
    if (t5_num_layers(model, T5_DEC) > 0 || model->is_last) {
        stage_rows(&f, batch);
        infer_decoder(&f, in, out, enc_out, next);
        model->last_logits = model->has_head && model->is_last ? f.b.logits : NULL;
        cache_rows_free(&f.said);
        cache_rows_free(&f.asked);
    }
}
