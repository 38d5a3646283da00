/*
measure_bytes.h -- the bytes and parameters of a cost model, asked of the model's own ranges at every start
(milliseconds); and the ranges and made-up batches that measuring works with.

Every kind of range is asked for its bytes at some hundred shapes. A block is what a range has more that
ends one block later, the embedding what the first range has more than one in the middle, and so on; what a
sampled range needs beyond the sum of its pieces is added to one of them, so that no sum is too small at these
shapes. Then each piece becomes straight lines above its points (measure_lines_fit). That holds between and
beyond the points where bytes are sums of linear terms in the counts, the largest of such sums, and these
rounded up; products of counts only where they are num_squares, num_dec_squares or num_cross (in a padded
model also num_seqs * max_seq_tokens and so on, which are the same).
*/
#pragma once

#include <stdbool.h>
#include "../../util/arena.h"
#include "../../util/status.h"
#include "../dynapipe.h"
#include "../plan/cost_model.h"

// Blocks [begin, end) of layers along the chain, an encoder's first; with the embedding where it begins at 0,
// with the head where has_head. Only the head may be without a block. (DynapipeRange counts embeddings, too.)
typedef struct {
    int32_t begin, end;
    bool has_head;
} MeasureSlice;

typedef struct {
    void* model;
    DynapipeParams_v1 params;
} MeasureModel;

static inline PlanChain measure_chain(const DynapipeBlocks_v1* blocks) {
    PlanChain chain = {blocks->num_layers, blocks->num_dec_layers, 1, 1, blocks->last_in_rows != 0};
    if (blocks->layer_blocks > 0) { chain.enc_blocks = blocks->layer_blocks; }
    if (blocks->dec_layer_blocks > 0) { chain.dec_blocks = blocks->dec_layer_blocks; }
    return chain;
}
static inline int32_t measure_num_blocks(const DynapipeBlocks_v1* blocks) {
    const PlanChain chain = measure_chain(blocks);
    return plan_chain_num_blocks(&chain);
}

// May a stage be this slice? (What is left of the chain must be stages too.)
bool measure_slice_valid(const DynapipeBlocks_v1* blocks, MeasureSlice slice);
CostStage measure_slice_stage(const DynapipeBlocks_v1* blocks, MeasureSlice slice);
// blocks->make() and ->drop(), with the program's own message of a failure.
Status measure_make(MeasureModel* out, const DynapipeBlocks_v1* blocks, MeasureSlice slice, bool has_values);
void measure_drop(const DynapipeBlocks_v1* blocks, MeasureModel* model);  // an all-zero one is fine
bool measure_shares_head(const DynapipeBlocks_v1* blocks);
// A call of the model's api returned `error`.
Status measure_failed(const DynapipeBlocks_v1* blocks, const char* function, int error);

// --- shapes ------------------------------------------------------------------------------------------------

// The longest windows of each side; target_tokens 0: one side.
typedef struct {
    int32_t seq_tokens, target_tokens;
} MeasureLengths;

// num_seqs windows: one of long_tokens, the others of short_tokens.
typedef struct {
    int32_t num_seqs, long_tokens, short_tokens;
} MeasureSide;

// As many windows on both sides; dec is all zeros for models with one side.
typedef struct {
    MeasureSide enc, dec;
    bool crossed;      // of two windows or more: the decoder's long one stands beside a short one
    int32_t num_rows;  // supervised, the last ones (of the decoder's side)
    // > 0: of one window, the last piece of a sample, after so many of its tokens (of the decoder's side; the
    // encoder's is in an earlier piece)
    int32_t prefix;
} MeasureShape;

static inline int32_t measure_side_tokens(const MeasureSide* side) {
    return side->num_seqs > 0 ? side->long_tokens + (side->num_seqs - 1) * side->short_tokens : 0;
}

// The nearest shape that the model's kernels take (DynapipeShapes_v1): no window longer than `lengths` or the
// model allow, padded where required, within the limit of squares.
void measure_shape_fit(MeasureShape* shape, const DynapipeBlocks_v1* blocks, const MeasureLengths* lengths);
void measure_shape_counts(DynapipeBatch* out, const MeasureShape* shape);  // counts alone, arrays NULL
MbShape measure_mb_shape(const MeasureShape* shape);                       // what the planner sees of it

// A window of a made-up microbatch. Tokens, targets and keys follow from `id`: the same wherever it stands.
typedef struct {
    int32_t id;
    int32_t tokens[2];  // of the encoder or only side, of the decoder (0: none)
    int32_t num_rows;   // the last ones are supervised (of the decoder, if there is one)
    int32_t padded[2];  // the window's length; 0: it is not padded
} MadeWindow;

// Less padding, fewer windows, then shorter ones, until the kernels take them. padding: windows become that
// many tokens longer than the longest; 0: as blocks->shapes ask.
Status made_fit(MadeWindow* windows, int32_t* num, const DynapipeBlocks_v1* blocks, int32_t padding);
// num >= 1. loss_scale: of the mean over its rows.
Status made_batch(DynapipeBatch* out, const MadeWindow* windows, int32_t num, int32_t vocab, Arena* arena);
// Window 0's tokens [begin, end), a decoder's where there is one; with its last token the other windows, too.
// `kept` and `dkept` are missing. Borrows from `whole`.
Status made_piece(DynapipeBatch* out, const DynapipeBatch* whole, int32_t begin, int32_t end, Arena* arena);
Status measure_shape_batch(DynapipeBatch* out, const MeasureShape* shape, int32_t vocab, Arena* arena);

// --- bytes -------------------------------------------------------------------------------------------------

// All bytes, state and parameters; out->chain is set before.
Status measure_bytes_fill(CostModel* out, const DynapipeBlocks_v1* blocks, const MeasureLengths* lengths);
// Where two ranks' kernels need different bytes: *a is raised to the larger.
void measure_bytes_raise(CostModel* a, const CostModel* b);

typedef struct {
    double x[FEATURE_COUNT];
    double y;  // bytes, >= 0
} MeasurePoint;

// The tightest straight lines that are nowhere below some points:
//     minimise   sum over points of (line(x) - y) / y        so that small shapes count as much as large ones
//     subject to line(x) = constant + sum of slope[f] * x[f] >= y,  constant, slope[f] >= 0
Status measure_lines_fit(CostFormula* out, const MeasurePoint* points, int32_t num_points);
