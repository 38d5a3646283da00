/*
nccl.cpp -- NCCL's calls: communicators, groups, operations. MPI is initialised by the program; a communicator
of NCCL is one of MPI's of its own. Calls that block go through mpi_wait.cpp.
*/
#include "nccl.h"

#ifdef EMU_NCCL
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

namespace emu {

static char last_error_text[512];
static int group_depth;
static std::vector<NcclOp> open_group;

static ncclResult_t refuse(ncclResult_t result, const char* format, ...)
    __attribute__((format(printf, 2, 3)));
static ncclResult_t refuse(ncclResult_t result, const char* format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(last_error_text, sizeof last_error_text, format, args);
    va_end(args);
    report("NCCL: %s", last_error_text);
    return result;
}

// --- communicators ---------------------------------------------------------------------------
struct UniqueId {
    char magic[4];
    int world_rank, serial;
};

static bool mpi_runs() {
    int initialized = 0, finalized = 0;
    PMPI_Initialized(&initialized);
    PMPI_Finalized(&finalized);
    return initialized != 0 && finalized == 0;
}

// The ranks that hold the same id: all send their rank to the id's maker, who tells everybody.
static MPI_Comm meet(const UniqueId& id, int num_ranks, int rank) {
    const int tag = 31000 + id.serial % 1000;
    int world_ranks = 0, world_rank = 0;
    PMPI_Comm_size(MPI_COMM_WORLD, &world_ranks);
    PMPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    MPI_Comm mpi = MPI_COMM_NULL;
    if (num_ranks == world_ranks) {
        MPI_Comm_split(MPI_COMM_WORLD, 0, rank, &mpi);
        return mpi;
    }
    std::vector<int> members((size_t)num_ranks);
    if (world_rank == id.world_rank) {
        members[(size_t)rank] = world_rank;
        for (int i = 1; i < num_ranks; i++) {
            int who[2];
            MPI_Recv(who, 2, MPI_INT, MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            members[(size_t)who[0]] = who[1];
        }
        for (int member : members) {
            if (member != world_rank) {
                MPI_Send(members.data(), num_ranks, MPI_INT, member, tag, MPI_COMM_WORLD);
            }
        }
    } else {
        int who[2] = {rank, world_rank};
        MPI_Send(who, 2, MPI_INT, id.world_rank, tag, MPI_COMM_WORLD);
        MPI_Recv(members.data(), num_ranks, MPI_INT, id.world_rank, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    MPI_Group world, group;
    PMPI_Comm_group(MPI_COMM_WORLD, &world);
    PMPI_Group_incl(world, num_ranks, members.data(), &group);
    PMPI_Comm_create_group(MPI_COMM_WORLD, group, tag, &mpi);
    PMPI_Group_free(&group);
    PMPI_Group_free(&world);
    return mpi;
}

static ncclComm* new_comm(MPI_Comm mpi, const ncclConfig_t* config) {
    static int num_made;
    ncclComm* comm = new ncclComm{};
    comm->mpi = mpi;
    PMPI_Comm_dup(mpi, &comm->control);
    PMPI_Comm_rank(mpi, &comm->rank);
    PMPI_Comm_size(mpi, &comm->num_ranks);
    comm->id = num_made++;
    comm->device = current_device();
    comm->blocking = config == nullptr || config->blocking != 0;
    return comm;
}

// A communicator that does not block answers at once, and is ready some polls later.
static ncclResult_t answer(ncclComm* comm) {
    if (comm->blocking) { return ncclSuccess; }
    comm->polls_left = (int)(random_bits() % 4);
    return comm->polls_left > 0 ? ncclInProgress : ncclSuccess;
}

static void free_comm(ncclComm* comm) {
    nccl_disconnect(comm);
    PMPI_Comm_free(&comm->mpi);
    PMPI_Comm_free(&comm->control);
    delete comm;
}

static ncclResult_t start(ncclComm* made, ncclComm_t* out) {
    if (!nccl_connect_at_start(made)) {
        free_comm(made);
        return refuse(ncclUnhandledCudaError, "Cuda failure 2 'out of memory': no room for a communicator");
    }
    *out = made;
    return answer(made);
}

// NCCL 2.28 refuses two ranks on one card (init.cc): same host (NCCL_HOSTID counts as its name), same device.
static ncclResult_t check_devices(ncclComm* comm) {
    struct Place {
        char host[128];
        int device;
    } mine = {};
    const char* host = getenv("NCCL_HOSTID");
    if (host != nullptr) {
        snprintf(mine.host, sizeof mine.host, "%s", host);
    } else {
        gethostname(mine.host, sizeof mine.host - 1);
    }
    mine.device = comm->device;
    std::vector<Place> places((size_t)comm->num_ranks);
    MPI_Allgather(&mine, sizeof mine, MPI_BYTE, places.data(), sizeof mine, MPI_BYTE, comm->control);
    for (int i = 0; i < comm->num_ranks; i++) {
        for (int k = i + 1; k < comm->num_ranks; k++) {
            if (memcmp(&places[(size_t)i], &places[(size_t)k], sizeof mine) != 0) { continue; }
            return refuse(ncclInvalidUsage,
                          "Duplicate GPU detected : rank %d and rank %d both on CUDA device %d", i, k,
                          places[(size_t)i].device);
        }
    }
    return ncclSuccess;
}

// --- operations ------------------------------------------------------------------------------
static ncclResult_t no_memory() {
    return refuse(ncclUnhandledCudaError, "Cuda failure 2 'out of memory': no room to connect");
}

static ncclResult_t flush_group() {
    while (!open_group.empty()) {  // communicator by communicator, in the order of their first operations
        ncclComm* comm = open_group[0].comm;
        std::vector<NcclOp> mine, others;
        for (const NcclOp& op : open_group) { (op.comm == comm ? mine : others).push_back(op); }
        for (const NcclOp& op : mine) {
            if (op.stream != mine[0].stream) {
                fail("one group, one communicator, two streams: not emulated ---> use one stream");
            }
        }
        open_group = others;
        if (!nccl_connect(comm, mine)) { return no_memory(); }
        nccl_enqueue(mine);
    }
    return ncclSuccess;
}

static const char* memory_error(const void* pointer, size_t num_bytes) {
    if (num_bytes == 0) { return nullptr; }
    if (pointer != nullptr && find_allocation(pointer) == nullptr) {
        return "is neither device nor pinned memory";
    }
    return range_error(pointer, num_bytes);
}

static ncclResult_t add(const NcclOp& op) {
    ncclComm* comm = op.comm;
    if (comm == nullptr) { return refuse(ncclInvalidArgument, "no communicator"); }
    if (comm->polls_left > 0) {
        return refuse(ncclInvalidArgument,
                      "the communicator is still busy ---> poll ncclCommGetAsyncError until ncclSuccess");
    }
    if (op.peer < 0 || op.peer >= comm->num_ranks) {
        return refuse(ncclInvalidArgument, "rank %d of %d", op.peer, comm->num_ranks);
    }
    if ((op.reduction != ncclSum && op.reduction != ncclAvg) || nccl_type_bytes(op.type) == 0 ||
        op.num_bytes() * (size_t)comm->num_ranks > 0x7fffffff) {
        return refuse(ncclInvalidArgument, "%zu values of type %d, reduction %d: not emulated", op.count,
                      (int)op.type, (int)op.reduction);
    }
    if (op.stream != nullptr && op.stream != cudaStreamLegacy && op.stream->device != comm->device) {
        return refuse(ncclInvalidArgument, "a stream of device %d, a communicator of device %d",
                      op.stream->device, comm->device);
    }
    const size_t ranks = (size_t)comm->num_ranks;
    const bool root_only = op.kind == NCCL_REDUCE && comm->rank != op.peer,
               from_root = op.kind == NCCL_BROADCAST && comm->rank != op.peer;
    const size_t send_bytes =
        op.kind == NCCL_RECV || from_root ? 0 : op.num_bytes() * (op.kind == NCCL_REDUCE_SCATTER ? ranks : 1);
    const size_t recv_bytes =
        op.kind == NCCL_SEND || root_only ? 0 : op.num_bytes() * (op.kind == NCCL_ALL_GATHER ? ranks : 1);
    const char* wrong = memory_error(op.send, send_bytes);
    if (wrong == nullptr) { wrong = memory_error(op.recv, recv_bytes); }
    if (wrong != nullptr) { return refuse(ncclInvalidArgument, "the memory of an operation %s", wrong); }
    open_group.push_back(op);
    if (group_depth > 0) { return ncclSuccess; }
    const ncclResult_t result = flush_group();
    return result == ncclSuccess ? answer(comm) : result;
}

}  // namespace emu

using namespace emu;

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
    switch (result) {
        case ncclSuccess: return "no error";
        case ncclUnhandledCudaError: return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
        case ncclSystemError: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
        case ncclInvalidArgument: return "invalid argument (run with NCCL_DEBUG=WARN for details)";
        case ncclInvalidUsage: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
        case ncclInProgress: return "NCCL operation in progress";
        default: return "unknown result code";
    }
}
const char* ncclGetLastError(ncclComm_t) {
    return last_error_text;
}

// --- communicators ---------------------------------------------------------------------------
ncclResult_t ncclGetUniqueId(ncclUniqueId* opaque) {
    static int num_made;
    UniqueId id = {{'e', 'm', 'u', 0}, 0, num_made++};
    if (!mpi_runs()) { return refuse(ncclSystemError, "emulated NCCL needs MPI ---> MPI_Init first"); }
    PMPI_Comm_rank(MPI_COMM_WORLD, &id.world_rank);
    memset(opaque, 0, sizeof *opaque);
    memcpy(opaque, &id, sizeof id);
    return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int num_ranks, ncclUniqueId opaque, int rank,
                                    ncclConfig_t* config) {
    UniqueId id;
    memcpy(&id, &opaque, sizeof id);
    *comm = nullptr;
    if (settings().num_devices == 0) {
        return refuse(ncclUnhandledCudaError, "Cuda failure 'no CUDA-capable device is detected'");
    }
    if (!mpi_runs() || memcmp(id.magic, "emu", 4) != 0) {
        return refuse(ncclInvalidArgument, "no unique id ---> ncclGetUniqueId, MPI_Bcast");
    }
    if (rank < 0 || rank >= num_ranks) {
        return refuse(ncclInvalidArgument, "rank %d of %d", rank, num_ranks);
    }
    ncclComm* made = new_comm(meet(id, num_ranks, rank), config);
    const ncclResult_t result = check_devices(made);
    if (result != ncclSuccess) {
        free_comm(made);
        return result;
    }
    return start(made, comm);
}
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int num_ranks, ncclUniqueId id, int rank) {
    return ncclCommInitRankConfig(comm, num_ranks, id, rank, nullptr);
}
ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t* comm, ncclConfig_t* config) {
    *comm = nullptr;
    if (parent->polls_left > 0) { return refuse(ncclInvalidArgument, "the parent is still busy"); }
    MPI_Comm mpi = MPI_COMM_NULL;
    MPI_Comm_split(parent->control, color == NCCL_SPLIT_NOCOLOR ? MPI_UNDEFINED : color, key, &mpi);
    if (mpi == MPI_COMM_NULL) { return ncclSuccess; }
    ncclComm* made = new_comm(mpi, config);
    if (config == nullptr) { made->blocking = parent->blocking; }
    return start(made, comm);
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    if (comm == nullptr) { return ncclSuccess; }
    run_until([=] { return comm->aborted || comm->done == comm->issued; }, "ncclCommDestroy");
    if (!comm->aborted) { free_comm(comm); }
    return ncclSuccess;
}
// What it has queued ends without having happened. (The handle is kept: tasks name it.)
ncclResult_t ncclCommAbort(ncclComm_t comm) {
    comm->aborted = true;
    return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
    run_one_step();
    if (comm->polls_left > 0) { comm->polls_left--; }
    *result = comm->polls_left > 0 ? ncclInProgress : ncclSuccess;
    return ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t comm, int* num_ranks) {
    *num_ranks = comm->num_ranks;
    return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
    *rank = comm->rank;
    return ncclSuccess;
}

