/*
checker_slopes.c -- the law of gradients: for a direction d in the space of parameters,

    (L(p + h d) - L(p - h d)) / 2h = sum of gradient * d        L: loss_scale * sum of losses of a micro-batch

Directions are confined to a piece of the flat array, so that small tensors count as much as large ones: one
with the signs of the gradients (shows wrong sizes), one with signs drawn by lot (shows what is missing).
Parameters are moved at random first: what starts as zeros would hide what stands behind it. What cannot be
seen above the rounding of the losses is passed over.
*/
#include <math.h>
#include <stdlib.h>

#include "checker.h"

enum { MOST_PIECES = 64, MOST_COARSE_PIECES = 6, NUM_STEPS = 6, WIDEST = 2 };

typedef struct {
    Checker* c;
    CheckerRange* range;  // the whole model
    CheckerWork work;
    float *params, *gradients, *moved;  // (num_params), as kept by the model; moved: of a piece
    double loss, loss_noise;            // at these parameters; what rounding does to it
    bool is_coarse;                     // parameters of 8 or 11 bits
    Rng rng;
} Slopes;

static double unit(Rng* rng) {  // [-1, 1)
    return (double)(int32_t)(uint32_t)rng_u64(rng) * 0x1p-31;
}

static Status evaluate(Slopes* s, double* out) {
    TRY(checker_forward(s->c, &s->work, CHECKER_KEEP, false));
    const DynapipeBatch* batch = &s->work.of->batch;
    *out = 0;
    for (int32_t r = 0; r < batch->num_rows; r++) { *out += (double)checker_losses(&s->work)[r]; }
    *out *= (double)batch->loss_scale;
    return STATUS_OK;
}

static Status write_params(Slopes* s, const float* values, int64_t begin, int64_t count) {
    const DynapipeParams_v1* params = &s->range->params;
    int64_t value_bytes = params->param_type == DYNAPIPE_FLOAT32 ? 4 : 2;
    return checker_write_values(s->c, (char*)params->params + begin * value_bytes, values, params->param_type,
                                count);
}

static double typical_value(const float* params, int64_t count) {
    double squares = 0;
    for (int64_t i = 0; i < count; i++) { squares += (double)params[i] * params[i]; }
    double typical = sqrt(squares / (double)count);
    return typical > 0.02 ? typical : 0.02;  // GPT-2's weights start so
}

// --- one direction ---------------------------------------------------------------------------------------

typedef struct {
    double slope, measured, noise;
    double usual;  // size of a slope with signs drawn by lot; one may be nearly 0 by chance
} Slope;

// Along signs[begin, begin + count) * step: as gradients say, and as losses do. What the parameters really
// became counts, rounding included.
static Status measure(Slopes* s, Slope* out, const signed char* signs, int64_t begin, int64_t count,
                      double step) {
    double losses[2], squares = 0;
    *out = (Slope){.noise = s->loss_noise / 2};
    for (int side = 0; side < 2; side++) {
        for (int64_t i = 0; i < count; i++) {
            double moved = s->params[begin + i] + (side == 0 ? step : -step) * signs[i];
            s->moved[i] = (float)moved;
        }
        TRY(write_params(s, s->moved, begin, count));
        TRY(checker_read_values(s->c, s->moved,
                                (char*)s->range->params.params +
                                    begin * (s->range->params.param_type == DYNAPIPE_FLOAT32 ? 4 : 2),
                                s->range->params.param_type, count));
        for (int64_t i = 0; i < count; i++) {
            double way = ((double)s->moved[i] - s->params[begin + i]) / 2;
            out->slope += (side == 0 ? way : -way) * s->gradients[begin + i];
            squares += 2 * way * way * s->gradients[begin + i] * s->gradients[begin + i];
        }
        TRY(evaluate(s, &losses[side]));
    }
    out->usual = sqrt(squares);
    out->measured = (losses[0] - losses[1]) / 2;
    return write_params(s, s->params + begin, begin, count);
}

// So long that parameters change by a fiftieth (rounded to 8 bits: a quarter), the loss by no more than that.
static double first_step(const Slopes* s, int64_t begin, int64_t count) {
    double steepness = 0, share = s->is_coarse ? 0.25 : 0.02;
    for (int64_t i = begin; i < begin + count; i++) { steepness += fabs((double)s->gradients[i]); }
    double step = share * typical_value(s->params + begin, count);
    return steepness * step > share * s->loss ? share * s->loss / steepness : step;
}

