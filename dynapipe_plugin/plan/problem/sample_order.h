/*
sample_order.h -- puts the samples of a global batch on a line, so that neighbours are alike in length.

Decoder-only: descending (enc, dec, id), as the original does (spec section b). Encoder-decoder: sorted by
encoder length into bands, each band by decoder length, turning at every band (a snake), so that both lengths
change slowly along the line.
*/
#pragma once

#include "../../../util/arena.h"
#include "../../../util/status.h"
#include "../types/plan_types.h"

// order[k] = id of the k-th sample. All ids, each once.
Status sample_order_make(int32_t* order, const PlanSample* samples, int32_t num_samples, Arena* arena);
// Descending (enc, dec, id) whatever the model: the original without its travelling salesman.
Status sample_order_sorted(int32_t* order, const PlanSample* samples, int32_t num_samples, Arena* arena);
