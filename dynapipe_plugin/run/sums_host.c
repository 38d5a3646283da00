// sums_host.c -- sums of arrays in this process's memory: collective.h.
#include <stdlib.h>

#include "sums.h"

typedef struct {
    Collective *replicas, *ends;
} HostSums;

static Status pair_sum(void* ctx, float* values, int64_t num_values) {
    return collective_pair_sum(((HostSums*)ctx)->ends, values, num_values);
}

static Status reduce_scatter(void* ctx, float* values, int64_t num_values) {
    return collective_reduce_scatter_sum(((HostSums*)ctx)->replicas, values, num_values);
}

static Status all_gather(void* ctx, void* values, int64_t num_values, int32_t bytes_per_value) {
    return collective_all_gather(((HostSums*)ctx)->replicas, values, num_values, bytes_per_value);
}

static const SumsApi host_sums = {.name = "host",
                                  .pair_sum = pair_sum,
                                  .reduce_scatter = reduce_scatter,
                                  .all_gather = all_gather,
                                  .close = free};

Status sums_host_open(Sums* out, Collective* replicas, Collective* ends) {
    HostSums* sums = malloc(sizeof *sums);
    if (sums == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for sums"); }
    *sums = (HostSums){.replicas = replicas, .ends = ends};
    *out = (Sums){&host_sums, sums};
    return STATUS_OK;
}
