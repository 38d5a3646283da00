/*
lower_bound.h -- no plan for this batch, on these stages and replicas, can be faster.

    work     all unpadded work, nothing recomputed, spread evenly over P * R ranks
    chain    the longest single sample through all stages and back, then its weight gradients and reduction
    stage    for each stage: earliest arrival + its share of the work + what must follow it; or the earliest
             gradient + backward work; with one micro-batch's constants, or those that memory enforces
    memory   the same with bytes x minimum residence / free memory, weighed against work (bound_memory.h)
    replica  the slowest replica's share of samples that cannot be divided evenly, and its gradient reduction;
             0 with one replica
    bound    the largest

It holds for every composition of micro-batches, padded or not, every recompute mode offered, both memory
rules, and for joint and split backward: jobs only grow with their shape (cost_model_check), and where a
formula is not a straight line through 0, work is charged along a line below it (bound_line.h). Where the
request lets the planner move layers (choose_stages) it holds for every contiguous split, the head alone on
the last stage included: the best of them is looked for by dynamic program, memory of every stage included
(bound_split.h). Not counted: padding, and how unequal micro-batches get in each other's way.
test_lower_bound.c, test_optimum.c
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
    int32_t stage;         // the stage of the largest stage bound; -1 with choose_stages
} LowerBound;

// joint_backward: no plan in question splits B and W, so a stage's last job is followed by backwards
// upstream. STATUS_NO_MEMORY of the host, and then a bound of 0, which is true of any plan; or STATUS_OK.
Status lower_bound_make(LowerBound* out, const MicrobatchProblem* problem, bool joint_backward);
