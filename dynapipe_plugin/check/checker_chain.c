// checker_chain.c -- ranges of the model as make() gives them, and the whole model out of several.
#include <string.h>

#include "../run/interface.h"
#include "checker.h"

static const char* why(const Checker* c) {
    return c->blocks->why != NULL ? c->blocks->why(c->blocks->ctx) : "without words (blocks->why is NULL)";
}

// --- ranges ----------------------------------------------------------------------------------------------

static Status check_params(const CheckerRange* range) {
    const DynapipeParams_v1* params = &range->params;
    TRY(interface_check_params(params));
    int begin = range->blocks.begin, end = range->blocks.end;
    bool types_are_known = params->param_type >= DYNAPIPE_FLOAT32 && params->param_type <= DYNAPIPE_FLOAT16 &&
                           params->grad_type >= DYNAPIPE_FLOAT32 && params->grad_type <= DYNAPIPE_FLOAT16;
    if (!types_are_known) {
        return FAIL(STATUS_MISMATCH,
                    "blocks [%d, %d): param_type %d, grad_type %d ---> values of DynapipeType", begin, end,
                    (int)params->param_type, (int)params->grad_type);
    }
    if (params->num_tied < 0 || (params->num_tied > 0 && params->tied == NULL)) {
        return FAIL(STATUS_MISMATCH,
                    "blocks [%d, %d): %d tied groups, but no list of them ---> params->tied lists them",
                    begin, end, (int)params->num_tied);
    }
    for (int32_t i = 0; i < params->num_tied; i++) {
        const DynapipeTied* tied = &params->tied[i];
        if (tied->group >= 0 && tied->begin >= 0 && tied->count > 0 &&
            tied->begin + tied->count <= params->num_params) {
            continue;
        }
        return FAIL(STATUS_MISMATCH,
                    "blocks [%d, %d): tied group %d is values [%lld, %lld) of %lld ---> begin and count are "
                    "values (not bytes) of this range's own array",
                    begin, end, (int)tied->group, (long long)tied->begin,
                    (long long)(tied->begin + tied->count), (long long)params->num_params);
    }
    return STATUS_OK;
}

Status checker_range(Checker* c, CheckerRange** out, DynapipeRange blocks, bool has_values) {
    CheckerRange* range = CHECKER_NEW(c, CheckerRange, 1);
    if (range == NULL) { return checker_no_memory(); }
    range->blocks = blocks;
    int code = c->blocks->make(c->blocks->ctx, blocks, has_values, &range->model, &range->params);
    if (code != 0) {
        return FAIL(STATUS_MISMATCH,
                    "make() of blocks [%d, %d) of %d returned error %d: %s ---> a stage may be any "
                    "contiguous blocks; block 0 is the embedding, block %d the head",
                    (int)blocks.begin, (int)blocks.end, (int)c->num_blocks, code, why(c),
                    (int)c->num_blocks - 1);
    }
    range->next = c->ranges;
    c->ranges = range;
    *out = range;
    TRY(check_params(range));
    if (!has_values || (range->params.params != NULL && range->params.grads != NULL)) { return STATUS_OK; }
    return FAIL(STATUS_MISMATCH,
                "make() of blocks [%d, %d) gave no %s ---> with has_values 1 it fills params->params and "
                "params->grads",
                (int)blocks.begin, (int)blocks.end,
                range->params.params == NULL ? "parameters" : "gradients");
}

// The embedding is no stage alone, a decoder's embedding goes with the layer behind it.
int32_t checker_cuts(const Checker* c, int32_t* out) {
    int32_t num_cuts = 0;
    for (int32_t b = 2; b < c->num_blocks; b++) {
        bool behind_dec_embedding = c->blocks->num_dec_layers > 0 && b == c->blocks->num_layers + 2;
        bool is_head = b == c->num_blocks - 1;
        if (behind_dec_embedding || (is_head && c->blocks->shapes.head_has_layer)) { continue; }
        out[num_cuts++] = b;
    }
    return num_cuts;
}

Status checker_chain(Checker* c, CheckerChain* out, const int32_t* cuts, int32_t num_cuts) {
    *out = (CheckerChain){.ranges = CHECKER_NEW(c, CheckerRange*, num_cuts + 1), .num_ranges = num_cuts + 1};
    if (out->ranges == NULL) { return checker_no_memory(); }
    for (int32_t r = 0; r <= num_cuts; r++) {
        DynapipeRange blocks = {.begin = r > 0 ? cuts[r - 1] : 0, .end = r < num_cuts ? cuts[r] : c->num_blocks};
        TRY(checker_range(c, &out->ranges[r], blocks, true));
        out->num_values += out->ranges[r]->params.num_params;
    }
    return STATUS_OK;
}

const DynapipeTied* checker_first_copy(const CheckerChain* chain, int32_t group, const CheckerRange** out) {
    for (int32_t r = 0; r < chain->num_ranges; r++) {
        const DynapipeParams_v1* params = &chain->ranges[r]->params;
        for (int32_t i = 0; i < params->num_tied; i++) {
            if (params->tied[i].group != group) { continue; }
            *out = chain->ranges[r];
            return &params->tied[i];
        }
    }
    return NULL;
}

// --- values ----------------------------------------------------------------------------------------------

void checker_zero_gradients(const Checker* c, const CheckerChain* chain) {
    for (int32_t r = 0; r < chain->num_ranges; r++) {
        c->blocks->api->zero_gradients(chain->ranges[r]->model);
    }
}

static Status read_all(Checker* c, const CheckerChain* chain, bool gradients, float** out) {
    float* to = CHECKER_NEW(c, float, chain->num_values);
    if (to == NULL) { return checker_no_memory(); }
    *out = to;
    for (int32_t r = 0; r < chain->num_ranges; r++) {
        const DynapipeParams_v1* params = &chain->ranges[r]->params;
        TRY(checker_read_values(c, to, gradients ? params->grads : params->params,
                                gradients ? params->grad_type : params->param_type, params->num_params));
        to += params->num_params;
    }
    return STATUS_OK;
}

Status checker_params(Checker* c, const CheckerChain* chain, float** out) {
    return read_all(c, chain, false, out);
}

Status checker_gradients(Checker* c, const CheckerChain* chain, float** out) {
    return read_all(c, chain, true, out);
}
