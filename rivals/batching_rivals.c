/*
batching_rivals.c -- how trainers make batches today, without a look at the pipeline; the table of rivals.

    packed         next-fit, in the order the samples came, into windows of max_seq_tokens (of the decoder's
side max_target_tokens; both must fit); each window is padded to that length, the decoder's to the longest of
its micro-batch, and attends across its samples; as many windows per micro-batch as mb_tokens hold
    packed-ragged  best fit decreasing into packs of mb_tokens, one pack per micro-batch, attention per sample
    padded         mb_samples samples in the order they came, padded to their longest
    tokens         sorted by length, a new micro-batch where the budget of mb_tokens would be exceeded
(computed tokens: padding counts in layout padded)

Where kernels take sequences, tokens or squared lengths up to a limit (ShapeRules), a micro-batch ends before
it would exceed it.

The first recompute mode in which every micro-batch keeps to its share of memory is taken, else the first in
which each fits alone.
*/
#include "rivals.h"

#include <stdlib.h>
#include <string.h>
#include "balance.h"
#include "../dynapipe_plugin/plan/schedule.h"
#include "../dynapipe_plugin/plan/simulate.h"
#include "../dynapipe_plugin/plan/problem.h"
#include "../dynapipe_plugin/plan/types.h"

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

Status microbatch_list_choose_mode(MicrobatchList* list, const PlanProblem* problem, const char* unit) {
    for (int attempt = 0; attempt < 2 * problem->num_modes; attempt++) {
        RecomputeMode mode = problem->modes[attempt % problem->num_modes];
        bool all = true;
        for (int32_t m = 0; m < list->num_mbs && all; m++) {
            Microbatch* mb = &list->mbs[m];
            MicrobatchCost cost = microbatch_cost(problem, mode, SHARE_PIPELINE, &mb->shape);
            all = attempt < problem->num_modes ? cost.fits_held : cost.fits_alone;
            mb->mode = mode;
            mb->work_ns = cost.work_ns;
        }
        if (all) { return STATUS_OK; }
    }
    for (int32_t m = 0; m < list->num_mbs; m++) {
        const Microbatch* mb = &list->mbs[m];
        bool fits = false;
        for (int k = 0; k < problem->num_modes; k++) {
            fits |= microbatch_cost(problem, problem->modes[k], SHARE_ALONE, &mb->shape).fits_alone;
        }
        if (fits) { continue; }
        char what[128];
        int32_t num_segments = 0, first = list->sequences[mb->sequence_begin].segment_begin;
        for (int32_t q = mb->sequence_begin; q < mb->sequence_end; q++) {
            num_segments += list->sequences[q].segment_end - list->sequences[q].segment_begin;
        }
        snprintf(what, sizeof what, "%s %d, of %d samples from sample %d on,", unit, m, num_segments,
                 list->segments[first].sample_idx);
        return microbatch_infeasible(problem, &mb->shape, what);
    }
    return FAIL(STATUS_INFEASIBLE, "%s: no recompute mode serves all of them ---> raise --memory-limit",
                unit);
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
    *order = ARENA_NEW(arena, int32_t, problem->num_samples);
    if (!*order) { return FAIL(STATUS_NO_MEMORY, "order of %d samples", problem->num_samples); }
    for (int32_t i = 0; i < problem->num_samples; i++) { (*order)[i] = i; }
    return microbatch_list_reserve(out, problem->num_samples, problem->num_samples, arena);
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
    return microbatch_list_choose_mode(out, problem, "--batching packed: micro-batch");
}

// --- packed-ragged ----------------------------------------------------------------------------------------

// Packs by how much room they have left: a bucket of packs per number of tokens, and a tree over the buckets
// that finds the smallest room that is enough in O(log budget).
typedef struct {
    int64_t leaves;  // power of two > budget
    int32_t* head;   // [leaves] a pack with this much room, -1: none
    int32_t* next;   // [packs] others with as much room
    bool* any;       // [2 * leaves] is there a pack below this node?
} Rooms;

static void rooms_mark(Rooms* rooms, int64_t room) {
    int64_t node = rooms->leaves + room;
    rooms->any[node] = rooms->head[room] >= 0;
    for (node /= 2; node >= 1; node /= 2) {
        rooms->any[node] = rooms->any[2 * node] || rooms->any[2 * node + 1];
    }
}

static void rooms_put(Rooms* rooms, int64_t room, int32_t pack) {
    rooms->next[pack] = rooms->head[room];
    rooms->head[room] = pack;
    rooms_mark(rooms, room);
}

