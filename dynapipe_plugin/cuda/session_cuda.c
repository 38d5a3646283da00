// session_cuda.c -- a session on GPUs: which card is whose, what transfers and sums go by, how much memory
// there is. Stands in for run/session_host.c.

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "device_cuda.h"
#include "links_staged.h"
#ifndef DYNAPIPE_NO_NCCL
#include "links_nccl.h"
#endif
#include "../run/hosts.h"
#include "../run/session.h"
#include "../../util/numbers.h"

typedef struct {
    int32_t stage;
    bool has[PLAN_MAX_STAGES];
} Peers;

// Messages pass between stages a and b.
static void add_pair(Peers* peers, int32_t a, int32_t b) {
    if (a == b) { return; }
    if (a == peers->stage) { peers->has[b] = true; }
    if (b == peers->stage) { peers->has[a] = true; }
}

// The other stages of a replica that have a chunk before or after one of `stage`, or, where the head is
// shared, the last chunk while `stage` has a share, or the other way round. Ascending; returns how many. Of
// any two stages either both have each other, or neither. num_chunks 0: the plain pipeline.
static int32_t placement_peers(int32_t out[PLAN_MAX_STAGES], const Placement* placement, int32_t num_stages,
                               int32_t stage) {
    Peers peers = {.stage = stage};
    const int32_t K = placement->num_chunks;
    int32_t num_peers = 0;
    for (int32_t k = 0; k + 1 < K; k++) {
        add_pair(&peers, placement->stage_of[k], placement->stage_of[k + 1]);
    }
    for (int32_t s = 0; K > 0 && s < num_stages; s++) {
        if (placement_has_share(placement, s)) { add_pair(&peers, placement->stage_of[K - 1], s); }
    }
    for (int32_t s = 0; K == 0 && s + 1 < num_stages; s++) { add_pair(&peers, s, s + 1); }
    for (int32_t s = 0; s < num_stages; s++) {
        if (peers.has[s]) { out[num_peers++] = s; }
    }
    return num_peers;
}

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
#ifndef DYNAPIPE_NO_NCCL
    NcclWorld* nccl;
#endif
};

// --- which card ------------------------------------------------------------------------------------------

// What each rank knows of itself, for all to see; doubles hold 52 bits of a hash.
typedef struct {
    double *host, *num_cards, *card;  // [num_ranks] each
} Ranks;

static double as_double(uint64_t hash) {
    return (double)(hash_finish(hash) >> 12);
}

static double host_hash(void) {
    char name[256] = "";
    gethostname(name, sizeof name - 1);
    return as_double(hash_bytes(HASH_SEED, name, strlen(name)));
}

// Ranks below this one for which values[r] is equal.
static int32_t count_equal(const double* values, int32_t begin, int32_t end, double value) {
    int32_t count = 0;
    for (int32_t r = begin; r < end; r++) { count += values[r] == value; }
    return count;
}

static int32_t most_sharing(const Ranks* ranks, int32_t num_ranks) {
    int32_t most = 1;
    for (int32_t r = 0; r < num_ranks; r++) {
        int32_t count = count_equal(ranks->card, 0, num_ranks, ranks->card[r]);
        most = count > most ? count : most;
    }
    return most;
}

#ifndef DYNAPIPE_NO_NCCL
static int32_t count_cards(const Ranks* ranks, int32_t num_ranks) {
    int32_t count = 0;
    for (int32_t r = 0; r < num_ranks; r++) { count += count_equal(ranks->card, 0, r, ranks->card[r]) == 0; }
    return count;
}
#endif

static Status find_cards(Dynapipe* dp, Ranks* ranks) {
    int32_t num_ranks = dp->transport.num_ranks, me = dp->transport.rank;
    int num_cards = 0;
    cudaError_t error = cudaGetDeviceCount(&num_cards);
    if (error != cudaSuccess) { num_cards = 0; }
    ranks->host[me] = host_hash();
    ranks->num_cards[me] = num_cards;
    TRY(collective_all_reduce_sum(&dp->world, ranks->host, 2 * num_ranks));
    for (int32_t r = 0; r < num_ranks; r++) {
        if (ranks->num_cards[r] >= 1) { continue; }
        return FAIL(
            STATUS_NO_DEVICE,
            "rank %d finds no GPU (%s) ---> make train_gpt2, make train_t5: the same on CPUs; nvidia-smi "
            "shows cards and driver",
            r, num_cards == 0 && error != cudaSuccess ? cudaGetErrorString(error) : "none there");
    }
    int32_t local_rank = count_equal(ranks->host, 0, me, ranks->host[me]);
    int card = local_rank % num_cards;
    CUDA_TRY(cudaSetDevice(card));
    struct cudaDeviceProp about;
    CUDA_TRY(cudaGetDeviceProperties(&about, card));
    uint64_t hash = hash_bytes(HASH_SEED, &ranks->host[me], sizeof(double));
    hash = hash_bytes(hash, &about.uuid, sizeof about.uuid);
    hash = hash_bytes(hash, &about.pciBusID, sizeof about.pciBusID);
    ranks->card[me] = as_double(hash_bytes(hash, &card, sizeof card));
    return collective_all_reduce_sum(&dp->world, ranks->card, num_ranks);
}

