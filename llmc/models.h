// models.h -- the kinds of models, and which one a descriptor names.
#pragma once

#include <stdio.h>
#include <string.h>

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

// T5 and its descendants have it in the family's name: t5: t5v1.1: flan-t5: byt5: mt5: umt5:
static inline bool models_is_t5(const char* descriptor) {
    const char* colon = strchr(descriptor, ':');
    const char* found = strstr(descriptor, "t5");
    return found != NULL && (colon == NULL || found < colon);
}

// What costs of a model depend on besides its vocabulary: "gpt2 C 768 NH 12", "t5 C 512 NH 6 HS 64 F 1024
// gated".
static inline void models_signature(char* out, size_t out_bytes, const ModelConfig* config) {
    if (config->head_size == 0) {
        snprintf(out, out_bytes, "gpt2 C %d NH %d", config->channels, config->num_heads);
    } else {
        snprintf(out, out_bytes, "t5 C %d NH %d HS %d F %d%s", config->channels, config->num_heads,
                 config->head_size, config->ffn_channels, config->gated ? " gated" : "");
    }
}

// gpt2_kind if it is not one of T5's; its parse() then lists the valid descriptors.
const ModelKind* models_kind_of(const char* descriptor);

bool models_is_checkpoint(const char* model);  // by its name, *.bin

// The shape of a descriptor, a checkpoint (.bin) or Hugging Face's files (a folder, a .safetensors), of any
// kind. vocab, max_seq_len: for a descriptor; 0: the kind's.
bool models_read_config(ModelConfig* out, const char* model, int vocab, int max_seq_len);

#ifdef __cplusplus
}
#endif
