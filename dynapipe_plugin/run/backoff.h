/*
backoff.h -- how a rank waits for a transfer: spin a little, then give the core away, then sleep.

    Backoff wait = {0};
    while (!arrived()) {
        if (backoff_gives_up(&wait, timeout_ns)) { return fail(); }
        backoff_pause(&wait);
    }

Ranks that wait share cores with ranks that compute (4 ranks on 2 cores), so waiting must cost next to
nothing; but most messages come within microseconds, so it must not begin with a sleep. A nap of 30 us takes
about 85 us with Linux' default timer slack: well below the shortest job worth a micro-batch.
Measured over MPI, 4 ranks on 2 busy cores: a waiting rank takes 8 to 12 % of a core (naps of 100 us: 6 to 11
%, no gain worth the delay). test/test_mpi_transport.sh holds it to 40 %.

A rank gives up once it has looked for so long, not once so much time has passed: where it was stopped itself
(SIGSTOP, a machine that was paused), what it waits for may have come in between, and the others may have been
stopped with it. So the time from one look to the next counts for BACKOFF_LOOK_NS at most, and behind a stop
it looks for BACKOFF_AGAIN_NS more; after BACKOFF_STOPS of them no longer, since a rank whose looks are always
that far apart is to end, too. Looks are microseconds apart, on cores that many ranks share milliseconds.
*/
#pragma once

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "../../util/program.h"

enum { BACKOFF_SPINS = 64, BACKOFF_YIELDS = 64, BACKOFF_SLEEP_NS = 30 * 1000, BACKOFF_STOPS = 8 };
#define BACKOFF_LOOK_NS INT64_C(100000000)
#define BACKOFF_AGAIN_NS INT64_C(1000000000)

typedef struct {
    int32_t num_pauses;  // back to 0 whenever something moved, as all of it
    int32_t num_stops;   // behind which it looked longer
    int64_t looked_ns;   // when it was last asked; 0: not yet
    int64_t waited_ns;   // that it has looked for
} Backoff;

// By a look at `now_ns`: has it looked for longer than timeout_ns (0: as long as it takes)?
static inline bool backoff_gives_up_at(Backoff* wait, int64_t timeout_ns, int64_t now_ns) {
    int64_t passed_ns = wait->looked_ns == 0 ? 0 : now_ns - wait->looked_ns;
    wait->looked_ns = now_ns;
    wait->waited_ns += passed_ns < BACKOFF_LOOK_NS ? passed_ns : BACKOFF_LOOK_NS;
    bool was_stopped = passed_ns > BACKOFF_AGAIN_NS && wait->num_stops < BACKOFF_STOPS;
    if (was_stopped && wait->waited_ns > timeout_ns - BACKOFF_AGAIN_NS) {
        wait->num_stops++;
        wait->waited_ns = timeout_ns > BACKOFF_AGAIN_NS ? timeout_ns - BACKOFF_AGAIN_NS : 0;
    }
    return timeout_ns > 0 && wait->waited_ns > timeout_ns;
}

static inline bool backoff_gives_up(Backoff* wait, int64_t timeout_ns) {
    return backoff_gives_up_at(wait, timeout_ns, clock_now_ns());
}

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
