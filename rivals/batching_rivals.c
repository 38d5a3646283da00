/*
batching_rivals.c -- how trainers make batches today, without a look at the pipeline; the table of rivals.

    packed         next-fit, in the order the samples came, into windows of max_seq_tokens (of the decoder's
side max_target_tokens; both must fit); each window is padded to that length, the decoder's to the longest of
its microbatch, and attends across its samples; as many windows per microbatch as mb_tokens hold
    packed-ragged  best fit decreasing into packs of mb_tokens, one pack per microbatch, attention per sample
    padded         mb_samples samples in the order they came, padded to their longest
    tokens         sorted by length, a new microbatch where the budget of mb_tokens would be exceeded
(computed tokens: padding counts in layout padded)

Where kernels take sequences, tokens or squared lengths up to a limit (ShapeRules), a microbatch ends before
it would exceed it.
*/
#include "rivals.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../dynapipe_plugin/plan/simulate.h"

static int64_t tokens_of(const PlanSample* sample) {
    return (int64_t)sample->enc_tokens + sample->dec_tokens;
}

static int64_t max_of(int64_t a, int64_t b) {
    return a > b ? a : b;
}

// The windows of `packed`, never shorter than the longest sample; `both` is what one may hold. Without a
// limit of its own the decoder's side has the encoder's, and mb_tokens counts one of these.
typedef struct {
    int64_t enc, dec, both;
} Window;

static Window window_tokens(const PlanProblem* problem) {
    const PlanRequest* request = problem->request;
    Window w = {.enc = request->max_seq_tokens, .dec = request->max_target_tokens};
    for (int32_t i = 0; i < problem->num_samples; i++) {
        w.enc = max_of(w.enc, problem->samples[i].enc_tokens);
        w.dec = max_of(w.dec, problem->samples[i].dec_tokens);
    }
    w.both = w.enc + w.dec;
    if (request->max_target_tokens <= 0) { w.enc = w.dec = w.both = max_of(w.enc, w.dec); }
    return w;
}

static int64_t budget_tokens(const PlanProblem* problem) {
    return problem->request->mb_tokens > 0 ? problem->request->mb_tokens : window_tokens(problem).both;
}

// Does every microbatch keep to its share of memory (or else: fit alone) in this mode?
static bool all_fit(const MicrobatchList* list, const PlanProblem* problem, RecomputeMode mode, bool held) {
    for (int32_t m = 0; m < list->num_mbs; m++) {
        MicrobatchCost cost = microbatch_cost(problem, mode, SHARE_PIPELINE, &list->mbs[m].shape);
        if (!(held ? cost.fits_held : cost.fits_alone)) { return false; }
    }
    return true;
}

// The recompute mode of a finished list: the first in which every microbatch keeps to its share of memory,
// else the first in which each fits alone.
static Status choose_mode(MicrobatchList* list, const PlanProblem* problem) {
    const char* name = batching_policy(problem->request->batching)->name;
    for (int attempt = 0; attempt < 2 * problem->num_modes; attempt++) {
        RecomputeMode mode = problem->modes[attempt % problem->num_modes];
        if (!all_fit(list, problem, mode, attempt < problem->num_modes)) { continue; }
        for (int32_t m = 0; m < list->num_mbs; m++) {
            list->mbs[m].mode = mode;
            list->mbs[m].work_ns = microbatch_work_ns(problem, mode, &list->mbs[m].shape);
        }
        return STATUS_OK;
    }
    for (int32_t m = 0; m < list->num_mbs; m++) {
        const Microbatch* mb = &list->mbs[m];
        bool fits = false;
        for (int k = 0; k < problem->num_modes; k++) {
            fits |= microbatch_cost(problem, problem->modes[k], SHARE_ALONE, &mb->shape).fits_alone;
        }
        if (fits) { continue; }
        char what[128];
        int32_t first = list->sequences[mb->sequence_begin].segment_begin,
                end = list->sequences[mb->sequence_end - 1].segment_end;
        snprintf(what, sizeof what, "--batching %s: microbatch %d, of %d samples from sample %d on,", name, m,
                 end - first, list->segments[first].sample_idx);
        return microbatch_infeasible(problem, &mb->shape, what);
    }
    return FAIL(STATUS_INFEASIBLE,
                "--batching %s: no recompute mode serves all microbatches ---> raise --memory-limit", name);
}

static bool kernels_take(const PlanProblem* problem, const MbShape* shape) {
    return shape_rules_allow(&problem->request->rules, shape);
}

