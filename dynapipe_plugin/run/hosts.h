/*
hosts.h -- which ranks share a host and whether it has the cores that they want; whether messages move while
ranks compute; what a transfer between neighbouring ranks costs.
*/
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include "collective.h"

// Ranks on this machine's cores, of num_ranks in all: by mpirun, else all of them.
int32_t local_ranks_count(int32_t num_ranks);

// Threads of one rank: `asked` if > 0, else OMP_NUM_THREADS, else its share of the cores; at least 1.
int32_t local_ranks_threads(int32_t asked, int32_t num_ranks);

// --- hosts and their cores -----------------------------------------------------------------------------
/*
Cores of a host are those that any of its ranks may run on (sched_getaffinity: mpirun binds ranks, batch
systems assign parts of a node), and no more than its cgroup's quota (cpu.max, rounded down). Ranks that
mpirun reports as alone on their machine are, whatever its name (a simulator's are all on one).
*/

typedef struct {
    int32_t num_ranks, num_hosts;
    int32_t* host;                       // [num_ranks] 0 .. num_hosts - 1
    int32_t *cores, *threads, *sharers;  // [num_hosts] cores; threads of its rank with most; ranks there
} HostCores;

// A collective.
Status host_cores_find(HostCores* out, Collective* world, int32_t num_threads);
void host_cores_free(HostCores* hosts);  // an all-zero one is fine

// The host that lacks most cores for its ranks' threads; -1: none does.
int32_t host_cores_short(const HostCores* hosts);

// Of the text of cpu.max ("max 100000", "150000 100000"): whole cores, at least 1; 0: no limit.
int32_t host_cores_quota(const char* text);

// --- do messages move while their ranks compute? -------------------------------------------------------
/*
Most MPI implementations move a message only inside MPI calls, so one that arrives during a job waits for its
end; the executor calls MPI between jobs. A thread that polls moves it at once, but takes its time from the
cores that compute. Which is better is measured with the costs, in 0.1 s, on a loaded machine in up to 1 s:

    arrives   all ranks post 1 MiB to their neighbours and then compute without a call for some ms: is it
              there? Without the thread (a network card that moves it alone), with one that looks every 1 ms,
              every 0.1 ms
    cost      processor time of that thread while all ranks compute, of the time that has passed: below 2 %

and all ranks do the same: the thread with the longest nap that suffices, or none. Where messages do not move
by themselves then, they are pulled (Machine.pulls), and plans are made for that. Plans depend on the answer,
so it is kept with the costs (CostMeasured.messages): the same command has the same plans.

Where a host has fewer cores than threads there is no thread and nothing is measured: times are meaningless
there, and plans are those of a machine with a core for each. On GPUs the host is free while the device
computes, and polls all the time.
*/

// CostMeasured.messages; other values: a thread polls at this interval, in ns.
enum { MESSAGES_UNKNOWN, MESSAGES_ALONE, MESSAGES_PULLED };

// A collective of all ranks, nothing in flight. Leaves no thread.
Status messages_measure(int32_t* messages, Collective* world);
const char* messages_text(int32_t messages);  // "messages ..": for the banner

// --- links ---------------------------------------------------------------------------------------------
/*
What a transfer between neighbouring ranks costs, by the transport that training would use.

    LinkCosts* links = ...;     // [num_ranks - 1]
    TRY(link_probe(links, &world, ops_stream(ops), TRANSPORT_CHOICE_AUTO));

A collective of all ranks. Pairs of neighbours send messages back and forth, first (0, 1), (2, 3) ..., all at
once, as in a step; then (1, 2), (3, 4) ... Half of a usual round trip (the median of some) of a small message
is the latency, what a large one takes beyond that gives the rate: of a link whose directions differ, the
mean.
*/

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { TRANSPORT_CHOICE_AUTO, TRANSPORT_CHOICE_NCCL, TRANSPORT_CHOICE_MPI } TransportChoice;

// About what a microbatch sends.
#ifdef DYNAPIPE_CUDA
enum { LINK_PROBE_BYTES = 4 << 20 };
#else
enum { LINK_PROBE_BYTES = 1 << 20 };
#endif

typedef struct {
    double latency_ns, bytes_per_ns;
} LinkCosts;

// out[r]: of ranks r and r + 1, the same bits on all ranks; unused with one rank. stream: the compute stream
// of a GPU build; else NULL.
Status link_probe(LinkCosts* out, Collective* world, void* stream, TransportChoice choice);

// On links that are open; `memory` has LINK_PROBE_BYTES where the links read and write.
Status link_probe_run(LinkCosts* out, Transport* links, Collective* world, void* memory);

// Bytes per ns at which the group sums gradients: of every byte, a rank sends 2 (R - 1) / R in total. Memory
// of this process. A collective of the group, of two ranks or more; their results may differ a little.
Status link_probe_sums(double* bytes_per_ns, Collective* group);

#ifdef __cplusplus
}
#endif
