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

bool models_read_config(ModelConfig* out, const char* model, int vocab, int max_seq_len, char* error) {
    const bool checkpoint = models_is_checkpoint(model);
    if (!checkpoint && !hf_checkpoint_is(model)) {
        return model_parse(out, models_kind_of(model), model, vocab, max_seq_len, error);
    }
    // the file knows its kind; what is wrong with one of neither, the first says
    const ModelKind* const kinds[] = {&t5_kind, &gpt2_kind};
    char other[LLMC_ERROR_CHARS];
    for (int i = 1; i >= 0; i--) {
        char* why = i == 1 ? error : other;
        bool ok = checkpoint ? checkpoint_read_config(out, kinds[i], model, why)
                             : hf_checkpoint_read_config(out, NULL, kinds[i], model, why);
        if (ok) { return true; }
    }
    return false;
}
