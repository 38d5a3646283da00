/*
llmc_model.h -- this repository's models (llmc/model.h, any kind) for the plugin: model table, parameters, and
ranges for measurement.
*/
#pragma once

#include "../dynapipe_plugin/dynapipe.h"
#include "../llmc/model.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const DynapipeModel_v1 dynapipe_llmc_model;  // `model` is a Model*
// `tied` is filled and must live as long as the result.
DynapipeParams_v1 dynapipe_llmc_params(const Model* model, DynapipeTied tied[MODEL_MAX_TIED]);
// Values [begin, end) of a slice's flat array, or of a parallel one, by their places in the whole model's
// checkpoint (TensorSlice.file_offset), tied copies included. out: room for model->num_slices. Returns how
// many.
int32_t dynapipe_llmc_pieces(DynapipePiece_v1* out, const Model* model, int64_t begin, int64_t end,
                             uint64_t key, int32_t bytes_per_value, void* values);
// The ranges of a rank (of its share of the head, only that it has one), and how stages share the head
// (dynapipe_head()).
void dynapipe_llmc_part(ModelPart* out, const ModelConfig* config, const DynapipeRange* ranges,
                        int32_t num_ranges);
ModelHead dynapipe_llmc_head(const ModelConfig* config, int32_t head, const int32_t* begin,
                             int32_t num_stages);

// Context of the functions of dynapipe_llmc_blocks(); must live as long as its result.
typedef struct {
    ModelConfig config;
    OpsContext* ops;  // borrowed
    char signature[400];
} LlmcBlocks;

// Ranges have small synthetic values, the same in every range; models of a few million parameters have the
// usual initialisation.
DynapipeBlocks_v1 dynapipe_llmc_blocks(LlmcBlocks* ctx, const ModelConfig* config, OpsContext* ops);

#ifdef __cplusplus
}
#endif
