/*
pipe_problem.h -- the scheduling problem of one replica, from its micro-batches and the cost model.

Bytes of a micro-batch in a chunk, each rounded up to PLAN_BUFFER_ALIGN, as the policies count them:
    stored   acts + out        (what is sent forward, then the gradient that comes back for it; of the chunk
                               that feeds a shared head: also parts, their sum and factors)
    forward  forward + out     (where F drops its activations)
    input    in
and in a share of the head: stored = acts, and where the last chunk is elsewhere, hidden states, part and
factors. Scratch, and one gradient to send (as large as an input), are taken from the limit beforehand. This
is close to what rank_list makes of it, not the same: the layout decides, and `squeeze_bytes` lowers a stage's
limit where it came out larger.
*/
#pragma once

#include "../lists/rank_list.h"
#include "../problem/microbatch.h"

typedef struct {
    PipeProblem pipe;
    int32_t replica;                         // whose ranks run it
    RankBytes* bytes;                        // [rows * M]
    int64_t scratch_bytes[PLAN_MAX_STAGES];  // the largest micro-batch's
    int64_t squeeze_bytes[PLAN_MAX_STAGES];  // taken from the limit, see above
    int32_t* mbs;                            // [M] into MicrobatchList.mbs, in the order they enter stage 0
    uint8_t* modes;                          // [K * M] RecomputeMode
} ReplicaProblem;

// Where the rows of a pipeline are: what prices of one micro-batch depend on, besides its shape and modes.
typedef struct {
    const MicrobatchProblem* problem;  // costs, memory rule
    const MachineRank* ranks;          // [P] that run it; NULL: all alike
    const Placement* placement;
    const CostStage* chunks;  // [K]
    int32_t P;
} PipePlace;

// What one micro-batch costs on all rows; the entry of row r is out[r * stride]. modes: of chunk k
// modes[k * stride]. bytes, laid out like `out`: for the lists; NULL: not wanted. Returns its scratch bytes.
int64_t pipe_costs_make(PipeCost* out, RankBytes* bytes, int64_t stride, const PipePlace* place,
                        const uint8_t* modes, const MbShape* shape);

// Micro-batches mbs[0 .. num_mbs) of the list on the ranks of a replica. modes: [K * num_mbs], NULL: what the
// batching pass assumed. Borrows the problem, whose placement it has.
Status replica_problem_make(ReplicaProblem* out, const MicrobatchProblem* problem, const MicrobatchList* list,
                            int32_t r, const int32_t* mbs, int32_t num_mbs, const uint8_t* modes,
                            Arena* arena);

// Recompute mode of one micro-batch in one chunk.
void replica_problem_set_mode(ReplicaProblem* replica, const MicrobatchProblem* problem,
                              const MicrobatchList* list, int32_t k, int32_t m, RecomputeMode mode);

// The same problem with micro-batch order[i] at place i.
Status replica_problem_permute(ReplicaProblem* out, const ReplicaProblem* in, const int32_t* order,
                               Arena* arena);

// memory_limit_bytes from the available bytes, scratch and squeeze_bytes.
void replica_problem_set_limits(ReplicaProblem* replica, const MicrobatchProblem* problem);

// What a stage's limit loses to buffers that no micro-batch holds: scratch, and the largest gradient to send.
int64_t pipe_passing_bytes(const PipeProblem* pipe, int32_t s, int64_t scratch_bytes);
