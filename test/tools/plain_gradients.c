// plain_gradients.c -- the first step's gradients of a run (test/plain_gradients.h), as a checkpoint.
//   plain_gradients DATA DESCRIPTOR MAX_TOKENS BATCH_TOKENS SEED OUT.bin [MAX_TARGET_TOKENS: a T5]
#include <stdio.h>
#include <stdlib.h>

#include "../../llmc/kinds.h"
#include "../plain_gradients.h"

static void write_checkpoint(const char* path, const Model* model) {
    const ModelConfig* c = &model->config;
    int32_t header[256] = {[1] = 3};
    model_to_header(header, c);
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

int main(int argc, char** argv) {
    if (argc != 7 && argc != 8) {
        return fprintf(stderr, "usage: plain_gradients DATA DESCRIPTOR MAX_TOKENS BATCH_TOKENS SEED OUT\n"),
               2;
    }
    LoaderOptions options = {.batch_tokens = atoll(argv[4]),
                             .max_seq_tokens = atoi(argv[3]),
                             .seed = strtoull(argv[5], NULL, 10),
                             .encoder_decoder = argc == 8,
                             .max_target_tokens = argc == 8 ? atoi(argv[7]) : 0,
                             .shuffle = true};
    Model model;
    OpsContext* ops = ops_create(1);
    plain_gradients(&model, ops, models_kind_of(argv[2]), argv[2], argv[1], &options);
    write_checkpoint(argv[6], &model);
    model_free(&model);
    ops_free(ops);
    return 0;
}
