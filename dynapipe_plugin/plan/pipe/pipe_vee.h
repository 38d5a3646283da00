/*
pipe_vee.h -- V-Min (Qi et al., NeurIPS'24, "Pipeline Parallelism with Controllable Memory"): a third of
1F1B's activations, on a vee of two chunks a stage.

A building block says in which of six slots a stage runs F, B and W of its two chunks for one micro-batch;
every micro-batch repeats it six slots later. In V-Min each F and each B comes right behind the one it waits
for, so on stage s, in slots of one job:

    F of chunk s at s,  of chunk 2 P - 1 - s at 2 P - 1 - s      B of that one at b + s,  of chunk s at 2 P -
1 + b - s

with b = 2 P, or 2 P + 2 where the two F and B would meet in one slot (P a multiple of 3); W of each in the
next slot that is free. With F = B = W no stage holds more than (P + 4) / 3 micro-batches from F to W, and
idle time is at most 2 P / (3 M) of the work, as published. Micro-batches that differ run in the same order.
*/
#pragma once

#include "pipe.h"

// STATUS_BAD_OPTION: the problem's placement is no vee of two chunks a stage with a whole head. R runs right
// before B. No memory limit is looked at.
Status pipe_vee_min_build(PipeSchedule* out, const PipeProblem* problem, const int32_t* order, Arena* arena);
