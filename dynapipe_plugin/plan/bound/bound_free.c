// bound_free.c -- see bound_free.h.
#include "bound_free.h"

#include <math.h>

#include "../types/mb_shape.h"
#include "bound_memory.h"

static int32_t num_layers(const BoundLines* lines) {
    return lines->problem->costs->num_enc_layers + lines->problem->costs->num_dec_layers;
}

static int part_of_layer(const BoundLines* lines, int32_t l) {
    return l < lines->problem->costs->num_enc_layers ? PART_ENC_LAYER : PART_DEC_LAYER;
}

// --- one sample ------------------------------------------------------------------------------------------

// Each kind of job of each part in its cheapest mode on the fastest rank.
static CostParts parts_of(const BoundLines* lines, const PlanSample* sample) {
    const MicrobatchProblem* problem = lines->problem;
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

// Over the quickest of all links.
static double transfer_ns(const BoundLines* lines, const CostParts* parts) {
    double least = INFINITY;
    for (int32_t s = 0; s < lines->problem->P; s++) {
        const MachineRank* link = bound_lightest(lines, s);
        int64_t ns = machine_transfer_ns(link, lines->problem->costs, parts->enc_boundary_bytes);
        least = fmin(least, (double)ns);
    }
    return least;
}

double bound_free_chain(const BoundLines* lines, const PlanSample* sample, double head_parts) {
    const CostModel* costs = lines->problem->costs;
    int32_t count[PART_COUNT] = {1, costs->num_enc_layers, costs->num_dec_layers, 1};
    int first_part = part_of_layer(lines, 0);
    CostParts parts = parts_of(lines, sample);
    double time = 0;
    for (int part = 0; part < PART_COUNT; part++) {
        const double* ns = parts.part[part];
        double each = part == PART_HEAD ? 1 / head_parts : 1;
        bool first = part == PART_EMBEDDING || part == first_part;
        bool has_w = lines->joint_backward && (part != PART_HEAD || head_parts == 1);
        time += each * count[part] * (ns[JOB_F] + ns[JOB_B]);
        time += (has_w ? count[part] : first ? 1 : 0) * ns[JOB_W];
    }
    return time;
}

static void chains_make(BoundFree* out, const BoundLines* lines, double head_parts) {
    const CostModel* costs = lines->problem->costs;
    const BoundBatch* batch = lines->batch;
    double bytes = (double)costs->part_param_bytes[PART_EMBEDDING] +
                   (double)costs->part_param_bytes[part_of_layer(lines, 0)];
    double reduce = bytes * cost_reduce_ns_per_byte(costs, lines->problem->R);
    for (int32_t i = 0; i < batch->num_most; i++) {
        const PlanSample* sample = &batch->samples[batch->most[i]];
        CostParts parts = parts_of(lines, sample);
        double time = reduce + bound_free_chain(lines, sample, head_parts) +
                      2 * (lines->problem->P - 1) * transfer_ns(lines, &parts);
        if (time > out->chain_ns) { out->chain_ns = time, out->chain_sample = batch->first[batch->most[i]]; }
    }
}

// --- work ------------------------------------------------------------------------------------------------

// Of the lightest sample: what comes before the i-th stage, and behind its last backward, added up over all
// stages; all forwards, and all backwards, without the head.
typedef struct {
    double arrivals, tails, forward, backward;
} Ramp;

static Ramp ramp_of(const BoundLines* lines, const PlanSample* sample) {
    CostParts parts = parts_of(lines, sample);
    int32_t P = lines->problem->P, L = num_layers(lines);
    double link = transfer_ns(lines, &parts), w = lines->joint_backward ? 1 : 0;
    const double* embedding = parts.part[PART_EMBEDDING];
    Ramp ramp = {.forward = embedding[JOB_F], .backward = embedding[JOB_B] + w * embedding[JOB_W]};
    for (int32_t l = 0; l < L; l++) {
        const double* ns = parts.part[part_of_layer(lines, l)];
        ramp.forward += ns[JOB_F];
        ramp.backward += ns[JOB_B] + w * ns[JOB_W];
        if (l >= P - 1) { continue; }
        ramp.arrivals += ramp.forward + (l + 1) * link;
        ramp.tails += ramp.backward + (l + 1) * link;
    }
    return ramp;
}

static Ramp least_ramp(const BoundLines* lines) {
    const BoundBatch* batch = lines->batch;
    Ramp least = {INFINITY, INFINITY, INFINITY, INFINITY};
    for (int32_t i = 0; i < batch->num_least; i++) {
        Ramp ramp = ramp_of(lines, &batch->samples[batch->least[i]]);
        least.arrivals = fmin(least.arrivals, ramp.arrivals);
        least.tails = fmin(least.tails, ramp.tails);
        least.forward = fmin(least.forward, ramp.forward);
        least.backward = fmin(least.backward, ramp.backward);
    }
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

static void whole_sum(BoundPart* out, const BoundLines* lines, bool shared) {
    const CostModel* costs = lines->problem->costs;
    int32_t count[PART_COUNT] = {1, costs->num_enc_layers, costs->num_dec_layers, 1};
    bound_part_sum(out, lines, count, BOUND_ANY_STAGE, shared);
}

static void work_make(BoundFree* out, const BoundLines* lines, bool head_is_whole) {
    double P = lines->problem->P, R = lines->problem->R;
    bool joint = lines->joint_backward && head_is_whole;  // a share's weight gradient is a job of its own
    BoundPart whole, head;
    Ramp ramp = least_ramp(lines);
    whole_sum(&whole, lines, true);
    BoundLine turn = whole.F;
    bound_line_add(&turn, 1, &whole.B);
    double work = bound_line_total(&whole.work, &lines->extent, 0) / R, reduce = reductions(lines);
    double after = joint ? fmax(ramp.tails, reduce) : reduce;
    double with_tails = bound_line_total(&turn, &lines->extent, 0) / R + ramp.arrivals + ramp.tails;
    out->even_ns = fmax(work + ramp.arrivals + after, with_tails) / P;
    if (!head_is_whole) { return; }
    bound_part_scale(&head, lines, PART_HEAD, BOUND_ANY_STAGE, true);
    BoundLine head_turn = head.F;
    bound_line_add(&head_turn, 1, joint ? &head.BW : &head.B);
    out->head_ns = ramp.forward + ramp.backward + bound_line_total(&head_turn, &lines->extent, 0) / R;
}

// --- memory ----------------------------------------------------------------------------------------------

enum { MOST_ENDS = 5, MOST_PIECES = 2 * MOST_ENDS };

// The layers [begin, end) of one kind as pieces at the ends of intervals of equal length; layer l is followed
// by those behind it and the head.
static int32_t pieces_of_stack(BoundPiece* out, const BoundLines* lines, int32_t begin, int32_t end,
                               double head_parts) {
    const CostModel* costs = lines->problem->costs;
    int32_t num = end - begin, ends = num < MOST_ENDS ? num : MOST_ENDS;
    if (num <= 0) { return 0; }
    for (int32_t i = 0; i < ends; i++) {
        BoundPiece* piece = &out[i];
        BoundPart head;
        int32_t l = ends == 1 ? begin : begin + (int32_t)((int64_t)(num - 1) * i / (ends - 1));
        int32_t count[PART_COUNT] = {0};
        *piece = (BoundPiece){.weight = 0};
        bound_part_scale(&piece->own, lines, part_of_layer(lines, l), BOUND_ANY_STAGE, false);
        bound_part_scale(&head, lines, PART_HEAD, BOUND_ANY_STAGE, false);
        count[PART_ENC_LAYER] = l < costs->num_enc_layers ? costs->num_enc_layers - l - 1 : 0;
        count[PART_DEC_LAYER] = num_layers(lines) - l - 1 - count[PART_ENC_LAYER];
        BoundPart behind;
        bound_part_sum(&behind, lines, count, BOUND_ANY_STAGE, false);
        piece->away = behind.turn;
        if (head_parts == 1) {
            bound_line_add(&piece->away, 1, &head.turn);
        } else {
            bound_line_add(&piece->away, 1 / head_parts, &head.F);
            bound_line_add(&piece->away, 1 / head_parts, &head.B);
        }
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

// Model state of all stages together: one copy of everything at least.
static double state_bytes(const BoundLines* lines) {
    const CostModel* costs = lines->problem->costs;
    CostStage whole = {.layers = {0, num_layers(lines)}, .has_embedding = true, .has_head = true};
    int32_t count[PIECE_COUNT];
    double sum = -(double)costs->tied_head_state_bytes;
    cost_stage_parts(count, costs, &whole);
    for (int part = 0; part < PART_COUNT; part++) {
        sum += count[part] * (double)costs->part_state_bytes[part];
    }
    return sum;
}

static Status memory_make(BoundFree* out, const BoundLines* lines, double head_parts, Arena* scratch) {
    const MicrobatchProblem* problem = lines->problem;
    BoundPiece pieces[MOST_PIECES];
    BoundPart one;
    double all_bytes = 0;
    for (int32_t s = 0; s < problem->P; s++) {
        if (problem->most_limit_bytes[s] == 0) { return STATUS_OK; }
        all_bytes += (double)problem->most_limit_bytes[s];
    }
    int32_t num_enc = problem->costs->num_enc_layers;
    BoundStage all = {.pieces = pieces, .free_bytes = (all_bytes - state_bytes(lines)) / problem->P};
    all.num_pieces = pieces_of_stack(pieces, lines, 0, num_enc, head_parts);
    all.num_pieces += pieces_of_stack(pieces + all.num_pieces, lines, num_enc, num_layers(lines), head_parts);
    bound_part_scale(&one, lines, PART_EMBEDDING, BOUND_ANY_STAGE, false);
    bound_line_add(&all.more_work, 1, &one.work);
    bound_part_scale(&one, lines, PART_HEAD, BOUND_ANY_STAGE, false);
    bound_line_add(&all.more_work, 1, &one.work);
    double time_ns, enough_ns = fmax(out->even_ns, fmax(out->head_ns, out->chain_ns));
    TRY(bound_memory_stage(&time_ns, lines, &all, enough_ns * problem->P, scratch));
    if (time_ns / problem->P > enough_ns) { out->memory_ns = time_ns / problem->P; }
    return STATUS_OK;
}

Status bound_free_make(BoundFree* out, const BoundLines* lines, Arena* scratch) {
    const PlanRequest* request = lines->problem->request;
    bool is_given = request->heads == HEAD_CHOICE_GIVEN;
    bool head_is_whole = request->heads == HEAD_CHOICE_WHOLE ||
                         (is_given && request->placement.head == HEAD_WHOLE) || lines->problem->P == 1;
    double head_parts = head_is_whole ? 1 : lines->problem->P;
    *out = (BoundFree){.even_ns = 0};
    chains_make(out, lines, head_parts);
    work_make(out, lines, head_is_whole);
    return memory_make(out, lines, head_parts, scratch);
}
