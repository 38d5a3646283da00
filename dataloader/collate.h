/*
collate.h -- from samples to the arrays a model reads (DynapipeBatch), in any layout.

One stack: a sample of n tokens gives n - 1 rows: token i predicts token i + 1. Supervised are the rows whose
prediction is in the target and not in a gap, or all of them. Encoder-decoder: the encoder's side is the input
(one end-of-text token if it is empty), the decoder's side a start token and the target without its last
token. Row i predicts token i of the target, all rows are supervised, and rows and targets belong to the
decoder's side. Segments are then whole samples and cover both sides.

The first window may be a piece of a sample (dynapipe.h): one segment of part of it, without padding; other
windows only beside a sample's last piece. An encoder-decoder's piece is one of decoder tokens, which its
segment then counts; its window has the encoder's tokens in the first piece and none in later ones.

Padding contains the data's padding token (end-of-text if it has none), as a target's start does, continues
the positions, comes after a window's samples and is never supervised; seq_lens (NULL if a side has no
padding) gives its begin.
*/
#pragma once

#include "../util/arena.h"
#include "../util/status.h"
#include "../dynapipe_plugin/dynapipe.h"
#include "../dynapipe_plugin/plan/types.h"
#include "loader.h"

typedef struct {
    uint64_t seed;          // of token_keys, with `step`
    int64_t step;           // step of the batch
    bool supervise_inputs;  // as in the loader's options
    bool encoder_decoder;
} CollateParams;

// Builds one microbatch from `sequences`, whose `segments` name samples of `batch` by index, as plan_check
// asks for them. Reads the tokens. The caller sets loss_scale.
Status collate(DynapipeBatch* out, const Loader* loader, const LoaderBatch* batch,
               const PlanSequence* sequences, int32_t num_sequences, const PlanSegment* segments,
               const CollateParams* params, Arena* arena);

// The key of token `position` of one side of sample `sample_idx` of the global batch (position 0 is the
// first in the model; is_decoder: the decoder's side). Independent of the grouping of samples.
uint32_t collate_token_key(const CollateParams* params, int32_t sample_idx, int32_t position,
                           bool is_decoder);
