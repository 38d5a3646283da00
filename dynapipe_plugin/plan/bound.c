// bound_batch.c -- see bound_batch.h.
#include "bound.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "problem.h"
#include "types.h"

static double bound_line_slope(const BoundLine* line, const double features[FEATURE_COUNT]);

// How many of the extreme samples so far the next one is compared with: enough for real batches, and a few
// too many in `least` or `most` do no harm.
enum { MOST_COMPARED = 64 };

typedef struct {
    PlanSample sample;
    int32_t count, first;
} Distinct;

static int compare_tokens(int32_t a, int32_t b) {
    return (a > b) - (a < b);
}

static int compare_samples(const void* a, const void* b) {
    const Distinct *x = a, *y = b;
    int by = compare_tokens(x->sample.enc_tokens, y->sample.enc_tokens);
    if (by == 0) { by = compare_tokens(x->sample.dec_tokens, y->sample.dec_tokens); }
    if (by == 0) { by = compare_tokens(x->sample.supervised_tokens, y->sample.supervised_tokens); }
    return by != 0 ? by : compare_tokens(x->first, y->first);
}

static int compare_dec(const void* a, const void* b) {
    const Distinct *x = a, *y = b;
    int by = compare_tokens(x->sample.dec_tokens, y->sample.dec_tokens);
    return by != 0 ? by : compare_samples(a, b);
}

static bool is_equal(const PlanSample* a, const PlanSample* b) {
    return a->enc_tokens == b->enc_tokens && a->dec_tokens == b->dec_tokens &&
           a->supervised_tokens == b->supervised_tokens;
}

// Sorted; equal ones added up in place. Returns how many are left.
static int32_t distinct_make(Distinct* out, const PlanSample* samples, int32_t num_samples) {
    int32_t num = 0;
    for (int32_t i = 0; i < num_samples; i++) { out[i] = (Distinct){samples[i], 1, i}; }
    qsort(out, (size_t)num_samples, sizeof *out, compare_samples);
    for (int32_t i = 0; i < num_samples; i++) {
        if (num > 0 && is_equal(&out[num - 1].sample, &out[i].sample)) {
            out[num - 1].count++;
        } else {
            out[num++] = out[i];
        }
    }
    return num;
}

// Encoder lengths ascend with the index, so only the other two are compared.
static void extremes_make(BoundBatch* out) {
    for (int32_t i = 0; i < out->num; i++) {
        const PlanSample* s = &out->samples[i];
        bool beaten = false;
        for (int32_t k = 0; k < out->num_least && k < MOST_COMPARED && !beaten; k++) {
            const PlanSample* other = &out->samples[out->least[k]];
            beaten = other->dec_tokens <= s->dec_tokens && other->supervised_tokens <= s->supervised_tokens;
        }
        if (!beaten) { out->least[out->num_least++] = i; }
    }
    for (int32_t i = out->num - 1; i >= 0; i--) {
        const PlanSample* s = &out->samples[i];
        bool beaten = false;
        for (int32_t k = 0; k < out->num_most && k < MOST_COMPARED && !beaten; k++) {
            const PlanSample* other = &out->samples[out->most[k]];
            beaten = other->dec_tokens >= s->dec_tokens && other->supervised_tokens >= s->supervised_tokens;
        }
        if (!beaten) { out->most[out->num_most++] = i; }
    }
}

static void corner_add(BoundBatch* out, const Distinct* distinct, int32_t num) {
    PlanSample corner = distinct[0].sample;
    int32_t count = 0;
    for (int32_t i = 0; i < num; i++) {
        const PlanSample* s = &distinct[i].sample;
        if (s->enc_tokens < corner.enc_tokens) { corner.enc_tokens = s->enc_tokens; }
        if (s->dec_tokens < corner.dec_tokens) { corner.dec_tokens = s->dec_tokens; }
        if (s->supervised_tokens < corner.supervised_tokens) {
            corner.supervised_tokens = s->supervised_tokens;
        }
        count += distinct[i].count;
    }
    out->corners[out->num_corners] = corner;
    out->corner_count[out->num_corners++] = count;
}

// Slices of similar encoder lengths, each cut again by decoder lengths (or by encoder lengths where those are
// equal). Sorts the slices.
static void corners_make(BoundBatch* out, Distinct* distinct) {
    enum { SLICES = 16, PIECES = BOUND_MAX_CLASSES / SLICES };
    int64_t num = out->num;
    if (num <= BOUND_MAX_CLASSES) {
        for (int32_t i = 0; i < num; i++) { corner_add(out, &distinct[i], 1); }
        return;
    }
    for (int32_t slice = 0; slice < SLICES; slice++) {
        int64_t begin = num * slice / SLICES, own = num * (slice + 1) / SLICES - begin;
        qsort(distinct + begin, (size_t)own, sizeof *distinct, compare_dec);
        for (int32_t piece = 0; piece < PIECES; piece++) {
            int64_t from = own * piece / PIECES, to = own * (piece + 1) / PIECES;
            if (from < to) { corner_add(out, distinct + begin + from, (int32_t)(to - from)); }
        }
    }
}

Status bound_batch_make(BoundBatch* out, const PlanSample* samples, int32_t num_samples, Arena* arena) {
    Distinct* distinct = ARENA_NEW(arena, Distinct, num_samples);
    if (distinct == NULL) { return FAIL(STATUS_NO_MEMORY, "lower bound: no host memory left"); }
    int32_t num = distinct_make(distinct, samples, num_samples);
    *out = (BoundBatch){.num = num,
                        .samples = ARENA_NEW(arena, PlanSample, num),
                        .count = ARENA_NEW(arena, int32_t, num),
                        .first = ARENA_NEW(arena, int32_t, num),
                        .least = ARENA_NEW(arena, int32_t, num),
                        .most = ARENA_NEW(arena, int32_t, num)};
    if (!out->samples || !out->count || !out->first || !out->least || !out->most) {
        return FAIL(STATUS_NO_MEMORY, "lower bound: no host memory left");
    }
    for (int32_t i = 0; i < num; i++) {
        out->samples[i] = distinct[i].sample;
        out->count[i] = distinct[i].count;
        out->first[i] = distinct[i].first;
    }
    extremes_make(out);
    corners_make(out, distinct);
    return STATUS_OK;
}

// --- bound_line --------------------

