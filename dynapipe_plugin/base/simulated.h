/*
simulated.h -- what a rank must know that runs under a simulator: SimGrid's SMPI, built by `make simulated`.

All ranks are there in one thread of one process, one after the other; each has a clock of its own, which runs
by the processor time of what it computes, and stands while messages take the time of a network that does not
exist. So a rank has no threads beside its own, and what they would do in the background is done in front
while the clock stands.
*/
#pragma once

#ifdef DYNAPIPE_SIMULATED
enum { SIMULATED = 1 };
// SMPI's own, which it calls around every MPI function.
void smpi_bench_end(void);
void smpi_bench_begin(void);
#else
enum { SIMULATED = 0 };
#endif

// What follows takes no time, until the clock goes on: no clock_now_ns() and no message in between.
static inline void simulated_clock_stop(void) {
#ifdef DYNAPIPE_SIMULATED
    smpi_bench_end();
#endif
}

static inline void simulated_clock_go_on(void) {
#ifdef DYNAPIPE_SIMULATED
    smpi_bench_begin();
#endif
}
