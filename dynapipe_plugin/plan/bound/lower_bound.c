// lower_bound.c -- see lower_bound.h.
#include "lower_bound.h"

#include <math.h>
#include <string.h>

#include "../types/mb_shape.h"
#include "bound_memory.h"
#include "bound_split.h"

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

// Rounding: a job may be half a nanosecond shorter than its formula, and no stage has more than 4 N jobs; a
// chain passes 2 P more. The additions here err by less than one part in 10^12.
static int64_t floor_ns(double time_ns, const BoundLines* lines) {
    const MicrobatchProblem* problem = lines->problem;
    double slack_ns = 2.0 * problem->num_samples + 4.0 * problem->P;
    if (problem->differs) { slack_ns *= 1 + lines->most_slow; }  // rounded, scaled, rounded
    double safe = time_ns * (1 - 1e-12) - slack_ns;
    return safe <= 0 ? 0 : safe < (double)COST_LIMIT ? (int64_t)safe : COST_LIMIT;
}

static MbShape shape_of(const PlanSample* sample) {
    MbShape shape = {0};
    mb_shape_add(&shape, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
    return shape;
}

// --- one sample on fixed stages, in whole ns -------------------------------------------------------------

// Shortest job of any micro-batch that holds this sample, per stage: jobs only grow with their shape.
typedef struct {
    int64_t F[PLAN_MAX_STAGES], B[PLAN_MAX_STAGES], W[PLAN_MAX_STAGES], transfer[PLAN_MAX_STAGES];
} Chain;

static Chain chain_make(const BoundLines* lines, const PlanSample* sample) {
    const MicrobatchProblem* problem = lines->problem;
    Chain chain;
    CostJobs jobs[PLAN_MAX_STAGES];
    MbShape shape = shape_of(sample);
    for (int k = 0; k < problem->num_modes; k++) {
        microbatch_jobs(jobs, problem, problem->modes[k], &shape);
        for (int32_t s = 0; s < problem->P; s++) {
            const MachineRank* rank = bound_lightest(lines, s);
            int64_t ns[JOB_COUNT];
            for (int i = 0; i < JOB_COUNT; i++) {
                ns[i] = machine_job_ns(rank, (JobKind)i, jobs[s].job_ns[i]);
            }
            chain.F[s] = k > 0 ? smaller(chain.F[s], ns[JOB_F]) : ns[JOB_F];
            chain.B[s] = k > 0 ? smaller(chain.B[s], ns[JOB_B]) : ns[JOB_B];
            chain.W[s] = k > 0 ? smaller(chain.W[s], ns[JOB_W]) : ns[JOB_W];
            chain.transfer[s] =
                s < problem->P - 1 ? machine_transfer_ns(rank, problem->costs, jobs[s].boundary_bytes) : 0;
        }
    }
    return chain;
}

// Earliest and latest times on each stage, over all samples.
typedef struct {
    int64_t arrival[PLAN_MAX_STAGES];    // before its first forward
    int64_t turn[PLAN_MAX_STAGES];       // before its first backward
    int64_t tail[PLAN_MAX_STAGES];       // after its last backward, upstream
    int64_t reduce_ns[PLAN_MAX_STAGES];  // after its last job
} Ends;

// All forwards, then backwards down to each stage, its weight gradients, its reduction: the longest of these.
static int64_t chain_ns(const Chain* chain, Ends* ends, int32_t P, bool joint_backward) {
    int64_t time_ns = 0, longest = 0, behind = 0;
    for (int32_t s = 0; s < P; s++) {
        ends->arrival[s] = smaller(ends->arrival[s], time_ns);
        time_ns += chain->F[s] + chain->transfer[s];
    }
    for (int32_t s = P - 1; s >= 0; s--) {
        time_ns += chain->transfer[s];
        ends->turn[s] = smaller(ends->turn[s], time_ns);
        time_ns += chain->B[s] + (joint_backward ? chain->W[s] : 0);
        longest = larger(longest, time_ns + (joint_backward ? 0 : chain->W[s]) + ends->reduce_ns[s]);
    }
    for (int32_t s = 0; s < P; s++) {
        int64_t last = s == 0 ? 0 : (joint_backward ? 0 : chain->W[0]) + ends->reduce_ns[0];
        ends->tail[s] = smaller(ends->tail[s], behind + last);
        behind += chain->B[s] + (joint_backward ? chain->W[s] : 0) + chain->transfer[s];
    }
    return longest;
}

// Minima over all samples are those over the least, maxima those over the most.
static void fixed_chains(LowerBound* out, Ends* ends, const BoundLines* lines) {
    const MicrobatchProblem* problem = lines->problem;
    const BoundBatch* batch = lines->batch;
    for (int32_t s = 0; s < problem->P; s++) {
        ends->arrival[s] = ends->turn[s] = ends->tail[s] = INT64_MAX;
        ends->reduce_ns[s] = cost_reduce_ns(problem->costs, &problem->stages[s], problem->R);
    }
    for (int32_t i = 0; i < batch->num_least + batch->num_most; i++) {
        int32_t at = i < batch->num_least ? batch->least[i] : batch->most[i - batch->num_least];
        Chain chain = chain_make(lines, &batch->samples[at]);
        int64_t longest = chain_ns(&chain, ends, problem->P, lines->joint_backward);
        if (longest > out->chain_ns) { out->chain_ns = longest, out->chain_sample = batch->first[at]; }
    }
}

// --- one sample on whatever stages -----------------------------------------------------------------------

// All parts forwards and backwards, and at least the weight gradients of the first layer and its embedding,
// each kind of job in its cheapest mode.
static double any_split_chain(const BoundLines* lines, const PlanSample* sample) {
    const MicrobatchProblem* problem = lines->problem;
    const CostModel* costs = problem->costs;
    int32_t count[PART_COUNT] = {1, costs->num_enc_layers, costs->num_dec_layers, 1};
    int first_part = costs->num_enc_layers > 0 ? PART_ENC_LAYER : PART_DEC_LAYER;
    MbShape shape = shape_of(sample);
    CostParts parts, one;
    cost_parts(&parts, &problem->table, problem->modes[0], &shape);
    for (int k = 1; k < problem->num_modes; k++) {
        cost_parts(&one, &problem->table, problem->modes[k], &shape);
        for (int part = 0; part < PART_COUNT; part++) {
            double *least = parts.part[part], *ns = one.part[part];
            for (int kind = 0; kind < JOB_COUNT; kind++) { least[kind] = fmin(least[kind], ns[kind]); }
        }
    }
    double time = 0;
    for (int32_t s = 0; s < problem->P - 1; s++) {
        time += 2.0 * (double)machine_transfer_ns(bound_lightest(lines, s), costs, parts.enc_boundary_bytes);
    }
    for (int part = 0; part < PART_COUNT; part++) {
        double* ns = parts.part[part];
        for (int kind = 0; kind < JOB_COUNT && problem->differs; kind++) {
            ns[kind] *= lines->all.least[kind];
        }
        bool first = part == PART_EMBEDDING || part == first_part;
        time += count[part] * (ns[JOB_F] + ns[JOB_B]);
        time += (lines->joint_backward ? count[part] : first ? 1 : 0) * ns[JOB_W];
    }
    return time;
}

static void any_split_chains(LowerBound* out, const BoundLines* lines) {
    const MicrobatchProblem* problem = lines->problem;
    const BoundBatch* batch = lines->batch;
    // of the first stage without its layers but one: what it shares with other stages depends on these
    const CostModel* costs = problem->costs;
    CostStage bare = {.has_embedding = true, .has_head = problem->P == 1};
    int first_part = costs->num_enc_layers > 0 ? PART_ENC_LAYER : PART_DEC_LAYER;
    double reduce = fmax((double)cost_reduce_ns(costs, &bare, problem->R) - 1, 0) +
                    (double)costs->part_param_bytes[first_part] * cost_reduce_ns_per_byte(costs, problem->R);
    double longest = 0;
    for (int32_t i = 0; i < batch->num_most; i++) {
        double time = reduce + any_split_chain(lines, &batch->samples[batch->most[i]]);
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

// Time of the stage's memory (bound_memory.h), no less than work_ns.
static double memory_of_stage(const BoundLines* lines, const BoundPart* own, int32_t s, double work_ns) {
    const MicrobatchProblem* problem = lines->problem;
    BoundPart sum = {.turn = {0}};
    BoundStage stage = {.own = *own, .free_bytes = (double)bound_free_bytes(lines, s), .has_input = s > 0};
    if (problem->most_limit_bytes[s] == 0) { return work_ns; }
    for (int32_t k = s + 1; k < problem->P; k++) {
        BoundPart one;
        bound_part_stage(&one, lines, k, false);
        bound_line_add(&sum.turn, 1, &one.turn);
    }
    bound_memory_away(&stage.away, lines, &sum, problem->P - 1 - s);
    return fmax(bound_memory_stage(lines, &stage, work_ns), work_ns);
}

// Stage s between its earliest begin and what must follow it.
static void raise_stage(LowerBound* out, const BoundLines* lines, const Ends* ends, int32_t s) {
    const MicrobatchProblem* problem = lines->problem;
    BoundPart stage, fastest;
    bound_part_stage(&stage, lines, s, true);
    bound_part_stage(&fastest, lines, s, false);
    BoundLine forward_backward = stage.F;
    bound_line_add(&forward_backward, 1, &stage.B);
    double work = bound_share(lines, &stage.work);
    // With split backward a stage may end with W, and only its reduction follows.
    bool joint = lines->joint_backward;
    int64_t arrival = ends->arrival[s], reduce = ends->reduce_ns[s], tail = ends->tail[s];
    int64_t after = joint ? larger(tail, reduce) : reduce;
    int64_t bound = arrival + floor_ns(work, lines) + after;
    if (!joint) {
        bound = larger(bound, arrival + floor_ns(bound_share(lines, &forward_backward), lines) + tail);
    }
    bound = larger(bound, ends->turn[s] + floor_ns(bound_share(lines, &stage.BW), lines) + after);
    if (bound > out->stage_ns) { out->stage_ns = bound, out->stage = s; }
    int64_t indivisible = floor_ns(indivisible_share(lines, &fastest.work), lines);
    if (problem->R > 1) { out->replica_ns = larger(out->replica_ns, arrival + indivisible + after); }
    double memory = memory_of_stage(lines, &fastest, s, work);
    if (memory > work) { out->memory_ns = larger(out->memory_ns, arrival + floor_ns(memory, lines) + after); }
}

// Whatever split the layers take.
static Status any_split(LowerBound* out, const BoundLines* lines, const BoundLine* whole_fastest,
                        Arena* arena) {
    const MicrobatchProblem* problem = lines->problem;
    double stage_ns, memory_ns;
    TRY(bound_split_best(&stage_ns, &memory_ns, lines, arena));
    any_split_chains(out, lines);
    out->stage_ns = floor_ns(stage_ns, lines);
    out->memory_ns = memory_ns > stage_ns ? floor_ns(memory_ns, lines) : 0;
    out->replica_ns = floor_ns(indivisible_share(lines, whole_fastest) / problem->P, lines);
    return STATUS_OK;
}

static Status bound_make(LowerBound* out, const MicrobatchProblem* problem, bool joint_backward,
                         Arena* arena) {
    BoundBatch batch;
    BoundLines lines;
    BoundPart whole, fastest;
    CostStage one = {{0, problem->costs->num_enc_layers + problem->costs->num_dec_layers}, true, true, false};
    int32_t count[PIECE_COUNT];
    TRY(bound_batch_make(&batch, problem->samples, problem->num_samples, arena));
    bound_lines_make(&lines, problem, &batch, joint_backward);
    cost_stage_parts(count, problem->costs, &one);
    bound_part_sum(&whole, &lines, count, BOUND_ANY_STAGE, true);
    bound_part_sum(&fastest, &lines, count, BOUND_ANY_STAGE, false);
    double work = bound_line_total(&whole.work, &lines.extent, 0) / problem->P / problem->R;
    out->work_ns = floor_ns(work, &lines);
    if (problem->request->choose_stages) {
        TRY(any_split(out, &lines, &fastest.work, arena));
    } else {
        Ends ends;
        fixed_chains(out, &ends, &lines);
        for (int32_t s = 0; s < problem->P; s++) { raise_stage(out, &lines, &ends, s); }
        if (out->memory_ns <= out->stage_ns) { out->memory_ns = 0; }
    }
    const int64_t parts[] = {out->work_ns, out->chain_ns, out->stage_ns, out->memory_ns, out->replica_ns};
    for (int i = 0; i < 5; i++) { out->bound_ns = larger(out->bound_ns, parts[i]); }
    return STATUS_OK;
}

Status lower_bound_make(LowerBound* out, const MicrobatchProblem* problem, bool joint_backward) {
    LowerBound made = {.stage = -1};
    Arena arena = {0};
    Status status = bound_make(&made, problem, joint_backward, &arena);
    arena_free(&arena);
    *out = status == STATUS_OK ? made : (LowerBound){.stage = -1};
    return status;
}
