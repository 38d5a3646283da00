/*
cost_scale.h -- a cost model's times in terms, and the same model with each term multiplied by a factor.

    time of a job = sum over the parts of its stage and over their terms of factor * term

A term is what a part takes for one group of features (fixed: constant, floor and sequences; lengths: tokens
and rows; squares: of attention) in one pass over it (forward, gradient of inputs, gradient of weights). A
wrong cost file is mostly wrong in a few of these: the head, attention. refit_solve.h finds the factors from
measured jobs. Where a floor holds, all of the time is the fixed term. Bytes stay as they are.
*/
#pragma once

#include "cost_model.h"

typedef enum { TERM_FIXED, TERM_LENGTHS, TERM_SQUARES, TERM_GROUPS } TermGroup;
typedef enum { PASS_FORWARD, PASS_INPUTS, PASS_WEIGHTS, PASS_COUNT } CostPass;  // F and R, B, W

enum { PASS_TERMS = PART_COUNT * TERM_GROUPS, SCALE_ONE = 1024, SCALE_LEAST = 64, SCALE_MOST = 65536 };

// Of part p, group g: term[p * TERM_GROUPS + g]. Factors are in 1 / SCALE_ONE, from SCALE_LEAST to
// SCALE_MOST.
typedef struct {
    int32_t factor[PASS_COUNT][PASS_TERMS];
} CostScale;

static inline CostPass cost_pass(JobKind kind) {
    return kind == JOB_B ? PASS_INPUTS : kind == JOB_W ? PASS_WEIGHTS : PASS_FORWARD;
}

CostScale cost_scale_one(void);
// The nearest there is.
int32_t cost_scale_round(double factor);

// term[]: what this job takes, in ns; they add up to cost_job_ns() but for its rounding.
void cost_scale_terms(double term[PASS_TERMS], const CostModel* model, const CostStage* stage, JobKind kind,
                      RecomputeMode mode, const MbShape* shape);

// `out` may be `in`. All times of all modes; what was checked stays so.
void cost_scale_apply(CostModel* out, const CostModel* in, const CostScale* scale);
