// microbatch_dp.c -- see microbatch_dp.h.
#include "microbatch_dp.h"

#include <string.h>
#include "../dynapipe_plugin/plan/schedule.h"
#include "../dynapipe_plugin/plan/problem.h"
#include "../dynapipe_plugin/plan/types.h"

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

// The least of a sample in any microbatch.
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

// Row n: intervals from the last one on, while they fit and are not longer than the limit. Into row[num..).
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

#define NEVER INT64_MAX

static int64_t add_saturating(int64_t a, int64_t b) {
    int64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? NEVER : sum;
}

static int64_t multiply_saturating(int64_t a, int64_t b) {
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? NEVER : product;
}

static int64_t cap_weight(const PlanProblem* problem, const MicrobatchDpOptions* o) {
    return (int64_t)o->ramp_percent * (problem->P - 1) * problem->R;
}

// The recurrence for one cap; from[n] = the i that was chosen. NEVER where no partition keeps the cap.
static int64_t cap_solve(const Intervals* intervals, int64_t cap_ns, int64_t* f, int32_t* from) {
    f[0] = 0;
    for (int32_t n = 1; n <= intervals->N; n++) {
        const int64_t* t = intervals->t[n];
        f[n] = NEVER;
        for (int32_t k = 0; k < intervals->num[n] && t[k] <= cap_ns; k++) {
            int32_t i = n - 1 - k;
            int64_t sum = add_saturating(f[i], t[k]);
            if (f[i] != NEVER && sum <= f[n]) {  // <=: ties to the smallest i, the largest micro-batch
                f[n] = sum;
                from[n] = i;
            }
        }
    }
    return f[intervals->N];
}

typedef struct {
    const Intervals* intervals;
    const int64_t* caps;
    int64_t cap_weight;  // R * objective = cap * cap_weight / 100 + f
    int64_t* f;
    int32_t* from;
    int64_t best;      // R * objective
    int32_t best_cap;  // index; -1: none yet
} CapSearch;

static int64_t objective(const CapSearch* search, int32_t cap, int64_t sum) {
    if (sum == NEVER) { return NEVER; }
    return add_saturating(multiply_saturating(search->caps[cap], search->cap_weight) / 100, sum);
}

static int64_t try_cap(CapSearch* search, int32_t cap) {
    int64_t sum = cap_solve(search->intervals, search->caps[cap], search->f, search->from);
    int64_t value = objective(search, cap, sum);
    bool first = value == search->best && cap < search->best_cap;
    if (value < search->best || first) { search->best = value, search->best_cap = cap; }
    return sum;
}

// Caps lo..hi are open, and no f among them is below `least`. Depth is the logarithm of their number.
static void search_range(CapSearch* search, int32_t lo, int32_t hi, int64_t least) {
    while (lo <= hi) {
        int64_t bound = objective(search, lo, least);
        if (bound > search->best || (bound == search->best && lo > search->best_cap)) { return; }
        int32_t mid = lo + (hi - lo) / 2;
        int64_t sum = try_cap(search, mid);
        if (sum != NEVER) { search_range(search, lo, mid - 1, sum); }
        if (sum == least) { return; }  // larger caps bring no gain
        lo = mid + 1;
    }
}

static Status cuts_write(MicrobatchDpCuts* out, CapSearch* search, int32_t R, Arena* arena) {
    int32_t N = search->intervals->N, num = 0;
    int64_t sum = cap_solve(search->intervals, search->caps[search->best_cap], search->f, search->from);
    for (int32_t n = N; n > 0; n = search->from[n]) { num++; }
    *out = (MicrobatchDpCuts){.num_mbs = num,
                              .cut = ARENA_NEW(arena, int32_t, num + 1),
                              .cap_ns = search->caps[search->best_cap],
                              .sum_ns = sum,
                              .objective_ns = search->best / R};
    if (!out->cut) { return FAIL(STATUS_NO_MEMORY, "%d cuts", num); }
    for (int32_t n = N, k = num; k >= 0; k--, n = search->from[n]) { out->cut[k] = n; }
    return STATUS_OK;
}

// The longest cap that can still beat the best: no partition within it has a smaller sum than the line below
// all intervals allows, and a larger cap costs more than the rest.
static int64_t longest_useful_cap(const CapSearch* search, int64_t* g) {
    const Intervals* intervals = search->intervals;
    if (search->best == NEVER || intervals->singles_ns > NEVER / 2) { return NEVER; }  // /2: sums overflow
    int64_t weight = search->cap_weight;
    int64_t cap = multiply_saturating(search->best, 100) / (weight + 100);  // the sum includes the cap
    if (intervals->options->thinning_ns > 0) {  // not so where the largest t is not a kept cap
        cap = weight > 0 ? multiply_saturating(search->best, 100) / weight : NEVER - 1;
    }
    for (int round = 0; round < 3 && cap > intervals->limit_ns; round++) {
        int64_t left = search->best - intervals_least_sum(intervals, cap, g), before = cap;
        if (left <= 0) { return 0; }
        if (weight > 0 && multiply_saturating(left, 100) / weight < cap) {
            cap = multiply_saturating(left, 100) / weight;
        }
        if (before - cap < before / 16) { break; }
    }
    return cap;
}

