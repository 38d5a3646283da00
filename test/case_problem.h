/*
case_problem.h -- reads the planning problems of ../shared/cases (their README has the formulas) into the
planner's own types, and what the original planner reached on them. tool/problem.c does the reading.
*/
#pragma once

#include "../dynapipe_plugin/plan/problem.h"

enum { CASE_MAX_SAMPLES = 2048 };
#define CASE_DIRECTORY "../shared/cases"

// Large: allocate on the heap or keep static.
typedef struct {
    CostModel costs;
    PlanRequest request;  // batching dynapipe, padded, recompute auto, equal split
    PlanSample samples[CASE_MAX_SAMPLES];
    int32_t num_samples;
    bool encoder_decoder;
} CaseProblem;

typedef struct {
    double makespan_ms, objective_ms, bound_ms;  // bound_ms 0 where it was not evaluated
    int32_t num_mbs;
} CaseReference;

extern const char* const case_names[];  // ends with NULL

// Are the cases there? (They are not part of a source release.)
bool case_available(void);
// false with a line on stdout that says why not.
bool case_problem_load(CaseProblem* out, const char* name);
bool case_reference_load(CaseReference* out, const char* name);
// As the judge counts: activations only, no buffers.
Status case_problem_init(PlanProblem* out, const CaseProblem* problem);
