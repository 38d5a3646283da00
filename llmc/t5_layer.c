#include "t5_layer.h"

#include <math.h>

const T5StackTensors t5_stack_tensors[2] = {
    {T5_enc_norm1, T5_enc_qkv, T5_enc_o, T5_enc_norm2, T5_enc_wi, T5_enc_wo, T5_enc_bias},
    {T5_dec_norm1, T5_dec_qkv, T5_dec_o, T5_dec_norm3, T5_dec_wi, T5_dec_wo, T5_dec_bias},
};

float t5_head_scale(const Model* model) {
    return model->config.tied_head ? 1.0f / sqrtf((float)model->config.channels) : 1.0f;
}

static void load_table(const T5Job* job, T5Side side, int l) {
    const Model* model = job->model;
    const T5Scratch scratch = t5_scratch_split(model, job->scratch, job->host, side);
    values_to_floats(scratch.bias, model_tensor(model, t5_stack_tensors[side].bias, l),
                     (size_t)model->config.num_buckets * (size_t)model->config.num_heads, model->ops);
}

void t5_load_bias(const T5Job* job, T5Side side) {
    if (!job->model->config.bias_per_layer) { load_table(job, side, 0); }
}

void t5_load_layer_bias(const T5Job* job, T5Side side, int l) {
    if (job->model->config.bias_per_layer) { load_table(job, side, l); }
}

static Attention attention_about(const T5Job* job, T5Side q_side, T5Side k_side, uint32_t place) {
    const T5BatchSide *q = &job->batch.sides[q_side], *k = &job->batch.sides[k_side];
    return (Attention){
        .cu_q = q->cu_seqlens,
        .cu_k = k->cu_seqlens,
        .k_lens = k->seq_lens,
        .num_seqs = job->batch.num_seqs,
        .num_q_tokens = q->num_tokens,
        .num_k_tokens = k->num_tokens,
        .num_heads = job->model->config.num_heads,
        .head_size = job->model->config.head_size,
        .scale = 1.0f,
        .dropout = job->batch.dropout,
        .dropout_place = place,
        .q_keys = q->keys,
        .k_keys = k->keys,
    };
}

Attention t5_self_attention(const T5Job* job, const T5LayerActs* layer, T5Side side, int l) {
    const Model* model = job->model;
    const int I = t5_inner(model);
    Attention about = attention_about(job, side, side, t5_place(model, side, l, T5_DROP_PROBABILITIES));
    about.q = layer->qkv;
    about.k = layer->qkv + I;
    about.v = layer->qkv + 2 * I;
    about.q_stride = about.kv_stride = 3 * I;
    about.causal = side == T5_DEC;
    about.bias = t5_scratch_split(model, job->scratch, job->host, side).bias;
    about.num_buckets = model->config.num_buckets;
    about.max_distance = model->config.max_distance;
    about.bias_bidirectional = side == T5_ENC;
    return about;
}

Attention t5_cross_attention(const T5Job* job, const T5LayerActs* layer, int l) {
    const int I = t5_inner(job->model);
    Attention about =
        attention_about(job, T5_DEC, T5_ENC, t5_place(job->model, T5_DEC, l, T5_DROP_CROSS_PROBABILITIES));
    about.q = layer->xq;
    about.k = layer->xkv;
    about.v = layer->xkv + I;
    about.q_stride = I;
    about.kv_stride = 2 * I;
    return about;
}

uint32_t t5_place(const Model* model, T5Side side, int l, T5Drop drop) {
    const int layer =
        side == T5_ENC ? model_enc_begin(model) + l : model->config.num_layers + model_dec_begin(model) + l;
    return (uint32_t)layer * T5_DROPS_PER_LAYER + (uint32_t)drop;
}

uint32_t t5_outer_place(const Model* model, T5Side side, T5OuterDrop drop) {
    return (uint32_t)model_num_layers(&model->config) * T5_DROPS_PER_LAYER + 2 * (uint32_t)drop +
           (uint32_t)side;
}

void t5_drop(const T5Job* job, floatX* x, const uint32_t* keys, uint32_t place, int num_rows, int width) {
    const float p = job->batch.dropout;
    if (p > 0.0f) { dropout_apply(x, x, keys, place, p, num_rows, width, job->model->ops); }
}

const floatX* t5_dropped(const T5Job* job, T5Side side, const floatX* dx, floatX* into, uint32_t place) {
    const Model* model = job->model;
    const T5BatchSide* batch = &job->batch.sides[side];
    if (job->batch.dropout == 0.0f) { return dx; }
    dropout_apply(into, dx, batch->keys, place, job->batch.dropout, batch->num_tokens, model->config.channels,
                  model->ops);
    return into;
}