static void bound_features(double out[FEATURE_COUNT], const PlanSample* s) {
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

static void bound_line_add(BoundLine* out, double count, const BoundLine* line) {
    out->constant += count * line->constant;
    for (int f = 0; f < FEATURE_COUNT; f++) { out->rate[f] += count * line->rate[f]; }
}

static void line_lower(BoundLine* out, const BoundLine* line) {
    out->constant = fmin(out->constant, line->constant);
    for (int f = 0; f < FEATURE_COUNT; f++) { out->rate[f] = fmin(out->rate[f], line->rate[f]); }
}

// Of a micro-batch of one sample; of all samples together (`num_mbs` micro-batches).
static double bound_line_sample(const BoundLine* line, const PlanSample* s) {
    double x[FEATURE_COUNT];
    bound_features(x, s);
    return line->constant + bound_line_slope(line, x);
}

// A line without its constant there.
static double bound_line_slope(const BoundLine* line, const double features[FEATURE_COUNT]) {
    const double *rate = line->rate, *x = features;
    double sum = rate[FEATURE_ENC_TOKENS] * x[FEATURE_ENC_TOKENS] +
                 rate[FEATURE_ENC_SQUARES] * x[FEATURE_ENC_SQUARES] +
                 rate[FEATURE_SUPERVISED] * x[FEATURE_SUPERVISED];
    if (x[FEATURE_DEC_TOKENS] == 0) { return sum; }
    return sum + rate[FEATURE_DEC_TOKENS] * x[FEATURE_DEC_TOKENS] +
           rate[FEATURE_DEC_SQUARES] * x[FEATURE_DEC_SQUARES] +
           rate[FEATURE_CROSS_PRODUCTS] * x[FEATURE_CROSS_PRODUCTS];
}

static double bound_line_total(const BoundLine* line, const BoundExtent* extent, double num_mbs) {
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

// The sum over count[part] parts there.
static void bound_part_sum(BoundPart* out, const BoundLines* lines, const int32_t count[PART_COUNT],
                           int32_t s, bool shared) {
    static const int parts[PART_COUNT] = {PART_ENC_LAYER, PART_DEC_LAYER, PART_EMBEDDING, PART_HEAD};
    *out = (BoundPart){0};
    for (int i = 0; i < PART_COUNT; i++) {
        BoundPart one;
        if (count[parts[i]] == 0) { continue; }
        bound_part_scale(&one, lines, parts[i], s, shared);
        part_add(out, count[parts[i]], &one);
    }
}

// The same for a chunk of the placement; for `share` of the head on stage s: F with the gradient of inputs,
// and W, whole constants, no bytes; for all that a stage has, its share included.
static void bound_part_chunk(BoundPart* out, const BoundLines* lines, int32_t k, bool shared) {
    const PlanProblem* problem = lines->problem;
    int32_t count[PIECE_COUNT];
    cost_stage_parts(count, problem->costs, &problem->chunks[k]);
    bound_part_sum(out, lines, count, problem->placement.stage_of[k], shared);
}

// The part of the head that stage s has by the placement; 0 where it is whole.
static double bound_share_of(const BoundLines* lines, int32_t s) {
    const Placement* placement = &lines->problem->placement;
    if (!placement_has_share(placement, s)) { return 0; }
    return (placement->head_begin[s + 1] - placement->head_begin[s]) / (double)HEAD_UNITS;
}

static void bound_part_share(BoundPart* out, const BoundLines* lines, double share, int32_t s, bool shared) {
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

static void bound_part_stage(BoundPart* out, const BoundLines* lines, int32_t s, bool shared) {
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

// The lightest of them, link included (not of any); NULL: they do not differ.
static const MachineRank* bound_lightest(const BoundLines* lines, int32_t s) {
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

static int64_t bound_between_ns(const BoundLines* lines, int32_t from, int32_t to, int64_t num_bytes) {
    if (from == to) { return 0; }
    int32_t link = slowest_link(lines, from, to, num_bytes);
    return machine_transfer_ns(bound_lightest(lines, link), lines->problem->costs, num_bytes);
}

// One transfer there and one back between two stages, whatever it sends: over the slowest link on the way.
static void bound_link_add(BoundLine* out, const BoundLines* lines, int32_t from, int32_t to) {
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

// What the roomiest rank of a stage of the placement has beside its model state; COST_LIMIT: no limit.
static int64_t bound_free_bytes(const BoundLines* lines, int32_t s) {
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

// Borrows all arguments.
static void bound_lines_make(BoundLines* out, const PlanProblem* problem, const BoundBatch* batch,
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

// --- bound_memory --------------------

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

// Time that a stage needs between its first job and its last; 0 where memory is no limit. Stops looking when
// the result will not be more than `enough_ns`. `scratch` is reset. STATUS_NO_MEMORY of the host, or
// STATUS_OK.
static Status bound_memory_stage(double* time_ns, const BoundLines* lines, const BoundStage* stage,
                                 double enough_ns, Arena* scratch) {
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

// --- bound_chain --------------------

// Of one sample: a chunk's jobs and the boundary behind it; a share's forward with its gradient of inputs.
typedef struct {
    int64_t *F, *B, *W, *transfer;  // [K]
    int64_t share[PLAN_MAX_STAGES], weights[PLAN_MAX_STAGES];
    int64_t there[PLAN_MAX_STAGES], back[PLAN_MAX_STAGES];  // hidden states to the share, its part back
    CostJobs* jobs;                                         // [K] of one mode
} Chain;

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static Status chain_alloc(Chain* out, int32_t K, Arena* arena) {
    int64_t** arrays[] = {&out->F, &out->B, &out->W, &out->transfer};
    out->jobs = ARENA_NEW(arena, CostJobs, K);
    bool ok = out->jobs != NULL;
    for (int i = 0; i < 4; i++) {
        *arrays[i] = ARENA_NEW(arena, int64_t, K);
        ok &= *arrays[i] != NULL;
    }
    return ok ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "lower bound: no host memory left");
}

// By rows a message may shrink by a row when the micro-batch grows by one: of it the latency alone counts.
static void shares_make(Chain* out, const BoundLines* lines, const MbShape* shape) {
    const PlanProblem* problem = lines->problem;
    const Placement* placement = &problem->placement;
    bool by_rows = placement->head == HEAD_BY_ROWS;
    CostParts parts;
    if (placement->head == HEAD_WHOLE) { return; }
    cost_parts(&parts, &problem->table, RECOMPUTE_NONE, shape);
    for (int32_t s = 0; s < problem->P; s++) {
        const MachineRank* rank = bound_lightest(lines, s);
        int32_t last = placement->stage_of[problem->K - 1];
        CostJobs jobs;
        if (!placement_has_share(placement, s)) { continue; }
        cost_jobs_of_share(&jobs, problem->costs, cost_share_of(placement, s), &parts);
        out->share[s] = machine_job_ns(rank, JOB_F, jobs.job_ns[JOB_F]);
        out->weights[s] = machine_job_ns(rank, JOB_W, jobs.job_ns[JOB_W]);
        out->there[s] = bound_between_ns(lines, last, s, by_rows ? 0 : jobs.boundary_bytes);
        out->back[s] = bound_between_ns(lines, s, last, by_rows ? 0 : jobs.part_bytes);
    }
}

static void chain_make(Chain* out, const BoundLines* lines, const PlanSample* sample) {
    const PlanProblem* problem = lines->problem;
    MbShape shape = {0};
    mb_shape_add(&shape, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
    shares_make(out, lines, &shape);
    for (int mode = 0; mode < problem->num_modes; mode++) {
        CostParts parts;
        cost_parts(&parts, &problem->table, problem->modes[mode], &shape);
        cost_jobs_of_stages(out->jobs, problem->costs, problem->chunks, problem->K, &parts);
        for (int32_t k = 0; k < problem->K; k++) {
            const int16_t* stage_of = &problem->placement.stage_of[k];
            const MachineRank* rank = bound_lightest(lines, stage_of[0]);
            int64_t ns[JOB_COUNT];
            for (int i = 0; i < JOB_COUNT; i++) {
                ns[i] = machine_job_ns(rank, (JobKind)i, out->jobs[k].job_ns[i]);
            }
            out->F[k] = mode > 0 ? smaller(out->F[k], ns[JOB_F]) : ns[JOB_F];
            out->B[k] = mode > 0 ? smaller(out->B[k], ns[JOB_B]) : ns[JOB_B];
            out->W[k] = mode > 0 ? smaller(out->W[k], ns[JOB_W]) : ns[JOB_W];
            if (k == problem->K - 1) { continue; }
            out->transfer[k] = bound_between_ns(lines, stage_of[0], stage_of[1], out->jobs[k].boundary_bytes);
        }
    }
}

// All forwards, the head's shares, backwards down to each chunk, its weight gradients, the reduction there:
// the longest of these. Lowers the minima.
static int64_t chain_ns(const Chain* chain, BoundChains* ends, const BoundLines* lines) {
    const Placement* placement = &lines->problem->placement;
    bool joint = lines->joint_backward, seen[PLAN_MAX_STAGES] = {false};
    int32_t P = lines->problem->P, K = placement->num_chunks;
    int64_t time_ns = 0, longest = 0, head_ns = 0, behind = 0;
    for (int32_t k = 0; k < K; k++) {
        int32_t s = placement->stage_of[k];
        if (!seen[s]) { ends->arrival_ns[s] = smaller(ends->arrival_ns[s], time_ns); }
        seen[s] = true;
        time_ns += chain->F[k] + chain->transfer[k];
    }
    for (int32_t s = 0; s < P; s++) {
        int64_t begin_ns = time_ns + chain->there[s], end_ns = begin_ns + chain->share[s];
        if (!placement_has_share(placement, s)) { continue; }
        if (!seen[s]) { ends->arrival_ns[s] = smaller(ends->arrival_ns[s], begin_ns); }
        head_ns = larger(head_ns, end_ns + chain->back[s] - time_ns);
        longest = larger(longest, end_ns + chain->weights[s] + ends->reduce_ns[s]);
    }
    time_ns += head_ns;
    memset(seen, 0, sizeof seen);
    for (int32_t k = K - 1; k >= 0; k--) {
        int32_t s = placement->stage_of[k];
        time_ns += chain->transfer[k];
        if (!seen[s]) { ends->turn_ns[s] = smaller(ends->turn_ns[s], time_ns); }
        seen[s] = true;
        time_ns += chain->B[k] + (joint ? chain->W[k] : 0);
        longest = larger(longest, time_ns + (joint ? 0 : chain->W[k]) + ends->reduce_ns[s]);
    }
    int32_t first = placement->stage_of[0];
    memset(seen, 0, sizeof seen);
    for (int32_t k = 0; k < K; k++) {
        int32_t s = placement->stage_of[k];
        int64_t last = s == first ? 0 : (joint ? 0 : chain->W[0]) + ends->reduce_ns[first];
        if (!seen[s]) { ends->tail_ns[s] = smaller(ends->tail_ns[s], behind + last); }
        seen[s] = true;
        behind += chain->B[k] + (joint ? chain->W[k] : 0) + chain->transfer[k];
    }
    for (int32_t s = 0; s < P; s++) {
        if (seen[s]) { continue; }  // a share of the head and nothing else: all backwards follow
        int64_t last = (joint ? 0 : chain->W[0]) + ends->reduce_ns[first];
        ends->tail_ns[s] = smaller(ends->tail_ns[s], chain->back[s] + behind + last);
    }
    return longest;
}

// Minima over all samples are those over the least, maxima those over the most.
static Status bound_chains_make(BoundChains* out, const BoundLines* lines, Arena* arena) {
    const BoundBatch* batch = lines->batch;
    Chain chain = {.share = {0}};
    TRY(chain_alloc(&chain, lines->problem->K, arena));
    *out = (BoundChains){.longest_ns = 0};
    for (int32_t s = 0; s < lines->problem->P; s++) {
        out->arrival_ns[s] = out->turn_ns[s] = out->tail_ns[s] = INT64_MAX;
        out->reduce_ns[s] =
            cost_rank_reduce_ns(lines->problem->costs, &lines->problem->has[s], lines->problem->R);
    }
    for (int32_t i = 0; i < batch->num_least + batch->num_most; i++) {
        int32_t at = i < batch->num_least ? batch->least[i] : batch->most[i - batch->num_least];
        chain_make(&chain, lines, &batch->samples[at]);
        int64_t longest = chain_ns(&chain, out, lines);
        if (longest > out->longest_ns) { out->longest_ns = longest, out->longest_sample = batch->first[at]; }
    }
    for (int32_t s = 0; s < lines->problem->P; s++) {
        if (out->turn_ns[s] == INT64_MAX) { out->turn_ns[s] = 0; }
    }
    return STATUS_OK;
}

// --- bound_split --------------------

// Of every part. F, BACK and TURN are those of the lightest sample; SHARES of the samples of one replica.
typedef enum {
    PRICE_F,
    PRICE_BACK,  // what must follow upstream: B, with W where no plan in question splits backward
    PRICE_TURN,  // F and that
    PRICE_WORK_SHARE,
    PRICE_FB_SHARE,
    PRICE_BW_SHARE,
    PRICE_REDUCE,  // of one more layer
    PRICE_COUNT
} Price;

typedef struct {
    double part[PRICE_COUNT][PART_COUNT];
    double (*before)[PRICE_COUNT];  // [L + 1] layers before this one, without embedding
} SplitPrices;

typedef struct {
    const BoundLines* lines;
    int32_t P, L, num_enc;
    SplitPrices* prices;                // [1 + P]: on the fastest of all ranks; on the ranks of stage s
    double reduce_ns[PLAN_MAX_STAGES];  // of a stage without layers
    double links_ns[PLAN_MAX_STAGES];   // of the lightest sample, one way, over all boundaries before a stage
    double* time_ns;                    // (P, L + 1, L + 1) of range begin, end as stage s; NULL: too many
    bool* known;                        // (P, L + 1, L + 1) was memory looked at?
    int32_t* from;                      // (P, L + 1) where stage s begins if it ends at this layer
    double *best, *next;                // [L + 1]
    double (*stored)[RECOMPUTE_COUNT][PART_COUNT];  // [num_stored] bytes of the largest samples
    double* stored_once;                            // [num_stored]
    double* received;                               // [num_stored] bytes of the input of a stage
    int32_t num_stored;
    Arena* scratch;
} Split;

enum { MOST_TABLE = 1 << 20, MOST_STORED = 16, MOST_RANGES = 64 };

// Share of one replica, of a line: at least one micro-batch's constants, or those of the micro-batches that
// memory allows.
static double bound_share(const BoundLines* lines, const BoundLine* line) {
    double R = lines->problem->R, num_mbs = lines->extent.total[FEATURE_ENC_TOKENS] / lines->largest_tokens;
    return bound_line_total(line, &lines->extent, 0) / R + line->constant * fmax(1, num_mbs / R);
}

// --- prices ----------------------------------------------------------------------------------------------

static MbShape shape_of(const PlanSample* sample) {
    MbShape shape = {0};
    mb_shape_add(&shape, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
    return shape;
}

static void lower(double* value, double by) {
    *value = by < *value ? by : *value;
}

// Where ranks are alike, one row is for all.
static const SplitPrices* prices_of(const Split* split, int32_t s) {
    return &split->prices[split->lines->problem->differs ? 1 + s : 0];
}

static void lower_prices(SplitPrices* prices, const BoundSpeed* speed, bool joint_backward,
                         const CostParts* parts) {
    for (int part = 0; part < PART_COUNT; part++) {
        double ns[JOB_COUNT];
        for (int kind = 0; kind < JOB_COUNT; kind++) {
            ns[kind] = parts->part[part][kind] * (speed == NULL ? 1 : speed->least[kind]);
        }
        double back = ns[JOB_B] + (joint_backward ? ns[JOB_W] : 0);
        lower(&prices->part[PRICE_F][part], ns[JOB_F]);
        lower(&prices->part[PRICE_BACK][part], back);
        lower(&prices->part[PRICE_TURN][part], ns[JOB_F] + back);
    }
}

// Minima over samples and modes: no micro-batch has a shorter one, as jobs only grow with their shape.
static void lightest_make(Split* out) {
    const BoundLines* lines = out->lines;
    const PlanProblem* problem = lines->problem;
    const BoundBatch* batch = lines->batch;
    int32_t num_rows = problem->differs ? 1 + out->P : 1;
    int64_t sent_bytes = COST_LIMIT;
    for (int32_t row = 0; row < num_rows; row++) {
        for (int part = 0; part < PART_COUNT; part++) {
            double(*price)[PART_COUNT] = out->prices[row].part;
            price[PRICE_F][part] = price[PRICE_BACK][part] = price[PRICE_TURN][part] = INFINITY;
        }
    }
    for (int32_t i = 0; i < batch->num_least; i++) {
        MbShape shape = shape_of(&batch->samples[batch->least[i]]);
        for (int k = 0; k < problem->num_modes; k++) {
            CostParts parts;
            cost_parts(&parts, &problem->table, problem->modes[k], &shape);
            if (parts.enc_boundary_bytes < sent_bytes) { sent_bytes = parts.enc_boundary_bytes; }
            for (int32_t row = 0; row < num_rows; row++) {
                const BoundSpeed* speed = row > 0 ? &lines->stage[row - 1] : &lines->all;
                lower_prices(&out->prices[row], problem->differs ? speed : NULL, lines->joint_backward,
                             &parts);
            }
        }
    }
    for (int32_t s = 1; s < out->P; s++) {
        int64_t ns = machine_transfer_ns(bound_lightest(lines, s - 1), problem->costs, sent_bytes);
        out->links_ns[s] = out->links_ns[s - 1] + (double)ns;
    }
}

// The reduction of a stage adds up over its layers, but for rounding: half a nanosecond for each term. What
// stages of one stack share besides is left out.
static void reductions_make(Split* out) {
    const PlanProblem* problem = out->lines->problem;
    for (int32_t s = 0; s < out->P; s++) {
        CostStage bare = {.has_embedding = s == 0, .has_head = s == out->P - 1};
        double ns_per_byte = cost_reduce_ns_per_byte(problem->costs, problem->R);
        out->reduce_ns[s] = fmax((double)cost_reduce_ns(problem->costs, &bare, problem->R) - 1, 0);
        SplitPrices* prices = &out->prices[problem->differs ? 1 + s : 0];
        for (int part = PART_ENC_LAYER; part <= PART_DEC_LAYER; part++) {
            double ns = (double)problem->costs->part_param_bytes[part] * ns_per_byte;
            prices->part[PRICE_REDUCE][part] = fmax(ns - 0.5, 0);
        }
    }
}

static void bound_split_shares_make(SplitPrices* out, const BoundLines* lines, int32_t s) {
    for (int part = 0; part < PART_COUNT; part++) {
        BoundPart scaled;
        bound_part_scale(&scaled, lines, part, s, true);
        BoundLine forward_backward = scaled.F;
        bound_line_add(&forward_backward, 1, &scaled.B);
        out->part[PRICE_WORK_SHARE][part] = bound_share(lines, &scaled.work);
        out->part[PRICE_FB_SHARE][part] = bound_share(lines, &forward_backward);
        out->part[PRICE_BW_SHARE][part] = bound_share(lines, &scaled.BW);
    }
}

static void prices_make(Split* out) {
    int32_t num_rows = out->lines->problem->differs ? 1 + out->P : 1;
    lightest_make(out);
    reductions_make(out);
    for (int32_t row = 0; row < num_rows; row++) {
        SplitPrices* prices = &out->prices[row];
        bound_split_shares_make(prices, out->lines, row > 0 ? row - 1 : BOUND_ANY_STAGE);
        for (int32_t l = 0; l < out->L; l++) {
            int part = l < out->num_enc ? PART_ENC_LAYER : PART_DEC_LAYER;
            for (int q = 0; q < PRICE_COUNT; q++) {
                prices->before[l + 1][q] = prices->before[l][q] + prices->part[q][part];
            }
        }
    }
}

// --- one range of layers as one stage --------------------------------------------------------------------

static double own_price(const Split* split, Price q, int32_t s, int32_t begin, int32_t end) {
    const SplitPrices* prices = prices_of(split, s);
    double sum = prices->before[end][q] - prices->before[begin][q];
    if (s == 0) { sum += prices->part[q][PART_EMBEDDING]; }
    if (s == split->P - 1) { sum += prices->part[q][PART_HEAD]; }
    return sum;
}

// Of the layers below `begin`, by the links between: the way there or back.
static double below_price(const Split* split, Price q, int32_t s, int32_t begin) {
    const SplitPrices* any = &split->prices[0];
    return s == 0 ? 0 : any->before[begin][q] + any->part[q][PART_EMBEDDING] + split->links_ns[s];
}

// After the last job of this stage.
static double after_ns(const Split* split, int32_t s, int32_t begin, int32_t end) {
    const SplitPrices* prices = prices_of(split, s);
    double layers = prices->before[end][PRICE_REDUCE] - prices->before[begin][PRICE_REDUCE];
    double reduce = split->reduce_ns[s] + layers, back = below_price(split, PRICE_BACK, s, begin);
    return split->lines->joint_backward && back > reduce ? back : reduce;
}

// The last of its jobs, and what follows, cannot end before.
static double range_ns(const Split* split, int32_t s, int32_t begin, int32_t end) {
    double arrival = below_price(split, PRICE_F, s, begin), after = after_ns(split, s, begin, end);
    double longest = own_price(split, PRICE_WORK_SHARE, s, begin, end) + after;
    const SplitPrices* any = &split->prices[0];
    double turn = own_price(split, PRICE_F, s, begin, end) + any->before[split->L][PRICE_TURN] -
                  any->before[end][PRICE_TURN] + 2 * (split->links_ns[split->P - 1] - split->links_ns[s]);
    if (s < split->P - 1) { turn += any->part[PRICE_TURN][PART_HEAD]; }
    double backward = turn + own_price(split, PRICE_BW_SHARE, s, begin, end) + after;
    longest = backward > longest ? backward : longest;
    if (!split->lines->joint_backward) {
        double tail = below_price(split, PRICE_BACK, s, begin);
        tail += own_price(split, PRICE_FB_SHARE, s, begin, end);
        longest = tail > longest ? tail : longest;
    }
    return arrival + longest;
}

// --- memory of a range -----------------------------------------------------------------------------------

static void layer_counts(int32_t count[PART_COUNT], const Split* split, int32_t s, int32_t begin,
                         int32_t end) {
    int32_t enc_end = end < split->num_enc ? end : split->num_enc;
    count[PART_ENC_LAYER] = enc_end > begin ? enc_end - begin : 0;
    count[PART_DEC_LAYER] = end - begin - count[PART_ENC_LAYER];
    count[PART_EMBEDDING] = s == 0;
    count[PART_HEAD] = s == split->P - 1;
}

static double state_bytes(const Split* split, int32_t s, int32_t begin, int32_t end) {
    const CostModel* costs = split->lines->problem->costs;
    LayerRange layers = {begin, end};
    CostStage stage = cost_stage_make(costs, &layers, s, split->P);
    return (double)cost_state_bytes(costs, &stage);
}

static void stored_make(Split* out) {
    const PlanProblem* problem = out->lines->problem;
    const BoundBatch* batch = out->lines->batch;
    out->num_stored = batch->num_most < MOST_STORED ? batch->num_most : MOST_STORED;
    for (int32_t i = 0; i < out->num_stored; i++) {
        MbShape shape = shape_of(&batch->samples[batch->most[i]]);
        for (int k = 0; k < problem->num_modes; k++) {
            CostParts parts;
            cost_parts(&parts, &problem->table, problem->modes[k], &shape);
            for (int part = 0; part < PART_COUNT; part++) {
                out->stored[i][k][part] = parts.part[part][COST_STORED];
            }
            out->stored_once[i] = parts.stage[COST_STORED];
            out->received[i] = problem->count_buffers ? (double)parts.enc_boundary_bytes : 0;
        }
    }
}

// Model state, and the largest samples one at a time, each in the mode that keeps least of it.
static bool range_fits(const Split* split, int32_t s, int32_t begin, int32_t end) {
    const PlanProblem* problem = split->lines->problem;
    int32_t count[PART_COUNT];
    layer_counts(count, split, s, begin, end);
    if (problem->most_limit_bytes[s] == 0) { return true; }
    double free_bytes = (double)problem->most_limit_bytes[s] - state_bytes(split, s, begin, end);
    if (free_bytes <= 0) { return false; }
    for (int32_t i = 0; i < split->num_stored; i++) {
        double least = INFINITY;
        for (int k = 0; k < problem->num_modes; k++) {
            const double* part_bytes = split->stored[i][k];
            double sum = split->stored_once[i];
            for (int part = 0; part < PART_COUNT; part++) {
                if (count[part] > 0) { sum += count[part] * part_bytes[part]; }
            }
            lower(&least, sum);
        }
        if (least + (s > 0 ? split->received[i] : 0) - 1 > free_bytes) { return false; }
    }
    return true;
}

static Status memory_ns(double* time_ns, const Split* split, int32_t s, int32_t begin, int32_t end,
                        double enough_ns) {
    const BoundLines* lines = split->lines;
    int32_t own[PART_COUNT], below[PART_COUNT];
    BoundPart downstream;
    BoundPiece piece = {.has_input = s > 0, .weight = 1};
    BoundStage stage = {.num_pieces = 1, .pieces = &piece};
    *time_ns = 0;
    if (lines->problem->most_limit_bytes[s] == 0) { return STATUS_OK; }
    layer_counts(own, split, s, begin, end);
    layer_counts(below, split, -1, end, split->L);
    below[PART_EMBEDDING] = 0;
    below[PART_HEAD] = own[PART_HEAD] == 0;
    bound_part_sum(&piece.own, lines, own, s, false);
    bound_part_sum(&downstream, lines, below, BOUND_ANY_STAGE, false);
    piece.away = downstream.turn;
    for (int32_t k = s; k < split->P - 1; k++) { bound_link_add(&piece.away, lines, k, k + 1); }
    stage.free_bytes = (double)lines->problem->most_limit_bytes[s] - state_bytes(split, s, begin, end);
    return bound_memory_stage(time_ns, lines, &stage, enough_ns, split->scratch);
}

// --- the program -----------------------------------------------------------------------------------------

static int64_t at(const Split* split, int32_t s, int32_t begin, int32_t end) {
    int64_t row = split->L + 1;
    return (s * row + begin) * row + end;
}

// Ranges that stage s may have: [first, last] of begins, and of ends for one of them.
static int32_t begin_first(const Split* split, int32_t s) {
    (void)split;
    return s;
}

static int32_t begin_last(const Split* split, int32_t s) {
    bool may_be_bare = s == split->P - 1 && s > 0;
    return s == 0 ? 0 : split->L - !may_be_bare;
}

static int32_t end_first(const Split* split, int32_t s, int32_t begin) {
    return s == split->P - 1 ? split->L : begin + 1;
}

static double slowest_of_best(Split* split) {
    int32_t L = split->L;
    for (int32_t l = 0; l <= L; l++) { split->best[l] = INFINITY; }
    for (int32_t s = 0; s < split->P; s++) {
        for (int32_t l = 0; l <= L; l++) { split->next[l] = INFINITY, split->from[s * (L + 1) + l] = s; }
        for (int32_t begin = begin_first(split, s); begin <= begin_last(split, s); begin++) {
            double before = s == 0 ? 0 : split->best[begin];
            if (before == INFINITY) { continue; }
            for (int32_t end = end_first(split, s, begin); end <= L; end++) {
                if (before >= split->next[end]) { continue; }
                double own = split->time_ns ? split->time_ns[at(split, s, begin, end)]
                                            : range_ns(split, s, begin, end);
                double slowest = own > before ? own : before;
                if (slowest < split->next[end]) {
                    split->next[end] = slowest;
                    split->from[s * (L + 1) + end] = begin;
                }
            }
        }
        double* before = split->best;
        split->best = split->next;
        split->next = before;
    }
    return split->best[L];
}

static void ranges_make(Split* out) {
    for (int32_t s = 0; s < out->P; s++) {
        for (int32_t begin = begin_first(out, s); begin <= begin_last(out, s); begin++) {
            for (int32_t end = end_first(out, s, begin); end <= out->L; end++) {
                out->time_ns[at(out, s, begin, end)] = range_ns(out, s, begin, end);
            }
        }
    }
}

// What fits only shrinks with more layers: where one end does not fit, none behind it does, nor before the
// same begin moved forward.
static void impossible_ranges(Split* split) {
    for (int32_t s = 0; s < split->P; s++) {
        int32_t fits_to = 0;
        for (int32_t begin = begin_first(split, s); begin <= begin_last(split, s); begin++) {
            int32_t end = end_first(split, s, begin);
            if (end < fits_to) { end = fits_to; }
            while (end <= split->L && range_fits(split, s, begin, end)) { end++; }
            fits_to = end;
            for (; end <= split->L; end++) { split->time_ns[at(split, s, begin, end)] = INFINITY; }
        }
    }
}

// Memory of one range, and what it says of those with more layers that begin no later (bound_memory.h).
static Status look_at_range(Split* split, int32_t s, int32_t begin, int32_t end, double known_ns) {
    int32_t own[PART_COUNT], other[PART_COUNT];
    double base = below_price(split, PRICE_F, s, begin) + after_ns(split, s, begin, end);
    double needed, state = state_bytes(split, s, begin, end);
    TRY(memory_ns(&needed, split, s, begin, end, known_ns - base));
    split->known[at(split, s, begin, end)] = true;
    if (base + needed <= split->time_ns[at(split, s, begin, end)]) { return STATUS_OK; }
    layer_counts(own, split, s, begin, end);
    for (int32_t b = begin_first(split, s); b <= begin; b++) {
        double arrival = below_price(split, PRICE_F, s, b);
        int32_t first = end_first(split, s, b);
        for (int32_t e = split->L; e >= first; e--) {
            layer_counts(other, split, s, b, e);
            if (other[PART_ENC_LAYER] < own[PART_ENC_LAYER] || other[PART_DEC_LAYER] < own[PART_DEC_LAYER]) {
                break;
            }
            double* time = &split->time_ns[at(split, s, b, e)];
            double raised = arrival + needed + after_ns(split, s, b, e);
            if (raised > *time && state_bytes(split, s, b, e) >= state) { *time = raised; }
        }
    }
    return STATUS_OK;
}

// The slowest range of the best split that was not looked at; -1: all were.
static int32_t slowest_unknown(int32_t* begin, int32_t* end, const Split* split) {
    int32_t found = -1;
    double slowest = -1;
    for (int32_t s = split->P - 1, e = split->L; s >= 0; s--) {
        int32_t b = split->from[s * (split->L + 1) + e];
        int64_t i = at(split, s, b, e);
        if (!split->known[i] && split->time_ns[i] > slowest) {
            slowest = split->time_ns[i], found = s, *begin = b, *end = e;
        }
        e = b;
    }
    return found;
}

static Status slowest_with_memory(double* out, Split* split) {
    double slowest = slowest_of_best(split);
    for (int32_t i = 0; i < MOST_RANGES && slowest < INFINITY; i++) {
        int32_t begin = 0, end = 0, s = slowest_unknown(&begin, &end, split);
        if (s < 0) { break; }
        TRY(look_at_range(split, s, begin, end, slowest));
        if (split->time_ns[at(split, s, begin, end)] > slowest) { slowest = slowest_of_best(split); }
    }
    *out = slowest < INFINITY ? slowest : 0;
    return STATUS_OK;
}

static Status split_alloc(Split* out, Arena* arena) {
    size_t L = (size_t)out->L + 1, P = (size_t)out->P, num = P * L * L;
    bool has_table = num <= MOST_TABLE;
    size_t num_rows = out->lines->problem->differs ? 1 + P : 1;
    out->prices = ARENA_NEW(arena, SplitPrices, num_rows);
    bool ok = out->prices != NULL;
    for (size_t row = 0; row < num_rows && ok; row++) {
        out->prices[row].before = arena_alloc_array(arena, L, sizeof *out->prices[row].before);
        ok = out->prices[row].before != NULL;
    }
    out->from = ARENA_NEW(arena, int32_t, P * L);
    out->best = ARENA_NEW(arena, double, L);
    out->next = ARENA_NEW(arena, double, L);
    out->stored = arena_alloc_array(arena, MOST_STORED, sizeof *out->stored);
    out->stored_once = ARENA_NEW(arena, double, MOST_STORED);
    out->received = ARENA_NEW(arena, double, MOST_STORED);
    ok = ok && out->from && out->best && out->next && out->stored && out->stored_once && out->received;
    if (ok && has_table) {
        out->time_ns = ARENA_NEW(arena, double, num);
        out->known = ARENA_NEW(arena, bool, num);
        ok = out->time_ns != NULL && out->known != NULL;
    }
    return ok ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "lower bound: no host memory left");
}

// No split has a slowest stage faster than stage_ns; nor, if it fits in memory, than memory_ns (0: no limit,
// or no split fits). `scratch` is reset. STATUS_NO_MEMORY of the host, or STATUS_OK.
static Status bound_split_best(double* stage_ns, double* with_memory_ns, const BoundLines* lines,
                               Arena* arena, Arena* scratch) {
    const PlanProblem* problem = lines->problem;
    const CostModel* costs = problem->costs;
    Split split = {.lines = lines,
                   .P = problem->P,
                   .L = costs->num_enc_layers + costs->num_dec_layers,
                   .num_enc = costs->num_enc_layers,
                   .scratch = scratch};
    TRY(split_alloc(&split, arena));
    prices_make(&split);
    if (split.time_ns) { ranges_make(&split); }
    *stage_ns = slowest_of_best(&split);
    *with_memory_ns = 0;
    if (problem->has_limit && split.time_ns) {
        stored_make(&split);
        impossible_ranges(&split);
        TRY(slowest_with_memory(with_memory_ns, &split));
    }
    return STATUS_OK;
}

// --- bound_free --------------------

static int32_t num_layers(const BoundLines* lines) {
    return lines->problem->costs->num_enc_layers + lines->problem->costs->num_dec_layers;
}

static int part_of_layer(const BoundLines* lines, int32_t l) {
    return l < lines->problem->costs->num_enc_layers ? PART_ENC_LAYER : PART_DEC_LAYER;
}

// The largest share is at least one in so many.
static double head_parts_of(const BoundLines* lines) {
    return lines->head_is_whole ? 1 : lines->problem->P;
}

// --- one sample ------------------------------------------------------------------------------------------

// Each kind of job of each part in its cheapest mode on the fastest rank.
static CostParts parts_of(const BoundLines* lines, const PlanSample* sample) {
    const PlanProblem* problem = lines->problem;
    MbShape shape = {0};
    CostParts least, one;
    mb_shape_add(&shape, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
    cost_parts(&least, &problem->table, problem->modes[0], &shape);
    for (int k = 1; k < problem->num_modes; k++) {
        cost_parts(&one, &problem->table, problem->modes[k], &shape);
        for (int part = 0; part < PART_COUNT; part++) {
            for (int kind = 0; kind < JOB_COUNT; kind++) {
                least.part[part][kind] = fmin(least.part[part][kind], one.part[part][kind]);
            }
        }
    }
    for (int part = 0; part < PART_COUNT && problem->differs; part++) {
        for (int kind = 0; kind < JOB_COUNT; kind++) { least.part[part][kind] *= lines->all.least[kind]; }
    }
    return least;
}

// F and gradient of inputs of the head on the fastest rank, whole or (all shares together) shared.
static double head_turn_ns(const BoundLines* lines, const PlanSample* sample, const CostParts* least,
                           double head_parts) {
    const double* whole = least->part[PART_HEAD];
    MbShape shape = {0};
    CostParts alone;
    if (lines->head_is_whole) { return whole[JOB_F] + whole[JOB_B]; }
    mb_shape_add(&shape, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
    cost_parts(&alone, &lines->problem->table, RECOMPUTE_NONE, &shape);
    const double* ns = alone.part[PART_HEAD];
    double slow = lines->problem->differs ? lines->all.least[JOB_F] : 1;
    return fmin(whole[JOB_F] + whole[JOB_B], slow * (ns[JOB_F] + ns[JOB_B])) / head_parts;
}

// Over the quickest of all links.
static double transfer_ns(const BoundLines* lines, const CostParts* parts) {
    double least = INFINITY;
    for (int32_t s = 0; s < lines->problem->P - 1; s++) {
        const MachineRank* link = bound_lightest(lines, s);
        int64_t ns = machine_transfer_ns(link, lines->problem->costs, parts->enc_boundary_bytes);
        least = fmin(least, (double)ns);
    }
    return least < INFINITY ? least : 0;
}

// Of one sample, on any placement, without transfers and reduction: all parts forwards and backwards, each
// kind of job in its cheapest mode, and the weight gradients of the first layer and its embedding at least.
static double bound_free_chain(const BoundLines* lines, const PlanSample* sample) {
    const CostModel* costs = lines->problem->costs;
    int32_t count[PART_COUNT] = {1, costs->num_enc_layers, costs->num_dec_layers, 1};
    int first_part = part_of_layer(lines, 0);
    double head_parts = head_parts_of(lines);
    CostParts parts = parts_of(lines, sample);
    double time = 0;
    for (int part = 0; part < PART_COUNT; part++) {
        const double* ns = parts.part[part];
        bool first = part == PART_EMBEDDING || part == first_part;
        bool has_w = lines->joint_backward && (part != PART_HEAD || lines->head_is_whole);
        time += part == PART_HEAD ? head_turn_ns(lines, sample, &parts, head_parts)
                                  : count[part] * (ns[JOB_F] + ns[JOB_B]);
        time += (has_w ? count[part] : first ? 1 : 0) * ns[JOB_W];
    }
    return time;
}

static void chains_make(BoundFree* out, const BoundLines* lines) {
    const CostModel* costs = lines->problem->costs;
    const BoundBatch* batch = lines->batch;
    double bytes = (double)costs->part_param_bytes[PART_EMBEDDING] +
                   (double)costs->part_param_bytes[part_of_layer(lines, 0)];
    double reduce = bytes * cost_reduce_ns_per_byte(costs, lines->problem->R);
    for (int32_t i = 0; i < batch->num_most; i++) {
        const PlanSample* sample = &batch->samples[batch->most[i]];
        CostParts parts = parts_of(lines, sample);
        double time = reduce + bound_free_chain(lines, sample) +
                      2 * (lines->problem->P - 1) * transfer_ns(lines, &parts);
        if (time > out->chain_ns) { out->chain_ns = time, out->chain_sample = batch->first[batch->most[i]]; }
    }
}

// --- work ------------------------------------------------------------------------------------------------

// Of the lightest sample: what comes before the i-th stage, and behind its last backward; all forwards, and
// all backwards, without the head.
typedef struct {
    double arrival[PLAN_MAX_STAGES], tail[PLAN_MAX_STAGES];
    double forward, backward;
} Ramp;

static void ramp_lower(Ramp* out, const BoundLines* lines, const PlanSample* sample) {
    CostParts parts = parts_of(lines, sample);
    int32_t P = lines->problem->P, L = num_layers(lines);
    double link = transfer_ns(lines, &parts), w = lines->joint_backward ? 1 : 0;
    const double* embedding = parts.part[PART_EMBEDDING];
    double forward = embedding[JOB_F], backward = embedding[JOB_B] + w * embedding[JOB_W];
    for (int32_t l = 0; l < L; l++) {
        const double* ns = parts.part[part_of_layer(lines, l)];
        forward += ns[JOB_F];
        backward += ns[JOB_B] + w * ns[JOB_W];
        if (l + 1 >= P) { continue; }
        out->arrival[l + 1] = fmin(out->arrival[l + 1], forward + (l + 1) * link);
        out->tail[l + 1] = fmin(out->tail[l + 1], backward + (l + 1) * link);
    }
    out->forward = fmin(out->forward, forward);
    out->backward = fmin(out->backward, backward);
}

// Each stage may begin, and end, with another sample: minima one by one.
static Ramp least_ramp(const BoundLines* lines) {
    const BoundBatch* batch = lines->batch;
    int32_t P = lines->problem->P;
    Ramp least = {.forward = INFINITY, .backward = INFINITY};
    for (int32_t i = 1; i < P; i++) { least.arrival[i] = least.tail[i] = INFINITY; }
    for (int32_t i = 0; i < batch->num_least; i++) {
        ramp_lower(&least, lines, &batch->samples[batch->least[i]]);
    }
    for (int32_t i = num_layers(lines) + 1; i < P; i++) { least.arrival[i] = least.tail[i] = 0; }
    return least;
}

// All parameters are reduced on some stage, a tied head's perhaps with the embedding.
static double reductions(const BoundLines* lines) {
    const CostModel* costs = lines->problem->costs;
    double bytes = (double)costs->part_param_bytes[PART_EMBEDDING];
    for (int32_t l = 0; l < num_layers(lines); l++) {
        bytes += (double)costs->part_param_bytes[part_of_layer(lines, l)];
    }
    return bytes * cost_reduce_ns_per_byte(costs, lines->problem->R);
}

static BoundLine line_least(const BoundLine* a, const BoundLine* b) {
    BoundLine least = {.constant = fmin(a->constant, b->constant)};
    for (int f = 0; f < FEATURE_COUNT; f++) { least.rate[f] = fmin(a->rate[f], b->rate[f]); }
    return least;
}

static BoundWhole bound_whole_make(const BoundLines* lines, bool shared) {
    const CostModel* costs = lines->problem->costs;
    int32_t count[PART_COUNT] = {1, costs->num_enc_layers, costs->num_dec_layers, 0};
    BoundPart chain, head, share;
    bound_part_sum(&chain, lines, count, BOUND_ANY_STAGE, shared);
    bound_part_scale(&head, lines, PART_HEAD, BOUND_ANY_STAGE, shared);
    bound_part_share(&share, lines, 1, BOUND_ANY_STAGE, shared);
    BoundWhole whole = {chain.work, chain.F, head.work, head.F};
    bound_line_add(&whole.turn, 1, &chain.B);
    bound_line_add(&whole.head_turn, 1, &head.B);
    if (!lines->head_is_whole) {
        whole.head_work = line_least(&whole.head_work, &share.work);
        whole.head_turn = line_least(&whole.head_turn, &share.F);
    }
    bound_line_add(&whole.work, 1, &whole.head_work);
    bound_line_add(&whole.turn, 1, &whole.head_turn);
    return whole;
}

static void work_make(BoundFree* out, const BoundLines* lines) {
    double P = lines->problem->P;
    bool joint =
        lines->joint_backward && lines->head_is_whole;  // a share's weight gradient is a job of its own
    Ramp ramp = least_ramp(lines);
    double arrivals = 0, tails = 0;
    for (int32_t i = 0; i < lines->problem->P; i++) { arrivals += ramp.arrival[i], tails += ramp.tail[i]; }
    BoundWhole whole = bound_whole_make(lines, true);
    double work = bound_share(lines, &whole.work), reduce = reductions(lines);
    double after = joint ? fmax(tails, reduce) : reduce;
    double with_tails = bound_share(lines, &whole.turn) + arrivals + tails;
    out->even_ns = fmax(work + arrivals + after, with_tails) / P;
    if (!lines->head_is_whole) { return; }
    out->head_ns = ramp.forward + ramp.backward + bound_share(lines, &whole.head_turn);
}

// --- memory ----------------------------------------------------------------------------------------------

enum { MOST_ENDS = 5, MOST_PIECES = 2 * MOST_ENDS };

// The layers [begin, end) of one kind as pieces at the ends of intervals of equal length; layer l is followed
// by those behind it and the head.
static int32_t pieces_of_stack(BoundPiece* out, const BoundLines* lines, int32_t begin, int32_t end,
                               const BoundLine* head_turn) {
    const CostModel* costs = lines->problem->costs;
    int32_t num = end - begin, ends = num < MOST_ENDS ? num : MOST_ENDS;
    if (num <= 0) { return 0; }
    for (int32_t i = 0; i < ends; i++) {
        BoundPiece* piece = &out[i];
        int32_t l = ends == 1 ? begin : begin + (int32_t)((int64_t)(num - 1) * i / (ends - 1));
        int32_t count[PART_COUNT] = {0};
        *piece = (BoundPiece){.weight = 0};
        bound_part_scale(&piece->own, lines, part_of_layer(lines, l), BOUND_ANY_STAGE, false);
        count[PART_ENC_LAYER] = l < costs->num_enc_layers ? costs->num_enc_layers - l - 1 : 0;
        count[PART_DEC_LAYER] = num_layers(lines) - l - 1 - count[PART_ENC_LAYER];
        BoundPart behind;
        bound_part_sum(&behind, lines, count, BOUND_ANY_STAGE, false);
        piece->away = behind.turn;
        bound_line_add(&piece->away, 1, head_turn);
    }
    // Layers strictly between two ends lie on the chord; each end counts itself.
    for (int32_t i = 0; i < ends; i++) {
        int32_t here = ends == 1 ? 0 : (int32_t)((int64_t)(num - 1) * i / (ends - 1));
        int32_t next = i + 1 < ends ? (int32_t)((int64_t)(num - 1) * (i + 1) / (ends - 1)) : here;
        out[i].weight += 1;
        if (i + 1 == ends) { continue; }
        out[i].weight += (next - here - 1) / 2.0;
        out[i + 1].weight += (next - here - 1) / 2.0;
    }
    return ends;
}

// Model state of all stages together: one copy at least, of the head only what is whole and not tied.
static double bound_free_state_bytes(const BoundLines* lines) {
    const CostModel* costs = lines->problem->costs;
    double sum = (double)costs->part_state_bytes[PART_EMBEDDING];
    for (int32_t l = 0; l < num_layers(lines); l++) {
        sum += (double)costs->part_state_bytes[part_of_layer(lines, l)];
    }
    if (!lines->head_is_whole) { return sum; }
    return sum + (double)costs->part_state_bytes[PART_HEAD] - (double)costs->tied_head_state_bytes;
}

static Status memory_make(BoundFree* out, const BoundLines* lines, Arena* scratch) {
    const PlanProblem* problem = lines->problem;
    BoundPiece pieces[MOST_PIECES];
    BoundPart one;
    double all_bytes = 0, head_parts = head_parts_of(lines);
    for (int32_t s = 0; s < problem->P; s++) {
        if (problem->most_limit_bytes[s] == 0) { return STATUS_OK; }
        all_bytes += (double)problem->most_limit_bytes[s];
    }
    int32_t num_enc = problem->costs->num_enc_layers;
    BoundStage all = {.pieces = pieces,
                      .free_bytes = (all_bytes - bound_free_state_bytes(lines)) / problem->P};
    BoundWhole whole = bound_whole_make(lines, false);
    BoundLine head_turn = {0};
    bound_line_add(&head_turn, 1 / head_parts, &whole.head_turn);
    all.num_pieces = pieces_of_stack(pieces, lines, 0, num_enc, &head_turn);
    all.num_pieces += pieces_of_stack(pieces + all.num_pieces, lines, num_enc, num_layers(lines), &head_turn);
    bound_part_scale(&one, lines, PART_EMBEDDING, BOUND_ANY_STAGE, false);
    bound_line_add(&all.more_work, 1, &one.work);
    bound_line_add(&all.more_work, 1, &whole.head_work);
    double time_ns, enough_ns = fmax(out->even_ns, fmax(out->head_ns, out->chain_ns));
    TRY(bound_memory_stage(&time_ns, lines, &all, enough_ns * problem->P, scratch));
    if (time_ns / problem->P > enough_ns) { out->memory_ns = time_ns / problem->P; }
    return STATUS_OK;
}

// STATUS_NO_MEMORY of the host, or STATUS_OK. `scratch` is reset.
static Status bound_free_make(BoundFree* out, const BoundLines* lines, Arena* scratch) {
    *out = (BoundFree){.even_ns = 0};
    chains_make(out, lines);
    work_make(out, lines);
    return memory_make(out, lines, scratch);
}

// --- lower_bound --------------------

typedef struct {
    Arena arena, scratch;
    BoundPiece* pieces;  // [MOST_PIECES]
} Work;

// Rounding: a job may be half a nanosecond shorter than its formula, and a stage has at most 4 jobs of every
// sample in each of its pieces; a chain passes 2 of each piece of the model more. The additions here err by
// less than one part in 10^12.
static int64_t floor_ns(double time_ns, const BoundLines* lines) {
    const PlanProblem* problem = lines->problem;
    double P = problem->P, K = problem->num_rows;
    double of_stage = placement_is_linear(&problem->placement, problem->P) ? 1 : K;
    if (lines->freedom == BOUND_ANY_PLACEMENT) {  // a chunk of every layer, the head's, and shares of it
        K = problem->costs->num_enc_layers + problem->costs->num_dec_layers + 1 + P;
        of_stage = K / P;
    }
    double slack_ns = 2.0 * problem->num_samples * of_stage + 4.0 * K;
    if (problem->differs) { slack_ns *= 1 + lines->most_slow; }  // rounded, scaled, rounded
    double safe = time_ns * (1 - 1e-12) - slack_ns;
    return safe <= 0 ? 0 : safe < (double)COST_LIMIT ? (int64_t)safe : COST_LIMIT;
}

// --- one sample on whatever stages -----------------------------------------------------------------------

static void any_split_chains(LowerBound* out, const BoundLines* lines) {
    const PlanProblem* problem = lines->problem;
    const BoundBatch* batch = lines->batch;
    // of the first stage without its layers but one: what it shares with other stages depends on these
    const CostModel* costs = problem->costs;
    CostStage bare = {.has_embedding = true, .has_head = problem->P == 1};
    int first_part = costs->num_enc_layers > 0 ? PART_ENC_LAYER : PART_DEC_LAYER;
    double reduce = fmax((double)cost_reduce_ns(costs, &bare, problem->R) - 1, 0) +
                    (double)costs->part_param_bytes[first_part] * cost_reduce_ns_per_byte(costs, problem->R);
    double longest = 0;
    for (int32_t i = 0; i < batch->num_most; i++) {
        const PlanSample* sample = &batch->samples[batch->most[i]];
        MbShape shape = {0};
        CostParts parts;
        mb_shape_add(&shape, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
        cost_parts(&parts, &problem->table, problem->modes[0], &shape);
        double time = reduce + bound_free_chain(lines, sample);
        for (int32_t s = 0; s < problem->P - 1; s++) {
            const MachineRank* link = bound_lightest(lines, s);
            time += 2.0 * (double)machine_transfer_ns(link, costs, parts.enc_boundary_bytes);
        }
        if (time > longest) { longest = time, out->chain_sample = batch->first[batch->most[i]]; }
    }
    out->chain_ns = floor_ns(longest, lines);
}

// --- shares of the work ----------------------------------------------------------------------------------

// Of any k R + 1 samples, some replica has k + 1: at least the k + 1 smallest of the k R + 1 largest. k = 0:
// the largest. With one replica there is nothing to divide.
static double indivisible_share(const BoundLines* lines, const BoundLine* line) {
    enum { MOST = 256 };
    double top[MOST], most = 0;  // descending
    int32_t num = 0, R = lines->problem->R;
    const BoundBatch* batch = lines->batch;
    if (R == 1) { return 0; }
    for (int32_t i = batch->num - 1; i >= 0; i--) {
        double work = bound_line_sample(line, &batch->samples[i]) - line->constant;
        for (int32_t n = 0; n < batch->count[i]; n++) {
            if (num == MOST && work <= top[MOST - 1]) { break; }
            int32_t at = num < MOST ? num++ : MOST - 1;
            for (; at > 0 && top[at - 1] < work; at--) { top[at] = top[at - 1]; }
            top[at] = work;
        }
    }
    for (int32_t k = 0; k * R < num; k++) {
        double sum = line->constant;
        for (int32_t i = k * R; i >= k * R - k; i--) { sum += top[i]; }
        most = fmax(most, sum);
    }
    return most;
}

// --- the parts -------------------------------------------------------------------------------------------

// All chunks of a stage: each from its forward to its backward. Most chunks of a stage that are looked at.
enum { LOWER_BOUND_MOST_PIECES = 64 };

// Time of the stage's memory (bound_memory.h), no less than work_ns.
static Status memory_of_stage(double* time_ns, const BoundLines* lines, int32_t s, double work_ns,
                              Work* work) {
    const PlanProblem* problem = lines->problem;
    BoundStage stage = {.pieces = work->pieces, .free_bytes = (double)bound_free_bytes(lines, s)};
    BoundPart one, head = {.turn = {0}};
    double share = bound_share_of(lines, s), largest = 0;
    *time_ns = work_ns;
    if (problem->most_limit_bytes[s] == 0) { return STATUS_OK; }
    for (int32_t k = 0; k < problem->P; k++) {
        if (bound_share_of(lines, k) <= largest) { continue; }
        largest = bound_share_of(lines, k);
        bound_part_share(&head, lines, largest, k, false);
    }
    BoundLine away = head.F;
    for (int32_t k = problem->K - 1; k >= 0; k--) {
        int32_t own = problem->placement.stage_of[k];
        if (k < problem->K - 1) { bound_link_add(&away, lines, own, problem->placement.stage_of[k + 1]); }
        bound_part_chunk(&one, lines, k, false);
        if (own == s && stage.num_pieces < LOWER_BOUND_MOST_PIECES) {
            work->pieces[stage.num_pieces++] =
                (BoundPiece){.own = one, .away = away, .has_input = k > 0, .weight = 1};
        } else if (own == s) {
            bound_line_add(&stage.more_work, 1, &one.work);
        }
        bound_line_add(&away, 1, &one.turn);
    }
    if (share > 0) {
        bound_part_share(&one, lines, share, s, false);
        bound_line_add(&stage.more_work, 1, &one.work);
    }
    TRY(bound_memory_stage(time_ns, lines, &stage, work_ns, &work->scratch));
    *time_ns = fmax(*time_ns, work_ns);
    return STATUS_OK;
}

// Stage s between its earliest begin and what must follow it.
static Status raise_stage(LowerBound* out, const BoundLines* lines, const BoundChains* ends, int32_t s,
                          Work* scratch) {
    const PlanProblem* problem = lines->problem;
    BoundPart stage, fastest, share = {.turn = {0}};
    bound_part_stage(&stage, lines, s, true);
    bound_part_stage(&fastest, lines, s, false);
    bool has_share = bound_share_of(lines, s) > 0;
    if (has_share) { bound_part_share(&share, lines, bound_share_of(lines, s), s, true); }
    // Split backward, or a share of the head, may end with W, and only the reduction follows.
    bool joint = lines->joint_backward, ends_with_b = joint && !has_share;
    BoundLine turn = stage.F, backward = stage.BW;
    bound_line_add(&turn, 1, joint ? &stage.BW : &stage.B);
    if (joint) {  // without the share's W
        bound_line_add(&turn, -1, &share.BW);
        bound_line_add(&turn, 1, &share.B);
    }
    bound_line_add(&backward, -1, &share.BW);
    double work = bound_share(lines, &stage.work);
    int64_t arrival = ends->arrival_ns[s], reduce = ends->reduce_ns[s], tail = ends->tail_ns[s];
    int64_t after = ends_with_b ? larger(tail, reduce) : reduce;
    int64_t bound = arrival + floor_ns(work, lines) + after;
    if (!ends_with_b) { bound = larger(bound, arrival + floor_ns(bound_share(lines, &turn), lines) + tail); }
    bound = larger(bound, ends->turn_ns[s] + floor_ns(bound_share(lines, &backward), lines) + after);
    if (bound > out->stage_ns) { out->stage_ns = bound, out->stage = s; }
    int64_t indivisible = floor_ns(indivisible_share(lines, &fastest.work), lines);
    if (problem->R > 1) { out->replica_ns = larger(out->replica_ns, arrival + indivisible + after); }
    double memory;
    TRY(memory_of_stage(&memory, lines, s, work, scratch));
    if (memory > work) { out->memory_ns = larger(out->memory_ns, arrival + floor_ns(memory, lines) + after); }
    return STATUS_OK;
}

static Status given_placement(LowerBound* out, const BoundLines* lines, Work* work) {
    BoundChains ends;
    work->pieces = arena_alloc_raw(&work->arena, LOWER_BOUND_MOST_PIECES * sizeof *work->pieces);
    if (work->pieces == NULL) { return FAIL(STATUS_NO_MEMORY, "lower bound: no host memory left"); }
    TRY(bound_chains_make(&ends, lines, &work->arena));
    out->chain_ns = ends.longest_ns;
    out->chain_sample = ends.longest_sample;
    for (int32_t s = 0; s < lines->problem->P; s++) { TRY(raise_stage(out, lines, &ends, s, work)); }
    if (out->memory_ns <= out->stage_ns) { out->memory_ns = 0; }
    return STATUS_OK;
}

// Whatever split the layers take, one chunk a stage.
static Status any_split(LowerBound* out, const BoundLines* lines, const BoundLine* whole_fastest,
                        Work* work) {
    double stage_ns, memory_ns;
    TRY(bound_split_best(&stage_ns, &memory_ns, lines, &work->arena, &work->scratch));
    any_split_chains(out, lines);
    out->stage_ns = floor_ns(stage_ns, lines);
    out->memory_ns = memory_ns > stage_ns ? floor_ns(memory_ns, lines) : 0;
    out->replica_ns = floor_ns(indivisible_share(lines, whole_fastest) / lines->problem->P, lines);
    return STATUS_OK;
}

// Whatever chunks there are, and whoever has the head.
static Status any_placement(LowerBound* out, const BoundLines* lines, const BoundLine* whole_fastest,
                            Work* work) {
    BoundFree best;
    TRY(bound_free_make(&best, lines, &work->scratch));
    out->chain_ns = floor_ns(best.chain_ns, lines);
    out->chain_sample = best.chain_sample;
    out->stage_ns = floor_ns(fmax(best.even_ns, best.head_ns), lines);
    out->memory_ns = floor_ns(best.memory_ns, lines);
    if (out->memory_ns <= out->stage_ns) { out->memory_ns = 0; }
    out->replica_ns = floor_ns(indivisible_share(lines, whole_fastest) / lines->problem->P, lines);
    return STATUS_OK;
}

static Status bound_make(LowerBound* out, const PlanProblem* problem, bool joint_backward, Work* work) {
    BoundBatch batch;
    BoundLines lines;
    TRY(bound_batch_make(&batch, problem->samples, problem->num_samples, &work->arena));
    bound_lines_make(&lines, problem, &batch, joint_backward);
    BoundWhole whole = bound_whole_make(&lines, true), fastest = bound_whole_make(&lines, false);
    double even = bound_line_total(&whole.work, &lines.extent, 0) / problem->P / problem->R;
    out->work_ns = floor_ns(even, &lines);
    switch (lines.freedom) {
        case BOUND_GIVEN: TRY(given_placement(out, &lines, work)); break;
        case BOUND_ANY_SPLIT: TRY(any_split(out, &lines, &fastest.work, work)); break;
        case BOUND_ANY_PLACEMENT: TRY(any_placement(out, &lines, &fastest.work, work)); break;
    }
    const int64_t parts[] = {out->work_ns, out->chain_ns, out->stage_ns, out->memory_ns, out->replica_ns};
    for (int i = 0; i < 5; i++) { out->bound_ns = larger(out->bound_ns, parts[i]); }
    return STATUS_OK;
}

Status lower_bound_make(LowerBound* out, const PlanProblem* problem, bool joint_backward) {
    LowerBound made = {.stage = -1};
    Work work = {.pieces = NULL};
    Status status = bound_make(&made, problem, joint_backward, &work);
    arena_free(&work.arena);
    arena_free(&work.scratch);
    *out = status == STATUS_OK ? made : (LowerBound){.stage = -1};
    return status;
}
