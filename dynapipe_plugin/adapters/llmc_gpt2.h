/*
llmc_gpt2.h -- the plugin on this repository's own GPT-2 (llmc/gpt2.h): its model table, its costs.

Another model needs the same three things: a DynapipeModel_v1 on its forward and backward, a DynapipeParams_v1
for its flat parameters, and a cost model whose bytes are exactly what it asks for.
*/
#pragma once

#include "../../llmc/gpt2.h"
#include "../dynapipe.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const DynapipeModel_v1 dynapipe_gpt2_model;  // `model` is a Gpt2*
DynapipeParams_v1 dynapipe_gpt2_params(const Gpt2* model);

// Costs of this model on these ranks: times from --costs (./profile_costs made it for the same shape), else
// an analytic estimate, which on GPUs goes by the card's name: equal plans need equal cards. Bytes always
// from the model itself. *out goes to dynapipe_choose_stages, which frees it.
int dynapipe_gpt2_costs(DynapipeCosts** out, const Dynapipe* dp, const Gpt2Config* config, int zero_stage);

// The line that a cost file must carry to be used for this model: "gpt2 C 768 NH 12 Vp 50304 threads 1", on a
// GPU "gpt2 C 768 NH 12 Vp 50304 bf16 NVIDIA_H200".
void dynapipe_gpt2_signature(char* out, size_t out_bytes, const Gpt2Config* config, const OpsContext* ops);

#ifdef __cplusplus
}
#endif
