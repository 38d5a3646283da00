// batching_policies.c -- names of the batching passes, as options and plans have them.
#include "batching_policies.h"

#include "../original/microbatch_dp.h"
#include "microbatch_ragged.h"

const BatchingPolicy batching_policies[BATCHING_COUNT] = {
    [BATCHING_DYNAMIC] = {"dynamic", "sizes and order chosen per step for this pipeline (default)",
                          microbatch_dynamic_build, microbatch_dynamic_candidates},
    [BATCHING_DYNAPIPE] = {"dynapipe",
                           "DynaPipe's own method (EuroSys'24): its dynamic program, orders and schedules",
                           microbatch_dp_build_original, NULL},
    [BATCHING_PACKED] = {"packed", "fixed windows of the longest length; attends across samples",
                         microbatch_packed_build, NULL},
    [BATCHING_PACKED_RAGGED] = {"packed-ragged", "best fit into a fixed token budget, attention per sample",
                                microbatch_packed_ragged_build, NULL},
    [BATCHING_PADDED] = {"padded", "a fixed number of samples, padded to their longest",
                         microbatch_padded_build, NULL},
    [BATCHING_KK] = {"kk", "equal work per micro-batch by largest differencing, small ones at both ends",
                     microbatch_kk_build, NULL},
    [BATCHING_TOKENS] = {"tokens", "a fixed token budget, samples sorted by length", microbatch_tokens_build,
                         NULL},
};
