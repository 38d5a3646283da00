/*
model_bytes.h -- the bytes of a cost model, asked of the model itself: what its kind allocates for some
counts, and how many parameters its slices have.

Parts are differences of slices: a layer is what a slice of two has more than one of one, the embedding what
the first slice has more than one in the middle, and so on. Each is a straight line in tokens of both sides,
sequences and supervised rows that is never below what a slice asks for.
*/
#pragma once

#include "../../llmc/model.h"
#include "../plan/cost_model.h"

// stored, forward, boundary, scratch bytes of every piece. RECOMPUTE_SELECTIVE stays as it is.
void model_bytes_fill(CostModel* out, const ModelConfig* config, OpsContext* ops);

// State and gradients of every piece, and what of it is tied. optimizer_floats: of a parameter, in float32;
// the replicas share these where zero_stage is 1 or more.
void model_bytes_fill_state(CostModel* out, const ModelConfig* config, int32_t optimizer_floats,
                            int32_t num_replicas, int32_t zero_stage);
