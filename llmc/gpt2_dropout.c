#include <math.h>

#include "gpt2_acts.h"

void gpt2_drop(const Model* model, const ModelBatch* batch, floatX* out, const floatX* in, uint32_t place) {
    dropout_apply(out, in, batch->token_keys, place, model->dropout, batch->num_tokens,
                  model->config.channels, model->ops);
}

Attention gpt2_dropped_attention(const Model* model, const ModelBatch* batch, const floatX* qkv,
                                 int local_layer) {
    const int C = model->config.channels, NH = model->config.num_heads, HS = C / NH;
    return (Attention){
        .q = qkv,
        .k = qkv + C,
        .v = qkv + 2 * C,
        .q_stride = 3 * C,
        .kv_stride = 3 * C,
        .cu_q = batch->cu_seqlens,
        .cu_k = batch->cu_seqlens,
        .num_seqs = batch->num_seqs,
        .num_q_tokens = batch->num_tokens,
        .num_k_tokens = batch->num_tokens,
        .num_heads = NH,
        .head_size = HS,
        .causal = 1,
        .scale = 1.0f / sqrtf((float)HS),
        .dropout = model->dropout,
        .dropout_place = gpt2_drop_place(model->layer_begin + local_layer, GPT2_DROP_ATTENTION),
        .q_keys = batch->token_keys,
        .k_keys = batch->token_keys,
    };
}
