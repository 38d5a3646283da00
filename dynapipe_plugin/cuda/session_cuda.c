// session_cuda.c -- a session on GPUs: which card is whose, what transfers and sums go by, how much memory
// there is. Stands in for run/session_host.c.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../util/numbers.h"
#include "../run/session.h"
#include "device_cuda.h"
#ifndef DYNAPIPE_NO_NCCL
#include "nccl_world.h"
#include "sums_nccl.h"
#include "transport_nccl.h"
#endif
#include "placement_peers.h"
#include "sums_staged.h"
#include "transport_staged.h"

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
