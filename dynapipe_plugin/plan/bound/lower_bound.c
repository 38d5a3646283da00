// lower_bound.c -- see lower_bound.h.
#include "lower_bound.h"

#include <math.h>
#include <string.h>

#include "../types/mb_shape.h"
#include "bound_chain.h"
#include "bound_free.h"
#include "bound_memory.h"
#include "bound_split.h"

typedef struct {
    Arena arena, scratch;
    BoundPiece* pieces;  // [MOST_PIECES]
} Work;

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

// Rounding: a job may be half a nanosecond shorter than its formula, and a stage has at most 4 jobs of every
// sample in each of its pieces; a chain passes 2 of each piece of the model more. The additions here err by
// less than one part in 10^12.
static int64_t floor_ns(double time_ns, const BoundLines* lines) {
    const PlanProblem* problem = lines->problem;
    double P = problem->P, K = problem->num_rows;
    double of_stage = placement_is_linear(&problem->placement, problem->P) ? 1 : K;
    if (lines->freedom == BOUND_ANY_PLACEMENT) {  // a chunk of every layer, the head's, and shares of it
        K = problem->costs->num_enc_layers + problem->costs->num_dec_layers + 1 + P;
        of_stage = K / P;
    }
    double slack_ns = 2.0 * problem->num_samples * of_stage + 4.0 * K;
    if (problem->differs) { slack_ns *= 1 + lines->most_slow; }  // rounded, scaled, rounded
    double safe = time_ns * (1 - 1e-12) - slack_ns;
    return safe <= 0 ? 0 : safe < (double)COST_LIMIT ? (int64_t)safe : COST_LIMIT;
}

// --- one sample on whatever stages -----------------------------------------------------------------------