static Status check_transport(const Dynapipe* dp, const Ranks* ranks) {
    int32_t num_ranks = dp->transport.num_ranks;
    SessionDevice* on = dp->on;
    on->num_sharing = most_sharing(ranks, num_ranks);
#ifdef DYNAPIPE_NO_NCCL
    if (dp->options.transport != TRANSPORT_CHOICE_NCCL) { return STATUS_OK; }
    return FAIL(STATUS_BAD_OPTION,
                "--transport nccl: built without NCCL ---> --transport mpi, or install libnccl-dev and make "
                "again");
#else
    bool wanted = dp->options.transport != TRANSPORT_CHOICE_MPI;
    int32_t num_cards = count_cards(ranks, num_ranks);
    if (wanted && on->num_sharing > 1) {
        return FAIL(
            STATUS_NO_DEVICE,
            "%d ranks on %d GPU%s, NCCL needs one for each ---> --transport mpi shares them, or mpirun "
            "-np %d",
            num_ranks, num_cards, num_cards == 1 ? "" : "s", num_cards);
    }
    on->use_nccl = wanted && num_ranks > 1;
    return STATUS_OK;
#endif
}

Status session_device_find(Dynapipe* dp) {
    size_t num_ranks = (size_t)dp->transport.num_ranks;
    dp->on = calloc(1, sizeof *dp->on);
    double* values = calloc(3 * num_ranks, sizeof *values);
    Ranks ranks = {values, values + num_ranks, values + 2 * num_ranks};
    Status status = dp->on == NULL || values == NULL
                        ? FAIL(STATUS_NO_MEMORY, "no memory for %zu ranks", num_ranks)
                        : find_cards(dp, &ranks);
    if (status == STATUS_OK) { status = check_transport(dp, &ranks); }
    free(values);
    return status;
}

// --- device, links, sums ---------------------------------------------------------------------------------
// Whoever this rank exchanges messages with in that placement; a collective of all ranks.
static Status connect_peers(Dynapipe* dp, const Placement* placement) {
    int32_t peers[PLAN_MAX_STAGES], first = dp->replica * dp->num_stages;
    int32_t num_peers = placement_peers(peers, placement, dp->num_stages, dp->stage);
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
// What is known once there is a model: who else is a peer, who has copies of what.
static Status connect_model(Dynapipe* dp) {
    int64_t before_bytes, after_bytes, total_bytes;
    TRY(dp->device.api->memory_bytes(dp->device.ctx, &before_bytes, &total_bytes));
    TRY(connect_peers(dp, &dp->request.placement));
    TRY(nccl_world_open_holders(dp->on->nccl, &dp->world, &dp->tied));
    TRY(dp->device.api->memory_bytes(dp->device.ctx, &after_bytes, &total_bytes));
    dp->on->free_bytes -= before_bytes - after_bytes;  // not the model's
    // these come when memory has been shared out
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
    int64_t num_values = dp->num_replicas > 1 ? params->num_params : tied_groups_longest(&dp->tied);
    return sums_staged_open(&dp->sums, dp->on->cuda, &dp->replicas, &dp->tied, num_values * bytes_per_value);
}

// --- memory ----------------------------------------------------------------------------------------------
Status session_device_write(const Dynapipe* dp, void* to, const void* from, size_t num_bytes) {
    cudaStream_t stream = (cudaStream_t)dp->stream;
    CUDA_TRY(cudaMemcpyAsync(to, from, num_bytes, cudaMemcpyHostToDevice, stream));
    CUDA_TRY(cudaStreamSynchronize(stream));
    return STATUS_OK;
}

Status session_device_read(const Dynapipe* dp, void* to, const void* from, size_t num_bytes) {
    cudaStream_t stream = (cudaStream_t)dp->stream;
    CUDA_TRY(cudaMemcpyAsync(to, from, num_bytes, cudaMemcpyDeviceToHost, stream));
    CUDA_TRY(cudaStreamSynchronize(stream));
    return STATUS_OK;
}

// What is left on the card now, before the model takes any of it and when everybody's libraries are loaded.
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
    // also behind a limit that was given: nobody allocates before all have looked
    return session_machine_limit(dp, on->free_bytes / on->num_sharing - MARGIN_BYTES);
}

// What model and step took of the card, to compare with the plan: without what the arena has in reserve for
// larger steps. Of a card that ranks share, an equal part.
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
    transport_close(&dp->on->links);
#ifndef DYNAPIPE_NO_NCCL
    nccl_world_close(dp->on->nccl);
#endif
    device_close(&dp->device);
    free(dp->on);
    dp->on = NULL;
}

// --- link_probe_cuda --------------------
// link_probe_cuda.c -- the links of training opened for a measurement: NCCL, or staging through MPI where
// ranks share a card.

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
