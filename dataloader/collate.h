/*
collate.h -- from samples to the arrays a model reads (DynapipeBatch), in any layout.

A sample of n tokens gives n - 1 rows: token i predicts token i + 1; the rows whose prediction lies in the
target are supervised (or all). Padding rows hold the end-of-text token, carry on the positions, and are never
supervised.
*/
#pragma once

#include "../dynapipe_plugin/base/arena.h"
#include "../dynapipe_plugin/base/status.h"
#include "../dynapipe_plugin/dynapipe.h"
#include "../dynapipe_plugin/plan/plan_types.h"
#include "loader.h"

// Build one micro-batch from `sequences` (with `segments` naming samples of `batch` by index). Reads the
// tokens.
Status collate(DynapipeBatch* out, const Loader* loader, const LoaderBatch* batch,
               const PlanSequence* sequences, int32_t num_sequences, const PlanSegment* segments,
               bool supervise_inputs, Arena* arena);
