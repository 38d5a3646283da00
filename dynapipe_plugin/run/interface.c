#include "interface.h"

// --- kept for later --------------------------------------------------------------------------------------

static Status not_zero(const char* name, int idx) {
    return FAIL(STATUS_OUT_OF_RANGE,
                "%s[%d] is set, which means nothing to this plugin ---> start the struct as zeros (memset, "
                "{0}); is dynapipe.h newer than the library? then compile both from one copy",
                name, idx);
}

static Status check_numbers(const char* name, const int64_t* reserved, int count) {
    for (int i = 0; i < count; i++) {
        if (reserved[i] != 0) { return not_zero(name, i); }
    }
    return STATUS_OK;
}

static Status check_functions(const char* name, void (*const* reserved)(void), int count) {
    for (int i = 0; i < count; i++) {
        if (reserved[i] != NULL) { return not_zero(name, i); }
    }
    return STATUS_OK;
}

#define COUNT(array) (int)(sizeof(array) / sizeof *(array))
#define CHECK_NUMBERS(type, member, of) check_numbers(#type "." #member, (of)->member, COUNT((of)->member))
#define CHECK_FUNCTIONS(type, of) check_functions(#type ".reserved", (of)->reserved, COUNT((of)->reserved))

Status interface_check_params(const DynapipeParams_v1* params) {
    return CHECK_NUMBERS(DynapipeParams_v1, reserved, params);
}

Status interface_check_piece(const char* list, int32_t idx, const DynapipePiece_v1* piece) {
    if (piece->values == NULL || piece->begin < 0 || piece->count < 1 || piece->bytes_per_value < 1 ||
        piece->begin > INT64_MAX / piece->bytes_per_value - piece->count) {
        return FAIL(STATUS_OUT_OF_RANGE,
                    "%s[%d]: %lld values from %lld, %d bytes each, at %p ---> DynapipePiece_v1: values, and "
                    "begin and count of what there is",
                    list, idx, (long long)piece->count, (long long)piece->begin, piece->bytes_per_value,
                    piece->values);
    }
    return CHECK_NUMBERS(DynapipePiece_v1, reserved, piece);
}

Status interface_check_run(const DynapipeRun_v1* run) {
    return CHECK_NUMBERS(DynapipeRun_v1, reserved, run);
}

Status interface_check_report(const DynapipeReport_v1* report) {
    return CHECK_NUMBERS(DynapipeReport_v1, reserved, report);
}

Status interface_check_validation(const DynapipeValidation_v1* validation) {
    return CHECK_NUMBERS(DynapipeValidation_v1, reserved, validation);
}

// --- a model ---------------------------------------------------------------------------------------------

static const char* missing_of_model(const DynapipeModel_v1* api) {
    return api->name == NULL              ? "name"
           : api->acts_bytes == NULL      ? "acts_bytes"
           : api->scratch_bytes == NULL   ? "scratch_bytes"
           : api->boundary_bytes == NULL  ? "boundary_bytes"
           : api->forward == NULL         ? "forward"
           : api->backward_inputs == NULL ? "backward_inputs"
           : api->zero_gradients == NULL  ? "zero_gradients"
                                          : NULL;
}

Status interface_check_model(const DynapipeModel_v1* api) {
    if (api == NULL) {
        return FAIL(STATUS_OUT_OF_RANGE, "no table of functions (api) ---> a DynapipeModel_v1");
    }
    const char* missing = missing_of_model(api);
    if (missing != NULL) {
        return FAIL(STATUS_OUT_OF_RANGE,
                    "the model %s has no %s ---> of DynapipeModel_v1 only backward_weights, finish, and what "
                    "generation needs may be NULL",
                    api->name != NULL ? api->name : "without a name", missing);
    }
    return CHECK_FUNCTIONS(DynapipeModel_v1, api);
}

Status interface_check_blocks(const DynapipeBlocks_v1* blocks) {
    if (blocks->make == NULL || blocks->drop == NULL) {
        return FAIL(STATUS_OUT_OF_RANGE, "DynapipeBlocks_v1: %s is NULL ---> only update and why may be",
                    blocks->make == NULL ? "make" : "drop");
    }
    TRY(CHECK_FUNCTIONS(DynapipeBlocks_v1, blocks));
    TRY(CHECK_NUMBERS(DynapipeBlocks_v1, reserved_numbers, blocks));
    TRY(CHECK_NUMBERS(DynapipeShapes_v1, reserved, &blocks->shapes));
    return interface_check_model(blocks->api);
}
