/*
microbatch.h -- the question every batching pass is asked, and the answer it gives.

    MicrobatchProblem   samples, costs, stages, memory            (filled by microbatch_problem_init)
    MicrobatchList      micro-batches of one global batch, all replicas together
    MicrobatchBuild     a pass: problem -> list                   (batching_policies.h has the table)

Every pass is pure: integers decide, ties go to the smaller sample id. In every list each sample is in exactly
one segment, and every micro-batch fits in memory when it is alone on its stage. No list is ever empty
(num_samples >= 1).

Memory of one micro-batch on stage s (buffers only where count_buffers):
    held  = acts + in            from F to B; several micro-batches at a time, at most held_limit_bytes[s]
each alone = the larger of B: acts + 2 in + out, and F: acts (or forward_bytes, where it keeps nothing) + in +
out, plus scratch         must fit in available_bytes[s]
*/
#pragma once

#include "../../base/arena.h"
#include "../cost/cost_table.h"
#include "../cost/machine.h"
#include "../types/plan_request.h"

typedef struct {
    const PlanRequest* request;
    const CostModel* costs;
    CostTable table;            // of costs, for inner loops
    const PlanSample* samples;  // index = sample id
    int32_t num_samples;
    int32_t P, R;
    CostStage stages[PLAN_MAX_STAGES];
    // Of the machine (machine.h), for passes that do not know which replica they work for.
    int64_t limit_bytes[PLAN_MAX_STAGES];       // memory of the stage's ranks: the least; 0: no limit
    int64_t most_limit_bytes[PLAN_MAX_STAGES];  // the most; 0: no limit on some rank
    double stage_slow[PLAN_MAX_STAGES];         // how long jobs take there, the mean over replicas ...
    double replica_slow[PLAN_MAX_REPLICAS];     // ... and in a replica, links considered, relative to others
    bool differs;                               // false: these are all 1
    bool has_limit;                             // any rank
    int64_t available_bytes[PLAN_MAX_STAGES];   // limit_bytes - model state; COST_LIMIT where there is none
    int64_t
        reserve_bytes[PLAN_MAX_STAGES];  // of these, what the search leaves free for buffers (0 after init)
    bool count_buffers;  // received and sent activations and scratch count (request->memory_rule)
    int32_t num_modes;   // recompute modes a pass may use, in the order they are tried
    RecomputeMode modes[RECOMPUTE_COUNT];
} MicrobatchProblem;

typedef struct {
    MbLayout layout;
    RecomputeMode mode;  // on all stages; what the pass assumed, a later pass may choose again
    int32_t replica;     // -1: left to replica_balance
    int32_t sequence_begin, sequence_end;  // into MicrobatchList.sequences
    MbShape shape;
    int64_t work_ns;  // all jobs of this micro-batch on its slowest stage
} Microbatch;

// mbs are in the order they should enter stage 0 (per replica where `replica` is set): a later pass may
// choose another.
typedef struct {
    int32_t num_mbs, num_sequences, num_segments;
    Microbatch* mbs;
    PlanSequence* sequences;
    PlanSegment* segments;
    int64_t objective_ns;  // what the pass minimised, 0 where it minimised nothing
} MicrobatchList;

// One point of the search that planner.c makes with the simulator in the loop.
typedef struct {
    int32_t num_mbs;       // ragged: micro-batches per replica
    int32_t depth;         // ragged: this many at each end are smaller than the body
    int32_t end_percent;   // ragged: work of the first and last, in percent of the body's; 1..100
    int32_t ramp_percent;  // padded: how much of (P - 1) * t_max the objective charges; 0..100
} MicrobatchTaper;

// Candidates, most promising first; returns how many (1..max). NULL where build takes no parameters.
typedef int32_t MicrobatchCandidates(MicrobatchTaper* out, int32_t max, const MicrobatchProblem* problem);

// `taper` is one of the candidates; NULL: the policy's default. List and temporaries live in `arena`.
// STATUS_INFEASIBLE names tokens, stage, bytes over, and a remedy.
typedef Status MicrobatchBuild(MicrobatchList* out, const MicrobatchProblem* problem,
                               const MicrobatchTaper* taper, Arena* arena);

// STATUS_INFEASIBLE where the model state alone exceeds the limit; STATUS_BAD_OPTION where the cost model
// offers no recompute mode that the request allows. Borrows all arguments.
Status microbatch_problem_init(MicrobatchProblem* out, const PlanRequest* request, const CostModel* costs,
                               const PlanSample* samples, int32_t num_samples);

