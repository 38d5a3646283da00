/*
nccl.cu -- NCCL on MPI. `nccl collectives`: every operation against a direct computation. `nccl ring`: every
rank passes values on around a ring. Others are mistakes (test/test_cuda_emu.sh says what must happen):
    swapped   a rank of the ring sends before it receives, like its neighbour
    lengths   a receive is longer than its send      same-device   all ranks on device 0
    late      memory grows with the first operation of a kind and length, and not again
    cold      the swapped ring without connections made before: the hosts wait for each other
    two       two communicators in opposite orders: fine where they may run together, a deadlock where not
*/
#include <cuda_runtime.h>
#include <mpi.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../test.h"

static int rank, num_ranks;
static ncclComm_t comm;
static cudaStream_t stream;
enum { N = 300 };

static float* device_floats(size_t num_values) {
    void* memory = nullptr;
    CHECK_EQ(cudaMalloc(&memory, num_values * sizeof(float)), cudaSuccess);
    return (float*)memory;
}

// Values of rank r: small integers, so that sums are exact in any order.
static float value(int r, int i) {
    return (float)((r * 31 + i * 7) % 64);
}

static void upload_mine(float* to, int num_values) {
    float host[N * 8];
    for (int i = 0; i < num_values; i++) { host[i] = value(rank, i); }
    CHECK_EQ(cudaMemcpyAsync(to, host, (size_t)num_values * sizeof(float), cudaMemcpyHostToDevice, stream),
             cudaSuccess);
}

static float sum_of(int i) {
    float sum = 0.0f;
    for (int r = 0; r < num_ranks; r++) { sum += value(r, i); }
    return sum;
}

static void check_values(const float* from, int num_values, float (*expected)(int i)) {
    float host[N * 8];
    CHECK_EQ(cudaMemcpyAsync(host, from, (size_t)num_values * sizeof(float), cudaMemcpyDeviceToHost, stream),
             cudaSuccess);
    for (int i = 0; i < num_values; i++) { CHECK_EQ((double)host[i], (double)expected(i)); }
}

static void collectives_equal_direct_computation(void) {
    float *a = device_floats(N * 8), *b = device_floats(N * 8);
    upload_mine(a, N);
    CHECK_EQ(ncclAllReduce(a, b, N, ncclFloat32, ncclSum, comm, stream), ncclSuccess);
    check_values(b, N, [](int i) { return sum_of(i); });
    CHECK_EQ(ncclAllReduce(a, a, N, ncclFloat32, ncclAvg, comm, stream), ncclSuccess);
    check_values(a, N, [](int i) { return sum_of(i) / (float)num_ranks; });
    upload_mine(a, N);
    CHECK_EQ(ncclBroadcast(a, b, N, ncclFloat32, 1, comm, stream), ncclSuccess);
    check_values(b, N, [](int i) { return value(1, i); });
    CHECK_EQ(ncclAllGather(a, b, N, ncclFloat32, comm, stream), ncclSuccess);
    check_values(b, N * num_ranks, [](int i) { return value(i / N, i % N); });
    const size_t part = N / (size_t)num_ranks;
    CHECK_EQ(ncclReduceScatter(a, a + part * (size_t)rank, part, ncclFloat32, ncclSum, comm, stream),
             ncclSuccess);
    check_values(a + part * (size_t)rank, (int)part, [](int i) { return sum_of(i + N / num_ranks * rank); });
    upload_mine(a, N);
    CHECK_EQ(ncclReduce(a, b, N, ncclFloat32, ncclSum, 0, comm, stream), ncclSuccess);
    if (rank == 0) {
        check_values(b, N, [](int i) { return sum_of(i); });
    }
    ncclComm_t half;
    CHECK_EQ(ncclCommSplit(comm, rank % 2, -rank, &half, nullptr), ncclSuccess);
    int half_ranks, half_rank;
    CHECK_EQ(ncclCommCount(half, &half_ranks), ncclSuccess);
    CHECK_EQ(ncclCommUserRank(half, &half_rank), ncclSuccess);
    CHECK_EQ(half_ranks, num_ranks / 2);
    CHECK_EQ(half_rank, num_ranks / 2 - 1 - rank / 2);
    CHECK_EQ(ncclBroadcast(a, b, N, ncclFloat32, 0, half, stream), ncclSuccess);
    check_values(b, N, [](int i) { return value(num_ranks - 2 + rank % 2, i); });
    CHECK_EQ(ncclCommDestroy(half), ncclSuccess);
}

