// Backward in two jobs. Inputs (B): the chain of gradients from the head down, that of enc_out summed over
// the decoder's layers on the way; each matrix's output gradient stays in acts. Weights (W): one product per
// matrix of what B left and what forward kept; order among layers is free.
#include "head.h"
#include "t5_layer.h"

static const floatX* param(const T5Job* job, T5Tensor tensor, int l) {
    return model_tensor(job->model, tensor, l);
}

static float* grad(const T5Job* job, T5Tensor tensor, int l) {
    return model_grad(job->model, tensor, l);
}

// --- inputs -----------------------------------------------------------------------------------------------

// Does backward start from the head, or from the gradient of the normed rows that it was fed?
static bool starts_at_rows(const Model* model, const void* dout) {
    return dout == NULL || model_feeds_head(model);
}

// From dlogits, or from the gradient of the normed rows, to dx_n, which is zero but for the supervised rows.
static void rows_backward_inputs(const T5Job* job, const floatX* dfed, floatX* dx) {
    const Model* model = job->model;
    const int R = job->batch.num_rows, C = model->config.channels, Vp = model->config.padded_vocab;
    OpsContext* ops = model->ops;
    const T5HeadActs head = t5_acts_head(model, job->acts, job->host, job->flags | MODEL_HEAD);
    floatX* dnorm = t5_scratch_rows(model, job->scratch);
    floatX* drows = dnorm + (int64_t)head.num_rows * C;
    if (R > 0) {
        if (model->has_head) {
            matmul_backward_input(dnorm, head.logits, param(job, t5_head_tensor(model), 0), R, C, Vp, ops);
        } else {
            ops_copy(ops, dnorm, dfed, (size_t)head_rows_bytes(&model->config, R));
        }
        t5_drop(job, dnorm, head.keys, t5_outer_place(model, T5_DEC, T5_DROP_END), R, C);
        rmsnorm_backward(drows, grad(job, T5_dec_norm, 0), NULL, dnorm, head.rows, param(job, T5_dec_norm, 0),
                         head.rstd, t5_head_scale(model), R, C, ops);
    }
    scatter_rows(dx, drows, job->batch.rows, R, job->batch.sides[T5_DEC].num_tokens, C, ops);
}

// h becomes dh; returns the gradient of residual_ffn.
static const floatX* ffn_backward_inputs(const T5Job* job, T5Side side, const T5LayerActs* layer,
                                         const floatX* dx_next, const T5Scratch* scratch, int l) {
    const Model* model = job->model;
    const T5StackTensors* tensors = &t5_stack_tensors[side];
    const T5BatchSide* batch = &job->batch.sides[side];
    const int T = batch->num_tokens, C = model->config.channels, F = model->config.ffn_channels;
    OpsContext* ops = model->ops;
    floatX *columns = scratch->columns, *dact = scratch->wide;
    const floatX* dy = t5_dropped(job, side, dx_next, columns, t5_place(model, side, l, T5_DROP_FFN));
    matmul_backward_input(dact, dy, param(job, tensors->wo, l), T, F, C, ops);
    t5_drop(job, dact, batch->keys, t5_place(model, side, l, T5_DROP_ACTIVATION), T, F);
    if (model->config.gated) {
        gated_gelu_backward(layer->h, dact, layer->h, T, F, ops);
    } else {
        relu_backward(layer->h, dact, layer->h, (size_t)T * (size_t)F, ops);
    }
    matmul_backward_input(columns, layer->h, param(job, tensors->wi, l), T, C, t5_ffn_rows(model), ops);
    rmsnorm_backward(layer->dresidual_ffn, grad(job, tensors->norm_ffn, l), dx_next, columns,
                     layer->residual_ffn, param(job, tensors->norm_ffn, l), layer->rstd_ffn, 1.0f, T, C, ops);
    return layer->dresidual_ffn;
}

