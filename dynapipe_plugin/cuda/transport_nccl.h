/*
transport_nccl.h -- activations and gradients between GPUs by NCCL, as run/transport.h has it.

A transfer waits on the device for what the compute stream had queued when it was posted; join() makes the
compute stream wait for the transfer. The host never waits. NCCL knows no tags: messages of two ranks meet in
posting order, which is the same on both sides (plan_check), and sizes are the plan's. A group may have any
transfers that follow each other, as one message to all shares of the head, or one from each.
*/
#pragma once

#include "../run/transport.h"
#include "nccl_world.h"

// `world` is borrowed.
Status transport_nccl_open(Transport* out, NcclWorld* world, int32_t rank, int32_t num_ranks);
