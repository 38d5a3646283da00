#include "pipe_problem.h"

#include <string.h>

#include "../pipe/pipe_schedule.h"

static int64_t align_up(int64_t num_bytes) {
    return (num_bytes + PLAN_BUFFER_ALIGN - 1) / PLAN_BUFFER_ALIGN * PLAN_BUFFER_ALIGN;
}

void pipe_cost_make(PipeCost* out, const MicrobatchProblem* problem, const MachineRank* rank, int32_t s,
                    RecomputeMode mode, const CostJobs* jobs, int64_t in_bytes) {
    bool first = s == 0, last = s == problem->P - 1, buffers = problem->count_buffers;
    bool drops = problem->costs->recompute_is_job[mode] && mode != RECOMPUTE_NONE;
    int64_t out_bytes = last ? 0 : jobs->boundary_bytes;
    *out = (PipeCost){
        .stored_bytes = buffers ? align_up(jobs->stored_bytes) + align_up(out_bytes) : jobs->stored_bytes,
        .forward_bytes = drops ? align_up(jobs->forward_bytes) + (buffers ? align_up(out_bytes) : 0) : 0,
        .input_bytes = first || !buffers ? 0 : align_up(in_bytes),
        .transfer_ns = last ? 0 : machine_transfer_ns(rank, problem->costs, out_bytes),
        .boundary_bytes = out_bytes,
        .mode = mode,
        .drops = drops,
    };
    memcpy(out->job_ns, jobs->job_ns, sizeof out->job_ns);
    if (!drops) { out->job_ns[JOB_R] = 0; }
    if (rank == NULL) { return; }
    for (int kind = 0; kind < JOB_COUNT; kind++) {
        out->job_ns[kind] = machine_job_ns(rank, (JobKind)kind, out->job_ns[kind]);
    }
}

// One micro-batch on one stage, from the costs of its stage and what the stage before sends.
static void set_cost(ReplicaProblem* replica, const MicrobatchProblem* problem, int32_t s, int32_t m,
                     RecomputeMode mode, const CostJobs* jobs, int64_t in_bytes) {
    int64_t cell = (int64_t)s * replica->pipe.M + m;
    PipeCost* cost = (PipeCost*)(uintptr_t)&replica->pipe.cost[cell];
    const MachineRank* rank = machine_stage(microbatch_ranks(problem, replica->replica), s);
    pipe_cost_make(cost, problem, rank, s, mode, jobs, in_bytes);
    replica->modes[cell] = (uint8_t)mode;
    replica->bytes[cell] = (RankBytes){.acts_bytes = jobs->stored_bytes,
                                       .forward_bytes = cost->drops ? jobs->forward_bytes : 0,
                                       .in_bytes = s == 0 ? 0 : in_bytes,
                                       .out_bytes = cost->boundary_bytes};
    if (jobs->scratch_bytes > replica->scratch_bytes[s]) { replica->scratch_bytes[s] = jobs->scratch_bytes; }
}

void replica_problem_set_limits(ReplicaProblem* replica, const MicrobatchProblem* problem) {
    PipeProblem* pipe = &replica->pipe;
    for (int32_t s = 0; s < pipe->P; s++) {
        const MachineRank* rank = machine_stage(microbatch_ranks(problem, replica->replica), s);
        int64_t available_bytes = microbatch_available(problem, rank, &problem->stages[s]);
        pipe->memory_limit_bytes[s] = INT64_MAX;
        if (available_bytes == COST_LIMIT) { continue; }
        if (!problem->count_buffers) {
            pipe->memory_limit_bytes[s] = available_bytes;
            continue;
        }
        int64_t gradient_bytes = 0;
        for (int32_t m = 0; m < pipe->M; m++) {
            int64_t bytes = pipe_cost(pipe, s, m)->input_bytes;
            if (bytes > gradient_bytes) { gradient_bytes = bytes; }
        }
        pipe->memory_limit_bytes[s] = available_bytes - align_up(replica->scratch_bytes[s]) - gradient_bytes -
                                      replica->squeeze_bytes[s];
    }
}

