/*
nccl_connect.cpp -- when NCCL connects, and what memory that takes (NCCL 2.22 and later: group.cc, init.cc,
enqueue.cc).

A communicator has no connections when it is made, but with NCCL_RUNTIME_CONNECT=0 those of all its
collectives' algorithms. What is missing is connected by the first operation that needs it: an algorithm,
which follows from the collective and its length; or one direction between two ranks (always, whatever the
variable says). The host waits in that call until all who take part have come, and the buffers are device
memory: here EMU_NCCL_CONNECT_BYTES each.
*/
#include "nccl.h"

#ifdef EMU_NCCL
#include <cstdlib>

namespace emu {

enum NcclAlgorithm { NCCL_TREE, NCCL_RING, NCCL_NVLS, NCCL_PAT, NUM_NCCL_ALGORITHMS };
// Per rank. NCCL's follow from the machine and are larger; these lie within what tests sum up.
static constexpr size_t SHORT_BYTES = 4 << 10, LONG_BYTES = 16 << 10;
static constexpr int FROM_SENDER = 41, FROM_RECEIVER = 42;  // tags

static NcclAlgorithm algorithm_of(const NcclOp& op) {
    const bool reduces = op.kind == NCCL_ALL_REDUCE;
    if (op.kind == NCCL_REDUCE || op.kind == NCCL_BROADCAST) { return NCCL_RING; }
    if (op.num_bytes() < SHORT_BYTES) { return reduces ? NCCL_TREE : NCCL_PAT; }
    return op.num_bytes() < LONG_BYTES ? NCCL_RING : NCCL_NVLS;
}

// As NCCL: looked up once in a process.
static bool connects_late() {
    static const char* value = getenv("NCCL_RUNTIME_CONNECT");
    static const bool late = value == nullptr || atoi(value) != 0;
    return late;
}

static bool take_memory(ncclComm* comm) {
    void* buffers = nullptr;
    if (cudaMalloc(&buffers, settings().nccl_connect_bytes) != cudaSuccess) { return false; }
    comm->buffers.push_back(buffers);
    return true;
}

static void wait_for_all(std::vector<MPI_Request>& requests, ncclComm* comm) {
    run_until(
        [&] {
            int done = 0;
            PMPI_Testall((int)requests.size(), requests.data(), &done, MPI_STATUSES_IGNORE);
            return done != 0 || comm->aborted;
        },
        "the other ranks of a connection of NCCL");
}

// Of one group: directions between two ranks that have not been used.
static bool connect_links(ncclComm* comm, const std::vector<NcclOp>& ops) {
    std::vector<MPI_Request> requests;
    comm->links.resize((size_t)comm->num_ranks);
    for (const NcclOp& op : ops) {
        const bool sends = op.kind == NCCL_SEND, is_link = sends || op.kind == NCCL_RECV;
        const unsigned bit = sends ? 1 : 2;
        if (!is_link || op.peer == comm->rank || (comm->links[(size_t)op.peer] & bit) != 0) { continue; }
        comm->links[(size_t)op.peer] |= bit;
        if (!take_memory(comm)) { return false; }
        requests.resize(requests.size() + 2);
        PMPI_Isend(nullptr, 0, MPI_BYTE, op.peer, sends ? FROM_SENDER : FROM_RECEIVER, comm->control,
                   &requests[requests.size() - 2]);
        PMPI_Irecv(nullptr, 0, MPI_BYTE, op.peer, sends ? FROM_RECEIVER : FROM_SENDER, comm->control,
                   &requests[requests.size() - 1]);
    }
    wait_for_all(requests, comm);
    return true;
}

bool nccl_connect(ncclComm* comm, const std::vector<NcclOp>& ops) {
    if (comm->num_ranks == 1 || comm->aborted) { return true; }
    for (const NcclOp& op : ops) {
        if (op.kind == NCCL_SEND || op.kind == NCCL_RECV) { continue; }
        const unsigned bit = 1u << algorithm_of(op);
        if ((comm->algorithms & bit) != 0) { continue; }
        comm->algorithms |= bit;
        if (!take_memory(comm)) { return false; }
        std::vector<MPI_Request> all(1);
        PMPI_Ibarrier(comm->control, &all[0]);
        wait_for_all(all, comm);
    }
    return connect_links(comm, ops);
}

bool nccl_connect_at_start(ncclComm* comm) {
    for (int i = 0; i < NUM_NCCL_ALGORITHMS && comm->num_ranks > 1 && !connects_late(); i++) {
        if (!take_memory(comm)) { return false; }
        comm->algorithms |= 1u << i;
    }
    return true;
}

void nccl_disconnect(ncclComm* comm) {
    for (void* buffers : comm->buffers) { cudaFree(buffers); }
    comm->buffers.clear();
}

}  // namespace emu
#endif
