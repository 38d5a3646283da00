// microbatch_dynamic.c -- see microbatch_dynamic.h.
#include "microbatch_dynamic.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../original/microbatch_dp.h"
#include "../pipe/pipe_schedule.h"
#include "../search/search_fill.h"
#include "../types/mb_shape.h"

// --- ragged ----------------------------------------------------------------------------------------------

// The samples of one replica, and in which micro-batch each is.
typedef struct {
    int32_t num_ids, num_mbs;
    int32_t *ids, *mb_of;  // [num_ids] largest first
    MbShape* shapes;       // [num_mbs]
} Filled;

static void add_sample(MbShape* shape, const PlanSample* sample) {
    mb_shape_add(shape, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
}

static bool all_fit(const Filled* filled, const PlanProblem* problem, RecomputeMode mode) {
    memset(filled->shapes, 0, (size_t)filled->num_mbs * sizeof *filled->shapes);
    for (int32_t i = 0; i < filled->num_ids; i++) {
        add_sample(&filled->shapes[filled->mb_of[i]], &problem->samples[filled->ids[i]]);
    }
    for (int32_t m = 0; m < filled->num_mbs; m++) {
        const MbShape* shape = &filled->shapes[m];
        MicrobatchCost cost = microbatch_cost(problem, mode, SHARE_PIPELINE, shape);
        if (!cost.fits_held && !(shape->num_seqs == 1 && cost.fits_alone)) { return false; }
    }
    return true;
}

// As many micro-batches as the taper says, or a quarter more, and so on, until all fit.
static Status fill_replica(Filled* out, const SearchWeights* weights, RecomputeMode mode,
                           const MicrobatchTaper* wish, Arena* arena) {
    MicrobatchTaper taper = *wish;
    int64_t least = search_fill_least_mbs(weights->problem, out->ids, out->num_ids);
    if (taper.num_mbs < least) { taper.num_mbs = least < out->num_ids ? (int32_t)least : out->num_ids; }
    ARENA_TRY_NEW(out->shapes, arena, MbShape, out->num_ids);
    for (;; taper.num_mbs += taper.num_mbs / 4 + 1) {
        if (taper.num_mbs > out->num_ids) { taper.num_mbs = out->num_ids; }
        if (taper.num_mbs < 1) { taper.num_mbs = 1; }
        TRY(search_fill(out->mb_of, weights, out->ids, out->num_ids, &taper, arena));
        out->num_mbs = taper.num_mbs;
        if (all_fit(out, weights->problem, mode)) { return STATUS_OK; }
        if (taper.num_mbs == out->num_ids) { return STATUS_INFEASIBLE; }
    }
}

static int compare_ids(const void* a, const void* b) {
    int32_t x = *(const int32_t*)a, y = *(const int32_t*)b;
    return (x > y) - (x < y);
}

static Status append_replica(MicrobatchList* out, const PlanProblem* problem, const Filled* filled,
                             RecomputeMode mode, int32_t r, Arena* arena) {
    int32_t* ids;
    ARENA_TRY_NEW(ids, arena, int32_t, filled->num_ids);
    for (int32_t m = 0; m < filled->num_mbs; m++) {
        int32_t num = 0;
        for (int32_t i = 0; i < filled->num_ids; i++) {
            if (filled->mb_of[i] == m) { ids[num++] = filled->ids[i]; }
        }
        qsort(ids, (size_t)num, sizeof *ids, compare_ids);
        microbatch_list_append(out, problem, LAYOUT_RAGGED, mode, ids, num);
        out->mbs[out->num_mbs - 1].replica = r;
    }
    return STATUS_OK;
}

static Status mode_build(MicrobatchList* out, const PlanProblem* problem, RecomputeMode mode,
                         const MicrobatchTaper* taper, Arena* arena) {
    SearchWeights weights;
    Filled filled = {.num_mbs = 0};
    int32_t N = problem->num_samples, *replica_of;
    int64_t num_mbs = (int64_t)taper->num_mbs * problem->R;
    TRY(search_weights_make(&weights, problem, mode, (int32_t)(num_mbs < N ? num_mbs : N), arena));
    ARENA_TRY_NEW(replica_of, arena, int32_t, N);
    ARENA_TRY_NEW(filled.ids, arena, int32_t, N);
    ARENA_TRY_NEW(filled.mb_of, arena, int32_t, N);
    TRY(search_fill_replicas(replica_of, &weights, plan_problem_replica_slow(problem), arena));
    TRY(microbatch_list_reserve(out, N, N, arena));
    for (int32_t r = 0; r < problem->R; r++) {
        filled.num_ids = 0;
        for (int32_t i = 0; i < N; i++) {
            if (replica_of[weights.by_size[i]] == r) { filled.ids[filled.num_ids++] = weights.by_size[i]; }
        }
        if (filled.num_ids == 0) { continue; }
        TRY(fill_replica(&filled, &weights, mode, taper, arena));
        TRY(append_replica(out, problem, &filled, mode, r, arena));
    }
    return STATUS_OK;
}

static Status infeasible(const PlanProblem* problem) {
    for (int32_t i = 0; i < problem->num_samples; i++) {
        MbShape shape = {0};
        bool fits = false;
        char what[32];
        add_sample(&shape, &problem->samples[i]);
        for (int k = 0; k < problem->num_modes; k++) {
            fits |= microbatch_cost(problem, problem->modes[k], SHARE_ALONE, &shape).fits_alone;
        }
        snprintf(what, sizeof what, "sample %d", i);
        if (!fits) { return microbatch_infeasible(problem, &shape, what); }
    }
    return FAIL(STATUS_INFEASIBLE, "no one recompute mode serves all samples ---> raise --memory-limit");
}

// Without a taper: 3 P micro-batches a replica, P of them smaller at each end.
static Status ragged_build(MicrobatchList* out, const PlanProblem* problem, const MicrobatchTaper* taper,
                           Arena* arena) {
    MicrobatchTaper standard = {
        .num_mbs = 3 * problem->P, .depth = problem->P, .end_percent = 40, .ramp_percent = 100};
    for (int k = 0; k < problem->num_modes; k++) {
        Status status = mode_build(out, problem, problem->modes[k], taper ? taper : &standard, arena);
        if (status != STATUS_INFEASIBLE) { return status; }
    }
    return infeasible(problem);
}

// Every count with every taper: coarse steps first in both, so that the first candidates span the range.
static int32_t ragged_candidates(MicrobatchTaper* out, int32_t max, const PlanProblem* problem) {
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

// --- ragged or padded ------------------------------------------------------------------------------------

Status microbatch_dynamic_build(MicrobatchList* out, const PlanProblem* problem, const MicrobatchTaper* taper,
                                Arena* arena) {
    MicrobatchBuild* build = problem->request->layout == LAYOUT_PADDED ? microbatch_dp_build : ragged_build;
    return build(out, problem, taper, arena);
}

int32_t microbatch_dynamic_candidates(MicrobatchTaper* out, int32_t max, const PlanProblem* problem) {
    static const int32_t ramp_percent[] = {100, 50, 25, 75, 10};
    if (problem->request->layout != LAYOUT_PADDED) { return ragged_candidates(out, max, problem); }
    int32_t num = max < 5 ? max : 5;
    for (int32_t i = 0; i < num; i++) { out[i] = (MicrobatchTaper){.ramp_percent = ramp_percent[i]}; }
    return num;
}
