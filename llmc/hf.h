/*
hf.h -- Hugging Face checkpoints: config, weights.
*/
#pragma once

#include "checkpoint.h"
#include "completion.h"
#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- config.json -------------------------------------------------------------------------------------------
/*
The config.json of a Hugging Face checkpoint, read and written: GPT-2, T5, mT5, umT5 (FLAN-T5 and ByT5 are
T5), Llama, Qwen2.

    HfConfig config;
    if (!hf_config_read(&config, "flan-t5-small")) { ... }    // or flan-t5-small/model.safetensors
    char* text = hf_config_text(&config, "float32");                 // free() it

A missing field has the default of the model's class in transformers 5. A field of a wrong type or with an
unsupported value (another activation, epsilon, an encoder alone ...) is an error that names it. Fields that
do not affect the model (dropout of training, use_cache, task_specific_params ...) are ignored.
*/

typedef enum { HF_GPT2, HF_T5, HF_MT5, HF_UMT5, HF_LLAMA, HF_QWEN2, HF_NUM_TYPES } HfType;

enum { HF_NO_TOKEN = -1 };

typedef struct {
    HfType type;
    ModelConfig shape;  // kind NULL; padded_vocab as ours; tied_head: the flag, to be checked against tensors
    bool head_scaled;   // hidden states times C^-1/2 before the head (T5)
    int pad_token, bos_token, start_token;  // start: the decoder's first; HF_NO_TOKEN: none
    TokenEnds ends;                         // eos_token_id, which may be a list
    double dropout;
    const char* generation;  // (optional, borrowed) folder whose generation_config.json an export continues
} HfConfig;

const ModelKind* hf_config_kind(const HfConfig* config);
const char* hf_config_type(const HfConfig* config);  // model_type
// A directory, or a file beside config.json. As in transformers, the ends of a generation_config.json there
// stand for config.json's.
bool hf_config_read(HfConfig* out, const char* path);
// `name` stands for the file in messages.
bool hf_config_parse(HfConfig* out, const char* text, size_t num_bytes, const char* name);

// The fields that transformers needs to build the same model. dtype: "float32" or "bfloat16".
char* hf_config_text(const HfConfig* config, const char* dtype);
// generation_config.json: that of config->generation with our ends, else the tokens that generate() starts
// and ends with.
char* hf_config_generation_text(const HfConfig* config);
// The ends of a folder's generation_config.json, of a model of `vocab` tokens (without any there, *out stays)
// and its bos_token_id (*bos_token stays without the file).
bool hf_ends_read(TokenEnds* out, int* bos_token, const char* folder, int vocab);
// The config for exporting a model of ours: tokens of its kind, or of `like` (may be NULL), the checkpoint
// it was read from.
HfConfig hf_config_of_model(const ModelConfig* config, const HfConfig* like);

// --- weights, read -----------------------------------------------------------------------------------------
/*
Weights of these models from Hugging Face's files, and back, by any number of ranks.

Reading, each rank for itself:

    hf_checkpoint_read_config(&config, &details, kind, path)      // shape from config.json and tensors
    hf_checkpoint_read(path, CHECKPOINT_PARAMS, model, model->params, 0, model->num_params)

`path` is a directory (model.safetensors or its shards, config.json), or a *.safetensors beside a config.json.
F32, F16 and BF16 are read. A missing or unexpected tensor, a wrong shape, a NaN or infinite value is an error
that names it; GPT-2's masks, Llama's angles and T5's unused bias of old files are ignored. T5's head is tied
if there is no lm_head.weight, or if it equals the embedding, and is scaled; otherwise untied, whatever the
flag (and without lm_head.weight begins with the embedding's values). Llama's is tied if the flag says so and
there is no other lm_head.weight.

Writing:

    rank 0:      hf_checkpoint_create(directory, &config, &details, &tokens)
    -- barrier --
    each rank:   hf_checkpoint_write(directory, model)       // all slices of one replica
    -- barrier, with "did all succeed?" --
    rank 0:      hf_checkpoint_commit(directory), or hf_checkpoint_abort(directory)

Nothing here ends the program: on false status_message() names file, field or tensor, and the remedy.
*/

// The folder of these files, given as that or as one of them.
const char* hf_folder(const char* path, char out[CHECKPOINT_PATH_CHARS]);
// Is it a directory with a config.json, a *.safetensors, or an index of shards?
bool hf_checkpoint_is(const char* path);
// details (may be NULL): tokens and other fields of config.json. `kind`: the supported kind; NULL: any.
bool hf_checkpoint_read_config(ModelConfig* out, HfConfig* details, const ModelKind* kind, const char* path);
// As checkpoint_read(): values[i] belongs to model->params[begin + i]; body PARAMS (floatX) or FLOATS
// (float32, a master's first values). The file must be of model->config.
bool hf_checkpoint_read(const char* path, CheckpointBody body, const Model* model, void* values,
                        int64_t begin, int64_t end);

// The tokenizer files exported beside the weights.
typedef struct {
    const char* folders[2];  // a file is copied from the first that has it; NULL: none
    bool bytes;              // ByT5's tokens: a tokenizer without files
} HfTokens;

// Creates it if needed; false if nothing can be exported to it.
bool hf_checkpoint_make_directory(const char* directory);
// Creates the directory, too. like (may be NULL): the config of the initial checkpoint.
bool hf_checkpoint_create(const char* directory, const ModelConfig* config, const HfConfig* like,
                          const HfTokens* tokens);
bool hf_checkpoint_write(const char* directory, const Model* model);
bool hf_checkpoint_commit(const char* directory);
void hf_checkpoint_abort(const char* directory);

// --- any model ---------------------------------------------------------------------------------------------

bool models_is_checkpoint(const char* model);  // by its name, *.bin
// The shape of a descriptor, a checkpoint (.bin), a run's folder (its newest) or Hugging Face's files (a
// folder, a .safetensors), of any kind. vocab, max_seq_len: for a descriptor; 0: the kind's.
bool models_read_config(ModelConfig* out, const char* model, int vocab, int max_seq_len);

#ifdef __cplusplus
}
#endif
