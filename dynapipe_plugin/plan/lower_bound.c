// lower_bound.c -- see lower_bound.h.
#include "lower_bound.h"

#include <math.h>
#include <string.h>

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
static int64_t floor_ns(double time_ns, const MicrobatchProblem* problem) {
    double safe = time_ns * (1 - 1e-12) - 2.0 * problem->num_samples - 4.0 * problem->P;
    return safe <= 0 ? 0 : safe < (double)COST_LIMIT ? (int64_t)safe : COST_LIMIT;
}

// --- one sample on fixed stages, in whole ns
// --------------------------------------------------------------------

// Shortest job of any micro-batch that holds this sample, per stage: jobs only grow with their shape.
typedef struct {
    int64_t F[PLAN_MAX_STAGES], B[PLAN_MAX_STAGES], W[PLAN_MAX_STAGES], transfer[PLAN_MAX_STAGES];
} Chain;

static Chain chain_make(const MicrobatchProblem* problem, const PlanSample* sample) {
    Chain chain;
    CostJobs jobs[PLAN_MAX_STAGES];
    MbShape shape = {0};
    mb_shape_add(&shape, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
    for (int k = 0; k < problem->num_modes; k++) {
        cost_stages(jobs, problem->costs, problem->stages, problem->P, problem->modes[k], &shape);
        for (int32_t s = 0; s < problem->P; s++) {
            const int64_t* ns = jobs[s].job_ns;
            chain.F[s] = k > 0 ? smaller(chain.F[s], ns[JOB_F]) : ns[JOB_F];
            chain.B[s] = k > 0 ? smaller(chain.B[s], ns[JOB_B]) : ns[JOB_B];
            chain.W[s] = k > 0 ? smaller(chain.W[s], ns[JOB_W]) : ns[JOB_W];
            chain.transfer[s] =
                s < problem->P - 1 ? cost_transfer_ns(problem->costs, jobs[s].boundary_bytes) : 0;
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

static void fixed_chains(LowerBound* out, Ends* ends, const MicrobatchProblem* problem, bool joint_backward) {
    for (int32_t s = 0; s < problem->P; s++) {
        ends->arrival[s] = ends->turn[s] = ends->tail[s] = INT64_MAX;
        ends->reduce_ns[s] = cost_reduce_ns(problem->costs, &problem->stages[s], problem->R);
    }
    for (int32_t i = 0; i < problem->num_samples; i++) {
        Chain chain = chain_make(problem, &problem->samples[i]);
        int64_t longest = chain_ns(&chain, ends, problem->P, joint_backward);
        if (longest > out->chain_ns) { out->chain_ns = longest, out->chain_sample = i; }
    }
}

// --- one sample on whatever stages
// ------------------------------------------------------------------------------

// One kind of job of one part in its cheapest mode.
static double cheapest_job(const MicrobatchProblem* problem, int part, JobKind kind, const MbShape* shape) {
    double least = INFINITY;
    for (int k = 0; k < problem->num_modes; k++) {
        const CostPartMode* mode = &problem->costs->parts[problem->modes[k]][part];
        least = fmin(least, cost_formula_value(&mode->time_ns[kind], shape));
    }
    return least;
}

// All parts forwards and backwards, and at least the weight gradients of the first layer and its embedding.
static void any_split_chains(LowerBound* out, const BoundLines* lines) {
    const MicrobatchProblem* problem = lines->problem;
    const CostModel* costs = problem->costs;
    CostStage first = cost_stage_make(costs, &(StageLayers){0, 1}, 0, problem->P);
    double reduce = (double)cost_reduce_ns(costs, &first, problem->R), longest = 0;
    int32_t count[PART_COUNT] = {1, costs->num_enc_layers, costs->num_dec_layers, 1};
    int first_part = costs->num_enc_layers > 0 ? PART_ENC_LAYER : PART_DEC_LAYER;
    for (int32_t i = 0; i < problem->num_samples; i++) {
        const PlanSample* sample = &problem->samples[i];
        MbShape shape = {0};
        mb_shape_add(&shape, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
        double time = reduce;
        for (int part = 0; part < PART_COUNT; part++) {
            if (count[part] == 0) { continue; }
            time += count[part] *
                    (cheapest_job(problem, part, JOB_F, &shape) + cheapest_job(problem, part, JOB_B, &shape));
            double weights = cheapest_job(problem, part, JOB_W, &shape);
            if (lines->joint_backward) {
                time += count[part] * weights;
            } else if (part == PART_EMBEDDING || part == first_part) {
                time += weights;
            }
        }
        if (costs->comm_bytes_per_ns > 0 && problem->P > 1) {
            double bytes = cost_formula_value(&costs->boundary_bytes, &shape);
            time += 2.0 * (problem->P - 1) * (costs->comm_latency_ns + bytes / costs->comm_bytes_per_ns);
        }
        if (time > longest) { longest = time, out->chain_sample = i; }
    }
    out->chain_ns = floor_ns(longest, problem);
}

// --- shares of the work
// -----------------------------------------------------------------------------------------

// Of R replicas, one has at least 1/R of this work, and at least one micro-batch.
static double share(const BoundLines* lines, const BoundLine* line) {
    double R = lines->problem->R, num_mbs = lines->extent.total[FEATURE_ENC_TOKENS] / lines->largest_tokens;
    return bound_line_total(line, &lines->extent, 0) / R + line->constant * fmax(1, num_mbs / R);
}

// Of any k R + 1 samples, some replica has k + 1: at least the k + 1 smallest of the k R + 1 largest. k = 0:
// the largest.
static double indivisible_share(const BoundLines* lines, const BoundLine* line) {
    enum { MOST = 256 };
    double top[MOST], most = 0;  // descending
    int32_t num = 0, R = lines->problem->R;
    for (int32_t i = 0; i < lines->problem->num_samples; i++) {
        double work = bound_line_sample(line, &lines->problem->samples[i]) - line->constant;
        if (num == MOST && work <= top[MOST - 1]) { continue; }
        int32_t at = num < MOST ? num++ : MOST - 1;
        for (; at > 0 && top[at - 1] < work; at--) { top[at] = top[at - 1]; }
        top[at] = work;
    }
    for (int32_t k = 0; k * R < num; k++) {
        double sum = line->constant;
        for (int32_t i = k * R; i >= k * R - k; i--) { sum += top[i]; }
        most = fmax(most, sum);
    }
    return most;
}

// --- the parts
// --------------------------------------------------------------------------------------------------

// Stage s between its earliest begin and what must follow it.
static void raise_stage(LowerBound* out, const BoundLines* lines, const Ends* ends, int32_t s) {
    const MicrobatchProblem* problem = lines->problem;
    BoundPart stage;
    bound_part_stage(&stage, lines, s);
    BoundLine forward_backward = stage.F;
    bound_line_add(&forward_backward, 1, &stage.B);
    double work = share(lines, &stage.work);
    // With split backward a stage may end with W, and only its reduction follows.
    bool joint = lines->joint_backward;
    int64_t arrival = ends->arrival[s], reduce = ends->reduce_ns[s], tail = ends->tail[s];
    int64_t after = joint ? larger(tail, reduce) : reduce;
    int64_t bound = arrival + floor_ns(work, problem) + after;
    if (!joint) {
        bound = larger(bound, arrival + floor_ns(share(lines, &forward_backward), problem) + tail);
    }
    bound = larger(bound, ends->turn[s] + floor_ns(share(lines, &stage.BW), problem) + after);
    if (bound > out->stage_ns) { out->stage_ns = bound, out->stage = s; }
    int64_t indivisible = floor_ns(indivisible_share(lines, &stage.work), problem);
    out->replica_ns = larger(out->replica_ns, arrival + indivisible + after);
    double memory = bound_memory_stage(lines, s, work);
    if (memory > work) {
        out->memory_ns = larger(out->memory_ns, arrival + floor_ns(memory, problem) + after);
    }
}

void lower_bound_make(LowerBound* out, const MicrobatchProblem* problem, bool joint_backward) {
    BoundLines lines;
    BoundPart whole;
    const CostModel* costs = problem->costs;
    *out = (LowerBound){.stage = -1};
    bound_lines_make(&lines, problem, joint_backward);
    bound_part_sum(&whole, &lines, costs->num_enc_layers, costs->num_dec_layers, true, true);
    double work = bound_line_total(&whole.work, &lines.extent, 0) / problem->P / problem->R;
    out->work_ns = floor_ns(work, problem);
    if (problem->request->choose_stages) {
        double memory = bound_memory_any_split(&lines, work);
        any_split_chains(out, &lines);
        out->stage_ns = floor_ns(bound_split_best(&lines), problem);
        out->replica_ns = floor_ns(indivisible_share(&lines, &whole.work) / problem->P, problem);
        out->memory_ns = memory > work ? floor_ns(memory, problem) : 0;
    } else {
        Ends ends;
        fixed_chains(out, &ends, problem, joint_backward);
        for (int32_t s = 0; s < problem->P; s++) { raise_stage(out, &lines, &ends, s); }
    }
    const int64_t parts[] = {out->work_ns, out->chain_ns, out->stage_ns, out->memory_ns, out->replica_ns};
    for (int i = 0; i < 5; i++) { out->bound_ns = larger(out->bound_ns, parts[i]); }
}
