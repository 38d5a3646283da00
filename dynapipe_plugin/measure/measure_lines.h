/*
measure_lines.h -- the tightest straight lines that are nowhere below some points.

    minimise   sum over points of (line(x) - y) / y        so that small shapes count as much as large ones
    subject to line(x) = constant + sum of slope[f] * x[f] >= y,  constant, slope[f] >= 0

A linear program of eight unknowns (Dantzig 1947): its dual has a row for each of them and a column for each
point, and the simplex method on it begins with nothing, which is feasible. Where points lie on such a line it
is found; where they are the largest of several lines, or rounded up, the result is above all of them.
*/
#pragma once

#include "../../util/status.h"
#include "../plan/cost/cost_model.h"

typedef struct {
    double x[FEATURE_COUNT];
    double y;  // bytes, >= 0
} MeasurePoint;

// STATUS_NO_MEMORY, else *out is above every point.
Status measure_lines_fit(CostFormula* out, const MeasurePoint* points, int32_t num_points);
