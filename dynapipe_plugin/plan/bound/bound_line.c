// bound_line.c -- see bound_line.h.
#include "bound_line.h"

#include <math.h>
#include <string.h>

#include "../problem/shape_rules.h"

void bound_features(double out[FEATURE_COUNT], const PlanSample* s) {
    double enc = s->enc_tokens, dec = s->dec_tokens;
    out[FEATURE_SEQS] = 0;
    out[FEATURE_ENC_TOKENS] = enc;
    out[FEATURE_ENC_SQUARES] = enc * enc;
    out[FEATURE_DEC_TOKENS] = dec;
    out[FEATURE_DEC_SQUARES] = dec * dec;
    out[FEATURE_CROSS_PRODUCTS] = enc * dec;
    out[FEATURE_SUPERVISED] = s->supervised_tokens;
}

static BoundExtent extent_make(const PlanProblem* problem, const BoundBatch* batch) {
    BoundExtent e = {.total = {0}};
    double enc = 1, dec = 1;
    for (int32_t i = 0; i < batch->num; i++) {
        double own[FEATURE_COUNT];
        bound_features(own, &batch->samples[i]);
        for (int f = 0; f < FEATURE_COUNT; f++) { e.total[f] += batch->count[i] * own[f]; }
        enc = fmax(enc, own[FEATURE_ENC_TOKENS]);
        dec = fmax(dec, own[FEATURE_DEC_TOKENS]);
    }
    // Packing and padding: up to N windows, each as long as all samples of it or as the sides' limits.
    double N = problem->num_samples, window = problem->request->max_seq_tokens;
    double dec_window = fmax(window, problem->request->max_target_tokens);
    double padding = fmax(PAD_MULTIPLE, (double)shape_rules_multiple(&problem->request->rules, 1));
    double longest_enc = fmax(fmax(window, e.total[FEATURE_ENC_TOKENS]), enc + padding);
    double longest_dec = fmax(fmax(dec_window, e.total[FEATURE_DEC_TOKENS]), dec + padding);
    e.largest[FEATURE_SEQS] = N;
    e.largest[FEATURE_ENC_TOKENS] = N * longest_enc;
    e.largest[FEATURE_ENC_SQUARES] = N * longest_enc * longest_enc;
    e.largest[FEATURE_DEC_TOKENS] = N * longest_dec;
    e.largest[FEATURE_DEC_SQUARES] = N * longest_dec * longest_dec;
    e.largest[FEATURE_CROSS_PRODUCTS] = N * longest_enc * longest_dec;
    e.largest[FEATURE_SUPERVISED] = e.total[FEATURE_SUPERVISED];
    return e;
}

// --- one formula -----------------------------------------------------------------------------------------

// What the line of the first segment lacks at zero.
static double lack_at_zero(const CostCurve* c) {
    if (c->num_knots < 2) { return 0; }
    double at_zero = c->y[0] - c->x[0] * ((c->y[1] - c->y[0]) / (c->x[1] - c->x[0]));
    return at_zero < 0 ? -at_zero : 0;
}

// min over 1 <= x <= largest of (borrowed + line(x)) / x; whole x only, and where the curve is clamped at 0
// the borrowed constant alone is there. `largest` may be beyond any integer: padding everything to everything
// is more than a shape can say.
static double cheapest_rate(const CostFormula* formula, int feature, double borrowed, double largest) {
    const CostCurve* c = &formula->curves[feature];
    if (c->num_knots == 0 || largest < 1) { return 0; }
    if (c->num_knots == 1) { return c->y[0] / c->x[0]; }
    double cheapest = borrowed + cost_curve_value(c, 1);
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
            cheapest = fmin(cheapest, (borrowed + cost_curve_value(c, floor(x))) / ceil(x));
        }
    }
    return cheapest > 0 ? cheapest : 0;
}

static void line_make(BoundLine* out, const CostFormula* formula, const BoundExtent* extent) {
    out->constant = formula->constant;
    for (int f = 0; f < FEATURE_COUNT; f++) {
        double borrowed = fmin(out->constant, lack_at_zero(&formula->curves[f]));
        out->constant -= borrowed;
        out->rate[f] = cheapest_rate(formula, f, borrowed, extent->largest[f]);
    }
}

