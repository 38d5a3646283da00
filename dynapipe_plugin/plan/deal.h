/*
deal.h -- which samples a replica computes, and in which of its microbatches: largest first, each where it
fills least (LPT, Graham 1969). The search asks for them by number and size of microbatches; what was asked
for before is kept.
*/
#pragma once

#include "problem.h"

// Which samples a replica computes, and in which of its num_mbs microbatches each is; of one that is cut, the
// last piece.
typedef struct {
    int32_t num_ids, num_mbs;
    int32_t *ids, *mb_of;  // [num_ids]; mb_of NULL: not filled yet
    PlanSegment* piece;    // [num_mbs], as in ReplicaProblem; NULL: no sample is cut
} Share;

// The samples as about num_mbs microbatches of each replica.
typedef struct Deal {
    int32_t num_mbs;
    int32_t end_percent;  // size of the first and last, in percent of the body's; P at each end grow from it
    int32_t num_pieces;   // of the longest sample; no other sample's are longer than these; 1: all are whole
    Share* shares;        // [R]
    struct Deal* next;
} Deal;

typedef struct {
    const PlanProblem* problem;
    const int32_t* replica;  // [R]: the problem's number of ours
    bool is_padded;
    int32_t num_weights;    // 1, or 2: work in encoder layers and in decoder layers
    int64_t* weight[2];     // [num_samples] in 2^-40 of the batch ...
    double sum_ns[2];       // ... which takes so long
    double most_causal_ns;  // of a sample, in the stack that may be cut
    int32_t* by_size;       // [num_samples] ids, largest first
    Share* dealt;           // [R] ragged: the samples of each replica, largest first
    Deal* deals;
    int64_t spent;       // in jobs simulated, since the caller set it to 0
    Arena lists, tries;  // kept; of one call
} Dealer;

// Weighs the samples and deals them to replicas. dealer_free() also after an error.
Status dealer_make(Dealer* out, const PlanProblem* problem, const int32_t* replica);
void dealer_free(Dealer* dealer);
// Replica r's samples in microbatches. They stay until dealer_free().
Status dealer_share(const Share** out, Dealer* dealer, int32_t num_mbs, int32_t end_percent,
                    int32_t num_pieces, int32_t r);
// What a sample weighs, in the stack where it weighs more.
int64_t dealer_size_of(const Dealer* dealer, int32_t id);
// The longest sample, of an average one of num_mbs microbatches of a replica.
double dealer_longest_part(const Dealer* dealer, int64_t num_mbs);

MbShape average_shape(const PlanProblem* problem, int64_t num_mbs);
// Of num samples, padded to enc and dec tokens.
MbShape padded_shape(const PlanProblem* problem, int64_t num, int32_t enc, int32_t dec, int64_t supervised);

typedef struct {
    int64_t key;
    int32_t id;
} Keyed;

// For qsort: descending, ties to the smaller id.
int compare_keyed(const void* a, const void* b);
