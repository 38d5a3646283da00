// session_cuda.c -- a session on GPUs: the card of each rank, the transports of transfers and sums, the
// available memory. Replaces the host part of run/session.c.

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "device_cuda.h"
#include "links_staged.h"
#ifndef DYNAPIPE_NO_NCCL
#include "links_nccl.h"
#endif
#include "../run/executor.h"
#include "../run/hosts.h"
#include "../run/session.h"
#include "../../util/numbers.h"

// Left free for what libraries load and allocate later (kernels, their local memory, NCCL's buffers): per
// rank.
#define MARGIN_BYTES (INT64_C(512) << 20)

struct SessionDevice {
    CudaDevice* cuda;
    Transport links;
    int32_t num_sharing;  // ranks on the card that has the most
    int64_t free_bytes;   // on my card, before the model
    bool limit_is_mine;   // --memory-limit was not given
    bool use_nccl;
    void* mirror;  // pinned, of sums by the host
#ifndef DYNAPIPE_NO_NCCL
    NcclWorld* nccl;
#endif
};

// --- which card ------------------------------------------------------------------------------------------

typedef struct {
    uint64_t host, card;  // hashes
    int32_t num_cards;    // of its host
    int32_t reserved;
} RankCard;

static int32_t count_on_card(const RankCard* all, int32_t num_ranks, uint64_t card) {
    int32_t count = 0;
    for (int32_t r = 0; r < num_ranks; r++) { count += all[r].card == card; }
    return count;
}

// Ranks of a host take its cards in turn. all: (num_ranks), of which every rank fills in its own.
static Status find_cards(Dynapipe* dp, RankCard* all) {
    int32_t num_ranks = dp->transport.num_ranks, local_rank = 0, me = dp->transport.rank;
    RankCard* mine = &all[me];
    struct cudaDeviceProp about;
    char name[256] = "";
    int num_cards = 0;
    cudaError_t error = cudaGetDeviceCount(&num_cards);
    gethostname(name, sizeof name - 1);
    mine->host = hash_bytes(HASH_SEED, name, strlen(name));
    mine->num_cards = error == cudaSuccess ? num_cards : 0;
    TRY(collective_share(&dp->world, all, sizeof *all));
    for (int32_t r = 0; r < num_ranks; r++) {
        if (all[r].num_cards >= 1) { continue; }
        return FAIL(
            STATUS_NO_DEVICE,
            "rank %d finds no GPU (%s) ---> make train_gpt2, make train_t5: the same on CPUs; nvidia-smi "
            "shows cards and driver",
            (int)r, error != cudaSuccess ? cudaGetErrorString(error) : "none there");
    }
    for (int32_t r = 0; r < me; r++) { local_rank += all[r].host == mine->host; }
    int card = local_rank % num_cards;
    CUDA_TRY(cudaSetDevice(card));
    CUDA_TRY(cudaGetDeviceProperties(&about, card));
    mine->card = hash_bytes(mine->host, &about.uuid, sizeof about.uuid);
    mine->card = hash_bytes(mine->card, &about.pciBusID, sizeof about.pciBusID);
    mine->card = hash_finish(hash_bytes(mine->card, &card, sizeof card));
    return collective_share(&dp->world, all, sizeof *all);
}

static Status check_transport(const Dynapipe* dp, const RankCard* all) {
    int32_t num_ranks = dp->transport.num_ranks, num_cards = 0;
    SessionDevice* on = dp->on;
    for (int32_t r = 0; r < num_ranks; r++) {
        int32_t num_sharing = count_on_card(all, num_ranks, all[r].card);
        if (num_sharing > on->num_sharing) { on->num_sharing = num_sharing; }
        num_cards += count_on_card(all, r, all[r].card) == 0;
    }
    bool wanted = dp->options.transport != TRANSPORT_CHOICE_MPI;
#ifdef DYNAPIPE_NO_NCCL
    if (dp->options.transport != TRANSPORT_CHOICE_NCCL) { return STATUS_OK; }
    return FAIL(STATUS_BAD_OPTION,
                "--transport nccl: built without NCCL ---> --transport mpi, or install libnccl-dev and make "
                "again");
#endif
    if (wanted && on->num_sharing > 1) {
        return FAIL(
            STATUS_NO_DEVICE,
            "%d ranks on %d GPU%s, NCCL needs one for each ---> --transport mpi shares them, or mpirun "
            "-np %d",
            (int)num_ranks, (int)num_cards, num_cards == 1 ? "" : "s", (int)num_cards);
    }
    on->use_nccl = wanted && num_ranks > 1;
    return STATUS_OK;
}

Status session_device_find(Dynapipe* dp) {
    dp->on = (SessionDevice*)calloc(1, sizeof *dp->on);
    RankCard* all = (RankCard*)calloc((size_t)dp->transport.num_ranks, sizeof *all);
    Status status =
        dp->on == NULL || all == NULL ? FAIL(STATUS_NO_MEMORY, "no memory for GPUs") : find_cards(dp, all);
    if (status == STATUS_OK) { status = check_transport(dp, all); }
    free(all);
    return status;
}

