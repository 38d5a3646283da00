// bound_free.c -- see bound_free.h.
#include "bound_free.h"

#include <math.h>

#include "../types/mb_shape.h"
#include "bound_memory.h"
#include "bound_split.h"

static int32_t num_layers(const BoundLines* lines) {
    return lines->problem->costs->num_enc_layers + lines->problem->costs->num_dec_layers;
}

static int part_of_layer(const BoundLines* lines, int32_t l) {
    return l < lines->problem->costs->num_enc_layers ? PART_ENC_LAYER : PART_DEC_LAYER;
}

// The largest share is at least one in so many.
static double head_parts_of(const BoundLines* lines) {
    return lines->head_is_whole ? 1 : lines->problem->P;
}

// --- one sample ------------------------------------------------------------------------------------------

// Each kind of job of each part in its cheapest mode on the fastest rank.
static CostParts parts_of(const BoundLines* lines, const PlanSample* sample) {
    const PlanProblem* problem = lines->problem;
    MbShape shape = {0};
    CostParts least, one;
    mb_shape_add(&shape, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
    cost_parts(&least, &problem->table, problem->modes[0], &shape);
    for (int k = 1; k < problem->num_modes; k++) {
        cost_parts(&one, &problem->table, problem->modes[k], &shape);
        for (int part = 0; part < PART_COUNT; part++) {
            for (int kind = 0; kind < JOB_COUNT; kind++) {
                least.part[part][kind] = fmin(least.part[part][kind], one.part[part][kind]);
            }
        }
    }
    for (int part = 0; part < PART_COUNT && problem->differs; part++) {
        for (int kind = 0; kind < JOB_COUNT; kind++) { least.part[part][kind] *= lines->all.least[kind]; }
    }
    return least;
}

// F and gradient of inputs of the head on the fastest rank, whole or (all shares together) shared.
static double head_turn_ns(const BoundLines* lines, const PlanSample* sample, const CostParts* least,
                           double head_parts) {
    const double* whole = least->part[PART_HEAD];
    MbShape shape = {0};
    CostParts alone;
    if (lines->head_is_whole) { return whole[JOB_F] + whole[JOB_B]; }
    mb_shape_add(&shape, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
    cost_parts(&alone, &lines->problem->table, RECOMPUTE_NONE, &shape);
    const double* ns = alone.part[PART_HEAD];
    double slow = lines->problem->differs ? lines->all.least[JOB_F] : 1;
    return fmin(whole[JOB_F] + whole[JOB_B], slow * (ns[JOB_F] + ns[JOB_B])) / head_parts;
}

// Over the quickest of all links.
static double transfer_ns(const BoundLines* lines, const CostParts* parts) {
    double least = INFINITY;
    for (int32_t s = 0; s < lines->problem->P - 1; s++) {
        const MachineRank* link = bound_lightest(lines, s);
        int64_t ns = machine_transfer_ns(link, lines->problem->costs, parts->enc_boundary_bytes);
        least = fmin(least, (double)ns);
    }
    return least < INFINITY ? least : 0;
}

double bound_free_chain(const BoundLines* lines, const PlanSample* sample) {
    const CostModel* costs = lines->problem->costs;
    int32_t count[PART_COUNT] = {1, costs->num_enc_layers, costs->num_dec_layers, 1};
    int first_part = part_of_layer(lines, 0);
    double head_parts = head_parts_of(lines);
    CostParts parts = parts_of(lines, sample);
    double time = 0;
    for (int part = 0; part < PART_COUNT; part++) {
        const double* ns = parts.part[part];
        bool first = part == PART_EMBEDDING || part == first_part;
        bool has_w = lines->joint_backward && (part != PART_HEAD || lines->head_is_whole);
        time += part == PART_HEAD ? head_turn_ns(lines, sample, &parts, head_parts)
                                  : count[part] * (ns[JOB_F] + ns[JOB_B]);
        time += (has_w ? count[part] : first ? 1 : 0) * ns[JOB_W];
    }
    return time;
}

static void chains_make(BoundFree* out, const BoundLines* lines) {
    const CostModel* costs = lines->problem->costs;
    const BoundBatch* batch = lines->batch;
    double bytes = (double)costs->part_param_bytes[PART_EMBEDDING] +
                   (double)costs->part_param_bytes[part_of_layer(lines, 0)];
    double reduce = bytes * cost_reduce_ns_per_byte(costs, lines->problem->R);
    for (int32_t i = 0; i < batch->num_most; i++) {
        const PlanSample* sample = &batch->samples[batch->most[i]];
        CostParts parts = parts_of(lines, sample);
        double time = reduce + bound_free_chain(lines, sample) +
                      2 * (lines->problem->P - 1) * transfer_ns(lines, &parts);
        if (time > out->chain_ns) { out->chain_ns = time, out->chain_sample = batch->first[batch->most[i]]; }
    }
}

// --- work ------------------------------------------------------------------------------------------------

// Of the lightest sample: what comes before the i-th stage, and behind its last backward; all forwards, and
// all backwards, without the head.
typedef struct {
    double arrival[PLAN_MAX_STAGES], tail[PLAN_MAX_STAGES];
    double forward, backward;
} Ramp;

static void ramp_lower(Ramp* out, const BoundLines* lines, const PlanSample* sample) {
    CostParts parts = parts_of(lines, sample);
    int32_t P = lines->problem->P, L = num_layers(lines);
    double link = transfer_ns(lines, &parts), w = lines->joint_backward ? 1 : 0;
    const double* embedding = parts.part[PART_EMBEDDING];
    double forward = embedding[JOB_F], backward = embedding[JOB_B] + w * embedding[JOB_W];
    for (int32_t l = 0; l < L; l++) {
        const double* ns = parts.part[part_of_layer(lines, l)];
        forward += ns[JOB_F];
        backward += ns[JOB_B] + w * ns[JOB_W];
        if (l + 1 >= P) { continue; }
        out->arrival[l + 1] = fmin(out->arrival[l + 1], forward + (l + 1) * link);
        out->tail[l + 1] = fmin(out->tail[l + 1], backward + (l + 1) * link);
    }
    out->forward = fmin(out->forward, forward);
    out->backward = fmin(out->backward, backward);
}

// Each stage may begin, and end, with another sample: minima one by one.
static Ramp least_ramp(const BoundLines* lines) {
    const BoundBatch* batch = lines->batch;
    int32_t P = lines->problem->P;
    Ramp least = {.forward = INFINITY, .backward = INFINITY};
    for (int32_t i = 1; i < P; i++) { least.arrival[i] = least.tail[i] = INFINITY; }
    for (int32_t i = 0; i < batch->num_least; i++) {
        ramp_lower(&least, lines, &batch->samples[batch->least[i]]);
    }
    for (int32_t i = num_layers(lines) + 1; i < P; i++) { least.arrival[i] = least.tail[i] = 0; }
    return least;
}

// All parameters are reduced on some stage, a tied head's perhaps with the embedding.
static double reductions(const BoundLines* lines) {
    const CostModel* costs = lines->problem->costs;
    double bytes = (double)costs->part_param_bytes[PART_EMBEDDING];
    for (int32_t l = 0; l < num_layers(lines); l++) {
        bytes += (double)costs->part_param_bytes[part_of_layer(lines, l)];
    }
    return bytes * cost_reduce_ns_per_byte(costs, lines->problem->R);
}

static BoundLine line_least(const BoundLine* a, const BoundLine* b) {
    BoundLine least = {.constant = fmin(a->constant, b->constant)};
    for (int f = 0; f < FEATURE_COUNT; f++) { least.rate[f] = fmin(a->rate[f], b->rate[f]); }
    return least;
}

BoundWhole bound_whole_make(const BoundLines* lines, bool shared) {
    const CostModel* costs = lines->problem->costs;
    int32_t count[PART_COUNT] = {1, costs->num_enc_layers, costs->num_dec_layers, 0};
    BoundPart chain, head, share;
    bound_part_sum(&chain, lines, count, BOUND_ANY_STAGE, shared);
    bound_part_scale(&head, lines, PART_HEAD, BOUND_ANY_STAGE, shared);
    bound_part_share(&share, lines, 1, BOUND_ANY_STAGE, shared);
    BoundWhole whole = {chain.work, chain.F, head.work, head.F};
    bound_line_add(&whole.turn, 1, &chain.B);
    bound_line_add(&whole.head_turn, 1, &head.B);
    if (!lines->head_is_whole) {
        whole.head_work = line_least(&whole.head_work, &share.work);
        whole.head_turn = line_least(&whole.head_turn, &share.F);
    }
    bound_line_add(&whole.work, 1, &whole.head_work);
    bound_line_add(&whole.turn, 1, &whole.head_turn);
    return whole;
}

static void work_make(BoundFree* out, const BoundLines* lines) {
    double P = lines->problem->P;
    bool joint =
        lines->joint_backward && lines->head_is_whole;  // a share's weight gradient is a job of its own
    Ramp ramp = least_ramp(lines);
    double arrivals = 0, tails = 0;
    for (int32_t i = 0; i < lines->problem->P; i++) { arrivals += ramp.arrival[i], tails += ramp.tail[i]; }
    BoundWhole whole = bound_whole_make(lines, true);
    double work = bound_share(lines, &whole.work), reduce = reductions(lines);
    double after = joint ? fmax(tails, reduce) : reduce;
    double with_tails = bound_share(lines, &whole.turn) + arrivals + tails;
    out->even_ns = fmax(work + arrivals + after, with_tails) / P;
    if (!lines->head_is_whole) { return; }
    out->head_ns = ramp.forward + ramp.backward + bound_share(lines, &whole.head_turn);
}

// --- memory ----------------------------------------------------------------------------------------------

enum { MOST_ENDS = 5, MOST_PIECES = 2 * MOST_ENDS };

// The layers [begin, end) of one kind as pieces at the ends of intervals of equal length; layer l is followed
// by those behind it and the head.
static int32_t pieces_of_stack(BoundPiece* out, const BoundLines* lines, int32_t begin, int32_t end,
                               const BoundLine* head_turn) {
    const CostModel* costs = lines->problem->costs;
    int32_t num = end - begin, ends = num < MOST_ENDS ? num : MOST_ENDS;
    if (num <= 0) { return 0; }
    for (int32_t i = 0; i < ends; i++) {
        BoundPiece* piece = &out[i];
        int32_t l = ends == 1 ? begin : begin + (int32_t)((int64_t)(num - 1) * i / (ends - 1));
        int32_t count[PART_COUNT] = {0};
        *piece = (BoundPiece){.weight = 0};
        bound_part_scale(&piece->own, lines, part_of_layer(lines, l), BOUND_ANY_STAGE, false);
        count[PART_ENC_LAYER] = l < costs->num_enc_layers ? costs->num_enc_layers - l - 1 : 0;
        count[PART_DEC_LAYER] = num_layers(lines) - l - 1 - count[PART_ENC_LAYER];
        BoundPart behind;
        bound_part_sum(&behind, lines, count, BOUND_ANY_STAGE, false);
        piece->away = behind.turn;
        bound_line_add(&piece->away, 1, head_turn);
    }
    // Layers strictly between two ends lie on the chord; each end counts itself.
    for (int32_t i = 0; i < ends; i++) {
        int32_t here = ends == 1 ? 0 : (int32_t)((int64_t)(num - 1) * i / (ends - 1));
        int32_t next = i + 1 < ends ? (int32_t)((int64_t)(num - 1) * (i + 1) / (ends - 1)) : here;
        out[i].weight += 1;
        if (i + 1 == ends) { continue; }
        out[i].weight += (next - here - 1) / 2.0;
        out[i + 1].weight += (next - here - 1) / 2.0;
    }
    return ends;
}

// Model state of all stages together: one copy at least, of the head only what is whole and not tied.
static double state_bytes(const BoundLines* lines) {
    const CostModel* costs = lines->problem->costs;
    double sum = (double)costs->part_state_bytes[PART_EMBEDDING];
    for (int32_t l = 0; l < num_layers(lines); l++) {
        sum += (double)costs->part_state_bytes[part_of_layer(lines, l)];
    }
    if (!lines->head_is_whole) { return sum; }
    return sum + (double)costs->part_state_bytes[PART_HEAD] - (double)costs->tied_head_state_bytes;
}

static Status memory_make(BoundFree* out, const BoundLines* lines, Arena* scratch) {
    const PlanProblem* problem = lines->problem;
    BoundPiece pieces[MOST_PIECES];
    BoundPart one;
    double all_bytes = 0, head_parts = head_parts_of(lines);
    for (int32_t s = 0; s < problem->P; s++) {
        if (problem->most_limit_bytes[s] == 0) { return STATUS_OK; }
        all_bytes += (double)problem->most_limit_bytes[s];
    }
    int32_t num_enc = problem->costs->num_enc_layers;
    BoundStage all = {.pieces = pieces, .free_bytes = (all_bytes - state_bytes(lines)) / problem->P};
    BoundWhole whole = bound_whole_make(lines, false);
    BoundLine head_turn = {0};
    bound_line_add(&head_turn, 1 / head_parts, &whole.head_turn);
    all.num_pieces = pieces_of_stack(pieces, lines, 0, num_enc, &head_turn);
    all.num_pieces += pieces_of_stack(pieces + all.num_pieces, lines, num_enc, num_layers(lines), &head_turn);
    bound_part_scale(&one, lines, PART_EMBEDDING, BOUND_ANY_STAGE, false);
    bound_line_add(&all.more_work, 1, &one.work);
    bound_line_add(&all.more_work, 1, &whole.head_work);
    double time_ns, enough_ns = fmax(out->even_ns, fmax(out->head_ns, out->chain_ns));
    TRY(bound_memory_stage(&time_ns, lines, &all, enough_ns * problem->P, scratch));
    if (time_ns / problem->P > enough_ns) { out->memory_ns = time_ns / problem->P; }
    return STATUS_OK;
}

Status bound_free_make(BoundFree* out, const BoundLines* lines, Arena* scratch) {
    *out = (BoundFree){.even_ns = 0};
    chains_make(out, lines);
    work_make(out, lines);
    return memory_make(out, lines, scratch);
}
