#include "call_watch.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { NAPS = 16 };  // of a timeout: the end comes at most so much too late

struct CallWatch {
    Transport* transport;
    int64_t timeout_ns;
    _Atomic(const char*) what;  // NULL: no call is under way
    atomic_uint num_calls;      // begun so far
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t closing;
    bool is_closing;
};

static void end_run(const CallWatch* watch, const char* what) {
    char why[320];
    const Transport* transport = watch->transport;
    snprintf(why, sizeof why,
             "rank %d: error: %s: the host waits inside for %.1f s ---> see what the other ranks do "
             "(NCCL_DEBUG=INFO), or raise --comm-timeout; --transport mpi goes without NCCL",
             transport->rank, what, (double)watch->timeout_ns / 1e9);
    if (transport->api->abort != NULL) { transport->api->abort(transport->ctx, why); }
    fprintf(stderr, "%s\n", why);
    _exit(1);
}

static bool nap(CallWatch* watch) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    int64_t ns = until.tv_nsec + watch->timeout_ns / NAPS;
    until.tv_sec += (time_t)(ns / 1000000000);
    until.tv_nsec = (long)(ns % 1000000000);
    pthread_mutex_lock(&watch->lock);
    if (!watch->is_closing) { pthread_cond_timedwait(&watch->closing, &watch->lock, &until); }
    bool go_on = !watch->is_closing;
    pthread_mutex_unlock(&watch->lock);
    return go_on;
}

static void* run(void* ctx) {
    CallWatch* watch = ctx;
    unsigned seen = 0;
    for (int num_naps = 0; nap(watch);) {
        unsigned num_calls = atomic_load(&watch->num_calls);
        const char* what = atomic_load(&watch->what);
        num_naps = what != NULL && num_calls == seen ? num_naps + 1 : 0;
        seen = num_calls;
        if (num_naps == NAPS) { end_run(watch, what); }
    }
    return NULL;
}

static void free_watch(CallWatch* watch) {
    pthread_cond_destroy(&watch->closing);
    pthread_mutex_destroy(&watch->lock);
    free(watch);
}

Status call_watch_open(CallWatch** out, Transport* transport, int64_t timeout_ns) {
    *out = NULL;
    if (timeout_ns <= 0) { return STATUS_OK; }
    CallWatch* watch = calloc(1, sizeof *watch);
    if (watch == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a watch"); }
    watch->transport = transport;
    watch->timeout_ns = timeout_ns;
    pthread_mutex_init(&watch->lock, NULL);
    pthread_cond_init(&watch->closing, NULL);
    if (pthread_create(&watch->thread, NULL, run, watch) != 0) {
        free_watch(watch);
        return FAIL(STATUS_NO_MEMORY, "no thread for a watch ---> ulimit -u");
    }
    *out = watch;
    return STATUS_OK;
}

void call_watch_close(CallWatch* watch) {
    if (watch == NULL) { return; }
    pthread_mutex_lock(&watch->lock);
    watch->is_closing = true;
    pthread_cond_signal(&watch->closing);
    pthread_mutex_unlock(&watch->lock);
    pthread_join(watch->thread, NULL);
    free_watch(watch);
}

void call_watch_begin(CallWatch* watch, const char* what) {
    if (watch == NULL) { return; }
    atomic_fetch_add(&watch->num_calls, 1);
    atomic_store(&watch->what, what);
}

void call_watch_end(CallWatch* watch) {
    if (watch != NULL) { atomic_store(&watch->what, NULL); }
}
