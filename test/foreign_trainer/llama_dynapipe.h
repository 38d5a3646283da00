// llama_dynapipe.h -- the Llama of llama.h as DynaPipe takes it.
#pragma once

#include "../../dynapipe_plugin/dynapipe.h"

#include "llama.h"

// A range of the model: `config` with the number of its own layers.
typedef struct {
    LlamaConfig config;
    int first_layer, parts;  // LLAMA_EMBEDDING, LLAMA_HEAD
    DynapipeParams_v1 about;
    DynapipeTied tied;
    LlamaTensors params, grads;
} Slice;

// As DynapipeBlocks_v1 has them; ctx is a LlamaConfig*, a model is a Slice*.
int llama_make_slice(void* ctx, DynapipeRange blocks, int has_values, void** model,
                     DynapipeParams_v1* params);
void llama_drop_slice(void* ctx, void* model);
DynapipeModel_v1 llama_table(void);
// api, config and signature stay behind the result.
DynapipeBlocks_v1 llama_blocks(const DynapipeModel_v1* api, LlamaConfig* config, char signature[128],
                               int threads);