// Takes out a pack with the least room >= `needed`; -1: none. Its room is left in *room.
static int32_t rooms_take(Rooms* rooms, int64_t needed, int64_t* room) {
    int64_t node = rooms->leaves + needed;
    while (node > 1 && !rooms->any[node]) {
        while (node > 1 && (node & 1)) { node /= 2; }  // up, until there is a right sibling
        if (node == 1) { return -1; }
        node++;
    }
    if (node <= 1) { return -1; }
    while (node < rooms->leaves) { node = rooms->any[2 * node] ? 2 * node : 2 * node + 1; }
    *room = node - rooms->leaves;
    int32_t pack = rooms->head[*room];
    rooms->head[*room] = rooms->next[pack];
    rooms_mark(rooms, *room);
    return pack;
}

static bool takes_another(const PlanProblem* problem, const MbShape* pack) {
    MbShape grown = *pack;
    mb_shape_add(&grown, 1, 0, 0);
    return kernels_take(problem, &grown);
}

// The pack that was taken, if with the sample it stays within the kernels' limits; else -1, and the pack
// stays where it was.
static int32_t pack_with(Rooms* rooms, int32_t pack, int64_t room, const MbShape* shape,
                         const PlanProblem* problem, const PlanSample* sample) {
    MbShape grown = *shape;
    mb_shape_add(&grown, sample->enc_tokens, sample->dec_tokens, 0);
    if (kernels_take(problem, &grown)) { return pack; }
    rooms_put(rooms, room, pack);
    return -1;
}

static Status rooms_make(Rooms* out, int64_t budget, int32_t num_packs, Arena* arena) {
    out->leaves = 1;
    while (out->leaves <= budget) { out->leaves *= 2; }
    out->head = ARENA_NEW(arena, int32_t, out->leaves);
    out->next = ARENA_NEW(arena, int32_t, num_packs);
    out->any = ARENA_NEW(arena, bool, 2 * out->leaves);
    if (!out->head || !out->next || !out->any) {
        return FAIL(STATUS_NO_MEMORY, "packs of %lld", (long long)budget);
    }
    for (int64_t i = 0; i < out->leaves; i++) { out->head[i] = -1; }
    return STATUS_OK;
}

