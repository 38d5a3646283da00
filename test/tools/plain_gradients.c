// plain_gradients.c -- the first step's gradients by the plainest loop there is: one process, one sample at a
// time, no plan, no pipeline, no padding. What every batching, schedule and layout must agree with.
//   plain_gradients DATA DESCRIPTOR MAX_TOKENS BATCH_TOKENS SEED OUT.bin
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../dataloader/loader.h"
#include "../../llmc/gpt2.h"

static void write_checkpoint(const char* path, const Model* model) {
    const ModelConfig* c = &model->config;
    int32_t header[256] = {20240326,     3,           c->max_seq_len, c->vocab, c->num_layers,
                           c->num_heads, c->channels, c->padded_vocab};
    FILE* file = fopen(path, "wb");
    if (file == NULL) { exit(2); }
    fwrite(header, 4, 256, file);
    // The file is tensor by tensor, all layers of one tensor together: ascending file offset.
    int64_t written = 0;
    while (written < model->num_params) {
        for (int i = 0; i < model->num_slices; i++) {
            const TensorSlice* slice = &model->slices[i];
            if (slice->file_offset != written) { continue; }
            fwrite(model->grads + slice->offset, sizeof(float), (size_t)slice->num_values, file);
            written += slice->num_values;
            break;
        }
    }
    fclose(file);
}

static void add_sample(Model* model, const Loader* loader, const LoaderBatch* batch, int i) {
    const LoaderSample* sample = &batch->samples[i];
    int n = sample->n_input + sample->n_target;
    int32_t* tokens = malloc(sizeof(int32_t) * (size_t)n);
    int32_t* rows = malloc(sizeof(int32_t) * (size_t)n);
    int32_t* targets = malloc(sizeof(int32_t) * (size_t)n);
    int32_t* positions = malloc(sizeof(int32_t) * (size_t)n);
    if (loader_read(loader, sample, tokens) != STATUS_OK) { exit(2); }
    int num_rows = 0;
    for (int t = 0; t < n - 1; t++) {
        positions[t] = t;
        if (t + 1 < sample->n_input) { continue; }  // predicts a token of the input
        rows[num_rows] = t;
        targets[num_rows++] = tokens[t + 1];
    }
    int32_t cu_seqlens[2] = {0, n - 1};
    ModelBatch one = {1, n - 1, num_rows, n - 1, cu_seqlens, tokens, positions, rows, targets};
    one.loss_scale = (float)(1.0 / (double)batch->supervised_tokens);
    void* acts = aligned_alloc(
        256, ((size_t)gpt2_acts_bytes(model, n - 1, num_rows, MODEL_KEEP | MODEL_HEAD) + 255) / 256 * 256);
    void* scratch =
        aligned_alloc(256, ((size_t)gpt2_scratch_bytes(model, n - 1, num_rows, n - 1) + 255) / 256 * 256);
    float* losses = malloc(sizeof(float) * (size_t)(num_rows + 1));
    gpt2_forward(model, &one, NULL, NULL, acts, scratch, losses, MODEL_KEEP | MODEL_HEAD);
    gpt2_backward_inputs(model, &one, NULL, acts, NULL, NULL, scratch);
    gpt2_backward_weights(model, &one, acts, NULL, scratch);
    free(losses);
    free(scratch);
    free(acts);
    free(positions);
    free(targets);
    free(rows);
    free(tokens);
}

int main(int argc, char** argv) {
    if (argc != 7) {
        return fprintf(stderr, "usage: plain_gradients DATA DESCRIPTOR MAX_TOKENS BATCH_TOKENS SEED OUT\n"),
               2;
    }
    LoaderOptions options = {.batch_tokens = atoll(argv[4]),
                             .max_seq_tokens = atoi(argv[3]),
                             .seed = strtoull(argv[5], NULL, 10),
                             .shuffle = true};
    Loader* loader;
    LoaderBatch batch;
    Arena arena = {0};
    if (loader_open(&loader, argv[1], &options) != STATUS_OK ||
        loader_next(loader, &batch, &arena) != STATUS_OK) {
        return fprintf(stderr, "%s\n", status_message()), 2;
    }
    char error[256];
    ModelConfig config;
    if (!model_parse(&config, &gpt2_kind, argv[2], loader_vocab(loader), atoi(argv[3]), error)) {
        return fprintf(stderr, "%s\n", error), 2;
    }
    Model model;
    OpsContext* ops = ops_create(1);
    model_init(&model, &config, 0, config.num_layers, true, ops);
    model_alloc_grads(&model);
    gpt2_init_random(&model, (uint32_t)options.seed);
    for (int i = 0; i < batch.num_samples; i++) { add_sample(&model, loader, &batch, i); }
    write_checkpoint(argv[6], &model);
    model_free(&model);
    ops_free(ops);
    arena_free(&arena);
    loader_close(loader);
    return 0;
}