static Status replica_problem_alloc(ReplicaProblem* out, int32_t P, int32_t M, Arena* arena) {
    PipeCost* costs;
    PIPE_NEW(costs, arena, PipeCost, (int64_t)P * M);
    PIPE_NEW(out->bytes, arena, RankBytes, (int64_t)P * M);
    PIPE_NEW(out->modes, arena, uint8_t, (int64_t)P * M);
    PIPE_NEW(out->mbs, arena, int32_t, M);
    out->pipe.P = P;
    out->pipe.M = M;
    out->pipe.cost = costs;
    return STATUS_OK;
}

Status replica_problem_make(ReplicaProblem* out, const MicrobatchProblem* problem, const MicrobatchList* list,
                            int32_t r, const int32_t* mbs, int32_t num_mbs, const uint8_t* modes,
                            Arena* arena) {
    ReplicaProblem replica = {.replica = r};
    int32_t P = problem->P;
    TRY(replica_problem_alloc(&replica, P, num_mbs, arena));
    replica.pipe.pulls = machine_pulls(problem->request->machine);
    CostJobs jobs[RECOMPUTE_COUNT][PLAN_MAX_STAGES];
    for (int32_t m = 0; m < num_mbs; m++) {
        const Microbatch* mb = &list->mbs[mbs[m]];
        bool known[RECOMPUTE_COUNT] = {false};
        int64_t in_bytes = 0;
        for (int32_t s = 0; s < P; s++) {
            RecomputeMode mode = modes == NULL ? mb->mode : (RecomputeMode)modes[(int64_t)s * num_mbs + m];
            if (!known[mode]) { microbatch_jobs(jobs[mode], problem, mode, &mb->shape); }
            known[mode] = true;
            set_cost(&replica, problem, s, m, mode, &jobs[mode][s], in_bytes);
            in_bytes = jobs[mode][s].boundary_bytes;
        }
        replica.mbs[m] = mbs[m];
    }
    for (int32_t s = 0; s < P; s++) {
        replica.pipe.tail_ns[s] = cost_reduce_ns(problem->costs, &problem->stages[s], problem->R);
    }
    replica_problem_set_limits(&replica, problem);
    *out = replica;
    return STATUS_OK;
}

void replica_problem_set_mode(ReplicaProblem* replica, const MicrobatchProblem* problem,
                              const MicrobatchList* list, int32_t s, int32_t m, RecomputeMode mode) {
    CostJobs jobs[PLAN_MAX_STAGES];
    const MbShape* shape = &list->mbs[replica->mbs[m]].shape;
    microbatch_jobs(jobs, problem, mode, shape);
    set_cost(replica, problem, s, m, mode, &jobs[s], s > 0 ? jobs[s - 1].boundary_bytes : 0);
    replica_problem_set_limits(replica, problem);
}

Status replica_problem_permute(ReplicaProblem* out, const ReplicaProblem* in, const int32_t* order,
                               Arena* arena) {
    ReplicaProblem replica = *in;
    int32_t P = in->pipe.P, M = in->pipe.M;
    TRY(replica_problem_alloc(&replica, P, M, arena));
    PipeCost* costs = (PipeCost*)(uintptr_t)replica.pipe.cost;
    for (int32_t m = 0; m < M; m++) {
        replica.mbs[m] = in->mbs[order[m]];
        for (int32_t s = 0; s < P; s++) {
            int64_t to = (int64_t)s * M + m, from = (int64_t)s * M + order[m];
            costs[to] = in->pipe.cost[from];
            replica.bytes[to] = in->bytes[from];
            replica.modes[to] = in->modes[from];
        }
    }
    *out = replica;
    return STATUS_OK;
}
