/*
measure_pieces.h -- a quantity of ranges (bytes, parameters) taken apart into what each piece of a stage has.
*/
#pragma once

#include "measure_ranges.h"

// Ranges with a part in it; those that this chain cannot have (it is too short) are invalid.
enum {
    RANGE_WHOLE,
    RANGE_FIRST,      // layer 0, with the embedding
    RANGE_FIRST_TWO,  // layers 0 and 1
    RANGE_ENC,        // layer 1: a middle one, unless it ends an encoder
    RANGE_ENC_TWO,    // layers 1 and 2, likewise
    RANGE_ENC_END,    // the encoder's last layer
    RANGE_ACROSS,     // that and the decoder's first
    RANGE_DEC_FIRST,
    RANGE_DEC_FIRST_TWO,
    RANGE_DEC,  // its second layer
    RANGE_DEC_TWO,
    RANGE_DEC_HEAD,  // the whole decoder and the head
    RANGE_LAST,      // the last layer and the head
    RANGE_HEAD,      // the head alone
    RANGE_OTHERS,    // from here on: only looked at, for what the pieces leave out
    RANGE_COUNT = RANGE_OTHERS + 12
};

typedef struct {
    const DynapipeBlocks_v1* blocks;
    MeasureSlice slices[RANGE_COUNT];
    bool valid[RANGE_COUNT];
    int32_t count[RANGE_COUNT][PIECE_COUNT];  // of each piece in the range
} MeasureRanges;

void measure_ranges_find(MeasureRanges* out, const DynapipeBlocks_v1* blocks);

// value[range] -> piece[], each >= 0, no range's sum of pieces below its value. Of an exact sum of pieces:
// these, where the chain is long enough to tell them apart.
void measure_pieces(double piece[PIECE_COUNT], const MeasureRanges* ranges, const double value[RANGE_COUNT]);
