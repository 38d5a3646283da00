/*
measure_ranges.h -- ranges of a model's chain, named by their layers, and the model of one while it is needed.

Layers are numbered along the chain, an encoder's first. A stage is layers [begin, end), with the embedding
where it begins at 0, with the head where has_head; only the head may be without a layer (DynapipeRange counts
blocks instead).
*/
#pragma once

#include <stdbool.h>

#include "../../util/status.h"
#include "../dynapipe.h"
#include "../plan/cost/cost_model.h"

typedef struct {
    int32_t begin, end;
    bool has_head;
} MeasureSlice;

static inline int32_t measure_num_layers(const DynapipeBlocks_v1* blocks) {
    return blocks->num_layers + blocks->num_dec_layers;
}

// May a stage be this slice? (What is left of the chain must be stages too.)
bool measure_slice_valid(const DynapipeBlocks_v1* blocks, MeasureSlice slice);
DynapipeRange measure_slice_blocks(const DynapipeBlocks_v1* blocks, MeasureSlice slice);
CostStage measure_slice_stage(const DynapipeBlocks_v1* blocks, MeasureSlice slice);

typedef struct {
    void* model;
    DynapipeParams_v1 params;
} MeasureModel;

// blocks->make() and ->drop(); what they say of a failure becomes the message.
Status measure_make(MeasureModel* out, const DynapipeBlocks_v1* blocks, MeasureSlice slice, bool has_values);
void measure_drop(const DynapipeBlocks_v1* blocks, MeasureModel* model);  // an all-zero one is fine
// Can its head be shared? Then the last layer may be a range without it (MEASURE_PLAIN), or feed it, and the
// head's matrix alone is a share by rows.
typedef enum { MEASURE_PLAIN, MEASURE_FEEDS, MEASURE_SHARE, MEASURE_HEAD_COUNT } MeasureHead;
bool measure_shares_head(const DynapipeBlocks_v1* blocks);
Status measure_make_head(MeasureModel* out, const DynapipeBlocks_v1* blocks, MeasureHead which);
// A call of the model's api returned `error`.
Status measure_failed(const DynapipeBlocks_v1* blocks, const char* function, int error);
