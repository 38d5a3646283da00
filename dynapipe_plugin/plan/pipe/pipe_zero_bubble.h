/*
pipe_zero_bubble.h -- the hand-made zero-bubble orders (Qi et al., ICLR'24, section 2: ZB-H1 and ZB-H2).

Every stage holds at most `held` micro-batches from the begin of F to the end of W, P <= held <= 2 P - 1:
    warm up      F x w,  w = P - s + min(held - P, P - 1 - s)
    then for i   B i, W (i - d) if there is one, F (i + w) if there is one,  d = held - w
    at the end   W of the last d
held = P is ZB-H1, held = 2 P - 1 is ZB-H2. With equal micro-batches and W <= F <= B the makespan of the first
is M (F + B + W) + (P - 1)(F + B - W), and in the second no stage idles longer than (P - 1)(F + B - 2 W)
between its first and its last job (test_bubble.c).
*/
#pragma once

#include "pipe.h"

// Any `held` from 1 on (below P: as many in flight as fit). R runs right before B.
Status pipe_zero_bubble_build(PipeSchedule* out, const PipeProblem* problem, const int32_t* order,
                              int32_t held, Arena* arena);

// The largest `held` up to M and 2 P - 1 that surely fits in memory on every stage, whatever the times; 1F1B
// where backward is not to be split. STATUS_INFEASIBLE where one micro-batch alone does not fit.
extern const PipePolicy pipe_policy_zero_bubble;