// A curved loss (one with kinks, too) needs a short step, a flat one a long one: any of a few may do.
static Status check_direction(Slopes* s, const signed char* signs, int64_t begin, int64_t count) {
    static const double steps[NUM_STEPS] = {1, 0.25, 4, 0x1p-4, 0x1p-6, 0x1p-8},
                        coarse_steps[NUM_STEPS] = {1, 0.5, 4, 2, 0.25, 0.125};
    double step = first_step(s, begin, count), share = s->is_coarse ? 0.2 : 0.01;
    const double seen = s->is_coarse ? 0.3 : 0.01;  // a short step agrees with anything, for noise
    Slope first = {0};
    for (int i = 0; i < NUM_STEPS; i++) {
        Slope slope;
        TRY(measure(s, &slope, signs, begin, count, step * (s->is_coarse ? coarse_steps : steps)[i]));
        double larger = fmax(slope.usual, fmax(fabs(slope.slope), fabs(slope.measured)));
        bool agrees = fabs(slope.slope - slope.measured) <= share * larger + slope.noise;
        bool is_seen = slope.noise <= seen * larger;
        if (agrees && (is_seen || i == WIDEST)) { return STATUS_OK; }
        if (i == 0) { first = slope; }
    }
    return FAIL(
        STATUS_MISMATCH,
        "parameters [%lld, %lld) of %lld of the whole model (%s): moved a little, the loss changes by %.4g, "
        "by the gradients it would by %.4g ---> zero, or far off: a term of backward is missing; off by a "
        "factor: loss_scale or a mean; the piece of the array says which tensor",
        (long long)begin, (long long)(begin + count), (long long)s->range->params.num_params,
        s->work.of->what, first.measured, first.slope);
}

// The steepest single parameter of a piece.
static Status check_steepest(Slopes* s, int64_t begin, int64_t count) {
    int64_t steepest = begin;
    const signed char up = 1;
    for (int64_t i = begin; i < begin + count; i++) {
        if (fabsf(s->gradients[i]) > fabsf(s->gradients[steepest])) { steepest = i; }
    }
    return check_direction(s, &up, steepest, 1);
}

static Status check_piece(Slopes* s, int64_t begin, int64_t count) {
    signed char* signs = CHECKER_NEW(s->c, signed char, count);
    if (signs == NULL) { return checker_no_memory(); }
    for (int by_lot = 0; by_lot < (s->is_coarse ? 1 : 2); by_lot++) {
        for (int64_t i = 0; i < count; i++) {
            float gradient =
                by_lot || s->gradients[begin + i] == 0 ? (float)unit(&s->rng) : s->gradients[begin + i];
            signs[i] = gradient < 0 ? -1 : 1;
        }
        TRY(check_direction(s, signs, begin, count));
    }
    return s->is_coarse ? STATUS_OK : check_steepest(s, begin, count);
}

// --- the whole -------------------------------------------------------------------------------------------

// Random parameters near the model's own, as it can keep them, and the gradients there.
static Status set_up(Slopes* s) {
    Checker* c = s->c;
    int64_t num_params = s->range->params.num_params;
    s->moved = CHECKER_NEW(c, float, num_params);
    if (s->moved == NULL) { return checker_no_memory(); }
    TRY(checker_params(c, s->work.chain, &s->params));
    for (int64_t begin = 0; begin < num_params; begin += 64) {
        int64_t count = num_params - begin < 64 ? num_params - begin : 64;
        double typical = typical_value(s->params + begin, count);
        for (int64_t i = begin; i < begin + count; i++) {
            s->params[i] += (float)(0.3 * typical * unit(&s->rng));
        }
    }
    TRY(write_params(s, s->params, 0, num_params));
    TRY(checker_params(c, s->work.chain, &s->params));  // rounded
    checker_zero_gradients(c, s->work.chain);
    TRY(checker_step(c, &s->work));
    TRY(checker_gradients(c, s->work.chain, &s->gradients));
    const DynapipeBatch* batch = &s->work.of->batch;
    TRY(evaluate(s, &s->loss));
    s->loss_noise = 4 * c->epsilon * (fabs(s->loss) + batch->num_rows * (double)batch->loss_scale);
    return STATUS_OK;
}

static Status check_pieces(Slopes* s) {
    int64_t num_params = s->range->params.num_params, most = s->is_coarse ? MOST_COARSE_PIECES : MOST_PIECES;
    int64_t num_pieces = num_params < most ? num_params : most;
    for (int64_t k = 0; k < num_pieces; k++) {
        int64_t begin = num_params * k / num_pieces, end = num_params * (k + 1) / num_pieces;
        Status status = check_piece(s, begin, end - begin);
        if (status == STATUS_MISMATCH) {  // a kink of the loss may lie just there: elsewhere, then
            TRY(set_up(s));
            status = check_piece(s, begin, end - begin);
        }
        TRY(status);
    }
    return STATUS_OK;
}

Status checker_law_slopes(Checker* c) {
    CheckerChain whole;
    CheckerSequence sequences[CHECKER_MOST_SEQUENCES];
    CheckerBatch batch;
    TRY(checker_chain(c, &whole, NULL, 0));
    TRY(checker_batch(c, &batch, sequences, checker_standard(c, sequences, 1), 0));
    Slopes s = {.c = c, .range = whole.ranges[0], .rng = rng_seed(7)};
    s.is_coarse = s.range->params.param_type != DYNAPIPE_FLOAT32;
    TRY(checker_work(c, &s.work, &whole, &batch));
    TRY(set_up(&s));
    c->is_fast = true;
    Status status = check_pieces(&s);
    c->is_fast = false;
    return status;
}
