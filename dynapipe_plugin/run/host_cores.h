/*
host_cores.h -- which ranks share a host, and whether it has the cores that they want.

    HostCores hosts = {0};
    TRY(host_cores_find(&hosts, &world, num_threads));    // a collective
    if (host_cores_short(&hosts) >= 0) { ... times measured here say little ... }

Cores of a host are those that one of its ranks may run on (sched_getaffinity: mpirun binds ranks, batch
systems give away parts of a node), and no more than its cgroup's quota (cpu.max, rounded down). Ranks that
mpirun says are alone on their machine are, whatever its name (a simulator's are all on one).
*/
#pragma once

#include <stdbool.h>

#include "collective.h"

typedef struct {
    int32_t num_ranks, num_hosts;
    int32_t* host;                       // [num_ranks] 0 .. num_hosts - 1
    int32_t *cores, *threads, *sharers;  // [num_hosts] cores; threads of its rank with most; ranks there
    bool is_roomy;                       // every rank has a core beyond those that its threads want
} HostCores;

Status host_cores_find(HostCores* out, Collective* world, int32_t num_threads);
void host_cores_free(HostCores* hosts);  // an all-zero one is fine

// The host that lacks most cores for its ranks' threads; -1: none does.
int32_t host_cores_short(const HostCores* hosts);

// Of the text of cpu.max ("max 100000", "150000 100000"): whole cores, at least 1; 0: no limit.
int32_t host_cores_quota(const char* text);
