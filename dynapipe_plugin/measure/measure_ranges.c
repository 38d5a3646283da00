#include "measure_ranges.h"

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
    return (DynapipeRange){.begin = cut_before(blocks, slice.begin), .end = cut_before(blocks, slice.end) + slice.has_head};
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

Status measure_make(MeasureModel* out, const DynapipeBlocks_v1* blocks, MeasureSlice slice, bool has_values) {
    *out = (MeasureModel){0};
    DynapipeRange range = measure_slice_blocks(blocks, slice);
    int error = blocks->make(blocks->ctx, range, has_values, &out->model, &out->params);
    if (error != 0) {
        *out = (MeasureModel){0};
        return measure_failed(blocks, "make", error);
    }
    Status status = interface_check_params(&out->params);
    if (status != STATUS_OK) { measure_drop(blocks, out); }
    return status;
}

void measure_drop(const DynapipeBlocks_v1* blocks, MeasureModel* model) {
    if (model->model != NULL) { blocks->drop(blocks->ctx, model->model); }
    *model = (MeasureModel){0};
}
