/*
problem_costs.h -- what the model of a problem costs whose file has lengths alone.
*/
#pragma once

#include "problem.h"

// --costs and --model, or an analytic estimate.
Status problem_csv_costs(CostModel* out, const ProblemOptions* options);
