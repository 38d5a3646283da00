/*
draft.h -- a plan before its instruction lists, and how it becomes one that fits in memory.

    ReplicaProblem  what the microbatches of a replica take and hold on every row of its pipeline
    Draft           what a method decides: microbatches, who runs them in which order, what is recomputed
    ReplicaPlan     one replica of it: schedule, timeline, instruction lists

Bytes of a microbatch in a chunk, each rounded up to PLAN_BUFFER_ALIGN, as schedules count them:
    stored   acts + out        (what is sent forward, then the gradient that comes back for it; of the chunk
                               that feeds a shared head: also parts, their sum and factors)
    forward  forward + out     (where F drops its activations)
    input    in
and in a share of the head: stored = acts, and where the last chunk is elsewhere, hidden states, part and
factors. Scratch, and one gradient to send (as large as an input), are taken from the limit beforehand. The
lists may still come out larger: then a stage's limit is lowered by headroom_bytes.
*/
#pragma once

#include "instructions.h"
#include "problem.h"
#include "schedule.h"
#include "simulate.h"

// --- what a replica's microbatches cost ------------------------------------------------------------------

// The pieces of the model on the ranks of one replica.
typedef struct {
    const PlanProblem* problem;  // costs, memory rule
    const MachineRank* ranks;    // [P]; NULL: all alike
    Placement placement;
    CostStage chunks[PLAN_MAX_CHUNKS];
    int64_t limit_bytes[PLAN_MAX_STAGES], state_bytes[PLAN_MAX_STAGES];  // 0: no limit
    int64_t available_bytes[PLAN_MAX_STAGES];                            // for activations; COST_LIMIT: any
    int64_t tail_ns[PLAN_MAX_STAGES];
} PipePlace;

// False: the model state of some stage does not fit.
bool pipe_place_make(PipePlace* out, const PlanProblem* problem, const Placement* placement, int32_t replica);

// M microbatches there, without costs or limits.
PipeProblem pipe_place_problem(const PipePlace* place, int32_t M);

// The cost of one microbatch on all rows: of row r in out[r * stride]. modes: [K]. bytes, laid out like
// `out`: for the lists; NULL: not wanted. cut: the sample whose first piece is in it; NULL: none. Returns its
// scratch bytes.
int64_t pipe_costs_make(PipeCost* out, RankBytes* bytes, int64_t stride, const PipePlace* place,
                        const uint8_t* modes, const MbShape* shape, const PlanSample* cut);

typedef struct {
    const PipePlace* place;
    PipeProblem pipe;
    char* block;                              // these arrays in one block, so that a copy is one memcpy
    PipeCost* cost;                           // [rows * M] = pipe.cost
    MbShape* shape;                           // [M]
    PlanSegment* piece;                       // [M] of a cut sample, in it; num_tokens 0: none
    int32_t* piece_before;                    // [M] = pipe.piece_before, where there are pieces
    int64_t* scratch_bytes;                   // [M]
    uint8_t* modes;                           // [M * K] RecomputeMode
    RankBytes* bytes;                         // [rows * M]; NULL: not wanted
    int32_t* mbs;                             // [M] into MicrobatchList.mbs, in the order they enter stage 0
    int64_t headroom_bytes[PLAN_MAX_STAGES];  // taken from the limit ...
    bool may_split;  // ... down to what the largest microbatch needs alone, here: that of one sample
} ReplicaProblem;

// Sets `block` and the arrays in it; returns their bytes.
size_t replica_problem_layout(ReplicaProblem* replica, char* block);
// Which microbatch has which piece: after `piece` has changed.
void replica_problem_link(ReplicaProblem* replica);
// Costs of microbatch m, after its shape, piece or modes have changed; then, the limits of all stages.
void replica_problem_price(ReplicaProblem* replica, int32_t m);
void replica_problem_limit(ReplicaProblem* replica);

// Microbatches mbs[0 .. num_mbs) of the list, in this order, on replica r. modes: [num_mbs * K]; NULL: the
// list's.
Status replica_problem_make(ReplicaProblem* out, const PlanProblem* problem, const MicrobatchList* list,
                            int32_t r, const int32_t* mbs, int32_t num_mbs, const uint8_t* modes,
                            Arena* arena);

// --- drafts -----------------------------------------------------------------------------------------------

// How the order of jobs is made.
typedef struct {
    const char* name;          // "1f1b", "adaptive", with "+w" where backward is split
    const PipePolicy* policy;  // NULL: one microbatch after the other
    bool split_backward, has_rule;
    PipeAdaptiveRule rule;  // of pipe_policy_adaptive, where has_rule
} PipeVariant;

Status pipe_variant_build(PipeSchedule* out, const PipeProblem* pipe, const int32_t* order,
                          const PipeVariant* variant, Arena* arena);

typedef struct {
    PipeVariant variant;
    int32_t M;
    int32_t* mbs;         // [M] into Draft.list, in the order they enter stage 0
    uint8_t* modes;       // [M * K] RecomputeMode; NULL: what each microbatch assumed
    int64_t makespan_ns;  // INT64_MAX: does not fit as it is
} DraftReplica;

typedef struct SearchHint SearchHint;

typedef struct {
    MicrobatchList list;
    DraftReplica* replica;  // [R]
    Placement placement;
    int64_t makespan_ns;     // of the slowest
    const SearchHint* hint;  // search.c: where a later search may begin
} Draft;

// --- fit into memory --------------------------------------------------------------------------------------

typedef struct {
    ReplicaProblem problem;
    int32_t replica;
    PipeVariant variant;
    PipeSchedule schedule;
    PipeTimeline timeline;
    PlanRank ranks[PLAN_MAX_STAGES];
    int64_t over_bytes[PLAN_MAX_STAGES];  // what the last attempt needed beyond the limit
} ReplicaPlan;

// Replica r of the draft, headroom_bytes taken from the limits of its stages. over_bytes[s] is raised to the
// bytes by which stage s exceeds its limit. Then, until it fits:
//     1. schedule auto: adaptive in place of a policy that does not look at memory
//     2. adaptive: the limits are lowered by what the lists are over, a few times
//     3. where `admit`: fewer microbatches are in flight, first in the chunks of that stage
//     4. where allowed: the microbatches that hold most on that stage are recomputed
//     5. auto, adaptive: one microbatch after the other
// STATUS_INFEASIBLE names stage, bytes over, and what would help. Problem and order lie in `arena`; scratch
// is reset.
Status replica_plan_fit(ReplicaPlan* out, int64_t over_bytes[PLAN_MAX_STAGES], const PlanProblem* problem,
                        const Draft* draft, int32_t r, const int64_t* headroom_bytes, bool admit,
                        Arena* arena, Arena* scratch);

// Its instruction lists, in `arena`; first_mb is the number of its first microbatch in the plan.
Status replica_plan_emit(ReplicaPlan* plan, int32_t first_mb, Arena* arena);
