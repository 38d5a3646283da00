/*
lower_bound.c -- see lower_bound.h.

Rates. A micro-batch pays max(floor, const + sum over features c_f(x_f)) for a job of a part. Over any
micro-batches whose x_f add up to at least X_f, the sum of c_f(x) is at least X_f * min over 1 <= x <= X of
c_f(x) / x, and on a piecewise linear c that minimum is at x = 1, a knot, or the end. A curve whose line
begins below zero (a fit with a large constant) borrows from the constant what it lacks at zero; the rest of
the constant, and the floor, are dropped. Squares and products of padded or packed sequences are at least
those of their samples. Largest x: a micro-batch of the whole batch, padded to its longest.
*/
#include "lower_bound.h"

#include <math.h>
#include <string.h>

typedef struct {
    double total[FEATURE_COUNT];    // over all samples, unpadded
    double largest[FEATURE_COUNT];  // that one micro-batch can have
} Extent;

static Extent extent_make(const MicrobatchProblem* problem) {
    MbShape sum = {0};
    int64_t enc = 1, dec = 1;
    for (int32_t i = 0; i < problem->num_samples; i++) {
        const PlanSample* s = &problem->samples[i];
        mb_shape_add(&sum, s->enc_tokens, s->dec_tokens, s->supervised_tokens);
        enc = s->enc_tokens > enc ? s->enc_tokens : enc;
        dec = s->dec_tokens > dec ? s->dec_tokens : dec;
    }
    Extent e = {.total = {0, (double)sum.enc_tokens, (double)sum.enc_squares, (double)sum.dec_tokens,
                          (double)sum.dec_squares, (double)sum.cross_products,
                          (double)sum.supervised_tokens}};
    // Packing and padding: up to N windows, each as long as all samples of it or as max_seq_tokens.
    double N = problem->num_samples, window = problem->request->max_seq_tokens;
    double longest_enc = fmax(window, (double)sum.enc_tokens),
           longest_dec = fmax(window, (double)sum.dec_tokens);
    longest_enc = fmax(longest_enc, (double)(enc + PAD_MULTIPLE));
    longest_dec = fmax(longest_dec, (double)(dec + PAD_MULTIPLE));
    e.largest[FEATURE_SEQS] = N;
    e.largest[FEATURE_ENC_TOKENS] = N * longest_enc;
    e.largest[FEATURE_ENC_SQUARES] = N * longest_enc * longest_enc;
    e.largest[FEATURE_DEC_TOKENS] = N * longest_dec;
    e.largest[FEATURE_DEC_SQUARES] = N * longest_dec * longest_dec;
    e.largest[FEATURE_CROSS_PRODUCTS] = N * longest_enc * longest_dec;
    e.largest[FEATURE_SUPERVISED] = e.total[FEATURE_SUPERVISED];
    return e;
}

// The curve at x by the cost model's own arithmetic.
static double curve_at(const CostFormula* formula, int feature, double x) {
    CostFormula one = {.constant = 0};
    int64_t n = (int64_t)x;
    one.curves[feature] = formula->curves[feature];
    MbShape shape = {n, n, n, n, n, n, n};
    return cost_formula_value(&one, &shape);
}

// What the line of the first segment lacks at zero.
static double lack_at_zero(const CostCurve* c) {
    if (c->num_knots < 2) { return 0; }
    double at_zero = c->y[0] - c->x[0] * ((c->y[1] - c->y[0]) / (c->x[1] - c->x[0]));
    return at_zero < 0 ? -at_zero : 0;
}

// min over 1 <= x <= largest of (borrowed + line(x)) / x; whole x only, and where the curve is clamped at 0
// the borrowed constant alone is there.
static double cheapest_rate(const CostFormula* formula, int feature, double borrowed, double largest) {
    const CostCurve* c = &formula->curves[feature];
    if (c->num_knots == 0 || largest < 1) { return 0; }
    double cheapest = borrowed + curve_at(formula, feature, 1);
    double ends[COST_MAX_KNOTS + 3];
    int num = 0;
    for (int i = 0; i < c->num_knots; i++) { ends[num++] = c->x[i]; }
    if (c->num_knots >= 2 && lack_at_zero(c) > 0) {  // where the clamp ends
        ends[num++] = c->x[0] - c->y[0] * (c->x[1] - c->x[0]) / fmax(c->y[1] - c->y[0], 1e-300);
    }
    ends[num++] = largest;
    for (int i = 0; i < num; i++) {
        double around[2] = {floor(ends[i]), ceil(ends[i])};
        for (int k = 0; k < 2; k++) {
            double x = fmin(fmax(around[k], 1), largest);
            cheapest = fmin(cheapest, (borrowed + curve_at(formula, feature, floor(x))) / ceil(x));
        }
    }
    return cheapest > 0 ? cheapest : 0;
}

// Least time of one job of one part over any micro-batches of the batch.
static double least_time(const CostFormula* formula, const Extent* extent) {
    double left = formula->constant, sum = 0;
    for (int f = 0; f < FEATURE_COUNT; f++) {
        double borrowed = fmin(left, lack_at_zero(&formula->curves[f]));
        left -= borrowed;
        sum += cheapest_rate(formula, f, borrowed, extent->largest[f]) * extent->total[f];
    }
    return sum;
}

