// Generation: the new tokens of some sequences behind the keys and values of those before. A layer's keys and
// values are (num_slots * max_tokens, C) each in the cache.
#include <math.h>

#include "model.h"
#include "gpt2_acts.h"
#include "head.h"

typedef struct {
    floatX *x, *norm, *qkv, *atty, *fch, *fch_gelu, *columns;  // of T tokens
    floatX *rows, *lnf, *logits;                               // of the sequences' last ones
    float *mean, *rstd, *lse;
} Buffers;

static int64_t round_up(int64_t count) {
    return (count + 15) / 16 * 16;
}

static void* take(char** cursor, int64_t num_values, size_t value_bytes) {
    char* begin = *cursor;
    *cursor += num_values * (int64_t)value_bytes;
    return begin;
}

// NULL memory: only how many bytes.
static int64_t split(Buffers* out, const Model* model, const ModelBatch* batch, void* memory) {
    const int64_t T = round_up(batch->num_tokens), B = round_up(batch->num_seqs), C = model->config.channels;
    char* cursor = memory;
    *out = (Buffers){.x = take(&cursor, T * C, sizeof(floatX))};
    out->norm = take(&cursor, T * C, sizeof(floatX));
    out->qkv = take(&cursor, 3 * T * C, sizeof(floatX));
    out->atty = take(&cursor, T * C, sizeof(floatX));
    out->fch = take(&cursor, 4 * T * C, sizeof(floatX));
    out->fch_gelu = take(&cursor, 4 * T * C, sizeof(floatX));
    out->columns = take(&cursor, T * C, sizeof(floatX));
    out->mean = take(&cursor, T, sizeof(float));
    out->rstd = take(&cursor, T, sizeof(float));
    out->lse = take(&cursor, T * model->config.num_heads, sizeof(float));
    if (model->is_last) { out->rows = take(&cursor, B * C, sizeof(floatX)); }
    if (model->has_head) {
        out->lnf = take(&cursor, B * C, sizeof(floatX));
        out->logits = take(&cursor, B * model->config.padded_vocab, sizeof(floatX));
    }
    return cursor - (char*)memory;
}

int64_t gpt2_infer_bytes(const Model* model, const ModelBatch* batch) {
    Buffers buffers;
    static char nowhere[1];
    if (model_is_share(model)) { return head_infer_bytes(model, batch); }
    return split(&buffers, model, batch, nowhere);
}

int64_t gpt2_cache_bytes(const Model* model, const ModelCache* cache) {
    int64_t rows = (int64_t)cache->num_slots * cache->max_tokens;
    return (model->layer_end - model->layer_begin) * 2 * rows * model->config.channels *
           (int64_t)sizeof(floatX);
}

static void attend(Model* model, const ModelBatch* batch, const ModelCache* cache, const CacheRows* rows,
                   const Buffers* b, int l) {
    const int T = batch->num_tokens, C = model->config.channels, NH = model->config.num_heads;
    const int64_t cache_values = (int64_t)cache->num_slots * cache->max_tokens * C;
    floatX *keys = (floatX*)cache->memory + 2 * l * cache_values, *values = keys + cache_values;
    OpsContext* ops = model->ops;
    place_rows(keys, C, b->qkv + C, 3 * C, rows->rows, T, C, ops);
    place_rows(values, C, b->qkv + 2 * C, 3 * C, rows->rows, T, C, ops);
    Attention about = {
        .q = b->qkv,
        .k = keys,
        .v = values,
        .q_stride = 3 * C,
        .kv_stride = C,
        .cu_q = batch->cu_seqlens,
        .cu_k = rows->begins,
        .num_seqs = batch->num_seqs,
        .num_q_tokens = T,
        .num_k_tokens = cache->num_slots * cache->max_tokens,
        .num_heads = NH,
        .head_size = C / NH,
        .k_lens = rows->lens,
        .q_starts = rows->starts,
        .causal = 1,
        .scale = 1.0f / sqrtf((float)(C / NH)),
    };
    attention_general_forward(b->atty, b->lse, &about, ops);
}

