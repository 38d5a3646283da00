/*
pipe_pulled.h -- the timeline of a schedule where receivers fetch their messages (PipeProblem.pulls).

A message is ready when the job that made it has ended. Its receiver takes what is ready whenever it is
between two jobs, before it begins the next, one after the other, the longest ready first; copying is its own
time. Where its next job lacks its input, it waits, and takes what becomes ready meanwhile. So, other than
with links of their own, what a stage does depends on messages that it does not need yet: time is walked
through, always on with the stage whose next job or message comes first (of equals the first stage).
*/
#pragma once

#include "pipe.h"

// Fills job, send and busy_ns of the timeline. On return stage s has run pos[s] of its jobs, until
// clock_ns[s]; less than all of them: it waits for ever.
Status pipe_pulled_run(PipeTimeline* timeline, int32_t pos[PLAN_MAX_STAGES],
                       int64_t clock_ns[PLAN_MAX_STAGES], const PipeProblem* problem,
                       const PipeSchedule* schedule, Arena* arena);