// Gradient of residual_cross; that of enc_out is added to `denc_from` (NULL: zero), the sum being denc_out.
static const floatX* cross_backward_inputs(const T5Job* job, const T5LayerActs* layer,
                                           const floatX* dresidual, const floatX* denc_from, floatX* denc_out,
                                           const T5Scratch* scratch, int l) {
    const Model* model = job->model;
    const int Te = job->batch.sides[T5_ENC].num_tokens, T = job->batch.sides[T5_DEC].num_tokens;
    const int C = model->config.channels, I = t5_inner(model);
    OpsContext* ops = model->ops;
    floatX *columns = scratch->columns, *dxatty = scratch->wide;
    const floatX* dy = t5_dropped(job, T5_DEC, dresidual, columns, t5_place(model, T5_DEC, l, T5_DROP_CROSS));
    matmul_backward_input(dxatty, dy, param(job, T5_dec_xo, l), T, I, C, ops);
    const Attention about = t5_cross_attention(job, layer, l);
    attention_general_backward(layer->dxq, layer->dxkv, layer->dxkv + I, NULL, scratch->attention, dxatty,
                               layer->xatty, layer->xlse, &about, ops);
    floatX* mine = denc_from == NULL ? denc_out : scratch->wide;
    matmul_backward_input(mine, layer->dxkv, param(job, T5_dec_xkv, l), Te, C, 2 * I, ops);
    if (denc_from != NULL) { residual_forward(denc_out, denc_from, mine, (size_t)Te * (size_t)C, ops); }
    matmul_backward_input(columns, layer->dxq, param(job, T5_dec_xq, l), T, C, I, ops);
    rmsnorm_backward(layer->dresidual_cross, grad(job, T5_dec_norm2, l), dresidual, columns,
                     layer->residual_cross, param(job, T5_dec_norm2, l), layer->rstd_cross, 1.0f, T, C, ops);
    return layer->dresidual_cross;
}

// Gradient of the layer's input x, to dx.
static void self_backward_inputs(const T5Job* job, T5Side side, const T5LayerActs* layer, const floatX* x,
                                 const floatX* dresidual, floatX* dx, const T5Scratch* scratch, int l) {
    const Model* model = job->model;
    const T5StackTensors* tensors = &t5_stack_tensors[side];
    const int T = job->batch.sides[side].num_tokens, C = model->config.channels, I = t5_inner(model);
    OpsContext* ops = model->ops;
    floatX *columns = scratch->columns, *datty = scratch->wide;
    const floatX* dy = t5_dropped(job, side, dresidual, columns, t5_place(model, side, l, T5_DROP_ATTENTION));
    matmul_backward_input(datty, dy, param(job, tensors->o, l), T, I, C, ops);
    t5_load_layer_bias(job, side, l);
    const Attention about = t5_self_attention(job, layer, side, l);
    attention_general_backward(layer->dqkv, layer->dqkv + I, layer->dqkv + 2 * I,
                               grad(job, tensors->bias, model->config.bias_per_layer ? l : 0),
                               scratch->attention, datty, layer->atty, layer->lse, &about, ops);
    matmul_backward_input(columns, layer->dqkv, param(job, tensors->qkv, l), T, C, 3 * I, ops);
    rmsnorm_backward(dx, grad(job, tensors->norm_self, l), dresidual, columns, x,
                     param(job, tensors->norm_self, l), layer->rstd_self, 1.0f, T, C, ops);
}

// All layers of a stack, last one first, from the gradient of x_n down; x and dx are those of x_0 where the
// stack does not begin here. Decoder: the gradient of enc_out is `denc_from` plus that of the layers.
static void layers_backward_inputs(const T5Job* job, T5Side side, const floatX* dx_next, const floatX* x,
                                   floatX* dx, const floatX* denc_from, floatX* denc_out) {
    const Model* model = job->model;
    const T5Scratch scratch = t5_scratch_split(model, job->scratch, job->host, side);
    t5_load_bias(job, side);
    for (int l = t5_num_layers(model, side) - 1; l >= 0; l--) {
        const T5LayerActs layer = t5_acts_layer(model, job->acts, job->host, side, l, job->flags);
        const floatX* dresidual = ffn_backward_inputs(job, side, &layer, dx_next, &scratch, l);
        if (side == T5_DEC) {
            dresidual = cross_backward_inputs(job, &layer, dresidual, denc_from, denc_out, &scratch, l);
            denc_from = denc_out;
        }
        floatX* dx_here = layer.dx != NULL ? layer.dx : dx;
        self_backward_inputs(job, side, &layer, layer.x != NULL ? layer.x : x, dresidual, dx_here, &scratch,
                             l);
        dx_next = dx_here;
    }
}

