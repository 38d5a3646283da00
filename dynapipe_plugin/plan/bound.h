/*
bound.h -- a lower bound: no plan for this batch, on these stages and replicas, can be faster.

    work     all work, unpadded, nothing recomputed, spread evenly over P * R ranks
    chain    the longest single sample through all chunks and back, then its weight gradients and reduction;
             where samples may be cut, the longest of its pieces
    stage    earliest arrival at a stage + a replica's share of the stage's work, with one microbatch's
             constants + its reduction, of the stage for which this is longest
    bound    the largest of these

It holds for every composition of microbatches, padded or not, and every recompute mode offered: jobs only
grow with their shape (cost_model_check), and work is counted along a line below each cost formula. Memory is
not considered. It covers everything that the request leaves open:

    nothing                 the given placement and head
    layers between stages   the best of all contiguous splits with one chunk a stage and a whole head, by
                            dynamic programming; the head alone on the last stage included
    anything else           every placement with at least one chunk a stage, and every head that may be
                            chosen: even work after the earliest arrivals

Tests: test_bound.c, test_optimum_bound.c
*/
#pragma once

#include "problem.h"

typedef struct {
    int64_t work_ns, chain_ns, stage_ns;
    int64_t bound_ns;
} LowerBound;

void lower_bound_make(LowerBound* out, const PlanProblem* problem);