// Both directions with both neighbours, in one group.
static void connect_neighbours(void) {
    float* data = device_floats(4);
    const int next = (rank + 1) % num_ranks, previous = (rank + num_ranks - 1) % num_ranks;
    CHECK_EQ(ncclGroupStart(), ncclSuccess);
    CHECK_EQ(ncclSend(data, 1, ncclFloat32, next, comm, stream), ncclSuccess);
    CHECK_EQ(ncclRecv(data + 1, 1, ncclFloat32, previous, comm, stream), ncclSuccess);
    CHECK_EQ(ncclSend(data + 2, 1, ncclFloat32, previous, comm, stream), ncclSuccess);
    CHECK_EQ(ncclRecv(data + 3, 1, ncclFloat32, next, comm, stream), ncclSuccess);
    CHECK_EQ(ncclGroupEnd(), ncclSuccess);
    CHECK_EQ(cudaStreamSynchronize(stream), cudaSuccess);
}

static size_t free_bytes(void) {
    size_t left, total;
    CHECK_EQ(cudaMemGetInfo(&left, &total), cudaSuccess);
    return left;
}

static void connections_are_made_by_first_use(void) {
    enum { SHORT = 10, LONG = 4096 };
    const bool early = getenv("NCCL_RUNTIME_CONNECT") != nullptr;
    float* data = device_floats(LONG);
    for (int i = 0; i < 4; i++) {  // short and long, first and again
        const int count = i % 2 == 0 ? SHORT : LONG;
        const size_t before = free_bytes();
        CHECK_EQ(ncclAllReduce(data, data, (size_t)count, ncclFloat32, ncclSum, comm, stream), ncclSuccess);
        CHECK_EQ(free_bytes() < before, i < 2 && !early);
    }
    for (int i = 0; i < 2; i++) {
        const size_t before = free_bytes();
        connect_neighbours();
        CHECK_EQ(before - free_bytes() > 1 << 20, i == 0);
    }
}

// Even ranks send first. MPI_Barrier: streams must go on while a host waits there.
static void ring(bool swapped, int longer) {
    float *mine = device_floats(N), *got = device_floats(2 * N);
    const int next = (rank + 1) % num_ranks, previous = (rank + num_ranks - 1) % num_ranks;
    const bool send_first = swapped || rank % 2 == 0;
    upload_mine(mine, N);
    for (int half = 0; half < 2; half++) {
        if ((half == 0) == send_first) {
            CHECK_EQ(ncclSend(mine, N, ncclFloat32, next, comm, stream), ncclSuccess);
        } else {
            CHECK_EQ(ncclRecv(got, (size_t)(N + longer), ncclFloat32, previous, comm, stream), ncclSuccess);
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    check_values(got, N, [](int i) { return value((rank + num_ranks - 1) % num_ranks, i); });
}

// Ranks 0 and 1 use two communicators, on two streams, in opposite orders.
static void two_communicators(void) {
    ncclComm_t other;
    cudaStream_t second;
    float *a = device_floats(N), *b = device_floats(N);
    CHECK_EQ(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking), cudaSuccess);
    CHECK_EQ(ncclCommSplit(comm, 0, rank, &other, nullptr), ncclSuccess);
    upload_mine(a, N);
    upload_mine(b, N);
    CHECK_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    for (int i = 0; i < 2; i++) {
        const bool first = (i == 0) == (rank % 2 == 0);
        CHECK_EQ(ncclAllReduce(first ? a : b, first ? a : b, N, ncclFloat32, ncclSum, first ? comm : other,
                               first ? stream : second),
                 ncclSuccess);
    }
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    check_values(a, N, [](int i) { return sum_of(i); });
    check_values(b, N, [](int i) { return sum_of(i); });
}

int main(int argc, char** argv) {
    const char* mode = argc > 1 ? argv[1] : "";
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &num_ranks);
    CHECK_EQ(cudaSetDevice(strcmp(mode, "same-device") == 0 ? 0 : rank), cudaSuccess);
    CHECK_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    ncclUniqueId id = {};
    if (rank == 0) { CHECK_EQ(ncclGetUniqueId(&id), ncclSuccess); }
    MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
    if (ncclCommInitRank(&comm, num_ranks, id, rank) != ncclSuccess) {
        MPI_Finalize();
        return 1;
    }
    if (strcmp(mode, "collectives") == 0) { collectives_equal_direct_computation(); }
    if (strcmp(mode, "ring") == 0) { ring(false, 0); }
    if (strcmp(mode, "late") == 0) { connections_are_made_by_first_use(); }
    if (strcmp(mode, "cold") == 0) { ring(rank == 1, 0); }
    if (strcmp(mode, "swapped") == 0 || strcmp(mode, "lengths") == 0) { connect_neighbours(); }
    if (strcmp(mode, "swapped") == 0) { ring(rank == 1, 0); }
    if (strcmp(mode, "lengths") == 0) { ring(false, rank == 1 ? 1 : 0); }
    if (strcmp(mode, "two") == 0) { two_communicators(); }
    CHECK_EQ(ncclCommDestroy(comm), ncclSuccess);
    MPI_Finalize();
    return test_failures > 0;
}
