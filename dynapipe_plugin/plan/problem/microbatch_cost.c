// microbatch_cost.c -- see microbatch_cost.h.
#include "microbatch_cost.h"

#include <string.h>

#include "shape_rules.h"

int64_t microbatch_jobs_ns(const CostJobs* jobs) {
    return jobs->job_ns[JOB_F] + jobs->job_ns[JOB_B] + jobs->job_ns[JOB_W] + jobs->job_ns[JOB_R];
}

void microbatch_jobs(CostJobs* out, const PlanProblem* problem, RecomputeMode mode, const MbShape* shape) {
    CostParts parts;
    cost_parts(&parts, &problem->table, mode, shape);
    cost_jobs_of_stages(out, problem->costs, problem->chunks, problem->K, &parts);
    if (problem->num_rows == problem->K) { return; }
    if (mode != RECOMPUTE_NONE) { cost_parts(&parts, &problem->table, RECOMPUTE_NONE, shape); }
    for (int32_t s = 0; s < problem->P; s++) {
        cost_jobs_of_share(&out[problem->K + s], problem->costs, cost_share_of(&problem->placement, s),
                           &parts);
    }
}

int32_t microbatch_in_flight(int32_t P, int32_t K, int32_t k) {
    return (P * (K - k) + K - 1) / K;
}

// Of one micro-batch on one stage.
typedef struct {
    int64_t work_ns;
    int64_t held_bytes;     // as often as there are micro-batches in flight
    int64_t kept_bytes;     // of one, all chunks and the share
    int64_t besides_bytes;  // of one of them, while its jobs run
} StageLoad;

// What chunk k receives, and what it sends or hands the shares; 0 where buffers do not count.
static int64_t in_bytes_of(const PlanProblem* problem, const CostJobs* jobs, int32_t k) {
    return problem->count_buffers && k > 0 ? jobs[k - 1].boundary_bytes : 0;
}

static int64_t out_bytes_of(const PlanProblem* problem, const CostJobs* jobs, int32_t k) {
    int64_t bytes = 0;
    if (!problem->count_buffers || placement_hands_over(&problem->placement, k)) { return 0; }
    for (int32_t row = problem->K; row < problem->num_rows && k == problem->K - 1; row++) {
        bytes += jobs[row].part_bytes;
    }
    return bytes + jobs[k].boundary_bytes;
}

static void add_chunk(StageLoad* load, const PlanProblem* problem, RecomputeMode mode, MicrobatchShare share,
                      const CostJobs* jobs, int32_t k) {
    int64_t in = in_bytes_of(problem, jobs, k), out = out_bytes_of(problem, jobs, k);
    bool drops = problem->costs->recompute_is_job[mode];
    int64_t forward = drops ? jobs[k].forward_bytes + out : out;
    int64_t backward = drops ? jobs[k].stored_bytes + in + out : in + out;
    int64_t besides = forward > backward ? forward : backward;
    int32_t num = share == SHARE_PIPELINE  ? microbatch_in_flight(problem->P, problem->K, k)
                  : share == SHARE_UNIFORM ? problem->P
                                           : 1;
    load->work_ns += microbatch_jobs_ns(&jobs[k]);
    load->held_bytes += num * (jobs[k].stored_bytes + in);
    load->kept_bytes += in + (drops ? 0 : jobs[k].stored_bytes);
    if (besides > load->besides_bytes) { load->besides_bytes = besides; }
}

static void add_share(StageLoad* load, const PlanProblem* problem, const CostJobs* share) {
    int64_t buffers = share->boundary_bytes + share->part_bytes + share->factor_bytes;
    int64_t bytes = share->stored_bytes + (problem->count_buffers ? buffers : 0);
    load->work_ns += microbatch_jobs_ns(share);
    load->held_bytes += bytes;
    load->kept_bytes += bytes;
}

// [P]
static void loads_make(StageLoad* out, const PlanProblem* problem, RecomputeMode mode, MicrobatchShare share,
                       const CostJobs* jobs) {
    memset(out, 0, sizeof *out * (size_t)problem->P);
    for (int32_t k = 0; k < problem->K; k++) {
        add_chunk(&out[problem->placement.stage_of[k]], problem, mode, share, jobs, k);
    }
    for (int32_t row = problem->K; row < problem->num_rows; row++) {
        add_share(&out[row - problem->K], problem, &jobs[row]);
    }
}

