/*
mpi_wait.cpp -- streams go on while the host waits in MPI, as they do on a GPU.

Without this a rank that waits in MPI_Barrier for another one would keep the message that the other one waits
for. The program's MPI calls arrive here (MPI's profiling interface): a call that blocks becomes one that does
not, and a loop that runs tasks; a poll runs one task.
*/
#ifdef DYNAPIPE_MPI
#include <mpi.h>

#include "runtime.h"

namespace emu {

static int wait(MPI_Request* request, MPI_Status* status, const char* what) {
    int done = 0, code = MPI_SUCCESS;
    run_until(
        [&] {
            if (done == 0) { code = PMPI_Test(request, &done, status); }
            return done != 0 || code != MPI_SUCCESS;
        },
        what);
    return code;
}

// With nothing queued a rank may wait like any other.
static bool streams_wait() {
    return on_host_thread() && num_queued_tasks() > 0;
}

}  // namespace emu

using namespace emu;

extern "C" {

int MPI_Barrier(MPI_Comm comm) {
    MPI_Request request;
    if (!streams_wait()) { return PMPI_Barrier(comm); }
    const int code = PMPI_Ibarrier(comm, &request);
    return code != MPI_SUCCESS ? code : wait(&request, MPI_STATUS_IGNORE, "MPI_Barrier");
}
int MPI_Bcast(void* data, int count, MPI_Datatype type, int root, MPI_Comm comm) {
    MPI_Request request;
    if (!streams_wait()) { return PMPI_Bcast(data, count, type, root, comm); }
    const int code = PMPI_Ibcast(data, count, type, root, comm, &request);
    return code != MPI_SUCCESS ? code : wait(&request, MPI_STATUS_IGNORE, "MPI_Bcast");
}
int MPI_Allreduce(const void* send, void* recv, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
    MPI_Request request;
    if (!streams_wait()) { return PMPI_Allreduce(send, recv, count, type, op, comm); }
    const int code = PMPI_Iallreduce(send, recv, count, type, op, comm, &request);
    return code != MPI_SUCCESS ? code : wait(&request, MPI_STATUS_IGNORE, "MPI_Allreduce");
}
int MPI_Allgather(const void* send, int num_sent, MPI_Datatype send_type, void* recv, int num_received,
                  MPI_Datatype recv_type, MPI_Comm comm) {
    MPI_Request request;
    if (!streams_wait()) {
        return PMPI_Allgather(send, num_sent, send_type, recv, num_received, recv_type, comm);
    }
    const int code =
        PMPI_Iallgather(send, num_sent, send_type, recv, num_received, recv_type, comm, &request);
    return code != MPI_SUCCESS ? code : wait(&request, MPI_STATUS_IGNORE, "MPI_Allgather");
}
int MPI_Send(const void* data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm) {
    MPI_Request request;
    if (!streams_wait()) { return PMPI_Send(data, count, type, peer, tag, comm); }
    const int code = PMPI_Isend(data, count, type, peer, tag, comm, &request);
    return code != MPI_SUCCESS ? code : wait(&request, MPI_STATUS_IGNORE, "MPI_Send");
}
int MPI_Recv(void* data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Status* status) {
    MPI_Request request;
    if (!streams_wait()) { return PMPI_Recv(data, count, type, peer, tag, comm, status); }
    const int code = PMPI_Irecv(data, count, type, peer, tag, comm, &request);
    return code != MPI_SUCCESS ? code : wait(&request, status, "MPI_Recv");
}
int MPI_Wait(MPI_Request* request, MPI_Status* status) {
    return streams_wait() ? wait(request, status, "MPI_Wait") : PMPI_Wait(request, status);
}

int MPI_Test(MPI_Request* request, int* done, MPI_Status* status) {
    if (streams_wait()) { run_one_step(); }
    return PMPI_Test(request, done, status);
}
int MPI_Iprobe(int peer, int tag, MPI_Comm comm, int* found, MPI_Status* status) {
    if (streams_wait()) { run_one_step(); }
    return PMPI_Iprobe(peer, tag, comm, found, status);
}
int MPI_Improbe(int peer, int tag, MPI_Comm comm, int* found, MPI_Message* message, MPI_Status* status) {
    if (streams_wait()) { run_one_step(); }
    return PMPI_Improbe(peer, tag, comm, found, message, status);
}

}  // extern "C"
#endif
