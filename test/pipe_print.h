// pipe_print.h -- a simulated pipeline as text, one row per stage (timeline_row.h).
#pragma once

#include <stdio.h>
#include "../dynapipe_plugin/plan/schedule.h"
#include "../dynapipe_plugin/plan/simulate.h"

// `width` characters for the makespan.
void pipe_timeline_print(const PipeProblem* problem, const PipeSchedule* schedule,
                         const PipeTimeline* timeline, int32_t width, FILE* out);
