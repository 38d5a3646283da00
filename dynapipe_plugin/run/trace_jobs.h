/*
trace_jobs.h -- the jobs of some steps as a rank measured them, beside the terms that the cost model has for
them.

Jobs that are not what their terms say stay out: forward passes of the last stage whose outcome is dropped,
since the model need not compute what nobody reads.
*/
#pragma once

#include "../plan/cost/machine.h"
#include "../plan/cost/refit_solve.h"
#include "trace.h"

enum { TRACE_JOBS_MOST = 4096 };  // of a side; later ones are left out

typedef struct {
    int32_t num_jobs[SIDE_COUNT];
    RefitJob* jobs[SIDE_COUNT];
    double* room;  // [2 * TRACE_JOBS_MOST]
} TraceJobs;

// The jobs of one step of plan->ranks[trace->rank]. `machine`: how slow the rank is by what `costs` came
// with; NULL: not at all.
Status trace_jobs_add(TraceJobs* jobs, const Plan* plan, const TraceRank* trace, const CostModel* costs,
                      const Machine* machine);
// What they say, without those that were interrupted: as far as the rank can tell alone (shared NULL), or by
// what all have found.
void trace_jobs_sum(RefitSums out[SIDE_COUNT], TraceJobs* jobs, const RefitShared* shared,
                    const RefitRank* rank);
void trace_jobs_forget(TraceJobs* jobs);
void trace_jobs_free(TraceJobs* jobs);  // an all-zero one is fine
