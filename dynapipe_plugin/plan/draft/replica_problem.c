// replica_problem.c -- see replica_problem.h.
#include "replica_problem.h"

#include <string.h>

#include "../schedule.h"
#include "pipe_costs.h"

static PipePlace place_of(const ReplicaProblem* replica, const PlanProblem* problem) {
    return (PipePlace){.problem = problem,
                       .ranks = plan_problem_ranks(problem, replica->replica),
                       .placement = &problem->placement,
                       .chunks = problem->chunks,
                       .P = problem->P};
}

static void price(ReplicaProblem* replica, const PlanProblem* problem, const MicrobatchList* list,
                  int32_t m) {
    PipeCost* costs = (PipeCost*)(uintptr_t)replica->pipe.cost;
    PipePlace place = place_of(replica, problem);
    int64_t scratch_bytes = pipe_costs_make(costs + m, replica->bytes + m, replica->pipe.M, &place,
                                            replica->modes + m, replica->pipe.M, &list->mbs[replica->mbs[m]].shape);
    for (int32_t s = 0; s < problem->P; s++) {
        if (scratch_bytes > replica->scratch_bytes[s]) { replica->scratch_bytes[s] = scratch_bytes; }
    }
}

void replica_problem_set_limits(ReplicaProblem* replica, const PlanProblem* problem) {
    PipeProblem* pipe = &replica->pipe;
    for (int32_t s = 0; s < pipe->P; s++) {
        const MachineRank* rank = machine_stage(plan_problem_ranks(problem, replica->replica), s);
        int64_t available_bytes = plan_problem_available(problem, rank, &problem->has[s]);
        pipe->memory_limit_bytes[s] = INT64_MAX;
        if (available_bytes == COST_LIMIT) { continue; }
        if (problem->count_buffers) {
            available_bytes -=
                pipe_passing_bytes(pipe, s, replica->scratch_bytes[s]) + replica->headroom_bytes[s];
        }
        pipe->memory_limit_bytes[s] = available_bytes;
    }
}

static Status replica_problem_alloc(ReplicaProblem* out, int32_t num_rows, int32_t K, int32_t M,
                                    Arena* arena) {
    PipeCost* costs;
    ARENA_TRY_NEW(costs, arena, PipeCost, (int64_t)num_rows * M);
    ARENA_TRY_NEW(out->bytes, arena, RankBytes, (int64_t)num_rows * M);
    ARENA_TRY_NEW(out->modes, arena, uint8_t, (int64_t)K * M);
    ARENA_TRY_NEW(out->mbs, arena, int32_t, M);
    out->pipe.cost = costs;
    return STATUS_OK;
}

Status replica_problem_make(ReplicaProblem* out, const PlanProblem* problem, const MicrobatchList* list,
                            int32_t r, const int32_t* mbs, int32_t num_mbs, const uint8_t* modes,
                            Arena* arena) {
    ReplicaProblem replica = {.replica = r};
    Placement* placement;
    TRY(replica_problem_alloc(&replica, problem->num_rows, problem->K, num_mbs, arena));
    ARENA_TRY_NEW(placement, arena, Placement, 1);
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

void replica_problem_set_mode(ReplicaProblem* replica, const PlanProblem* problem, const MicrobatchList* list,
                              int32_t k, int32_t m, RecomputeMode mode) {
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
    ARENA_TRY_NEW(placement, arena, Placement, 1);
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
