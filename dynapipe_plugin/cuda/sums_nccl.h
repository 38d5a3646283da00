// sums_nccl.h -- sums of gradients between GPUs by NCCL, queued behind what they sum (run/sums.h).
#pragma once

#include "../run/sums.h"
#include "nccl_world.h"

// `world` is borrowed.
Status sums_nccl_open(Sums* out, NcclWorld* world);
