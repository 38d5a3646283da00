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

// With nothing queued a rank may wait like any other.
static bool streams_wait() {
    return on_host_thread() && num_queued_tasks() > 0;
}

static int wait(MPI_Request* request, MPI_Status* status, const char* what) {
    int done = 0, code = MPI_SUCCESS;
    if (streams_wait()) {
        run_until(
            [&] {
                code = PMPI_Test(request, &done, status);
                return done != 0 || code != MPI_SUCCESS || num_queued_tasks() == 0;
            },
            what);
    }
    return done != 0 || code != MPI_SUCCESS ? code : PMPI_Wait(request, status);
}

}  // namespace emu

using namespace emu;

extern "C" {

// Collective calls never block, whatever is queued: MPI does not match the two forms with each other.
int MPI_Barrier(MPI_Comm comm) {
    MPI_Request request;
    const int code = PMPI_Ibarrier(comm, &request);
    return code != MPI_SUCCESS ? code : wait(&request, MPI_STATUS_IGNORE, "MPI_Barrier");
}
int MPI_Bcast(void* data, int count, MPI_Datatype type, int root, MPI_Comm comm) {
    MPI_Request request;
    const int code = PMPI_Ibcast(data, count, type, root, comm, &request);
    return code != MPI_SUCCESS ? code : wait(&request, MPI_STATUS_IGNORE, "MPI_Bcast");
}
int MPI_Allgather(const void* send, int num_sent, MPI_Datatype send_type, void* recv, int num_received,
                  MPI_Datatype recv_type, MPI_Comm comm) {
    MPI_Request request;
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

// Communicators are made, and MPI is left, together: nobody blocks in there before all have come.
int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm* made) {
    MPI_Barrier(comm);
    return PMPI_Comm_split(comm, color, key, made);
}
int MPI_Comm_dup(MPI_Comm comm, MPI_Comm* made) {
    MPI_Barrier(comm);
    return PMPI_Comm_dup(comm, made);
}
int MPI_Finalize(void) {
    MPI_Barrier(MPI_COMM_WORLD);
    return PMPI_Finalize();
}

int MPI_Test(MPI_Request* request, int* done, MPI_Status* status) {
    if (streams_wait()) { run_one_step(); }
    return PMPI_Test(request, done, status);
}
int MPI_Iprobe(int peer, int tag, MPI_Comm comm, int* found, MPI_Status* status) {
    if (streams_wait()) { run_one_step(); }
    return PMPI_Iprobe(peer, tag, comm, found, status);
}

}  // extern "C"
#endif
