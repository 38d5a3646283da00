/*
pipe_problem.h -- the scheduling problem of one replica, from its micro-batches and the cost model.

Bytes of a micro-batch on a stage, each rounded up to PLAN_BUFFER_ALIGN, as the policies count them:
    stored   acts + out        (what is sent forward, then the gradient that comes back for it)
    forward  forward + out     (where F drops its activations)
    input    in
Scratch, and one gradient to send (as large as an input), are taken from the limit beforehand. This is close
to what rank_list makes of it, not the same: the layout decides, and `squeeze_bytes` lowers a stage's limit
where it came out larger.
*/
#pragma once

#include "../lists/rank_list.h"
#include "../problem/microbatch.h"

typedef struct {
    PipeProblem pipe;
    int32_t replica;                         // whose ranks run it
    RankBytes* bytes;                        // [P * M]
    int64_t scratch_bytes[PLAN_MAX_STAGES];  // the largest micro-batch's
    int64_t squeeze_bytes[PLAN_MAX_STAGES];  // taken from the limit, see above
    int32_t* mbs;                            // [M] into MicrobatchList.mbs, in the order they enter stage 0
    uint8_t* modes;                          // [P * M] RecomputeMode
} ReplicaProblem;

// What the scheduling problem has of one micro-batch on one stage, which receives in_bytes from the stage
// before, on this rank (NULL: an average one).
void pipe_cost_make(PipeCost* out, const MicrobatchProblem* problem, const MachineRank* rank, int32_t s,
                    RecomputeMode mode, const CostJobs* jobs, int64_t in_bytes);

// Micro-batches mbs[0 .. num_mbs) of the list on the ranks of a replica. modes: [P * num_mbs], NULL: what the
// batching pass assumed.
Status replica_problem_make(ReplicaProblem* out, const MicrobatchProblem* problem, const MicrobatchList* list,
                            int32_t r, const int32_t* mbs, int32_t num_mbs, const uint8_t* modes,
                            Arena* arena);

// Recompute mode of one micro-batch on one stage.
void replica_problem_set_mode(ReplicaProblem* replica, const MicrobatchProblem* problem,
                              const MicrobatchList* list, int32_t s, int32_t m, RecomputeMode mode);

// The same problem with micro-batch order[i] at place i.
Status replica_problem_permute(ReplicaProblem* out, const ReplicaProblem* in, const int32_t* order,
                               Arena* arena);

// memory_limit_bytes from the available bytes, scratch and squeeze_bytes.
void replica_problem_set_limits(ReplicaProblem* replica, const MicrobatchProblem* problem);