// --- lines -----------------------------------------------------------------------------------------------

void bound_line_add(BoundLine* out, double count, const BoundLine* line) {
    out->constant += count * line->constant;
    for (int f = 0; f < FEATURE_COUNT; f++) { out->rate[f] += count * line->rate[f]; }
}

static void line_lower(BoundLine* out, const BoundLine* line) {
    out->constant = fmin(out->constant, line->constant);
    for (int f = 0; f < FEATURE_COUNT; f++) { out->rate[f] = fmin(out->rate[f], line->rate[f]); }
}

double bound_line_sample(const BoundLine* line, const PlanSample* s) {
    double x[FEATURE_COUNT];
    bound_features(x, s);
    return line->constant + bound_line_slope(line, x);
}

double bound_line_slope(const BoundLine* line, const double features[FEATURE_COUNT]) {
    const double *rate = line->rate, *x = features;
    double sum = rate[FEATURE_ENC_TOKENS] * x[FEATURE_ENC_TOKENS] +
                 rate[FEATURE_ENC_SQUARES] * x[FEATURE_ENC_SQUARES] +
                 rate[FEATURE_SUPERVISED] * x[FEATURE_SUPERVISED];
    if (x[FEATURE_DEC_TOKENS] == 0) { return sum; }
    return sum + rate[FEATURE_DEC_TOKENS] * x[FEATURE_DEC_TOKENS] +
           rate[FEATURE_DEC_SQUARES] * x[FEATURE_DEC_SQUARES] +
           rate[FEATURE_CROSS_PRODUCTS] * x[FEATURE_CROSS_PRODUCTS];
}

double bound_line_total(const BoundLine* line, const BoundExtent* extent, double num_mbs) {
    double sum = line->constant * num_mbs;
    for (int f = 0; f < FEATURE_COUNT; f++) { sum += line->rate[f] * extent->total[f]; }
    return sum;
}

// The cheapest mode of the sum over these kinds, feature by feature.
static BoundLine cheapest_mode(const BoundPart* part, int num_modes, bool F, bool B, bool W, bool R) {
    BoundLine cheapest = {0};
    for (int k = 0; k < num_modes; k++) {
        BoundLine sum = {0};
        if (F) { bound_line_add(&sum, 1, &part->job[k][JOB_F]); }
        if (B) { bound_line_add(&sum, 1, &part->job[k][JOB_B]); }
        if (W) { bound_line_add(&sum, 1, &part->job[k][JOB_W]); }
        if (R) { bound_line_add(&sum, 1, &part->job[k][JOB_R]); }
        if (k == 0) {
            cheapest = sum;
        } else {
            line_lower(&cheapest, &sum);
        }
    }
    return cheapest;
}

static void cheapest_modes(BoundPart* out, const BoundLines* lines) {
    int n = lines->problem->num_modes;
    out->work = cheapest_mode(out, n, true, true, true, true);
    out->turn = cheapest_mode(out, n, true, true, lines->joint_backward, false);
    out->F = cheapest_mode(out, n, true, false, false, false);
    out->B = cheapest_mode(out, n, false, true, false, false);
    out->BW = cheapest_mode(out, n, false, true, true, false);
}

static void part_make(BoundPart* out, const BoundLines* lines, int part) {
    const PlanProblem* problem = lines->problem;
    *out = (BoundPart){0};
    for (int k = 0; k < problem->num_modes; k++) {
        const CostPartMode* mode = &problem->costs->parts[problem->modes[k]][part];
        for (int kind = 0; kind < JOB_COUNT; kind++) {
            bool used = kind != JOB_R || problem->costs->recompute_is_job[problem->modes[k]];
            if (used) { line_make(&out->job[k][kind], &mode->time_ns[kind], &lines->extent); }
        }
        line_make(&out->stored[k], &mode->stored_bytes, &lines->extent);
    }
    cheapest_modes(out, lines);
}

