/*
microbatch.h -- micro-batches of one global batch: what a batching pass answers.

    MicrobatchList      micro-batches of all replicas together
    MicrobatchBuild     a pass: PlanProblem -> list               (batching_policies.h has the table)

In every list each sample is in exactly one segment, and every micro-batch fits in memory when it is alone on
its stage. No list is ever empty (num_samples >= 1).
*/
#pragma once

#include "../../../util/arena.h"
#include "microbatch_cost.h"

typedef struct {
    MbLayout layout;
    RecomputeMode mode;  // on all stages; what the pass assumed, a later pass may choose again
    int32_t replica;     // -1: left to balance_replicas
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
typedef int32_t MicrobatchCandidates(MicrobatchTaper* out, int32_t max, const PlanProblem* problem);

// `taper` is one of the candidates; NULL: the policy's default. List and temporaries live in `arena`.
// STATUS_INFEASIBLE names tokens, stage, bytes over, and a remedy.
typedef Status MicrobatchBuild(MicrobatchList* out, const PlanProblem* problem, const MicrobatchTaper* taper,
                               Arena* arena);

// Building a list: reserve, then for every micro-batch: open, add_sequence..., close.
Status microbatch_list_reserve(MicrobatchList* list, int32_t max_mbs, int32_t num_samples, Arena* arena);
void microbatch_list_open(MicrobatchList* list, MbLayout layout, RecomputeMode mode);
// One sequence of the `num` samples ids[]; padded to these lengths, which are at least the sums.
void microbatch_list_add(MicrobatchList* list, const PlanProblem* problem, const int32_t* ids, int32_t num,
                         int32_t enc_tokens, int32_t dec_tokens);
void microbatch_list_close(MicrobatchList* list, const PlanProblem* problem);

// One micro-batch of these samples, one sequence each: ragged, or padded to the longest (shape_rules.h; of
// the decoder's side up to max_target_tokens).
void microbatch_list_append(MicrobatchList* list, const PlanProblem* problem, MbLayout layout,
                            RecomputeMode mode, const int32_t* ids, int32_t num);
// What the longest of num_seqs samples is padded to; num_seqs 0: at least, among any number.
int32_t microbatch_pad_tokens(const PlanProblem* problem, int32_t num_tokens, int64_t num_seqs);
int32_t microbatch_pad_targets(const PlanProblem* problem, int32_t num_tokens, int64_t num_seqs);
