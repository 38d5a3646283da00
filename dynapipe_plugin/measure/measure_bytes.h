/*
measure_bytes.h -- the bytes and parameters of a cost model, asked of the model's own ranges.

At some hundred shapes every kind of range is asked for its bytes. A layer is what a range of two has more
than one of one, the embedding what the first has more than one in the middle, and so on; what a sampled range
still asks for beyond the sum of its pieces goes to one of them, so that at these shapes no sum is too small.
Then each piece becomes straight lines above its points (measure_lines.h). That holds between and beyond the
points where bytes are sums of linear terms in the counts, the largest of such sums, and these rounded up;
products of counts only where they are num_squares, num_dec_squares or num_cross (in a padded model also
num_seqs * max_seq_tokens and so on, which are the same).
*/
#pragma once

#include "measure_ranges.h"

// The longest that a side of a batch gets.
typedef struct {
    int32_t seq_tokens, target_tokens;  // target_tokens 0: one side
} MeasureLengths;

// stored, forward, boundary, scratch bytes. out->num_*_layers are set before.
Status measure_bytes_fill(CostModel* out, const DynapipeBlocks_v1* blocks, const MeasureLengths* lengths);

// State and gradients of every piece, and what of it is tied. The replicas share the optimizer's state where
// zero_stage is 1 or more.
Status measure_state_fill(CostModel* out, const DynapipeBlocks_v1* blocks, int32_t num_replicas,
                          int32_t zero_stage);
