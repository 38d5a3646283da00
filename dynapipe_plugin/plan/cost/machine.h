/*
machine.h -- in what the ranks and links of a run differ from what the cost model says of an average one.

The cost model (cost_model.h) knows one kind of rank and one kind of link. A Machine says, for every rank, how
many times as long a job takes there, how much memory it has, and what its link to the next rank does. Plans,
stage splits and bounds are made for it. It comes from measuring (measure/), from steps that ran
(run/session_refit), or from options (`dynapipe plan --rank-speed`). The same bits on all ranks; immutable
while anybody plans with it.
*/
#pragma once

#include <stddef.h>

#include "cost_model.h"

// Factors beyond these are refused: they say that something else is wrong.
#define MACHINE_LEAST_SLOW 0.01
#define MACHINE_MOST_SLOW 100.0

typedef struct {
    double slow[JOB_COUNT];      // a job takes so many times what the cost model says; 1: what it says
    int64_t memory_limit_bytes;  // model state included; 0: as all
    // Of the link to the rank behind (rank + 1, where it is the same replica's), either direction.
    double link_latency_ns, link_bytes_per_ns;  // bytes_per_ns 0: both are the cost model's
} MachineRank;

typedef struct Machine {
    int32_t num_ranks;  // stages * replicas, rank = replica * stages + stage; 0: all are alike
    const MachineRank* ranks;
    // A message begins to move when its receiver looks for it, between two of its jobs, not when it is sent:
    // MPI where nobody calls it during a job.
    bool pulls;
} Machine;

// STATUS_OUT_OF_RANGE names rank and number. num_ranks: what the run has. NULL is a machine whose ranks are
// alike.
Status machine_check(const Machine* machine, int32_t num_ranks);

// A rank of the machine; what the cost model says where it knows none, and where `machine` is NULL.
MachineRank machine_rank(const Machine* machine, int32_t rank);

// NULL: no.
static inline bool machine_pulls(const Machine* machine) {
    return machine != NULL && machine->pulls;
}

// By anything but how messages travel. false: plans are those of NULL.
bool machine_differs(const Machine* machine);

// The ranks of the replica whose first one this is, [stages]; NULL: as the cost model says.
const MachineRank* machine_replica(const Machine* machine, int32_t first_rank);
static inline const MachineRank* machine_stage(const MachineRank* replica, int32_t s) {
    return replica == NULL ? NULL : &replica[s];
}

// Of a rank (NULL: as the cost model says): a job's time, a transfer's over the link behind it, the update
// (as many times as long as W), and its memory where all have common_bytes (0: no limit).
int64_t machine_job_ns(const MachineRank* rank, JobKind kind, int64_t job_ns);
int64_t machine_transfer_ns(const MachineRank* rank, const CostModel* costs, int64_t num_bytes);
int64_t machine_update_ns(const MachineRank* rank, const CostModel* costs, const CostStage* stage);
int64_t machine_limit_bytes(const MachineRank* rank, int64_t common_bytes);
// Whose limit that is, as options name it.
enum { MACHINE_LIMIT_CHARS = 80 };
const char* machine_limit_words(char out[MACHINE_LIMIT_CHARS], const MachineRank* rank, int32_t rank_idx);
// How many times as long as an average rank it takes for all jobs of a micro-batch, about.
double machine_slow(const MachineRank* rank);

// Of everything above; 0 where all ranks are alike and nothing is pulled.
uint64_t machine_hash(const Machine* machine);