// All caps among the known intervals that have not been tried yet.
static Status search_known(CapSearch* search, int32_t* num_seen, Arena* arena) {
    int64_t* caps;
    int32_t num_caps, lo = *num_seen;
    TRY(intervals_caps(&caps, &num_caps, search->intervals, arena));
    search->caps = caps;
    while (lo < num_caps && caps[lo] < search->intervals->longest_single_ns) { lo++; }
    *num_seen = num_caps;
    if (lo >= num_caps) { return STATUS_OK; }
    int64_t least = try_cap(search, num_caps - 1);
    search_range(search, lo, num_caps - 2, least);
    return STATUS_OK;
}

Status microbatch_dp_cut(MicrobatchDpCuts* out, const PlanProblem* problem, const int32_t* order,
                         const MicrobatchDpOptions* options, Arena* arena) {
    Intervals intervals;
    int32_t N = problem->num_samples, num_seen = 0;
    int64_t* g;
    TRY(intervals_init(&intervals, problem, order, options, arena));
    CapSearch search = {
        .intervals = &intervals, .cap_weight = cap_weight(problem, options), .best = NEVER, .best_cap = -1};
    ARENA_TRY_NEW(search.f, arena, int64_t, N + 1);
    ARENA_TRY_NEW(search.from, arena, int32_t, N + 1);
    ARENA_TRY_NEW(g, arena, int64_t, N + 1);
    int64_t limit_ns = intervals.longest_single_ns;
    do {
        TRY(intervals_extend(&intervals, limit_ns, arena));
        TRY(search_known(&search, &num_seen, arena));
        int64_t useful_ns = longest_useful_cap(&search, g), step_ns = limit_ns / 2 + 1;
        if (useful_ns <= limit_ns) { break; }
        limit_ns = useful_ns - limit_ns > step_ns ? limit_ns + step_ns : useful_ns;
    } while (!intervals.complete);
    return search.best_cap < 0 ? STATUS_INFEASIBLE : cuts_write(out, &search, problem->R, arena);
}

// --- lists ------------------------------------------------------------------------------------------------

static Status list_write(MicrobatchList* out, const PlanProblem* problem, const int32_t* order,
                         const MicrobatchDpCuts* cuts, const MicrobatchDpOptions* options, Arena* arena) {
    TRY(microbatch_list_reserve(out, cuts->num_mbs, problem->num_samples, arena));
    for (int32_t k = 0; k < cuts->num_mbs; k++) {
        microbatch_list_append(out, problem, options->layout, options->mode, order + cuts->cut[k],
                               cuts->cut[k + 1] - cuts->cut[k]);
    }
    out->objective_ns = cuts->objective_ns;
    return STATUS_OK;
}

// Names the first sample of the order that does not fit alone in any mode.
static Status dp_infeasible(const PlanProblem* problem, const int32_t* order, MbLayout layout) {
    for (int32_t k = 0; k < problem->num_samples; k++) {
        GrowingInterval g = {0};
        bool fits = false;
        interval_grow(&g, problem, layout, &problem->samples[order[k]]);
        for (int i = 0; i < problem->num_modes; i++) {
            fits |= microbatch_cost(problem, problem->modes[i], SHARE_ALONE, &g.shape).fits_alone;
        }
        char what[32];
        snprintf(what, sizeof what, "sample %d", order[k]);
        if (!fits) { return microbatch_infeasible(problem, &g.shape, what); }
    }
    return FAIL(STATUS_INFEASIBLE, "no partition of %d samples fits in memory ---> raise --memory-limit",
                problem->num_samples);
}

Status microbatch_dp_first(MicrobatchList* out, const PlanProblem* problem, const int32_t* order,
                           const MicrobatchDpOptions* options, int num_options, Arena* arena) {
    for (int k = 0; k < num_options; k++) {
        MicrobatchDpCuts cuts;
        Status status = microbatch_dp_cut(&cuts, problem, order, &options[k], arena);
        if (status == STATUS_OK) { return list_write(out, problem, order, &cuts, &options[k], arena); }
        if (status != STATUS_INFEASIBLE) { return status; }
    }
    return dp_infeasible(problem, order, options[0].layout);
}

Status microbatch_dp_build(MicrobatchList* out, const PlanProblem* problem, Arena* arena) {
    MicrobatchDpOptions options[RECOMPUTE_COUNT];
    int32_t* order;
    ARENA_TRY_NEW(order, arena, int32_t, problem->num_samples);
    TRY(sample_order_make(order, problem->samples, problem->num_samples, arena));
    for (int k = 0; k < problem->num_modes; k++) {
        options[k] = (MicrobatchDpOptions){
            .ramp_percent = 100,
            .share = SHARE_PIPELINE,
            .single_alone = true,
            .mode = problem->modes[k],
            .layout = problem->request->layout == LAYOUT_PADDED ? LAYOUT_PADDED : LAYOUT_RAGGED};
    }
    return microbatch_dp_first(out, problem, order, options, problem->num_modes, arena);
}
