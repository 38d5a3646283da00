/*
backoff.h -- how a rank waits for a transfer: spin a little, then give the core away, then sleep.

    Backoff wait = {0};
    while (!arrived()) { backoff_pause(&wait); }

Ranks that wait share cores with ranks that compute (4 ranks on 2 cores), so waiting must cost next to
nothing; but most messages come within microseconds, so it must not begin with a sleep. A nap of 30 us takes
about 85 us with Linux' default timer slack: well below the shortest job worth a micro-batch.
Measured over MPI, 4 ranks on 2 busy cores: a waiting rank takes 8 to 12 % of a core (naps of 100 us: 6 to 11
%, no gain worth the delay). test/test_mpi_transport.sh holds it to 40 %.
*/
#pragma once

#include <sched.h>
#include <stdint.h>
#include <time.h>

enum { BACKOFF_SPINS = 64, BACKOFF_YIELDS = 64, BACKOFF_SLEEP_NS = 30 * 1000 };

typedef struct {
    int32_t num_pauses;  // back to 0 whenever something moved
} Backoff;

static inline void backoff_pause(Backoff* wait) {
    if (wait->num_pauses < BACKOFF_SPINS) {
        wait->num_pauses++;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    } else if (wait->num_pauses < BACKOFF_SPINS + BACKOFF_YIELDS) {
        wait->num_pauses++;
        sched_yield();
    } else {
        struct timespec nap = {0, BACKOFF_SLEEP_NS};
        nanosleep(&nap, NULL);
    }
}
