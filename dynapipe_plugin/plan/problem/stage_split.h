/*
stage_split.h -- contiguous layers onto P stages by their mean work: where the search for a split begins.
*/
#pragma once

#include "../../../util/status.h"
#include "../cost/machine.h"
#include "../types/plan_request.h"

// Layers onto request->P stages: minimise the slowest stage for the samples of `num_batches` global batches,
// embedding and head priced in, within request->memory_limit_bytes (exact: dynamic program over contiguous
// ranges). Every stage gets at least one layer, but the last may have the head alone (where the rules let
// it). request->stages and batching are not looked at.
Status stage_split_make(LayerRange* out, const PlanRequest* request, const CostModel* costs,
                        const PlanSample* samples, int32_t num_samples, int32_t num_batches);

// "4,4,3,1": layers of each of P stages, digits only, that add up to num_layers; the last of several may be
// 0, the head alone, unless head_has_layer. STATUS_BAD_OPTION says which numbers it must be.
Status stage_split_parse(LayerRange* out, int32_t P, int32_t num_layers, bool head_has_layer,
                         const char* text);
