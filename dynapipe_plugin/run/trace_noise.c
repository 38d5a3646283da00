#include "trace_noise.h"

#include <math.h>
#include <stdlib.h>

#include "../plan/plan_words.h"

static void add_job(TraceNoise* noise, JobKind kind, double measured_ns, double predicted_ns) {
    int32_t num_jobs = noise->num_jobs[kind];
    if (num_jobs == TRACE_NOISE_MAX_JOBS || measured_ns <= 0 || predicted_ns <= 0) { return; }
    noise->jobs[kind][noise->num_jobs[kind]++] = (TraceNoiseJob){measured_ns / predicted_ns, predicted_ns};
}

// Jobs run in the order of the list, so the n-th event of a job is the n-th job instruction.
Status trace_noise_add(TraceNoise* noise, const Plan* plan, const TraceRank* trace) {
    const PlanRank* rank = &plan->ranks[trace->rank];
    for (int32_t k = 0; k < JOB_COUNT && noise->jobs[JOB_COUNT - 1] == NULL; k++) {
        noise->jobs[k] = malloc(TRACE_NOISE_MAX_JOBS * sizeof(TraceNoiseJob));
        if (noise->jobs[k] == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory to measure noise"); }
    }
    int32_t e = 0;
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        const PlanInstr* instr = &rank->instrs[i];
        if (!plan_instr_is_job((InstrKind)instr->kind)) { continue; }
        while (e < trace->num_events && !plan_instr_is_job((InstrKind)trace->events[e].kind)) { e++; }
        if (e == trace->num_events) { break; }
        const TraceEvent* event = &trace->events[e++];
        if (event->kind != instr->kind || event->mb != instr->mb) { break; }
        add_job(noise, plan_instr_job((InstrKind)instr->kind), (double)(event->end_ns - event->begin_ns),
                (double)(instr->end_ns - instr->begin_ns));
    }
    return STATUS_OK;
}

static int compare_jobs(const void* a, const void* b) {
    double x = ((const TraceNoiseJob*)a)->ratio, y = ((const TraceNoiseJob*)b)->ratio;
    return (x > y) - (x < y);
}

// Sorts. The smallest ratio that at least half of the weight does not exceed.
static double weighted_median(TraceNoiseJob* jobs, int32_t num_jobs) {
    double sum = 0, up_to = 0;
    qsort(jobs, (size_t)num_jobs, sizeof *jobs, compare_jobs);
    for (int32_t i = 0; i < num_jobs; i++) { sum += jobs[i].weight; }
    for (int32_t i = 0; i < num_jobs; i++) {
        up_to += jobs[i].weight;
        if (2 * up_to >= sum) { return jobs[i].ratio; }
    }
    return num_jobs > 0 ? jobs[num_jobs - 1].ratio : 0;
}

double trace_noise_deviation(TraceNoise* noise) {
    int32_t num_all = 0;
    TraceNoiseJob* all = malloc(JOB_COUNT * TRACE_NOISE_MAX_JOBS * sizeof *all);
    if (all == NULL) { return -1; }
    for (int32_t k = 0; k < JOB_COUNT; k++) {
        if (noise->num_jobs[k] < TRACE_NOISE_LEAST_JOBS) { continue; }
        double median = weighted_median(noise->jobs[k], noise->num_jobs[k]);
        for (int32_t i = 0; i < noise->num_jobs[k]; i++) {
            TraceNoiseJob job = noise->jobs[k][i];
            all[num_all++] = (TraceNoiseJob){fabs(job.ratio / median - 1), job.weight};
        }
    }
    double deviation = num_all > 0 ? 1.4826 * weighted_median(all, num_all) : -1;
    free(all);
    return deviation;
}

void trace_noise_free(TraceNoise* noise) {
    for (int32_t k = 0; k < JOB_COUNT; k++) { free(noise->jobs[k]); }
    *noise = (TraceNoise){0};
}