Status microbatch_packed_ragged_build(MicrobatchList* out, const PlanProblem* problem, Arena* arena) {
    int32_t *order, num_packs = 0, N = problem->num_samples;
    TRY(reserve(out, problem, &order, arena));
    TRY(sample_order_sorted(order, problem->samples, N, arena));
    int64_t budget = budget_tokens(problem), total = 0;
    for (int32_t i = 0; i < N; i++) { total += tokens_of(&problem->samples[i]); }
    budget = budget < total ? budget : total;  // a larger one changes nothing, and costs memory here
    Rooms rooms = {0};
    TRY(rooms_make(&rooms, budget, N, arena));
    int32_t *pack_of = ARENA_NEW(arena, int32_t, N), *ids = ARENA_NEW(arena, int32_t, N);
    int32_t* begin = ARENA_NEW(arena, int32_t, N + 2);
    MbShape* shapes = ARENA_NEW(arena, MbShape, N);
    if (!pack_of || !ids || !begin || !shapes) { return FAIL(STATUS_NO_MEMORY, "packs of %d samples", N); }
    for (int32_t k = 0; k < N; k++) {
        const PlanSample* sample = &problem->samples[order[k]];
        int64_t room = 0, tokens = tokens_of(sample);
        int32_t pack = tokens <= budget ? rooms_take(&rooms, tokens, &room) : -1;
        if (pack >= 0) { pack = pack_with(&rooms, pack, room, &shapes[pack], problem, sample); }
        if (pack < 0) { pack = num_packs++, room = tokens <= budget ? budget : tokens; }
        mb_shape_add(&shapes[pack], sample->enc_tokens, sample->dec_tokens, 0);
        if (takes_another(problem, &shapes[pack])) { rooms_put(&rooms, room - tokens, pack); }
        pack_of[k] = pack;
        begin[pack + 2]++;
    }
    for (int32_t p = 0; p < num_packs; p++) { begin[p + 2] += begin[p + 1]; }
    for (int32_t k = 0; k < N; k++) { ids[begin[pack_of[k] + 1]++] = order[k]; }
    for (int32_t p = 0; p < num_packs; p++) {
        microbatch_list_append(out, problem, LAYOUT_RAGGED, problem->modes[0], ids + begin[p],
                               begin[p + 1] - begin[p]);
    }
    return microbatch_list_choose_mode(out, problem, "--batching packed-ragged: micro-batch");
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
    if (num <= 0) {  // so many that an average micro-batch has the budget
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
    return microbatch_list_choose_mode(out, problem, "--batching padded: micro-batch");
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
    return microbatch_list_choose_mode(out, problem, "--batching tokens: micro-batch");
}

// --- kk ----------------------------------------------------------------------------------------------------
//
// Equal work in every micro-batch: what trainers with balanced ragged batches do today.
//
// Samples are spread over the fewest micro-batches of mb_tokens tokens on average (a multiple of the
// replicas) by largest differencing on what each sample takes, attention included; more micro-batches where
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

Status microbatch_kk_build(MicrobatchList* out, const PlanProblem* problem, Arena* arena) {
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

// --- drafts ------------------------------------------------------------------------------------------------

Status pipe_variants_best(PipeVariantBest* out, const PipeProblem* pipe, const int32_t* order,
                          const PipeVariant* variants, int32_t num_variants, Arena* scratch) {
    PipeVariantBest best = {.makespan_ns = INT64_MAX};
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
        if (fits && timeline.makespan_ns < best.makespan_ns) {
            best = (PipeVariantBest){timeline.makespan_ns, i};
        }
    }
    *out = best;
    return STATUS_OK;
}

int32_t rival_variants(PipeVariant out[RIVAL_MAX_VARIANTS], const PlanRequest* request) {
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

// These micro-batches on these replicas, each under the schedule that suits it best.
static Status make_draft(Draft* out, const PlanProblem* problem, const MicrobatchList* list,
                         const ReplicaMbs* replicas, bool recompute_all, Arena* arena, Arena scratch[2]) {
    PipeVariant variants[RIVAL_MAX_VARIANTS];
    int32_t num_variants = rival_variants(variants, problem->request), *order;
    Draft draft = {.list = *list, .placement = problem->placement};
    ARENA_TRY_NEW(draft.replica, arena, DraftReplica, problem->R);
    ARENA_TRY_NEW(order, arena, int32_t, list->num_mbs);
    for (int32_t i = 0; i < list->num_mbs; i++) { order[i] = i; }
    for (int32_t r = 0; r < problem->R; r++) {
        DraftReplica* replica = &draft.replica[r];
        ReplicaProblem pipe;
        PipeVariantBest best;
        replica->mbs = replicas->mbs + replicas->begin[r];
        replica->M = replicas->begin[r + 1] - replicas->begin[r];
        if (recompute_all) {
            ARENA_TRY_NEW(replica->modes, arena, uint8_t, (int64_t)problem->K * replica->M);
            memset(replica->modes, RECOMPUTE_FULL, (size_t)problem->K * (size_t)replica->M);
        }
        arena_reset(&scratch[0]);
        TRY(replica_problem_make(&pipe, problem, list, r, replica->mbs, replica->M, replica->modes,
                                 &scratch[0]));
        TRY(pipe_variants_best(&best, &pipe.pipe, order, variants, num_variants, &scratch[1]));
        replica->variant = variants[best.variant];
        replica->makespan_ns = best.makespan_ns;
        if (best.makespan_ns > draft.makespan_ns) { draft.makespan_ns = best.makespan_ns; }
    }
    *out = draft;
    return STATUS_OK;
}

// The batching's micro-batches, and where memory may bind the same with everything recomputed.
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
                    const PlanProblem* batching, int32_t effort, Arena* arena) {
    Arena scratch[2] = {{0}};
    (void)effort;
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
                           microbatch_dp_build_original, rival_drafts},
    [BATCHING_PACKED] = {"packed", "fixed windows of the longest length; attends across samples",
                         microbatch_packed_build, rival_drafts},
    [BATCHING_PACKED_RAGGED] = {"packed-ragged", "best fit into a fixed token budget, attention per sample",
                                microbatch_packed_ragged_build, rival_drafts},
    [BATCHING_PADDED] = {"padded", "a fixed number of samples, padded to their longest",
                         microbatch_padded_build, rival_drafts},
    [BATCHING_KK] = {"kk", "equal work per micro-batch by largest differencing, small ones at both ends",
                     microbatch_kk_build, rival_drafts},
    [BATCHING_TOKENS] = {"tokens", "a fixed token budget, samples sorted by length", microbatch_tokens_build,
                         rival_drafts},
};
