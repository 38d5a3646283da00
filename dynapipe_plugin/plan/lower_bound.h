/*
lower_bound.h -- no plan for this batch, on these stages and replicas, can be faster.

    work   all unpadded work, nothing recomputed, no per-micro-batch constant, spread evenly over P * R ranks
    chain  the longest single sample through all stages and back, then its weight gradients and reduction
    stage  for each stage: earliest arrival + its share of the work + what must follow it
    bound  the largest

It holds for every composition of micro-batches, padded or not, every recompute mode offered, and for joint
and split backward: jobs only grow with their shape (cost_model_check), and where a formula is not a straight
line through 0, work is charged at the cheapest rate per unit that any micro-batch of this batch can reach.
Not counted: padding, imbalance, memory.
*/
#pragma once

#include "microbatch.h"

typedef struct {
    int64_t work_ns;
    int64_t chain_ns;
    int64_t stage_ns;
    int64_t bound_ns;
    int32_t chain_sample;  // the sample of the longest chain
    int32_t stage;         // the stage of the largest stage bound
} LowerBound;

// joint_backward: no plan in question splits B and W, so a stage's last job is followed by backwards
// upstream.
void lower_bound_make(LowerBound* out, const MicrobatchProblem* problem, bool joint_backward);
