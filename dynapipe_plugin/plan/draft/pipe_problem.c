#include "pipe_problem.h"

#include <string.h>

#include "../pipe/pipe_schedule.h"

static int64_t align_up(int64_t num_bytes) {
    return (num_bytes + PLAN_BUFFER_ALIGN - 1) / PLAN_BUFFER_ALIGN * PLAN_BUFFER_ALIGN;
}

// --- prices ----------------------------------------------------------------------------------------------

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
    const MicrobatchProblem* problem = place->problem;
    const Placement* placement = place->placement;
    bool buffers = problem->count_buffers, last = k == placement->num_chunks - 1;
    bool sends = !last && !placement_hands_over(placement, k);
    int64_t out_bytes = buffers && (sends || last) ? align_up(jobs->boundary_bytes) + parts_bytes : 0;
    int32_t stage = placement->stage_of[k];
    *out = (PipeCost){.mode = mode,
                      .drops = problem->costs->recompute_is_job[mode] && mode != RECOMPUTE_NONE,
                      .boundary_bytes = jobs->boundary_bytes};
    out->stored_bytes = (buffers ? align_up(jobs->stored_bytes) : jobs->stored_bytes) + out_bytes;
    out->forward_bytes = out->drops ? align_up(jobs->forward_bytes) + out_bytes : 0;
    out->input_bytes = k == 0 || !buffers ? 0 : align_up(in_bytes);
    if (sends) {
        out->transfer_ns = machine_between_ns(place->ranks, problem->costs, stage, placement->stage_of[k + 1],
                                              jobs->boundary_bytes);
    }
    set_times(out, place, stage, jobs);
}

// in_bytes, part_bytes: of its transfers, which by some rules are not as large as its buffers.
static void share_cost(PipeCost* out, const PipePlace* place, int32_t s, const CostJobs* jobs,
                       int64_t in_bytes, int64_t part_bytes) {
    const MicrobatchProblem* problem = place->problem;
    const Placement* placement = place->placement;
    int32_t last = placement->stage_of[placement->num_chunks - 1];
    *out = (PipeCost){.boundary_bytes = jobs->boundary_bytes, .stored_bytes = jobs->stored_bytes};
    set_times(out, place, s, jobs);
    if (s == last || !placement_has_share(placement, s)) { return; }
    if (problem->count_buffers) {
        out->stored_bytes = align_up(jobs->stored_bytes) + align_up(jobs->boundary_bytes) +
                            align_up(jobs->part_bytes) + align_up(jobs->factor_bytes);
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
    const MicrobatchProblem* problem = place->problem;
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
        parts_bytes += align_up(jobs.part_bytes) + align_up(jobs.factor_bytes);
    }
    return problem->count_buffers ? parts_bytes + align_up(cost_round(parts->head_in_bytes)) : 0;
}

