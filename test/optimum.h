/*
optimum.h -- the shortest makespan of a tiny pipeline over all job orders, by branch and bound.

Independent of the planner: it shares the types and messages of pipe.h and nothing else. Time is walked
through in order of completion (Giffler & Thompson 1960): the stage whose next job could end first either
begins one of the jobs that can begin before that, or, where waiting may pay (memory limits, links that take
time), begins nothing before. So every order that the simulator can run is looked at, but for those that
cannot beat the best.
*/
#pragma once

#include "../dynapipe_plugin/plan/schedule.h"

enum { OPTIMUM_MAX_STAGES = 3, OPTIMUM_MAX_ROWS = 9, OPTIMUM_MAX_MBS = 4 };

// P <= 3, at most 9 rows, M <= 4, any placement and head; every job takes at least 1 ns; nothing is
// recomputed, inputs have no bytes. Stored bytes never exceed memory_limit_bytes. `known_ns`: a makespan that
// is known to be possible; the result is at most that (INT64_MAX: none known; then the result where nothing
// fits). Returns -1 where more than max_nodes were looked at.
int64_t optimum_make(const PipeProblem* problem, bool split_backward, int64_t known_ns, int64_t max_nodes);
