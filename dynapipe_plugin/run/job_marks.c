#include "job_marks.h"

#include <stdlib.h>

Status job_marks_begin(JobMarks* m, int32_t max_jobs) {
    if (m->device.api == NULL) { return STATUS_OK; }
    if (max_jobs > m->max_jobs) {
        free(m->jobs);
        m->jobs = malloc((size_t)max_jobs * sizeof *m->jobs);
        m->max_jobs = m->jobs == NULL ? 0 : max_jobs;
        if (m->jobs == NULL) { return FAIL(STATUS_NO_MEMORY, "executor: room for %d jobs", (int)max_jobs); }
    }
    m->num_jobs = m->num_done = 0;
    return m->device.api->begin(m->device.ctx, 2 * max_jobs);
}

void job_marks_free(JobMarks* m) {
    free(m->jobs);
    *m = (JobMarks){0};
}

Status job_marks_open(JobMarks* m, int32_t event_idx) {
    if (m->device.api == NULL) { return STATUS_OK; }
    JobMark* job = &m->jobs[m->num_jobs];
    job->event_idx = event_idx;
    return m->device.api->mark(m->device.ctx, &job->begin);
}

Status job_marks_close(JobMarks* m) {
    if (m->device.api == NULL) { return STATUS_OK; }
    TRY(m->device.api->mark(m->device.ctx, &m->jobs[m->num_jobs].end));
    m->num_jobs++;
    return STATUS_OK;
}

Status job_marks_poll(JobMarks* m, bool* moved) {
    while (m->num_done < m->num_jobs) {
        int done = 0;
        TRY(m->device.api->is_done(m->device.ctx, m->jobs[m->num_done].end, &done));
        if (!done) { break; }
        m->num_done++;
        *moved = true;
    }
    return STATUS_OK;
}

Status job_marks_read(JobMarks* m, TraceRank* trace) {
    if (m->device.api == NULL) { return STATUS_OK; }
    int64_t before_ns = trace->begin_ns;
    int32_t job = 0;
    for (int32_t i = 0; i < trace->num_events; i++) {
        TraceEvent* event = &trace->events[i];
        if (job < m->num_jobs && m->jobs[job].event_idx == i) {
            TRY(m->device.api->mark_ns(m->device.ctx, m->jobs[job].begin, &event->begin_ns));
            TRY(m->device.api->mark_ns(m->device.ctx, m->jobs[job].end, &event->end_ns));
            job++;
            // Two clocks: what is off by a hair must not look like time that runs backwards.
            if (event->begin_ns < before_ns) { event->begin_ns = before_ns; }
            if (event->end_ns < event->begin_ns) { event->end_ns = event->begin_ns; }
            bool is_job = event->kind < INSTR_COUNT;  // else: sums
            event->wait_ns = is_job ? event->begin_ns - before_ns : 0;
            trace->wait_ns += event->wait_ns;
            trace->busy_ns += is_job ? event->end_ns - event->begin_ns : 0;
            before_ns = event->end_ns;
        } else if (event->kind == INSTR_WAIT_ACT || event->kind == INSTR_WAIT_GRAD) {
            event->begin_ns = event->end_ns = before_ns;
        }
        if (event->end_ns > trace->end_ns) { trace->end_ns = event->end_ns; }
    }
    return m->device.api->settle(m->device.ctx);
}