// --- device, links, sums ---------------------------------------------------------------------------------
// The ranks that this rank exchanges messages with in that placement; a collective of all ranks.
static Status connect_peers(Dynapipe* dp, const Placement* placement) {
    int32_t peers[PLAN_MAX_STAGES], first = dp->replica * dp->num_stages;
    int32_t num_peers = executor_peers(peers, placement, dp->num_stages, dp->stage);
    for (int32_t i = 0; i < num_peers; i++) { peers[i] += first; }
#ifndef DYNAPIPE_NO_NCCL
    if (dp->on->use_nccl) { return nccl_world_connect(dp->on->nccl, &dp->world, peers, num_peers); }
#endif
    return transport_staged_connect(&dp->on->links, peers, num_peers);
}

// Before memory is counted. No placement is known yet, but all have messages between neighbours.
static Status connect_neighbours(Dynapipe* dp) {
    return connect_peers(dp, &(Placement){0});
}

Status session_device_open(Dynapipe* dp, void* stream) {
    SessionDevice* on = dp->on;
    TRY(cuda_device_open(&dp->device, &on->cuda, (cudaStream_t)stream));
    dp->links = &on->links;
#ifndef DYNAPIPE_NO_NCCL
    if (on->use_nccl) {
        TRY(nccl_world_open(&on->nccl, on->cuda, &dp->world, dp->num_stages, dp->num_replicas));
        TRY(transport_nccl_open(&on->links, on->nccl, dp->transport.rank, dp->transport.num_ranks));
        on->links.hosts = dp->transport.hosts;
        return connect_neighbours(dp);
    }
#endif
    TRY(transport_staged_open(&on->links, on->cuda, &dp->transport));
    return connect_neighbours(dp);
}

#ifndef DYNAPIPE_NO_NCCL
// Known once there is a model: the other peers, the copies of parameters.
static Status connect_model(Dynapipe* dp) {
    int64_t before_bytes, after_bytes, total_bytes;
    TRY(dp->device.api->memory_bytes(dp->device.ctx, &before_bytes, &total_bytes));
    TRY(nccl_world_set_stages(dp->on->nccl, &dp->world, dp->num_stages, dp->num_replicas));
    TRY(connect_peers(dp, &dp->request.placement));
    TRY(nccl_world_open_holders(dp->on->nccl, &dp->world, &dp->tied));
    TRY(dp->device.api->memory_bytes(dp->device.ctx, &after_bytes, &total_bytes));
    dp->on->free_bytes -= before_bytes - after_bytes;  // not the model's
    // made after memory has been shared out
    return dp->on->limit_is_mine ? session_machine_take_bytes(dp, before_bytes - after_bytes) : STATUS_OK;
}
#endif

Status session_sums_open(Dynapipe* dp) {
    const DynapipeParams_v1* params = &dp->params;
#ifndef DYNAPIPE_NO_NCCL
    if (dp->on->use_nccl) {
        TRY(connect_model(dp));
        return sums_nccl_open(&dp->sums, dp->on->nccl, &dp->tied);
    }
#endif
    TRY(connect_peers(dp, &dp->request.placement));
    int32_t grad_bytes = collective_type_bytes((DynapipeType)params->grad_type);
    int32_t param_bytes = collective_type_bytes((DynapipeType)params->param_type);
    int32_t bytes_per_value = grad_bytes > param_bytes ? grad_bytes : param_bytes;
    int64_t num_values = dp->num_replicas > 1 ? params->num_params : 0;
    for (int32_t i = 0; i < dp->tied.num_groups; i++) {
        if (dp->tied.groups[i].count > num_values) { num_values = dp->tied.groups[i].count; }
    }
    int64_t mirror_bytes = num_values * bytes_per_value;
    (void)cudaFreeHost(dp->on->mirror);  // of the sums before, where layers have moved
    dp->on->mirror = NULL;
    if (mirror_bytes > 0 && cudaMallocHost(&dp->on->mirror, (size_t)mirror_bytes) != cudaSuccess) {
        return FAIL(STATUS_NO_MEMORY, "no pinned memory for %lld bytes of gradients ---> --transport nccl",
                    (long long)mirror_bytes);
    }
    return sums_host_open(&dp->sums, &dp->replicas, &dp->tied, dp->device, dp->on->mirror, mirror_bytes);
}

// --- memory ----------------------------------------------------------------------------------------------
// The free memory of the card, before the model takes any of it and after everybody's libraries are loaded.
void session_device_print_version(FILE* out) {
#ifdef DYNAPIPE_NO_NCCL
    fprintf(out, "NCCL: none, GPUs talk through MPI\n");
#else
    int version = 0;  // 23007: 2.30.7
    if (ncclGetVersion(&version) != ncclSuccess) { return; }
    fprintf(out, "NCCL: %d.%d.%d\n", version / 10000, version / 100 % 100, version % 100);
#endif
}

