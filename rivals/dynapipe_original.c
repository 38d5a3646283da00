// dynapipe_original.c -- DynaPipe's own method (see rivals.h): samples in order, dynamic program, largest
// differencing, and for every replica by itself the best of all orders, modes and schedules.
#include "rivals.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../dynapipe_plugin/plan/simulate.h"

typedef struct {
    int64_t key;
    int32_t id;
} Keyed;

static int compare_keyed(const void* a, const void* b) {
    const Keyed *x = a, *y = b;
    return x->key != y->key ? (x->key > y->key) - (x->key < y->key) : (x->id > y->id) - (x->id < y->id);
}

static void swap_ints(int32_t* a, int32_t* b) {
    int32_t swapped = *a;
    *a = *b;
    *b = swapped;
}

// --- a short path -----------------------------------------------------------------------------------------
//
// From the point with the largest sum always to the nearest one left, then 2-opt: stretches of the path are
// reversed as long as that shortens it.

static int64_t distance(const PathPoint* a, const PathPoint* b) {
    return (int64_t)abs(a->x - b->x) + abs(a->y - b->y);
}

static bool is_before(const PathPoint* points, int32_t a, int32_t b, const PathPoint* last) {
    return last != NULL ? distance(last, &points[a]) < distance(last, &points[b])
                        : points[a].x + points[a].y > points[b].x + points[b].y;
}

Status short_path_make(int32_t* path, const PathPoint* points, int32_t num, Arena* arena) {
    (void)arena;
    for (int32_t i = 0; i < num; i++) { path[i] = i; }
    for (int32_t i = 0; i < num; i++) {
        int32_t best = i;
        for (int32_t k = i + 1; k < num; k++) {
            if (is_before(points, path[k], path[best], i > 0 ? &points[path[i - 1]] : NULL)) { best = k; }
        }
        swap_ints(&path[i], &path[best]);
    }
    bool better = true;
    while (better) {
        better = false;
        for (int32_t i = 0; i < num; i++) {
            for (int32_t j = i + 1; j < num; j++) {  // the stretch [i, j]; beyond the ends there is nothing
                const PathPoint *first = &points[path[i]], *last = &points[path[j]];
                const PathPoint* before = i > 0 ? &points[path[i - 1]] : NULL;
                const PathPoint* after = j + 1 < num ? &points[path[j + 1]] : NULL;
                int64_t won = 0;
                if (before != NULL) { won += distance(before, first) - distance(before, last); }
                if (after != NULL) { won += distance(last, after) - distance(first, after); }
                if (won <= 0) { continue; }
                for (int32_t a = i, b = j; a < b; a++, b--) { swap_ints(&path[a], &path[b]); }
                better = true;
            }
        }
    }
    return STATUS_OK;
}

// --- clusters of samples ----------------------------------------------------------------------------------

enum { THRESHOLD_TOKENS = 16, SQUARE_TOKENS = 12 };

// Numbers the different (enc, dec) in units of so many tokens. Returns how many there are.
static Status number_lengths(int32_t* number_of, int32_t* num, const PlanSample* samples, int32_t num_samples,
                             int32_t unit, Arena* arena) {
    Keyed* keyed;
    ARENA_TRY_NEW(keyed, arena, Keyed, num_samples);
    for (int32_t i = 0; i < num_samples; i++) {
        int64_t enc = samples[i].enc_tokens / unit, dec = samples[i].dec_tokens / unit;
        keyed[i] = (Keyed){enc << 32 | dec, i};
    }
    qsort(keyed, (size_t)num_samples, sizeof *keyed, compare_keyed);
    *num = 0;
    for (int32_t k = 0; k < num_samples; k++) {
        *num += k == 0 || keyed[k].key != keyed[k - 1].key;
        number_of[keyed[k].id] = *num - 1;
    }
    return STATUS_OK;
}

