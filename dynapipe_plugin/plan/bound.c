/*
bound.c -- see bound.h. Samples of a batch, lines below the cost formulas, then the parts of the bound:
chains and stages of a given placement, its memory, the best split of the layers, any placement.
*/
#include "bound.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// --- samples ---------------------------------------------------------------------------------------------
//
// Equal samples are merged, in ascending order. `least` has the samples of which no other is smaller in all
// lengths, `most` those of which no other is larger in all. What grows with the lengths has its minimum in
// `least` and its maximum in `most`. A class is a set of samples of similar lengths; the shortest of each
// length stand for it.

enum { MOST_CLASSES = 256, MOST_COMPARED = 64 };  // a few samples too many in `least` or `most` are harmless

typedef struct {
    PlanSample sample;
    int32_t count, first;  // first: smallest id
} Distinct;

typedef struct {
    int32_t num, num_least, num_most, num_classes;
    Distinct* samples;
    int32_t *least, *most;  // indices into samples
    Distinct classes[MOST_CLASSES];
} Batch;

static int compare_distinct(const void* a, const void* b) {
    const Distinct *x = (const Distinct*)a, *y = (const Distinct*)b;
    int32_t by[] = {x->sample.enc_tokens - y->sample.enc_tokens, x->sample.dec_tokens - y->sample.dec_tokens,
                    x->sample.supervised_tokens - y->sample.supervised_tokens, x->first - y->first};
    for (int i = 0; i < 4; i++) {
        if (by[i] != 0) { return by[i] > 0 ? 1 : -1; }
    }
    return 0;
}

static bool is_same_sample(const PlanSample* a, const PlanSample* b) {
    return a->enc_tokens == b->enc_tokens && a->dec_tokens == b->dec_tokens &&
           a->supervised_tokens == b->supervised_tokens;
}

// Encoder lengths ascend with the index, so only the other two are compared. sign -1: less, 1: more.
static int32_t extremes_make(int32_t* out, const Batch* batch, int32_t sign) {
    int32_t num = 0;
    for (int32_t i = 0; i < batch->num; i++) {
        int32_t at = sign < 0 ? i : batch->num - 1 - i;
        const PlanSample* s = &batch->samples[at].sample;
        bool beaten = false;
        for (int32_t k = 0; k < num && k < MOST_COMPARED && !beaten; k++) {
            const PlanSample* other = &batch->samples[out[k]].sample;
            beaten = sign * (other->dec_tokens - s->dec_tokens) >= 0 &&
                     sign * (other->supervised_tokens - s->supervised_tokens) >= 0;
        }
        if (!beaten) { out[num++] = at; }
    }
    return num;
}

static void classes_make(Batch* out) {
    out->num_classes = out->num < MOST_CLASSES ? out->num : MOST_CLASSES;
    for (int64_t c = 0; c < out->num_classes; c++) {
        int64_t begin = out->num * c / out->num_classes, end = out->num * (c + 1) / out->num_classes;
        Distinct* one = &out->classes[c];
        *one = out->samples[begin];
        for (int64_t i = begin + 1; i < end; i++) {
            const PlanSample* s = &out->samples[i].sample;
            if (s->dec_tokens < one->sample.dec_tokens) { one->sample.dec_tokens = s->dec_tokens; }
            if (s->supervised_tokens < one->sample.supervised_tokens) {
                one->sample.supervised_tokens = s->supervised_tokens;
            }
            one->count += out->samples[i].count;
        }
    }
}

static Status batch_make(Batch* out, const PlanSample* samples, int32_t num_samples, Arena* arena) {
    memset(out, 0, sizeof *out);
    ARENA_TRY_NEW(out->samples, arena, Distinct, num_samples);
    ARENA_TRY_NEW(out->least, arena, int32_t, num_samples);
    ARENA_TRY_NEW(out->most, arena, int32_t, num_samples);
    for (int32_t i = 0; i < num_samples; i++) {
        out->samples[i].sample = samples[i];
        out->samples[i].count = 1;
        out->samples[i].first = i;
    }
    qsort(out->samples, (size_t)num_samples, sizeof *out->samples, compare_distinct);
    for (int32_t i = 0; i < num_samples; i++) {
        Distinct* last = &out->samples[out->num > 0 ? out->num - 1 : 0];
        if (out->num > 0 && is_same_sample(&last->sample, &out->samples[i].sample)) {
            last->count++;
        } else {
            out->samples[out->num++] = out->samples[i];
        }
    }
    out->num_least = extremes_make(out->least, out, -1);
    out->num_most = extremes_make(out->most, out, 1);
    classes_make(out);
    return STATUS_OK;
}

// --- lines -----------------------------------------------------------------------------------------------
//
// A micro-batch pays max(floor, const + sum over features c_f(x_f)) for a job of a part. Its line is
//     constant + sum over features rate_f * x_f
// with rate_f = min over 1 <= x <= largest_f of c_f(x) / x, which on a piecewise linear c is at x = 1, at a
// knot or at the end. A curve whose line begins below zero (a fit with a large constant) takes what it lacks
// at zero from the constant; the rest of the constant stays. Lines add up over micro-batches, and
// those of their samples. The largest x is that of a micro-batch of the whole batch, padded to its longest.

typedef struct {
    double constant;
    double rate[FEATURE_COUNT];
} Line;

// Of one part of the model, or the sum of several.
typedef struct {
    Line job[RECOMPUTE_COUNT][JOB_COUNT];  // by index in PlanProblem.modes
    Line stored[RECOMPUTE_COUNT];          // bytes
} Part;

// Where ranks differ: a rank's jobs of one kind take at least this many times the value of the lines.
//     least   on any of the ranks concerned, in whichever replica
//     share   a replica's share of the work, the mean over the R of them: R min over r of (y_r slow_r), with
//             weights y_r proportional to 1 / slow of the ranks and adding up to 1. Then the slowest replica
//             takes at least sum of y_r slow_r work_r, and work_r add up to all work.
typedef struct {
    double least[JOB_COUNT], share[JOB_COUNT];
} Speed;

typedef enum { GIVEN, ANY_SPLIT, ANY_PLACEMENT } Freedom;

typedef struct {
    const PlanProblem* problem;
    const Batch* batch;
    bool joint_backward, head_is_whole;  // in every placement considered
    Freedom freedom;
    double total[FEATURE_COUNT];    // over all samples, unpadded; no sequences (packing may join them)
    double largest[FEATURE_COUNT];  // that a micro-batch can have
    Part part[PART_COUNT];
    Line head_alone[JOB_COUNT];             // of the head where it is shared: nothing is recomputed
    Line stage_stored, boundary;            // bytes: once per stage; that a boundary sends
    Speed all, stage[PLAN_MAX_STAGES];      // of all ranks; of the ranks of one stage
    MachineRank lightest[PLAN_MAX_STAGES];  // of the fastest of them and the fastest link
    double most_slow;                       // of any job on any rank; 1 where they do not differ
} Bound;

