#include "slow_notice.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "clock.h"
#include "simulated.h"

enum { FIRST_S = 2, MOST_S = 30 };

struct SlowNotice {
    char what[128];
    int64_t (*done)(void);
    int64_t begin_bytes, total;
    int64_t begin_ns;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool is_over;
};

static void say(const SlowNotice* notice) {
    const double gib = 1.0 / (1 << 30), seconds = (double)(clock_now_ns() - notice->begin_ns) / 1e9;
    if (notice->done == NULL) {
        printf("%s: %.0f s\n", notice->what, seconds);
    } else {
        printf("%s: %.2f of %.2f GiB, %.0f s\n", notice->what,
               (double)(notice->done() - notice->begin_bytes) * gib, (double)notice->total * gib, seconds);
    }
    fflush(stdout);
}

static void* watch(void* arg) {
    SlowNotice* notice = arg;
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    pthread_mutex_lock(&notice->lock);
    int pause_s = FIRST_S;
    while (!notice->is_over) {
        at.tv_sec += pause_s;
        while (!notice->is_over && pthread_cond_timedwait(&notice->ended, &notice->lock, &at) == 0) {}
        if (!notice->is_over) { say(notice); }
        int64_t passed_s = (clock_now_ns() - notice->begin_ns) / 1000000000;
        pause_s = passed_s < MOST_S ? (int)passed_s : MOST_S;  // 2, 4, 8, 16 ...
        if (pause_s < FIRST_S) { pause_s = FIRST_S; }
    }
    pthread_mutex_unlock(&notice->lock);
    return NULL;
}

// Signals are the program's, not this thread's.
static bool start(SlowNotice* notice) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    bool ok = pthread_create(&notice->thread, NULL, watch, notice) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return ok;
}

SlowNotice* slow_notice_begin(const char* what, int64_t (*done)(void), int64_t total) {
    SlowNotice* notice = SIMULATED ? NULL : calloc(1, sizeof *notice);
    if (notice == NULL) { return NULL; }
    snprintf(notice->what, sizeof notice->what, "%s", what);
    notice->done = done;
    notice->begin_bytes = done != NULL ? done() : 0;
    notice->total = total;
    notice->begin_ns = clock_now_ns();
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&notice->lock, NULL);
    pthread_cond_init(&notice->ended, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (start(notice)) { return notice; }
    pthread_cond_destroy(&notice->ended);
    pthread_mutex_destroy(&notice->lock);
    free(notice);
    return NULL;
}

void slow_notice_end(SlowNotice* notice) {
    if (notice == NULL) { return; }
    pthread_mutex_lock(&notice->lock);
    notice->is_over = true;
    pthread_cond_signal(&notice->ended);
    pthread_mutex_unlock(&notice->lock);
    pthread_join(notice->thread, NULL);
    pthread_cond_destroy(&notice->ended);
    pthread_mutex_destroy(&notice->lock);
    free(notice);
}
