/*
llmc_model.h -- the plugin on this repository's own models (llmc/model.h, any kind): model table, parameters,
costs.

A foreign model needs the same three things: a DynapipeModel_v1 on its forward and backward, a
DynapipeParams_v1 for its flat parameters, and a cost model whose bytes are exactly what it asks for.
*/
#pragma once

#include "../../llmc/model.h"
#include "../dynapipe.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const DynapipeModel_v1 dynapipe_llmc_model;  // `model` is a Model*
// `tied` is filled and stays with the result.
DynapipeParams_v1 dynapipe_llmc_params(const Model* model, DynapipeTied tied[MODEL_MAX_TENSORS]);
// The slice (model_init) that a range of blocks is.
void dynapipe_llmc_layers(int* layer_begin, int* layer_end, bool* is_last, const ModelConfig* config,
                          DynapipeRange blocks);

// Costs of this model on these ranks: times from --costs (./profile_costs made it for the same shape), else
// an analytic estimate, which on GPUs goes by the card's name: equal plans need equal cards. Bytes always
// from the model itself. *out goes to dynapipe_choose_stages, which frees it.
int dynapipe_llmc_costs(DynapipeCosts** out, const Dynapipe* dp, const ModelConfig* config, int zero_stage);

// The line that a cost file must carry to be used for this model: "gpt2 C 768 NH 12 Vp 50304 threads 1", on a
// GPU "gpt2 C 768 NH 12 Vp 50304 bf16 NVIDIA_H200"; "t5 C 512 NH 6 HS 64 F 1024 gated Vp 32128 threads 1".
void dynapipe_llmc_signature(char* out, size_t out_bytes, const ModelConfig* config, const OpsContext* ops);

#ifdef __cplusplus
}
#endif