static void any_split_chains(LowerBound* out, const BoundLines* lines) {
    const PlanProblem* problem = lines->problem;
    const BoundBatch* batch = lines->batch;
    // of the first stage without its layers but one: what it shares with other stages depends on these
    const CostModel* costs = problem->costs;
    CostStage bare = {.has_embedding = true, .has_head = problem->P == 1};
    int first_part = costs->num_enc_layers > 0 ? PART_ENC_LAYER : PART_DEC_LAYER;
    double reduce = fmax((double)cost_reduce_ns(costs, &bare, problem->R) - 1, 0) +
                    (double)costs->part_param_bytes[first_part] * cost_reduce_ns_per_byte(costs, problem->R);
    double longest = 0;
    for (int32_t i = 0; i < batch->num_most; i++) {
        const PlanSample* sample = &batch->samples[batch->most[i]];
        MbShape shape = {0};
        CostParts parts;
        mb_shape_add(&shape, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
        cost_parts(&parts, &problem->table, problem->modes[0], &shape);
        double time = reduce + bound_free_chain(lines, sample);
        for (int32_t s = 0; s < problem->P - 1; s++) {
            const MachineRank* link = bound_lightest(lines, s);
            time += 2.0 * (double)machine_transfer_ns(link, costs, parts.enc_boundary_bytes);
        }
        if (time > longest) { longest = time, out->chain_sample = batch->first[batch->most[i]]; }
    }
    out->chain_ns = floor_ns(longest, lines);
}

// --- shares of the work ----------------------------------------------------------------------------------

// Of any k R + 1 samples, some replica has k + 1: at least the k + 1 smallest of the k R + 1 largest. k = 0:
// the largest. With one replica there is nothing to divide.
static double indivisible_share(const BoundLines* lines, const BoundLine* line) {
    enum { MOST = 256 };
    double top[MOST], most = 0;  // descending
    int32_t num = 0, R = lines->problem->R;
    const BoundBatch* batch = lines->batch;
    if (R == 1) { return 0; }
    for (int32_t i = batch->num - 1; i >= 0; i--) {
        double work = bound_line_sample(line, &batch->samples[i]) - line->constant;
        for (int32_t n = 0; n < batch->count[i]; n++) {
            if (num == MOST && work <= top[MOST - 1]) { break; }
            int32_t at = num < MOST ? num++ : MOST - 1;
            for (; at > 0 && top[at - 1] < work; at--) { top[at] = top[at - 1]; }
            top[at] = work;
        }
    }
    for (int32_t k = 0; k * R < num; k++) {
        double sum = line->constant;
        for (int32_t i = k * R; i >= k * R - k; i--) { sum += top[i]; }
        most = fmax(most, sum);
    }
    return most;
}

// --- the parts -------------------------------------------------------------------------------------------

// All chunks of a stage: each from its forward to its backward. Most chunks of a stage that are looked at.
enum { MOST_PIECES = 64 };

// Time of the stage's memory (bound_memory.h), no less than work_ns.
static Status memory_of_stage(double* time_ns, const BoundLines* lines, int32_t s, double work_ns,
                              Work* work) {
    const PlanProblem* problem = lines->problem;
    BoundStage stage = {.pieces = work->pieces, .free_bytes = (double)bound_free_bytes(lines, s)};
    BoundPart one, head = {.turn = {0}};
    double share = bound_share_of(lines, s), largest = 0;
    *time_ns = work_ns;
    if (problem->most_limit_bytes[s] == 0) { return STATUS_OK; }
    for (int32_t k = 0; k < problem->P; k++) {
        if (bound_share_of(lines, k) <= largest) { continue; }
        largest = bound_share_of(lines, k);
        bound_part_share(&head, lines, largest, k, false);
    }
    BoundLine away = head.F;
    for (int32_t k = problem->K - 1; k >= 0; k--) {
        int32_t own = problem->placement.stage_of[k];
        if (k < problem->K - 1) { bound_link_add(&away, lines, own, problem->placement.stage_of[k + 1]); }
        bound_part_chunk(&one, lines, k, false);
        if (own == s && stage.num_pieces < MOST_PIECES) {
            work->pieces[stage.num_pieces++] =
                (BoundPiece){.own = one, .away = away, .has_input = k > 0, .weight = 1};
        } else if (own == s) {
            bound_line_add(&stage.more_work, 1, &one.work);
        }
        bound_line_add(&away, 1, &one.turn);
    }
    if (share > 0) {
        bound_part_share(&one, lines, share, s, false);
        bound_line_add(&stage.more_work, 1, &one.work);
    }
    TRY(bound_memory_stage(time_ns, lines, &stage, work_ns, &work->scratch));
    *time_ns = fmax(*time_ns, work_ns);
    return STATUS_OK;
}

// Stage s between its earliest begin and what must follow it.
static Status raise_stage(LowerBound* out, const BoundLines* lines, const BoundChains* ends, int32_t s,
                          Work* scratch) {
    const PlanProblem* problem = lines->problem;
    BoundPart stage, fastest, share = {.turn = {0}};
    bound_part_stage(&stage, lines, s, true);
    bound_part_stage(&fastest, lines, s, false);
    bool has_share = bound_share_of(lines, s) > 0;
    if (has_share) { bound_part_share(&share, lines, bound_share_of(lines, s), s, true); }
    // Split backward, or a share of the head, may end with W, and only the reduction follows.
    bool joint = lines->joint_backward, ends_with_b = joint && !has_share;
    BoundLine turn = stage.F, backward = stage.BW;
    bound_line_add(&turn, 1, joint ? &stage.BW : &stage.B);
    if (joint) {  // without the share's W
        bound_line_add(&turn, -1, &share.BW);
        bound_line_add(&turn, 1, &share.B);
    }
    bound_line_add(&backward, -1, &share.BW);
    double work = bound_share(lines, &stage.work);
    int64_t arrival = ends->arrival_ns[s], reduce = ends->reduce_ns[s], tail = ends->tail_ns[s];
    int64_t after = ends_with_b ? larger(tail, reduce) : reduce;
    int64_t bound = arrival + floor_ns(work, lines) + after;
    if (!ends_with_b) { bound = larger(bound, arrival + floor_ns(bound_share(lines, &turn), lines) + tail); }
    bound = larger(bound, ends->turn_ns[s] + floor_ns(bound_share(lines, &backward), lines) + after);
    if (bound > out->stage_ns) { out->stage_ns = bound, out->stage = s; }
    int64_t indivisible = floor_ns(indivisible_share(lines, &fastest.work), lines);
    if (problem->R > 1) { out->replica_ns = larger(out->replica_ns, arrival + indivisible + after); }
    double memory;
    TRY(memory_of_stage(&memory, lines, s, work, scratch));
    if (memory > work) { out->memory_ns = larger(out->memory_ns, arrival + floor_ns(memory, lines) + after); }
    return STATUS_OK;
}

static Status given_placement(LowerBound* out, const BoundLines* lines, Work* work) {
    BoundChains ends;
    work->pieces = arena_alloc_raw(&work->arena, MOST_PIECES * sizeof *work->pieces);
    if (work->pieces == NULL) { return FAIL(STATUS_NO_MEMORY, "lower bound: no host memory left"); }
    TRY(bound_chains_make(&ends, lines, &work->arena));
    out->chain_ns = ends.longest_ns;
    out->chain_sample = ends.longest_sample;
    for (int32_t s = 0; s < lines->problem->P; s++) { TRY(raise_stage(out, lines, &ends, s, work)); }
    if (out->memory_ns <= out->stage_ns) { out->memory_ns = 0; }
    return STATUS_OK;
}

// Whatever split the layers take, one chunk a stage.
static Status any_split(LowerBound* out, const BoundLines* lines, const BoundLine* whole_fastest,
                        Work* work) {
    double stage_ns, memory_ns;
    TRY(bound_split_best(&stage_ns, &memory_ns, lines, &work->arena, &work->scratch));
    any_split_chains(out, lines);
    out->stage_ns = floor_ns(stage_ns, lines);
    out->memory_ns = memory_ns > stage_ns ? floor_ns(memory_ns, lines) : 0;
    out->replica_ns = floor_ns(indivisible_share(lines, whole_fastest) / lines->problem->P, lines);
    return STATUS_OK;
}

// Whatever chunks there are, and whoever has the head.
static Status any_placement(LowerBound* out, const BoundLines* lines, const BoundLine* whole_fastest,
                            Work* work) {
    BoundFree best;
    TRY(bound_free_make(&best, lines, &work->scratch));
    out->chain_ns = floor_ns(best.chain_ns, lines);
    out->chain_sample = best.chain_sample;
    out->stage_ns = floor_ns(fmax(best.even_ns, best.head_ns), lines);
    out->memory_ns = floor_ns(best.memory_ns, lines);
    if (out->memory_ns <= out->stage_ns) { out->memory_ns = 0; }
    out->replica_ns = floor_ns(indivisible_share(lines, whole_fastest) / lines->problem->P, lines);
    return STATUS_OK;
}

static Status bound_make(LowerBound* out, const PlanProblem* problem, bool joint_backward, Work* work) {
    BoundBatch batch;
    BoundLines lines;
    TRY(bound_batch_make(&batch, problem->samples, problem->num_samples, &work->arena));
    bound_lines_make(&lines, problem, &batch, joint_backward);
    BoundWhole whole = bound_whole_make(&lines, true), fastest = bound_whole_make(&lines, false);
    double even = bound_line_total(&whole.work, &lines.extent, 0) / problem->P / problem->R;
    out->work_ns = floor_ns(even, &lines);
    switch (lines.freedom) {
        case BOUND_GIVEN: TRY(given_placement(out, &lines, work)); break;
        case BOUND_ANY_SPLIT: TRY(any_split(out, &lines, &fastest.work, work)); break;
        case BOUND_ANY_PLACEMENT: TRY(any_placement(out, &lines, &fastest.work, work)); break;
    }
    const int64_t parts[] = {out->work_ns, out->chain_ns, out->stage_ns, out->memory_ns, out->replica_ns};
    for (int i = 0; i < 5; i++) { out->bound_ns = larger(out->bound_ns, parts[i]); }
    return STATUS_OK;
}

Status lower_bound_make(LowerBound* out, const PlanProblem* problem, bool joint_backward) {
    LowerBound made = {.stage = -1};
    Work work = {.pieces = NULL};
    Status status = bound_make(&made, problem, joint_backward, &work);
    arena_free(&work.arena);
    arena_free(&work.scratch);
    *out = status == STATUS_OK ? made : (LowerBound){.stage = -1};
    return status;
}
