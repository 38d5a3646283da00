/*
sums.h -- sums of gradients and copies of parameters, among replicas and among the stages of one that have
copies of a tied parameter, wherever the arrays live.

    Sums sums;
    sums_host_open(&sums, &replicas, &tied);          // this process's memory: collective.h
    TRY(sums.api->sum_copies(sums.ctx, group->holders, begin, group->count, type));  // every copy
    TRY(sums.api->reduce_scatter(sums.ctx, grads, n, type));  // my slice: the sum over the replicas
    TRY(sums.api->all_gather(sums.ctx, params, n, 2));        // everybody's slice, 2 bytes a value
    sums_close(&sums);

Slices are collective_slice() of the replicas. Gradients of 16 bits are added as floats and rounded once a
sum (NCCL: as it likes, in 16 bits between ranks), so once among the copies of a tied parameter and once among
replicas. On a device the array is read once what
is queued so far is done, and what is queued afterwards sees the result. All members of a group make the same
calls in the same order: all of a replica's transfers, then its tied groups in ascending number (why:
tied_groups.h), then the replicas' sums. Copies get the same bits: one rank adds, the others take its result.
*/
#pragma once

#include <stdbool.h>

#include "collective.h"
#include "tied_groups.h"

typedef struct {
    const char* name;  // for logs: "host", "nccl", "mpi"
    bool is_queued;    // calls return at once; else the result is there when they return
    // holders: which of TiedGroups.holders; this rank is one of them
    Status (*sum_copies)(void* ctx, int32_t holders, void* values, int64_t num_values, DynapipeType type);
    Status (*reduce_scatter)(void* ctx, void* values, int64_t num_values, DynapipeType type);
    Status (*all_gather)(void* ctx, void* values, int64_t num_values, int32_t bytes_per_value);
    void (*close)(void* ctx);
} SumsApi;

typedef struct {
    const SumsApi* api;
    void* ctx;
} Sums;

// Both are borrowed.
Status sums_host_open(Sums* out, Collective* replicas, TiedGroups* tied);

static inline void sums_close(Sums* sums) {
    if (sums->api != NULL) { sums->api->close(sums->ctx); }
    sums->api = NULL;
}
