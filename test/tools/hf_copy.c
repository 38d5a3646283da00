// hf_copy FROM TO [bytes]: reads a Hugging Face checkpoint and exports it, one layer at a time, as so many
// ranks would. For dev/check_hf_export.py. FROM's tokenizer goes along; "bytes": ByT5's.
#include <stdio.h>
#include <string.h>

#include "../../llmc/kinds.h"
#include "../../llmc/hf.h"
#include "../../llmc/llmc_error.h"

static bool copy(const char* from, const char* to, bool bytes) {
    HfConfig details;
    ModelConfig config;
    if (!hf_config_read(&details, from)) { return false; }
    const ModelKind* kind = hf_config_kind(&details);
    const HfTokens tokens = {.folders = {from}, .bytes = bytes};
    bool ok = hf_checkpoint_read_config(&config, &details, kind, from) &&
              hf_checkpoint_create(to, &config, &details, &tokens);
    OpsContext* ops = ops_create(1);
    const int num_blocks = ok ? model_num_blocks(&config) : 0;
    for (int b = 0; ok && b < num_blocks; b++) {
        Model model;
        model_init(&model, &config, b, b + 1, b == num_blocks - 1, ops);
        ok = hf_checkpoint_read(from, CHECKPOINT_PARAMS, &model, model.params, 0, model.num_params) &&
             hf_checkpoint_write(to, &model);
        model_free(&model);
    }
    ops_free(ops);
    return ok && hf_checkpoint_commit(to);
}

int main(int argc, char** argv) {
    if (argc < 3) {
        fprintf(stderr, "hf_copy FROM TO [bytes]\n");
        return 1;
    }
    if (copy(argv[1], argv[2], argc > 3 && strcmp(argv[3], "bytes") == 0)) { return 0; }
    fprintf(stderr, "%s\n", status_message());
    return 1;
}
