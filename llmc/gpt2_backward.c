// Backward in two jobs. Inputs (B): the chain of gradients from dx_L down to dx_0; each matrix's output
// gradient stays in acts. Weights (W): one product per matrix of what B left and what forward kept; order
// among layers is free.
#include "gpt2_acts.h"
#include "head.h"

static const floatX* param(const Model* model, Gpt2Tensor tensor, int l) {
    return model_tensor(model, tensor, l);
}

// Does backward start from the head, or from the gradient of the normed rows that it was fed?
static bool starts_at_rows(const Model* model, const floatX* dout) {
    return dout == NULL || model_feeds_head(model);
}

// From dlogits, or from the gradient of the normed rows, to dx_L, which is zero but for the supervised rows.
static void rows_backward_inputs(Model* model, const ModelBatch* batch, void* acts, const floatX* dfed,
                                 floatX* dx, void* scratch) {
    const int R = batch->num_rows, C = model->config.channels, Vp = model->config.padded_vocab;
    OpsContext* ops = model->ops;
    Gpt2HeadActs head = gpt2_acts_head(model, acts, batch->num_tokens, R, MODEL_KEEP | MODEL_HEAD);
    floatX *dlnf = scratch, *drows = dlnf + (int64_t)head.num_rows * C;
    if (R > 0) {
        if (model->has_head) {
            matmul_backward_input(dlnf, head.logits, param(model, GPT2_wte, 0), R, C, Vp, ops);
            dfed = dlnf;
        }
        layernorm_backward(drows, model_grad(model, GPT2_lnfw, 0), model_grad(model, GPT2_lnfb, 0), NULL,
                           dfed, head.rows, param(model, GPT2_lnfw, 0), head.mean, head.rstd, R, C, ops);
    }
    scatter_rows(dx, drows, batch->rows, R, batch->num_tokens, C, ops);
}

static void layer_backward_inputs(Model* model, const ModelBatch* batch, const Gpt2LayerActs* acts,
                                  const floatX* x, const floatX* dx_next, floatX* dx,
                                  const Gpt2Scratch* scratch, int l) {
    const int T = batch->num_tokens, C = model->config.channels, NH = model->config.num_heads;
    OpsContext* ops = model->ops;
    floatX *dcolumns = scratch->columns, *dfch = acts->fch;
    const bool drops = gpt2_drops(model, batch);
    const floatX* dfcproj = dx_next;
    if (drops) {
        gpt2_drop(model, batch, dcolumns, dx_next, gpt2_drop_place(model->layer_begin + l, GPT2_DROP_FCPROJ));
        dfcproj = dcolumns;
    }
    matmul_gelu_backward_input(dfch, acts->fch, scratch->wide, dfcproj, param(model, GPT2_fcprojw, l), T,
                               4 * C, C, ops);
    matmul_backward_input(dcolumns, dfch, param(model, GPT2_fcw, l), T, C, 4 * C, ops);
    layernorm_backward(acts->dresidual2, model_grad(model, GPT2_ln2w, l), model_grad(model, GPT2_ln2b, l),
                       dx_next, dcolumns, acts->residual2, param(model, GPT2_ln2w, l), acts->ln2_mean,
                       acts->ln2_rstd, T, C, ops);
    const floatX* dattproj = acts->dresidual2;
    if (drops) {
        gpt2_drop(model, batch, scratch->wide, acts->dresidual2,
                  gpt2_drop_place(model->layer_begin + l, GPT2_DROP_ATTPROJ));
        dattproj = scratch->wide;
    }
    matmul_backward_input(dcolumns, dattproj, param(model, GPT2_attprojw, l), T, C, C, ops);
    if (drops) {
        Attention about = gpt2_dropped_attention(model, batch, acts->qkv, l);
        attention_general_backward(acts->dqkv, acts->dqkv + C, acts->dqkv + 2 * C, NULL, scratch->wide,
                                   dcolumns, acts->atty, acts->lse, &about, ops);
    } else {
        attention_backward(acts->dqkv, scratch->wide, dcolumns, acts->qkv, acts->atty, acts->lse,
                           batch->cu_seqlens, batch->num_seqs, T, C, NH, ops);
    }
    matmul_backward_input(dcolumns, acts->dqkv, param(model, GPT2_qkvw, l), T, C, 3 * C, ops);
    layernorm_backward(dx, model_grad(model, GPT2_ln1w, l), model_grad(model, GPT2_ln1b, l), acts->dresidual2,
                       dcolumns, x, param(model, GPT2_ln1w, l), acts->ln1_mean, acts->ln1_rstd, T, C, ops);
}

