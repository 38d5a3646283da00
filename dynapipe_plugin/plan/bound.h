/*
bound.h -- a lower bound: no plan for this batch, on these stages and replicas, can be faster.

    work     all work, unpadded, nothing recomputed, spread evenly over P * R ranks
    chain    the longest single sample through all chunks and back, then its weight gradients and reduction
    stage    for each stage: earliest arrival at its lowest chunk + a replica's share of the work of all its
             chunks, with one micro-batch's constants + what must follow
    memory   the same for the stages of a given placement, where bytes x the time they must be held are
             weighed against work (bound.c)
    bound    the largest of these

It holds for every composition of micro-batches, padded or not, every recompute mode offered, both memory
rules, and for joint and split backward: jobs only grow with their shape (cost_model_check), and where a
formula is not a straight line through 0, work is counted along a line below it. It covers everything that
the request leaves open:

    nothing                 the given placement and head
    layers between stages   every contiguous split with one chunk a stage and a whole head, the head alone
                            on the last stage included: the best of them, by dynamic programming. Ranges
                            without room for the largest samples are impossible (`memory` is that bound
                            where it is larger)
    anything else           every placement with at least one chunk a stage, and every head that may be
                            chosen: even work after the earliest arrivals

Not counted: padding, constants of more than one micro-batch, delays that unequal micro-batches cause each
other; of a shared head, links busy with other messages, and factors. Why no other bounds:
dev/results/bound.md. Tests: test_bound.c, test_optimum_bound.c
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