// `num` sequences of these lengths.
static MbShape equal_sequences(int64_t num, int64_t enc, int64_t dec) {
    return (MbShape){.num_seqs = num,
                     .enc_tokens = num * enc,
                     .enc_squares = num * enc * enc,
                     .dec_tokens = num * dec,
                     .dec_squares = num * dec * dec,
                     .cross_products = num * enc * dec};
}

static Status reserve(MicrobatchList* out, const PlanProblem* problem, int32_t** order, Arena* arena) {
    ARENA_TRY_NEW(*order, arena, int32_t, problem->num_samples);
    for (int32_t i = 0; i < problem->num_samples; i++) { (*order)[i] = i; }
    return microbatch_list_reserve(out, problem->num_samples, problem->num_samples, arena);
}

// One ragged microbatch for each group of samples, in this order of the groups.
static Status list_groups(MicrobatchList* out, const PlanProblem* problem, const int32_t* group_of,
                          const int32_t* groups, int32_t num_groups, Arena* arena) {
    int32_t *begin, *ids, N = problem->num_samples;
    ARENA_TRY_NEW(begin, arena, int32_t, num_groups + 2);
    ARENA_TRY_NEW(ids, arena, int32_t, N);
    out->num_mbs = out->num_sequences = out->num_segments = 0;
    for (int32_t i = 0; i < N; i++) { begin[group_of[i] + 2]++; }
    for (int32_t g = 0; g < num_groups; g++) { begin[g + 2] += begin[g + 1]; }
    for (int32_t i = 0; i < N; i++) { ids[begin[group_of[i] + 1]++] = i; }
    for (int32_t k = 0; k < num_groups; k++) {
        int32_t g = groups[k], num = begin[g + 1] - begin[g];
        if (num == 0) { continue; }
        microbatch_list_append(out, problem, LAYOUT_RAGGED, problem->modes[0], ids + begin[g], num);
    }
    return STATUS_OK;
}

// --- packed -----------------------------------------------------------------------------------------------

// The end of the window that begins with sample `begin`: next-fit, both lengths must fit.
static int32_t window_end(const PlanProblem* problem, int32_t begin, Window window, int64_t* dec_tokens) {
    int64_t enc = 0, dec = 0;
    int32_t end = begin;
    for (; end < problem->num_samples; end++) {
        const PlanSample* sample = &problem->samples[end];
        if (enc + sample->enc_tokens > window.enc || dec + sample->dec_tokens > window.dec) { break; }
        enc += sample->enc_tokens;
        dec += sample->dec_tokens;
    }
    *dec_tokens = dec;
    return end;
}

Status microbatch_packed_build(MicrobatchList* out, const PlanProblem* problem, Arena* arena) {
    int32_t* order;
    TRY(reserve(out, problem, &order, arena));
    Window window = window_tokens(problem);
    int64_t num_windows = budget_tokens(problem) / window.both, N = problem->num_samples;
    for (int32_t begin = 0; begin < N;) {
        int64_t dec, longest_dec = 0;
        int32_t end = begin;
        for (int64_t w = 0; w < (num_windows > 0 ? num_windows : 1) && end < N; w++) {
            int32_t next = window_end(problem, end, window, &dec);
            MbShape shape = equal_sequences(w + 1, window.enc, max_of(dec, longest_dec));
            if (w > 0 && !kernels_take(problem, &shape)) { break; }
            longest_dec = max_of(dec, longest_dec);
            end = next;
        }
        microbatch_list_open(out, LAYOUT_PACKED, problem->modes[0]);
        for (int32_t next; begin < end; begin = next) {
            next = window_end(problem, begin, window, &dec);
            microbatch_list_add(out, problem, order + begin, next - begin, (int32_t)window.enc,
                                (int32_t)longest_dec);
        }
        microbatch_list_close(out, problem);
    }
    return choose_mode(out, problem);
}

// --- packed-ragged ----------------------------------------------------------------------------------------