void gpt2_backward_inputs(Model* model, const ModelBatch* batch, const void* in, void* acts, const void* dout,
                          void* din, void* scratch) {
    if (model_is_share(model)) {
        head_backward_inputs(model, batch, acts, din);
        return;
    }
    const int T = batch->num_tokens, L = model->layer_end - model->layer_begin;
    const bool at_rows = starts_at_rows(model, dout);
    Gpt2Scratch parts = gpt2_scratch_split(model, scratch, T);
    ModelBatch staged = gpt2_batch_stage(
        model, batch, (L > 0 ? GPT2_BATCH_SEQS | GPT2_BATCH_KEYS : 0) | (at_rows ? GPT2_BATCH_ROWS : 0));
    if (at_rows) {
        floatX* dx = L > 0 ? gpt2_acts_layer(model, acts, T, L - 1, MODEL_KEEP).dx_next : din;
        rows_backward_inputs(model, &staged, acts, dout, dx, scratch);
        dout = dx;
    }
    for (int l = L - 1; l >= 0; l--) {
        Gpt2LayerActs layer = gpt2_acts_layer(model, acts, T, l, MODEL_KEEP);
        bool is_boundary = l == 0 && !model->is_first;
        floatX* dx = is_boundary ? din : layer.dx;
        layer_backward_inputs(model, &staged, &layer, is_boundary ? in : layer.x, dout, dx, &parts, l);
        dout = dx;
    }
}

static void layer_backward_weights(Model* model, const ModelBatch* batch, const Gpt2LayerActs* acts,
                                   const floatX* dx_next, floatX* dropped, int l) {
    const int C = model->config.channels, T = batch->num_tokens, layer = model->layer_begin + l;
    OpsContext* ops = model->ops;
    const floatX *dfch = acts->fch, *dattproj = acts->dresidual2;
    const bool drops = gpt2_drops(model, batch);
    if (drops) {
        gpt2_drop(model, batch, dropped, dx_next, gpt2_drop_place(layer, GPT2_DROP_FCPROJ));
        dx_next = dropped;
    }
    matmul_backward_weight(model_grad(model, GPT2_fcprojw, l), model_grad(model, GPT2_fcprojb, l), dx_next,
                           acts->fch_gelu, T, 4 * C, C, ops);
    matmul_backward_weight(model_grad(model, GPT2_fcw, l), model_grad(model, GPT2_fcb, l), dfch, acts->ln2, T,
                           C, 4 * C, ops);
    if (drops) {
        gpt2_drop(model, batch, dropped, acts->dresidual2, gpt2_drop_place(layer, GPT2_DROP_ATTPROJ));
        dattproj = dropped;
    }
    matmul_backward_weight(model_grad(model, GPT2_attprojw, l), model_grad(model, GPT2_attprojb, l), dattproj,
                           acts->atty, T, C, C, ops);
    matmul_backward_weight(model_grad(model, GPT2_qkvw, l), model_grad(model, GPT2_qkvb, l), acts->dqkv,
                           acts->ln1, T, C, 3 * C, ops);
}

void gpt2_backward_weights(Model* model, const ModelBatch* batch, void* acts, const void* dout,
                           void* scratch) {
    if (model_is_share(model)) {
        head_backward_weights(model, batch, acts, dout);
        return;
    }
    const int T = batch->num_tokens, R = batch->num_rows, L = model->layer_end - model->layer_begin;
    const int C = model->config.channels, Vp = model->config.padded_vocab;
    const bool at_rows = starts_at_rows(model, dout);
    if (model->has_head && at_rows && R > 0) {
        Gpt2HeadActs head = gpt2_acts_head(model, acts, T, R, MODEL_KEEP | MODEL_HEAD);
        matmul_backward_weight(model_grad(model, GPT2_wte, 0), NULL, head.logits, head.lnf, R, C, Vp,
                               model->ops);
    }
    ModelBatch staged = gpt2_batch_stage(
        model, batch, (L > 0 ? GPT2_BATCH_KEYS : 0) | (model->is_first ? GPT2_BATCH_TOKENS : 0));
    floatX* dropped = gpt2_scratch_split(model, scratch, T).columns;
    for (int l = L - 1; l >= 0; l--) {
        Gpt2LayerActs layer = gpt2_acts_layer(model, acts, T, l, MODEL_KEEP);
        bool is_dout = l == L - 1 && !at_rows;
        layer_backward_weights(model, &staged, &layer, is_dout ? dout : layer.dx_next, dropped, l);
    }
    if (model->is_first) {
        Gpt2LayerActs layer = gpt2_acts_layer(model, acts, T, 0, MODEL_KEEP);
        if (gpt2_drops(model, &staged)) {
            gpt2_drop(model, &staged, layer.dx, layer.dx, gpt2_drop_place(-1, GPT2_DROP_EMBEDDING));
        }
        embedding_backward(model_grad(model, GPT2_wte, 0), model_grad(model, GPT2_wpe, 0), scratch, layer.dx,
                           staged.tokens, staged.positions, T, C, model->ops);
    }
}