// From the gradient of enc_out to that of x_n.
static const floatX* encoder_end_backward_inputs(const T5Job* job, const floatX* denc_out) {
    const Model* model = job->model;
    const int T = job->batch.sides[T5_ENC].num_tokens, C = model->config.channels;
    const T5EncEndActs end = t5_acts_enc_end(model, job->acts, job->host, job->flags);
    const T5Scratch scratch = t5_scratch_split(model, job->scratch, job->host, T5_ENC);
    denc_out = t5_dropped(job, T5_ENC, denc_out, scratch.columns, t5_outer_place(model, T5_ENC, T5_DROP_END));
    rmsnorm_backward(end.dx_end, grad(job, T5_enc_norm, 0), NULL, denc_out, end.x_end,
                     param(job, T5_enc_norm, 0), end.rstd, 1.0f, T, C, model->ops);
    return end.dx_end;
}

static floatX* shifted(const void* boundary, int64_t num_values) {
    return boundary != NULL ? (floatX*)boundary + num_values : NULL;
}

void t5_backward_inputs(Model* model, const ModelBatch* batch, const void* in, void* acts, const void* dout,
                        void* din, void* scratch) {
    if (model_is_share(model)) {
        head_backward_inputs(model, batch, acts, din);
        return;
    }
    const bool at_rows = starts_at_rows(model, dout);
    const T5Job job = {
        .model = model,
        .host = batch,
        .batch = t5_batch_stage(model, batch, T5_BATCH_SEQS | T5_BATCH_KEYS | (at_rows ? T5_BATCH_ROWS : 0)),
        .acts = acts,
        .scratch = scratch,
        .flags = MODEL_KEEP,
    };
    const int num_dec_layers = t5_num_layers(model, T5_DEC);
    const int64_t in_begin = t5_boundary_dec_values(model, model->layer_begin, batch->num_tokens);
    const int64_t out_begin = t5_boundary_dec_values(model, model->layer_end, batch->num_tokens);
    const floatX *dx_next = shifted(dout, out_begin), *denc_out = dout;
    if (at_rows) {
        floatX* dx = din;
        if (num_dec_layers > 0) {
            dx = t5_acts_layer(model, acts, batch, T5_DEC, num_dec_layers - 1, MODEL_KEEP).dx_next;
        }
        rows_backward_inputs(&job, dout, dx);
        dx_next = dx;
    }
    if (num_dec_layers > 0) {
        floatX* sum = t5_ends(model, T5_ENC) ? t5_acts_enc_end(model, acts, batch, MODEL_KEEP).denc_out : din;
        layers_backward_inputs(&job, T5_DEC, dx_next, shifted(in, in_begin), shifted(din, in_begin),
                               out_begin > 0 ? dout : NULL, sum);
        denc_out = sum;
    }
    if (t5_num_layers(model, T5_ENC) > 0) {
        dx_next = t5_ends(model, T5_ENC) ? encoder_end_backward_inputs(&job, denc_out) : denc_out;
        layers_backward_inputs(&job, T5_ENC, dx_next, in, din, NULL, NULL);
    }
}

// --- weights ----------------------------------------------------------------------------------------------

// dweight (C, num_inputs) += of a matrix whose output went through dropout into the stream.
static void output_backward_weight(const T5Job* job, T5Side side, float* dweight, const floatX* dstream,
                                   const floatX* inp, int num_inputs, uint32_t place) {
    const Model* model = job->model;
    const T5Scratch scratch = t5_scratch_split(model, job->scratch, job->host, side);
    const floatX* dy = t5_dropped(job, side, dstream, scratch.columns, place);
    matmul_backward_weight(dweight, NULL, dy, inp, job->batch.sides[side].num_tokens, num_inputs,
                           model->config.channels, model->ops);
}

