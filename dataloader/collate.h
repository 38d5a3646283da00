/*
collate.h -- from samples to the arrays a model reads (DynapipeBatch), in any layout.

One stack: a sample of n tokens gives n - 1 rows: token i predicts token i + 1; the rows whose prediction lies
in the target, and in no gap of it, are supervised (or all). Encoder-decoder: the encoder's side is the input
(an empty one: one end-of-text token), the decoder's a start token and the target without its last token; row
i predicts token i of the target, all are supervised, and rows and targets are of the decoder's side. Segments
are whole samples then, and name both sides.

Padding holds pad_token, carries on the positions, lies after a window's samples and is never supervised;
seq_lens (NULL where a side has no padding) says where it begins.
*/
#pragma once

#include "../util/arena.h"
#include "../util/status.h"
#include "../dynapipe_plugin/dynapipe.h"
#include "../dynapipe_plugin/plan/types.h"
#include "loader.h"

typedef struct {
    uint64_t seed;          // of token_keys, with `step`
    int64_t step;           // that the batch is for
    bool supervise_inputs;  // these two as the loader was opened
    bool encoder_decoder;
    int32_t pad_token;    // any id; -1: the data's padding token, or end-of-text where it has none
    int32_t start_token;  // before every target; -1: the same
} CollateParams;

// Build one micro-batch from `sequences` (with `segments` naming samples of `batch` by index). Reads the
// tokens. loss_scale stays 0: the caller's.
Status collate(DynapipeBatch* out, const Loader* loader, const LoaderBatch* batch,
               const PlanSequence* sequences, int32_t num_sequences, const PlanSegment* segments,
               const CollateParams* params, Arena* arena);

// The key of token `position` of one side of sample `sample_idx` of the global batch (as run through the
// model: 0 is the first that it sees, is_decoder the decoder's side). The same however samples are grouped.
uint32_t collate_token_key(const CollateParams* params, int32_t sample_idx, int32_t position,
                           bool is_decoder);
