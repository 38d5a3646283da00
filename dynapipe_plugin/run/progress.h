/*
progress.h -- whether messages move while their ranks compute, and whether somebody is to see to it.

Most MPI implementations move a message inside calls of MPI only, so one that comes during a job waits for its
end; the executor calls MPI between jobs. A thread that looks now and then moves it at once, but takes its
time from the cores that compute, unless some are idle. Which is better is measured when a session opens, in
0.1 s, on a machine that does other work in up to 1 s:

    arrives   all ranks post 1 MiB to their neighbours and then compute without a call for some ms: is it
              there? Without the thread (a network card that moves it alone), with one that looks every 1 ms,
              every 0.1 ms. Where others use the cores as well, for up to 80 ms: the answer is to be the same
              in every run
    cost      processor time of that thread while all ranks compute, of the time that has passed: it is to be
              below 2 %, where it has no core of its own

and all ranks do the same: the thread with the longest nap that suffices, or none. Where messages do not move
by themselves then, they are pulled (plan/cost/machine.h), and plans are made for that. Where a host has fewer
cores than threads there is no thread, and nothing is measured: times mean nothing there, and plans are those
of a machine with a core for each.

Plans depend on the answer, and clocks gave it. So a checkpoint keeps it (session_resplit_record.c), and a run
that goes on plans by that; `on` and `off` are the same in every run.

On GPUs the host is free while the device computes and looks all the time: nothing is measured there.
*/
#pragma once

#include "collective.h"
#include "host_cores.h"

typedef enum { PROGRESS_AUTO, PROGRESS_ON, PROGRESS_OFF } ProgressChoice;

typedef struct {
    int64_t nap_ns;      // the thread looks so often; 0: there is none
    bool pulls;          // messages wait for their receiver's next look
    double cost;         // of the thread, share of a core, measured; 0: none, or a core of its own
    const char* reason;  // of `pulls`, for the banner
} Progress;

// "messages ..": for the banner.
static inline const char* progress_words(bool pulls) {
    return pulls ? "wait until their receiver has ended a job" : "travel while ranks compute";
}

// A collective of all ranks, nothing in flight.
Status progress_choose(Progress* out, const Transport* transport, Collective* world, ProgressChoice choice,
                       const HostCores* hosts);