// F + B + W (+ R) of one part, in the cheapest mode. Modes may differ between micro-batches, so each feature
// takes its cheapest mode: a formula of one feature at a time.
static double part_work(const MicrobatchProblem* problem, int part, const Extent* extent) {
    double sum = 0;
    for (int f = 0; f < FEATURE_COUNT; f++) {
        double cheapest = INFINITY;
        Extent one = {.total = {0}};
        one.total[f] = extent->total[f];
        memcpy(one.largest, extent->largest, sizeof one.largest);
        for (int k = 0; k < problem->num_modes; k++) {
            const CostPartMode* mode = &problem->costs->parts[problem->modes[k]][part];
            double work = 0;
            for (int kind = 0; kind < JOB_COUNT; kind++) {
                bool used = kind != JOB_R || problem->costs->recompute_is_job[problem->modes[k]];
                work += used ? least_time(&mode->time_ns[kind], &one) : 0;
            }
            cheapest = fmin(cheapest, work);
        }
        sum += cheapest;
    }
    return sum;
}

// Rounding: a job may be half a nanosecond shorter than its formula, and no stage has more than 4 N jobs. The
// additions here err by less than one part in 10^12.
static int64_t floor_ns(double time_ns, int32_t num_samples) {
    double safe = time_ns * (1 - 1e-12) - 2.0 * num_samples;
    return safe <= 0 ? 0 : safe < (double)COST_LIMIT ? (int64_t)safe : COST_LIMIT;
}

// Shortest job of any micro-batch that holds this sample, per stage: jobs only grow with their shape.
typedef struct {
    int64_t F[PLAN_MAX_STAGES], B[PLAN_MAX_STAGES], W[PLAN_MAX_STAGES], transfer[PLAN_MAX_STAGES];
} Chain;

static Chain chain_make(const MicrobatchProblem* problem, const PlanSample* sample) {
    Chain chain;
    CostJobs jobs[PLAN_MAX_STAGES];
    MbShape shape = {0};
    mb_shape_add(&shape, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
    for (int k = 0; k < problem->num_modes; k++) {
        cost_stages(jobs, problem->costs, problem->stages, problem->P, problem->modes[k], &shape);
        for (int32_t s = 0; s < problem->P; s++) {
            const int64_t* ns = jobs[s].job_ns;
            chain.F[s] = k > 0 && chain.F[s] < ns[JOB_F] ? chain.F[s] : ns[JOB_F];
            chain.B[s] = k > 0 && chain.B[s] < ns[JOB_B] ? chain.B[s] : ns[JOB_B];
            chain.W[s] = k > 0 && chain.W[s] < ns[JOB_W] ? chain.W[s] : ns[JOB_W];
            chain.transfer[s] =
                s < problem->P - 1 ? cost_transfer_ns(problem->costs, jobs[s].boundary_bytes) : 0;
        }
    }
    return chain;
}

// All forwards, then backwards down to each stage, its weight gradients, its reduction: the longest of these.
static int64_t chain_ns(const Chain* chain, const int64_t* reduce_ns, int32_t P) {
    int64_t time_ns = 0, longest = 0;
    for (int32_t s = 0; s < P; s++) { time_ns += chain->F[s] + chain->transfer[s]; }
    for (int32_t s = P - 1; s >= 0; s--) {
        time_ns += chain->B[s] + chain->transfer[s];
        int64_t end = time_ns + chain->W[s] + reduce_ns[s];
        longest = end > longest ? end : longest;
    }
    return longest;
}

void lower_bound_make(LowerBound* out, const MicrobatchProblem* problem, bool joint_backward) {
    int32_t P = problem->P, N = problem->num_samples;
    int64_t arrival[PLAN_MAX_STAGES], tail[PLAN_MAX_STAGES], reduce_ns[PLAN_MAX_STAGES];
    *out = (LowerBound){0};
    for (int32_t s = 0; s < P; s++) {
        arrival[s] = INT64_MAX, tail[s] = INT64_MAX;
        reduce_ns[s] = cost_reduce_ns(problem->costs, &problem->stages[s], problem->R);
    }
    for (int32_t i = 0; i < N; i++) {
        Chain chain = chain_make(problem, &problem->samples[i]);
        int64_t longest = chain_ns(&chain, reduce_ns, P), before = 0, behind = 0;
        if (longest > out->chain_ns) { out->chain_ns = longest, out->chain_sample = i; }
        for (int32_t s = 0; s < P; s++) {
            arrival[s] = before < arrival[s] ? before : arrival[s];
            tail[s] = behind < tail[s] ? behind : tail[s];
            before += chain.F[s] + chain.transfer[s];
            behind += chain.B[s] + chain.W[s] + chain.transfer[s];
        }
    }
    Extent extent = extent_make(problem);
    double part_ns[PART_COUNT], total = 0;
    for (int part = 0; part < PART_COUNT; part++) { part_ns[part] = part_work(problem, part, &extent); }
    for (int32_t s = 0; s < P; s++) {
        const StageLayers* layers = &problem->stages[s].layers;
        int32_t enc = problem->costs->num_enc_layers, num_enc = 0, num_dec = 0;
        for (int32_t l = layers->layer_begin; l < layers->layer_end; l++) {
            *(l < enc ? &num_enc : &num_dec) += 1;
        }
        double work = num_enc * part_ns[PART_ENC_LAYER] + num_dec * part_ns[PART_DEC_LAYER] +
                      (problem->stages[s].has_embedding ? part_ns[PART_EMBEDDING] : 0) +
                      (problem->stages[s].has_head ? part_ns[PART_HEAD] : 0);
        // With split backward a stage may end with W, and only its reduction follows.
        int64_t after = joint_backward && tail[s] > reduce_ns[s] ? tail[s] : reduce_ns[s];
        int64_t bound = arrival[s] + floor_ns(work / problem->R, N) + after;
        if (bound > out->stage_ns) { out->stage_ns = bound, out->stage = s; }
        total += work;
    }
    out->work_ns = floor_ns(total / P / problem->R, N);
    out->bound_ns = out->work_ns > out->chain_ns ? out->work_ns : out->chain_ns;
    out->bound_ns = out->stage_ns > out->bound_ns ? out->stage_ns : out->bound_ns;
}