Status microbatch_packed_ragged_build(MicrobatchList* out, const PlanProblem* problem, Arena* arena) {
    int32_t *order, *packs, *pack_of, num_packs = 0, N = problem->num_samples;
    int64_t budget = budget_tokens(problem);
    MbShape* shapes;
    TRY(reserve(out, problem, &packs, arena));
    ARENA_TRY_NEW(order, arena, int32_t, N);
    ARENA_TRY_NEW(pack_of, arena, int32_t, N);
    ARENA_TRY_NEW(shapes, arena, MbShape, N);
    TRY(sample_order_sorted(order, problem->samples, N, arena));
    for (int32_t k = 0; k < N; k++) {
        const PlanSample* sample = &problem->samples[order[k]];
        int32_t best = num_packs;
        for (int32_t p = 0; p < num_packs; p++) {
            int64_t tokens = shapes[p].enc_tokens + shapes[p].dec_tokens;
            if (tokens + tokens_of(sample) > budget) { continue; }
            if (best < num_packs && tokens <= shapes[best].enc_tokens + shapes[best].dec_tokens) { continue; }
            MbShape grown = shapes[p];
            mb_shape_add(&grown, sample->enc_tokens, sample->dec_tokens, 0);
            if (kernels_take(problem, &grown)) { best = p; }
        }
        num_packs += best == num_packs;
        mb_shape_add(&shapes[best], sample->enc_tokens, sample->dec_tokens, 0);
        pack_of[order[k]] = best;
    }
    TRY(list_groups(out, problem, pack_of, packs, num_packs, arena));
    return choose_mode(out, problem);
}

// --- padded, tokens ---------------------------------------------------------------------------------------

typedef struct {
    int32_t enc, dec;
} Longest;

static void longest_add(Longest* longest, const PlanSample* sample) {
    longest->enc = (int32_t)max_of(sample->enc_tokens, longest->enc);
    longest->dec = (int32_t)max_of(sample->dec_tokens, longest->dec);
}

static MbShape longest_padded(const Longest* longest, const PlanProblem* problem, int64_t num) {
    return equal_sequences(num, microbatch_pad_tokens(problem, longest->enc, num),
                           microbatch_pad_targets(problem, longest->dec, num));
}

Status microbatch_padded_build(MicrobatchList* out, const PlanProblem* problem, Arena* arena) {
    int32_t *order, N = problem->num_samples;
    int64_t num = problem->request->mb_samples;
    TRY(reserve(out, problem, &order, arena));
    if (num <= 0) {  // so many that an average microbatch has the budget
        int64_t total = 0;
        for (int32_t i = 0; i < N; i++) { total += tokens_of(&problem->samples[i]); }
        num = budget_tokens(problem) * N / total;
        num = num > 0 ? num : 1;
    }
    for (int32_t begin = 0, end; begin < N; begin = end) {
        Longest longest = {0};
        for (end = begin; end < N && end - begin < num; end++) {
            longest_add(&longest, &problem->samples[order[end]]);
            MbShape shape = longest_padded(&longest, problem, end - begin + 1);
            if (end > begin && !kernels_take(problem, &shape)) { break; }
        }
        microbatch_list_append(out, problem, LAYOUT_PADDED, problem->modes[0], order + begin, end - begin);
    }
    return choose_mode(out, problem);
}

Status microbatch_tokens_build(MicrobatchList* out, const PlanProblem* problem, Arena* arena) {
    int32_t *order, N = problem->num_samples;
    TRY(reserve(out, problem, &order, arena));
    TRY(sample_order_make(order, problem->samples, N, arena));
    MbLayout layout = problem->request->layout == LAYOUT_PADDED ? LAYOUT_PADDED : LAYOUT_RAGGED;
    int64_t budget = budget_tokens(problem);
    for (int32_t begin = 0, end; begin < N; begin = end) {
        MbShape shape = {0};
        Longest longest = {0};
        for (end = begin; end < N; end++) {
            const PlanSample* sample = &problem->samples[order[end]];
            longest_add(&longest, sample);
            mb_shape_add(&shape, sample->enc_tokens, sample->dec_tokens, 0);
            if (layout == LAYOUT_PADDED) { shape = longest_padded(&longest, problem, end - begin + 1); }
            bool is_full = shape.enc_tokens + shape.dec_tokens > budget || !kernels_take(problem, &shape);
            if (end > begin && is_full) { break; }
        }
        microbatch_list_append(out, problem, layout, problem->modes[0], order + begin, end - begin);
    }
    return choose_mode(out, problem);
}

// --- kk ----------------------------------------------------------------------------------------------------
//
// Equal work in every microbatch: what trainers with balanced ragged batches do today.
//
// Samples are spread over the fewest microbatches of mb_tokens tokens on average (a multiple of the
// replicas) by largest differencing on what each sample takes, attention included; more microbatches where
// they do not keep to their share of memory. The smallest come first and last. The pipeline is not looked at.

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

