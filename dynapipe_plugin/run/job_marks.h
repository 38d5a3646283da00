/*
job_marks.h -- which queued jobs a device has finished, and when it ran them.

    TRY(job_marks_begin(&marks, max_jobs));
    TRY(job_marks_open(&marks, event_idx)); ... the model queues a job ... TRY(job_marks_close(&marks));
    TRY(job_marks_poll(&marks, &moved));      // now and then: num_done goes up
    TRY(job_marks_read(&marks, &trace));      // when all are done: times into the trace

Without a device (api NULL) every call does nothing.
*/
#pragma once

#include <stdbool.h>

#include "device.h"
#include "trace.h"

typedef struct {
    int32_t event_idx;   // of the trace
    int32_t begin, end;  // marks of the device
} JobMark;

typedef struct {
    Device device;  // borrowed
    JobMark* jobs;
    int32_t num_jobs, max_jobs, num_done;
} JobMarks;

Status job_marks_begin(JobMarks* m, int32_t max_jobs);
void job_marks_free(JobMarks* m);
Status job_marks_open(JobMarks* m, int32_t event_idx);
Status job_marks_close(JobMarks* m);
Status job_marks_poll(JobMarks* m, bool* moved);  // moved: becomes true if a job is done
// Times of jobs, what the device waited before each, busy_ns; a wait stands where the job before it ended.
Status job_marks_read(JobMarks* m, TraceRank* trace);
