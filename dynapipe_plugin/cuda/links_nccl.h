/*
links_nccl.h -- the NCCL communicators of one rank: that of all ranks, for messages; its stage's replicas';
and one for each set of ranks that have copies of the same parameters.

All operations of a rank run on one stream of its own, in the order they were posted. NCCL promises nothing
for two communicators that run at once on one GPU (each may hold resources that the other needs). So sums wait
for the transfers before them, and the order is the same on all ranks:
the lists of plan.h (which pass plan_check's strictest rules), then tied groups, then the replicas. No circle:
a sum over replicas waits for transfers and tied groups only, a tied group for transfers and for groups of
smaller number (sums.h).

Connections are made before the first step, not in it, where they would block and take memory that the plan
has: NCCL since 2.22 makes those of an algorithm when a collective first uses it, which depends on its length.
So NCCL_RUNTIME_CONNECT=0, unless the user sets it: with the communicator come all algorithms of
collectives. It does not cover sends and receives: connect() sends a value to and from every peer, in one
group, which connects all their channels for any length. Peers follow from the placement:
any two ranks of a replica may have neighbouring chunks, or one the last chunk and the other a share of the
head.

Hence blocking communicators (a non-blocking one starts a thread for every group); a thread watches calls
that do not return.
*/
#pragma once

#include <stdbool.h>
#include "device_cuda.h"
#include "../run/collective.h"
#include "../run/sums.h"
#include "../run/transport.h"
#include "../../util/status.h"

#ifdef __cplusplus
#include <nccl.h>
#else
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes"  // nccl.h is written for C++
#include <nccl.h>
#pragma GCC diagnostic pop
#endif

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 18, 1)
#error "NCCL before 2.18 (ncclCommSplit) ---> a newer one, NCCL_HOME=/path; or NO_NCCL=1"
#endif

typedef struct CallWatch CallWatch;

typedef struct {
    CudaDevice* device;  // borrowed
    CallWatch* watch;    // of calls that may connect
    cudaStream_t stream;
    ncclComm_t pipeline;  // all ranks, numbered as in the plan
    bool* is_connected;   // [ranks] sends to and receives from it were
    ncclComm_t replicas;  // NULL where the rank is alone
    ncclComm_t* holders;  // [num_holders] those of TiedGroups.holders in my replica; NULL: I am none of them
    int32_t num_holders;
    int32_t num_replicas, replica;
    cudaEvent_t ready, done;  // of sums
} NcclWorld;

// A collective of all ranks (`world`, which bootstraps). rank = replica * num_stages + stage.
Status nccl_world_open(NcclWorld** out, CudaDevice* device, Collective* world, int32_t num_stages,
                       int32_t num_replicas);
// Another number of stages than it was opened with. A collective of all ranks.
Status nccl_world_set_stages(NcclWorld* world, Collective* ranks, int32_t num_stages, int32_t num_replicas);
// Both directions between this rank and each of `peers` (other ranks, none twice), unless already connected.
// A collective of all ranks, some with no peers; the relation is symmetric.
Status nccl_world_connect(NcclWorld* world, Collective* ranks, const int32_t* peers, int32_t num_peers);
// Once tied groups are known; a collective of all ranks too.
Status nccl_world_open_holders(NcclWorld* world, Collective* ranks, const TiedGroups* tied);
void nccl_world_abort(NcclWorld* world);  // what runs ends; the communicators are gone
void nccl_world_close(NcclWorld* world);  // NULL is fine

#define NCCL_TRY(call)                                                              \
    do {                                                                            \
        ncclResult_t nccl_result_ = (call);                                         \
        if (nccl_result_ != ncclSuccess) { return nccl_fail(nccl_result_, #call); } \
    } while (0)
Status nccl_fail(ncclResult_t result, const char* call);

// --- transfers -------------------------------------------------------------------------------------------
/*
Activations and gradients between GPUs by NCCL, through run/transport.h.

A transfer waits on the device for what the compute stream had queued when it was posted; join() makes the
compute stream wait for the transfer. The host never waits. NCCL knows no tags: messages of two ranks meet in
posting order, which is the same on both sides (plan_check), and sizes are the plan's. A group may have any
transfers that follow each other, as one message to all shares of the head, or one from each.
*/

// `world` is borrowed.
Status transport_nccl_open(Transport* out, NcclWorld* world, int32_t rank, int32_t num_ranks);

// --- sums ------------------------------------------------------------------------------------------------
// Sums of gradients between GPUs by NCCL, queued after what they sum (run/sums.h).

// Both are borrowed; `world` has the communicators of `tied` (nccl_world_open_holders).
Status sums_nccl_open(Sums* out, const NcclWorld* world, const TiedGroups* tied);
