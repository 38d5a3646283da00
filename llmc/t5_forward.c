// Both stacks by the same function, the decoder's layers with cross-attention in between. As in
// gpt2_forward.c the sum that ends a sublayer and the norm that begins the next are one pass over memory.
#include <assert.h>

#include "head.h"
#include "t5_layer.h"

static const floatX* param(const T5Job* job, T5Tensor tensor, int l) {
    return model_tensor(job->model, tensor, l);
}

// columns (T, C) = what a sublayer adds to the stream.
static void sublayer_output(const T5Job* job, T5Side side, floatX* columns, const floatX* inp,
                            const floatX* weight, int num_inputs, uint32_t place) {
    const Model* model = job->model;
    const int T = job->batch.sides[side].num_tokens, C = model->config.channels;
    matmul_forward(columns, inp, weight, NULL, T, num_inputs, C, model->ops);
    t5_drop(job, columns, job->batch.sides[side].keys, place, T, C);
}

// From norm_self to what self-attention adds, in `columns`.
static void self_attention_forward(const T5Job* job, T5Side side, const T5LayerActs* layer, floatX* columns,
                                   int l) {
    const Model* model = job->model;
    const T5StackTensors* tensors = &t5_stack_tensors[side];
    const int T = job->batch.sides[side].num_tokens, C = model->config.channels, I = t5_inner(model);
    t5_load_layer_bias(job, side, l);
    matmul_forward(layer->qkv, layer->norm_self, param(job, tensors->qkv, l), NULL, T, C, 3 * I, model->ops);
    const Attention about = t5_self_attention(job, layer, side, l);
    attention_general_forward(layer->atty, layer->lse, &about, model->ops);
    sublayer_output(job, side, columns, layer->atty, param(job, tensors->o, l), I,
                    t5_place(model, side, l, T5_DROP_ATTENTION));
}

// From norm_cross and enc_out to what cross-attention adds.
static void cross_attention_forward(const T5Job* job, const T5LayerActs* layer, const floatX* enc_out,
                                    floatX* columns, int l) {
    const Model* model = job->model;
    const int Te = job->batch.sides[T5_ENC].num_tokens, T = job->batch.sides[T5_DEC].num_tokens;
    const int C = model->config.channels, I = t5_inner(model);
    matmul_forward(layer->xq, layer->norm_cross, param(job, T5_dec_xq, l), NULL, T, C, I, model->ops);
    matmul_forward(layer->xkv, enc_out, param(job, T5_dec_xkv, l), NULL, Te, C, 2 * I, model->ops);
    const Attention about = t5_cross_attention(job, layer, l);
    attention_general_forward(layer->xatty, layer->xlse, &about, model->ops);
    sublayer_output(job, T5_DEC, columns, layer->xatty, param(job, T5_dec_xo, l), I,
                    t5_place(model, T5_DEC, l, T5_DROP_CROSS));
}

// From norm_ffn to act.
static void activation_forward(const T5Job* job, T5Side side, const T5LayerActs* layer, int l) {
    const Model* model = job->model;
    const T5StackTensors* tensors = &t5_stack_tensors[side];
    const int T = job->batch.sides[side].num_tokens, C = model->config.channels,
              F = model->config.ffn_channels;
    matmul_forward(layer->h, layer->norm_ffn, param(job, tensors->wi, l), NULL, T, C, t5_ffn_rows(model),
                   model->ops);
    if (model->config.gated) {
        gated_gelu_forward(layer->act, layer->h, T, F, model->ops);
    } else {
        relu_forward(layer->act, layer->h, (size_t)T * (size_t)F, model->ops);
    }
    t5_drop(job, layer->act, job->batch.sides[side].keys, t5_place(model, side, l, T5_DROP_ACTIVATION), T, F);
}

static void ffn_output_forward(const T5Job* job, T5Side side, const T5LayerActs* layer, floatX* columns,
                               int l) {
    sublayer_output(job, side, columns, layer->act, param(job, t5_stack_tensors[side].wo, l),
                    job->model->config.ffn_channels, t5_place(job->model, side, l, T5_DROP_FFN));
}

