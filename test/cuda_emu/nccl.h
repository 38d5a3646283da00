/*
nccl.h -- NCCL on MPI: communicators (nccl.cpp), when they connect (nccl_connect.cpp), and what their
operations do when their turn comes (nccl_run.cpp).

The rules of NCCL that a program can get wrong (docs.nvidia.com, NCCL user guide; issues 195, 783, 1938):
* operations of one communicator run one after the other, in the order of their issue, whatever their streams;
* a group is one operation: its sends and receives progress together, and it ends as a whole;
* a send may wait for its receive (here it always does: MPI_Issend);
* a receive that is longer than its send hangs, a shorter one passes in silence (here: reported;
EMU_NCCL_CHECK=0);
* the first operation of its kind connects, which blocks the host and takes device memory;
* operations of several communicators may run together, or not. EMU_NCCL_SERIAL=1: never, and an operation
that waits for its stream holds up all that were issued after it.
*/
#pragma once

#if defined(DYNAPIPE_MPI) && __has_include(<nccl.h>)
#define EMU_NCCL 1

#include <mpi.h>
#include <nccl.h>
#include <string>
#include <vector>

#include "runtime.h"

struct ncclComm {
    MPI_Comm mpi;      // of the operations in its streams
    MPI_Comm control;  // of calls that the host makes at once
    int rank, num_ranks;
    int id;      // the how manieth of this process
    int device;  // it was made for
    bool aborted;
    bool blocking;          // config.blocking
    int polls_left;         // so often ncclCommGetAsyncError says ncclInProgress
    uint64_t issued, done;  // groups
    // nccl_connect.cpp
    unsigned algorithms;          // bits: that are connected
    std::vector<unsigned> links;  // of each rank: 1 sends to it, 2 receives from it
    std::vector<void*> buffers;   // on the device
};

namespace emu {

enum NcclKind {
    NCCL_SEND,
    NCCL_RECV,
    NCCL_ALL_REDUCE,
    NCCL_REDUCE_SCATTER,
    NCCL_ALL_GATHER,
    NCCL_BROADCAST,
    NCCL_REDUCE
};

struct NcclOp {
    NcclKind kind;
    const void* send;
    void* recv;
    size_t count;  // values: as in the call
    ncclDataType_t type;
    int peer;  // or root
    ncclRedOp_t reduction;
    ncclComm* comm;
    cudaStream_t stream;
    size_t num_bytes() const;
};

size_t nccl_type_bytes(ncclDataType_t type);  // 0: not emulated
// What these operations of one group lack; false: no device memory for it. Blocks.
bool nccl_connect(ncclComm* comm, const std::vector<NcclOp>& ops);
bool nccl_connect_at_start(ncclComm* comm);
void nccl_disconnect(ncclComm* comm);
// One group's operations of one communicator, to the end of their stream.
void nccl_enqueue(const std::vector<NcclOp>& ops);

}  // namespace emu
#endif
