/*
plan_views.h -- what ./dynapipe does with a plan: read its text, check it, compare it, account for its memory,
explain it, and write it in the published format.
*/
#pragma once

#include <stdio.h>
#include "../dynapipe_plugin/plan/plan.h"
#include "problem.h"
#include "waterfall.h"

// Reads the text form from disk; the plan's memory comes from `arena`.
Status plan_file_load(Plan* out, const char* path, Arena* arena);

// Every rule of plan_check, with samples rebuilt from the plan itself (lengths from its sequences).
Status plan_verify_structure(const Plan* plan, Arena* arena);

// Also: the plan has this problem's samples, stages and replicas; state and makespan are those of the
// simulator with its costs; memory by the problem's rule is within the limit. STATUS_INVALID_PLAN or, for
// memory, STATUS_INFEASIBLE.
Status plan_verify_problem(const Plan* plan, const Problem* problem, Arena* arena);

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
