// plan_json.h -- a plan in the published form (the judge's input), beside what was predicted of it.
#pragma once

#include <stdio.h>

#include "../dynapipe_plugin/plan/lists/plan.h"

typedef struct {
    const Plan* plan;
    int32_t num_enc_layers;
    int64_t planning_cpu_ns;
} PlanJson;

// STATUS_BAD_OPTION for a plan that the form cannot say: several samples in one attention window.
Status plan_json_check(const Plan* plan);
void plan_json_print(FILE* out, const void* plan_json);  // a ToolPrint
