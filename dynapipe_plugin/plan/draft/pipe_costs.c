// pipe_costs.c -- see pipe_costs.h.
#include "pipe_costs.h"

#include <string.h>

static void set_times(PipeCost* out, const PipePlace* place, int32_t stage, const CostJobs* jobs) {
    const MachineRank* rank = machine_stage(place->ranks, stage);
    memcpy(out->job_ns, jobs->job_ns, sizeof out->job_ns);
    if (!out->drops) { out->job_ns[JOB_R] = 0; }
    if (rank == NULL) { return; }
    for (int kind = 0; kind < JOB_COUNT; kind++) {
        out->job_ns[kind] = machine_job_ns(rank, (JobKind)kind, out->job_ns[kind]);
    }
}

// parts_bytes: all that the chunk which feeds a shared head holds for that, besides hidden states.
static void chunk_cost(PipeCost* out, const PipePlace* place, int32_t k, RecomputeMode mode,
                       const CostJobs* jobs, int64_t in_bytes, int64_t parts_bytes) {
    const PlanProblem* problem = place->problem;
    const Placement* placement = place->placement;
    bool buffers = problem->count_buffers, last = k == placement->num_chunks - 1;
    bool sends = !last && !placement_hands_over(placement, k);
    int64_t out_bytes = buffers && (sends || last) ? plan_align_bytes(jobs->boundary_bytes) + parts_bytes : 0;
    int32_t stage = placement->stage_of[k];
    *out = (PipeCost){.mode = mode,
                      .drops = problem->costs->recompute_is_job[mode] && mode != RECOMPUTE_NONE,
                      .boundary_bytes = jobs->boundary_bytes};
    out->stored_bytes = (buffers ? plan_align_bytes(jobs->stored_bytes) : jobs->stored_bytes) + out_bytes;
    out->forward_bytes = out->drops ? plan_align_bytes(jobs->forward_bytes) + out_bytes : 0;
    out->input_bytes = k == 0 || !buffers ? 0 : plan_align_bytes(in_bytes);
    if (sends) {
        out->transfer_ns = machine_between_ns(place->ranks, problem->costs, stage, placement->stage_of[k + 1],
                                              jobs->boundary_bytes);
    }
    set_times(out, place, stage, jobs);
}

// in_bytes, part_bytes: of its transfers, which by some rules are not as large as its buffers.
static void share_cost(PipeCost* out, const PipePlace* place, int32_t s, const CostJobs* jobs,
                       int64_t in_bytes, int64_t part_bytes) {
    const PlanProblem* problem = place->problem;
    const Placement* placement = place->placement;
    int32_t last = placement->stage_of[placement->num_chunks - 1];
    *out = (PipeCost){.boundary_bytes = jobs->boundary_bytes, .stored_bytes = jobs->stored_bytes};
    set_times(out, place, s, jobs);
    if (s == last || !placement_has_share(placement, s)) { return; }
    if (problem->count_buffers) {
        out->stored_bytes = plan_align_bytes(jobs->stored_bytes) + plan_align_bytes(jobs->boundary_bytes) +
                            plan_align_bytes(jobs->part_bytes) + plan_align_bytes(jobs->factor_bytes);
    }
    out->transfer_ns = machine_between_ns(place->ranks, problem->costs, last, s, in_bytes);
    out->part_ns = machine_between_ns(place->ranks, problem->costs, s, last, part_bytes);
    if (jobs->factor_bytes > 0) {
        out->factor_ns = machine_between_ns(place->ranks, problem->costs, last, s, jobs->factor_bytes);
    }
}

static RankBytes row_bytes(const CostJobs* jobs, bool drops, int64_t in_bytes, int64_t out_bytes) {
    return (RankBytes){.acts_bytes = jobs->stored_bytes,
                       .forward_bytes = drops ? jobs->forward_bytes : 0,
                       .in_bytes = in_bytes,
                       .out_bytes = out_bytes,
                       .part_bytes = jobs->part_bytes,
                       .factor_bytes = jobs->factor_bytes};
}

