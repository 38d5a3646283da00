/*
short_path.h -- a short open path through points of the plane, by L1 distance: a travelling salesman who does
not come home.

Strips to begin with, then 2-opt and or-opt moves over the nearest neighbours of every point until none helps
(Bentley, ORSA J. Computing 1992), then small kicks: swap two neighbouring stretches, mend, keep it if it is
not longer (iterated local search: Lourenco, Martin, Stuetzle 2003). Integers, a fixed seed: always the same
path. How close to the shortest: test_original_order.c.
*/
#pragma once

#include <stdint.h>

#include "../../../util/arena.h"
#include "../../../util/status.h"

typedef struct {
    int32_t x, y;  // 0 .. 2^29
} PathPoint;

// path[0 .. num): every point once. O(num log num) and a bounded number of kicks.
Status short_path_make(int32_t* path, const PathPoint* points, int32_t num, Arena* arena);
