/*
microbatch_kk.c -- equal work in every micro-batch: what trainers with balanced ragged batches do today.

Samples are spread over the fewest micro-batches of mb_tokens tokens on average (a multiple of the replicas)
by largest differencing on what each sample takes, attention included; more micro-batches where they do not
keep to their share of memory. The smallest come first and last. The pipeline is not looked at.
*/
#include <stdlib.h>

#include "../draft/balance.h"
#include "../types/mb_shape.h"
#include "batching_policies.h"

typedef struct {
    int64_t work_ns;
    int32_t group;
} Group;

// Descending work, ties to the smaller index.
static int compare_groups(const void* a, const void* b) {
    const Group *x = a, *y = b;
    if (x->work_ns != y->work_ns) { return x->work_ns > y->work_ns ? -1 : 1; }
    return (x->group > y->group) - (x->group < y->group);
}

typedef struct {
    const PlanProblem* problem;
    int64_t* work_ns;   // [N] of each sample
    int32_t* group_of;  // [N]
    int32_t* ids;       // [N]
    int32_t* end;       // [N]
    Group* groups;      // [N]
} Balance;

static Status balance_init(Balance* b, const PlanProblem* problem, Arena* arena) {
    int32_t N = problem->num_samples;
    *b = (Balance){.problem = problem,
                   .work_ns = ARENA_NEW(arena, int64_t, N),
                   .group_of = ARENA_NEW(arena, int32_t, N),
                   .ids = ARENA_NEW(arena, int32_t, N),
                   .end = ARENA_NEW(arena, int32_t, N),
                   .groups = ARENA_NEW(arena, Group, N)};
    if (!b->work_ns || !b->group_of || !b->ids || !b->end || !b->groups) {
        return FAIL(STATUS_NO_MEMORY, "equal micro-batches of %d samples", N);
    }
    for (int32_t i = 0; i < N; i++) {
        const PlanSample* sample = &problem->samples[i];
        MbShape shape = {0};
        mb_shape_add(&shape, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
        b->work_ns[i] = microbatch_work_ns(problem, problem->modes[0], &shape);
    }
    return STATUS_OK;
}

// ids: samples by group, ascending; those of group g end at end[g].
static void sort_by_group(const Balance* b, int32_t num_groups) {
    int32_t N = b->problem->num_samples;
    for (int32_t g = 0; g < num_groups; g++) { b->end[g] = 0; }
    for (int32_t i = 0; i < N; i++) { b->end[b->group_of[i]]++; }
    for (int32_t g = num_groups - 1, end = N; g >= 0; g--) {  // where each begins
        end -= b->end[g];
        b->end[g] = end;
    }
    for (int32_t i = 0; i < N; i++) { b->ids[b->end[b->group_of[i]]++] = i; }
}

// Largest in the middle, smallest at both ends.
static void list_groups(MicrobatchList* out, const Balance* b, int32_t num_groups) {
    const PlanProblem* problem = b->problem;
    out->num_mbs = out->num_sequences = out->num_segments = 0;
    sort_by_group(b, num_groups);
    for (int32_t k = 0; k < num_groups; k++) {
        int32_t rank = 2 * k < num_groups ? num_groups - 1 - 2 * k : 2 * k - num_groups;
        int32_t group = b->groups[rank].group, begin = group > 0 ? b->end[group - 1] : 0;
        int32_t num = b->end[group] - begin;
        if (num == 0) { continue; }
        microbatch_list_append(out, problem, LAYOUT_RAGGED, problem->modes[0], b->ids + begin, num);
    }
}

static bool keeps_share(const MicrobatchList* list, const PlanProblem* problem) {
    for (int k = 0; k < problem->num_modes; k++) {
        bool all = true;
        for (int32_t m = 0; m < list->num_mbs && all; m++) {
            all = microbatch_cost(problem, problem->modes[k], SHARE_PIPELINE, &list->mbs[m].shape).fits_held;
        }
        if (all) { return true; }
    }
    return false;
}

Status microbatch_kk_build(MicrobatchList* out, const PlanProblem* problem, const MicrobatchTaper* taper,
                           Arena* arena) {
    (void)taper;
    Balance b;
    int32_t N = problem->num_samples, R = problem->R;
    int64_t tokens = 0, longest = 0, budget = problem->request->mb_tokens;
    TRY(balance_init(&b, problem, arena));
    TRY(microbatch_list_reserve(out, N, N, arena));
    for (int32_t i = 0; i < N; i++) {
        int64_t both = (int64_t)problem->samples[i].enc_tokens + problem->samples[i].dec_tokens;
        tokens += both;
        longest = both > longest ? both : longest;
    }
    int64_t most = N < PLAN_MAX_REPLICAS ? N : PLAN_MAX_REPLICAS;  // that largest differencing takes
    if (budget <= 0) { budget = problem->request->max_seq_tokens + problem->request->max_target_tokens; }
    if (budget < longest) { budget = longest; }
    int64_t num_groups = ((tokens + budget - 1) / budget + R - 1) / R * R;
    for (;;) {
        if (num_groups > most) { num_groups = most; }
        TRY(balance_assign(b.group_of, b.work_ns, N, (int32_t)num_groups, arena));
        for (int32_t g = 0; g < num_groups; g++) { b.groups[g] = (Group){0, g}; }
        for (int32_t i = 0; i < N; i++) { b.groups[b.group_of[i]].work_ns += b.work_ns[i]; }
        qsort(b.groups, (size_t)num_groups, sizeof *b.groups, compare_groups);
        list_groups(out, &b, (int32_t)num_groups);
        if (num_groups == most || keeps_share(out, problem)) { break; }
        num_groups = (num_groups * 5 / 4 + R) / R * R;
    }
    return microbatch_list_choose_mode(out, problem, "micro-batch");
}
