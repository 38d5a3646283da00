// Pre-norm transformer (Radford et al. 2019): x' = x + attproj(attention(ln1 x)), x'' = x' +
// fcproj(gelu(fc(ln2 x'))). The sum that ends a layer and the norm that begins the next are one pass over
// memory.
#include <assert.h>

#include "gpt2_acts.h"
#include "head.h"

static const floatX* param(const Model* model, Gpt2Tensor tensor, int l) {
    return model_tensor(model, tensor, l);
}

// Up to fch_gelu. ln1 is there already: it is made with the sum that ends the layer below.
static void layer_forward(const Model* model, const ModelBatch* batch, const Gpt2LayerActs* acts,
                          const floatX* x, const Gpt2Scratch* scratch, int l) {
    const int T = batch->num_tokens, C = model->config.channels, NH = model->config.num_heads;
    OpsContext* ops = model->ops;
    const bool drops = gpt2_drops(model, batch);
    matmul_forward(acts->qkv, acts->ln1, param(model, GPT2_qkvw, l), param(model, GPT2_qkvb, l), T, C, 3 * C,
                   ops);
    if (drops) {
        Attention about = gpt2_dropped_attention(model, batch, acts->qkv, l);
        attention_general_forward(acts->atty, acts->lse, &about, ops);
    } else {
        attention_forward(acts->atty, acts->lse, acts->qkv, batch->cu_seqlens, batch->num_seqs, T, C, NH,
                          ops);
    }
    matmul_forward(scratch->columns, acts->atty, param(model, GPT2_attprojw, l),
                   param(model, GPT2_attprojb, l), T, C, C, ops);
    if (drops) {
        gpt2_drop(model, batch, scratch->columns, scratch->columns,
                  gpt2_drop_place(model->layer_begin + l, GPT2_DROP_ATTPROJ));
    }
    residual_layernorm_forward(acts->residual2, acts->ln2, acts->ln2_mean, acts->ln2_rstd, x,
                               scratch->columns, param(model, GPT2_ln2w, l), param(model, GPT2_ln2b, l), T, C,
                               ops);
    matmul_gelu_forward(acts->fch_gelu, acts->fch, acts->ln2, param(model, GPT2_fcw, l),
                        param(model, GPT2_fcb, l), T, C, 4 * C, ops);
}

// x' + fcproj(gelu(fc(ln2 x'))) but for the sum: its second term is left in `columns`.
static void mlp_output_forward(const Model* model, const ModelBatch* batch, const Gpt2LayerActs* acts,
                               floatX* columns, int l) {
    const int C = model->config.channels, T = batch->num_tokens;
    matmul_forward(columns, acts->fch_gelu, param(model, GPT2_fcprojw, l), param(model, GPT2_fcprojb, l), T,
                   4 * C, C, model->ops);
    if (gpt2_drops(model, batch)) {
        gpt2_drop(model, batch, columns, columns, gpt2_drop_place(model->layer_begin + l, GPT2_DROP_FCPROJ));
    }
}

// The final norm of `num_rows` supervised rows, from x_L.
static void norm_forward(const Model* model, const Gpt2HeadActs* head, floatX* norm, const floatX* x,
                         const int32_t* rows, int num_rows) {
    const int C = model->config.channels;
    gather_rows(head->rows, x, rows, num_rows, C, model->ops);
    layernorm_forward(norm, head->mean, head->rstd, head->rows, param(model, GPT2_lnfw, 0),
                      param(model, GPT2_lnfb, 0), num_rows, C, model->ops);
}

// Final norm, logits and losses.
static void rows_forward(Model* model, const Gpt2HeadActs* head, const floatX* x, const int32_t* rows,
                         const int32_t* targets, int num_rows, float* losses, float dlogits_scale) {
    const int C = model->config.channels, Vp = model->config.padded_vocab;
    OpsContext* ops = model->ops;
    norm_forward(model, head, head->lnf, x, rows, num_rows);
    matmul_forward(head->logits, head->lnf, param(model, GPT2_wte, 0), NULL, num_rows, C, Vp, ops);
    fused_classifier(losses, head->logits, targets, dlogits_scale, num_rows, model->config.vocab, Vp, ops);
}

static void whole_head_forward(Model* model, const ModelBatch* batch, const floatX* x, void* acts,
                               float* losses, int flags) {
    const float loss_scale = batch->loss_scale;
    Gpt2HeadActs head = gpt2_acts_head(model, acts, batch->num_tokens, batch->num_rows, flags);
    model->last_logits = flags & MODEL_KEEP ? NULL : head.logits;
    if (batch->num_rows == 0) { return; }
    float* results = ops_results(model->ops, losses, (size_t)batch->num_rows);
    if (flags & MODEL_KEEP) {
        assert(loss_scale != 0.0f);  // 0 would leave logits where backward expects their gradients
        rows_forward(model, &head, x, batch->rows, batch->targets, batch->num_rows, results, loss_scale);
        ops_deliver(model->ops, losses, results, (size_t)batch->num_rows);
        return;
    }
    // The first rows come last, so that last_logits is theirs.
    int begin = (batch->num_rows - 1) / head.num_rows * head.num_rows;
    for (; begin >= 0; begin -= head.num_rows) {
        int num_rows = batch->num_rows - begin < head.num_rows ? batch->num_rows - begin : head.num_rows;
        rows_forward(model, &head, x, batch->rows + begin, batch->targets + begin, num_rows, results + begin,
                     0.0f);
    }
    ops_deliver(model->ops, losses, results, (size_t)batch->num_rows);
}

