/*
memory_curve.h -- how many bytes of a rank's arena are alive, over the predicted time of a step.

A rank works through its list in order, so a buffer is taken when its first instruction is reached and given
back when its last one is done. Transfers and posts take no time of their own; a wait lasts until its transfer
has ended. Bytes are rounded up to PLAN_BUFFER_ALIGN, so the peak is memory_layout_bound's: what the best
layout would need. (test_timeline_svg)
*/
#pragma once

#include "../../../util/arena.h"
#include "plan.h"
#include "../types/plan_request.h"

// From begin_ns on, until the next step. Several steps may begin at the same time: a spike.
typedef struct {
    int64_t begin_ns, num_bytes;
} MemoryStep;

typedef struct {
    int32_t num_steps;
    MemoryStep* steps;  // begin_ns never falls
    int64_t peak_bytes;
    int64_t peak_ns;  // when it is first reached
} MemoryCurve;

// rule: which buffers count. Model state does not. Needs a plan whose buffers live inside the list
// (plan_check).
Status memory_curve_make(MemoryCurve* out, const PlanRank* rank, MemoryRule rule, Arena* arena);