static void layer_backward_weights(const T5Job* job, T5Side side, const T5LayerActs* layer,
                                   const floatX* dx_next, int l) {
    const Model* model = job->model;
    const T5StackTensors* tensors = &t5_stack_tensors[side];
    const int T = job->batch.sides[side].num_tokens, C = model->config.channels, I = t5_inner(model);
    const floatX* dresidual_self = side == T5_DEC ? layer->dresidual_cross : layer->dresidual_ffn;
    output_backward_weight(job, side, grad(job, tensors->wo, l), dx_next, layer->act,
                           model->config.ffn_channels, t5_place(model, side, l, T5_DROP_FFN));
    matmul_backward_weight(grad(job, tensors->wi, l), NULL, layer->h, layer->norm_ffn, T, C,
                           t5_ffn_rows(model), model->ops);
    output_backward_weight(job, side, grad(job, tensors->o, l), dresidual_self, layer->atty, I,
                           t5_place(model, side, l, T5_DROP_ATTENTION));
    matmul_backward_weight(grad(job, tensors->qkv, l), NULL, layer->dqkv, layer->norm_self, T, C, 3 * I,
                           model->ops);
}

static void cross_backward_weights(const T5Job* job, const T5LayerActs* layer, const floatX* enc_out, int l) {
    const Model* model = job->model;
    const int Te = job->batch.sides[T5_ENC].num_tokens, T = job->batch.sides[T5_DEC].num_tokens;
    const int C = model->config.channels, I = t5_inner(model);
    output_backward_weight(job, T5_DEC, grad(job, T5_dec_xo, l), layer->dresidual_ffn, layer->xatty, I,
                           t5_place(model, T5_DEC, l, T5_DROP_CROSS));
    matmul_backward_weight(grad(job, T5_dec_xq, l), NULL, layer->dxq, layer->norm_cross, T, C, I, model->ops);
    matmul_backward_weight(grad(job, T5_dec_xkv, l), NULL, layer->dxkv, enc_out, Te, C, 2 * I, model->ops);
}

// Of a stack that begins here: dx_0 goes through the embedding's dropout, in place, into the table's
// gradient.
static void embedding_backward_weights(const T5Job* job, T5Side side) {
    const Model* model = job->model;
    const T5BatchSide* batch = &job->batch.sides[side];
    const int T = batch->num_tokens, C = model->config.channels;
    floatX* dx = t5_acts_layer(model, job->acts, job->host, side, 0, job->flags).dx;
    t5_drop(job, dx, batch->keys, t5_outer_place(model, side, T5_DROP_EMBEDDING), T, C);
    embedding_backward(grad(job, T5_shared, 0), NULL, job->scratch, dx, batch->tokens, NULL, T, C,
                       model->ops);
}

void t5_backward_weights(Model* model, const ModelBatch* batch, void* acts, const void* dout, void* scratch) {
    if (model_is_share(model)) {
        head_backward_weights(model, batch, acts, dout);
        return;
    }
    const bool at_rows = starts_at_rows(model, dout);
    const T5Job job = {
        .model = model,
        .host = batch,
        .batch = t5_batch_stage(model, batch, T5_BATCH_KEYS | T5_BATCH_TOKENS),
        .acts = acts,
        .scratch = scratch,
        .flags = MODEL_KEEP,
    };
    const int R = batch->num_rows, C = model->config.channels, Vp = model->config.padded_vocab;
    if (model->has_head && at_rows && R > 0) {
        const T5HeadActs head = t5_acts_head(model, acts, batch, MODEL_KEEP | MODEL_HEAD);
        matmul_backward_weight(grad(&job, t5_head_tensor(model), 0), NULL, head.logits, head.norm, R, C, Vp,
                               model->ops);
    }
    const T5EncEndActs end = t5_acts_enc_end(model, acts, batch, MODEL_KEEP);
    const int64_t out_begin = t5_boundary_dec_values(model, model->layer_end, batch->num_tokens);
    for (T5Side side = T5_ENC; side <= T5_DEC; side++) {
        for (int l = t5_num_layers(model, side) - 1; l >= 0; l--) {
            const T5LayerActs layer = t5_acts_layer(model, acts, batch, side, l, MODEL_KEEP);
            const bool is_last = l == t5_num_layers(model, side) - 1;
            const bool is_dout = is_last && (side == T5_DEC ? !at_rows : !t5_ends(model, T5_ENC));
            const floatX* dx_next = is_dout ? shifted(dout, side == T5_DEC ? out_begin : 0) : layer.dx_next;
            layer_backward_weights(&job, side, &layer, dx_next, l);
            if (side == T5_DEC) { cross_backward_weights(&job, &layer, end.enc_out, l); }
        }
        if (t5_begins(model, side)) { embedding_backward_weights(&job, side); }
    }
}
