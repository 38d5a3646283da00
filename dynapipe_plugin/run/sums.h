/*
sums.h -- sums of gradients and of copies of parameters; which stages have copies of which parameters.

    TRY(tied_groups_open(&tied, &world, num_stages, &params));    // every rank sends what it has
    for (int32_t i = 0; i < tied.num_groups; i++) {               // ascending by number, on every rank
        const TiedGroup* group = &tied.groups[i];
        TRY(sums.api->sum_copies(sums.ctx, group->holders, begin, group->count, type));
    }
    tied_groups_free(&tied);

A sum waits for all ranks that have a copy, and for no other. In ascending order no ranks wait for
each other in a circle: of the groups that are not summed yet, all ranks that have a copy of the one with the
smallest number have reached it, or have only sums before it that will complete.
Each replica first sums its groups, then replicas sum over each other: no group waits for that.
*/
#pragma once

#include <stdbool.h>
#include "../dynapipe.h"
#include "../plan/types.h"
#include "collective.h"
#include "device.h"

// A group that this rank has a copy of and another stage too.
typedef struct {
    int32_t group;         // the model's number
    int32_t holders;       // index in TiedGroups.holders: who has copies
    int64_t begin, count;  // mine: these values of my parameters
} TiedGroup;

// Stages with copies of the same groups.
typedef struct {
    uint64_t stages[PLAN_MAX_STAGES / 64];  // bit s % 64 of word s / 64: stage s
    Collective ranks;  // those stages in my replica, ascending; without members where my stage is none of
                       // them
} TiedHolders;

static inline bool tied_holders_have(const TiedHolders* holders, int32_t stage) {
    return holders->stages[stage / 64] >> (stage % 64) & 1;
}

typedef struct {
    TiedGroup* groups;  // [num_groups] ascending by number
    int32_t num_groups;
    TiedHolders* holders;  // [num_holders] of the whole run: the same list on every rank
    int32_t num_holders;
} TiedGroups;

// A collective of all ranks (`world`; rank = replica * num_stages + stage); it checks the groups, and fails
// on all alike. STATUS_MISMATCH: copies of different length, replicas of a stage that differ.
// STATUS_OUT_OF_RANGE: values beyond the parameters, a group twice on a rank, groups that overlap.
Status tied_groups_open(TiedGroups* out, Collective* world, int32_t num_stages,
                        const DynapipeParams_v1* params);
void tied_groups_free(TiedGroups* tied);  // an all-zero one is fine

// --- sums ------------------------------------------------------------------------------------------------
// Sums of gradients and copies of parameters, among replicas and among the stages of one that have copies of
// a tied parameter, wherever the arrays live.
//
//     Sums sums;
//     sums_host_open(&sums, &replicas, &tied, device, mirror, mirror_bytes);  // by collective.h
//     TRY(sums.api->sum_copies(sums.ctx, group->holders, begin, group->count, type));  // every copy
//     TRY(sums.api->reduce_scatter(sums.ctx, grads, n, type));  // my slice: the sum over the replicas
//     TRY(sums.api->all_gather(sums.ctx, params, n, 2));        // everybody's slice, 2 bytes a value
//     sums_close(&sums);
//
// Slices are collective_slice() of the replicas. Gradients of 16 bits are added as float32 and rounded once a
// sum (with NCCL in its own way), so once among the copies of a tied parameter and once among replicas. On a
// device the array is read after the work queued so far, and work queued afterwards uses the result. All
// members of a group make the same calls in the same order: all of a replica's transfers, then its tied
// groups in ascending number (why: above), then the replicas' sums. Copies get the same bits: one rank adds,
// the others take its result.

typedef struct {
    bool is_queued;  // calls return at once; else the result is there when they return
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

// All are borrowed. A device without api: arrays of this process. Else they pass through the mirror, memory
// of this process (pinned: faster) with room for the longest: summed by the host in the fixed order of
// collective.h, so the same bits in every run.
Status sums_host_open(Sums* out, Collective* replicas, TiedGroups* tied, Device device, void* mirror,
                      int64_t mirror_bytes);

static inline void sums_close(Sums* sums) {
    if (sums->api != NULL) { sums->api->close(sums->ctx); }
    sums->api = NULL;
}
