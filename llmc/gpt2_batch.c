// The arrays of a micro-batch on their way to the device: checked, and staged once per job.
#include <stdio.h>
#include <stdlib.h>

#include "gpt2_acts.h"

static void check_range(const char* what, const int32_t* values, int num_values, int limit) {
    for (int i = 0; i < num_values; i++) {
        if (values[i] < 0 || values[i] >= limit) {
            fprintf(stderr,
                    "micro-batch: %s %d at %d is not within 0 to %d ---> prepare the data for this model\n",
                    what, values[i], i, limit - 1);
            exit(1);
        }
    }
}

static const int32_t* stage(OpsContext* ops, const int32_t* values, int num_values) {
    return num_values > 0 ? ops_stage(ops, values, (size_t)num_values) : NULL;
}

ModelBatch gpt2_batch_stage(const Model* model, const ModelBatch* batch, int arrays) {
    const int T = batch->num_tokens, R = batch->num_rows;
    OpsContext* ops = model->ops;
    ModelBatch staged = *batch;
    staged.cu_seqlens = staged.tokens = staged.positions = staged.rows = staged.targets = NULL;
    staged.token_keys = NULL;
    ops_stage_begin(ops);
    if (arrays & GPT2_BATCH_SEQS) { staged.cu_seqlens = stage(ops, batch->cu_seqlens, batch->num_seqs + 1); }
    if (arrays & GPT2_BATCH_TOKENS) {
        check_range("token", batch->tokens, T, model->config.vocab);
        check_range("position", batch->positions, T, model->config.max_seq_len);
        staged.tokens = stage(ops, batch->tokens, T);
        staged.positions = stage(ops, batch->positions, T);
    }
    if (arrays & GPT2_BATCH_ROWS) {
        check_range("row", batch->rows, R, T);
        staged.rows = stage(ops, batch->rows, R);
    }
    if (arrays & GPT2_BATCH_KEYS && gpt2_drops(model, batch)) {
        staged.token_keys = (const uint32_t*)stage(ops, (const int32_t*)batch->token_keys, T);
    }
    if (arrays & GPT2_BATCH_TARGETS) {
        check_range("target", batch->targets, R, model->config.vocab);
        staged.targets = stage(ops, batch->targets, R);
    }
    return staged;
}
