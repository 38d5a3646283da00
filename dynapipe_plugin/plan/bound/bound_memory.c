// bound_memory.c -- see bound_memory.h.
#include "bound_memory.h"

#include <math.h>

// Bytes held, and for how long.
typedef struct {
    BoundLine bytes, hold;
} Held;

// One recompute mode.
typedef struct {
    BoundLine work;
    Held held[2];  // activations; the input
    int num_held;
} Choice;

// Of one class of samples in one mode: memory = per_token T + per_mb / T + fixed, work = work + once / T.
typedef struct {
    double per_token, per_mb, fixed, work, once;
} Terms;

// One piece.
typedef struct {
    int num_choices;
    Choice choice[RECOMPUTE_COUNT];
    Terms terms[BOUND_MAX_CLASSES][RECOMPUTE_COUNT];
    double largest_tokens;
    double free_bytes;
    double slack_ns;      // rounding of the jobs that a residence consists of
    double more_work_ns;  // of all samples beyond the corners of their classes
    double weight;
} Area;

typedef struct {
    int32_t num_areas;
    Area* areas;
    double more_work_ns;  // of what holds nothing
} Areas;

// g and its slope at one weight.
typedef struct {
    double w, value, slope;
} Tangent;

// --- the lines of a stage --------------------------------------------------------------------------------

// How many true tokens a micro-batch can have in this mode.
static double tokens_that_fit(const BoundLine* stored, double free_bytes) {
    double rate = stored->rate[FEATURE_ENC_TOKENS];
    return rate > 0 ? fmax((free_bytes + 1 - stored->constant) / rate, 1) : INFINITY;
}

static void choice_make(Choice* out, const BoundLines* lines, const BoundPiece* piece, int k) {
    const PlanProblem* problem = lines->problem;
    bool drops = problem->costs->recompute_is_job[problem->modes[k]] && problem->modes[k] != RECOMPUTE_NONE;
    *out = (Choice){.num_held = 1};
    for (int kind = 0; kind < JOB_COUNT; kind++) { bound_line_add(&out->work, 1, &piece->own.job[k][kind]); }
    BoundLine back = piece->own.job[k][JOB_B], through = piece->own.job[k][JOB_F];
    bound_line_add(&back, 1, &piece->own.job[k][JOB_R]);
    bound_line_add(&through, 1, &piece->away);
    bound_line_add(&through, 1, &back);
    if (lines->joint_backward) { bound_line_add(&through, 1, &piece->own.job[k][JOB_W]); }
    out->held[0].bytes = piece->own.stored[k];
    bound_line_add(&out->held[0].bytes, 1, &lines->stage_stored);
    out->held[0].hold = drops ? back : through;
    if (drops || !lines->joint_backward) { bound_line_add(&out->held[0].hold, 1, &piece->own.job[k][JOB_W]); }
    if (piece->has_input && problem->count_buffers) {
        out->held[1] = (Held){lines->boundary, through};
        out->num_held = 2;
    }
}

static Terms terms_make(const Area* area, const Choice* choice, const double x[FEATURE_COUNT]) {
    double own = x[FEATURE_ENC_TOKENS], per_byte = 1 / area->free_bytes;
    Terms t = {.work = bound_line_slope(&choice->work, x), .once = choice->work.constant * own};
    for (int h = 0; h < choice->num_held; h++) {
        const Held* held = &choice->held[h];
        double bytes = (bound_line_slope(&held->bytes, x) - 1) * per_byte;
        double once_bytes = held->bytes.constant * per_byte;
        double token_ns = held->hold.rate[FEATURE_ENC_TOKENS];
        double alone_ns =
            held->hold.constant + bound_line_slope(&held->hold, x) - token_ns * own - area->slack_ns;
        bytes = bytes > 0 ? bytes : 0;
        alone_ns = alone_ns > 0 ? alone_ns : 0;
        t.per_token += bytes * token_ns;
        t.per_mb += once_bytes * alone_ns * own;
        t.fixed += bytes * alone_ns + once_bytes * own * token_ns;
    }
    return t;
}