// Up to act. norm_self is there already: it is made with the sum that ends the layer below.
static void layer_forward(const T5Job* job, T5Side side, const T5LayerActs* layer, const floatX* x,
                          const floatX* enc_out, floatX* columns, int l) {
    const T5StackTensors* tensors = &t5_stack_tensors[side];
    const int T = job->batch.sides[side].num_tokens, C = job->model->config.channels;
    OpsContext* ops = job->model->ops;
    self_attention_forward(job, side, layer, columns, l);
    if (side == T5_DEC) {
        residual_rmsnorm_forward(layer->residual_cross, layer->norm_cross, layer->rstd_cross, x, columns,
                                 param(job, T5_dec_norm2, l), 1.0f, T, C, ops);
        cross_attention_forward(job, layer, enc_out, columns, l);
        x = layer->residual_cross;
    }
    residual_rmsnorm_forward(layer->residual_ffn, layer->norm_ffn, layer->rstd_ffn, x, columns,
                             param(job, tensors->norm_ffn, l), 1.0f, T, C, ops);
    activation_forward(job, side, layer, l);
}

// A layer's buffers, all of them.
static T5LayerActs layer_at(const T5Job* job, T5Side side, const T5Scratch* scratch, int l) {
    T5LayerActs layer = t5_acts_layer(job->model, job->acts, job->host, side, l, job->flags);
    if (layer.act == NULL) { layer.act = scratch->wide; }
    return layer;
}

static void embed(const T5Job* job, T5Side side, floatX* x) {
    const T5BatchSide* batch = &job->batch.sides[side];
    const int C = job->model->config.channels;
    embedding_forward(x, batch->tokens, NULL, param(job, T5_shared, 0), NULL, batch->num_tokens, C,
                      job->model->ops);
    t5_drop(job, x, batch->keys, t5_outer_place(job->model, side, T5_DROP_EMBEDDING), batch->num_tokens, C);
}

// All layers of a stack, from `x` (NULL: its tokens) up to the last one's act; what that adds to its
// residual_ffn is left to do. Returns the last layer's buffers.
static T5LayerActs layers_forward(const T5Job* job, T5Side side, const floatX* x, const floatX* enc_out) {
    const Model* model = job->model;
    const T5Tensor norm_self = t5_stack_tensors[side].norm_self;
    const int T = job->batch.sides[side].num_tokens, C = model->config.channels,
              n = t5_num_layers(model, side);
    const T5Scratch scratch = t5_scratch_split(model, job->scratch, job->host, side);
    T5LayerActs layer = layer_at(job, side, &scratch, 0);
    t5_load_bias(job, side);
    if (t5_begins(model, side)) {
        embed(job, side, layer.x);
        x = layer.x;
    }
    rmsnorm_forward(layer.norm_self, layer.rstd_self, x, param(job, norm_self, 0), 1.0f, T, C, model->ops);
    for (int l = 0;; l++) {
        layer_forward(job, side, &layer, x, enc_out, scratch.columns, l);
        if (l + 1 == n) { return layer; }
        ffn_output_forward(job, side, &layer, scratch.columns, l);
        const T5LayerActs next = layer_at(job, side, &scratch, l + 1);
        residual_rmsnorm_forward(next.x, next.norm_self, next.rstd_self, layer.residual_ffn, scratch.columns,
                                 param(job, norm_self, l + 1), 1.0f, T, C, model->ops);
        layer = next;
        x = layer.x;
    }
}

// The last layer's output x_n, to `out`; NULL: nobody asks for it.
static void stack_output(const T5Job* job, T5Side side, const T5LayerActs* last, floatX* out) {
    if (out == NULL) { return; }
    const size_t num_values = (size_t)job->batch.sides[side].num_tokens * (size_t)job->model->config.channels;
    const T5Scratch scratch = t5_scratch_split(job->model, job->scratch, job->host, side);
    ffn_output_forward(job, side, last, scratch.columns, t5_num_layers(job->model, side) - 1);
    residual_forward(out, last->residual_ffn, scratch.columns, num_values, job->model->ops);
}

