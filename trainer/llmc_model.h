/*
llmc_model.h -- this repository's own models (llmc/model.h, any kind) as the plugin takes them: model table,
parameters, and ranges that can be made and measured.
*/
#pragma once

#include "../dynapipe_plugin/dynapipe.h"
#include "../llmc/model.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const DynapipeModel_v1 dynapipe_llmc_model;  // `model` is a Model*
// `tied` is filled and stays with the result.
DynapipeParams_v1 dynapipe_llmc_params(const Model* model, DynapipeTied tied[MODEL_MAX_TIED]);
// Values [begin, end) of a slice's flat array, or of one that goes with it, by their places in the whole
// model's checkpoint (TensorSlice.file_offset), tied copies included. out: room for model->num_slices.
// Returns how many.
int32_t dynapipe_llmc_pieces(DynapipePiece_v1* out, const Model* model, int64_t begin, int64_t end,
                             uint64_t key, int32_t bytes_per_value, void* values);
// The ranges of a rank (without what ModelPart says of its share of the head), and how stages share the head
// (dynapipe_head()).
void dynapipe_llmc_part(ModelPart* out, const ModelConfig* config, const DynapipeRange* ranges,
                        int32_t num_ranges);
void dynapipe_llmc_head(ModelHead* out, int32_t head, const int32_t* begin, int32_t num_stages);

// What the functions of dynapipe_llmc_blocks() work with; lives as long as its result.
typedef struct {
    ModelConfig config;
    OpsContext* ops;  // borrowed
    char signature[400];
} LlmcBlocks;

// Ranges have small made-up values, the same in every range; those of a model of a few million parameters are
// its usual initialisation.
DynapipeBlocks_v1 dynapipe_llmc_blocks(LlmcBlocks* ctx, const ModelConfig* config, OpsContext* ops);

#ifdef __cplusplus
}
#endif
