// The arrays of a micro-batch on their way to the device: checked, and staged once per job.
#include "model.h"
#include "gpt2_acts.h"

ModelBatch gpt2_batch_stage(const Model* model, const ModelBatch* batch, int arrays) {
    const int T = batch->num_tokens, R = batch->num_rows;
    OpsContext* ops = model->ops;
    ModelBatch staged = *batch;
    staged.cu_seqlens = staged.tokens = staged.positions = staged.rows = staged.targets = NULL;
    staged.token_keys = NULL;
    ops_stage_begin(ops);
    if (arrays & GPT2_BATCH_SEQS) {
        staged.cu_seqlens = batch_stage(ops, batch->cu_seqlens, batch->num_seqs + 1);
    }
    if (arrays & GPT2_BATCH_TOKENS) {
        batch_check_range("token", batch->tokens, T, model->config.vocab);
        batch_check_range("position", batch->positions, T, model->config.max_seq_len);
        staged.tokens = batch_stage(ops, batch->tokens, T);
        staged.positions = batch_stage(ops, batch->positions, T);
    }
    if (arrays & GPT2_BATCH_ROWS) {
        batch_check_range("row", batch->rows, R, T);
        staged.rows = batch_stage(ops, batch->rows, R);
    }
    if (arrays & GPT2_BATCH_KEYS && gpt2_drops(model, batch)) {
        staged.token_keys = (const uint32_t*)batch_stage(ops, (const int32_t*)batch->token_keys, T);
    }
    if (arrays & GPT2_BATCH_TARGETS) {
        batch_check_range("target", batch->targets, R, model->config.vocab);
        staged.targets = batch_stage(ops, batch->targets, R);
    }
    return staged;
}
