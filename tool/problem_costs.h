/*
problem_costs.h -- what the model of a problem costs whose file has lengths alone.
*/
#pragma once

#include "problem.h"

// --costs and --model, or an analytic estimate. `vocab`: tokens of the data's vocabulary, which the trainer gives
// a new model; 0: not known, so that the model has the one of its kind. --vocab goes before it.
Status problem_csv_costs(CostModel* out, const ProblemOptions* options, int32_t vocab);
