// microbatch_intervals.c -- see microbatch_intervals.h.
#include "microbatch_intervals.h"

#include <string.h>

#include "../pipe/pipe_schedule.h"
#include "../types/mb_shape.h"

enum { MAX_INTERVALS = 1 << 26 };

// --- one interval, growing to the left --------------------------------------------------------------------

void interval_grow(GrowingInterval* interval, const PlanProblem* problem, MbLayout layout,
                   const PlanSample* sample) {
    GrowingInterval* g = interval;
    if (layout != LAYOUT_PADDED) {
        mb_shape_add(&g->shape, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
        return;
    }
    if (sample->enc_tokens > g->enc) { g->enc = sample->enc_tokens; }
    if (sample->dec_tokens > g->dec) { g->dec = sample->dec_tokens; }
    int64_t num = g->shape.num_seqs + 1;
    int64_t enc = microbatch_pad_tokens(problem, g->enc, num);
    int64_t dec = microbatch_pad_targets(problem, g->dec, num);
    g->shape = (MbShape){.num_seqs = num,
                         .enc_tokens = num * enc,
                         .enc_squares = num * enc * enc,
                         .dec_tokens = num * dec,
                         .dec_squares = num * dec * dec,
                         .cross_products = num * enc * dec,
                         .supervised_tokens = g->shape.supervised_tokens + sample->supervised_tokens};
}

// --- the line below ---------------------------------------------------------------------------------------

// What a sample has in any micro-batch at least.
static void shape_least(MbShape* shape, const Intervals* intervals, const PlanSample* sample) {
    const PlanProblem* problem = intervals->problem;
    int32_t enc = sample->enc_tokens, dec = sample->dec_tokens;
    if (intervals->options->layout == LAYOUT_PADDED) {
        enc = microbatch_pad_tokens(problem, enc, 0);
        dec = microbatch_pad_targets(problem, dec, 0);
    }
    mb_shape_add(shape, enc, dec, sample->supervised_tokens);
}

// Rounded down, 1 ns for each job that was rounded to nearest.
static void line_make(Intervals* out) {
    double constant, slope[FEATURE_COUNT];
    microbatch_price_line(&constant, slope, &out->pricer);
    bool usable = constant < (double)COST_LIMIT / 2;
    for (int32_t n = 1; n <= out->N && usable; n++) {
        MbShape shape = {0};
        double features[FEATURE_COUNT], sum = 0;
        shape_least(&shape, out, &out->problem->samples[out->order[n - 1]]);
        cost_shape_features(features, &shape);
        for (int f = 0; f < FEATURE_COUNT; f++) { sum += slope[f] * features[f]; }
        usable = sum < (double)COST_LIMIT / 2;
        if (!usable) { break; }
        out->line_ns[n] = out->line_ns[n - 1] + (int64_t)sum;
        usable = out->line_ns[n] < COST_LIMIT / 2;
    }
    out->per_mb_ns = constant > JOB_COUNT ? (int64_t)constant - JOB_COUNT : 0;
    if (usable && constant > JOB_COUNT) { return; }
    if (!usable) { memset(out->line_ns, 0, (size_t)(out->N + 1) * sizeof *out->line_ns); }
    out->per_mb_ns = usable ? -JOB_COUNT : 0;
}

// --- rows -------------------------------------------------------------------------------------------------

Status intervals_init(Intervals* out, const PlanProblem* problem, const int32_t* order,
                      const MicrobatchDpOptions* options, Arena* arena) {
    int32_t N = problem->num_samples;
    memset(out, 0, sizeof *out);
    out->problem = problem;
    out->options = options;
    out->order = order;
    out->N = N;
    ARENA_TRY_NEW(out->num, arena, int32_t, N + 1);
    ARENA_TRY_NEW(out->t, arena, int64_t*, N + 1);
    ARENA_TRY_NEW(out->line_ns, arena, int64_t, N + 1);
    ARENA_TRY_NEW(out->next_ns, arena, int64_t, N + 1);
    ARENA_TRY_NEW(out->grown, arena, GrowingInterval, N + 1);
    microbatch_pricer_make(&out->pricer, problem, options->mode, options->share);
    for (int32_t n = 1; n <= N; n++) {
        interval_grow(&out->grown[n], problem, options->layout, &problem->samples[order[n - 1]]);
        MicrobatchCost cost = microbatch_price(&out->pricer, &out->grown[n].shape);
        if (!(cost.fits_held || (options->single_alone && cost.fits_alone))) { return STATUS_INFEASIBLE; }
        out->next_ns[n] = cost.work_ns;
        if (cost.work_ns > out->longest_single_ns) { out->longest_single_ns = cost.work_ns; }
        if (__builtin_add_overflow(out->singles_ns, cost.work_ns, &out->singles_ns)) {
            out->singles_ns = INT64_MAX;
        }
    }
    line_make(out);
    return STATUS_OK;
}

// Row n: intervals from where it stopped, while they fit and are not longer than the limit. Into row[num..).
static int32_t row_extend(Intervals* intervals, int32_t n, int64_t* row, int32_t num) {
    const PlanProblem* problem = intervals->problem;
    GrowingInterval* g = &intervals->grown[n];
    int64_t next_ns = intervals->next_ns[n];
    while (next_ns <= intervals->limit_ns) {
        row[num++] = next_ns;
        next_ns = INT64_MAX;
        if (num == n) { break; }
        interval_grow(g, problem, intervals->options->layout,
                      &problem->samples[intervals->order[n - 1 - num]]);
        MicrobatchCost cost = microbatch_price(&intervals->pricer, &g->shape);
        if (cost.fits_held) { next_ns = cost.work_ns; }
    }
    intervals->next_ns[n] = next_ns;
    return num;
}

Status intervals_extend(Intervals* intervals, int64_t limit_ns, Arena* arena) {
    int64_t* row;
    ARENA_TRY_NEW(row, arena, int64_t, intervals->N);
    intervals->limit_ns = limit_ns;
    intervals->complete = true;
    for (int32_t n = 1; n <= intervals->N; n++) {
        int32_t old = intervals->num[n];
        if (intervals->next_ns[n] <= limit_ns) {
            int32_t num = row_extend(intervals, n, row, old);
            int64_t* t;
            ARENA_TRY_NEW(t, arena, int64_t, num);
            if (old > 0) { memcpy(t, intervals->t[n], (size_t)old * sizeof *t); }
            memcpy(t + old, row + old, (size_t)(num - old) * sizeof *t);
            intervals->t[n] = t;
            intervals->num[n] = num;
            intervals->total += num - old;
        }
        intervals->complete &= intervals->next_ns[n] == INT64_MAX;
        if (intervals->total > MAX_INTERVALS) {
            return FAIL(STATUS_OUT_OF_RANGE,
                        "a batch of %d samples is too long for the dynamic program ---> use "
                        "--layout ragged, or a smaller -d",
                        intervals->N);
        }
    }
    return STATUS_OK;
}

int64_t intervals_least_sum(const Intervals* intervals, int64_t longest_ns, int64_t* g) {
    const int64_t *line = intervals->line_ns, per_mb = intervals->per_mb_ns;
    g[0] = 0;
    for (int32_t n = 1; n <= intervals->N; n++) {
        const int64_t* t = intervals->t[n];
        int32_t num = intervals->num[n];
        int64_t best = INT64_MAX;
        for (int32_t k = 0; k < num; k++) {
            int64_t sum = g[n - 1 - k] + t[k];
            best = sum < best ? sum : best;
        }
        bool goes_on = intervals->next_ns[n] < INT64_MAX && intervals->next_ns[n] <= longest_ns;
        for (int32_t i = n - 1 - num; i >= 0 && goes_on; i--) {
            int64_t least = line[n] - line[i] + per_mb;
            if (least > longest_ns) { break; }
            int64_t sum = g[i] + (least > intervals->next_ns[n] ? least : intervals->next_ns[n]);
            best = sum < best ? sum : best;
        }
        g[n] = best;
    }
    return g[intervals->N];
}

// --- caps -------------------------------------------------------------------------------------------------

// Least significant digit first; only as many digits as the largest value has.
static void radix_sort(int64_t* values, int64_t* spare, int64_t num) {
    enum { BITS = 11, BUCKETS = 1 << BITS };
    int64_t most = 0, least = INT64_MAX;
    for (int64_t i = 0; i < num; i++) {
        most = values[i] > most ? values[i] : most;
        least = values[i] < least ? values[i] : least;
    }
    for (int shift = 0; shift < 63 && (num > 0 ? (most - least) >> shift : 0) > 0; shift += BITS) {
        int64_t place[BUCKETS + 1] = {0};
        for (int64_t i = 0; i < num; i++) { place[((values[i] - least) >> shift & (BUCKETS - 1)) + 1]++; }
        for (int b = 0; b < BUCKETS; b++) { place[b + 1] += place[b]; }
        for (int64_t i = 0; i < num; i++) {
            spare[place[(values[i] - least) >> shift & (BUCKETS - 1)]++] = values[i];
        }
        memcpy(values, spare, (size_t)num * sizeof *values);
    }
}

Status intervals_caps(int64_t** out, int32_t* num_caps, const Intervals* intervals, Arena* arena) {
    int64_t total = 0, num = 0, *caps, *spare;
    ARENA_TRY_NEW(caps, arena, int64_t, intervals->total);
    ARENA_TRY_NEW(spare, arena, int64_t, intervals->total);
    for (int32_t n = 1; n <= intervals->N; n++) {
        for (int32_t i = 0; i < intervals->num[n]; i++) {
            int64_t t = intervals->t[n][i];
            bool useless = intervals->options->thinning_ns == 0 && t < intervals->longest_single_ns;
            if (!useless) { caps[total++] = t; }
        }
    }
    radix_sort(caps, spare, total);
    for (int64_t k = 0; k < total; k++) {
        if (num == 0 || caps[k] - caps[num - 1] > intervals->options->thinning_ns) { caps[num++] = caps[k]; }
    }
    *out = caps;
    *num_caps = (int32_t)num;
    return STATUS_OK;
}
