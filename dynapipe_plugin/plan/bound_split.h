/*
bound_split.h -- the stage bound of the best contiguous split of the layers over the stages.

    g(p, l) = min { max(g(p-1, k), bound of layers k..l-1 as stage p-1) : p-1 <= k < l }
with for each stage arrival + work / R + what follows, all from the lines of bound_line.h. Exact over all
splits with at least one layer on every stage.
*/
#pragma once

#include "bound_line.h"

// No split has a slowest stage faster than this.
double bound_split_best(const BoundLines* lines);