enum { ANY_STAGE = -1, F = 1 << JOB_F, B = 1 << JOB_B, W = 1 << JOB_W, R = 1 << JOB_R };

// The least that a sample adds to its microbatch.
static void features_of(double out[FEATURE_COUNT], const PlanSample* s) {
    double enc = s->enc_tokens, dec = s->dec_tokens;
    out[FEATURE_SEQS] = 0;
    out[FEATURE_ENC_TOKENS] = enc;
    out[FEATURE_ENC_SQUARES] = enc * enc;
    out[FEATURE_DEC_TOKENS] = dec;
    out[FEATURE_DEC_SQUARES] = dec * dec;
    out[FEATURE_CROSS_PRODUCTS] = enc * dec;
    out[FEATURE_SUPERVISED] = s->supervised_tokens;
}

static void extent_make(Bound* out) {
    const PlanRequest* request = out->problem->request;
    double enc = 1, dec = 1, N = out->problem->num_samples;
    for (int32_t i = 0; i < out->batch->num; i++) {
        double own[FEATURE_COUNT];
        features_of(own, &out->batch->samples[i].sample);
        for (int f = 0; f < FEATURE_COUNT; f++) { out->total[f] += out->batch->samples[i].count * own[f]; }
        enc = fmax(enc, own[FEATURE_ENC_TOKENS]);
        dec = fmax(dec, own[FEATURE_DEC_TOKENS]);
    }
    // Packing and padding: up to N windows, each as long as all its samples together or as the length limits.
    double window = request->max_seq_tokens, dec_window = fmax(window, request->max_target_tokens);
    double padding = fmax(PAD_MULTIPLE, (double)shape_rules_multiple(&request->rules, 1));
    enc = fmax(fmax(window, out->total[FEATURE_ENC_TOKENS]), enc + padding);
    dec = fmax(fmax(dec_window, out->total[FEATURE_DEC_TOKENS]), dec + padding);
    const double largest[FEATURE_COUNT] = {N, N * enc, N * enc * enc, N * dec, N * dec * dec, N * enc * dec};
    memcpy(out->largest, largest, sizeof largest);
    out->largest[FEATURE_SUPERVISED] = out->total[FEATURE_SUPERVISED];
}

// What the line of the first segment lacks at zero.
static double lack_at_zero(const CostCurve* c) {
    if (c->num_knots < 2) { return 0; }
    double at_zero = c->y[0] - c->x[0] * ((c->y[1] - c->y[0]) / (c->x[1] - c->x[0]));
    return at_zero < 0 ? -at_zero : 0;
}

// min over 1 <= x <= largest of (borrowed + line(x)) / x; whole x only, and where the curve is clamped at 0
// the borrowed constant alone is there. `largest` may be beyond any integer.
static double cheapest_rate(const CostFormula* formula, int feature, double borrowed, double largest) {
    const CostCurve* c = &formula->curves[feature];
    if (c->num_knots == 0 || largest < 1) { return 0; }
    if (c->num_knots == 1) { return c->y[0] / c->x[0]; }
    double cheapest = borrowed + cost_curve_value(c, 1), ends[COST_MAX_KNOTS + 3];
    int num = 0;
    for (int i = 0; i < c->num_knots; i++) { ends[num++] = c->x[i]; }
    if (lack_at_zero(c) > 0) {  // where the clamp ends
        ends[num++] = c->x[0] - c->y[0] * (c->x[1] - c->x[0]) / fmax(c->y[1] - c->y[0], 1e-300);
    }
    ends[num++] = largest;
    for (int i = 0; i < 2 * num; i++) {
        double x = fmin(fmax(i % 2 ? ceil(ends[i / 2]) : floor(ends[i / 2]), 1), largest);
        cheapest = fmin(cheapest, (borrowed + cost_curve_value(c, floor(x))) / ceil(x));
    }
    return cheapest > 0 ? cheapest : 0;
}

static void line_make(Line* out, const CostFormula* formula, const Bound* bound) {
    out->constant = formula->constant;
    for (int f = 0; f < FEATURE_COUNT; f++) {
        double borrowed = fmin(out->constant, lack_at_zero(&formula->curves[f]));
        out->constant -= borrowed;
        out->rate[f] = cheapest_rate(formula, f, borrowed, bound->largest[f]);
    }
}

static void line_add(Line* out, double count, const Line* line) {
    out->constant += count * line->constant;
    for (int f = 0; f < FEATURE_COUNT; f++) { out->rate[f] += count * line->rate[f]; }
}

static double line_slope(const Line* line, const double x[FEATURE_COUNT]) {
    double sum = 0;
    for (int f = 0; f < FEATURE_COUNT; f++) { sum += line->rate[f] * x[f]; }
    return sum;
}

static double line_sample(const Line* line, const PlanSample* sample) {
    double x[FEATURE_COUNT];
    features_of(x, sample);
    return line->constant + line_slope(line, x);
}

// Share of one replica: at least one micro-batch's constants.
static double line_share(const Bound* bound, const Line* line) {
    return line_slope(line, bound->total) / bound->problem->R + line->constant;
}

// The sum over these kinds of jobs; every feature in its cheapest mode, as modes may differ.
static Line cheapest_of(const Bound* bound, const Part* part, int kinds) {
    Line cheapest = {0};
    for (int k = 0; k < bound->problem->num_modes; k++) {
        Line sum = {0};
        for (int kind = 0; kind < JOB_COUNT; kind++) {
            if (kinds & 1 << kind) { line_add(&sum, 1, &part->job[k][kind]); }
        }
        if (k == 0) { cheapest = sum; }
        cheapest.constant = fmin(cheapest.constant, sum.constant);
        for (int f = 0; f < FEATURE_COUNT; f++) { cheapest.rate[f] = fmin(cheapest.rate[f], sum.rate[f]); }
    }
    return cheapest;
}

static void parts_make(Bound* out) {
    const CostModel* costs = out->problem->costs;
    const bool has[PART_COUNT] = {true, costs->num_enc_layers > 0, costs->num_dec_layers > 0, true};
    for (int part = 0; part < PART_COUNT; part++) {
        for (int k = 0; has[part] && k < out->problem->num_modes; k++) {
            RecomputeMode mode = out->problem->modes[k];
            for (int kind = 0; kind < JOB_COUNT; kind++) {
                bool used = kind != JOB_R || costs->recompute_is_job[mode];
                if (used) {
                    line_make(&out->part[part].job[k][kind], &costs->parts[mode][part].time_ns[kind], out);
                }
            }
            line_make(&out->part[part].stored[k], &costs->parts[mode][part].stored_bytes, out);
        }
    }
    for (int kind = 0; kind < JOB_R; kind++) {
        line_make(&out->head_alone[kind], &costs->parts[RECOMPUTE_NONE][PART_HEAD].time_ns[kind], out);
    }
    line_make(&out->stage_stored, &costs->stage_stored_bytes, out);
    line_make(&out->boundary, &costs->boundary_bytes, out);
}

