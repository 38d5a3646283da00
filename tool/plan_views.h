/*
plan_views.h -- what ./dynapipe shows of a plan: its memory, why it is as it is, and its published form.
*/
#pragma once

#include <stdio.h>
#include "../dynapipe_plugin/plan/plan.h"
#include "problem.h"
#include "waterfall.h"

// --- time and memory ---------------------------------------------------------------------------------------
// Simulated again with the problem's costs. MEMORY_ACTIVATIONS: model state + what backward needs of each
// microbatch. MEMORY_BUFFERS: model state + the arena of the plan's buffers.

typedef struct {
    int64_t state_bytes, peak_bytes;  // of model state; of all else, at its peak
} PlanMemory;

typedef struct {
    int64_t makespan_ns;
    PlanMemory* rank;  // [P * R]
} PlanAccount;

// The plan must have passed plan_check, so every job occurs once, in an order that can run.
Status plan_account_make(PlanAccount* out, const Plan* plan, const Problem* problem, Arena* arena);

// Prints a table with one row per stage, for the replica with the highest peak.
void plan_memory_print(const PlanAccount* account, const Plan* plan, const Problem* problem, FILE* out);

// What the tables do not show: where the layers are, which rank sets the pace, what would win time.
void plan_explain_print(const Plan* plan, const Problem* problem, const Waterfall* waterfall, FILE* out);

// --- published format -------------------------------------------------------------------------------------
// The input of the independent checker, and the predicted values.

typedef struct {
    const Plan* plan;
    int64_t planning_cpu_ns;
} PlanJson;

// STATUS_BAD_OPTION if the format cannot express the plan: several samples in one attention window.
Status plan_json_check(const Plan* plan);
void plan_json_print(FILE* out, const void* plan_json);  // a ToolPrint
