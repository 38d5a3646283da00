// plan_ahead.c -- one thread, a ring of slots, one lock; slot of a step = (step - first_step) % num_slots.
#include "plan_ahead.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "../../util/program.h"

enum { MESSAGE_BYTES = 1024 };

struct PlanAhead {
    PlanAheadMake make;
    void* ctx;
    int64_t first_step, end_step;
    int32_t num_slots;
    bool has_thread;
    pthread_t thread;

    pthread_mutex_t lock;    // guards what follows
    pthread_cond_t changed;  // any of it
    bool stop;
    int64_t num_made;  // steps first_step .. first_step + num_made - 1 are in their slots
    int64_t num_got;   // handed out; the last of them is in use
    Status failure;    // of step first_step + num_made
    char message[MESSAGE_BYTES];
    PlanAheadStats* stats;  // [num_slots]
    PlanAheadStats current;
};

static int32_t slot_of(const PlanAhead* ahead, int64_t nth) {
    return (int32_t)(nth % ahead->num_slots);
}

// The planner may run so far ahead that only the slot in use is left alone.
static bool has_room(const PlanAhead* ahead) {
    int64_t oldest_in_use = ahead->num_got > 0 ? ahead->num_got - 1 : 0;
    return ahead->failure == STATUS_OK && ahead->first_step + ahead->num_made < ahead->end_step &&
           ahead->num_made < oldest_in_use + ahead->num_slots;
}

// Called with the lock held; gives it away while the plan is made.
static void make_next(PlanAhead* ahead) {
    int64_t nth = ahead->num_made;
    pthread_mutex_unlock(&ahead->lock);
    int64_t begin_ns = clock_now_ns(), cpu_begin_ns = clock_cpu_ns();
    simulated_clock_stop();
    Status status = ahead->make(ahead->ctx, ahead->first_step + nth, slot_of(ahead, nth));
    simulated_clock_go_on();
    PlanAheadStats stats = {clock_now_ns() - begin_ns, clock_cpu_ns() - cpu_begin_ns, 0};
    pthread_mutex_lock(&ahead->lock);
    ahead->stats[slot_of(ahead, nth)] = stats;
    if (status == STATUS_OK) {
        ahead->num_made++;
    } else {
        ahead->failure = status;
        snprintf(ahead->message, sizeof ahead->message, "%s", status_message());
    }
    pthread_cond_broadcast(&ahead->changed);
}

static void* planner_main(void* arg) {
    PlanAhead* ahead = arg;
    pthread_mutex_lock(&ahead->lock);
    while (!ahead->stop) {
        if (has_room(ahead)) {
            make_next(ahead);
        } else {
            pthread_cond_wait(&ahead->changed, &ahead->lock);
        }
    }
    pthread_mutex_unlock(&ahead->lock);
    return NULL;
}

static void ahead_free(PlanAhead* ahead) {
    pthread_cond_destroy(&ahead->changed);
    pthread_mutex_destroy(&ahead->lock);
    free(ahead->stats);
    free(ahead);
}

Status plan_ahead_start(PlanAhead** out, PlanAheadMake make, void* ctx, int64_t first_step, int64_t end_step,
                        int32_t num_ahead) {
    if (num_ahead < 0) { return FAIL(STATUS_OUT_OF_RANGE, "plan_ahead: %d steps ahead", (int)num_ahead); }
    PlanAhead* ahead = calloc(1, sizeof *ahead);
    PlanAheadStats* stats = calloc((size_t)num_ahead + 1, sizeof *stats);
    if (ahead == NULL || stats == NULL) {
        free(ahead);
        free(stats);
        return FAIL(STATUS_NO_MEMORY, "plan_ahead: no memory for %d steps", (int)num_ahead);
    }
    ahead->make = make;
    ahead->ctx = ctx;
    ahead->first_step = first_step;
    ahead->end_step = end_step;
    ahead->num_slots = num_ahead + 1;
    ahead->stats = stats;
    pthread_mutex_init(&ahead->lock, NULL);
    pthread_cond_init(&ahead->changed, NULL);
    ahead->has_thread = num_ahead > 0 && !SIMULATED;
    if (ahead->has_thread && pthread_create(&ahead->thread, NULL, planner_main, ahead) != 0) {
        ahead_free(ahead);
        return FAIL(STATUS_NO_MEMORY, "plan_ahead: could not start the planning thread");
    }
    *out = ahead;
    return STATUS_OK;
}

static Status get_locked(PlanAhead* ahead, int64_t step, int32_t* slot) {
    int64_t nth = step - ahead->first_step, begin_ns = clock_now_ns();
    if (ahead->failure == STATUS_OK && (nth != ahead->num_got || step >= ahead->end_step)) {
        return FAIL(STATUS_OUT_OF_RANGE, "plan_ahead: step %lld was asked for, next is %lld of %lld..%lld",
                    (long long)step, (long long)(ahead->first_step + ahead->num_got),
                    (long long)ahead->first_step, (long long)ahead->end_step - 1);
    }
    ahead->num_got = nth + 1;  // so the slot of the step before is free from here on
    pthread_cond_broadcast(&ahead->changed);
    while (ahead->num_made <= nth && ahead->failure == STATUS_OK) {
        if (ahead->has_thread) {
            pthread_cond_wait(&ahead->changed, &ahead->lock);
        } else {
            make_next(ahead);
        }
    }
    if (ahead->num_made <= nth) { return FAIL(ahead->failure, "%s", ahead->message); }
    *slot = slot_of(ahead, nth);
    ahead->current = ahead->stats[*slot];
    ahead->current.wait_ns = clock_now_ns() - begin_ns;
    return STATUS_OK;
}

Status plan_ahead_get(PlanAhead* ahead, int64_t step, int32_t* slot) {
    pthread_mutex_lock(&ahead->lock);
    Status status = get_locked(ahead, step, slot);
    pthread_mutex_unlock(&ahead->lock);
    return status;
}

Status plan_ahead_wait_all(PlanAhead* ahead) {
    pthread_mutex_lock(&ahead->lock);
    while (has_room(ahead)) {
        if (ahead->has_thread) {
            pthread_cond_wait(&ahead->changed, &ahead->lock);
        } else {
            make_next(ahead);
        }
    }
    Status status = ahead->failure;
    if (status != STATUS_OK) { status = FAIL(status, "%s", ahead->message); }
    pthread_mutex_unlock(&ahead->lock);
    return status;
}

PlanAheadStats plan_ahead_stats(const PlanAhead* ahead) {
    return ahead->current;  // written by get(), so by the same thread that asks
}

void plan_ahead_stop(PlanAhead* ahead) {
    if (ahead == NULL) { return; }
    if (ahead->has_thread) {
        pthread_mutex_lock(&ahead->lock);
        ahead->stop = true;
        pthread_cond_broadcast(&ahead->changed);
        pthread_mutex_unlock(&ahead->lock);
        pthread_join(ahead->thread, NULL);
    }
    ahead_free(ahead);
}