// x_n and its norm, to the slice's own enc_out or to `out`; where neither is there, for backward's sake
// alone.
static const floatX* encoder_end_forward(const T5Job* job, const T5LayerActs* last, floatX* out) {
    const Model* model = job->model;
    const T5BatchSide* batch = &job->batch.sides[T5_ENC];
    const int T = batch->num_tokens, C = model->config.channels;
    const T5Scratch scratch = t5_scratch_split(model, job->scratch, job->host, T5_ENC);
    const T5EncEndActs end = t5_acts_enc_end(model, job->acts, job->host, job->flags);
    floatX* enc_out = end.enc_out != NULL ? end.enc_out : out;
    ffn_output_forward(job, T5_ENC, last, scratch.columns, t5_num_layers(model, T5_ENC) - 1);
    residual_rmsnorm_forward(end.x_end, enc_out != NULL ? enc_out : scratch.wide, end.rstd,
                             last->residual_ffn, scratch.columns, param(job, T5_enc_norm, 0), 1.0f, T, C,
                             model->ops);
    if (enc_out != NULL) {
        t5_drop(job, enc_out, batch->keys, t5_outer_place(model, T5_ENC, T5_DROP_END), T, C);
    }
    return enc_out;
}

const floatX* t5_encoder_forward(const T5Job* job, const floatX* in, floatX* out) {
    const T5LayerActs last = layers_forward(job, T5_ENC, in, NULL);
    if (t5_ends(job->model, T5_ENC)) { return encoder_end_forward(job, &last, out); }
    stack_output(job, T5_ENC, &last, out);
    return NULL;
}

// Decoder layers. enc_out: of the encoder in this slice; else the beginning of `in`, of which KEEP keeps a
// copy. Returns x_n where the head is here.
static const floatX* decoder_forward(const T5Job* job, const floatX* enc_out, const floatX* in, floatX* out) {
    const Model* model = job->model;
    const int Te = job->batch.sides[T5_ENC].num_tokens;
    const size_t enc_bytes = (size_t)Te * (size_t)model->config.channels * sizeof(floatX);
    if (enc_out == NULL) {
        const T5EncEndActs end = t5_acts_enc_end(model, job->acts, job->host, job->flags);
        if (end.enc_out != NULL) { ops_copy(model->ops, end.enc_out, in, enc_bytes); }
        enc_out = in;
    }
    const floatX* x = in != NULL ? in + t5_boundary_dec_values(model, model->layer_begin, Te) : NULL;
    const T5LayerActs last = layers_forward(job, T5_DEC, x, enc_out);
    if (t5_ends(model, T5_DEC)) {
        stack_output(job, T5_DEC, &last, last.x_next);
        return last.x_next;
    }
    if (out == NULL) { return NULL; }
    const int64_t dec_begin = t5_boundary_dec_values(model, model->layer_end, Te);
    if (dec_begin > 0) { ops_copy(model->ops, out, enc_out, enc_bytes); }
    stack_output(job, T5_DEC, &last, out + dec_begin);
    return NULL;
}

// --- the head ---------------------------------------------------------------------------------------------

// keys[i] = those of row i: 32 bits, carried as values.
static void gather_keys(const T5Job* job, uint32_t* keys, const int32_t* rows, int num_rows) {
    if (job->batch.dropout == 0.0f) { return; }
    gather_rows((floatX*)(void*)keys, (const floatX*)(const void*)job->batch.sides[T5_DEC].keys, rows,
                num_rows, (int)(sizeof(uint32_t) / sizeof(floatX)), job->model->ops);
}

// The final norm of `num_rows` supervised rows from `begin` on, from x_n, and its dropout.
static void norm_forward(const T5Job* job, const T5HeadActs* head, floatX* norm, const floatX* x, int begin,
                         int num_rows) {
    const Model* model = job->model;
    const int C = model->config.channels;
    gather_rows(head->rows, x, job->batch.rows + begin, num_rows, C, model->ops);
    gather_keys(job, head->keys, job->batch.rows + begin, num_rows);
    rmsnorm_forward(norm, head->rstd, head->rows, param(job, T5_dec_norm, 0), t5_head_scale(model), num_rows,
                    C, model->ops);
    t5_drop(job, norm, head->keys, t5_outer_place(model, T5_DEC, T5_DROP_END), num_rows, C);
}

