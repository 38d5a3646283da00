#include "models.h"

#include "checkpoint.h"
#include "gpt2.h"
#include "hf.h"
#include "llmc_error.h"
#include "t5.h"

const ModelKind* models_kind_of(const char* descriptor) {
    return models_is_t5(descriptor) ? &t5_kind : &gpt2_kind;
}

bool models_is_checkpoint(const char* model) {
    size_t num_chars = strlen(model);
    return num_chars > 4 && strcmp(model + num_chars - 4, ".bin") == 0;
}

static bool read_config(ModelConfig* out, const ModelKind* kind, const char* path) {
    return models_is_checkpoint(path) ? llmc_ok(checkpoint_read_config(out, kind, path))
                                      : hf_checkpoint_read_config(out, NULL, kind, path);
}

bool models_read_config(ModelConfig* out, const char* model, int vocab, int max_seq_len) {
    if (!models_is_checkpoint(model) && !hf_checkpoint_is(model)) {
        return model_parse(out, models_kind_of(model), model, vocab, max_seq_len);
    }
    // the kind is known from the file; otherwise the last message is about GPT-2
    return read_config(out, &t5_kind, model) || read_config(out, &gpt2_kind, model);
}
