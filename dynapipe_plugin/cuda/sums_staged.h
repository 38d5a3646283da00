// sums_staged.h -- sums of gradients between GPUs through pinned memory and a host transport (run/sums.h): in
// the fixed order of collective.h, so the same bits in every run.
#pragma once

#include "../run/sums.h"
#include "device_cuda.h"

// All are borrowed. The mirror in pinned memory has room for arrays of at most mirror_bytes.
Status sums_staged_open(Sums* out, CudaDevice* device, Collective* replicas, TiedGroups* tied,
                        int64_t mirror_bytes);
