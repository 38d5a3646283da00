// measure_state.c -- parameters, gradients and optimizer state of every piece, and what of it is tied: asked
// of ranges of the model.
#include <math.h>
#include <stdlib.h>

#include "measure_bytes.h"
#include "measure_pieces.h"

typedef struct {
    const DynapipeBlocks_v1* blocks;
    MeasureRanges ranges;
    MeasureModel models[RANGE_COUNT];
    int64_t param_bytes, grad_bytes;  // of one value
    int32_t num_shards;
} State;

static int64_t type_bytes(int32_t type) {
    return type == DYNAPIPE_FLOAT32 ? 4 : 2;
}

static int64_t state_bytes(const State* s, int64_t num_values) {
    int64_t optimizer = num_values * s->blocks->optimizer_bytes;
    return num_values * (s->param_bytes + s->grad_bytes) + (optimizer + s->num_shards - 1) / s->num_shards;
}

static bool has_group(const DynapipeParams_v1* params, int32_t group) {
    for (int32_t i = 0; i < params->num_tied; i++) {
        if (params->tied[i].group == group) { return true; }
    }
    return false;
}

// Values of the tied groups that one range has, and another has (`others_too`) or has not.
static int64_t tied_values(const State* s, int32_t range, int32_t other, bool others_too) {
    int64_t num_values = 0;
    if (!s->ranges.valid[range]) { return 0; }
    const DynapipeParams_v1* params = &s->models[range].params;
    for (int32_t i = 0; i < params->num_tied; i++) {
        bool is_in = s->ranges.valid[other] && has_group(&s->models[other].params, params->tied[i].group);
        num_values += is_in == others_too ? params->tied[i].count : 0;
    }
    return num_values;
}

// What cost_state_bytes() adds and takes off for copies of the embedding is not in its sum of pieces.
static void without_copies(double value[RANGE_COUNT], const State* s, double embedding, double of_head) {
    for (int32_t r = 0; r < RANGE_COUNT; r++) {
        if (!s->ranges.valid[r]) { continue; }
        CostStage stage = measure_slice_stage(s->blocks, s->ranges.slices[r]);
        double copy = stage.has_dec_embedding ? fmin(embedding, value[r]) : 0;
        bool has_both = stage.has_head && (stage.has_embedding || stage.has_dec_embedding);
        value[r] = (double)s->models[r].params.num_params - copy + (has_both ? of_head : 0);
    }
}

// In values; of a chain too short to have a head apart from its embedding nothing is tied.
static void fill(CostModel* out, const State* s) {
    double value[RANGE_COUNT] = {0}, piece[PIECE_COUNT];
    const int32_t middle = s->ranges.valid[RANGE_ENC] ? RANGE_ENC : RANGE_ENC_END;
    int32_t head = s->ranges.valid[RANGE_HEAD] ? RANGE_HEAD : RANGE_LAST;
    int64_t of_head = tied_values(s, RANGE_FIRST, head, true);
    if (head == RANGE_LAST) { of_head -= tied_values(s, RANGE_FIRST, middle, true); }
    if (of_head < 0 || !s->ranges.valid[middle]) { of_head = 0; }
    without_copies(value, s, 0, (double)of_head);
    measure_pieces(piece, &s->ranges, value);
    without_copies(value, s, piece[PART_EMBEDDING], (double)of_head);
    measure_pieces(piece, &s->ranges, value);
    // (of a stack of two layers, what ends it looks like a part of its layers, not of what is tied)
    int64_t of_embedding = 0;
    if (s->ranges.valid[middle]) { of_embedding = tied_values(s, RANGE_FIRST, middle, false); }
    piece[PART_EMBEDDING] = fmax(piece[PART_EMBEDDING], (double)of_embedding);
    if (of_head > 0) { piece[PART_HEAD] = fmax(piece[PART_HEAD], (double)of_embedding); }
    for (int p = 0; p < PIECE_COUNT; p++) {
        int64_t num_values = (int64_t)piece[p];
        out->part_param_bytes[p] = num_values * s->grad_bytes;
        out->part_state_bytes[p] = state_bytes(s, num_values);
    }
    out->tied_param_bytes = of_embedding * s->grad_bytes;
    out->tied_stack_bytes = tied_values(s, RANGE_FIRST, middle, true) * s->grad_bytes;
    out->tied_head_state_bytes =
        of_head * (s->param_bytes + s->grad_bytes) + s->blocks->optimizer_bytes * of_head / s->num_shards;
}

// The head's matrix, which a share has of it, and what the chunk that feeds the head has besides.
static Status fill_shared_head(CostModel* out, const State* s) {
    MeasureModel of_head[MEASURE_HEAD_COUNT] = {{0}};
    int64_t num_values[MEASURE_HEAD_COUNT] = {0};
    Status status = STATUS_OK;
    for (int h = 0; h < MEASURE_HEAD_COUNT && status == STATUS_OK; h++) {
        status = measure_make_head(&of_head[h], s->blocks, (MeasureHead)h);
        num_values[h] = of_head[h].params.num_params;
    }
    for (int h = 0; h < MEASURE_HEAD_COUNT; h++) { measure_drop(s->blocks, &of_head[h]); }
    TRY(status);
    int64_t norm = num_values[MEASURE_FEEDS] - num_values[MEASURE_PLAIN];
    out->part_param_bytes[ONCE_CHAIN_END] = norm * s->grad_bytes;
    out->part_state_bytes[ONCE_CHAIN_END] = state_bytes(s, norm);
    out->head_param_bytes = num_values[MEASURE_SHARE] * s->grad_bytes;
    out->head_state_bytes = state_bytes(s, num_values[MEASURE_SHARE]);
    out->head_vocab = s->blocks->padded_vocab > 0 ? (int32_t)s->blocks->padded_vocab : s->blocks->vocab;
    out->head_is_tied = out->tied_head_state_bytes > 0;
    return STATUS_OK;
}

Status measure_state_fill(CostModel* out, const DynapipeBlocks_v1* blocks, int32_t num_replicas,
                          int32_t zero_stage) {
    State* s = calloc(1, sizeof *s);
    if (s == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory to ask a model for its parameters"); }
    s->blocks = blocks;
    s->num_shards = zero_stage > 0 ? num_replicas : 1;
    measure_ranges_find(&s->ranges, blocks);
    Status status = STATUS_OK;
    for (int32_t r = 0; r < RANGE_COUNT && status == STATUS_OK; r++) {
        if (s->ranges.valid[r]) { status = measure_make(&s->models[r], blocks, s->ranges.slices[r], false); }
    }
    if (status == STATUS_OK) {
        s->param_bytes = type_bytes(s->models[RANGE_WHOLE].params.param_type);
        s->grad_bytes = type_bytes(s->models[RANGE_WHOLE].params.grad_type);
        fill(out, s);
        if (measure_shares_head(blocks)) { status = fill_shared_head(out, s); }
    }
    for (int32_t r = 0; r < RANGE_COUNT; r++) { measure_drop(blocks, &s->models[r]); }
    free(s);
    return status;
}
