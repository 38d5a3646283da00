#include "t5_chain.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gpt2_golden.h"

void* t5_chain_poisoned(int64_t num_bytes) {
    size_t rounded = ((size_t)num_bytes + 127) / 64 * 64;
    void* memory = aligned_alloc(64, rounded);
    memset(memory, 0xff, rounded);
    return memory;
}

float* t5_chain_zeros(int64_t num_values) {
    return calloc((size_t)num_values + 1, sizeof(float));
}

void t5_stage_open(T5Stage* stage, const ModelConfig* config, int begin, int end, bool is_last, float dropout,
                   const ModelBatch* batch, OpsContext* ops) {
    Model* model = &stage->model;
    model_init(model, config, begin, end, is_last, ops);
    model->dropout = dropout;
    model_alloc_grads(model);
    t5_golden_params(model);
    stage->acts = t5_chain_poisoned(model_acts_bytes(model, batch, MODEL_KEEP | MODEL_HEAD));
    stage->scratch = t5_chain_poisoned(model_scratch_bytes(model, batch));
    stage->out = t5_chain_poisoned(model_boundary_bytes(model, batch, 1));
    stage->din = t5_chain_poisoned(model_boundary_bytes(model, batch, 0));
}

void t5_stage_close(T5Stage* stage) {
    model_free(&stage->model);
    free(stage->acts);
    free(stage->scratch);
    free(stage->out);
    free(stage->din);
}

// All copies of a tied tensor add to the same place.
static void add_grads(const Model* model, float* whole) {
    for (int i = 0; i < model->num_slices; i++) {
        const TensorSlice* slice = &model->slices[i];
        for (int64_t j = 0; j < slice->num_values; j++) {
            whole[slice->file_offset + j] += model->grads[slice->offset + j];
        }
    }
}

// Forward of the first time where it is made again: acts of its own size, so that nothing beyond is touched.
static void forward_only(T5Stage* s, const ModelBatch* batch, const void* in, void* out, float* losses) {
    void* acts = t5_chain_poisoned(model_acts_bytes(&s->model, batch, 0));
    model_forward(&s->model, batch, in, out, acts, s->scratch, losses, 0);
    free(acts);
}

void t5_chain_run(const ModelConfig* config, float dropout, const ModelBatch* batch, const int* cuts,
                  int options, float* losses, float* grads, OpsContext* ops) {
    T5Stage stages[T5_CHAIN_MAX_SLICES];
    const int keep = MODEL_KEEP | MODEL_HEAD;
    const bool recompute = options & T5_CHAIN_RECOMPUTE;
    int P = 0;
    for (; cuts[P + 1] > 0; P++) {
        T5Stage* s = &stages[P];
        t5_stage_open(s, config, cuts[P], cuts[P + 1], cuts[P + 2] == 0, dropout, batch, ops);
        const void* in = P > 0 ? stages[P - 1].out : NULL;
        void* out = s->model.is_last ? NULL : s->out;
        if (recompute) {
            forward_only(s, batch, in, out, losses);
        } else {
            model_forward(&s->model, batch, in, out, s->acts, s->scratch, losses, keep);
        }
    }
    for (int p = P - 1; p >= 0; p--) {
        T5Stage* s = &stages[p];
        const void *in = p > 0 ? stages[p - 1].out : NULL, *dout = p < P - 1 ? stages[p + 1].din : NULL;
        if (recompute) { model_forward(&s->model, batch, in, NULL, s->acts, s->scratch, losses, keep); }
        memset(s->scratch, 0xff, (size_t)model_scratch_bytes(&s->model, batch));
        model_backward_inputs(&s->model, batch, in, s->acts, dout, p > 0 ? s->din : NULL, s->scratch);
        if (options & T5_CHAIN_W_AT_ONCE) {
            model_backward_weights(&s->model, batch, s->acts, dout, s->scratch);
        }
    }
    for (int p = 0; p < P; p++) {
        T5Stage* s = &stages[p];
        if (p > 0) { memset(stages[p - 1].out, 0xff, (size_t)model_boundary_bytes(&s->model, batch, 0)); }
        memset(s->scratch, 0xff, (size_t)model_scratch_bytes(&s->model, batch));
        if (!(options & T5_CHAIN_W_AT_ONCE)) {
            model_backward_weights(&s->model, batch, s->acts, p < P - 1 ? stages[p + 1].din : NULL,
                                   s->scratch);
        }
        add_grads(&s->model, grads);
    }
    for (int p = 0; p < P; p++) { t5_stage_close(&stages[p]); }
}

