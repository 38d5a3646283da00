// microbatch_dp.c -- see microbatch_dp.h. Intervals are kept by their end n, shortest first: t ascends with
// length.
#include "microbatch_dp.h"

#include <stdlib.h>
#include <string.h>

#include "sample_order.h"

#define NEVER INT64_MAX

typedef struct {
    int32_t N;
    int32_t* num;               // [N + 1] intervals that end at n and fit in memory: (n-1, n], (n-2, n], ...
    int64_t** t;                // [N + 1] their times
    int64_t total;              // sum of num
    int64_t longest_single_ns;  // no cap below this is feasible
} Intervals;

static int64_t add_saturating(int64_t a, int64_t b) {
    int64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? NEVER : sum;
}

static int64_t multiply_saturating(int64_t a, int64_t b) {
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? NEVER : product;
}

// What the interval (i, n] needs while i falls: longest lengths (padded) or sums (ragged), one step each.
typedef struct {
    MbShape shape;
    int32_t enc, dec;
} Growing;

static void grow(Growing* g, const MicrobatchProblem* problem, MbLayout layout, const PlanSample* sample) {
    if (layout != LAYOUT_PADDED) {
        mb_shape_add(&g->shape, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
        return;
    }
    g->enc = sample->enc_tokens > g->enc ? sample->enc_tokens : g->enc;
    g->dec = sample->dec_tokens > g->dec ? sample->dec_tokens : g->dec;
    int64_t num = g->shape.num_seqs + 1, enc = microbatch_pad_tokens(problem, g->enc);
    int64_t dec = microbatch_pad_tokens(problem, g->dec);
    g->shape = (MbShape){num,
                         num * enc,
                         num * enc * enc,
                         num * dec,
                         num * dec * dec,
                         num * enc * dec,
                         g->shape.supervised_tokens + sample->supervised_tokens};
}

enum { MAX_INTERVALS = 1 << 26 };

static int64_t cap_weight(const MicrobatchProblem* problem, const MicrobatchDpOptions* o) {
    return (int64_t)o->ramp_percent * (problem->P - 1) * problem->R;
}

// R * objective of every sample on its own, and the longest of them: no micro-batch that alone costs more
// than this can be part of an optimum. NEVER if a sample does not fit.
static int64_t singles_objective(Intervals* out, const MicrobatchProblem* problem,
                                 const MicrobatchDpOptions* o) {
    int64_t sum = 0;
    for (int32_t i = 0; i < problem->num_samples; i++) {
        Growing g = {0};
        grow(&g, problem, o->layout, &problem->samples[i]);
        MicrobatchCost cost = microbatch_cost(problem, o->mode, o->share, &g.shape);
        if (!(cost.fits_held || (o->single_alone && cost.fits_alone))) { return NEVER; }
        sum = add_saturating(sum, cost.work_ns);
        out->longest_single_ns =
            cost.work_ns > out->longest_single_ns ? cost.work_ns : out->longest_single_ns;
    }
    return add_saturating(multiply_saturating(out->longest_single_ns, cap_weight(problem, o)) / 100, sum);
}

// Memory and time only grow with the interval, so the first that is too large ends the row.
static Status intervals_make(Intervals* out, const MicrobatchProblem* problem, const int32_t* order,
                             const MicrobatchDpOptions* o, Arena* arena) {
    int32_t N = problem->num_samples;
    int64_t* row = ARENA_NEW(arena, int64_t, N);
    *out =
        (Intervals){.N = N, .num = ARENA_NEW(arena, int32_t, N + 1), .t = ARENA_NEW(arena, int64_t*, N + 1)};
    if (!row || !out->num || !out->t) { return FAIL(STATUS_NO_MEMORY, "intervals of %d samples", N); }
    int64_t singles = singles_objective(out, problem, o), weight = cap_weight(problem, o);
    if (singles == NEVER) { return STATUS_INFEASIBLE; }
    for (int32_t n = 1; n <= N; n++) {
        Growing g = {0};
        int32_t num = 0;
        for (int32_t i = n - 1; i >= 0; i--) {
            grow(&g, problem, o->layout, &problem->samples[order[i]]);
            MicrobatchCost cost = microbatch_cost(problem, o->mode, o->share, &g.shape);
            if (num > 0 && !cost.fits_held) { break; }
            int64_t least = add_saturating(multiply_saturating(cost.work_ns, weight) / 100, cost.work_ns);
            if (o->thinning_ns == 0 && num > 0 && least > singles) { break; }
            row[num++] = cost.work_ns;
        }
        out->total += num;
        if (out->total > MAX_INTERVALS) {
            return FAIL(STATUS_OUT_OF_RANGE,
                        "a batch of %d samples is too long for the dynamic program ---> use "
                        "--layout ragged, or a smaller -d",
                        N);
        }
        out->num[n] = num;
        out->t[n] = ARENA_NEW(arena, int64_t, num);
        if (!out->t[n]) { return FAIL(STATUS_NO_MEMORY, "intervals of %d samples", N); }
        memcpy(out->t[n], row, (size_t)num * sizeof *row);
    }
    return STATUS_OK;
}

static int compare_ns(const void* a, const void* b) {
    int64_t x = *(const int64_t*)a, y = *(const int64_t*)b;
    return (x > y) - (x < y);
}

// Ascending; a value stays if it exceeds the last kept one by more than `thinning_ns`.
static Status caps_make(int64_t** out, int32_t* num_caps, const Intervals* intervals, int64_t thinning_ns,
                        Arena* arena) {
    int64_t total = intervals->total, num = 0;
    int64_t* caps = ARENA_NEW(arena, int64_t, total);
    if (!caps) { return FAIL(STATUS_NO_MEMORY, "%lld caps", (long long)total); }
    for (int32_t n = 1, k = 0; n <= intervals->N; n++) {
        for (int32_t i = 0; i < intervals->num[n]; i++) { caps[k++] = intervals->t[n][i]; }
    }
    qsort(caps, (size_t)total, sizeof *caps, compare_ns);
    for (int64_t k = 0; k < total; k++) {
        if (num == 0 || caps[k] - caps[num - 1] > thinning_ns) { caps[num++] = caps[k]; }
    }
    *out = caps;
    *num_caps = (int32_t)num;
    return STATUS_OK;
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
        if (sum == least) { return; }  // larger caps buy nothing
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

Status microbatch_dp_cut(MicrobatchDpCuts* out, const MicrobatchProblem* problem, const int32_t* order,
                         const MicrobatchDpOptions* options, Arena* arena) {
    Intervals intervals;
    int32_t N = problem->num_samples, num_caps = 0, lo = 0;
    int64_t* caps = NULL;
    TRY(intervals_make(&intervals, problem, order, options, arena));
    TRY(caps_make(&caps, &num_caps, &intervals, options->thinning_ns, arena));
    CapSearch search = {.intervals = &intervals,
                        .caps = caps,
                        .cap_weight = cap_weight(problem, options),

                        .f = ARENA_NEW(arena, int64_t, N + 1),
                        .from = ARENA_NEW(arena, int32_t, N + 1),
                        .best = NEVER,
                        .best_cap = -1};
    if (!search.f || !search.from) { return FAIL(STATUS_NO_MEMORY, "dynamic program of %d samples", N); }
    while (lo < num_caps && caps[lo] < intervals.longest_single_ns) { lo++; }
    if (lo == num_caps) { return STATUS_INFEASIBLE; }
    int64_t least = try_cap(&search, num_caps - 1);
    search_range(&search, lo, num_caps - 2, least);
    return search.best_cap < 0 ? STATUS_INFEASIBLE : cuts_write(out, &search, problem->R, arena);
}

// --- policies ---------------------------------------------------------------------------------------------

static Status list_write(MicrobatchList* out, const MicrobatchProblem* problem, const int32_t* order,
                         const MicrobatchDpCuts* cuts, const MicrobatchDpOptions* options, Arena* arena) {
    TRY(microbatch_list_reserve(out, cuts->num_mbs, problem->num_samples, arena));
    for (int32_t k = 0; k < cuts->num_mbs; k++) {
        microbatch_list_append(out, problem, options->layout, options->mode, order + cuts->cut[k],
                               cuts->cut[k + 1] - cuts->cut[k]);
    }
    out->objective_ns = cuts->objective_ns;
    return STATUS_OK;
}

// Which sample stands in the way? The first of the order that does not fit alone in any mode.
static Status infeasible(const MicrobatchProblem* problem, const int32_t* order, MbLayout layout) {
    for (int32_t k = 0; k < problem->num_samples; k++) {
        Growing g = {0};
        bool fits = false;
        grow(&g, problem, layout, &problem->samples[order[k]]);
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

static MbLayout layout_of(const MicrobatchProblem* problem) {
    return problem->request->layout == LAYOUT_PADDED ? LAYOUT_PADDED : LAYOUT_RAGGED;
}

Status microbatch_dp_build_original(MicrobatchList* out, const MicrobatchProblem* problem,
                                    const MicrobatchTaper* taper, Arena* arena) {
    (void)taper;
    MicrobatchProblem tight = *problem;  // every stage has what the tightest has
    int32_t* order = ARENA_NEW(arena, int32_t, problem->num_samples);
    if (!order) { return FAIL(STATUS_NO_MEMORY, "order of %d samples", problem->num_samples); }
    TRY(sample_order_sorted(order, problem->samples, problem->num_samples, arena));
    for (int32_t s = 0; s < problem->P; s++) {
        for (int32_t k = 0; k < problem->P; k++) {
            int64_t available = problem->available_bytes[k];
            if (available < tight.available_bytes[s]) { tight.available_bytes[s] = available; }
        }
    }
    // The third round, every cap, is ours: the original gives a short batch up, where all caps lie within 5
    // ms.
    for (int attempt = 0; attempt < 3 * problem->num_modes; attempt++) {
        bool every_cap = attempt >= 2 * problem->num_modes;
        MicrobatchDpOptions options = {.thinning_ns = every_cap ? 0 : MICROBATCH_DP_THINNING_NS,
                                       .ramp_percent = 100,
                                       .share = attempt < problem->num_modes ? SHARE_UNIFORM : SHARE_ALONE,
                                       .mode = problem->modes[attempt % problem->num_modes],
                                       .layout = layout_of(problem)};
        MicrobatchDpCuts cuts;
        Status status = microbatch_dp_cut(&cuts, &tight, order, &options, arena);
        if (status == STATUS_OK) { return list_write(out, problem, order, &cuts, &options, arena); }
        if (status != STATUS_INFEASIBLE) { return status; }
    }
    return infeasible(&tight, order, layout_of(problem));
}

Status microbatch_dp_build(MicrobatchList* out, const MicrobatchProblem* problem,
                           const MicrobatchTaper* taper, Arena* arena) {
    int32_t* order = ARENA_NEW(arena, int32_t, problem->num_samples);
    if (!order) { return FAIL(STATUS_NO_MEMORY, "order of %d samples", problem->num_samples); }
    TRY(sample_order_make(order, problem->samples, problem->num_samples, arena));
    for (int k = 0; k < problem->num_modes; k++) {
        MicrobatchDpOptions options = {.ramp_percent = taper ? taper->ramp_percent : 100,
                                       .share = SHARE_PIPELINE,
                                       .single_alone = true,
                                       .mode = problem->modes[k],
                                       .layout = layout_of(problem)};
        MicrobatchDpCuts cuts;
        Status status = microbatch_dp_cut(&cuts, problem, order, &options, arena);
        if (status == STATUS_OK) { return list_write(out, problem, order, &cuts, &options, arena); }
        if (status != STATUS_INFEASIBLE) { return status; }
    }
    return infeasible(problem, order, layout_of(problem));
}