// --- groups, operations ----------------------------------------------------------------------
ncclResult_t ncclGroupStart() {
    group_depth++;
    return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
    if (group_depth == 0) { return refuse(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart"); }
    if (--group_depth > 0 || open_group.empty()) { return ncclSuccess; }
    std::vector<ncclComm*> comms;
    for (const NcclOp& op : open_group) { comms.push_back(op.comm); }
    ncclResult_t result = flush_group();
    for (ncclComm* comm : comms) {
        if (result == ncclSuccess && answer(comm) != ncclSuccess) { result = ncclInProgress; }
    }
    return result;
}

ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return add({NCCL_SEND, send, nullptr, count, type, peer, ncclSum, comm, stream});
}
ncclResult_t ncclRecv(void* recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return add({NCCL_RECV, nullptr, recv, count, type, peer, ncclSum, comm, stream});
}
ncclResult_t ncclAllReduce(const void* send, void* recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t reduction, ncclComm_t comm, cudaStream_t stream) {
    return add({NCCL_ALL_REDUCE, send, recv, count, type, 0, reduction, comm, stream});
}
ncclResult_t ncclReduce(const void* send, void* recv, size_t count, ncclDataType_t type,
                        ncclRedOp_t reduction, int root, ncclComm_t comm, cudaStream_t stream) {
    return add({NCCL_REDUCE, send, recv, count, type, root, reduction, comm, stream});
}
ncclResult_t ncclReduceScatter(const void* send, void* recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t reduction, ncclComm_t comm, cudaStream_t stream) {
    return add({NCCL_REDUCE_SCATTER, send, recv, count, type, 0, reduction, comm, stream});
}
ncclResult_t ncclAllGather(const void* send, void* recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
    return add({NCCL_ALL_GATHER, send, recv, count, type, 0, ncclSum, comm, stream});
}
ncclResult_t ncclBroadcast(const void* send, void* recv, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
    return add({NCCL_BROADCAST, send, recv, count, type, root, ncclSum, comm, stream});
}

}  // extern "C"
#endif
