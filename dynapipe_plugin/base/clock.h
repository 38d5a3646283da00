// clock.h -- monotonic wall time for run/ and tools; the planner never looks at a clock.
#pragma once

#include <stdint.h>
#include <time.h>

static inline int64_t clock_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

// Time this thread has spent on a core: what planning costs, whatever else the machine is doing, and under a
// simulator, whose clock_gettime is a macro, too.
static inline int64_t clock_cpu_ns(void) {
    struct timespec now;
    (clock_gettime)(CLOCK_THREAD_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}