// out += `count` times the part on the ranks of stage s: constants on the fastest, rates too, or (`shared`)
// those of a replica's share.
static void part_add(Part* out, const Bound* bound, double count, const Part* part, int32_t s, bool shared) {
    const Speed* speed = s == ANY_STAGE ? &bound->all : &bound->stage[s];
    for (int k = 0; k < bound->problem->num_modes; k++) {
        for (int kind = 0; kind < JOB_COUNT; kind++) {
            Line line = part->job[k][kind];
            if (bound->problem->differs) {
                line.constant *= speed->least[kind];
                for (int f = 0; f < FEATURE_COUNT; f++) {
                    line.rate[f] *= (shared ? speed->share : speed->least)[kind];
                }
            }
            line_add(&out->job[k][kind], count, &line);
        }
        line_add(&out->stored[k], count, &part->stored[k]);
    }
}

// `share` of the head: F with the gradient of inputs, and W; whole constants, no bytes.
static void part_add_share(Part* out, const Bound* bound, double share, int32_t s, bool shared) {
    Part head = {0};
    for (int k = 0; k < bound->problem->num_modes; k++) {
        Line* job = head.job[k];
        job[JOB_F] = bound->head_alone[JOB_F];
        line_add(&job[JOB_F], 1, &bound->head_alone[JOB_B]);
        job[JOB_W] = bound->head_alone[JOB_W];
        for (int f = 0; f < FEATURE_COUNT; f++) { job[JOB_F].rate[f] *= share, job[JOB_W].rate[f] *= share; }
    }
    part_add(out, bound, 1, &head, s, shared);
}

static void chunk_add(Part* out, const Bound* bound, int32_t k, bool shared) {
    int32_t count[PIECE_COUNT], s = bound->problem->placement.stage_of[k];
    cost_stage_parts(count, bound->problem->costs, &bound->problem->chunks[k]);
    for (int part = 0; part < PART_COUNT; part++) {
        if (count[part] > 0) { part_add(out, bound, count[part], &bound->part[part], s, shared); }
    }
}

static double share_of(const Bound* bound, int32_t s) {
    const Placement* placement = &bound->problem->placement;
    if (!placement_has_share(placement, s)) { return 0; }
    return (placement->head_begin[s + 1] - placement->head_begin[s]) / (double)HEAD_UNITS;
}

// --- ranks that differ -----------------------------------------------------------------------------------

static Speed speed_of(const MachineRank* ranks, int32_t num, int32_t step) {
    Speed speed;
    double sum = 0;
    for (int32_t r = 0; r < num; r++) { sum += 1 / machine_slow(&ranks[r * step]); }
    for (int kind = 0; kind < JOB_COUNT; kind++) {
        speed.least[kind] = speed.share[kind] = INFINITY;
        for (int32_t r = 0; r < num; r++) {
            double slow = ranks[r * step].slow[kind];
            speed.least[kind] = fmin(speed.least[kind], slow);
            speed.share[kind] = fmin(speed.share[kind], slow / machine_slow(&ranks[r * step]) * (num / sum));
        }
    }
    return speed;
}

// Jobs of the fastest rank; of links, the lowest latency and the highest rate. What costs nothing keeps
// factor 1.
static MachineRank lightest_of(const PlanProblem* problem, const Speed* speed, int32_t s) {
    MachineRank lightest = {0};
    const CostModel* costs = problem->costs;
    memcpy(lightest.slow, speed->least, sizeof lightest.slow);
    lightest.link_latency_ns = INFINITY;
    for (int32_t r = 0; r < problem->R; r++) {
        const MachineRank* rank = &plan_problem_ranks(problem, r)[s];
        bool own = rank->link_bytes_per_ns > 0, is_free = !own && costs->comm_bytes_per_ns <= 0;
        double latency_ns = own ? rank->link_latency_ns : is_free ? 0 : costs->comm_latency_ns;
        double rate = own ? rank->link_bytes_per_ns : is_free ? INFINITY : costs->comm_bytes_per_ns;
        lightest.link_latency_ns = fmin(lightest.link_latency_ns, latency_ns);
        lightest.link_bytes_per_ns = fmax(lightest.link_bytes_per_ns, rate);
    }
    return lightest;
}

static void speeds_make(Bound* out) {
    const PlanProblem* problem = out->problem;
    const MachineRank* ranks = plan_problem_ranks(problem, 0);
    out->most_slow = 1;
    if (!problem->differs) { return; }
    out->all = speed_of(ranks, problem->P * problem->R, 1);
    for (int32_t s = 0; s < problem->P; s++) {
        out->stage[s] = speed_of(ranks + s, problem->R, problem->P);
        out->lightest[s] = lightest_of(problem, &out->stage[s], s);
    }
    for (int32_t i = 0; i < problem->P * problem->R; i++) {
        for (int k = 0; k < JOB_COUNT; k++) { out->most_slow = fmax(out->most_slow, ranks[i].slow[k]); }
    }
}

static const MachineRank* lightest(const Bound* bound, int32_t s) {
    return bound->problem->differs ? &bound->lightest[s] : NULL;
}

// The slowest link on the path, each link as fast as it is in any replica.
static int32_t slowest_link(const Bound* bound, int32_t from, int32_t to, int64_t num_bytes) {
    int32_t begin = from < to ? from : to, end = from < to ? to : from, slowest = begin;
    int64_t most_ns = -1;
    for (int32_t s = begin; s < end; s++) {
        int64_t ns = machine_transfer_ns(lightest(bound, s), bound->problem->costs, num_bytes);
        if (ns > most_ns) { most_ns = ns, slowest = s; }
    }
    return slowest;
}

static int64_t between_ns(const Bound* bound, int32_t from, int32_t to, int64_t num_bytes) {
    if (from == to) { return 0; }
    int32_t link = slowest_link(bound, from, to, num_bytes);
    return machine_transfer_ns(lightest(bound, link), bound->problem->costs, num_bytes);
}