// Normed rows, for the head's shares; `out` NULL: for backward's sake alone.
static void feed_head(const Model* model, const ModelBatch* batch, const floatX* x, floatX* out, void* acts,
                      void* scratch, int flags) {
    const int R = batch->num_rows;
    const Gpt2HeadActs head = gpt2_acts_head(model, acts, batch->num_tokens, R, flags);
    for (int begin = 0; begin < R; begin += head.num_rows) {
        const int num_rows = R - begin < head.num_rows ? R - begin : head.num_rows;
        floatX* norm = out != NULL ? out + (int64_t)begin * model->config.channels : (floatX*)scratch;
        norm_forward(model, &head, norm, x, batch->rows + begin, num_rows);
    }
}

// From `in` (first range: the tokens) to x_end; NULL: up to what backward needs.
static void layers_forward(Model* model, const ModelBatch* batch, const floatX* in, floatX* x_end, void* acts,
                           void* scratch, int flags) {
    const int T = batch->num_tokens, C = model->config.channels, L = model->layer_end - model->layer_begin;
    OpsContext* ops = model->ops;
    Gpt2Scratch parts = gpt2_scratch_split(model, scratch, T);
    Gpt2LayerActs layer = gpt2_acts_layer(model, acts, T, 0, flags);
    const floatX* x = in;
    if (model->is_first) {
        embedding_forward(layer.x, batch->tokens, batch->positions, param(model, GPT2_wte, 0),
                          param(model, GPT2_wpe, 0), T, C, ops);
        if (gpt2_drops(model, batch)) {
            gpt2_drop(model, batch, layer.x, layer.x, gpt2_drop_place(-1, GPT2_DROP_EMBEDDING));
        }
        x = layer.x;
    }
    layernorm_forward(layer.ln1, layer.ln1_mean, layer.ln1_rstd, x, param(model, GPT2_ln1w, 0),
                      param(model, GPT2_ln1b, 0), T, C, ops);
    for (int l = 0; l < L; l++) {
        if (layer.fch_gelu == NULL) { layer.fch_gelu = parts.wide; }
        layer_forward(model, batch, &layer, x, &parts, l);
        if (l + 1 == L) { break; }
        mlp_output_forward(model, batch, &layer, parts.columns, l);
        Gpt2LayerActs next = gpt2_acts_layer(model, acts, T, l + 1, flags);
        residual_layernorm_forward(next.x, next.ln1, next.ln1_mean, next.ln1_rstd, layer.residual2,
                                   parts.columns, param(model, GPT2_ln1w, l + 1),
                                   param(model, GPT2_ln1b, l + 1), T, C, ops);
        layer = next;
        x = layer.x;
    }
    if (x_end != NULL) {
        mlp_output_forward(model, batch, &layer, parts.columns, L - 1);
        residual_forward(x_end, layer.residual2, parts.columns, (size_t)T * (size_t)C, ops);
    }
}

void gpt2_forward(Model* model, const ModelBatch* batch, const void* in, void* out, void* acts, void* scratch,
                  float* losses, int flags) {
    if (model_is_share(model)) {
        head_forward(model, batch, in, out, acts, losses, flags);
        return;
    }
    const int L = model->layer_end - model->layer_begin;
    if (model->has_head && flags == 0) { return; }  // nobody reads anything of it before the recompute
    const bool with_head = model->has_head && flags & MODEL_HEAD, feeds_head = model_feeds_head(model);
    ModelBatch staged = gpt2_batch_stage(
        model, batch,
        (L > 0 ? GPT2_BATCH_SEQS | GPT2_BATCH_KEYS : 0) | (model->is_first ? GPT2_BATCH_TOKENS : 0) |
            (with_head || feeds_head ? GPT2_BATCH_ROWS : 0) | (with_head ? GPT2_BATCH_TARGETS : 0));
    const floatX* x_end = in;
    if (L > 0) {
        floatX* x_last =
            model->is_last ? gpt2_acts_layer(model, acts, batch->num_tokens, L - 1, flags).x_next : out;
        layers_forward(model, &staged, in, x_last, acts, scratch, flags);
        x_end = x_last;
    }
    if (with_head) { whole_head_forward(model, &staged, x_end, acts, losses, flags); }
    if (feeds_head) { feed_head(model, &staged, x_end, out, acts, scratch, flags); }
}
