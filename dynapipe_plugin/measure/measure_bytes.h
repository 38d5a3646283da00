/*
measure_ranges.h -- ranges of a model's chain, named by their layers, and the model of one while it is needed.

Layers are numbered along the chain, an encoder's first. A stage is layers [begin, end), with the embedding
where it begins at 0, with the head where has_head; only the head may be without a layer (DynapipeRange counts
blocks instead).
*/
#pragma once

#include <stdbool.h>
#include "../dynapipe.h"
#include "../plan/cost_model.h"
#include "../plan/types.h"
#include "../run/session.h"
#include "../../util/status.h"

typedef struct {
    int32_t begin, end;
    bool has_head;
} MeasureSlice;

static inline int32_t measure_num_layers(const DynapipeBlocks_v1* blocks) {
    return blocks->num_layers + blocks->num_dec_layers;
}

// May a stage be this slice? (What is left of the chain must be stages too.)
bool measure_slice_valid(const DynapipeBlocks_v1* blocks, MeasureSlice slice);
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
// A call of the model's api returned `error`.
Status measure_failed(const DynapipeBlocks_v1* blocks, const char* function, int error);

// --- measure_bytes --------------------
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

// --- measure_shapes --------------------
/*
measure_shapes.h -- shapes of made-up micro-batches, as the model's kernels take them (DynapipeShapes_v1), and
their arrays.
*/

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

// --- measure_lines --------------------
/*
measure_lines.h -- the tightest straight lines that are nowhere below some points.

    minimise   sum over points of (line(x) - y) / y        so that small shapes count as much as large ones
    subject to line(x) = constant + sum of slope[f] * x[f] >= y,  constant, slope[f] >= 0

A linear program of eight unknowns (Dantzig 1947): its dual has a row for each of them and a column for each
point, and the simplex method on it begins with nothing, which is feasible. Where points lie on such a line it
is found; where they are the largest of several lines, or rounded up, the result is above all of them.
*/

typedef struct {
    double x[FEATURE_COUNT];
    double y;  // bytes, >= 0
} MeasurePoint;

// STATUS_NO_MEMORY, else *out is above every point.
Status measure_lines_fit(CostFormula* out, const MeasurePoint* points, int32_t num_points);

// --- measure_pieces --------------------
/*
measure_pieces.h -- a quantity of ranges (bytes, parameters) taken apart into what each piece of a stage has.
*/

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

// value[range] -> piece[], each >= 0, no range's sum of pieces below its value. Of an exact sum of pieces:
// these, where the chain is long enough to tell them apart.
void measure_pieces(double piece[PIECE_COUNT], const MeasureRanges* ranges, const double value[RANGE_COUNT]);

// --- measure_agree --------------------
// measure_agree.h -- one cost model for all ranks.

// All ranks have asked their models for bytes and state (`status`: how that went); *out becomes the same on
// all of them: where they differ, no rank's bytes are more than what it says. A collective.
Status measure_agree(CostModel* out, Dynapipe* dp, Status status);
