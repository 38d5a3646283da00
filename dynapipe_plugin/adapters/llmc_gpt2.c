#include "llmc_gpt2.h"

// --- the model table -------------------------------------------------------------------------------------

static Gpt2Batch gpt2_batch(const DynapipeBatch* batch) {
    return (Gpt2Batch){
        .num_seqs = batch->num_seqs,
        .num_tokens = batch->num_tokens,
        .num_rows = batch->num_rows,
        .max_seq_tokens = batch->max_seq_tokens,
        .cu_seqlens = batch->cu_seqlens,
        .tokens = batch->tokens,
        .positions = batch->positions,
        .rows = batch->rows,
        .targets = batch->targets,
    };
}

_Static_assert((int)DYNAPIPE_FORWARD_KEEP == (int)GPT2_KEEP && (int)DYNAPIPE_FORWARD_HEAD == (int)GPT2_HEAD,
               "both sides number their flags alike");

static int64_t acts_bytes(void* model, const DynapipeBatch* batch, int flags) {
    return gpt2_acts_bytes(model, batch->num_tokens, batch->num_rows, flags);
}

static int64_t scratch_bytes(void* model, const DynapipeBatch* batch) {
    return gpt2_scratch_bytes(model, batch->num_tokens, batch->num_rows, batch->max_seq_tokens);
}

static int64_t boundary_bytes(void* model, const DynapipeBatch* batch) {
    return gpt2_boundary_bytes(model, batch->num_tokens);
}

static int forward(void* model, const DynapipeBatch* batch, const void* in, void* out, void* acts,
                   void* scratch, float* losses, float loss_scale, int flags) {
    Gpt2Batch view = gpt2_batch(batch);
    gpt2_forward(model, &view, in, out, acts, scratch, losses, loss_scale, flags);
    return 0;
}

static int backward_inputs(void* model, const DynapipeBatch* batch, const void* in, void* acts,
                           const void* dout, void* din, void* scratch) {
    Gpt2Batch view = gpt2_batch(batch);
    gpt2_backward_inputs(model, &view, in, acts, dout, din, scratch);
    return 0;
}

static int backward_weights(void* model, const DynapipeBatch* batch, void* acts, const void* dout,
                            void* scratch) {
    Gpt2Batch view = gpt2_batch(batch);
    gpt2_backward_weights(model, &view, acts, dout, scratch);
    return 0;
}

static void zero_gradients(void* model) {
    gpt2_zero_grads(model);
}

static int32_t argmax_token(void* model) {
    const Gpt2* gpt2 = model;
    return argmax_row(gpt2->last_logits, gpt2->config.vocab, gpt2->ops);
}

static int finish(void* model) {
    ops_sync(((const Gpt2*)model)->ops);
    return 0;
}

const DynapipeModel_v1 dynapipe_gpt2_model = {
    .name = "gpt2",
    .acts_bytes = acts_bytes,
    .scratch_bytes = scratch_bytes,
    .boundary_bytes = boundary_bytes,
    .forward = forward,
    .backward_inputs = backward_inputs,
    .backward_weights = backward_weights,
    .zero_gradients = zero_gradients,
    .argmax_token = argmax_token,
    .finish = finish,
};

DynapipeParams_v1 dynapipe_gpt2_params(const Gpt2* model) {
    DynapipeParams_v1 params = {
        .params = model->params,
        .grads = model->grads,
        .num_params = model->num_params,
        .bytes_per_value = (int32_t)sizeof(floatX),  // gradients are float32 whatever this is
    };
    bool alone = model->is_first && model->is_last;
    for (int i = 0; i < model->num_slices; i++) {
        const Gpt2TensorSlice* slice = &model->slices[i];
        if (slice->tensor == GPT2_wte && !alone) {
            params.tied_begin = slice->offset;
            params.tied_count = slice->num_values;
        }
    }
    return params;
}
