// sums_main.c -- sums between GPUs against plain loops: tied groups on random stages, then replicas, by NCCL
// and through pinned memory, queued behind work that is not done yet; test/test_cuda_train.sh drives it.
//     mpirun -np 4 cuda_sums nccl|mpi
//     mpirun -np 2 cuda_sums alone     rank 1 does not come to its first sum
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../dynapipe_plugin/cuda/links_nccl.h"
#include "../tied_case.h"

enum { NUM_CASES = 12, NUM_STEPS = 3 };

typedef struct {
    bool by_nccl;
    CudaDevice* cuda;
    Device device;
    void* mirror;  // pinned
    cudaStream_t stream;
    Collective world, replicas;
    TiedGroups tied;
    NcclWorld* nccl;
    Sums sums;
    unsigned char *grads, *host, *late;  // on the device; here; on the device, to keep it busy
} Rank;

static Status open_sums(Rank* rank, const TiedCase* it, int32_t me) {
    int32_t stage = me % it->num_stages, ranks[RANKS_MAX];
    for (int32_t r = 0; r < it->num_replicas; r++) { ranks[r] = r * it->num_stages + stage; }
    TRY(collective_init(&rank->replicas, rank->world.transport, ranks, it->num_replicas,
                        rank->world.timeout_ns));
    DynapipeTied list[TIED_CASE_GROUPS];
    int64_t n = it->num_params[stage];
    DynapipeParams_v1 params = {.num_params = n, .grad_type = (int32_t)it->type, .tied = list};
    params.num_tied = tied_case_list(it, stage, list);
    TRY(tied_groups_open(&rank->tied, &rank->world, it->num_stages, &params));
    rank->host = malloc((size_t)n * sizeof(float) + 1);
    CUDA_TRY(cudaMalloc((void**)&rank->grads, (size_t)n * sizeof(float) + 4));
    CUDA_TRY(cudaMalloc((void**)&rank->late, (size_t)n * sizeof(float) + 4));
    if (!rank->by_nccl) {
        CUDA_TRY(cudaMallocHost(&rank->mirror, (size_t)n * 4 + 1));
        return sums_host_open(&rank->sums, &rank->replicas, &rank->tied, rank->device, rank->mirror, n * 4);
    }
    TRY(nccl_world_open(&rank->nccl, rank->cuda, &rank->world, it->num_stages, it->num_replicas));
    TRY(nccl_world_open_holders(rank->nccl, &rank->world, &rank->tied));
    return sums_nccl_open(&rank->sums, rank->nccl, &rank->tied);
}

static void close_sums(Rank* rank) {
    sums_close(&rank->sums);
    nccl_world_close(rank->nccl);
    rank->nccl = NULL;
    (void)cudaFree(rank->grads);
    (void)cudaFree(rank->late);
    free(rank->host);
    (void)cudaFreeHost(rank->mirror);
    rank->mirror = NULL;
    tied_groups_free(&rank->tied);
    collective_free(&rank->replicas);
}

// As session_step.c does it; gradients come into their array by a copy that is queued just before. `bits`: of
// all sums. NCCL adds in an order of its own: sums of rough values are not known.
static Status sum_once(Rank* rank, const TiedCase* it, int32_t me, bool is_rough, uint64_t* bits) {
    int32_t stage = me % it->num_stages;
    int64_t n = it->num_params[stage];
    int32_t bytes_per_value = collective_type_bytes(it->type);
    size_t num_bytes = (size_t)(n * bytes_per_value);
    for (int64_t k = 0; k < n; k++) {
        tied_case_store(it, rank->host, k, tied_case_value(it, is_rough, me, k));
    }
    CUDA_TRY(cudaMemcpy(rank->late, rank->host, num_bytes, cudaMemcpyHostToDevice));
    CUDA_TRY(cudaMemsetAsync(rank->grads, 0xff, num_bytes, rank->stream));
    CUDA_TRY(cudaMemcpyAsync(rank->grads, rank->late, num_bytes, cudaMemcpyDeviceToDevice, rank->stream));
    for (int32_t i = 0; i < rank->tied.num_groups; i++) {
        const TiedGroup* group = &rank->tied.groups[i];
        unsigned char* copy = rank->grads + group->begin * bytes_per_value;
        TRY(rank->sums.api->sum_copies(rank->sums.ctx, group->holders, copy, group->count, it->type));
    }
    TRY(rank->sums.api->reduce_scatter(rank->sums.ctx, rank->grads, n, it->type));
    TRY(rank->sums.api->all_gather(rank->sums.ctx, rank->grads, n, bytes_per_value));
    CUDA_TRY(cudaMemcpyAsync(rank->host, rank->grads, num_bytes, cudaMemcpyDeviceToHost, rank->stream));
    CUDA_TRY(cudaStreamSynchronize(rank->stream));
    for (int64_t k = 0; k < n && !(rank->by_nccl && is_rough); k++) {
        EXPECT(tied_case_load(it, rank->host, k) == tied_case_after_replicas(it, is_rough, stage, k));
    }
    *bits = hash_finish(hash_bytes(HASH_SEED, rank->host, num_bytes));
    return STATUS_OK;
}

