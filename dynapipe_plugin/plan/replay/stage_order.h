/*
stage_order.h -- what a stage does one thing after the other, as its instruction list has it.

Its jobs; and where messages are pulled (Plan.pulls), the messages that it takes between them, each a receive:
a list posts receives early, the plan's times say between which jobs their messages are taken.
*/
#pragma once

#include "../lists/plan.h"

typedef struct {
    int32_t num;
    int32_t* instrs;  // [num] numbers of the instructions, in order
} StageOrder;

Status stage_order(StageOrder* out, const Plan* plan, const PlanRank* rank, Arena* arena);
