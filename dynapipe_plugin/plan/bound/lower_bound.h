/*
lower_bound.h -- no plan for this batch, on these stages and replicas, can be faster.

    work     all unpadded work, nothing recomputed, spread evenly over P * R ranks
    chain    the longest single sample through all chunks and back, then its weight gradients and reduction
    stage    for each stage: earliest arrival at its lowest chunk + its share of the work, of all its chunks
and its share of the head + what must follow; or the earliest gradient at its highest chunk + backward work;
with one micro-batch's constants, or those that memory enforces memory   the same with bytes x minimum
residence / free memory, weighed against work (bound_memory.h) replica  the slowest replica's share of samples
that cannot be divided evenly, and its gradient reduction; 0 with one replica bound    the largest

It holds for every composition of micro-batches, padded or not, every recompute mode offered, both memory
rules, and for joint and split backward: jobs only grow with their shape (cost_model_check), and where a
formula is not a straight line through 0, work is charged along a line below it (bound_line.h). And for all
that the request leaves open (BoundFreedom):
    nothing                 the placement and head that are given
    layers between stages   every contiguous split with one chunk a stage and a whole head, the head alone on
                            the last stage included: the best of them by dynamic program, memory of every
                            stage included (bound_split.h)
    anything else           every placement of at least one chunk a stage, and every head that may be chosen
                            (bound_free.h): `stage` is then even work behind the earliest arrivals, or a whole
                            head between all forwards and backwards; `memory` that of all stages together
Not counted: padding, the constants of micro-batches that memory does not enforce, and how unequal
micro-batches get in each other's way. Of a shared head: links that are busy with other messages, factors.
test_lower_bound.c, test_optimum_bound.c
*/
#pragma once

#include "../problem/microbatch.h"

typedef struct {
    int64_t work_ns;
    int64_t chain_ns;
    int64_t stage_ns;
    int64_t memory_ns;  // 0: no limit, or no more than stage_ns
    int64_t replica_ns;
    int64_t bound_ns;
    int32_t chain_sample;  // the sample of the longest chain
    int32_t stage;         // the stage of the largest stage bound; -1 where the placement is not given
} LowerBound;

// joint_backward: no plan in question splits B and W, so a stage's last job is followed by backwards
// upstream. STATUS_NO_MEMORY of the host, and then a bound of 0, which is true of any plan; or STATUS_OK.
Status lower_bound_make(LowerBound* out, const PlanProblem* problem, bool joint_backward);