static int64_t free_bytes(void) {
    size_t left = 0, total;
    (void)cudaMemGetInfo(&left, &total);
    return (int64_t)left;
}

// No sum takes memory: what is there before the first step is there after it. The same values give the same
// bits, on all replicas.
static Status sum_often(Rank* rank, const TiedCase* it, int32_t me) {
    int64_t before_bytes = free_bytes();
    uint64_t bits[NUM_STEPS];
    for (int step = 0; step < NUM_STEPS; step++) { TRY(sum_once(rank, it, me, step > 0, &bits[step])); }
    EXPECT(free_bytes() == before_bytes);
    EXPECT(bits[NUM_STEPS - 1] == bits[NUM_STEPS - 2]);
    return collective_all_equal_u64(&rank->replicas, bits[NUM_STEPS - 1], "bits of a sum over replicas");
}

static Status run_cases(Rank* rank, int32_t num_ranks, int32_t me) {
    Rng rng = rng_seed(5);  // alike on all ranks
    int32_t num_groups = 0;
    for (int c = 0; c < NUM_CASES; c++) {
        TiedCase it;
        int32_t R = c % 3 == 0 && num_ranks % 2 == 0 ? 2 : 1;
        tied_case_draw(&it, &rng, num_ranks / R, R, c < 2 ? 300000 : rng_between(&rng, 1, 3000));
        Status status = open_sums(rank, &it, me);
        if (status == STATUS_OK) { status = sum_often(rank, &it, me); }
        TRY(status);
        num_groups += rank->tied.num_groups;
        close_sums(rank);
    }
    EXPECT(num_groups > 0);
    return STATUS_OK;
}

// The first sum over replicas where connections are made late: the host waits inside, for ever.
static Status wait_alone(Rank* rank, int32_t me) {
    enum { NUM_VALUES = 1 << 16 };
    float* grads;
    CUDA_TRY(cudaMalloc((void**)&grads, NUM_VALUES * sizeof *grads));
    TRY(nccl_world_open(&rank->nccl, rank->cuda, &rank->world, 1, rank->world.num_ranks));
    TRY(sums_nccl_open(&rank->sums, rank->nccl, &rank->tied));
    if (me == 1) { sleep(10); }
    return rank->sums.api->reduce_scatter(rank->sums.ctx, grads, NUM_VALUES, DYNAPIPE_FLOAT32);
}

static Status run(Transport* t, const char* mode) {
    bool alone = strcmp(mode, "alone") == 0;
    Rank rank = {.by_nccl = alone || strcmp(mode, "nccl") == 0};
    int32_t ranks[RANKS_MAX];
    int num_devices;
    for (int32_t r = 0; r < t->num_ranks; r++) { ranks[r] = r; }
    TRY(collective_init(&rank.world, t, ranks, t->num_ranks, (int64_t)(alone ? 1 : 20) * 1000000000));
    CUDA_TRY(cudaGetDeviceCount(&num_devices));
    CUDA_TRY(cudaSetDevice(t->rank % num_devices));
    CUDA_TRY(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking));
    TRY(cuda_device_open(&rank.device, &rank.cuda, rank.stream));
    TRY(alone ? wait_alone(&rank, t->rank) : run_cases(&rank, t->num_ranks, t->rank));
    device_close(&rank.device);
    CUDA_TRY(cudaStreamDestroy(rank.stream));
    collective_free(&rank.world);
    return STATUS_OK;
}

int main(int argc, char** argv) {
    Transport transport;
    Status status = transport_mpi_open(&transport, &argc, &argv);
    if (status == STATUS_OK && transport.num_ranks > RANKS_MAX) { return 1; }
    if (status == STATUS_OK) { status = run(&transport, argc > 1 ? argv[1] : ""); }
    if (status != STATUS_OK) {
        fprintf(stderr, "rank %d: %s\n", transport.rank, status_message());
        transport.api->abort(transport.ctx, "cuda_sums");
        return 1;
    }
    return transport_close(&transport) == STATUS_OK ? 0 : 1;
}
