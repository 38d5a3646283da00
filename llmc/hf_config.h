/*
hf_config.h -- the config.json of a Hugging Face checkpoint, and back: GPT-2, T5, mT5, umT5 (FLAN-T5 and ByT5
are T5).

    HfConfig config;
    if (!hf_config_read(&config, "flan-t5-small", error)) { ... }    // or flan-t5-small/model.safetensors
    char* text = hf_config_text(&config, "float32");                 // free() it

A field that is missing has the value that the model's class in transformers 5 gives it; one of a wrong type,
or one that asks for what we do not run (another activation, epsilon, an encoder alone ...), is an error that
names it. Fields that change nothing of the model (dropout of training, use_cache, task_specific_params ...)
are passed over.
*/
#pragma once

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { HF_GPT2, HF_T5, HF_MT5, HF_UMT5, HF_NUM_TYPES } HfType;

enum { HF_NO_TOKEN = -1 };

typedef struct {
    HfType type;
    ModelConfig
        shape;  // kind NULL; padded_vocab as ours; tied_head: what the flag says, tensors may know better
    bool head_scaled;                                  // hidden states times C^-1/2 before the head (T5)
    int pad_token, bos_token, eos_token, start_token;  // start: the decoder's first; HF_NO_TOKEN: none
    double dropout;
} HfConfig;

// What config.json calls the type: "gpt2", "t5", "mt5", "umt5".
const char* hf_type_name(HfType type);
// A directory, or a file beside config.json.
bool hf_config_read(HfConfig* out, const char* path, char* error);
// `name` stands for the file in messages.
bool hf_config_parse(HfConfig* out, const char* text, size_t num_bytes, const char* name, char* error);

// What transformers needs to build the same model. dtype: "float32" or "bfloat16". mT5 is written as the T5
// that it is.
char* hf_config_text(const HfConfig* config, const char* dtype);
// generation_config.json: the tokens that generate() starts and ends with.
char* hf_config_generation_text(const HfConfig* config);
// The config that a model of ours is exported with: tokens as its kind has them, `like` (may be NULL) where
// it was read from a checkpoint.
HfConfig hf_config_of_model(const ModelConfig* config, const HfConfig* like);

#ifdef __cplusplus
}
#endif
