/*
session_errors.h -- by how much a step took longer than predicted, and whether jobs, transfers or waiting did.

    measured - predicted = jobs + transfers + waiting          > 0: the step took longer

Each is the time that the step would have lost by it alone, in the plan's order (m: measured, p: predicted):

    jobs       makespan(jobs m, transfers p) - makespan(jobs p, transfers p)
    transfers  makespan(jobs m, transfers m) - makespan(jobs m, transfers p)
    waiting    the rest: sends that block, messages that begin late, planning, first touch of memory,
               reduction, the update

So a late job that nobody waits for counts nothing, and one that all ranks wait for counts fully,
on any rank. The whole step is measured, as the plan predicts it: from its beginning, the
wait for its plan included, until parameters are updated.

A transfer took: from when both ends had posted it until its receiver saw it done; of that, beyond what was
planned, only time in which neither end was inside a job. The rest is waiting. Where the
transport moves data by itself (GPUs), all of it.
*/
#pragma once

#include "../../util/arena.h"
#include "../../util/status.h"
#include "../plan/plan.h"

typedef struct {
    int64_t predicted_ns, measured_ns;
    int64_t jobs_ns, transfers_ns, waiting_ns;  // signed; together measured - predicted
} SessionErrors;

// Of one instruction of the plan: jobs from begin to end, transfers from posting until seen done. Both 0: it
// did not run.
typedef struct {
    int64_t begin_ns, end_ns;
} SessionSpan;

// What one replica did. All times by one clock.
typedef struct {
    const Plan* plan;
    int32_t replica;
    const SessionSpan* const* spans;     // [P][num_instrs]
    const int64_t* const* predicted_ns;  // [P][num_instrs] where not the plan's own (replay.h); else NULL
    bool moves_alone;                    // transfers, while jobs run
} SessionSpans;

// Fills jobs_ns and transfers_ns.
Status session_errors_split(SessionErrors* out, const SessionSpans* replica, Arena* scratch);

// Of a part, or of measured - predicted: as a part of what was predicted. 0 where nothing was.
double session_errors_part(const SessionErrors* errors, int64_t part_ns);
