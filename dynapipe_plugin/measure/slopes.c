#include "slopes.h"

#include <math.h>

#include "../../util/numbers.h"

// If a right piece contradicts at one place of five, it is refused with a chance of 4^-8; if a wrong one does
// at four of five, it passes with a chance of 4^-3.
enum { MOST_PIECES = 128, NUM_STEPS = 6, MOST_PLACES = 50, RIGHT_BY = 3, WRONG_BY = 8 };
// Of a slope; gradients with a relative error of less are not told from right ones.
#define TOLERANCE 0.003

// One place.
typedef struct {
    const SlopesFunction* f;
    float *params, *moved, *signs;  // (num_params) here; of a piece: moved by a step, its direction
    const float* gradients;         // here
    double loss, noise;             // here; rounding of a difference
    Rng rng;
} Place;

// What a step changes L by.
typedef struct {
    double expected, measured;  // by the gradients; by L, mean of both sides
    double bend;                // what the sides differ from it by
    double larger;              // of both, and of what is typical of random signs: one may be nearly 0
} Slope;

static double unit(Rng* rng) {  // [-1, 1)
    return (double)(int32_t)(uint32_t)rng_u64(rng) * 0x1p-31;
}

static Slope measure_slope(const Place* at, int64_t begin, int64_t count, double step) {
    const SlopesFunction* f = at->f;
    Slope out = {.bend = -at->loss};
    double squares = 0;
    for (int side = -1; side <= 1; side += 2) {
        for (int64_t i = 0; i < count; i++) {
            const double here = at->params[begin + i];
            at->moved[i] = (float)(here + side * step * at->signs[i]);
            const double change = (at->moved[i] - here) / 2 * at->gradients[begin + i];
            out.expected += side * change;
            squares += 2 * change * change;
        }
        f->write(f->ctx, at->moved, begin, count);
        const double loss = f->loss(f->ctx);
        out.measured += side * loss / 2;
        out.bend += loss / 2;
    }
    f->write(f->ctx, at->params + begin, begin, count);
    out.larger = fmax(sqrt(squares), fmax(fabs(out.expected), fabs(out.measured)));
    return out;
}

// Along the signs of the gradients, or of random signs. Each step is a quarter of the one before it; the
// first changes parameters by a twelfth at most, and L by half a percent.
static bool contradicts(Slope* out, Place* at, int64_t begin, int64_t count, bool is_random) {
    const double MOST = 0.08, MOST_LOSS = 0.005, LEAST_PARAM = 0.02;
    double squares = 0, steepness = 0;
    for (int64_t i = 0; i < count; i++) {
        const double gradient = is_random ? 0 : at->gradients[begin + i];
        at->signs[i] = (gradient == 0 ? unit(&at->rng) : gradient) < 0 ? -1 : 1;
        squares += (double)at->params[begin + i] * at->params[begin + i];
        steepness += fabs((double)at->gradients[begin + i]);
    }
    double step = MOST * fmax(sqrt(squares / (double)count), LEAST_PARAM);
    if (steepness * step > MOST_LOSS * at->loss) { step = MOST_LOSS * at->loss / steepness; }
    for (int i = 1;; i++, step /= 4) {
        *out = measure_slope(at, begin, count, step);
        const double off = fabs(out->expected - out->measured), tolerated = TOLERANCE * out->larger;
        if (off <= tolerated + at->noise) { return false; }
        if (i < NUM_STEPS && at->noise < tolerated / 4) { continue; }
        return off > tolerated + at->noise + 2 * fabs(out->bend);
    }
}

// Random parameters around those to start with, as stored.
static void move_place(Place* at) {
    const double LEAST = 0.3, SPREAD = 0.3;
    const SlopesFunction* f = at->f;
    for (int64_t i = 0; i < f->num_params; i++) {
        at->params[i] =
            f->start[i] + (float)(SPREAD * fmax(fabs((double)f->start[i]), LEAST) * unit(&at->rng));
    }
    f->write(f->ctx, at->params, 0, f->num_params);
    at->gradients = f->gradients(f->ctx);
    at->loss = f->loss(f->ctx);
    at->noise = f->noise * fabs(at->loss);
}

bool slopes_contradict(SlopesFinding* out, const SlopesFunction* f) {
    const int64_t n = f->num_params, num_pieces = n < MOST_PIECES ? n : (int64_t)MOST_PIECES;
    Place at = {
        .f = f, .params = f->room, .moved = f->room + n, .signs = f->room + 2 * n, .rng = rng_seed(7)};
    int32_t contradicted[MOST_PIECES] = {0}, agreed[MOST_PIECES] = {0};
    for (int32_t place = 1; place <= MOST_PLACES; place++) {
        move_place(&at);
        for (int64_t k = 0; k < num_pieces; k++) {
            const int64_t begin = n * k / num_pieces, end = n * (k + 1) / num_pieces;
            Slope slope;
            if (agreed[k] - contradicted[k] >= RIGHT_BY) { continue; }
            ++*(contradicts(&slope, &at, begin, end - begin, place % 2 == 0) ? &contradicted[k] : &agreed[k]);
            if (contradicted[k] - agreed[k] < WRONG_BY) { continue; }
            const double sign = slope.measured < 0 ? -1 : 1, mean = sign * slope.measured;
            *out = (SlopesFinding){
                begin,           end,  mean + slope.bend, mean - slope.bend, sign * slope.expected,
                contradicted[k], place};
            return true;
        }
    }
    return false;
}