// has_limit and the limits of all stages, by what the request says now.
void microbatch_problem_limit(MicrobatchProblem* out);

// The ranks of a replica, NULL: all alike; and what one has for activations, COST_LIMIT where there is no
// limit.
const MachineRank* microbatch_ranks(const MicrobatchProblem* problem, int32_t replica);
int64_t microbatch_available(const MicrobatchProblem* problem, const MachineRank* rank,
                             const CostStage* stage);

// What one micro-batch costs on every stage of an average rank: [P].
void microbatch_jobs(CostJobs* out, const MicrobatchProblem* problem, RecomputeMode mode,
                     const MbShape* shape);

// [R], or NULL: all alike.
static inline const double* microbatch_replica_slow(const MicrobatchProblem* problem) {
    return problem->differs ? problem->replica_slow : NULL;
}

// What takes so long on an average rank, on those of stage s.
static inline int64_t microbatch_stage_ns(const MicrobatchProblem* problem, int32_t s, int64_t work_ns) {
    return problem->differs ? cost_round((double)work_ns * problem->stage_slow[s]) : work_ns;
}

// F + B + W + R on the slowest stage.
int64_t microbatch_work_ns(const MicrobatchProblem* problem, RecomputeMode mode, const MbShape* shape);

// Bytes on stage s (see the top).
int64_t microbatch_alone_bytes(const MicrobatchProblem* problem, int32_t s, RecomputeMode mode,
                               const MbShape* shape);

// Everything about one shape at once, each part of the cost model evaluated once: for inner loops.
typedef struct {
    int64_t work_ns;
    bool fits_alone;  // alone <= available on every stage, and the kernels take it
    bool fits_held;   // and held <= available / share on every stage
} MicrobatchCost;

// How many micro-batches a stage should be able to hold: P - s (what 1F1B keeps in flight), or P everywhere
// as the original does, or 1 (no share).
typedef enum { SHARE_ALONE, SHARE_PIPELINE, SHARE_UNIFORM } MicrobatchShare;
MicrobatchCost microbatch_cost(const MicrobatchProblem* problem, RecomputeMode mode, MicrobatchShare share,
                               const MbShape* shape);

// The message for a micro-batch that does not fit alone in any allowed mode; `what` begins it, e.g. "sample
// 17".
Status microbatch_infeasible(const MicrobatchProblem* problem, const MbShape* shape, const char* what);

// Building a list: reserve, then for every micro-batch: open, add_sequence..., close.
Status microbatch_list_reserve(MicrobatchList* list, int32_t max_mbs, int32_t num_samples, Arena* arena);
void microbatch_list_open(MicrobatchList* list, MbLayout layout, RecomputeMode mode);
// One sequence of the `num` samples ids[]; padded to these lengths, which are at least the sums.
void microbatch_list_add(MicrobatchList* list, const MicrobatchProblem* problem, const int32_t* ids,
                         int32_t num, int32_t enc_tokens, int32_t dec_tokens);
void microbatch_list_close(MicrobatchList* list, const MicrobatchProblem* problem);

// One micro-batch of these samples, one sequence each: ragged, or padded to the longest (shape_rules.h; of
// the decoder's side up to max_target_tokens).
void microbatch_list_append(MicrobatchList* list, const MicrobatchProblem* problem, MbLayout layout,
                            RecomputeMode mode, const int32_t* ids, int32_t num);
// What the longest of num_seqs samples is padded to; num_seqs 0: at least, among any number.
int32_t microbatch_pad_tokens(const MicrobatchProblem* problem, int32_t num_tokens, int64_t num_seqs);
int32_t microbatch_pad_targets(const MicrobatchProblem* problem, int32_t num_tokens, int64_t num_seqs);

// The recompute mode of a finished list: the first in which every micro-batch keeps to its share of memory,
// else the first in which each fits alone. `unit` names its micro-batches in the message.
Status microbatch_list_choose_mode(MicrobatchList* list, const MicrobatchProblem* problem, const char* unit);

// Every sample in exactly one segment, ranges sane, shapes and work as the sequences say, all fit alone.
Status microbatch_list_check(const MicrobatchList* list, const MicrobatchProblem* problem, Arena* arena);
