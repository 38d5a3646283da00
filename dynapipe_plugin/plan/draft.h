/*
draft.h -- a plan before its instruction lists, and how it becomes one that fits in memory.

    Draft        what a method decides: micro-batches, who runs them in which order, what is recomputed
    ReplicaPlan  one replica of it: schedule, timeline, instruction lists

Bytes of a micro-batch in a chunk, each rounded up to PLAN_BUFFER_ALIGN, as schedules count them:
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

// --- prices -----------------------------------------------------------------------------------------------

// The rows of a pipeline and their ranks: what prices of one micro-batch depend on, besides its shape and
// modes.
typedef struct {
    const PlanProblem* problem;  // costs, memory rule
    const MachineRank* ranks;    // [P] that run it; NULL: all alike
    const Placement* placement;
    const CostStage* chunks;  // [K]
    int32_t P;
} PipePlace;

// The cost of one micro-batch on all rows: of row r in out[r * stride]. modes: of chunk k modes[k *
// mode_stride]. bytes, laid out like `out`: for the lists; NULL: not wanted. Returns its scratch bytes.
int64_t pipe_costs_make(PipeCost* out, RankBytes* bytes, int64_t stride, const PipePlace* place,
                        const uint8_t* modes, int64_t mode_stride, const MbShape* shape);

// memory_limit_bytes: what is available, less what no micro-batch holds (scratch, the largest gradient to
// send), less headroom, but no less than what the largest micro-batch (where shapes are given: of one sample)
// needs alone.
void pipe_limits_make(PipeProblem* pipe, const PlanProblem* problem, const int64_t* available_bytes,
                      const int64_t* headroom_bytes, int64_t scratch_bytes, const MbShape* shapes);

// The scheduling problem of one replica.
typedef struct {
    PipeProblem pipe;
    int32_t replica;                          // whose ranks run it
    RankBytes* bytes;                         // [rows * M]
    int64_t scratch_bytes[PLAN_MAX_STAGES];   // the largest micro-batch's
    int64_t headroom_bytes[PLAN_MAX_STAGES];  // taken from the limit
    int32_t* mbs;                             // [M] into MicrobatchList.mbs, in the order they enter stage 0
    uint8_t* modes;                           // [K * M] RecomputeMode
} ReplicaProblem;

// Micro-batches mbs[0 .. num_mbs) of the list, in this order. modes: [K * num_mbs]; NULL: the list's. Borrows
// the problem, whose placement it has.
Status replica_problem_make(ReplicaProblem* out, const PlanProblem* problem, const MicrobatchList* list,
                            int32_t r, const int32_t* mbs, int32_t num_mbs, const uint8_t* modes,
                            Arena* arena);

// --- drafts -----------------------------------------------------------------------------------------------

// How the order of jobs is made.
typedef struct {
    const char* name;          // "1f1b", "adaptive", with "+w" where backward is split
    const PipePolicy* policy;  // NULL: one micro-batch after the other
    bool split_backward, has_rule;
    PipeAdaptiveRule rule;  // of pipe_policy_adaptive, where has_rule
} PipeVariant;

Status pipe_variant_build(PipeSchedule* out, const PipeProblem* pipe, const int32_t* order,
                          const PipeVariant* variant, Arena* arena);

typedef struct {
    PipeVariant variant;
    int32_t M;
    int32_t* mbs;         // [M] into Draft.list, in the order they enter stage 0
    uint8_t* modes;       // [K * M] RecomputeMode; NULL: what each micro-batch assumed
    int64_t makespan_ns;  // INT64_MAX: does not fit as it is
} DraftReplica;

typedef struct {
    MicrobatchList list;
    DraftReplica* replica;  // [R]
    Placement placement;
    int64_t makespan_ns;  // of the slowest
} Draft;

// --- fit into memory --------------------------------------------------------------------------------------

typedef struct {
    ReplicaProblem problem;
    PipeVariant variant;
    PipeSchedule schedule;
    PipeTimeline timeline;
    PlanRank ranks[PLAN_MAX_STAGES];
} ReplicaPlan;

// Replica r of the draft, headroom_bytes taken from the limits of its stages. over_bytes[s] is raised to the
// bytes by which stage s exceeds its limit. Then, until it fits:
//     1. schedule auto: adaptive in place of a policy that does not look at memory
//     2. adaptive: the limits are lowered by what the lists are over, a few times
//     3. where allowed: the micro-batches that hold most on that stage are recomputed
//     4. auto, adaptive: one micro-batch after the other
// STATUS_INFEASIBLE names stage, bytes over, and what would help. Problem and order lie in `arena`; scratch
// is reset.
Status replica_plan_fit(ReplicaPlan* out, int64_t over_bytes[PLAN_MAX_STAGES], const PlanProblem* problem,
                        const Draft* draft, int32_t r, const int64_t* headroom_bytes, Arena* arena,
                        Arena* scratch);

// Its instruction lists, in `arena`; first_mb and first_rank are those of the replica in the plan.
Status replica_plan_emit(ReplicaPlan* plan, const PlanProblem* problem, int32_t first_mb, int32_t first_rank,
                         Arena* arena);