static int64_t alone_bytes(const PlanProblem* problem, const StageLoad* load, int64_t scratch_bytes) {
    int64_t fixed = problem->count_buffers ? scratch_bytes + 5 * (int64_t)PLAN_BUFFER_ALIGN : 0;
    return load->kept_bytes + load->besides_bytes + fixed;
}

MicrobatchCost microbatch_cost(const PlanProblem* problem, RecomputeMode mode, MicrobatchShare share,
                               const MbShape* shape) {
    CostJobs jobs[PLAN_MAX_ROWS];
    StageLoad loads[PLAN_MAX_STAGES];
    MicrobatchCost cost = {.fits_alone = shape_rules_allow(&problem->request->rules, shape),
                           .fits_held = true};
    microbatch_jobs(jobs, problem, mode, shape);
    loads_make(loads, problem, mode, share, jobs);
    for (int32_t s = 0; s < problem->P; s++) {
        int64_t work_ns = plan_problem_stage_ns(problem, s, loads[s].work_ns);
        cost.work_ns = work_ns > cost.work_ns ? work_ns : cost.work_ns;
        cost.fits_alone &=
            alone_bytes(problem, &loads[s], jobs[0].scratch_bytes) <= problem->available_bytes[s];
        cost.fits_held &= loads[s].held_bytes <= problem->available_bytes[s];
    }
    cost.fits_held &= cost.fits_alone;
    return cost;
}

int64_t microbatch_work_ns(const PlanProblem* problem, RecomputeMode mode, const MbShape* shape) {
    return microbatch_cost(problem, mode, SHARE_ALONE, shape).work_ns;
}

int64_t microbatch_alone_bytes(const PlanProblem* problem, int32_t s, RecomputeMode mode,
                               const MbShape* shape) {
    CostJobs jobs[PLAN_MAX_ROWS];
    StageLoad loads[PLAN_MAX_STAGES];
    microbatch_jobs(jobs, problem, mode, shape);
    loads_make(loads, problem, mode, SHARE_ALONE, jobs);
    return alone_bytes(problem, &loads[s], jobs[0].scratch_bytes);
}

static Status kernels_cannot(const PlanProblem* problem, const MbShape* shape, const char* what) {
    char words[SHAPE_WORDS];
    shape_rules_say(words, &problem->request->rules, shape);
    return FAIL(STATUS_INFEASIBLE,
                "%s (%lld + %lld tokens with padding): %s ---> a smaller -t, or cut samples shorter", what,
                (long long)shape->enc_tokens, (long long)shape->dec_tokens, words);
}

Status microbatch_infeasible(const PlanProblem* problem, const MbShape* shape, const char* what) {
    if (!shape_rules_allow(&problem->request->rules, shape)) { return kernels_cannot(problem, shape, what); }
    RecomputeMode best_mode = problem->modes[0];
    int64_t best_over = INT64_MAX, best_alone = 0;
    int32_t best_stage = 0;
    for (int k = 0; k < problem->num_modes; k++) {  // the mode that comes closest, its worst stage
        int64_t worst_over = INT64_MIN, worst_alone = 0;
        int32_t worst_stage = 0;
        for (int32_t s = 0; s < problem->P; s++) {
            int64_t alone = microbatch_alone_bytes(problem, s, problem->modes[k], shape);
            int64_t over = alone - problem->available_bytes[s];
            if (over > worst_over) { worst_over = over, worst_alone = alone, worst_stage = s; }
        }
        if (worst_over < best_over) {
            best_over = worst_over, best_alone = worst_alone, best_stage = worst_stage;
            best_mode = problem->modes[k];
        }
    }
    bool could_recompute = best_mode == RECOMPUTE_NONE && problem->num_modes == 1 &&
                           cost_mode_offered(problem->costs, RECOMPUTE_FULL);
    for (int32_t s = 0; s < problem->P && could_recompute; s++) {
        could_recompute =
            microbatch_alone_bytes(problem, s, RECOMPUTE_FULL, shape) <= problem->available_bytes[s];
    }
    char words[MACHINE_LIMIT_CHARS];
    return FAIL(
        STATUS_INFEASIBLE,
        "%s (%lld tokens, %lld supervised) needs %lld bytes on stage %d with recompute %s: %lld bytes over "
        "---> raise %s, use more --stages%s, or cut samples shorter",
        what, (long long)(shape->enc_tokens + shape->dec_tokens), (long long)shape->supervised_tokens,
        (long long)best_alone, best_stage, cost_mode_names[best_mode], (long long)best_over,
        plan_problem_limit_words(words, problem, best_stage), could_recompute ? ", --recompute auto" : "");
}