static void area_make(Area* out, const BoundLines* lines, const BoundPiece* piece, double free_bytes) {
    const BoundBatch* batch = lines->batch;
    double fits = 0, covered_ns = 0;
    out->num_choices = lines->problem->num_modes;
    out->free_bytes = free_bytes;
    out->weight = piece->weight;
    out->slack_ns = (3.0 * lines->problem->num_rows + 3.0 * lines->problem->P + 4) * lines->most_slow;
    for (int k = 0; k < out->num_choices; k++) {
        choice_make(&out->choice[k], lines, piece, k);
        fits = fmax(fits, tokens_that_fit(&out->choice[k].held[0].bytes, free_bytes));
    }
    out->largest_tokens = fmin(lines->largest_tokens, fits);
    for (int32_t c = 0; c < batch->num_corners; c++) {
        double x[FEATURE_COUNT];
        bound_features(x, &batch->corners[c]);
        for (int k = 0; k < out->num_choices; k++) { out->terms[c][k] = terms_make(out, &out->choice[k], x); }
        if (batch->num > batch->num_corners) {
            covered_ns += batch->corner_count[c] * bound_line_slope(&piece->own.work, x);
        }
    }
    out->more_work_ns = batch->num > batch->num_corners
                            ? fmax(bound_line_total(&piece->own.work, &lines->extent, 0) - covered_ns, 0)
                            : 0;
}

// --- the largest of g ------------------------------------------------------------------------------------

// The T between `least` and `most` at which up T + down / T is smallest. up > 0.
static double best_tokens(double up, double down, double least, double most) {
    if (down <= up * least * least) { return least; }
    return down >= up * most * most ? most : sqrt(down / up);
}

// Adds one piece's: its value and slope at w.
static void area_add(Tangent* sum, double w, const Area* area, const BoundBatch* batch) {
    double value = w * area->more_work_ns, slope = area->more_work_ns, v = 1 - w;
    for (int32_t c = 0; c < batch->num_corners; c++) {
        double own = batch->corners[c].enc_tokens, least = INFINITY, least_slope = 0;
        double most = area->largest_tokens > own ? area->largest_tokens : own;
        for (int k = 0; k < area->num_choices; k++) {
            const Terms* t = &area->terms[c][k];
            double up = v * t->per_token, down = v * t->per_mb + w * t->once;
            double floor = w * t->work + v * t->fixed + up * own;
            if (floor >= least) { continue; }
            double tokens = up > 0 ? best_tokens(up, down, own, most) : most, per = 1 / tokens;
            double work = t->work + t->once * per;
            double memory = t->per_token * tokens + t->per_mb * per + t->fixed;
            double sum_ns = w * work + v * memory;
            if (sum_ns < least) { least = sum_ns, least_slope = work - memory; }
        }
        value += batch->corner_count[c] * least;
        slope += batch->corner_count[c] * least_slope;
    }
    sum->value += area->weight * value;
    sum->slope += area->weight * slope;
}

static Tangent tangent_at(double w, const Areas* all, const BoundLines* lines) {
    Tangent sum = {w, w * all->more_work_ns, all->more_work_ns};
    for (int32_t i = 0; i < all->num_areas; i++) { area_add(&sum, w, &all->areas[i], lines->batch); }
    sum.value /= lines->problem->R;
    sum.slope /= lines->problem->R;
    return sum;
}

static double largest_of(const Areas* all, const BoundLines* lines, double enough_ns) {
    enum { MOST_STEPS = 8 };
    Tangent high = tangent_at(1, all, lines);
    double best = high.value;
    if (high.slope >= 0) { return best; }
    Tangent low = tangent_at(0, all, lines);
    best = fmax(best, low.value);
    for (int step = 0; step < MOST_STEPS && low.slope > 0; step++) {
        double w =
            (high.value - low.value + low.slope * low.w - high.slope * high.w) / (low.slope - high.slope);
        double at_most = low.value + low.slope * (w - low.w);  // where the tangents meet
        if (!(at_most > enough_ns && at_most > best * 1.001 && w > low.w && w < high.w)) { break; }
        Tangent middle = tangent_at(w, all, lines);
        best = fmax(best, middle.value);
        if (middle.slope > 0) {
            low = middle;
        } else if (middle.slope < 0) {
            high = middle;
        } else {
            break;
        }
    }
    return best;
}

Status bound_memory_stage(double* time_ns, const BoundLines* lines, const BoundStage* stage, double enough_ns,
                          Arena* scratch) {
    *time_ns = 0;
    if (!lines->problem->has_limit || stage->free_bytes <= 0 || stage->num_pieces == 0) { return STATUS_OK; }
    arena_reset(scratch);
    Areas all = {.num_areas = stage->num_pieces,
                 .areas = arena_alloc_raw(scratch, (size_t)stage->num_pieces * sizeof(Area))};
    if (all.areas == NULL) { return FAIL(STATUS_NO_MEMORY, "lower bound: no host memory left"); }
    all.more_work_ns = bound_line_total(&stage->more_work, &lines->extent, 0);
    for (int32_t i = 0; i < stage->num_pieces; i++) {
        area_make(&all.areas[i], lines, &stage->pieces[i], stage->free_bytes);
    }
    *time_ns = largest_of(&all, lines, enough_ns);
    return STATUS_OK;
}
