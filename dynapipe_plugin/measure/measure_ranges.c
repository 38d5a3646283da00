#include "measure_ranges.h"

#include "../run/executor.h"
#include "../run/interface.h"

bool measure_slice_valid(const DynapipeBlocks_v1* blocks, MeasureSlice slice) {
    int32_t L = measure_num_layers(blocks);
    bool head_alone_fits = !blocks->shapes.head_has_layer;
    if (slice.begin < 0 || slice.end > L || slice.begin > slice.end) { return false; }
    if (slice.has_head && slice.end < L) { return false; }
    if (!slice.has_head && slice.end == L && !head_alone_fits) { return false; }
    return slice.begin < slice.end || (slice.has_head && L > 0 && head_alone_fits);
}

// The block before which the chain is cut in front of this layer: the embedding is block 0, a decoder's goes
// with its first layer.
static int32_t cut_before(const DynapipeBlocks_v1* blocks, int32_t layer) {
    bool behind_second = blocks->num_dec_layers > 0 && layer > blocks->num_layers;
    return layer == 0 ? 0 : layer + 1 + behind_second;
}

DynapipeRange measure_slice_blocks(const DynapipeBlocks_v1* blocks, MeasureSlice slice) {
    return (DynapipeRange){.begin = cut_before(blocks, slice.begin),
                           .end = cut_before(blocks, slice.end) + slice.has_head};
}

CostStage measure_slice_stage(const DynapipeBlocks_v1* blocks, MeasureSlice slice) {
    int32_t first_dec = blocks->num_layers;
    bool begins_dec =
        blocks->num_dec_layers > 0 && slice.begin > 0 && slice.begin <= first_dec && first_dec < slice.end;
    return (CostStage){.layers = {slice.begin, slice.end},
                       .has_embedding = slice.begin == 0,
                       .has_head = slice.has_head,
                       .has_dec_embedding = begins_dec};
}

Status measure_failed(const DynapipeBlocks_v1* blocks, const char* function, int error) {
    const char* why = blocks->why != NULL ? blocks->why(blocks->ctx) : NULL;
    if (why != NULL) { return FAIL(STATUS_DEVICE, "%s: %s: %s", blocks->signature, function, why); }
    return FAIL(STATUS_DEVICE, "%s: %s: error %d", blocks->signature, function, error);
}

static Status make_range(MeasureModel* out, const DynapipeBlocks_v1* blocks, DynapipeRange range,
                         bool has_values) {
    *out = (MeasureModel){0};
    int error = blocks->make(blocks->ctx, range, has_values, &out->model, &out->params);
    if (error != 0) {
        *out = (MeasureModel){0};
        return measure_failed(blocks, "make", error);
    }
    Status status = interface_check_params(&out->params);
    if (status != STATUS_OK) { measure_drop(blocks, out); }
    return status;
}

Status measure_make(MeasureModel* out, const DynapipeBlocks_v1* blocks, MeasureSlice slice, bool has_values) {
    return make_range(out, blocks, measure_slice_blocks(blocks, slice), has_values);
}

bool measure_shares_head(const DynapipeBlocks_v1* blocks) {
    return !blocks->shapes.head_has_layer && measure_num_layers(blocks) > 0 &&
           executor_can_share(blocks->api, HEAD_BY_ROWS);
}

Status measure_make_head(MeasureModel* out, const DynapipeBlocks_v1* blocks, MeasureHead which) {
    int32_t L = measure_num_layers(blocks);
    DynapipeRange range = measure_slice_blocks(blocks, (MeasureSlice){L - 1, L, false});
    if (which == MEASURE_FEEDS) { range.head = DYNAPIPE_HEAD_FEEDS; }
    if (which == MEASURE_SHARE) {
        range = (DynapipeRange){.begin = range.end, .end = range.end + 1, .head = DYNAPIPE_HEAD_BY_ROWS};
    }
    return make_range(out, blocks, range, false);
}

void measure_drop(const DynapipeBlocks_v1* blocks, MeasureModel* model) {
    if (model->model != NULL) { blocks->drop(blocks->ctx, model->model); }
    *model = (MeasureModel){0};
}
