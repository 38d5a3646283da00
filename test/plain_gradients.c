#include "plain_gradients.h"

#include <stdio.h>
#include <stdlib.h>

static void* room(int64_t num_bytes) {
    return aligned_alloc(256, ((size_t)num_bytes + 255) / 256 * 256 + 256);
}

static void add_batch(Model* model, const ModelBatch* one) {
    void *acts = room(model_acts_bytes(model, one, MODEL_KEEP | MODEL_HEAD)),
         *scratch = room(model_scratch_bytes(model, one));
    float* losses = room((int64_t)sizeof(float) * one->num_rows);
    model_forward(model, one, NULL, NULL, acts, scratch, losses, MODEL_KEEP | MODEL_HEAD);
    model_backward_inputs(model, one, NULL, acts, NULL, NULL, scratch);
    model_backward_weights(model, one, acts, NULL, scratch);
    free(losses);
    free(scratch);
    free(acts);
}

// Decoder-only: input and target are one sequence. Else the decoder reads the start token (padding's id) and
// the target without its last token.
static void add_sample(Model* model, const Loader* loader, const LoaderBatch* batch, int i) {
    const LoaderSample* sample = &batch->samples[i];
    const bool two_sides = model->config.kind->has_decoder;
    int n = sample->n_input + sample->n_target, num_rows = 0;
    int32_t *tokens = room(4 * n), *rows = room(4 * n), *targets = room(4 * n), *positions = room(4 * n);
    int32_t* said = room(4 * n);
    if (loader_read(loader, sample, tokens) != STATUS_OK) { exit(2); }
    for (int t = 0; t < n; t++) { positions[t] = t; }
    for (int t = 0; two_sides && t < sample->n_target; t++) {
        said[t] = t == 0 ? loader_info(loader)->pad_token : tokens[sample->n_input + t - 1];
        rows[num_rows] = t;
        targets[num_rows++] = tokens[sample->n_input + t];
    }
    const SampleGap* gaps;
    const int num_gaps = two_sides ? 0 : loader_gaps(loader, sample, &gaps);
    for (int t = 0; !two_sides && t < n - 1; t++) {
        bool is_learnt = t + 1 >= sample->n_input;  // else it predicts a token of the input
        for (int g = 0; g < num_gaps; g++) {
            is_learnt &= t + 1 < (int)gaps[g].begin || t + 1 >= (int)gaps[g].end;
        }
        if (!is_learnt) { continue; }
        rows[num_rows] = t;
        targets[num_rows++] = tokens[t + 1];
    }
    int num_tokens = two_sides ? sample->n_input : n - 1, num_said = two_sides ? sample->n_target : 0;
    int32_t cu_seqlens[2] = {0, num_tokens}, dec_cu_seqlens[2] = {0, num_said};
    ModelBatch one = {.num_seqs = 1,
                      .num_tokens = num_tokens,
                      .num_rows = num_rows,
                      .max_seq_tokens = num_tokens,
                      .cu_seqlens = cu_seqlens,
                      .tokens = tokens,
                      .positions = positions,
                      .rows = rows,
                      .targets = targets,
                      .loss_scale = (float)(1.0 / (double)batch->supervised_tokens),
                      .num_dec_tokens = num_said,
                      .max_dec_seq_tokens = num_said,
                      .dec_cu_seqlens = dec_cu_seqlens,
                      .dec_tokens = said,
                      .dec_positions = positions};
    add_batch(model, &one);
    free(said);
    free(positions);
    free(targets);
    free(rows);
    free(tokens);
}

void plain_gradients(Model* model, OpsContext* ops, const ModelKind* kind, const char* descriptor,
                     const char* data, const LoaderOptions* options) {
    Loader* loader;
    LoaderBatch batch;
    Arena arena = {0};
    ModelConfig config;
    if (loader_open(&loader, data, options) != STATUS_OK ||
        loader_next(loader, &batch, &arena) != STATUS_OK) {
        fprintf(stderr, "%s\n", status_message());
        exit(2);
    }
    if (!model_parse(&config, kind, descriptor, loader_info(loader)->vocab, options->max_seq_tokens)) {
        fprintf(stderr, "%s\n", status_message());
        exit(2);
    }
    model_init(model, &config, 0, model_num_blocks(&config), true, ops);
    model_alloc_grads(model);
    model_init_random(model, (uint32_t)options->seed);
    for (int i = 0; i < batch.num_samples; i++) { add_sample(model, loader, &batch, i); }
    arena_free(&arena);
    loader_close(loader);
}