static void part_add(BoundPart* out, double count, const BoundPart* part) {
    for (int k = 0; k < RECOMPUTE_COUNT; k++) {
        for (int kind = 0; kind < JOB_COUNT; kind++) {
            bound_line_add(&out->job[k][kind], count, &part->job[k][kind]);
        }
        bound_line_add(&out->stored[k], count, &part->stored[k]);
    }
    bound_line_add(&out->work, count, &part->work);
    bound_line_add(&out->turn, count, &part->turn);
    bound_line_add(&out->F, count, &part->F);
    bound_line_add(&out->B, count, &part->B);
    bound_line_add(&out->BW, count, &part->BW);
}

void bound_part_scale(BoundPart* out, const BoundLines* lines, int part, int32_t s, bool shared) {
    const BoundSpeed* speed = s == BOUND_ANY_STAGE ? &lines->all : &lines->stage[s];
    *out = lines->part[part];
    if (!lines->problem->differs) { return; }
    for (int k = 0; k < lines->problem->num_modes; k++) {
        for (int kind = 0; kind < JOB_COUNT; kind++) {
            BoundLine* line = &out->job[k][kind];
            line->constant *= speed->least[kind];
            for (int f = 0; f < FEATURE_COUNT; f++) {
                line->rate[f] *= (shared ? speed->share : speed->least)[kind];
            }
        }
    }
    cheapest_modes(out, lines);
}

void bound_part_sum(BoundPart* out, const BoundLines* lines, const int32_t count[PART_COUNT], int32_t s,
                    bool shared) {
    static const int parts[PART_COUNT] = {PART_ENC_LAYER, PART_DEC_LAYER, PART_EMBEDDING, PART_HEAD};
    *out = (BoundPart){0};
    for (int i = 0; i < PART_COUNT; i++) {
        BoundPart one;
        if (count[parts[i]] == 0) { continue; }
        bound_part_scale(&one, lines, parts[i], s, shared);
        part_add(out, count[parts[i]], &one);
    }
}

void bound_part_chunk(BoundPart* out, const BoundLines* lines, int32_t k, bool shared) {
    const PlanProblem* problem = lines->problem;
    int32_t count[PIECE_COUNT];
    cost_stage_parts(count, problem->costs, &problem->chunks[k]);
    bound_part_sum(out, lines, count, problem->placement.stage_of[k], shared);
}

double bound_share_of(const BoundLines* lines, int32_t s) {
    const Placement* placement = &lines->problem->placement;
    if (!placement_has_share(placement, s)) { return 0; }
    return (placement->head_begin[s + 1] - placement->head_begin[s]) / (double)HEAD_UNITS;
}

void bound_part_share(BoundPart* out, const BoundLines* lines, double share, int32_t s, bool shared) {
    const BoundSpeed* speed = s == BOUND_ANY_STAGE ? &lines->all : &lines->stage[s];
    BoundLine job[JOB_COUNT] = {[JOB_F] = lines->head_alone[JOB_F], [JOB_W] = lines->head_alone[JOB_W]};
    bound_line_add(&job[JOB_F], 1, &lines->head_alone[JOB_B]);
    for (int kind = 0; kind < JOB_COUNT; kind++) {
        double slow = lines->problem->differs ? speed->least[kind] : 1;
        double rate = lines->problem->differs && shared ? speed->share[kind] : slow;
        job[kind].constant *= slow;
        for (int f = 0; f < FEATURE_COUNT; f++) { job[kind].rate[f] *= share * rate; }
    }
    *out = (BoundPart){0};
    for (int k = 0; k < lines->problem->num_modes; k++) { memcpy(out->job[k], job, sizeof job); }
    cheapest_modes(out, lines);
}

void bound_part_stage(BoundPart* out, const BoundLines* lines, int32_t s, bool shared) {
    const PlanProblem* problem = lines->problem;
    BoundPart one;
    *out = (BoundPart){0};
    for (int32_t k = 0; k < problem->K; k++) {
        if (problem->placement.stage_of[k] != s) { continue; }
        bound_part_chunk(&one, lines, k, shared);
        part_add(out, 1, &one);
    }
    if (bound_share_of(lines, s) > 0) {
        bound_part_share(&one, lines, bound_share_of(lines, s), s, shared);
        part_add(out, 1, &one);
    }
}

