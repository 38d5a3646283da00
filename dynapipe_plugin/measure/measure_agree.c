#include "measure_agree.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../util/numbers.h"

// Straight lines; above both.
static void formula_raise(CostFormula* a, const CostFormula* b) {
    a->constant = fmax(a->constant, b->constant);
    a->floor = fmax(a->floor, b->floor);
    for (int f = 0; f < FEATURE_COUNT; f++) {
        const CostCurve *ours = &a->curves[f], *theirs = &b->curves[f];
        if (cost_curve_value(theirs, 1) > cost_curve_value(ours, 1)) { a->curves[f] = *theirs; }
    }
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static void bytes_raise(CostModel* a, const CostModel* b) {
    for (int mode = 0; mode < RECOMPUTE_COUNT; mode++) {
        for (int part = 0; part < PART_COUNT; part++) {
            formula_raise(&a->parts[mode][part].stored_bytes, &b->parts[mode][part].stored_bytes);
            formula_raise(&a->parts[mode][part].forward_bytes, &b->parts[mode][part].forward_bytes);
        }
    }
    for (int once = 0; once < ONCE_COUNT; once++) {
        formula_raise(&a->once_stored_bytes[once], &b->once_stored_bytes[once]);
        formula_raise(&a->once_forward_bytes[once], &b->once_forward_bytes[once]);
    }
    formula_raise(&a->boundary_bytes, &b->boundary_bytes);
    formula_raise(&a->dec_boundary_bytes, &b->dec_boundary_bytes);
    formula_raise(&a->scratch_bytes, &b->scratch_bytes);
    formula_raise(&a->head_in_bytes, &b->head_in_bytes);
    formula_raise(&a->head_part_bytes, &b->head_part_bytes);
    formula_raise(&a->head_factor_bytes, &b->head_factor_bytes);
    a->head_state_bytes = larger(a->head_state_bytes, b->head_state_bytes);
    a->head_param_bytes = larger(a->head_param_bytes, b->head_param_bytes);
    for (int p = 0; p < PIECE_COUNT; p++) {
        a->part_state_bytes[p] = larger(a->part_state_bytes[p], b->part_state_bytes[p]);
        a->part_param_bytes[p] = larger(a->part_param_bytes[p], b->part_param_bytes[p]);
    }
}

static Status raise_over_ranks(CostModel* out, Dynapipe* dp) {
    CostModel *mine = malloc(sizeof *mine), *theirs = malloc(sizeof *theirs);
    Status status =
        mine != NULL && theirs != NULL ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "no memory for a cost model");
    if (status == STATUS_OK) { *mine = *out; }
    for (int32_t r = 0; r < dp->transport.num_ranks && status == STATUS_OK; r++) {
        *theirs = *mine;
        status = collective_broadcast(&dp->world, theirs, sizeof *theirs, r);
        if (status != STATUS_OK) { break; }
        if (r == 0) { *out = *theirs; }
        bytes_raise(out, theirs);
    }
    free(mine);
    free(theirs);
    return status;
}

Status measure_agree(CostModel* out, Dynapipe* dp, Status status) {
    int32_t num_ranks = dp->transport.num_ranks;
    double* hashes = calloc(2 * (size_t)num_ranks, sizeof *hashes);
    if (hashes == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d ranks", num_ranks); }
    hashes[dp->transport.rank] = (double)(hash_finish(hash_bytes(HASH_SEED, out, sizeof *out)) >> 12);
    hashes[num_ranks + dp->transport.rank] = status != STATUS_OK;
    Status sent = collective_all_reduce_sum(&dp->world, hashes, 2 * num_ranks);
    bool differ = false;
    int32_t failed = -1;
    for (int32_t r = 0; r < num_ranks; r++) {
        differ |= hashes[r] != hashes[0];
        if (hashes[num_ranks + r] != 0) { failed = r; }
    }
    free(hashes);
    if (status != STATUS_OK) { return status; }
    TRY(sent);
    if (failed >= 0) { return FAIL(STATUS_DEVICE, "rank %d could not ask its model for bytes", failed); }
    return differ ? raise_over_ranks(out, dp) : STATUS_OK;
}
