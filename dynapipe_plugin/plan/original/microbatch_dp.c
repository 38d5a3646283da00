// microbatch_dp.c -- see microbatch_dp.h: the recurrence, the search over caps, and the two policies.
#include "microbatch_dp.h"

#include "../pipe/pipe_schedule.h"
#include "../problem/sample_order.h"
#include "microbatch_intervals.h"
#include "original_order.h"

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

// The longest cap that can still beat the best: no partition within it has a smaller sum than the line below
// all intervals allows, and a larger cap costs more than that leaves.
static int64_t longest_useful_cap(const CapSearch* search, int64_t* g) {
    const Intervals* intervals = search->intervals;
    if (search->best == NEVER || intervals->singles_ns > NEVER / 2) { return NEVER; }  // /2: sums overflow
    int64_t weight = search->cap_weight;
    int64_t cap = multiply_saturating(search->best, 100) / (weight + 100);  // the sum has the cap in it
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

// All caps among the known intervals that have not been looked at yet.
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

// --- policies ---------------------------------------------------------------------------------------------

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

// Which sample stands in the way? The first of the order that does not fit alone in any mode.
static Status infeasible(const PlanProblem* problem, const int32_t* order, MbLayout layout) {
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

static MbLayout layout_of(const PlanProblem* problem) {
    return problem->request->layout == LAYOUT_PADDED ? LAYOUT_PADDED : LAYOUT_RAGGED;
}

Status microbatch_dp_build_original(MicrobatchList* out, const PlanProblem* problem,
                                    const MicrobatchTaper* taper, Arena* arena) {
    (void)taper;
    PlanProblem tight = *problem;  // every stage has what the tightest has
    int32_t* order = ARENA_NEW(arena, int32_t, problem->num_samples);
    if (!order) { return FAIL(STATUS_NO_MEMORY, "order of %d samples", problem->num_samples); }
    TRY(original_order_make(order, problem->samples, problem->num_samples, arena));
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

Status microbatch_dp_build(MicrobatchList* out, const PlanProblem* problem, const MicrobatchTaper* taper,
                           Arena* arena) {
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
