/*
bound_split.h -- the stage bound of the best contiguous split of the layers over the stages.

    g(p, l) = min { max(g(p-1, k), bound of layers k..l-1 as stage p) : p <= k < l }
with for each stage arrival + work / R + what follows, all from the lines of bound_line.h. Exact over all
splits with at least one layer on every stage; the last may be the head alone.

With a memory limit, ranges whose model state leaves no room for the largest sample are impossible, and a
range takes at least what bound_memory.h says. That is worked out only where it can matter: on the best split
so far, and on the next best where it was not as good as it looked. Every minimum on the way is a lower bound,
as ranges only get slower.
*/
#pragma once

#include "bound_line.h"

// No split has a slowest stage faster than stage_ns; nor, if it fits in memory, than memory_ns (0: no limit,
// or no split fits). STATUS_NO_MEMORY of the host, or STATUS_OK.
Status bound_split_best(double* stage_ns, double* memory_ns, const BoundLines* lines, Arena* arena);

// Share of one replica, of a line: at least one micro-batch's constants, or those of the micro-batches that
// memory allows.
double bound_share(const BoundLines* lines, const BoundLine* line);
