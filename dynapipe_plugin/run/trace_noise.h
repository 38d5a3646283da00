/*
trace_noise.h -- how far measured durations of jobs scatter around the predicted ones.

    ratio      = measured / predicted, of every job
    scatter    = |ratio / (median ratio of the same rank and job kind) - 1|
    deviation  = 1.4826 x median scatter          (of a normal distribution: its standard deviation)

A prediction that is off by a constant factor is no noise: the median takes it out. Both medians are weighted
with the predicted time, so that a thousand short jobs do not hide a few long ones; and they are medians, so
that a pause of the operating system does not count.
*/
#pragma once

#include "trace.h"

enum { TRACE_NOISE_MAX_JOBS = 8192, TRACE_NOISE_LEAST_JOBS = 8 };

typedef struct {
    double ratio;
    double weight;  // predicted ns
} TraceNoiseJob;

typedef struct {
    int32_t num_jobs[JOB_COUNT];
    TraceNoiseJob* jobs[JOB_COUNT];  // [TRACE_NOISE_MAX_JOBS] each; later jobs are left out
} TraceNoise;

// The jobs of one step of plan->ranks[trace->rank]. Jobs without a predicted or measured time do not count.
Status trace_noise_add(TraceNoise* noise, const Plan* plan, const TraceRank* trace);
// -1: fewer than TRACE_NOISE_LEAST_JOBS of every kind. Reorders the jobs.
double trace_noise_deviation(TraceNoise* noise);
void trace_noise_free(TraceNoise* noise);  // an all-zero one is fine
