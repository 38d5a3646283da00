/*
problem_csv.h -- a planning problem from lengths of samples, a line each.
*/
#pragma once

#include "problem.h"

// From memory; `name` is for messages. costs: problem_costs.h. Samples live in `arena`.
Status problem_csv_parse(Problem* out, const char* text, size_t num_bytes, const char* name,
                         const ProblemOptions* options, const CostModel* costs, Arena* arena);
