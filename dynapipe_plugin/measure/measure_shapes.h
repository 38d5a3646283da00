/*
measure_shapes.h -- shapes of made-up micro-batches, as the model's kernels take them (DynapipeShapes_v1), and
their arrays.
*/
#pragma once

#include "../plan/types/plan_types.h"
#include "measure_bytes.h"

// num_seqs windows: one of long_tokens, the others of short_tokens.
typedef struct {
    int32_t num_seqs, long_tokens, short_tokens;
} MeasureSide;

// As many windows on both sides; dec is all zeros of models with one.
typedef struct {
    MeasureSide enc, dec;
    bool crossed;      // of two windows or more: the decoder's long one stands beside a short one
    int32_t num_rows;  // supervised, the last ones (of the decoder's side)
} MeasureShape;

static inline int32_t measure_side_tokens(const MeasureSide* side) {
    return side->num_seqs > 0 ? side->long_tokens + (side->num_seqs - 1) * side->short_tokens : 0;
}

// The nearest shape that the model takes: no window longer than `lengths` or the model allow, padded where it
// must be, not too many squares.
void measure_shape_fit(MeasureShape* shape, const DynapipeBlocks_v1* blocks, const MeasureLengths* lengths);

// A window of at least so many tokens of which any number is a micro-batch that the model takes.
int32_t measure_padded_tokens(const DynapipeBlocks_v1* blocks, int32_t num_tokens);

// Counts alone, arrays NULL.
void measure_shape_counts(DynapipeBatch* out, const MeasureShape* shape);
// What the planner sees of it.
MbShape measure_batch_shape(const DynapipeBatch* batch);

// Room for the arrays of shapes with up to so many tokens on either side.
typedef struct {
    int32_t* memory;
    uint32_t* keys;
    int32_t max_tokens;
    int32_t *cu_seqlens[2], *tokens[2], *positions[2];
    int32_t *rows, *targets, *row_tasks;
} MeasureArrays;

Status measure_arrays_init(MeasureArrays* out, int32_t max_tokens);
void measure_arrays_free(MeasureArrays* arrays);  // an all-zero one is fine
// A batch whose arrays are these.
void measure_shape_batch(DynapipeBatch* out, MeasureArrays* arrays, const MeasureShape* shape, int32_t vocab);
