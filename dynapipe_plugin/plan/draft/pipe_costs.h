/*
pipe_costs.h -- what one micro-batch takes and holds on every row of a pipeline.

Bytes of a micro-batch in a chunk, each rounded up to PLAN_BUFFER_ALIGN, as the policies count them:
    stored   acts + out        (what is sent forward, then the gradient that comes back for it; of the chunk
                               that feeds a shared head: also parts, their sum and factors)
    forward  forward + out     (where F drops its activations)
    input    in
and in a share of the head: stored = acts, and where the last chunk is elsewhere, hidden states, part and
factors. Scratch, and one gradient to send (as large as an input), are taken from the limit beforehand. This
is close to what rank_list makes of it, not the same: the layout decides, and `headroom_bytes` lowers a
stage's limit where it came out larger.
*/
#pragma once

#include "../instructions.h"
#include "../problem.h"

// Where the rows of a pipeline are: what prices of one micro-batch depend on, besides its shape and modes.
typedef struct {
    const PlanProblem* problem;  // costs, memory rule
    const MachineRank* ranks;    // [P] that run it; NULL: all alike
    const Placement* placement;
    const CostStage* chunks;  // [K]
    int32_t P;
} PipePlace;

// What one micro-batch costs on all rows; the entry of row r is out[r * stride]. modes: of chunk k
// modes[k * mode_stride]. bytes, laid out like `out`: for the lists; NULL: not wanted. Returns its scratch bytes.
int64_t pipe_costs_make(PipeCost* out, RankBytes* bytes, int64_t stride, const PipePlace* place,
                        const uint8_t* modes, int64_t mode_stride, const MbShape* shape);

// What a stage's limit loses to buffers that no micro-batch holds: scratch, and the largest gradient to send.
int64_t pipe_passing_bytes(const PipeProblem* pipe, int32_t s, int64_t scratch_bytes);
