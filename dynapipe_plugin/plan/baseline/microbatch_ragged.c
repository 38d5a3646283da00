// microbatch_ragged.c -- see microbatch_ragged.h.
#include "microbatch_ragged.h"

#include <stdlib.h>
#include <string.h>

#include "../draft/replica_balance.h"
#include "../original/microbatch_dp.h"
#include "../types/mb_shape.h"

// A micro-batch while it is filled.
typedef struct {
    int64_t room;  // capacity left, in units of weight; may fall below 0
    int32_t head;  // its last sample; chain through `next`; -1: empty
    int32_t num;
    MbShape shape;
    int64_t work_ns;
} Bin;

typedef struct {
    const MicrobatchProblem* problem;
    RecomputeMode mode;
    int64_t* weight;  // [N]
    int32_t* ids;     // [N] descending weight
    int32_t* next;    // [N]
    Bin* bins;        // [N + 1]
    int32_t* heap;    // [N + 1] bin indices, most room first
    int32_t num_bins;
} Filling;

static void shape_add_sample(MbShape* shape, const PlanSample* sample) {
    mb_shape_add(shape, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
}

// What sample i adds to an average micro-batch of the batch, on the stage where it adds most.
static void weights_make(Filling* f, int32_t num_mbs) {
    const MicrobatchProblem* problem = f->problem;
    CostJobs without[PLAN_MAX_STAGES], with[PLAN_MAX_STAGES];
    MbShape total = {0};
    for (int32_t i = 0; i < problem->num_samples; i++) { shape_add_sample(&total, &problem->samples[i]); }
    MbShape average = {total.num_seqs / num_mbs,         total.enc_tokens / num_mbs,
                       total.enc_squares / num_mbs,      total.dec_tokens / num_mbs,
                       total.dec_squares / num_mbs,      total.cross_products / num_mbs,
                       total.supervised_tokens / num_mbs};
    cost_stages(without, problem->costs, problem->stages, problem->P, f->mode, &average);
    for (int32_t i = 0; i < problem->num_samples; i++) {
        MbShape shape = average;
        shape_add_sample(&shape, &problem->samples[i]);
        cost_stages(with, problem->costs, problem->stages, problem->P, f->mode, &shape);
        f->weight[i] = 1;
        for (int32_t s = 0; s < problem->P; s++) {
            int64_t added = 0;
            for (int kind = 0; kind < JOB_COUNT; kind++) {
                added += with[s].job_ns[kind] - without[s].job_ns[kind];
            }
            f->weight[i] = added > f->weight[i] ? added : f->weight[i];
        }
    }
}

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

static Status filling_make(Filling* f, const MicrobatchProblem* problem, RecomputeMode mode, int32_t num_mbs,
                           Arena* arena) {
    int32_t N = problem->num_samples;
    Keyed* keyed = ARENA_NEW(arena, Keyed, N);
    *f = (Filling){.problem = problem,
                   .mode = mode,
                   .weight = ARENA_NEW(arena, int64_t, N),
                   .ids = ARENA_NEW(arena, int32_t, N),
                   .next = ARENA_NEW(arena, int32_t, N),
                   .bins = ARENA_NEW(arena, Bin, N + 1),
                   .heap = ARENA_NEW(arena, int32_t, N + 1)};
    if (!keyed || !f->weight || !f->ids || !f->next || !f->bins || !f->heap) {
        return FAIL(STATUS_NO_MEMORY, "micro-batches of %d samples", N);
    }
    weights_make(f, num_mbs);
    for (int32_t i = 0; i < N; i++) { keyed[i] = (Keyed){f->weight[i], i}; }
    qsort(keyed, (size_t)N, sizeof *keyed, compare_keyed);
    for (int32_t i = 0; i < N; i++) { f->ids[i] = keyed[i].id; }
    return STATUS_OK;
}

// --- the heap of bins, most room first --------------------------------------------------------------------

static bool bin_before(const Filling* f, int32_t a, int32_t b) {
    return f->bins[a].room != f->bins[b].room ? f->bins[a].room > f->bins[b].room : a < b;
}

static void heap_sink(Filling* f, int32_t i) {
    int32_t bin = f->heap[i];
    for (int32_t child; (child = 2 * i + 1) < f->num_bins; i = child) {
        if (child + 1 < f->num_bins && bin_before(f, f->heap[child + 1], f->heap[child])) { child++; }
        if (!bin_before(f, f->heap[child], bin)) { break; }
        f->heap[i] = f->heap[child];
    }
    f->heap[i] = bin;
}

static void heap_rise(Filling* f, int32_t i) {
    int32_t bin = f->heap[i];
    while (i > 0 && bin_before(f, bin, f->heap[(i - 1) / 2])) {
        f->heap[i] = f->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    f->heap[i] = bin;
}

static void bin_open(Filling* f, int64_t room) {
    f->bins[f->num_bins] = (Bin){.room = room, .head = -1};
    f->heap[f->num_bins] = f->num_bins;
    f->num_bins++;
    heap_rise(f, f->num_bins - 1);
}

// --- filling ----------------------------------------------------------------------------------------------

// A sample on its own may use all memory, several together only their share.
static bool bin_accepts(const Filling* f, const Bin* bin, const PlanSample* sample) {
    MbShape shape = bin->shape;
    shape_add_sample(&shape, sample);
    MicrobatchCost cost = microbatch_cost(f->problem, f->mode, SHARE_PIPELINE, &shape);
    return cost.fits_held || (bin->num == 0 && cost.fits_alone);
}

// The place in the heap of the bin with the most room that takes the sample; -1: none. Usually the top.
static int32_t heap_find(const Filling* f, const PlanSample* sample) {
    int32_t best = -1;
    if (f->num_bins > 0 && bin_accepts(f, &f->bins[f->heap[0]], sample)) { return 0; }
    for (int32_t i = 1; i < f->num_bins; i++) {
        if (best >= 0 && !bin_before(f, f->heap[i], f->heap[best])) { continue; }
        if (bin_accepts(f, &f->bins[f->heap[i]], sample)) { best = i; }
    }
    return best;
}

static int64_t capacity(int64_t body, int32_t k, int32_t num_mbs, const MicrobatchTaper* taper) {
    int32_t end = k < num_mbs - 1 - k ? k : num_mbs - 1 - k, depth = taper->depth;
    if (end >= depth) { return body; }
    return body / 100 * (taper->end_percent + (int64_t)(100 - taper->end_percent) * end / depth);
}

// Bins whose capacities add up to the weight of replica r.
static void bins_open(Filling* f, int64_t total, int32_t num_mbs, const MicrobatchTaper* taper) {
    const int64_t unit = 100000;
    int64_t units = 0, body;
    f->num_bins = 0;
    for (int32_t k = 0; k < num_mbs; k++) { units += capacity(unit, k, num_mbs, taper); }
    body = total / units * unit + total % units * unit / units;
    for (int32_t k = 0; k < num_mbs; k++) { bin_open(f, capacity(body, k, num_mbs, taper)); }
}

static Status bins_fill(Filling* f, const int32_t* replica_of, int32_t r, int64_t body) {
    for (int32_t k = 0; k < f->problem->num_samples; k++) {
        int32_t id = f->ids[k];
        const PlanSample* sample = &f->problem->samples[id];
        if (replica_of[id] != r) { continue; }
        int32_t place = heap_find(f, sample);
        if (place < 0) {
            bin_open(f, body);
            for (place = 0; f->heap[place] != f->num_bins - 1;) { place++; }
            if (!bin_accepts(f, &f->bins[f->num_bins - 1], sample)) { return STATUS_INFEASIBLE; }
        }
        Bin* bin = &f->bins[f->heap[place]];
        f->next[id] = bin->head;
        bin->head = id;
        bin->num++;
        bin->room -= f->weight[id];
        shape_add_sample(&bin->shape, sample);
        heap_sink(f, place);
    }
    return STATUS_OK;
}

// Non-empty bins in the order they enter the pipeline: by work, smallest at both ends.
static int32_t bins_order(int32_t* order, Keyed* keyed, Filling* f) {
    int32_t num = 0;
    for (int32_t b = 0; b < f->num_bins; b++) {
        if (f->bins[b].num == 0) { continue; }
        keyed[num++] = (Keyed){-microbatch_work_ns(f->problem, f->mode, &f->bins[b].shape), b};
    }
    qsort(keyed, (size_t)num, sizeof *keyed, compare_keyed);
    for (int32_t k = 0; k < num; k++) { order[k % 2 == 0 ? k / 2 : num - 1 - k / 2] = keyed[k].id; }
    return num;
}

static int compare_ids(const void* a, const void* b) {
    int32_t x = *(const int32_t*)a, y = *(const int32_t*)b;
    return (x > y) - (x < y);
}

// All micro-batches of replica r, appended to the list.
static Status replica_make(MicrobatchList* out, Filling* f, const int32_t* replica_of, int32_t r,
                           const MicrobatchTaper* taper, Arena* arena) {
    int32_t N = f->problem->num_samples, num_mbs = taper->num_mbs, mine = 0;
    int64_t total = 0;
    for (int32_t i = 0; i < N; i++) {
        if (replica_of[i] == r) { total += f->weight[i], mine++; }
    }
    if (mine == 0) { return STATUS_OK; }
    num_mbs = num_mbs < 1 ? 1 : num_mbs > mine ? mine : num_mbs;
    bins_open(f, total, num_mbs, taper);
    TRY(bins_fill(f, replica_of, r, total / num_mbs));
    int32_t *order = ARENA_NEW(arena, int32_t, f->num_bins), *ids = ARENA_NEW(arena, int32_t, mine);
    Keyed* keyed = ARENA_NEW(arena, Keyed, f->num_bins);
    if (!order || !ids || !keyed) { return FAIL(STATUS_NO_MEMORY, "order of %d micro-batches", f->num_bins); }
    int32_t num = bins_order(order, keyed, f);
    for (int32_t k = 0; k < num; k++) {
        int32_t num_ids = 0;
        for (int32_t i = f->bins[order[k]].head; i >= 0; i = f->next[i]) { ids[num_ids++] = i; }
        qsort(ids, (size_t)num_ids, sizeof *ids, compare_ids);
        microbatch_list_append(out, f->problem, LAYOUT_RAGGED, f->mode, ids, num_ids);
        out->mbs[out->num_mbs - 1].replica = r;
    }
    return STATUS_OK;
}

static Status infeasible(const MicrobatchProblem* problem) {
    for (int32_t i = 0; i < problem->num_samples; i++) {
        MbShape shape = {0};
        bool fits = false;
        char what[32];
        shape_add_sample(&shape, &problem->samples[i]);
        for (int k = 0; k < problem->num_modes; k++) {
            fits |= microbatch_cost(problem, problem->modes[k], SHARE_ALONE, &shape).fits_alone;
        }
        snprintf(what, sizeof what, "sample %d", i);
        if (!fits) { return microbatch_infeasible(problem, &shape, what); }
    }
    return FAIL(STATUS_INFEASIBLE, "no one recompute mode serves all samples ---> raise --memory-limit");
}

static Status mode_build(MicrobatchList* out, const MicrobatchProblem* problem, RecomputeMode mode,
                         const MicrobatchTaper* taper, Arena* arena) {
    Filling f;
    int32_t N = problem->num_samples, R = problem->R;
    int64_t num_mbs = (int64_t)(taper->num_mbs > 1 ? taper->num_mbs : 1) * R;
    int32_t* replica_of = ARENA_NEW(arena, int32_t, N);
    if (!replica_of) { return FAIL(STATUS_NO_MEMORY, "replicas of %d samples", N); }
    TRY(filling_make(&f, problem, mode, (int32_t)(num_mbs < N ? num_mbs : N), arena));
    TRY(replica_balance_assign(replica_of, f.weight, N, R, arena));
    TRY(microbatch_list_reserve(out, N, N, arena));
    for (int32_t r = 0; r < R; r++) { TRY(replica_make(out, &f, replica_of, r, taper, arena)); }
    return STATUS_OK;
}

MicrobatchTaper microbatch_taper_default(const MicrobatchProblem* problem) {
    return (MicrobatchTaper){
        .num_mbs = 3 * problem->P, .depth = problem->P, .end_percent = 40, .ramp_percent = 100};
}

Status microbatch_ragged_build(MicrobatchList* out, const MicrobatchProblem* problem,
                               const MicrobatchTaper* taper, Arena* arena) {
    MicrobatchTaper standard = microbatch_taper_default(problem);
    for (int k = 0; k < problem->num_modes; k++) {
        Status status = mode_build(out, problem, problem->modes[k], taper ? taper : &standard, arena);
        if (status != STATUS_INFEASIBLE) { return status; }
    }
    return infeasible(problem);
}

// --- candidates -------------------------------------------------------------------------------------------

// Every count with every taper: coarse steps first in both, so that the first candidates span the range.
int32_t microbatch_ragged_candidates(MicrobatchTaper* out, int32_t max, const MicrobatchProblem* problem) {
    static const int32_t count_percent[] = {300, 200, 400, 150, 600, 100, 800, 250, 1200, 50};  // of P
    int32_t P = problem->P, R = problem->R, num = 0, last = -1;
    int32_t most = (problem->num_samples + R - 1) / R;
    const MicrobatchTaper tapers[] = {{0, P, 40, 100},     {0, 0, 100, 100}, {0, P, 20, 100},
                                      {0, P + 2, 20, 100}, {0, P, 70, 100},  {0, (P + 1) / 2, 40, 100}};
    for (int t = 0; t < (int)(sizeof tapers / sizeof *tapers); t++) {
        bool most_used = false;
        for (int c = 0; c < (int)(sizeof count_percent / sizeof *count_percent) && num < max; c++) {
            int32_t num_mbs = (int32_t)((int64_t)P * count_percent[c] / 100);
            num_mbs = num_mbs < 1 ? 1 : num_mbs > most ? most : num_mbs;
            if (num_mbs == last || (num_mbs == most && most_used) ||
                (t > 0 && tapers[t].depth * 2 >= num_mbs + P)) {
                continue;
            }
            most_used |= num_mbs == most;
            last = num_mbs;
            out[num] = tapers[t];
            out[num++].num_mbs = num_mbs;
        }
    }
    return num;
}

// --- dynamic: ragged or padded ----------------------------------------------------------------------------

Status microbatch_dynamic_build(MicrobatchList* out, const MicrobatchProblem* problem,
                                const MicrobatchTaper* taper, Arena* arena) {
    MicrobatchBuild* build =
        problem->request->layout == LAYOUT_PADDED ? microbatch_dp_build : microbatch_ragged_build;
    return build(out, problem, taper, arena);
}

int32_t microbatch_dynamic_candidates(MicrobatchTaper* out, int32_t max, const MicrobatchProblem* problem) {
    static const int32_t ramp_percent[] = {100, 50, 25, 75, 10};
    if (problem->request->layout != LAYOUT_PADDED) { return microbatch_ragged_candidates(out, max, problem); }
    int32_t num = max < 5 ? max : 5;
    for (int32_t i = 0; i < num; i++) { out[i] = (MicrobatchTaper){.ramp_percent = ramp_percent[i]}; }
    return num;
}
