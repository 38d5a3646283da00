// plan_explain.h -- a plan in words: what was chosen, and why the rest of the time is lost.
#pragma once

#include <stdio.h>

#include "../dynapipe_plugin/plan/bound/waterfall.h"
#include "plan_memory.h"

typedef struct {
    const Plan* plan;
    const PlanRequest* request;
    const CostModel* costs;
    const PlanMemory* memory;    // [P * R]
    const Waterfall* waterfall;  // of this plan
} PlanExplain;

void plan_explain_print(const PlanExplain* about, FILE* out);
