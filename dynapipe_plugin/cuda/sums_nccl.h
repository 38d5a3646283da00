// sums_nccl.h -- sums of gradients between GPUs by NCCL, queued behind what they sum (run/sums.h).
#pragma once

#include "../run/sums.h"
#include "nccl_world.h"

// Both are borrowed; `world` has the communicators of `tied` (nccl_world_open_holders).
Status sums_nccl_open(Sums* out, const NcclWorld* world, const TiedGroups* tied);
