/*
cost_formula_io.h -- a formula in a cost file (cost_model_io.c): the rest of its line.

    const 1200.5 floor 0 enc_tokens 128:1.2e6 256:2.3e6 enc_squares 1:35
*/
#pragma once

#include "cost_model.h"
#include "cost_reader.h"

void cost_formula_print(const CostFormula* formula, FILE* out);
// Every feature at most once, at most COST_MAX_KNOTS knots each; values are cost_model_check()'s to judge.
Status cost_formula_parse(CostReader* r, CostFormula* out);
