#include "search_fill.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../draft/balance.h"
#include "../schedule.h"
#include "../problem.h"
#include "../types.h"

typedef struct {
    int64_t key;
    int32_t id;
} Keyed;

// Descending key, ties to the smaller id: a total order, so any sort gives the same result.
static int compare_keyed(const void* a, const void* b) {
    const Keyed *x = a, *y = b;
    if (x->key != y->key) { return x->key > y->key ? -1 : 1; }
    return (x->id > y->id) - (x->id < y->id);
}

static int64_t all_jobs_ns(const CostJobs* jobs) {
    return jobs->job_ns[JOB_F] + jobs->job_ns[JOB_B] + jobs->job_ns[JOB_W] + jobs->job_ns[JOB_R];
}

// What each sample adds to an average micro-batch, in the layers of each resource.
static void weights_fill(SearchWeights* w, RecomputeMode mode, int32_t num_mbs) {
    const PlanProblem* problem = w->problem;
    const CostModel* costs = problem->costs;
    int32_t num_enc = costs->num_enc_layers, num_layers = num_enc + costs->num_dec_layers;
    CostStage parts[2] = {
        {.layers = {0, w->num_resources == 1 ? num_layers : num_enc}, .has_embedding = true},
        {.layers = {num_enc, num_layers}, .has_head = true}};
    parts[0].has_head = w->num_resources == 1;
    MbShape total = {0};
    for (int32_t i = 0; i < problem->num_samples; i++) {
        const PlanSample* s = &problem->samples[i];
        mb_shape_add(&total, s->enc_tokens, s->dec_tokens, s->supervised_tokens);
    }
    MbShape average = {total.num_seqs / num_mbs,         total.enc_tokens / num_mbs,
                       total.enc_squares / num_mbs,      total.dec_tokens / num_mbs,
                       total.dec_squares / num_mbs,      total.cross_products / num_mbs,
                       total.supervised_tokens / num_mbs};
    CostJobs without[2], with[2];
    int64_t sum[2] = {0};
    CostParts quantities;
    cost_parts(&quantities, &problem->table, mode, &average);
    cost_jobs_of_stages(without, costs, parts, w->num_resources, &quantities);
    for (int32_t i = 0; i < problem->num_samples; i++) {
        const PlanSample* s = &problem->samples[i];
        MbShape shape = average;
        mb_shape_add(&shape, s->enc_tokens, s->dec_tokens, s->supervised_tokens);
        cost_parts(&quantities, &problem->table, mode, &shape);
        cost_jobs_of_stages(with, costs, parts, w->num_resources, &quantities);
        for (int32_t k = 0; k < w->num_resources; k++) {
            int64_t added = all_jobs_ns(&with[k]) - all_jobs_ns(&without[k]);
            w->weight[k][i] = added > 1 ? added : 1;
            sum[k] += w->weight[k][i];
        }
    }
    const double whole = (double)(INT64_C(1) << 40);
    for (int32_t i = 0; i < problem->num_samples; i++) {
        for (int32_t k = 0; k < w->num_resources; k++) {
            w->weight[k][i] = (int64_t)((double)w->weight[k][i] / (double)sum[k] * whole) + 1;
            if (w->weight[k][i] > w->size[i]) { w->size[i] = w->weight[k][i]; }
        }
    }
}

Status search_weights_make(SearchWeights* out, const PlanProblem* problem, RecomputeMode mode,
                           int32_t num_mbs, Arena* arena) {
    int32_t N = problem->num_samples;
    SearchWeights w = {.problem = problem, .num_resources = problem->costs->num_dec_layers > 0 ? 2 : 1};
    Keyed* keyed;
    ARENA_TRY_NEW(keyed, arena, Keyed, N);
    ARENA_TRY_NEW(w.weight[0], arena, int64_t, N);
    ARENA_TRY_NEW(w.weight[1], arena, int64_t, N);
    ARENA_TRY_NEW(w.size, arena, int64_t, N);
    ARENA_TRY_NEW(w.by_size, arena, int32_t, N);
    weights_fill(&w, mode, num_mbs < 1 ? 1 : num_mbs);
    for (int32_t i = 0; i < N; i++) { keyed[i] = (Keyed){w.size[i], i}; }
    qsort(keyed, (size_t)N, sizeof *keyed, compare_keyed);
    for (int32_t i = 0; i < N; i++) { w.by_size[i] = keyed[i].id; }
    *out = w;
    return STATUS_OK;
}

// --- bins with capacities --------------------------------------------------------------------------------

typedef struct {
    int64_t load[2];
    int64_t inverse;  // 2^16 / share of the whole, relative to an average bin
    int32_t num;
} Bin;

