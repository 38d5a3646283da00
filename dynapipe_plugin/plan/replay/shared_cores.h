/*
shared_cores.h -- what a plan's jobs take where the ranks of a host have fewer cores than they want.

A plan is for a core per thread of every rank. Where N threads of a host want C < N cores, the system gives
each of those that compute at an instant C / N of a core; who waits for a message takes none. So a job that
runs while k ranks compute takes k x threads / C of its time, and less where others stand still: between the
plan's makespan (nobody shares) and the work of all ranks divided by the cores.

    cores 1, two ranks       rank 0  [F0 F0 F0 F0 F1 F1 F1 F1]          F1 and F0 share the core
    that each want one       rank 1              [F0 F0 F0 F0]

One replica is simulated; the others of a host are taken to do the same at the same time. Integers only, no
decision is made by it: plans stay as they are.
*/
#pragma once

#include "../lists/plan.h"

typedef struct {
    int32_t num_hosts;
    const int32_t* host;     // [P] of the replica's stages, 0 .. num_hosts - 1
    const int32_t* cores;    // [num_hosts] that ranks may use, >= 1
    const int32_t* threads;  // [num_hosts] of every rank there, >= 1
    const int32_t* sharers;  // [num_hosts] ranks there, those of other replicas too
    const int32_t* mine;     // [num_hosts] of these, stages of this replica
} SharedCores;

// instr_ns[s][i]: what instruction i of stage s takes (jobs; transfers as planned), for plan_makespan() and
// with its makespan in *out_ns, without tail. Both live in `arena`. STATUS_DEADLOCK, STATUS_INVALID_PLAN:
// plans that nobody checked are safe.
Status shared_cores_stretch(int64_t*** instr_ns, int64_t* out_ns, const Plan* plan, int32_t replica,
                            const SharedCores* shared, Arena* arena);