static const floatX* param(const Model* model, int tensor, int l) {
    return model_tensor(model, tensor, l);
}

static void infer_layer(Model* model, const ModelBatch* batch, const ModelCache* cache, const CacheRows* rows,
                        const Buffers* b, const floatX* x, floatX* out, int l) {
    const int T = batch->num_tokens, C = model->config.channels;
    OpsContext* ops = model->ops;
    layernorm_forward(b->norm, b->mean, b->rstd, x, param(model, GPT2_ln1w, l), param(model, GPT2_ln1b, l), T,
                      C, ops);
    matmul_forward(b->qkv, b->norm, param(model, GPT2_qkvw, l), param(model, GPT2_qkvb, l), T, C, 3 * C, ops);
    attend(model, batch, cache, rows, b, l);
    matmul_forward(b->columns, b->atty, param(model, GPT2_attprojw, l), param(model, GPT2_attprojb, l), T, C,
                   C, ops);
    residual_layernorm_forward(b->atty, b->norm, b->mean, b->rstd, x, b->columns, param(model, GPT2_ln2w, l),
                               param(model, GPT2_ln2b, l), T, C, ops);
    matmul_gelu_forward(b->fch_gelu, b->fch, b->norm, param(model, GPT2_fcw, l), param(model, GPT2_fcb, l), T,
                        C, 4 * C, ops);
    matmul_forward(b->columns, b->fch_gelu, param(model, GPT2_fcprojw, l), param(model, GPT2_fcprojb, l), T,
                   4 * C, C, ops);
    residual_forward(out, b->atty, b->columns, (size_t)T * (size_t)C, ops);
}

// Where the head is shared, to the rows that its shares look at.
static void infer_head(Model* model, const ModelBatch* batch, const CacheRows* rows, const Buffers* b,
                       const floatX* x, floatX* out, int32_t* next) {
    const int B = batch->num_seqs, C = model->config.channels, Vp = model->config.padded_vocab;
    OpsContext* ops = model->ops;
    gather_rows(b->rows, x, rows->last_rows, B, C, ops);
    layernorm_forward(model->has_head ? b->lnf : out, b->mean, b->rstd, b->rows, param(model, GPT2_lnfw, 0),
                      param(model, GPT2_lnfb, 0), B, C, ops);
    if (!model->has_head) { return; }
    matmul_forward(b->logits, b->lnf, param(model, GPT2_wte, 0), NULL, B, C, Vp, ops);
    argmax_rows(next, b->logits, B, model->config.vocab, Vp, ops);
    model->last_logits = b->logits;
}

void gpt2_infer(Model* model, const ModelBatch* batch, const ModelCache* cache, const void* in, void* out,
                void* scratch, int32_t* next) {
    const int L = model->layer_end - model->layer_begin, T = batch->num_tokens, C = model->config.channels;
    Buffers b;
    if (model_is_share(model)) {
        head_infer(model, batch, in, out, scratch);
        return;
    }
    split(&b, model, batch, scratch);
    ModelBatch staged =
        gpt2_batch_stage(model, batch, GPT2_BATCH_SEQS | (model->is_first ? GPT2_BATCH_TOKENS : 0));
    CacheRows rows = cache_rows_stage(batch->num_seqs, batch->cu_seqlens, cache->slots, cache->num_before,
                                      cache->max_tokens, model->ops);
    const floatX* x = in;
    if (model->is_first) {
        embedding_forward(b.x, staged.tokens, staged.positions, param(model, GPT2_wte, 0),
                          param(model, GPT2_wpe, 0), T, C, model->ops);
        x = b.x;
    }
    for (int l = 0; l < L; l++) {
        floatX* x_next = l == L - 1 && !model->is_last ? out : b.x;
        infer_layer(model, &staged, cache, &rows, &b, x, x_next, l);
        x = x_next;
    }
    if (model->is_last) { infer_head(model, &staged, &rows, &b, x, out, next); }
    cache_rows_free(&rows);
}