// How full the bin would be with this sample, relative to its capacity.
static int64_t fullness(const Bin* bin, const SearchWeights* w, int32_t id) {
    int64_t most = bin->load[0] + w->weight[0][id];
    if (w->num_resources == 2 && bin->load[1] + w->weight[1][id] > most) {
        most = bin->load[1] + w->weight[1][id];
    }
    return (most >> 12) * bin->inverse;
}

static int32_t emptiest(const Bin* bins, int32_t num_bins, const SearchWeights* w, int32_t id) {
    int32_t best = 0;
    int64_t best_full = INT64_MAX;
    for (int32_t b = 0; b < num_bins; b++) {
        int64_t full = fullness(&bins[b], w, id);
        if (full < best_full) {
            best_full = full;
            best = b;
        }
    }
    return best;
}

static void put(Bin* bin, const SearchWeights* w, int32_t id) {
    for (int32_t k = 0; k < w->num_resources; k++) { bin->load[k] += w->weight[k][id]; }
    bin->num++;
}

// Settings are tried on the first replicas: those without samples come last.
static Status empty_last(int32_t* replica_of, int32_t num, int32_t R, Arena* arena) {
    int32_t *place, next = 0;
    ARENA_TRY_NEW(place, arena, int32_t, R);
    for (int32_t i = 0; i < num; i++) { place[replica_of[i]] = 1; }
    for (int32_t r = 0; r < R; r++) {
        if (place[r] > 0) { place[r] = next++; }
    }
    for (int32_t i = 0; i < num; i++) { replica_of[i] = place[replica_of[i]]; }
    return STATUS_OK;
}

Status search_fill_replicas(int32_t* replica_of, const SearchWeights* weights, const double* slow,
                            Arena* arena) {
    const PlanProblem* problem = weights->problem;
    int32_t N = problem->num_samples, R = problem->R;
    if (weights->num_resources == 1 && slow == NULL) {
        TRY(balance_assign(replica_of, weights->weight[0], N, R, arena));
        return empty_last(replica_of, N, R, arena);
    }
    Bin* bins;
    ARENA_TRY_NEW(bins, arena, Bin, R);
    double slowest = 0;
    for (int32_t r = 0; r < R && slow != NULL; r++) { slowest = fmax(slowest, slow[r]); }
    for (int32_t r = 0; r < R; r++) {
        bins[r].inverse = slow == NULL ? 1 << 16 : (int64_t)((1 << 16) * slow[r] / slowest + 1);
    }
    for (int32_t k = 0; k < N; k++) {
        int32_t id = weights->by_size[k], r = emptiest(bins, R, weights, id);
        replica_of[id] = r;
        put(&bins[r], weights, id);
    }
    return slow != NULL ? STATUS_OK : empty_last(replica_of, N, R, arena);
}

static int64_t capacity_percent(const MicrobatchTaper* taper, int32_t k) {
    int32_t from_end = taper->num_mbs - 1 - k, end = k < from_end ? k : from_end, depth = taper->depth;
    if (end >= depth) { return 100; }
    return taper->end_percent + (int64_t)(100 - taper->end_percent) * end / depth;
}

// Bins by fullness in work, smallest at both ends: place[b] is where bin b enters.
static void bins_place(int32_t* place, Keyed* keyed, const Bin* bins, int32_t num_bins) {
    for (int32_t b = 0; b < num_bins; b++) {
        int64_t load = bins[b].load[0] > bins[b].load[1] ? bins[b].load[0] : bins[b].load[1];
        keyed[b] = (Keyed){-load, b};
    }
    qsort(keyed, (size_t)num_bins, sizeof *keyed, compare_keyed);
    for (int32_t k = 0; k < num_bins; k++) { place[keyed[k].id] = k % 2 == 0 ? k / 2 : num_bins - 1 - k / 2; }
}

// The bins of the body, all of one capacity, as a heap with the least loaded on top (ties: the smaller
// index); the bins at the ends, fewer and all different, are looked at one by one. With two resources, so is
// everything.
typedef struct {
    const SearchWeights* weights;
    Bin* bins;
    int32_t num_bins, num_empty;
    int32_t begin, end;  // bins of the body
    int32_t* heap;       // [end - begin]
} Fill;

static bool lighter(const Fill* fill, int32_t a, int32_t b) {
    int64_t x = fill->bins[a].load[0], y = fill->bins[b].load[0];
    return x != y ? x < y : a < b;
}

