/*
balance.h -- M jobs onto R replicas so that the fullest replica is as empty as possible.

Multi-way largest differencing (Karmarkar & Karp 1982; spec section d): start with one R-tuple of bins per
job, merge the two tuples of the largest spread, the fullest bin of one with the emptiest of the other, until
one is left. Then moves and swaps while they lower the fullest replica. Every replica gets a job where M >= R;
where M < R, R - M replicas stay empty. Deterministic: ties go to the smaller index.
*/
#pragma once

#include "../dynapipe_plugin/plan/problem.h"

// replica_of[i] in [0, R) for each of the M jobs. O(M (R + log M)), and a bounded number of swaps.
Status balance_assign(int32_t* replica_of, const int64_t* work_ns, int32_t M, int32_t R, Arena* arena);

// Largest differencing alone, as the original does it: replicas in ascending order of their sums.
Status balance_difference(int32_t* replica_of, const int64_t* work_ns, int32_t M, int32_t R, Arena* arena);

// The same where replica r takes slow[r] times as long for a job: largest jobs first, each to the replica
// that then ends first.
Status balance_slow(int32_t* replica_of, const int64_t* work_ns, const double* slow, int32_t M, int32_t R,
                    Arena* arena);

// Replica r runs micro-batches mbs[begin[r]] .. mbs[begin[r + 1] - 1] of the list, in list order.
typedef struct {
    int32_t R;
    int32_t begin[PLAN_MAX_REPLICAS + 1];
    int32_t* mbs;      // [num_mbs] indices into MicrobatchList.mbs
    int64_t* work_ns;  // [R] sum of work_ns
} ReplicaMbs;

// Keeps replicas that the batching pass chose; balances where it did not. slow: [R], as above; NULL: all
// alike.
Status balance_replicas(ReplicaMbs* out, const MicrobatchList* list, int32_t R, const double* slow,
                        Arena* arena);