// --- ranks that differ -----------------------------------------------------------------------------------

static BoundSpeed speed_of(const MachineRank* ranks, int32_t num, int32_t step) {
    BoundSpeed speed;
    double sum = 0;
    for (int32_t r = 0; r < num; r++) { sum += 1 / machine_slow(&ranks[r * step]); }
    for (int kind = 0; kind < JOB_COUNT; kind++) {
        speed.least[kind] = speed.share[kind] = INFINITY;
        for (int32_t r = 0; r < num; r++) {
            const MachineRank* rank = &ranks[r * step];
            double slow = rank->slow[kind];
            speed.least[kind] = fmin(speed.least[kind], slow);
            speed.share[kind] = fmin(speed.share[kind], slow / machine_slow(rank) * (num / sum));
        }
    }
    return speed;
}

// Jobs of the fastest rank; of links, the earliest first byte and the highest rate. One that costs nothing
// stays so.
static MachineRank lightest_of(const PlanProblem* problem, int32_t s) {
    MachineRank lightest = {.slow = {INFINITY, INFINITY, INFINITY, INFINITY}};
    const CostModel* costs = problem->costs;
    lightest.link_latency_ns = INFINITY;
    for (int32_t r = 0; r < problem->R; r++) {
        const MachineRank* rank = &plan_problem_ranks(problem, r)[s];
        bool own = rank->link_bytes_per_ns > 0, is_free = !own && costs->comm_bytes_per_ns <= 0;
        double latency_ns = own ? rank->link_latency_ns : is_free ? 0 : costs->comm_latency_ns;
        double rate = own ? rank->link_bytes_per_ns : is_free ? INFINITY : costs->comm_bytes_per_ns;
        for (int kind = 0; kind < JOB_COUNT; kind++) {
            lightest.slow[kind] = fmin(lightest.slow[kind], rank->slow[kind]);
        }
        lightest.link_latency_ns = fmin(lightest.link_latency_ns, latency_ns);
        lightest.link_bytes_per_ns = fmax(lightest.link_bytes_per_ns, rate);
    }
    return lightest;
}

static void speeds_make(BoundLines* out) {
    const PlanProblem* problem = out->problem;
    const MachineRank* ranks = plan_problem_ranks(problem, 0);
    out->most_slow = 1;
    if (!problem->differs) { return; }
    out->all = speed_of(ranks, problem->P * problem->R, 1);
    memcpy(out->lightest_all.slow, out->all.least, sizeof out->all.least);
    for (int32_t s = 0; s < problem->P; s++) {
        out->stage[s] = speed_of(ranks + s, problem->R, problem->P);
        out->lightest[s] = lightest_of(problem, s);
    }
    for (int32_t i = 0; i < problem->P * problem->R; i++) {
        for (int k = 0; k < JOB_COUNT; k++) { out->most_slow = fmax(out->most_slow, ranks[i].slow[k]); }
    }
}

const MachineRank* bound_lightest(const BoundLines* lines, int32_t s) {
    return !lines->problem->differs ? NULL
           : s == BOUND_ANY_STAGE   ? &lines->lightest_all
                                    : &lines->lightest[s];
}

// The slowest for a message of this size, at the best that each link of the way is in any replica.
static int32_t slowest_link(const BoundLines* lines, int32_t from, int32_t to, int64_t num_bytes) {
    int32_t begin = from < to ? from : to, end = from < to ? to : from, slowest = begin;
    int64_t most_ns = -1;
    for (int32_t s = begin; s < end; s++) {
        int64_t ns = machine_transfer_ns(bound_lightest(lines, s), lines->problem->costs, num_bytes);
        if (ns > most_ns) { most_ns = ns, slowest = s; }
    }
    return slowest;
}