// Returns what the chunk that feeds them holds, as buffers: their parts, the gradient made of these, factors.
static int64_t shares_make(PipeCost* out, RankBytes* bytes, int64_t stride, const PipePlace* place,
                           const CostParts* parts) {
    const PlanProblem* problem = place->problem;
    int64_t parts_bytes = 0;
    for (int32_t s = 0; s < place->P; s++) {
        int64_t cell = (place->placement->num_chunks + s) * stride;
        CostJobs jobs;
        cost_jobs_of_share(&jobs, problem->costs, cost_share_of(place->placement, s), parts);
        bool travels_whole = place->placement->head == HEAD_BY_ROWS && problem->costs->head_rows_whole;
        int64_t all_bytes = cost_round(parts->head_in_bytes);
        share_cost(&out[cell], place, s, &jobs, travels_whole ? all_bytes : jobs.boundary_bytes,
                   travels_whole ? all_bytes : jobs.part_bytes);
        if (bytes != NULL) { bytes[cell] = row_bytes(&jobs, false, jobs.boundary_bytes, 0); }
        parts_bytes += plan_align_bytes(jobs.part_bytes) + plan_align_bytes(jobs.factor_bytes);
    }
    return problem->count_buffers ? parts_bytes + plan_align_bytes(cost_round(parts->head_in_bytes)) : 0;
}

int64_t pipe_costs_make(PipeCost* out, RankBytes* bytes, int64_t stride, const PipePlace* place,
                        const uint8_t* modes, int64_t mode_stride, const MbShape* shape) {
    const PlanProblem* problem = place->problem;
    CostParts parts[RECOMPUTE_COUNT];
    bool known[RECOMPUTE_COUNT] = {false};
    int32_t K = place->placement->num_chunks;
    int64_t in_bytes = 0, parts_bytes = 0, scratch_bytes = 0;
    if (place->placement->head != HEAD_WHOLE) {
        cost_parts(&parts[RECOMPUTE_NONE], &problem->table, RECOMPUTE_NONE, shape);
        known[RECOMPUTE_NONE] = true;
        parts_bytes = shares_make(out, bytes, stride, place, &parts[RECOMPUTE_NONE]);
    }
    for (int32_t k = 0; k < K; k++) {
        RecomputeMode mode = (RecomputeMode)modes[k * mode_stride];
        CostJobs jobs;
        if (!known[mode]) { cost_parts(&parts[mode], &problem->table, mode, shape); }
        known[mode] = true;
        cost_jobs_of_stage(&jobs, problem->costs, &place->chunks[k], &parts[mode]);
        chunk_cost(&out[k * stride], place, k, mode, &jobs, in_bytes, k == K - 1 ? parts_bytes : 0);
        if (bytes != NULL) {
            bytes[k * stride] = row_bytes(&jobs, out[k * stride].drops, in_bytes, jobs.boundary_bytes);
        }
        in_bytes = jobs.boundary_bytes;
        scratch_bytes = jobs.scratch_bytes > scratch_bytes ? jobs.scratch_bytes : scratch_bytes;
    }
    return scratch_bytes;
}

int64_t pipe_passing_bytes(const PipeProblem* pipe, int32_t s, int64_t scratch_bytes) {
    int64_t gradient_bytes = 0;
    for (int32_t k = 0; k < pipe_num_chunks(pipe); k++) {
        if (pipe_stage_of(pipe, k) != s) { continue; }
        for (int32_t m = 0; m < pipe->M; m++) {
            int64_t bytes = pipe_cost(pipe, k, m)->input_bytes;
            if (bytes > gradient_bytes) { gradient_bytes = bytes; }
        }
    }
    return plan_align_bytes(scratch_bytes) + gradient_bytes;
}
