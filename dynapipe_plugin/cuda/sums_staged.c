#include "sums_staged.h"

#include <stdlib.h>

typedef struct {
    CudaDevice* device;
    Collective* replicas;
    TiedGroups* tied;
    unsigned char* mirror;  // pinned
    int64_t mirror_bytes;
} Staged;

typedef struct {
    int64_t begin, end;  // bytes
} Span;

static Span my_slice(const Staged* s, int64_t num_values, int32_t bytes_per_value) {
    const Collective* c = s->replicas;
    return (Span){collective_slice(num_values, c->num_ranks, c->my_idx) * bytes_per_value,
                  collective_slice(num_values, c->num_ranks, c->my_idx + 1) * bytes_per_value};
}

// Waits: the values are in the mirror, and earlier copies out of it are done too.
static Status download(Staged* s, const void* values, Span span) {
    if (span.end > s->mirror_bytes) {
        return FAIL(STATUS_OUT_OF_RANGE, "sums: %lld bytes, the mirror has %lld", (long long)span.end,
                    (long long)s->mirror_bytes);
    }
    if (span.end > span.begin) {
        CUDA_TRY(cudaMemcpyAsync(s->mirror + span.begin, (const unsigned char*)values + span.begin,
                                 (size_t)(span.end - span.begin), cudaMemcpyDeviceToHost,
                                 s->device->compute));
    }
    CUDA_TRY(cudaStreamSynchronize(s->device->compute));
    return STATUS_OK;
}

static Status upload(const Staged* s, void* values, Span span) {
    if (span.end == span.begin) { return STATUS_OK; }
    CUDA_TRY(cudaMemcpyAsync((unsigned char*)values + span.begin, s->mirror + span.begin,
                             (size_t)(span.end - span.begin), cudaMemcpyHostToDevice, s->device->compute));
    return STATUS_OK;
}

static Status sum_copies(void* ctx, int32_t holders, void* values, int64_t num_values, DynapipeType type) {
    Staged* s = ctx;
    Span all = {0, num_values * collective_type_bytes(type)};
    TRY(download(s, values, all));
    TRY(collective_sum_copies(&s->tied->holders[holders].ranks, s->mirror, num_values, type));
    return upload(s, values, all);
}

static Status reduce_scatter(void* ctx, void* values, int64_t num_values, DynapipeType type) {
    Staged* s = ctx;
    if (s->replicas->num_ranks == 1) { return STATUS_OK; }
    TRY(download(s, values, (Span){0, num_values * collective_type_bytes(type)}));
    TRY(collective_reduce_scatter_sum(s->replicas, s->mirror, num_values, type));
    return upload(s, values, my_slice(s, num_values, collective_type_bytes(type)));
}

static Status all_gather(void* ctx, void* values, int64_t num_values, int32_t bytes_per_value) {
    Staged* s = ctx;
    if (s->replicas->num_ranks == 1) { return STATUS_OK; }
    TRY(download(s, values, my_slice(s, num_values, bytes_per_value)));
    TRY(collective_all_gather(s->replicas, s->mirror, num_values, bytes_per_value));
    return upload(s, values, (Span){0, num_values * bytes_per_value});
}

static void staged_close(void* ctx) {
    Staged* s = ctx;
    if (s->mirror != NULL) { (void)cudaFreeHost(s->mirror); }
    free(s);
}

static const SumsApi staged_sums = {.name = "mpi",
                                    .sum_copies = sum_copies,
                                    .reduce_scatter = reduce_scatter,
                                    .all_gather = all_gather,
                                    .close = staged_close};

Status sums_staged_open(Sums* out, CudaDevice* device, Collective* replicas, TiedGroups* tied,
                        int64_t mirror_bytes) {
    Staged* s = calloc(1, sizeof *s);
    if (s == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for sums"); }
    *s = (Staged){.device = device, .replicas = replicas, .tied = tied, .mirror_bytes = mirror_bytes};
    cudaError_t error =
        mirror_bytes > 0 ? cudaMallocHost((void**)&s->mirror, (size_t)mirror_bytes) : cudaSuccess;
    if (error != cudaSuccess) {
        free(s);
        return FAIL(STATUS_NO_MEMORY, "no pinned memory for %lld bytes of gradients ---> --transport nccl",
                    (long long)mirror_bytes);
    }
    *out = (Sums){&staged_sums, s};
    return STATUS_OK;
}