int64_t bound_between_ns(const BoundLines* lines, int32_t from, int32_t to, int64_t num_bytes) {
    if (from == to) { return 0; }
    int32_t link = slowest_link(lines, from, to, num_bytes);
    return machine_transfer_ns(bound_lightest(lines, link), lines->problem->costs, num_bytes);
}

void bound_link_add(BoundLine* out, const BoundLines* lines, int32_t from, int32_t to) {
    const CostModel* costs = lines->problem->costs;
    if (from == to) { return; }
    int64_t typical_bytes = (int64_t)bound_line_sample(&lines->boundary, &lines->batch->samples[0]);
    const MachineRank* link = bound_lightest(lines, slowest_link(lines, from, to, typical_bytes));
    double latency_ns = link == NULL ? costs->comm_latency_ns : link->link_latency_ns;
    double rate = link == NULL ? costs->comm_bytes_per_ns : link->link_bytes_per_ns;
    if (rate <= 0) { return; }
    out->constant += 2 * latency_ns;
    bound_line_add(out, 2 / rate, &lines->boundary);
}

// --- all of them -----------------------------------------------------------------------------------------

static void parts_make(BoundLines* out) {
    const CostModel* costs = out->problem->costs;
    bool has[PART_COUNT] = {true, costs->num_enc_layers > 0, costs->num_dec_layers > 0, true};
    for (int part = 0; part < PART_COUNT; part++) {
        out->part[part] = (BoundPart){0};
        if (has[part]) { part_make(&out->part[part], out, part); }
    }
    for (int kind = 0; kind < JOB_R; kind++) {
        const CostFormula* formula = &costs->parts[RECOMPUTE_NONE][PART_HEAD].time_ns[kind];
        line_make(&out->head_alone[kind], formula, &out->extent);
    }
    line_make(&out->stage_stored, &costs->stage_stored_bytes, &out->extent);
    line_make(&out->boundary, &costs->boundary_bytes, &out->extent);
}

// A micro-batch's activations of a chunk (of all of `num_stages` stages) must be there at one time, at least.
static void lower_largest(BoundLines* lines, const BoundPart* stage, double num_stages, double free_bytes) {
    double tokens = 0, padded_enc = 0, padded_dec = 0;
    for (int k = 0; k < lines->problem->num_modes; k++) {
        BoundLine stored = stage->stored[k];
        bound_line_add(&stored, num_stages, &lines->stage_stored);
        double left = free_bytes - stored.constant, rate = stored.rate[FEATURE_ENC_TOKENS];
        double dec_rate = stored.rate[FEATURE_DEC_TOKENS];
        padded_enc = fmax(padded_enc, rate > 0 ? left / rate : INFINITY);
        padded_dec = fmax(padded_dec, dec_rate > 0 ? left / dec_rate : INFINITY);
    }
    tokens = padded_enc;
    lines->largest_tokens = fmin(lines->largest_tokens, fmax(tokens, 1));
    double* largest = lines->extent.largest;
    largest[FEATURE_ENC_TOKENS] =
        fmin(largest[FEATURE_ENC_TOKENS], fmax(floor(padded_enc * (1 + 1e-9)) + 1, 1));
    largest[FEATURE_DEC_TOKENS] =
        fmin(largest[FEATURE_DEC_TOKENS], fmax(floor(padded_dec * (1 + 1e-9)) + 1, 1));
}

// Is any rate other than a slope?
static bool has_bent_curves(const PlanProblem* problem) {
    for (int k = 0; k < problem->num_modes; k++) {
        for (int part = 0; part < PART_COUNT; part++) {
            const CostPartMode* mode = &problem->costs->parts[problem->modes[k]][part];
            for (int f = 0; f < FEATURE_COUNT; f++) {
                bool bent = mode->stored_bytes.curves[f].num_knots > 1;
                for (int kind = 0; kind < JOB_COUNT; kind++) {
                    bent |= mode->time_ns[kind].curves[f].num_knots > 1;
                }
                if (bent) { return true; }
            }
        }
    }
    for (int f = 0; f < FEATURE_COUNT; f++) {
        bool bent = problem->costs->stage_stored_bytes.curves[f].num_knots > 1 ||
                    problem->costs->boundary_bytes.curves[f].num_knots > 1;
        if (bent) { return true; }
    }
    return false;
}