// Final norm, logits and losses.
static void rows_forward(const T5Job* job, const T5HeadActs* head, const floatX* x, int begin, int num_rows,
                         float* losses, float dlogits_scale) {
    const Model* model = job->model;
    const int C = model->config.channels, Vp = model->config.padded_vocab;
    OpsContext* ops = model->ops;
    norm_forward(job, head, head->norm, x, begin, num_rows);
    matmul_forward(head->logits, head->norm, param(job, t5_head_tensor(model), 0), NULL, num_rows, C, Vp,
                   ops);
    fused_classifier(losses, head->logits, job->batch.targets + begin, dlogits_scale, num_rows,
                     model->config.vocab, Vp, ops);
}

static void whole_head_forward(const T5Job* job, const floatX* x, float* losses) {
    Model* model = job->model;
    const int R = job->batch.num_rows;
    const bool keep = job->flags & MODEL_KEEP;
    const T5HeadActs head = t5_acts_head(model, job->acts, job->host, job->flags);
    model->last_logits = keep ? NULL : head.logits;
    if (R == 0) { return; }
    float* results = ops_results(model->ops, losses, (size_t)R);
    if (keep) {
        assert(job->host->loss_scale != 0.0f);  // 0 would leave logits where backward expects their gradients
        rows_forward(job, &head, x, 0, R, results, job->host->loss_scale);
    } else {
        // The first rows come last, so that last_logits is theirs.
        for (int begin = (R - 1) / head.num_rows * head.num_rows; begin >= 0; begin -= head.num_rows) {
            const int num_rows = R - begin < head.num_rows ? R - begin : head.num_rows;
            rows_forward(job, &head, x, begin, num_rows, results + begin, 0.0f);
        }
    }
    ops_deliver(model->ops, losses, results, (size_t)R);
}

// Normed rows, for the head's shares; `out` NULL: for backward's sake alone.
static void feed_head(const T5Job* job, const floatX* x, floatX* out) {
    const int R = job->batch.num_rows;
    const T5HeadActs head = t5_acts_head(job->model, job->acts, job->host, job->flags);
    for (int begin = 0; begin < R; begin += head.num_rows) {
        const int num_rows = R - begin < head.num_rows ? R - begin : head.num_rows;
        floatX* norm = out != NULL ? out + (int64_t)begin * job->model->config.channels
                                   : t5_scratch_rows(job->model, job->scratch);
        norm_forward(job, &head, norm, x, begin, num_rows);
    }
}

void t5_forward(Model* model, const ModelBatch* batch, const void* in, void* out, void* acts, void* scratch,
                float* losses, int flags) {
    if (model_is_share(model)) {
        head_forward(model, batch, in, out, acts, losses, flags);
        return;
    }
    if (model->has_head && flags == 0) { return; }  // nobody reads anything of it before the recompute
    const bool with_head = model->has_head && flags & MODEL_HEAD, feeds_head = model_feeds_head(model);
    const T5Job job = {
        .model = model,
        .host = batch,
        .batch = t5_batch_stage(model, batch,
                                T5_BATCH_SEQS | T5_BATCH_KEYS | T5_BATCH_TOKENS |
                                    (with_head || feeds_head ? T5_BATCH_ROWS : 0) |
                                    (with_head ? T5_BATCH_TARGETS : 0)),
        .acts = acts,
        .scratch = scratch,
        .flags = flags,
    };
    const floatX *enc_out = NULL, *x_end = in;
    if (t5_num_layers(model, T5_ENC) > 0) { enc_out = t5_encoder_forward(&job, in, out); }
    if (t5_num_layers(model, T5_DEC) > 0) { x_end = decoder_forward(&job, enc_out, in, out); }
    if (with_head) { whole_head_forward(&job, x_end, losses); }
    if (feeds_head) { feed_head(&job, x_end, out); }
}
