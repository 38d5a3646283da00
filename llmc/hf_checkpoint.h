/*
hf_checkpoint.h -- weights of GPT-2 and T5 from Hugging Face's files, and back, by any number of ranks.

Reading, each rank for itself:

    hf_checkpoint_read_config(&config, &details, kind, path, error)      // shape of config.json and of the
tensors hf_checkpoint_read(path, CHECKPOINT_PARAMS, model, model->params, 0, model->num_params, error)

`path` is a directory (model.safetensors or its shards, config.json), or a *.safetensors beside a config.json.
F32, F16 and BF16 are read. A missing tensor, one too many, a wrong shape, a value that is NaN or infinite is
an error that names it; GPT-2's masks, and T5's unused bias of old files, are passed over. The head is tied
where there is no lm_head.weight, or it is the embedding and scaled; else untied, whatever the flag says.

Writing:

    rank 0:      hf_checkpoint_create(directory, &config, &details, &tokens, error)
    -- barrier --
    each rank:   hf_checkpoint_write(directory, model, error)       // of one replica; all slices together are
the model
    -- barrier, with "did all succeed?" --
    rank 0:      hf_checkpoint_commit(directory, error), or hf_checkpoint_abort(directory)

Nothing here ends the program: false means that `error` (256 characters) names file, field or tensor, and the
remedy.
*/
#pragma once

#include "checkpoint.h"
#include "hf_config.h"

#ifdef __cplusplus
extern "C" {
#endif

// A directory with a config.json, a *.safetensors, or an index of shards: something to read here.
bool hf_checkpoint_is(const char* path);
// details (may be NULL): tokens and what else config.json says. `kind`: what the caller can run.
bool hf_checkpoint_read_config(ModelConfig* out, HfConfig* details, const ModelKind* kind, const char* path,
                               char* error);
// As checkpoint_read(): values[i] belongs to model->params[begin + i]; body PARAMS (floatX) or FLOATS
// (float32, a master's first values). The file must be of model->config.
bool hf_checkpoint_read(const char* path, CheckpointBody body, const Model* model, void* values,
                        int64_t begin, int64_t end, char* error);

// What lies beside the weights for whoever turns text into tokens.
typedef struct {
    const char* folder;  // its tokenizer files are copied; NULL: none
    bool bytes;          // ByT5's tokens: a tokenizer without files
} HfTokens;

// Made if it is not there; false where nothing can be exported to it.
bool hf_checkpoint_make_directory(const char* directory, char* error);
// Makes the directory, too. like (may be NULL): the checkpoint's that training began from.
bool hf_checkpoint_create(const char* directory, const ModelConfig* config, const HfConfig* like,
                          const HfTokens* tokens, char* error);
bool hf_checkpoint_write(const char* directory, const Model* model, char* error);
bool hf_checkpoint_commit(const char* directory, char* error);
void hf_checkpoint_abort(const char* directory);

#ifdef __cplusplus
}
#endif