double t5_chain_worst_grad(const ModelConfig* config, const float* a, const float* b, OpsContext* ops) {
    Model model;
    model_init(&model, config, 0, model_num_layers(config), true, ops);
    double error = gpt2_golden_worst_error(&model, a, b);
    model_free(&model);
    return error;
}

double t5_chain_worst_loss(const float* a, const float* b, int num_rows) {
    double worst = 0.0;
    for (int i = 0; i < num_rows; i++) {
        double error = fabs((double)a[i] - (double)b[i]) / (1.0 + fabs((double)b[i]));
        if (!(error <= worst)) { return error > worst ? (worst = error) : INFINITY; }
    }
    return worst;
}

// --- samples ----------------------------------------------------------------------------------------------

void t5_samples_begin(T5Samples* out) {
    *out = (T5Samples){0};
    out->batch = (ModelBatch){
        .cu_seqlens = out->cu_seqlens,
        .tokens = out->tokens,
        .rows = out->rows,
        .targets = out->targets,
        .token_keys = out->keys,
        .dec_cu_seqlens = out->dec_cu_seqlens,
        .dec_tokens = out->dec_tokens,
        .dec_token_keys = out->dec_keys,
        .loss_scale = 1.0f,
    };
}

// Of token `i` of a sample, on one side: 0 encoder, 1 target, 2 key, 3 decoder's key, 4 supervised.
static uint32_t drawn(const T5Sample* sample, int what, int i) {
    uint64_t x = sample->seed + (uint64_t)sample->id * 1000003 + (uint64_t)i * 16 + (uint64_t)what;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u + 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((x ^ (x >> 31)) >> 16);
}

void t5_samples_add(T5Samples* out, const T5Sample* sample, int pad_enc, int pad_dec) {
    ModelBatch* batch = &out->batch;
    const int s = batch->num_seqs++, num_enc = sample->num_enc, num_dec = sample->num_dec;
    const uint32_t vocab = (uint32_t)sample->vocab;
    for (int i = 0; i < num_enc || i < pad_enc; i++) {
        int t = batch->num_tokens++;
        out->tokens[t] = i < num_enc ? (int32_t)(drawn(sample, 0, i) % vocab) : sample->vocab - 1;
        out->keys[t] = drawn(sample, 2, i);
    }
    for (int i = 0; i < num_dec || i < pad_dec; i++) {
        int t = batch->num_dec_tokens++;
        out->dec_keys[t] = drawn(sample, 3, i);
        out->dec_tokens[t] = i >= num_dec ? sample->vocab - 1
                             : i == 0     ? 0
                                          : (int32_t)(drawn(sample, 1, i - 1) % vocab);
        if (i >= num_dec || (int)(drawn(sample, 4, i) % 100) >= sample->percent_supervised) { continue; }
        out->rows[batch->num_rows] = t;
        out->targets[batch->num_rows++] = (int32_t)(drawn(sample, 1, i) % vocab);
    }
    out->seq_lens[s] = num_enc;
    out->dec_seq_lens[s] = num_dec;
    out->cu_seqlens[s + 1] = batch->num_tokens;
    out->dec_cu_seqlens[s + 1] = batch->num_dec_tokens;
    const int enc = batch->num_tokens - out->cu_seqlens[s],
              dec = batch->num_dec_tokens - out->dec_cu_seqlens[s];
    if (enc > batch->max_seq_tokens) { batch->max_seq_tokens = enc; }
    if (dec > batch->max_dec_seq_tokens) { batch->max_dec_seq_tokens = dec; }
    if (enc > num_enc) { batch->seq_lens = out->seq_lens; }
    if (dec > num_dec) { batch->dec_seq_lens = out->dec_seq_lens; }
}
