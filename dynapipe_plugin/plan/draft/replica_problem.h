/*
replica_problem.h -- the scheduling problem of one replica, from its micro-batches and the cost model (pipe_costs.h has what counts).
*/
#pragma once

#include "../instructions.h"
#include "../problem.h"

typedef struct {
    PipeProblem pipe;
    int32_t replica;                          // whose ranks run it
    RankBytes* bytes;                         // [rows * M]
    int64_t scratch_bytes[PLAN_MAX_STAGES];   // the largest micro-batch's
    int64_t headroom_bytes[PLAN_MAX_STAGES];  // taken from the limit, see above
    int32_t* mbs;                             // [M] into MicrobatchList.mbs, in the order they enter stage 0
    uint8_t* modes;                           // [K * M] RecomputeMode
} ReplicaProblem;

// Micro-batches mbs[0 .. num_mbs) of the list on the ranks of a replica. modes: [K * num_mbs], NULL: what the
// batching pass assumed. Borrows the problem, whose placement it has.
Status replica_problem_make(ReplicaProblem* out, const PlanProblem* problem, const MicrobatchList* list,
                            int32_t r, const int32_t* mbs, int32_t num_mbs, const uint8_t* modes,
                            Arena* arena);

// Recompute mode of one micro-batch in one chunk.
void replica_problem_set_mode(ReplicaProblem* replica, const PlanProblem* problem, const MicrobatchList* list,
                              int32_t k, int32_t m, RecomputeMode mode);

// The same problem with micro-batch order[i] at place i.
Status replica_problem_permute(ReplicaProblem* out, const ReplicaProblem* in, const int32_t* order,
                               Arena* arena);

// memory_limit_bytes from the available bytes, scratch and headroom_bytes.
void replica_problem_set_limits(ReplicaProblem* replica, const PlanProblem* problem);
