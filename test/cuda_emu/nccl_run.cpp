// nccl_run.cpp -- an operation of NCCL when its turn has come: MPI messages, and sums in the order of ranks.
#include "nccl.h"

#ifdef EMU_NCCL
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace emu {

static constexpr int TAG = 7;
static const char* const KIND_NAMES[] = {"send",       "recv",      "all-reduce", "reduce-scatter",
                                         "all-gather", "broadcast", "reduce"};

size_t nccl_type_bytes(ncclDataType_t type) {
    switch (type) {
        case ncclInt8: return 1;
        case ncclFloat16:
        case ncclBfloat16: return 2;
        case ncclFloat32: return 4;
        default: return 0;
    }
}

size_t NcclOp::num_bytes() const {
    return count * nccl_type_bytes(type);
}

// --- sums ------------------------------------------------------------------------------------
// out[i] = over the ranks' parts, `stride` values apart; in float32, rounded to T once.
template <class T> static void reduce_as(const NcclOp& op, const char* parts, size_t stride) {
    const T* values = (const T*)parts;
    for (size_t i = 0; i < op.count; i++) {
        float sum = (float)values[i];
        for (int r = 1; r < op.comm->num_ranks; r++) { sum += (float)values[i + (size_t)r * stride]; }
        ((T*)op.recv)[i] = (T)(op.reduction == ncclAvg ? sum / (float)op.comm->num_ranks : sum);
    }
}

static void reduce(const NcclOp& op, const char* parts, size_t stride) {
    switch (op.type) {
        case ncclFloat32: reduce_as<float>(op, parts, stride); break;
        case ncclBfloat16: reduce_as<__nv_bfloat16>(op, parts, stride); break;
        case ncclFloat16: reduce_as<__half>(op, parts, stride); break;
        default: fail("a sum of type %d is not emulated", (int)op.type);
    }
}

// --- a group under way -----------------------------------------------------------------------
struct Transfer {
    NcclOp op;
    MPI_Request request;
    std::vector<char> parts;  // of all ranks
    bool matched, done;
};

struct Group {
    ncclComm* comm;
    std::vector<Transfer> transfers;
    uint64_t turn, process_turn;  // in its communicator, of all NCCL operations of this process
    bool started;
};

static uint64_t process_issued, process_done;

static std::string describe(const Group& group) {
    std::string text = "communicator " + std::to_string(group.comm->id) + ", its rank " +
                       std::to_string(group.comm->rank) + " of " + std::to_string(group.comm->num_ranks) +
                       (group.started ? ", under way:" : ", not begun:");
    for (const Transfer& transfer : group.transfers) {
        const NcclOp& op = transfer.op;
        text += std::string(transfer.done ? " (done: " : " ") + KIND_NAMES[op.kind] + " " +
                std::to_string(op.num_bytes()) + " B";
        if (op.kind == NCCL_SEND) { text += " to " + std::to_string(op.peer); }
        if (op.kind == NCCL_RECV) { text += " from " + std::to_string(op.peer); }
        text += transfer.done ? ")" : ";";
    }
    return text;
}

static void start(Transfer& transfer) {
    const NcclOp& op = transfer.op;
    const int num_bytes = (int)op.num_bytes(), num_ranks = op.comm->num_ranks;
    const MPI_Comm mpi = op.comm->mpi;
    auto gather = [&](int from_each) {
        transfer.parts.resize((size_t)from_each * (size_t)num_ranks);
        PMPI_Iallgather(op.send, from_each, MPI_BYTE, transfer.parts.data(), from_each, MPI_BYTE, mpi,
                        &transfer.request);
    };
    switch (op.kind) {
        case NCCL_SEND:
            PMPI_Issend(op.send, num_bytes, MPI_BYTE, op.peer, TAG, mpi, &transfer.request);
            break;
        case NCCL_RECV: memset(op.recv, 0xff, op.num_bytes()); break;  // nobody may look at it meanwhile
        case NCCL_REDUCE_SCATTER: gather(num_bytes * num_ranks); break;
        case NCCL_BROADCAST:
            if (op.comm->rank == op.peer && op.recv != op.send) { memcpy(op.recv, op.send, op.num_bytes()); }
            PMPI_Ibcast(op.recv, num_bytes, MPI_BYTE, op.peer, mpi, &transfer.request);
            break;
        default: gather(num_bytes); break;
    }
}

static void finish(const Transfer& transfer) {
    const NcclOp& op = transfer.op;
    const char* parts = transfer.parts.data();
    switch (op.kind) {
        case NCCL_ALL_REDUCE: reduce(op, parts, op.count); break;
        case NCCL_REDUCE:
            if (op.comm->rank == op.peer) { reduce(op, parts, op.count); }
            break;
        case NCCL_REDUCE_SCATTER:
            reduce(op, parts + op.num_bytes() * (size_t)op.comm->rank, op.count * (size_t)op.comm->num_ranks);
            break;
        case NCCL_ALL_GATHER: memcpy(op.recv, parts, transfer.parts.size()); break;
        default: break;
    }
}

// The message is there: is it as long as the receive?
static bool match(Transfer& transfer) {
    const NcclOp& op = transfer.op;
    int found = 0, sent_bytes = 0;
    MPI_Message message;
    MPI_Status status;
    PMPI_Improbe(op.peer, TAG, op.comm->mpi, &found, &message, &status);
    if (found == 0) { return false; }
    PMPI_Get_count(&status, MPI_BYTE, &sent_bytes);
    transfer.matched = true;
    if ((size_t)sent_bytes == op.num_bytes()) {
        PMPI_Imrecv(op.recv, sent_bytes, MPI_BYTE, &message, &transfer.request);
        return true;
    }
    if (settings().nccl_check) {
        fail("ncclRecv of %zu bytes from rank %d of communicator %d meets an ncclSend of %d ---> both sides "
             "must take the "
             "length from one plan",
             op.num_bytes(), op.peer, op.comm->id, sent_bytes);
    }
    std::vector<char> sent((size_t)sent_bytes);
    PMPI_Mrecv(sent.data(), sent_bytes, MPI_BYTE, &message, MPI_STATUS_IGNORE);
    memcpy(op.recv, sent.data(), std::min(sent.size(), op.num_bytes()));
    transfer.done = sent.size() > op.num_bytes();  // a longer receive waits for ever
    return true;
}

static bool progress(Group& group) {
    bool all_done = true;
    for (size_t i = 0; i < group.transfers.size(); i++) {
        Transfer& transfer = group.transfers[i];
        if (transfer.done) { continue; }
        all_done = false;
        if (transfer.op.kind == NCCL_RECV && !transfer.matched) {
            bool first = true;  // messages of one sender arrive in the order of their receives
            for (size_t k = 0; k < i; k++) {
                const Transfer& before = group.transfers[k];
                first &= before.op.kind != NCCL_RECV || before.op.peer != transfer.op.peer || before.matched;
            }
            if (!first || !match(transfer)) { continue; }
        }
        if (transfer.request == MPI_REQUEST_NULL) { continue; }
        int done = 0;
        PMPI_Test(&transfer.request, &done, MPI_STATUS_IGNORE);
        if (done != 0) {
            finish(transfer);
            transfer.done = true;
        }
    }
    return all_done;
}

static bool step(Group& group) {
    ncclComm* comm = group.comm;
    if (comm->aborted) { return true; }
    if (comm->done != group.turn || (settings().nccl_serial && process_done != group.process_turn)) {
        return false;
    }
    if (!group.started) {
        group.started = true;
        for (Transfer& transfer : group.transfers) { start(transfer); }
    }
    if (!progress(group)) { return false; }
    comm->done++;
    process_done++;
    return true;
}

void nccl_enqueue(const std::vector<NcclOp>& ops) {
    auto group = std::make_shared<Group>();
    group->comm = ops[0].comm;
    group->turn = group->comm->issued++;
    group->process_turn = process_issued++;
    std::string name = "nccl";
    for (const NcclOp& op : ops) {
        group->transfers.push_back({op, MPI_REQUEST_NULL, {}, false, false});
        if (name.size() < 60) { name += std::string(" ") + KIND_NAMES[op.kind]; }
    }
    enqueue(
        ops[0].stream, name.c_str(), [group] { return step(*group); }, [group] { return describe(*group); });
}

}  // namespace emu
#endif