Status microbatch_kk_build(MicrobatchList* out, const PlanProblem* problem, Arena* arena) {
    int32_t N = problem->num_samples, R = problem->R, *group_of, *order;
    int64_t tokens = 0, longest = 0, budget = problem->request->mb_tokens, *work_ns;
    Group* groups;
    TRY(reserve(out, problem, &order, arena));
    ARENA_TRY_NEW(group_of, arena, int32_t, N);
    ARENA_TRY_NEW(work_ns, arena, int64_t, N);
    ARENA_TRY_NEW(groups, arena, Group, N);
    for (int32_t i = 0; i < N; i++) {
        const PlanSample* sample = &problem->samples[i];
        MbShape shape = {0};
        mb_shape_add(&shape, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
        work_ns[i] = microbatch_work_ns(problem, problem->modes[0], &shape);
        tokens += tokens_of(sample);
        longest = max_of(longest, tokens_of(sample));
    }
    int64_t most = N < PLAN_MAX_REPLICAS ? N : PLAN_MAX_REPLICAS;
    if (budget <= 0) { budget = problem->request->max_seq_tokens + problem->request->max_target_tokens; }
    budget = max_of(budget, longest);
    int64_t num = ((tokens + budget - 1) / budget + R - 1) / R * R;
    for (bool fits = false;; num = (num * 5 / 4 + R) / R * R) {
        if (num > most) { num = most; }
        TRY(balance_difference(group_of, work_ns, N, (int32_t)num, arena));
        for (int32_t g = 0; g < num; g++) { groups[g] = (Group){0, g}; }
        for (int32_t i = 0; i < N; i++) { groups[group_of[i]].work_ns += work_ns[i]; }
        qsort(groups, (size_t)num, sizeof *groups, compare_groups);
        for (int32_t k = 0; k < num; k++) {  // the largest in the middle
            order[k] = groups[2 * k < num ? num - 1 - 2 * k : 2 * k - num].group;
        }
        TRY(list_groups(out, problem, group_of, order, (int32_t)num, arena));
        for (int k = 0; k < problem->num_modes && !fits; k++) {
            fits = all_fit(out, problem, problem->modes[k], true);
        }
        if (num == most || fits) { return choose_mode(out, problem); }
    }
}

// --- drafts ------------------------------------------------------------------------------------------------

Status pipe_variants_best(int64_t* makespan_ns, int32_t* variant, const PipeProblem* pipe,
                          const int32_t* order, const PipeVariant* variants, int32_t num_variants,
                          Arena* scratch) {
    *makespan_ns = INT64_MAX;
    *variant = 0;
    for (int32_t i = 0; i < num_variants; i++) {
        PipeSchedule schedule;
        PipeTimeline timeline;
        bool fits = true;
        arena_reset(scratch);
        Status status = pipe_variant_build(&schedule, pipe, order, &variants[i], scratch);
        if (status == STATUS_INFEASIBLE) { continue; }
        TRY(status);
        TRY(pipe_simulate(&timeline, pipe, &schedule, scratch));
        for (int32_t s = 0; s < pipe->P; s++) {
            fits &= timeline.peak_bytes[s] <= pipe->memory_limit_bytes[s];
        }
        if (!fits || timeline.makespan_ns >= *makespan_ns) { continue; }
        *makespan_ns = timeline.makespan_ns;
        *variant = i;
    }
    return STATUS_OK;
}

enum { MAX_VARIANTS = 3 };

// The schedules that the request allows this batching. Returns how many.
static int32_t variants_of(PipeVariant out[MAX_VARIANTS], const PlanRequest* request) {
    static const char* const names[2][3] = {{"1f1b", "adaptive", "gpipe"},
                                            {"1f1b+w", "adaptive+w", "gpipe+w"}};
    static const PipePolicy* const policies[] = {&pipe_policy_1f1b, &pipe_policy_adaptive,
                                                 &pipe_policy_gpipe};
    bool splits = request->split_backward == SPLIT_BACKWARD_ON;
    bool is_linear =
        request->placement.num_chunks == 0 || placement_is_linear(&request->placement, request->P);
    int32_t num = 0;
    for (int i = 0; i < 3; i++) {
        bool allowed = request->schedule == SCHEDULE_GPIPE      ? i == 2
                       : request->schedule == SCHEDULE_1F1B     ? i == 0
                       : request->schedule == SCHEDULE_ADAPTIVE ? i == 1
                       : !is_linear                             ? i == 1
                       : request->batching == BATCHING_DYNAPIPE ? i < 2
                                                                : i == 0;
        if (allowed) {
            out[num++] =
                (PipeVariant){.name = names[splits][i], .policy = policies[i], .split_backward = splits};
        }
    }
    return num;
}

// These microbatches on these replicas, each under the schedule that suits it best.
static Status make_draft(Draft* out, const PlanProblem* problem, const MicrobatchList* list,
                         const ReplicaMbs* replicas, bool recompute_all, Arena* arena, Arena scratch[2]) {
    PipeVariant variants[MAX_VARIANTS];
    int32_t num_variants = variants_of(variants, problem->request), *order;
    Draft draft = {.list = *list, .placement = problem->placement};
    ARENA_TRY_NEW(draft.replica, arena, DraftReplica, problem->R);
    ARENA_TRY_NEW(order, arena, int32_t, list->num_mbs);
    for (int32_t i = 0; i < list->num_mbs; i++) { order[i] = i; }
    for (int32_t r = 0; r < problem->R; r++) {
        DraftReplica* replica = &draft.replica[r];
        ReplicaProblem pipe;
        int32_t best;
        replica->mbs = replicas->mbs + replicas->begin[r];
        replica->M = replicas->begin[r + 1] - replicas->begin[r];
        if (recompute_all) {
            ARENA_TRY_NEW(replica->modes, arena, uint8_t, (int64_t)problem->K * replica->M);
            memset(replica->modes, RECOMPUTE_FULL, (size_t)problem->K * (size_t)replica->M);
        }
        arena_reset(&scratch[0]);
        TRY(replica_problem_make(&pipe, problem, list, r, replica->mbs, replica->M, replica->modes,
                                 &scratch[0]));
        TRY(pipe_variants_best(&replica->makespan_ns, &best, &pipe.pipe, order, variants, num_variants,
                               &scratch[1]));
        replica->variant = variants[best];
        if (replica->makespan_ns > draft.makespan_ns) { draft.makespan_ns = replica->makespan_ns; }
    }
    *out = draft;
    return STATUS_OK;
}

// The batching's microbatches, and where memory may bind the same with everything recomputed.
static Status make_drafts(Draft* out, int32_t* num, const PlanProblem* problem, const PlanProblem* batching,
                          Arena* arena, Arena scratch[2]) {
    MicrobatchList list;
    ReplicaMbs replicas;
    bool keeps = false, drops = false;
    TRY(dynapipe_rivals[problem->request->batching].build(&list, batching, arena));
    TRY(balance_replicas(&replicas, &list, problem->R, plan_problem_replica_slow(problem), arena));
    TRY(make_draft(&out[0], problem, &list, &replicas, false, arena, scratch));
    *num = 1;
    for (int32_t i = 0; i < problem->num_modes; i++) {
        keeps |= problem->modes[i] == RECOMPUTE_NONE;
        drops |= problem->modes[i] == RECOMPUTE_FULL;
    }
    if (!keeps || !drops || !problem->has_limit) { return STATUS_OK; }
    TRY(make_draft(&out[1], problem, &list, &replicas, true, arena, scratch));
    *num = 2;
    if (out[1].makespan_ns < out[0].makespan_ns) {
        const Draft kept = out[0];
        out[0] = out[1];
        out[1] = kept;
    }
    return STATUS_OK;
}

Status rival_drafts(Draft out[RIVAL_MAX_DRAFTS], int32_t* num, const PlanProblem* problem,
                    const PlanProblem* batching, Arena* arena) {
    Arena scratch[2] = {{0}};
    if (batching_is_original(problem->request)) {
        Status status = original_draft(out, batching, arena);
        *num = status == STATUS_OK;
        return status;
    }
    Status status = make_drafts(out, num, problem, batching, arena, scratch);
    arena_free(&scratch[0]);
    arena_free(&scratch[1]);
    return status;
}

const BatchingPolicy dynapipe_rivals[BATCHING_COUNT] = {
    [BATCHING_DYNAPIPE] = {"dynapipe",
                           "DynaPipe's own method (EuroSys'24): its dynamic program, orders and schedules",
                           microbatch_build_original, rival_drafts},
    [BATCHING_PACKED] = {"packed", "fixed windows of the longest length; attends across samples",
                         microbatch_packed_build, rival_drafts},
    [BATCHING_PACKED_RAGGED] = {"packed-ragged", "best fit into a fixed token budget, attention per sample",
                                microbatch_packed_ragged_build, rival_drafts},
    [BATCHING_PADDED] = {"padded", "a fixed number of samples, padded to their longest",
                         microbatch_padded_build, rival_drafts},
    [BATCHING_KK] = {"kk", "equal work per microbatch by largest differencing, small ones at both ends",
                     microbatch_kk_build, rival_drafts},
    [BATCHING_TOKENS] = {"tokens", "a fixed token budget, samples sorted by length", microbatch_tokens_build,
                         rival_drafts},
};
