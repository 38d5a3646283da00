// The arrays of a micro-batch on their way to the device: checked, and staged once per job.
#include <assert.h>

#include "model.h"
#include "t5_acts.h"

static T5BatchSide host_side(const ModelBatch* batch, T5Side side) {
    if (side == T5_ENC) {
        return (T5BatchSide){batch->num_tokens, batch->cu_seqlens, batch->seq_lens, batch->tokens,
                             batch->token_keys};
    }
    return (T5BatchSide){batch->num_dec_tokens, batch->dec_cu_seqlens, batch->dec_seq_lens, batch->dec_tokens,
                         batch->dec_token_keys};
}

static void stage_tokens(const Model* model, const T5BatchSide* host, T5BatchSide* out, T5Side side) {
    batch_check_range(side == T5_ENC ? "encoder token" : "decoder token", host->tokens, host->num_tokens,
                      model->config.vocab);
    out->tokens = batch_stage(model->ops, host->tokens, host->num_tokens);
}

T5Batch t5_batch_stage(const Model* model, const ModelBatch* batch, int arrays) {
    OpsContext* ops = model->ops;
    const int R = batch->num_rows;
    T5Batch staged = {.num_seqs = batch->num_seqs, .num_rows = R};
    if (arrays & T5_BATCH_KEYS && batch->token_keys != NULL) { staged.dropout = model->dropout; }
    ops_stage_begin(ops);
    for (T5Side side = T5_ENC; side <= T5_DEC; side++) {
        const T5BatchSide host = host_side(batch, side);
        T5BatchSide* out = &staged.sides[side];
        out->num_tokens = host.num_tokens;
        // decoder layers look at the encoder's side; a slice of the head alone drops out of the decoder's
        const bool has_layers = t5_num_layers(model, side) > 0 || t5_num_layers(model, T5_DEC) > 0;
        if (arrays & T5_BATCH_SEQS && has_layers) {
            out->cu_seqlens = batch_stage(ops, host.cu_seqlens, batch->num_seqs + 1);
            out->seq_lens = batch_stage(ops, host.seq_lens, batch->num_seqs);
        }
        if (staged.dropout > 0.0f && (has_layers || (side == T5_DEC && model->is_last))) {
            assert(host.keys != NULL);
            out->keys = (const uint32_t*)batch_stage(ops, (const int32_t*)host.keys, host.num_tokens);
        }
        if (arrays & T5_BATCH_TOKENS && t5_begins(model, side)) { stage_tokens(model, &host, out, side); }
    }
    if (arrays & T5_BATCH_ROWS) {
        batch_check_range("row", batch->rows, R, batch->num_dec_tokens);
        staged.rows = batch_stage(ops, batch->rows, R);
    }
    if (arrays & T5_BATCH_TARGETS) {
        batch_check_range("target", batch->targets, R, model->config.vocab);
        staged.targets = batch_stage(ops, batch->targets, R);
    }
    return staged;
}
