// link_probe_cuda.c -- the links of training opened for a measurement: NCCL, or staging through MPI where
// ranks share a card.
#include "../run/link_probe.h"
#include "../run/local_ranks.h"
#include "device_cuda.h"
#ifndef DYNAPIPE_NO_NCCL
#include "nccl_world.h"
#include "transport_nccl.h"
#endif
#include "transport_staged.h"

// Ranks of one machine take its cards in turn (session_cuda.c).
static Status ranks_share_cards(int32_t* share, Collective* world) {
    int num_cards = 0;
    CUDA_TRY(cudaGetDeviceCount(&num_cards));
    double too_many = local_ranks_count(world->num_ranks) > num_cards;
    TRY(collective_all_reduce_sum(world, &too_many, 1));
    *share = too_many > 0;
    return STATUS_OK;
}

// The ranks before and behind this one, in the line of all; how many.
static int32_t find_peers(int32_t peers[2], const Collective* world) {
    int32_t num_peers = 0, rank = world->transport->rank;
    if (rank > 0) { peers[num_peers++] = rank - 1; }
    if (rank < world->num_ranks - 1) { peers[num_peers++] = rank + 1; }
    return num_peers;
}

static Status run_nccl(LinkCosts* out, Collective* world, CudaDevice* cuda, void* memory) {
#ifndef DYNAPIPE_NO_NCCL
    NcclWorld* nccl = NULL;
    Transport links = {0};
    int32_t num_ranks = world->num_ranks, peers[2], num_peers = find_peers(peers, world);
    Status status = nccl_world_open(&nccl, cuda, world, num_ranks, 1);
    if (status == STATUS_OK) { status = nccl_world_connect(nccl, world, peers, num_peers); }
    if (status == STATUS_OK) {
        status = transport_nccl_open(&links, nccl, world->transport->rank, num_ranks);
    }
    if (status == STATUS_OK) { status = link_probe_run(out, &links, world, memory); }
    if (status == STATUS_OK) { status = transport_close(&links); }
    nccl_world_close(nccl);
    return status;
#else
    (void)out, (void)world, (void)cuda, (void)memory;
    return FAIL(STATUS_BAD_OPTION, "built without NCCL ---> --transport mpi");
#endif
}

static Status run_staged(LinkCosts* out, Collective* world, CudaDevice* cuda, void* memory) {
    Transport links = {0};
    int32_t peers[2], num_peers = find_peers(peers, world);
    TRY(transport_staged_open(&links, cuda, world->transport));
    Status status = transport_staged_connect(&links, peers, num_peers);
    if (status == STATUS_OK) { status = link_probe_run(out, &links, world, memory); }
    return status == STATUS_OK ? transport_close(&links) : status;
}

Status link_probe(LinkCosts* out, Collective* world, void* stream, TransportChoice choice) {
    if (world->num_ranks < 2) { return STATUS_OK; }
    int32_t share = 0;
    TRY(ranks_share_cards(&share, world));
#ifdef DYNAPIPE_NO_NCCL
    share = share || choice == TRANSPORT_CHOICE_AUTO;
#endif
    Device device = {0};
    CudaDevice* cuda;
    void* memory;
    TRY(cuda_device_open(&device, &cuda, (cudaStream_t)stream));
    Status status = device.api->alloc(device.ctx, &memory, LINK_PROBE_BYTES);
    if (status == STATUS_OK) {
        bool staged = choice == TRANSPORT_CHOICE_MPI || (choice == TRANSPORT_CHOICE_AUTO && share);
        status = staged ? run_staged(out, world, cuda, memory) : run_nccl(out, world, cuda, memory);
        device.api->release(device.ctx, memory);
    }
    device_close(&device);
    return status;
}
