// sums_host.c -- sums of arrays in this process's memory: collective.h.
#include <stdlib.h>

#include "sums.h"

typedef struct {
    Collective* replicas;
    TiedGroups* tied;
} HostSums;

static Status sum_copies(void* ctx, int32_t holders, void* values, int64_t num_values, DynapipeType type) {
    return collective_sum_copies(&((HostSums*)ctx)->tied->holders[holders].ranks, values, num_values, type);
}

static Status reduce_scatter(void* ctx, void* values, int64_t num_values, DynapipeType type) {
    return collective_reduce_scatter_sum(((HostSums*)ctx)->replicas, values, num_values, type);
}

static Status all_gather(void* ctx, void* values, int64_t num_values, int32_t bytes_per_value) {
    return collective_all_gather(((HostSums*)ctx)->replicas, values, num_values, bytes_per_value);
}

static const SumsApi host_sums = {.name = "host",
                                  .sum_copies = sum_copies,
                                  .reduce_scatter = reduce_scatter,
                                  .all_gather = all_gather,
                                  .close = free};

Status sums_host_open(Sums* out, Collective* replicas, TiedGroups* tied) {
    HostSums* sums = malloc(sizeof *sums);
    if (sums == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for sums"); }
    *sums = (HostSums){.replicas = replicas, .tied = tied};
    *out = (Sums){&host_sums, sums};
    return STATUS_OK;
}
