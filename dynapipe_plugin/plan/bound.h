/*
bound.h -- no plan for this batch, on these stages and replicas, can be faster.

    work     all work, unpadded, nothing recomputed, spread evenly over P * R ranks
    chain    the longest single sample through all chunks and back, then its weight gradients and reduction
    stage    for each stage: earliest arrival at its lowest chunk + a replica's share of the work of all it
has, with one micro-batch's constants + what must follow memory   the same, of the stages of a given
placement, where bytes x the time they must be held are weighed against work (see bound.c) bound    the
largest

It holds for every composition of micro-batches, padded or not, every recompute mode offered, both memory
rules, and for joint and split backward: jobs only grow with their shape (cost_model_check), and where a
formula is not a straight line through 0, work is charged along a line below it. And for all that the request
leaves open: nothing                 the placement and head that are given layers between stages   every
contiguous split with one chunk a stage and a whole head, the head alone on the last stage included: the best
of them by dynamic program; ranges that leave no room for the largest samples are impossible (`memory` is that
bound, where it is more) anything else           every placement of at least one chunk a stage, and every head
that may be chosen: even work after the earliest arrivals Measured on 75 problems (dev/results/bound.md): what
else was tried decided none of them, or little. Not counted: padding, constants of more than one micro-batch,
and how unequal micro-batches get in each other's way. Of a shared head: links that are busy with other
messages, factors. test_bound.c, test_optimum_bound.c
*/
#pragma once

#include "problem.h"

typedef struct {
    int64_t work_ns;
    int64_t chain_ns;
    int64_t stage_ns;
    int64_t memory_ns;  // 0: no limit, or no more than stage_ns
    int64_t bound_ns;
    int32_t chain_sample;  // the sample of the longest chain
    int32_t stage;         // the stage of the largest stage bound; -1 where the placement is not given
} LowerBound;

// joint_backward: no plan in question splits B and W, so a stage's last job is followed by backwards
// upstream. STATUS_NO_MEMORY of the host, and then a bound of 0, which is true of any plan; or STATUS_OK.
Status lower_bound_make(LowerBound* out, const PlanProblem* problem, bool joint_backward);