int64_t bound_free_bytes(const BoundLines* lines, int32_t s) {
    const PlanProblem* problem = lines->problem;
    int64_t limit_bytes = problem->most_limit_bytes[s];
    if (limit_bytes == 0) { return COST_LIMIT; }
    return limit_bytes - cost_rank_state_bytes(problem->costs, &problem->has[s]);
}

static void freedom_set(BoundLines* out) {
    const PlanProblem* problem = out->problem;
    const PlanRequest* request = problem->request;
    bool is_linear = placement_is_linear(&problem->placement, problem->P);
    bool kind_is_given = request->placements == PLACEMENT_GIVEN && request->heads == HEAD_CHOICE_GIVEN;
    bool one_each =
        request->placements == PLACEMENT_LINEAR || (request->placements == PLACEMENT_GIVEN && is_linear);
    out->head_is_whole = request->heads == HEAD_CHOICE_WHOLE ||
                         (request->heads == HEAD_CHOICE_GIVEN && problem->placement.head == HEAD_WHOLE);
    out->freedom = kind_is_given && !request->choose_stages ? BOUND_GIVEN
                   : one_each && out->head_is_whole         ? BOUND_ANY_SPLIT
                                                            : BOUND_ANY_PLACEMENT;
}

// Smaller micro-batches, higher rates: what the largest can be.
static void largest_make(BoundLines* out) {
    const PlanProblem* problem = out->problem;
    const CostModel* costs = problem->costs;
    BoundPart sum;
    double all_bytes = 0, most_bytes = 0;  // of the roomiest rank of each stage, of any
    for (int32_t s = 0; s < problem->P; s++) {
        int64_t limit_bytes = problem->most_limit_bytes[s];
        double bytes = limit_bytes > 0 ? (double)limit_bytes : INFINITY;
        all_bytes += bytes;
        most_bytes = fmax(most_bytes, bytes);
    }
    for (int32_t k = 0; k < problem->K && out->freedom == BOUND_GIVEN; k++) {
        int32_t s = problem->placement.stage_of[k];
        if (problem->most_limit_bytes[s] == 0) { continue; }
        bound_part_chunk(&sum, out, k, false);
        lower_largest(out, &sum, 1, (double)bound_free_bytes(out, s));
    }
    if (out->freedom == BOUND_ANY_SPLIT && all_bytes < INFINITY) {
        LayerRange all_layers = {0, costs->num_enc_layers + costs->num_dec_layers};
        CostStage whole = cost_stage_make(costs, &all_layers, 0, 1);
        int32_t count[PIECE_COUNT];
        cost_stage_parts(count, costs, &whole);
        bound_part_sum(&sum, out, count, BOUND_ANY_STAGE, false);
        lower_largest(out, &sum, problem->P, all_bytes - (double)cost_state_bytes(costs, &whole));
    }
    for (int part = PART_ENC_LAYER; part <= PART_DEC_LAYER && out->freedom == BOUND_ANY_PLACEMENT; part++) {
        int32_t num = part == PART_ENC_LAYER ? costs->num_enc_layers : costs->num_dec_layers;
        if (num > 0 && most_bytes < INFINITY) { lower_largest(out, &out->part[part], 0, most_bytes); }
    }
}

void bound_lines_make(BoundLines* out, const PlanProblem* problem, const BoundBatch* batch,
                      bool joint_backward) {
    *out = (BoundLines){.problem = problem,
                        .batch = batch,
                        .joint_backward = joint_backward,
                        .extent = extent_make(problem, batch)};
    freedom_set(out);
    speeds_make(out);
    out->largest_tokens = out->extent.total[FEATURE_ENC_TOKENS];
    parts_make(out);
    if (!problem->has_limit) { return; }
    largest_make(out);
    if (has_bent_curves(problem)) { parts_make(out); }
}