int64_t pipe_costs_make(PipeCost* out, RankBytes* bytes, int64_t stride, const PipePlace* place,
                        const uint8_t* modes, const MbShape* shape) {
    const MicrobatchProblem* problem = place->problem;
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
        RecomputeMode mode = (RecomputeMode)modes[k * stride];
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

// --- one replica -----------------------------------------------------------------------------------------

int64_t pipe_passing_bytes(const PipeProblem* pipe, int32_t s, int64_t scratch_bytes) {
    int64_t gradient_bytes = 0;
    for (int32_t k = 0; k < pipe_num_chunks(pipe); k++) {
        if (pipe_stage_of(pipe, k) != s) { continue; }
        for (int32_t m = 0; m < pipe->M; m++) {
            int64_t bytes = pipe_cost(pipe, k, m)->input_bytes;
            if (bytes > gradient_bytes) { gradient_bytes = bytes; }
        }
    }
    return align_up(scratch_bytes) + gradient_bytes;
}

static PipePlace place_of(const ReplicaProblem* replica, const MicrobatchProblem* problem) {
    return (PipePlace){.problem = problem,
                       .ranks = microbatch_ranks(problem, replica->replica),
                       .placement = &problem->placement,
                       .chunks = problem->chunks,
                       .P = problem->P};
}

static void price(ReplicaProblem* replica, const MicrobatchProblem* problem, const MicrobatchList* list,
                  int32_t m) {
    PipeCost* costs = (PipeCost*)(uintptr_t)replica->pipe.cost;
    PipePlace place = place_of(replica, problem);
    int64_t scratch_bytes = pipe_costs_make(costs + m, replica->bytes + m, replica->pipe.M, &place,
                                            replica->modes + m, &list->mbs[replica->mbs[m]].shape);
    for (int32_t s = 0; s < problem->P; s++) {
        if (scratch_bytes > replica->scratch_bytes[s]) { replica->scratch_bytes[s] = scratch_bytes; }
    }
}

void replica_problem_set_limits(ReplicaProblem* replica, const MicrobatchProblem* problem) {
    PipeProblem* pipe = &replica->pipe;
    for (int32_t s = 0; s < pipe->P; s++) {
        const MachineRank* rank = machine_stage(microbatch_ranks(problem, replica->replica), s);
        int64_t available_bytes = microbatch_available(problem, rank, &problem->has[s]);
        pipe->memory_limit_bytes[s] = INT64_MAX;
        if (available_bytes == COST_LIMIT) { continue; }
        if (problem->count_buffers) {
            available_bytes -=
                pipe_passing_bytes(pipe, s, replica->scratch_bytes[s]) + replica->squeeze_bytes[s];
        }
        pipe->memory_limit_bytes[s] = available_bytes;
    }
}

static Status replica_problem_alloc(ReplicaProblem* out, int32_t num_rows, int32_t K, int32_t M,
                                    Arena* arena) {
    PipeCost* costs;
    PIPE_NEW(costs, arena, PipeCost, (int64_t)num_rows * M);
    PIPE_NEW(out->bytes, arena, RankBytes, (int64_t)num_rows * M);
    PIPE_NEW(out->modes, arena, uint8_t, (int64_t)K * M);
    PIPE_NEW(out->mbs, arena, int32_t, M);
    out->pipe.cost = costs;
    return STATUS_OK;
}

Status replica_problem_make(ReplicaProblem* out, const MicrobatchProblem* problem, const MicrobatchList* list,
                            int32_t r, const int32_t* mbs, int32_t num_mbs, const uint8_t* modes,
                            Arena* arena) {
    ReplicaProblem replica = {.replica = r};
    Placement* placement;
    TRY(replica_problem_alloc(&replica, problem->num_rows, problem->K, num_mbs, arena));
    PIPE_NEW(placement, arena, Placement, 1);
    *placement = problem->placement;
    replica.pipe.P = problem->P;
    replica.pipe.M = num_mbs;
    replica.pipe.placement = placement;
    replica.pipe.pulls = machine_pulls(problem->request->machine);
    for (int32_t m = 0; m < num_mbs; m++) {
        replica.mbs[m] = mbs[m];
        for (int32_t k = 0; k < problem->K; k++) {
            int64_t cell = (int64_t)k * num_mbs + m;
            replica.modes[cell] = modes == NULL ? (uint8_t)list->mbs[mbs[m]].mode : modes[cell];
        }
        price(&replica, problem, list, m);
    }
    for (int32_t s = 0; s < problem->P; s++) {
        replica.pipe.tail_ns[s] = cost_rank_reduce_ns(problem->costs, &problem->has[s], problem->R);
    }
    replica_problem_set_limits(&replica, problem);
    *out = replica;
    return STATUS_OK;
}

void replica_problem_set_mode(ReplicaProblem* replica, const MicrobatchProblem* problem,
                              const MicrobatchList* list, int32_t k, int32_t m, RecomputeMode mode) {
    replica->modes[(int64_t)k * replica->pipe.M + m] = (uint8_t)mode;
    price(replica, problem, list, m);
    replica_problem_set_limits(replica, problem);
}

Status replica_problem_permute(ReplicaProblem* out, const ReplicaProblem* in, const int32_t* order,
                               Arena* arena) {
    ReplicaProblem replica = *in;
    int32_t M = in->pipe.M, K = pipe_num_chunks(&in->pipe), num_rows = pipe_num_rows(&in->pipe);
    Placement* placement;
    TRY(replica_problem_alloc(&replica, num_rows, K, M, arena));
    PIPE_NEW(placement, arena, Placement, 1);
    *placement = *in->pipe.placement;
    replica.pipe.placement = placement;
    PipeCost* costs = (PipeCost*)(uintptr_t)replica.pipe.cost;
    for (int32_t m = 0; m < M; m++) {
        replica.mbs[m] = in->mbs[order[m]];
        for (int32_t row = 0; row < num_rows; row++) {
            int64_t to = (int64_t)row * M + m, from = (int64_t)row * M + order[m];
            costs[to] = in->pipe.cost[from];
            replica.bytes[to] = in->bytes[from];
            if (row < K) { replica.modes[to] = in->modes[from]; }
        }
    }
    *out = replica;
    return STATUS_OK;
}