// Complete linkage: the closest two are merged until none are closer than the threshold. number_of[]: from
// numbers of lengths to numbers of clusters.
static Status link_lengths(int32_t* number_of, int32_t* num, const PlanSample* samples, int32_t num_samples,
                           Arena* arena) {
    const int32_t n = *num, threshold2 = THRESHOLD_TOKENS * THRESHOLD_TOKENS;
    int32_t *sample_of, *cluster_of, *live, *distance2, num_live = n;
    ARENA_TRY_NEW(sample_of, arena, int32_t, n);
    ARENA_TRY_NEW(cluster_of, arena, int32_t, n);
    ARENA_TRY_NEW(live, arena, int32_t, n);
    ARENA_TRY_NEW(distance2, arena, int32_t, (int64_t)n * n);
    for (int32_t i = 0; i < num_samples; i++) { sample_of[number_of[i]] = i; }
    for (int32_t a = 0; a < n; a++) {
        live[a] = cluster_of[a] = a;
        for (int32_t b = 0; b < n; b++) {
            const PlanSample *x = &samples[sample_of[a]], *y = &samples[sample_of[b]];
            int32_t enc = abs(x->enc_tokens - y->enc_tokens), dec = abs(x->dec_tokens - y->dec_tokens);
            bool is_far = enc >= THRESHOLD_TOKENS || dec >= THRESHOLD_TOKENS;
            distance2[(int64_t)a * n + b] = is_far ? threshold2 : enc * enc + dec * dec;
        }
    }
    for (;;) {
        int32_t least = threshold2, kept = 0, gone = 0;
        for (int32_t i = 0; i < num_live; i++) {
            const int32_t* row = &distance2[(int64_t)live[i] * n];
            for (int32_t j = 0; j < i; j++) {
                if (row[live[j]] < least) { least = row[live[j]], kept = j, gone = i; }
            }
        }
        if (least == threshold2) { break; }
        int32_t a = live[kept], b = live[gone];
        for (int32_t j = 0; j < num_live; j++) {
            int64_t c = live[j], far = distance2[b * (int64_t)n + c];
            if (far <= distance2[a * (int64_t)n + c]) { continue; }
            distance2[a * (int64_t)n + c] = distance2[c * n + a] = (int32_t)far;
        }
        for (int32_t k = 0; k < n; k++) { cluster_of[k] = cluster_of[k] == b ? a : cluster_of[k]; }
        live[gone] = live[--num_live];
    }
    for (int32_t i = 0; i < num_live; i++) { sample_of[live[i]] = i; }  // its new number
    for (int32_t i = 0; i < num_samples; i++) { number_of[i] = sample_of[cluster_of[number_of[i]]]; }
    *num = num_live;
    return STATUS_OK;
}

Status original_clusters_make(int32_t* cluster_of, int32_t* num_clusters, const PlanSample* samples,
                              int32_t num_samples, Arena* arena) {
    TRY(number_lengths(cluster_of, num_clusters, samples, num_samples, 1, arena));
    if (*num_clusters > ORIGINAL_MAX_LINKAGE) {
        return number_lengths(cluster_of, num_clusters, samples, num_samples, SQUARE_TOKENS, arena);
    }
    return link_lengths(cluster_of, num_clusters, samples, num_samples, arena);
}

Status original_order_make(int32_t* order, const PlanSample* samples, int32_t num_samples, Arena* arena) {
    bool decoder = false;
    for (int32_t i = 0; i < num_samples; i++) { decoder |= samples[i].dec_tokens > 0; }
    if (!decoder) { return sample_order_sorted(order, samples, num_samples, arena); }
    int32_t *cluster_of, *path, *place, num;
    int64_t(*sum)[3];  // of a cluster: enc, dec, samples
    PathPoint* points;
    Keyed* keyed;
    ARENA_TRY_NEW(cluster_of, arena, int32_t, num_samples);
    TRY(original_clusters_make(cluster_of, &num, samples, num_samples, arena));
    ARENA_TRY_NEW(path, arena, int32_t, num);
    ARENA_TRY_NEW(place, arena, int32_t, num);
    ARENA_TRY_NEW(points, arena, PathPoint, num);
    ARENA_TRY_NEW(keyed, arena, Keyed, num_samples);
    sum = arena_alloc(arena, (size_t)num * sizeof *sum);
    if (sum == NULL) { return FAIL(STATUS_NO_MEMORY, "order of %d samples", num_samples); }
    for (int32_t i = 0; i < num_samples; i++) {
        int64_t* to = sum[cluster_of[i]];
        to[0] += samples[i].enc_tokens, to[1] += samples[i].dec_tokens, to[2]++;
    }
    for (int32_t c = 0; c < num; c++) {
        points[c] = (PathPoint){(int32_t)(sum[c][0] / sum[c][2]), (int32_t)(sum[c][1] / sum[c][2])};
    }
    TRY(short_path_make(path, points, num, arena));
    PathPoint first = points[path[0]], last = points[path[num - 1]];
    bool backwards = (int64_t)first.x + first.y < (int64_t)last.x + last.y;
    for (int32_t k = 0; k < num; k++) { place[path[k]] = backwards ? num - 1 - k : k; }
    for (int32_t i = 0; i < num_samples; i++) { keyed[i] = (Keyed){place[cluster_of[i]], i}; }
    qsort(keyed, (size_t)num_samples, sizeof *keyed, compare_keyed);
    for (int32_t i = 0; i < num_samples; i++) { order[i] = keyed[i].id; }
    return STATUS_OK;
}

