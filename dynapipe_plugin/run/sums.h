/*
sums.h -- sums of gradients and copies of parameters among replicas and between first and last stage, wherever
the arrays live.

    Sums sums;
    sums_host_open(&sums, &replicas, &ends);          // this process's memory: collective.h
    TRY(sums.api->pair_sum(sums.ctx, grads + tied, n));       // first and last stage of a replica: both
    TRY(sums.api->reduce_scatter(sums.ctx, grads, n));        // my slice: the sum over the replicas
    TRY(sums.api->all_gather(sums.ctx, params, n, 2));        // everybody's slice, 2 bytes a value
    sums_close(&sums);

Slices are collective_slice() of the replicas. Gradients are float32. On a device the array is read once what
is queued so far is done, and what is queued afterwards sees the result. All members of a group make the same
calls in the same order: all of a replica's transfers, then pair_sum, then the replicas' sums.
*/
#pragma once

#include <stdbool.h>

#include "collective.h"

typedef struct {
    const char* name;  // for logs: "host", "nccl", "mpi"
    bool is_queued;    // calls return at once; else the result is there when they return
    Status (*pair_sum)(void* ctx, float* values, int64_t num_values);
    Status (*reduce_scatter)(void* ctx, float* values, int64_t num_values);
    Status (*all_gather)(void* ctx, void* values, int64_t num_values, int32_t bytes_per_value);
    void (*close)(void* ctx);
} SumsApi;

typedef struct {
    const SumsApi* api;
    void* ctx;
} Sums;

// Both groups are borrowed; `ends` of a rank that is no end has no members.
Status sums_host_open(Sums* out, Collective* replicas, Collective* ends);

static inline void sums_close(Sums* sums) {
    if (sums->api != NULL) { sums->api->close(sums->ctx); }
    sums->api = NULL;
}