static void sink_top(Fill* fill) {
    int32_t num = fill->end - fill->begin, i = 0, bin = fill->heap[0];
    for (int32_t child; (child = 2 * i + 1) < num; i = child) {
        if (child + 1 < num && lighter(fill, fill->heap[child + 1], fill->heap[child])) { child++; }
        if (!lighter(fill, fill->heap[child], bin)) { break; }
        fill->heap[i] = fill->heap[child];
    }
    fill->heap[i] = bin;
}

// The bin that sample `id` fills least; an empty one where there are only as many samples left.
static int32_t choose_bin(const Fill* fill, int32_t id, int32_t num_left) {
    int32_t best = fill->begin < fill->end ? fill->heap[0] : 0;
    bool must_be_empty = num_left == fill->num_empty;
    if (must_be_empty && fill->begin < fill->end && fill->bins[best].num == 0) { return best; }
    int64_t best_full = fill->begin < fill->end && !must_be_empty
                            ? fullness(&fill->bins[best], fill->weights, id)
                            : INT64_MAX;
    for (int32_t b = 0; b < fill->num_bins; b++) {
        if (b == fill->begin) { b = fill->end; }
        if (b == fill->num_bins) { break; }
        if (must_be_empty && fill->bins[b].num > 0) { continue; }
        int64_t full = fullness(&fill->bins[b], fill->weights, id);
        if (full > best_full || (full == best_full && b > best)) { continue; }
        best_full = full;
        best = b;
    }
    return best;
}

static Status fill_init(Fill* fill, const SearchWeights* weights, const MicrobatchTaper* taper,
                        Arena* arena) {
    int32_t num_bins = taper->num_mbs, depth = taper->depth < num_bins / 2 ? taper->depth : num_bins / 2;
    *fill = (Fill){.weights = weights, .num_bins = num_bins, .num_empty = num_bins};
    ARENA_TRY_NEW(fill->bins, arena, Bin, num_bins);
    ARENA_TRY_NEW(fill->heap, arena, int32_t, num_bins);
    for (int32_t b = 0; b < num_bins; b++) {
        fill->bins[b].inverse = (100 << 16) / (capacity_percent(taper, b) * 16);
    }
    if (weights->num_resources > 1) { return STATUS_OK; }
    fill->begin = depth;
    fill->end = num_bins - depth;
    for (int32_t b = fill->begin; b < fill->end; b++) { fill->heap[b - fill->begin] = b; }
    return STATUS_OK;
}

Status search_fill(int32_t* mb_of, const SearchWeights* weights, const int32_t* ids, int32_t num_ids,
                   const MicrobatchTaper* taper, Arena* arena) {
    int32_t num_bins = taper->num_mbs, *place;
    Fill fill;
    Keyed* keyed;
    TRY(fill_init(&fill, weights, taper, arena));
    ARENA_TRY_NEW(keyed, arena, Keyed, num_bins);
    ARENA_TRY_NEW(place, arena, int32_t, num_bins);
    for (int32_t i = 0; i < num_ids; i++) {
        int32_t b = choose_bin(&fill, ids[i], num_ids - i);
        mb_of[i] = b;
        fill.num_empty -= fill.bins[b].num == 0;
        put(&fill.bins[b], weights, ids[i]);
        if (fill.begin <= b && b < fill.end) { sink_top(&fill); }
    }
    bins_place(place, keyed, fill.bins, num_bins);
    for (int32_t i = 0; i < num_ids; i++) { mb_of[i] = place[mb_of[i]]; }
    return STATUS_OK;
}

int64_t search_fill_least_mbs(const PlanProblem* problem, const int32_t* ids, int32_t num_ids) {
    MbShape all = {0};
    CostParts parts;
    const ShapeRules* rules = &problem->request->rules;
    if (!problem->has_limit && !shape_rules_limit(rules)) { return 0; }
    for (int32_t i = 0; i < num_ids; i++) {
        const PlanSample* sample = &problem->samples[ids[i]];
        mb_shape_add(&all, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
    }
    int64_t most = shape_rules_least_mbs(rules, &all);
    double needed[PLAN_MAX_STAGES] = {0};
    cost_parts(&parts, &problem->table, problem->modes[0], &all);
    for (int32_t k = 0; k < problem->K; k++) {
        CostJobs jobs;
        int32_t in_flight = microbatch_in_flight(problem->P, problem->K, k);
        cost_jobs_of_stage(&jobs, problem->costs, &problem->chunks[k], &parts);
        needed[problem->placement.stage_of[k]] += (double)jobs.stored_bytes * in_flight;
    }
    for (int32_t s = 0; s < problem->P; s++) {
        int64_t num_mbs = (int64_t)(needed[s] / (double)(problem->available_bytes[s] + 1)) + 1;
        if (num_mbs > most) { most = num_mbs; }
    }
    return most;
}