Status session_device_limit(Dynapipe* dp) {
    SessionDevice* on = dp->on;
    int64_t total_bytes;
    TRY(collective_barrier(&dp->world));
    TRY(dp->device.api->memory_bytes(dp->device.ctx, &on->free_bytes, &total_bytes));
    on->limit_is_mine = dp->options.memory_limit_bytes == 0;
    // also where a limit was given: no rank allocates before all have measured
    return session_machine_limit(dp, on->free_bytes / on->num_sharing - MARGIN_BYTES);
}

// Memory of model and step on the card, to compare with the plan: without the arena's reserve for larger
// steps. Of a card that ranks share, an equal part.
int64_t session_device_used_bytes(const Dynapipe* dp) {
    int64_t free_bytes, total_bytes;
    if (dp->device.api->memory_bytes(dp->device.ctx, &free_bytes, &total_bytes) != STATUS_OK) { return 0; }
    int64_t reserve_bytes = dp->memory_bytes - dp->now->plan.ranks[dp->transport.rank].arena_bytes;
    return (dp->on->free_bytes - free_bytes) / dp->on->num_sharing - reserve_bytes;
}

// --- end -------------------------------------------------------------------------------------------------
void session_device_abort(Dynapipe* dp) {
#ifndef DYNAPIPE_NO_NCCL
    if (dp->on != NULL && dp->on->nccl != NULL) { nccl_world_abort(dp->on->nccl); }
#else
    (void)dp;
#endif
}

void session_device_close(Dynapipe* dp) {
    if (dp->on == NULL) { return; }
    sums_close(&dp->sums);
    (void)cudaFreeHost(dp->on->mirror);
    transport_close(&dp->on->links);
#ifndef DYNAPIPE_NO_NCCL
    nccl_world_close(dp->on->nccl);
#endif
    device_close(&dp->device);
    free(dp->on);
    dp->on = NULL;
}

// --- costs of links ----------------------------------------------------------------------------------------
// The links of training opened for a measurement: NCCL, or staging through MPI where ranks share a card.

// Ranks of one machine take its cards in turn.
static Status ranks_share_cards(bool* share, Collective* world) {
    int num_cards = 0;
    CUDA_TRY(cudaGetDeviceCount(&num_cards));
    double too_many = local_ranks_count(world->num_ranks) > num_cards;
    TRY(collective_all_reduce_sum(world, &too_many, 1));
    *share = too_many > 0;
    return STATUS_OK;
}

static Status probe_links(LinkCosts* out, Collective* world, CudaDevice* cuda, void* memory, bool by_nccl) {
    int32_t num_ranks = world->num_ranks, rank = world->transport->rank, peers[2], num_peers = 0;
    Transport links = {0};
    if (rank > 0) { peers[num_peers++] = rank - 1; }
    if (rank < num_ranks - 1) { peers[num_peers++] = rank + 1; }
    if (!by_nccl) {
        TRY(transport_staged_open(&links, cuda, world->transport));
        Status status = transport_staged_connect(&links, peers, num_peers);
        if (status == STATUS_OK) { status = link_probe_run(out, &links, world, memory); }
        return status == STATUS_OK ? transport_close(&links) : status;
    }
#ifndef DYNAPIPE_NO_NCCL
    NcclWorld* nccl = NULL;
    Status status = nccl_world_open(&nccl, cuda, world, num_ranks, 1);
    if (status == STATUS_OK) { status = nccl_world_connect(nccl, world, peers, num_peers); }
    if (status == STATUS_OK) { status = transport_nccl_open(&links, nccl, rank, num_ranks); }
    if (status == STATUS_OK) { status = link_probe_run(out, &links, world, memory); }
    if (status == STATUS_OK) { status = transport_close(&links); }
    nccl_world_close(nccl);
    return status;
#else
    return FAIL(STATUS_BAD_OPTION, "built without NCCL ---> --transport mpi");
#endif
}

Status link_probe(LinkCosts* out, Collective* world, void* stream, TransportChoice choice) {
    if (world->num_ranks < 2) { return STATUS_OK; }
    bool share = false;
    TRY(ranks_share_cards(&share, world));
#ifdef DYNAPIPE_NO_NCCL
    share = true;
#endif
    Device device = {0};
    CudaDevice* cuda;
    void* memory;
    TRY(cuda_device_open(&device, &cuda, (cudaStream_t)stream));
    Status status = device.api->alloc(device.ctx, &memory, LINK_PROBE_BYTES);
    if (status == STATUS_OK) {
        bool by_nccl = choice == TRANSPORT_CHOICE_NCCL || (choice == TRANSPORT_CHOICE_AUTO && !share);
        status = probe_links(out, world, cuda, memory, by_nccl);
        device.api->release(device.ctx, memory);
    }
    device_close(&device);
    return status;
}
