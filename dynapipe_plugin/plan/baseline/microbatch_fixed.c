/*
microbatch_fixed.c -- the baselines that people use today, none of which looks at the pipeline.

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
#include <stdlib.h>
#include <string.h>

#include "../problem/sample_order.h"
#include "../problem/shape_rules.h"
#include "../types/mb_shape.h"
#include "batching_policies.h"

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

Status microbatch_packed_build(MicrobatchList* out, const PlanProblem* problem, const MicrobatchTaper* taper,
                               Arena* arena) {
    (void)taper;
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

// The pack that was taken if its sequences and the sample are not too much for the kernels; else -1,
// and the pack stays where it was.
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

Status microbatch_packed_ragged_build(MicrobatchList* out, const PlanProblem* problem,
                                      const MicrobatchTaper* taper, Arena* arena) {
    (void)taper;
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

Status microbatch_padded_build(MicrobatchList* out, const PlanProblem* problem, const MicrobatchTaper* taper,
                               Arena* arena) {
    (void)taper;
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

Status microbatch_tokens_build(MicrobatchList* out, const PlanProblem* problem, const MicrobatchTaper* taper,
                               Arena* arena) {
    (void)taper;
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