// --- the dynamic program ----------------------------------------------------------------------------------

enum { MAX_INTERVALS = 1 << 26 };

// Consecutive samples, one more at a time.
typedef struct {
    MbShape shape;
    int32_t enc, dec;  // longest, where padded
} Interval;

typedef struct {
    const PlanProblem* problem;
    const OriginalCutOptions* options;
    const int32_t* order;
    int32_t N;
    int32_t* num;  // [N + 1] intervals that end before sample n: (n-1, n], (n-2, n], ...
    int64_t** t;   // [N + 1] their times
    int64_t total;
    int64_t* caps;       // values of t_max
    int64_t cap_weight;  // R * objective = cap * cap_weight + f
    int64_t* f;          // [N + 1]
    int32_t* from;       // [N + 1]
    int64_t best;        // R * objective
    int32_t best_cap;    // index; -1: none yet
} Cutting;

static MicrobatchCost grow(Interval* g, const Cutting* cutting, int32_t at) {
    const PlanProblem* problem = cutting->problem;
    const PlanSample* sample = &problem->samples[cutting->order[at]];
    if (cutting->options->layout != LAYOUT_PADDED) {
        mb_shape_add(&g->shape, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
    } else {
        if (sample->enc_tokens > g->enc) { g->enc = sample->enc_tokens; }
        if (sample->dec_tokens > g->dec) { g->dec = sample->dec_tokens; }
        int64_t num = g->shape.num_seqs + 1, enc = microbatch_pad_tokens(problem, g->enc, num),
                dec = microbatch_pad_targets(problem, g->dec, num);
        int64_t supervised = g->shape.supervised_tokens + sample->supervised_tokens;
        g->shape = (MbShape){
            num, num * enc, num * enc * enc, num * dec, num * dec * dec, num * enc * dec, supervised, 0,
            0,   0};
    }
    return microbatch_cost(problem, cutting->options->mode, cutting->options->share, &g->shape);
}

// Times ascend with length, and memory too: the first interval that is too large ends its row.
static Status make_intervals(Cutting* cutting, Arena* arena) {
    int64_t* row;
    ARENA_TRY_NEW(row, arena, int64_t, cutting->N);
    cutting->total = 0;
    for (int32_t n = 1; n <= cutting->N; n++) {
        Interval g = {0};
        int32_t num = 0;
        for (; num < n; num++) {
            MicrobatchCost cost = grow(&g, cutting, n - 1 - num);
            if (!cost.fits_held) { break; }
            row[num] = cost.work_ns;
        }
        cutting->num[n] = num;
        cutting->total += num;
        if (cutting->total > MAX_INTERVALS) {
            return FAIL(STATUS_OUT_OF_RANGE,
                        "a batch of %d samples is too long for the dynamic program ---> use "
                        "--layout ragged, or a smaller -d",
                        cutting->N);
        }
        ARENA_TRY_NEW(cutting->t[n], arena, int64_t, num);
        memcpy(cutting->t[n], row, (size_t)num * sizeof *row);
    }
    return STATUS_OK;
}

static int compare_times(const void* a, const void* b) {
    const int64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static Status make_caps(Cutting* cutting, int32_t* num_caps, Arena* arena) {
    const int64_t thinning_ns = cutting->options->thinning_ns;
    int64_t total = 0, num = 0;
    ARENA_TRY_NEW(cutting->caps, arena, int64_t, cutting->total);
    for (int32_t n = 1; n <= cutting->N; n++) {
        for (int32_t i = 0; i < cutting->num[n]; i++) { cutting->caps[total++] = cutting->t[n][i]; }
    }
    qsort(cutting->caps, (size_t)total, sizeof *cutting->caps, compare_times);
    for (int64_t k = 0; k < total; k++) {
        if (num == 0 || cutting->caps[k] - cutting->caps[num - 1] > thinning_ns) {
            cutting->caps[num++] = cutting->caps[k];
        }
    }
    *num_caps = (int32_t)num;
    return STATUS_OK;
}

// f of one cap; from[n] = the i that was chosen.
static int64_t solve_cap(Cutting* cutting, int64_t cap_ns) {
    int64_t* f = cutting->f;
    for (int32_t n = 1; n <= cutting->N; n++) {
        const int64_t* t = cutting->t[n];
        f[n] = INT64_MAX;
        for (int32_t k = 0; k < cutting->num[n] && t[k] <= cap_ns; k++) {
            int64_t before = f[n - 1 - k];
            if (before == INT64_MAX || before + t[k] > f[n]) { continue; }
            f[n] = before + t[k];
            cutting->from[n] = n - 1 - k;
        }
    }
    return f[cutting->N];
}

static int64_t objective(const Cutting* cutting, int32_t cap, int64_t sum) {
    int64_t value;
    bool is_too_large = __builtin_mul_overflow(cutting->caps[cap], cutting->cap_weight, &value) ||
                        __builtin_add_overflow(value, sum, &value);
    return is_too_large ? INT64_MAX : value;
}

static int64_t try_cap(Cutting* cutting, int32_t cap) {
    int64_t sum = solve_cap(cutting, cutting->caps[cap]), value = objective(cutting, cap, sum);
    if (value < cutting->best || (value == cutting->best && cap < cutting->best_cap)) {
        cutting->best = value, cutting->best_cap = cap;
    }
    return sum;
}

// Caps lo .. hi are open, and no f among them is below `least`: f falls as the cap grows.
static void search_caps(Cutting* cutting, int32_t lo, int32_t hi, int64_t least) {
    while (lo <= hi) {
        int64_t bound = objective(cutting, lo, least);
        if (bound > cutting->best || (bound == cutting->best && lo > cutting->best_cap)) { return; }
        int32_t mid = lo + (hi - lo) / 2;
        int64_t sum = try_cap(cutting, mid);
        if (sum < INT64_MAX) { search_caps(cutting, lo, mid - 1, sum); }
        if (sum == least) { return; }
        lo = mid + 1;
    }
}

Status original_cut(OriginalCuts* out, const PlanProblem* problem, const int32_t* order,
                    const OriginalCutOptions* options, Arena* arena) {
    int32_t N = problem->num_samples, num = 0;
    int64_t longest_single_ns = 0;
    Cutting cutting = {.best = INT64_MAX,
                       .best_cap = -1,
                       .problem = problem,
                       .options = options,
                       .order = order,
                       .N = N,
                       .cap_weight = (int64_t)(problem->P - 1) * problem->R};
    ARENA_TRY_NEW(cutting.num, arena, int32_t, N + 1);
    ARENA_TRY_NEW(cutting.t, arena, int64_t*, N + 1);
    ARENA_TRY_NEW(cutting.f, arena, int64_t, N + 1);
    ARENA_TRY_NEW(cutting.from, arena, int32_t, N + 1);
    for (int32_t i = 0; i < N; i++) {
        Interval single = {0};
        MicrobatchCost cost = grow(&single, &cutting, i);
        if (!cost.fits_held) { return STATUS_INFEASIBLE; }
        if (cost.work_ns > longest_single_ns) { longest_single_ns = cost.work_ns; }
    }
    int32_t num_caps = 0, lo = 0;
    TRY(make_intervals(&cutting, arena));
    TRY(make_caps(&cutting, &num_caps, arena));
    while (lo < num_caps && cutting.caps[lo] < longest_single_ns) { lo++; }
    if (lo < num_caps) { search_caps(&cutting, lo, num_caps - 2, try_cap(&cutting, num_caps - 1)); }
    if (cutting.best_cap < 0) { return STATUS_INFEASIBLE; }
    solve_cap(&cutting, cutting.caps[cutting.best_cap]);
    for (int32_t n = N; n > 0; n = cutting.from[n]) { num++; }
    *out = (OriginalCuts){.num_mbs = num, .objective_ns = cutting.best / problem->R};
    ARENA_TRY_NEW(out->cut, arena, int32_t, num + 1);
    for (int32_t n = N, k = num; k >= 0; k--, n = cutting.from[n]) { out->cut[k] = n; }
    return STATUS_OK;
}

// Names the first sample of the order that does not fit alone in any mode.
static Status nothing_fits(const PlanProblem* problem, const int32_t* order,
                           const OriginalCutOptions* options) {
    const Cutting cutting = {.problem = problem, .options = options, .order = order};
    for (int32_t k = 0; k < problem->num_samples; k++) {
        Interval g = {0};
        bool fits = false;
        char what[32];
        grow(&g, &cutting, k);
        for (int i = 0; i < problem->num_modes; i++) {
            fits |= microbatch_cost(problem, problem->modes[i], SHARE_ALONE, &g.shape).fits_alone;
        }
        snprintf(what, sizeof what, "sample %d", order[k]);
        if (!fits) { return microbatch_infeasible(problem, &g.shape, what); }
    }
    return FAIL(STATUS_INFEASIBLE, "no partition of %d samples fits in memory ---> raise --memory-limit",
                problem->num_samples);
}

Status microbatch_build_original(MicrobatchList* out, const PlanProblem* problem, Arena* arena) {
    enum { THINNING_NS = 5000000 };  // the original's compile-time constant
    PlanProblem tight = *problem;    // every stage has the tightest one's memory
    OriginalCutOptions options = {.layout = problem->request->layout == LAYOUT_PADDED ? LAYOUT_PADDED
                                                                                      : LAYOUT_RAGGED};
    int num_modes = problem->num_modes;
    int32_t* order;
    ARENA_TRY_NEW(order, arena, int32_t, problem->num_samples);
    TRY(original_order_make(order, problem->samples, problem->num_samples, arena));
    for (int32_t s = 0; s < problem->P; s++) {
        for (int32_t k = 0; k < problem->P; k++) {
            int64_t available = problem->available_bytes[k];
            if (available < tight.available_bytes[s]) { tight.available_bytes[s] = available; }
        }
    }
    for (int i = 0; i < 3 * num_modes; i++) {  // the third round, every t_max, is not in the original
        OriginalCuts cuts;
        options.thinning_ns = i < 2 * num_modes ? THINNING_NS : 0;
        options.share = i < num_modes ? SHARE_UNIFORM : SHARE_ALONE;
        options.mode = problem->modes[i % num_modes];
        Status status = original_cut(&cuts, &tight, order, &options, arena);
        if (status == STATUS_INFEASIBLE) { continue; }
        TRY(status);
        TRY(microbatch_list_reserve(out, cuts.num_mbs, problem->num_samples, arena));
        for (int32_t k = 0; k < cuts.num_mbs; k++) {
            microbatch_list_append(out, problem, options.layout, options.mode, order + cuts.cut[k],
                                   cuts.cut[k + 1] - cuts.cut[k]);
        }
        out->objective_ns = cuts.objective_ns;
        return STATUS_OK;
    }
    return nothing_fits(&tight, order, &options);
}

// --- orders of microbatches ------------------------------------------------------------------------------

enum { MAX_CLUSTERS = 4, MAX_ROUNDS = 300 };

static int32_t nearest(const OriginalPoint* point, const OriginalPoint* centre, int32_t k, double* least) {
    int32_t best = 0;
    for (int32_t c = 0; c < k; c++) {
        double sum = 0;
        for (int i = 0; i < ORIGINAL_FEATURES; i++) {
            sum += (point->us[i] - centre[c].us[i]) * (point->us[i] - centre[c].us[i]);
        }
        if (c == 0 || sum < *least) { *least = sum, best = c; }
    }
    return best;
}

// k-means++ (Arthur & Vassilvitskii, SODA'07): each further centre is a point, chosen with a probability
// proportional to its squared distance; fewer than k where no other point is left.
static void kmeans(int32_t* cluster_of, const OriginalPoint* points, int32_t M, int32_t k, Rng* rng) {
    OriginalPoint centre[MAX_CLUSTERS] = {points[rng_below(rng, (uint32_t)M)]};
    double d;
    for (int32_t num = 1; num < k; num++) {
        double sum = 0, before = 0;
        for (int32_t m = 0; m < M; m++) { nearest(&points[m], centre, num, &d), sum += d; }
        if (sum == 0) { k = num; }
        double at = sum * rng_below(rng, 1 << 30) / (1 << 30);
        for (int32_t m = 0; m < M && before <= at && num < k; m++) {
            nearest(&points[m], centre, num, &d);
            before += d;
            if (before > at) { centre[num] = points[m]; }
        }
    }
    bool changed = true;
    for (int32_t m = 0; m < M; m++) { cluster_of[m] = -1; }
    for (int round = 0; changed && round < MAX_ROUNDS; round++) {
        double sum[MAX_CLUSTERS][ORIGINAL_FEATURES] = {{0}}, num[MAX_CLUSTERS] = {0};
        changed = false;
        for (int32_t m = 0; m < M; m++) {
            int32_t c = nearest(&points[m], centre, k, &d);
            changed |= cluster_of[m] != c;
            cluster_of[m] = c;
            num[c]++;
            for (int i = 0; i < ORIGINAL_FEATURES; i++) { sum[c][i] += points[m].us[i]; }
        }
        for (int32_t c = 0; c < k; c++) {
            for (int i = 0; i < ORIGINAL_FEATURES && num[c] > 0; i++) {
                centre[c].us[i] = sum[c][i] / num[c];
            }
        }
    }
}

// The next in lexicographic order; false after the last.
static bool next_permutation(int32_t* item, int32_t num) {
    int32_t i = num - 2, j = num - 1;
    while (i >= 0 && item[i] > item[i + 1]) { i--; }
    if (i < 0) { return false; }
    while (item[j] < item[i]) { j--; }
    swap_ints(&item[i], &item[j]);
    for (int32_t a = i + 1, b = num - 1; a < b; a++, b--) { swap_ints(&item[a], &item[b]); }
    return true;
}

Status original_orders_make(int32_t* orders[ORIGINAL_MAX_ORDERS], int32_t* num, const OriginalPoint* points,
                            int32_t M, Rng* rng, Arena* arena) {
    int32_t k = M > 20 ? 3 : 4, *cluster_of, cluster[MAX_CLUSTERS], num_clusters = 0;
    ARENA_TRY_NEW(cluster_of, arena, int32_t, M);
    if (M > k) { kmeans(cluster_of, points, M, k, rng); }
    for (int32_t c = 0; c < k; c++) {
        bool has_any = false;
        for (int32_t m = 0; m < M; m++) {
            if (M <= k) { cluster_of[m] = m; }
            has_any |= cluster_of[m] == c;
        }
        if (has_any) { cluster[num_clusters++] = c; }
    }
    *num = 0;
    do {
        int32_t at = 0, *order;
        ARENA_TRY_NEW(order, arena, int32_t, M);
        for (int32_t i = 0; i < num_clusters; i++) {
            int32_t begin = at;
            for (int32_t m = 0; m < M; m++) {
                if (cluster_of[m] == cluster[i]) { order[at++] = m; }
            }
            for (int32_t j = at - 1; j > begin; j--) {
                swap_ints(&order[j], &order[rng_between(rng, begin, j)]);
            }
        }
        orders[(*num)++] = order;
    } while (next_permutation(cluster, num_clusters));
    if (M <= k) { return STATUS_OK; }
    ARENA_TRY_NEW(orders[*num], arena, int32_t, M);
    for (int32_t m = 0; m < M; m++) { orders[*num][m] = m; }
    ++*num;
    return STATUS_OK;
}

// --- the cyclic schedule ----------------------------------------------------------------------------------

// The `cyclic` order (spec section e.3), and the same with a limit. Time is global cycles; what jobs really
// take is not considered. In every cycle every stage runs one backward, if there is one, then one forward;
// what that makes ready is ready in the next cycle. Without a limit stage s runs F(k) in cycle s + k and B(k)
// in cycle 2P - 1 - s + k, so it holds at most 2 (P - s) - 1 microbatches. With a limit a forward waits
// until it fits beside what the stage holds. (The original's order of transfers is that of its jobs, which is
// the simulator's, too.)
typedef struct {
    int32_t next_f, next_b;    // positions in `order`
    int32_t f_ready, b_ready;  // this cycle may run positions below
    int64_t held_bytes;        // F to B: stored (where F keeps it) and input
    int64_t dropped_bytes;     // the most that a dropped microbatch in flight needs when it is recomputed
} CyclicStage;

static Status build_cyclic(PipeSchedule* out, const PipeProblem* problem, const int32_t* order,
                           bool split_backward, bool limited, Arena* arena) {
    CyclicStage stages[PLAN_MAX_STAGES] = {{0}};
    int32_t P = problem->P, M = problem->M, num_run;
    if (limited) { TRY(pipe_problem_check_fits(problem)); }
    TRY(pipe_schedule_init(out, problem, arena));
    do {
        num_run = 0;
        for (int32_t s = 0; s < P; s++) {
            stages[s].f_ready = s == 0 ? M : stages[s - 1].next_f;
            stages[s].b_ready = s == P - 1 ? stages[s].next_f : stages[s + 1].next_b;
        }
        for (int32_t s = 0; s < P; s++) {
            CyclicStage* stage = &stages[s];
            if (stage->next_b < stage->b_ready) {
                int32_t m = order[stage->next_b++];
                const PipeCost* cost = pipe_cost(problem, s, m);
                pipe_schedule_push_backward(out, problem, s, s, m, split_backward);
                stage->held_bytes -= cost->input_bytes + (cost->drops ? 0 : cost->stored_bytes);
                if (stage->next_b == stage->next_f) { stage->dropped_bytes = 0; }
                num_run++;
            }
            if (stage->next_f == stage->f_ready) { continue; }
            const PipeCost* cost = pipe_cost(problem, s, order[stage->next_f]);
            int64_t held_bytes =
                stage->held_bytes + cost->input_bytes + (cost->drops ? 0 : cost->stored_bytes);
            int64_t dropped_bytes = stage->dropped_bytes;
            if (cost->drops && cost->stored_bytes > dropped_bytes) { dropped_bytes = cost->stored_bytes; }
            if (cost->drops && cost->forward_bytes > dropped_bytes) { dropped_bytes = cost->forward_bytes; }
            if (limited && held_bytes + dropped_bytes > problem->memory_limit_bytes[s]) { continue; }
            pipe_schedule_push(out, s, JOB_F, s, order[stage->next_f++]);
            stage->held_bytes = held_bytes;
            stage->dropped_bytes = dropped_bytes;
            num_run++;
        }
    } while (num_run > 0);
    return STATUS_OK;
}

static Status cyclic_build(PipeSchedule* out, const PipeProblem* problem, const int32_t* order,
                           bool split_backward, Arena* arena) {
    return build_cyclic(out, problem, order, split_backward, false, arena);
}

static Status cyclic_limited_build(PipeSchedule* out, const PipeProblem* problem, const int32_t* order,
                                   bool split_backward, Arena* arena) {
    return build_cyclic(out, problem, order, split_backward, true, arena);
}

const PipePolicy pipe_policy_cyclic = {.name = "cyclic", .build = cyclic_build};
const PipePolicy pipe_policy_cyclic_limited = {
    .name = "cyclic-limited", .build = cyclic_limited_build, .keeps_limit = true};

// --- the draft --------------------------------------------------------------------------------------------

// Of all blocks of a layer.
static void add_layer(double ns[JOB_COUNT], const CostParts* parts, int first, int32_t num_blocks) {
    for (int32_t j = 0; j < num_blocks; j++) {
        for (int kind = 0; kind < JOB_COUNT; kind++) { ns[kind] += parts->part[first + j][kind]; }
    }
}

// Time of one layer at the front of the pipeline and of one at its end, which has the head.
static OriginalPoint features_of(const PlanProblem* problem, RecomputeMode mode, const MbShape* shape) {
    CostParts parts;
    cost_parts(&parts, &problem->table, mode, shape);
    const PlanChain* chain = &problem->costs->chain;
    const bool has_enc = chain->num_enc_layers > 0, has_dec = chain->num_dec_layers > 0;
    double first[JOB_COUNT] = {0}, last[JOB_COUNT] = {0};
    add_layer(first, &parts, has_enc ? PART_ENC_BLOCK : PART_DEC_BLOCK,
              has_enc ? chain->enc_blocks : chain->dec_blocks);
    add_layer(last, &parts, has_dec ? PART_DEC_BLOCK : PART_ENC_BLOCK,
              has_dec ? chain->dec_blocks : chain->enc_blocks);
    for (int kind = 0; kind < JOB_COUNT && chain->last_in_rows; kind++) {
        last[kind] += parts.part[PART_LAST_BLOCK][kind] - parts.part[cost_usual_last_part(chain)][kind];
    }
    const double* head = parts.part[PART_HEAD];
    double ns[ORIGINAL_FEATURES] = {first[JOB_F], last[JOB_F] + head[JOB_F],
                                    last[JOB_B] + last[JOB_W] + last[JOB_R] + head[JOB_B] + head[JOB_W] +
                                        head[JOB_R],
                                    first[JOB_B] + first[JOB_W] + first[JOB_R]};
    OriginalPoint point;
    for (int i = 0; i < ORIGINAL_FEATURES; i++) { point.us[i] = (double)cost_round(ns[i] / 1e3); }
    return point;
}

static const PipeVariant variants[] = {{.name = "cyclic", .policy = &pipe_policy_cyclic},
                                       {.name = "cyclic-limited", .policy = &pipe_policy_cyclic_limited},
                                       {.name = "1f1b", .policy = &pipe_policy_1f1b}};

// Microbatches mbs[0 .. M) of one replica in one mode, in all orders: cyclic without a limit and, only where
// no order of it fits, with the limit; then 1F1B. Keeps what is faster than *best.
static Status try_mode(DraftReplica* best, const PlanProblem* problem, const MicrobatchList* list, int32_t r,
                       const int32_t* mbs, RecomputeMode mode, Rng* rng, Arena arenas[2]) {
    const int32_t M = best->M;
    int32_t *orders[ORIGINAL_MAX_ORDERS], num;
    ReplicaProblem replica;
    OriginalPoint* points;
    uint8_t* modes;
    bool fits = false;
    arena_reset(&arenas[0]);
    ARENA_TRY_NEW(modes, &arenas[0], uint8_t, (int64_t)problem->P * M);
    ARENA_TRY_NEW(points, &arenas[0], OriginalPoint, M);
    memset(modes, (int)mode, (size_t)problem->P * (size_t)M);
    for (int32_t m = 0; m < M; m++) { points[m] = features_of(problem, mode, &list->mbs[mbs[m]].shape); }
    TRY(replica_problem_make(&replica, problem, list, r, mbs, M, modes, &arenas[0]));
    TRY(original_orders_make(orders, &num, points, M, rng, &arenas[0]));
    for (int v = 0; v < (problem->P == 1 ? 2 : 3); v++) {
        for (int32_t i = 0; i < num && (v != 1 || !fits); i++) {
            int64_t makespan_ns;
            int32_t variant;
            TRY(pipe_variants_best(&makespan_ns, &variant, &replica.pipe, orders[i], &variants[v], 1,
                                   &arenas[1]));
            if (v == 0 && makespan_ns < INT64_MAX) { fits = true; }
            if (makespan_ns >= best->makespan_ns) { continue; }
            best->makespan_ns = makespan_ns;
            best->variant = variants[v];
            memset(best->modes, (int)mode, (size_t)problem->P * (size_t)M);
            for (int32_t k = 0; k < M; k++) { best->mbs[k] = mbs[orders[i][k]]; }
        }
    }
    return STATUS_OK;
}

static Status make_draft(Draft* out, const PlanProblem* problem, Arena* arena, Arena arenas[2]) {
    ReplicaMbs replicas;
    Rng rng = rng_seed(0);
    Draft draft = {.placement = problem->request->placement};
    TRY(microbatch_build_original(&draft.list, problem, arena));
    TRY(balance_replicas(&replicas, &draft.list, problem->R, NULL, arena));
    ARENA_TRY_NEW(draft.replica, arena, DraftReplica, problem->R);
    for (int32_t r = 0; r < problem->R; r++) {
        DraftReplica* replica = &draft.replica[r];
        const int32_t *mbs = replicas.mbs + replicas.begin[r], M = replicas.begin[r + 1] - replicas.begin[r];
        size_t cells = (size_t)problem->P * (size_t)M;
        *replica = (DraftReplica){.variant = variants[1], .M = M, .makespan_ns = INT64_MAX};
        ARENA_TRY_NEW(replica->mbs, arena, int32_t, M);
        ARENA_TRY_NEW(replica->modes, arena, uint8_t, (int64_t)cells);
        memcpy(replica->mbs, mbs, (size_t)M * sizeof *mbs);
        memset(replica->modes, (int)draft.list.mbs[0].mode, cells);  // the same for all of the list
        for (int32_t i = 0; i < problem->num_modes; i++) {
            TRY(try_mode(replica, problem, &draft.list, r, mbs, problem->modes[i], &rng, arenas));
        }
        if (replica->makespan_ns > draft.makespan_ns) { draft.makespan_ns = replica->makespan_ns; }
    }
    *out = draft;
    return STATUS_OK;
}

Status original_draft(Draft* out, const PlanProblem* problem, Arena* arena) {
    Arena arenas[2] = {{0}};  // of one mode; of one simulation
    Status status = make_draft(out, problem, arena, arenas);
    arena_free(&arenas[0]);
    arena_free(&arenas[1]);
    return status;
}