// Rounding: a job may be half a nanosecond shorter than its formula, and a stage has at most 4 jobs of every
// sample in each of its pieces; a chain has 2 more for each piece of the model. The additions here err by
// less than one part in 10^12.
static int64_t floor_ns(double time_ns, const Bound* bound) {
    const PlanProblem* problem = bound->problem;
    double P = problem->P, K = problem->num_rows;
    double of_stage = placement_is_linear(&problem->placement, problem->P) ? 1 : K;
    if (bound->freedom == ANY_PLACEMENT) {  // a chunk of every layer, the head's, and shares of it
        K = problem->costs->num_enc_layers + problem->costs->num_dec_layers + 1 + P;
        of_stage = K / P;
    }
    double slack_ns =
        (2.0 * problem->num_samples * of_stage + 4.0 * K) * (problem->differs ? 1 + bound->most_slow : 1);
    double safe = time_ns * (1 - 1e-12) - slack_ns;
    return safe <= 0 ? 0 : safe < (double)COST_LIMIT ? (int64_t)safe : COST_LIMIT;
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

// --- one sample --------------------------------------------------------------------------------------------

// Each kind of job of each part in its cheapest mode, on an average rank.
static CostParts cheapest_parts(const Bound* bound, const PlanSample* sample) {
    const PlanProblem* problem = bound->problem;
    MbShape shape = {0};
    CostParts least, one;
    mb_shape_add(&shape, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
    for (int k = 0; k < problem->num_modes; k++) {
        cost_parts(&one, &problem->table, problem->modes[k], &shape);
        if (k == 0) { least = one; }
        for (int part = 0; part < PART_COUNT; part++) {
            for (int kind = 0; kind < JOB_COUNT; kind++) {
                least.part[part][kind] = fmin(least.part[part][kind], one.part[part][kind]);
            }
        }
    }
    if (bound->head_is_whole) { return least; }
    cost_parts(&one, &problem->table, RECOMPUTE_NONE, &shape);  // in a share nothing is recomputed
    for (int kind = 0; kind < JOB_COUNT; kind++) {
        least.part[PART_HEAD][kind] = fmin(least.part[PART_HEAD][kind], one.part[PART_HEAD][kind]);
    }
    return least;
}

// --- chains of a given placement -------------------------------------------------------------------------
//
// Samples alone: all forwards in the order of the chunks, the slowest share of the head where it is shared,
// all backwards, then on each stage the jobs left after its last backward; transfers between stages only.
// Jobs are the shortest of any micro-batch that contains the sample, on the fastest rank of their stage.

// Minima over all samples, of each stage.
typedef struct {
    int64_t arrival_ns[PLAN_MAX_STAGES];  // before its first forward, its lowest chunk's
    int64_t tail_ns[PLAN_MAX_STAGES];     // after its last backward, its lowest chunk's, upstream
    int64_t reduce_ns[PLAN_MAX_STAGES];   // after its last job
    int64_t longest_ns;                   // the longest chain of a sample
    int32_t longest_sample;               // and which sample it is
} Chains;

static void arrive(int64_t* first_ns, int64_t time_ns, bool* seen) {
    if (!*seen) { *first_ns = smaller(*first_ns, time_ns); }
    *seen = true;
}

// Lowers the minima, and raises the longest.
static void chain_add(Chains* ends, const Bound* bound, const Distinct* one) {
    const PlanProblem* problem = bound->problem;
    const Placement* placement = &problem->placement;
    const int32_t P = problem->P, K = placement->num_chunks, last = placement->stage_of[K - 1];
    const CostParts parts = cheapest_parts(bound, &one->sample);
    const bool joint = bound->joint_backward, by_rows = placement->head == HEAD_BY_ROWS;
    CostJobs jobs;
    int64_t turn_ns[PLAN_MAX_CHUNKS], weights_ns[PLAN_MAX_CHUNKS], hop_ns[PLAN_MAX_CHUNKS];
    int64_t time_ns = 0, longest_ns = 0, head_ns = 0, after_ns = 0, back_ns[PLAN_MAX_STAGES] = {0};
    bool seen[PLAN_MAX_STAGES] = {false}, passed[PLAN_MAX_STAGES] = {false};
    for (int32_t k = 0; k < K; k++) {
        int32_t s = placement->stage_of[k];
        const MachineRank* rank = lightest(bound, s);
        cost_jobs_of_stage(&jobs, problem->costs, &problem->chunks[k], &parts);
        weights_ns[k] = joint ? 0 : machine_job_ns(rank, JOB_W, jobs.job_ns[JOB_W]);
        turn_ns[k] = machine_job_ns(rank, JOB_B, jobs.job_ns[JOB_B]);
        if (joint) { turn_ns[k] += machine_job_ns(rank, JOB_W, jobs.job_ns[JOB_W]); }
        hop_ns[k] = k < K - 1 ? between_ns(bound, s, placement->stage_of[k + 1], jobs.boundary_bytes) : 0;
        arrive(&ends->arrival_ns[s], time_ns, &seen[s]);
        time_ns += machine_job_ns(rank, JOB_F, jobs.job_ns[JOB_F]) + hop_ns[k];
    }
    for (int32_t s = 0; s < P; s++) {
        const MachineRank* rank = lightest(bound, s);
        if (!placement_has_share(placement, s)) { continue; }
        cost_jobs_of_share(&jobs, problem->costs, cost_share_of(placement, s), &parts);
        // by rows, a message may shrink by a row when the micro-batch grows by one: only its latency counts
        int64_t begin_ns = time_ns + between_ns(bound, last, s, by_rows ? 0 : jobs.boundary_bytes);
        int64_t end_ns = begin_ns + machine_job_ns(rank, JOB_F, jobs.job_ns[JOB_F]);
        int64_t after_share_ns = machine_job_ns(rank, JOB_W, jobs.job_ns[JOB_W]) + ends->reduce_ns[s];
        back_ns[s] = between_ns(bound, s, last, by_rows ? 0 : jobs.part_bytes);
        arrive(&ends->arrival_ns[s], begin_ns, &seen[s]);
        head_ns = larger(head_ns, end_ns + back_ns[s] - time_ns);
        longest_ns = larger(longest_ns, end_ns + after_share_ns);
    }
    time_ns += head_ns;
    for (int32_t k = K - 1; k >= 0; k--) {
        time_ns += hop_ns[k] + turn_ns[k];
        longest_ns = larger(longest_ns, time_ns + weights_ns[k] + ends->reduce_ns[placement->stage_of[k]]);
    }
    const int32_t first = placement->stage_of[0];
    const int64_t end_ns = weights_ns[0] + ends->reduce_ns[first];
    for (int32_t k = 0; k < K; k++) {
        int32_t s = placement->stage_of[k];
        arrive(&ends->tail_ns[s], after_ns + (s == first ? 0 : end_ns), &passed[s]);
        after_ns += turn_ns[k] + hop_ns[k];
    }
    for (int32_t s = 0; s < P; s++) {  // a share of the head alone: all backwards follow
        arrive(&ends->tail_ns[s], back_ns[s] + after_ns + end_ns, &passed[s]);
    }
    if (longest_ns > ends->longest_ns) { ends->longest_ns = longest_ns, ends->longest_sample = one->first; }
}

// Minima over all samples are those over the least, maxima those over the most.
static Chains chains_make(const Bound* bound) {
    const Batch* batch = bound->batch;
    Chains chains = {.longest_ns = 0};
    for (int32_t s = 0; s < bound->problem->P; s++) {
        chains.arrival_ns[s] = chains.tail_ns[s] = INT64_MAX;
        chains.reduce_ns[s] =
            cost_rank_reduce_ns(bound->problem->costs, &bound->problem->has[s], bound->problem->R);
    }
    for (int32_t i = 0; i < batch->num_least; i++) {
        chain_add(&chains, bound, &batch->samples[batch->least[i]]);
    }
    for (int32_t i = 0; i < batch->num_most; i++) {
        chain_add(&chains, bound, &batch->samples[batch->most[i]]);
    }
    return chains;
}

// --- memory of a given placement -------------------------------------------------------------------------
//
// No stage can hold more byte-seconds than its free memory times the step. A micro-batch i on a stage holds
// a_i bytes from its forward to its backward, at least for rho_i = F + everything downstream and back + B +
// W, so sum a_i rho_i / free bytes <= time that the stage has. Small micro-batches hold less, but pay their
// constants more often; recomputation holds less, but works more. Both are weighed at once: for any 0 <= w <=
// 1
//
//     time >= g(w) = 1/R sum over samples j of min over modes and over micro-batch tokens T of
//         w (work of j + constants l_j / T) + (1 - w) a_j (rho of j alone + rho per token (T - l_j)) / free
//
// where l_j are the tokens of j, l_j <= T <= what memory holds. Several chunks of a stage add up, the minima
// of each taken alone; a share of the head is work only. Of classes of samples the shortest count (g's terms
// grow with the lengths), and their work beyond that at the lowest rates.

// Of one class in one mode: memory = per_token T + per_mb / T + fixed, work = work + once / T.
typedef struct {
    double per_token, per_mb, fixed, work, once;
} Terms;

typedef struct {
    Part own;
    Line away;       // from the end of the forward to the begin of the backward
    bool has_input;  // that are counted beside its activations
    double free_bytes, slack_ns;
} Piece;

static void terms_add(Terms* t, const Piece* piece, const Line* bytes, const Line* hold, const double* x) {
    double own = x[FEATURE_ENC_TOKENS], per_byte = 1 / piece->free_bytes,
           token_ns = hold->rate[FEATURE_ENC_TOKENS];
    double held = fmax((line_slope(bytes, x) - 1) * per_byte, 0), once = bytes->constant * per_byte;
    double alone_ns = fmax(hold->constant + line_slope(hold, x) - token_ns * own - piece->slack_ns, 0);
    t->per_token += held * token_ns;
    t->per_mb += once * alone_ns * own;
    t->fixed += held * alone_ns + once * own * token_ns;
}

static Terms terms_make(const Piece* piece, const Bound* bound, int k, const double* x) {
    const PlanProblem* problem = bound->problem;
    const Line* job = piece->own.job[k];
    bool drops = problem->costs->recompute_is_job[problem->modes[k]] && problem->modes[k] != RECOMPUTE_NONE;
    Line work = job[JOB_F], back = job[JOB_B], through = job[JOB_F], bytes = piece->own.stored[k];
    Terms t = {0};
    for (int kind = JOB_F + 1; kind < JOB_COUNT; kind++) { line_add(&work, 1, &job[kind]); }
    line_add(&back, 1, &job[JOB_R]);
    line_add(&through, 1, &piece->away);
    line_add(&through, 1, &back);
    if (bound->joint_backward) { line_add(&through, 1, &job[JOB_W]); }
    line_add(&bytes, 1, &bound->stage_stored);
    Line hold = drops ? back : through;
    if (drops || !bound->joint_backward) { line_add(&hold, 1, &job[JOB_W]); }
    t.work = line_slope(&work, x);
    t.once = work.constant * x[FEATURE_ENC_TOKENS];
    terms_add(&t, piece, &bytes, &hold, x);
    if (piece->has_input && problem->count_buffers) { terms_add(&t, piece, &bound->boundary, &through, x); }
    return t;
}

// The least of a piece and a class at weight w: over modes, and over tokens from `own` to `most`.
static double least_of(const Terms* terms, int num_modes, double w, double own, double most) {
    double least = INFINITY, v = 1 - w;
    for (int k = 0; k < num_modes; k++) {
        const Terms* t = &terms[k];
        double up = v * t->per_token, down = v * t->per_mb + w * t->once;
        double tokens = up * most * most <= down ? most : up * own * own >= down ? own : sqrt(down / up);
        least = fmin(least, w * t->work + v * t->fixed + up * tokens + down / tokens);
    }
    return least;
}

// Weights at which g is evaluated: closer together near 1, where memory is short but is not all that counts.
// g is concave and valid at any weight: this many come close to its maximum.
enum { WEIGHTS = 17 };

static double weight_of(int i) {
    double v = 1 - i / (WEIGHTS - 1.0);
    return 1 - v * v;
}

// sum[i] += g(weight_of(i)) of a piece, without 1/R.

static void piece_add(double sum[WEIGHTS], const Piece* piece, const Bound* bound) {
    int num_modes = bound->problem->num_modes;
    double most = 1, covered_ns = 0;
    Line work = cheapest_of(bound, &piece->own, F | B | W | R);
    for (int k = 0; k < num_modes; k++) {
        Line bytes = piece->own.stored[k];
        line_add(&bytes, 1, &bound->stage_stored);
        double rate = bytes.rate[FEATURE_ENC_TOKENS];
        most = fmax(most, rate > 0 ? (piece->free_bytes + 1 - bytes.constant) / rate : INFINITY);
    }
    most = fmin(most, bound->total[FEATURE_ENC_TOKENS]);
    for (int32_t c = 0; c < bound->batch->num_classes; c++) {
        const Distinct* one = &bound->batch->classes[c];
        Terms terms[RECOMPUTE_COUNT];
        double x[FEATURE_COUNT], own = one->sample.enc_tokens;
        features_of(x, &one->sample);
        for (int k = 0; k < num_modes; k++) { terms[k] = terms_make(piece, bound, k, x); }
        for (int i = 0; i < WEIGHTS; i++) {
            sum[i] += one->count * least_of(terms, num_modes, weight_of(i), own, fmax(most, own));
        }
        covered_ns += one->count * line_slope(&work, x);
    }
    double more_ns = fmax(line_slope(&work, bound->total) - covered_ns, 0) * (1 - 1e-9);
    if (bound->batch->num == bound->batch->num_classes) { more_ns = 0; }
    for (int i = 0; i < WEIGHTS; i++) { sum[i] += more_ns * weight_of(i); }
}

// A transfer there and one back between two stages, over the slowest link on the way.
static void link_add(Line* out, const Bound* bound, int32_t from, int32_t to) {
    const CostModel* costs = bound->problem->costs;
    if (from == to) { return; }
    int64_t typical_bytes = (int64_t)line_sample(&bound->boundary, &bound->batch->samples[0].sample);
    const MachineRank* link = lightest(bound, slowest_link(bound, from, to, typical_bytes));
    double latency_ns = link == NULL ? costs->comm_latency_ns : link->link_latency_ns;
    double rate = link == NULL ? costs->comm_bytes_per_ns : link->link_bytes_per_ns;
    if (rate <= 0) { return; }
    out->constant += 2 * latency_ns;
    line_add(out, 2 / rate, &bound->boundary);
}

// Time that stage s needs between its first job and its last; 0: memory is no limit.
static double memory_of_stage(const Bound* bound, int32_t s) {
    const PlanProblem* problem = bound->problem;
    double sum[WEIGHTS] = {0}, largest = 0, most = 0;
    Part share = {0};
    Piece piece = {0};
    piece.free_bytes =
        (double)(problem->most_limit_bytes[s] - cost_rank_state_bytes(problem->costs, &problem->has[s]));
    piece.slack_ns = (3.0 * problem->num_rows + 3.0 * problem->P + 4) * bound->most_slow;
    if (problem->most_limit_bytes[s] == 0 || piece.free_bytes <= 0) { return 0; }
    for (int32_t k = 0; k < problem->P; k++) {  // the slowest share of the head
        Part head = {0};
        if (share_of(bound, k) <= largest) { continue; }
        largest = share_of(bound, k);
        part_add_share(&head, bound, largest, k, false);
        piece.away = cheapest_of(bound, &head, F);
    }
    for (int32_t k = problem->K - 1; k >= 0; k--) {
        int32_t own = problem->placement.stage_of[k];
        if (k < problem->K - 1) { link_add(&piece.away, bound, own, problem->placement.stage_of[k + 1]); }
        piece.own = (Part){0};
        chunk_add(&piece.own, bound, k, false);
        piece.has_input = k > 0;
        if (own == s) { piece_add(sum, &piece, bound); }
        Line turn = cheapest_of(bound, &piece.own, F | B | (bound->joint_backward ? W : 0));
        line_add(&piece.away, 1, &turn);
    }
    if (share_of(bound, s) > 0) { part_add_share(&share, bound, share_of(bound, s), s, false); }
    Line more = cheapest_of(bound, &share, F | B | W | R);
    for (int i = 0; i < WEIGHTS; i++) {
        most = fmax(most, sum[i] + line_slope(&more, bound->total) * weight_of(i));
    }
    return most / problem->R;
}

// --- a given placement -----------------------------------------------------------------------------------

static void given_placement(LowerBound* out, const Bound* bound) {
    const PlanProblem* problem = bound->problem;
    const Chains ends = chains_make(bound);
    out->chain_ns = ends.longest_ns;
    out->chain_sample = ends.longest_sample;
    for (int32_t s = 0; s < problem->P; s++) {
        Part stage = {0};
        bool has_share = share_of(bound, s) > 0;
        for (int32_t k = 0; k < problem->K; k++) {
            if (problem->placement.stage_of[k] == s) { chunk_add(&stage, bound, k, true); }
        }
        if (has_share) { part_add_share(&stage, bound, share_of(bound, s), s, true); }
        Line all = cheapest_of(bound, &stage, F | B | W | R);
        // Split backward, or a share of the head, may end with W, and only the reduction follows.
        bool ends_with_b = bound->joint_backward && !has_share;
        int64_t after = ends_with_b ? larger(ends.tail_ns[s], ends.reduce_ns[s]) : ends.reduce_ns[s];
        double work = line_share(bound, &all), memory = memory_of_stage(bound, s);
        int64_t time_ns = ends.arrival_ns[s] + floor_ns(work, bound) + after;
        if (time_ns > out->stage_ns) { out->stage_ns = time_ns, out->stage = s; }
        if (memory > work) {
            out->memory_ns = larger(out->memory_ns, ends.arrival_ns[s] + floor_ns(memory, bound) + after);
        }
    }
}

// --- bounds for any placement ----------------------------------------------------------------------------

// The same on the fastest rank; the head's shares together where it may be shared.
static CostParts sample_parts(const Bound* bound, const PlanSample* sample) {
    CostParts least = cheapest_parts(bound, sample);
    if (!bound->head_is_whole) {
        least.part[PART_HEAD][JOB_F] /= bound->problem->P;
        least.part[PART_HEAD][JOB_B] /= bound->problem->P;
        least.part[PART_HEAD][JOB_W] = 0;
    }
    for (int part = 0; part < PART_COUNT && bound->problem->differs; part++) {
        bool mixes = part == PART_HEAD && !bound->head_is_whole;  // a share's F has the gradient of inputs
        double mixed = fmin(bound->all.least[JOB_F], bound->all.least[JOB_B]);
        for (int kind = 0; kind < JOB_COUNT; kind++) {
            least.part[part][kind] *= mixes ? mixed : bound->all.least[kind];
        }
    }
    return least;
}

static int part_of_layer(const Bound* bound, int32_t l) {
    return l < bound->problem->costs->num_enc_layers ? PART_ENC_LAYER : PART_DEC_LAYER;
}

static double reduce_per_byte(const Bound* bound) {
    return cost_reduce_ns_per_byte(bound->problem->costs, bound->problem->R);
}

// The least transfer over the fastest of all links.
static double quickest_transfer(const Bound* bound, int64_t num_bytes) {
    double least = INFINITY;
    for (int32_t s = 0; s < bound->problem->P - 1; s++) {
        int64_t ns = machine_transfer_ns(lightest(bound, s), bound->problem->costs, num_bytes);
        least = fmin(least, (double)ns);
    }
    return least < INFINITY ? least : 0;
}

// The longest sample on any placement: all parts there and back, weight gradients of the first layer and its
// embedding, their reduction.
static void any_chains(LowerBound* out, const Bound* bound) {
    const CostModel* costs = bound->problem->costs;
    const int32_t count[PART_COUNT] = {1, costs->num_enc_layers, costs->num_dec_layers, 1};
    int first = part_of_layer(bound, 0);
    double bytes = (double)costs->part_param_bytes[PART_EMBEDDING] + (double)costs->part_param_bytes[first];
    double longest = 0;
    for (int32_t i = 0; i < bound->batch->num_most; i++) {
        const Distinct* one = &bound->batch->samples[bound->batch->most[i]];
        CostParts parts = sample_parts(bound, &one->sample);
        double time = bytes * reduce_per_byte(bound) +
                      2 * (bound->problem->P - 1) * quickest_transfer(bound, parts.enc_boundary_bytes);
        for (int part = 0; part < PART_COUNT; part++) {
            const double* ns = parts.part[part];
            bool is_first = part == PART_EMBEDDING || part == first;
            int32_t num_w = bound->joint_backward ? count[part] : is_first;
            time += count[part] * (ns[JOB_F] + ns[JOB_B]) + num_w * ns[JOB_W];
        }
        if (time > longest) { longest = time, out->chain_sample = one->first; }
    }
    out->chain_ns = floor_ns(longest, bound);
}

// Of the lightest sample in each: forward, and backward with what must come before the next backward
// upstream.
typedef struct {
    double forward[PART_COUNT], back[PART_COUNT];
    int64_t sent_bytes;
} Lightest;

static Lightest lightest_make(const Bound* bound) {
    Lightest out;
    out.sent_bytes = COST_LIMIT;
    for (int part = 0; part < PART_COUNT; part++) { out.forward[part] = out.back[part] = INFINITY; }
    for (int32_t i = 0; i < bound->batch->num_least; i++) {
        CostParts parts = sample_parts(bound, &bound->batch->samples[bound->batch->least[i]].sample);
        out.sent_bytes = smaller(out.sent_bytes, parts.enc_boundary_bytes);
        for (int part = 0; part < PART_COUNT; part++) {
            const double* ns = parts.part[part];
            out.forward[part] = fmin(out.forward[part], ns[JOB_F]);
            out.back[part] = fmin(out.back[part], ns[JOB_B] + (bound->joint_backward ? ns[JOB_W] : 0));
        }
    }
    return out;
}

// --- the best split --------------------------------------------------------------------------------------
//
//     g(p, l) = min { max(g(p-1, k), bound of layers k..l-1 as stage p) : p <= k < l }
// with for each stage arrival + work / R + what follows. Exact over all splits with at least one layer on
// every stage; the last may be the head alone. With memory, ranges whose model state leaves no room for the
// largest samples, one at a time, are impossible.

enum { MOST_STORED = 16 };

typedef struct {
    const Bound* bound;
    int32_t P, L;
    double *arrival, *after;  // [L + 1] before the layers from here on, without links; after their backward
    double links_ns[PLAN_MAX_STAGES];  // of the lightest sample, one way, over all boundaries before a stage
    double work[PLAN_MAX_STAGES][PART_COUNT];                  // a replica's share of a part on that stage
    double stored[MOST_STORED][RECOMPUTE_COUNT][PIECE_COUNT];  // bytes of the largest samples; last: once
    double received[MOST_STORED];
    int32_t num_stored;
} Split;

static void counts_of(int32_t count[PART_COUNT], const Split* split, int32_t s, int32_t begin, int32_t end) {
    int32_t num_enc = split->bound->problem->costs->num_enc_layers, enc_end = end < num_enc ? end : num_enc;
    count[PART_ENC_LAYER] = enc_end > begin ? enc_end - begin : 0;
    count[PART_DEC_LAYER] = end - begin - count[PART_ENC_LAYER];
    count[PART_EMBEDDING] = s == 0;
    count[PART_HEAD] = s == split->P - 1;
}

static double range_ns(const Split* split, int32_t s, int32_t begin, int32_t end) {
    const CostModel* costs = split->bound->problem->costs;
    int32_t count[PART_COUNT];
    double arrival = s > 0 ? split->arrival[begin] + split->links_ns[s] : 0, work = 0, reduce = 0;
    double back = s > 0 && split->bound->joint_backward ? split->after[begin] + split->links_ns[s] : 0;
    counts_of(count, split, s, begin, end);
    for (int part = 0; part < PART_COUNT; part++) {
        work += count[part] * split->work[s][part];
        if (part != PART_HEAD) { reduce += count[part] * (double)costs->part_param_bytes[part]; }
    }
    return arrival + work + fmax(back, reduce * reduce_per_byte(split->bound));
}

// Model state, and the largest samples one at a time, each in the mode that keeps least of it.
static bool range_fits(const Split* split, int32_t s, int32_t begin, int32_t end) {
    const PlanProblem* problem = split->bound->problem;
    LayerRange layers = {begin, end};
    CostStage stage = cost_stage_make(problem->costs, &layers, s, split->P);
    int32_t count[PART_COUNT];
    if (problem->most_limit_bytes[s] == 0) { return true; }
    double free_bytes = (double)(problem->most_limit_bytes[s] - cost_state_bytes(problem->costs, &stage));
    counts_of(count, split, s, begin, end);
    for (int32_t i = 0; i < split->num_stored && free_bytes > 0; i++) {
        double least = INFINITY;
        for (int k = 0; k < problem->num_modes; k++) {
            double sum = split->stored[i][k][PART_COUNT];
            for (int part = 0; part < PART_COUNT; part++) {
                if (count[part] > 0) { sum += count[part] * split->stored[i][k][part]; }
            }
            least = fmin(least, sum);
        }
        if (least + (s > 0 ? split->received[i] : 0) - 1 > free_bytes) { return false; }
    }
    return free_bytes > 0;
}

static void stored_make(Split* out) {
    const PlanProblem* problem = out->bound->problem;
    const Batch* batch = out->bound->batch;
    out->num_stored = batch->num_most < MOST_STORED ? batch->num_most : MOST_STORED;
    for (int32_t i = 0; i < out->num_stored; i++) {
        const PlanSample* s = &batch->samples[batch->most[i]].sample;
        MbShape shape = {0};
        CostParts parts;
        mb_shape_add(&shape, s->enc_tokens, s->dec_tokens, s->supervised_tokens);
        for (int k = 0; k < problem->num_modes; k++) {
            cost_parts(&parts, &problem->table, problem->modes[k], &shape);
            for (int part = 0; part < PART_COUNT; part++) {
                out->stored[i][k][part] = parts.part[part][COST_STORED];
            }
            out->stored[i][k][PART_COUNT] = parts.stage[COST_STORED];
            out->received[i] = problem->count_buffers ? (double)parts.enc_boundary_bytes : 0;
        }
    }
}

static void prices_make(Split* out) {
    const Bound* bound = out->bound;
    Lightest lightest_sample = lightest_make(bound);
    out->arrival[0] = lightest_sample.forward[PART_EMBEDDING];
    out->after[0] = lightest_sample.back[PART_EMBEDDING];
    for (int32_t l = 0; l < out->L; l++) {
        out->arrival[l + 1] = out->arrival[l] + lightest_sample.forward[part_of_layer(bound, l)];
        out->after[l + 1] = out->after[l] + lightest_sample.back[part_of_layer(bound, l)];
    }
    for (int32_t s = 0; s < out->P; s++) {
        for (int part = 0; part < PART_COUNT; part++) {
            Part one = {0};
            part_add(&one, bound, 1, &bound->part[part], s, true);
            Line work = cheapest_of(bound, &one, F | B | W | R);
            out->work[s][part] = line_share(bound, &work);
        }
        if (s == 0) { continue; }
        int64_t ns =
            machine_transfer_ns(lightest(bound, s - 1), bound->problem->costs, lightest_sample.sent_bytes);
        out->links_ns[s] = out->links_ns[s - 1] + (double)ns;
    }
}

// The slowest stage of the best split; INFINITY: none fits.
static double best_split(const Split* split, bool fits, double* best, double* next) {
    int32_t L = split->L, last = split->P - 1;
    for (int32_t l = 0; l <= L; l++) { best[l] = l == 0 ? 0 : INFINITY; }
    for (int32_t s = 0; s <= last; s++) {
        int32_t begin_last = s == last && s > 0 ? L : L - 1;
        for (int32_t l = 0; l <= L; l++) { next[l] = INFINITY; }
        for (int32_t begin = s; begin <= begin_last; begin++) {
            if (best[begin] == INFINITY) { continue; }
            for (int32_t end = s == last ? L : begin + 1; end <= L; end++) {
                if (fits && !range_fits(split, s, begin, end)) {
                    break;
                }  // more layers only need more memory
                next[end] = fmin(next[end], fmax(best[begin], range_ns(split, s, begin, end)));
            }
        }
        double* before = best;
        best = next;
        next = before;
    }
    return best[L];
}

static Status any_split(LowerBound* out, const Bound* bound, Arena* arena) {
    const CostModel* costs = bound->problem->costs;
    Split* split;
    double *best, *next;
    ARENA_TRY_NEW(split, arena, Split, 1);
    split->bound = bound, split->P = bound->problem->P,
    split->L = costs->num_enc_layers + costs->num_dec_layers;
    ARENA_TRY_NEW(split->arrival, arena, double, split->L + 1);
    ARENA_TRY_NEW(split->after, arena, double, split->L + 1);
    ARENA_TRY_NEW(best, arena, double, split->L + 1);
    ARENA_TRY_NEW(next, arena, double, split->L + 1);
    prices_make(split);
    any_chains(out, bound);
    out->stage_ns = floor_ns(best_split(split, false, best, next), bound);
    if (!bound->problem->has_limit) { return STATUS_OK; }
    stored_make(split);
    double in_memory = best_split(split, true, best, next);
    if (in_memory < INFINITY) { out->memory_ns = floor_ns(in_memory, bound); }
    return STATUS_OK;
}

// --- any placement ---------------------------------------------------------------------------------------

// All parts; a head that may be shared counts as the cheaper of both ways.
static Line whole_work(const Bound* bound) {
    const CostModel* costs = bound->problem->costs;
    const int32_t count[PART_COUNT] = {1, costs->num_enc_layers, costs->num_dec_layers, 0};
    Part chain = {0}, head = {0}, share = {0};
    for (int part = 0; part < PART_COUNT; part++) {
        if (count[part] > 0) { part_add(&chain, bound, count[part], &bound->part[part], ANY_STAGE, true); }
    }
    part_add(&head, bound, 1, &bound->part[PART_HEAD], ANY_STAGE, true);
    part_add_share(&share, bound, 1, ANY_STAGE, true);
    Line work = cheapest_of(bound, &chain, F | B | W | R), whole = cheapest_of(bound, &head, F | B | W | R);
    Line shared = cheapest_of(bound, &share, F | B | W | R);
    if (!bound->head_is_whole) {
        whole.constant = fmin(whole.constant, shared.constant);
        for (int f = 0; f < FEATURE_COUNT; f++) { whole.rate[f] = fmin(whole.rate[f], shared.rate[f]); }
    }
    line_add(&work, 1, &whole);
    return work;
}

// Every stage has a chunk, every chunk but the last a layer (the last may be the head alone). In the order
// in which a micro-batch first reaches the stages, the i-th begins after i layers and i transfers. Work
// spread evenly over the rest of the step:
//     time >= (work / R + sum of these arrivals + sum of what must follow) / P
static void any_placement(LowerBound* out, const Bound* bound, const Line* work) {
    const CostModel* costs = bound->problem->costs;
    int32_t P = bound->problem->P, L = costs->num_enc_layers + costs->num_dec_layers;
    Lightest least = lightest_make(bound);
    double link = quickest_transfer(bound, least.sent_bytes), forward = least.forward[PART_EMBEDDING];
    double back = least.back[PART_EMBEDDING], arrivals = 0, tails = 0;
    double bytes = (double)costs->part_param_bytes[PART_EMBEDDING];
    for (int32_t l = 0; l < L; l++) {
        forward += least.forward[part_of_layer(bound, l)];
        back += least.back[part_of_layer(bound, l)];
        bytes += (double)costs->part_param_bytes[part_of_layer(bound, l)];
        if (l + 1 < P) { arrivals += forward + (l + 1) * link, tails += back + (l + 1) * link; }
    }
    any_chains(out, bound);
    // A share of the head may come last, alone: then only the reduction follows.
    bool joint = bound->joint_backward && bound->head_is_whole;
    double reduce = bytes * reduce_per_byte(bound), after = joint ? fmax(tails, reduce) : reduce;
    out->stage_ns = floor_ns((line_share(bound, work) + arrivals + after) / P, bound);
}

// --- the bound -------------------------------------------------------------------------------------------

static void freedom_set(Bound* out) {
    const PlanProblem* problem = out->problem;
    const PlanRequest* request = problem->request;
    bool is_linear = placement_is_linear(&problem->placement, problem->P);
    bool kind_is_given = request->placements == PLACEMENT_GIVEN && request->heads == HEAD_CHOICE_GIVEN;
    bool one_each =
        request->placements == PLACEMENT_LINEAR || (request->placements == PLACEMENT_GIVEN && is_linear);
    out->head_is_whole = request->heads == HEAD_CHOICE_WHOLE ||
                         (request->heads == HEAD_CHOICE_GIVEN && problem->placement.head == HEAD_WHOLE);
    out->freedom = kind_is_given && !request->choose_stages ? GIVEN
                   : one_each && out->head_is_whole         ? ANY_SPLIT
                                                            : ANY_PLACEMENT;
}

static Status bound_make(LowerBound* out, const PlanProblem* problem, bool joint_backward, Arena* arena) {
    Batch* batch;
    Bound* bound;
    ARENA_TRY_NEW(batch, arena, Batch, 1);
    ARENA_TRY_NEW(bound, arena, Bound, 1);
    TRY(batch_make(batch, problem->samples, problem->num_samples, arena));
    bound->problem = problem, bound->batch = batch, bound->joint_backward = joint_backward;
    extent_make(bound);
    freedom_set(bound);
    speeds_make(bound);
    parts_make(bound);
    Line work = whole_work(bound);
    out->work_ns = floor_ns(line_slope(&work, bound->total) / problem->P / problem->R, bound);
    switch (bound->freedom) {
        case GIVEN: given_placement(out, bound); break;
        case ANY_SPLIT: TRY(any_split(out, bound, arena)); break;
        default: any_placement(out, bound, &work); break;
    }
    if (out->memory_ns <= out->stage_ns) { out->memory_ns = 0; }
    out->bound_ns = larger(larger(out->work_ns, out->chain_ns), larger(out->stage_ns, out->memory_ns));
    return STATUS_OK;
}

Status lower_bound_make(LowerBound* out, const PlanProblem* problem, bool joint_backward) {
    Arena arena = {0};
    LowerBound made = {0};
    made.stage = -1;
    *out = made;
    Status status = bound_make(&made, problem, joint_backward, &arena);
    arena_free(&arena);
    if (status == STATUS_OK) { *out = made; }
    return status;
}
